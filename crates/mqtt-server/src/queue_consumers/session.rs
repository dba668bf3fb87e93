//! The queue subscriptions of one session: what each asks for, what the session has been sent, and what it settles.
//!
//! A delivery that finds no room in the window is held until an acknowledgement frees a place or its lease ends. Its
//! packet identifiers begin at [`FIRST_LEASE_ID`], so that they never meet those of the session's window.

use std::collections::VecDeque;
use std::sync::Arc;

use mainstem_mqtt::session::LAST_ID;
use mainstem_mqtt::{
    Packet, Publish, QoS, ReasonCode, SubscribeOptions, SubscriptionIds, UserProperties, Version,
};
use mainstem_queue_core::{Disposition, Receipt, Settlement};
use mainstem_runtime::MemoryMeter;
use slab::Slab;

use super::group::{QueueDelivery, QueueGroup};
use crate::message::{Content, Message};

/// The first packet identifier of deliveries from queues. Those below belong to the session's window, where a journal
/// may know them before they are sent.
pub(crate) const FIRST_LEASE_ID: u16 = LAST_ID + 1;
/// Pause before a consumer that was refused asks its queue again, ms.
pub(crate) const RETRY_REFUSED_MS: u64 = 5_000;
/// Unsettled queue deliveries per session.
const LEASES_MAX: usize = (u16::MAX - LAST_ID) as usize;
/// User property of a PUBACK with an error: delay until the redelivery, ms.
const DELAY_MS: &str = "delay-ms";

/// A session's queue subscriptions and unsettled deliveries.
#[derive(Debug, Default)]
pub(crate) struct SessionConsumers {
    subscriptions: Vec<QueueSubscription>,
    /// Deliveries that were sent and not acknowledged, by packet identifier.
    leased: Slab<Leased>,
    settled: Vec<(Arc<QueueGroup>, Settlement)>,
    is_due: bool,
    too_large_logged: bool,
}

/// A subscription to a queue. No journal has its messages or their state.
#[derive(Debug)]
pub(crate) struct QueueSubscription {
    /// The filter of the SUBSCRIBE.
    filter: Box<str>,
    options: SubscribeOptions,
    /// Subscription Identifier; 0 is none.
    id: u32,
    group: Arc<QueueGroup>,
    /// Number of the consumer while the session has a connection, or 0.
    consumer: u64,
    asking: Asking,
    /// The queue has answered this consumer.
    is_confirmed: bool,
    refusal_logged: bool,
    /// Deliveries that the session has not acknowledged.
    leased: u32,
    /// Deliveries that found no room in the window.
    held: VecDeque<Held>,
    /// SUBACKs that wait for the queue's first answer: number of the pending ack, index in its list.
    subacks: Vec<(u64, usize)>,
}

/// Whether a consumer has a request under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asking {
    No,
    Yes,
    /// It was refused, and may ask again at this time, ms.
    Later(u64),
}

#[derive(Debug)]
struct Held {
    receipt: Receipt,
    /// When the lease ends, ms since 1970: nothing is sent from then on.
    lease_until_ms: u64,
    message: Message,
}

/// A delivery that a session has been sent.
#[derive(Debug)]
pub(super) struct Leased {
    pub(super) group: Arc<QueueGroup>,
    pub(super) consumer: u64,
    pub(super) receipt: Receipt,
}

/// What limits the requests of a connected session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacity {
    pub(crate) now_ms: u64,
    /// Free places of the session's window.
    pub(crate) window: usize,
    /// Unsettled deliveries per subscription.
    pub(crate) prefetch: usize,
    /// The client reads its output. One that does not gets nothing more, and other consumers get it instead.
    pub(crate) has_output_room: bool,
}

/// Result of [`SessionConsumers::encode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Encoded {
    Sent,
    /// There is no such consumer, or the session has as many deliveries as it may have.
    NoRoom,
    /// The client takes no packets that large; the queue is asked to deliver it to another consumer.
    TooLarge {
        /// Its filter, if nothing has been logged about such a delivery yet.
        log_filter: Option<Box<str>>,
    },
}

impl QueueSubscription {
    pub(crate) fn filter(&self) -> &str {
        &self.filter
    }

    pub(crate) fn options(&self) -> SubscribeOptions {
        self.options
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(super) fn group(&self) -> &Arc<QueueGroup> {
        &self.group
    }

    pub(super) fn consumer(&self) -> u64 {
        self.consumer
    }

    pub(super) fn has_consumer(&self) -> bool {
        self.consumer != 0
    }

    pub(super) fn is_confirmed(&self) -> bool {
        self.is_confirmed
    }

    pub(super) fn start(&mut self, consumer: u64) {
        self.consumer = consumer;
    }

    /// Forgets the consumer and returns its number.
    pub(super) fn stop(&mut self) -> u64 {
        (self.asking, self.is_confirmed, self.leased) = (Asking::No, false, 0);
        std::mem::take(&mut self.consumer)
    }

    pub(super) fn take_held(&mut self) -> impl Iterator<Item = Receipt> {
        std::mem::take(&mut self.held).into_iter().map(|held| held.receipt)
    }

    /// SUBACKs that wait for the queue's first answer: number of the pending ack, index in its list.
    pub(crate) fn take_subacks(&mut self) -> Vec<(u64, usize)> {
        std::mem::take(&mut self.subacks)
    }

    /// The queue has answered the consumer's request. Returns the SUBACKs that waited for that.
    pub(crate) fn confirm(&mut self) -> Vec<(u64, usize)> {
        (self.asking, self.is_confirmed, self.refusal_logged) = (Asking::No, true, false);
        self.take_subacks()
    }

    /// The queue has refused the consumer. Returns whether a SUBACK waits for it, and whether it is the first refusal
    /// since the last answer.
    pub(crate) fn refuse(&mut self, now_ms: u64) -> (bool, bool) {
        self.asking = Asking::Later(now_ms + RETRY_REFUSED_MS);
        self.is_confirmed = false;
        (!self.subacks.is_empty(), !std::mem::replace(&mut self.refusal_logged, true))
    }

    /// Most messages to ask for; `window` places are free in the session's window.
    fn room(&self, capacity: &Capacity, window: usize) -> usize {
        let may_ask = match self.asking {
            Asking::No => true,
            Asking::Yes => false,
            Asking::Later(at_ms) => at_ms <= capacity.now_ms,
        };
        if self.consumer == 0 || !may_ask {
            return 0;
        }
        let unsettled = self.leased as usize + self.held.len();
        let room = if capacity.has_output_room && self.held.is_empty() {
            capacity.prefetch.saturating_sub(unsettled).min(window)
        } else {
            0
        };
        // The first request finds out whether the queue exists; one message can always be held.
        if self.is_confirmed { room } else { room.max(1) }
    }
}

impl SessionConsumers {
    pub(crate) fn len(&self) -> usize {
        self.subscriptions.len()
    }

    pub(crate) fn subscriptions(&self) -> impl Iterator<Item = &QueueSubscription> {
        self.subscriptions.iter()
    }

    pub(super) fn subscriptions_mut(&mut self) -> impl Iterator<Item = &mut QueueSubscription> {
        self.subscriptions.iter_mut()
    }

    pub(crate) fn find(&mut self, consumer: u64) -> Option<&mut QueueSubscription> {
        self.subscriptions.iter_mut().find(|known| known.consumer == consumer)
    }

    /// Number of the consumer of a filter; 0 if there is none.
    pub(crate) fn consumer_of(&self, filter: &str) -> u64 {
        self.subscriptions.iter().find(|known| *known.filter == *filter).map_or(0, |known| known.consumer)
    }

    /// Replaces the options of a subscription. False if there is no subscription to this filter.
    pub(crate) fn replace(&mut self, filter: &str, options: SubscribeOptions, id: u32) -> bool {
        let known = self.subscriptions.iter_mut().find(|known| *known.filter == *filter);
        known.is_some_and(|known| {
            (known.options, known.id) = (options, id);
            true
        })
    }

    pub(crate) fn add(&mut self, filter: &str, group: Arc<QueueGroup>, options: SubscribeOptions, id: u32) {
        self.subscriptions.push(QueueSubscription {
            filter: filter.into(),
            options,
            id,
            group,
            consumer: 0,
            asking: Asking::No,
            is_confirmed: false,
            refusal_logged: false,
            leased: 0,
            held: VecDeque::new(),
            subacks: Vec::new(),
        });
    }

    /// Removes a subscription. Its deliveries can still be acknowledged.
    pub(crate) fn remove(&mut self, filter: &str) -> Option<QueueSubscription> {
        let index = self.subscriptions.iter().position(|known| *known.filter == *filter)?;
        Some(self.subscriptions.remove(index))
    }

    /// Lets the SUBACK `(number, index)` wait for the first answer to this consumer. False if it need not wait, since
    /// the queue has answered before.
    pub(crate) fn hold_suback(&mut self, consumer: u64, suback: (u64, usize)) -> bool {
        let known = self.find(consumer).filter(|known| !known.is_confirmed);
        known.is_some_and(|known| {
            known.subacks.push(suback);
            // A client that subscribes again asks at once, whatever the queue answered before.
            if matches!(known.asking, Asking::Later(_)) {
                known.asking = Asking::No;
            }
            true
        })
    }

    /// Whether a refused consumer has to wait longer before it asks again.
    pub(crate) fn has_early_retry(&self, now_ms: u64) -> bool {
        self.subscriptions.iter().any(|known| matches!(known.asking, Asking::Later(at_ms) if at_ms > now_ms))
    }

    /// True if the session was not due yet.
    pub(super) fn set_due(&mut self) -> bool {
        !std::mem::replace(&mut self.is_due, true)
    }

    /// Takes what has been settled; the session is not due any more.
    pub(super) fn drain_settled(&mut self) -> impl Iterator<Item = (Arc<QueueGroup>, Settlement)> {
        self.is_due = false;
        self.settled.drain(..)
    }

    /// Unsettled deliveries of a session that has lost its connection.
    pub(super) fn take_leased(&mut self) -> Vec<Leased> {
        self.too_large_logged = false;
        self.subscriptions.iter_mut().for_each(|known| known.subacks.clear());
        self.leased.drain().collect()
    }

    /// Calls `receive` with each consumer that is to ask for messages, and how many.
    pub(super) fn ask(&mut self, capacity: &Capacity, mut receive: impl FnMut(&QueueSubscription, u32)) {
        let held: usize = self.subscriptions.iter().map(|known| known.held.len()).sum();
        let window = capacity.window.min(LEASES_MAX - self.leased.len()).saturating_sub(held);
        for known in &mut self.subscriptions {
            let max = known.room(capacity, window);
            if max > 0 {
                known.asking = Asking::Yes;
                receive(known, max as u32);
            }
        }
    }

    /// Whether deliveries of a consumer are held, which none may overtake.
    pub(crate) fn is_holding(&mut self, consumer: u64) -> bool {
        self.find(consumer).is_some_and(|known| !known.held.is_empty())
    }

    /// Holds a delivery until there is room for it.
    pub(crate) fn hold(
        &mut self,
        consumer: u64,
        delivery: &QueueDelivery<'_>,
        now_ms: u64,
        meter: &MemoryMeter,
    ) {
        let QueueDelivery { receipt, lease_until_ms, payload, properties } = *delivery;
        let (qos, topic) = (QoS::AtLeastOnce, "");
        let content = Content { qos, retain: false, publisher: None, topic, payload, properties };
        let message = Message::new(&content, now_ms, meter);
        if let Some(known) = self.find(consumer) {
            known.held.push_back(Held { receipt, lease_until_ms, message });
        }
    }

    /// Consumers with held deliveries.
    pub(crate) fn holding(&self) -> Vec<u64> {
        let holding = self.subscriptions.iter().filter(|known| !known.held.is_empty());
        holding.map(|known| known.consumer).collect()
    }

    /// Drops held deliveries whose lease has ended. True if others are left.
    pub(crate) fn drop_expired(&mut self, consumer: u64, unix_ms: u64) -> bool {
        let Some(known) = self.find(consumer) else { return false };
        while known.held.pop_front_if(|held| held.lease_until_ms <= unix_ms).is_some() {}
        !known.held.is_empty()
    }

    /// Encodes the oldest held delivery, see [`SessionConsumers::encode`].
    pub(crate) fn encode_held(
        &mut self,
        consumer: u64,
        (version, packet_max): (Version, u32),
        now_ms: u64,
        output: &mut Vec<u8>,
    ) -> (Encoded, usize) {
        let Some(held) = self.find(consumer).and_then(|known| known.held.pop_front()) else {
            return (Encoded::NoRoom, 0);
        };
        let delivery = QueueDelivery {
            receipt: held.receipt,
            lease_until_ms: held.lease_until_ms,
            payload: held.message.payload(),
            properties: held.message.properties(now_ms),
        };
        let (encoded, bytes) =
            (self.encode(consumer, &delivery, (version, packet_max), output), delivery.payload.len());
        if encoded == Encoded::NoRoom
            && let Some(known) = self.find(consumer)
        {
            known.held.push_front(held);
        }
        (encoded, bytes)
    }

    /// Appends a delivery to `output` as a PUBLISH for a client of this version and largest packet.
    pub(crate) fn encode(
        &mut self,
        consumer: u64,
        delivery: &QueueDelivery<'_>,
        (version, packet_max): (Version, u32),
        output: &mut Vec<u8>,
    ) -> Encoded {
        let subscription = self.subscriptions.iter_mut().find(|known| known.consumer == consumer);
        let Some(subscription) = subscription.filter(|_| self.leased.len() < LEASES_MAX) else {
            return Encoded::NoRoom;
        };
        let QueueDelivery { receipt, payload, properties, .. } = *delivery;
        let entry = self.leased.vacant_entry();
        let ids = [subscription.id];
        let packet = Packet::Publish(Publish {
            qos: QoS::AtLeastOnce,
            topic: &subscription.group.topic,
            packet_id: FIRST_LEASE_ID + entry.key() as u16,
            subscription_ids: SubscriptionIds::List(if subscription.id == 0 { &[] } else { &ids }),
            properties,
            payload,
            ..Publish::default()
        });
        let group = Arc::clone(&subscription.group);
        if packet.encoded_len(version) > packet_max as usize || packet.encode(version, output).is_err() {
            let disposition = Disposition::Nack(None);
            self.settled.push((group, Settlement { receipt, disposition }));
            let is_first = !std::mem::replace(&mut self.too_large_logged, true);
            return Encoded::TooLarge { log_filter: is_first.then(|| subscription.filter.clone()) };
        }
        entry.insert(Leased { group, consumer, receipt });
        subscription.leased += 1;
        Encoded::Sent
    }

    /// Settles the delivery with this packet identifier. False if there is none.
    pub(crate) fn settle(&mut self, packet_id: u16, disposition: Disposition) -> bool {
        let place = usize::from(packet_id - FIRST_LEASE_ID);
        let Some(Leased { group, consumer, receipt }) = self.leased.try_remove(place) else { return false };
        if let Some(known) = self.find(consumer) {
            known.leased -= 1;
        }
        self.settled.push((group, Settlement { receipt, disposition }));
        true
    }
}

/// Disposition of a delivery whose PUBACK has this reason code and these user properties.
pub(crate) fn disposition(reason: ReasonCode, properties: &UserProperties<'_>) -> Disposition {
    match reason {
        ReasonCode::PayloadFormatInvalid | ReasonCode::ImplementationSpecificError => Disposition::Reject,
        reason if reason.is_error() => {
            let delay = properties.iter().find(|(name, _)| *name == DELAY_MS);
            Disposition::Nack(delay.and_then(|(_, value)| value.trim().parse().ok()))
        }
        _ => Disposition::Ack,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn puback_reasons_map_to_dispositions() {
        let none = UserProperties::default();
        let delay = UserProperties::Pairs(&[("why", "busy"), (DELAY_MS, "250")]);
        let odd = UserProperties::Pairs(&[(DELAY_MS, "soon")]);
        let table = [
            (ReasonCode::Success, none, Disposition::Ack),
            (ReasonCode::NoMatchingSubscribers, none, Disposition::Ack),
            (ReasonCode::UnspecifiedError, none, Disposition::Nack(None)),
            (ReasonCode::UnspecifiedError, delay, Disposition::Nack(Some(250))),
            (ReasonCode::QuotaExceeded, odd, Disposition::Nack(None)),
            (ReasonCode::PayloadFormatInvalid, delay, Disposition::Reject),
            (ReasonCode::ImplementationSpecificError, none, Disposition::Reject),
        ];
        for (reason, properties, expected) in table {
            assert_eq!(disposition(reason, &properties), expected, "{reason:?}");
        }
    }
}
