//! What goes on without anybody asking: partitions that nobody has opened since the start, and what stores do by
//! themselves. Retention and compaction need a log to be open.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use mainstem_log::{LogId, Options};
use mainstem_runtime::Io;

use crate::catalogue::{Catalogue, PartitionId, from_hex};
use crate::mail::Mail;
use crate::partition::log_name;
use crate::queues::topic_of_state;
use crate::shard::{Shard, StoreAt, Timer};

/// Logs that are opened or removed in one turn: to recover one takes the disk its time.
const LOGS_MAX: usize = 8;
/// When stores go on that have more to do than one piece, ms.
const BUSY_MS: u64 = 10;

/// What is left to do.
#[derive(Debug, Default)]
pub(crate) struct Tending {
    /// Partitions that have a log which has not been opened since the start, and the stores they are in.
    unopened: BTreeMap<PartitionId, usize>,
    /// The last of them that has been tried.
    tried: Option<PartitionId>,
    /// Logs to be removed, and their stores.
    doomed: VecDeque<(usize, Doomed)>,
    /// The timer of stores that have more to do is set.
    is_going_on: bool,
}

/// A log of a topic that has been deleted.
#[derive(Debug)]
enum Doomed {
    Open(LogId),
    /// It has not been opened since the start.
    Closed(String),
}

impl Tending {
    /// The logs that `stores` have, by what the catalogue knows of their topics. Those that it does not know were to
    /// be removed when the broker ended.
    pub(crate) fn find(stores: &[StoreAt], catalogue: &Catalogue) -> Self {
        let mut found = Self::default();
        for (at, StoreAt { home, store }) in stores.iter().enumerate() {
            for name in store.names() {
                if topic_of_state(&name).is_some_and(|topic| catalogue.topic_by_id(topic).is_none()) {
                    found.doomed.push_back((at, Doomed::Closed(name)));
                    continue;
                }
                let Some(id) = partition_of(&name) else { continue };
                let topic = catalogue.topic_by_id(id.topic);
                if topic.is_some_and(|topic| topic.home(id.index) == Some(*home)) {
                    found.unopened.insert(id, at);
                } else {
                    found.doomed.push_back((at, Doomed::Closed(name)));
                }
            }
        }
        found
    }

    /// Whether the partition has a log that has not been opened since the start.
    pub(crate) fn is_unopened(&self, id: PartitionId) -> bool {
        self.unopened.contains_key(&id)
    }

    /// A partition's log has been opened.
    pub(crate) fn has_opened(&mut self, id: PartitionId) {
        self.unopened.remove(&id);
    }

    /// Has an open log removed before long.
    pub(crate) fn remove_log(&mut self, store: usize, log: LogId) {
        self.doomed.push_back((store, Doomed::Open(log)));
    }

    /// Has the log of a partition removed that has not been opened since the start. Returns its store, if it has one.
    pub(crate) fn remove_unopened(&mut self, id: PartitionId) -> Option<usize> {
        let store = self.unopened.remove(&id)?;
        self.doomed.push_back((store, Doomed::Closed(log_name(id))));
        Some(store)
    }

    /// Has the log of a queue's state removed that is not open, if there is one.
    pub(crate) fn remove_state(&mut self, stores: &[StoreAt], name: &str) {
        if let Some(at) = stores.iter().position(|at| at.store.names().iter().any(|known| known == name)) {
            self.doomed.push_back((at, Doomed::Closed(name.to_owned())));
        }
    }

    /// The next partition to be opened. One that cannot be is not tried again, but by who asks for it.
    fn next_unopened(&mut self) -> Option<PartitionId> {
        let from = self.tried.map_or(Bound::Unbounded, Bound::Excluded);
        let (id, _) = self.unopened.range((from, Bound::Unbounded)).next()?;
        self.tried = Some(*id);
        self.tried
    }
}

/// The partition whose log has this name; nothing if it is another log.
fn partition_of(name: &str) -> Option<PartitionId> {
    let (topic, index) = name.strip_prefix("p-")?.split_once('-')?;
    Some(PartitionId { topic: from_hex(topic)?, index: index.parse().ok()? })
}

impl Shard {
    /// Opens some of the partitions that nobody has opened, and removes some logs of deleted topics.
    pub(crate) fn open_some(&mut self, io: &mut Io<'_, Mail>) {
        for _ in 0..LOGS_MAX {
            if let Some(id) = self.tending.next_unopened() {
                if let Err(code) = self.partition(id) {
                    log::debug!("partition {} of a topic is left closed: {code}", id.index);
                }
            } else if let Some((at, doomed)) = self.tending.doomed.pop_front() {
                let store = &mut *self.stores[at].store;
                let log = match doomed {
                    Doomed::Open(log) => Ok(log),
                    Doomed::Closed(name) => store.open(&name, &Options::default()),
                };
                if let Err(error) = log.and_then(|log| store.remove(log)) {
                    log::error!("a log of a deleted topic could not be removed: {error}");
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
