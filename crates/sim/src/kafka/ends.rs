//! What happens to the machine under the broker: its process ends, its power is lost, its disk fails or is full.

use mainstem_disk::fault::{self, FaultFs};

use super::run::Run;
use crate::ledger::Violation;
use crate::machine::Machine;
use crate::plan::pick;
use crate::run::End;

impl Run<'_> {
    /// Lets the process end, now or soon.
    pub(crate) fn plan_end(&mut self) -> Result<(), Violation> {
        match self.dice.below(10) {
            0..5 => {
                let crash_at = Some(1 + self.dice.below(40));
                self.fs.set(fault::Plan { crash_at, ..fault::Plan::default() });
                Ok(())
            }
            5 => self.end(End::Clean),
            6 | 7 if self.plan.faults.loses_power => self.end(End::Power),
            _ => self.end(End::Kill),
        }
    }

    /// Lets a call of the file system fail.
    pub(crate) fn plan_error(&mut self) {
        let at = Some(1 + self.dice.below(20));
        let mut errors = fault::Plan::default();
        match self.dice.below(3) {
            // Without syncs before answers, a sync that fails loses what was answered.
            1 if !self.plan.is_lax => errors.failing_sync = at,
            0 | 1 => errors.failing_write = at,
            _ => errors.failing_name = at,
        }
        self.trouble(errors);
    }

    /// Lets the disk be full soon, or not any more.
    pub(crate) fn fill_or_clear_disk(&mut self) {
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

    /// The process ends, and another one begins with what it left.
    pub(crate) fn end(&mut self, how: End) -> Result<(), Violation> {
        self.fs.note(|| format!("the process ends: {how:?}"));
        let seed = self.dice.roll();
        match how {
            End::Kill => self.tally.kills += 1,
            End::Power => self.tally.power_losses += 1,
            End::Clean => {
                self.tally.clean_ends += 1;
                self.machine.drain();
                for shard in 0..self.machine.shards() {
                    self.turn(shard, true, true);
                }
            }
        }
        let left = match how {
            End::Clean if !self.fs.has_crashed() => self.fs.clone(),
            End::Power => self.fs.survivor(seed),
            _ => self.fs.killed(seed),
        };
        self.lose_connections()?;
        self.restart(&left)
    }

    /// All connections end; some of what was on its way to clients still arrives.
    fn lose_connections(&mut self) -> Result<(), Violation> {
        for (_, (who, mut link)) in std::mem::take(&mut self.links) {
            if link.is_cut {
                continue;
            }
            let arrives = match self.dice.below(3) {
                0 => 0,
                1 => self.dice.below(link.down.len() as u64 + 1) as usize,
                _ => link.down.len(),
            };
            link.down.truncate(arrives);
            self.receive(who, &link.down)?;
            self.lost(who)?;
        }
        for client in &mut self.publishers {
            client.sends.clear();
            client.broker_crashed(&self.messages);
        }
        Ok(())
    }

    fn restart(&mut self, left: &FaultFs) -> Result<(), Violation> {
        let shards = self.machine.shards();
        // The stores of the old one must be gone before others use their files.
        self.machine = Machine::idle(&self.setup, self.now_ms)?;
        let shards = if self.plan.changes_shards { 1 + self.dice.below(3) as usize } else { shards };
        self.now_ms += pick(&mut self.dice, &[0, 50, 1_500]);
        let loses_power = self.plan.faults.loses_power;
        let (machine, fs, _) =
            Machine::begin_again(left, &self.setup, shards, self.now_ms, &mut self.dice, loses_power)?;
        (self.machine, self.fs) = (machine, fs);
        self.note_heard();
        self.fs.note(|| format!("{shards} shards begin"));
        self.messages.begin_broker(shards);
        self.ledger.broker_ended();
        self.ends.push(self.messages.tick());
        self.turns = vec![0; shards];
        self.members.iter_mut().for_each(|member| member.waits_for.clear());
        self.is_troubled = false;
        Ok(())
    }
}
