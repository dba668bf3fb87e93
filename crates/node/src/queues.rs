//! Work queues for MQTT: publishes become messages of queues, and messages of queues become deliveries.
//!
//! `binding` maps messages to records. A delivery has these user properties before those of the message: `queue`,
//! `group`, `offset`, `delivery-count`, `enqueued-at`, `first-delivered-at` (ms since 1970), `key`, and `topic` if the
//! message was published to another topic than the queue's own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

use mainstem_log::Headers;
use mainstem_mqtt_server::{
    QueueDelivery, QueueGroup, QueueRequest, SinkMessage, SinkOutcome, SinkTicket, queue_of,
};
use mainstem_queue_core::{
    Delivery, Disposition, ItemResult, NewMessage, QueueError, Receipt, Reply, Request, Settlement, header,
};
use mainstem_runtime::Io;

use slab::Slab;

use crate::binding;
use crate::{ShardMessage, ShardService};

/// Limit of one batch to a queue, bytes, unless a single message is larger.
const SEND_BYTES: usize = 256 * 1024;
/// Bytes in flight to queues beyond which publishers wait.
const BEHIND_BYTES: usize = 32 * 1024 * 1024;
/// Limit of queues whose rejections are logged once each.
const LOGGED_MAX: usize = 1024;

/// Queue requests of one shard that wait for replies.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    /// By token.
    pending: Slab<PendingRequest>,
    /// Messages of this turn, by queue.
    batches: BTreeMap<Box<str>, Batch>,
    /// Bytes of messages in `batches` or in flight.
    bytes: usize,
    /// Queues that rejected a QoS 0 message.
    logged: BTreeSet<Box<str>>,
    headers: Vec<u8>,
    scratch: Scratch,
}

/// Buffers reused by each delivery.
#[derive(Debug, Default)]
struct Scratch {
    numbers: String,
    user: Vec<u8>,
}

#[derive(Debug, Default)]
struct Batch {
    messages: Vec<NewMessage>,
    tickets: Vec<Option<SinkTicket>>,
    bytes: usize,
}

/// The continuation of a request.
#[derive(Debug)]
enum PendingRequest {
    Send { queue: Box<str>, tickets: Vec<Option<SinkTicket>>, bytes: usize },
    Receive { group: Arc<QueueGroup>, consumer: u64 },
    Settle { group: Arc<QueueGroup>, count: usize },
    Leave,
}

impl Queues {
    /// Whether publishers should wait.
    pub(crate) fn is_behind(&self) -> bool {
        self.bytes > BEHIND_BYTES
    }
}

impl ShardService {
    /// Adds a message to the batch of the queue that its topic names.
    pub(crate) fn sink_to_queue(&mut self, io: &mut Io<'_, ShardMessage>, message: &SinkMessage) {
        // The MQTT server rejects topics with invalid queue names.
        let Some((queue, key)) = queue_of(message.topic()) else { return };
        if let Err(what) = check_options(message, io.clock.now_ms) {
            return self.refuse(io, queue, message.ticket, QueueError::Invalid(what));
        }
        let queues = &mut self.queues;
        queues.headers.clear();
        binding::headers(message, io.clock.now_ms, &mut queues.headers);
        let new = NewMessage {
            key: key.map(|key| key.as_bytes().to_vec()),
            value: message.payload().to_vec(),
            headers: queues.headers.clone(),
        };
        let bytes = new.value.len() + new.headers.len() + key.map_or(0, str::len);
        if queues.batches.get(queue).is_some_and(|known| known.bytes + bytes > SEND_BYTES) {
            self.send_batch(io, queue);
        }
        let queues = &mut self.queues;
        queues.bytes += bytes;
        if !queues.batches.contains_key(queue) {
            queues.batches.insert(queue.into(), Batch::default());
        }
        if let Some(batch) = queues.batches.get_mut(queue) {
            batch.messages.push(new);
            batch.tickets.push(message.ticket);
            batch.bytes += bytes;
        }
    }

    fn send_batch(&mut self, io: &mut Io<'_, ShardMessage>, queue: &str) {
        let Some((queue, batch)) = self.queues.batches.remove_entry(queue) else { return };
        let Batch { messages, tickets, bytes } = batch;
        let name = queue.clone();
        self.request(io, &name, Request::Send(messages), PendingRequest::Send { queue, tickets, bytes });
    }

    fn request(
        &mut self,
        io: &mut Io<'_, ShardMessage>,
        queue: &str,
        request: Request,
        pending: PendingRequest,
    ) {
        let token = self.queues.pending.insert(pending) as u64;
        self.kafka
            .call(&mut self.stores, io, |service, io| service.send_queue_request(io, queue, request, token));
    }

    /// Sends the queue requests of this turn.
    pub(crate) fn send_queue_requests(&mut self, io: &mut Io<'_, ShardMessage>) {
        // Settlements go first: they may make room for messages.
        let has_requests = self.mqtt.service.has_queue_requests();
        let requests = has_requests
            .then(|| self.mqtt.call(&mut self.stores, io, mainstem_mqtt_server::Shard::take_queue_requests));
        for QueueRequest { group, request } in requests.into_iter().flatten() {
            let pending = match &request {
                Request::Receive { consumer, .. } => {
                    PendingRequest::Receive { group: Arc::clone(&group), consumer: *consumer }
                }
                Request::Settle { settlements, .. } => {
                    PendingRequest::Settle { group: Arc::clone(&group), count: settlements.len() }
                }
                _ => PendingRequest::Leave,
            };
            self.request(io, group.queue(), request, pending);
        }
        while let Some((queue, _)) = self.queues.batches.first_key_value() {
            let queue = queue.clone();
            self.send_batch(io, &queue);
        }
    }

    /// Handles replies of queues.
    pub(crate) fn take_queue_replies(&mut self, io: &mut Io<'_, ShardMessage>) {
        for (token, reply) in self.kafka.service.take_queue_replies() {
            let Some(pending) = self.queues.pending.try_remove(token as usize) else { continue };
            match pending {
                PendingRequest::Send { queue, tickets, bytes } => {
                    self.queues.bytes -= bytes;
                    self.sent(io, &queue, &tickets, &reply);
                }
                PendingRequest::Receive { group, consumer } => self.received(io, &group, consumer, reply),
                PendingRequest::Settle { group, count } => note_settled(&group, count, &reply),
                PendingRequest::Leave => {}
            }
        }
    }

    fn sent(
        &mut self,
        io: &mut Io<'_, ShardMessage>,
        queue: &str,
        tickets: &[Option<SinkTicket>],
        reply: &Reply,
    ) {
        for (index, ticket) in tickets.iter().enumerate() {
            let refused = match reply {
                Reply::Sent(answers) => answers.get(index).and_then(|answer| answer.as_ref().err()),
                Reply::Refused(error) => Some(error),
                _ => Some(&QueueError::Busy),
            };
            let outcome = refused.map_or(SinkOutcome::Durable, SinkOutcome::from);
            self.mqtt
                .call(&mut self.stores, io, |service, io| service.settle_sink_message(io, *ticket, outcome));
            if let (None, Some(error)) = (ticket, refused) {
                self.note_loss(queue, error);
            }
        }
    }

    /// Refuses a message that was not sent to its queue.
    #[cold]
    fn refuse(
        &mut self,
        io: &mut Io<'_, ShardMessage>,
        queue: &str,
        ticket: Option<SinkTicket>,
        error: QueueError,
    ) {
        self.sent(io, queue, &[ticket], &Reply::Refused(error));
    }

    /// Logs the loss of a QoS 0 message.
    fn note_loss(&mut self, queue: &str, error: &QueueError) {
        let logged = &mut self.queues.logged;
        if logged.len() < LOGGED_MAX && !logged.contains(queue) {
            logged.insert(queue.into());
            log::warn!("queue {queue:?} refuses a message at QoS 0: {error}; others like it are counted");
        }
    }

    fn received(
        &mut self,
        io: &mut Io<'_, ShardMessage>,
        group: &Arc<QueueGroup>,
        consumer: u64,
        reply: Reply,
    ) {
        let deliveries = match reply {
            Reply::Received(deliveries) => deliveries,
            Reply::Refused(error) => {
                self.mqtt
                    .call(&mut self.stores, io, |service, io| service.refuse_consumer(io, consumer, &error));
                return;
            }
            _ => return,
        };
        let mut is_there =
            self.mqtt.call(&mut self.stores, io, |service, io| service.confirm_consumer(io, consumer));
        let mut left = Vec::new();
        for delivery in &deliveries {
            is_there = is_there && self.deliver(io, group, consumer, delivery);
            if !is_there {
                // The consumer has left.
                left.push(Settlement { receipt: delivery.receipt, disposition: Disposition::Unsent });
            }
        }
        if !left.is_empty() {
            let pending = PendingRequest::Settle { group: Arc::clone(group), count: left.len() };
            let request = Request::Settle { group: Arc::clone(group.name()), settlements: left };
            self.request(io, group.queue(), request, pending);
        }
    }

    fn deliver(
        &mut self,
        io: &mut Io<'_, ShardMessage>,
        group: &QueueGroup,
        consumer: u64,
        delivery: &Delivery,
    ) -> bool {
        let mut scratch = std::mem::take(&mut self.queues.scratch);
        let delivery = queue_delivery(group, delivery, io.clock.unix_ms, &mut scratch);
        let is_there = self
            .mqtt
            .call(&mut self.stores, io, |service, io| service.deliver_from_queue(io, consumer, &delivery));
        self.queues.scratch = scratch;
        is_there
    }
}

/// Checks the options of a message, which are among its user properties.
fn check_options(message: &SinkMessage, now_ms: u64) -> Result<(), String> {
    let properties = message.properties(now_ms);
    let mut options = properties.user_properties.iter();
    options.try_for_each(|(name, value)| mainstem_queue_core::check_option(name, value))
}

/// A late settlement is normal. After a failed one, the message is redelivered when its lease expires.
fn note_settled(group: &QueueGroup, count: usize, reply: &Reply) {
    let refused = |answer: &ItemResult<()>| answer.as_ref().err().cloned();
    let first = match reply {
        Reply::Settled(answers) => answers.iter().find_map(refused),
        Reply::Refused(error) => Some(error.clone()),
        _ => None,
    };
    if let Some(error) = first {
        log::debug!("queue {:?} does not settle some of {count} deliveries: {error}", group.queue());
    }
}

/// Converts a delivery to its MQTT form.
fn queue_delivery<'a>(
    group: &QueueGroup,
    delivery: &'a Delivery,
    unix_ms: u64,
    scratch: &'a mut Scratch,
) -> QueueDelivery<'a> {
    let Receipt { offset, count, .. } = delivery.receipt;
    let record = delivery.payload.record();
    let enqueued_ms = record.timestamp_ms.max(0).cast_unsigned();
    let headers = Headers::parse(record.headers).into_iter().flatten().map_while(Result::ok);
    // `moved-by` is internal to transfers.
    let headers =
        headers.map(|header| (header.key, header.value)).filter(|(name, _)| *name != header::MOVED_BY);
    let numbers =
        spell([offset, u64::from(count), enqueued_ms, delivery.first_delivered_ms], &mut scratch.numbers);
    let topic = binding::topic_of(headers.clone()).filter(|topic| queue_of(topic).is_none());
    let key = record.key.and_then(|key| std::str::from_utf8(key).ok()).filter(|key| !key.contains('\0'));
    let own = [
        ("queue", Some(group.queue())),
        ("group", Some(&**group.name())),
        ("offset", Some(numbers[0])),
        ("delivery-count", Some(numbers[1])),
        ("enqueued-at", Some(numbers[2])),
        ("first-delivered-at", Some(numbers[3])),
        ("key", key),
        ("topic", topic),
    ];
    let own = own.iter().filter_map(|(name, value)| Some((*name, (*value)?)));
    let age_s = unix_ms.saturating_sub(enqueued_ms) / 1000;
    // The queue decides on expiry; a message that expires just now is delivered.
    let (properties, _) = binding::properties(headers, age_s, own, &mut scratch.user);
    QueueDelivery {
        receipt: delivery.receipt,
        lease_until_ms: delivery.lease_until_ms,
        payload: record.value.unwrap_or_default(),
        properties,
    }
}

/// Formats numbers in decimal.
fn spell<const N: usize>(numbers: [u64; N], into: &mut String) -> [&str; N] {
    into.clear();
    let ends = numbers.map(|number| {
        // Writing to a string cannot fail.
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
    use mainstem_queue_core::{Payload, UncompressedBatch};

    use super::*;

    fn group() -> Arc<QueueGroup> {
        QueueGroup::of("$queue/jobs", Some("audit")).unwrap()
    }

    /// A delivery with these headers, enqueued at second 1,000.
    fn delivery(headers: &[(&str, &str)]) -> Delivery {
        let mut encoded = Vec::new();
        let all = headers.iter().map(|(key, value)| Header { key, value: Some(value.as_bytes()) });
        put_headers(all, &mut encoded);
        let mut builder = BatchBuilder::default();
        builder.push_with_headers(1_000_000, Some(b"press-7"), Some(b"open"), &encoded);
        let plain = UncompressedBatch::copy(&batches(builder.finish()).next().unwrap()).unwrap();
        Delivery {
            receipt: Receipt { offset: 17, count: 2, incarnation: 5 },
            first_delivered_ms: 1_000_500,
            lease_until_ms: 1_030_500,
            payload: Payload::first(&plain).unwrap(),
        }
    }

    fn user<'a>(sent: &QueueDelivery<'a>) -> Vec<(&'a str, &'a str)> {
        sent.properties.user_properties.iter().collect()
    }

    #[test]
    fn user_properties_of_the_queue_precede_those_of_the_publisher() {
        let headers = [
            ("site", "north"),
            ("moved-by", "00ff/default/17"),
            ("mqtt.topic", "plant/7"),
            ("mqtt.qos", "1"),
            ("mqtt.content-type", "text/plain"),
            ("mqtt.message-expiry-interval", "60"),
        ];
        let (delivery, mut scratch) = (delivery(&headers), Scratch::default());
        let sent = queue_delivery(&group(), &delivery, 1_010_000, &mut scratch);
        assert_eq!(
            (sent.receipt, sent.payload),
            (Receipt { offset: 17, count: 2, incarnation: 5 }, b"open".as_slice())
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
        assert_eq!(user(&sent), expected);
        assert_eq!(sent.properties.content_type, Some("text/plain"));
        assert_eq!(sent.properties.message_expiry, Some(50));
    }

    #[test]
    fn the_topic_of_the_queue_itself_is_omitted() {
        let delivery = delivery(&[("mqtt.topic", "$queue/jobs/press-7")]);
        let mut scratch = Scratch::default();
        let sent = queue_delivery(&group(), &delivery, 1_000_000, &mut scratch);
        assert!(user(&sent).iter().all(|(name, _)| *name != "topic"));
    }
}
