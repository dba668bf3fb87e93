//! Settings of a queue, and their validation.

use mainstem_log::Durability;
use mainstem_queue_core::{Config, ConfigError};

/// Longest name of a queue, bytes. The names of its logs are two bytes longer.
const NAME_BYTES_MAX: usize = 247;

/// Settings of a queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Leases, retries, limits.
    pub config: Config,
    /// When a message or a settlement counts as durable.
    pub durability: Durability,
}

impl From<Config> for Settings {
    /// With the default durability.
    fn from(config: Config) -> Self {
        Self { config, ..Self::default() }
    }
}

impl Settings {
    /// With this durability.
    #[must_use]
    pub fn durability(self, durability: Durability) -> Self {
        Self { durability, ..self }
    }

    /// Validates the settings for the queue of this name.
    pub(crate) fn check(&self, name: &str) -> Result<(), ConfigError> {
        check_name(name)?;
        self.config.check()?;
        if !self.config.dead_letters && self.config.dead_letter_queue.is_empty() {
            return Ok(());
        }
        let dead = self.config.dead_letter_queue_of(name);
        if dead == name {
            return Err(ConfigError("dead-letter-queue: it is the queue itself".into()));
        }
        check_name(&dead).map_err(|error| ConfigError(format!("dead-letter-queue: {error}")))
    }
}

fn check_name(name: &str) -> Result<(), ConfigError> {
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let is_name = (1..=NAME_BYTES_MAX).contains(&name.len()) && !matches!(name, "." | "..");
    if is_name && name.bytes().all(is_safe) {
        return Ok(());
    }
    let rule = "the name of a queue has 1 to 247 ASCII letters, digits, '.', '_' and '-'";
    Err(ConfigError(format!("{name:?}: {rule}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(name: &str, config: Config) -> Option<String> {
        Settings { config, ..Settings::default() }.check(name).err().map(|error| error.0)
    }

    #[test]
    fn an_error_names_the_setting() {
        let refused = [
            ("lease-ms", Config { lease_ms: 9, ..Config::default() }),
            ("lease-ms", Config { lease_ms: 43_200_001, ..Config::default() }),
            ("backoff-jitter-percent", Config { backoff_jitter_percent: 101, ..Config::default() }),
            ("backoff-ms", Config { backoff_ms: u64::MAX, ..Config::default() }),
            ("ttl-ms", Config { ttl_ms: u64::MAX, ..Config::default() }),
            ("dead-letter-queue", Config { dead_letter_queue: "jobs".into(), ..Config::default() }),
            ("dead-letter-queue", Config { dead_letter_queue: "a/b".into(), ..Config::default() }),
        ];
        for (setting, config) in refused {
            let error = error("jobs", config).expect(setting);
            assert!(error.contains(setting), "{error}");
        }
        assert_eq!(error("jobs", Config::default()), None);
    }

    #[test]
    fn queue_names_are_valid_log_names() {
        let long = "x".repeat(243);
        for name in ["", ".", "..", "a b", "a/b", "\u{e9}", &"x".repeat(248), &long] {
            assert!(error(name, Config::default()).is_some(), "{name:?}");
        }
        let without = Config { dead_letters: false, ..Config::default() };
        assert_eq!(error(&"x".repeat(247), without), None);
        assert_eq!(error(&long[1..], Config::default()), None);
    }
}
