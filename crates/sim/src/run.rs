//! One run: clients, network, disk and the end of processes, all as a seed says, one step after the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_broker::{Counters, Durability};
use mainstem_disk::fault::{self, Dice, FaultFs};
use mainstem_doors::Doors;
use mainstem_mqtt::{Packet, QoS, Version};

use crate::client::{Client, Stage};
use crate::flaw::Flaw;
use crate::frames;
use crate::heard;
use crate::ledger::{Ledger, Message, MessageId, Violation};
use crate::machine::{Left, LinkId, Machine, Setup};
use crate::plan::{self, Plan, pick};

/// What a run has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each counts what its name says")]
pub struct Tally {
    pub steps: u64,
    pub published: u64,
    pub acknowledged: u64,
    pub delivered: u64,
    pub kills: u64,
    pub power_losses: u64,
    pub clean_ends: u64,
    pub disk_faults: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.steps += other.steps;
        self.published += other.published;
        self.acknowledged += other.acknowledged;
        self.delivered += other.delivered;
        self.kills += other.kills;
        self.power_losses += other.power_losses;
        self.clean_ends += other.clean_ends;
        self.disk_faults += other.disk_faults;
    }
}

/// A connection between a client and the broker.
#[derive(Debug, Default)]
pub(crate) struct Link {
    pub(crate) client: usize,
    /// On its way to the broker.
    pub(crate) up: Vec<u8>,
    /// On its way to the client.
    pub(crate) down: Vec<u8>,
    /// The client has gone; the broker has not noticed yet.
    pub(crate) is_cut: bool,
    /// When the broker has ended it; the client reads on to the end.
    pub(crate) closed_ms: Option<u64>,
    pub(crate) is_stalled: bool,
}

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By a kill: all that was written is there.
    Kill,
    /// The machine loses power.
    Power,
    /// It was asked to.
    Clean,
}

pub(crate) struct Run<'a> {
    pub(crate) plan: Plan,
    pub(crate) dice: Dice,
    pub(crate) now_ms: u64,
    pub(crate) ledger: Ledger,
    pub(crate) clients: Vec<Client>,
    pub(crate) links: BTreeMap<LinkId, Link>,
    next_link: LinkId,
    pub(crate) fs: FaultFs,
    pub(crate) machine: Machine,
    setup: Setup,
    flaw: &'a mut dyn Flaw,
    pub(crate) tally: Tally,
    /// A fault was planted since the broker was started.
    pub(crate) is_troubled: bool,
}

impl<'a> Run<'a> {
    pub(crate) fn new(seed: u64, fs: FaultFs, flaw: &'a mut dyn Flaw) -> Result<Self, Violation> {
        let mut dice = Dice::new(seed);
        let plan = Plan::of(&mut dice);
        let setup = Setup {
            config: plan.config.clone(),
            stream: mainstem_stream::Config::default(),
            bindings: Arc::default(),
            settings: plan.settings.clone(),
            is_slow: plan.is_slow,
            wrap: flaw.wrap(),
        };
        let now_ms = 1_000;
        let machine = Machine::start(&fs, &setup, plan.shards, dice.roll(), now_ms)
            .map_err(|error| Violation(format!("an empty disk is refused: {error}")))?;
        let profiles = plan.clients.iter().cloned().enumerate();
        let clients = profiles.map(|(index, profile)| Client::new(index, profile)).collect();
        fs.note(|| format!("{} shards, {:?}", plan.shards, plan.faults));
        let mut ledger = Ledger::new(plan.ends_sessions);
        ledger.begin_broker(plan.shards);
        Ok(Self {
            plan,
            dice,
            now_ms,
            ledger,
            clients,
            links: BTreeMap::new(),
            next_link: 0,
            fs,
            machine,
            setup,
            flaw,
            tally: Tally::default(),
            is_troubled: false,
        })
    }

    /// Does something, whatever it is.
    pub(crate) fn step(&mut self) -> Result<(), Violation> {
        self.tally.steps += 1;
        self.now_ms += self.dice.below(3);
        let faults = self.plan.faults;
        let rare = self.dice.below(10_000);
        if rare < faults.ends {
            self.plan_end()?;
        } else if rare < faults.ends + faults.errors {
            self.plan_error();
        } else if rare < faults.ends + faults.errors + faults.full {
            self.fill_or_clear_disk();
        } else if rare < faults.ends + faults.errors + faults.full + self.plan.cuts {
            self.cut_some();
        } else if self.machine.is_failing() && self.dice.chance(1) {
            self.end(End::Kill)?;
        }
        match self.dice.below(100) {
            0..22 => self.act(),
            22..42 => self.carry_up(),
            42..60 => self.carry_down()?,
            60..97 => {
                let (shard, syncs, reports) = (self.any_shard(), self.dice.chance(40), self.dice.chance(50));
                self.turn(shard, syncs, reports);
            }
            97 => self.stall_some(),
            98 => self.notice_some(),
            _ => self.let_pass(),
        }
        self.note_heard();
        if self.fs.has_crashed() {
            let power = self.plan.faults.loses_power && self.dice.chance(70);
            self.end(if power { End::Power } else { End::Kill })?;
        }
        Ok(())
    }

    /// Time goes by. A shard that is idle finds out as soon as something happens to it.
    fn let_pass(&mut self) {
        self.now_ms += pick(&mut self.dice, &[20, 100, 500, 3_000]);
        for shard in 0..self.machine.shards() {
            self.turn(shard, false, false);
        }
    }

    pub(crate) fn note_heard(&self) {
        for line in heard::take() {
            self.fs.note(|| line);
        }
    }

    fn any_shard(&mut self) -> usize {
        self.dice.below(self.machine.shards() as u64) as usize
    }

    /// A link for which `is_it` holds.
    fn any_link(&mut self, is_it: impl Fn(&Link) -> bool) -> Option<LinkId> {
        let found: Vec<LinkId> =
            self.links.iter().filter(|(_, link)| is_it(link)).map(|(id, _)| *id).collect();
        (!found.is_empty()).then(|| pick(&mut self.dice, &found))
    }

    /// How many of `len` bytes go at once.
    fn piece(&mut self, len: usize) -> usize {
        if len > 0 && self.dice.chance(self.plan.pieces) {
            1 + self.dice.below(len as u64) as usize
        } else {
            len
        }
    }

    fn carry_up(&mut self) {
        let Some(id) = self.any_link(|link| !link.up.is_empty() && link.closed_ms.is_none()) else { return };
        let count = self.piece(self.links[&id].up.len());
        let Some(link) = self.links.get_mut(&id) else { return };
        let rest = link.up.split_off(count);
        let bytes = std::mem::replace(&mut link.up, rest);
        self.machine.feed(id, &bytes);
    }

    fn carry_down(&mut self) -> Result<(), Violation> {
        let is_it = |link: &Link| !link.is_cut && (!link.down.is_empty() || link.closed_ms.is_some());
        let Some(id) = self.any_link(is_it) else { return Ok(()) };
        let count = self.piece(self.links[&id].down.len());
        self.carry(id, count)
    }

    /// Lets a client read so many bytes, and see the end behind them if there is one.
    pub(crate) fn carry(&mut self, id: LinkId, count: usize) -> Result<(), Violation> {
        let Some(link) = self.links.get_mut(&id) else { return Ok(()) };
        let rest = link.down.split_off(count);
        let bytes = std::mem::replace(&mut link.down, rest);
        let (index, closed_ms) = (link.client, link.closed_ms.filter(|_| link.down.is_empty()));
        let client = &mut self.clients[index];
        client.receive(&mut self.ledger, &bytes, self.now_ms)?;
        if !client.is_silent && self.dice.chance(client.profile.prompt) {
            client.acknowledge(usize::MAX);
        }
        self.send(index);
        if let Some(closed_ms) = closed_ms {
            self.links.remove(&id);
            self.clients[index].disconnected(&mut self.ledger, closed_ms);
        } else if self.clients[index].quits {
            self.cut(index);
        }
        Ok(())
    }

    /// Puts on its way what a client has to say.
    pub(crate) fn send(&mut self, index: usize) {
        let frames = std::mem::take(&mut self.clients[index].sends);
        let link = self.clients[index].link;
        for frame in frames {
            self.fs.note(|| format!("client {index} sends {}", show(&frame)));
            for frame in self.flaw.to_broker(index, frame) {
                if let Some(link) = link.and_then(|id| self.links.get_mut(&id)) {
                    link.up.extend_from_slice(&frame);
                }
            }
        }
    }

    /// A shard ends its turn and begins the next. Between the two its disk may go on, and tell of it.
    pub(crate) fn turn(&mut self, shard: usize, syncs: bool, reports: bool) {
        let left = self.machine.end_turn(shard);
        if self.fs.has_crashed() {
            // Whatever it had to say, it did not come to it.
            return;
        }
        self.take_output(left);
        if syncs {
            self.machine.sync(shard);
        }
        if reports {
            self.machine.report(shard);
        }
        self.machine.begin_turn(shard, self.now_ms);
        self.ledger.begin_turn(shard);
    }

    fn take_output(&mut self, left: Left) {
        for (id, bytes) in left.output {
            let Some(index) = self.links.get(&id).map(|link| link.client) else { continue };
            let mut rest = &bytes[..];
            while let Some(len) = frames::whole(rest) {
                let (frame, behind) = rest.split_at(len);
                rest = behind;
                self.fs.note(|| format!("client {index} is sent {}", show(frame)));
                self.clients[index].note_refusal(&mut self.ledger, frame);
                for (to, frame) in self.flaw.to_client(index, frame.to_vec()) {
                    let link = if to == index { Some(id) } else { self.clients[to].link };
                    let is_there = to == index || self.clients[to].is_online();
                    if let Some(link) = link.filter(|_| is_there).and_then(|id| self.links.get_mut(&id)) {
                        link.down.extend_from_slice(&frame);
                    }
                }
            }
        }
        for id in left.closed {
            let is_cut = self.links.get(&id).is_some_and(|link| link.is_cut);
            if is_cut {
                self.links.remove(&id);
            } else if let Some(link) = self.links.get_mut(&id) {
                // The session's expiry counts from then.
                link.closed_ms = Some(left.began_ms);
                link.up.clear();
                let client = &self.clients[link.client];
                if let Some(session) = client.session.filter(|_| client.link == Some(id)) {
                    self.ledger.gone(session);
                }
            }
        }
    }

    fn act(&mut self) {
        let index = self.dice.below(self.clients.len() as u64) as usize;
        match self.clients[index].stage {
            Stage::Away => {
                if self.dice.chance(30) {
                    let clean = self.plan.ends_sessions && self.dice.chance(5);
                    self.connect(index, clean);
                }
            }
            Stage::Connecting { .. } => {}
            Stage::Online => {
                if self.dice.chance(self.clients[index].profile.publishes) {
                    self.publish_some(index);
                } else {
                    self.do_something_else(index);
                }
            }
        }
    }

    pub(crate) fn connect(&mut self, index: usize, clean: bool) {
        let link = self.next_link;
        self.next_link += 1;
        let has_strays = self.links.values().any(|link| link.client == index && link.is_cut);
        self.links.insert(link, Link { client: index, ..Link::default() });
        let profile = &self.clients[index].profile;
        let (has_will, is_lazy) = (profile.has_will, profile.is_lazy);
        let will = has_will.then(|| self.new_message(index, plan::will_topic(index), QoS::AtLeastOnce));
        if let Some(will) = will {
            self.ledger.messages[will].is_will = true;
        }
        let shard = self.any_shard();
        self.machine.open(link, shard, Doors::MQTT);
        self.clients[index].is_silent = is_lazy && self.dice.chance(50);
        self.clients[index].connect(&mut self.ledger, link, clean, will, has_strays, self.now_ms);
        self.fs.note(|| format!("client {index} connects to shard {shard}"));
        self.send(index);
    }

    fn new_message(&mut self, publisher: usize, topic: Arc<str>, qos: QoS) -> MessageId {
        let sent = self.ledger.tick();
        self.ledger.messages.push(Message {
            publisher,
            topic,
            qos,
            retain: false,
            is_clear: false,
            is_will: false,
            is_due: false,
            expiry_s: None,
            sent,
            sent_ms: self.now_ms,
            was_refused: false,
            acked: None,
        });
        self.ledger.messages.len() - 1
    }

    fn publish_some(&mut self, index: usize) {
        let dice = &mut self.dice;
        let (mut topic, mut qos, mut retain): (Arc<str>, _, _) =
            (pick(dice, &plan::TOPICS).into(), plan::qos(dice), false);
        match dice.below(10) {
            0..2 => topic = pick(dice, &plan::SHARED_TOPICS).into(),
            2..4 => {
                qos = pick(dice, &[QoS::AtLeastOnce, QoS::ExactlyOnce]);
                topic = plan::retained_topic(index, qos);
                retain = true;
            }
            _ => {}
        }
        for _ in 0..=self.dice.below(6) {
            if !self.clients[index].can_publish() {
                break;
            }
            let id = self.new_message(index, topic.clone(), qos);
            let is_five = self.clients[index].profile.version == Version::V5;
            let message = &mut self.ledger.messages[id];
            message.retain = retain;
            message.is_clear = retain && self.dice.chance(20);
            if !retain && is_five && self.dice.chance(8) {
                message.expiry_s = Some(1 + self.dice.below(4) as u32);
            }
            self.tally.published += 1;
            self.clients[index].publish(&self.ledger, id);
        }
        self.send(index);
    }

    fn do_something_else(&mut self, index: usize) {
        let dice = &mut self.dice;
        let client = &mut self.clients[index];
        let may_share = client.lasts && (self.plan.ends_sessions || client.profile.expiry_s == u32::MAX);
        match dice.below(100) {
            0..40 => client.acknowledge(if client.is_silent { 0 } else { 1 + dice.below(9) as usize }),
            40..75 => {
                let (filter, group) = plan::filter(dice, &client.profile, may_share);
                let qos = if group.is_some() {
                    pick(dice, &[QoS::AtLeastOnce, QoS::ExactlyOnce])
                } else {
                    plan::qos(dice)
                };
                client.subscribe(&mut self.ledger, &filter, group, qos);
            }
            75..90 => {
                let (filter, group) = plan::filter(dice, &client.profile, may_share);
                client.unsubscribe(&mut self.ledger, &filter, group);
            }
            90..93 => {
                let ends_session = self.plan.ends_sessions && dice.chance(20);
                client.disconnect(ends_session);
                self.send(index);
                self.cut(index);
            }
            _ => {}
        }
        self.send(index);
    }

    /// The client's end of a connection is gone; what it has sent may still arrive.
    fn cut(&mut self, index: usize) {
        let Some(link) = self.clients[index].link.and_then(|id| self.links.get_mut(&id)) else { return };
        link.is_cut = true;
        link.down.clear();
        let id = self.clients[index].link;
        if let Some(id) = id.filter(|id| self.links[id].closed_ms.is_some()) {
            self.links.remove(&id);
        }
        self.fs.note(|| format!("client {index} is cut off"));
        self.clients[index].disconnected(&mut self.ledger, self.now_ms);
    }

    fn cut_some(&mut self) {
        let index = self.dice.below(self.clients.len() as u64) as usize;
        self.cut(index);
    }

    /// The broker notices that a client has gone.
    fn notice_some(&mut self) {
        let Some(id) = self.any_link(|link| link.is_cut) else { return };
        let all = self.dice.chance(70);
        let Some(link) = self.links.remove(&id) else { return };
        if all {
            self.machine.feed(id, &link.up);
        }
        self.hang_up(id, link.client);
    }

    /// The broker learns that a connection has ended. What it still had to say may have refused something.
    pub(crate) fn hang_up(&mut self, id: LinkId, client: usize) {
        let unsent = self.machine.hang_up(id);
        let mut rest = &unsent[..];
        while let Some(len) = frames::whole(rest) {
            let (frame, behind) = rest.split_at(len);
            rest = behind;
            self.clients[client].note_refusal(&mut self.ledger, frame);
        }
    }

    fn stall_some(&mut self) {
        let Some(id) = self.any_link(|link| !link.is_cut && link.closed_ms.is_none()) else { return };
        let Some(link) = self.links.get_mut(&id) else { return };
        link.is_stalled = !link.is_stalled;
        self.machine.set_stalled(id, link.is_stalled);
    }

    fn plan_end(&mut self) -> Result<(), Violation> {
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

    fn plan_error(&mut self) {
        let at = Some(1 + self.dice.below(20));
        let mut errors = fault::Plan::default();
        // Without syncs before answers, a sync that fails loses what was answered.
        let may_fail_to_sync = self.plan.config.durability == Durability::Fsync;
        match self.dice.below(3) {
            1 if may_fail_to_sync => errors.failing_sync = at,
            0 | 1 => errors.failing_write = at,
            _ => errors.failing_name = at,
        }
        self.trouble(errors);
    }

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
        let ended = self.fs.has_crashed();
        let left = match how {
            End::Clean if !ended => self.fs.clone(),
            End::Power => self.fs.survivor(seed),
            _ => self.fs.killed(seed),
        };
        self.lose_connections()?;
        self.restart(&left)
    }

    /// All connections end; some of what was on its way to clients still arrives.
    fn lose_connections(&mut self) -> Result<(), Violation> {
        for (_, mut link) in std::mem::take(&mut self.links) {
            if link.is_cut {
                continue;
            }
            let arrives = match self.dice.below(3) {
                0 => 0,
                1 => self.dice.below(link.down.len() as u64 + 1) as usize,
                _ => link.down.len(),
            };
            link.down.truncate(arrives);
            let client = &mut self.clients[link.client];
            client.receive(&mut self.ledger, &link.down, self.now_ms)?;
            client.sends.clear();
            client.disconnected(&mut self.ledger, link.closed_ms.unwrap_or(self.now_ms));
        }
        for client in &mut self.clients {
            client.broker_crashed(&self.ledger);
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
        self.machine = machine;
        self.note_heard();
        let Counters { sessions, queued_messages, .. } = self.machine.counters();
        fs.note(|| format!("{shards} shards begin with {sessions} sessions, {queued_messages} messages"));
        self.fs = fs;
        self.ledger.begin_broker(shards);
        self.is_troubled = false;
        Ok(())
    }
}

/// A packet, for those who read a trace.
pub(crate) fn show(frame: &[u8]) -> String {
    let parsed = [Version::V5, Version::V4].map(|version| mainstem_mqtt::decode(version, frame));
    let text = match &parsed {
        [Ok(Packet::Publish(publish)), _] | [_, Ok(Packet::Publish(publish))] => {
            let payload = String::from_utf8_lossy(publish.payload);
            let dup = if publish.dup { " again" } else { "" };
            let retain = if publish.retain { " retained" } else { "" };
            let (qos, id) = (publish.qos as u8, publish.packet_id);
            return format!("PUBLISH {id} on {}, QoS {qos}{retain}{dup}: {payload:.20}", publish.topic);
        }
        [Ok(packet), _] | [_, Ok(packet)] => format!("{packet:?}"),
        _ => format!("{frame:?}"),
    };
    text.chars().take(200).collect()
}
