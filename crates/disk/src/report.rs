//! What the committer tells the shard: how groups and deferred work went. Reports merge until the shard takes them.

use std::sync::Arc;

use mainstem_log::{Error, LogId};

use crate::failure::Failure;
use crate::group::Ack;

/// Results of groups.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) acks: Vec<Ack>,
    /// Logs that broke.
    pub(crate) broken: Vec<LogId>,
    /// Logs with old segments that could not be removed.
    pub(crate) stalled: Vec<LogId>,
    /// Names of logs of which nothing is left.
    pub(crate) removed: Vec<Arc<str>>,
    /// Number of the checkpoint that was stored last.
    pub(crate) checkpoint: Option<u64>,
    /// Logs whose files were created, or could not be.
    pub(crate) created: Vec<LogId>,
    /// Logs whose next segment cannot get its name now, and why.
    pub(crate) refused: Vec<(LogId, Error)>,
    /// Logs of which compacted segments have replaced others, or could not.
    pub(crate) replaced: Vec<(LogId, Result<(), Failure>)>,
}

impl Report {
    pub(crate) fn is_empty(&self) -> bool {
        let Self { acks, broken, stalled, removed, checkpoint, created, refused, replaced } = self;
        acks.is_empty()
            && broken.is_empty()
            && stalled.is_empty()
            && removed.is_empty()
            && checkpoint.is_none()
            && created.is_empty()
            && refused.is_empty()
            && replaced.is_empty()
    }

    pub(crate) fn append(&mut self, later: &mut Self) {
        self.acks.append(&mut later.acks);
        self.broken.append(&mut later.broken);
        self.stalled.append(&mut later.stalled);
        self.removed.append(&mut later.removed);
        self.checkpoint = later.checkpoint.or(self.checkpoint);
        self.created.append(&mut later.created);
        self.refused.append(&mut later.refused);
        self.replaced.append(&mut later.replaced);
    }
}
