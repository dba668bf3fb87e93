//! Configuration of a queue: keys, bounds and defaults.

use std::collections::BTreeMap;
use std::fmt;

use crate::meta::SPAN_MS_MAX;

/// What happens when a message does not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// The publisher gets an error.
    #[default]
    Reject,
    /// The oldest messages that no group holds become dead letters.
    DropOldest,
}

/// Where a new group starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// With all messages that some group has not settled.
    #[default]
    Earliest,
    /// With new messages only.
    Latest,
}

/// Configuration of a queue. Times are in ms, sizes in bytes; a limit of 0 is no limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Time that a consumer holds a message before it is redelivered, 10 to 43,200,000.
    pub lease_ms: u64,
    /// Deliveries of a message before it becomes a dead letter; 0 for no limit.
    pub max_deliveries: u32,
    /// Delay after the first failed delivery. It doubles with each further failure.
    pub backoff_ms: u64,
    /// The longest such delay, the first one included.
    pub backoff_max_ms: u64,
    /// Share of the delay that is random, 0 to 100 percent.
    pub backoff_jitter_percent: u8,
    /// The queue for dead letters. Empty for the name of this queue followed by `.dead`.
    pub dead_letter_queue: String,
    /// Whether dead letters are kept. If not, they are counted and dropped.
    pub dead_letters: bool,
    /// Time to live of a message; 0 for no limit.
    pub ttl_ms: u64,
    /// Whether a message with a key waits until earlier messages with the same key are settled.
    pub fifo: bool,
    /// Whether only one consumer at a time receives messages.
    pub single_active_consumer: bool,
    /// How long a deduplication identifier is remembered; 0 turns deduplication off.
    pub dedup_window_ms: u64,
    /// Limit of messages.
    pub length_max: u64,
    /// Limit of their total size.
    pub bytes_max: u64,
    /// What happens to a message beyond the limits.
    pub overflow: Overflow,
    /// Where a new group starts.
    pub start: Start,
    /// How long settled messages stay on disk for replays.
    pub retention_ms: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            lease_ms: 30_000,
            max_deliveries: 5,
            backoff_ms: 1_000,
            backoff_max_ms: 300_000,
            backoff_jitter_percent: 20,
            dead_letter_queue: String::new(),
            dead_letters: true,
            ttl_ms: 0,
            fifo: true,
            single_active_consumer: false,
            dedup_window_ms: 120_000,
            length_max: 0,
            bytes_max: 0,
            overflow: Overflow::Reject,
            start: Start::Earliest,
            retention_ms: 0,
        }
    }
}

/// Why a setting is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(pub String);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

/// The longest time of any setting, in ms.
const LONGEST_MS: u64 = SPAN_MS_MAX;
/// The largest number of messages or bytes: the largest integer that every JSON implementation represents exactly.
const COUNT_MAX: u64 = (1 << 53) - 1;
/// The longest lease: twelve hours.
pub const LEASE_MS_MAX: u64 = 12 * 60 * 60 * 1000;

/// A setting: its name, how it is parsed, and how it is shown.
struct Key {
    name: &'static str,
    set: fn(&mut Config, &str) -> Result<(), String>,
    get: fn(&Config) -> String,
}

fn number(value: &str, least: u64, most: u64) -> Result<u64, String> {
    let number = value.trim().parse::<u64>().map_err(|_| "it is not a whole number".to_owned())?;
    if (least..=most).contains(&number) { Ok(number) } else { Err(format!("it must be {least} to {most}")) }
}

fn boolean(value: &str) -> Result<bool, String> {
    value.trim().parse().map_err(|_| "it must be true or false".to_owned())
}

/// All settings, sorted by name.
const KEYS: &[Key] = &[
    Key {
        name: "backoff-jitter-percent",
        set: |config, value| number(value, 0, 100).map(|value| config.backoff_jitter_percent = value as u8),
        get: |config| config.backoff_jitter_percent.to_string(),
    },
    Key {
        name: "backoff-max-ms",
        set: |config, value| number(value, 0, LONGEST_MS).map(|value| config.backoff_max_ms = value),
        get: |config| config.backoff_max_ms.to_string(),
    },
    Key {
        name: "backoff-ms",
        set: |config, value| number(value, 0, LONGEST_MS).map(|value| config.backoff_ms = value),
        get: |config| config.backoff_ms.to_string(),
    },
    Key {
        name: "bytes-max",
        set: |config, value| number(value, 0, COUNT_MAX).map(|value| config.bytes_max = value),
        get: |config| config.bytes_max.to_string(),
    },
    Key {
        name: "dead-letter-queue",
        set: |config, value| {
            value.clone_into(&mut config.dead_letter_queue);
            Ok(())
        },
        get: |config| config.dead_letter_queue.clone(),
    },
    Key {
        name: "dead-letters",
        set: |config, value| boolean(value).map(|value| config.dead_letters = value),
        get: |config| config.dead_letters.to_string(),
    },
    Key {
        name: "dedup-window-ms",
        set: |config, value| number(value, 0, LONGEST_MS).map(|value| config.dedup_window_ms = value),
        get: |config| config.dedup_window_ms.to_string(),
    },
    Key {
        name: "fifo",
        set: |config, value| boolean(value).map(|value| config.fifo = value),
        get: |config| config.fifo.to_string(),
    },
    Key {
        name: "lease-ms",
        set: |config, value| number(value, 10, LEASE_MS_MAX).map(|value| config.lease_ms = value),
        get: |config| config.lease_ms.to_string(),
    },
    Key {
        name: "length-max",
        set: |config, value| number(value, 0, COUNT_MAX).map(|value| config.length_max = value),
        get: |config| config.length_max.to_string(),
    },
    Key {
        name: "max-deliveries",
        set: |config, value| {
            number(value, 0, u64::from(u32::MAX)).map(|value| config.max_deliveries = value as u32)
        },
        get: |config| config.max_deliveries.to_string(),
    },
    Key {
        name: "overflow",
        set: |config, value| {
            config.overflow = match value {
                "reject" => Overflow::Reject,
                "drop-oldest" => Overflow::DropOldest,
                _ => return Err("it must be reject or drop-oldest".into()),
            };
            Ok(())
        },
        get: |config| match config.overflow {
            Overflow::Reject => "reject".into(),
            Overflow::DropOldest => "drop-oldest".into(),
        },
    },
    Key {
        name: "retention-ms",
        set: |config, value| number(value, 0, LONGEST_MS).map(|value| config.retention_ms = value),
        get: |config| config.retention_ms.to_string(),
    },
    Key {
        name: "single-active-consumer",
        set: |config, value| boolean(value).map(|value| config.single_active_consumer = value),
        get: |config| config.single_active_consumer.to_string(),
    },
    Key {
        name: "start",
        set: |config, value| {
            config.start = match value {
                "earliest" => Start::Earliest,
                "latest" => Start::Latest,
                _ => return Err("it must be earliest or latest".into()),
            };
            Ok(())
        },
        get: |config| match config.start {
            Start::Earliest => "earliest".into(),
            Start::Latest => "latest".into(),
        },
    },
    Key {
        name: "ttl-ms",
        set: |config, value| number(value, 0, LONGEST_MS).map(|value| config.ttl_ms = value),
        get: |config| config.ttl_ms.to_string(),
    },
];

impl Config {
    /// Whether a publisher may get an error because the queue is full.
    pub fn has_limits(&self) -> bool {
        self.overflow == Overflow::Reject && (self.length_max > 0 || self.bytes_max > 0)
    }

    /// Parses settings; the others have their defaults.
    ///
    /// # Errors
    /// An unknown setting or an invalid value.
    pub fn from_pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        for (name, value) in pairs {
            let key = KEYS.iter().find(|key| key.name == name);
            let key = key.ok_or_else(|| ConfigError(format!("unknown setting {name:?}")))?;
            (key.set)(&mut config, value)
                .map_err(|fault| ConfigError(format!("{name}: {value:?}: {fault}")))?;
        }
        Ok(config)
    }

    /// Checks that each value is within its bounds.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn check(&self) -> Result<(), ConfigError> {
        let pairs = self.pairs();
        Self::from_pairs(pairs.iter().map(|(name, value)| (*name, value.as_str()))).map(drop)
    }

    /// All settings with their values, sorted by name.
    pub fn pairs(&self) -> BTreeMap<&'static str, String> {
        KEYS.iter().map(|key| (key.name, (key.get)(self))).collect()
    }

    /// The queue that receives the dead letters of `queue`.
    pub fn dead_letter_queue_of(&self, queue: &str) -> String {
        if self.dead_letter_queue.is_empty() {
            format!("{queue}.dead")
        } else {
            self.dead_letter_queue.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_round_trip() {
        let pairs =
            [("lease-ms", "500"), ("overflow", "drop-oldest"), ("start", "latest"), ("fifo", "false")];
        let config = Config::from_pairs(pairs).unwrap();
        let shown = config.pairs();
        assert_eq!(Config::from_pairs(shown.iter().map(|(key, value)| (*key, value.as_str()))), Ok(config));
        assert!(KEYS.is_sorted_by_key(|key| key.name));
    }

    #[test]
    fn out_of_bounds_settings_are_rejected() {
        assert_eq!(Config::default().check(), Ok(()));
        let fault = Config { backoff_jitter_percent: 255, ..Config::default() }.check().unwrap_err();
        assert_eq!(fault.0, "backoff-jitter-percent: \"255\": it must be 0 to 100");
    }

    #[test]
    fn an_invalid_value_is_reported_with_its_setting() {
        for (name, value) in [
            ("lease-ms", "9"),
            ("lease-ms", "soon"),
            ("lease", "30000"),
            ("overflow", "block"),
            ("backoff-jitter-percent", "101"),
            ("dead-letters", "yes"),
            ("length-max", "9007199254740992"),
            ("bytes-max", "18446744073709551615"),
        ] {
            let fault = Config::from_pairs([(name, value)]).unwrap_err();
            assert!(fault.0.contains(name), "{fault}");
        }
    }
}
