//! What a shard still remembers of things under way, for those who look for what it never forgets.

use crate::shard::Shard;

impl Shard {
    /// Answers, publishes, commits and ends of sessions that are under way, and messages that are in memory until the
    /// disk has them. None when everything has come to rest.
    pub fn unfinished(&mut self) -> usize {
        let slots: Vec<u32> = self.deliveries.sessions.slots_from(0).collect();
        let rare = slots.into_iter().filter_map(|slot| {
            let rare = self.deliveries.sessions.at(slot).rare.as_ref()?;
            Some(rare.answers.len() + rare.under_way.len() + rare.given.len() + rare.early.len())
        });
        let sessions: usize = rare.sum();
        let journals: usize = self.deliveries.journals.iter().map(crate::journal::Journal::unfinished).sum();
        sessions + journals + self.commits.unfinished() + self.ending.len() + self.departed.len()
    }
}
