//! The clients of the MQTT scenario and what they do at each step.

use std::sync::Arc;

use mainstem_disk::fault::Rng;
use mainstem_mqtt::{QoS, Version};
use mainstem_node::Protocol;

use super::client::{Client, Stage};
use super::frames;
use super::oracle::{MessageId, Oracle};
use super::plan::{self, Plan, Profile};
use crate::Violation;
use crate::engine::{Engine, Environment, Event, LinkId, Mix, Scenario, SettleLimits, Step, Totals, pick};

pub(crate) struct MqttScenario {
    plan: Plan,
    oracle: Oracle,
    clients: Vec<Client>,
    published: u64,
}

type MqttEngine<'a> = Engine<'a, usize>;

impl Scenario for MqttScenario {
    /// Index of a client.
    type Client = usize;

    const MIX: Mix = &[
        (Step::Act, 22),
        (Step::ToBroker, 20),
        (Step::ToClient, 18),
        (Step::Turn, 37),
        (Step::Stall, 1),
        (Step::HangUp, 1),
        (Step::AdvanceTime, 1),
    ];

    const SETTLE: SettleLimits = SettleLimits {
        round_ms: 20,
        turns: 1,
        quiet_rounds: 30,
        idle_rounds_max: 4_000,
        rounds_max: 4_000,
        restart_rounds: 400,
    };

    fn draw(rng: &mut Rng) -> (Self, Environment) {
        let (plan, environment) = Plan::draw(rng);
        let profiles = plan.clients.iter().cloned().enumerate();
        let clients = profiles.map(|(index, profile)| Client::new(index, profile)).collect();
        let oracle = Oracle::new(plan.ends_sessions);
        (Self { plan, oracle, clients, published: 0 }, environment)
    }

    fn act(&mut self, engine: &mut MqttEngine<'_>) -> Result<(), Violation> {
        let index = engine.rng.below(self.clients.len() as u64) as usize;
        match self.clients[index].stage {
            Stage::Away => {
                if engine.rng.chance(30) {
                    let clean = self.plan.ends_sessions && engine.rng.chance(5);
                    self.connect(engine, index, clean);
                }
            }
            Stage::Connecting { .. } => {}
            Stage::Online => {
                if engine.rng.chance(self.clients[index].profile.publishes) {
                    self.publish_some(engine, index);
                } else {
                    self.do_something_else(engine, index);
                }
            }
        }
        Ok(())
    }

    fn act_all(&mut self, engine: &mut MqttEngine<'_>) -> Result<(), Violation> {
        for index in 0..self.clients.len() {
            let client = &mut self.clients[index];
            client.is_silent = false;
            if client.stage == Stage::Away {
                self.connect(engine, index, false);
            }
        }
        Ok(())
    }

    fn handle(&mut self, engine: &mut MqttEngine<'_>, event: Event<'_, usize>) -> Result<(), Violation> {
        let oracle = &mut self.oracle;
        match event {
            Event::BrokerStarted(_) => oracle.begin_broker(engine.broker.shards()),
            Event::BrokerEnded => self.clients.iter_mut().for_each(|client| client.broker_crashed(oracle)),
            Event::TurnBegan { shard, .. } => oracle.begin_turn(shard),
            Event::TurnCrashed => {}
            Event::Sent { link, client, bytes } => self.sent(engine, link, client, bytes),
            Event::Received { link, client, bytes } => return self.received(engine, link, client, bytes),
            Event::Closed { link, client } => {
                let client = &self.clients[client];
                if let Some(session) = client.session.filter(|_| client.link == Some(link)) {
                    oracle.session_disconnected(session);
                }
            }
            Event::Disconnected { client, at_ms } => self.clients[client].disconnected(oracle, at_ms),
            Event::HungUp { client, unsent, .. } => {
                for frame in frames::split(unsent) {
                    self.clients[client].note_refusal(oracle, frame);
                }
            }
        }
        Ok(())
    }

    fn is_leaving(&self, client: usize) -> bool {
        self.clients[client].is_leaving
    }

    fn needs_restart(&self, engine: &MqttEngine<'_>) -> bool {
        engine.broker.is_failing()
    }

    fn is_done(&self) -> bool {
        self.clients
            .iter()
            .all(|client| client.is_online() && !client.has_outgoing() && !client.has_due_acks())
    }

    /// A last client connects, and subscribes to all topics with retained messages.
    fn go_on(&mut self, engine: &mut MqttEngine<'_>, count: u32) -> bool {
        match count {
            1 => self.clients.push(Client::new(self.clients.len(), Profile::probe())),
            2 => {
                let probe = self.clients.len() - 1;
                self.clients[probe].subscribe(&mut self.oracle, &"r/#".into(), None, QoS::AtLeastOnce);
                self.send(engine, probe);
            }
            _ => return false,
        }
        true
    }

    fn check(&self, _: &MqttEngine<'_>) -> Result<(), Violation> {
        let sessions: Vec<_> = self.clients.iter().filter_map(|client| client.session).collect();
        self.oracle.check_losses(&sessions)?;
        let Some(session) = self.clients.last().and_then(|probe| probe.session) else {
            return Err(Violation("nobody is let in any more".to_owned()));
        };
        self.oracle.check_retained_now(session)
    }

    fn sessions(&self) -> Option<u64> {
        Some(self.clients.len() as u64)
    }

    fn totals(&self) -> Totals {
        let Oracle { acknowledged, delivered, .. } = self.oracle;
        Totals { published: self.published, acknowledged, delivered }
    }

    fn unfinished(&self) -> String {
        let clients = self.clients.iter().filter(|client| !client.is_online() || client.has_outgoing());
        clients.map(|client| format!("{client:?}")).collect::<Vec<_>>().join("\n")
    }
}

impl MqttScenario {
    fn connect(&mut self, engine: &mut MqttEngine<'_>, index: usize, clean: bool) {
        let has_strays = engine.network.clients().any(|(client, is_cut)| client == index && is_cut);
        let profile = &self.clients[index].profile;
        let (has_will, is_lazy) = (profile.has_will, profile.is_lazy);
        let will = has_will.then(|| {
            let topic = plan::will_topic(index);
            self.oracle.add_message(index, topic, QoS::AtLeastOnce, engine.now_ms())
        });
        if let Some(will) = will {
            self.oracle.messages[will].is_will = true;
        }
        let link = engine.open(index, Protocol::Mqtt);
        let client = &mut self.clients[index];
        client.is_silent = is_lazy && engine.rng.chance(50);
        client.connect(&mut self.oracle, link, clean, will, has_strays, engine.now_ms());
        self.send(engine, index);
    }

    /// Sends the packets that a client has prepared.
    fn send(&mut self, engine: &mut MqttEngine<'_>, index: usize) {
        let client = &mut self.clients[index];
        for frame in std::mem::take(&mut client.sends) {
            engine.note(|| format!("client {index} sends {}", frames::show(&frame)));
            for frame in engine.injector.to_broker(index, frame) {
                if let Some(link) = client.link {
                    engine.network.send_up(link, &frame);
                }
            }
        }
    }

    /// The broker sends to a client: passes on what the fault injector lets through.
    fn sent(&mut self, engine: &mut MqttEngine<'_>, link: LinkId, index: usize, bytes: &[u8]) {
        for frame in frames::split(bytes) {
            engine.note(|| format!("client {index} is sent {}", frames::show(frame)));
            self.clients[index].note_refusal(&mut self.oracle, frame);
            for (to, frame) in engine.injector.to_client(index, frame.to_vec()) {
                let other = &self.clients[to];
                let link = if to == index { Some(link) } else { other.link.filter(|_| other.is_online()) };
                if let Some(link) = link {
                    engine.network.send_down(link, &frame);
                }
            }
        }
    }

    fn received(
        &mut self,
        engine: &mut MqttEngine<'_>,
        link: LinkId,
        index: usize,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        let client = &mut self.clients[index];
        client.receive(&mut self.oracle, bytes, engine.now_ms())?;
        if !engine.network.contains(link) {
            // The connection is gone, and acknowledgements with it.
            client.sends.clear();
            return Ok(());
        }
        if (!client.is_silent && engine.rng.chance(client.profile.prompt)) || engine.is_ending() {
            client.acknowledge(usize::MAX);
        }
        self.send(engine, index);
        Ok(())
    }

    fn new_message(&mut self, engine: &MqttEngine<'_>, index: usize, topic: Arc<str>, qos: QoS) -> MessageId {
        self.published += 1;
        self.oracle.add_message(index, topic, qos, engine.now_ms())
    }

    fn publish_some(&mut self, engine: &mut MqttEngine<'_>, index: usize) {
        let rng = &mut engine.rng;
        let (mut topic, mut qos, mut retain): (Arc<str>, _, _) =
            (pick(rng, &plan::TOPICS).into(), plan::qos(rng), false);
        match rng.below(10) {
            0..2 => topic = pick(rng, &plan::SHARED_TOPICS).into(),
            2..4 => {
                qos = pick(rng, &[QoS::AtLeastOnce, QoS::ExactlyOnce]);
                topic = plan::retained_topic(index, qos);
                retain = true;
            }
            _ => {}
        }
        for _ in 0..=engine.rng.below(6) {
            if !self.clients[index].can_publish() {
                break;
            }
            let id = self.new_message(engine, index, topic.clone(), qos);
            let is_five = self.clients[index].profile.version == Version::V5;
            let message = &mut self.oracle.messages[id];
            message.retain = retain;
            message.is_clear = retain && engine.rng.chance(20);
            if !retain && is_five && engine.rng.chance(8) {
                message.expiry_s = Some(1 + engine.rng.below(4) as u32);
            }
            self.clients[index].publish(&self.oracle, id);
        }
        self.send(engine, index);
    }

    fn do_something_else(&mut self, engine: &mut MqttEngine<'_>, index: usize) {
        let rng = &mut engine.rng;
        let client = &mut self.clients[index];
        let may_share =
            client.is_persistent && (self.plan.ends_sessions || client.profile.expiry_s == u32::MAX);
        match rng.below(100) {
            0..40 => client.acknowledge(if client.is_silent { 0 } else { 1 + rng.below(9) as usize }),
            40..75 => {
                let (filter, group) = plan::filter(rng, &client.profile, may_share);
                let qos = if group.is_some() {
                    pick(rng, &[QoS::AtLeastOnce, QoS::ExactlyOnce])
                } else {
                    plan::qos(rng)
                };
                client.subscribe(&mut self.oracle, &filter, group, qos);
            }
            75..90 => {
                let (filter, group) = plan::filter(rng, &client.profile, may_share);
                client.unsubscribe(&mut self.oracle, &filter, group);
            }
            90..93 => {
                let ends_session = self.plan.ends_sessions && rng.chance(20);
                client.disconnect(ends_session);
                self.send(engine, index);
                if let Some(link) = self.clients[index].link {
                    engine.cut(link);
                    self.clients[index].disconnected(&mut self.oracle, engine.now_ms());
                }
            }
            _ => {}
        }
        self.send(engine, index);
    }
}
