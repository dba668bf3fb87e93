//! What accompanies a message while it is published: who waits for it, and which targets it is for.

use std::sync::Arc;

use mainstem_mqtt::ReasonCode;

use crate::journal::entry::Origin;
use crate::pending_acks::AckToken;
use crate::qos2_recovery::PartialPublish;

/// First byte of each acknowledgement of a PUBLISH.
pub(super) const PUBACK: u8 = 0x40;
pub(super) const PUBREC: u8 = 0x50;
pub(super) const PUBREL: u8 = 0x62;
pub(super) const PUBCOMP: u8 = 0x70;

/// Who waits for a publish, and which targets miss it.
#[derive(Clone, Debug, Default)]
pub(super) struct PublishContext {
    /// The pending ack for which other shards send receipts.
    pub(super) token: Option<AckToken>,
    /// Set for a QoS 2 publish of a durable session.
    pub(super) origin: Option<Origin>,
    /// Set if some targets had the publish before it was interrupted.
    pub(super) partial: Option<Arc<PartialPublish>>,
}

/// Who waits for a message of a shared subscription.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GroupContext {
    /// Number of members that were tried before.
    pub(super) tried: u8,
    pub(super) token: Option<AckToken>,
    pub(super) origin: Option<Origin>,
}

/// What became of a published message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Published {
    /// It has receivers.
    Routed,
    /// Nobody subscribes to its topic.
    NoSubscribers,
    /// It was routed, but could not be retained.
    NotRetained,
}

impl Published {
    /// Reason code of the acknowledgement.
    pub(super) fn reason(self) -> ReasonCode {
        match self {
            Self::Routed => ReasonCode::Success,
            Self::NoSubscribers => ReasonCode::NoMatchingSubscribers,
            Self::NotRetained => ReasonCode::QuotaExceeded,
        }
    }
}
