//! Several MQTT clients on a broker with two shards, which send sequences of packets, read or do not read, come and go.
//!
//! The broker never panics. What it sends to each client is a sequence of valid packets of the client's version, within
//! the limits that the client announced, and each response belongs to a request. In the end every connected client gets
//! the response to a PINGREQ.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use mainstem_mqtt::{
    Ack, Connect, Disconnect, Header, MessageProperties, Packet, Publish, QoS, ReasonCode, RetainHandling,
    Subscribe, SubscribeFilter, SubscribeFilters, SubscribeOptions, Unsubscribe, UnsubscribeFilters,
    UserProperties, Version, Will, decode,
};
use mainstem_mqtt_server::{Mail, MqttConfig, Shard, Shared};
use mainstem_runtime::{Clock, ConnId, Detached, Io};
use std::collections::BTreeSet;

const SHARDS: usize = 2;
const CLIENTS: usize = 4;
/// Steps of one input that are played; more add time and no new states.
const STEPS_MAX: usize = 200;
/// More output per run than any input can cause, bytes.
const OUTPUT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// More than the largest SUBACK, bytes.
const RESPONSE_BYTES_MAX: usize = 64;
const NAMES: [&str; 3] = ["a", "b", "c"];
const TOPICS: [&str; 4] = ["t/1", "t/2", "t", "other/x/y"];
const FILTERS: [&str; 8] =
    ["t/1", "t/+", "#", "$share/g/t/#", "+/+/y", "$share/h/t/1", "t/#", "$SYS/broker/clients/#"];

#[derive(Arbitrary, Debug)]
struct Step {
    client: u8,
    action: Action,
}

#[derive(Arbitrary, Debug)]
enum Action {
    Connect(Options),
    Publish {
        topic: u8,
        qos: u8,
        retain: bool,
        id: u8,
        alias: Option<u8>,
        expiry_s: Option<u8>,
        bytes: u16,
    },
    Subscribe {
        id: u8,
        filters: Vec<(u8, u8)>,
        subscription_id: Option<u8>,
    },
    Unsubscribe {
        id: u8,
        filters: Vec<u8>,
    },
    /// An acknowledgement of the kind that the broker waits for, or of any other.
    Ack {
        kind: Option<u8>,
        id: u8,
        is_error: bool,
    },
    Ping,
    Disconnect {
        with_will: bool,
        expiry_s: Option<u8>,
    },
    HangUp,
    Stall,
    Resume,
    /// Bytes in the middle of whatever was sent before.
    Raw(Vec<u8>),
    Pass {
        tenths: u8,
    },
}

#[derive(Arbitrary, Debug)]
struct Options {
    version: u8,
    name: u8,
    clean_start: bool,
    expiry_s: Option<u8>,
    receive_maximum: Option<u8>,
    packet_bytes_max: Option<u16>,
    alias_maximum: Option<u8>,
    keep_alive: u8,
    will: Option<(u8, u8, bool, Option<u8>)>,
}

/// A client as it sees itself.
struct Client {
    shard: usize,
    conn: ConnId,
    version: Version,
    /// Requests with responses that name them, in the order sent: type of the response, identifier.
    requests: Vec<(Response, u16)>,
    /// Publishes at QoS 1 and 2 from the broker that are not acknowledged.
    unacknowledged: BTreeSet<u16>,
    receive_maximum: usize,
    packet_bytes_max: usize,
    alias_maximum: u16,
    is_connected: bool,
    /// The broker sent DISCONNECT.
    is_disconnected: bool,
    /// Bytes outside the table were sent, so that what is expected is unknown.
    is_wild: bool,
    pings: usize,
    output: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Response {
    SubAck(usize),
    UnsubAck(usize),
}

struct World {
    shards: Vec<(Detached<Mail>, Shard)>,
    clients: [Option<Client>; CLIENTS],
    now_ms: u64,
    output: usize,
}

fuzz_target!(|steps: Vec<Step>| {
    let config = MqttConfig { max_queued_messages: 20, max_inflight_messages: 3, ..MqttConfig::default() };
    let shared = Shared::new(config, SHARDS, 1);
    let shards = Io::detached(SHARDS, 1)
        .into_iter()
        .enumerate()
        .map(|(number, io)| (io, Shard::new(number, shared.clone())))
        .collect();
    let mut world = World { shards, clients: [const { None }; CLIENTS], now_ms: 0, output: 0 };
    world.turn(0);
    for step in steps.iter().take(STEPS_MAX) {
        world.play(step);
    }
    world.finish();
    assert!(world.output < OUTPUT_BYTES_MAX, "{} bytes of output", world.output);
});

impl World {
    fn play(&mut self, step: &Step) {
        let who = usize::from(step.client) % CLIENTS;
        match &step.action {
            Action::Connect(options) => self.connect(who, options),
            Action::HangUp => self.hang_up(who),
            Action::Pass { tenths } => self.turn(u64::from(*tenths) * 100),
            Action::Stall => self.with_link(who, |io, _, conn| io.stall(conn)),
            Action::Resume => self.with_link(who, |io, _, conn| io.resume(conn)),
            Action::Raw(bytes) => {
                if let Some(client) = &mut self.clients[who] {
                    client.is_wild = true;
                }
                self.feed(who, bytes);
            }
            action => {
                let Some(bytes) = self.clients[who].as_mut().and_then(|client| client.packet(action)) else {
                    return;
                };
                self.feed(who, &bytes);
            }
        }
    }

    fn connect(&mut self, who: usize, options: &Options) {
        self.hang_up(who);
        let shard = who % SHARDS;
        let (io, service) = &mut self.shards[shard];
        let conn = io.connect(service);
        let client = Client::new(shard, conn, options);
        let bytes = client.connect_packet(options);
        self.clients[who] = Some(client);
        self.feed(who, &bytes);
        self.turn(0);
    }

    fn hang_up(&mut self, who: usize) {
        if let Some(Client { shard, conn, .. }) = self.clients[who].take() {
            let (io, service) = &mut self.shards[shard];
            io.hang_up(service, conn);
        }
    }

    fn feed(&mut self, who: usize, bytes: &[u8]) {
        self.with_link(who, |io, service, conn| io.feed(service, conn, bytes));
    }

    fn with_link(&mut self, who: usize, act: impl FnOnce(&mut Detached<Mail>, &mut Shard, ConnId)) {
        if let Some(Client { shard, conn, .. }) = self.clients[who] {
            let (io, service) = &mut self.shards[shard];
            act(io, service, conn);
        }
    }

    fn turn(&mut self, later_ms: u64) {
        self.now_ms += later_ms;
        let clock = Clock { now_ms: self.now_ms, unix_ms: self.now_ms };
        for shard in 0..SHARDS {
            let (io, service) = &mut self.shards[shard];
            for (conn, bytes) in io.turn(service, clock) {
                self.output += bytes.len();
                let mut clients = self.clients.iter_mut().flatten();
                if let Some(client) = clients.find(|client| (client.shard, client.conn) == (shard, conn)) {
                    client.receive(&bytes);
                }
            }
            for _ in 0..io.held_count() {
                io.offer_held(service);
            }
            for departure in io.departures() {
                let (from, to) = (departure.conn, departure.to);
                let (io, service) = &mut self.shards[to];
                let conn = io.adopt(service, departure);
                for client in self.clients.iter_mut().flatten() {
                    if (client.shard, client.conn) == (shard, from) {
                        (client.shard, client.conn) = (to, conn);
                    }
                }
            }
        }
    }

    /// Lets everybody read, and expects a response to a PINGREQ of each client that is still connected.
    fn finish(&mut self) {
        for who in 0..CLIENTS {
            self.with_link(who, |io, _, conn| io.resume(conn));
        }
        self.settle();
        for who in 0..CLIENTS {
            let Some(client) = &mut self.clients[who] else { continue };
            let is_open = self.shards[client.shard].0.io().is_open(client.conn);
            if !client.is_connected || client.is_wild || !is_open {
                self.hang_up(who);
                continue;
            }
            client.pings += 1;
            self.feed(who, &encoded(Version::V5, &Packet::PingReq));
        }
        self.settle();
        for client in self.clients.iter().flatten() {
            assert!(client.is_disconnected || client.pings == 0, "{} pings unanswered", client.pings);
            // A response above the client's limit cannot be sent.
            let fits = client.packet_bytes_max >= RESPONSE_BYTES_MAX;
            assert!(client.is_disconnected || !fits || client.requests.is_empty(), "{:?}", client.requests);
        }
        for who in 0..CLIENTS {
            self.hang_up(who);
        }
        for _ in 0..3 {
            self.turn(100_000);
        }
    }

    /// Turns without time until nothing can be in transit.
    fn settle(&mut self) {
        for _ in 0..20 {
            self.turn(0);
        }
    }
}

impl Client {
    fn new(shard: usize, conn: ConnId, options: &Options) -> Self {
        let version = [Version::V3, Version::V4, Version::V5, Version::V5][usize::from(options.version) % 4];
        let is_v5 = version == Version::V5;
        let limit = |value: Option<u16>, default: usize| {
            value.filter(|value| is_v5 && *value > 0).map_or(default, usize::from)
        };
        Self {
            shard,
            conn,
            version,
            requests: Vec::new(),
            unacknowledged: BTreeSet::new(),
            receive_maximum: limit(options.receive_maximum.map(u16::from), usize::from(u16::MAX)),
            packet_bytes_max: limit(options.packet_bytes_max, usize::MAX),
            alias_maximum: options.alias_maximum.filter(|_| is_v5).map_or(0, u16::from),
            is_connected: false,
            is_disconnected: false,
            is_wild: false,
            pings: 0,
            output: Vec::new(),
        }
    }

    fn connect_packet(&self, options: &Options) -> Vec<u8> {
        let is_v5 = self.version == Version::V5;
        let will = options.will.map(|(topic, qos, retain, delay_s)| Will {
            qos: qos_of(qos),
            retain,
            topic: TOPICS[usize::from(topic) % TOPICS.len()],
            payload: b"will",
            delay_interval: delay_s.filter(|_| is_v5).map(u32::from),
            properties: MessageProperties::default(),
        });
        let connect = Connect {
            clean_start: options.clean_start,
            keep_alive: options.keep_alive.into(),
            will,
            session_expiry: options.expiry_s.filter(|_| is_v5).map(u32::from),
            receive_maximum: options.receive_maximum.filter(|value| is_v5 && *value > 0).map(u16::from),
            maximum_packet_size: options.packet_bytes_max.filter(|value| is_v5 && *value > 0).map(u32::from),
            topic_alias_maximum: options.alias_maximum.filter(|_| is_v5).map(u16::from),
            ..Connect::new(self.version, NAMES[usize::from(options.name) % NAMES.len()])
        };
        encoded(self.version, &Packet::Connect(connect))
    }

    /// The packet of an action; `None` if the version has none.
    fn packet(&mut self, action: &Action) -> Option<Vec<u8>> {
        let version = self.version;
        let is_v5 = version == Version::V5;
        Some(match action {
            Action::Publish { topic, qos, retain, id, alias, expiry_s, bytes } => {
                let qos = qos_of(*qos);
                let payload = vec![b'x'; usize::from(*bytes)];
                let expiry = expiry_s.filter(|_| is_v5).map(u32::from);
                let publish = Publish {
                    qos,
                    retain: *retain,
                    topic: TOPICS[usize::from(*topic) % TOPICS.len()],
                    packet_id: if qos == QoS::AtMostOnce { 0 } else { identifier(*id) },
                    topic_alias: alias.filter(|alias| is_v5 && *alias > 0).map(u16::from),
                    properties: MessageProperties { message_expiry: expiry, ..MessageProperties::default() },
                    payload: &payload,
                    ..Publish::default()
                };
                encoded(version, &Packet::Publish(publish))
            }
            Action::Subscribe { id, filters, subscription_id } => {
                self.subscribe(*id, filters, *subscription_id)?
            }
            Action::Unsubscribe { id, filters } => {
                let filters: Vec<&str> = filters.iter().take(8).map(|filter| filter_of(*filter)).collect();
                if filters.is_empty() {
                    return None;
                }
                self.requests.push((Response::UnsubAck(filters.len()), identifier(*id)));
                encoded(
                    version,
                    &Packet::Unsubscribe(Unsubscribe {
                        packet_id: identifier(*id),
                        user_properties: UserProperties::default(),
                        filters: UnsubscribeFilters::List(&filters),
                    }),
                )
            }
            Action::Ack { kind, id, is_error } => self.ack(*kind, *id, *is_error && is_v5),
            Action::Ping => {
                self.pings += 1;
                encoded(version, &Packet::PingReq)
            }
            Action::Disconnect { with_will, expiry_s } => {
                let reason = ReasonCode::DisconnectWithWill;
                encoded(
                    version,
                    &Packet::Disconnect(Disconnect {
                        reason: if *with_will && is_v5 { reason } else { ReasonCode::Success },
                        session_expiry: expiry_s.filter(|_| is_v5).map(u32::from),
                        ..Disconnect::default()
                    }),
                )
            }
            _ => return None,
        })
    }

    fn subscribe(&mut self, id: u8, filters: &[(u8, u8)], subscription_id: Option<u8>) -> Option<Vec<u8>> {
        let is_v5 = self.version == Version::V5;
        let retain = [RetainHandling::Send, RetainHandling::SendIfNew, RetainHandling::DoNotSend];
        let filter = |&(filter, options): &(u8, u8)| {
            let filter = filter_of(filter);
            let options = SubscribeOptions {
                qos: qos_of(options & 3),
                no_local: is_v5 && options & 4 != 0 && !filter.starts_with("$share"),
                retain_as_published: is_v5 && options & 8 != 0,
                retain_handling: if is_v5 { retain[usize::from(options >> 4) % 3] } else { retain[0] },
            };
            SubscribeFilter { filter, options }
        };
        let filters: Vec<SubscribeFilter<'_>> = filters.iter().take(8).map(filter).collect();
        if filters.is_empty() {
            return None;
        }
        self.requests.push((Response::SubAck(filters.len()), identifier(id)));
        Some(encoded(
            self.version,
            &Packet::Subscribe(Subscribe {
                packet_id: identifier(id),
                subscription_id: subscription_id.filter(|id| is_v5 && *id > 0).map(u32::from),
                user_properties: UserProperties::default(),
                filters: SubscribeFilters::List(&filters),
            }),
        ))
    }

    fn ack(&mut self, kind: Option<u8>, id: u8, is_error: bool) -> Vec<u8> {
        let oldest = self.unacknowledged.iter().nth(usize::from(id) % self.unacknowledged.len().max(1));
        let packet_id = oldest.copied().unwrap_or_else(|| identifier(id));
        let reason = if is_error { ReasonCode::UnspecifiedError } else { ReasonCode::Success };
        let ack = Ack { packet_id, reason, ..Ack::default() };
        let packet = match kind.unwrap_or(0) % 4 {
            0 => Packet::PubAck(ack),
            1 => Packet::PubRec(ack),
            2 => Packet::PubRel(Ack { reason: ReasonCode::Success, ..ack }),
            _ => Packet::PubComp(Ack { reason: ReasonCode::Success, ..ack }),
        };
        // Which of them completes the delivery depends on its QoS; counting it as completed makes the check weaker, not
        // wrong.
        self.unacknowledged.remove(&packet_id);
        encoded(self.version, &packet)
    }

    /// Checks what the broker sent.
    fn receive(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
        let output = std::mem::take(&mut self.output);
        let mut rest = output.as_slice();
        while !rest.is_empty() {
            let header = Header::parse(rest).expect("a good header").expect("a whole header");
            assert!(header.packet_len() <= rest.len(), "a whole packet");
            let (packet, behind) = rest.split_at(header.packet_len());
            rest = behind;
            assert!(packet.len() <= self.packet_bytes_max, "{} bytes", packet.len());
            match decode(self.version, packet) {
                Ok(packet) => self.check(&packet),
                // After bytes that are no CONNECT of its version, the broker may answer in another one.
                Err(error) => assert!(self.is_wild, "{error:?}: {packet:02x?}"),
            }
        }
    }

    fn check(&mut self, packet: &Packet<'_>) {
        assert!(!self.is_disconnected || self.is_wild, "after DISCONNECT: {packet:?}");
        assert!(self.is_connected != matches!(packet, Packet::ConnAck(_)), "CONNACK first, and once");
        match packet {
            Packet::ConnAck(_) => self.is_connected = true,
            Packet::Publish(publish) => self.check_publish(publish),
            Packet::SubAck(ack) => self.complete(Response::SubAck(ack.reasons.len()), ack.packet_id),
            Packet::UnsubAck(ack) if self.version == Version::V5 => {
                self.complete(Response::UnsubAck(ack.reasons.len()), ack.packet_id);
            }
            Packet::UnsubAck(ack) => {
                let of = |(kind, id): &(Response, u16)| {
                    matches!(kind, Response::UnsubAck(_)) && *id == ack.packet_id
                };
                let known = self.requests.iter().position(of);
                assert!(known.is_some() || self.is_wild, "{packet:?}");
                known.map(|index| self.requests.remove(index));
            }
            Packet::PingResp => {
                assert!(self.pings > 0 || self.is_wild, "PINGRESP without PINGREQ");
                self.pings = self.pings.saturating_sub(1);
            }
            Packet::Disconnect(_) => {
                assert_eq!(self.version, Version::V5, "only servers of version 5 send DISCONNECT");
                self.is_disconnected = true;
            }
            Packet::PubAck(_) | Packet::PubRec(_) | Packet::PubRel(_) | Packet::PubComp(_) => {}
            other => panic!("servers do not send {other:?}"),
        }
    }

    fn complete(&mut self, response: Response, id: u16) {
        let known = self.requests.iter().position(|request| *request == (response, id));
        assert!(known.is_some() || self.is_wild, "{response:?} {id}: {:?}", self.requests);
        known.map(|index| self.requests.remove(index));
    }

    fn check_publish(&mut self, publish: &Publish<'_>) {
        assert_eq!(publish.packet_id == 0, publish.qos == QoS::AtMostOnce);
        assert!(publish.topic_alias.unwrap_or(0) <= self.alias_maximum, "{publish:?}");
        if publish.qos != QoS::AtMostOnce {
            self.unacknowledged.insert(publish.packet_id);
            assert!(self.unacknowledged.len() <= self.receive_maximum || self.is_wild, "{publish:?}");
        }
    }
}

fn qos_of(number: u8) -> QoS {
    [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][usize::from(number) % 3]
}

/// Few identifiers, so that they repeat.
fn identifier(id: u8) -> u16 {
    u16::from(id % 4) + 1
}

fn filter_of(number: u8) -> &'static str {
    FILTERS[usize::from(number) % FILTERS.len()]
}

fn encoded(version: Version, packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.encode(version, &mut bytes).expect("the table can be encoded");
    bytes
}
