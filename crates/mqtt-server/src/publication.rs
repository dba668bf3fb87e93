//! What accompanies a message while it is published: who waits for it, and which targets it is for.

use std::sync::Arc;

use mainstem_mqtt::ReasonCode;

use crate::journal::entry::Origin;
use crate::pending_acks::AckToken;
use crate::qos2_recovery::PartialPublish;

/// First byte of each acknowledgement of a PUBLISH.
pub(crate) const PUBACK: u8 = 0x40;
pub(crate) const PUBREC: u8 = 0x50;
pub(crate) const PUBREL: u8 = 0x62;
pub(crate) const PUBCOMP: u8 = 0x70;

/// Who waits for a publish, and which targets miss it.
#[derive(Clone, Debug, Default)]
pub(crate) struct PublishContext {
    /// The pending ack for which other shards send receipts.
    pub(crate) token: Option<AckToken>,
    /// Set for a QoS 2 publish of a durable session.
    pub(crate) origin: Option<Origin>,
    /// Set if some targets had the publish before it was interrupted.
    pub(crate) partial: Option<Arc<PartialPublish>>,
}

/// Who waits for a message of a shared subscription.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GroupContext {
    /// Number of members that were tried before.
    pub(crate) tried: u8,
    pub(crate) token: Option<AckToken>,
    pub(crate) origin: Option<Origin>,
}

/// What became of a published message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Published {
    /// It has receivers.
    Routed,
    /// Nobody subscribes to its topic.
    NoSubscribers,
    /// It was routed, but could not be retained.
    NotRetained,
}

impl Published {
    /// Reason code of the acknowledgement.
    pub(crate) fn reason(self) -> ReasonCode {
        match self {
            Self::Routed => ReasonCode::Success,
            Self::NoSubscribers => ReasonCode::NoMatchingSubscribers,
            Self::NotRetained => ReasonCode::QuotaExceeded,
        }
    }
}
