//! Deadlines and initial delay of a rebalance.

/// What a rebalance waits for, and how long.
#[derive(Debug, Default)]
pub(super) struct RebalanceState {
    join_deadline_ms: Option<u64>,
    sync_deadline_ms: Option<u64>,
    initial_delay: InitialDelay,
}

/// Initial delay of a rebalance that starts from an empty group.
#[derive(Debug, Default, Clone, Copy)]
struct InitialDelay {
    /// Whether a member joined since the delay was last started.
    new_member_added: bool,
    /// How much longer the delay may be extended.
    remaining_ms: u64,
    /// The delay is over; only pending member ids are waited for.
    awaiting_pending: bool,
}

/// How the join phase goes on when its initial delay has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterDelay {
    /// Members have come meanwhile: more may follow within this time, ms.
    WaitMore(u64),
    /// Some have been assigned a member id and are about to join with it.
    WaitForPending,
    Complete,
}

impl RebalanceState {
    pub(super) fn set_join_deadline(&mut self, deadline_ms: u64) {
        self.join_deadline_ms = Some(deadline_ms);
    }

    pub(super) fn take_join_deadline(&mut self) -> Option<u64> {
        self.join_deadline_ms.take()
    }

    pub(super) fn set_sync_deadline(&mut self, deadline_ms: u64) {
        self.sync_deadline_ms = Some(deadline_ms);
    }

    pub(super) fn take_sync_deadline(&mut self) -> Option<u64> {
        self.sync_deadline_ms.take()
    }

    /// Starts the initial delay, which may be extended by `remaining_ms` altogether.
    pub(super) fn start_delay(&mut self, remaining_ms: u64) {
        self.initial_delay = InitialDelay { remaining_ms, ..InitialDelay::default() };
    }

    pub(super) fn note_new_member(&mut self) {
        self.initial_delay.new_member_added = true;
    }

    pub(super) fn is_awaiting_pending(&self) -> bool {
        self.initial_delay.awaiting_pending
    }

    /// The delay of `delay_ms` has passed.
    pub(super) fn end_delay(&mut self, delay_ms: u64, has_pending: bool) -> AfterDelay {
        let delay = &mut self.initial_delay;
        if delay.awaiting_pending {
            AfterDelay::Complete
        } else if delay.new_member_added && delay.remaining_ms > 0 && delay_ms > 0 {
            let again_ms = delay_ms.min(delay.remaining_ms);
            delay.new_member_added = false;
            delay.remaining_ms -= again_ms;
            AfterDelay::WaitMore(again_ms)
        } else if has_pending {
            delay.awaiting_pending = true;
            AfterDelay::WaitForPending
        } else {
            AfterDelay::Complete
        }
    }
}
