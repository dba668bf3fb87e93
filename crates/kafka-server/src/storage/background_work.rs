//! Background work: opening partitions, removing logs, retention and compaction, the producers of partitions.
//!
//! Retention and compaction need an open log, so partitions that no client has opened since the start are opened here,
//! a few per turn.

use mainstem_partition::IsLast;
use mainstem_runtime::Io;

use super::{OPEN_UNITS, Storage};
use crate::environment::Environment;
use crate::timer::Timer;

/// Interval of background work, ms.
pub(crate) const MAINTENANCE_INTERVAL_MS: u64 = 1_000;
/// Cost of looking at the producers of a partition, and sometimes of a snapshot of them, units.
const PRODUCERS_UNITS: u32 = 15;

impl Storage {
    /// Opens a few partitions and removes a few logs of deleted topics.
    pub(crate) fn open_pending_logs<M>(&mut self, env: &mut Environment, io: &mut Io<'_, M>) {
        loop {
            if let Some(id) = self.maintenance.next_unopened() {
                if let Err(code) = self.partition(env, id) {
                    log::debug!("partition {} of a topic is left closed: {code}", id.index);
                }
            } else {
                match self.maintenance.remove_next(&mut self.stores) {
                    Some(Ok(())) => {}
                    Some(Err(error)) => log::error!("a log of a deleted topic could not be removed: {error}"),
                    None => return,
                }
            }
            io.charge(OPEN_UNITS);
            if io.is_exhausted() {
                return io.request_turn();
            }
        }
    }

    /// Runs what is due in the stores, within the share of the turn: rolling, retention, compaction. The rest continues
    /// in the next turn.
    pub(crate) fn run_maintenance<M>(&mut self, io: &mut Io<'_, M>) {
        let unix_ms = io.clock.unix_ms;
        let due_ms = self.maintenance.maintain(&mut self.stores, unix_ms, |units| {
            io.charge(units);
            !io.is_exhausted()
        });
        if self.maintenance.is_behind() {
            return io.request_turn();
        }
        let Some(delay_ms) = due_ms.map(|due_ms| due_ms.saturating_sub(unix_ms).max(1)) else { return };
        if delay_ms < MAINTENANCE_INTERVAL_MS && self.maintenance.request_timer() {
            io.set_timer(io.clock.now_ms + delay_ms, Timer::MaintainMore.token());
        }
    }

    /// The timer of further background work has fired.
    pub(crate) fn on_maintenance_timer<M>(&mut self, io: &mut Io<'_, M>) {
        self.maintenance.on_timer();
        self.run_maintenance(io);
    }

    /// Begins to expire idle producers and to take the snapshots that are due, in all partitions.
    pub(crate) fn maintain_producers<M>(&mut self, io: &mut Io<'_, M>) {
        self.partitions.begin_maintenance();
        self.continue_producer_maintenance(io);
    }

    /// Continues with further partitions, within the share of the turn.
    fn continue_producer_maintenance<M>(&mut self, io: &mut Io<'_, M>) {
        while self.partitions.maintain(&mut self.stores, self.unix_ms, IsLast::No) {
            io.charge(PRODUCERS_UNITS);
            if io.is_exhausted() {
                return io.request_turn();
            }
        }
    }

    /// Continues the maintenance that did not fit into the last turn.
    pub(crate) fn continue_maintenance<M>(&mut self, io: &mut Io<'_, M>) {
        self.continue_producer_maintenance(io);
        if self.maintenance.is_behind() {
            self.run_maintenance(io);
        }
    }
}
