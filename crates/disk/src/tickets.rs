//! The tickets of one log: that of the appends since the last commit, and how many the committer still has.

use mainstem_log::{Error, LogId, Ticket};

use crate::group::Ack;
use crate::scan::Place;

/// Tickets of a log that are not complete.
#[derive(Debug, Default)]
pub(crate) struct Tickets {
    /// Ticket of the appends since the last commit.
    current: Option<Ticket>,
    /// The last ticket of earlier commits that the committer was not given yet, and how many come before it.
    held: Option<(Ticket, usize)>,
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

    /// Whether there are appends since the last commit.
    pub(crate) fn has_current(&self) -> bool {
        self.current.is_some()
    }

    /// Keeps the current ticket for a later commit.
    pub(crate) fn hold(&mut self) {
        if let Some(ticket) = self.current.take() {
            let earlier = self.held.map_or(0, |(_, earlier)| earlier + 1);
            self.held = Some((ticket, earlier));
        }
    }

    /// Takes the newest ticket, to complete it and those before without the committer.
    pub(crate) fn take(&mut self) -> Option<Ticket> {
        let held = self.held.take();
        self.current.take().or(held.map(|(ticket, _)| ticket))
    }

    /// Takes the newest ticket, to complete it and those before with a report of the committer. `None` if nothing was
    /// appended.
    pub(crate) fn submit(
        &mut self,
        log: LogId,
        end: Place,
        is_synced: bool,
        outcome: Result<(), Error>,
    ) -> Option<Ack> {
        let (ticket, earlier) = match (self.current.take(), self.held.take()) {
            (Some(ticket), None) => (ticket, 0),
            (Some(ticket), Some((_, earlier))) => (ticket, earlier + 1),
            (None, held) => held?,
        };
        self.submitted += 1 + earlier;
        Some(Ack { ticket: Some(ticket), is_synced, outcome, earlier, ..Ack::of(log, end) })
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
