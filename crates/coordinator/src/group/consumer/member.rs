//! One member of a group of the consumer protocol: its subscription, its partitions, its target.
//!
//! The epoch of a member tells which target it has reached. It moves on when the member has nothing left to give up:
//! then it gets what is free of its target at once, and the rest in later heartbeats.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::assignor::Assignor;
use super::partitions::{Partitions, TopicPartition};
use super::request::ConsumerHeartbeat;
use super::subscription::Subscription;
use crate::group::member::{Protocol, Session, protocol_bytes};

/// Epoch of a static member that has left and may return.
pub(super) const LEFT_STATIC: i32 = -2;

/// How far a member is on the way to its target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Progress {
    /// It has the whole target of its epoch.
    #[default]
    Stable,
    /// It must confirm that it has given up partitions.
    Revoking,
    /// It has reached the epoch of the target, but other members still hold some of its partitions.
    Waiting,
}

/// What only a member of the classic protocol has.
#[derive(Clone, Debug)]
pub(super) struct ClassicMember {
    pub(super) session_timeout_ms: u32,
    /// In order of preference.
    pub(super) protocols: Vec<Protocol>,
}

#[derive(Clone, Debug)]
pub(in crate::group) struct ConsumerMember {
    pub(in crate::group) id: Arc<str>,
    pub(super) instance_id: Option<Arc<str>>,
    pub(super) rack_id: Option<String>,
    pub(super) client_id: String,
    pub(super) client_host: String,
    pub(super) rebalance_timeout_ms: u32,
    pub(super) subscription: Arc<Subscription>,
    pub(super) assignor: Option<Assignor>,
    /// Set if the client uses the classic protocol.
    pub(super) classic: Option<ClassicMember>,
    pub(super) epoch: i32,
    /// The epoch before, which a member sends that has not received the response with the current one.
    pub(super) previous_epoch: i32,
    pub(super) progress: Progress,
    pub(super) assigned: Partitions,
    /// The epoch in which it got each partition that it holds (KIP-1251).
    pub(super) since: BTreeMap<TopicPartition, i32>,
    /// Taken from `assigned`; nobody else gets them before the member has confirmed that.
    pub(super) revoking: Partitions,
    pub(super) target: Partitions,
    pub(in crate::group) session: Session,
    /// When the member must have confirmed, ms since 1970.
    pub(in crate::group) revocation_deadline_ms: Option<u64>,
}

impl ConsumerMember {
    pub(super) fn new(id: Arc<str>) -> Self {
        Self {
            id,
            instance_id: None,
            rack_id: None,
            client_id: String::new(),
            client_host: String::new(),
            rebalance_timeout_ms: 0,
            subscription: Arc::default(),
            assignor: None,
            classic: None,
            epoch: 0,
            previous_epoch: 0,
            progress: Progress::Stable,
            assigned: Partitions::new(),
            since: BTreeMap::new(),
            revoking: Partitions::new(),
            target: Partitions::new(),
            session: Session::default(),
            revocation_deadline_ms: None,
        }
    }

    /// Whether a heartbeat says anything new about the member, apart from its subscription.
    pub(super) fn is_changed_by(&self, request: &ConsumerHeartbeat<'_>) -> bool {
        let assignor = request.assignor.and_then(Assignor::by_name);
        u32::try_from(request.rebalance_timeout_ms)
            .is_ok_and(|timeout_ms| timeout_ms != self.rebalance_timeout_ms)
            || assignor.is_some() && assignor != self.assignor
            || request.rack_id.is_some() && request.rack_id != self.rack_id.as_deref()
            || request.client_id != self.client_id
            || request.client_host != self.client_host
    }

    /// Takes over what a heartbeat says about the member, except its subscription. Fields that it leaves out stay.
    pub(super) fn update_from(&mut self, request: &ConsumerHeartbeat<'_>) {
        if let Ok(rebalance_timeout_ms) = u32::try_from(request.rebalance_timeout_ms) {
            self.rebalance_timeout_ms = rebalance_timeout_ms;
        }
        self.assignor = request.assignor.and_then(Assignor::by_name).or(self.assignor);
        self.rack_id = request.rack_id.map(str::to_owned).or_else(|| self.rack_id.take());
        request.client_id.clone_into(&mut self.client_id);
        request.client_host.clone_into(&mut self.client_host);
    }

    /// The protocol that the coordinator names to a member of the classic protocol.
    pub(super) fn classic_protocol(&self) -> Option<&Protocol> {
        self.classic.as_ref()?.protocols.first()
    }

    /// Session timeout, ms.
    pub(super) fn session_timeout_ms(&self, default_ms: u32) -> u64 {
        self.classic.as_ref().map_or(default_ms, |classic| classic.session_timeout_ms).into()
    }

    /// Whether the member has the whole target of an epoch.
    pub(super) fn has_reached(&self, epoch: i32) -> bool {
        self.progress == Progress::Stable && self.epoch == epoch
    }

    /// The partitions that nobody else may get.
    pub(super) fn held(&self) -> impl Iterator<Item = &TopicPartition> {
        self.assigned.iter().chain(&self.revoking)
    }

    /// Moves to an epoch.
    pub(super) fn advance_to(&mut self, epoch: i32) {
        if self.epoch != epoch {
            self.previous_epoch = std::mem::replace(&mut self.epoch, epoch);
        }
    }

    /// Gives up everything: the member has begun again, and has said that it owns nothing.
    pub(super) fn reset_for_rejoin(&mut self) {
        (self.epoch, self.previous_epoch, self.progress) = (0, 0, Progress::Stable);
        self.assigned.clear();
        self.since.clear();
        self.revoking.clear();
    }

    /// Approximate size in memory and in a record, without partitions.
    pub(super) fn bytes(&self) -> usize {
        const FIXED: usize = 512;
        let optional = |text: Option<&str>| text.map_or(0, str::len);
        let names =
            2 * self.id.len() + optional(self.instance_id.as_deref()) + optional(self.rack_id.as_deref());
        let protocols = self.classic.iter().flat_map(|classic| &classic.protocols).map(protocol_bytes);
        FIXED + names + self.client_id.len() + self.client_host.len() + protocols.sum::<usize>()
    }
}
