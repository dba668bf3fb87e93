//! Names of queues and groups, deliveries, and the reason codes of queue errors.

use std::sync::Arc;

use mainstem_mqtt::{MessageProperties, ReasonCode};
use mainstem_queue_core::{DEFAULT_GROUP, GroupName, QueueError, Receipt};

/// Prefix of the topic names of queues.
const PREFIX: &str = "$queue/";
/// Longest name of a queue, bytes.
const NAME_BYTES_MAX: usize = 249;

/// Whether a topic name or filter is about queues.
#[inline]
pub(crate) fn is_of_queue(topic: &str) -> bool {
    topic.starts_with(PREFIX)
}

/// Queue name and message key of a topic name. `None` if the topic names no queue.
pub fn queue_of(topic: &str) -> Option<(&str, Option<&str>)> {
    let rest = topic.strip_prefix(PREFIX)?;
    let (name, key) = match rest.split_once('/') {
        Some((name, key)) => (name, Some(key).filter(|key| !key.is_empty())),
        None => (rest, None),
    };
    is_queue_name(name).then_some((name, key))
}

/// Queues are named like Kafka topics.
fn is_queue_name(name: &str) -> bool {
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name != "." && name != ".." && name.bytes().all(is_usual)
}

/// Reason code of a SUBACK whose queue refuses the consumer.
pub(crate) fn suback_reason(error: &QueueError) -> ReasonCode {
    match error {
        QueueError::UnknownQueue
        | QueueError::NotAQueue
        | QueueError::UnknownGroup
        | QueueError::Invalid(_) => ReasonCode::TopicFilterInvalid,
        QueueError::Full | QueueError::TooMany | QueueError::Storage | QueueError::Busy => {
            ReasonCode::QuotaExceeded
        }
        QueueError::TooLarge { .. } | QueueError::Exists | QueueError::Stale => {
            ReasonCode::ImplementationSpecificError
        }
    }
}

/// A consumer group of a queue.
#[derive(Debug, PartialEq, Eq)]
pub struct QueueGroup {
    /// `$queue/` and the name of the queue.
    pub(super) topic: Box<str>,
    pub(super) group: GroupName,
}

impl QueueGroup {
    /// The group that a filter without its share name subscribes to. `None` if the filter names no queue.
    pub fn of(filter: &str, group: Option<&str>) -> Option<Arc<Self>> {
        let name = filter.strip_prefix(PREFIX)?;
        let group = group.unwrap_or(DEFAULT_GROUP).into();
        is_queue_name(name).then(|| Arc::new(Self { topic: filter.into(), group }))
    }

    /// Name of the queue.
    pub fn queue(&self) -> &str {
        &self.topic[PREFIX.len()..]
    }

    /// Name of the group.
    pub fn name(&self) -> &GroupName {
        &self.group
    }
}

/// A message that a queue has leased to a consumer.
#[derive(Clone, Copy, Debug)]
pub struct QueueDelivery<'a> {
    /// What settles it.
    pub receipt: Receipt,
    /// When the lease ends, ms since 1970.
    pub lease_until_ms: u64,
    /// Payload of the PUBLISH.
    pub payload: &'a [u8],
    /// Properties of the PUBLISH; user properties as [`mainstem_mqtt::UserProperties::Wire`].
    pub properties: MessageProperties<'a>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_topics_are_recognized() {
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
    fn suback_reasons_are_allowed_in_a_suback() {
        use mainstem_mqtt::PacketType;
        let errors = [
            QueueError::UnknownQueue,
            QueueError::NotAQueue,
            QueueError::UnknownGroup,
            QueueError::Exists,
            QueueError::Full,
            QueueError::TooLarge { most: 1 },
            QueueError::Stale,
            QueueError::Invalid("so".into()),
            QueueError::TooMany,
            QueueError::Storage,
            QueueError::Busy,
        ];
        for error in errors {
            assert!(suback_reason(&error).is_allowed_in(PacketType::SubAck), "{error}");
            if let crate::SinkOutcome::Refused(reason) = crate::SinkOutcome::from(&error) {
                assert!(reason.is_allowed_in(PacketType::PubAck), "{error}");
            }
        }
    }
}
