//! Bindings between MQTT and topics as the configuration declares them.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_broker::Durability;
use mainstem_doors::{Bindings, Inbound, Key, Outbound, Template, find_loop};
use mainstem_mqtt::QoS;
use mainstem_stream::{BoundTopic, Source, check_topic};
use mainstem_topic::check_filter;
use serde::{Deserialize, Serialize};

use crate::config::Config;

mod live;

pub(crate) use live::{Live, Wires};

/// Messages that meet a filter become records of a topic.
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

/// Messages that meet a filter go into a work queue.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MqttToQueue {
    name: String,
    filter: String,
    queue: String,
    #[serde(default = "no_key")]
    key: String,
}

/// Records of a topic become messages.
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

/// Where a binding begins that has not run before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Start {
    /// With what comes.
    #[default]
    Latest,
    /// With all there is.
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

/// The declared bindings, as the doors take them.
#[derive(Debug, Default)]
pub(crate) struct Declared {
    pub(crate) bindings: Bindings,
    pub(crate) topics: Vec<BoundTopic>,
    pub(crate) sources: Vec<Source>,
}

impl Config {
    /// The bindings, checked.
    ///
    /// # Errors
    /// Which one is wrong, and how.
    pub(crate) fn bindings(&self) -> Result<Declared, String> {
        let mut declared = Declared::default();
        let mut names = Vec::new();
        for binding in &self.mqtt_to_topic {
            let explain = |what: String| format!("mqtt_to_topic {:?}: {what}", binding.name);
            let (inbound, topic) = binding.read().map_err(explain)?;
            declared.bindings.inbound.push(inbound);
            declared.topics.push(topic);
            names.push(&binding.name);
        }
        for binding in &self.mqtt_to_queue {
            let explain = |what: String| format!("mqtt_to_queue {:?}: {what}", binding.name);
            let (inbound, topic) = binding.read(self).map_err(explain)?;
            declared.bindings.inbound.push(inbound);
            declared.topics.push(topic);
            names.push(&binding.name);
        }
        for binding in &self.topic_to_mqtt {
            let explain = |what: String| format!("topic_to_mqtt {:?}: {what}", binding.name);
            let (outbound, source) = binding.read().map_err(explain)?;
            declared.bindings.outbound.push(outbound);
            declared.sources.push(source);
            names.push(&binding.name);
        }
        names.sort_unstable();
        if let Some(name) = names.windows(2).find_map(|pair| (pair[0] == pair[1]).then_some(pair[0])) {
            return Err(format!("two bindings are called {name:?}"));
        }
        if let Some(path) = find_loop(&declared.bindings.inbound, &declared.bindings.outbound) {
            return Err(format!("bindings that feed one another in a circle: {}", path.join(", ")));
        }
        let of_topics = self.mqtt_to_topic.len() + self.topic_to_mqtt.len();
        if of_topics > 0 && self.kafka.listen.is_empty() {
            return Err("bindings need the Kafka door: kafka.listen is empty".into());
        }
        Ok(declared)
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if (1..=100).contains(&name.len()) && name.bytes().all(is_plain) {
        return Ok(());
    }
    Err("a name has 1 to 100 letters, digits, '.', '_' and '-'".into())
}

impl MqttToTopic {
    fn read(&self) -> Result<(Inbound, BoundTopic), String> {
        check_name(&self.name)?;
        check_filter(&self.filter).map_err(|error| format!("filter {:?}: {error}", self.filter))?;
        let key = Key::parse(&self.key).map_err(|what| format!("key: {what}"))?;
        let mut config = self.config.clone();
        match self.durability {
            None => {}
            Some(Durability::None) => return Err("durability: \"fsync\" or \"os\"".into()),
            Some(Durability::Fsync) => drop(config.insert("mainstem.durability".into(), "fsync".into())),
            Some(Durability::Os) => drop(config.insert("mainstem.durability".into(), "os".into())),
        }
        if self.partitions == 0 {
            return Err("partitions: at least 1".into());
        }
        let topic: Arc<str> = self.topic.as_str().into();
        let bound = BoundTopic { name: Arc::clone(&topic), partitions: i32::from(self.partitions), config };
        check_topic(&bound)?;
        let inbound = Inbound { name: self.name.as_str().into(), filter: self.filter.clone(), topic, key };
        Ok((inbound, bound))
    }
}

impl MqttToQueue {
    fn read(&self, config: &Config) -> Result<(Inbound, BoundTopic), String> {
        let bound = config.queue_topic(&self.queue)?;
        check_topic(&bound).map_err(|what| format!("queue: {what}"))?;
        check_name(&self.name)?;
        check_filter(&self.filter).map_err(|error| format!("filter {:?}: {error}", self.filter))?;
        let key = Key::parse(&self.key).map_err(|what| format!("key: {what}"))?;
        let topic = Arc::clone(&bound.name);
        let inbound = Inbound { name: self.name.as_str().into(), filter: self.filter.clone(), topic, key };
        Ok((inbound, bound))
    }
}

impl TopicToMqtt {
    fn read(&self) -> Result<(Outbound, Source), String> {
        check_name(&self.name)?;
        let template = Template::parse(&self.publish).map_err(|what| format!("publish: {what}"))?;
        let qos = match self.qos {
            0 => QoS::AtMostOnce,
            1 => QoS::AtLeastOnce,
            2 => QoS::ExactlyOnce,
            other => return Err(format!("qos: {other} is not 0, 1 or 2")),
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

/// What the reference page of the configuration says of them.
pub(crate) const REFERENCE: &str = "
## `[[mqtt_to_topic]]`

Messages that meet a filter become records of a topic; a publisher is acknowledged when the record is kept. May be repeated.

| key | default | bounds | what it does |
|---|---|---|---|
| `name` | | letters, digits, `.`, `_`, `-` | What the binding is called. |
| `filter` | | a topic filter | Which messages. |
| `topic` | | a topic's name | To which topic; it is made if it is not there. |
| `partitions` | `1` | 1 to 65535 | Partitions of a topic that is made. |
| `key` | `\"topic\"` | topic, level:N, client, none | What becomes the record's key: the topic name, one level of it (counted from 1), the publisher's client identifier, or nothing. Records with the same key, or without key of the same topic name, go to the same partition, in order. |
| `durability` | `kafka.durability` | fsync, os | When a record of a topic that is made counts as kept. |
| `config` | `{}` | keys of topics | What a topic that is made is set to, for example `{ \"retention.ms\" = \"86400000\" }`. |

## `[[mqtt_to_queue]]`

Messages that meet a filter go into a work queue; a publisher is acknowledged when the message is kept there. May be
repeated.

| key | default | bounds | what it does |
|---|---|---|---|
| `name` | | letters, digits, `.`, `_`, `-` | What the binding is called. |
| `filter` | | a topic filter | Which messages. |
| `queue` | | a queue's name | To which queue; it is made if it is not there, as `[[queue]]` declares it if it does. |
| `key` | `\"none\"` | topic, level:N, client, none | What becomes the message's key, as above. Messages with the same key are delivered one after the other. |

## `[[topic_to_mqtt]]`

Records of a topic become messages. May be repeated. Bindings that feed one another in a circle are refused.

| key | default | bounds | what it does |
|---|---|---|---|
| `name` | | letters, digits, `.`, `_`, `-` | What the binding is called; its position in the topic goes by this name. |
| `topic` | | a topic's name | From which topic. |
| `publish` | | a topic name with places | To which topic name: `{key}`, `{header:NAME}`, `{topic}`, `{partition}` and `{offset}` stand for parts of the record. A record that lacks them is left out, and that is logged. |
| `qos` | `1` | 0 to 2 | With which it is published. |
| `retain` | `false` | | Whether it becomes the topic name's retained message. |
| `start` | `\"latest\"` | latest, earliest | Where a binding begins that has not run before. |
";
