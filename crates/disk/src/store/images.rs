//! Capturing a store: an image of all its logs at one moment.

use mainstem_log::{Error, LogId, State, Store, StoreImage};

use super::{LogEntry, SegmentStore};
use crate::checkpoint::Known;
use crate::image::Capturing;
use crate::scan::Place;
use crate::single::Log;

impl SegmentStore {
    /// Implements [`mainstem_log::Store::capture`].
    pub(super) fn capture_logs(&mut self) -> Result<(), Error> {
        self.commit();
        let mut capturing = Capturing::new(self.disk.fs.clone(), self.dir.clone());
        for (name, place) in &self.names {
            let LogEntry::Open(log) = place else {
                return Err(Error::System(format!("log {name} was not opened since the start")));
            };
            let log = self.log(*log);
            if log.state == State::Broken {
                return Err(Error::Broken);
            }
            if let Some(refusal) = log.refusal() {
                return Err(refusal.clone());
            }
            let end = log.positions.head();
            if log.is_new && end == Place::beginning(log.segments[0].base) {
                // Without a record, it does not exist after a crash either.
                continue;
            }
            let known = Known {
                start: log.start.offset().min(end.offset),
                cleaned: log.cleaning.cleaned().min(end.offset),
                sparse: log.cleaning.sparse(),
                committed: end,
            };
            capturing.add(&log.dir, known, &log.segments, log.is_durable_to(end));
        }
        self.capturing = Some(capturing);
        Ok(())
    }

    /// Implements [`mainstem_log::Store::take_image`].
    pub(super) fn take_captured(&mut self) -> Result<Option<Box<dyn StoreImage>>, Error> {
        let Some(capturing) = self.capturing.take() else { return Ok(None) };
        self.process_reports();
        let logs = &self.logs;
        let is_durable = |log: LogId, end: Place| match logs[log.0 as usize].as_deref() {
            None => Err(Error::System("a log was removed while it was captured".into())),
            Some(log) if log.state == State::Broken => Err(Error::Broken),
            Some(log) if log.positions.head() < end => {
                Err(Error::System(format!("log {} lost its end while it was captured", log.dir.name())))
            }
            Some(log) => Ok(log.is_durable_to(end)),
        };
        match capturing.finish(is_durable)? {
            Ok(image) => Ok(Some(Box::new(image))),
            Err(waiting) => {
                self.capturing = Some(waiting);
                Ok(None)
            }
        }
    }
}

impl Log {
    /// Whether everything up to `end` is durable, and its segments have their names.
    fn is_durable_to(&self, end: Place) -> bool {
        self.positions.committed().offset >= end.offset && self.unnamed().is_none_or(|base| base > end.base)
    }
}
