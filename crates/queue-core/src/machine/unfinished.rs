//! Lists the work that a queue still remembers, so that tests find state that is never released.

use super::Queue;
use crate::group::Group;

impl Queue {
    /// Names the collections with entries for unsettled messages, or for settlements that are not durable. It is
    /// empty when all work is done: identifiers, transfer numbers and duplicates do not count.
    pub fn unfinished(&self) -> Vec<&'static str> {
        let of_groups = self.groups.values().flat_map(Group::unfinished);
        let of_messages = self.shared.messages.unfinished();
        let own = [
            ("settlements that block keys", !self.shared.key_releases.is_empty()),
            ("groups with new transfers", !self.shared.transferring.is_empty()),
            ("removed groups", !self.groups.removed().is_empty()),
        ];
        own.into_iter()
            .chain(of_messages)
            .chain(of_groups)
            .filter(|(_, is)| *is)
            .map(|(name, _)| name)
            .collect()
    }
}
