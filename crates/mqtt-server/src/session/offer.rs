//! A message on offer to one session, and the delivery that it becomes.
//!
//! An offer borrows all it has and is copied freely; it becomes a [`Delivery`] only if the session keeps it, which most
//! sessions of a large fan-out do not. What few deliveries have is boxed, so that the others are small.

use std::sync::Arc;

use mainstem_mqtt::QoS;

use crate::groups::Group;
use crate::message::Message;

/// A message for one subscriber.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    /// `None` while it is only in the journal, or no longer needed.
    pub(crate) message: Option<Arc<Message>>,
    /// Number among the session's deliveries in its journal; 0 if the journal does not have it.
    pub(crate) sequence: u64,
    /// Offset of the message in the journal.
    pub(crate) offset: u64,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) extra: Option<Box<Extra>>,
}

/// What only few deliveries have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extra {
    /// Subscription Identifiers.
    pub(crate) ids: Vec<u32>,
    /// The shared subscription that it came by.
    pub(crate) group: Option<Arc<Group>>,
}

impl PartialEq for Extra {
    fn eq(&self, other: &Self) -> bool {
        let same_group = match (&self.group, &other.group) {
            (None, None) => true,
            (Some(mine), Some(theirs)) => Arc::ptr_eq(mine, theirs),
            _ => false,
        };
        same_group && self.ids == other.ids
    }
}

impl Delivery {
    /// Size of the message, as limits count it; 0 if it is not in memory.
    #[inline]
    pub(crate) fn size(&self) -> u64 {
        self.message.as_ref().map_or(0, |message| message.size() as u64)
    }

    /// What it costs the session that keeps it.
    #[inline]
    pub(crate) fn memory(&self) -> u64 {
        let extra = self.extra.as_ref().map_or(0, |extra| size_of::<Extra>() + size_of_val(&*extra.ids));
        self.size() + extra as u64
    }

    pub(crate) fn ids(&self) -> &[u32] {
        self.extra.as_ref().map_or(&[], |extra| &extra.ids)
    }

    pub(crate) fn group(&self) -> Option<&Arc<Group>> {
        self.extra.as_ref()?.group.as_ref()
    }
}

/// A message for one subscriber that may be sent, queued or dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer<'a> {
    pub(crate) message: &'a Arc<Message>,
    /// The lower of the message's QoS and the subscription's.
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) ids: &'a [u32],
    pub(crate) group: Option<&'a Arc<Group>>,
    /// A replay of retained messages has found it.
    pub(crate) is_replayed: bool,
    /// Many other sessions of the shard get the message now.
    pub(crate) is_fan_out: bool,
}

impl Offer<'_> {
    pub(crate) fn into_delivery(self, place: Place) -> Delivery {
        Delivery {
            message: Some(Arc::clone(self.message)),
            sequence: place.sequence,
            offset: place.offset,
            qos: self.qos,
            retain: self.retain,
            extra: self.extra(),
        }
    }

    pub(crate) fn deferred(&self, slot: u32) -> Deferred {
        let (ids, group) = (self.ids.to_vec(), self.group.cloned());
        Deferred { slot, qos: self.qos, retain: self.retain, ids, group }
    }

    pub(crate) fn extra(&self) -> Option<Box<Extra>> {
        let plain = self.ids.is_empty() && self.group.is_none();
        let extra = || Box::new(Extra { ids: self.ids.to_vec(), group: self.group.cloned() });
        (!plain).then(extra)
    }
}

/// Position of a delivery in a journal; all zero if it is in none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    pub(crate) sequence: u64,
    pub(crate) offset: u64,
}

/// A message that one session gets later in the turn, when an older one has been appended before it.
#[derive(Debug)]
pub(crate) struct Deferred {
    pub(crate) slot: u32,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) ids: Vec<u32>,
    pub(crate) group: Option<Arc<Group>>,
}
