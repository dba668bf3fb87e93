//! The model of one log: what must and what may exist after a restart.
//!
//! Completed appends must exist up to the offset that survives the kind of crash. Appends without a completion may or
//! may not exist. After an injected fault the visible state is uncertain until the next restart.

use std::collections::BTreeMap;
use std::fmt;

use mainstem_log::contract::ReferenceLog;
use mainstem_log::{Appended, Batch, Completion, Durability, Status, Ticket, batches};

use crate::incarnation::CommitMode;

/// How an incarnation ended, ordered by severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// The process ended, cleanly or not.
    Killed,
    /// The power failed.
    PowerLost,
}

/// An append without a completion.
#[derive(Clone, Debug)]
struct Pending {
    ticket: Ticket,
    base: u64,
    bytes: Vec<u8>,
}

/// Model of one log.
#[derive(Clone)]
pub(crate) struct Log {
    pub(crate) durability: Durability,
    start: u64,
    /// Lowest start offset after a crash: removed segments may reappear.
    start_after_crash: u64,
    end: u64,
    /// Completed batches by base offset, including those before the start.
    completed: BTreeMap<u64, Vec<u8>>,
    /// End of the last completed batch.
    completed_to: u64,
    /// Offset up to which the log survives a power failure; equals `completed_to` with `Durability::Fsync`.
    durable_to: u64,
    /// Ticket of a forced sync, and the offset it makes durable.
    synced: Option<(Ticket, u64)>,
    pending: Vec<Pending>,
    /// The newest ticket, if not completed.
    newest_ticket: Option<Ticket>,
    /// Range of tickets that were rolled back and must fail.
    rolled_back: Option<(Ticket, Ticket)>,
    /// Batches that may exist: appends that never completed or failed, by base offset.
    possible: BTreeMap<u64, Vec<Vec<u8>>>,
    /// Whether the log may be missing.
    may_be_missing: bool,
    /// Most severe end since the last check.
    ended: Option<End>,
    /// A fault happened: the visible state is undefined until the next restart.
    is_uncertain: bool,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let completed: Vec<u64> = self.completed.keys().copied().collect();
        let possible: Vec<u64> = self.possible.keys().copied().collect();
        write!(f, "starts at {}, after a crash from {} on,  ", self.start, self.start_after_crash)?;
        write!(f, "completed {completed:?} to {}, ", self.completed_to)?;
        write!(f, "durable to {}, possible {possible:?}, end {}", self.durable_to, self.end)?;
        write!(
            f,
            "; newest ticket {:?}, may be missing {}, ended {:?}",
            self.newest_ticket, self.may_be_missing, self.ended
        )
    }
}

fn end_of(batch: &[u8]) -> u64 {
    Batch::parse(batch).expect("a batch").header.end_offset()
}

impl Log {
    pub(crate) fn new(durability: Durability) -> Self {
        Self {
            durability,
            start: 0,
            start_after_crash: 0,
            end: 0,
            completed: BTreeMap::new(),
            completed_to: 0,
            durable_to: 0,
            synced: None,
            pending: Vec::new(),
            newest_ticket: None,
            rolled_back: None,
            possible: BTreeMap::new(),
            may_be_missing: true,
            ended: None,
            is_uncertain: false,
        }
    }

    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn is_uncertain(&self) -> bool {
        self.is_uncertain
    }

    /// Whether an append has no completion yet.
    pub(crate) fn has_pending(&self) -> bool {
        self.newest_ticket.is_some()
    }

    /// Records that the store opened the log.
    pub(crate) fn opened(&mut self) {
        self.may_be_missing = false;
    }

    /// Records a removal that may or may not be durable.
    pub(crate) fn mark_removed(&mut self) {
        self.may_be_missing = true;
        self.uncertain_from(0);
        self.start_after_crash = 0;
        self.pending.clear();
        (self.newest_ticket, self.rolled_back, self.synced) = (None, None, None);
    }

    /// Whether the log was removed in the current incarnation.
    pub(crate) fn is_removal_pending(&self) -> bool {
        self.may_be_missing && self.is_uncertain && self.ended.is_none()
    }

    /// Records that a sync may have failed: unsynced data may be lost.
    pub(crate) fn may_lose_unsynced(&mut self) {
        self.uncertain_from(self.durable_to);
    }

    /// From `offset` on, any earlier contents may exist, or nothing.
    fn uncertain_from(&mut self, offset: u64) {
        for (base, bytes) in self.completed.split_off(&offset) {
            self.possible.entry(base).or_default().push(bytes);
        }
        self.completed_to = self.completed_to.min(offset);
        self.durable_to = self.durable_to.min(offset);
        self.is_uncertain = true;
    }

    /// Records an append and its result. Without a result, because of a crash, the batch may or may not exist.
    pub(crate) fn append(&mut self, batch: &[u8], appended: Option<Appended>) {
        let base = appended.map_or(self.end, |appended| appended.base_offset);
        let mut bytes = batch.to_vec();
        Batch::place(&mut bytes, base, 0);
        self.possible.entry(base).or_default().push(bytes.clone());
        if let Some(Appended { ticket, .. }) = appended {
            assert!(
                self.newest_ticket.is_none_or(|newest| newest <= ticket),
                "tickets of one log must increase"
            );
            if base != self.end {
                assert!(self.is_uncertain, "offset {base}: {self:?}");
                self.pending.clear();
            }
            self.end = end_of(&bytes);
            self.newest_ticket = Some(ticket);
            self.pending.push(Pending { ticket, base, bytes });
        }
    }

    /// Records a failed append or sync, which rolls back all uncommitted appends.
    pub(crate) fn roll_back(&mut self, status: Status) {
        if status.end != self.end {
            let remaining = self.pending.iter().take_while(|pending| pending.base < status.end).count();
            let end = self.pending[..remaining].last().map_or(self.completed_to, |last| end_of(&last.bytes));
            assert_eq!(status.end, end.max(self.start), "the log must end at the committed offset: {self:?}");
            self.rolled_back =
                self.pending.get(remaining).map(|pending| pending.ticket).zip(self.newest_ticket);
            self.pending.truncate(remaining);
            self.end = status.end;
        }
    }

    pub(crate) fn complete(&mut self, completion: &Completion) {
        assert!(
            self.newest_ticket.is_some_and(|newest| completion.ticket <= newest),
            "a completion arrived for a ticket never issued"
        );
        if self.newest_ticket == Some(completion.ticket) {
            self.newest_ticket = None;
        }
        let (done, left) = self.pending.drain(..).partition(|pending| pending.ticket <= completion.ticket);
        self.pending = left;
        let done: Vec<Pending> = done;
        let is_within = |(first, last)| (first..=last).contains(&completion.ticket);
        if self.rolled_back.is_some_and(is_within) {
            assert!(completion.outcome.is_err(), "a rolled back append completed: {self:?}");
        }
        if completion.outcome.is_err() {
            if self.pending.is_empty() {
                self.end = self.completed_to.max(self.start());
            }
            return;
        }
        for Pending { base, bytes, .. } in done {
            self.completed_to = end_of(&bytes);
            self.completed.insert(base, bytes);
        }
        // Unsynced data may still be lost and replaced by earlier contents.
        let synced = self.synced.take_if(|(ticket, _)| *ticket <= completion.ticket).map(|(_, end)| end);
        let durable_to = match self.durability {
            Durability::Fsync => Some(self.completed_to),
            Durability::Os => synced.map(|end| end.min(self.completed_to)),
        };
        if let Some(durable_to) = durable_to.filter(|durable_to| *durable_to > self.durable_to) {
            self.durable_to = durable_to;
            if !self.is_uncertain {
                self.possible = self.possible.split_off(&durable_to);
            }
        }
    }

    /// Records that the next commit is synced.
    pub(crate) fn force_sync(&mut self) {
        self.synced = self.newest_ticket.map(|ticket| (ticket, self.end));
    }

    pub(crate) fn truncate_prefix(&mut self, offset: u64) {
        self.start = self.start.max(offset.min(self.end));
    }

    /// Raises the lowest start offset after a crash.
    pub(crate) fn set_start_after_crash(&mut self, offset: u64) {
        assert!(offset <= self.start, "from {offset}: {self:?}");
        self.start_after_crash = self.start_after_crash.max(offset);
    }

    /// Records a failure during a prefix truncation from `start`.
    pub(crate) fn failed(&mut self, start: u64, status: Status) {
        let is_between = (start..=self.start).contains(&status.start);
        assert!(is_between || self.is_uncertain, "starts at {}: {self:?}", status.start);
        self.start = status.start;
        if self.pending.is_empty() {
            self.end = self.completed_to.max(self.start);
        }
    }

    /// Whether the log can be truncated at `offset`.
    pub(crate) fn can_end_at(&self, offset: u64) -> bool {
        offset == self.end
            || (offset >= self.start() && self.reference().bounds().any(|bound| bound == offset))
    }

    pub(crate) fn truncate_suffix(&mut self, offset: u64) {
        self.completed.split_off(&offset);
        self.possible.split_off(&offset);
        self.pending.retain(|pending| pending.base < offset);
        self.completed_to = self.completed_to.min(offset);
        self.durable_to = self.durable_to.min(offset);
        self.synced = self.synced.map(|(ticket, end)| (ticket, end.min(offset)));
        self.end = offset;
    }

    /// Records a suffix truncation that may or may not have happened.
    pub(crate) fn truncation_failed(&mut self, offset: u64) {
        self.uncertain_from(offset);
    }

    /// Expected contents in the current incarnation.
    pub(crate) fn reference(&self) -> ReferenceLog {
        let completed = self.completed.values();
        let all = completed.chain(self.pending.iter().map(|pending| &pending.bytes));
        let start = self.start();
        let batches = all.filter(|bytes| end_of(bytes) > start).cloned().collect();
        ReferenceLog { start, end: self.end, batches }
    }

    /// Records the end of an incarnation.
    pub(crate) fn end_incarnation(&mut self, how: End) {
        self.ended = self.ended.max(Some(how));
        self.pending.clear();
        (self.newest_ticket, self.rolled_back, self.synced) = (None, None, None);
    }

    /// Whether the page cache survived.
    pub(crate) fn was_killed(&self) -> bool {
        self.ended == Some(End::Killed)
    }

    /// Whether the log must exist. A thread may not have created it before something was completed.
    pub(crate) fn must_be_there(&self, mode: CommitMode) -> bool {
        let is_created = mode == CommitMode::Inline || self.completed_to > 0;
        match self.ended {
            Some(End::PowerLost) => self.durable_to > 0 && !self.may_be_missing,
            _ => is_created && !self.may_be_missing,
        }
    }

    /// Checks the recovered contents and adopts them as the new state.
    pub(crate) fn recovered(&mut self, status: Status, found: &[u8]) {
        let Some(ended) = self.ended.take() else { return };
        let must_reach = if ended == End::PowerLost { self.durable_to } else { self.completed_to };
        let is_new = status.end == 0 && must_reach == 0;
        let starts = self.start_after_crash..=self.start;
        assert!(is_new || starts.contains(&status.start), "starts at {}: {self:?}", status.start);
        assert!(status.end >= must_reach, "ends at {} and not {must_reach}: {self:?}", status.end);
        assert_eq!(status.committed, status.end, "recovered data must be committed");
        let mut at = status.start;
        for batch in batches(found) {
            let (header, bytes) = (batch.header, batch.bytes());
            let follows = header.base_offset == at || (at == status.start && header.base_offset < at);
            assert!(follows, "offset {} follows {at}: {self:?}", header.base_offset);
            assert!(header.end_offset() > at, "empty batch: {self:?}");
            at = header.end_offset();
            let known = self.completed.get(&header.base_offset);
            let possible = self.possible.get(&header.base_offset);
            let is_known = known.is_some_and(|known| known == bytes);
            let is_possible = possible.is_some_and(|possible| possible.iter().any(|known| known == bytes));
            assert!(
                is_known || is_possible,
                "offset {} was never appended like this: {self:?}",
                header.base_offset
            );
        }
        assert_eq!(at, status.end, "the log must end with its last batch: {self:?}");
        self.adopt(ended, status, found);
    }

    fn adopt(&mut self, ended: End, status: Status, found: &[u8]) {
        let start = status.start;
        self.start = start;
        if ended == End::PowerLost || start < self.start_after_crash {
            self.start_after_crash = start;
        }
        // Retain batches before the start: they may reappear if their removal failed.
        self.completed.retain(|base, _| *base < start);
        let found = batches(found).map(|batch| (batch.header.base_offset, batch.bytes().to_vec()));
        self.completed.extend(found);
        if ended == End::PowerLost || self.durability == Durability::Fsync {
            self.possible.clear();
        }
        (self.end, self.completed_to) = (status.end, status.end);
        if ended == End::PowerLost || self.durability == Durability::Fsync {
            self.durable_to = status.end;
        }
        self.durable_to = self.durable_to.min(status.end);
        self.is_uncertain = false;
        self.may_be_missing = false;
    }
}
