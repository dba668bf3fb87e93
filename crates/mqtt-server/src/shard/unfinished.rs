//! What a shard remembers of work in progress, for tests that look for leaks.

use super::Shard;

impl Shard {
    /// Number of acks, publishes, commits and session ends in progress, and of messages held in memory until they are
    /// on disk. 0 when everything has come to rest.
    pub fn unfinished(&mut self) -> usize {
        let sessions = self.sessions.slots().into_iter().filter_map(|slot| {
            let ext = self.sessions.at(slot).ext_ref()?;
            Some(ext.acks.len() + ext.qos2.len() + ext.reassigned.len() + ext.retained.early_topics())
        });
        let sessions: usize = sessions.sum();
        sessions + self.persistence.unfinished() + self.endings.len()
    }
}
