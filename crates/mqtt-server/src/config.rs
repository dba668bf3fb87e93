//! The settings of the MQTT server with defaults, bounds and units. The configuration file, `--set` and the reference
//! page are derived from this list.

use serde::{Deserialize, Serialize};

use mainstem_mqtt::QoS;

use crate::config_value::Kind;

/// A key of a section: what the reference page, the JSON Schema and a reload know about it.
#[derive(Clone, Debug)]
pub struct Field {
    /// Key within its section.
    pub key: &'static str,
    /// Type of its values.
    pub kind: Kind,
    /// Default, as written in TOML.
    pub default: String,
    /// Bounds or choices; empty if any value is valid.
    pub bounds: &'static str,
    /// Lowest and highest number.
    pub range: Option<(i128, i128)>,
    /// Description.
    pub doc: &'static str,
    /// Whether a reload applies a new value to the running broker. If not, the broker must restart.
    pub is_reloadable: bool,
    /// Whether the value must not be shown.
    pub is_secret: bool,
}

/// Declares a section: a struct that serde fills, its defaults, its bounds, and its documentation. A key may end with
/// marks: `[reloadable]`, if a reload of the configuration applies its new value, and `[secret]`, if it is never shown.
#[macro_export]
macro_rules! settings {
    ($(#[doc = $section_doc:literal])+ pub struct $name:ident {
        $($(#[doc = $doc:literal])+ $key:ident: $type:ty = $default:expr
            $(, in $low:literal ..= $high:literal)? $(, one of $choices:literal)? $(, [$($mark:ident),+])?;)+
    }) => {
        $(#[doc = $section_doc])+
        #[derive(Clone, Debug)]
        pub struct $name {
            $($(#[doc = $doc])+ pub $key: $type,)+
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Section;

                impl<'de> serde::de::Visitor<'de> for Section {
                    type Value = $name;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("a section with keys")
                    }

                    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<$name, A::Error> {
                        let mut section = $name::default();
                        $crate::config_value::read_section(&mut map, &[$(stringify!($key)),+], |key, map| {
                            $(if key == stringify!($key) {
                                section.$key = map.next_value_seed($crate::config_value::ValueSeed::new(key))?;
                            })+
                            Ok(())
                        })?;
                        Ok(section)
                    }
                }

                deserializer.deserialize_map(Section)
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default.into(),)+ }
            }
        }

        impl $name {
            /// Every field of this section, in order.
            pub fn fields() -> Vec<$crate::config::Field> {
                vec![$($crate::config::Field {
                    key: stringify!($key),
                    kind: <$type as $crate::config_value::ConfigValue>::KIND,
                    default: $crate::config_value::ConfigValue::literal(&<$type>::from($default)),
                    bounds: concat!($(stringify!($low), " to ", stringify!($high))? $($choices)?),
                    range: [$(($low, $high))?].first().copied(),
                    doc: concat!($($doc),+).trim_ascii_start(),
                    is_reloadable: [$($(stringify!($mark)),+)?].contains(&"reloadable"),
                    is_secret: [$($(stringify!($mark)),+)?].contains(&"secret"),
                }),+]
            }

            /// Every key of this section with its value as TOML, in order.
            pub fn values(&self) -> Vec<(&'static str, String)> {
                vec![$((stringify!($key), $crate::config_value::ConfigValue::literal(&self.$key))),+]
            }

            /// Checks the bounds: key and explanation of each field out of bounds.
            pub fn check(&self) -> Vec<(&'static str, String)> {
                let mut errors = Vec::new();
                $($(
                    let value = i128::from(self.$key);
                    let bounds: std::ops::RangeInclusive<i128> = $low..=$high;
                    if !bounds.contains(&value) {
                        errors.push((stringify!($key), format!("{value} is not within {} to {}", stringify!($low), stringify!($high))));
                    }
                )?)+
                errors
            }
        }
    };
}

/// What happens to a message for a session whose queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueOverflow {
    /// The new message is dropped.
    DropNewest,
    /// The oldest message in the queue is dropped.
    DropOldest,
}

/// When data counts as durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// When it is on disk.
    Fsync,
    /// When the operating system has it.
    Os,
    /// Never: nothing outlives the process.
    None,
}

/// What happens to a PUBLISH beyond a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QuotaPolicy {
    /// The connection is not read until the quota allows more.
    Wait,
    /// Clients that can be told get 0x97.
    Refuse,
    /// The connection ends with 0x96.
    Disconnect,
}

/// Whether connecting clients are sent to another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Redirect {
    /// Clients are served here.
    None,
    /// Temporarily: reason code 0x9C.
    UseAnotherServer,
    /// Permanently: reason code 0x9D.
    ServerMoved,
}

/// Makes enums of choices types of keys.
#[macro_export]
macro_rules! choices {
    ($($type:ty),+) => {$(
        impl $crate::config_value::ConfigValue for $type {
            const KIND: $crate::config_value::Kind = $crate::config_value::Kind::Choice;

            fn literal(&self) -> String {
                $crate::config_value::choice_literal(&format!("{self:?}"))
            }

            fn deserialize<'de, D: serde::Deserializer<'de>>(
                _: &'static str,
                deserializer: D,
            ) -> Result<Self, D::Error> {
                serde::Deserialize::deserialize(deserializer)
            }
        }
    )+};
}

choices!(QueueOverflow, Durability, QuotaPolicy, Redirect);

settings! {
    /// Settings of the MQTT listener, sessions and messages.
    pub struct MqttConfig {
        /// Address or host name, and port, to listen on; empty to disable MQTT.
        listen: String = "127.0.0.1:1883";
        /// What happens to a PUBLISH beyond a quota of its client or user. `wait`: the connection is not read until the
        /// quota allows more. `refuse`: MQTT 5 clients get 0x97 at QoS 1 and 2, messages at QoS 0 are dropped, others
        /// wait. `disconnect`: 0x96 (Message rate too high).
        quota_policy: QuotaPolicy = QuotaPolicy::Wait, one of "\"wait\", \"refuse\", \"disconnect\"";
        /// Connections of one client identifier within `flapping_window_s`, after which it is banned for
        /// `flapping_ban_s`; 0 for no limit.
        flapping_max_connects: u32 = 0_u32, in 0 ..= 1_000_000;
        /// Window in which connections of a client identifier are counted, in seconds.
        flapping_window_s: u32 = 60_u32, in 1 ..= 86_400;
        /// How long a client identifier that connects too often is banned, in seconds.
        flapping_ban_s: u32 = 300_u32, in 1 ..= 31_536_000;
        /// Longest time from accepting a connection to its CONNECT, in ms.
        connect_timeout_ms: u32 = 10_000_u32, in 100 ..= 600_000;
        /// Maximum number of connections. Further ones get 0x97 (Quota exceeded) and are closed.
        max_connections: u32 = 100_000_u32, in 1 ..= 10_000_000;
        /// Largest packet accepted from a client, in bytes (Maximum Packet Size).
        max_packet_size_bytes: u32 = 16_777_216_u32, in 64 ..= 268_435_460;
        /// Longest keep alive, in seconds. An MQTT 5 client that requests a longer one, or none, is assigned this one
        /// (Server Keep Alive). 65535 accepts what clients request.
        keep_alive_s_max: u16 = 65_535_u16, in 1 ..= 65_535;
        /// Maximum number of unacknowledged QoS 2 publishes from one client (Receive Maximum).
        receive_maximum: u16 = 256_u16, in 1 ..= 65_535;
        /// Maximum number of unacknowledged QoS 1 and 2 messages to one client. MQTT 5 clients may request fewer.
        max_inflight_messages: u16 = 128_u16, in 1 ..= 65_535;
        /// Maximum number of unacknowledged messages of one queue subscription, within `max_inflight_messages`.
        queue_prefetch: u16 = 64_u16, in 1 ..= 16_384;
        /// Maximum number of QoS 1 and 2 messages queued for one session, in addition to those in flight.
        max_queued_messages: u32 = 1_000_u32, in 0 ..= 100_000_000;
        /// Maximum size of the messages queued for one session, in addition to those in flight, in bytes: topics,
        /// payloads, properties, and about 200 bytes per message.
        max_queued_bytes: u64 = 16_777_216_u64, in 0 ..= 1_099_511_627_776;
        /// Maximum number of messages queued for all sessions. Further ones are dropped and counted.
        max_queued_messages_total: u64 = 100_000_000_u64, in 0 ..= 1_000_000_000_000;
        /// Maximum memory of one session, in bytes: client identifier, subscriptions, will, acknowledgements that wait,
        /// and messages in flight and in the part of the queue that is in memory. A subscription costs about 500 bytes
        /// and three times its filter, and 160 bytes per level if it has wildcards. A subscription or a will beyond it
        /// gets 0x97, and a message is dropped and counted.
        max_session_bytes: u64 = 67_108_864_u64, in 65_536 ..= 1_099_511_627_776;
        /// Which message is dropped when the queue of a session is full. Each drop is counted.
        queue_overflow: QueueOverflow = QueueOverflow::DropNewest, one of "\"drop-newest\", \"drop-oldest\"";
        /// Whether QoS 0 messages are queued for sessions that are offline.
        queue_qos0: bool = false;
        /// When sessions, retained messages and QoS 1 and 2 messages count as durable: `fsync`, once they are on disk;
        /// `os`, once the operating system has them, which survives a crash of the process but not a power failure;
        /// `none` keeps them in memory only.
        durability: Durability = Durability::Fsync, one of "\"fsync\", \"os\", \"none\"";
        /// Size of a segment file of sessions and of retained messages, in bytes.
        segment_bytes: u64 = 67_108_864_u64, in 65_536 ..= 1_073_741_824;
        /// Bytes of journal after which the sessions are written to a snapshot, so that a start reads less, in bytes.
        snapshot_bytes: u64 = 16_777_216_u64, in 4_096 ..= 1_073_741_824;
        /// Longest session expiry, in seconds. Also the expiry of MQTT 3.x sessions without clean session. 4294967295
        /// means that sessions never expire.
        session_expiry_s_max: u32 = 4_294_967_295_u32, in 0 ..= 4_294_967_295;
        /// Maximum number of sessions, connected or not. A client that needs a further one gets 0x97.
        max_sessions: u32 = 1_000_000_u32, in 1 ..= 100_000_000;
        /// Maximum number of retained messages. A further one is rejected with 0x97 (MQTT 5, QoS 1 and 2); otherwise it
        /// is delivered but not retained, and counted as dropped.
        max_retained_messages: u32 = 1_000_000_u32, in 0 ..= 1_000_000_000;
        /// Maximum size of all retained messages, in bytes: topics, payloads, properties, and about 200 bytes per
        /// message.
        max_retained_bytes: u64 = 1_073_741_824_u64, in 0 ..= 1_099_511_627_776;
        /// Maximum number of levels in a topic name or filter.
        max_topic_levels: u16 = 200_u16, in 1 ..= 65_535;
        /// Maximum number of subscriptions of one session. A further one gets 0x97 in its SUBACK.
        max_subscriptions_per_session: u32 = 10_000_u32, in 1 ..= 10_000_000;
        /// Maximum sum of the levels of the distinct wildcard shapes of one session. A shape is the number of levels of
        /// a filter and where its wildcards are: `a/+/b` and `c/+/d` have the same. It bounds how many filters of one
        /// client a topic matches, and so what they cost publishers. A filter beyond it gets 0x97 in its SUBACK.
        max_wildcard_levels_per_session: u32 = 16_384_u32, in 1 ..= 100_000_000;
        /// Maximum number of topic aliases per client (Topic Alias Maximum).
        topic_alias_maximum: u16 = 16_u16, in 0 ..= 65_535;
        /// Whether a client with overlapping subscriptions gets one copy of a message, with the highest QoS and all
        /// subscription identifiers, instead of one copy per subscription.
        one_copy_per_client: bool = true;
        /// Topic filters that clients may publish to but not subscribe to: subscribing gets 0x87 (Not authorized), and
        /// wildcard subscriptions do not match them.
        write_only_topics: Vec<String> = Vec::new();
        /// Highest QoS of publishes and subscriptions (Maximum QoS).
        maximum_qos: u8 = 2_u8, in 0 ..= 2;
        /// Whether clients may publish retained messages (Retain Available).
        retain_available: bool = true;
        /// Whether topic filters may contain wildcards (Wildcard Subscription Available).
        wildcard_subscription_available: bool = true;
        /// Whether subscriptions may have an identifier (Subscription Identifiers Available).
        subscription_ids_available: bool = true;
        /// Whether shared subscriptions are allowed (Shared Subscription Available).
        shared_subscription_available: bool = true;
        /// Whether a client may connect without a client identifier; the broker assigns one.
        allow_empty_client_id: bool = true;
        /// Response Information for clients that request it; empty for none.
        response_information: String = "";
        /// Whether connecting clients are redirected to `server_reference`.
        redirect: Redirect = Redirect::None, one of "\"none\", \"use-another-server\", \"server-moved\"";
        /// Server Reference that clients get with `redirect` and when the broker shuts down; empty for none.
        server_reference: String = "";
        /// Interval of the `$SYS/broker/...` messages, in seconds; 0 disables them.
        sys_interval_s: u32 = 10_u32, in 0 ..= 86_400;
    }
}

impl MqttConfig {
    /// `maximum_qos` as a [`QoS`].
    pub fn qos_max(&self) -> QoS {
        QoS::try_from(self.maximum_qos).unwrap_or(QoS::ExactlyOnce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_within_their_bounds() {
        assert_eq!(MqttConfig::default().check(), []);
        let wrong = MqttConfig { maximum_qos: 3, max_sessions: 0, ..MqttConfig::default() };
        let keys: Vec<_> = wrong.check().into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["max_sessions", "maximum_qos"]);
    }

    #[test]
    fn reference_shows_defaults_as_toml() {
        let fields = MqttConfig::fields();
        let default_of = |key| fields.iter().find(|field| field.key == key).unwrap().default.clone();
        assert_eq!(default_of("listen"), "\"127.0.0.1:1883\"");
        assert_eq!(default_of("queue_overflow"), "\"drop-newest\"");
        assert_eq!(default_of("redirect"), "\"none\"");
        assert_eq!(default_of("queue_qos0"), "false");
        assert_eq!(default_of("max_queued_messages"), "1000");
    }
}
