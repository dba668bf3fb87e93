//! What a queue still remembers of messages under way, for those who look for what it never forgets.

use crate::group::Group;
use crate::machine::Queue;

impl Queue {
    /// Names what is remembered of messages that some group has not settled, or of which it is not durable that it has. None
    /// of it when everything has come to rest: then only identifiers, numbers and duplicates are known, which come again.
    pub fn unfinished(&self) -> Vec<&'static str> {
        let of_groups = self.groups.values().flat_map(Group::unfinished);
        let of_pool = self.shared.pool.unfinished();
        let own = [
            ("lines to be left", !self.shared.freeing.is_empty()),
            ("groups that messages leave", !self.shared.departed.is_empty()),
            ("removed groups", !self.remains.is_empty()),
        ];
        own.into_iter().chain(of_pool).chain(of_groups).filter(|(_, is)| *is).map(|(name, _)| name).collect()
    }
}
