//! The account of a session: how many bytes the broker keeps for it, with a limit.
//!
//! Limits by number do not bound memory: a filter may have 64 KiB, a will a whole packet. So everything that a session
//! keeps has a cost in bytes, and what would exceed `mqtt.max_session_bytes` is refused. Costs of subscriptions are
//! constants and lengths rather than measured, so that what is added and what is removed later are the same.
//!
//! What only the session holds is charged to the memory budget of the process. Messages charge themselves, once however
//! many sessions they wait for; the account of each of these sessions counts them in full.

use mainstem_mqtt::QoS;
use mainstem_mqtt::session::Acked;
use mainstem_runtime::{MemoryCharge, MemoryMeter};
use mainstem_topic::{has_wildcard, level_count};

use super::Session;
use super::offer::{Delivery, Offer};
use super::queue::RUN_BYTES;

/// Memory of a session besides what it keeps: its slot, and its place in the registry of client identifiers.
const SESSION_BYTES: usize = size_of::<Session>() + 96;
/// Memory of a subscription besides its text: its places in the index, the router and the session, and the state of a
/// replay of retained messages.
const SUBSCRIPTION_BYTES: usize = 480;
/// Copies of the text: one in the index or the group, two in a replay of retained messages or the index of groups.
const TEXT_COPIES: usize = 3;
/// Memory of one level of a filter with wildcards: a node of the index, an interned level, a part of a shape.
const LEVEL_BYTES: usize = 160;

/// Messages in flight that always have room, bytes.
const IN_FLIGHT_BYTES_MIN: u64 = 64 * 1024;

/// What a session without anything costs, bytes.
pub(crate) fn new_session_cost(client_id: &str) -> u64 {
    (SESSION_BYTES + client_id.len()) as u64
}

/// What a subscription to `filter` costs, bytes. `share_name` is that of its group; empty for none.
pub(crate) fn subscription_cost(filter: &str, share_name: &str) -> usize {
    let levels = if has_wildcard(filter) { level_count(filter) } else { 0 };
    SUBSCRIPTION_BYTES + TEXT_COPIES * filter.len() + share_name.len() + levels * LEVEL_BYTES
}

/// What a session keeps, in parts that are counted as they change.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// What only the session holds.
    charge: MemoryCharge,
    /// Cost of all subscriptions.
    subscriptions: usize,
    /// Messages in flight that are kept for being sent again.
    in_flight: u64,
    has_refused: bool,
}

impl Account {
    pub(super) fn new(meter: &MemoryMeter) -> Self {
        Self { charge: meter.charge(0), ..Self::default() }
    }

    /// Moves the charge of the subscriptions to a new account.
    pub(super) fn split_subscriptions(&mut self) -> Self {
        let subscriptions = std::mem::take(&mut self.subscriptions);
        self.charge.set(self.charge.bytes().saturating_sub(subscriptions));
        let charge = self.charge.meter().charge(SESSION_BYTES + subscriptions);
        Self { charge, subscriptions, ..Self::default() }
    }
}

impl Session {
    /// What the broker keeps for the session in memory, bytes.
    pub(crate) fn memory(&self) -> u64 {
        let ext = self.ext.as_ref().map_or(0, |ext| ext.will.bytes() + ext.acks.bytes());
        self.account.charge.bytes() as u64 + self.account.in_flight + self.queue.memory() + ext
    }

    /// Whether it may keep `bytes` more within the limit of a session.
    #[inline]
    pub(crate) fn has_room_for(&self, bytes: u64, bytes_max: u64) -> bool {
        self.memory() + bytes <= bytes_max
    }

    /// Whether it may keep another message of `bytes` in flight. One always has room, or nothing would ever leave, and
    /// so do a few small ones, which need no closer look.
    #[inline]
    pub(crate) fn has_room_in_flight(&self, bytes: u64, bytes_max: u64) -> bool {
        let in_flight = self.account.in_flight;
        in_flight == 0 || in_flight + bytes <= IN_FLIGHT_BYTES_MIN || self.has_room_for(bytes, bytes_max)
    }

    /// Whether a message on offer may be sent at once. QoS 0 is not kept.
    #[inline]
    pub(super) fn takes_in_flight(&self, offer: &Offer<'_>, bytes_max: u64) -> bool {
        offer.qos == QoS::AtMostOnce || self.has_room_in_flight(offer.message.size() as u64, bytes_max)
    }

    /// Whether another message of `size` bytes may be queued. A durable session can leave it on disk.
    pub(super) fn has_room_in_queue(&self, size: u64, bytes_max: u64) -> bool {
        self.has_room_for(if self.is_durable() { RUN_BYTES as u64 } else { size }, bytes_max)
    }

    /// Notes that something was refused because the account is full. True for the first time.
    pub(crate) fn refuses_first(&mut self) -> bool {
        !std::mem::replace(&mut self.account.has_refused, true)
    }

    /// Counts a new subscription, see [`subscription_cost`].
    pub(crate) fn count_subscription(&mut self, cost: usize) {
        self.account.subscriptions += cost;
        self.update_charge();
    }

    /// A subscription that was counted is gone.
    pub(crate) fn discount_subscription(&mut self, cost: usize) {
        debug_assert!(self.account.subscriptions >= cost, "each subscription was counted");
        self.account.subscriptions = self.account.subscriptions.saturating_sub(cost);
        self.update_charge();
    }

    /// Charges what only the session holds, after any of it has changed.
    pub(crate) fn update_charge(&mut self) {
        let replays = self.ext.as_ref().map_or(0, |ext| ext.retained.bytes());
        self.account.charge.set(SESSION_BYTES + self.client_id.len() + self.account.subscriptions + replays);
    }

    /// A delivery enters the window and is kept there.
    #[inline]
    pub(super) fn count_in_flight(&mut self, delivery: &Delivery) {
        self.account.in_flight += delivery.memory();
    }

    /// Deliveries have left the window.
    #[inline]
    pub(super) fn discount_in_flight(&mut self, deliveries: &[Delivery]) {
        for delivery in deliveries {
            let left = self.account.in_flight.checked_sub(delivery.memory());
            debug_assert!(left.is_some(), "each delivery in flight was counted");
            self.account.in_flight = left.unwrap_or(0);
        }
    }

    /// Discounts the delivery that an acknowledgement has taken out of the window.
    #[inline]
    pub(super) fn discount_acked(&mut self, acked: &Acked<Delivery>) {
        if let Acked::Done(Some(delivery)) | Acked::Release(Some(delivery)) = acked {
            self.discount_in_flight(std::slice::from_ref(delivery));
        }
    }

    /// Counts all messages in flight anew, after many of them have changed.
    pub(super) fn recount_in_flight(&mut self) {
        self.account.in_flight = self.window.messages().map(|(delivery, _)| delivery.memory()).sum();
    }

    /// Recomputes the account from what the session keeps; `subscriptions` is the cost of all subscriptions. Returns
    /// what the account says, and what it should say.
    pub(crate) fn recomputed_memory(&self, subscriptions: usize) -> (u64, u64) {
        let in_flight: u64 = self.window.messages().map(|(delivery, _)| delivery.memory()).sum();
        let queued = self.queue.recomputed_memory();
        let (replays, ext) = self.ext.as_ref().map_or((0, 0), |ext| {
            (ext.retained.recomputed_bytes(), ext.will.bytes() + ext.acks.recomputed_bytes())
        });
        let own = new_session_cost(&self.client_id) + (subscriptions + replays) as u64;
        (self.memory(), own + in_flight + queued + ext)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_of_a_filter_grows_with_its_text_and_its_wildcard_levels() {
        let plain = subscription_cost("a/b", "");
        assert_eq!(subscription_cost("a/bcd", ""), plain + 2 * TEXT_COPIES);
        assert_eq!(subscription_cost("a/b", "group"), plain + 5);
        assert_eq!(subscription_cost("a/+", ""), plain + 2 * LEVEL_BYTES);
    }
}
