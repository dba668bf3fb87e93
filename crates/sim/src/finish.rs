//! The end of a run: everything comes to rest, and what is there then is compared with what was promised.

use mainstem_disk::fault;
use mainstem_mqtt::{QoS, Version};

use crate::client::{Client, Stage};
use crate::ledger::Violation;
use crate::machine::LinkId;
use crate::plan::Profile;
use crate::run::{End, Run};

/// Rounds without a byte after which nothing can be on its way.
const QUIET_ROUNDS: u32 = 30;
/// Rounds in which everything must have come to rest.
const ROUNDS_MAX: u32 = 4_000;
/// Rounds after which a broker that a disk has failed is started anew.
const PATIENCE_ROUNDS: u32 = 400;
const ROUND_MS: u64 = 20;

impl Run<'_> {
    /// Lets everything come to rest, and checks what has come of it.
    pub(crate) fn finish(&mut self) -> Result<(), Violation> {
        self.fs.note(|| "everything is to come to rest".to_owned());
        self.fs.set(fault::Plan::default());
        self.settle()?;
        if self.machine.is_failing() {
            // What QoS 2 and all that is to be kept wait for comes with the next process.
            self.end(End::Kill)?;
            self.fs.set(fault::Plan::default());
            self.settle()?;
        }
        let probe = self.clients.len();
        let profile = Profile {
            version: Version::V5,
            expiry_s: 0,
            receive_maximum: u16::MAX,
            prompt: 100,
            is_lazy: false,
            group: ("", ""),
            has_will: false,
            will_delay_s: 0,
            publishes: 0,
        };
        self.clients.push(Client::new(probe, profile));
        self.settle()?;
        self.clients[probe].subscribe(&mut self.ledger, &"r/#".into(), None, QoS::AtLeastOnce);
        self.send(probe);
        self.settle()?;
        let sessions: Vec<_> = self.clients.iter().filter_map(|client| client.session).collect();
        self.ledger.check_losses(&sessions)?;
        let Some(session) = self.clients[probe].session else {
            return Err(Violation("nobody is let in any more".to_owned()));
        };
        self.ledger.check_retained_now(session)?;
        self.check_gauges()
    }

    fn check_gauges(&mut self) -> Result<(), Violation> {
        let unfinished = self.machine.unfinished();
        if unfinished != 0 {
            return Err(Violation(format!("all is over, and {unfinished} things are remembered")));
        }
        let counters = self.machine.counters();
        if counters.queued_messages != 0 {
            return Err(Violation(format!(
                "all is delivered, and {} messages are queued",
                counters.queued_messages
            )));
        }
        if counters.sessions != self.clients.len() as u64 {
            return Err(Violation(format!(
                "{} clients have {} sessions",
                self.clients.len(),
                counters.sessions
            )));
        }
        Ok(())
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
            let is_done = |client: &Client| client.is_online() && !client.has_outgoing() && !client.owes();
            let is_quiet = !has_moved && self.clients.iter().all(is_done) && !self.machine.is_busy();
            quiet = if is_quiet { quiet + 1 } else { 0 };
            if quiet == QUIET_ROUNDS {
                return Ok(());
            }
        }
        let waiting: Vec<String> = self
            .clients
            .iter()
            .filter(|client| !client.is_online() || client.has_outgoing())
            .map(|client| format!("{client:?}"))
            .collect();
        Err(Violation(format!("nothing comes to rest: {}", waiting.join("\n"))))
    }

    /// Everybody does what is due. True if anything was sent.
    fn round(&mut self) -> Result<bool, Violation> {
        self.now_ms += ROUND_MS;
        for index in 0..self.clients.len() {
            let client = &mut self.clients[index];
            client.is_silent = false;
            if client.stage == Stage::Away {
                self.connect(index, false);
            }
        }
        let mut has_moved = false;
        let ids: Vec<LinkId> = self.links.keys().copied().collect();
        for id in &ids {
            let Some(link) = self.links.get_mut(id) else { continue };
            let up = std::mem::take(&mut link.up);
            has_moved |= !up.is_empty();
            let (is_cut, client) = (link.is_cut, link.client);
            if link.closed_ms.is_none() {
                self.machine.set_stalled(*id, false);
                self.machine.feed(*id, &up);
            }
            if is_cut {
                self.links.remove(id);
                self.hang_up(*id, client);
            }
        }
        for shard in 0..self.machine.shards() {
            self.turn(shard, true, true);
        }
        for id in ids {
            let Some(len) = self.links.get(&id).map(|link| link.down.len()) else { continue };
            has_moved |= len > 0;
            let client = self.links[&id].client;
            self.carry(id, len)?;
            self.clients[client].acknowledge(usize::MAX);
            self.send(client);
        }
        Ok(has_moved)
    }
}
