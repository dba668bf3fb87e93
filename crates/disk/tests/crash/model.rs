//! What a log must hold, and what it may hold, after everything that was done with it.

use std::collections::BTreeMap;
use std::fmt;

use mainstem_log::contract::Plain;
use mainstem_log::{Appended, Batch, Completion, Durability, Status, Ticket, batches};

/// How a life of the store ended. The later ones do more harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// The process ended, in order or not.
    Killed,
    /// The power went.
    PowerLost,
}

/// An append that has not completed.
#[derive(Clone, Debug)]
struct Pending {
    ticket: Ticket,
    base: u64,
    bytes: Vec<u8>,
}

/// One log.
#[derive(Clone)]
pub(crate) struct Log {
    pub(crate) durability: Durability,
    /// Offset at which it starts.
    start: u64,
    /// That at which it may start again, should it end now: nothing says when what was removed is gone.
    start_again: u64,
    end: u64,
    /// Batches that completed, also before the start, by base offset.
    completed: BTreeMap<u64, Vec<u8>>,
    /// Offset behind the last of them.
    completed_to: u64,
    /// Offset up to which it survives loss of power; that of an fsync log is `completed_to`.
    lasts_to: u64,
    /// Up to where it does when this has completed.
    synced: Option<(Ticket, u64)>,
    pending: Vec<Pending>,
    /// The newest ticket, if it has not completed.
    due: Option<Ticket>,
    /// From the one ticket to the other nothing can succeed any more.
    taken_back: Option<(Ticket, Ticket)>,
    /// What else may be found: appends that never completed or failed, by base offset.
    possible: BTreeMap<u64, Vec<Vec<u8>>>,
    /// It need not be found at all.
    may_be_gone: bool,
    /// What it has been through since it was last looked at.
    hurt: Option<End>,
    /// Something has failed: what the store shows of it until it begins anew is anybody's guess.
    is_unsure: bool,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let completed: Vec<u64> = self.completed.keys().copied().collect();
        let possible: Vec<u64> = self.possible.keys().copied().collect();
        write!(f, "starts at {} or from {} on, ", self.start, self.start_again)?;
        write!(f, "completed {completed:?} to {}, ", self.completed_to)?;
        write!(f, "lasts to {}, possible {possible:?}, end {}", self.lasts_to, self.end)?;
        write!(f, "; due {:?}, may be gone {}, hurt {:?}", self.due, self.may_be_gone, self.hurt)
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
            start_again: 0,
            end: 0,
            completed: BTreeMap::new(),
            completed_to: 0,
            lasts_to: 0,
            synced: None,
            pending: Vec::new(),
            due: None,
            taken_back: None,
            possible: BTreeMap::new(),
            may_be_gone: true,
            hurt: None,
            is_unsure: false,
        }
    }

    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn is_unsure(&self) -> bool {
        self.is_unsure
    }

    /// Whether an append waits for its completion.
    pub(crate) fn is_due(&self) -> bool {
        self.due.is_some()
    }

    /// The store has opened it.
    pub(crate) fn opened(&mut self) {
        self.may_be_gone = false;
    }

    /// The store was told to remove it, and has not said that it has.
    pub(crate) fn half_removed(&mut self) {
        self.may_be_gone = true;
        self.unsure_from(0);
        self.start_again = 0;
        self.pending.clear();
        (self.due, self.taken_back, self.synced) = (None, None, None);
    }

    /// Whether the store that it was removed from goes on.
    pub(crate) fn is_half_removed(&self) -> bool {
        self.may_be_gone && self.is_unsure && self.hurt.is_none()
    }

    /// A sync may have failed, with all that is not on disk.
    pub(crate) fn may_lose_unsynced(&mut self) {
        self.unsure_from(self.lasts_to);
    }

    /// From `offset` on anything that was there may be found, or nothing.
    fn unsure_from(&mut self, offset: u64) {
        for (base, bytes) in self.completed.split_off(&offset) {
            self.possible.entry(base).or_default().push(bytes);
        }
        self.completed_to = self.completed_to.min(offset);
        self.lasts_to = self.lasts_to.min(offset);
        self.is_unsure = true;
    }

    /// Takes in `batch`, where the store has put it. Of one that it has not, because it ended in between, anything
    /// may be.
    pub(crate) fn append(&mut self, batch: &[u8], appended: Option<Appended>) {
        let base = appended.map_or(self.end, |appended| appended.base_offset);
        let mut bytes = batch.to_vec();
        Batch::place(&mut bytes, base, 0);
        self.possible.entry(base).or_default().push(bytes.clone());
        if let Some(Appended { ticket, .. }) = appended {
            assert!(self.due.is_none_or(|due| due <= ticket), "tickets of one log grow");
            if base != self.end {
                assert!(self.is_unsure, "offset {base}: {self:?}");
                self.pending.clear();
            }
            self.end = end_of(&bytes);
            self.due = Some(ticket);
            self.pending.push(Pending { ticket, base, bytes });
        }
    }

    /// An append or a sync has failed, and all that was not committed with it.
    pub(crate) fn take_back(&mut self, status: Status) {
        if status.end != self.end {
            let kept = self.pending.iter().take_while(|pending| pending.base < status.end).count();
            let behind = self.pending[..kept].last().map_or(self.completed_to, |last| end_of(&last.bytes));
            assert_eq!(status.end, behind.max(self.start), "it ends where it was committed: {self:?}");
            self.taken_back = self.pending.get(kept).map(|pending| pending.ticket).zip(self.due);
            self.pending.truncate(kept);
            self.end = status.end;
        }
    }

    pub(crate) fn complete(&mut self, completion: &Completion) {
        assert!(self.due.is_some_and(|due| completion.ticket <= due), "only what was appended completes");
        if self.due == Some(completion.ticket) {
            self.due = None;
        }
        let (done, left) = self.pending.drain(..).partition(|pending| pending.ticket <= completion.ticket);
        self.pending = left;
        let done: Vec<Pending> = done;
        let is_within = |(first, last)| (first..=last).contains(&completion.ticket);
        if self.taken_back.is_some_and(is_within) {
            assert!(completion.outcome.is_err(), "what is no part of the log cannot complete: {self:?}");
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
        // What the disk has not synced it may yet forget, and show what was there before.
        let synced = self.synced.take_if(|(ticket, _)| *ticket <= completion.ticket).map(|(_, end)| end);
        let lasts_to = match self.durability {
            Durability::Fsync => Some(self.completed_to),
            Durability::Os => synced.map(|end| end.min(self.completed_to)),
        };
        if let Some(lasts_to) = lasts_to.filter(|lasts_to| *lasts_to > self.lasts_to) {
            self.lasts_to = lasts_to;
            if !self.is_unsure {
                self.possible = self.possible.split_off(&lasts_to);
            }
        }
    }

    /// What has been appended, and is committed next, is to be synced.
    pub(crate) fn sync_next(&mut self) {
        self.synced = self.due.map(|ticket| (ticket, self.end));
    }

    pub(crate) fn truncate_prefix(&mut self, offset: u64) {
        self.start = self.start.max(offset.min(self.end));
    }

    /// Whatever becomes of it, it starts there or later when it begins anew.
    pub(crate) fn starts_again_from(&mut self, offset: u64) {
        assert!(offset <= self.start, "from {offset}: {self:?}");
        self.start_again = self.start_again.max(offset);
    }

    /// It failed while it was told to start later than at `start`, and ended earlier before it did.
    pub(crate) fn failed(&mut self, start: u64, status: Status) {
        let is_between = (start..=self.start).contains(&status.start);
        assert!(is_between || self.is_unsure, "starts at {}: {self:?}", status.start);
        self.start = status.start;
        if self.pending.is_empty() {
            self.end = self.completed_to.max(self.start);
        }
    }

    /// Whether the log can be cut off at `offset`.
    pub(crate) fn can_end_at(&self, offset: u64) -> bool {
        offset == self.end || (offset >= self.start() && self.plain().bounds().any(|bound| bound == offset))
    }

    pub(crate) fn truncate_suffix(&mut self, offset: u64) {
        self.completed.split_off(&offset);
        self.possible.split_off(&offset);
        self.pending.retain(|pending| pending.base < offset);
        self.completed_to = self.completed_to.min(offset);
        self.lasts_to = self.lasts_to.min(offset);
        self.synced = self.synced.map(|(ticket, end)| (ticket, end.min(offset)));
        self.end = offset;
    }

    /// The store was told to cut it off at `offset`, and has not said that it has.
    pub(crate) fn half_truncated(&mut self, offset: u64) {
        self.unsure_from(offset);
    }

    /// As it should look while the store goes on.
    pub(crate) fn plain(&self) -> Plain {
        let completed = self.completed.values();
        let all = completed.chain(self.pending.iter().map(|pending| &pending.bytes));
        let start = self.start();
        let batches = all.filter(|bytes| end_of(bytes) > start).cloned().collect();
        Plain { start, end: self.end, batches }
    }

    /// The store that had it open has ended.
    pub(crate) fn hurt(&mut self, how: End) {
        self.hurt = self.hurt.max(Some(how));
        self.pending.clear();
        (self.due, self.taken_back, self.synced) = (None, None, None);
    }

    /// Whether all that the operating system had is still there.
    pub(crate) fn was_killed(&self) -> bool {
        self.hurt == Some(End::Killed)
    }

    /// Whether it must be there.
    pub(crate) fn must_be_there(&self) -> bool {
        match self.hurt {
            Some(End::PowerLost) => self.lasts_to > 0 && !self.may_be_gone,
            _ => !self.may_be_gone,
        }
    }

    /// Compares it with what a new store found, and goes on from there.
    pub(crate) fn recovered(&mut self, status: Status, found: &[u8]) {
        let Some(hurt) = self.hurt.take() else { return };
        let must_reach = if hurt == End::PowerLost { self.lasts_to } else { self.completed_to };
        let is_new = status.end == 0 && must_reach == 0;
        let starts = self.start_again..=self.start;
        assert!(is_new || starts.contains(&status.start), "starts at {}: {self:?}", status.start);
        assert!(status.end >= must_reach, "ends at {} and not {must_reach}: {self:?}", status.end);
        assert_eq!(status.committed, status.end, "what was recovered is committed");
        let mut at = status.start;
        for batch in batches(found) {
            let (header, bytes) = (batch.header, batch.bytes());
            let follows = header.base_offset == at || (at == status.start && header.base_offset < at);
            assert!(follows, "offset {} follows {at}: {self:?}", header.base_offset);
            assert!(header.end_offset() > at, "nothing in it: {self:?}");
            at = header.end_offset();
            let known = self.completed.get(&header.base_offset);
            let possible = self.possible.get(&header.base_offset);
            let is_known = known.is_some_and(|known| known == bytes);
            let is_possible = possible.is_some_and(|possible| possible.iter().any(|known| known == bytes));
            assert!(is_known || is_possible, "offset {} was never this: {self:?}", header.base_offset);
        }
        assert_eq!(at, status.end, "ends where its last batch does: {self:?}");
        self.go_on(hurt, status, found);
    }

    fn go_on(&mut self, hurt: End, status: Status, found: &[u8]) {
        let start = status.start;
        self.start = start;
        if hurt == End::PowerLost || start < self.start_again {
            self.start_again = start;
        }
        // What was before the start is not forgotten: a log that could not be removed may show it again.
        self.completed.retain(|base, _| *base < start);
        let found = batches(found).map(|batch| (batch.header.base_offset, batch.bytes().to_vec()));
        self.completed.extend(found);
        if hurt == End::PowerLost || self.durability == Durability::Fsync {
            self.possible.clear();
        }
        (self.end, self.completed_to) = (status.end, status.end);
        if hurt == End::PowerLost || self.durability == Durability::Fsync {
            self.lasts_to = status.end;
        }
        self.lasts_to = self.lasts_to.min(status.end);
        self.is_unsure = false;
        self.may_be_gone = false;
    }
}
