//! What a shard remembers of work in progress, and what its sessions cost, for tests that look for leaks.

use super::Shard;
use crate::session::account::subscription_cost;

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

    /// The accounts of all sessions, bytes: what each says, and what it should say by what the session keeps.
    pub fn accounts(&mut self) -> Vec<(u64, u64)> {
        let routes = &self.shared.routes;
        let slots = self.sessions.slots().into_iter();
        let account = |slot| {
            let session = self.sessions.at(slot);
            let names = session.subscriptions().iter().filter_map(|known| routes.name(known.filter));
            let plain: usize = names.map(|name| subscription_cost(&name, "")).sum();
            let groups = session.groups().iter().map(|group| subscription_cost(&group.filter, &group.name));
            let shared = groups.sum::<usize>();
            let consumers = session.consumers_mut().into_iter().flat_map(|known| known.subscriptions());
            let queues: usize = consumers.map(|known| subscription_cost(known.filter(), "")).sum();
            session.recomputed_memory(plain + shared + queues)
        };
        slots.map(account).collect()
    }
}
