//! The groups of a queue: their names and numbers, and groups that were removed and still have messages to release.
//!
//! Events refer to groups by number. A number is never that of two groups at a time, and a group that is created again
//! under its name gets higher transfer numbers than before: other queues discard messages by these numbers, and would
//! take new messages for old ones.
//!
//! Removing a group with a million messages would stall the shard. It leaves the table at once, and its messages are
//! released over several calls.

use std::collections::BTreeMap;
use std::ops::Index;

use crate::event::Malformed;
use crate::group::Group;
use crate::request::{DEFAULT_GROUP, GroupName};

/// Limit of groups.
pub(crate) const GROUPS_MAX: usize = 256;
/// Number of the group `default`.
pub(crate) const DEFAULT_ID: u32 = 0;

/// The groups of a queue. Each has one name and one number, and neither is that of another group.
#[derive(Debug)]
pub(crate) struct GroupTable {
    by_id: BTreeMap<u32, Group>,
    names: BTreeMap<GroupName, u32>,
    next_id: u32,
    /// Highest transfer number of a removed group.
    last_number: u64,
    /// Removed groups with messages that are not released yet.
    removed: Vec<Group>,
    /// Flush that records the creation of the newest group.
    created_by_flush: u64,
}

impl Default for GroupTable {
    /// A table with the group `default`.
    fn default() -> Self {
        let name: GroupName = DEFAULT_GROUP.into();
        let id = DEFAULT_ID;
        Self {
            by_id: BTreeMap::from([(id, Group::new(id, name.clone(), 0))]),
            names: BTreeMap::from([(name, id)]),
            next_id: id + 1,
            last_number: 0,
            removed: Vec::new(),
            created_by_flush: 0,
        }
    }
}

impl Index<u32> for GroupTable {
    type Output = Group;

    fn index(&self, id: u32) -> &Group {
        &self.by_id[&id]
    }
}

impl GroupTable {
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn contains(&self, id: u32) -> bool {
        self.by_id.contains_key(&id)
    }

    pub(crate) fn get(&self, id: u32) -> Option<&Group> {
        self.by_id.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut Group> {
        self.by_id.get_mut(&id)
    }

    pub(crate) fn id_of(&self, name: &str) -> Option<u32> {
        self.names.get(name).copied()
    }

    /// Numbers of the groups, in the order of their creation.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u32> {
        self.by_id.keys().copied()
    }

    /// In the order of their creation.
    pub(crate) fn values(&self) -> impl Iterator<Item = &Group> {
        self.by_id.values()
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut Group> {
        self.by_id.values_mut()
    }

    /// In the order of their names.
    pub(crate) fn by_name(&self) -> impl Iterator<Item = &Group> {
        self.names.values().filter_map(|id| self.by_id.get(id))
    }

    /// The first group with this number or a higher one.
    pub(crate) fn first_from(&self, id: u32) -> Option<&Group> {
        self.by_id.range(id..).next().map(|(_, group)| group)
    }

    /// Creates a group, whose creation is recorded by this flush. The name must be unused.
    pub(crate) fn create(&mut self, name: &GroupName, flush: u64) -> &Group {
        let id = self.next_id;
        self.next_id += 1;
        self.created_by_flush = flush;
        let group = Group::created_by(flush, id, name.clone(), self.last_number);
        let before = self.names.insert(name.clone(), id);
        debug_assert!(before.is_none(), "a name belongs to one group");
        self.by_id.entry(id).or_insert(group)
    }

    /// Whether the creation of the group is not durable, if flushes up to `durable_to` are.
    pub(crate) fn is_pending_creation(&self, id: u32, durable_to: u64) -> bool {
        // Nearly always the creation of every group is durable.
        self.created_by_flush > durable_to && self.get(id).is_some_and(|group| !group.is_created(durable_to))
    }

    /// Restores a group from its event. It replaces a group with the same number.
    pub(crate) fn restore(&mut self, id: u32, name: &str, last_number: u64) -> Result<(), Malformed> {
        if self.id_of(name).is_some_and(|other| other != id) {
            return Err(Malformed("two groups have the same name"));
        }
        if self.len() >= GROUPS_MAX && !self.contains(id) {
            return Err(Malformed("there are too many groups"));
        }
        let next_id = id.checked_add(1).ok_or(Malformed("a group number is out of bounds"))?;
        self.next_id = self.next_id.max(next_id);
        if let Some(old) = self.by_id.remove(&id) {
            self.names.remove(old.name());
        }
        self.names.insert(name.into(), id);
        self.by_id.insert(id, Group::new(id, name.into(), last_number));
        Ok(())
    }

    /// Removes a group and returns it. Later groups use higher transfer numbers.
    pub(crate) fn remove(&mut self, id: u32) -> Option<Group> {
        let gone = self.by_id.remove(&id)?;
        self.names.remove(gone.name());
        self.last_number = self.last_number.max(gone.last_number());
        Some(gone)
    }

    // --- removed groups

    /// Removes a group that has messages to release. Returns false if there is none with this number.
    pub(crate) fn retire(&mut self, id: u32) -> bool {
        let Some(mut gone) = self.remove(id) else { return false };
        gone.retire(self.next_id);
        self.removed.push(gone);
        true
    }

    /// Removed groups with messages to release.
    pub(crate) fn removed(&self) -> &[Group] {
        &self.removed
    }

    /// Takes a removed group, to release its messages.
    pub(crate) fn pop_removed(&mut self) -> Option<Group> {
        self.removed.pop()
    }

    /// The removed group has more messages to release.
    pub(crate) fn return_removed(&mut self, gone: Group) {
        self.removed.push(gone);
    }

    /// All groups, and then the removed ones.
    pub(crate) fn with_removed(&self) -> impl Iterator<Item = &Group> {
        self.by_id.values().chain(&self.removed)
    }

    pub(crate) fn with_removed_mut(&mut self) -> impl Iterator<Item = &mut Group> {
        self.by_id.values_mut().chain(&mut self.removed)
    }

    // --- transfer numbers

    /// The highest transfer number of a removed group.
    pub(crate) fn last_number(&self) -> u64 {
        self.last_number
    }

    /// Restores the highest transfer number of a removed group.
    pub(crate) fn set_last_number(&mut self, number: u64) {
        self.last_number = number;
    }

    /// Makes future transfer numbers of all groups higher than this one.
    pub(crate) fn skip_numbers_to(&mut self, number: u64) {
        self.last_number = self.last_number.max(number);
        for group in self.by_id.values_mut() {
            group.skip_numbers_to(number);
        }
    }
}
