//! The configuration file: its sections, every key with a default, unknown keys refused where they stand.

use std::path::Path;

use mainstem_broker::config::Field;
use mainstem_broker::{Durability, MqttConfig, settings};
use serde::Deserialize;
use toml::{Table, Value};

use crate::bindings::{MqttToQueue, MqttToTopic, TopicToMqtt};
use crate::cli::{ServeArgs, Setting};
use crate::queues::DeclaredQueue;

settings! {
    /// The process.
    pub struct ServerConfig {
        /// Data directory. One process at a time holds its lock.
        data: String = "./data";
        /// What is logged: off, error, warn, info, debug, or trace.
        log_level: String = "info";
    }
}

settings! {
    /// The threads that serve connections.
    pub struct RuntimeConfig {
        /// Shards, each one thread; 0 means one for each core that the process may use.
        shards: u16 = 0_u16, in 0 ..= 61;
        /// Whether each shard is pinned to a core.
        pin: bool = true;
        /// Connections that stay together on the first shard before the others get any: few connections mostly talk to each other, and a message to another shard waits for its thread to wake. 0 deals them out from the first.
        first_shard_connections: u32 = 16_u32, in 0 ..= 1_000_000;
        /// What the kernel may hold for one MQTT connection that is slow to read, in bytes; 0 leaves it to the kernel, which goes up to several MiB.
        send_buffer_bytes: u32 = 524_288_u32, in 0 ..= 1_073_741_824;
        /// How long after a busy turn began a shard waits for more input to take in at once, in µs; shards with little to do never wait.
        coalesce_us: u32 = 1_000_u32, in 0 ..= 10_000;
    }
}

settings! {
    /// The Kafka door.
    pub struct KafkaConfig {
        /// Address and port to listen on; empty for no Kafka door.
        listen: String = "127.0.0.1:9092";
        /// Host and port that clients are told to connect to; empty for the address listened on, or this machine's name if that is any address.
        advertised: String = "";
        /// Number of the one node.
        node_id: u32 = 1_u32, in 0 ..= 2_147_483_647;
        /// Whether a topic that a client asks for is made if it is not there.
        auto_create_topics: bool = true;
        /// Partitions of a topic whose creator names no number.
        partitions: u32 = 1_u32, in 1 ..= 100_000;
        /// Partitions of all topics together, at most.
        max_partitions: u32 = 20_000_u32, in 1 ..= 10_000_000;
        /// Largest request taken from a client, in bytes.
        max_request_size_bytes: u32 = 104_857_600_u32, in 1_024 ..= 1_073_741_824;
        /// What the kernel may hold for one Kafka connection that is slow to read, in bytes; 0 leaves it to the kernel. Much more than this makes fetching slower (socket.send.buffer.bytes).
        send_buffer_bytes: u32 = 102_400_u32, in 0 ..= 1_073_741_824;
        /// Largest record batch of a topic that says nothing else (max.message.bytes).
        max_message_bytes: u32 = 1_048_588_u32, in 1 ..= 1_073_741_824;
        /// When an append to a topic that says nothing else counts as done, and is acknowledged: fsync, when it is on disk; os, when the operating system has it (mainstem.durability).
        durability: Durability = Durability::Fsync, one of "fsync, os";
        /// How long a topic that says nothing else keeps records, in ms; -1 for ever (retention.ms).
        retention_ms: i64 = 604_800_000_i64, in -1 ..= 9_223_372_036_854_775_807;
        /// Bytes that each partition of a topic that says nothing else keeps; -1 for no limit (retention.bytes).
        retention_bytes: i64 = -1_i64, in -1 ..= 9_223_372_036_854_775_807;
        /// Size of the segments of a topic that says nothing else, in bytes (segment.bytes).
        segment_bytes: u32 = 134_217_728_u32, in 1_024 ..= 2_147_483_647;
        /// Time between two looks for what is to be removed by age or size, in ms (log.retention.check.interval.ms).
        retention_check_interval_ms: u64 = 300_000_u64, in 1 ..= 9_223_372_036_854_775_807;
        /// How long a consumer group that gets its first member waits for more before it deals out partitions, in ms (group.initial.rebalance.delay.ms).
        group_initial_rebalance_delay_ms: u32 = 0_u32, in 0 ..= 600_000;
        /// Shortest session timeout that a member of a consumer group may ask for, in ms (group.min.session.timeout.ms).
        group_min_session_timeout_ms: u32 = 6_000_u32, in 1 ..= 2_147_483_647;
        /// Longest session timeout that a member of a consumer group may ask for, in ms (group.max.session.timeout.ms).
        group_max_session_timeout_ms: u32 = 1_800_000_u32, in 1 ..= 2_147_483_647;
        /// How long the offsets of a group without members are kept, in ms (offsets.retention.minutes).
        offsets_retention_ms: u64 = 604_800_000_u64, in 1_000 ..= 9_223_372_036_854_775_807;
    }
}

settings! {
    /// The operations door: work queues over HTTP, health.
    pub struct HttpConfig {
        /// Address and port to listen on; empty for no operations door. There is no authentication: whoever reaches it may do everything with queues.
        listen: String = "127.0.0.1:8080";
        /// Largest body of a request, in bytes; also about the most bytes of messages in an answer.
        max_body_bytes: u32 = 8_388_608_u32, in 1_024 ..= 1_073_741_824;
        /// Connections at once; those beyond are answered with 503 and closed.
        max_connections: u32 = 256_u32, in 1 ..= 100_000;
    }
}

settings! {
    /// All work queues.
    pub struct QueuesConfig {
        /// Whether a queue that messages are sent to, or wanted from, is made if it is not there, with the defaults below.
        auto_create: bool = true;
    }
}

impl KafkaConfig {
    /// What the door is told. Host and port that clients are told come when they are known.
    pub(crate) fn door(&self) -> mainstem_stream::Config {
        mainstem_stream::Config {
            node_id: self.node_id.cast_signed(),
            auto_create_topics: self.auto_create_topics,
            partitions: self.partitions.cast_signed(),
            partitions_max: self.max_partitions.cast_signed(),
            request_bytes_max: self.max_request_size_bytes,
            durability: match self.durability {
                Durability::Os => mainstem_log::Durability::Os,
                Durability::Fsync | Durability::None => mainstem_log::Durability::Fsync,
            },
            group_initial_rebalance_delay_ms: self.group_initial_rebalance_delay_ms,
            group_session_timeout_min_ms: self.group_min_session_timeout_ms,
            group_session_timeout_max_ms: self.group_max_session_timeout_ms,
            offsets_retention_ms: self.offsets_retention_ms,
            retention_ms: self.retention_ms,
            retention_bytes: self.retention_bytes,
            segment_bytes: self.segment_bytes,
            message_bytes_max: self.max_message_bytes,
            follows_partitions: true,
            ..mainstem_stream::Config::default()
        }
    }

    fn check_more(&self) -> Result<(), (&'static str, String)> {
        if self.durability == Durability::None {
            return Err(("durability", "topics are kept: \"fsync\" or \"os\"".into()));
        }
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms {
            return Err(("group_min_session_timeout_ms", "is above group_max_session_timeout_ms".into()));
        }
        Ok(())
    }
}

/// The whole configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    pub(crate) server: ServerConfig,
    pub(crate) runtime: RuntimeConfig,
    pub(crate) mqtt: MqttConfig,
    pub(crate) kafka: KafkaConfig,
    pub(crate) http: HttpConfig,
    pub(crate) queues: QueuesConfig,
    pub(crate) queue: Vec<DeclaredQueue>,
    pub(crate) mqtt_to_topic: Vec<MqttToTopic>,
    pub(crate) mqtt_to_queue: Vec<MqttToQueue>,
    pub(crate) topic_to_mqtt: Vec<TopicToMqtt>,
}

impl Config {
    /// Reads the file, if one is named, and lays the command line over it.
    pub(crate) fn load(args: &ServeArgs) -> Result<Self, String> {
        let table = match &args.config {
            None => Table::new(),
            Some(path) => read(path)?,
        };
        Self::from_table(table, args)
    }

    fn from_table(mut table: Table, args: &ServeArgs) -> Result<Self, String> {
        for setting in &args.set {
            lay_over(&mut table, setting)?;
        }
        let mut config: Self = table.try_into().map_err(|error| error.to_string())?;
        if let Some(data) = &args.data {
            config.server.data = data.display().to_string();
        }
        if let Some(listen) = args.listen {
            config.mqtt.listen = listen.to_string();
        }
        if let Some(listen) = args.kafka_listen {
            config.kafka.listen = listen.to_string();
        }
        if let Some(listen) = args.http_listen {
            config.http.listen = listen.to_string();
        }
        if let Some(shards) = args.shards {
            config.runtime.shards = u16::try_from(shards).unwrap_or(u16::MAX);
        }
        let checked = |section: &str, outcome: Result<(), (&str, String)>| {
            outcome.map_err(|(key, what)| format!("{section}.{key}: {what}"))
        };
        checked("server", config.server.check())?;
        checked("runtime", config.runtime.check())?;
        checked("mqtt", config.mqtt.check())?;
        checked("kafka", config.kafka.check())?;
        checked("kafka", config.kafka.check_more())?;
        checked("http", config.http.check())?;
        checked("queues", config.queues.check())?;
        config.check_queues()?;
        config.bindings()?;
        Ok(config)
    }
}

/// Reads and checks a file on its own, so that an error can point at the place.
fn read(path: &Path) -> Result<Table, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let pointed = |error: toml::de::Error| format!("{}:\n{error}", path.display());
    toml::from_str::<Config>(&text).map_err(pointed)?;
    toml::from_str(&text).map_err(pointed)
}

/// Lays one `section.key=value` over the file. A value is taken as TOML, or else as a bare string.
fn lay_over(table: &mut Table, setting: &Setting) -> Result<(), String> {
    let (section, key) = setting.key.split_once('.').ok_or("a key is SECTION.KEY")?;
    let value = toml::from_str::<Table>(&format!("value = {}", setting.value))
        .ok()
        .and_then(|mut parsed| parsed.remove("value"))
        .unwrap_or_else(|| Value::String(setting.value.clone()));
    let entry = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
    let section = entry.as_table_mut().ok_or_else(|| format!("{section:?} is not a section"))?;
    section.insert(key.to_owned(), value);
    Ok(())
}

/// What the reference page says before its tables.
const REFERENCE_HEAD: &str = "\
# Configuration

Written by `cargo xtask config-reference` from the types; not by hand.

`mainstem` runs without a configuration. `mainstem --config FILE` reads a TOML file with the sections below; each key
has a default, so a file holds only what differs:

```toml
[mqtt]
listen = \"0.0.0.0:1883\"
max_queued_messages = 5000
queue_overflow = \"drop-oldest\"
```

`--set SECTION.KEY=VALUE` overrides one key of the file and may be repeated. `--data`, `--listen`,
`--kafka-listen`, `--http-listen` and `--shards` override `server.data`, `mqtt.listen`, `kafka.listen`, `http.listen` and
`runtime.shards`, and win over `--set`. An unknown key, a value of the wrong type and a
value out of bounds keep the broker from starting, with the place in the file or the key in the message. The configuration
is read once, at the start.

What happens at each bound is told in [mqtt.md](mqtt.md).
";

/// The reference page of all keys, as Markdown.
pub(crate) fn reference() -> String {
    [
        REFERENCE_HEAD.to_owned(),
        reference_section("server", "The process.", ServerConfig::fields()),
        reference_section("runtime", "The threads that serve connections.", RuntimeConfig::fields()),
        reference_section("mqtt", "The MQTT door.", MqttConfig::fields()),
        reference_section(
            "kafka",
            "The Kafka door. Names in parentheses are what a topic calls it.",
            KafkaConfig::fields(),
        ),
        reference_section(
            "http",
            "The operations door, told of in [http.md](http.md).",
            HttpConfig::fields(),
        ),
        reference_section("queues", "All work queues.", QueuesConfig::fields()),
        crate::queues::reference(),
        crate::bindings::REFERENCE.to_owned(),
    ]
    .concat()
}

fn reference_section(name: &str, doc: &str, fields: Vec<Field>) -> String {
    let row = |Field { key, default, bounds, doc }| format!("| `{key}` | `{default}` | {bounds} | {doc} |\n");
    let rows = fields.into_iter().map(row).collect::<Vec<_>>().concat();
    let head = "| key | default | bounds | what it does |\n|---|---|---|---|";
    format!("\n## `[{name}]`\n\n{doc}\n\n{head}\n{rows}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(set: &[&str]) -> Result<Config, String> {
        let set = set.iter().map(|text| text.parse().unwrap()).collect();
        Config::from_table(Table::new(), &ServeArgs { set, ..ServeArgs::default() })
    }

    #[test]
    fn settings_override_and_are_checked() {
        let config = with(&["mqtt.max_queued_messages=7", "mqtt.queue_overflow=drop-oldest"]).unwrap();
        assert_eq!(config.mqtt.max_queued_messages, 7);
        assert_eq!(config.mqtt.queue_overflow, mainstem_broker::QueueOverflow::DropOldest);
        assert_eq!(
            with(&["kafka.group_min_session_timeout_ms=10", "kafka.group_max_session_timeout_ms=9"])
                .unwrap_err(),
            "kafka.group_min_session_timeout_ms: is above group_max_session_timeout_ms"
        );
        assert_eq!(with(&["mqtt.maximum_qos=3"]).unwrap_err(), "mqtt.maximum_qos: 3 is not within 0 to 2");
        assert!(with(&["mqtt.max_quued=3"]).unwrap_err().contains("unknown field `max_quued`"));
        assert!(with(&["mqtt.retain_available=7"]).unwrap_err().contains("retain_available"));
    }

    #[test]
    fn an_unknown_key_is_pointed_at() {
        let path = std::env::temp_dir().join(format!("mainstem-config-{}.toml", std::process::id()));
        std::fs::write(&path, "[mqtt]\nmax_quued = 3\n").unwrap();
        let error = read(&path).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert!(error.contains("max_quued = 3\n") && error.contains("^^^^"), "{error}");
    }
}
