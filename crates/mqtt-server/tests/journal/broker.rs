//! A broker without sockets, threads or a clock, on stores that outlive it, and its clients.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use mainstem_log::{
    Appended, Completion, Error, LogAdmin, LogId, LogReader, LogWriter, Maintained, MemoryStore, Options,
    Status, Store, StoreAt, TimestampOffset, ValidBatch, batches,
};
use mainstem_mqtt::{
    Ack, Connect, Disconnect, Header, Packet, Publish, QoS, ReasonCode, Subscribe, SubscribeFilter,
    SubscribeFilters, SubscribeOptions, Unsubscribe, UnsubscribeFilters, UserProperties, Version, Will,
    decode,
};
use mainstem_mqtt_server::{Mail, MqttConfig, Restored, Shard, Shared, settle_origins};
use mainstem_runtime::{Clock, ConnId, Detached, Io};

/// Start of the story, ms since 1970.
const BEGIN_MS: u64 = 1_700_000_000_000;
/// Turns of 1 ms after which everything has come to rest: marks wait for 50.
const TURNS: usize = 70;

/// A store that outlives its broker and never truncates, so that its logs begin at offset 0.
#[derive(Clone, Default)]
pub(crate) struct TestStore {
    memory: Arc<Mutex<MemoryStore>>,
    faults: Arc<Mutex<Faults>>,
}

/// Injected faults of a store.
#[derive(Default)]
struct Faults {
    /// Logs that refuse appends.
    full: Vec<LogId>,
    /// A log that refuses an append, after so many others.
    refuses: Option<(LogId, usize)>,
    /// Completions are held back.
    is_slow: bool,
}

impl TestStore {
    /// A store with the batches that `log` returns for each log name.
    pub(crate) fn of(log: impl Fn(&str) -> Option<Vec<u8>>) -> Self {
        let mut store = Self::default();
        for name in ["mqtt", "mqtt-retained", "mqtt-snapshot"] {
            let Some(bytes) = log(name) else { continue };
            let opened = store.open(name, &Options::default()).unwrap();
            for batch in batches(&bytes) {
                let appended = store.append(opened, batch.bytes()).unwrap();
                assert_eq!(appended.base_offset, batch.header.base_offset);
            }
            store.commit();
        }
        store.completions(&mut Vec::new());
        store
    }

    fn memory(&self) -> MutexGuard<'_, MemoryStore> {
        self.memory.lock().unwrap()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.memory().names()
    }

    /// A log refuses appends from now on.
    pub(crate) fn fill(&self, name: &str) {
        let log = self.memory().open(name, &Options::default()).unwrap();
        self.faults.lock().unwrap().full.push(log);
    }

    /// A log refuses one append, after `accepted` others.
    pub(crate) fn refuse_one(&self, name: &str, accepted: usize) {
        let log = self.memory().open(name, &Options::default()).unwrap();
        self.faults.lock().unwrap().refuses = Some((log, accepted));
    }

    /// Whether the append that is to be refused has not come yet.
    pub(crate) fn is_to_refuse(&self) -> bool {
        self.faults.lock().unwrap().refuses.is_some()
    }

    /// All logs accept appends again.
    pub(crate) fn clear(&self) {
        self.faults.lock().unwrap().full.clear();
    }

    /// Holds completions back from now on.
    pub(crate) fn hold_completions(&self) {
        self.faults.lock().unwrap().is_slow = true;
    }

    /// Delivers completions again.
    pub(crate) fn release_completions(&self) {
        self.faults.lock().unwrap().is_slow = false;
    }

    /// All batches of a log.
    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        let mut memory = self.memory();
        let log = memory.open(name, &Options::default()).unwrap();
        let mut bytes = Vec::new();
        let end = memory.status(log).end;
        memory.read(log, 0..end, usize::MAX, &mut bytes).unwrap();
        bytes
    }

    /// Offset behind the last entry of the journal.
    pub(crate) fn end(&self) -> u64 {
        let mut memory = self.memory();
        let log = memory.open("mqtt", &Options::default()).unwrap();
        memory.status(log).end
    }

    /// Removes the entries of the journal from an offset on.
    pub(crate) fn truncate(&self, end: u64) {
        let mut memory = self.memory();
        let log = memory.open("mqtt", &Options::default()).unwrap();
        memory.truncate_suffix(log, end).unwrap();
    }

    /// A copy with the logs for which `is_included` returns true.
    pub(crate) fn copy(&self, is_included: impl Fn(&str) -> bool) -> Self {
        let names = self.names();
        Self::of(|name| {
            (is_included(name) && names.iter().any(|known| known == name)).then(|| self.bytes(name))
        })
    }
}

impl LogReader for TestStore {
    fn read(
        &mut self,
        log: LogId,
        offsets: Range<u64>,
        most: usize,
        into: &mut Vec<u8>,
    ) -> Result<(), Error> {
        self.memory().read(log, offsets, most, into)
    }

    fn status(&self, log: LogId) -> Status {
        self.memory().status(log)
    }

    fn find_time(&mut self, log: LogId, timestamp_ms: i64) -> Result<Option<TimestampOffset>, Error> {
        self.memory().find_time(log, timestamp_ms)
    }
}

impl LogWriter for TestStore {
    fn append_valid(&mut self, log: LogId, batch: ValidBatch<'_>) -> Result<Appended, Error> {
        let mut faults = self.faults.lock().unwrap();
        if faults.full.contains(&log)
            || faults.refuses.take_if(|(of, left)| *of == log && *left == 0).is_some()
        {
            return Err(Error::Full);
        }
        if let Some((of, left)) = &mut faults.refuses
            && *of == log
        {
            *left -= 1;
        }
        drop(faults);
        self.memory().append_valid(log, batch)
    }

    fn force_sync(&mut self, log: LogId) {
        self.memory().force_sync(log);
    }
}

impl LogAdmin for TestStore {
    fn names(&self) -> Vec<String> {
        Self::names(self)
    }

    fn open(&mut self, name: &str, options: &Options) -> Result<LogId, Error> {
        self.memory().open(name, options)
    }

    fn remove(&mut self, log: LogId) -> Result<(), Error> {
        self.memory().remove(log)
    }

    fn truncate_prefix(&mut self, _log: LogId, _offset: u64) -> Result<(), Error> {
        Ok(())
    }

    fn truncate_suffix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
        self.memory().truncate_suffix(log, offset)
    }

    fn maintain(&mut self, _unix_ms: u64) -> Maintained {
        Maintained::default()
    }
}

impl Store for TestStore {
    fn commit(&mut self) {
        self.memory().commit();
    }

    fn completions(&mut self, into: &mut Vec<Completion>) {
        if !self.faults.lock().unwrap().is_slow {
            self.memory().completions(into);
        }
    }
}

/// How a client connects.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) version: Version,
    pub(crate) client_id: &'static str,
    pub(crate) is_durable: bool,
    /// Session Expiry Interval of a durable one, seconds.
    pub(crate) expiry_s: u32,
    pub(crate) receive_maximum: Option<u16>,
    pub(crate) will: Option<Will<'static>>,
}

impl Link {
    pub(crate) fn five(client_id: &'static str) -> Self {
        let expiry_s = u32::MAX;
        Self {
            version: Version::V5,
            client_id,
            is_durable: true,
            expiry_s,
            receive_maximum: None,
            will: None,
        }
    }

    pub(crate) fn four(client_id: &'static str) -> Self {
        Self { version: Version::V4, ..Self::five(client_id) }
    }
}

struct Client {
    shard: usize,
    conn: ConnId,
    version: Version,
    received: Vec<String>,
}

pub(crate) struct Broker {
    pub(crate) restored: Restored,
    shards: Vec<Shard>,
    detached: Vec<Detached<Mail>>,
    clients: Vec<Client>,
    by_conn: HashMap<(usize, ConnId), usize>,
    /// Time of the story before this broker, ms.
    before_ms: u64,
    now_ms: u64,
}

impl Broker {
    /// A broker of `shards` shards that starts `before_ms` after the story. Each shard has the stores whose numbers are
    /// its own modulo the number of shards.
    pub(crate) fn new(config: &MqttConfig, stores: &[TestStore], shards: usize, before_ms: u64) -> Self {
        let shared = Shared::new(config.clone(), shards, 1);
        let mut restored = Restored::default();
        let clock = Clock { now_ms: 0, unix_ms: BEGIN_MS + before_ms };
        let mut made = Vec::new();
        for me in 0..shards {
            let mine = stores.iter().enumerate().filter(|(id, _)| id % shards == me);
            let mine = mine.map(|(id, store)| StoreAt::new(id as u16, Box::new(store.clone())));
            let (one, here) = Shard::restore(me, Arc::clone(&shared), mine.collect(), clock).unwrap();
            restored.sessions += here.sessions;
            restored.retained += here.retained;
            made.push(one);
        }
        settle_origins(&mut made);
        let mut broker = Self {
            restored,
            shards: made,
            detached: Io::<Mail>::detached(shards, 1),
            clients: Vec::new(),
            by_conn: HashMap::new(),
            before_ms,
            now_ms: 0,
        };
        (0..shards).for_each(|shard| broker.begin_turn(shard));
        broker
    }

    fn begin_turn(&mut self, shard: usize) {
        let clock = Clock { now_ms: self.now_ms, unix_ms: BEGIN_MS + self.before_ms + self.now_ms };
        self.detached[shard].begin_turn(&mut self.shards[shard], clock);
    }

    /// One turn of one shard.
    pub(crate) fn turn(&mut self, shard: usize) {
        let Self { detached, shards, clients, by_conn, .. } = self;
        for _ in 0..detached[shard].held_count() {
            if detached[shard].offer_held(&mut shards[shard]).is_none() {
                break;
            }
        }
        detached[shard].end_turn(&mut shards[shard], |conn, bytes| {
            let client = &mut clients[by_conn[&(shard, conn)]];
            packets(client.version, bytes, &mut client.received);
        });
        for departure in detached[shard].departures() {
            let Some(client) = by_conn.remove(&(shard, departure.conn)) else { continue };
            let to = departure.to;
            let conn = detached[to].connect(&mut shards[to]);
            (clients[client].shard, clients[client].conn) = (to, conn);
            by_conn.insert((to, conn), client);
            detached[to].feed(&mut shards[to], conn, &departure.input);
        }
        self.begin_turn(shard);
    }

    /// Runs turns of all shards until nothing happens any more.
    pub(crate) fn settle(&mut self) {
        for _ in 0..TURNS {
            self.now_ms += 1;
            (0..self.shards.len()).for_each(|shard| self.turn(shard));
        }
    }

    /// Lets time pass.
    pub(crate) fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        self.settle();
    }

    pub(crate) fn connect(&mut self, shard: usize, link: Link) -> usize {
        let conn = self.detached[shard].connect(&mut self.shards[shard]);
        let client = self.clients.len();
        self.clients.push(Client { shard, conn, version: link.version, received: Vec::new() });
        self.by_conn.insert((shard, conn), client);
        let connect = Connect {
            clean_start: !link.is_durable,
            session_expiry: (link.is_durable && link.version == Version::V5).then_some(link.expiry_s),
            receive_maximum: link.receive_maximum,
            will: link.will,
            ..Connect::new(link.version, link.client_id)
        };
        self.send(client, &connect.into());
        client
    }

    fn send(&mut self, client: usize, packet: &Packet<'_>) {
        let Client { shard, conn, version, .. } = self.clients[client];
        let mut frame = Vec::new();
        packet.encode(version, &mut frame).unwrap();
        self.detached[shard].feed(&mut self.shards[shard], conn, &frame);
    }

    pub(crate) fn subscribe(&mut self, client: usize, filter: &str, qos: QoS, id: Option<u32>) {
        let options = SubscribeOptions::qos(qos);
        let subscribe = Subscribe {
            packet_id: 1,
            subscription_id: id,
            user_properties: UserProperties::default(),
            filters: SubscribeFilters::List(&[SubscribeFilter { filter, options }]),
        };
        self.send(client, &Packet::Subscribe(subscribe));
    }

    pub(crate) fn unsubscribe(&mut self, client: usize, filter: &str) {
        let unsubscribe = Unsubscribe {
            packet_id: 1,
            user_properties: UserProperties::default(),
            filters: UnsubscribeFilters::List(&[filter]),
        };
        self.send(client, &Packet::Unsubscribe(unsubscribe));
    }

    pub(crate) fn publish(&mut self, client: usize, publish: Publish<'_>) {
        self.send(client, &Packet::Publish(publish));
    }

    /// PUBACK.
    pub(crate) fn acknowledge(&mut self, client: usize, packet_id: u16) {
        self.send(client, &Packet::PubAck(Ack { packet_id, ..Ack::default() }));
    }

    /// PUBREC.
    pub(crate) fn receive(&mut self, client: usize, packet_id: u16) {
        self.send(client, &Packet::PubRec(Ack { packet_id, ..Ack::default() }));
    }

    /// PUBREL.
    pub(crate) fn release(&mut self, client: usize, packet_id: u16) {
        self.send(client, &Packet::PubRel(Ack { packet_id, ..Ack::default() }));
    }

    /// DISCONNECT; the session ends unless it `stays`.
    pub(crate) fn disconnect(&mut self, client: usize, stays: bool) {
        let session_expiry = if stays { None } else { Some(0) };
        self.send(client, &Packet::Disconnect(Disconnect { session_expiry, ..Disconnect::default() }));
    }

    /// The connection is lost.
    pub(crate) fn hang_up(&mut self, client: usize) {
        let Client { shard, conn, .. } = self.clients[client];
        self.detached[shard].hang_up(&mut self.shards[shard], conn);
    }

    /// Takes what a client has been sent since the last call.
    pub(crate) fn take(&mut self, client: usize) -> Vec<String> {
        std::mem::take(&mut self.clients[client].received)
    }
}

/// Packets as text.
fn packets(version: Version, mut bytes: &[u8], into: &mut Vec<String>) {
    while let Some(header) = Header::parse(bytes).unwrap() {
        let (frame, rest) = bytes.split_at(header.packet_len());
        into.push(text(&decode(version, frame).unwrap()));
        bytes = rest;
    }
}

fn text(packet: &Packet<'_>) -> String {
    let ack = |name: &str, ack: &Ack<'_>| match ack.reason {
        ReasonCode::Success => format!("{name} {}", ack.packet_id),
        reason => format!("{name} {} {:#04x}", ack.packet_id, reason as u8),
    };
    match packet {
        Packet::ConnAck(connack) if connack.reason.is_error() => {
            format!("connack {:#04x}", connack.reason as u8)
        }
        Packet::ConnAck(connack) if connack.session_present => "connack present".to_owned(),
        Packet::Publish(publish) => text_of_publish(publish),
        Packet::PubAck(known) => ack("puback", known),
        Packet::PubRec(known) => ack("pubrec", known),
        Packet::PubRel(known) => ack("pubrel", known),
        Packet::PubComp(known) => ack("pubcomp", known),
        Packet::SubAck(list) => format!("suback {:?}", list.reasons),
        Packet::ConnAck(_) => "connack".to_owned(),
        Packet::UnsubAck(_) => "unsuback".to_owned(),
        Packet::Disconnect(known) => format!("disconnect {:#04x}", known.reason as u8),
        other => panic!("{other:?} does not come here"),
    }
}

fn text_of_publish(publish: &Publish<'_>) -> String {
    let Publish { dup, qos, retain, topic, packet_id, subscription_ids, properties, payload, .. } = publish;
    let dup = if *dup { "dup " } else { "" };
    let payload = String::from_utf8_lossy(payload);
    let ids: Vec<u32> = subscription_ids.iter().collect();
    let ids = if ids.is_empty() { String::new() } else { format!(" ids {ids:?}") };
    let retain = if *retain { " retain" } else { "" };
    let kind = properties.content_type.map(|kind| format!(" {kind}")).unwrap_or_default();
    let expiry = properties.message_expiry.map(|expiry_s| format!(" expiry {expiry_s}")).unwrap_or_default();
    let qos = *qos as u8;
    format!("publish {dup}q{qos} {packet_id} {topic} {payload}{ids}{retain}{kind}{expiry}")
}
