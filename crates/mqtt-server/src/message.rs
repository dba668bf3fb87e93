//! Application messages, each stored once and shared by all its receivers, on all shards.
//!
//! The payload is copied once when a message is published. Memory of messages that have no receiver left is used again,
//! so that the steady state allocates nothing; large payloads and user properties are shared with the output instead of
//! copied.
//!
//! [`Message::size`] is what a message costs wherever a limit counts it: everything it holds, whoever else holds it.
//! [`Message`] also charges its memory to the budget of the process, where it counts once. Shared bytes have charges of
//! their own, because an output may hold them longer than the message exists.

use std::collections::VecDeque;
use std::sync::Arc;

use mainstem_mqtt::{MessageProperties, QoS, UserProperties};
use mainstem_runtime::{MemoryCharge, MemoryMeter, SHARED_MIN_BYTES, SharedBytes};

/// Identifies a session of the process. A stale key finds nothing: a slot that is used again gets another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SessionKey {
    pub(crate) shard: u16,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// An application message.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) qos: QoS,
    /// RETAIN flag of the PUBLISH.
    pub(crate) retain: bool,
    /// `None` for messages of the broker and of other protocols.
    pub(crate) publisher: Option<SessionKey>,
    /// On the clock of [`mainstem_runtime::Clock::now_ms`].
    pub(crate) expires_at_ms: Option<u64>,
    topic: String,
    payload: Payload,
    properties: Option<Box<Properties>>,
    /// See [`Message::size`]. Kept, because each delivery asks for it.
    size: usize,
    /// Its memory without shared bytes.
    charge: MemoryCharge,
}

/// What a message costs in addition to its bytes: the structure itself and its reference counts.
pub(crate) const MESSAGE_BYTES: usize = size_of::<Message>() + 2 * size_of::<usize>();

#[derive(Debug)]
enum Payload {
    Copied(Vec<u8>),
    Shared(SharedBytes),
}

/// The forwarded properties; few messages have any.
#[derive(Debug)]
struct Properties {
    payload_format: Option<u8>,
    content_type: Option<Box<str>>,
    response_topic: Option<Box<str>>,
    correlation_data: Option<Box<[u8]>>,
    user: UserSection,
}

/// User properties.
#[derive(Debug)]
enum UserSection {
    /// The property section that contains them, as received.
    Copied(Box<[u8]>),
    /// They and nothing else, as they stand in a packet.
    Shared(SharedBytes),
}

impl UserSection {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }
}

/// The parts of a message, borrowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content<'a> {
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) publisher: Option<SessionKey>,
    pub(crate) topic: &'a str,
    pub(crate) payload: &'a [u8],
    pub(crate) properties: MessageProperties<'a>,
}

impl Content<'_> {
    /// See [`Message::size`].
    pub(crate) fn size(&self) -> usize {
        let properties = &self.properties;
        let user = match properties.user_properties {
            UserProperties::Wire(section) => section.len(),
            UserProperties::Pairs(_) => 0,
        };
        MESSAGE_BYTES
            + self.topic.len()
            + self.payload.len()
            + properties.content_type.map_or(0, str::len)
            + properties.response_topic.map_or(0, str::len)
            + properties.correlation_data.map_or(0, <[u8]>::len)
            + user
    }

    /// Whether its memory is small enough to be kept for the next message.
    fn is_poolable(&self) -> bool {
        self.size() < MESSAGE_BYTES + SHARED_MIN_BYTES
    }
}

impl Message {
    /// A message that charges its memory to `meter`.
    pub(crate) fn new(content: &Content<'_>, now_ms: u64, meter: &MemoryMeter) -> Self {
        let mut message = Self {
            qos: QoS::AtMostOnce,
            retain: false,
            publisher: None,
            expires_at_ms: None,
            topic: String::new(),
            payload: Payload::Copied(Vec::new()),
            properties: None,
            size: 0,
            charge: meter.charge(0),
        };
        message.fill(content, now_ms);
        message
    }

    /// Replaces the content, in the memory that the message has.
    fn fill(&mut self, content: &Content<'_>, now_ms: u64) {
        self.qos = content.qos;
        self.retain = content.retain;
        self.publisher = content.publisher;
        self.expires_at_ms =
            content.properties.message_expiry.map(|seconds| now_ms + u64::from(seconds) * 1000);
        self.topic.clear();
        self.topic.push_str(content.topic);
        match &mut self.payload {
            _ if content.payload.len() >= SHARED_MIN_BYTES => {
                self.payload = Payload::Shared(SharedBytes::copy(content.payload, self.charge.meter()));
            }
            Payload::Copied(bytes) => {
                bytes.clear();
                bytes.extend_from_slice(content.payload);
            }
            Payload::Shared(_) => self.payload = Payload::Copied(content.payload.to_vec()),
        }
        self.properties = Properties::copy(&content.properties, self.charge.meter());
        let properties = self.properties.as_ref().map_or(0, |own| own.len());
        self.size = MESSAGE_BYTES + content.topic.len() + content.payload.len() + properties;
        self.charge.set(self.memory());
    }

    /// Memory that it holds, without shared bytes.
    fn memory(&self) -> usize {
        let payload = match &self.payload {
            Payload::Copied(bytes) => bytes.capacity(),
            Payload::Shared(_) => 0,
        };
        let properties = self.properties.as_ref().map_or(0, |own| own.memory());
        MESSAGE_BYTES + self.topic.capacity() + payload + properties
    }

    pub(crate) fn topic(&self) -> &str {
        &self.topic
    }

    pub(crate) fn payload(&self) -> &[u8] {
        match &self.payload {
            Payload::Copied(bytes) => bytes,
            Payload::Shared(bytes) => bytes,
        }
    }

    /// The payload, if it is large enough to be shared rather than copied.
    pub(crate) fn shared_payload(&self) -> Option<&SharedBytes> {
        match &self.payload {
            Payload::Copied(_) => None,
            Payload::Shared(bytes) => Some(bytes),
        }
    }

    /// The user properties as they stand in a packet, if they are large enough to be shared rather than copied.
    pub(crate) fn shared_user_properties(&self) -> Option<&SharedBytes> {
        match &self.properties.as_ref()?.user {
            UserSection::Copied(_) => None,
            UserSection::Shared(bytes) => Some(bytes),
        }
    }

    /// What the message costs, as limits count it: topic, payload, properties and the structure around them.
    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The part of [`Self::size`] that each receiver's output has a copy of; payloads and user properties of
    /// [`SHARED_MIN_BYTES`] are shared.
    pub(crate) fn copied_bytes(&self) -> usize {
        let shared = self.shared_payload().into_iter().chain(self.shared_user_properties());
        self.size.saturating_sub(shared.map(|bytes| bytes.len()).sum())
    }

    pub(crate) fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_at_ms.is_some_and(|at_ms| at_ms <= now_ms)
    }

    /// The properties to send at `now_ms`: the rest of the expiry interval, rounded up so that a message that is
    /// forwarded at once keeps its value [MQTT-3.3.2-6].
    pub(crate) fn properties(&self, now_ms: u64) -> MessageProperties<'_> {
        let message_expiry = self
            .expires_at_ms
            .map(|at_ms| at_ms.saturating_sub(now_ms).div_ceil(1000).min(u64::from(u32::MAX)) as u32);
        match &self.properties {
            None => MessageProperties { message_expiry, ..MessageProperties::default() },
            Some(own) => MessageProperties {
                payload_format: own.payload_format,
                message_expiry,
                content_type: own.content_type.as_deref(),
                response_topic: own.response_topic.as_deref(),
                correlation_data: own.correlation_data.as_deref(),
                user_properties: UserProperties::Wire(own.user.bytes()),
            },
        }
    }

    /// A copy in no more memory than it needs, for messages that are stored for long.
    pub(crate) fn compact(&self) -> Self {
        let payload = match &self.payload {
            Payload::Copied(bytes) => Payload::Copied(bytes.as_slice().to_vec()),
            Payload::Shared(bytes) => Payload::Shared(bytes.clone()),
        };
        let meter = self.charge.meter();
        let mut message = Self {
            qos: self.qos,
            retain: self.retain,
            publisher: self.publisher,
            expires_at_ms: self.expires_at_ms,
            topic: self.topic.as_str().to_owned(),
            payload,
            properties: self.properties.as_ref().map(|own| Box::new(own.share())),
            size: self.size,
            charge: meter.charge(0),
        };
        message.charge.set(message.memory());
        message
    }
}

impl Properties {
    fn copy(properties: &MessageProperties<'_>, meter: &MemoryMeter) -> Option<Box<Self>> {
        let user: &[u8] = match properties.user_properties {
            UserProperties::Wire(section) => section,
            UserProperties::Pairs(pairs) => {
                debug_assert!(pairs.is_empty(), "the broker's own messages carry no user properties");
                &[]
            }
        };
        if properties.payload_format.is_none()
            && properties.content_type.is_none()
            && properties.response_topic.is_none()
            && properties.correlation_data.is_none()
            && user.is_empty()
        {
            return None;
        }
        Some(Box::new(Self {
            payload_format: properties.payload_format,
            content_type: properties.content_type.map(Into::into),
            response_topic: properties.response_topic.map(Into::into),
            correlation_data: properties.correlation_data.map(Into::into),
            user: if user.len() >= SHARED_MIN_BYTES {
                // Between them the section may contain others, which receivers get from here as well.
                let mut bytes = Vec::with_capacity(user.len());
                let fits = UserProperties::Wire(user).append_to(&mut bytes);
                debug_assert!(fits, "decoded properties can be encoded");
                UserSection::Shared(SharedBytes::new(bytes.into(), meter))
            } else {
                UserSection::Copied(user.into())
            },
        }))
    }

    /// A copy that shares what is shared.
    fn share(&self) -> Self {
        Self {
            payload_format: self.payload_format,
            content_type: self.content_type.clone(),
            response_topic: self.response_topic.clone(),
            correlation_data: self.correlation_data.clone(),
            user: match &self.user {
                UserSection::Copied(bytes) => UserSection::Copied(bytes.clone()),
                UserSection::Shared(bytes) => UserSection::Shared(bytes.clone()),
            },
        }
    }

    /// Bytes of all properties.
    fn len(&self) -> usize {
        self.content_type.as_ref().map_or(0, |text| text.len())
            + self.response_topic.as_ref().map_or(0, |topic| topic.len())
            + self.correlation_data.as_ref().map_or(0, |data| data.len())
            + self.user.bytes().len()
    }

    /// Memory that they hold, without shared bytes.
    fn memory(&self) -> usize {
        let shared = match &self.user {
            UserSection::Copied(_) => 0,
            UserSection::Shared(bytes) => bytes.len(),
        };
        size_of::<Self>() + self.len() - shared
    }
}

/// The recent messages of one shard. Those without receivers are used again.
#[derive(Debug)]
pub(crate) struct MessagePool {
    recent: VecDeque<Arc<Message>>,
    meter: MemoryMeter,
}

/// Messages in the pool: enough to span the turns that mail to another shard takes.
const POOL_MESSAGES: usize = 512;

impl MessagePool {
    /// A pool whose messages charge their memory to `meter`.
    pub(crate) fn new(meter: MemoryMeter) -> Self {
        Self { recent: VecDeque::new(), meter }
    }

    /// Counts the memory of messages of this shard.
    pub(crate) fn meter(&self) -> &MemoryMeter {
        &self.meter
    }

    pub(crate) fn make(&mut self, content: &Content<'_>, now_ms: u64) -> Arc<Message> {
        if let Some(mut oldest) = self.recent.pop_front_if(|_| content.is_poolable())
            && let Some(message) = Arc::get_mut(&mut oldest)
        {
            message.fill(content, now_ms);
            self.recent.push_back(Arc::clone(&oldest));
            return oldest;
        }
        let message = Arc::new(Message::new(content, now_ms, &self.meter));
        if content.is_poolable() && self.recent.len() < POOL_MESSAGES {
            self.recent.push_back(Arc::clone(&message));
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(payload: &[u8]) -> Content<'_> {
        Content {
            qos: QoS::AtLeastOnce,
            retain: false,
            publisher: None,
            topic: "a/b",
            payload,
            properties: MessageProperties { message_expiry: Some(2), ..MessageProperties::default() },
        }
    }

    #[test]
    fn forwards_the_rest_of_the_expiry() {
        let message = Message::new(&content(b"x"), 10_000, &MemoryMeter::default());
        assert_eq!(message.properties(10_000).message_expiry, Some(2));
        assert_eq!(message.properties(10_900).message_expiry, Some(2));
        assert_eq!(message.properties(11_000).message_expiry, Some(1));
        assert!(!message.is_expired(11_999));
        assert!(message.is_expired(12_000));
    }

    #[test]
    fn pool_reuses_only_messages_without_receivers() {
        let mut pool = MessagePool::new(MemoryMeter::default());
        let messages: Vec<_> =
            (0..2_000_u16).map(|number| pool.make(&content(&number.to_be_bytes()), 0)).collect();
        for (number, message) in (0_u16..).zip(&messages) {
            assert_eq!(message.payload(), number.to_be_bytes());
        }
        drop(messages);
        let first = Arc::as_ptr(&pool.make(&content(b"1"), 0));
        for _ in 1..POOL_MESSAGES {
            pool.make(&content(b"2"), 0);
        }
        assert_eq!(first, Arc::as_ptr(&pool.make(&content(b"3"), 0)), "memory is used again");
    }
}
