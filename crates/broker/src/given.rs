//! What a session has given to others of its group, or leaves to them when it ends: until it is on disk with those,
//! a snapshot of its journal tells of it as if the session still had it.

use std::collections::VecDeque;

use mainstem_runtime::{Clock, Io};

use crate::journal::Journal;
use crate::journal::entry::Mark;
use crate::journal::replay::{StoredExtra, StoredSession};
use crate::queue::Run;
use crate::session::Delivery;
use crate::shard::Shard;
use crate::shared::Mail;

/// A delivery that somebody else has got, and may not have on disk.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub(crate) delivery: Delivery,
    /// It had been sent to the client of the session that gave it away.
    pub(crate) was_sent: bool,
    /// Whoever has got it could not keep it on disk.
    has_failed: bool,
}

impl Given {
    pub(crate) fn new(delivery: Delivery, was_sent: bool) -> Self {
        Self { delivery, was_sent, has_failed: false }
    }
}

impl Shard {
    /// Somebody else has a delivery of this session on disk: its journal need not keep it any more.
    pub(crate) fn settle_given(&mut self, slot: u32, sequence: u64) {
        let given = &mut self.deliveries.sessions.at(slot).rare().given;
        // In their order: the oldest are mostly safe first.
        if let Some(index) = given.iter().position(|given| given.delivery.sequence == sequence) {
            given.remove(index);
        }
        if let Some((journal, session)) = self.journal(slot) {
            journal.mark(Mark::Settled { session, sequence });
        }
    }

    /// Somebody else has a delivery of this session in memory only, until the disk is mended.
    pub(crate) fn doubt_given(&mut self, slot: u32, sequence: u64) {
        let given = &mut self.deliveries.sessions.at(slot).rare().given;
        for given in given.iter_mut().filter(|given| given.delivery.sequence == sequence) {
            given.has_failed = true;
        }
        self.doubt(slot);
    }

    /// What a session has given to others could not be kept, and will be when the disk is mended.
    pub(crate) fn doubt(&mut self, slot: u32) {
        let key = self.deliveries.sessions.key(self.me, slot);
        if self.doubtful.last() != Some(&key) {
            self.doubtful.push(key);
        }
    }

    /// When all disks are mended, what could not be kept at first has been.
    pub(crate) fn settle_doubtful(&mut self, io: &Io<'_, Mail>) {
        if self.doubtful.is_empty() || !self.can_keep() {
            return;
        }
        for key in std::mem::take(&mut self.doubtful) {
            let given = self.deliveries.sessions.get(key).and_then(|session| session.rare.as_ref());
            let failed = given.iter().flat_map(|rare| &rare.given).filter(|given| given.has_failed);
            for sequence in failed.map(|given| given.delivery.sequence).collect::<Vec<_>>() {
                self.settle_given(key.slot, sequence);
            }
            let rare = self.deliveries.sessions.get(key).and_then(|session| session.rare.as_ref());
            if rare.is_some_and(|rare| rare.will_leaving.is_some() && !rare.answers.has_will()) {
                self.forget_will(io, key.slot);
            }
        }
    }

    /// How its journal is to know a session that is about to end, until others have what it leaves to them; nothing
    /// if it leaves nothing.
    pub(crate) fn stored_before_end(&mut self, clock: Clock, slot: u32) -> Option<Box<StoredSession>> {
        let session = self.deliveries.sessions.at(slot);
        let leaves_something = session.rare.as_ref().is_some_and(|rare| {
            rare.load.is_some()
                || rare.will.is_some()
                || rare.will_leaving.is_some()
                || !rare.given.is_empty()
        });
        (session.lasts() && leaves_something).then(|| Box::new(self.stored_session(clock, slot)))
    }

    /// Writes sessions that have ended, and whose end must not be entered yet, as part of a snapshot.
    pub(crate) fn write_ending(&mut self, journal: usize) {
        let known = &mut self.deliveries.journals[journal];
        let horizon = known.horizon();
        for ending in self.ending.iter_mut().filter(|ending| usize::from(ending.journal) == journal) {
            let Some(stored) = ending.stored.as_mut().filter(|_| ending.commit.is_none()) else { continue };
            stored.place_each(|offset| {
                let is_lost = Journal::is_lost(offset);
                let moved = if is_lost || offset < horizon { known.move_message(offset, None) } else { None };
                moved.or((!is_lost).then_some(offset))
            });
            if let Some(oldest) = stored.unsettled.iter().map(|run| run.offset).min() {
                known.snapshots.refers_to(oldest);
            }
            known.push_snapshot(ending.session, stored);
        }
    }
}

impl StoredSession {
    /// Lets each delivery refer to where `place` says that its message stands; without such a place it goes.
    pub(crate) fn place_each(&mut self, mut place: impl FnMut(u64) -> Option<u64>) {
        let mut placed: VecDeque<Run<StoredExtra>> = VecDeque::new();
        for mut run in std::mem::take(&mut self.unsettled) {
            while run.count > 0 {
                let mut one = Run { count: 1, ..run.clone() };
                one.bytes = run.shorten(None);
                let Some(offset) = place(one.offset) else { continue };
                one.offset = offset;
                if !placed.back_mut().is_some_and(|last| last.join(&one)) {
                    placed.push_back(one);
                }
            }
        }
        self.unsettled = placed;
    }
}
