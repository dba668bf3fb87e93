//! Bugs of brokers with work queues.

use std::collections::HashMap;
use std::sync::Arc;

use mainstem_log::{Durability, Header, Headers, put_headers};
use mainstem_mqtt::{Ack, Packet, Publish, QoS, ReasonCode, Version, decode};
use mainstem_queue_core::{
    Delivery, Disposition, NewMessage, QueueError, Reply, Request, Settlement, header,
};
use mainstem_sim::{FaultInjector, WrapStore};

use super::mqtt::{encode, publish};
use super::stores::{Change, Changed, EarlyAcks, Lax, LostBatch};
use super::{Bug, is_turn};

pub(crate) const BUGS: [Bug; 39] = [
    Bug::new("messages are confirmed before they are synced", "is lost", 2194, || Box::new(EarlyAck)),
    Bug::new("messages are lost at recovery", "is lost", 2080, || Box::new(BatchLost("p-"))),
    Bug::new("a queue with fsync does not sync", "is lost", 2145, || Box::new(Unsynced)),
    Bug::new("a queue with os does not survive a restart", "is lost", 2080, || Box::new(OsQueuesLost)),
    Bug::new("settlements are lost", "and comes back", 2103, || Box::new(BatchLost("q-"))),
    Bug::new("delivery counts are lost", "its count goes back", 2145, || Box::new(BatchLost("q-"))),
    Bug::new("an acknowledgement is a release", "was acknowledged, and comes back", 2081, || {
        Box::new(AckReleases)
    }),
    Bug::new("a PUBACK is a failure", "by PUBACK, and comes back", 2083, || Box::new(PubackFails)),
    Bug::new("a rejection is an acknowledgement", "is lost", 2080, || Box::new(RejectAcks)),
    Bug::new("lease extensions are short", "somebody else has it", 2080, || Box::new(ExtensionShortened)),
    Bug::new("keys are forgotten", "with the same key", 2080, || Box::new(HeaderRemoved("", true))),
    Bug::new("priorities are forgotten", "its priority is", 2101, || {
        Box::new(HeaderRemoved(header::PRIORITY, false))
    }),
    Bug::new("delays are forgotten", "it comes before its time", 2082, || {
        Box::new(HeaderRemoved(header::DELAY_MS, false))
    }),
    Bug::new("times to live are forgotten", "it has expired", 2081, || {
        Box::new(HeaderRemoved(header::TTL_MS, false))
    }),
    Bug::new("identifiers are forgotten", "stands twice", 2080, || {
        Box::new(HeaderRemoved(header::DEDUP_ID, false))
    }),
    Bug::new("failed messages have no backoff", "comes before its time", 2080, || Box::new(BackoffRemoved)),
    Bug::new("a message is sent twice", "stands twice", 2082, || Box::new(MessageSentTwice)),
    Bug::new("a message is taken and refused", "was refused and is delivered", 2080, || {
        Box::new(TakenAndRefused::default())
    }),
    Bug::new("a queue with room reports that it is full", "though there is room", 2082, || {
        Box::new(TakenAndRefused::default())
    }),
    Bug::new("limits are forgotten", "there is more than may be", 2088, || Box::new(LimitsRemoved)),
    Bug::new("large messages are truncated", "is not what was sent", 2080, || Box::new(Truncated)),
    Bug::new("consumers get more bytes than they ask for", "more comes than", 2080, || {
        Box::new(BytesUnlimited)
    }),
    Bug::new("a dead letter comes twice", "is a dead letter twice", 2080, || Box::new(DeadLetterTwice)),
    Bug::new("two deliveries have one count", "stands still", 2080, || Box::new(CountRepeated::default())),
    Bug::new("receipts have no incarnation", "is that of another", 2081, || {
        Box::new(IncarnationRemoved::default())
    }),
    Bug::new("a purge does nothing", "it was purged", 2081, || Box::new(PurgeIgnored)),
    Bug::new("a queue is not deleted", "in a queue that was deleted", 2090, || Box::new(DeletionIgnored)),
    Bug::new("all consumers have one number", "another one is active", 2089, || {
        Box::new(SharedConsumerNumber)
    }),
    Bug::new("a snapshot forgets deliveries", "its count goes back", 2103, || {
        Box::new(StateChanged(Some(forget_counts)))
    }),
    Bug::new("a snapshot forgets messages", "is lost", 2087, || Box::new(StateChanged(Some(forget_pending)))),
    Bug::new("a part of a snapshot is empty", "is lost", 2080, || Box::new(StateChanged(Some(forget_parts)))),
    Bug::new("a copy of an old message is dropped", "is lost", 2139, || {
        Box::new(StateChanged(Some(forget_asides)))
    }),
    Bug::new("messages are removed too early", "is lost", 2083, || Box::new(StateChanged(None))),
    Bug::new("messages of a binding are dropped", "is lost", 2083, || Box::new(BindingBypassed)),
    Bug::new("a QoS 2 publish comes twice", "stands twice", 2125, || Box::new(Qos2Repeated)),
    Bug::new("publishers see no refusal", "is lost", 2085, || Box::new(RefusalsHidden)),
    Bug::new("publishers are refused without reason", "though there is room", 2090, || {
        Box::new(FalseRefusals::default())
    }),
    Bug::new("connections of publishers are closed without reason", "is closed for nothing", 2085, || {
        Box::new(MalformedPublishes::default())
    }),
    Bug::new("ready messages are withheld", "is ready and withheld", 2112, || {
        Box::new(DeliveriesWithheld::default())
    }),
];

struct EarlyAck;

impl FaultInjector for EarlyAck {
    fn wrap(&self) -> WrapStore {
        Arc::new(|store| Box::new(EarlyAcks::new(store)))
    }
}

struct Unsynced;

impl FaultInjector for Unsynced {
    fn wrap(&self) -> WrapStore {
        Arc::new(|store| Box::new(Lax(store)))
    }
}

/// Queues that do not sync lose messages without a loss of power.
struct OsQueuesLost;

impl FaultInjector for OsQueuesLost {
    fn wrap(&self) -> WrapStore {
        Arc::new(|store| Box::new(LostBatch::of(Durability::Os, store, "p-")))
    }
}

struct BatchLost(&'static str);

impl FaultInjector for BatchLost {
    fn wrap(&self) -> WrapStore {
        let prefix = self.0;
        Arc::new(move |store| Box::new(LostBatch::new(store, prefix)))
    }
}

/// Changes the queue's state, or truncates its messages too early.
struct StateChanged(Option<Change>);

impl FaultInjector for StateChanged {
    fn wrap(&self) -> WrapStore {
        let change = self.0;
        Arc::new(move |store| Box::new(Changed::new(store, change)))
    }
}

/// Calls `each` with every event of a record, whose layout is in `docs/formats/queue-state.md`.
fn each_event(events: &mut [u8], mut each: impl FnMut(&mut [u8])) {
    let mut at = 1;
    while let Some(kind) = events.get(at).copied() {
        let begin = at;
        at += 1;
        let fields: &[Field] = match kind {
            1 | 3 | 12 | 13 => &[Field::Number],
            2 => &[Field::Number, Field::Text, Field::Number],
            4 | 6 | 11 => &[Field::Number; 3],
            5 => &[Field::Number; 5],
            7 => &[Field::Number, Field::Number, Field::Number, Field::Byte, Field::Number],
            8 => &[Field::Number; 2],
            _ => &[Field::Text, Field::Number],
        };
        for field in fields {
            match field {
                Field::Number => {
                    number(events, &mut at);
                }
                Field::Text => {
                    let len = number(events, &mut at);
                    at += len;
                }
                Field::Byte => at += 1,
            }
        }
        each(&mut events[begin..at]);
    }
}

/// Reads the number at `at`: seven bits per byte, lowest first.
fn number(bytes: &[u8], at: &mut usize) -> usize {
    let (mut number, mut shift) = (0, 0);
    loop {
        let byte = bytes[*at];
        *at += 1;
        number |= usize::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            return number;
        }
    }
}

#[derive(Clone, Copy)]
enum Field {
    Number,
    Text,
    Byte,
}

/// Every delivery count is 1 at most.
#[expect(clippy::ptr_arg, reason = "it is one of several, of which some change the length")]
fn forget_counts(key: &[u8], value: &mut Vec<u8>, _: &mut Option<&'static [u8]>) {
    if key != b"snapshot" {
        return;
    }
    each_event(value, |event| {
        if event[0] == 5 {
            // The count follows the group, which is below 128, and two more numbers.
            let mut at = 2;
            for _ in 0..2 {
                at += 1 + event[at..].iter().take_while(|byte| **byte >= 0x80).count();
            }
            event[at] = event[at].min(1);
        }
    });
}

/// Pending messages are settled.
#[expect(clippy::ptr_arg, reason = "it is one of several, of which some change the length")]
fn forget_pending(key: &[u8], value: &mut Vec<u8>, _: &mut Option<&'static [u8]>) {
    if key == b"snapshot" {
        each_event(value, |event| {
            if event[0] == 11 {
                event[0] = 4;
            }
        });
    }
}

/// Parts of snapshots are empty.
fn forget_parts(key: &[u8], value: &mut Vec<u8>, _: &mut Option<&'static [u8]>) {
    if key == b"part" {
        *value = vec![1];
    }
}

/// A relocated message is an empty batch.
fn forget_asides(key: &[u8], value: &mut Vec<u8>, new_key: &mut Option<&'static [u8]>) {
    if key == b"aside" {
        (*value, *new_key) = (vec![1], None);
    }
}

/// Changes every disposition.
fn instead(request: &mut Request, change: impl Fn(&mut Disposition)) {
    if let Request::Settle { settlements, .. } = request {
        for Settlement { disposition, .. } in settlements {
            change(disposition);
        }
    }
}

struct AckReleases;

impl FaultInjector for AckReleases {
    fn queue_request(&mut self, _: &str, request: &mut Request) {
        instead(request, |disposition| {
            if *disposition == Disposition::Ack {
                *disposition = Disposition::Release;
            }
        });
    }
}

struct PubackFails;

impl FaultInjector for PubackFails {
    fn to_broker(&mut self, _client: usize, frame: Vec<u8>) -> Vec<Vec<u8>> {
        let Ok(Packet::PubAck(ack)) = decode(Version::V5, &frame) else { return vec![frame] };
        let packet_id = ack.packet_id;
        let failure = Ack { packet_id, reason: ReasonCode::UnspecifiedError, ..Ack::default() };
        let mut changed = Vec::new();
        Packet::PubAck(failure).encode(Version::V5, &mut changed).expect("it was decoded");
        vec![changed]
    }
}

struct RejectAcks;

impl FaultInjector for RejectAcks {
    fn queue_request(&mut self, _: &str, request: &mut Request) {
        instead(request, |disposition| {
            if *disposition == Disposition::Reject {
                *disposition = Disposition::Ack;
            }
        });
    }
}

struct ExtensionShortened;

impl FaultInjector for ExtensionShortened {
    fn queue_request(&mut self, _: &str, request: &mut Request) {
        instead(request, |disposition| {
            if let Disposition::Extend(ms) = disposition {
                *ms = 1;
            }
        });
    }
}

struct BackoffRemoved;

impl FaultInjector for BackoffRemoved {
    fn queue_request(&mut self, _: &str, request: &mut Request) {
        instead(request, |disposition| {
            if let Disposition::Nack(delay_ms) = disposition {
                *delay_ms = Some(0);
            }
        });
    }
}

/// Messages lose one of their headers, or their keys.
struct HeaderRemoved(&'static str, bool);

impl HeaderRemoved {
    fn strip(&self, message: &mut NewMessage) {
        if self.1 {
            message.key = None;
        }
        let Ok(headers) = Headers::parse(&message.headers) else { return };
        let remaining: Vec<Header<'_>> = headers.flatten().filter(|header| header.key != self.0).collect();
        let mut headers = Vec::new();
        put_headers(remaining.into_iter(), &mut headers);
        message.headers = headers;
    }
}

impl FaultInjector for HeaderRemoved {
    fn queue_request(&mut self, _: &str, request: &mut Request) {
        if let Request::Send(messages) = request {
            for message in messages {
                self.strip(message);
            }
        }
    }
}

/// The last message of a request is sent twice.
struct MessageSentTwice;

impl FaultInjector for MessageSentTwice {
    fn queue_request(&mut self, _: &str, request: &mut Request) {
        if let Request::Send(messages) = request {
            messages.extend(messages.last().cloned());
        }
    }
}

/// Some replies report a full queue although it has taken the messages.
#[derive(Default)]
struct TakenAndRefused(u64);

impl FaultInjector for TakenAndRefused {
    fn queue_reply(&mut self, _: &str, _: &Request, reply: &mut Reply) {
        if let Reply::Sent(outcomes) = reply
            && is_turn(&mut self.0, 10)
        {
            outcomes.fill(Err(QueueError::Full));
        }
    }
}

struct LimitsRemoved;

impl FaultInjector for LimitsRemoved {
    fn queue_request(&mut self, _: &str, request: &mut Request) {
        if let Request::Create { settings } | Request::Configure { settings } = request {
            settings.retain(|(name, _)| !name.ends_with("-max"));
        }
    }
}

/// Large messages are truncated.
struct Truncated;

impl FaultInjector for Truncated {
    fn queue_request(&mut self, _: &str, request: &mut Request) {
        if let Request::Send(messages) = request {
            for message in messages {
                message.value.truncate(65_536);
            }
        }
    }
}

/// Requests have no limit of bytes.
struct BytesUnlimited;

impl FaultInjector for BytesUnlimited {
    fn queue_request(&mut self, _: &str, request: &mut Request) {
        if let Request::Receive { bytes_max, .. } = request {
            *bytes_max = usize::MAX;
        }
    }
}

/// Dead letters appear at a second offset.
struct DeadLetterTwice;

impl FaultInjector for DeadLetterTwice {
    fn queue_reply(&mut self, queue: &str, _: &Request, reply: &mut Reply) {
        if let Reply::Received(deliveries) = reply
            && (queue == "q0.dead" || queue == "grave")
        {
            let again = |mut delivery: Delivery| {
                delivery.receipt.offset += 1_000_000;
                delivery
            };
            deliveries.extend(deliveries.last().cloned().map(again));
        }
    }
}

/// Second deliveries have the count of the first.
#[derive(Default)]
struct CountRepeated(u64);

impl FaultInjector for CountRepeated {
    fn queue_reply(&mut self, _: &str, _: &Request, reply: &mut Reply) {
        let Reply::Received(deliveries) = reply else { return };
        for delivery in deliveries.iter_mut().filter(|delivery| delivery.receipt.count == 2) {
            if is_turn(&mut self.0, 5) {
                delivery.receipt.count = 1;
            }
        }
    }
}

/// Incarnations of receipts, by queue, offset and count.
#[derive(Default)]
struct IncarnationRemoved(HashMap<(String, u64, u32), u32>);

impl FaultInjector for IncarnationRemoved {
    fn queue_request(&mut self, queue: &str, request: &mut Request) {
        let Request::Settle { settlements, .. } = request else { return };
        for Settlement { receipt, .. } in settlements {
            let incarnation = self.0.get(&(queue.to_owned(), receipt.offset, receipt.count));
            receipt.incarnation = incarnation.copied().unwrap_or_default();
        }
    }

    fn queue_reply(&mut self, queue: &str, _: &Request, reply: &mut Reply) {
        let Reply::Received(deliveries) = reply else { return };
        for Delivery { receipt, .. } in deliveries {
            self.0.insert((queue.to_owned(), receipt.offset, receipt.count), receipt.incarnation);
            receipt.incarnation = 0;
        }
    }
}

struct PurgeIgnored;

impl FaultInjector for PurgeIgnored {
    fn queue_request(&mut self, _: &str, request: &mut Request) {
        if let Request::Purge { .. } = request {
            *request = Request::Info;
        }
    }

    fn queue_reply(&mut self, _: &str, request: &Request, reply: &mut Reply) {
        if let (Request::Purge { .. }, Reply::Info(_)) = (request, &*reply) {
            *reply = Reply::Count(0);
        }
    }
}

struct DeletionIgnored;

impl FaultInjector for DeletionIgnored {
    fn queue_request(&mut self, _: &str, request: &mut Request) {
        if let Request::Delete = request {
            *request = Request::Info;
        }
    }

    fn queue_reply(&mut self, _: &str, request: &Request, reply: &mut Reply) {
        if let (Request::Delete, Reply::Info(_)) = (request, &*reply) {
            *reply = Reply::Done;
        }
    }
}

struct SharedConsumerNumber;

impl FaultInjector for SharedConsumerNumber {
    fn queue_request(&mut self, _: &str, request: &mut Request) {
        if let Request::Receive { consumer, .. } = request {
            *consumer = 1;
        }
    }
}

/// Some replies have no deliveries.
#[derive(Default)]
struct DeliveriesWithheld(u64);

impl FaultInjector for DeliveriesWithheld {
    fn queue_reply(&mut self, _: &str, _: &Request, reply: &mut Reply) {
        if let Reply::Received(deliveries) = reply
            && is_turn(&mut self.0, 5)
        {
            deliveries.clear();
        }
    }
}

/// Messages for a binding go to another topic.
struct BindingBypassed;

impl FaultInjector for BindingBypassed {
    fn to_broker(&mut self, _client: usize, frame: Vec<u8>) -> Vec<Vec<u8>> {
        let lost = publish(&frame)
            .filter(|(_, publish)| publish.topic.starts_with("in/"))
            .map(|(version, publish)| encode(version, Publish { topic: "unbound", ..publish }));
        vec![lost.unwrap_or(frame)]
    }
}

/// A QoS 2 publish that is sent again arrives twice.
struct Qos2Repeated;

impl FaultInjector for Qos2Repeated {
    fn to_broker(&mut self, _client: usize, frame: Vec<u8>) -> Vec<Vec<u8>> {
        let again = publish(&frame).filter(|(_, publish)| publish.dup && publish.qos == QoS::ExactlyOnce);
        let again = again.map(|(version, publish)| {
            let (qos, packet_id) = (QoS::AtMostOnce, 0);
            encode(version, Publish { qos, packet_id, dup: false, ..publish })
        });
        std::iter::once(frame).chain(again).collect()
    }
}

/// First byte of a PUBACK.
const PUBACK: u8 = 0x40;

/// Every PUBACK reports success.
struct RefusalsHidden;

impl FaultInjector for RefusalsHidden {
    fn to_client(&mut self, client: usize, mut frame: Vec<u8>) -> Vec<(usize, Vec<u8>)> {
        if frame[0] == PUBACK {
            frame[1] = 2;
            frame.truncate(4);
        }
        vec![(client, frame)]
    }
}

/// Some PUBACKs report a full queue.
#[derive(Default)]
struct FalseRefusals(u64);

impl FaultInjector for FalseRefusals {
    fn to_client(&mut self, client: usize, mut frame: Vec<u8>) -> Vec<(usize, Vec<u8>)> {
        if frame[..2] == [PUBACK, 2] && is_turn(&mut self.0, 10) {
            frame[1] = 3;
            frame.push(ReasonCode::QuotaExceeded as u8);
        }
        vec![(client, frame)]
    }
}

/// Some publishes are malformed, and the broker closes the connection.
#[derive(Default)]
struct MalformedPublishes(u64);

impl FaultInjector for MalformedPublishes {
    fn to_broker(&mut self, _client: usize, frame: Vec<u8>) -> Vec<Vec<u8>> {
        let is_broken = publish(&frame).is_some() && is_turn(&mut self.0, 20);
        vec![if is_broken { vec![0, 0] } else { frame }]
    }
}
