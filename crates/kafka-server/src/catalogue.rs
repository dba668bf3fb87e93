//! The topic catalogue of [`mainstem_partition`] with the configuration that this server gives a topic.

pub(crate) use mainstem_partition::{PartitionId, TopicId, name_error, new_name_error};

use crate::topic_config::TopicConfig;

/// A topic.
pub(crate) type Topic = mainstem_partition::Topic<TopicConfig>;
/// All topics.
pub(crate) type Catalogue = mainstem_partition::Catalogue<TopicConfig>;
