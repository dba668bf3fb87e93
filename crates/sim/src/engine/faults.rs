//! Faults of the machine under a broker: its process ends, its power is lost, its disk fails or is full.
//!
//! A [`FaultPlan`] gives the rates. The crash of a process may be immediate, or be planned for one of the next calls of
//! the file system, which puts it in the middle of a write, a rename or a recovery.

use mainstem_disk::fault::{self, FaultFs, Rng};

use super::broker::Broker;
use super::{Engine, Violation, captured_log, pick};

/// What may happen to the machine in a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FaultPlan {
    /// Crashes may lose power; otherwise processes are only killed.
    pub(crate) loses_power: bool,
    /// Some responses are sent without a sync before them, so no sync may fail.
    pub(crate) is_lax: bool,
    /// Rates per 10,000 steps.
    pub(crate) ends: u64,
    pub(crate) errors: u64,
    pub(crate) full: u64,
}

impl FaultPlan {
    pub(crate) fn draw(rng: &mut Rng, is_lax: bool, loses_power: bool, is_rough: bool) -> Self {
        Self {
            loses_power,
            is_lax,
            ends: pick(rng, &[0, 10, 20, 60]),
            errors: if is_rough { 5 } else { 0 },
            full: if is_rough { 10 } else { 0 },
        }
    }
}

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It is killed: everything written survives.
    Kill,
    /// The machine loses power: only what was synced is certain to survive.
    Power,
    /// It was asked to.
    Clean,
}

/// The fault of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Nothing,
    /// A call of the file system will fail.
    Planned,
    /// A connection is to be cut.
    Cut,
    /// The process is to end now.
    End(End),
}

impl<C: Copy + std::fmt::Debug> Engine<'_, C> {
    /// Draws the fault of a step, and plans it if it is one of the disk.
    pub(super) fn next_fault(&mut self) -> Fault {
        let FaultPlan { ends, errors, full, .. } = self.faults;
        let drawn = self.rng.below(10_000);
        if drawn < ends {
            return self.plan_end().map_or(Fault::Planned, Fault::End);
        }
        if drawn < ends + errors {
            self.plan_error();
        } else if drawn < ends + errors + full {
            self.fill_or_free_disk();
        } else if drawn < ends + errors + full + self.network.cut_rate() {
            return Fault::Cut;
        } else {
            return Fault::Nothing;
        }
        Fault::Planned
    }

    /// Returns how the process ends now, or plans a crash for one of the next calls of the file system.
    fn plan_end(&mut self) -> Option<End> {
        match self.rng.below(10) {
            0..5 => {
                let crash_at = Some(1 + self.rng.below(40));
                self.fs.set(fault::Plan { crash_at, ..fault::Plan::default() });
                None
            }
            5 => Some(End::Clean),
            6 | 7 if self.faults.loses_power => Some(End::Power),
            _ => Some(End::Kill),
        }
    }

    fn plan_error(&mut self) {
        let at = Some(1 + self.rng.below(20));
        let mut errors = fault::Plan::default();
        match self.rng.below(3) {
            // A response that was sent before the sync is lost with a sync that fails.
            1 if !self.faults.is_lax => errors.failing_sync = at,
            0 | 1 => errors.failing_write = at,
            _ => errors.failing_name = at,
        }
        self.plan_trouble(errors);
    }

    fn fill_or_free_disk(&mut self) {
        let used: u64 = self.fs.files().iter().map(|(_, len)| len).sum();
        let space_bytes = self.rng.chance(50).then(|| used + self.rng.below(20_000));
        self.plan_trouble(fault::Plan { space_bytes, ..fault::Plan::default() });
    }

    fn plan_trouble(&mut self, faults: fault::Plan) {
        self.note(|| format!("{faults:?}"));
        self.fs.set(faults);
        self.is_troubled = true;
        self.tally.disk_faults += 1;
    }

    /// Cancels all planned disk faults.
    pub(super) fn clear_faults(&self) {
        self.fs.set(fault::Plan::default());
    }

    pub(super) fn has_crashed(&self) -> bool {
        self.fs.has_crashed()
    }

    /// Draws how a process ends whose file system has crashed.
    pub(super) fn sudden_end(&mut self) -> End {
        if self.faults.loses_power && self.rng.chance(70) { End::Power } else { End::Kill }
    }

    /// Counts an end. Returns the seed of what survives it.
    pub(super) fn begin_end(&mut self, how: End) -> u64 {
        self.note(|| format!("the process ends: {how:?}"));
        match how {
            End::Kill => self.tally.kills += 1,
            End::Power => self.tally.power_losses += 1,
            End::Clean => self.tally.clean_ends += 1,
        }
        self.rng.roll()
    }

    /// Returns the disk as it is after an end.
    pub(super) fn survivor(&self, how: End, seed: u64) -> FaultFs {
        match how {
            End::Clean if !self.fs.has_crashed() => self.fs.clone(),
            End::Power => self.fs.survivor(seed),
            _ => self.fs.killed(seed),
        }
    }

    /// Starts a broker on the disk of the last one. Returns whether power was lost during recovery.
    ///
    /// # Errors
    /// It does not start although nothing stopped it.
    pub(super) fn restart(&mut self, disk: &FaultFs) -> Result<bool, Violation> {
        let shards = self.broker.shards();
        // The stores of the old broker must be dropped before others open their files.
        self.broker = Broker::idle(&self.setup, self.now_ms)?;
        let shards = if self.changes_shards { 1 + self.rng.below(3) as usize } else { shards };
        self.now_ms += pick(&mut self.rng, &[0, 50, 1_500]);
        let was_lost = self.recover(disk, shards)?;
        self.note_log();
        let (sessions, messages) = (self.broker.counters().sessions, self.broker.counters().queued_messages);
        self.note(|| format!("{shards} shards begin with {sessions} sessions, {messages} messages"));
        self.is_troubled = false;
        Ok(was_lost)
    }

    /// Starts a broker, again and again if it crashes during recovery.
    fn recover(&mut self, disk: &FaultFs, shards: usize) -> Result<bool, Violation> {
        let seed = self.rng.roll();
        let (mut fs, mut was_lost) = (disk.clone(), false);
        loop {
            let may_crash = self.rng.chance(20);
            let crash_at = may_crash.then(|| 1 + self.rng.below(60));
            fs.set(fault::Plan { crash_at, ..fault::Plan::default() });
            match Broker::start(&fs, &self.setup, shards, seed, self.now_ms) {
                Ok(broker) if !fs.has_crashed() => {
                    (self.broker, self.fs) = (broker, fs);
                    return Ok(was_lost);
                }
                Err(error) if !fs.has_crashed() => {
                    return Err(Violation(format!("the broker does not start again: {error}")));
                }
                _ => {
                    let how = if self.faults.loses_power { End::Power } else { End::Kill };
                    let seed = self.begin_end(how);
                    fs = if how == End::Power { fs.survivor(seed) } else { fs.killed(seed) };
                    was_lost |= how == End::Power;
                }
            }
        }
    }

    /// Adds to the trace what the broker has logged.
    pub(super) fn note_log(&self) {
        for line in captured_log::take() {
            self.note(|| line);
        }
    }
}
