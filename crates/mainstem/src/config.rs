//! The configuration: its sections, keys and defaults, and the reference page.
//!
//! The file is parsed twice: on its own first, so that an error points at the line in the file, and again as a table
//! that `--set` and other flags are merged into. Each key's documentation, default and bounds stand in one place, the
//! `settings!` macro, from which `docs/configuration.md` is printed.

use std::path::Path;

use mainstem_auth::LogInService;
use mainstem_mqtt_server::config::Field;
use mainstem_mqtt_server::{Durability, MqttConfig, choices, settings};
use mainstem_runtime::Pinning;
use mainstem_sasl::Mechanism;
use mainstem_topic::check_filter;
use mainstem_websocket::AllowedOrigin;
use serde::Deserialize;
use toml::{Table, Value};

use crate::bindings::{Declared, MqttToQueue, MqttToTopic, Sections, TopicToMqtt, convert};
use crate::cli::{ServeArgs, Setting};
use crate::jwt::JwtConfig;
use crate::ldap::LdapConfig;
use crate::listener_section::{self, ListenerSection, check_listeners};
use crate::log_in_hook::LogInHookConfig;
use crate::memory::MemoryConfig;
use crate::queues::{DeclaredQueue, check_queues};
use crate::security::SecurityConfig;

settings! {
    /// The process.
    pub struct ServerConfig {
        /// Data directory. One process at a time holds its lock.
        data: String = "./data";
        /// Log level: off, error, warn, info, debug, or trace.
        log_level: String = "info";
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
        /// How often the certificates of listeners are compared with their files, in seconds. SIGHUP does it at once.
        certificate_check_interval_s: u32 = 60_u32, in 1 ..= 86_400;
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
        Ok(())
    }
}

/// The whole configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    pub(crate) server: ServerConfig,
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

impl Config {
    /// Reads the file, if one is given, and applies the command line to it.
    pub(crate) fn load(args: &ServeArgs) -> Result<Self, String> {
        let table = match &args.config {
            None => Table::new(),
            Some(path) => read(path)?,
        };
        Self::from_table(table, args)
    }

    fn from_table(mut table: Table, args: &ServeArgs) -> Result<Self, String> {
        for setting in &args.set {
            apply_setting(&mut table, setting)?;
        }
        let mut config: Self = table.try_into().map_err(|error| error.to_string())?;
        if let Some(data) = &args.data {
            config.server.data = data.display().to_string();
        }
        if let Some(listen) = &args.listen {
            config.mqtt.listen.clone_from(listen);
        }
        if let Some(listen) = &args.kafka_listen {
            config.kafka.listen.clone_from(listen);
        }
        if let Some(listen) = &args.http_listen {
            config.http.listen.clone_from(listen);
        }
        if let Some(shards) = args.shards {
            config.runtime.shards = u16::try_from(shards).unwrap_or(u16::MAX);
        }
        let checked = |section: &str, result: Result<(), (&str, String)>| {
            result.map_err(|(key, error)| format!("{section}.{key}: {error}"))
        };
        checked("server", config.server.check())?;
        checked("runtime", config.runtime.check())?;
        checked("memory", config.memory.check())?;
        checked("mqtt", config.mqtt.check())?;
        checked("mqtt", check_write_only(&config.mqtt.write_only_topics))?;
        checked("kafka", config.kafka.check())?;
        checked("kafka", config.kafka.check_more())?;
        checked("http", config.http.check())?;
        checked("http", check_origins(&config.http.allowed_origins))?;
        checked("queues", config.queues.check())?;
        checked("security", config.security.check())?;
        checked("security", config.security.check_more())?;
        checked("jwt", config.jwt.check())?;
        checked("jwt", config.jwt.check_more())?;
        checked("log_in_hook", config.log_in_hook.check())?;
        checked("ldap", config.ldap.check())?;
        checked("ldap", config.ldap.check_more())?;
        config.check_services()?;
        config.check_tokens()?;
        check_listeners(&config.listener, !config.kafka.listen.is_empty())?;
        check_queues(&config.queue, config.security.audit_topic().as_deref())?;
        config.bindings()?;
        Ok(config)
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
        convert(&Sections {
            mqtt_to_topic: &self.mqtt_to_topic,
            mqtt_to_queue: &self.mqtt_to_queue,
            topic_to_mqtt: &self.topic_to_mqtt,
            queues: &self.queue,
            audit_topic: self.security.audit_topic(),
            has_kafka: !self.kafka.listen.is_empty(),
            topic_levels_max: self.mqtt.max_topic_levels,
        })
    }
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

/// Parses and checks a file on its own, so that an error points at its line.
fn read(path: &Path) -> Result<Table, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let with_location = |error: toml::de::Error| format!("{}:\n{error}", path.display());
    toml::from_str::<Config>(&text).map_err(with_location)?;
    toml::from_str(&text).map_err(with_location)
}

/// Applies one `section.key=value`. The value is parsed as TOML; if that fails, it is a string.
fn apply_setting(table: &mut Table, setting: &Setting) -> Result<(), String> {
    let (section, key) = setting.key.split_once('.').ok_or("--set: the key must be SECTION.KEY")?;
    let value = toml::from_str::<Table>(&format!("value = {}", setting.value))
        .ok()
        .and_then(|mut parsed| parsed.remove("value"))
        .unwrap_or_else(|| Value::String(setting.value.clone()));
    let entry = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
    let section = entry.as_table_mut().ok_or_else(|| format!("{section:?} is not a section"))?;
    section.insert(key.to_owned(), value);
    Ok(())
}

/// Introduction of the reference page.
const REFERENCE_HEAD: &str = "\
# Configuration

Generated by `cargo xtask config-reference` from the configuration types. Do not edit.

`mainstem` runs without a configuration. `mainstem --config FILE` reads a TOML file with the sections below. Every key
has a default, so list only the keys that you change:

```toml
[mqtt]
listen = \"127.0.0.1:1884\"
max_queued_messages = 5000
queue_overflow = \"drop-oldest\"
```

Keys that count bytes or time name their unit, as `max_queued_bytes` and `connect_timeout_ms` do. They take a number in
that unit, or text with a unit: sizes in B, KB, MB, GB and TB (powers of 1000) or KiB, MiB, GiB and TiB (powers of
1024), durations in us, ms, s, min (or m), h and d. `max_queued_bytes = \"16MiB\"` is `max_queued_bytes = 16777216`.

A `listen` key takes an address such as `0.0.0.0:1883` or `[::1]:1883`, or a host name such as `localhost:1883`, which
is resolved at start, to its first IPv4 address if it has one. An empty one disables the listener.

`--set SECTION.KEY=VALUE` overrides one key of the file and may be repeated. The flags `--data`, `--listen`,
`--kafka-listen`, `--http-listen` and `--shards` override `server.data`, `mqtt.listen`, `kafka.listen`, `http.listen`
and `runtime.shards`, and take precedence over `--set`.

The configuration is read once, at start. The broker does not start if a key is unknown, or if a value has the wrong
type or is out of bounds; the error names the line of the file or the key.

[mqtt.md](mqtt.md) describes what happens at each limit.
";

/// The reference page of all keys, as Markdown.
pub(crate) fn reference() -> String {
    [
        REFERENCE_HEAD.to_owned(),
        reference_section("server", "The process.", ServerConfig::fields()),
        reference_section("runtime", "The threads that serve connections.", RuntimeConfig::fields()),
        reference_section(
            "memory",
            "The memory of the process. [mqtt.md](mqtt.md#memory) lists what is refused as it runs out.",
            MemoryConfig::fields(),
        ),
        reference_section("mqtt", "The MQTT listener, sessions and messages.", MqttConfig::fields()),
        reference_section(
            "kafka",
            "The Kafka listener, and defaults of topics and groups. In parentheses: the name of the key in Kafka.",
            KafkaConfig::fields(),
        ),
        reference_section(
            "http",
            "The HTTP API. See [http.md](http.md).",
            HttpConfig::fields(),
        ),
        reference_section("queues", "Work queues in general. See [queues.md](queues.md).", QueuesConfig::fields()),
        reference_section("security", "Users and rules. See [security.md](security.md).", SecurityConfig::fields()),
        reference_section(
            "jwt",
            "Tokens (JWT) that log clients in, if there is a key. See [security.md](security.md#tokens).",
            JwtConfig::fields(),
        ),
        reference_section(
            "log_in_hook",
            "An HTTP service that decides log-ins. See [security.md](security.md#log-ins-by-an-http-service).",
            LogInHookConfig::fields(),
        ),
        reference_section(
            "ldap",
            "A directory that decides log-ins. See [security.md](security.md#log-ins-by-a-directory-ldap).",
            LdapConfig::fields(),
        ),
        listener_section::REFERENCE.to_owned(),
        crate::queues::reference(),
        crate::bindings::REFERENCE.to_owned(),
    ]
    .concat()
}

fn reference_section(name: &str, doc: &str, fields: Vec<Field>) -> String {
    let row = |Field { key, default, bounds, doc }| format!("| `{key}` | `{default}` | {bounds} | {doc} |\n");
    let rows = fields.into_iter().map(row).collect::<Vec<_>>().concat();
    let head = "| key | default | bounds | description |\n|---|---|---|---|";
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
    fn numbers_may_have_a_unit_and_errors_say_what_is_expected() {
        let config =
            with(&["mqtt.max_queued_bytes=4MiB", "mqtt.connect_timeout_ms=2s", "kafka.retention_ms=-1"])
                .unwrap();
        assert_eq!((config.mqtt.max_queued_bytes, config.mqtt.connect_timeout_ms), (4 << 20, 2_000));
        for (setting, parts) in [
            (
                "mqtt.max_queued_bytes=4 apples",
                ["expected a number of bytes, or a size such as", "max_queued_bytes"],
            ),
            ("mqtt.max_sessions=many", ["expected a number", "max_sessions"]),
            ("mqtt.max_sessions=-1", ["-1 is out of range", "max_sessions"]),
            ("mqtt.max_sesions=1", ["unknown key `max_sesions`", "did you mean `max_sessions`?"]),
            ("mqtt.queue_qos0=1", ["expected true or false", "queue_qos0"]),
            ("mqtt.listen=1883", ["expected text in quotation marks", "listen"]),
        ] {
            let error = with(&[setting]).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{setting}: {error}");
            assert!(
                !["u8", "u16", "u32", "u64", "i64", "usize"].iter().any(|name| error.contains(name)),
                "{error}"
            );
        }
    }

    #[test]
    fn settings_override_the_file_and_are_checked() {
        let config = with(&["mqtt.max_queued_messages=7", "mqtt.queue_overflow=drop-oldest"]).unwrap();
        assert_eq!(config.mqtt.max_queued_messages, 7);
        assert_eq!(config.mqtt.queue_overflow, mainstem_mqtt_server::QueueOverflow::DropOldest);
        assert_eq!(
            with(&["kafka.group_min_session_timeout_ms=10", "kafka.group_max_session_timeout_ms=9"])
                .unwrap_err(),
            "kafka.group_min_session_timeout_ms: is above group_max_session_timeout_ms"
        );
        assert_eq!(with(&["mqtt.maximum_qos=3"]).unwrap_err(), "mqtt.maximum_qos: 3 is not within 0 to 2");
        assert!(with(&["mqtt.max_quued=3"]).unwrap_err().contains("unknown key `max_quued`"));
        assert!(with(&["mqtt.retain_available=7"]).unwrap_err().contains("retain_available"));
    }

    #[test]
    fn one_service_decides_log_ins_and_its_section_is_whole() {
        let directory = ["ldap.url=ldap://localhost", "ldap.user_dn=uid=${user},o=x"];
        assert!(with(&directory).is_ok());
        for (more, expected) in [
            (&["log_in_hook.url=http://localhost"][..], "ldap.url, log_in_hook.url: one service"),
            (&["ldap.user_base=o=x"], "ldap.user_dn: expected either"),
            (&["ldap.user_dn="], "ldap.user_dn: expected either"),
            (&["ldap.bind_dn=cn=broker"], "ldap.bind_dn: expected bind_password_file"),
            (&["ldap.url="], "ldap.user_dn: has no effect without ldap.url"),
        ] {
            let error = with(&[&directory[..], more].concat()).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn write_only_topics_are_valid_filters() {
        assert!(with(&["mqtt.write_only_topics=[\"secret/#\", \"+/key\"]"]).is_ok());
        for filter in ["", "a#", "a/#/b", "a+", "$share/g/a"] {
            let error = with(&[&format!("mqtt.write_only_topics=[{filter:?}]")]).unwrap_err();
            assert!(error.starts_with("mqtt.write_only_topics: filter"), "{error}");
        }
    }

    #[test]
    fn origins_are_listed_one_by_one() {
        assert!(with(&["http.allowed_origins=[\"https://a.example\", \"http://localhost:3000\"]"]).is_ok());
        for origin in ["*", "null", "a.example", "https://a.example/", "https://"] {
            let error = with(&[&format!("http.allowed_origins=[{origin:?}]")]).unwrap_err();
            assert!(error.starts_with("http.allowed_origins: "), "{error}");
        }
    }

    #[test]
    fn an_error_points_at_the_unknown_key() {
        let path = std::env::temp_dir().join(format!("mainstem-config-{}.toml", std::process::id()));
        std::fs::write(&path, "[mqtt]\nmax_quued = 3\n").unwrap();
        let error = read(&path).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert!(error.contains("max_quued = 3\n") && error.contains("^^^^"), "{error}");
    }
}
