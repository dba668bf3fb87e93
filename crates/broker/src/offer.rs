//! A message on offer to one session, and what becomes of it.

use std::sync::Arc;

use mainstem_mqtt::QoS;

use crate::groups::Group;
use crate::message::Message;
use crate::session::{Delivery, Extra};

/// A message for one subscriber, before it is known whether it can be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer<'a> {
    pub(crate) message: &'a Arc<Message>,
    /// The lower of the message's QoS and the subscription's.
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) ids: &'a [u32],
    pub(crate) group: Option<&'a Arc<Group>>,
    /// It was met on a walk through the retained messages.
    pub(crate) walked: bool,
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

/// What a journal calls a delivery; all zero for one that it does not know.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    pub(crate) sequence: u64,
    pub(crate) offset: u64,
}

/// A message that one session gets later in the turn, when an older one has been entered before it.
#[derive(Debug)]
pub(crate) struct Deferred {
    pub(crate) slot: u32,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) ids: Vec<u32>,
    pub(crate) group: Option<Arc<Group>>,
}
