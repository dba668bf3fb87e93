//! Messages that cross to other protocols: sinks get a copy of what matches their filter, sources publish.
//!
//! A sink is a filter in the same index as the filters of clients. The shard where a message arrives hands it out once
//! for each sink it matches, in the order of arrival, and the publisher is answered when whoever took it reports that
//! it is durable. A work queue is a sink without a filter: a message published to its topic goes to it alone. A source
//! that must know when its messages are durable sets a fence.

use std::sync::Arc;

use mainstem_mqtt::{MessageProperties, QoS, ReasonCode, UserProperties};
use mainstem_queue_core::QueueError;

use crate::message::Message;
use crate::pending_acks::{AckCondition, AckToken};

/// A message for a sink.
#[derive(Debug)]
pub struct SinkMessage {
    /// Where it goes.
    pub sink: Sink,
    /// For [`crate::Shard::settle_sink_message`]. `None` if no publisher waits.
    pub ticket: Option<SinkTicket>,
    /// Client identifier of the publisher, if it has a session on this shard.
    pub client_id: Option<Arc<str>>,
    message: Arc<Message>,
}

/// Destination of a message that leaves the MQTT server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sink {
    /// A sink with a filter, by the number that [`crate::Shared::add_sink`] returned.
    Filter(u32),
    /// The queue that the topic names, see [`crate::queue_of`].
    Queue,
}

/// What became of a message for a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkOutcome {
    /// It is durable.
    Durable,
    /// It is not durable, or that is not known: the publisher may try again.
    NotDurable,
    /// It was rejected, for a reason that a PUBACK can carry.
    Refused(ReasonCode),
}

/// The pending ack of a publisher that waits for a sink.
#[derive(Clone, Copy, Debug)]
pub struct SinkTicket(AckToken);

impl SinkTicket {
    pub(crate) fn token(self) -> AckToken {
        self.0
    }
}

impl From<&QueueError> for SinkOutcome {
    /// No reason code of a PUBACK says that a message is too large; the nearest is that a limit was exceeded.
    fn from(error: &QueueError) -> Self {
        match error {
            QueueError::UnknownQueue | QueueError::NotAQueue => Self::Refused(ReasonCode::TopicNameInvalid),
            QueueError::Full | QueueError::TooLarge { .. } | QueueError::TooMany => {
                Self::Refused(ReasonCode::QuotaExceeded)
            }
            QueueError::Storage | QueueError::Busy => Self::NotDurable,
            QueueError::Invalid(_) | QueueError::UnknownGroup | QueueError::Exists | QueueError::Stale => {
                Self::Refused(ReasonCode::ImplementationSpecificError)
            }
        }
    }
}

impl SinkMessage {
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

/// A message that another protocol publishes.
#[derive(Clone, Copy, Debug)]
pub struct BridgePublish<'a> {
    /// The topic name.
    pub topic: &'a str,
    /// The application message.
    pub payload: &'a [u8],
    /// Quality of service.
    pub qos: QoS,
    /// Whether it becomes the topic's retained message.
    pub retain: bool,
    /// Its properties; user properties as [`UserProperties::Wire`].
    pub properties: MessageProperties<'a>,
}

/// Sink messages and fences of one shard.
#[derive(Debug, Default)]
pub(crate) struct Bridge {
    messages: Vec<SinkMessage>,
    /// Sinks cannot take as much as comes.
    is_behind: bool,
    fences: Vec<Fence>,
}

/// A source waits until everything published before is durable.
#[derive(Debug)]
struct Fence {
    number: u64,
    token: u64,
    condition: AckCondition,
    has_failed: bool,
}

impl Bridge {
    /// Adds a message for a sink.
    pub(crate) fn push(
        &mut self,
        sink: Sink,
        message: Arc<Message>,
        client_id: Option<Arc<str>>,
        token: Option<AckToken>,
    ) {
        self.messages.push(SinkMessage { sink, ticket: token.map(SinkTicket), client_id, message });
    }

    pub(crate) fn has_messages(&self) -> bool {
        !self.messages.is_empty()
    }

    pub(crate) fn take_messages(&mut self) -> Vec<SinkMessage> {
        std::mem::take(&mut self.messages)
    }

    pub(crate) fn is_behind(&self) -> bool {
        self.is_behind
    }

    pub(crate) fn set_behind(&mut self, is_behind: bool) {
        self.is_behind = is_behind;
    }

    /// Adds a fence, for which other shards send receipts with `number`.
    pub(crate) fn add_fence(&mut self, number: u64, token: u64, condition: AckCondition) {
        self.fences.push(Fence { number, token, condition, has_failed: false });
    }

    /// Counts a receipt for a fence. False if no fence has this number.
    pub(crate) fn on_receipt(&mut self, number: u64, is_durable: bool) -> bool {
        let Some(fence) = self.fences.iter_mut().find(|fence| fence.number == number) else { return false };
        fence.condition.receipts = fence.condition.receipts.saturating_sub(1);
        fence.has_failed |= !is_durable;
        true
    }

    /// Takes the fences that are over: their tokens, and whether no receipt reported a failure.
    pub(crate) fn take_fences(&mut self, durable_commit: u64) -> impl Iterator<Item = (u64, bool)> {
        let is_over = move |fence: &mut Fence| fence.condition.is_met(durable_commit);
        self.fences.extract_if(.., is_over).map(|fence| (fence.token, !fence.has_failed))
    }
}

/// Encodes user properties into `section`, for [`BridgePublish::properties`].
pub fn user_properties<'a>(
    pairs: impl Iterator<Item = (&'a str, &'a str)>,
    section: &mut Vec<u8>,
) -> UserProperties<'_> {
    const USER_PROPERTY: u8 = 0x26;
    section.clear();
    for (name, value) in pairs {
        let (Ok(name_len), Ok(value_len)) = (u16::try_from(name.len()), u16::try_from(value.len())) else {
            // Longer than a string of MQTT may be.
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
