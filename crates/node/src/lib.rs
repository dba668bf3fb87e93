//! The service that a shard runs: the protocol servers of one shard, behind one event loop and one store commit.
//!
//! Each protocol server is a [`Service`] with mail of its own. [`ShardService`] dispatches each event of the shard to
//! the server of the connection, moves messages between the servers, and ends each turn with one commit for all of
//! them. Sharing the loop is what makes a binding cheap: a message passes from one server to another within a turn,
//! without a copy through a channel and without a second commit.
//!
//! # What this crate must never know
//! The bytes that a protocol server exchanges with its clients.
//!
//! # Entry points
//! [`ShardService`]; [`BindingTable`]; [`Snapshots`]; [`Protocol`], whose tags the listeners carry.
//!
//! # Invariants
//! - Mail of one protocol server keeps its order.
//! - Everything appended in a turn, by any server, is in the same commit.
//! - A turn sends its queue requests together: settlements first, then messages.
//!
//! # Files
//! | file | contents |
//! |---|---|
//! | `binding.rs` | bindings: how a message becomes a record and back; loop detection |
//! | `detection.rs` | log lines about clients that speak another protocol |
//! | `queues.rs` | work queues for MQTT clients |
//! | `snapshot.rs` | all shards capture their stores at the same moment |

mod binding;
mod detection;
mod queues;
mod snapshot;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mainstem_kafka_server as kafka;
use mainstem_log::Stores;
use mainstem_mqtt::ReasonCode;
use mainstem_mqtt_server as mqtt;
use mainstem_runtime::{ConnId, Io, ProtocolTag, Received, Service, TIMER_MARK};
use slab::Slab;

pub use binding::{Inbound, Key, Outbound, Template, find_loop};
use binding::{Scratch, Skipped};
use detection::DetectionLog;
use queues::Queues;
use snapshot::ShardSnapshot;
pub use snapshot::{SnapshotFiles, Snapshots};

/// Source batches, or parts of large ones, that one turn publishes at most.
const OUTGOING_PER_TURN: usize = 8;

/// Bindings between MQTT and Kafka topics.
#[derive(Clone, Debug, Default)]
pub struct Bindings {
    /// MQTT to Kafka, in the order of the MQTT server's sinks and of the Kafka server's bound topics.
    pub inbound: Vec<Inbound>,
    /// Kafka to MQTT, in the order of the Kafka server's sources.
    pub outbound: Vec<Outbound>,
}

/// The bindings of all shards. Bindings can be added while the shards run.
#[derive(Debug, Default)]
pub struct BindingTable {
    newest: Mutex<Arc<Bindings>>,
    /// Number of changes so far; shards compare it to find out whether to reload.
    version: AtomicU64,
}

impl BindingTable {
    /// Starts with the configured bindings.
    pub fn new(bindings: Bindings) -> Arc<Self> {
        Arc::new(Self { newest: Mutex::new(Arc::new(bindings)), version: AtomicU64::new(0) })
    }

    /// Appends an inbound binding. Its index is the number of its sink.
    pub fn add_inbound(&self, binding: Inbound) {
        self.change(|bindings| bindings.inbound.push(binding));
    }

    /// Appends an outbound binding. Its index is the number of its source.
    pub fn add_outbound(&self, binding: Outbound) {
        self.change(|bindings| bindings.outbound.push(binding));
    }

    fn change(&self, change: impl FnOnce(&mut Bindings)) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = Bindings::clone(&newest);
        change(&mut next);
        *newest = Arc::new(next);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The current bindings.
    pub fn bindings(&self) -> Arc<Bindings> {
        Arc::clone(&self.newest.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A message between two shards, for one protocol server.
pub enum ShardMessage {
    /// Between the MQTT servers.
    Mqtt(mqtt::Mail),
    /// Between the Kafka servers.
    Kafka(kafka::Mail),
}

/// The protocol servers of one shard as one service.
pub struct ShardService {
    mqtt: ProtocolService<mqtt::Shard>,
    kafka: ProtocolService<kafka::Shard>,
    /// The stores, which a server holds while it runs.
    stores: Stores,
    /// The connections, by slot.
    connections: Vec<Connection>,
    detection_log: DetectionLog,
    table: Arc<BindingTable>,
    /// The bindings as of `bindings_version`.
    bindings: Arc<Bindings>,
    bindings_version: u64,
    /// Records being appended for inbound bindings; a ticket if the publisher waits for the result.
    pending_sinks: Slab<Option<mqtt::SinkTicket>>,
    queues: Queues,
    headers: Vec<u8>,
    scratch: Scratch,
    /// Records of each outbound binding that could not be published; only the first is logged.
    skipped_records: Vec<u64>,
    /// Time of the next fence, ms.
    next_fence_ms: u64,
    snapshots: Arc<Snapshots>,
    snapshot: ShardSnapshot,
}

/// Time between two fences, ms. After a crash, the records since the last fence may be published again.
const FENCE_INTERVAL_MS: u64 = 200;

/// A protocol server and the mail it has produced in the current call.
struct ProtocolService<S: Service> {
    service: S,
    outbox: Vec<Vec<S::Mail>>,
    timer_mark: u64,
    wrap: fn(S::Mail) -> ShardMessage,
    /// Where the server holds the stores while it runs.
    stores_of: fn(&mut S) -> &mut Stores,
}

/// What the dispatch knows of a connection.
#[derive(Clone, Copy)]
struct Connection {
    protocol: Protocol,
    /// Whether it has sent anything.
    has_sent: bool,
}

/// Protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// MQTT 3.1, 3.1.1 and 5.
    Mqtt,
    /// The Kafka protocol.
    Kafka,
}

/// Bits of a tag that are the protocol. The others are the number of the listener among those of its protocol.
const PROTOCOL_BITS: u32 = 4;

impl Protocol {
    /// The tag of the only listener of this protocol, or the first.
    pub fn tag(self) -> ProtocolTag {
        self.tag_of(0)
    }

    /// The tag of a listener of this protocol, by its number among these.
    pub fn tag_of(self, number: u8) -> ProtocolTag {
        ProtocolTag(u16::from(number) << PROTOCOL_BITS | self as u16)
    }

    /// The protocol in a tag, and the number of the listener as the tag that its server gets.
    fn of(ProtocolTag(tag): ProtocolTag) -> (Self, ProtocolTag) {
        let protocol = tag & ((1 << PROTOCOL_BITS) - 1);
        let known = [Self::Mqtt, Self::Kafka].into_iter().find(|known| *known as u16 == protocol);
        (known.expect("listeners carry the tag of a protocol"), ProtocolTag(tag >> PROTOCOL_BITS))
    }
}

impl<S: Service> ProtocolService<S> {
    fn new(
        service: S,
        shards: usize,
        timer_mark: u64,
        wrap: fn(S::Mail) -> ShardMessage,
        stores_of: fn(&mut S) -> &mut Stores,
    ) -> Self {
        Self { service, outbox: (0..shards).map(|_| Vec::new()).collect(), timer_mark, wrap, stores_of }
    }

    /// Lends the server the stores and calls it with its own view of `io`, then sends its mail.
    fn call<R>(
        &mut self,
        stores: &mut Stores,
        io: &mut Io<'_, ShardMessage>,
        what: impl FnOnce(&mut S, &mut Io<'_, S::Mail>) -> R,
    ) -> R {
        std::mem::swap((self.stores_of)(&mut self.service), stores);
        let outcome = what(&mut self.service, &mut io.for_subservice(&mut self.outbox, self.timer_mark));
        std::mem::swap((self.stores_of)(&mut self.service), stores);
        for (to, mails) in self.outbox.iter_mut().enumerate() {
            if !mails.is_empty() {
                send_all(io, to, mails, self.wrap);
            }
        }
        outcome
    }
}

/// Sends mail of a protocol server to a shard. Out of line: most calls cause none.
#[inline(never)]
fn send_all<M>(io: &mut Io<'_, ShardMessage>, to: usize, mails: &mut Vec<M>, wrap: fn(M) -> ShardMessage) {
    for mail in mails.drain(..) {
        io.send(to, wrap(mail));
    }
}

impl ShardService {
    /// The MQTT server, for tests and tools that inspect its state.
    pub fn mqtt(&mut self) -> &mut mqtt::Shard {
        &mut self.mqtt.service
    }

    /// Combines the servers of one of `shards` shards. The stores that either holds become those of the shard.
    pub fn new(
        mut mqtt: mqtt::Shard,
        mut kafka: kafka::Shard,
        table: Arc<BindingTable>,
        snapshots: Arc<Snapshots>,
        shards: usize,
    ) -> Self {
        let mut stores = std::mem::take(mqtt.stores_mut());
        if stores.is_empty() {
            stores = std::mem::take(kafka.stores_mut());
        }
        Self {
            skipped_records: Vec::new(),
            bindings: table.bindings(),
            bindings_version: 0,
            table,
            pending_sinks: Slab::new(),
            queues: Queues::default(),
            headers: Vec::new(),
            scratch: Scratch::default(),
            next_fence_ms: 0,
            snapshots,
            snapshot: ShardSnapshot::default(),
            mqtt: ProtocolService::new(mqtt, shards, 0, ShardMessage::Mqtt, mqtt::Shard::stores_mut),
            kafka: ProtocolService::new(
                kafka,
                shards,
                TIMER_MARK,
                ShardMessage::Kafka,
                kafka::Shard::stores_mut,
            ),
            stores,
            connections: Vec::new(),
            detection_log: DetectionLog::default(),
        }
    }

    fn owner(&self, conn: ConnId) -> Protocol {
        self.connections[conn.slot()].protocol
    }

    /// Reloads the bindings if they changed, so that a sink's binding is known before its first message.
    fn refresh_bindings(&mut self) {
        let version = self.table.version.load(Ordering::Acquire);
        if version != self.bindings_version {
            self.bindings_version = version;
            self.bindings = self.table.bindings();
        }
    }

    /// Moves messages and results between the servers. Most calls find none.
    #[inline]
    fn transfer_messages(&mut self, io: &mut Io<'_, ShardMessage>) {
        let kafka = &mut self.kafka.service;
        if self.mqtt.service.has_sink_messages()
            || kafka.bindings_mut().has_sink_results()
            || kafka.has_queue_replies()
        {
            self.transfer_some(io);
        }
        let is_behind = self.kafka.service.bindings_mut().is_sink_behind() || self.queues.is_behind();
        self.mqtt.service.hold_for_sinks(is_behind);
    }

    #[inline(never)]
    fn transfer_some(&mut self, io: &mut Io<'_, ShardMessage>) {
        self.refresh_bindings();
        for message in self.mqtt.service.take_sink_messages() {
            match message.sink {
                mqtt::Sink::Filter(bound) => self.sink_to_topic(io, &message, bound as usize),
                mqtt::Sink::Queue => self.sink_to_queue(io, &message),
            }
        }
        for (token, result) in self.kafka.service.bindings_mut().take_sink_results() {
            let ticket = self.pending_sinks.remove(token as usize);
            let outcome = match result {
                kafka::SinkResult::Durable => mqtt::SinkOutcome::Durable,
                kafka::SinkResult::NotDurable => mqtt::SinkOutcome::NotDurable,
                kafka::SinkResult::NoRoom => mqtt::SinkOutcome::Refused(ReasonCode::QuotaExceeded),
                kafka::SinkResult::Invalid => {
                    mqtt::SinkOutcome::Refused(ReasonCode::ImplementationSpecificError)
                }
            };
            self.mqtt
                .call(&mut self.stores, io, |service, io| service.settle_sink_message(io, ticket, outcome));
        }
        self.take_queue_replies(io);
    }

    /// Appends a message to the topic of its binding.
    fn sink_to_topic(&mut self, io: &mut Io<'_, ShardMessage>, message: &mqtt::SinkMessage, bound: usize) {
        let Some(binding) = self.bindings.inbound.get(bound) else { return };
        self.headers.clear();
        binding::headers(message, io.clock.now_ms, &mut self.headers);
        let key = binding.key.of(message);
        let record = kafka::SinkRecord {
            bound,
            key,
            partition_key: key.unwrap_or(message.topic().as_bytes()),
            value: message.payload(),
            headers: &self.headers,
            timestamp_ms: io.clock.unix_ms.cast_signed(),
            token: self.pending_sinks.insert(message.ticket) as u64,
        };
        self.kafka.call(&mut self.stores, io, |service, io| service.sink(io, &record));
    }

    /// Publishes records of source topics until the MQTT server is blocked, then handles fences.
    fn publish_source_records(&mut self, io: &mut Io<'_, ShardMessage>) {
        self.refresh_bindings();
        if self.bindings.outbound.is_empty() {
            return;
        }
        for _ in 0..OUTGOING_PER_TURN {
            if self.mqtt.call(&mut self.stores, io, |service, io| service.is_bridge_blocked(io)) {
                break;
            }
            let outgoing = self.kafka.call(&mut self.stores, io, kafka::Shard::take_outgoing);
            let Some(records) = outgoing else { break };
            for record in &records {
                self.publish_source_record(io, record);
            }
            io.request_turn();
            if io.is_exhausted() {
                break;
            }
        }
        for (token, is_safe) in self.mqtt.service.take_fenced() {
            self.kafka.call(&mut self.stores, io, |service, io| service.end_source_fence(io, token, is_safe));
        }
        if io.clock.now_ms >= self.next_fence_ms {
            let wanted = self.kafka.service.bindings_mut().begin_source_fences();
            if !wanted.is_empty() {
                self.next_fence_ms = io.clock.now_ms + FENCE_INTERVAL_MS;
            }
            for token in wanted {
                self.mqtt.call(&mut self.stores, io, |service, io| service.fence_bridge(io, token));
            }
        }
    }

    fn publish_source_record(&mut self, io: &mut Io<'_, ShardMessage>, record: &kafka::SourceRecord) {
        let bindings = Arc::clone(&self.bindings);
        let Some(binding) = bindings.outbound.get(record.source) else { return };
        let message = binding::message(binding, record, io.clock.unix_ms, &mut self.scratch);
        let is_published = match message {
            Ok(message) => {
                self.mqtt.call(&mut self.stores, io, |service, io| service.publish_from_bridge(io, &message))
            }
            Err(Skipped::Expired) => return,
            Err(Skipped::MissingField) => false,
        };
        if !is_published {
            self.skipped_records.resize(bindings.outbound.len(), 0);
            let skipped = &mut self.skipped_records[record.source];
            *skipped += 1;
            if *skipped == 1 {
                let kafka::SourceRecord { partition, offset, .. } = record;
                log::warn!(
                    "binding {}: the record at {offset} of partition {partition} yields no topic name or a message that is too large; it is skipped, and later ones are skipped without a log line",
                    binding.name
                );
            }
        }
    }
}

/// Calls the protocol server that owns a connection.
macro_rules! for_protocol {
    ($service:ident, $io:ident, $conn:ident, $call:expr) => {
        match $service.owner($conn) {
            Protocol::Mqtt => $service.mqtt.call(&mut $service.stores, $io, $call),
            Protocol::Kafka => $service.kafka.call(&mut $service.stores, $io, $call),
        }
    };
}

impl Service for ShardService {
    type Mail = ShardMessage;

    fn accepted(&mut self, io: &mut Io<'_, ShardMessage>, conn: ConnId, protocol: ProtocolTag) {
        let (protocol, listener) = Protocol::of(protocol);
        let connection = Connection { protocol, has_sent: false };
        if self.connections.len() <= conn.slot() {
            self.connections.resize(conn.slot() + 1, connection);
        }
        self.connections[conn.slot()] = connection;
        for_protocol!(self, io, conn, |service, io| service.accepted(io, conn, listener));
    }

    fn received(&mut self, io: &mut Io<'_, ShardMessage>, conn: ConnId, bytes: &[u8]) -> Received {
        if !std::mem::replace(&mut self.connections[conn.slot()].has_sent, true) {
            self.detection_log.check(io, conn, self.owner(conn), bytes);
        }
        let received = for_protocol!(self, io, conn, |service, io| service.received(io, conn, bytes));
        self.transfer_messages(io);
        received
    }

    fn drained(&mut self, io: &mut Io<'_, ShardMessage>, conn: ConnId) {
        for_protocol!(self, io, conn, |service, io| service.drained(io, conn));
    }

    fn closed(&mut self, io: &mut Io<'_, ShardMessage>, conn: ConnId) {
        for_protocol!(self, io, conn, |service, io| service.closed(io, conn));
        self.transfer_messages(io);
    }

    fn mail(&mut self, io: &mut Io<'_, ShardMessage>, from: usize, mail: ShardMessage) {
        match mail {
            ShardMessage::Mqtt(mail) => {
                self.mqtt.call(&mut self.stores, io, |service, io| service.mail(io, from, mail));
            }
            ShardMessage::Kafka(mail) => {
                self.kafka.call(&mut self.stores, io, |service, io| service.mail(io, from, mail));
            }
        }
        self.transfer_messages(io);
    }

    fn timer(&mut self, io: &mut Io<'_, ShardMessage>, token: u64) {
        if token & TIMER_MARK == 0 {
            self.mqtt.call(&mut self.stores, io, |service, io| service.timer(io, token));
        } else {
            self.kafka.call(&mut self.stores, io, |service, io| service.timer(io, token & !TIMER_MARK));
        }
        self.transfer_messages(io);
    }

    fn turn_begins(&mut self, io: &mut Io<'_, ShardMessage>) {
        self.mqtt.call(&mut self.stores, io, mqtt::Shard::turn_begins);
        self.kafka.call(&mut self.stores, io, kafka::Shard::turn_begins);
        self.transfer_messages(io);
        self.publish_source_records(io);
    }

    fn takes_mail(&mut self, io: &mut Io<'_, ShardMessage>) -> bool {
        self.mqtt.call(&mut self.stores, io, Service::takes_mail)
    }

    fn takes_held(&mut self, io: &mut Io<'_, ShardMessage>) -> bool {
        self.mqtt.call(&mut self.stores, io, Service::takes_held)
            || self.kafka.call(&mut self.stores, io, Service::takes_held)
    }

    fn turn_ends(&mut self, io: &mut Io<'_, ShardMessage>) {
        self.transfer_messages(io);
        self.send_queue_requests(io);
        self.kafka.call(&mut self.stores, io, kafka::Shard::turn_ends);
        // The MQTT server commits the stores and handles its completions; without journals it does not.
        self.mqtt.call(&mut self.stores, io, mqtt::Shard::turn_ends);
        self.stores.commit();
        self.snapshots.poll(&mut self.snapshot, &mut self.stores);
        self.kafka.call(&mut self.stores, io, kafka::Shard::poll_completions);
        self.transfer_messages(io);
        self.publish_source_records(io);
        if self.mqtt.service.has_queue_requests() {
            // Completions have made room for more queue requests.
            io.request_turn();
        }
    }

    fn drain(&mut self, io: &mut Io<'_, ShardMessage>) {
        self.snapshots.end();
        self.mqtt.call(&mut self.stores, io, mqtt::Shard::drain);
        // Wills and unsettled deliveries must reach their queues before the queues stop.
        self.transfer_messages(io);
        self.send_queue_requests(io);
        self.kafka.call(&mut self.stores, io, kafka::Shard::drain);
    }
}
