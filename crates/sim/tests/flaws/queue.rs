//! Brokers whose work queues have a bug each.

use std::collections::HashMap;
use std::sync::Arc;

use mainstem_log::{Durability, Header, Headers, put_headers};
use mainstem_mqtt::{Ack, Packet, Publish, QoS, ReasonCode, Version, decode};
use mainstem_queue::{Delivery, NewMessage, Refusal, Reply, Request, Settlement, Verdict, header};
use mainstem_sim::Wrap;
use mainstem_sim::queue::Flaw;

use super::stores::{Change, Changed, EarlyAcks, Lax, LostBatch};
use super::{encode, is_turn, publish};

/// Makes a flaw.
type Make = fn() -> Box<dyn Flaw>;

/// All flaws there are, with words of what must be found because of them.
pub(crate) const ALL: [(&str, &str, Make); 39] = [
    ("messages are confirmed before they are synced", "is lost", || Box::new(Early)),
    ("messages are lost at recovery", "is lost", || Box::new(Lossy("p-"))),
    ("a queue with fsync does not sync", "is lost", || Box::new(Unsynced)),
    ("a queue with os does not outlast its process", "is lost", || Box::new(Fleeting)),
    ("what became of messages is lost", "and comes back", || Box::new(Lossy("q-"))),
    ("deliveries are not counted any more", "its count goes back", || Box::new(Lossy("q-"))),
    ("an acknowledgement is a release", "was acknowledged, and comes back", || Box::new(Undone)),
    ("a PUBACK is a failure", "by PUBACK, and comes back", || Box::new(Failing)),
    ("a rejection is an acknowledgement", "is lost", || Box::new(Soft)),
    ("more time is no time", "somebody else has it", || Box::new(Hasty)),
    ("keys are forgotten", "with the same key", || Box::new(Without("", true))),
    ("priorities are forgotten", "its priority is", || Box::new(Without(header::PRIORITY, false))),
    ("delays are forgotten", "it comes before its time", || Box::new(Without(header::DELAY_MS, false))),
    ("times to live are forgotten", "it has expired", || Box::new(Without(header::TTL_MS, false))),
    ("identifiers are forgotten", "stands twice", || Box::new(Without(header::DEDUP_ID, false))),
    ("refused messages do not wait", "comes before its time", || Box::new(Restless)),
    ("a message is sent twice", "stands twice", || Box::new(Doubled)),
    ("a message is taken and refused", "was refused and is delivered", || Box::new(Contrary::default())),
    ("a queue with room says that it is full", "though there is room", || Box::new(Contrary::default())),
    ("limits are forgotten", "there is more than may be", || Box::new(Boundless)),
    ("large messages are cut off", "is not what was sent", || Box::new(Cut)),
    ("consumers get more bytes than they ask for", "more comes than", || Box::new(Generous)),
    ("a dead letter comes twice", "is a dead letter twice", || Box::new(Haunted)),
    ("a delivery is numbered like the one before", "stands still", || Box::new(Uncounted::default())),
    ("receipts say nothing of the queue's life", "is that of another", || Box::new(Lifeless::default())),
    ("a purge does nothing", "it was purged", || Box::new(Unpurged)),
    ("a queue is not deleted", "in a queue that was deleted", || Box::new(Undeleted)),
    ("two consumers pass for one", "another one is active", || Box::new(Crowd)),
    ("a snapshot forgets deliveries", "its count goes back", || Box::new(Kept(Some(forget_counts)))),
    ("a snapshot forgets messages", "is lost", || Box::new(Kept(Some(forget_pending)))),
    ("a part of a snapshot says nothing", "is lost", || Box::new(Kept(Some(forget_parts)))),
    ("a copy of an old message is dropped", "is lost", || Box::new(Kept(Some(forget_asides)))),
    ("messages are removed too early", "is lost", || Box::new(Kept(None))),
    ("what a binding is fed goes nowhere", "is lost", || Box::new(Unbound)),
    ("a QoS 2 publish comes twice", "stands twice", || Box::new(Repeated)),
    ("publishers hear of no refusal", "is lost", || Box::new(Flattered)),
    ("publishers are refused for nothing", "though there is room", || Box::new(Refusing::default())),
    ("publishers are cut off for nothing", "is closed for nothing", || Box::new(Rude::default())),
    ("what is ready is withheld", "is ready and withheld", || Box::new(Miser::default())),
];

struct Early;

impl Flaw for Early {
    fn wrap(&self) -> Wrap {
        Arc::new(|store| Box::new(EarlyAcks::new(store)))
    }
}

struct Unsynced;

impl Flaw for Unsynced {
    fn wrap(&self) -> Wrap {
        Arc::new(|store| Box::new(Lax(store)))
    }
}

/// Of queues that do not sync, messages are lost without a loss of power.
struct Fleeting;

impl Flaw for Fleeting {
    fn wrap(&self) -> Wrap {
        Arc::new(|store| Box::new(LostBatch::of(Durability::Os, store, "p-")))
    }
}

struct Lossy(&'static str);

impl Flaw for Lossy {
    fn wrap(&self) -> Wrap {
        let prefix = self.0;
        Arc::new(move |store| Box::new(LostBatch::new(store, prefix)))
    }
}

/// What is kept of queues, or for how long their messages are, is wrong.
struct Kept(Option<Change>);

impl Flaw for Kept {
    fn wrap(&self) -> Wrap {
        let change = self.0;
        Arc::new(move |store| Box::new(Changed::new(store, change)))
    }
}

/// Where events of a kind have their fields, and how many numbers each has: `docs/formats/queue-state.md`.
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

/// The number at `at`, which moves behind it: seven bits a byte, the lowest first.
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

/// All that was delivered was delivered once.
#[expect(clippy::ptr_arg, reason = "it is one of several, of which some change the length")]
fn forget_counts(key: &[u8], value: &mut Vec<u8>, _: &mut Option<&'static [u8]>) {
    if key != b"snapshot" {
        return;
    }
    each_event(value, |event| {
        if event[0] == 5 {
            // Behind the group, which is below 128, and the run stands the count.
            let mut at = 2;
            for _ in 0..2 {
                at += 1 + event[at..].iter().take_while(|byte| **byte >= 0x80).count();
            }
            event[at] = event[at].min(1);
        }
    });
}

/// What is pending is settled.
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

/// What should be said of some messages is not.
fn forget_parts(key: &[u8], value: &mut Vec<u8>, _: &mut Option<&'static [u8]>) {
    if key == b"part" {
        *value = vec![1];
    }
}

/// Where a copy should stand is a batch without events.
fn forget_asides(key: &[u8], value: &mut Vec<u8>, new_key: &mut Option<&'static [u8]>) {
    if key == b"aside" {
        (*value, *new_key) = (vec![1], None);
    }
}

/// All that is settled with such a verdict is settled with another one.
fn instead(request: &mut Request, change: impl Fn(&mut Verdict)) {
    if let Request::Settle { settlements, .. } = request {
        for Settlement { verdict, .. } in settlements {
            change(verdict);
        }
    }
}

struct Undone;

impl Flaw for Undone {
    fn request(&mut self, _: &str, request: &mut Request) {
        instead(request, |verdict| {
            if *verdict == Verdict::Ack {
                *verdict = Verdict::Release;
            }
        });
    }
}

struct Failing;

impl Flaw for Failing {
    fn puback(&mut self, frame: &mut Vec<u8>) {
        let Ok(Packet::PubAck(ack)) = decode(Version::V5, frame) else { return };
        let packet_id = ack.packet_id;
        let failure = Ack { packet_id, reason: ReasonCode::UnspecifiedError, ..Ack::default() };
        frame.clear();
        Packet::PubAck(failure).encode(Version::V5, frame).expect("it was decoded");
    }
}

struct Soft;

impl Flaw for Soft {
    fn request(&mut self, _: &str, request: &mut Request) {
        instead(request, |verdict| {
            if *verdict == Verdict::Reject {
                *verdict = Verdict::Ack;
            }
        });
    }
}

struct Hasty;

impl Flaw for Hasty {
    fn request(&mut self, _: &str, request: &mut Request) {
        instead(request, |verdict| {
            if let Verdict::Extend(ms) = verdict {
                *ms = 1;
            }
        });
    }
}

struct Restless;

impl Flaw for Restless {
    fn request(&mut self, _: &str, request: &mut Request) {
        instead(request, |verdict| {
            if let Verdict::Nack(delay_ms) = verdict {
                *delay_ms = Some(0);
            }
        });
    }
}

/// Messages come without one of their headers, or without their keys.
struct Without(&'static str, bool);

impl Without {
    fn strip(&self, message: &mut NewMessage) {
        if self.1 {
            message.key = None;
        }
        let Ok(headers) = Headers::parse(&message.headers) else { return };
        let kept: Vec<Header<'_>> = headers.flatten().filter(|header| header.key != self.0).collect();
        let mut headers = Vec::new();
        put_headers(kept.into_iter(), &mut headers);
        message.headers = headers;
    }
}

impl Flaw for Without {
    fn request(&mut self, _: &str, request: &mut Request) {
        if let Request::Send(messages) = request {
            for message in messages {
                self.strip(message);
            }
        }
    }
}

/// The last message of a request stands there once more.
struct Doubled;

impl Flaw for Doubled {
    fn request(&mut self, _: &str, request: &mut Request) {
        if let Request::Send(messages) = request {
            messages.extend(messages.last().cloned());
        }
    }
}

/// Some senders hear that the queue is full, though it has taken their messages.
#[derive(Default)]
struct Contrary(u64);

impl Flaw for Contrary {
    fn reply(&mut self, _: &str, _: &Request, reply: &mut Reply) {
        if let Reply::Sent(outcomes) = reply
            && is_turn(&mut self.0, 10)
        {
            outcomes.fill(Err(Refusal::Full));
        }
    }
}

/// No queue has a limit.
struct Boundless;

impl Flaw for Boundless {
    fn request(&mut self, _: &str, request: &mut Request) {
        if let Request::Create { settings } | Request::Configure { settings } = request {
            settings.retain(|(name, _)| !name.ends_with("-max"));
        }
    }
}

/// Large messages lose their end.
struct Cut;

impl Flaw for Cut {
    fn request(&mut self, _: &str, request: &mut Request) {
        if let Request::Send(messages) = request {
            for message in messages {
                message.value.truncate(65_536);
            }
        }
    }
}

/// Consumers get as many bytes as there are.
struct Generous;

impl Flaw for Generous {
    fn request(&mut self, _: &str, request: &mut Request) {
        if let Request::Receive { bytes_max, .. } = request {
            *bytes_max = usize::MAX;
        }
    }
}

/// Dead letters show at a second place as well.
struct Haunted;

impl Flaw for Haunted {
    fn reply(&mut self, queue: &str, _: &Request, reply: &mut Reply) {
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

/// Later deliveries have the number of the first.
#[derive(Default)]
struct Uncounted(u64);

impl Flaw for Uncounted {
    fn reply(&mut self, _: &str, _: &Request, reply: &mut Reply) {
        let Reply::Received(deliveries) = reply else { return };
        for delivery in deliveries.iter_mut().filter(|delivery| delivery.receipt.count == 2) {
            if is_turn(&mut self.0, 5) {
                delivery.receipt.count = 1;
            }
        }
    }
}

/// The lives that receipts were of, by queue, offset and count.
#[derive(Default)]
struct Lifeless(HashMap<(String, u64, u32), u32>);

impl Flaw for Lifeless {
    fn request(&mut self, queue: &str, request: &mut Request) {
        let Request::Settle { settlements, .. } = request else { return };
        for Settlement { receipt, .. } in settlements {
            let life = self.0.get(&(queue.to_owned(), receipt.offset, receipt.count));
            receipt.life = life.copied().unwrap_or_default();
        }
    }

    fn reply(&mut self, queue: &str, _: &Request, reply: &mut Reply) {
        let Reply::Received(deliveries) = reply else { return };
        for Delivery { receipt, .. } in deliveries {
            self.0.insert((queue.to_owned(), receipt.offset, receipt.count), receipt.life);
            receipt.life = 0;
        }
    }
}

struct Unpurged;

impl Flaw for Unpurged {
    fn request(&mut self, _: &str, request: &mut Request) {
        if let Request::Purge { .. } = request {
            *request = Request::Info;
        }
    }

    fn reply(&mut self, _: &str, request: &Request, reply: &mut Reply) {
        if let (Request::Purge { .. }, Reply::Info(_)) = (request, &*reply) {
            *reply = Reply::Count(0);
        }
    }
}

struct Undeleted;

impl Flaw for Undeleted {
    fn request(&mut self, _: &str, request: &mut Request) {
        if let Request::Delete = request {
            *request = Request::Info;
        }
    }

    fn reply(&mut self, _: &str, request: &Request, reply: &mut Reply) {
        if let (Request::Delete, Reply::Info(_)) = (request, &*reply) {
            *reply = Reply::Done;
        }
    }
}

struct Crowd;

impl Flaw for Crowd {
    fn request(&mut self, _: &str, request: &mut Request) {
        if let Request::Receive { consumer, .. } = request {
            *consumer = 1;
        }
    }
}

/// Some of those who ask for messages hear that there are none.
#[derive(Default)]
struct Miser(u64);

impl Flaw for Miser {
    fn reply(&mut self, _: &str, _: &Request, reply: &mut Reply) {
        if let Reply::Received(deliveries) = reply
            && is_turn(&mut self.0, 5)
        {
            deliveries.clear();
        }
    }
}

/// Topics that bindings are fed by are others.
struct Unbound;

impl Flaw for Unbound {
    fn publisher_says(&mut self, frame: Vec<u8>) -> Vec<Vec<u8>> {
        let lost = publish(&frame)
            .filter(|(_, publish)| publish.topic.starts_with("in/"))
            .map(|(version, publish)| encode(version, Publish { topic: "elsewhere", ..publish }));
        vec![lost.unwrap_or(frame)]
    }
}

/// What is sent again at QoS 2 comes once more, whatever there was before.
struct Repeated;

impl Flaw for Repeated {
    fn publisher_says(&mut self, frame: Vec<u8>) -> Vec<Vec<u8>> {
        let again = publish(&frame).filter(|(_, publish)| publish.dup && publish.qos == QoS::ExactlyOnce);
        let again = again.map(|(version, publish)| {
            let (qos, packet_id) = (QoS::AtMostOnce, 0);
            encode(version, Publish { qos, packet_id, dup: false, ..publish })
        });
        std::iter::once(frame).chain(again).collect()
    }
}

/// PUBACK as it is on the wire, and what it says if it is not that all is well.
const PUBACK: u8 = 0x40;

/// Every PUBACK says that all is well.
struct Flattered;

impl Flaw for Flattered {
    fn publisher_hears(&mut self, frame: &mut Vec<u8>) {
        if frame[0] == PUBACK {
            frame[1] = 2;
            frame.truncate(4);
        }
    }
}

/// Some PUBACKs say that there is no room.
#[derive(Default)]
struct Refusing(u64);

impl Flaw for Refusing {
    fn publisher_hears(&mut self, frame: &mut Vec<u8>) {
        if frame[..2] == [PUBACK, 2] && is_turn(&mut self.0, 10) {
            frame[1] = 3;
            frame.push(ReasonCode::QuotaExceeded as u8);
        }
    }
}

/// Some publishers are taken for such as say what nobody understands.
#[derive(Default)]
struct Rude(u64);

impl Flaw for Rude {
    fn publisher_says(&mut self, frame: Vec<u8>) -> Vec<Vec<u8>> {
        let is_broken = publish(&frame).is_some() && is_turn(&mut self.0, 20);
        vec![if is_broken { vec![0, 0] } else { frame }]
    }
}
