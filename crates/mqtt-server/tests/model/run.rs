//! One run: clients that do whatever a seed tells them, against the broker and the oracle at once.

use std::collections::{HashMap, VecDeque};

use mainstem_mqtt::{QoS, ReasonCode, Version};

use crate::client::{Client, Outgoing, Stage};
use crate::frames;
use crate::kit::{LinkId, Output, QUIET_ROUNDS, Random, START_MS, State, World};
use crate::oracle::{Message, Oracle};
use crate::plan::{self, CLIENTS, Connecting, MessageId, Op, PROBE_TOPIC, TOPICS, WILL_TOPICS, Will};
use crate::session::Serial;
use crate::wire::Wire;

/// Identifiers that nothing ever has.
const STRAY_IDS: [u16; 2] = [60_001, 60_002];
/// Lines of the log that are shown when a run fails.
const LOG_LINES: usize = 4000;

pub(crate) struct Run {
    pub(crate) random: Random,
    pub(crate) world: World,
    pub(crate) oracle: Oracle,
    pub(crate) clients: Vec<Client>,
    pub(crate) wires: Vec<Wire>,
    /// Topic → the message with an empty payload that clears it.
    pub(crate) empties: HashMap<&'static str, MessageId>,
    /// Copies of the messages to [`PROBE_TOPIC`], by session.
    pub(crate) probe: Option<HashMap<Serial, u32>>,
    /// What clients that have vanished would have read next.
    pub(crate) unheard: Vec<Output>,
    /// CONNECTs so far.
    pub(crate) connects: usize,
    is_big: bool,
    log: Option<VecDeque<String>>,
}

impl Drop for Run {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(log) = &self.log
        {
            for line in log {
                eprintln!("{line}");
            }
        }
    }
}

impl Run {
    pub(crate) fn new(seed: u64, is_logged: bool) -> Self {
        let mut random = Random::new(seed);
        let shards = 1 + random.below(3);
        let config = plan::config(&mut random);
        let log = is_logged.then(|| VecDeque::from([format!("{shards} shards, {config:?}")]));
        let clients = (0..CLIENTS).map(|_| Client::new(&mut random)).collect();
        let world = World::new(config.clone(), shards, seed);
        let mut run = Self {
            world,
            oracle: Oracle::new(config, shards, START_MS),
            clients,
            wires: Vec::new(),
            empties: HashMap::new(),
            probe: None,
            unheard: Vec::new(),
            connects: 0,
            is_big: random.one_in(8),
            random,
            log,
        };
        for topic in TOPICS.into_iter().chain(WILL_TOPICS) {
            let message = run.make(topic, 0, None, false);
            run.empties.insert(topic, message);
        }
        run
    }

    pub(crate) fn log(&mut self, line: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push_back(format!("{:>7} {}", self.world.now_ms, line()));
            if log.len() > LOG_LINES {
                log.pop_front();
            }
        }
    }

    pub(crate) fn name(&self, message: MessageId) -> String {
        format!("message {message} ({:?})", self.oracle.messages[message])
    }

    fn make(
        &mut self,
        topic: &'static str,
        bytes: usize,
        expiry_s: Option<u32>,
        has_properties: bool,
    ) -> MessageId {
        let message = self.oracle.messages.len();
        self.oracle.messages.push(Message {
            topic,
            bytes,
            expiry_s,
            expires_at_ms: None,
            had_expiry: false,
            count: 0,
            number: 0,
            publisher: 0,
            has_properties,
        });
        message
    }

    /// A message that has not been published before.
    fn make_new(&mut self, topic: &'static str, version: Version) -> MessageId {
        let digits = format!("{};", self.oracle.messages.len()).len();
        let is_big = self.is_big && self.random.one_in(3);
        let bytes = plan::payload_bytes(&mut self.random, is_big).max(digits);
        let five = version == Version::V5;
        let expiry_s = (five && self.random.one_in(6)).then(|| self.random.pick(&[1, 10, 60]));
        let has_properties = five && self.random.one_in(4);
        self.make(topic, bytes, expiry_s, has_properties)
    }

    /// One step: some client does something, or a shard has a turn, or time passes.
    pub(crate) fn step(&mut self) {
        let client = self.random.below(CLIENTS);
        match self.random.below(100) {
            0..20 => {
                let shard = self.random.below(self.world.shards());
                self.turn(shard);
            }
            20..23 => self.settle_and_check(),
            23..25 => {
                self.settle_and_check();
                let ms = self.random.pick(&[8, 200, 1_000, 5_000, 20_000, 100_000]);
                self.pass(ms);
            }
            _ if !self.clients[client].is_up => match self.clients[client].link {
                None => self.connect(client),
                Some(_) if self.random.one_in(30) => self.hang_up(client),
                Some(_) => {}
            },
            25..27 => self.connect(client),
            27..30 => self.hang_up(client),
            30..32 => self.disconnect(client),
            32..34 => self.change_reading(client),
            34..42 => self.subscribe(client),
            42..46 => self.unsubscribe(client),
            46..48 => self.send(client, Op::Ping),
            48..50 => self.stray(client),
            50..70 => self.publish(client),
            70..78 => self.release(client),
            _ => self.acknowledge(client),
        }
    }

    fn connect(&mut self, client: usize) {
        let version = if self.random.one_in(10) {
            self.random.pick(&[Version::V3, Version::V4, Version::V5])
        } else {
            self.clients[client].manners.version
        };
        let five = version == Version::V5;
        let random = &mut self.random;
        let mut connecting = Connecting {
            client,
            version,
            clean: random.one_in(3),
            keep_alive_s: random.pick(&[0, 0, 10, 60]),
            expiry_s: None,
            receive_maximum: None,
            packet_max: None,
            alias_max: None,
            will: None,
        };
        if five {
            connecting.expiry_s =
                random.pick(&[None, Some(0), Some(20), Some(300), Some(u32::MAX), Some(u32::MAX)]);
            connecting.receive_maximum = random.pick(&[None, None, Some(1), Some(2), Some(5)]);
            connecting.packet_max = random.pick(&[None, None, None, Some(400), Some(5_000)]);
            connecting.alias_max = random.pick(&[None, None, Some(1), Some(10)]);
        }
        if random.one_in(3) {
            let (qos, retain) = (plan::qos(random), random.one_in(3));
            let delay_s = if five { random.pick(&[0, 0, 5, 30, 400]) } else { 0 };
            let message = self.make_new(WILL_TOPICS[client], version);
            connecting.will = Some(Will { message, qos, retain, delay_s });
        }
        let link = self.connect_with(connecting);
        // More may follow before CONNACK has come (3.1.4).
        if self.random.one_in(4) {
            self.subscribe(client);
        } else {
            self.flush(link);
        }
    }

    pub(crate) fn connect_with(&mut self, connecting: Connecting) -> LinkId {
        let client = connecting.client;
        let shard = self.random.below(self.world.shards());
        let link = self.world.open(shard);
        let keep_alive_s = match (connecting.keep_alive_s, self.oracle.config.keep_alive_s_max) {
            (asked, u16::MAX) => asked,
            (asked, _) if connecting.version < Version::V5 => asked,
            (0, most) => most,
            (asked, most) => asked.min(most),
        };
        let mut wire = Wire::new(&connecting, keep_alive_s, self.oracle.config.connect_timeout_ms);
        wire.open(shard, self.world.now_ms);
        self.wires.push(wire);
        assert_eq!(self.wires.len(), link + 1);
        self.clients[client].lose();
        self.clients[client].link = Some(link);
        self.log(|| format!("link {link} opens to shard {shard}: {connecting:?}"));
        let frame = frames::connect(&connecting, &self.oracle.messages);
        self.wires[link].queue(Op::Connect(connecting), &frame);
        link
    }

    fn subscribe(&mut self, client: usize) {
        let Some(link) = self.clients[client].link else { return };
        let version = self.wires[link].version;
        let packet_id = self.clients[client].packet_id();
        let id = if version == Version::V5 { self.random.pick(&[0, 0, 1, 2, 300]) } else { 0 };
        let count = 1 + self.random.below(3);
        let filters = (0..count).map(|_| plan::subscription(&mut self.random, version)).collect();
        self.send(client, Op::Subscribe { packet_id, id, filters });
    }

    fn unsubscribe(&mut self, client: usize) {
        let Some(session) = self.oracle.session(client) else { return };
        let shared = session.shares.keys().map(|key| plan::shared_text(*key));
        let mut known: Vec<&'static str> = session.subs.keys().copied().chain(shared).collect();
        known.push("a/+");
        let filters = vec![self.random.pick(&known)];
        let packet_id = self.clients[client].packet_id();
        self.send(client, Op::Unsubscribe { packet_id, filters });
    }

    fn publish(&mut self, client: usize) {
        let Some(link) = self.clients[client].link.filter(|_| self.clients[client].may_publish()) else {
            return;
        };
        let topic = self.random.pick(&TOPICS);
        let retain = self.random.one_in(4);
        let message = if retain && self.random.one_in(4) {
            self.empties[topic]
        } else {
            self.make_new(topic, self.wires[link].version)
        };
        let qos = plan::qos(&mut self.random);
        self.publish_message(client, message, qos, retain);
    }

    fn publish_message(&mut self, client: usize, message: MessageId, qos: QoS, retain: bool) {
        let known = &mut self.clients[client];
        let packet_id = if qos == QoS::AtMostOnce { 0 } else { known.packet_id() };
        if qos != QoS::AtMostOnce {
            known.outgoing.push(Outgoing { packet_id, message, qos, retain, stage: Stage::Published });
        }
        let link = known.link.expect("a connection");
        let alias = self.choose_alias(link, message);
        let version = self.wires[link].version;
        let flags = (qos, retain, false);
        let frame =
            frames::publish(version, message, &self.oracle.messages[message], flags, packet_id, alias);
        self.wires[link].queue(Op::Publish { packet_id, message, qos, retain }, &frame);
        self.flush(link);
    }

    /// An alias for the topic, and whether the broker knows it already.
    fn choose_alias(&mut self, link: LinkId, message: MessageId) -> Option<(u16, bool)> {
        let topic = self.oracle.messages[message].topic;
        let wire = &mut self.wires[link];
        if wire.version != Version::V5 || !self.random.one_in(3) {
            return None;
        }
        if let Some((alias, _)) = wire.aliases_out.iter().find(|(_, known)| **known == topic) {
            return Some((*alias, true));
        }
        let alias = 1 + self.random.below(4) as u16;
        wire.aliases_out.insert(alias, topic);
        Some((alias, false))
    }

    /// After a reconnect: what the client has in flight.
    pub(crate) fn send_again(&mut self, client: usize, again: &[Outgoing]) {
        let link = self.clients[client].link.expect("a connection");
        let version = self.wires[link].version;
        for Outgoing { packet_id, message, qos, retain, stage } in again.iter().cloned() {
            if stage == Stage::Published {
                let flags = (qos, retain, true);
                let known = &self.oracle.messages[message];
                let frame = frames::publish(version, message, known, flags, packet_id, None);
                self.wires[link].queue(Op::Publish { packet_id, message, qos, retain }, &frame);
            } else {
                let frame = frames::plain(version, &Op::PubRel(packet_id));
                self.wires[link].queue(Op::PubRel(packet_id), &frame);
            }
        }
    }

    /// The next PUBREL that a client owes.
    pub(crate) fn next_release(&mut self, client: usize) -> Option<Op> {
        let outgoing = &mut self.clients[client].outgoing;
        let owed = outgoing.iter_mut().find(|known| known.stage == Stage::OwesRelease)?;
        owed.stage = Stage::Released;
        Some(Op::PubRel(owed.packet_id))
    }

    fn release(&mut self, client: usize) {
        if let Some(op) = self.next_release(client) {
            self.send(client, op);
        }
    }

    fn acknowledge(&mut self, client: usize) {
        if self.clients[client].manners.is_lazy && !self.random.one_in(6) {
            return;
        }
        for _ in 0..=self.random.below(4) {
            if let Some(op) = self.clients[client].pay(&mut self.random) {
                self.send(client, op);
            }
        }
    }

    /// Acknowledges what was never sent.
    fn stray(&mut self, client: usize) {
        let packet_id = self.random.pick(&STRAY_IDS);
        let op = match self.random.below(4) {
            0 => Op::PubAck(packet_id),
            1 => Op::PubRec { packet_id, is_error: false },
            2 => Op::PubRel(packet_id),
            _ => Op::PubComp(packet_id),
        };
        self.send(client, op);
    }

    /// Publishes one message to [`PROBE_TOPIC`].
    pub(crate) fn publish_probe(&mut self, client: usize) {
        let message = self.make_new(PROBE_TOPIC, Version::V4);
        self.publish_message(client, message, QoS::AtMostOnce, false);
    }

    /// Sends a packet, and whatever waits before it, at once.
    pub(crate) fn send_all(&mut self, client: usize, op: Op) {
        let link = self.clients[client].link.expect("a connection");
        let frame = frames::plain(self.wires[link].version, &op);
        self.wires[link].queue(op, &frame);
        self.flush_bytes(link, usize::MAX);
    }

    fn send(&mut self, client: usize, op: Op) {
        let Some(link) = self.clients[client].link else { return };
        let frame = frames::plain(self.wires[link].version, &op);
        self.wires[link].queue(op, &frame);
        self.flush(link);
    }

    /// Sends what is to be sent, most of the time.
    fn flush(&mut self, link: LinkId) {
        match self.random.below(10) {
            0 => {}
            1 if !self.wires[link].unsent.is_empty() => {
                let count = self.random.below(self.wires[link].unsent.len());
                self.flush_bytes(link, count);
            }
            _ => self.flush_bytes(link, usize::MAX),
        }
    }

    pub(crate) fn flush_bytes(&mut self, link: LinkId, count: usize) {
        let unsent = &mut self.wires[link].unsent;
        let bytes: Vec<u8> = unsent.drain(..count.min(unsent.len())).collect();
        if bytes.is_empty() || self.wires[link].has_ended {
            return;
        }
        self.world.feed(link, &bytes);
        self.take_in(link);
    }

    fn hang_up(&mut self, client: usize) {
        let Some(link) = self.clients[client].link else { return };
        self.clients[client].lose();
        self.hang_up_link(link);
    }

    pub(crate) fn hang_up_link(&mut self, link: LinkId) {
        self.log(|| format!("link {link} is cut"));
        let state = self.world.state(link);
        let output = self.world.hang_up(link);
        let State::Open(_) = state else { return };
        // It is looked at when its turn comes.
        self.unheard.push(output);
        self.wires[link].has_ended = true;
        if let Some(serial) = self.wires[link].serial {
            self.oracle.detach(serial);
        }
    }

    fn disconnect(&mut self, client: usize) {
        let Some(session) = self.oracle.session(client) else { return };
        let may_change = session.is_persistent();
        let Some(link) = self.clients[client].link.filter(|link| session.link == Some(*link)) else { return };
        let five = self.wires[link].version == Version::V5;
        let expiry_s = (five && may_change && self.random.one_in(3)).then(|| self.random.pick(&[0, 5, 200]));
        let with_will = five && self.random.one_in(4);
        let frame = frames::plain(self.wires[link].version, &Op::Disconnect { with_will, expiry_s });
        self.wires[link].queue(Op::Disconnect { with_will, expiry_s }, &frame);
        self.flush_bytes(link, usize::MAX);
        self.clients[client].lose();
    }

    fn change_reading(&mut self, client: usize) {
        let Some(link) = self.clients[client].link else { return };
        self.log(|| format!("link {link} reads no more, or again"));
        if self.world.is_stalled(link) {
            self.read_again(link);
        } else if self.random.one_in(3) {
            self.world.stall(link);
            self.wires[link].was_stalled = true;
            self.oracle.stalled.push(link);
        }
        if let Some(serial) =
            self.wires[link].serial.filter(|serial| self.oracle.sessions.contains_key(serial))
        {
            self.oracle.groups.disturb(serial);
        }
    }

    pub(crate) fn read_again(&mut self, link: LinkId) {
        self.world.resume(link);
        self.oracle.stalled.retain(|known| *known != link);
    }

    /// A shard ends a turn and begins the next. True if it had nothing to say.
    fn turn(&mut self, shard: usize) -> bool {
        let is_quiet = self.end_turn(shard);
        self.begin_turn(shard);
        is_quiet
    }

    fn end_turn(&mut self, shard: usize) -> bool {
        let held = self.world.held_count(shard);
        for _ in 0..held {
            let Some(link) = self.world.offer_held(shard) else { break };
            self.take_in(link);
        }
        let outputs = self.world.end_turn(shard);
        let is_quiet = outputs.is_empty();
        self.take_out(shard, outputs);
        self.oracle.end_turn(shard);
        is_quiet
    }

    fn begin_turn(&mut self, shard: usize) {
        self.world.begin_turn(shard);
        self.oracle.begin_turn(shard);
        self.time_out(shard);
        while let Some(link) = self.world.adopt(shard) {
            self.wires[link].open(shard, self.world.now_ms);
            self.take_in(link);
            if self.world.is_abandoned(link) {
                self.hang_up_link(link);
            }
        }
    }

    /// Clients that were not heard of for too long lose their connections.
    fn time_out(&mut self, shard: usize) {
        for link in 0..self.wires.len() {
            let wire = &mut self.wires[link];
            if wire.shard != shard || wire.due_ms().is_none_or(|due_ms| due_ms > self.world.now_ms) {
                continue;
            }
            let Some(serial) = wire.serial else {
                wire.has_ended = true;
                continue;
            };
            self.oracle.closing.push((link, ReasonCode::KeepAliveTimeout));
            self.oracle.sessions.get_mut(&serial).expect("a session").is_just_lost = true;
            self.oracle.detach(serial);
            self.close_links();
        }
    }

    /// Turns until nothing moves.
    pub(crate) fn settle(&mut self) {
        for client in 0..CLIENTS {
            if let Some(link) = self.clients[client].link {
                self.flush_bytes(link, usize::MAX);
            }
        }
        let mut quiet = 0;
        let mut rounds = 0;
        while quiet < QUIET_ROUNDS {
            let is_quiet = (0..self.world.shards()).fold(true, |quiet, shard| self.turn(shard) && quiet);
            quiet = if is_quiet && !self.world.is_busy() { quiet + 1 } else { 0 };
            rounds += 1;
            assert!(rounds < 100_000, "the broker does not come to rest");
        }
    }

    pub(crate) fn settle_and_check(&mut self) {
        self.settle();
        self.check();
    }

    /// Lets time pass, stopping wherever something is due.
    pub(crate) fn pass(&mut self, ms: u64) {
        let target_ms = (self.world.now_ms + ms).next_multiple_of(8);
        while self.world.now_ms < target_ms {
            let sessions = self.oracle.sessions.keys().filter_map(|serial| self.oracle.due_ms(*serial));
            let wires = self.wires.iter().filter_map(Wire::due_ms);
            let due: Vec<u64> = sessions.chain(wires).collect();
            let first_ms = due.iter().copied().min().unwrap_or(u64::MAX);
            let next_ms = first_ms.max(self.world.now_ms + 1).min(target_ms).next_multiple_of(8);
            self.oracle.is_rush = due.into_iter().filter(|at_ms| *at_ms <= next_ms).count() > 1;
            (0..self.world.shards()).for_each(|shard| _ = self.end_turn(shard));
            self.world.now_ms = next_ms;
            self.oracle.now_ms = next_ms;
            self.log(|| "time passes".to_owned());
            (0..self.world.shards()).for_each(|shard| self.begin_turn(shard));
            self.oracle.is_rush = false;
            self.settle_and_check();
        }
    }
}
