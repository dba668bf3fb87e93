//! The settings of a work queue as those of its topic, and back.

use std::collections::BTreeMap;

use mainstem_queue_core::{EngineSettings, QueueError};
use mainstem_queue_server::QueueTopicConfig;

use crate::catalogue::Topic;
use crate::partition_message::RECORD_OVERHEAD_BYTES;
use crate::topic_config::{self, DURABILITY, QUEUE, QUEUE_ENABLED, TopicConfig};

/// The setting of a queue that is not one of [`mainstem_queue_core::Config`].
pub(crate) const DURABILITY_SETTING: &str = "durability";

/// Converts a queue's settings to topic settings.
pub(crate) fn topic_settings(settings: &[(String, String)]) -> BTreeMap<String, String> {
    let pair = |(name, value): &(String, String)| match name.as_str() {
        DURABILITY_SETTING => (DURABILITY.to_owned(), value.clone()),
        name => (format!("{QUEUE}{name}"), value.clone()),
    };
    let enabled = (QUEUE_ENABLED.to_owned(), "true".to_owned());
    settings.iter().map(pair).chain([enabled]).collect()
}

impl QueueTopicConfig for TopicConfig {
    fn engine_settings(&self) -> Option<EngineSettings> {
        let config = self.queue.clone()?;
        let message_bytes_max = self.partition.message_bytes_max.saturating_sub(RECORD_OVERHEAD_BYTES);
        Some(EngineSettings { config, durability: self.partition.options.durability, message_bytes_max })
    }

    fn shown_settings(&self) -> Vec<(String, String)> {
        let own = self.queue.as_ref().map(mainstem_queue_core::Config::pairs).unwrap_or_default();
        let durability = topic_config::durability_name(self.partition.options.durability);
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
        let mut settings: Vec<(String, String)> =
            own.chain([(DURABILITY_SETTING.to_owned(), durability.to_owned())]).collect();
        settings.sort_unstable();
        settings
    }

    fn is_queue(&self) -> bool {
        self.queue.is_some()
    }
}

/// Validates the topic settings of a queue.
///
/// # Errors
/// The settings are invalid.
pub(crate) fn check_settings(set: &BTreeMap<String, String>) -> Result<(), QueueError> {
    if set.get(QUEUE_ENABLED).map(String::as_str) != Some("true") {
        return Err(QueueError::Invalid("enabled: a queue cannot be set to be none".into()));
    }
    topic_config::config_error(set).map_or(Ok(()), |error| Err(QueueError::Invalid(error)))
}

/// The settings of a queue's topic after the change, validated.
///
/// # Errors
/// The settings are invalid.
pub(crate) fn changed_settings(
    known: &Topic,
    settings: BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, String> {
    let mut set = known.config.set.clone();
    set.extend(settings);
    check_settings(&set).map_err(|refusal| refusal.to_string())?;
    Ok(set)
}
