//! One member of a group: identity, supported protocols, assignment, pending requests, session.
//!
//! A member is what its last JoinGroup said, plus the requests that it waits for: at most one of each kind, since a new
//! one answers the one before with an error. Heartbeats are frequent and only move a deadline; the timer behind it is
//! set again when it fires too early.

use std::sync::Arc;

use super::request::JoinGroup;
use crate::Caller;

/// A protocol that a member supports, with the member's metadata for it.
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
    /// In order of preference, without duplicates.
    pub(super) protocols: Vec<Protocol>,
    pub(super) assignment: Vec<u8>,
    /// The first JoinGroup has not been answered, so the member cannot send heartbeats yet.
    pub(super) is_new: bool,
    /// The pending JoinGroup request.
    pub(super) joining: Option<Caller>,
    /// The pending SyncGroup request.
    pub(super) syncing: Option<Caller>,
    pub(super) session: Session,
}

/// Session deadline. A heartbeat moves only `deadline_ms`; the timer, which is expensive to move, is set again when it
/// fires early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) deadline_ms: u64,
    /// When the timer fires; never after the deadline.
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
        member.update_from(request);
        member
    }

    /// Updates what each JoinGroup carries: timeouts and protocols.
    pub(super) fn update_from(&mut self, request: &JoinGroup<'_>) {
        self.rebalance_timeout_ms = request.rebalance_timeout_ms.max(0).cast_unsigned();
        self.session_timeout_ms = request.session_timeout_ms.max(0).cast_unsigned();
        self.protocols = protocols_of(request);
    }

    /// Whether a request repeats the member's protocols and metadata.
    pub(super) fn matches(&self, request: &JoinGroup<'_>) -> bool {
        self.protocols == protocols_of(request)
    }

    /// Metadata for a protocol; empty if the member does not support it.
    pub(super) fn metadata(&self, protocol: &str) -> &[u8] {
        self.protocols
            .iter()
            .find(|known| &*known.name == protocol)
            .map_or(&[], |known| known.metadata.as_slice())
    }

    /// Whether the member waits for a response, so that it need not send heartbeats.
    pub(super) fn is_awaiting_response(&self) -> bool {
        !self.is_new && (self.joining.is_some() || self.syncing.is_some())
    }

    /// Approximate size in memory and in a record.
    pub(super) fn bytes(&self) -> usize {
        const FIXED: usize = 256;
        let protocols: usize = self.protocols.iter().map(protocol_bytes).sum();
        let names = self.id.len() + self.instance_id.as_ref().map_or(0, |id| id.len());
        FIXED + names + self.client_id.len() + self.client_host.len() + protocols + self.assignment.len()
    }
}

pub(super) fn protocol_bytes(protocol: &Protocol) -> usize {
    const FIXED: usize = 64;
    FIXED + protocol.name.len() + protocol.metadata.len()
}

/// Size of the protocols of a request.
pub(super) fn bytes_of(request: &JoinGroup<'_>) -> usize {
    request.protocols.iter().map(|(name, metadata)| name.len() + metadata.len()).sum()
}

pub(super) fn protocols_of(request: &JoinGroup<'_>) -> Vec<Protocol> {
    let mut protocols: Vec<Protocol> = Vec::with_capacity(request.protocols.len());
    for &(name, metadata) in &request.protocols {
        if protocols.iter().all(|known| &*known.name != name) {
            protocols.push(Protocol { name: name.into(), metadata: metadata.to_vec() });
        }
    }
    protocols
}

/// Maximum number of protocols per member; real clients have a few.
pub(super) const PROTOCOLS_MAX: usize = 64;
