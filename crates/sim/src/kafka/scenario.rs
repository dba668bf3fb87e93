//! The clients of the Kafka scenario, their connections, and publishers whose messages a binding takes to a topic.

use mainstem_disk::fault::Rng;
use mainstem_mqtt::QoS;
use mainstem_node::Protocol;

use super::admin::Admin;
use super::client::{Client, Context};
use super::committer::Committer;
use super::connection::{self, Connection};
use super::consumer::{Consumer, ConsumerProfile};
use super::consumer_member::ConsumerMember;
use super::member::GroupMember;
use super::oracle::{Isolation, Oracle, PartitionId};
use super::plan::{self, Plan};
use super::producer::Producer;
use super::topic_creator::TopicCreator;
use super::transactor::Transactor;
use crate::Violation;
use crate::engine::{Engine, Environment, Event, LinkId, Mix, Scenario, SettleLimits, Step, Totals, pick};
use crate::mqtt::client as mqtt;
use crate::mqtt::frames;
use crate::mqtt::oracle::{self as mqtt_oracle, Moment};

/// Turns of each shard, with all that they write, after which the broker is done with what came over a connection that
/// is gone.
const TURNS_PER_REQUEST: u64 = 5;

/// A Kafka client and its connection.
struct KafkaClient {
    client: Box<dyn Client>,
    connection: Connection,
    /// Its last connection, which the broker may still have.
    former: Option<LinkId>,
    /// Turns that each shard must have had before a careful client returns.
    waits_for: Vec<u64>,
}

impl KafkaClient {
    fn new(client: Box<dyn Client>) -> Self {
        Self { client, connection: Connection::default(), former: None, waits_for: Vec::new() }
    }
}

/// A client with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Kafka(usize),
    Publisher(usize),
}

pub(crate) struct KafkaScenario {
    plan: Plan,
    oracle: Oracle,
    clients: Vec<KafkaClient>,
    /// What publishers were promised, and when brokers ended, in its time.
    messages: mqtt_oracle::Oracle,
    ends: Vec<Moment>,
    publishers: Vec<mqtt::Client>,
    published: u64,
    /// Turns of each shard of which everything was written and reported.
    turns: Vec<u64>,
}

type KafkaEngine<'a> = Engine<'a, Peer>;

impl Scenario for KafkaScenario {
    type Client = Peer;

    const MIX: Mix = &[
        (Step::Act, 22),
        (Step::ToBroker, 20),
        (Step::ToClient, 18),
        (Step::Turn, 36),
        (Step::Stall, 1),
        (Step::HangUp, 2),
        (Step::AdvanceTime, 1),
    ];

    const SETTLE: SettleLimits = SettleLimits {
        round_ms: 20,
        turns: 1,
        quiet_rounds: 10,
        idle_rounds_max: 6_000,
        rounds_max: 6_000,
        restart_rounds: 400,
    };

    fn draw(rng: &mut Rng) -> (Self, Environment) {
        let (plan, environment) = Plan::draw(rng);
        let publishers = plan.publishers.iter().cloned().enumerate();
        let publishers = publishers.map(|(index, profile)| mqtt::Client::new(index, profile)).collect();
        let scenario = Self {
            clients: clients(&plan).into_iter().map(KafkaClient::new).collect(),
            plan,
            oracle: Oracle::default(),
            messages: mqtt_oracle::Oracle::new(false),
            ends: Vec::new(),
            publishers,
            published: 0,
            turns: Vec::new(),
        };
        (scenario, environment)
    }

    fn act(&mut self, engine: &mut KafkaEngine<'_>) -> Result<(), Violation> {
        let count = self.clients.len() + self.publishers.len();
        for _ in 0..=engine.rng.below(3) {
            let number = engine.rng.below(count as u64) as usize;
            if number < self.clients.len() {
                self.act_as_kafka_client(engine, number);
            } else {
                self.act_as_publisher(engine, number - self.clients.len());
            }
        }
        Ok(())
    }

    fn act_all(&mut self, engine: &mut KafkaEngine<'_>) -> Result<(), Violation> {
        for index in 0..self.publishers.len() {
            if self.publishers[index].stage == mqtt::Stage::Away {
                self.connect_publisher(engine, index);
            }
        }
        for index in 0..self.clients.len() {
            if self.clients[index].connection.link.is_none() {
                if self.may_return(engine, index) {
                    self.open(engine, index);
                }
            } else if index == 0 || self.oracle.has_topics {
                self.with(engine, index, |client, context| client.act(context));
                self.send(engine, Peer::Kafka(index));
            }
        }
        Ok(())
    }

    fn handle(&mut self, engine: &mut KafkaEngine<'_>, event: Event<'_, Peer>) -> Result<(), Violation> {
        match event {
            Event::BrokerStarted(_) => self.broker_started(engine.broker.shards()),
            Event::BrokerEnded => {
                for client in &mut self.publishers {
                    client.sends.clear();
                    client.broker_crashed(&self.messages);
                }
                self.oracle.broker_ended();
                self.ends.push(self.messages.tick());
            }
            Event::TurnBegan { shard, is_written } => {
                self.messages.begin_turn(shard);
                self.turns[shard] += u64::from(is_written);
            }
            Event::Sent { link, bytes, .. } => engine.network.send_down(link, bytes),
            Event::Received { client, bytes, .. } => return self.received(engine, client, bytes),
            Event::Disconnected { client, at_ms } => return self.disconnected(client, at_ms),
            Event::HungUp { link, client: Peer::Kafka(index), .. } => {
                let client = &mut self.clients[index];
                if client.former == Some(link) {
                    client.waits_for = turns_to_wait_for(&self.turns);
                }
            }
            Event::HungUp { .. } | Event::TurnCrashed | Event::Closed { .. } => {}
        }
        Ok(())
    }

    fn is_leaving(&self, client: Peer) -> bool {
        matches!(client, Peer::Publisher(index) if self.publishers[index].is_leaving)
    }

    fn is_done(&self) -> bool {
        self.oracle.has_topics
            && self.clients.iter().all(|client| client.client.is_done())
            && self.publishers.iter().all(|client| client.is_online() && !client.has_outgoing())
    }

    /// Two last consumers read all partitions from the start to the end.
    fn go_on(&mut self, _: &mut KafkaEngine<'_>, count: u32) -> bool {
        if count > 1 {
            return false;
        }
        for isolation in [Isolation::ReadUncommitted, Isolation::ReadCommitted] {
            let profile = ConsumerProfile {
                isolation,
                has_session: false,
                max_wait_ms: 0,
                partition_max_bytes: 100_000,
                sweeps: true,
            };
            self.clients.push(KafkaClient::new(Box::new(Consumer::new(profile, parts(&self.plan)))));
        }
        true
    }

    fn check(&self, engine: &KafkaEngine<'_>) -> Result<(), Violation> {
        self.oracle.check_losses()?;
        let has_failed = engine.tally().disk_faults > 0;
        self.oracle.check_messages(&self.messages.messages, &self.ends, !has_failed)
    }

    fn totals(&self) -> Totals {
        let Oracle { acknowledged, consumed, .. } = self.oracle;
        Totals { published: self.published, acknowledged, delivered: consumed }
    }

    fn unfinished(&self) -> String {
        let waiting: Vec<usize> =
            (0..self.clients.len()).filter(|at| !self.clients[*at].client.is_done()).collect();
        let publishing: Vec<_> = self.publishers.iter().filter(|client| client.has_outgoing()).collect();
        format!("clients {waiting:?}, publishers {publishing:?}")
    }
}

/// All Kafka clients of a run. The first one makes the topics.
fn clients(plan: &Plan) -> Vec<Box<dyn Client>> {
    let mut clients: Vec<Box<dyn Client>> = vec![Box::new(TopicCreator::default())];
    for (index, kind) in plan.producers.iter().enumerate() {
        clients.push(Box::new(Producer::new(index, *kind)));
    }
    for (index, profile) in (plan.producers.len()..).zip(&plan.transactors) {
        clients.push(Box::new(Transactor::new(index, profile.clone())));
    }
    for profile in &plan.consumers {
        clients.push(Box::new(Consumer::new(profile.clone(), parts(plan))));
    }
    clients.extend((0..plan.committers).map(|index| Box::new(Committer::new(index)) as Box<dyn Client>));
    clients.extend((0..plan.admins).map(|index| Box::new(Admin::new(index)) as Box<dyn Client>));
    clients.extend((0..plan.group_members).map(|_| Box::new(GroupMember::default()) as Box<dyn Client>));
    let consumer_member = |number| Box::new(ConsumerMember::new(number)) as Box<dyn Client>;
    clients.extend((0..plan.consumer_members).map(consumer_member));
    clients
}

/// All partitions of the run's topics.
fn parts(plan: &Plan) -> Vec<PartitionId> {
    let topics = plan.topics.iter().enumerate();
    topics
        .flat_map(|(topic, known)| {
            (0..known.partitions.into()).map(move |index| PartitionId { topic, index })
        })
        .collect()
}

fn turns_to_wait_for(turns: &[u64]) -> Vec<u64> {
    turns.iter().map(|turns| turns + TURNS_PER_REQUEST).collect()
}

impl KafkaScenario {
    fn broker_started(&mut self, shards: usize) {
        self.messages.begin_broker(shards);
        self.turns = vec![0; shards];
        self.clients.iter_mut().for_each(|client| client.waits_for.clear());
    }

    fn received(&mut self, engine: &mut KafkaEngine<'_>, peer: Peer, bytes: &[u8]) -> Result<(), Violation> {
        match peer {
            Peer::Publisher(index) => {
                self.publishers[index].receive(&mut self.messages, bytes, engine.now_ms())?;
            }
            Peer::Kafka(index) => {
                self.clients[index].connection.receive(bytes);
                while let Some(mut response) = self.clients[index].connection.next()? {
                    response.pass(engine.injector);
                    engine.note(|| format!("{peer:?} is answered {}", response.show()));
                    self.with(engine, index, |client, context| client.handle_response(context, &response))?;
                }
            }
        }
        self.send(engine, peer);
        Ok(())
    }

    /// Calls a Kafka client with what it works with.
    fn with<R>(
        &mut self,
        engine: &mut KafkaEngine<'_>,
        index: usize,
        call: impl FnOnce(&mut dyn Client, &mut Context<'_>) -> R,
    ) -> R {
        let KafkaClient { client, connection, .. } = &mut self.clients[index];
        let mut context = Context {
            connection,
            oracle: &mut self.oracle,
            topics: &self.plan.topics,
            now_ms: engine.now_ms(),
            unix_ms: engine.unix_ms(),
            is_troubled: engine.is_troubled(),
            has_failed: engine.tally().disk_faults > 0,
            has_lost_power: engine.tally().power_losses > 0,
            is_ending: engine.is_ending(),
            rng: &mut engine.rng,
        };
        call(&mut **client, &mut context)
    }

    /// Sends the frames that a client has prepared.
    fn send(&mut self, engine: &mut KafkaEngine<'_>, peer: Peer) {
        let (link, sends) = match peer {
            Peer::Kafka(index) => {
                let connection = &mut self.clients[index].connection;
                (connection.link, std::mem::take(&mut connection.sends))
            }
            Peer::Publisher(index) => {
                let client = &mut self.publishers[index];
                (client.link, std::mem::take(&mut client.sends))
            }
        };
        for frame in sends {
            let arrives = match peer {
                Peer::Kafka(index) => {
                    engine.note(|| format!("{peer:?} asks {}", connection::show(&frame)));
                    engine.injector.kafka_request(index, frame)
                }
                Peer::Publisher(index) => {
                    engine.note(|| format!("{peer:?} sends {}", frames::show(&frame)));
                    engine.injector.to_broker(index, frame)
                }
            };
            if let Some(link) = link {
                engine.network.send_up(link, &arrives.concat());
            }
        }
    }

    fn act_as_kafka_client(&mut self, engine: &mut KafkaEngine<'_>, index: usize) {
        if index > 0 && !self.oracle.has_topics {
            return;
        }
        if self.clients[index].connection.link.is_none() {
            if engine.rng.chance(30) && self.may_return(engine, index) {
                self.open(engine, index);
            }
            return;
        }
        self.with(engine, index, |client, context| client.act(context));
        self.send(engine, Peer::Kafka(index));
    }

    /// Whether a client may connect: a careful one waits until the broker is done with its former connection.
    fn may_return(&self, engine: &KafkaEngine<'_>, index: usize) -> bool {
        let KafkaClient { client, former, waits_for, .. } = &self.clients[index];
        !client.waits_for_broker()
            || (former.is_none_or(|link| !engine.network.contains(link))
                && waits_for.iter().zip(&self.turns).all(|(needed, had)| had >= needed))
    }

    fn open(&mut self, engine: &mut KafkaEngine<'_>, index: usize) {
        let link = engine.open(Peer::Kafka(index), Protocol::Kafka);
        let client = &mut self.clients[index];
        (client.connection.link, client.former) = (Some(link), Some(link));
    }

    fn act_as_publisher(&mut self, engine: &mut KafkaEngine<'_>, index: usize) {
        match self.publishers[index].stage {
            mqtt::Stage::Away if engine.rng.chance(30) => self.connect_publisher(engine, index),
            mqtt::Stage::Online => self.publish_some(engine, index),
            _ => {}
        }
    }

    /// Lets a publisher connect if the broker is done with its former connection: a late CONNECT could end the session
    /// that has begun since.
    fn connect_publisher(&mut self, engine: &mut KafkaEngine<'_>, index: usize) {
        let peer = Peer::Publisher(index);
        if engine.network.clients().any(|(client, _)| client == peer) {
            return;
        }
        let link = engine.open(peer, Protocol::Mqtt);
        self.publishers[index].connect(&mut self.messages, link, false, None, false, engine.now_ms());
        self.send(engine, peer);
    }

    fn publish_some(&mut self, engine: &mut KafkaEngine<'_>, index: usize) {
        let topic = pick(&mut engine.rng, &plan::BOUND_TOPICS);
        let qos = pick(&mut engine.rng, &[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]);
        for _ in 0..=engine.rng.below(4) {
            if !self.publishers[index].can_publish() {
                break;
            }
            let id = self.messages.add_message(index, topic.into(), qos, engine.now_ms());
            self.publishers[index].publish(&self.messages, id);
            self.published += 1;
        }
        self.send(engine, Peer::Publisher(index));
    }

    fn disconnected(&mut self, peer: Peer, at_ms: u64) -> Result<(), Violation> {
        match peer {
            Peer::Publisher(index) => {
                self.publishers[index].disconnected(&mut self.messages, at_ms);
                Ok(())
            }
            Peer::Kafka(index) => {
                let client = &mut self.clients[index];
                client.connection.close();
                client.waits_for = turns_to_wait_for(&self.turns);
                client.client.connection_lost(&mut self.oracle)
            }
        }
    }
}
