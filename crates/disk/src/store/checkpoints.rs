//! Checkpoints of a store, and the removed logs that the last one may contain.
//!
//! A checkpoint must never claim more of a log than exists. So it is rewritten before a log is shortened, and before a
//! new log gets the name of a removed one. Otherwise the committer writes it, after enough bytes or removals.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::{LogEntry, SegmentStore};
use crate::checkpoint::{self, Checkpoint, Known, Loaded};
use crate::deferred::CheckpointRequest;
use crate::fs::Fs;
use crate::name;

/// Number of logs removed since the last checkpoint, and share of all logs, from which on another one is written.
const REMOVED_MAX: usize = 1000;
const REMOVED_SHARE: usize = 4;

impl SegmentStore {
    /// Encodes a checkpoint of all logs.
    pub(super) fn checkpoint(&self) -> Vec<u8> {
        let known = |(name, place): (&String, &LogEntry)| match place {
            LogEntry::Open(log) => {
                let log = self.log(*log);
                if log.is_new {
                    // An entry claims that the log has a segment on disk.
                    return None;
                }
                // Appends that were not submitted may still be rolled back.
                let synced = log.positions.synced().min(log.positions.submitted());
                Some(Known {
                    start: log.start.offset().min(synced.offset),
                    cleaned: log.cleaning.cleaned().min(synced.offset),
                    sparse: log.cleaning.sparse().min(synced.offset),
                    committed: synced,
                })
            }
            LogEntry::Closed => self.known.get(name).copied(),
        };
        checkpoint::encode(self.names.iter().filter_map(|entry| Some((entry.0.as_str(), known(entry)?))))
    }

    /// Rewrites the checkpoint if the last one claims more than exists.
    pub(super) fn refresh_checkpoint(&mut self) -> io::Result<()> {
        if self.is_checkpoint_stale {
            let committer = self.queue.wait_for(None);
            checkpoint::store(&*self.disk.fs, &self.dir, &self.checkpoint())?;
            drop(committer);
            self.is_checkpoint_stale = false;
            self.gone.clear();
            self.removed_since_checkpoint = 0;
        }
        Ok(())
    }

    /// Lets the committer write a checkpoint, if enough has changed since the last one.
    pub(super) fn request_checkpoint_if_due(&mut self) {
        let removed_max = REMOVED_MAX.max(self.names.len() / REMOVED_SHARE);
        if self.since_checkpoint < self.checkpoint_bytes && self.removed_since_checkpoint < removed_max {
            return;
        }
        self.request_checkpoint();
    }

    /// Lets the committer write a checkpoint. Returns its number.
    pub(super) fn request_checkpoint(&mut self) -> u64 {
        let bytes = self.checkpoint();
        self.checkpoint_bytes = self.disk.settings.checkpoint_bytes.max(8 * bytes.len() as u64);
        self.since_checkpoint = 0;
        self.removed_since_checkpoint = 0;
        self.checkpoints += 1;
        self.disk.group.deferred.checkpoint = Some(CheckpointRequest { number: self.checkpoints, bytes });
        self.checkpoints
    }

    /// Makes sure that nothing is left of a removed log of this name: neither an entry in the checkpoint nor files. Its
    /// removal must be durable before a new log starts, or a power failure brings the old files back.
    pub(super) fn finish_removal(&mut self, name: &str) -> io::Result<()> {
        self.is_checkpoint_stale |= self.gone.contains_key(name);
        self.refresh_checkpoint()?;
        let Some(removed) = self.removing.get(name).copied() else { return Ok(()) };
        self.queue.break_hold();
        self.settle(removed);
        if self.removing.contains_key(name) {
            // An earlier attempt failed.
            self.queue.wait_for(Some(removed)).discard(&[name])?;
            self.removing.remove(name);
        }
        Ok(())
    }

    /// The committer has removed these logs, and stored the checkpoint with this number.
    pub(super) fn on_removed(&mut self, names: &[Arc<str>], checkpoint: Option<u64>) {
        for name in names {
            self.removing.remove(name);
        }
        if let Some(number) = checkpoint {
            self.stored_checkpoint = number;
            // It does not contain what was removed before it.
            self.gone.retain(|_, checkpoints| *checkpoints >= number);
        }
    }
}

fn has_files(fs: &dyn Fs, dir: &Path) -> bool {
    fs.list(dir).is_ok_and(|files| !files.is_empty())
}

/// Replaces a checkpoint that does not exist or is damaged. If there are logs, it was lost, and recovery then reads
/// them completely.
pub(super) fn replace_checkpoint<'a>(
    fs: &dyn Fs,
    dir: &Path,
    lost: &Loaded,
    names: impl Iterator<Item = &'a String>,
) -> io::Result<Checkpoint> {
    let has_segments = |name: &&String| has_files(fs, &dir.join(name::log_dir(name)));
    let known: Checkpoint = names.filter(has_segments).map(|name| (name.clone(), Known::LOST)).collect();
    if matches!(lost, Loaded::Damaged) {
        checkpoint::set_aside(fs, dir)?;
    }
    if !known.is_empty() {
        log::error!(
            "store {}: the checkpoint is missing or damaged; recovery reads every log completely, and removed records \
             may reappear at the beginning of logs",
            dir.display()
        );
    }
    let entries = known.iter().map(|(name, known)| (name.as_str(), *known));
    checkpoint::store(fs, dir, &checkpoint::encode(entries))?;
    Ok(known)
}
