//! Background work: opening partitions, removing logs, retention and compaction.
//!
//! Retention and compaction need an open log, so partitions that no client has opened since the start are opened here,
//! a few per turn.

use mainstem_runtime::Io;

use crate::service::MAINTENANCE_INTERVAL_MS;
use crate::shard::Shard;
use crate::shard_message::Mail;
use crate::timer::Timer;
use crate::work_slices::OPEN_UNITS;

impl Shard {
    /// Opens a few partitions and removes a few logs of deleted topics.
    pub(crate) fn open_pending_logs(&mut self, io: &mut Io<'_, Mail>) {
        loop {
            if let Some(id) = self.maintenance.next_unopened() {
                if let Err(code) = self.partition(id) {
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
    pub(crate) fn run_maintenance(&mut self, io: &mut Io<'_, Mail>) {
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

    /// Logs how many producers and transactional ids were forgotten for lack of memory.
    pub(crate) fn log_evictions(&mut self, io: &Io<'_, Mail>) {
        let producers = self.partitions.take_evicted_producers();
        let ids = self.controller.as_mut().map_or(0, |controller| controller.transactions.take_evictions());
        let config = &self.shared.config;
        let all = [
            (producers, "idle producers", "kafka.max_producer_state_bytes", config.producer_bytes_max),
            (
                ids,
                "unused transactional ids",
                "kafka.max_transactional_id_bytes",
                config.transactional_id_bytes_max,
            ),
        ];
        for (count, what, key, bytes) in all.into_iter().filter(|(count, ..)| *count > 0) {
            if self.log_throttle.should_log(io.clock.now_ms) {
                log::warn!(
                    "{count} {what} were forgotten before they expired: their state exceeds {key} ({bytes})"
                );
            }
        }
    }

    /// Continues background work.
    pub(crate) fn continue_maintenance(&mut self, io: &mut Io<'_, Mail>) {
        self.maintenance.on_timer();
        self.run_maintenance(io);
    }
}
