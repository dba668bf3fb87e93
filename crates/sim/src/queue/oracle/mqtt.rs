//! Deliveries to MQTT subscribers.
//!
//! A subscriber sees neither its lease nor a reply to its PUBACK. The time of a delivery is known only from when it
//! arrived, and an acknowledgement may be lost.

use mainstem_queue_core::{Disposition, GroupName, Receipt, Settlement};

use super::Oracle;
use crate::Violation;
use crate::queue::group::Lease;
use crate::queue::subscriber::HeldDelivery;

/// Consumer numbers of subscribers start here.
const CONSUMERS_FROM: u64 = 2_000_000_000;
/// An acknowledgement within this time is in time: leases last 30 seconds.
const SOON_MS: u64 = 5_000;

impl Oracle {
    /// A subscriber has received a message.
    pub(crate) fn published(
        &mut self,
        queue: usize,
        name: &GroupName,
        number: u64,
        delivery: &HeldDelivery,
        payload: &[u8],
    ) -> Result<(), Violation> {
        let at = self.tick();
        self.delivered += 1;
        self.group(queue, name).apply_resets();
        let id = self.message_of(queue, Some(payload))?;
        let state = &self.queues[queue];
        let queue_name = state.plan.name.clone();
        let fault = |words: String| {
            Violation(format!("{queue_name}, {name}, by MQTT: message {id}: {words}; {delivery:?}"))
        };
        if self.messages[id].is_refused() {
            return Err(fault("it was refused and is delivered".to_owned()));
        }
        if let Some(other) = state.stored.get(&delivery.offset).filter(|stored| stored.message != id) {
            return Err(fault(format!("it stands where {other:?} stood")));
        }
        self.queues[queue].by_message.entry(id).or_default().insert(delivery.offset);
        let state = &self.queues[queue];
        let lease = Lease {
            incarnation: self.incarnation,
            count: delivery.count,
            // No receipt has this number.
            queue_incarnation: u32::MAX - u32::try_from(at % 1_000_000_000).unwrap_or_default(),
            // This is the latest possible time.
            granted_ms: delivery.received_ms,
            until_ms: 0,
            consumer: CONSUMERS_FROM + number,
            is_back: true,
            received_at: at,
        };
        let (is_single, most) = (state.plan.is_single, state.plan.max_deliveries);
        let group = self.group(queue, name);
        // The delivery may be from before that.
        if group.may_have_changed() {
            group.unanswered += 1;
        } else {
            let epoch = group.epoch;
            group.deliver(delivery.offset, &lease, epoch, (u64::MAX, is_single, most)).map_err(fault)?;
        }
        group.is_there(at);
        Ok(())
    }

    /// A subscriber settles a message.
    pub(crate) fn settled_by_puback(
        &mut self,
        queue: usize,
        name: &GroupName,
        delivery: &HeldDelivery,
        disposition: Disposition,
        (now_ms, is_troubled): (u64, bool),
    ) {
        let incarnation = self.incarnation;
        let group = self.group(queue, name);
        let receipt = Receipt { offset: delivery.offset, count: delivery.count, incarnation: 0 };
        group.settling(&Settlement { receipt, disposition }, now_ms);
        let is_end = matches!(disposition, Disposition::Ack | Disposition::Reject);
        if is_end && !is_troubled && !group.may_have_changed() && now_ms - delivery.received_ms <= SOON_MS {
            group.ended(delivery.offset, (incarnation, delivery.count));
        }
    }
}
