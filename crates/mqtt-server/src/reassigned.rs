//! Deliveries of shared subscriptions that a session has passed on to other members.
//!
//! Until such a delivery is durable with its new receiver, a snapshot of the journal contains it as if the session
//! still had it: a crash may then deliver it twice, at QoS 1, but never lose it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use crate::message::{Message, SessionKey};
use crate::session::offer::Delivery;

#[derive(Clone, Debug)]
struct Reassigned {
    delivery: Delivery,
    /// It had been sent to the client of the session that passed it on.
    was_sent: bool,
    /// The new receiver could not make it durable.
    has_failed: bool,
}

/// Sessions with deliveries or a will that could not be made durable elsewhere, until no disk fails any more.
#[derive(Debug, Default)]
pub(crate) struct UnconfirmedSessions {
    keys: Vec<SessionKey>,
}

impl UnconfirmedSessions {
    pub(crate) fn add(&mut self, key: SessionKey) {
        if self.keys.last() != Some(&key) {
            self.keys.push(key);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(crate) fn take(&mut self) -> Vec<SessionKey> {
        std::mem::take(&mut self.keys)
    }
}

/// The deliveries that one session has passed on, oldest first.
#[derive(Debug, Default)]
pub(crate) struct ReassignedDeliveries {
    deliveries: VecDeque<Reassigned>,
}

impl ReassignedDeliveries {
    pub(crate) fn is_empty(&self) -> bool {
        self.deliveries.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.deliveries.len()
    }

    pub(crate) fn push(&mut self, delivery: Delivery, was_sent: bool) {
        self.deliveries.push_back(Reassigned { delivery, was_sent, has_failed: false });
    }

    /// The delivery is durable with its new receiver.
    pub(crate) fn confirm(&mut self, sequence: u64) {
        // In order: the oldest are confirmed first most of the time.
        let index = self.deliveries.iter().position(|known| known.delivery.sequence == sequence);
        if let Some(index) = index {
            self.deliveries.remove(index);
        }
    }

    /// The new receiver has the delivery in memory only, until the disk recovers.
    pub(crate) fn fail(&mut self, sequence: u64) {
        for known in self.deliveries.iter_mut().filter(|known| known.delivery.sequence == sequence) {
            known.has_failed = true;
        }
    }

    /// Sequence numbers of the deliveries that failed.
    pub(crate) fn failed(&self) -> Vec<u64> {
        let failed = self.deliveries.iter().filter(|known| known.has_failed);
        failed.map(|known| known.delivery.sequence).collect()
    }

    /// The deliveries, and whether each had been sent.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Delivery, bool)> {
        self.deliveries.iter().map(|known| (&known.delivery, known.was_sent))
    }

    /// Updates the offset of each delivery for which `relocated` returns one.
    pub(crate) fn relocate(&mut self, mut relocated: impl FnMut(u64, Option<&Arc<Message>>) -> Option<u64>) {
        for Reassigned { delivery, .. } in &mut self.deliveries {
            if let Some(offset) = relocated(delivery.offset, delivery.message.as_ref()) {
                delivery.offset = offset;
            }
        }
    }

    /// Removes the deliveries of messages at these offsets.
    pub(crate) fn remove_at(&mut self, offsets: &BTreeSet<u64>) {
        self.deliveries.retain(|known| !offsets.contains(&known.delivery.offset));
    }
}
