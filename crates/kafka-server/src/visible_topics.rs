//! The catalogue as the groups see it in a request: what the sender may know of, and how much was looked at.

use std::cell::Cell;

use mainstem_coordinator::group::{Topic, Topics};
use mainstem_security::Action;

use crate::catalogue::{self, Catalogue};
use crate::shard_message::RequestContext;

/// Topics looked at, and members and partitions of a new assignment, for one unit of work.
const ITEMS_PER_UNIT: usize = 2;

/// The topics that a member may know of.
pub(crate) struct VisibleTopics<'a> {
    catalogue: &'a Catalogue,
    call: Option<&'a RequestContext>,
    /// Number of topics that were looked at.
    looked_at: Cell<usize>,
}

impl<'a> VisibleTopics<'a> {
    /// The topics that the sender of a request may know of.
    pub(crate) fn new(catalogue: &'a Catalogue, call: &'a RequestContext) -> Self {
        Self { catalogue, call: Some(call), looked_at: Cell::new(0) }
    }

    /// All topics.
    pub(crate) fn all(catalogue: &'a Catalogue) -> Self {
        Self { catalogue, call: None, looked_at: Cell::new(0) }
    }

    /// Work of looking at topics and of assignments, units.
    pub(crate) fn units(&self, assigned: usize) -> u32 {
        u32::try_from((self.looked_at.get() + assigned) / ITEMS_PER_UNIT).unwrap_or(u32::MAX)
    }

    fn look_at(&self, topic: &catalogue::Topic) -> Topic {
        self.looked_at.set(self.looked_at.get() + 1);
        Topic { id: topic.id.0, partitions: topic.partitions() }
    }
}

impl Topics for VisibleTopics<'_> {
    fn version(&self) -> u64 {
        self.catalogue.version
    }

    fn topic(&self, name: &str) -> Option<Topic> {
        self.catalogue.topic(name).map(|topic| self.look_at(topic))
    }

    fn for_each(&self, visit: &mut dyn FnMut(&str, Topic)) {
        for (name, topic) in self.catalogue.by_name.iter() {
            let seen = self.look_at(topic);
            if self.call.is_none_or(|call| call.may_topic(Action::Describe, name)) {
                visit(name, seen);
            }
        }
    }
}
