//! Server-side assignors (KIP-848): which member of a group gets which partitions.
//!
//! An assignor is a pure function of the members, their subscriptions and targets, and the partition counts of the
//! topics. Every partition of a topic with at least one subscriber gets exactly one owner, and the owner subscribes to
//! the topic.
//!
//! [`assign`] sorts the members first, so the result does not depend on the order in which the caller lists them.
//! Static members come first, by instance id, as in Kafka's range assignor: a static member that restarts under a new
//! member id keeps its place, and so its partitions.
//!
//! Most groups have few distinct subscriptions. [`GroupSpec`] looks up each of them once, which keeps a large group
//! with many topics fast.

mod range;
#[cfg(test)]
mod tests;
mod uniform;

use std::collections::{BTreeMap, BTreeSet};

use super::partitions::{Partitions, TopicPartition};

/// Who decides which member gets which partitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Assignor {
    /// Balances the number of partitions per member, and moves few of them.
    #[default]
    Uniform,
    /// Gives each member a range of each topic, so that topics with equally many partitions are co-partitioned.
    Range,
}

impl Assignor {
    /// The name that clients choose it by.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Range => "range",
        }
    }

    /// The assignor with this name.
    pub(super) fn by_name(name: &str) -> Option<Self> {
        [Self::Uniform, Self::Range].into_iter().find(|assignor| assignor.name() == name)
    }
}

/// What an assignor knows of a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subscriber<'a> {
    /// Member id, unique in the group.
    pub(super) member_id: &'a str,
    /// Instance id of a static member (KIP-345).
    pub(super) instance_id: Option<&'a str>,
    /// Ids of the topics it subscribes to, whether they exist or not.
    pub(super) topics: &'a BTreeSet<[u8; 16]>,
    /// Its target so far. May hold partitions that do not exist, or of topics it no longer subscribes to.
    pub(super) target: &'a Partitions,
}

/// Assigns each partition of each topic to one of the members that subscribe to it. Returns the partitions of each
/// member, in the order of `subscribers`.
///
/// `topics` holds the number of partitions of each topic that exists. Subscriptions to other topics are ignored.
pub(super) fn assign(
    assignor: Assignor,
    subscribers: &[Subscriber<'_>],
    topics: &BTreeMap<[u8; 16], i32>,
) -> Vec<Partitions> {
    let mut order: Vec<usize> = (0..subscribers.len()).collect();
    order.sort_by_key(|&index| {
        let Subscriber { member_id, instance_id, .. } = subscribers[index];
        (instance_id.is_none(), instance_id, member_id)
    });
    let spec = GroupSpec::new(order.iter().map(|&index| subscribers[index]).collect(), topics);
    let assignment = match assignor {
        Assignor::Uniform => uniform::assign(&spec),
        Assignor::Range => range::assign(&spec),
    };
    let mut by_subscriber = vec![Partitions::new(); subscribers.len()];
    for (index, partitions) in order.into_iter().zip(assignment) {
        by_subscriber[index] = partitions;
    }
    by_subscriber
}

/// A topic that exists and has subscribers.
#[derive(Clone, Copy, Debug)]
struct Topic {
    id: [u8; 16],
    partition_count: i32,
}

impl Topic {
    fn partition(&self, partition: i32) -> TopicPartition {
        TopicPartition { topic_id: self.id, partition }
    }
}

/// The input of an assignor. Members and topics are numbered from 0.
#[derive(Debug)]
struct GroupSpec<'a> {
    /// In the order of assignment.
    members: Vec<Subscriber<'a>>,
    /// Ordered by id.
    topics: Vec<Topic>,
    /// The distinct subscriptions: topics, ascending.
    subscriptions: Vec<Vec<usize>>,
    /// Which of the subscriptions a member has.
    subscription_by_member: Vec<usize>,
}

impl<'a> GroupSpec<'a> {
    fn new(members: Vec<Subscriber<'a>>, partition_counts: &BTreeMap<[u8; 16], i32>) -> Self {
        let mut distinct = BTreeMap::new();
        let mut topic_sets: Vec<&BTreeSet<[u8; 16]>> = Vec::new();
        let mut subscription_by_member = Vec::with_capacity(members.len());
        for member in &members {
            subscription_by_member.push(*distinct.entry(member.topics).or_insert_with(|| {
                topic_sets.push(member.topics);
                topic_sets.len() - 1
            }));
        }
        let ids: BTreeSet<[u8; 16]> = topic_sets.iter().copied().flatten().copied().collect();
        let existing = |id| Some(Topic { id, partition_count: (*partition_counts.get(&id)?).max(0) });
        let mut spec = Self {
            members,
            topics: ids.into_iter().filter_map(existing).collect(),
            subscriptions: Vec::with_capacity(topic_sets.len()),
            subscription_by_member,
        };
        for topics in topic_sets {
            spec.subscriptions.push(topics.iter().filter_map(|id| spec.topic(id)).collect());
        }
        spec
    }

    /// Number of the topic with this id.
    fn topic(&self, id: &[u8; 16]) -> Option<usize> {
        self.topics.binary_search_by_key(id, |topic| topic.id).ok()
    }

    /// The topics that a member subscribes to, ascending.
    fn subscription(&self, member: usize) -> &[usize] {
        &self.subscriptions[self.subscription_by_member[member]]
    }
}
