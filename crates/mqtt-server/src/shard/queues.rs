//! Queue subscriptions of sessions, as other protocols see them: deliveries, refusals, and the requests of each turn.
//!
//! Queues live outside this crate, perhaps on another shard. `mainstem-node` takes the requests of all consumers from
//! [`Shard::take_queue_requests`] once per turn, and brings leased messages by [`Shard::deliver_from_queue`]. The
//! SUBACK waits until the queue has accepted the consumer, so that it can carry an error.

use mainstem_mqtt::ReasonCode;
use mainstem_queue_core::QueueError;
use mainstem_runtime::Io;

use super::Shard;
use crate::broker_state::Mail;
use crate::journal::entry::Entry;
use crate::pending_acks::AckCondition;
use crate::queue_consumers::{QueueDelivery, QueueRequest, suback_reason};

impl Shard {
    /// Whether consumers have requests to their queues.
    pub fn has_queue_requests(&self) -> bool {
        self.host.has_queue_requests()
    }

    /// Takes the requests of consumers to their queues, in the order in which queues have to see them: settlements come
    /// before requests for messages.
    pub fn take_queue_requests(&mut self, io: &mut Io<'_, Mail>) -> Vec<QueueRequest> {
        self.host.take_queue_requests(io)
    }

    /// Ends a queue subscription. Its deliveries can still be acknowledged.
    pub(super) fn unsubscribe_from_queue(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        filter: &str,
    ) -> ReasonCode {
        let Some(mut removed) = self.host.remove_queue_subscription(slot, filter) else {
            return ReasonCode::NoSubscriptionExisted;
        };
        self.release_subacks(io, slot, removed.take_subacks(), None);
        ReasonCode::Success
    }

    /// A queue answers the request of a consumer; the messages follow by [`Shard::deliver_from_queue`]. False if the
    /// consumer is gone: then it takes none of them.
    pub fn confirm_consumer(&mut self, io: &mut Io<'_, Mail>, consumer: u64) -> bool {
        let Some((key, consumers)) = self.host.find_consumers(consumer) else { return false };
        let Some(subscription) = consumers.find(consumer) else { return false };
        let subacks = subscription.confirm();
        self.host.schedule_consumers(key.slot);
        self.release_subacks(io, key.slot, subacks, None);
        self.host.has_consumer(consumer)
    }

    /// A queue refuses the request of a consumer. The consumer asks again after a while, unless its SUBACK still waits:
    /// then that refuses the subscription.
    pub fn refuse_consumer(&mut self, io: &mut Io<'_, Mail>, consumer: u64, error: &QueueError) {
        let Some((key, consumers)) = self.host.find_consumers(consumer) else { return };
        let Some(subscription) = consumers.find(consumer) else { return };
        let (has_suback, is_first) = subscription.refuse(io.clock.now_ms);
        let filter: Box<str> = subscription.filter().into();
        if is_first {
            let client_id = self.host.session(key.slot).client_id();
            log::warn!("client {client_id:?} gets nothing from {filter:?}: {error}");
        }
        if !has_suback {
            return self.host.retry_consumers_later(io, key);
        }
        let before = self.host.persistence().position();
        let removed = self.host.remove_queue_subscription(key.slot, &filter);
        if let Some((mut journal, session)) = self.host.journal(key.slot) {
            journal.push(&Entry::Unsubscribe { session, filter: &filter });
        }
        let wait = self.host.persistence().condition_since(before);
        let subacks = removed.map(|mut removed| removed.take_subacks()).unwrap_or_default();
        self.release_subacks(io, key.slot, subacks, Some((suback_reason(error), wait)));
    }

    fn release_subacks(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        subacks: Vec<(u64, usize)>,
        refused: Option<(ReasonCode, AckCondition)>,
    ) {
        if !subacks.is_empty() {
            self.host.release_subacks(slot, subacks, refused);
            self.send_pending_acks(io, slot);
        }
    }

    /// Sends a message that a queue has leased to a consumer, or holds it until there is room. False if the consumer is
    /// gone: then the message is not taken.
    pub fn deliver_from_queue(
        &mut self,
        io: &mut Io<'_, Mail>,
        consumer: u64,
        delivery: &QueueDelivery<'_>,
    ) -> bool {
        let Some((key, consumers)) = self.host.find_consumers(consumer) else { return false };
        let is_sent = !consumers.is_holding(consumer)
            && self.host.encode_from_queue(io, key.slot, |consumers, client, output| {
                let encoded = consumers.encode(consumer, delivery, client, output);
                (encoded, delivery.payload.len())
            });
        if is_sent {
            return true;
        }
        let meter = self.publisher.meter().clone();
        if let Some((_, consumers)) = self.host.find_consumers(consumer) {
            consumers.hold(consumer, delivery, io.clock.now_ms, &meter);
        }
        true
    }
}
