//! Bindings: from an MQTT topic filter to a Kafka topic, and from a Kafka topic to MQTT topics.
//!
//! A binding must lose nothing that a message or a record carries, so each part of a message has a place in the record
//! and the reverse mapping is exact. Properties without a counterpart in Kafka become headers that begin with `mqtt.`;
//! only those names are interpreted on the way back.
//!
//! | message | record |
//! |---|---|
//! | topic name | key, if the binding says so, and header `mqtt.topic` |
//! | payload | value, byte for byte |
//! | time of arrival | timestamp |
//! | user properties | headers of the same names, in order, before those below |
//! | QoS, RETAIN | headers `mqtt.qos` (`0`, `1`, `2`) and `mqtt.retain` (`true`, `false`) |
//! | Content Type, Response Topic | headers `mqtt.content-type`, `mqtt.response-topic` |
//! | Correlation Data | header `mqtt.correlation-data` |
//! | Payload Format Indicator | header `mqtt.payload-format-indicator` |
//! | Message Expiry Interval | header `mqtt.message-expiry-interval`, in seconds |
//!
//! In the other direction the same headers become the same properties, and all other headers user properties.
//!
//! Bindings can form a loop: a message published by one binding may match the filter of another. [`find_loop`] detects
//! it before the bindings start, from the filter that covers all topic names of a template.

use std::fmt::Write;
use std::sync::Arc;

use mainstem_kafka_server::{Header, SourceRecord, put_headers};
use mainstem_mqtt::{MessageProperties, QoS};
use mainstem_mqtt_server::{BridgePublish, SinkMessage, user_properties};

/// A binding from an MQTT topic filter to a Kafka topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inbound {
    /// Name of the binding.
    pub name: Arc<str>,
    /// Filter of the messages.
    pub filter: String,
    /// Kafka topic of the records.
    pub topic: Arc<str>,
    /// Source of the record key.
    pub key: Key,
}

/// Source of the key of a message's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// The topic name.
    Topic,
    /// One level of the topic name, counted from 1; no key if the topic has fewer levels.
    Level(u16),
    /// The publisher's client identifier; no key if the broker published the message.
    Client,
    /// No key. Messages of one topic name still go to one partition.
    None,
}

/// A binding from a Kafka topic to MQTT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outbound {
    /// Name of the binding.
    pub name: Arc<str>,
    /// Kafka topic of the records.
    pub topic: Arc<str>,
    /// Template of the topic name that a record is published to.
    pub template: Template,
    /// QoS of the messages.
    pub qos: QoS,
    /// Whether the messages are retained.
    pub retain: bool,
}

/// A topic name with placeholders for fields of a record: `{key}`, `{topic}`, `{partition}`, `{offset}` and
/// `{header:NAME}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Key,
    Topic,
    Partition,
    Offset,
    Header(String),
}

/// Reason why a record is not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skipped {
    /// The template needs a key or header that the record does not have, or that is not text.
    MissingField,
    /// The message expired before it was published.
    Expired,
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// A message for the user if it is malformed.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once('{') {
            let (name, behind) =
                behind.split_once('}').ok_or_else(|| format!("{text:?} has an unclosed brace"))?;
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            parts.push(match name {
                "key" => Part::Key,
                "topic" => Part::Topic,
                "partition" => Part::Partition,
                "offset" => Part::Offset,
                _ => match name.strip_prefix("header:") {
                    Some(header) if !header.is_empty() => Part::Header(header.to_owned()),
                    _ => return Err(format!("{text:?} has an unknown placeholder {{{name}}}")),
                },
            });
            rest = behind;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        let is_text = |part: &Part| matches!(part, Part::Text(text) if text.contains(['+', '#', '\0']));
        if parts.is_empty() || parts.iter().any(is_text) {
            return Err(format!("{text:?} is not a topic name"));
        }
        Ok(Self { parts })
    }

    /// A filter that matches every topic name of the template: exact up to the first placeholder's level, then `#`.
    pub(crate) fn covering_filter(&self) -> String {
        let mut filter = String::new();
        for part in &self.parts {
            let Part::Text(text) = part else {
                let whole_levels = filter.rfind('/').map_or(0, |slash| slash + 1);
                filter.truncate(whole_levels);
                filter.push('#');
                return filter;
            };
            filter.push_str(text);
        }
        filter
    }

    fn fill(&self, record: &SourceRecord, topic: &str, into: &mut String) -> Result<(), Skipped> {
        into.clear();
        for part in &self.parts {
            match part {
                Part::Text(text) => into.push_str(text),
                Part::Topic => into.push_str(topic),
                Part::Partition => write!(into, "{}", record.partition).map_err(|_| Skipped::MissingField)?,
                Part::Offset => write!(into, "{}", record.offset).map_err(|_| Skipped::MissingField)?,
                Part::Key => into.push_str(text_of(record.key.as_deref())?),
                Part::Header(name) => {
                    let header = record.headers.iter().rev().find(|(known, _)| known == name);
                    into.push_str(text_of(header.and_then(|(_, value)| value.as_deref()))?);
                }
            }
        }
        Ok(())
    }
}

fn text_of(bytes: Option<&[u8]>) -> Result<&str, Skipped> {
    let text = bytes.and_then(|bytes| std::str::from_utf8(bytes).ok());
    text.filter(|text| !text.is_empty()).ok_or(Skipped::MissingField)
}

impl Key {
    /// Parses the configuration value: `topic`, `level:N`, `client` or `none`.
    ///
    /// # Errors
    /// A message for the user if it is none of these.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "topic" => Ok(Self::Topic),
            "client" => Ok(Self::Client),
            "none" => Ok(Self::None),
            _ => {
                let level = text.strip_prefix("level:").and_then(|level| level.parse().ok());
                let level = level.filter(|level| *level > 0);
                level
                    .map(Self::Level)
                    .ok_or_else(|| format!("{text:?} is not topic, level:N, client or none"))
            }
        }
    }

    /// The key of a message's record.
    pub(crate) fn of(self, message: &SinkMessage) -> Option<&[u8]> {
        match self {
            Self::Topic => Some(message.topic().as_bytes()),
            Self::Level(level) => message.topic().split('/').nth(usize::from(level) - 1).map(str::as_bytes),
            Self::Client => message.client_id.as_deref().map(str::as_bytes),
            Self::None => None,
        }
    }
}

/// Names of the headers for the properties of a message.
mod name {
    pub(super) const TOPIC: &str = "mqtt.topic";
    pub(super) const QOS: &str = "mqtt.qos";
    pub(super) const RETAIN: &str = "mqtt.retain";
    pub(super) const CONTENT_TYPE: &str = "mqtt.content-type";
    pub(super) const RESPONSE_TOPIC: &str = "mqtt.response-topic";
    pub(super) const CORRELATION_DATA: &str = "mqtt.correlation-data";
    pub(super) const PAYLOAD_FORMAT: &str = "mqtt.payload-format-indicator";
    pub(super) const EXPIRY: &str = "mqtt.message-expiry-interval";
}

/// Appends the encoded headers of a message's record to `into`.
pub(crate) fn headers(message: &SinkMessage, now_ms: u64, into: &mut Vec<u8>) {
    let properties = message.properties(now_ms);
    let number = |value: u32| value.to_string();
    let format = properties.payload_format.map(|format| number(u32::from(format)));
    let expiry = properties.message_expiry.map(number);
    let user = properties.user_properties.iter();
    let user = user.map(|(name, value)| Header { key: name, value: Some(value.as_bytes()) });
    let qos: &[u8] = match message.qos() {
        QoS::AtMostOnce => b"0",
        QoS::AtLeastOnce => b"1",
        QoS::ExactlyOnce => b"2",
    };
    let own = [
        (name::TOPIC, Some(message.topic().as_bytes())),
        (name::QOS, Some(qos)),
        (name::RETAIN, Some(if message.retain() { b"true".as_slice() } else { b"false" })),
        (name::CONTENT_TYPE, properties.content_type.map(str::as_bytes)),
        (name::RESPONSE_TOPIC, properties.response_topic.map(str::as_bytes)),
        (name::CORRELATION_DATA, properties.correlation_data),
        (name::PAYLOAD_FORMAT, format.as_deref().map(str::as_bytes)),
        (name::EXPIRY, expiry.as_deref().map(str::as_bytes)),
    ];
    let own = own.into_iter().filter(|(_, value)| value.is_some());
    let headers = user.chain(own.map(|(key, value)| Header { key, value }));
    put_headers(Counted { left: headers.clone().count(), items: headers }, into);
}

/// An iterator with its length, counted beforehand.
struct Counted<I> {
    items: I,
    left: usize,
}

impl<I: Iterator> Iterator for Counted<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        self.left = self.left.saturating_sub(1);
        self.items.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<I: Iterator> ExactSizeIterator for Counted<I> {}

/// Buffers that are reused for each message.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    topic: String,
    user: Vec<u8>,
}

/// Converts a record into a message. `scratch` holds its topic name and user properties.
pub(crate) fn message<'a>(
    binding: &Outbound,
    record: &'a SourceRecord,
    unix_ms: u64,
    scratch: &'a mut Scratch,
) -> Result<BridgePublish<'a>, Skipped> {
    binding.template.fill(record, &binding.topic, &mut scratch.topic)?;
    let age_s = unix_ms.saturating_sub(record.timestamp_ms.max(0).cast_unsigned()) / 1000;
    let headers = record.headers.iter().map(|(name, value)| (name.as_str(), value.as_deref()));
    let (properties, has_expired) = properties(headers, age_s, std::iter::empty(), &mut scratch.user);
    if has_expired {
        return Err(Skipped::Expired);
    }
    Ok(BridgePublish {
        topic: &scratch.topic,
        payload: record.value.as_deref().unwrap_or_default(),
        qos: binding.qos,
        retain: binding.retain,
        properties,
    })
}

/// The topic name that the message of a record was published to, from its headers.
pub(crate) fn topic_of<'a>(
    mut headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>,
) -> Option<&'a str> {
    let topic = headers.find(|(known, _)| *known == name::TOPIC);
    topic.and_then(|(_, value)| std::str::from_utf8(value?).ok())
}

/// Converts the headers of a record into properties. Returns them and whether the message has expired.
///
/// Of several headers with the same name, the last counts. `own` are additional user properties, which come first.
/// `age_s` is the age of the message, s.
pub(crate) fn properties<'a, 'b>(
    headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)> + Clone,
    age_s: u64,
    own: impl Iterator<Item = (&'b str, &'b str)>,
    section: &'a mut Vec<u8>,
) -> (MessageProperties<'a>, bool)
where
    'a: 'b,
{
    let mut properties = MessageProperties::default();
    let mut has_expired = false;
    for (name, value) in headers.clone() {
        let text = value.and_then(|bytes| std::str::from_utf8(bytes).ok());
        match name {
            name::EXPIRY => {
                let interval = text.and_then(|interval| interval.parse::<u32>().ok());
                let left = interval.map(|interval| u64::from(interval).saturating_sub(age_s) as u32);
                has_expired = left == Some(0);
                properties.message_expiry = left.filter(|left| *left > 0);
            }
            name::PAYLOAD_FORMAT => {
                properties.payload_format = text.and_then(|format| format.parse().ok());
            }
            name::CONTENT_TYPE => properties.content_type = text,
            name::RESPONSE_TOPIC => properties.response_topic = text,
            name::CORRELATION_DATA => properties.correlation_data = value,
            _ => {}
        }
    }
    let user = headers.filter(|(name, _)| !name.starts_with("mqtt."));
    let user = user.filter_map(|(name, value)| {
        let value = std::str::from_utf8(value.unwrap_or_default()).ok()?;
        let is_string = |text: &str| !text.contains('\0');
        (is_string(name) && is_string(value)).then_some((name, value))
    });
    properties.user_properties = user_properties(own.chain(user), section);
    (properties, has_expired)
}

/// Names of bindings that form a loop; `None` if there is no loop.
pub fn find_loop<'a>(inbound: &'a [Inbound], outbound: &'a [Outbound]) -> Option<Vec<&'a str>> {
    // Depth first from each outbound binding: inbound bindings that may match its messages, then the outbound
    // bindings of their topics.
    fn walk<'a>(
        inbound: &'a [Inbound],
        outbound: &'a [Outbound],
        at: &'a Outbound,
        path: &mut Vec<&'a str>,
    ) -> bool {
        path.push(&at.name);
        let filter = at.template.covering_filter();
        for matched in inbound.iter().filter(|known| overlap(&known.filter, &filter)) {
            path.push(&matched.name);
            for next in outbound.iter().filter(|known| known.topic == matched.topic) {
                if path.contains(&&*next.name) || walk(inbound, outbound, next, path) {
                    return true;
                }
            }
            path.pop();
        }
        // A queue is a topic too, so its messages may feed an outbound binding.
        for next in outbound.iter().filter(|known| may_be_queue(&filter, &known.topic)) {
            if path.contains(&&*next.name) || walk(inbound, outbound, next, path) {
                return true;
            }
        }
        path.pop();
        false
    }
    outbound.iter().find_map(|first| {
        let mut path = Vec::new();
        walk(inbound, outbound, first, &mut path).then_some(path)
    })
}

/// Whether a topic name that matches `filter` may be that of the queue `name`.
fn may_be_queue(filter: &str, name: &str) -> bool {
    let Some(queue) = filter.strip_prefix("$queue/") else { return filter == "#" };
    let queue = queue.split('/').next().unwrap_or_default();
    queue == "#" || queue == name
}

/// Whether a topic name can match both filters.
fn overlap(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.split('/').peekable(), other.split('/').peekable());
    loop {
        match (one.next(), other.next()) {
            // `#` also matches its parent level [MQTT-4.7.1-2].
            (None, None) | (Some("#"), _) | (_, Some("#")) => return true,
            (Some(a), Some(b)) if a == b || a == "+" || b == "+" => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> SourceRecord {
        SourceRecord {
            source: 0,
            partition: 3,
            offset: 17,
            timestamp_ms: 1_000_000,
            key: Some(b"press-7".to_vec()),
            value: Some(b"open".to_vec()),
            headers: vec![
                ("site".into(), Some(b"north".to_vec())),
                ("mqtt.message-expiry-interval".into(), Some(b"60".to_vec())),
                ("mqtt.content-type".into(), Some(b"text/plain".to_vec())),
            ],
        }
    }

    fn outbound(template: &str) -> Outbound {
        Outbound {
            name: "out".into(),
            topic: "commands".into(),
            template: Template::parse(template).unwrap(),
            qos: QoS::AtLeastOnce,
            retain: false,
        }
    }

    #[test]
    fn a_template_is_filled_from_the_record() {
        let mut scratch = Scratch::default();
        let binding = outbound("{header:site}/{topic}/{key}/set/{partition}/{offset}");
        let record = record();
        let message = message(&binding, &record, 1_010_000, &mut scratch).unwrap();
        assert_eq!(message.topic, "north/commands/press-7/set/3/17");
        assert_eq!(message.properties.message_expiry, Some(50));
        assert_eq!(message.properties.content_type, Some("text/plain"));
        let user: Vec<_> = message.properties.user_properties.iter().collect();
        assert_eq!(user, [("site", "north")]);
    }

    #[test]
    fn records_with_missing_fields_and_expired_ones_are_skipped() {
        let mut scratch = Scratch::default();
        let binding = outbound("{header:none}/x");
        assert_eq!(message(&binding, &record(), 0, &mut scratch).unwrap_err(), Skipped::MissingField);
        let binding = outbound("{key}");
        assert_eq!(message(&binding, &record(), 1_060_000, &mut scratch).unwrap_err(), Skipped::Expired);
    }

    #[test]
    fn templates_that_yield_no_topic_names_are_rejected() {
        for text in ["", "a/{key", "a/{what}", "a/+/{key}", "{header:}"] {
            assert!(Template::parse(text).is_err(), "{text}");
        }
        assert_eq!(Template::parse("a/b{key}/c").unwrap().covering_filter(), "a/#");
        assert_eq!(Template::parse("a/b").unwrap().covering_filter(), "a/b");
    }

    #[test]
    fn loops_are_found() {
        let inbound = |name: &str, filter: &str, topic: &str| Inbound {
            name: name.into(),
            filter: filter.into(),
            topic: topic.into(),
            key: Key::Topic,
        };
        let named = |name: &str, topic: &str, template: &str| Outbound {
            name: name.into(),
            topic: topic.into(),
            ..outbound(template)
        };
        let ins = [inbound("in", "plant/+/state", "states"), inbound("in2", "copy/#", "copies")];
        let harmless = [named("out", "commands", "plant/{key}/set"), named("out2", "states", "copy/{key}")];
        assert_eq!(find_loop(&ins, &harmless), None);
        let direct = [named("out", "states", "plant/{key}")];
        assert_eq!(find_loop(&ins, &direct), Some(vec!["out", "in"]));
        let around = [named("out", "copies", "plant/7/state"), named("out2", "states", "copy/{key}")];
        assert!(find_loop(&ins, &around).is_some());
    }

    #[test]
    fn loops_through_queues_are_found() {
        let named = |topic: &str, template: &str| Outbound {
            name: topic.into(),
            topic: topic.into(),
            ..outbound(template)
        };
        assert!(find_loop(&[], &[named("jobs", "$queue/jobs/{key}")]).is_some());
        assert!(find_loop(&[], &[named("jobs", "$queue/{key}")]).is_some());
        assert!(find_loop(&[], &[named("jobs", "$queue/others"), named("others", "$queue/jobs")]).is_some());
        assert!(find_loop(&[], &[named("jobs", "$queue/others"), named("x", "a/{key}")]).is_none());
    }

    #[test]
    fn keys_are_parsed() {
        assert_eq!(Key::parse("level:2"), Ok(Key::Level(2)));
        assert!(Key::parse("level:0").is_err() && Key::parse("x").is_err());
    }
}
