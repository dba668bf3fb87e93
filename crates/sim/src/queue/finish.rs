//! The end of a run: faults are over, everything is drained by those who are patient, and what has come of it is
//! compared with what was promised.

use mainstem_disk::fault;
use mainstem_queue::GroupName;

use super::drainer::Drainer;
use super::plan::Role;
use super::publisher::Publisher;
use super::run::Run;
use crate::ledger::Violation;
use crate::run::End;

/// Rounds in which nothing is left after which nothing can come.
const QUIET_ROUNDS: u32 = 5;
/// Rounds without a delivery in which everything must have come to rest.
const ROUNDS_MAX: u32 = 3_000;
/// Rounds in which it must have, whatever comes.
const ALL_ROUNDS_MAX: u32 = 20_000;
/// Rounds after which a broker that a disk has failed is started anew.
const PATIENCE_ROUNDS: u32 = 200;
const ROUND_MS: u64 = 200;

impl Run<'_> {
    /// Lets everything come to rest, and checks what has come of it.
    pub(crate) fn finish(&mut self) -> Result<(), Violation> {
        self.world.fs.note(|| "everything is to come to rest".to_owned());
        self.world.fs.set(fault::Plan::default());
        self.is_ending = true;
        for round in 0..ROUNDS_MAX {
            if self.ledger.has_queues {
                break;
            }
            self.lose_patience(round)?;
            self.round()?;
        }
        if !self.ledger.has_queues {
            return Err(Violation("no queue can be made".to_owned()));
        }
        let mut drained: Vec<(usize, GroupName)> = Vec::new();
        for (queue, book) in self.ledger.books.iter().enumerate() {
            let others = book.groups.keys().filter(|name| ***name != *mainstem_queue::DEFAULT_GROUP).cloned();
            if book.plan.role != Role::Temporary {
                drained.extend(
                    [mainstem_queue::DEFAULT_GROUP.into()]
                        .into_iter()
                        .chain(others)
                        .map(|name| (queue, name)),
                );
            }
        }
        for (number, (queue, group)) in drained.into_iter().enumerate() {
            self.members.push(Box::new(Drainer::new(number as u64, queue, group)));
        }
        self.settle()?;
        self.ledger.check_losses()
    }

    fn settle(&mut self) -> Result<(), Violation> {
        let (mut quiet, mut idle, mut delivered) = (0, 0, self.ledger.delivered);
        for round in 0..ALL_ROUNDS_MAX {
            if idle == ROUNDS_MAX {
                break;
            }
            let has_moved = std::mem::replace(&mut delivered, self.ledger.delivered) != self.ledger.delivered;
            idle = if has_moved { 0 } else { idle + 1 };
            self.lose_patience(round)?;
            self.round()?;
            let is_done = self.members.iter().all(|client| client.is_done())
                && self.publishers.iter().all(Publisher::is_done);
            quiet = if is_done { quiet + 1 } else { 0 };
            if quiet == QUIET_ROUNDS {
                return Ok(());
            }
        }
        let waiting: Vec<String> =
            self.members.iter().filter(|client| !client.is_done()).map(|client| client.show()).collect();
        let publishing: Vec<&Publisher> =
            self.publishers.iter().filter(|publisher| !publisher.is_done()).collect();
        Err(Violation(format!("nothing comes to rest: {waiting:?}, {publishing:?}, {:?}", self.pending)))
    }

    /// Starts a broker anew that a disk has failed, now and then.
    fn lose_patience(&mut self, round: u32) -> Result<(), Violation> {
        if round % PATIENCE_ROUNDS == PATIENCE_ROUNDS - 1 && self.world.is_troubled {
            self.end(End::Kill)?;
            self.world.fs.set(fault::Plan::default());
        }
        Ok(())
    }

    /// Everybody does what is due.
    fn round(&mut self) -> Result<(), Violation> {
        self.world.now_ms += ROUND_MS;
        for number in 0..self.members.len() {
            self.act(number)?;
        }
        for number in 0..self.subscribers.len() {
            self.act_subscriber(number);
        }
        (0..self.publishers.len()).for_each(|number| self.act_publisher(number));
        for _ in 0..3 {
            for shard in 0..self.world.machine.shards() {
                self.turn(shard, true, true)?;
            }
        }
        self.world.note_heard();
        if self.world.fs.has_crashed() {
            self.end(End::Kill)?;
            self.world.fs.set(fault::Plan::default());
        }
        Ok(())
    }
}
