//! What a queue is set to, and what it cannot be set to.

use mainstem_log::Durability;
use mainstem_queue::{Config, Fault};

/// Longest name of a queue, bytes: its logs have two more.
const NAME_BYTES_MAX: usize = 247;

/// What a queue is set to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Leases, retries, limits.
    pub config: Config,
    /// When something counts as done.
    pub durability: Durability,
}

impl Settings {
    /// Refuses what the queue of this name cannot be set to.
    pub(crate) fn check(&self, name: &str) -> Result<(), Fault> {
        check_name(name)?;
        self.config.check()?;
        if !self.config.dead_letters && self.config.dead_letter_queue.is_empty() {
            return Ok(());
        }
        let dead = self.config.dead_letter_queue_of(name);
        if dead == name {
            return Err(Fault("dead-letter-queue: it is the queue itself".into()));
        }
        check_name(&dead).map_err(|fault| Fault(format!("dead-letter-queue: {fault}")))
    }
}

fn check_name(name: &str) -> Result<(), Fault> {
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let is_name = (1..=NAME_BYTES_MAX).contains(&name.len()) && !matches!(name, "." | "..");
    if is_name && name.bytes().all(is_safe) {
        return Ok(());
    }
    let rule = "the name of a queue has 1 to 247 ASCII letters, digits, '.', '_' and '-'";
    Err(Fault(format!("{name:?}: {rule}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(name: &str, config: Config) -> Option<String> {
        Settings { config, ..Settings::default() }.check(name).err().map(|fault| fault.0)
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_name() {
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
            let fault = fault("jobs", config).expect(setting);
            assert!(fault.contains(setting), "{fault}");
        }
        assert_eq!(fault("jobs", Config::default()), None);
    }

    #[test]
    fn names_are_those_of_logs() {
        let long = "x".repeat(243);
        for name in ["", ".", "..", "a b", "a/b", "\u{e9}", &"x".repeat(248), &long] {
            assert!(fault(name, Config::default()).is_some(), "{name:?}");
        }
        let without = Config { dead_letters: false, ..Config::default() };
        assert_eq!(fault(&"x".repeat(247), without), None);
        assert_eq!(fault(&long[1..], Config::default()), None);
    }
}
