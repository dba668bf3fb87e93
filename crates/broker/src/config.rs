//! What the MQTT door can be told, with defaults, bounds and units: the one list that the configuration file,
//! `--set` and the reference page are made from.

use serde::{Deserialize, Serialize};

use mainstem_mqtt::QoS;

/// One field as the reference page shows it.
#[derive(Clone, Debug)]
pub struct Field {
    /// Key within its section.
    pub key: &'static str,
    /// Default, as written in TOML.
    pub default: String,
    /// Bounds or choices; empty where any value will do.
    pub bounds: &'static str,
    /// What it does.
    pub doc: &'static str,
}

/// Declares a section: a struct that serde fills, its defaults, its bounds, and its documentation.
#[macro_export]
macro_rules! settings {
    ($(#[doc = $section_doc:literal])+ pub struct $name:ident {
        $($(#[doc = $doc:literal])+ $key:ident: $type:ty = $default:expr $(, in $low:literal ..= $high:literal)? $(, one of $choices:literal)?;)+
    }) => {
        $(#[doc = $section_doc])+
        #[derive(Clone, Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            $($(#[doc = $doc])+ pub $key: $type,)+
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
                    default: $crate::config::toml_literal(&format!("{:?}", <$type>::from($default))),
                    bounds: concat!($(stringify!($low), " to ", stringify!($high))? $($choices)?),
                    doc: concat!($($doc),+).trim_ascii_start(),
                }),+]
            }

            /// Checks the bounds.
            ///
            /// # Errors
            /// Key and explanation of the first field out of bounds.
            pub fn check(&self) -> Result<(), (&'static str, String)> {
                $($(
                    let value = i128::from(self.$key);
                    let bounds: std::ops::RangeInclusive<i128> = $low..=$high;
                    if !bounds.contains(&value) {
                        return Err((stringify!($key), format!("{value} is not within {} to {}", stringify!($low), stringify!($high))));
                    }
                )?)+
                Ok(())
            }
        }
    };
}

/// How a default looks in TOML: enum variants become their kebab-case strings.
pub fn toml_literal(debug: &str) -> String {
    if !debug.starts_with(|first: char| first.is_ascii_uppercase()) {
        return debug.to_owned();
    }
    let mut text = String::from("\"");
    for (index, letter) in debug.char_indices() {
        if letter.is_ascii_uppercase() && index > 0 {
            text.push('-');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text.push('"');
    text
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

/// When something counts as kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// When it is on disk.
    Fsync,
    /// When the operating system has it.
    Os,
    /// Nothing is kept beyond the process.
    None,
}

/// Whether connecting clients are sent elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Redirect {
    /// Clients are served here.
    None,
    /// For this time: reason code 0x9C.
    UseAnotherServer,
    /// For good: reason code 0x9D.
    ServerMoved,
}

settings! {
    /// The MQTT door.
    pub struct MqttConfig {
        /// Address and port to listen on.
        listen: String = "127.0.0.1:1883";
        /// Time a new connection has for its CONNECT, in ms.
        connect_timeout_ms: u32 = 10_000_u32, in 100 ..= 600_000;
        /// Connections at once; those beyond are answered with 0x97 (Quota exceeded) and closed.
        max_connections: u32 = 100_000_u32, in 1 ..= 10_000_000;
        /// Largest packet taken from a client, in bytes.
        max_packet_size_bytes: u32 = 16_777_216_u32, in 64 ..= 268_435_460;
        /// Longest keep alive granted, in seconds; a client that asks for more, or for none, is told this one (MQTT 5). 65535 leaves the choice to the client.
        keep_alive_s_max: u16 = 65_535_u16, in 1 ..= 65_535;
        /// QoS 2 publishes that one client may have unreleased towards the broker (Receive Maximum).
        receive_maximum: u16 = 256_u16, in 1 ..= 65_535;
        /// QoS 1 and 2 messages in flight towards one client; MQTT 5 clients may ask for fewer.
        max_inflight_messages: u16 = 128_u16, in 1 ..= 65_535;
        /// Messages of a work queue that one subscription has at once, not acknowledged; within `max_inflight_messages`.
        queue_prefetch: u16 = 64_u16, in 1 ..= 16_384;
        /// QoS 1 and 2 messages that wait for one session beyond those in flight.
        max_queued_messages: u32 = 1_000_u32, in 0 ..= 100_000_000;
        /// Bytes of payload and topic that wait for one session beyond those in flight.
        max_queued_bytes: u64 = 16_777_216_u64, in 0 ..= 1_099_511_627_776;
        /// Messages that wait for all sessions together; one more is dropped and counted.
        max_queued_messages_total: u64 = 100_000_000_u64, in 0 ..= 1_000_000_000_000;
        /// What is dropped when a session's queue is full. Each drop is counted.
        queue_overflow: QueueOverflow = QueueOverflow::DropNewest, one of "\"drop-newest\", \"drop-oldest\"";
        /// Whether QoS 0 messages are queued for sessions that are offline.
        queue_qos0: bool = false;
        /// When what a client is told counts as kept: on disk ("fsync"), or handed to the operating system ("os"), which outlives the process but not a loss of power; "none" keeps sessions and retained messages in memory only.
        durability: Durability = Durability::Fsync, one of "\"fsync\", \"os\", \"none\"";
        /// Size of the files that sessions and retained messages are kept in, in bytes.
        segment_bytes: u64 = 67_108_864_u64, in 65_536 ..= 1_073_741_824;
        /// Bytes kept about sessions after which they are written out whole at the earliest, so that a start need not read all that came before.
        snapshot_bytes: u64 = 16_777_216_u64, in 4_096 ..= 1_073_741_824;
        /// Longest time a session outlives its connection, in seconds; also the expiry of MQTT 3.x sessions that are not clean. 4294967295 means for ever.
        session_expiry_s_max: u32 = 4_294_967_295_u32, in 0 ..= 4_294_967_295;
        /// Sessions, connected or not; a client that would need one more is answered with 0x97.
        max_sessions: u32 = 1_000_000_u32, in 1 ..= 100_000_000;
        /// Retained messages; one beyond is refused with 0x97 (MQTT 5, QoS 1 and 2); others are delivered, but not retained, and counted as dropped.
        max_retained_messages: u32 = 1_000_000_u32, in 0 ..= 1_000_000_000;
        /// Bytes of payload and topic in all retained messages.
        max_retained_bytes: u64 = 1_073_741_824_u64, in 0 ..= 1_099_511_627_776;
        /// Levels in a topic name or filter.
        max_topic_levels: u16 = 200_u16, in 1 ..= 65_535;
        /// Subscriptions of one session; one beyond is answered with 0x97 in its SUBACK.
        max_subscriptions_per_session: u32 = 10_000_u32, in 1 ..= 10_000_000;
        /// Topic aliases that one client may set.
        topic_alias_maximum: u16 = 16_u16, in 0 ..= 65_535;
        /// Whether a client whose subscriptions overlap gets one copy of a message, at the highest QoS and with all subscription identifiers, or one copy for each.
        one_copy_per_client: bool = true;
        /// Topic filters for clients to publish to and never to receive from: subscribing to them is answered with 0x87 (Not authorized), and wildcards pass over them.
        write_only_topics: Vec<String> = Vec::new();
        /// Highest QoS that clients may publish with and are granted.
        maximum_qos: u8 = 2_u8, in 0 ..= 2;
        /// Whether retained messages are kept.
        retain_available: bool = true;
        /// Whether filters may have wildcards.
        wildcard_subscription_available: bool = true;
        /// Whether subscriptions may carry an identifier.
        subscription_ids_available: bool = true;
        /// Whether shared subscriptions are served.
        shared_subscription_available: bool = true;
        /// Whether a client may leave it to the broker to name it.
        allow_empty_client_id: bool = true;
        /// Response Information given to clients that ask for it; empty gives none.
        response_information: String = "";
        /// Whether connecting clients are sent to `server_reference`.
        redirect: Redirect = Redirect::None, one of "\"none\", \"use-another-server\", \"server-moved\"";
        /// Where clients are sent: by `redirect`, and when the broker shuts down. Empty names no place.
        server_reference: String = "";
        /// Time between updates of `$SYS/broker/...`, in seconds; 0 turns them off.
        sys_interval_s: u32 = 10_u32, in 0 ..= 86_400;
    }
}

impl MqttConfig {
    /// `maximum_qos` as the protocol's type.
    pub fn qos_max(&self) -> QoS {
        QoS::try_from(self.maximum_qos).unwrap_or(QoS::ExactlyOnce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_within_their_bounds() {
        assert_eq!(MqttConfig::default().check(), Ok(()));
        let wrong = MqttConfig { maximum_qos: 3, ..MqttConfig::default() };
        assert_eq!(wrong.check().unwrap_err().0, "maximum_qos");
    }

    #[test]
    fn the_reference_shows_toml() {
        let fields = MqttConfig::fields();
        let default_of = |key| fields.iter().find(|field| field.key == key).unwrap().default.clone();
        assert_eq!(default_of("listen"), "\"127.0.0.1:1883\"");
        assert_eq!(default_of("queue_overflow"), "\"drop-newest\"");
        assert_eq!(default_of("redirect"), "\"none\"");
        assert_eq!(default_of("queue_qos0"), "false");
        assert_eq!(default_of("max_queued_messages"), "1000");
    }
}
