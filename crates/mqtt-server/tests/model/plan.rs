//! What a run is made of: its configuration, the topics and filters it uses, and what clients do.

use mainstem_mqtt::{QoS, RetainHandling, SubscribeOptions, Version};
use mainstem_mqtt_server::{MqttConfig, QueueOverflow};

use crate::kit::Random;

/// Clients of one run; each has a will topic of its own.
pub(crate) const CLIENTS: usize = 6;
pub(crate) const CLIENT_IDS: [&str; CLIENTS] = ["ada", "bob", "cyd", "dan", "eve", "fay"];
pub(crate) const WILL_TOPICS: [&str; CLIENTS] = ["w/ada", "w/bob", "w/cyd", "w/dan", "w/eve", "w/fay"];

pub(crate) const TOPICS: [&str; 10] = ["a", "a/b", "a/c", "b", "b/c", "a/b/c", "/", "a/", "$d/a", "$d"];
const FILTERS: [&str; 19] = [
    "#", "+", "a/#", "a/+", "+/b", "a/b", "a", "b/#", "+/+", "a/b/#", "$d/#", "/", "w/+", "+/c", "a/b/c",
    "$d/a", "a/", "#/a", "a+",
];
const SHARED: [(&str, &str); 6] =
    [("g", "a/#"), ("g", "a/b"), ("h", "#"), ("h", "a/#"), ("g", "b/+"), ("h", "w/+")];
const SHARED_TEXTS: [&str; SHARED.len()] =
    ["$share/g/a/#", "$share/g/a/b", "$share/h/#", "$share/h/a/#", "$share/g/b/+", "$share/h/w/+"];

/// What the last check of a run uses.
pub(crate) const PROBE_TOPIC: &str = "probe";
pub(crate) const PROBE_FILTER: &str = "$share/p/probe";
pub(crate) const PROBE_KEY: (&str, &str) = ("p", PROBE_TOPIC);

/// Bytes of a payload from which on it is shared by its receivers, and of which a few fill an output.
const BIG_BYTES: usize = 40 * 1024;

/// Number of a message in the run.
pub(crate) type MessageId = usize;

/// A packet of a client, as it is understood when the broker has dealt with it.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Connect(Connecting),
    Subscribe { packet_id: u16, id: u32, filters: Vec<(&'static str, SubscribeOptions)> },
    Unsubscribe { packet_id: u16, filters: Vec<&'static str> },
    Publish { packet_id: u16, message: MessageId, qos: QoS, retain: bool },
    PubAck(u16),
    PubRec { packet_id: u16, is_error: bool },
    PubRel(u16),
    PubComp(u16),
    Ping,
    Disconnect { with_will: bool, expiry_s: Option<u32> },
}

/// What a client asks for in CONNECT.
#[derive(Clone, Debug)]
pub(crate) struct Connecting {
    pub(crate) client: usize,
    pub(crate) version: Version,
    pub(crate) clean: bool,
    pub(crate) keep_alive_s: u16,
    pub(crate) expiry_s: Option<u32>,
    pub(crate) receive_maximum: Option<u16>,
    pub(crate) packet_max: Option<u32>,
    pub(crate) alias_max: Option<u16>,
    pub(crate) will: Option<Will>,
}

#[derive(Clone, Debug)]
pub(crate) struct Will {
    pub(crate) message: MessageId,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) delay_s: u32,
}

/// The broker of a run.
pub(crate) fn config(random: &mut Random) -> MqttConfig {
    MqttConfig {
        max_inflight_messages: random.pick(&[1, 2, 3, 8, 64]),
        max_queued_messages: random.pick(&[1000, 1000, 1000, 10, 3, 0]),
        queue_overflow: random.pick(&[QueueOverflow::DropNewest, QueueOverflow::DropOldest]),
        queue_qos0: random.one_in(4),
        one_copy_per_client: !random.one_in(4),
        session_expiry_s_max: random.pick(&[u32::MAX, u32::MAX, 100]),
        keep_alive_s_max: random.pick(&[u16::MAX, u16::MAX, 30]),
        max_subscriptions_per_session: random.pick(&[10_000, 10_000, 4]),
        sys_interval_s: 0,
        ..MqttConfig::default()
    }
}

pub(crate) fn qos(random: &mut Random) -> QoS {
    random.pick(&[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce])
}

/// One subscription: the filter as it stands in SUBSCRIBE, and its options.
pub(crate) fn subscription(random: &mut Random, version: Version) -> (&'static str, SubscribeOptions) {
    let shared = random.one_in(4);
    let filter = if shared { random.pick(&SHARED_TEXTS) } else { random.pick(&FILTERS) };
    let mut options = SubscribeOptions::qos(qos(random));
    if version == Version::V5 {
        options.no_local = !shared && random.one_in(4);
        options.retain_as_published = random.one_in(3);
        options.retain_handling =
            random.pick(&[RetainHandling::Send, RetainHandling::SendIfNew, RetainHandling::DoNotSend]);
    }
    (filter, options)
}

/// Length of a payload. Most are as short as they can be.
pub(crate) fn payload_bytes(random: &mut Random, is_big: bool) -> usize {
    match random.below(40) {
        _ if is_big => BIG_BYTES,
        0 => BIG_BYTES,
        1..4 => 300,
        _ => 0,
    }
}

/// Name and filter of a shared subscription.
pub(crate) fn shared_parts(text: &str) -> Option<(&'static str, &'static str)> {
    if text == PROBE_FILTER {
        return Some(PROBE_KEY);
    }
    SHARED_TEXTS.iter().position(|known| *known == text).map(|index| SHARED[index])
}

/// The same as it stands in SUBSCRIBE.
pub(crate) fn shared_text(key: (&str, &str)) -> &'static str {
    let known = SHARED.iter().position(|known| *known == key);
    known.map_or(PROBE_FILTER, |index| SHARED_TEXTS[index])
}
