//! What a run with MQTT clients consists of, drawn from its seed.

use std::sync::Arc;

use mainstem_disk::fault::Rng;
use mainstem_mqtt::{QoS, Version};
use mainstem_mqtt_server::{Durability, MqttConfig};

use crate::engine::{BrokerPlan, Environment, FaultPlan, NetworkPlan, draw_store_settings, pick};

/// Topics that all clients publish to.
pub(crate) const TOPICS: [&str; 6] = ["t/a", "t/a/x", "t/b", "t/b/x", "t/c", "t/c/y"];
/// Topics with shared subscriptions only.
pub(crate) const SHARED_TOPICS: [&str; 2] = ["s/a", "s/b"];
const FILTERS: [&str; 11] =
    ["t/#", "t/+", "t/+/x", "t/a/#", "t/a", "t/a/x", "t/b", "t/c/+", "r/#", "r/0/#", "w/#"];
/// Each group has one filter, because a client in two groups receives two copies.
const GROUPS: [(&str, &str); 2] = [("g", "s/#"), ("h", "s/+")];

/// Behavior of a client.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) version: Version,
    /// Session expiry, seconds; `u32::MAX` for never.
    pub(crate) expiry_s: u32,
    /// Receive Maximum.
    pub(crate) receive_maximum: u16,
    /// Chance in 100 that it acknowledges at once.
    pub(crate) prompt: u64,
    /// It acknowledges nothing on some connections.
    pub(crate) is_lazy: bool,
    /// Name and filter of the shared subscription it may have.
    pub(crate) group: (&'static str, &'static str),
    pub(crate) has_will: bool,
    pub(crate) will_delay_s: u32,
    /// Chance in 100 that it publishes rather than does something else.
    pub(crate) publishes: u64,
}

impl Profile {
    /// A client that subscribes at the end of a run, to receive retained messages.
    pub(crate) fn probe() -> Self {
        Self { expiry_s: 0, publishes: 0, ..Self::publisher(Version::V5) }
    }

    /// A client with a persistent session that only publishes.
    pub(crate) fn publisher(version: Version) -> Self {
        Self {
            version,
            expiry_s: u32::MAX,
            receive_maximum: u16::MAX,
            prompt: 100,
            is_lazy: false,
            group: ("", ""),
            has_will: false,
            will_delay_s: 0,
            publishes: 100,
        }
    }
}

/// What the clients of a run do.
pub(crate) struct Plan {
    pub(crate) clients: Vec<Profile>,
    /// Some sessions end during the run. What they held for a group moves to another member, or to two if a crash comes
    /// in between.
    pub(crate) ends_sessions: bool,
}

impl Plan {
    pub(crate) fn draw(rng: &mut Rng) -> (Self, Environment) {
        let durability = if rng.chance(85) { Durability::Fsync } else { Durability::Os };
        let is_lax = durability != Durability::Fsync;
        let loses_power = !is_lax && rng.chance(60);
        let is_rough = rng.chance(30);
        let faults = FaultPlan::draw(rng, is_lax, loses_power, is_rough);
        let clients = (0..2 + rng.below(4)).map(|_| profile(rng)).collect();
        let ends_sessions = rng.chance(50);
        let environment = Environment {
            shards: 1 + rng.below(3) as usize,
            changes_shards: rng.chance(40),
            steps: pick(rng, &[300, 1000, 3000]),
            broker: BrokerPlan {
                mqtt: config(rng, durability),
                kafka: mainstem_kafka_server::Config::default(),
                bindings: Arc::default(),
                settings: draw_store_settings(rng),
                is_slow: rng.chance(80),
            },
            faults,
            network: NetworkPlan::draw(rng),
        };
        (Self { clients, ends_sessions }, environment)
    }
}

fn config(rng: &mut Rng, durability: Durability) -> MqttConfig {
    MqttConfig {
        durability,
        max_inflight_messages: pick(rng, &[1, 2, 5, 128]),
        max_queued_messages: 100_000,
        max_queued_bytes: 1 << 30,
        segment_bytes: 65_536,
        snapshot_bytes: pick(rng, &[4_096, 16_384, 65_536, 16 << 20]),
        queue_qos0: rng.chance(20),
        sys_interval_s: 0,
        ..MqttConfig::default()
    }
}

fn profile(rng: &mut Rng) -> Profile {
    let version = if rng.chance(40) { Version::V4 } else { Version::V5 };
    let expiry_s = match version {
        Version::V5 => pick(rng, &[0, 2, 60, 3600, u32::MAX, u32::MAX]),
        _ => pick(rng, &[0, u32::MAX, u32::MAX]),
    };
    Profile {
        version,
        expiry_s,
        receive_maximum: pick(rng, &[1, 2, 7, u16::MAX]),
        prompt: pick(rng, &[100, 90, 50, 10]),
        is_lazy: rng.chance(30),
        group: pick(rng, &[GROUPS[0], GROUPS[0], GROUPS[1]]),
        has_will: rng.chance(30),
        will_delay_s: pick(rng, &[0, 1, 5]),
        publishes: pick(rng, &[0, 30, 60, 90]),
    }
}

pub(crate) fn qos(rng: &mut Rng) -> QoS {
    pick(
        rng,
        &[
            QoS::AtMostOnce,
            QoS::AtLeastOnce,
            QoS::AtLeastOnce,
            QoS::AtLeastOnce,
            QoS::ExactlyOnce,
            QoS::ExactlyOnce,
            QoS::ExactlyOnce,
        ],
    )
}

/// Draws a filter, and the group that shares it.
pub(crate) fn filter(rng: &mut Rng, profile: &Profile, may_share: bool) -> (Arc<str>, Option<&'static str>) {
    let takes_part = may_share && rng.chance(25);
    if takes_part {
        let (group, filter) = profile.group;
        (filter.into(), Some(group))
    } else {
        (FILTERS[rng.below(FILTERS.len() as u64) as usize].into(), None)
    }
}

/// The filter as in SUBSCRIBE.
pub(crate) fn filter_text(filter: &str, group: Option<&str>) -> String {
    group.map_or_else(|| filter.to_owned(), |group| format!("$share/{group}/{filter}"))
}

/// The topic with a retained message that only this client publishes to, at this QoS. With both on one topic, a
/// repeated QoS 1 publish could overwrite a later one at QoS 2.
pub(crate) fn retained_topic(client: usize, qos: QoS) -> Arc<str> {
    format!("r/{client}/{}", qos as u8).into()
}

pub(crate) fn will_topic(client: usize) -> Arc<str> {
    format!("w/{client}").into()
}
