//! Work queues through the MQTT door: publishes become messages of queues, and messages of queues deliveries.
//!
//! What of a message becomes what of a record is told in `binding`. On the way back a delivery has these user
//! properties before those of the message: `queue`, `group`, `offset`, `delivery-count`, `enqueued-at`,
//! `first-delivered-at` (ms since 1970), `key`, and `topic` if it was published to another topic than the queue's own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

use mainstem_broker::{Errand, Lease, Outcome, Parcel, QueueGroup, SinkTicket, Sunk, Wants, queue_of};
use mainstem_log::Headers;
use mainstem_mqtt::ReasonCode;
use mainstem_queue::{
    Answered, Delivery, NewMessage, Receipt, Refusal, Reply, Request, Settlement, Verdict, header,
};
use mainstem_runtime::Io;

use slab::Slab;

use crate::binding;
use crate::{Doors, Mail};

/// Bytes of messages that a queue is sent at a time, at most, unless a single one is larger.
const SEND_BYTES: usize = 256 * 1024;
/// Bytes on their way to queues beyond which publishers wait.
const BEHIND_BYTES: usize = 32 * 1024 * 1024;
/// Bytes after which a consumer gets no further message at a time.
const RECEIVE_BYTES: usize = 256 * 1024;
/// Queues of which it is remembered that a refusal has been logged.
const LOGGED_MAX: usize = 1024;

/// What one shard has under way with queues.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    /// What has been asked, by token.
    asked: Slab<Asked>,
    /// Messages of this turn, by queue.
    gathering: BTreeMap<Box<str>, Gathering>,
    /// Messages that are gathered or on their way, bytes.
    bytes: usize,
    /// Queues that have refused messages nobody waits for.
    logged: BTreeSet<Box<str>>,
    headers: Vec<u8>,
    scratch: Scratch,
}

/// Memory for one delivery after the other.
#[derive(Debug, Default)]
struct Scratch {
    numbers: String,
    user: Vec<u8>,
}

#[derive(Debug, Default)]
struct Gathering {
    messages: Vec<NewMessage>,
    tickets: Vec<Option<SinkTicket>>,
    bytes: usize,
}

/// Who waits for an answer.
#[derive(Debug)]
enum Asked {
    Send { queue: Box<str>, tickets: Vec<Option<SinkTicket>>, bytes: usize },
    Receive { of: Arc<QueueGroup>, consumer: u64 },
    Settle { of: Arc<QueueGroup>, count: usize },
    Leave,
}

impl Queues {
    /// Whether publishers should hold back for a while.
    pub(crate) fn is_behind(&self) -> bool {
        self.bytes > BEHIND_BYTES
    }
}

impl Doors {
    /// A message for the queue that its topic names.
    pub(crate) fn carry_to_queue(&mut self, io: &mut Io<'_, Mail>, message: &Sunk) {
        // The MQTT door takes in no message for what cannot be the name of a queue.
        let Some((queue, key)) = queue_of(message.topic()) else { return };
        let queues = &mut self.queues;
        queues.headers.clear();
        binding::headers(message, io.clock.now_ms, &mut queues.headers);
        let new = NewMessage {
            key: key.map(|key| key.as_bytes().to_vec()),
            value: message.payload().to_vec(),
            headers: queues.headers.clone(),
        };
        let bytes = new.value.len() + new.headers.len() + key.map_or(0, str::len);
        if queues.gathering.get(queue).is_some_and(|known| known.bytes + bytes > SEND_BYTES) {
            self.send_gathered(io, queue);
        }
        let queues = &mut self.queues;
        queues.bytes += bytes;
        if !queues.gathering.contains_key(queue) {
            queues.gathering.insert(queue.into(), Gathering::default());
        }
        if let Some(gathering) = queues.gathering.get_mut(queue) {
            gathering.messages.push(new);
            gathering.tickets.push(message.ticket);
            gathering.bytes += bytes;
        }
    }

    fn send_gathered(&mut self, io: &mut Io<'_, Mail>, queue: &str) {
        let Some((queue, gathering)) = self.queues.gathering.remove_entry(queue) else { return };
        let Gathering { messages, tickets, bytes } = gathering;
        let name = queue.clone();
        self.ask(io, &name, Request::Send(messages), Asked::Send { queue, tickets, bytes });
    }

    fn ask(&mut self, io: &mut Io<'_, Mail>, queue: &str, request: Request, asked: Asked) {
        let token = self.queues.asked.insert(asked) as u64;
        self.stream.call(io, |door, io| door.ask_queue(io, queue, request, token));
    }

    /// Asks queues for what this turn wants of them.
    pub(crate) fn ask_queues(&mut self, io: &mut Io<'_, Mail>) {
        // What is settled may make room for what is sent.
        let has_errands = self.mqtt.service.has_errands();
        let errands = has_errands.then(|| self.mqtt.call(io, mainstem_broker::Shard::take_errands));
        for Errand { of, wants } in errands.into_iter().flatten() {
            let group = Arc::clone(&of.group);
            let (request, asked) = match wants {
                Wants::Receive { consumer, max, waits } => (
                    Request::Receive {
                        group,
                        consumer,
                        max,
                        bytes_max: RECEIVE_BYTES,
                        lease_ms: None,
                        wait_ms: if waits { u64::MAX } else { 0 },
                    },
                    Asked::Receive { of: Arc::clone(&of), consumer },
                ),
                Wants::Settle(settled) => {
                    let settlements: Vec<_> = settled.into_iter().map(settlement).collect();
                    let asked = Asked::Settle { of: Arc::clone(&of), count: settlements.len() };
                    (Request::Settle { group, settlements }, asked)
                }
                Wants::Leave { consumer } => (Request::Leave { group, consumer }, Asked::Leave),
            };
            self.ask(io, of.queue(), request, asked);
        }
        while let Some((queue, _)) = self.queues.gathering.first_key_value() {
            let queue = queue.clone();
            self.send_gathered(io, &queue);
        }
    }

    /// Hands on what queues have answered.
    pub(crate) fn hear_queues(&mut self, io: &mut Io<'_, Mail>) {
        for (token, reply) in self.stream.service.take_queue_replies() {
            let Some(asked) = self.queues.asked.try_remove(token as usize) else { continue };
            match asked {
                Asked::Send { queue, tickets, bytes } => {
                    self.queues.bytes -= bytes;
                    self.sent(io, &queue, &tickets, &reply);
                }
                Asked::Receive { of, consumer } => self.received(io, &of, consumer, reply),
                Asked::Settle { of, count } => note_settled(&of, count, &reply),
                Asked::Leave => {}
            }
        }
    }

    fn sent(&mut self, io: &mut Io<'_, Mail>, queue: &str, tickets: &[Option<SinkTicket>], reply: &Reply) {
        for (index, ticket) in tickets.iter().enumerate() {
            let refused = match reply {
                Reply::Sent(answers) => answers.get(index).and_then(|answer| answer.as_ref().err()),
                Reply::Refused(refusal) => Some(refusal),
                _ => Some(&Refusal::Busy),
            };
            let outcome = refused.map_or(Outcome::Kept, outcome);
            self.mqtt.call(io, |door, io| door.settle_sunk(io, *ticket, outcome));
            if let (None, Some(refusal)) = (ticket, refused) {
                self.note_loss(queue, refusal);
            }
        }
    }

    /// A message is lost whose publisher waits for nothing.
    fn note_loss(&mut self, queue: &str, refusal: &Refusal) {
        let logged = &mut self.queues.logged;
        if logged.len() < LOGGED_MAX && !logged.contains(queue) {
            logged.insert(queue.into());
            log::warn!("queue {queue:?} refuses a message at QoS 0: {refusal}; others like it are counted");
        }
    }

    fn received(&mut self, io: &mut Io<'_, Mail>, of: &Arc<QueueGroup>, consumer: u64, reply: Reply) {
        let deliveries = match reply {
            Reply::Received(deliveries) => deliveries,
            Reply::Refused(refusal) => {
                let reason = suback_reason(&refusal);
                self.mqtt.call(io, |door, io| door.refuse_consumer(io, consumer, reason, &refusal));
                return;
            }
            _ => return,
        };
        let mut is_there = self.mqtt.call(io, |door, io| door.queue_answered(io, consumer));
        let mut left = Vec::new();
        for delivery in &deliveries {
            is_there = is_there && self.deliver(io, of, consumer, delivery);
            if !is_there {
                // Its consumer has gone in the meantime.
                left.push(Settlement { receipt: delivery.receipt, verdict: Verdict::Unsent });
            }
        }
        if !left.is_empty() {
            let asked = Asked::Settle { of: Arc::clone(of), count: left.len() };
            let request = Request::Settle { group: Arc::clone(&of.group), settlements: left };
            self.ask(io, of.queue(), request, asked);
        }
    }

    fn deliver(
        &mut self,
        io: &mut Io<'_, Mail>,
        of: &QueueGroup,
        consumer: u64,
        delivery: &Delivery,
    ) -> bool {
        let mut scratch = std::mem::take(&mut self.queues.scratch);
        let parcel = parcel(of, delivery, io.clock.unix_ms, &mut scratch);
        let is_there = self.mqtt.call(io, |door, io| door.deliver(io, consumer, &parcel));
        self.queues.scratch = scratch;
        is_there
    }
}

fn settlement((lease, verdict): (Lease, mainstem_broker::Verdict)) -> Settlement {
    use mainstem_broker::Verdict as Said;
    let verdict = match verdict {
        Said::Ack => Verdict::Ack,
        Said::Nack(delay_ms) => Verdict::Nack(delay_ms),
        Said::Reject => Verdict::Reject,
        Said::Release => Verdict::Release,
        Said::Unsent => Verdict::Unsent,
    };
    let Lease { offset, count, life } = lease;
    Settlement { receipt: Receipt { offset, count, life }, verdict }
}

/// What a publisher is told of a refusal. MQTT has no code for a PUBACK that says that a message is too large; the
/// nearest is that a limit has been exceeded.
fn outcome(refusal: &Refusal) -> Outcome {
    match refusal {
        Refusal::UnknownQueue | Refusal::NotAQueue => Outcome::Refused(ReasonCode::TopicNameInvalid),
        Refusal::Full | Refusal::TooLarge { .. } | Refusal::TooMany => {
            Outcome::Refused(ReasonCode::QuotaExceeded)
        }
        Refusal::Storage | Refusal::Busy => Outcome::NotKept,
        Refusal::Invalid(_) | Refusal::UnknownGroup | Refusal::Exists | Refusal::Stale => {
            Outcome::Refused(ReasonCode::ImplementationSpecificError)
        }
    }
}

/// What a subscriber is told of a refusal.
fn suback_reason(refusal: &Refusal) -> ReasonCode {
    match refusal {
        Refusal::UnknownQueue | Refusal::NotAQueue | Refusal::UnknownGroup | Refusal::Invalid(_) => {
            ReasonCode::TopicFilterInvalid
        }
        Refusal::Full | Refusal::TooMany | Refusal::Storage | Refusal::Busy => ReasonCode::QuotaExceeded,
        Refusal::TooLarge { .. } | Refusal::Exists | Refusal::Stale => {
            ReasonCode::ImplementationSpecificError
        }
    }
}

/// A settlement that comes too late is no fault. One that was not kept is made good by the end of the lease.
fn note_settled(of: &QueueGroup, count: usize, reply: &Reply) {
    let refused = |answer: &Answered<()>| answer.as_ref().err().cloned();
    let first = match reply {
        Reply::Settled(answers) => answers.iter().find_map(refused),
        Reply::Refused(refusal) => Some(refusal.clone()),
        _ => None,
    };
    if let Some(refusal) = first {
        log::debug!("queue {:?} does not settle some of {count} deliveries: {refusal}", of.queue());
    }
}

/// The delivery that a message becomes.
fn parcel<'a>(of: &QueueGroup, delivery: &'a Delivery, unix_ms: u64, scratch: &'a mut Scratch) -> Parcel<'a> {
    let Receipt { offset, count, life } = delivery.receipt;
    let record = delivery.payload.record();
    let enqueued_ms = record.timestamp_ms.max(0).cast_unsigned();
    let headers = Headers::parse(record.headers).into_iter().flatten().map_while(Result::ok);
    // Who has moved a dead letter here is between the queues.
    let headers =
        headers.map(|header| (header.key, header.value)).filter(|(name, _)| *name != header::MOVED_BY);
    let numbers =
        spell([offset, u64::from(count), enqueued_ms, delivery.first_delivered_ms], &mut scratch.numbers);
    let topic = binding::topic_of(headers.clone()).filter(|topic| queue_of(topic).is_none());
    let key = record.key.and_then(|key| std::str::from_utf8(key).ok()).filter(|key| !key.contains('\0'));
    let own = [
        ("queue", Some(of.queue())),
        ("group", Some(&*of.group)),
        ("offset", Some(numbers[0])),
        ("delivery-count", Some(numbers[1])),
        ("enqueued-at", Some(numbers[2])),
        ("first-delivered-at", Some(numbers[3])),
        ("key", key),
        ("topic", topic),
    ];
    let own = own.iter().filter_map(|(name, value)| Some((*name, (*value)?)));
    let age_s = unix_ms.saturating_sub(enqueued_ms) / 1000;
    // The queue says what has expired. What expires just now is delivered without a word of it.
    let (properties, _) = binding::properties(headers, age_s, own, &mut scratch.user);
    Parcel {
        lease: Lease { offset, count, life },
        until_ms: delivery.lease_until_ms,
        payload: record.value.unwrap_or_default(),
        properties,
    }
}

/// Numbers in decimal.
fn spell<const N: usize>(numbers: [u64; N], into: &mut String) -> [&str; N] {
    into.clear();
    let ends = numbers.map(|number| {
        // A string takes whatever is written to it.
        if write!(into, "{number}").is_err() {
            into.push('0');
        }
        into.len()
    });
    let mut begin = 0;
    ends.map(|end| &into[std::mem::replace(&mut begin, end)..end])
}

#[cfg(test)]
mod tests {
    use mainstem_log::{BatchBuilder, Header, batches, put_headers};
    use mainstem_queue::{Payload, Plain};

    use super::*;

    fn group() -> Arc<QueueGroup> {
        QueueGroup::of("$queue/jobs", Some("audit")).unwrap()
    }

    /// A message that came at second 1,000 with these headers.
    fn delivery(headers: &[(&str, &str)]) -> Delivery {
        let mut encoded = Vec::new();
        let all = headers.iter().map(|(key, value)| Header { key, value: Some(value.as_bytes()) });
        put_headers(all, &mut encoded);
        let mut builder = BatchBuilder::default();
        builder.push_with_headers(1_000_000, Some(b"press-7"), Some(b"open"), &encoded);
        let plain = Plain::copy(&batches(builder.finish()).next().unwrap()).unwrap();
        Delivery {
            receipt: Receipt { offset: 17, count: 2, life: 5 },
            first_delivered_ms: 1_000_500,
            lease_until_ms: 1_030_500,
            payload: Payload::first(&plain).unwrap(),
        }
    }

    fn user<'a>(parcel: &Parcel<'a>) -> Vec<(&'a str, &'a str)> {
        parcel.properties.user_properties.iter().collect()
    }

    #[test]
    fn a_delivery_says_what_the_queue_knows_and_then_what_its_publisher_said() {
        let headers = [
            ("site", "north"),
            ("moved-by", "00ff/default/17"),
            ("mqtt.topic", "plant/7"),
            ("mqtt.qos", "1"),
            ("mqtt.content-type", "text/plain"),
            ("mqtt.message-expiry-interval", "60"),
        ];
        let (delivery, mut scratch) = (delivery(&headers), Scratch::default());
        let parcel = parcel(&group(), &delivery, 1_010_000, &mut scratch);
        assert_eq!(
            (parcel.lease, parcel.payload),
            (Lease { offset: 17, count: 2, life: 5 }, b"open".as_slice())
        );
        let expected = [
            ("queue", "jobs"),
            ("group", "audit"),
            ("offset", "17"),
            ("delivery-count", "2"),
            ("enqueued-at", "1000000"),
            ("first-delivered-at", "1000500"),
            ("key", "press-7"),
            ("topic", "plant/7"),
            ("site", "north"),
        ];
        assert_eq!(user(&parcel), expected);
        assert_eq!(parcel.properties.content_type, Some("text/plain"));
        assert_eq!(parcel.properties.message_expiry, Some(50));
    }

    #[test]
    fn the_topic_of_the_queue_itself_is_not_told_again() {
        let delivery = delivery(&[("mqtt.topic", "$queue/jobs/press-7")]);
        let mut scratch = Scratch::default();
        let parcel = parcel(&group(), &delivery, 1_000_000, &mut scratch);
        assert!(user(&parcel).iter().all(|(name, _)| *name != "topic"));
    }

    #[test]
    fn refusals_have_codes_that_their_packets_may_carry() {
        use mainstem_mqtt::PacketType;
        let refusals = [
            Refusal::UnknownQueue,
            Refusal::NotAQueue,
            Refusal::UnknownGroup,
            Refusal::Exists,
            Refusal::Full,
            Refusal::TooLarge { most: 1 },
            Refusal::Stale,
            Refusal::Invalid("so".into()),
            Refusal::TooMany,
            Refusal::Storage,
            Refusal::Busy,
        ];
        for refusal in refusals {
            assert!(suback_reason(&refusal).is_allowed_in(PacketType::SubAck), "{refusal}");
            if let Outcome::Refused(reason) = outcome(&refusal) {
                assert!(reason.is_allowed_in(PacketType::PubAck), "{refusal}");
            }
        }
        assert_eq!(outcome(&Refusal::Full), Outcome::Refused(ReasonCode::QuotaExceeded));
        assert_eq!(outcome(&Refusal::Storage), Outcome::NotKept);
    }
}
