//! The clients of the queue scenario: those that send requests to queues, and those that use them by MQTT.
//!
//! Requests go to the queue client of the broker directly, and MQTT connections have no delay. Replies arrive in an
//! inbox, which is emptied whenever the broker may have replied.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use mainstem_disk::fault::Rng;
use mainstem_queue_core::{Reply, Request};

use super::client::{Client, Context, NewRequest, QueueCreator};
use super::drainer::Drainer;
use super::format;
use super::operator::Operator;
use super::oracle::{Oracle, Pending};
use super::plan::{Plan, Role};
use super::producer::Producer;
use super::publisher::Publisher;
use super::subscriber::Subscriber;
use super::worker::Worker;
use crate::Violation;
use crate::engine::{
    Engine, Environment, Event, LinkId, Mix, Scenario, SettleLimits, Start, Step, Totals, UNIX_MS_AT_ZERO,
};

/// Replies that have come, each with the number of its request.
type Inbox = Arc<Mutex<Vec<(u64, Reply)>>>;

/// A client with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MqttClient {
    Subscriber(usize),
    Publisher(usize),
}

pub(super) type QueueEngine<'a> = Engine<'a, MqttClient>;

pub(crate) struct QueueScenario {
    pub(super) plan: Plan,
    pub(super) oracle: Oracle,
    clients: Vec<Box<dyn Client>>,
    pending: BTreeMap<u64, Pending>,
    next: u64,
    pub(super) subscribers: Vec<Subscriber>,
    pub(super) publishers: Vec<Publisher>,
    inbox: Inbox,
    /// When each shard began its turn.
    clocks: Vec<u64>,
    /// The last workers have begun to drain the queues.
    is_draining: bool,
}

impl Scenario for QueueScenario {
    type Client = MqttClient;

    const MIX: Mix = &[(Step::Act, 45), (Step::Turn, 53), (Step::AdvanceTime, 2)];

    const SETTLE: SettleLimits = SettleLimits {
        round_ms: 200,
        turns: 3,
        quiet_rounds: 5,
        idle_rounds_max: 3_000,
        rounds_max: 20_000,
        restart_rounds: 200,
    };

    fn draw(rng: &mut Rng) -> (Self, Environment) {
        let (plan, environment) = Plan::draw(rng);
        let mut clients: Vec<Box<dyn Client>> = vec![Box::new(QueueCreator::default())];
        clients.extend((0..plan.producers).map(|_| Box::new(Producer::default()) as Box<dyn Client>));
        for (number, profile) in plan.workers.iter().enumerate() {
            clients.push(Box::new(Worker::new(number as u64, profile.clone())));
        }
        clients.extend((0..plan.operators).map(|_| Box::new(Operator) as Box<dyn Client>));
        let subscribers = plan.subscribers.iter().enumerate();
        let subscribers: Vec<_> =
            subscribers.map(|(number, profile)| Subscriber::new(number, profile)).collect();
        let publishers = plan.publishers.iter().enumerate();
        let publishers = publishers.map(|(number, profile)| Publisher::new(number, *profile)).collect();
        let mut oracle = Oracle::new(&plan.queues, environment.broker.kafka.queue_tuning.known_max);
        if !subscribers.is_empty() {
            oracle.expect_subscribers();
        }
        let scenario = Self {
            plan,
            oracle,
            clients,
            pending: BTreeMap::new(),
            next: 0,
            subscribers,
            publishers,
            inbox: Arc::default(),
            clocks: Vec::new(),
            is_draining: false,
        };
        (scenario, environment)
    }

    fn act(&mut self, engine: &mut QueueEngine<'_>) -> Result<(), Violation> {
        for _ in 0..=engine.rng.below(3) {
            let (clients, subscribers) = (self.clients.len(), self.subscribers.len());
            let all = clients + subscribers + self.publishers.len();
            match engine.rng.below(all as u64) as usize {
                number if number < clients => self.act_as_client(engine, number)?,
                number if number < clients + subscribers => self.act_as_subscriber(engine, number - clients),
                number => self.act_as_publisher(engine, number - clients - subscribers),
            }
        }
        Ok(())
    }

    fn act_all(&mut self, engine: &mut QueueEngine<'_>) -> Result<(), Violation> {
        (0..self.clients.len()).try_for_each(|number| self.act_as_client(engine, number))?;
        (0..self.subscribers.len()).for_each(|number| self.act_as_subscriber(engine, number));
        (0..self.publishers.len()).for_each(|number| self.act_as_publisher(engine, number));
        Ok(())
    }

    fn handle(
        &mut self,
        engine: &mut QueueEngine<'_>,
        event: Event<'_, MqttClient>,
    ) -> Result<(), Violation> {
        match event {
            Event::BrokerStarted(start) => self.broker_started(engine, start),
            Event::BrokerEnded => self.broker_ended(),
            Event::TurnBegan { shard, .. } => {
                self.clocks[shard] = engine.now_ms();
                return self.take_replies(engine);
            }
            Event::TurnCrashed => return self.take_replies(engine),
            Event::Sent { client: MqttClient::Publisher(number), bytes, .. } => {
                return self.publisher_received(engine, number, bytes);
            }
            Event::Sent { client: MqttClient::Subscriber(number), bytes, .. } => {
                return self.subscriber_received(engine, number, bytes);
            }
            Event::Closed { link, client } => {
                engine.hang_up(link);
                match client {
                    MqttClient::Subscriber(number) => self.lose_subscriber(number),
                    MqttClient::Publisher(number) => return self.publisher_closed(engine, number),
                }
            }
            Event::Disconnected { client: MqttClient::Subscriber(number), .. } => {
                self.lose_subscriber(number);
            }
            Event::Disconnected { client: MqttClient::Publisher(number), .. } => {
                self.publishers[number].disconnected();
            }
            Event::Received { .. } | Event::HungUp { .. } => {}
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        let has_queues = self.oracle.has_queues();
        let are_done = || {
            self.clients.iter().all(|client| client.is_done())
                && self.publishers.iter().all(Publisher::is_done)
        };
        has_queues && (!self.is_draining || are_done())
    }

    /// A last worker for each group drains its queue.
    fn go_on(&mut self, _: &mut QueueEngine<'_>, count: u32) -> bool {
        if count > 1 {
            return false;
        }
        let drained = self.oracle.lasting_groups();
        for (number, (queue, group)) in drained.enumerate() {
            self.clients.push(Box::new(Drainer::new(number as u64, queue, group)));
        }
        self.is_draining = true;
        true
    }

    fn check(&self, _: &QueueEngine<'_>) -> Result<(), Violation> {
        self.oracle.check_losses()
    }

    fn totals(&self) -> Totals {
        self.oracle.totals()
    }

    fn unfinished(&self) -> String {
        let waiting = self.clients.iter().filter(|client| !client.is_done());
        let waiting: Vec<String> = waiting.map(|client| client.show()).collect();
        let publishing: Vec<_> = self.publishers.iter().filter(|publisher| !publisher.is_done()).collect();
        format!("{waiting:?}, {publishing:?}, {:?}", self.pending)
    }
}

impl QueueScenario {
    fn broker_started(&mut self, engine: &QueueEngine<'_>, start: Start) {
        if let Start::Recovered { lost_power } = start {
            if lost_power {
                self.oracle.lost_power();
            }
            self.oracle.begin_incarnation();
        }
        self.clocks = vec![engine.now_ms(); engine.broker.shards()];
    }

    fn broker_ended(&mut self) {
        for (_, pending) in std::mem::take(&mut self.pending) {
            self.oracle.connection_lost(&pending);
            self.clients[pending.client].connection_lost(&pending);
        }
        // A reply that is still under way never arrives.
        self.inbox = Inbox::default();
    }

    fn act_as_client(&mut self, engine: &mut QueueEngine<'_>, number: usize) -> Result<(), Violation> {
        if number > 0 && !self.oracle.has_queues() {
            return Ok(());
        }
        let requests = self.with(engine, number, |client, context| client.act(context));
        self.send_requests(engine, number, requests)
    }

    /// Calls a client with what it works with. Returns the requests that it has prepared.
    fn with(
        &mut self,
        engine: &mut QueueEngine<'_>,
        number: usize,
        call: impl FnOnce(&mut dyn Client, &mut Context<'_>),
    ) -> VecDeque<NewRequest> {
        let waiting = self.pending.values().filter(|pending| pending.client == number).count();
        let mut context = Context {
            plan: &self.plan,
            oracle: &mut self.oracle,
            unix_ms: engine.unix_ms(),
            waiting,
            is_ending: engine.is_ending(),
            requests: VecDeque::new(),
            rng: &mut engine.rng,
        };
        call(&mut *self.clients[number], &mut context);
        context.requests
    }

    fn send_requests(
        &mut self,
        engine: &mut QueueEngine<'_>,
        client: usize,
        requests: VecDeque<NewRequest>,
    ) -> Result<(), Violation> {
        for (queue, request, messages) in requests {
            self.next += 1;
            let slowest_ms = self.clocks.iter().min().copied().unwrap_or_default();
            let (number, sent_ms) = (self.next, UNIX_MS_AT_ZERO + slowest_ms);
            let pending = Pending { client, queue, request, messages, sent_at: 0, sent_ms, epoch: 0 };
            let pending = self.oracle.request_sent(pending);
            let name = &self.plan.queues[queue].name;
            engine.note(|| format!("{client} asks {name} ({number}): {}", format::request(&pending)));
            let mut request: Request = pending.request.clone();
            engine.injector.queue_request(name, &mut request);
            self.pending.insert(number, pending);
            let (inbox, fs) = (Arc::clone(&self.inbox), engine.fs().clone());
            let answer = move |reply| {
                // Output of a process that has crashed is lost.
                if !fs.has_crashed() {
                    inbox.lock().unwrap_or_else(PoisonError::into_inner).push((number, reply));
                }
            };
            engine.broker.queue_client().send(name, request, Box::new(answer));
        }
        self.take_replies(engine)
    }

    /// Delivers all replies that have come.
    fn take_replies(&mut self, engine: &mut QueueEngine<'_>) -> Result<(), Violation> {
        loop {
            let replies = std::mem::take(&mut *self.inbox.lock().unwrap_or_else(PoisonError::into_inner));
            if replies.is_empty() {
                return Ok(());
            }
            for (number, mut reply) in replies {
                let Some(pending) = self.pending.remove(&number) else {
                    return Err(Violation(format!("{number} is answered twice: {}", format::reply(&reply))));
                };
                let name = &self.plan.queues[pending.queue].name;
                engine.injector.queue_reply(name, &pending.request, &mut reply);
                let client = pending.client;
                engine.note(|| format!("{client} is answered ({number}): {}", format::reply(&reply)));
                self.oracle.handle_reply(&pending, &reply, (engine.unix_ms(), may_refuse(engine)))?;
                let requests = self
                    .with(engine, client, |client, context| client.handle_reply(context, &pending, &reply));
                debug_assert!(requests.is_empty(), "clients send requests only when they act");
            }
        }
    }

    /// The main queues of the run.
    pub(super) fn main_queues(&self) -> Vec<usize> {
        let queues = self.plan.queues.iter().enumerate();
        let mains = queues.filter(|(_, queue)| matches!(queue.role, Role::Main { .. }));
        mains.map(|(at, _)| at).collect()
    }
}

/// Whether the broker may refuse what it has room for.
pub(super) fn may_refuse(engine: &QueueEngine<'_>) -> bool {
    engine.is_troubled() || engine.is_draining()
}

/// Sends the packets of an MQTT client, as the fault injector lets them through.
pub(super) fn send(engine: &mut QueueEngine<'_>, number: usize, link: LinkId, frames: Vec<Vec<u8>>) {
    for frame in frames {
        for frame in engine.injector.to_broker(number, frame) {
            engine.broker.feed(link, &frame);
        }
    }
}
