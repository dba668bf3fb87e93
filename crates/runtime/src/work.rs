//! The work budget of a turn, and its fair division among connections.
//!
//! Every client must be able to trust that a turn is short, whatever other clients send. Bytes and messages do not
//! measure that: one tiny PUBLISH may visit thousands of subscriptions. So a service charges what it does in *units* of
//! about 100 ns of a core ([`Io::charge`](crate::Io::charge)), and stops when its share is used up
//! ([`Io::is_exhausted`](crate::Io::is_exhausted)). Units are counted rather than measured, so that a simulated run is
//! the same each time.
//!
//! Each phase of a turn has a limit. Mail, timers and ready sockets beyond it wait for the next turn. A connection that
//! has used up its share has its input held, and goes to the back of the queue of held connections. What it has done
//! beyond its share is its debt: while others wait, it is passed over until later shares have paid the debt (deficit
//! round robin, Shreedhar and Varghese 1995). Without others, it may use the whole turn.

/// Work of one turn after which further input waits, units. About 1 ms of a core.
pub const TURN_UNITS: u32 = 10_000;
/// Units of a turn reserved for mail from other shards, so that it does not take the place of input.
const MAIL_UNITS: u64 = TURN_UNITS as u64 / 2;
/// Units of a turn available to input, however much mail there was.
const INPUT_UNITS: u64 = TURN_UNITS as u64 / 2;
/// Units of one read, and of all held input, while several connections are served. What a light client has to wait for
/// is at most one of each.
const SLICE_UNITS: u64 = TURN_UNITS as u64 / 2;
/// Turns without a second connection after which the only one gets whole turns.
const ALONE_AFTER_TURNS: u32 = 64;
/// Units of a turn available to timers, and to the work that a service continues at the end of a turn, each.
const BACKGROUND_UNITS: u64 = TURN_UNITS as u64 / 8;
/// Units of a turn available to handshakes, after all other input.
const HANDSHAKE_UNITS: u64 = TURN_UNITS as u64 / 4;
/// Units of a turn available to writes of output. Output that is not written grows, and needs fewer writes later.
const FLUSH_UNITS: u64 = TURN_UNITS as u64;
/// Smallest part of a turn for a slice of a round of fan-outs, units: a hundred writes. The rest of the turn, with its
/// system calls, then costs little beside them.
const FAN_OUT_UNITS_MIN: u64 = FLUSH_UNITS / 2;
/// Smallest share of a connection while others wait, units.
const SHARE_UNITS_MIN: u64 = 200;

/// Work done in the current turn, and how much more may be done.
#[derive(Debug)]
pub(crate) struct Work {
    /// Units charged in this turn.
    spent: u64,
    /// Value of `spent` at which the current phase of the turn is over.
    phase_end: u64,
    /// Value of `spent` at which the current call is exhausted.
    call_end: u64,
    /// Value of `spent` when the offers of held input began.
    held_began: Option<u64>,
    /// Units of held input in the last turn, whose output leaves in this one.
    held: u64,
    /// Mail from other shards waits for the next turn.
    pub(crate) has_mail: bool,
    /// Turns for which more than one connection counts as being served.
    shared_turns: u32,
    /// Slot of the connection that was read last.
    last_slot: u32,
}

/// Input is being offered to the service, within an allowance.
#[derive(Debug)]
pub(crate) struct Offer {
    spent_before: u64,
    allowance: u64,
}

impl Default for Work {
    fn default() -> Self {
        let mut work = Self {
            spent: 0,
            phase_end: 0,
            call_end: 0,
            held_began: None,
            held: 0,
            has_mail: false,
            shared_turns: 0,
            last_slot: u32::MAX,
        };
        work.begin_input();
        work
    }
}

impl Work {
    /// Begins a turn with the work that a service continues from the last one.
    pub(crate) fn begin_turn(&mut self) {
        self.held = self.held_began.take().map_or(0, |began| self.spent - began);
        self.spent = 0;
        self.shared_turns = self.shared_turns.saturating_sub(1);
        self.begin_background();
    }

    /// A connection is read.
    #[inline]
    pub(crate) fn note_read(&mut self, slot: u32) {
        if slot != self.last_slot {
            self.last_slot = slot;
            self.shared_turns = ALONE_AFTER_TURNS;
        }
    }

    /// Mail is handled, which others wait for.
    pub(crate) fn note_mail(&mut self) {
        self.shared_turns = ALONE_AFTER_TURNS;
    }

    /// Whether several connections are served.
    fn is_shared(&self) -> bool {
        self.shared_turns > 0
    }

    pub(crate) fn begin_mail(&mut self) {
        self.begin_phase(MAIL_UNITS, 0);
    }

    /// Begins to read sockets. If connections have held input, half of the share of input is left for them.
    pub(crate) fn begin_reads(&mut self, has_held: bool) {
        let divisor = if has_held { 2 } else { 1 };
        self.begin_phase(INPUT_UNITS / divisor, u64::from(TURN_UNITS) / divisor);
    }

    pub(crate) fn begin_input(&mut self) {
        self.begin_phase(INPUT_UNITS / 2, u64::from(TURN_UNITS));
    }

    /// Begins the offers of held input, after the output of the others was flushed.
    pub(crate) fn begin_held(&mut self) {
        let units = if self.is_shared() { SLICE_UNITS } else { TURN_UNITS.into() };
        self.held_began = Some(self.spent);
        self.begin_phase(units, 0);
    }

    /// Begins a phase that continues work which no connection waits for.
    pub(crate) fn begin_background(&mut self) {
        self.begin_phase(BACKGROUND_UNITS, 0);
    }

    /// Begins one of two rounds of writes.
    pub(crate) fn begin_flush(&mut self) {
        self.begin_phase(FLUSH_UNITS / 2, 0);
    }

    /// Begins a slice of a round of fan-outs. It may take as long as the work since the last one, so that output cannot
    /// grow faster than it is written, and input waits no longer than necessary.
    pub(crate) fn begin_fan_outs(&mut self) {
        self.begin_phase((self.held + self.spent).clamp(FAN_OUT_UNITS_MIN, FLUSH_UNITS), 0);
    }

    /// Begins the reads of connections in their handshakes.
    pub(crate) fn begin_handshakes(&mut self) {
        self.begin_phase(HANDSHAKE_UNITS, 0);
    }

    /// Begins a phase that may spend `units`, or more if the turn is not at `turn_units` then.
    fn begin_phase(&mut self, units: u64, turn_units: u64) {
        self.phase_end = turn_units.max(self.spent + units);
        self.call_end = self.phase_end;
    }

    pub(crate) fn charge(&mut self, units: u32) {
        self.spent += u64::from(units);
    }

    pub(crate) fn spent(&self) -> u64 {
        self.spent
    }

    /// Whether the current call has used up its share.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.spent >= self.call_end
    }

    /// Whether the current phase of the turn has used up its share.
    pub(crate) fn is_phase_over(&self) -> bool {
        self.spent >= self.phase_end
    }

    /// Whether a connection with this debt must wait behind the `held` ones.
    pub(crate) fn must_queue(&self, debt: u32, held: usize) -> bool {
        self.is_phase_over() || (debt > 0 && held > 0)
    }

    /// Share of one of `connections` connections with input.
    pub(crate) fn share(&self, connections: usize) -> u64 {
        divide(self.phase_end.saturating_sub(self.spent), connections)
    }

    /// Share of a connection that was just read, while `held` others wait.
    pub(crate) fn read_share(&self, held: usize) -> u64 {
        let share = self.share(held + 1);
        if self.is_shared() { share.min(SLICE_UNITS) } else { share }
    }

    /// Begins to offer a connection its input.
    pub(crate) fn begin_offer(&mut self, allowance: u64) -> Offer {
        self.call_end = self.spent + allowance;
        Offer { spent_before: self.spent, allowance }
    }

    /// Ends an offer. Returns the connection's debt: what it has done beyond its allowance.
    pub(crate) fn end_offer(&mut self, offer: &Offer) -> u32 {
        self.call_end = self.phase_end;
        let debt = (self.spent - offer.spent_before).saturating_sub(offer.allowance);
        u32::try_from(debt).unwrap_or(u32::MAX)
    }

    /// Whether the connection has used up its allowance.
    pub(crate) fn has_used_up(&self, offer: &Offer) -> bool {
        self.spent - offer.spent_before >= offer.allowance
    }
}

/// One of `connections` shares of `units`.
pub(crate) fn divide(units: u64, connections: usize) -> u64 {
    // Mostly there is one, and a division takes as long as the rest of the accounting.
    let share = if connections > 1 { units / connections as u64 } else { units };
    share.max(SHARE_UNITS_MIN)
}

/// Pays a connection's debt from its share. Returns the allowance that is left; `None` if the debt took it all.
pub(crate) fn pay_debt(debt: &mut u32, share: u64) -> Option<u64> {
    let allowance = share.checked_sub(u64::from(*debt)).filter(|allowance| *allowance > 0);
    *debt = if allowance.is_some() { 0 } else { *debt - share as u32 };
    allowance
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_debt_is_paid_by_later_shares() {
        let mut work = Work::default();
        work.begin_turn();
        work.begin_input();
        let share = work.share(4);
        assert_eq!(share, u64::from(TURN_UNITS) / 4);
        let offer = work.begin_offer(share);
        work.charge(share as u32 - 1);
        assert!(!work.is_exhausted());
        work.charge(1 + 2 * share as u32 + 10);
        assert!(work.is_exhausted() && !work.is_phase_over());
        let mut debt = work.end_offer(&offer);
        assert_eq!(u64::from(debt), 2 * share + 10);
        assert!(work.must_queue(debt, 1) && !work.must_queue(debt, 0) && !work.must_queue(0, 1));
        assert_eq!(pay_debt(&mut debt, share), None);
        assert_eq!(pay_debt(&mut debt, share), None);
        assert_eq!(pay_debt(&mut debt, share), Some(share - 10));
        assert_eq!(pay_debt(&mut debt, share), Some(share));
    }

    #[test]
    fn each_phase_has_a_share_whatever_came_before() {
        let mut work = Work::default();
        work.begin_turn();
        work.charge(TURN_UNITS);
        assert!(work.is_exhausted());
        work.begin_mail();
        assert!(!work.is_phase_over());
        work.charge(10 * TURN_UNITS);
        assert!(work.is_phase_over());
        work.begin_reads(true);
        assert_eq!(work.share(1), INPUT_UNITS / 2);
        assert_eq!(work.share(1_000_000), SHARE_UNITS_MIN);
        work.charge(INPUT_UNITS as u32);
        assert!(work.is_phase_over());
        assert!(work.must_queue(0, 0));
        work.begin_input();
        assert!(!work.is_phase_over());
        work.begin_reads(false);
        assert_eq!(work.share(1), INPUT_UNITS);
        work.begin_background();
        assert!(!work.is_exhausted());
        work.charge(TURN_UNITS);
        work.begin_held();
        assert!(!work.is_exhausted());
    }

    #[test]
    fn fan_outs_are_written_as_long_as_the_work_since_the_last_slice() {
        let mut work = Work::default();
        let share_of = |work: &mut Work| {
            work.begin_fan_outs();
            work.share(1)
        };
        work.begin_turn();
        assert_eq!(share_of(&mut work), FAN_OUT_UNITS_MIN);
        work.begin_held();
        work.charge(7_000);
        work.begin_turn();
        work.charge(1_000);
        assert_eq!(share_of(&mut work), 8_000);
        work.begin_turn();
        assert_eq!(share_of(&mut work), FAN_OUT_UNITS_MIN);
        work.charge(2 * TURN_UNITS);
        assert_eq!(share_of(&mut work), FLUSH_UNITS);
    }

    #[test]
    fn a_connection_gets_whole_turns_while_no_other_is_served() {
        let mut work = Work::default();
        let share_of = |work: &mut Work, slot| {
            work.begin_turn();
            work.begin_reads(false);
            work.note_read(slot);
            let read = work.read_share(0);
            work.begin_held();
            (read, work.share(1))
        };
        let (whole, slice) = (u64::from(TURN_UNITS), SLICE_UNITS);
        assert_eq!(share_of(&mut work, 7), (slice, slice), "there may be others");
        for _ in 1..ALONE_AFTER_TURNS {
            assert_eq!(share_of(&mut work, 7), (slice, slice));
        }
        assert_eq!(share_of(&mut work, 7), (whole, whole));
        assert_eq!(share_of(&mut work, 8), (slice, slice));
        assert_eq!(share_of(&mut work, 7), (slice, slice));
        for _ in 0..ALONE_AFTER_TURNS {
            share_of(&mut work, 7);
        }
        assert_eq!(share_of(&mut work, 7), (whole, whole));
        work.note_mail();
        assert_eq!(share_of(&mut work, 7), (slice, slice));
    }
}
