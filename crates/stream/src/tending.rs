//! What goes on without anybody asking: partitions that nobody has opened since the start, and what stores do by
//! themselves. Retention and compaction need a log to be open.

use std::collections::VecDeque;

use mainstem_log::Options;
use mainstem_runtime::Io;

use crate::catalogue::{Catalogue, PartitionId, from_hex};
use crate::mail::Mail;
use crate::shard::{Shard, StoreAt, Timer};

/// Logs that are opened in one turn: each may have to be recovered.
const OPENED_MAX: usize = 8;
/// When stores go on that have more to do than one piece, ms.
const BUSY_MS: u64 = 10;

/// What is left to do.
#[derive(Debug, Default)]
pub(crate) struct Tending {
    /// Partitions that have not been opened since the start.
    unopened: VecDeque<PartitionId>,
    /// Logs whose topic was deleted when the broker ended before they were removed: store and name.
    orphans: VecDeque<(usize, String)>,
    /// The timer of stores that have more to do is set.
    is_going_on: bool,
}

impl Tending {
    /// The logs that `stores` have, by what the catalogue knows of their topics.
    pub(crate) fn find(stores: &[StoreAt], catalogue: &Catalogue) -> Self {
        let mut found = Self::default();
        for (at, StoreAt { home, store }) in stores.iter().enumerate() {
            for name in store.names() {
                let Some(id) = partition_of(&name) else { continue };
                let topic = catalogue.topic_by_id(id.topic);
                if topic.is_some_and(|topic| topic.home(id.index) == Some(*home)) {
                    found.unopened.push_back(id);
                } else {
                    found.orphans.push_back((at, name));
                }
            }
        }
        found
    }
}

impl Tending {
    /// Whether the partition has a log that has not been opened since the start.
    pub(crate) fn is_unopened(&self, id: PartitionId) -> bool {
        self.unopened.contains(&id)
    }
}

/// The partition whose log has this name; nothing if it is another log.
fn partition_of(name: &str) -> Option<PartitionId> {
    let (topic, index) = name.strip_prefix("p-")?.split_once('-')?;
    Some(PartitionId { topic: from_hex(topic)?, index: index.parse().ok()? })
}

impl Shard {
    /// Opens some of the partitions that nobody has opened, and removes logs that should have been removed.
    pub(crate) fn open_some(&mut self, io: &mut Io<'_, Mail>) {
        for _ in 0..OPENED_MAX {
            if let Some(id) = self.tending.unopened.pop_front() {
                if let Err(code) = self.partition(id) {
                    log::debug!("partition {} of a topic is left closed: {code}", id.index);
                }
            } else if let Some((at, name)) = self.tending.orphans.pop_front() {
                let store = &mut *self.stores[at].store;
                let removed = store.open(&name, &Options::default()).and_then(|log| store.remove(log));
                if let Err(error) = removed {
                    log::error!("log {name} of a deleted topic could not be removed: {error}");
                }
            } else {
                return;
            }
        }
        io.again_soon();
    }

    /// Lets stores do a piece of what is due by itself. Those that have more to do go on soon.
    pub(crate) fn tend(&mut self, io: &mut Io<'_, Mail>) {
        let unix_ms = io.clock.unix_ms;
        let mut is_busy = false;
        for StoreAt { store, .. } in &mut self.stores {
            is_busy |= store.tend(unix_ms).is_some_and(|due_ms| due_ms <= unix_ms);
        }
        if is_busy && !std::mem::replace(&mut self.tending.is_going_on, true) {
            io.set_timer(io.clock.now_ms + BUSY_MS, Timer::TendMore.token());
        }
    }

    /// Stores that had more to do go on.
    pub(crate) fn tend_more(&mut self, io: &mut Io<'_, Mail>) {
        self.tending.is_going_on = false;
        self.tend(io);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstem_kafka::Uuid;

    #[test]
    fn names_of_partitions_lead_back_to_them() {
        let id = PartitionId { topic: Uuid([0xa5; 16]), index: 12 };
        assert_eq!(partition_of(&crate::partition::log_name(id)), Some(id));
        for other in ["kafka-catalogue", "p-", "p-12-0", "p-a5-x", "journal"] {
            assert_eq!(partition_of(other), None, "{other}");
        }
    }
}
