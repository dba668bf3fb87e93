//! What a run is made of, all of it from its seed.

use std::sync::Arc;

use mainstem_broker::{Durability, MqttConfig};
use mainstem_disk::Settings;
use mainstem_disk::fault::Dice;
use mainstem_mqtt::{QoS, Version};

/// Topics that all clients publish to.
pub(crate) const TOPICS: [&str; 6] = ["t/a", "t/a/x", "t/b", "t/b/x", "t/c", "t/c/y"];
/// Topics that only shared subscriptions meet.
pub(crate) const SHARED_TOPICS: [&str; 2] = ["s/a", "s/b"];
const FILTERS: [&str; 11] =
    ["t/#", "t/+", "t/+/x", "t/a/#", "t/a", "t/a/x", "t/b", "t/c/+", "r/#", "r/0/#", "w/#"];
/// Each group has one filter: a client that is in two gets two copies.
const GROUPS: [(&str, &str); 2] = [("g", "s/#"), ("h", "s/+")];

/// What one client is like, for the whole run.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) version: Version,
    /// Seconds for which its session outlives its connection; `u32::MAX` is for ever.
    pub(crate) expiry_s: u32,
    /// What it allows to be in flight towards it.
    pub(crate) receive_maximum: u16,
    /// Chance in 100 that it acknowledges at once what comes.
    pub(crate) prompt: u64,
    /// It acknowledges nothing on some connections.
    pub(crate) is_lazy: bool,
    /// The shared subscription it may take part in: name and filter.
    pub(crate) group: (&'static str, &'static str),
    pub(crate) has_will: bool,
    pub(crate) will_delay_s: u32,
    /// Chance in 100 that it publishes, where others do something else.
    pub(crate) publishes: u64,
}

/// What may happen to the disk in a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// Power is lost, or else only processes are killed.
    pub(crate) loses_power: bool,
    /// Chance in 10,000 steps.
    pub(crate) ends: u64,
    pub(crate) errors: u64,
    pub(crate) full: u64,
}

/// A whole run.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) shards: usize,
    pub(crate) changes_shards: bool,
    pub(crate) steps: u64,
    pub(crate) config: MqttConfig,
    pub(crate) settings: Settings,
    pub(crate) is_slow: bool,
    pub(crate) clients: Vec<Profile>,
    pub(crate) faults: Faults,
    /// Sessions end while others live on. What they held for a group is then given to another member; with a crash
    /// in between, to two.
    pub(crate) ends_sessions: bool,
    /// Chance in 100 that bytes go in small pieces.
    pub(crate) pieces: u64,
    /// Chance in 10,000 steps that a connection is cut.
    pub(crate) cuts: u64,
}

/// One of several, all alike.
pub(crate) fn pick<T: Clone>(dice: &mut Dice, choices: &[T]) -> T {
    choices[dice.below(choices.len() as u64) as usize].clone()
}

impl Plan {
    pub(crate) fn of(dice: &mut Dice) -> Self {
        let durability = if dice.chance(85) { Durability::Fsync } else { Durability::Os };
        let loses_power = durability == Durability::Fsync && dice.chance(60);
        let is_rough = dice.chance(30);
        let faults = Faults {
            loses_power,
            ends: pick(dice, &[0, 10, 20, 60]),
            errors: if is_rough { 5 } else { 0 },
            full: if is_rough { 10 } else { 0 },
        };
        let clients = (0..2 + dice.below(4)).map(|_| profile(dice)).collect();
        let ends_sessions = dice.chance(50);
        Self {
            shards: 1 + dice.below(3) as usize,
            changes_shards: dice.chance(40),
            steps: pick(dice, &[300, 1000, 3000]),
            config: config(dice, durability),
            settings: settings(dice),
            is_slow: dice.chance(80),
            clients,
            faults,
            ends_sessions,
            pieces: pick(dice, &[0, 5, 50]),
            cuts: pick(dice, &[0, 20, 100]),
        }
    }
}

fn config(dice: &mut Dice, durability: Durability) -> MqttConfig {
    MqttConfig {
        durability,
        max_inflight_messages: pick(dice, &[1, 2, 5, 128]),
        max_queued_messages: 100_000,
        max_queued_bytes: 1 << 30,
        segment_bytes: 65_536,
        snapshot_bytes: pick(dice, &[4_096, 16_384, 65_536, 16 << 20]),
        queue_qos0: dice.chance(20),
        sys_interval_s: 0,
        ..MqttConfig::default()
    }
}

fn settings(dice: &mut Dice) -> Settings {
    Settings {
        open_files: 16,
        journal_bytes: pick(dice, &[0, 65_536]),
        checkpoint_bytes: pick(dice, &[1_024, 16_384, 1 << 20]),
        ..Settings::default()
    }
}

fn profile(dice: &mut Dice) -> Profile {
    let version = if dice.chance(40) { Version::V4 } else { Version::V5 };
    let expiry_s = match version {
        Version::V5 => pick(dice, &[0, 2, 60, 3600, u32::MAX, u32::MAX]),
        _ => pick(dice, &[0, u32::MAX, u32::MAX]),
    };
    Profile {
        version,
        expiry_s,
        receive_maximum: pick(dice, &[1, 2, 7, u16::MAX]),
        prompt: pick(dice, &[100, 90, 50, 10]),
        is_lazy: dice.chance(30),
        group: pick(dice, &[GROUPS[0], GROUPS[0], GROUPS[1]]),
        has_will: dice.chance(30),
        will_delay_s: pick(dice, &[0, 1, 5]),
        publishes: pick(dice, &[0, 30, 60, 90]),
    }
}

pub(crate) fn qos(dice: &mut Dice) -> QoS {
    pick(
        dice,
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

/// A filter, and the group it is shared in.
pub(crate) fn filter(
    dice: &mut Dice,
    profile: &Profile,
    may_share: bool,
) -> (Arc<str>, Option<&'static str>) {
    let takes_part = may_share && dice.chance(25);
    if takes_part {
        let (group, filter) = profile.group;
        (filter.into(), Some(group))
    } else {
        (FILTERS[dice.below(FILTERS.len() as u64) as usize].into(), None)
    }
}

/// As it stands in SUBSCRIBE.
pub(crate) fn filter_text(filter: &str, group: Option<&str>) -> String {
    group.map_or_else(|| filter.to_owned(), |group| format!("$share/{group}/{filter}"))
}

/// The two topics with a retained message that only this client publishes to, each always at the same QoS: what is
/// sent again at QoS 1 might undo what was sent behind it at QoS 2.
pub(crate) fn retained_topic(client: usize, qos: QoS) -> Arc<str> {
    format!("r/{client}/{}", qos as u8).into()
}

pub(crate) fn will_topic(client: usize) -> Arc<str> {
    format!("w/{client}").into()
}
