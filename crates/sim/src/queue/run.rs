//! One run: those who ask queues, the disk and the end of processes, all as a seed says, one step after the other.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use mainstem_disk::fault::{Dice, FaultFs};
use mainstem_queue::{Reply, Request};

use super::client::{Ask, Client, Desk, Maker};
use super::flaw::Flaw;
use super::ledger::{Ledger, Pending};
use super::operator::Operator;
use super::plan::Plan;
use super::producer::Producer;
use super::publisher::Publisher;
use super::show;
use super::subscriber::Subscriber;
use super::worker::Worker;
use crate::ledger::Violation;
use crate::machine::{BEGAN_UNIX_MS, LinkId, Machine, Setup};
use crate::plan::pick;
use crate::run::{End, Tally};
use crate::world::{Mishap, World};

/// Replies that have not been heard, by the number of what was asked.
type Inbox = Arc<Mutex<Vec<(u64, Reply)>>>;

pub(crate) struct Run<'a> {
    pub(crate) plan: Plan,
    pub(crate) world: World,
    pub(crate) ledger: Ledger,
    pub(crate) members: Vec<Box<dyn Client>>,
    pub(crate) pending: BTreeMap<u64, Pending>,
    next: u64,
    /// Those who receive by MQTT.
    pub(crate) subscribers: Vec<Subscriber>,
    /// Those who send by MQTT.
    pub(crate) publishers: Vec<Publisher>,
    pub(crate) next_link: LinkId,
    inbox: Inbox,
    /// What the clocks of the shards show.
    clocks: Vec<u64>,
    pub(crate) flaw: &'a mut dyn Flaw,
    pub(crate) is_ending: bool,
    /// The process was asked to end.
    is_draining: bool,
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
        fs.note(|| format!("{} shards, {:?}, {:?}", plan.shards, plan.faults, plan.queues));
        let mut members: Vec<Box<dyn Client>> = vec![Box::new(Maker::default())];
        members.extend((0..plan.producers).map(|_| Box::new(Producer::default()) as Box<dyn Client>));
        for (number, habits) in plan.workers.iter().enumerate() {
            members.push(Box::new(Worker::new(number as u64, habits.clone())));
        }
        members.extend((0..plan.operators).map(|_| Box::new(Operator) as Box<dyn Client>));
        let clocks = vec![now_ms; plan.shards];
        let world = World {
            dice,
            now_ms,
            fs,
            machine,
            setup,
            faults: plan.faults,
            changes_shards: plan.changes_shards,
            is_lax: plan.is_lax,
            is_troubled: false,
            tally: Tally::default(),
        };
        let subscribers = plan.subscribers.iter().enumerate();
        let subscribers: Vec<Subscriber> = subscribers
            .map(|(number, habits)| {
                let receive_maximum = habits.max as u16;
                Subscriber::new(number, habits.group, receive_maximum, habits.acks, habits.vanishes)
            })
            .collect();
        let mut ledger = Ledger::new(&plan.queues, plan.config.queue_tuning.known_max);
        ledger.has_subscribers = !subscribers.is_empty();
        Ok(Self {
            ledger,
            subscribers,
            publishers: plan
                .publishers
                .iter()
                .enumerate()
                .map(|(at, one)| Publisher::new(at, *one))
                .collect(),
            next_link: 0,
            plan,
            world,
            members,
            pending: BTreeMap::new(),
            next: 0,
            inbox: Arc::default(),
            clocks,
            flaw,
            is_ending: false,
            is_draining: false,
        })
    }

    /// Does something, whatever it is.
    pub(crate) fn step(&mut self) -> Result<(), Violation> {
        self.world.tally.steps += 1;
        self.world.now_ms += self.world.dice.below(3);
        let rare = self.world.dice.below(10_000);
        match self.world.mishap(rare) {
            Mishap::Ends(how) => self.end(how)?,
            Mishap::Nothing if self.world.is_troubled && self.world.dice.chance(1) => self.end(End::Kill)?,
            Mishap::Nothing | Mishap::Planted => {}
        }
        match self.world.dice.below(100) {
            0..45 => {
                for _ in 0..=self.world.dice.below(3) {
                    self.act_somebody()?;
                }
            }
            45..98 => {
                let dice = &mut self.world.dice;
                let (syncs, reports) = (dice.chance(40), dice.chance(50));
                let shard = self.world.any_shard();
                self.turn(shard, syncs, reports)?;
            }
            _ => self.let_pass()?,
        }
        self.world.note_heard();
        if self.world.fs.has_crashed() {
            let how = self.world.sudden_end();
            self.end(how)?;
        }
        Ok(())
    }

    fn act_somebody(&mut self) -> Result<(), Violation> {
        let (members, subscribers) = (self.members.len(), self.subscribers.len());
        let all = members + subscribers + self.publishers.len();
        match self.world.dice.below(all as u64) as usize {
            number if number < members => self.act(number)?,
            number if number < members + subscribers => self.act_subscriber(number - members),
            number => self.act_publisher(number - members - subscribers),
        }
        Ok(())
    }

    /// Time goes by. A shard that is idle finds out as soon as something happens to it.
    fn let_pass(&mut self) -> Result<(), Violation> {
        self.world.now_ms += pick(&mut self.world.dice, &[20, 100, 500, 3_000]);
        for shard in 0..self.world.machine.shards() {
            self.turn(shard, false, false)?;
        }
        Ok(())
    }

    /// Lets somebody do something.
    pub(crate) fn act(&mut self, number: usize) -> Result<(), Violation> {
        if number > 0 && !self.ledger.has_queues {
            return Ok(());
        }
        let asks = self.with(number, |client, desk| client.act(desk));
        self.ask(number, asks)
    }

    fn with(&mut self, number: usize, what: impl FnOnce(&mut dyn Client, &mut Desk<'_>)) -> VecDeque<Ask> {
        let waiting = self.pending.values().filter(|pending| pending.member == number).count();
        let mut desk = Desk {
            plan: &self.plan,
            ledger: &mut self.ledger,
            dice: &mut self.world.dice,
            unix_ms: BEGAN_UNIX_MS + self.world.now_ms,
            waiting,
            is_ending: self.is_ending,
            asks: VecDeque::new(),
        };
        what(&mut *self.members[number], &mut desk);
        desk.asks
    }

    /// Puts on its way what a member asks.
    fn ask(&mut self, member: usize, asks: VecDeque<Ask>) -> Result<(), Violation> {
        for (queue, request, messages) in asks {
            self.next += 1;
            let slowest_ms = self.clocks.iter().min().copied().unwrap_or_default();
            let (number, asked_ms) = (self.next, BEGAN_UNIX_MS + slowest_ms);
            let pending = Pending { member, queue, request, messages, asked: 0, asked_ms, epoch: 0 };
            let pending = self.ledger.asked(pending);
            let name = &self.plan.queues[queue].name;
            self.world.fs.note(|| format!("{member} asks {name} ({number}): {}", show::request(&pending)));
            let mut request: Request = pending.request.clone();
            self.flaw.request(name, &mut request);
            self.pending.insert(number, pending);
            let (inbox, fs) = (Arc::clone(&self.inbox), self.world.fs.clone());
            let answer = move |reply| {
                // Whatever it had to say when it had ended, it did not come to it.
                if !fs.has_crashed() {
                    inbox.lock().unwrap_or_else(PoisonError::into_inner).push((number, reply));
                }
            };
            self.world.machine.desk().ask(name, request, Box::new(answer));
        }
        self.hear()
    }

    /// Lets everybody hear what was answered.
    fn hear(&mut self) -> Result<(), Violation> {
        let inbox = Arc::clone(&self.inbox);
        loop {
            let replies = std::mem::take(&mut *inbox.lock().unwrap_or_else(PoisonError::into_inner));
            if replies.is_empty() {
                return Ok(());
            }
            for (number, mut reply) in replies {
                let Some(pending) = self.pending.remove(&number) else {
                    return Err(Violation(format!("{number} is answered twice: {}", show::reply(&reply))));
                };
                self.flaw.reply(&self.plan.queues[pending.queue].name, &pending.request, &mut reply);
                let member = pending.member;
                self.world.fs.note(|| format!("{member} is answered ({number}): {}", show::reply(&reply)));
                let facts = (BEGAN_UNIX_MS + self.world.now_ms, self.is_troubled());
                self.ledger.answered(&pending, &reply, facts)?;
                let asks = self.with(member, |client, desk| client.answered(desk, &pending, &reply));
                debug_assert!(asks.is_empty(), "whoever hears something asks when it is its turn");
            }
        }
    }

    /// Whether the broker may refuse what it has room for.
    pub(crate) fn is_troubled(&self) -> bool {
        self.world.is_troubled || self.is_draining
    }

    /// A shard ends its turn and begins the next. Between the two its disk may go on, and tell of it.
    pub(crate) fn turn(&mut self, shard: usize, syncs: bool, reports: bool) -> Result<(), Violation> {
        let World { machine, fs, .. } = &mut self.world;
        let left = machine.end_turn(shard);
        if fs.has_crashed() {
            return self.hear();
        }
        self.take_output(left)?;
        let World { machine, now_ms, .. } = &mut self.world;
        if syncs {
            machine.sync(shard);
        }
        if reports {
            machine.report(shard);
        }
        machine.begin_turn(shard, *now_ms);
        self.clocks[shard] = *now_ms;
        self.hear()
    }

    /// The process ends, and another one begins with what it left.
    pub(crate) fn end(&mut self, how: End) -> Result<(), Violation> {
        let seed = self.world.begin_end(how);
        if how == End::Clean {
            self.is_draining = true;
            self.world.machine.drain();
            for shard in 0..self.world.machine.shards() {
                self.turn(shard, true, true)?;
            }
            self.is_draining = false;
        }
        let left = self.world.left(how, seed);
        for (_, pending) in std::mem::take(&mut self.pending) {
            self.ledger.lost(&pending);
            self.members[pending.member].lost(&pending);
        }
        (0..self.subscribers.len()).for_each(|number| self.lose_subscriber(number));
        self.publishers.iter_mut().for_each(Publisher::gone);
        if self.world.restart(&left)? || how == End::Power {
            self.ledger.lost_power();
        }
        self.clocks = vec![self.world.now_ms; self.world.machine.shards()];
        self.ledger.begin_life();
        // Nothing of the old one is heard any more.
        self.inbox = Inbox::default();
        Ok(())
    }
}
