//! One member of a group.

use std::sync::Arc;

use super::request::JoinGroup;
use crate::Caller;

/// A protocol that a member speaks, and what it says of itself there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Protocol {
    pub(super) name: Arc<str>,
    pub(super) metadata: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) id: Arc<str>,
    pub(super) instance_id: Option<Arc<str>>,
    pub(super) client_id: String,
    pub(super) client_host: String,
    pub(super) rebalance_timeout_ms: u32,
    pub(super) session_timeout_ms: u32,
    /// The best first, no name twice.
    pub(super) protocols: Vec<Protocol>,
    pub(super) assignment: Vec<u8>,
    /// It has not been answered yet, so it cannot send heartbeats, and is gone if its join takes too long.
    pub(super) is_new: bool,
    /// Who waits for the answer to JoinGroup.
    pub(super) joining: Option<Caller>,
    /// Who waits for the answer to SyncGroup.
    pub(super) syncing: Option<Caller>,
    pub(super) session: Session,
}

/// When a member is gone if nothing is heard of it. A heartbeat moves the deadline; the timer, which is dearer to
/// move, only when it rings too early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) deadline_ms: u64,
    /// When the timer rings; not behind the deadline.
    pub(super) timer_ms: Option<u64>,
}

impl Member {
    pub(super) fn new(id: Arc<str>, request: &JoinGroup<'_>) -> Self {
        let mut member = Self {
            id,
            instance_id: request.instance_id.map(Arc::from),
            client_id: request.client_id.to_owned(),
            client_host: request.client_host.to_owned(),
            rebalance_timeout_ms: 0,
            session_timeout_ms: 0,
            protocols: Vec::new(),
            assignment: Vec::new(),
            is_new: false,
            joining: None,
            syncing: None,
            session: Session::default(),
        };
        member.take_over(request);
        member
    }

    /// What a member says anew with each JoinGroup.
    pub(super) fn take_over(&mut self, request: &JoinGroup<'_>) {
        self.rebalance_timeout_ms = request.rebalance_timeout_ms.max(0).cast_unsigned();
        self.session_timeout_ms = request.session_timeout_ms.max(0).cast_unsigned();
        self.protocols = protocols_of(request);
    }

    /// Whether a request says what the member has said before.
    pub(super) fn matches(&self, request: &JoinGroup<'_>) -> bool {
        self.protocols == protocols_of(request)
    }

    /// What it says of itself in a protocol.
    pub(super) fn metadata(&self, protocol: &str) -> &[u8] {
        self.protocols
            .iter()
            .find(|known| &*known.name == protocol)
            .map_or(&[], |known| known.metadata.as_slice())
    }

    /// Silence means nothing while it is the coordinator's turn to answer.
    pub(super) fn may_be_silent(&self) -> bool {
        !self.is_new && (self.joining.is_some() || self.syncing.is_some())
    }

    /// About what it takes in memory and in a record.
    pub(super) fn bytes(&self) -> usize {
        const FIXED: usize = 256;
        let protocols: usize = self.protocols.iter().map(protocol_bytes).sum();
        let names = self.id.len() + self.instance_id.as_ref().map_or(0, |id| id.len());
        FIXED + names + self.client_id.len() + self.client_host.len() + protocols + self.assignment.len()
    }
}

fn protocol_bytes(protocol: &Protocol) -> usize {
    const FIXED: usize = 64;
    FIXED + protocol.name.len() + protocol.metadata.len()
}

/// What the protocols of a request would take in a member.
pub(super) fn bytes_of(request: &JoinGroup<'_>) -> usize {
    request.protocols.iter().map(|(name, metadata)| name.len() + metadata.len()).sum()
}

fn protocols_of(request: &JoinGroup<'_>) -> Vec<Protocol> {
    let mut protocols: Vec<Protocol> = Vec::with_capacity(request.protocols.len());
    for &(name, metadata) in &request.protocols {
        if protocols.iter().all(|known| &*known.name != name) {
            protocols.push(Protocol { name: name.into(), metadata: metadata.to_vec() });
        }
    }
    protocols
}

/// Protocols that a member can have; clients have a few.
pub(super) const PROTOCOLS_MAX: usize = 64;
