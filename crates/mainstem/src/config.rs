//! The configuration: its sections, keys and defaults, and what must hold between them.
//!
//! Each key's documentation, default and bounds stand in one place, the `settings!` macro, from which everything else
//! is derived.
//!
//! | file | contents |
//! |---|---|
//! | `layers.rs` | file, environment and command line, merged into one configuration |
//! | `file.rs`, `environment.rs` | the layers |
//! | `key_path.rs`, `problem.rs` | the place of a value; an error and its place |
//! | `entries.rs` | effective values, shown and compared |
//! | `reference.rs`, `schema.rs` | `docs/configuration.md`; the JSON Schema for editors |

mod entries;
mod environment;
mod file;
mod key_path;
mod layers;
mod problem;
mod reference;
mod schema;

use mainstem_auth::LogInService;
use mainstem_mqtt_server::config::Field;
use mainstem_mqtt_server::{Durability, MqttConfig, choices, settings};
use mainstem_runtime::Pinning;
use mainstem_sasl::Mechanism;
use mainstem_topic::check_filter;
use mainstem_websocket::AllowedOrigin;
use serde::Deserialize;

use crate::bindings::{Declared, MqttToQueue, MqttToTopic, Sections, TopicToMqtt, convert};
use crate::jwt::JwtConfig;
use crate::ldap::LdapConfig;
use crate::listener_section::{self, ListenerSection, check_listeners};
use crate::log_in_hook::LogInHookConfig;
use crate::logging::LogConfig;
use crate::memory::MemoryConfig;
use crate::queues::{DeclaredQueue, check_queues};
use crate::security::SecurityConfig;
use key_path::KeyPath;

pub(crate) use entries::{Change, Entry, changes, entries, key_literal};
pub(crate) use key_path::Step;
pub(crate) use layers::{Loaded, load};
pub(crate) use problem::{Origin, Problem, Problems};
pub(crate) use reference::reference;
pub(crate) use schema::schema;

settings! {
    /// The process.
    pub struct ServerConfig {
        /// Data directory. One process at a time holds its lock.
        data: String = "./data";
        /// Maximum number of connections of one client address, over all listeners; 0 for no limit. Further ones are
        /// closed at once. IPv6 addresses count by their /64 prefix. Off by default, because many clients may share an
        /// address behind a proxy or NAT.
        max_connections_per_address: u32 = 0_u32, in 0 ..= 10_000_000;
        /// Maximum number of new connections of one client address per second, over all listeners; 0 for no limit. An
        /// address may open those of one second at once.
        max_connection_rate_per_address: u32 = 0_u32, in 0 ..= 1_000_000;
        /// Maximum number of connections whose TLS or WebSocket handshake is not complete, divided among the shards.
        /// Beyond it, the oldest is closed.
        max_handshakes: u32 = 2_048_u32, in 64 ..= 1_000_000;
        /// Time for a TLS or WebSocket handshake, and for the header of a proxy, in ms.
        handshake_timeout_ms: u32 = 10_000_u32, in 100 ..= 600_000;
        /// How often the certificates of listeners are compared with their files, in seconds. A reload does it at once.
        certificate_check_interval_s: u32 = 60_u32, in 1 ..= 86_400, [reloadable];
    }
}

/// Whether each shard is pinned to a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Pin {
    Auto,
    Always,
    Never,
}

choices!(Pin);

impl From<Pin> for Pinning {
    fn from(pin: Pin) -> Self {
        match pin {
            Pin::Auto => Self::Auto,
            Pin::Always => Self::Always,
            Pin::Never => Self::Never,
        }
    }
}

settings! {
    /// The threads that serve connections.
    pub struct RuntimeConfig {
        /// Number of shards, each with one thread; 0 means one per core available to the process.
        shards: u16 = 0_u16, in 0 ..= 64;
        /// Whether each shard is pinned to a core. `auto` pins if the process may use only a part of the machine's
        /// cores (a CPU set), or has 16 or more: a pinned shard waits while another process uses its core.
        pin: Pin = Pin::Auto, one of "auto, always, never";
        /// Number of connections that the first shard gets before the others get any. With few connections this saves
        /// the wakeup of another thread per message. 0 distributes connections from the first one on.
        first_shard_connections: u32 = 16_u32, in 0 ..= 1_000_000;
        /// Send buffer of an MQTT connection in the kernel, in bytes; 0 leaves the size to the kernel, which grows it
        /// to several MiB for slow readers.
        send_buffer_bytes: u32 = 524_288_u32, in 0 ..= 1_073_741_824;
        /// Longest time, from the start of a busy turn, that a shard waits for more input to handle in one batch, in
        /// µs. It waits less if that lowers the rate of input, because clients wait for responses. Shards under low
        /// load never wait.
        coalesce_us: u32 = 1_000_u32, in 0 ..= 10_000;
        /// Longest time, in µs, that a message to many subscribers waits for others to leave in the same write, where
        /// such messages are frequent and their writes take much of a shard's time. 0 disables waiting.
        flush_delay_us: u32 = 20_000_u32, in 0 ..= 1_000_000;
    }
}

settings! {
    /// The Kafka listener and defaults of topics and groups.
    pub struct KafkaConfig {
        /// Address or host name, and port, to listen on; empty to disable Kafka.
        listen: String = "127.0.0.1:9092";
        /// Host and port advertised to clients; empty for the address of the listener, or the host name if that is a
        /// wildcard address.
        advertised: String = "";
        /// Mechanisms of SASL that this listener offers: "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512",
        /// "OAUTHBEARER". If there are any, its clients must log in (sasl.enabled.mechanisms).
        sasl: Vec<String> = Vec::new();
        /// How long a connection may take to log in, in ms.
        log_in_timeout_ms: u64 = 30_000_u64, in 100 ..= 3_600_000;
        /// How long a failed log-in is not answered, in ms (connection.failed.authentication.delay.ms).
        failed_authentication_delay_ms: u32 = 100_u32, in 0 ..= 60_000;
        /// How long a client may be logged in before it must log in again, in ms; 0 for no limit
        /// (connections.max.reauth.ms).
        connections_max_reauth_ms: u64 = 0_u64, in 0 ..= 9_223_372_036_854_775_807;
        /// Id of this node.
        node_id: u32 = 1_u32, in 0 ..= 2_147_483_647;
        /// Whether a topic is created when a client requests metadata of it.
        auto_create_topics: bool = true;
        /// Number of partitions of a topic that is created without a number.
        partitions: u32 = 1_u32, in 1 ..= 100_000;
        /// Maximum number of partitions of all topics together.
        max_partitions: u32 = 20_000_u32, in 1 ..= 10_000_000;
        /// Maximum number of connections (max.connections). Further ones are closed at once.
        max_connections: u32 = 100_000_u32, in 1 ..= 10_000_000;
        /// How long a connection without unanswered requests may send nothing before it is closed, in ms
        /// (connections.max.idle.ms).
        connections_max_idle_ms: u64 = 600_000_u64, in 1_000 ..= 9_223_372_036_854_775_807;
        /// Largest request, in bytes.
        max_request_size_bytes: u32 = 104_857_600_u32, in 1_024 ..= 1_073_741_824;
        /// Maximum size of all requests above 64 KiB that have not arrived completely, in bytes; connections with
        /// further ones are not read until there is room. -1 for no limit but `memory.max_bytes`
        /// (queued.max.request.bytes).
        queued_max_request_bytes: i64 = -1_i64, in -1 ..= 9_223_372_036_854_775_807;
        /// Send buffer of a Kafka connection in the kernel, in bytes; 0 leaves the size to the kernel. Much larger
        /// buffers make fetches slower (socket.send.buffer.bytes).
        send_buffer_bytes: u32 = 102_400_u32, in 0 ..= 1_073_741_824;
        /// Default of topics: largest record batch, in bytes (max.message.bytes).
        max_message_bytes: u32 = 1_048_588_u32, in 1 ..= 1_073_741_824;
        /// Default of topics: when an append is acknowledged; `fsync`, once it is on disk; `os`, once the operating
        /// system has it (mainstem.durability).
        durability: Durability = Durability::Fsync, one of "fsync, os";
        /// Default of topics: how long records are retained, in ms; -1 for no limit (retention.ms).
        retention_ms: i64 = 604_800_000_i64, in -1 ..= 9_223_372_036_854_775_807;
        /// Default of topics: bytes retained per partition; -1 for no limit (retention.bytes).
        retention_bytes: i64 = -1_i64, in -1 ..= 9_223_372_036_854_775_807;
        /// Default of topics: size of a segment, in bytes (segment.bytes).
        segment_bytes: u32 = 134_217_728_u32, in 1_024 ..= 2_147_483_647;
        /// How long records stay that exceed `retention.ms` when they are produced, in ms, unless `retention.ms` is
        /// shorter (log.retention.check.interval.ms).
        retention_check_interval_ms: u64 = 300_000_u64, in 1 ..= 9_223_372_036_854_775_807;
        /// How long a new consumer group waits for more members before it assigns partitions, in ms
        /// (group.initial.rebalance.delay.ms).
        group_initial_rebalance_delay_ms: u32 = 0_u32, in 0 ..= 600_000;
        /// Shortest session timeout that a member of a consumer group may request, in ms
        /// (group.min.session.timeout.ms).
        group_min_session_timeout_ms: u32 = 6_000_u32, in 1 ..= 2_147_483_647;
        /// Longest session timeout that a member of a consumer group may request, in ms (group.max.session.timeout.ms).
        group_max_session_timeout_ms: u32 = 1_800_000_u32, in 1 ..= 2_147_483_647;
        /// Time without a heartbeat after which a member of the consumer protocol (KIP-848) is removed from its group,
        /// in ms (group.consumer.session.timeout.ms).
        group_consumer_session_timeout_ms: u32 = 45_000_u32, in 1 ..= 2_147_483_647;
        /// Interval of the heartbeats of members of the consumer protocol, in ms
        /// (group.consumer.heartbeat.interval.ms).
        group_consumer_heartbeat_interval_ms: u32 = 5_000_u32, in 1 ..= 2_147_483_647;
        /// How long the offsets of a group without members are retained, in ms (offsets.retention.minutes).
        offsets_retention_ms: u64 = 604_800_000_u64, in 1_000 ..= 9_223_372_036_854_775_807;
        /// Idle time after which a transactional id is removed, in ms (transactional.id.expiration.ms).
        transactional_id_expiration_ms: u64 = 604_800_000_u64, in 1 ..= 2_147_483_647;
        /// Maximum memory of transactional ids and their transactions, in bytes. At the limit, the ids that have been
        /// unused for longest are removed before they expire.
        max_transactional_id_bytes: u64 = 134_217_728_u64, in 1_048_576 ..= 1_099_511_627_776;
        /// Idle time after which a partition forgets a producer, in ms (producer.id.expiration.ms).
        producer_id_expiration_ms: u64 = 86_400_000_u64, in 1 ..= 2_147_483_647;
        /// Maximum memory of the producers of all partitions, in bytes. At the limit, those that have been idle for
        /// longest are forgotten before they expire.
        max_producer_state_bytes: u64 = 67_108_864_u64, in 1_048_576 ..= 1_099_511_627_776;
        /// Default of topics: whether compressed batches are decompressed to validate their records before they are
        /// stored (mainstem.compressed.records.check).
        check_compressed_records: bool = true;
    }
}

settings! {
    /// The HTTP API: work queues, bindings, health and metrics.
    pub struct HttpConfig {
        /// Address or host name, and port, to listen on; empty to disable the HTTP API. As soon as there is a
        /// user, requests need one (security.md).
        listen: String = "127.0.0.1:8080";
        /// Host names by which requests may address the API, besides IP addresses and `localhost`; `"*"` allows any.
        /// Requests to other names get 421, so that web pages cannot reach the API by DNS rebinding.
        allowed_hosts: Vec<String> = Vec::new();
        /// Origins of the web pages that may use the API, such as `https://console.example.com`; scheme, host, and the
        /// port if it is not the default. Pages of other origins get 403.
        allowed_origins: Vec<String> = Vec::new();
        /// Largest request body, in bytes. Also the approximate limit for the messages of a response.
        max_body_bytes: u32 = 8_388_608_u32, in 1_024 ..= 1_073_741_824;
        /// Maximum number of connections. A further one closes the connection that has been idle for longest. If all
        /// have a request under way, it gets a 503 response and is closed; health and metrics are answered.
        max_connections: u32 = 256_u32, in 1 ..= 100_000;
        /// Longest time for the head of a request to arrive, from its first byte or the start of a connection; for a
        /// body to arrive; and for a client to read nothing of a response, in ms.
        request_timeout_ms: u64 = 30_000_u64, in 100 ..= 86_400_000;
        /// How long a connection may be idle between two requests before it is closed, in ms.
        idle_timeout_ms: u64 = 75_000_u64, in 100 ..= 86_400_000;
    }
}

settings! {
    /// Work queues in general.
    pub struct QueuesConfig {
        /// Whether a queue is created, with the defaults below, when a client sends to it or consumes from it.
        auto_create: bool = true;
    }
}

impl KafkaConfig {
    /// Configuration of the Kafka server. The advertised address is set later, when it is known.
    pub(crate) fn server_config(&self) -> mainstem_kafka_server::Config {
        mainstem_kafka_server::Config {
            node_id: self.node_id.cast_signed(),
            auto_create_topics: self.auto_create_topics,
            partitions: self.partitions.cast_signed(),
            partitions_max: self.max_partitions.cast_signed(),
            connections_max_idle_ms: self.connections_max_idle_ms,
            log_in_timeout_ms: self.log_in_timeout_ms,
            failed_authentication_delay_ms: self.failed_authentication_delay_ms,
            connections_max_reauth_ms: self.connections_max_reauth_ms,
            request_bytes_max: self.max_request_size_bytes,
            queued_request_bytes_max: self.queued_max_request_bytes,
            durability: match self.durability {
                Durability::Os => mainstem_log::Durability::Os,
                Durability::Fsync | Durability::None => mainstem_log::Durability::Fsync,
            },
            group_initial_rebalance_delay_ms: self.group_initial_rebalance_delay_ms,
            group_session_timeout_min_ms: self.group_min_session_timeout_ms,
            group_session_timeout_max_ms: self.group_max_session_timeout_ms,
            group_consumer_session_timeout_ms: self.group_consumer_session_timeout_ms,
            group_consumer_heartbeat_interval_ms: self.group_consumer_heartbeat_interval_ms,
            offsets_retention_ms: self.offsets_retention_ms,
            transactional_id_expiration_ms: self.transactional_id_expiration_ms,
            transactional_id_bytes_max: usize::try_from(self.max_transactional_id_bytes)
                .unwrap_or(usize::MAX),
            producer_id_expiration_ms: self.producer_id_expiration_ms,
            producer_bytes_max: usize::try_from(self.max_producer_state_bytes).unwrap_or(usize::MAX),
            checks_compressed_records: self.check_compressed_records,
            retention_ms: self.retention_ms,
            retention_bytes: self.retention_bytes,
            segment_bytes: self.segment_bytes,
            message_bytes_max: self.max_message_bytes,
            follows_partitions: true,
            ..mainstem_kafka_server::Config::default()
        }
    }

    fn check_more(&self) -> Result<(), (&'static str, String)> {
        if self.durability == Durability::None {
            return Err(("durability", "must be \"fsync\" or \"os\"".into()));
        }
        listener_section::mechanisms(&self.sasl).map_err(|error| ("sasl", error))?;
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms {
            return Err(("group_min_session_timeout_ms", "is above group_max_session_timeout_ms".into()));
        }
        if self.group_consumer_heartbeat_interval_ms >= self.group_consumer_session_timeout_ms {
            let reason = "is not below group_consumer_session_timeout_ms";
            return Err(("group_consumer_heartbeat_interval_ms", reason.into()));
        }
        Ok(())
    }
}

/// The whole configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    pub(crate) server: ServerConfig,
    pub(crate) log: LogConfig,
    pub(crate) runtime: RuntimeConfig,
    pub(crate) memory: MemoryConfig,
    pub(crate) mqtt: MqttConfig,
    pub(crate) kafka: KafkaConfig,
    pub(crate) http: HttpConfig,
    pub(crate) queues: QueuesConfig,
    pub(crate) security: SecurityConfig,
    pub(crate) jwt: JwtConfig,
    pub(crate) log_in_hook: LogInHookConfig,
    pub(crate) ldap: LdapConfig,
    pub(crate) listener: Vec<ListenerSection>,
    pub(crate) queue: Vec<DeclaredQueue>,
    pub(crate) mqtt_to_topic: Vec<MqttToTopic>,
    pub(crate) mqtt_to_queue: Vec<MqttToQueue>,
    pub(crate) topic_to_mqtt: Vec<TopicToMqtt>,
}

/// A section that `settings!` declares.
pub(crate) struct Section {
    pub(crate) name: &'static str,
    /// Introduction on the reference page.
    pub(crate) doc: &'static str,
    pub(crate) fields: fn() -> Vec<Field>,
    /// Keys and values as TOML.
    pub(crate) values: fn(&Config) -> Vec<(&'static str, String)>,
    /// Keys out of bounds.
    check: fn(&Config) -> Vec<(&'static str, String)>,
}

macro_rules! section {
    ($name:ident: $type:ty, $doc:literal) => {
        Section {
            name: stringify!($name),
            doc: $doc,
            fields: <$type>::fields,
            values: |config| config.$name.values(),
            check: |config| config.$name.check(),
        }
    };
}

/// All sections but those of [`ARRAYS`], in the order of the reference page.
pub(crate) const SECTIONS: [Section; 12] = [
    section!(server: ServerConfig, "The process."),
    section!(log: LogConfig, "The log, on standard error."),
    section!(runtime: RuntimeConfig, "The threads that serve connections."),
    section!(
        memory: MemoryConfig,
        "The memory of the process. [mqtt.md](mqtt.md#memory) lists what is refused as it runs out."
    ),
    section!(mqtt: MqttConfig, "The MQTT listener, sessions and messages."),
    section!(
        kafka: KafkaConfig,
        "The Kafka listener, and defaults of topics and groups. In parentheses: the name of the key in Kafka."
    ),
    section!(http: HttpConfig, "The HTTP API. See [http.md](http.md)."),
    section!(queues: QueuesConfig, "Work queues in general. See [queues.md](queues.md)."),
    section!(security: SecurityConfig, "Users and rules. See [security.md](security.md)."),
    section!(
        jwt: JwtConfig,
        "Tokens (JWT) that log clients in, if there is a key. See [security.md](security.md#tokens)."
    ),
    section!(
        log_in_hook: LogInHookConfig,
        "An HTTP service that decides log-ins. See [security.md](security.md#log-ins-by-an-http-service)."
    ),
    section!(
        ldap: LdapConfig,
        "A directory that decides log-ins. See [security.md](security.md#log-ins-by-a-directory-ldap)."
    ),
];

/// The sections that may be repeated.
pub(crate) const ARRAYS: [&str; 5] = ["listener", "queue", "mqtt_to_topic", "mqtt_to_queue", "topic_to_mqtt"];

/// A value that is invalid, or contradicts another one.
pub(crate) struct Fault {
    pub(crate) path: KeyPath,
    pub(crate) message: String,
}

impl Config {
    /// Checks the bounds of all keys.
    pub(crate) fn check_bounds(&self) -> Vec<Fault> {
        let faults_of = |section: &'static Section| {
            (section.check)(self).into_iter().map(move |error| key_fault(section.name, error))
        };
        SECTIONS.iter().flat_map(faults_of).collect()
    }

    /// Checks everything that needs no files.
    pub(crate) fn check(&self) -> Vec<Fault> {
        let mut faults = self.check_bounds();
        let has_kafka = !self.kafka.listen.is_empty();
        let audit_topic = self.security.audit_topic();
        let more = [
            ("log", self.log.check_more()),
            ("mqtt", check_write_only(&self.mqtt.write_only_topics)),
            ("kafka", self.kafka.check_more()),
            ("http", check_origins(&self.http.allowed_origins)),
            ("security", self.security.check_more()),
            ("jwt", self.jwt.check_more()),
            ("ldap", self.ldap.check_more()),
        ];
        faults.extend(
            more.into_iter()
                .filter_map(|(section, result)| result.err().map(|error| key_fault(section, error))),
        );
        let whole = |message| Fault { path: KeyPath::default(), message };
        faults.extend(self.check_services().err().map(whole));
        faults.extend(self.check_tokens().err().map(whole));
        // Each item on its own first, and then all of them, for what they have in common.
        faults.extend(item_faults("listener", &self.listener, |items| check_listeners(items, has_kafka)));
        faults.extend(item_faults("queue", &self.queue, |items| check_queues(items, audit_topic.as_deref())));
        let check = |sections: &Sections<'_>| convert(sections).map(drop);
        faults.extend(item_faults("mqtt_to_topic", &self.mqtt_to_topic, |items| {
            check(&self.bindings_of(items, &[], &[]))
        }));
        faults.extend(item_faults("mqtt_to_queue", &self.mqtt_to_queue, |items| {
            check(&self.bindings_of(&[], items, &[]))
        }));
        faults.extend(item_faults("topic_to_mqtt", &self.topic_to_mqtt, |items| {
            check(&self.bindings_of(&[], &[], items))
        }));
        if faults.is_empty() {
            faults.extend(self.bindings().err().map(whole));
        }
        faults
    }

    /// Checks that tokens are accepted where a listener offers to log in with them.
    fn check_tokens(&self) -> Result<(), String> {
        let name = Mechanism::OauthBearer.name();
        let mut offered = self.listener.iter().flat_map(|section| &section.sasl).chain(&self.kafka.sasl);
        if !self.jwt.is_enabled() && offered.any(|mechanism| mechanism == name) {
            return Err(format!("sasl: {name} needs the section [jwt], with the keys of tokens"));
        }
        Ok(())
    }

    /// Checks that one service decides log-ins.
    fn check_services(&self) -> Result<(), String> {
        if !self.ldap.url.is_empty() && !self.log_in_hook.url.is_empty() {
            return Err("ldap.url, log_in_hook.url: one service decides log-ins; set one of them".into());
        }
        Ok(())
    }

    /// Starts the service that decides log-ins, if there is one.
    ///
    /// # Errors
    /// A message for the user: its section is invalid.
    pub(crate) fn log_in_service(&self) -> Result<Option<LogInService>, String> {
        match self.log_in_hook.open()? {
            Some(hook) => Ok(Some(LogInService::Hook(Box::new(hook)))),
            None => Ok(self.ldap.open()?.map(|ldap| LogInService::Ldap(Box::new(ldap)))),
        }
    }

    /// The bindings, checked and converted.
    ///
    /// # Errors
    /// Names the invalid binding and its error.
    pub(crate) fn bindings(&self) -> Result<Declared, String> {
        convert(&self.bindings_of(&self.mqtt_to_topic, &self.mqtt_to_queue, &self.topic_to_mqtt))
    }

    fn bindings_of<'a>(
        &'a self,
        mqtt_to_topic: &'a [MqttToTopic],
        mqtt_to_queue: &'a [MqttToQueue],
        topic_to_mqtt: &'a [TopicToMqtt],
    ) -> Sections<'a> {
        Sections {
            mqtt_to_topic,
            mqtt_to_queue,
            topic_to_mqtt,
            queues: &self.queue,
            audit_topic: self.security.audit_topic(),
            has_kafka: !self.kafka.listen.is_empty(),
            topic_levels_max: self.mqtt.max_topic_levels,
        }
    }
}

/// The error of a key: `section.key: what is wrong`.
fn key_fault(section: &str, (key, error): (&str, String)) -> Fault {
    Fault { path: KeyPath::key(section, key), message: format!("{section}.{key}: {error}") }
}

/// Checks each item of an array on its own, and then all of them if none is invalid.
fn item_faults<T>(section: &str, items: &[T], check: impl Fn(&[T]) -> Result<(), String>) -> Vec<Fault> {
    let fault = |index, message| Fault { path: KeyPath::item(section, index), message };
    let checked = items.iter().enumerate().filter_map(|(index, item)| {
        check(std::slice::from_ref(item)).err().map(|message| fault(index, message))
    });
    let mut faults: Vec<Fault> = checked.collect();
    if faults.is_empty() {
        faults.extend(check(items).err().map(|message| fault(0, message)));
    }
    faults
}

/// Checks `mqtt.write_only_topics`: a filter that matches nothing would protect nothing.
fn check_write_only(filters: &[String]) -> Result<(), (&'static str, String)> {
    let check = |filter: &String| match check_filter(filter) {
        Err(error) => Err(format!("filter {filter:?}: {error}")),
        Ok(()) if filter.starts_with("$share/") => {
            Err(format!("filter {filter:?}: use the filter of the topics, without $share/NAME/"))
        }
        Ok(()) => Ok(()),
    };
    filters.iter().try_for_each(check).map_err(|error| ("write_only_topics", error))
}

/// Checks `http.allowed_origins`.
fn check_origins(origins: &[String]) -> Result<(), (&'static str, String)> {
    let check = |origin: &String| match AllowedOrigin::parse(origin) {
        Ok(AllowedOrigin::Any) => {
            Err("\"*\" would let any page use the API through the browser of a user: list the origins"
                .to_owned())
        }
        Ok(AllowedOrigin::Exactly(_)) => Ok(()),
        Err(error) => Err(error.to_string()),
    };
    origins.iter().try_for_each(check).map_err(|error| ("allowed_origins", error))
}
