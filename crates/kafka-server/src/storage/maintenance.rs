//! Logs that background work opens or removes, see `background_work.rs`.
//!
//! A log without a topic is left over from a deletion that the last shutdown interrupted.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use mainstem_log::{Error, LogId, Maintained, Options, StoreAt};

use crate::catalogue::{Catalogue, PartitionId, TopicId};

/// Pending background work.
#[derive(Debug, Default)]
pub(super) struct Maintenance {
    /// Partitions whose log has not been opened since the start, with their stores.
    unopened: BTreeMap<PartitionId, usize>,
    /// State logs of queues that exist since the start, with their stores.
    states: BTreeMap<String, usize>,
    /// The last one tried.
    tried: Option<PartitionId>,
    /// Logs to remove, with their stores.
    doomed: VecDeque<(usize, LogToRemove)>,
    /// The timer of further background work of the stores is set.
    has_timer: bool,
    /// Logs are due that did not fit into the turn.
    is_behind: bool,
    /// The store that comes first in the next turn.
    first_store: usize,
}

/// A log of a topic that has been deleted.
#[derive(Debug)]
enum LogToRemove {
    Open(LogId),
    /// The name of a log that is not open.
    Closed(String),
}

impl Maintenance {
    /// Classifies the logs of `stores`. A log whose topic is not in the catalogue belongs to a deleted topic.
    /// `topic_of_state` tells which logs hold the state of a queue.
    pub(super) fn find(
        stores: &[StoreAt],
        catalogue: &Catalogue,
        topic_of_state: fn(&str) -> Option<TopicId>,
    ) -> Self {
        let mut found = Self::default();
        for (at, StoreAt { store_id, store, .. }) in stores.iter().enumerate() {
            for name in store.names() {
                if let Some(topic) = topic_of_state(&name) {
                    if catalogue.topic_by_id(topic).is_none() {
                        found.doomed.push_back((at, LogToRemove::Closed(name)));
                    } else {
                        found.states.insert(name, at);
                    }
                    continue;
                }
                let Some(id) = PartitionId::from_log_name(&name) else { continue };
                let topic = catalogue.topic_by_id(id.topic);
                if topic.is_some_and(|topic| topic.store_id(id.index) == Some(*store_id)) {
                    found.unopened.insert(id, at);
                } else {
                    found.doomed.push_back((at, LogToRemove::Closed(name)));
                }
            }
        }
        found
    }

    /// Whether the partition has a log that is not open yet.
    pub(super) fn is_unopened(&self, id: PartitionId) -> bool {
        self.unopened.contains_key(&id)
    }

    /// A partition's log has been opened.
    pub(super) fn has_opened(&mut self, id: PartitionId) {
        self.unopened.remove(&id);
    }

    /// Schedules the removal of an open log.
    pub(super) fn remove_log(&mut self, store: usize, log: LogId) {
        self.doomed.push_back((store, LogToRemove::Open(log)));
    }

    /// Schedules the removal of a partition's log that is not open. Returns its store, if there is such a log.
    pub(super) fn remove_unopened(&mut self, id: PartitionId) -> Option<usize> {
        let store = self.unopened.remove(&id)?;
        self.doomed.push_back((store, LogToRemove::Closed(id.log_name())));
        Some(store)
    }

    /// Schedules the removal of a queue's state log that is not open, if there is one.
    pub(super) fn remove_state(&mut self, name: &str) {
        if let Some((name, at)) = self.states.remove_entry(name) {
            self.doomed.push_back((at, LogToRemove::Closed(name)));
        }
    }

    /// The next partition to open. A partition that fails to open is retried only when a client requests it.
    pub(super) fn next_unopened(&mut self) -> Option<PartitionId> {
        let from = self.tried.map_or(Bound::Unbounded, Bound::Excluded);
        let (id, _) = self.unopened.range((from, Bound::Unbounded)).next()?;
        self.tried = Some(*id);
        self.tried
    }

    /// Notes that the timer of further background work is needed. Returns false if it is set already.
    pub(super) fn request_timer(&mut self) -> bool {
        !std::mem::replace(&mut self.has_timer, true)
    }

    /// The timer of further background work has fired.
    pub(super) fn on_timer(&mut self) {
        self.has_timer = false;
    }

    /// Whether logs are due that did not fit into the last turn.
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Runs what is due in the stores, while `charge` accepts the work that was done. Returns when more is due; `None`
    /// if nothing is.
    pub(super) fn maintain(
        &mut self,
        stores: &mut [StoreAt],
        unix_ms: u64,
        mut charge: impl FnMut(u32) -> bool,
    ) -> Option<u64> {
        let (count, mut next_ms) = (stores.len(), None);
        self.is_behind = false;
        for _ in 0..count {
            // The stores take turns, so that none waits for another with much to do.
            let store = &mut *stores[self.first_store % count].store;
            self.first_store = (self.first_store + 1) % count;
            loop {
                let Maintained { due_ms, units } = store.maintain(unix_ms);
                let has_room = charge(units);
                if units == 0 || due_ms.is_none_or(|due_ms| due_ms > unix_ms) {
                    next_ms = next_ms.into_iter().chain(due_ms).min();
                    break;
                }
                if !has_room {
                    self.is_behind = true;
                    return Some(unix_ms);
                }
            }
        }
        next_ms
    }

    /// Removes the next log; `None` if there is none to remove.
    pub(super) fn remove_next(&mut self, stores: &mut [StoreAt]) -> Option<Result<(), Error>> {
        let (at, doomed) = self.doomed.pop_front()?;
        let store = &mut *stores[at].store;
        let log = match doomed {
            LogToRemove::Open(log) => Ok(log),
            LogToRemove::Closed(name) => store.open(&name, &Options::default()),
        };
        Some(log.and_then(|log| store.remove(log)))
    }
}
