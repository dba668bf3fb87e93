//! The tickets of one log: that of the appends since the last commit, and how many the committer still has.

use mainstem_log::{Error, LogId, Ticket};

use crate::commit::Ack;
use crate::scan::Place;

/// Tickets of a log that are not complete.
#[derive(Debug, Default)]
pub(crate) struct Tickets {
    /// Ticket of the appends since the last commit.
    current: Option<Ticket>,
    /// Whether the next commit is synced regardless of the options.
    forces_sync: bool,
    /// Number of tickets submitted and not yet reported.
    submitted: usize,
}

impl Tickets {
    /// Ticket of the appends since the last commit; `next` if there were none.
    #[inline]
    pub(crate) fn current_or(&mut self, next: impl FnOnce() -> Ticket) -> Ticket {
        *self.current.get_or_insert_with(next)
    }

    /// Syncs the next commit regardless of the options.
    pub(crate) fn force_sync(&mut self) {
        self.forces_sync = true;
    }

    pub(crate) fn forces_sync(&self) -> bool {
        self.forces_sync
    }

    /// The forced sync is submitted.
    pub(crate) fn sync_submitted(&mut self) {
        self.forces_sync = false;
    }

    /// Whether the committer has to report a ticket.
    pub(crate) fn has_submitted(&self) -> bool {
        self.submitted > 0
    }

    /// Takes the current ticket, to complete it without the committer.
    pub(crate) fn take(&mut self) -> Option<Ticket> {
        self.current.take()
    }

    /// Takes the current ticket, to complete it with a report of the committer. `None` if nothing was appended.
    pub(crate) fn submit(
        &mut self,
        log: LogId,
        end: Place,
        is_synced: bool,
        outcome: Result<(), Error>,
    ) -> Option<Ack> {
        let ticket = self.current.take()?;
        self.submitted += 1;
        Some(Ack { ticket: Some(ticket), is_synced, outcome, ..Ack::of(log, end) })
    }

    /// Counts the tickets of a report.
    ///
    /// # Panics
    /// If one of them was reported before.
    pub(crate) fn on_report(&mut self, ack: &Ack) {
        let acknowledged = usize::from(ack.ticket.is_some()) * (1 + ack.earlier);
        assert!(self.submitted >= acknowledged, "log {}: a ticket completes once", ack.log.0);
        self.submitted -= acknowledged;
    }
}
