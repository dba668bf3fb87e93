//! The end of a run: everything comes to rest, and what is there then is compared with what was promised.

use mainstem_disk::fault;
use mainstem_doors::Doors;

use super::client::Client;
use super::consumer::{Consumer, Habits};
use super::ledger::Isolation;
use super::run::{Member, Run, Who};
use crate::client::Stage;
use crate::ledger::Violation;
use crate::machine::LinkId;
use crate::run::End;

/// Rounds without a byte after which nothing can be on its way.
const QUIET_ROUNDS: u32 = 10;
/// Rounds in which everything must have come to rest.
const ROUNDS_MAX: u32 = 6_000;
/// Rounds after which a broker that a disk has failed is started anew.
const PATIENCE_ROUNDS: u32 = 400;
const ROUND_MS: u64 = 20;

impl Run<'_> {
    /// Lets everything come to rest, and checks what has come of it.
    pub(crate) fn finish(&mut self) -> Result<(), Violation> {
        self.fs.note(|| "everything is to come to rest".to_owned());
        self.fs.set(fault::Plan::default());
        self.is_ending = true;
        self.settle()?;
        for isolation in [Isolation::ReadUncommitted, Isolation::ReadCommitted] {
            let habits = Habits {
                isolation,
                has_session: false,
                max_wait_ms: 0,
                partition_max_bytes: 100_000,
                sweeps: true,
            };
            let reader: Box<dyn Client> = Box::new(Consumer::new(habits, self.parts()));
            self.members.push(Member::new(reader));
        }
        self.settle()?;
        self.ledger.check_losses()?;
        self.ledger.check_messages(&self.messages.messages, &self.ends, self.tally.disk_faults == 0)
    }

    fn settle(&mut self) -> Result<(), Violation> {
        let mut quiet = 0;
        for round in 0..ROUNDS_MAX {
            if round % PATIENCE_ROUNDS == PATIENCE_ROUNDS - 1 && self.is_troubled {
                self.end(End::Kill)?;
                self.fs.set(fault::Plan::default());
            }
            let has_moved = self.round()?;
            self.note_heard();
            if self.fs.has_crashed() {
                self.end(End::Kill)?;
                self.fs.set(fault::Plan::default());
            }
            let is_quiet = !has_moved && self.are_all_done() && !self.machine.is_busy();
            quiet = if is_quiet { quiet + 1 } else { 0 };
            if quiet == QUIET_ROUNDS {
                return Ok(());
            }
        }
        let waiting: Vec<usize> =
            (0..self.members.len()).filter(|at| !self.members[*at].client.is_done()).collect();
        let publishing: Vec<_> = self.publishers.iter().filter(|client| client.has_outgoing()).collect();
        Err(Violation(format!("nothing comes to rest: clients {waiting:?}, publishers {publishing:?}")))
    }

    fn are_all_done(&self) -> bool {
        self.ledger.has_topics
            && self.members.iter().all(|member| member.client.is_done())
            && self.publishers.iter().all(|client| client.is_online() && !client.has_outgoing())
    }

    /// Everybody does what is due. True if anything was sent.
    fn round(&mut self) -> Result<bool, Violation> {
        self.now_ms += ROUND_MS;
        for index in 0..self.publishers.len() {
            if self.publishers[index].stage == Stage::Away {
                self.connect_again(index);
            }
        }
        for index in 0..self.members.len() {
            if self.members[index].wire.link.is_none() {
                if self.may_return(index) {
                    self.open(Who::Member(index), Doors::KAFKA);
                }
            } else if index == 0 || self.ledger.has_topics {
                self.with(index, |client, desk| client.act(desk));
                self.send(Who::Member(index));
            }
        }
        let mut has_moved = false;
        let ids: Vec<LinkId> = self.links.keys().copied().collect();
        for id in &ids {
            let Some((_, link)) = self.links.get_mut(id) else { continue };
            let up = std::mem::take(&mut link.up);
            has_moved |= !up.is_empty();
            let is_cut = link.is_cut;
            if link.closed_ms.is_none() {
                self.machine.set_stalled(*id, false);
                self.machine.feed(*id, &up);
            }
            if is_cut {
                self.notice(*id);
            }
        }
        for shard in 0..self.machine.shards() {
            self.turn(shard, true, true);
        }
        for id in ids {
            let Some((_, link)) = self.links.get(&id) else { continue };
            let len = link.down.len();
            has_moved |= len > 0;
            self.carry(id, len)?;
        }
        Ok(has_moved)
    }
}
