//! Partitions that nobody has written to. They have no log: one takes a directory, a file and their syncs, and many
//! partitions are only looked at. Whoever reads finds them empty.

use hashbrown::HashMap;
use mainstem_kafka::ErrorCode;
use mainstem_runtime::Io;

use crate::catalogue::PartitionId;
use crate::mail::{Mail, Watcher};
use crate::partition::Reach;
use crate::shard::Shard;
use crate::work::{PartAnswer, PartAsk};

/// Who waits for the first record of partitions without a log.
pub(crate) type Unmade = HashMap<PartitionId, Vec<Watcher>, foldhash::fast::RandomState>;

impl Shard {
    /// Whether a partition that is to be here has no log.
    pub(crate) fn is_unmade(&mut self, id: PartitionId) -> bool {
        if self.partitions.contains_key(&id) || self.tending.is_unopened(id) {
            return false;
        }
        self.shared.refresh(&mut self.catalogue);
        self.owner_of(id) == Ok(self.me)
    }

    /// How far a partition that is here reaches.
    ///
    /// # Errors
    /// There is none, or it cannot be opened.
    pub(crate) fn reach_here(&mut self, id: PartitionId) -> Result<Reach, ErrorCode> {
        if self.is_unmade(id) {
            return Ok(Reach::default());
        }
        let (partition, store) = self.partition(id)?;
        Ok(partition.reach(store))
    }

    /// Lets a parked fetch hear of news in a partition that is here.
    pub(crate) fn watch(&mut self, id: PartitionId, watcher: Watcher) {
        if let Some(partition) = self.partitions.get_mut(&id) {
            partition.watch(watcher);
        } else if self.is_unmade(id) {
            let watchers = self.unmade.entry(id).or_default();
            if !watchers.contains(&watcher) {
                watchers.push(watcher);
            }
        }
    }

    /// Lets a fetch that has ended hear no more.
    pub(crate) fn forget_watcher(&mut self, id: PartitionId, watcher: Watcher) {
        if let Some(partition) = self.partitions.get_mut(&id) {
            partition.forget(watcher);
        } else if let Some(watchers) = self.unmade.get_mut(&id) {
            watchers.retain(|known| *known != watcher);
            if watchers.is_empty() {
                self.unmade.remove(&id);
            }
        }
    }

    /// A partition has its log: who has waited for that goes on waiting there.
    pub(crate) fn is_made(&mut self, id: PartitionId) {
        let watchers = self.unmade.remove(&id).unwrap_or_default();
        if let Some(partition) = self.partitions.get_mut(&id) {
            for watcher in watchers {
                partition.watch(watcher);
            }
        }
    }

    /// A partition without a log is no more: who waits for it finds out.
    pub(crate) fn forget_unmade(&mut self, io: &mut Io<'_, Mail>, id: PartitionId) {
        for watcher in self.unmade.remove(&id).unwrap_or_default() {
            self.tell_news(io, watcher);
        }
    }
}

/// What is to be said of a partition in which there has never been anything.
///
/// # Errors
/// What there would be.
pub(crate) fn answer(ask: &PartAsk) -> Result<PartAnswer, ErrorCode> {
    Ok(match *ask {
        PartAsk::Offset { timestamp_ms, .. } => {
            return crate::handlers::list_offsets::find_in_nothing(timestamp_ms);
        }
        PartAsk::DeleteBefore(0 | -1) => PartAnswer::DeletedBefore(0),
        PartAsk::DeleteBefore(_) => return Err(ErrorCode::OffsetOutOfRange),
        PartAsk::Reach => PartAnswer::Reach(Reach::default()),
        PartAsk::Producers => PartAnswer::Producers(Vec::new()),
        PartAsk::Size => PartAnswer::Size { bytes: 0 },
    })
}
