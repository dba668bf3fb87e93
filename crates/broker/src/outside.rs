//! What other doors have to do with messages: sinks, which get a copy of what meets their filter, and sources, which
//! publish.
//!
//! A sink is a filter in the index that clients' filters are in. The shard where a message arrives gives it out
//! once for each sink it meets ([`Shard::take_sunk`]), in the order of arrival, and the publisher is answered
//! when whoever took it says that it is kept ([`Shard::settle_sunk`]). A work queue is a sink without a filter: what is
//! published to its topic goes to it alone.

use std::sync::Arc;

use mainstem_mqtt::{MessageProperties, QoS, ReasonCode, UserProperties};
use mainstem_runtime::Io;
use mainstem_topic::check_name;

use crate::answers::{Answer, Receipt, What};
use crate::durable::Due;
use crate::message::{Content, Message, SessionKey};
use crate::routes::Matched;
use crate::session::CutShort;
use crate::shard::Shard;
use crate::shared::{Mail, Part, Shared};
use crate::work::{is_of_queue, queue_of};

/// Bit of [`crate::journal::entry::Origin::reach`] and of `only`: sinks have, or lack, a message. Journals have the
/// bits below, and the log of retained messages has one of its own.
pub(crate) const SINKS: u64 = 1 << 62;

/// A message for a sink.
#[derive(Debug)]
pub struct Sunk {
    /// Which one.
    pub sink: Sink,
    /// What its end is told with.
    pub ticket: Option<SinkTicket>,
    /// Who published it, if a client did that is still known.
    pub client_id: Option<Arc<str>>,
    message: Arc<Message>,
}

/// Where a message for another door goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sink {
    /// What has a filter, by the number that [`Shared::add_sink`] has given it.
    Filter(u32),
    /// The queue that its topic names: see [`crate::queue_of`].
    Queue,
}

/// What became of a message for another door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is kept.
    Kept,
    /// It cannot be, or it is not known whether it is: whoever published it may try again.
    NotKept,
    /// It has not been taken, for a reason that a PUBACK can name.
    Refused(ReasonCode),
}

/// Somebody waits until a message for a sink is kept.
#[derive(Clone, Copy, Debug)]
pub struct SinkTicket(Receipt);

impl Sunk {
    /// The topic name.
    pub fn topic(&self) -> &str {
        self.message.topic()
    }

    /// The application message.
    pub fn payload(&self) -> &[u8] {
        self.message.payload()
    }

    /// As it was published.
    pub fn qos(&self) -> QoS {
        self.message.qos
    }

    /// As it was published.
    pub fn retain(&self) -> bool {
        self.message.retain
    }

    /// Its properties, with what is left of the expiry at `now_ms` of the shard's clock.
    pub fn properties(&self, now_ms: u64) -> MessageProperties<'_> {
        self.message.properties(now_ms)
    }
}

/// A message from another door.
#[derive(Clone, Copy, Debug)]
pub struct Outside<'a> {
    /// The topic name.
    pub topic: &'a str,
    /// The application message.
    pub payload: &'a [u8],
    /// With which it is published.
    pub qos: QoS,
    /// Whether it becomes the topic's retained message.
    pub retain: bool,
    /// The rest; user properties as [`UserProperties::Wire`].
    pub properties: MessageProperties<'a>,
}

/// What a shard has to do with other doors.
#[derive(Debug, Default)]
pub(crate) struct Elsewhere {
    /// Messages for sinks that nobody has taken yet.
    sunk: Vec<Sunk>,
    /// Sinks cannot take as much as comes.
    pub(crate) is_behind: bool,
    fences: Vec<Fence>,
}

/// Whoever asked for a fence is told when all that was published before is on disk.
#[derive(Debug)]
struct Fence {
    number: u64,
    token: u64,
    commit: u64,
    receipts: u32,
    has_failed: bool,
}

impl Shared {
    /// Adds a sink for a filter, which must be valid, and returns its number: 0, 1, 2 and so on. Whoever gives out messages
    /// must know it by then.
    pub fn add_sink(&self, filter: &str) -> u32 {
        self.routes.add_sink(filter)
    }

    /// Takes the sink with this number away from its filter. Messages that are on their way still come.
    pub fn remove_sink(&self, filter: &str, number: u32) {
        self.routes.remove_sink(filter, number);
    }
}

impl Shard {
    /// Gives a message to the sinks it meets. Returns how many receipts the publisher has to wait for.
    pub(crate) fn sink(
        &mut self,
        message: &Arc<Message>,
        matched: &Matched,
        receipt: Option<Receipt>,
        only: Option<u64>,
    ) -> u32 {
        if matched.sinks.is_empty() || only.is_some_and(|only| only & SINKS == 0) {
            return 0;
        }
        let client_id = self.publisher_of(message);
        for sink in &matched.sinks {
            self.outside.sunk.push(Sunk {
                sink: Sink::Filter(*sink),
                ticket: receipt.map(SinkTicket),
                client_id: client_id.clone(),
                message: Arc::clone(message),
            });
        }
        if receipt.is_some() { matched.sinks.len() as u32 } else { 0 }
    }

    /// Gives a message to the queue that its topic names, and to nobody else. Returns how many receipts the publisher
    /// has to wait for.
    pub(crate) fn sink_into_queue(&mut self, message: Arc<Message>, due: &Due) -> u32 {
        let has_it = |cut_short: &CutShort| cut_short.lacking & SINKS == 0;
        if due.cut_short.as_ref().is_some_and(has_it) {
            return 0;
        }
        self.work += 1;
        let client_id = self.publisher_of(&message);
        let ticket = due.receipt.map(SinkTicket);
        self.outside.sunk.push(Sunk { sink: Sink::Queue, ticket, client_id, message });
        u32::from(ticket.is_some())
    }

    /// The client identifier of whoever published a message, if that is known here.
    fn publisher_of(&mut self, message: &Message) -> Option<Arc<str>> {
        let mine = message.publisher.filter(|publisher| publisher.shard == self.me);
        let publisher = mine.and_then(|publisher| self.deliveries.sessions.get(publisher));
        publisher.map(|session| Arc::clone(&session.client_id))
    }

    /// Takes the messages for sinks that have arrived since this was last called.
    pub fn take_sunk(&mut self) -> Vec<Sunk> {
        std::mem::take(&mut self.outside.sunk)
    }

    /// A message for a sink is kept, or is not.
    pub fn settle_sunk(&mut self, io: &mut Io<'_, Mail>, ticket: Option<SinkTicket>, outcome: Outcome) {
        let refused = match outcome {
            Outcome::Refused(reason) => Some(reason),
            Outcome::Kept | Outcome::NotKept => None,
        };
        let is_durable = outcome == Outcome::Kept;
        if refused.is_some() || (ticket.is_none() && !is_durable) {
            self.deliveries.counters.publish_dropped += 1;
        }
        if let Some(SinkTicket(receipt)) = ticket {
            self.on_receipt(io, receipt, &Part { is_durable, refused, group: None, lacking: SINKS });
        }
    }

    /// A QoS 2 publish of a session that lasts was refused: its exchange is over when the disk knows that.
    pub(crate) fn end_refused(&mut self, slot: u32, mut answer: Answer, refused: ReasonCode) {
        let What::Ack { packet_id, reason, .. } = &mut answer.what else { return };
        *reason = refused;
        let packet_id = *packet_id;
        self.deliveries.sessions.at(slot).received.release(packet_id);
        let ((), wait) = self.entering(|shard| shard.enter_release(slot, packet_id));
        self.deliveries.sessions.at(slot).rare().answers.put_back(Answer {
            wait,
            failure: None,
            completes: false,
            ..answer
        });
        let key = self.deliveries.sessions.key(self.me, slot);
        self.commits.wake_with(wait.commit, key);
    }

    /// Lets publishers wait: sinks cannot take as much as comes.
    pub fn hold_for_sinks(&mut self, is_behind: bool) {
        self.outside.is_behind = is_behind;
    }

    /// Publishes a message of another door. False if it cannot be one: the name is no topic name, or one that only
    /// the broker publishes to, or it is too large.
    pub fn publish_outside(&mut self, io: &mut Io<'_, Mail>, outside: &Outside<'_>) -> bool {
        let size = outside.topic.len() + outside.payload.len();
        if check_name(outside.topic).is_err()
            || (is_of_queue(outside.topic) && queue_of(outside.topic).is_none())
            || outside.topic.starts_with("$SYS/")
            || size >= self.config().max_packet_size_bytes as usize
        {
            return false;
        }
        let content = Content {
            qos: outside.qos,
            retain: outside.retain && self.config().retain_available,
            publisher: None,
            topic: outside.topic,
            payload: outside.payload,
            properties: outside.properties,
        };
        self.publish(io, &content, &Due::default());
        true
    }

    /// Whether a message of another door should wait: this shard has done its share, or something is behind.
    pub fn holds_outside(&self, io: &mut Io<'_, Mail>) -> bool {
        self.is_busy() || io.congested() || self.is_disk_behind() || !self.can_keep()
    }

    /// Asks to be told, by [`Shard::take_fenced`], when all that was published up to now is on disk.
    pub fn fence_outside(&mut self, io: &mut Io<'_, Mail>, token: u64) {
        self.next_answer += 1;
        let number = self.next_answer;
        let session = SessionKey { shard: self.me, slot: u32::MAX, generation: 0 };
        let (mut commit, mut receipts) = (0, 0);
        if self.keeps_sessions() {
            let wait = self.fence(io, Receipt { session, number });
            (commit, receipts) = (wait.commit, wait.receipts);
        }
        self.outside.fences.push(Fence { number, token, commit, receipts, has_failed: false });
    }

    /// Takes the tokens of fences that are over, and whether all before them was kept.
    pub fn take_fenced(&mut self) -> Vec<(u64, bool)> {
        let durable = self.commits.durable();
        let is_over = |fence: &mut Fence| fence.receipts == 0 && fence.commit <= durable;
        let is_failing = self.shared.is_failing();
        self.outside
            .fences
            .extract_if(.., is_over)
            .map(|fence| (fence.token, !fence.has_failed && !is_failing))
            .collect()
    }

    /// Takes note of a receipt for a fence. False if it is for something else.
    pub(crate) fn fence_receipt(&mut self, receipt: Receipt, is_durable: bool) -> bool {
        let Some(fence) = self.outside.fences.iter_mut().find(|fence| fence.number == receipt.number) else {
            return false;
        };
        fence.receipts = fence.receipts.saturating_sub(1);
        fence.has_failed |= !is_durable;
        true
    }
}

/// User properties as a section of a packet has them, for [`Outside::properties`].
pub fn user_properties<'a>(
    pairs: impl Iterator<Item = (&'a str, &'a str)>,
    section: &mut Vec<u8>,
) -> UserProperties<'_> {
    const USER_PROPERTY: u8 = 0x26;
    section.clear();
    for (name, value) in pairs {
        let (Ok(name_len), Ok(value_len)) = (u16::try_from(name.len()), u16::try_from(value.len())) else {
            // What is longer than a string may be cannot be one.
            continue;
        };
        section.push(USER_PROPERTY);
        section.extend_from_slice(&name_len.to_be_bytes());
        section.extend_from_slice(name.as_bytes());
        section.extend_from_slice(&value_len.to_be_bytes());
        section.extend_from_slice(value.as_bytes());
    }
    UserProperties::Wire(section)
}
