//! Work queues, which others have: publishes to `$queue/<name>`, and subscriptions to them.
//!
//! A publish to a queue goes out as a message for a sink does ([`crate::Sink::Queue`]). A queue subscription of a
//! connected session is a consumer. Once a turn, [`Shard::take_errands`] says what consumers want of their queues;
//! what those have for them comes by [`Shard::queue_answered`] and [`Shard::deliver`].
//!
//! ```text
//!   SUBSCRIBE ──► first look ──answered──► waits for messages ◄──┐
//!                    │                          │ received       │ room in the window
//!                 refused                       ▼                │
//!                    ▼                   held, then leased ──PUBACK──► settled
//!          SUBACK with an error                 │ connection lost
//!                                               ▼ released
//! ```

mod consumer;
mod lease;

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use mainstem_mqtt::session::LAST_ID;
use mainstem_mqtt::{MessageProperties, SubscribeOptions};
use mainstem_runtime::Io;
use slab::Slab;

use crate::message::{Message, SessionKey};
use crate::shard::Shard;
use crate::shared::Mail;

/// What the topic names of queues begin with.
const PREFIX: &str = "$queue/";
/// Longest name of a queue, bytes.
const NAME_BYTES_MAX: usize = 249;
/// The group of a subscription that names none.
const DEFAULT_GROUP: &str = "default";
/// The first packet identifier of deliveries from queues: those below are of the session's window, where many are
/// known before they are sent.
pub(crate) const FIRST_LEASE_ID: u16 = LAST_ID + 1;
/// Deliveries of queues that one session may have at once.
const LEASES_MAX: usize = (u16::MAX - LAST_ID) as usize;
/// Pause before a consumer that was refused asks its queue again, ms.
const REFUSED_MS: u64 = 5_000;

/// Whether a topic name or filter is about queues.
#[inline]
pub(crate) fn is_of_queue(topic: &str) -> bool {
    topic.starts_with(PREFIX)
}

/// The queue that a topic name is about, and the key that stands behind it; nothing if it is about none.
pub fn queue_of(topic: &str) -> Option<(&str, Option<&str>)> {
    let rest = topic.strip_prefix(PREFIX)?;
    let (name, key) = match rest.split_once('/') {
        Some((name, key)) => (name, Some(key).filter(|key| !key.is_empty())),
        None => (rest, None),
    };
    is_queue_name(name).then_some((name, key))
}

/// Names of queues are those of Kafka's topics.
fn is_queue_name(name: &str) -> bool {
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name != "." && name != ".." && name.bytes().all(is_usual)
}

/// A group of consumers of a queue.
#[derive(Debug, PartialEq, Eq)]
pub struct QueueGroup {
    /// `$queue/` and the name of the queue.
    topic: Box<str>,
    /// Its name.
    pub group: Arc<str>,
}

impl QueueGroup {
    /// The group of a queue that a filter is about, without its share name; nothing if that is no queue.
    pub fn of(filter: &str, group: Option<&str>) -> Option<Arc<Self>> {
        let name = filter.strip_prefix(PREFIX)?;
        let group = group.unwrap_or(DEFAULT_GROUP).into();
        is_queue_name(name).then(|| Arc::new(Self { topic: filter.into(), group }))
    }

    /// The name of the queue.
    pub fn queue(&self) -> &str {
        &self.topic[PREFIX.len()..]
    }
}

/// What a queue calls a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Place of the message in its queue.
    pub offset: u64,
    /// The how manieth delivery of it this is.
    pub count: u32,
    /// In which life of the queue.
    pub life: u32,
}

/// What became of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its consumer has done it.
    Ack,
    /// Its consumer has failed, and asks to be left alone with it for this time, ms.
    Nack(Option<u64>),
    /// Its consumer says that nobody will do better.
    Reject,
    /// Its consumer is gone.
    Release,
    /// The same, and it was never sent to it.
    Unsent,
}

/// Something that a consumer wants of its queue.
#[derive(Debug)]
pub struct Errand {
    /// Of which queue, as which group.
    pub of: Arc<QueueGroup>,
    /// What.
    pub wants: Wants,
}

/// See [`Errand`].
#[derive(Debug, PartialEq, Eq)]
pub enum Wants {
    /// Messages. Answered by [`Shard::queue_answered`] or [`Shard::refuse_consumer`].
    Receive {
        /// Who.
        consumer: u64,
        /// Most messages, above 0.
        max: u32,
        /// It waits until there are some; otherwise it wants to be told at once that there are none.
        waits: bool,
    },
    /// To settle what it had.
    Settle(Vec<(Lease, Verdict)>),
    /// To be forgotten. If it waits for messages, that is answered.
    Leave {
        /// Who.
        consumer: u64,
    },
}

/// A message that a queue has for a consumer.
#[derive(Clone, Copy, Debug)]
pub struct Parcel<'a> {
    /// What it is settled by.
    pub lease: Lease,
    /// Until when the consumer has it, ms since 1970.
    pub until_ms: u64,
    /// The application message.
    pub payload: &'a [u8],
    /// Its properties; user properties as [`mainstem_mqtt::UserProperties::Wire`].
    pub properties: MessageProperties<'a>,
}

/// What a shard has to do with queues.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// Consumers have numbers that no other shard gives them.
    last_consumer: u64,
    /// Whose each consumer is.
    consumers: HashMap<u64, SessionKey, foldhash::fast::RandomState>,
    /// Sessions that may want something.
    due: Vec<SessionKey>,
    /// Of consumers that are gone.
    errands: Vec<Errand>,
    /// Sessions with consumers that ask again later.
    refused: Vec<SessionKey>,
}

/// A session's part in queues.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    pub(crate) subscriptions: Vec<QueueSubscription>,
    /// What it has been sent and has not acknowledged, by packet identifier.
    leased: Slab<Leased>,
    /// What it has settled since errands were last taken.
    settled: Vec<(Arc<QueueGroup>, Lease, Verdict)>,
    is_due: bool,
    /// A message has been too large for it, and that has been logged.
    too_large_logged: bool,
}

/// A subscription to a queue. Its messages are in no journal, and nor is what becomes of them.
#[derive(Debug)]
pub(crate) struct QueueSubscription {
    /// As the client has written it.
    pub(crate) filter: Box<str>,
    pub(crate) options: SubscribeOptions,
    /// Subscription Identifier; 0 is none.
    pub(crate) id: u32,
    of: Arc<QueueGroup>,
    /// Its number while the session has a connection, or 0.
    consumer: u64,
    asking: Asking,
    /// The queue has answered this consumer.
    is_known: bool,
    /// The queue has refused it since, and that has been logged.
    refusal_logged: bool,
    /// Messages of it that the session has not acknowledged.
    leased: u32,
    /// Messages that came when there was no room for them any more.
    held: VecDeque<Held>,
    /// SUBACKs that wait for the queue's first answer: number of the answer, place in its list.
    subacks: Vec<(u64, usize)>,
}

/// Whether a consumer waits for its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asking {
    /// It may ask.
    No,
    /// It has asked, and has no answer.
    Yes,
    /// It was refused, and asks again at this time, ms.
    Later(u64),
}

/// A message that waits for room.
#[derive(Debug)]
struct Held {
    lease: Lease,
    /// Nothing is sent from then on, when the queue gives it to somebody else; ms since 1970.
    until_ms: u64,
    message: Message,
}

/// A message that a session has been sent.
#[derive(Debug)]
struct Leased {
    of: Arc<QueueGroup>,
    consumer: u64,
    lease: Lease,
}

impl Work {
    fn new_consumer(&mut self, shard: u16, session: SessionKey) -> u64 {
        self.last_consumer += 1;
        let number = u64::from(shard) << 48 | self.last_consumer;
        self.consumers.insert(number, session);
        number
    }

    fn settle(&mut self, of: &Arc<QueueGroup>, lease: Lease, verdict: Verdict) {
        add_settled(&mut self.errands, of, lease, verdict);
    }
}

/// Adds a verdict to the last errand that settles something of this group, or to a new one.
fn add_settled(errands: &mut Vec<Errand>, of: &Arc<QueueGroup>, lease: Lease, verdict: Verdict) {
    let last = errands.iter_mut().rev().take_while(|errand| matches!(errand.wants, Wants::Settle(_)));
    for errand in last {
        if let Wants::Settle(settled) = &mut errand.wants
            && Arc::ptr_eq(&errand.of, of)
        {
            settled.push((lease, verdict));
            return;
        }
    }
    errands.push(Errand { of: Arc::clone(of), wants: Wants::Settle(vec![(lease, verdict)]) });
}

impl Shard {
    /// Whether consumers want something of their queues.
    pub fn has_errands(&self) -> bool {
        !self.queues.due.is_empty() || !self.queues.errands.is_empty()
    }

    /// Takes what consumers want of their queues now: what is settled comes before what is asked for.
    pub fn take_errands(&mut self, io: &mut Io<'_, Mail>) -> Vec<Errand> {
        for key in std::mem::take(&mut self.queues.due) {
            if self.deliveries.sessions.get(key).is_some() {
                self.gather_errands(io, key);
            }
        }
        std::mem::take(&mut self.queues.errands)
    }

    fn gather_errands(&mut self, io: &mut Io<'_, Mail>, key: SessionKey) {
        let prefetch = usize::from(self.shared.config.queue_prefetch);
        let now_ms = io.clock.now_ms;
        let session = self.deliveries.sessions.at(key.slot);
        let (conn, connected) = (session.conn, session.connected);
        let free = usize::from(session.inflight_max.saturating_sub(session.window.in_flight()));
        let Some(worker) = session.rare.as_mut().and_then(|rare| rare.worker.as_mut()) else { return };
        worker.is_due = false;
        for (of, lease, verdict) in worker.settled.drain(..) {
            add_settled(&mut self.queues.errands, &of, lease, verdict);
        }
        if !connected {
            return;
        }
        let held: usize = worker.subscriptions.iter().map(|known| known.held.len()).sum();
        let free = free.min(LEASES_MAX - worker.leased.len()).saturating_sub(held);
        // A client that does not read gets nothing more, and its colleagues get it instead.
        let has_room = io.has_ample_room(conn);
        for known in &mut worker.subscriptions {
            let may_ask = match known.asking {
                Asking::No => true,
                Asking::Yes => false,
                Asking::Later(at_ms) => at_ms <= now_ms,
            };
            let has = known.leased as usize + known.held.len();
            let room =
                if has_room && known.held.is_empty() { prefetch.saturating_sub(has).min(free) } else { 0 };
            // The first time it is the queue itself that is asked for; one message is always held.
            let max = if known.is_known { room } else { room.max(1) };
            if known.consumer == 0 || !may_ask || max == 0 {
                continue;
            }
            known.asking = Asking::Yes;
            let (consumer, max) = (known.consumer, max as u32);
            let wants = Wants::Receive { consumer, max, waits: known.is_known };
            self.queues.errands.push(Errand { of: Arc::clone(&known.of), wants });
        }
    }

    /// A session may want something of its queues at the end of the turn.
    fn note_worker(&mut self, slot: u32) {
        let key = self.deliveries.sessions.key(self.me, slot);
        let session = self.deliveries.sessions.at(slot);
        if let Some(worker) = session.rare.as_mut().and_then(|rare| rare.worker.as_mut())
            && !std::mem::replace(&mut worker.is_due, true)
        {
            self.queues.due.push(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_names_of_queues_are_told_from_others() {
        let longest = format!("$queue/{}", "x".repeat(NAME_BYTES_MAX));
        let too_long = format!("{longest}x");
        let table = [
            ("$queue/orders", Some(("orders", None))),
            ("$queue/orders/", Some(("orders", None))),
            ("$queue/orders/a/b", Some(("orders", Some("a/b")))),
            ("$queue/a.b_c-9", Some(("a.b_c-9", None))),
            (&longest, Some((&longest["$queue/".len()..], None))),
            (&too_long, None),
            ("$queue/", None),
            ("$queue//key", None),
            ("$queue/..", None),
            ("$queue/größe", None),
            ("$queue/a b", None),
            ("$queue", None),
            ("queue/orders", None),
        ];
        for (topic, expected) in table {
            assert_eq!(queue_of(topic), expected, "{topic:.40}");
        }
    }

    #[test]
    fn verdicts_of_a_group_leave_together() {
        let one = QueueGroup::of("$queue/a", None).unwrap();
        let two = QueueGroup::of("$queue/a", Some("audit")).unwrap();
        assert_eq!((one.queue(), &*one.group, &*two.group), ("a", "default", "audit"));
        let mut errands = Vec::new();
        let lease = |offset| Lease { offset, count: 1, life: 7 };
        for (of, offset) in [(&one, 0), (&two, 0), (&one, 1)] {
            add_settled(&mut errands, of, lease(offset), Verdict::Ack);
        }
        assert_eq!(errands.len(), 2);
        let expected = Wants::Settle(vec![(lease(0), Verdict::Ack), (lease(1), Verdict::Ack)]);
        assert_eq!(errands[0].wants, expected);
    }
}
