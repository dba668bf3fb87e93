//! One run: clients, network, disk and the end of processes, all as a seed says, one step after the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_disk::fault::{Dice, FaultFs};
use mainstem_doors::Doors;
use mainstem_mqtt::QoS;

use super::admin::Admin;
use super::client::{Client, Desk};
use super::committer::Committer;
use super::consumer::Consumer;
use super::flaw::Flaw;
use super::ledger::{Ledger, Part};
use super::maker::Maker;
use super::member::GroupMember;
use super::plan::{self, Plan};
use super::producer::Producer;
use super::transactor::Transactor;
use super::wire::{self, Wire};
use crate::client as mqtt;
use crate::heard;
use crate::ledger::{self, Message, Moment, Violation};
use crate::machine::{BEGAN_UNIX_MS, Left, LinkId, Machine, Setup};
use crate::plan::pick;
use crate::run::{End, Link, Tally};

/// Turns of each shard, with all that they write, after which the broker has done with what came over a connection
/// that is gone.
const TURNS_OF_A_REQUEST: u64 = 5;

/// A client of the Kafka door, and its connection.
pub(crate) struct Member {
    pub(crate) client: Box<dyn Client>,
    pub(crate) wire: Wire,
    /// Its last connection, which the broker may still know.
    former: Option<LinkId>,
    /// Turns that shards must have had before a careful client comes back.
    pub(crate) waits_for: Vec<u64>,
}

impl Member {
    pub(crate) fn new(client: Box<dyn Client>) -> Self {
        Self { client, wire: Wire::default(), former: None, waits_for: Vec::new() }
    }
}

/// Whose a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Member(usize),
    Publisher(usize),
}

pub(crate) struct Run<'a> {
    pub(crate) plan: Plan,
    pub(crate) dice: Dice,
    pub(crate) now_ms: u64,
    pub(crate) ledger: Ledger,
    pub(crate) members: Vec<Member>,
    /// What publishers of MQTT were promised, and when brokers ended, in its time.
    pub(crate) messages: ledger::Ledger,
    pub(crate) ends: Vec<Moment>,
    pub(crate) publishers: Vec<mqtt::Client>,
    pub(crate) links: BTreeMap<LinkId, (Who, Link)>,
    next_link: LinkId,
    /// Turns that each shard has had of which all was written and heard of.
    pub(crate) turns: Vec<u64>,
    pub(crate) fs: FaultFs,
    pub(crate) machine: Machine,
    pub(crate) setup: Setup,
    flaw: &'a mut dyn Flaw,
    pub(crate) tally: Tally,
    /// A fault was planted since the broker was started.
    pub(crate) is_troubled: bool,
    pub(crate) is_ending: bool,
}

impl<'a> Run<'a> {
    pub(crate) fn new(seed: u64, fs: FaultFs, flaw: &'a mut dyn Flaw) -> Result<Self, Violation> {
        let mut dice = Dice::new(seed);
        let plan = Plan::of(&mut dice);
        let setup = Setup {
            config: plan.mqtt.clone(),
            stream: plan.config.clone(),
            bindings: Arc::clone(&plan.bindings),
            settings: plan.settings.clone(),
            is_slow: plan.is_slow,
            wrap: flaw.wrap(),
        };
        let now_ms = 1_000;
        let machine = Machine::start(&fs, &setup, plan.shards, dice.roll(), now_ms)
            .map_err(|error| Violation(format!("an empty disk is refused: {error}")))?;
        fs.note(|| format!("{} shards, {:?}, {:?}", plan.shards, plan.faults, plan.topics));
        let mut messages = ledger::Ledger::new(false);
        messages.begin_broker(plan.shards);
        let publishers = plan.publishers.iter().cloned().enumerate();
        let publishers = publishers.map(|(index, profile)| mqtt::Client::new(index, profile)).collect();
        let mut run = Self {
            members: Vec::new(),
            turns: vec![0; plan.shards],
            plan,
            dice,
            now_ms,
            ledger: Ledger::default(),
            messages,
            ends: Vec::new(),
            publishers,
            links: BTreeMap::new(),
            next_link: 0,
            fs,
            machine,
            setup,
            flaw,
            tally: Tally::default(),
            is_troubled: false,
            is_ending: false,
        };
        run.admit();
        Ok(run)
    }

    /// All clients of the Kafka door.
    fn admit(&mut self) {
        let mut clients: Vec<Box<dyn Client>> = vec![Box::new(Maker::default())];
        for (index, kind) in self.plan.producers.iter().enumerate() {
            clients.push(Box::new(Producer::new(index, *kind)));
        }
        for (index, manner) in (self.plan.producers.len()..).zip(&self.plan.transactors) {
            clients.push(Box::new(Transactor::new(index, manner.clone())));
        }
        let parts = self.parts();
        for habits in &self.plan.consumers {
            clients.push(Box::new(Consumer::new(habits.clone(), parts.clone())));
        }
        clients.extend(
            (0..self.plan.committers).map(|index| Box::new(Committer::new(index)) as Box<dyn Client>),
        );
        clients.extend((0..self.plan.admins).map(|index| Box::new(Admin::new(index)) as Box<dyn Client>));
        for _ in 0..self.plan.group_members {
            clients.push(Box::new(GroupMember::default()));
        }
        self.members = clients.into_iter().map(Member::new).collect();
    }

    /// All partitions of the run's topics.
    pub(crate) fn parts(&self) -> Vec<Part> {
        let topics = self.plan.topics.iter().enumerate();
        topics
            .flat_map(|(topic, known)| (0..known.partitions.into()).map(move |index| Part { topic, index }))
            .collect()
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
            self.cut_some()?;
        } else if self.is_troubled && self.dice.chance(1) {
            self.end(End::Kill)?;
        }
        match self.dice.below(100) {
            0..22 => self.act(),
            22..42 => self.carry_up(),
            42..60 => self.carry_down()?,
            60..96 => {
                let (shard, syncs, reports) = (self.any_shard(), self.dice.chance(40), self.dice.chance(50));
                self.turn(shard, syncs, reports);
            }
            96 => self.stall_some(),
            97 | 98 => self.notice_some(),
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
        let links = self.links.iter().filter(|(_, (_, link))| is_it(link));
        let found: Vec<LinkId> = links.map(|(id, _)| *id).collect();
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
        let count = self.piece(self.links[&id].1.up.len());
        let Some((_, link)) = self.links.get_mut(&id) else { return };
        let rest = link.up.split_off(count);
        let bytes = std::mem::replace(&mut link.up, rest);
        self.machine.feed(id, &bytes);
    }

    fn carry_down(&mut self) -> Result<(), Violation> {
        let is_it = |link: &Link| !link.is_cut && (!link.down.is_empty() || link.closed_ms.is_some());
        let Some(id) = self.any_link(is_it) else { return Ok(()) };
        let count = self.piece(self.links[&id].1.down.len());
        self.carry(id, count)
    }

    /// Lets a client read so many bytes, and see the end behind them if there is one.
    pub(crate) fn carry(&mut self, id: LinkId, count: usize) -> Result<(), Violation> {
        let Some((who, link)) = self.links.get_mut(&id) else { return Ok(()) };
        let rest = link.down.split_off(count);
        let bytes = std::mem::replace(&mut link.down, rest);
        let (who, is_over) = (*who, link.closed_ms.is_some() && link.down.is_empty());
        self.receive(who, &bytes)?;
        if is_over {
            self.links.remove(&id);
            self.lost(who)?;
        } else if let Who::Publisher(index) = who
            && self.publishers[index].quits
        {
            self.cut(who)?;
        }
        Ok(())
    }

    pub(crate) fn receive(&mut self, who: Who, bytes: &[u8]) -> Result<(), Violation> {
        match who {
            Who::Publisher(index) => {
                self.publishers[index].receive(&mut self.messages, bytes, self.now_ms)?;
            }
            Who::Member(index) => {
                self.members[index].wire.receive(bytes);
                while let Some(mut response) = self.members[index].wire.next()? {
                    response.pass(self.flaw);
                    self.fs.note(|| format!("{who:?} is answered {}", response.show()));
                    self.with(index, |client, desk| client.answered(desk, &response))?;
                }
            }
        }
        self.send(who);
        Ok(())
    }

    /// Lets a client of the Kafka door do something.
    pub(crate) fn with<R>(
        &mut self,
        index: usize,
        what: impl FnOnce(&mut dyn Client, &mut Desk<'_>) -> R,
    ) -> R {
        let Member { client, wire, .. } = &mut self.members[index];
        let mut desk = Desk {
            wire,
            ledger: &mut self.ledger,
            dice: &mut self.dice,
            topics: &self.plan.topics,
            now_ms: self.now_ms,
            unix_ms: BEGAN_UNIX_MS + self.now_ms,
            is_troubled: self.is_troubled,
            has_failed: self.tally.disk_faults > 0,
            has_lost_power: self.tally.power_losses > 0,
            is_ending: self.is_ending,
        };
        what(&mut **client, &mut desk)
    }

    /// Puts on its way what a client has to say.
    pub(crate) fn send(&mut self, who: Who) {
        let (link, frames) = match who {
            Who::Member(index) => {
                let wire = &mut self.members[index].wire;
                (wire.link, std::mem::take(&mut wire.sends))
            }
            Who::Publisher(index) => {
                let client = &mut self.publishers[index];
                (client.link, std::mem::take(&mut client.sends))
            }
        };
        for frame in frames {
            let arrives = match who {
                Who::Member(index) => {
                    self.fs.note(|| format!("{who:?} asks {}", wire::show(&frame)));
                    self.flaw.request(index, frame)
                }
                Who::Publisher(_) => {
                    self.fs.note(|| format!("{who:?} sends {}", crate::run::show(&frame)));
                    self.flaw.packet(frame)
                }
            };
            if let Some((_, link)) = link.and_then(|id| self.links.get_mut(&id)) {
                link.up.extend(arrives.concat());
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
        self.messages.begin_turn(shard);
        if !self.plan.is_slow || (syncs && reports) {
            self.turns[shard] += 1;
        }
    }

    fn take_output(&mut self, left: Left) {
        for (id, bytes) in left.output {
            if let Some((_, link)) = self.links.get_mut(&id).filter(|(_, link)| !link.is_cut) {
                link.down.extend_from_slice(&bytes);
            }
        }
        for id in left.closed {
            let Some((who, link)) = self.links.get_mut(&id) else { continue };
            link.closed_ms = Some(self.now_ms);
            link.up.clear();
            let (who, is_cut) = (*who, link.is_cut);
            self.fs.note(|| format!("the broker ends the connection of {who:?}"));
            if is_cut {
                self.forget(id);
            }
        }
    }

    fn act(&mut self) {
        let count = self.members.len() + self.publishers.len();
        for _ in 0..=self.dice.below(3) {
            let number = self.dice.below(count as u64) as usize;
            if number < self.members.len() {
                self.act_as_member(number);
            } else {
                self.act_as_publisher(number - self.members.len());
            }
        }
    }

    fn act_as_member(&mut self, index: usize) {
        if index > 0 && !self.ledger.has_topics {
            return;
        }
        if self.members[index].wire.link.is_none() {
            if self.dice.chance(30) && self.may_return(index) {
                self.open(Who::Member(index), Doors::KAFKA);
            }
            return;
        }
        self.with(index, |client, desk| client.act(desk));
        self.send(Who::Member(index));
    }

    /// Whether a client may come back: a careful one lets the broker forget its former connection first.
    pub(crate) fn may_return(&self, index: usize) -> bool {
        let Member { client, former, waits_for, .. } = &self.members[index];
        !client.is_careful()
            || (former.is_none_or(|link| !self.links.contains_key(&link))
                && waits_for.iter().zip(&self.turns).all(|(wanted, had)| had >= wanted))
    }

    fn act_as_publisher(&mut self, index: usize) {
        match self.publishers[index].stage {
            mqtt::Stage::Away if self.dice.chance(30) => self.connect_again(index),
            mqtt::Stage::Online => self.publish_some(index),
            _ => {}
        }
    }

    /// Lets a publisher connect, once the broker has forgotten its former connection: a CONNECT that is late may end
    /// the session that has begun since.
    pub(crate) fn connect_again(&mut self, index: usize) {
        if self.links.values().any(|(who, _)| *who == Who::Publisher(index)) {
            return;
        }
        let link = self.open(Who::Publisher(index), Doors::MQTT);
        self.publishers[index].connect(&mut self.messages, link, false, None, false, self.now_ms);
        self.send(Who::Publisher(index));
    }

    fn publish_some(&mut self, index: usize) {
        let topic = pick(&mut self.dice, &plan::BOUND_TOPICS);
        let qos = pick(&mut self.dice, &[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]);
        for _ in 0..=self.dice.below(4) {
            if !self.publishers[index].can_publish() {
                break;
            }
            let sent = self.messages.tick();
            self.messages.messages.push(Message {
                publisher: index,
                topic: topic.into(),
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
            let id = self.messages.messages.len() - 1;
            self.publishers[index].publish(&self.messages, id);
            self.tally.published += 1;
        }
        self.send(Who::Publisher(index));
    }

    /// Opens a connection.
    pub(crate) fn open(&mut self, who: Who, door: usize) -> LinkId {
        let id = self.next_link;
        self.next_link += 1;
        self.links.insert(id, (who, Link::default()));
        let shard = self.any_shard();
        self.machine.open(id, shard, door);
        self.fs.note(|| format!("{who:?} connects to shard {shard}"));
        if let Who::Member(index) = who {
            self.members[index].wire.link = Some(id);
            self.members[index].former = Some(id);
        }
        id
    }

    /// A client notices that its connection is gone.
    pub(crate) fn lost(&mut self, who: Who) -> Result<(), Violation> {
        let waits_for: Vec<u64> = self.turns.iter().map(|turns| turns + TURNS_OF_A_REQUEST).collect();
        match who {
            Who::Publisher(index) => {
                self.publishers[index].disconnected(&mut self.messages, self.now_ms);
                Ok(())
            }
            Who::Member(index) => {
                let member = &mut self.members[index];
                member.wire.close();
                member.waits_for = waits_for;
                member.client.lost(&mut self.ledger)
            }
        }
    }

    /// The broker has noticed that a client is gone.
    fn forget(&mut self, id: LinkId) {
        let Some((Who::Member(index), _)) = self.links.remove(&id) else { return };
        let member = &mut self.members[index];
        if member.former == Some(id) {
            member.waits_for = self.turns.iter().map(|turns| turns + TURNS_OF_A_REQUEST).collect();
        }
    }

    /// The client's end of a connection is gone; what it has sent may still arrive.
    fn cut(&mut self, who: Who) -> Result<(), Violation> {
        let id = match who {
            Who::Member(index) => self.members[index].wire.link,
            Who::Publisher(index) => self.publishers[index].link,
        };
        let Some(id) = id else { return Ok(()) };
        let Some((_, link)) = self.links.get_mut(&id) else { return Ok(()) };
        link.is_cut = true;
        link.down.clear();
        if link.closed_ms.is_some() {
            self.links.remove(&id);
        }
        self.fs.note(|| format!("{who:?} is cut off"));
        self.lost(who)
    }

    fn cut_some(&mut self) -> Result<(), Violation> {
        let Some(id) = self.any_link(|link| !link.is_cut) else { return Ok(()) };
        self.cut(self.links[&id].0)
    }

    /// The broker notices that a client has gone.
    fn notice_some(&mut self) {
        let Some(id) = self.any_link(|link| link.is_cut) else { return };
        if self.dice.chance(70)
            && let Some((_, link)) = self.links.get(&id)
        {
            self.machine.feed(id, &link.up);
        }
        self.notice(id);
    }

    pub(crate) fn notice(&mut self, id: LinkId) {
        self.machine.hang_up(id);
        self.forget(id);
    }

    fn stall_some(&mut self) {
        let Some(id) = self.any_link(|link| !link.is_cut && link.closed_ms.is_none()) else { return };
        let Some((_, link)) = self.links.get_mut(&id) else { return };
        link.is_stalled = !link.is_stalled;
        self.machine.set_stalled(id, link.is_stalled);
    }
}
