//! Application messages, each stored once and shared by all its receivers, on all shards.
//!
//! The payload is copied once when a message is published. Memory of messages that have no receiver left is used again,
//! so that the steady state allocates nothing; large payloads are shared with the output instead of copied.

use std::collections::VecDeque;
use std::sync::Arc;

use mainstem_mqtt::{MessageProperties, QoS, UserProperties};
use mainstem_runtime::SHARED_MIN_BYTES;

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
}

#[derive(Debug)]
enum Payload {
    Copied(Vec<u8>),
    Shared(Arc<[u8]>),
}

/// The forwarded properties; few messages have any.
#[derive(Debug)]
struct Properties {
    payload_format: Option<u8>,
    content_type: Option<Box<str>>,
    response_topic: Option<Box<str>>,
    correlation_data: Option<Box<[u8]>>,
    /// Property section with the user properties, as received.
    user: Box<[u8]>,
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

impl Message {
    pub(crate) fn new(content: &Content<'_>, now_ms: u64) -> Self {
        let mut message = Self {
            qos: QoS::AtMostOnce,
            retain: false,
            publisher: None,
            expires_at_ms: None,
            topic: String::new(),
            payload: Payload::Copied(Vec::new()),
            properties: None,
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
                self.payload = Payload::Shared(Arc::from(content.payload));
            }
            Payload::Copied(bytes) => {
                bytes.clear();
                bytes.extend_from_slice(content.payload);
            }
            Payload::Shared(_) => self.payload = Payload::Copied(content.payload.to_vec()),
        }
        self.properties = Properties::copy(&content.properties);
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
    pub(crate) fn shared_payload(&self) -> Option<&Arc<[u8]>> {
        match &self.payload {
            Payload::Copied(_) => None,
            Payload::Shared(bytes) => Some(bytes),
        }
    }

    /// Bytes that count against limits.
    pub(crate) fn size(&self) -> usize {
        self.topic.len() + self.payload().len()
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
                user_properties: UserProperties::Wire(&own.user),
            },
        }
    }

    /// A copy in no more memory than it needs, for messages that are stored for long.
    pub(crate) fn compact(&self) -> Self {
        let payload = match &self.payload {
            Payload::Copied(bytes) => Payload::Copied(bytes.as_slice().to_vec()),
            Payload::Shared(bytes) => Payload::Shared(Arc::clone(bytes)),
        };
        Self {
            qos: self.qos,
            retain: self.retain,
            publisher: self.publisher,
            expires_at_ms: self.expires_at_ms,
            topic: self.topic.as_str().to_owned(),
            payload,
            properties: Properties::copy(&self.properties(0)),
        }
    }
}

impl Properties {
    fn copy(properties: &MessageProperties<'_>) -> Option<Box<Self>> {
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
            user: user.into(),
        }))
    }
}

/// The recent messages of one shard. Those without receivers are used again.
#[derive(Debug, Default)]
pub(crate) struct MessagePool {
    recent: VecDeque<Arc<Message>>,
}

/// Messages in the pool: enough to span the turns that mail to another shard takes.
const POOL_MESSAGES: usize = 512;

impl MessagePool {
    pub(crate) fn make(&mut self, content: &Content<'_>, now_ms: u64) -> Arc<Message> {
        if let Some(mut oldest) = self.recent.pop_front_if(|_| content.payload.len() < SHARED_MIN_BYTES)
            && let Some(message) = Arc::get_mut(&mut oldest)
        {
            message.fill(content, now_ms);
            self.recent.push_back(Arc::clone(&oldest));
            return oldest;
        }
        let message = Arc::new(Message::new(content, now_ms));
        if content.payload.len() < SHARED_MIN_BYTES && self.recent.len() < POOL_MESSAGES {
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
        let message = Message::new(&content(b"x"), 10_000);
        assert_eq!(message.properties(10_000).message_expiry, Some(2));
        assert_eq!(message.properties(10_900).message_expiry, Some(2));
        assert_eq!(message.properties(11_000).message_expiry, Some(1));
        assert!(!message.is_expired(11_999));
        assert!(message.is_expired(12_000));
    }

    #[test]
    fn pool_reuses_only_messages_without_receivers() {
        let mut pool = MessagePool::default();
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
