//! Bindings of the configuration: between MQTT topics, work queues and Kafka topics.
//!
//! Each kind of binding is a serde type with the fields of the configuration file and of the HTTP API. `read` checks
//! one and returns what the bridge and the Kafka server need. Checks that involve several bindings, such as names and
//! loops, belong to [`convert`] and, for bindings added later, to [`BindingManager`].

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_kafka_server::{BoundTopic, Source, check_topic};
use mainstem_mqtt::QoS;
use mainstem_mqtt_server::Durability;
use mainstem_node::{Bindings, Inbound, Outbound, find_loop};
use serde::{Deserialize, Serialize};

use crate::queues::{DeclaredQueue, queue_topic};

mod manager;
mod validate;

pub(crate) use manager::{BindingManager, BindingTargets};
use validate::{check_source_filter, parse_key, parse_template};

/// Appends messages that match a filter to a Kafka topic.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MqttToTopic {
    name: String,
    filter: String,
    topic: String,
    #[serde(default = "default_partitions")]
    partitions: u16,
    #[serde(default = "default_key")]
    key: String,
    durability: Option<Durability>,
    #[serde(default)]
    config: BTreeMap<String, String>,
}

/// Sends messages that match a filter to a work queue.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MqttToQueue {
    name: String,
    filter: String,
    queue: String,
    #[serde(default = "no_key")]
    key: String,
}

/// Publishes records of a Kafka topic as messages.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopicToMqtt {
    name: String,
    topic: String,
    publish: String,
    #[serde(default = "default_qos")]
    qos: u8,
    #[serde(default)]
    retain: bool,
    #[serde(default)]
    start: Start,
}

/// Start position of a binding without a stored position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Start {
    /// Records appended from now on.
    #[default]
    Latest,
    /// All records.
    Earliest,
}

fn default_partitions() -> u16 {
    1
}

fn default_key() -> String {
    "topic".into()
}

fn no_key() -> String {
    "none".into()
}

fn default_qos() -> u8 {
    1
}

/// The bindings of the configuration, checked and converted.
#[derive(Debug, Default)]
pub(crate) struct Declared {
    pub(crate) bindings: Bindings,
    pub(crate) topics: Vec<BoundTopic>,
    pub(crate) sources: Vec<Source>,
}

/// The sections of the configuration that bindings need.
#[derive(Debug)]
pub(crate) struct Sections<'a> {
    pub(crate) mqtt_to_topic: &'a [MqttToTopic],
    pub(crate) mqtt_to_queue: &'a [MqttToQueue],
    pub(crate) topic_to_mqtt: &'a [TopicToMqtt],
    pub(crate) queues: &'a [DeclaredQueue],
    /// The audit topic, which no binding may write to.
    pub(crate) audit_topic: Option<Arc<str>>,
    /// Whether the broker has a Kafka listener.
    pub(crate) has_kafka: bool,
    /// Maximum number of levels of a topic.
    pub(crate) topic_levels_max: u16,
}

/// Checks and converts the bindings.
///
/// # Errors
/// Names the invalid binding and its error.
pub(crate) fn convert(sections: &Sections<'_>) -> Result<Declared, String> {
    let mut declared = Declared::default();
    let mut names = Vec::new();
    for binding in sections.mqtt_to_topic {
        let with_name = |error: String| format!("mqtt_to_topic {:?}: {error}", binding.name);
        let (inbound, topic) = binding.read(sections.topic_levels_max).map_err(with_name)?;
        check_target(&topic, sections.audit_topic.as_ref()).map_err(with_name)?;
        declared.bindings.inbound.push(inbound);
        declared.topics.push(topic);
        names.push(&binding.name);
    }
    for binding in sections.mqtt_to_queue {
        let with_name = |error: String| format!("mqtt_to_queue {:?}: {error}", binding.name);
        let (inbound, topic) = binding.read(sections.queues, sections.topic_levels_max).map_err(with_name)?;
        check_target(&topic, sections.audit_topic.as_ref()).map_err(with_name)?;
        declared.bindings.inbound.push(inbound);
        declared.topics.push(topic);
        names.push(&binding.name);
    }
    for binding in sections.topic_to_mqtt {
        let with_name = |error: String| format!("topic_to_mqtt {:?}: {error}", binding.name);
        let (outbound, source) = binding.read().map_err(with_name)?;
        declared.bindings.outbound.push(outbound);
        declared.sources.push(source);
        names.push(&binding.name);
    }
    names.sort_unstable();
    if let Some(name) = names.windows(2).find_map(|pair| (pair[0] == pair[1]).then_some(pair[0])) {
        return Err(format!("two bindings have the name {name:?}"));
    }
    if let Some(path) = find_loop(&declared.bindings.inbound, &declared.bindings.outbound) {
        return Err(format!("bindings form a loop: {}", path.join(", ")));
    }
    let kafka_bindings = sections.mqtt_to_topic.len() + sections.topic_to_mqtt.len();
    if kafka_bindings > 0 && !sections.has_kafka {
        return Err("bindings to Kafka topics need a Kafka listener: kafka.listen is empty".into());
    }
    Ok(declared)
}

/// Checks what a binding writes to: publishers of MQTT could write to the audit topic otherwise.
fn check_target(topic: &BoundTopic, audit_topic: Option<&Arc<str>>) -> Result<(), String> {
    if audit_topic == Some(&topic.name) {
        return Err(format!("{:?} is the audit topic (security.audit_topic)", topic.name));
    }
    Ok(())
}

fn check_name(name: &str) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if (1..=100).contains(&name.len()) && name.bytes().all(is_plain) {
        return Ok(());
    }
    Err("name: must be 1 to 100 letters, digits, '.', '_' and '-'".into())
}

impl MqttToTopic {
    fn read(&self, topic_levels_max: u16) -> Result<(Inbound, BoundTopic), String> {
        check_name(&self.name)?;
        check_source_filter(&self.filter, topic_levels_max)?;
        let key = parse_key(&self.key, &self.filter, topic_levels_max)?;
        let mut config = self.config.clone();
        match self.durability {
            None => {}
            Some(Durability::None) => return Err("durability: must be \"fsync\" or \"os\"".into()),
            Some(Durability::Fsync) => drop(config.insert("mainstem.durability".into(), "fsync".into())),
            Some(Durability::Os) => drop(config.insert("mainstem.durability".into(), "os".into())),
        }
        if self.partitions == 0 {
            return Err("partitions: must be at least 1".into());
        }
        let topic: Arc<str> = self.topic.as_str().into();
        let bound = BoundTopic { name: Arc::clone(&topic), partitions: i32::from(self.partitions), config };
        check_topic(&bound)?;
        let inbound = Inbound { name: self.name.as_str().into(), filter: self.filter.clone(), topic, key };
        Ok((inbound, bound))
    }
}

impl MqttToQueue {
    fn read(&self, queues: &[DeclaredQueue], topic_levels_max: u16) -> Result<(Inbound, BoundTopic), String> {
        let bound = queue_topic(queues, &self.queue)?;
        check_topic(&bound).map_err(|error| format!("queue: {error}"))?;
        check_name(&self.name)?;
        check_source_filter(&self.filter, topic_levels_max)?;
        let key = parse_key(&self.key, &self.filter, topic_levels_max)?;
        let topic = Arc::clone(&bound.name);
        let inbound = Inbound { name: self.name.as_str().into(), filter: self.filter.clone(), topic, key };
        Ok((inbound, bound))
    }
}

impl TopicToMqtt {
    fn read(&self) -> Result<(Outbound, Source), String> {
        check_name(&self.name)?;
        let template = parse_template(&self.publish)?;
        let qos = match self.qos {
            0 => QoS::AtMostOnce,
            1 => QoS::AtLeastOnce,
            2 => QoS::ExactlyOnce,
            other => return Err(format!("qos: must be 0, 1 or 2, is {other}")),
        };
        let topic: Arc<str> = self.topic.as_str().into();
        check_topic(&BoundTopic { name: Arc::clone(&topic), partitions: 1, config: BTreeMap::new() })?;
        let name: Arc<str> = self.name.as_str().into();
        let outbound = Outbound {
            name: Arc::clone(&name),
            topic: Arc::clone(&topic),
            template,
            qos,
            retain: self.retain,
        };
        Ok((outbound, Source { name, topic, from_start: self.start == Start::Earliest }))
    }
}

/// Bindings in the configuration reference.
pub(crate) const REFERENCE: &str = "
## `[[mqtt_to_topic]]`

Appends MQTT messages that match a filter to a Kafka topic. A publisher is acknowledged when the record is durable. May
be repeated.

| key | default | bounds | description |
|---|---|---|---|
| `name` | | 1 to 100 letters, digits, `.`, `_`, `-` | Name of the binding. |
| `filter` | | a topic filter | Messages to bind. |
| `topic` | | a topic name | Kafka topic to append to. Created if it does not exist. |
| `partitions` | `1` | 1 to 65535 | Number of partitions if the topic is created. |
| `key` | `\"topic\"` | topic, level:N, client, none | Source of the record key: the topic name, one level of it (counted from 1), the publisher's client identifier, or none. Records with the same key, or without a key and with the same topic name, go to the same partition in order. |
| `durability` | `kafka.durability` | fsync, os | Durability if the topic is created: `fsync` acknowledges a record once it is on disk, `os` once the operating system has it. |
| `config` | `{}` | topic configuration keys | Configuration if the topic is created, for example `{ \"retention.ms\" = \"86400000\" }`. |

## `[[mqtt_to_queue]]`

Sends MQTT messages that match a filter to a work queue. A publisher is acknowledged when the message is durable in the
queue. May be repeated.

| key | default | bounds | description |
|---|---|---|---|
| `name` | | 1 to 100 letters, digits, `.`, `_`, `-` | Name of the binding. |
| `filter` | | a topic filter | Messages to bind. |
| `queue` | | a queue name | Queue to send to. Created if it does not exist, with the settings of its `[[queue]]` section if there is one. |
| `key` | `\"none\"` | topic, level:N, client, none | Source of the message key, as above. Messages with the same key are delivered one at a time, in order. |

## `[[topic_to_mqtt]]`

Publishes the records of a Kafka topic as MQTT messages. May be repeated. Bindings that form a loop are rejected.

| key | default | bounds | description |
|---|---|---|---|
| `name` | | 1 to 100 letters, digits, `.`, `_`, `-` | Name of the binding. Its position in the topic is stored under this name. |
| `topic` | | a topic name | Kafka topic to read. |
| `publish` | | a topic name template | MQTT topic name. `{key}`, `{header:NAME}`, `{topic}`, `{partition}` and `{offset}` are replaced by parts of the record. A record without such a part is skipped, and that is logged. |
| `qos` | `1` | 0 to 2 | QoS of the messages. |
| `retain` | `false` | | Whether each message becomes the retained message of its topic. |
| `start` | `\"latest\"` | latest, earliest | Start position of a new binding. |
";
