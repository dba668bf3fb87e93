//! Opening and creating the logs of a store.

use std::io;

use mainstem_log::{LogId, Options};

use super::schedule::Due;
use super::{LogEntry, SegmentStore};
use crate::name;
use crate::recover::Prior;
use crate::single::Log;

impl SegmentStore {
    /// Opens a log that is not open, or creates it.
    pub(super) fn open_closed(&mut self, name: &str, options: &Options) -> io::Result<LogId> {
        let dir = self.dir.join(name::log_dir(name));
        let id = LogId(self.logs.len() as u32);
        let log = if self.names.contains_key(name) {
            let before = Prior { known: self.known.get(name).copied(), was_closed: self.was_closed };
            let log = Log::open(&mut self.disk, id, name, dir, options, &before)?;
            self.is_checkpoint_stale |=
                before.known.is_some_and(|known| log.positions.synced() < known.committed);
            log
        } else {
            self.finish_removal(name)?;
            let mut log = Log::uncreated(id, name, dir, options);
            if self.queue.has_thread() {
                log.request_file(&mut self.disk);
            } else {
                log.create_file(&mut self.disk)?;
            }
            log
        };
        self.logs.push(Some(Box::new(log)));
        self.schedule.set(id, Due::Now);
        self.names.insert(name.to_owned(), LogEntry::Open(id));
        self.refresh_checkpoint()?;
        Ok(id)
    }

    /// Whether the first file of a log exists, as far as it is open.
    pub(super) fn has_file(&self, log: LogId) -> bool {
        self.logs[log.0 as usize].as_ref().is_none_or(|log| log.has_file())
    }

    /// The committer has created these logs, or could not. Submits what waited for that.
    pub(super) fn on_created(&mut self, logs: &[LogId]) {
        if logs.is_empty() {
            return;
        }
        for log in logs {
            let Some(to) = &mut self.logs[log.0 as usize] else { continue };
            // Appends of this turn are committed together with those that waited.
            if to.on_created(&mut self.disk) && !to.tickets.has_current() {
                self.commit_log(*log);
            }
            self.schedule.set(*log, Due::Now);
        }
        let group = std::mem::take(&mut self.disk.group);
        self.queue.submit(group);
    }
}
