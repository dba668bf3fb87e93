//! Changes of topics, as data: what a client or another protocol wants to be created or changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_kafka::api::create_partitions::CreatePartitionsTopic;

/// A topic to create.
#[derive(Clone, Debug)]
pub(crate) struct NewTopic {
    pub(crate) name: Arc<str>,
    pub(crate) partitions: i32,
    /// Its configuration, validated.
    pub(crate) config: BTreeMap<String, String>,
}

/// A change of an existing topic. The controller applies it when earlier changes of the topic have ended.
#[derive(Clone, Debug)]
pub(crate) enum TopicChange {
    /// Change the configuration.
    AlterConfig(ConfigChange),
    /// Add partitions.
    AddPartitions(CreatePartitionsTopic),
    /// Set these topic settings of a work queue.
    ConfigureQueue(BTreeMap<String, String>),
}

/// Changes to one configuration.
#[derive(Clone, Debug)]
pub(crate) struct ConfigChange {
    pub(crate) resource_type: i8,
    pub(crate) resource_name: String,
    /// Whether keys without a step are reset to their defaults.
    pub(crate) replaces_all: bool,
    pub(crate) steps: Vec<ConfigStep>,
}

impl ConfigChange {
    /// The keys of its steps with their new values; `None` if a key gets none.
    pub(crate) fn new_values(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.steps.iter().map(|step| (step.name.as_str(), step.value.as_deref()))
    }
}

/// One change of a key.
#[derive(Clone, Debug)]
pub(crate) struct ConfigStep {
    pub(crate) name: String,
    /// `None` if the operation is unknown.
    pub(crate) operation: Option<ConfigOperation>,
    pub(crate) value: Option<String>,
}

/// Kafka's `AlterConfigOp.OpType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConfigOperation {
    Set,
    Delete,
    Append,
    Subtract,
}
