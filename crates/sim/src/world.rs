//! What is under the clients of a run: the broker's machine, its disk, the time, and the mishaps that a seed has for
//! them.

use mainstem_disk::fault::{self, Dice, FaultFs};

use crate::heard;
use crate::ledger::Violation;
use crate::machine::{Machine, Setup};
use crate::plan::{Faults, pick};
use crate::run::{End, Tally};

/// What has gone wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mishap {
    Nothing,
    /// Something will, of itself.
    Planted,
    /// The process is to end now.
    Ends(End),
}

pub(crate) struct World {
    pub(crate) dice: Dice,
    pub(crate) now_ms: u64,
    pub(crate) fs: FaultFs,
    pub(crate) machine: Machine,
    pub(crate) setup: Setup,
    pub(crate) faults: Faults,
    pub(crate) changes_shards: bool,
    /// Something is answered without a sync before it.
    pub(crate) is_lax: bool,
    /// A fault was planted since the broker was started.
    pub(crate) is_troubled: bool,
    pub(crate) tally: Tally,
}

impl World {
    /// Lets one of the plan's rare mishaps happen if one is due, as `rare` of 10,000 says.
    pub(crate) fn mishap(&mut self, rare: u64) -> Mishap {
        let Faults { ends, errors, full, .. } = self.faults;
        if rare < ends {
            return self.plan_end().map_or(Mishap::Planted, Mishap::Ends);
        }
        if rare < ends + errors {
            self.plan_error();
        } else if rare < ends + errors + full {
            self.fill_or_clear_disk();
        } else {
            return Mishap::Nothing;
        }
        Mishap::Planted
    }

    /// Lets the process end, now or soon.
    fn plan_end(&mut self) -> Option<End> {
        match self.dice.below(10) {
            0..5 => {
                let crash_at = Some(1 + self.dice.below(40));
                self.fs.set(fault::Plan { crash_at, ..fault::Plan::default() });
                None
            }
            5 => Some(End::Clean),
            6 | 7 if self.faults.loses_power => Some(End::Power),
            _ => Some(End::Kill),
        }
    }

    /// Lets a call of the file system fail.
    fn plan_error(&mut self) {
        let at = Some(1 + self.dice.below(20));
        let mut errors = fault::Plan::default();
        match self.dice.below(3) {
            // Without syncs before answers, a sync that fails loses what was answered.
            1 if !self.is_lax => errors.failing_sync = at,
            0 | 1 => errors.failing_write = at,
            _ => errors.failing_name = at,
        }
        self.trouble(errors);
    }

    /// Lets the disk be full soon, or not any more.
    fn fill_or_clear_disk(&mut self) {
        let used: u64 = self.fs.files().iter().map(|(_, len)| len).sum();
        let space_bytes = self.dice.chance(50).then(|| used + self.dice.below(20_000));
        self.trouble(fault::Plan { space_bytes, ..fault::Plan::default() });
    }

    fn trouble(&mut self, faults: fault::Plan) {
        self.fs.note(|| format!("{faults:?}"));
        self.fs.set(faults);
        self.is_troubled = true;
        self.tally.disk_faults += 1;
    }

    /// How a process ends whose disk has ended.
    pub(crate) fn sudden_end(&mut self) -> End {
        if self.faults.loses_power && self.dice.chance(70) { End::Power } else { End::Kill }
    }

    /// Counts an end; what is rolled for it.
    pub(crate) fn begin_end(&mut self, how: End) -> u64 {
        self.fs.note(|| format!("the process ends: {how:?}"));
        match how {
            End::Kill => self.tally.kills += 1,
            End::Power => self.tally.power_losses += 1,
            End::Clean => self.tally.clean_ends += 1,
        }
        self.dice.roll()
    }

    /// What a process leaves that has ended like this.
    pub(crate) fn left(&self, how: End, seed: u64) -> FaultFs {
        match how {
            End::Clean if !self.fs.has_crashed() => self.fs.clone(),
            End::Power => self.fs.survivor(seed),
            _ => self.fs.killed(seed),
        }
    }

    /// Another process begins with what one has left. Returns whether the power was lost meanwhile.
    ///
    /// # Errors
    /// It does not start.
    pub(crate) fn restart(&mut self, left: &FaultFs) -> Result<bool, Violation> {
        let shards = self.machine.shards();
        // The stores of the old one must be gone before others use their files.
        self.machine = Machine::idle(&self.setup, self.now_ms)?;
        let shards = if self.changes_shards { 1 + self.dice.below(3) as usize } else { shards };
        self.now_ms += pick(&mut self.dice, &[0, 50, 1_500]);
        let loses_power = self.faults.loses_power;
        let was_lost;
        (self.machine, self.fs, was_lost) =
            Machine::begin_again(left, &self.setup, shards, self.now_ms, &mut self.dice, loses_power)?;
        self.note_heard();
        self.fs.note(|| format!("{shards} shards begin"));
        self.is_troubled = false;
        Ok(was_lost)
    }

    pub(crate) fn note_heard(&self) {
        for line in heard::take() {
            self.fs.note(|| line);
        }
    }

    pub(crate) fn any_shard(&mut self) -> usize {
        self.dice.below(self.machine.shards() as u64) as usize
    }
}
