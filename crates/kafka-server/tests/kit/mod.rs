//! The Kafka server without sockets, threads or a clock: shards over stores in memory, clients, virtual time.
//!
//! Most tests need only [`Broker::ask`]: it sends a request and runs the shards until the response arrives.

#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod queues;
pub(crate) mod security;
pub(crate) mod turns;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use mainstem_disk::fault::{FaultFs, Plan};
use mainstem_disk::{Committer, SegmentStore, Settings};
use mainstem_kafka::api::create_topics::{CreatableTopic, CreatableTopicConfig, CreateTopicsRequest};
use mainstem_kafka::api::fetch::{FetchPartition, FetchRequest, FetchResponse, FetchTopic};
use mainstem_kafka::api::metadata::{MetadataRequest, MetadataRequestTopic, MetadataResponse};
use mainstem_kafka::api::produce::{
    PartitionProduceData, PartitionProduceResponse, ProduceRequest, ProduceResponse, TopicProduceData,
};
use mainstem_kafka::header::parse_response_header;
use mainstem_kafka::{Message, Reader, Request, RequestHeader};
use mainstem_kafka_server::{Config, Mail, Security, Shard, Shared, SinkRecord, SinkResult, SourceRecord};
use mainstem_log::{BatchBuilder, MemoryStore, Options, Store, StoreAt, Stores, batches};
use mainstem_queue_core::{Reply, Request as QueueRequest};
use mainstem_runtime::{Clock, ConnId, Detached, Io, MemoryBudget, ProtocolTag, Received, Service};

/// Virtual time starts here, ms since 1970.
pub(crate) const UNIX_MS: u64 = 1_750_000_000_000;
/// Rounds without output after which no message can be in transit.
const QUIET_ROUNDS: u32 = 12;
/// More rounds than this mean an endless exchange of messages.
const ROUNDS_MAX: u32 = 100_000;

/// A client's connection, on any shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client(usize);

impl Client {
    /// No connection yet.
    pub(crate) const NONE: Self = Self(usize::MAX);
}

/// The shard and the connection id of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    shard: usize,
    conn: ConnId,
}

/// The Kafka server of one shard, with the commit that ends each turn.
struct KafkaService {
    shard: Shard,
    /// The disk completes no commit.
    is_stuck: bool,
}

/// A broker and its clients.
pub(crate) struct Broker {
    pub(crate) config: Config,
    security: Option<Security>,
    /// Memory budget, bytes.
    pub(crate) memory_max: u64,
    budget: Arc<MemoryBudget>,
    now_ms: u64,
    services: Vec<KafkaService>,
    detached: Vec<Detached<Mail>>,
    /// All stores created so far, by store id, while no broker has them.
    stores: BTreeMap<u16, StoreAt>,
    /// File systems below the stores; `None` if the stores are in memory.
    disks: Option<Vec<FaultFs>>,
    places: Vec<Place>,
    /// Bytes sent to each client that the test has not taken.
    sent: HashMap<Client, Vec<u8>>,
    next_correlation_id: i32,
    /// Replies of queues that the test has not taken: shard, token, reply.
    replies: Vec<(usize, u64, Reply)>,
}

impl Broker {
    /// With the default configuration.
    pub(crate) fn new(shards: usize) -> Self {
        Self::with(shards, Config::default())
    }

    pub(crate) fn with(shards: usize, config: Config) -> Self {
        Self::over(shards, config, None, None)
    }

    /// With stores in files, so that retention and compaction apply. The files are in memory.
    pub(crate) fn on_disk(shards: usize, config: Config) -> Self {
        Self::over(shards, config, None, Some(Vec::new()))
    }

    /// With users and rules.
    pub(crate) fn secured(shards: usize, config: Config, security: Security) -> Self {
        Self::over(shards, config, Some(security), None)
    }

    fn over(shards: usize, config: Config, security: Option<Security>, disks: Option<Vec<FaultFs>>) -> Self {
        let mut broker = Self {
            config,
            security,
            memory_max: u64::MAX,
            budget: MemoryBudget::unlimited(shards),
            now_ms: 1_000,
            services: Vec::new(),
            detached: Vec::new(),
            stores: BTreeMap::new(),
            disks,
            places: Vec::new(),
            sent: HashMap::new(),
            next_correlation_id: 0,
            replies: Vec::new(),
        };
        broker.start(shards);
        broker
    }

    /// Kills the broker and restarts it over its stores with this number of shards.
    pub(crate) fn restart(&mut self, shards: usize) {
        self.stop();
        if let Some(disks) = &mut self.disks {
            *disks = disks.iter().map(|disk| disk.killed(self.now_ms)).collect();
            self.stores.clear();
        }
        // The seed of the random numbers depends on the time, so the restarted broker draws different ones.
        self.now_ms += 1;
        self.sent.clear();
        self.start(shards);
    }

    /// Ends the broker and takes its stores back.
    fn stop(&mut self) {
        for mut service in std::mem::take(&mut self.services) {
            let stores = std::mem::take(service.shard.stores_mut());
            self.stores.extend(stores.into_iter().map(|at| (at.store_id, at)));
        }
    }

    /// Restarts after a power loss on stores in files: any part of the unsynced data may be lost.
    pub(crate) fn lose_power(&mut self, shards: usize) {
        let disks = self.disks.as_mut().expect("stores in files");
        *disks = disks.iter().map(|disk| disk.survivor(self.now_ms)).collect();
        self.restart(shards);
    }

    /// Restarts after a power loss on stores in memory: all uncommitted data is lost.
    pub(crate) fn crash(&mut self, shards: usize) {
        self.stop();
        for StoreAt { store, .. } in self.stores.values_mut() {
            for name in store.names() {
                let log = store.open(&name, &Options::default()).expect("a log");
                let committed = store.status(log).committed;
                store.truncate_suffix(log, committed).expect("a batch ends there");
            }
            let mut ended = Vec::new();
            store.completions(&mut ended);
        }
        self.restart(shards);
    }

    fn start(&mut self, shards: usize) {
        let store_ids = self.disks.as_ref().map_or(self.stores.len(), Vec::len).max(shards);
        while self.stores.len() < store_ids {
            let store_id = self.stores.len();
            let store = self.open_store(store_id);
            self.stores.insert(store_id as u16, StoreAt::new(store_id as u16, store));
        }
        let mut stores: Vec<Stores> = (0..shards).map(|_| Stores::default()).collect();
        for (store_id, at) in std::mem::take(&mut self.stores) {
            stores[usize::from(store_id) % shards].push(at);
        }
        let shared = Shared::new(self.config.clone(), shards, None);
        if let Some(security) = &self.security {
            shared.secure(security.clone());
        }
        let clock = self.clock();
        self.budget = MemoryBudget::new(self.memory_max, shards);
        self.detached = Io::<Mail>::detached_within(&self.budget, shards, self.now_ms);
        let service = |(me, stores)| {
            let restored = Shard::restore(me, Arc::clone(&shared), stores, clock);
            KafkaService { shard: restored.expect("stores that can be read"), is_stuck: false }
        };
        self.services = stores.into_iter().enumerate().map(service).collect();
        for (service, detached) in self.services.iter_mut().zip(&mut self.detached) {
            detached.begin_turn(service, clock);
        }
        self.run();
    }

    fn open_store(&mut self, store_id: usize) -> Box<dyn Store> {
        let Some(disks) = &mut self.disks else { return Box::new(MemoryStore::new()) };
        if disks.len() == store_id {
            disks.push(FaultFs::new(store_id as u64));
        }
        let fs = Arc::new(disks[store_id].clone());
        let settings =
            Settings { retention_check_ms: 1_000, checkpoint_bytes: 64 * 1024, ..Settings::default() };
        let store = SegmentStore::open(fs, "log".into(), settings, Committer::Inline);
        Box::new(store.expect("a store that can be opened"))
    }

    fn clock(&self) -> Clock {
        Clock { now_ms: self.now_ms, unix_ms: UNIX_MS + self.now_ms }
    }

    pub(crate) fn unix_ms(&self) -> i64 {
        self.clock().unix_ms.cast_signed()
    }

    /// Opens a connection to a shard.
    pub(crate) fn connect(&mut self, shard: usize) -> Client {
        let conn = self.detached[shard].connect(&mut self.services[shard]);
        self.places.push(Place { shard, conn });
        Client(self.places.len() - 1)
    }

    pub(crate) fn hang_up(&mut self, client: Client) {
        let Place { shard, conn } = self.places[client.0];
        self.detached[shard].hang_up(&mut self.services[shard], conn);
    }

    /// The shard that owns the client's connection now.
    pub(crate) fn shard_of(&self, client: Client) -> usize {
        self.places[client.0].shard
    }

    /// Whether the broker has not closed the connection.
    pub(crate) fn is_open(&mut self, client: Client) -> bool {
        let Place { shard, conn } = self.places[client.0];
        self.detached[shard].io().is_open(conn)
    }

    /// Memory that is counted for an owner, bytes.
    pub(crate) fn used_by(&self, owner: &str) -> u64 {
        let by_owner = self.budget.used_by_owner();
        by_owner.iter().find(|(name, _)| *name == owner).map_or(0, |(_, bytes)| *bytes)
    }

    /// Memory that is counted for all owners, bytes.
    pub(crate) fn used(&self) -> u64 {
        self.budget.used()
    }

    /// Creates a log in a store, as an interrupted operation may leave one behind.
    pub(crate) fn leave_log(&mut self, store_id: usize, name: &str) {
        let mut stores = self.services.iter_mut().flat_map(|service| service.shard.stores_mut().iter_mut());
        let at = stores.find(|at| usize::from(at.store_id) == store_id).expect("a store of the broker");
        at.store.open(name, &Options::default()).expect("a log");
    }

    /// Names of the logs of partitions, in all stores.
    pub(crate) fn partition_logs(&mut self) -> Vec<String> {
        let stores = self.services.iter_mut().flat_map(|service| service.shard.stores_mut().iter());
        let names = stores.flat_map(|at| at.store.names());
        names.filter(|name| name.starts_with("p-")).collect()
    }

    /// The client stops reading.
    pub(crate) fn stall(&mut self, client: Client) {
        let Place { shard, conn } = self.places[client.0];
        self.detached[shard].stall(conn);
    }

    /// The client reads again.
    pub(crate) fn resume(&mut self, client: Client) {
        let Place { shard, conn } = self.places[client.0];
        self.detached[shard].resume(conn);
    }

    /// Bytes from a client that the broker has not consumed.
    pub(crate) fn unconsumed(&self, client: Client) -> usize {
        let Place { shard, conn } = self.places[client.0];
        self.detached[shard].unconsumed(conn)
    }

    /// Whether the shard has paused input from this connection.
    pub(crate) fn is_held(&self, client: Client) -> bool {
        let Place { shard, conn } = self.places[client.0];
        self.detached[shard].is_held(conn)
    }

    /// Stops or resumes the disks of all shards.
    pub(crate) fn set_stuck(&mut self, is_stuck: bool) {
        self.services.iter_mut().for_each(|service| service.is_stuck = is_stuck);
    }

    /// Limits a store's disk to `more_bytes` more bytes; `None` removes the limit.
    pub(crate) fn set_space(&self, store_id: usize, more_bytes: Option<u64>) {
        let disk = &self.disks.as_ref().expect("stores in files")[store_id];
        let taken: u64 = disk.files().iter().map(|(_, bytes)| bytes).sum();
        disk.set(Plan { space_bytes: more_bytes.map(|more| taken + more), ..Plan::default() });
    }

    /// The next read from a store's disk fails.
    pub(crate) fn fail_read(&self, store_id: usize) {
        let disk = &self.disks.as_ref().expect("stores in files")[store_id];
        disk.set(Plan { failing_read: Some(1), ..Plan::default() });
    }

    /// The next records for other protocols, from any shard.
    pub(crate) fn take_outgoing(&mut self) -> Option<Vec<SourceRecord>> {
        let mut shards = self.services.iter_mut().zip(&mut self.detached);
        shards.find_map(|(service, detached)| service.shard.take_outgoing(&mut detached.io()))
    }

    /// Another protocol of a shard appends records to the first bound topic in one turn. Returns their results.
    pub(crate) fn bring(&mut self, shard: usize, values: &[&str]) -> Vec<(u64, SinkResult)> {
        for (token, value) in (0..).zip(values) {
            let value = value.as_bytes();
            let timestamp_ms = UNIX_MS.cast_signed();
            let record = SinkRecord {
                bound: 0,
                key: None,
                partition_key: value,
                value,
                headers: &[0],
                timestamp_ms,
                token,
            };
            self.services[shard].shard.sink(&mut self.detached[shard].io(), &record);
        }
        self.run();
        self.services[shard].shard.bindings_mut().take_sink_results()
    }

    /// Another protocol of a shard sends a request to a queue. Does not run the shards.
    pub(crate) fn send_queue(&mut self, shard: usize, queue: &str, request: QueueRequest, token: u64) {
        self.services[shard].shard.send_queue_request(&mut self.detached[shard].io(), queue, request, token);
    }

    /// Replies of queues to another protocol of a shard.
    pub(crate) fn queue_replies(&mut self, shard: usize) -> Vec<(u64, Reply)> {
        let known =
            self.replies.extract_if(.., |(of, ..)| *of == shard).map(|(_, token, reply)| (token, reply));
        known.chain(self.services[shard].shard.take_queue_replies()).collect()
    }

    /// Another protocol of a shard sends a request to a queue. Runs the shards and returns the reply.
    #[track_caller]
    pub(crate) fn ask_queue(&mut self, shard: usize, queue: &str, request: QueueRequest) -> Reply {
        self.send_queue(shard, queue, request, u64::MAX);
        self.run();
        let (mine, others): (Vec<_>, _) = self.services[shard]
            .shard
            .take_queue_replies()
            .into_iter()
            .partition(|(token, _)| *token == u64::MAX);
        self.replies.extend(others.into_iter().map(|(token, reply)| (shard, token, reply)));
        mine.into_iter().next().expect("a reply").1
    }

    /// Starts the shutdown of the broker.
    pub(crate) fn drain(&mut self) {
        for (service, detached) in self.services.iter_mut().zip(&mut self.detached) {
            service.drain(&mut detached.io());
        }
    }

    pub(crate) fn send_bytes(&mut self, client: Client, bytes: &[u8]) {
        let Place { shard, conn } = self.places[client.0];
        self.detached[shard].feed(&mut self.services[shard], conn, bytes);
    }

    /// The client sends a request. Returns its correlation id and does not run the shards.
    pub(crate) fn send<R: Request>(&mut self, client: Client, version: i16, request: &R) -> i32 {
        self.next_correlation_id += 1;
        let frame = frame(self.next_correlation_id, version, request);
        self.send_bytes(client, &frame);
        self.next_correlation_id
    }

    /// Sends a request, runs the shards and returns the response. Time stands still.
    #[track_caller]
    pub(crate) fn ask<R: Request>(&mut self, client: Client, version: i16, request: &R) -> R::Response {
        self.send(client, version, request);
        self.run();
        self.take::<R>(client, version).expect("a response")
    }

    /// Takes the next response sent to a client.
    #[track_caller]
    pub(crate) fn take<R: Request>(&mut self, client: Client, version: i16) -> Option<R::Response> {
        let frame = self.take_frame(client)?;
        let (_, body) = parse_response_header(&frame, R::KEY, version).expect("a header");
        let mut reader = Reader::new(body);
        let response = R::Response::decode(&mut reader, version).expect("a response of its version");
        assert!(reader.rest().is_empty(), "bytes behind the response");
        Some(response)
    }

    /// Takes the next frame sent to a client, without its length.
    pub(crate) fn take_frame(&mut self, client: Client) -> Option<Vec<u8>> {
        let sent = self.sent.get_mut(&client)?;
        let length = u32::from_be_bytes(*sent.first_chunk()?) as usize;
        let frame = sent.get(4..4 + length)?.to_vec();
        sent.drain(..4 + length);
        Some(frame)
    }

    /// Runs the shards until they are idle. Time stands still.
    #[track_caller]
    pub(crate) fn run(&mut self) {
        let mut quiet = 0;
        for _ in 0..ROUNDS_MAX {
            quiet = if self.round() { 0 } else { quiet + 1 };
            if quiet >= QUIET_ROUNDS {
                return;
            }
        }
        panic!("the shards do not become idle");
    }

    /// Units of work that a shard has charged in the turn that has just begun.
    pub(crate) fn charged(&mut self, shard: usize) -> u64 {
        self.detached[shard].io().charged()
    }

    /// Runs this number of turns on each shard.
    pub(crate) fn turn(&mut self, times: usize) {
        for _ in 0..times {
            self.round();
        }
    }

    /// Advances the clock without running the shards.
    pub(crate) fn skip(&mut self, ms: u64) {
        self.now_ms += ms;
    }

    /// Advances the clock in steps of 100 ms, then runs the shards.
    #[track_caller]
    pub(crate) fn pass(&mut self, ms: u64) {
        let end = self.now_ms + ms;
        while self.now_ms < end {
            self.now_ms = (self.now_ms + 100).min(end);
            self.round();
        }
        self.run();
    }

    /// One turn of each shard. Returns whether there was output or a shard requests another turn.
    fn round(&mut self) -> bool {
        let mut is_busy = false;
        let clock = self.clock();
        let mut departures = Vec::new();
        for (shard, (service, detached)) in self.services.iter_mut().zip(&mut self.detached).enumerate() {
            for _ in 0..detached.held_count() {
                is_busy |= detached.offer_held(service).is_some();
            }
            let (sent, places) = (&mut self.sent, &self.places);
            let client = |conn| places.iter().rposition(|place| *place == Place { shard, conn }).map(Client);
            detached.end_turn(service, |conn, bytes| {
                is_busy = true;
                let client = client(conn).expect("the connection of a client");
                sent.entry(client).or_default().extend_from_slice(bytes);
            });
            let transfers = detached.departures().into_iter();
            departures.extend(transfers.map(|departure| (client(departure.conn), departure)));
            is_busy |= detached.wants_turn();
            detached.begin_turn(service, clock);
        }
        for (client, departure) in departures {
            let client = client.expect("the connection of a client");
            let to = departure.to;
            let conn = self.detached[to].adopt(&mut self.services[to], departure);
            self.places[client.0] = Place { shard: to, conn };
            is_busy = true;
        }
        is_busy
    }
}

/// Operations that most tests start with.
impl Broker {
    /// Creates a topic; its partitions are spread over the shards.
    #[track_caller]
    pub(crate) fn create_topic(&mut self, name: &str, partitions: i32) {
        self.create_topic_with(name, partitions, &[]);
    }

    /// Creates a topic with a configuration.
    #[track_caller]
    pub(crate) fn create_topic_with(&mut self, name: &str, partitions: i32, configs: &[(&str, &str)]) {
        let error_code = self.try_create_topic(name, partitions, configs);
        assert_eq!(error_code, 0, "the topic {name} was not created");
    }

    /// Asks for a topic with a configuration. Returns the error code.
    #[track_caller]
    pub(crate) fn try_create_topic(&mut self, name: &str, partitions: i32, configs: &[(&str, &str)]) -> i16 {
        let client = self.connect(0);
        let error_code = self.try_create_topic_by(client, name, partitions, configs);
        self.hang_up(client);
        error_code
    }

    /// A client asks for a topic with a configuration. Returns the error code.
    #[track_caller]
    pub(crate) fn try_create_topic_by(
        &mut self,
        client: Client,
        name: &str,
        partitions: i32,
        configs: &[(&str, &str)],
    ) -> i16 {
        let config = |(name, value): &(&str, &str)| CreatableTopicConfig {
            name: (*name).into(),
            value: Some((*value).into()),
        };
        let topic = CreatableTopic {
            name: name.into(),
            num_partitions: partitions,
            replication_factor: 1,
            configs: configs.iter().map(config).collect(),
            ..CreatableTopic::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], ..CreateTopicsRequest::default() };
        self.ask(client, 7, &request).topics[0].error_code
    }

    /// The metadata of one topic or of all topics.
    #[track_caller]
    pub(crate) fn metadata(&mut self, client: Client, topic: Option<&str>) -> MetadataResponse {
        let named =
            |name: &str| MetadataRequestTopic { name: Some(name.into()), ..MetadataRequestTopic::default() };
        let request = MetadataRequest {
            topics: topic.map(|name| vec![named(name)]),
            allow_auto_topic_creation: false,
            ..MetadataRequest::default()
        };
        self.ask(client, 12, &request)
    }

    /// Appends a batch of these values to a partition and returns the response for that partition.
    #[track_caller]
    pub(crate) fn produce(
        &mut self,
        client: Client,
        topic: &str,
        index: i32,
        values: &[&str],
    ) -> PartitionProduceResponse {
        let records = batch(self.unix_ms(), values);
        let response: ProduceResponse = self.ask(client, 9, &produce_request(topic, index, records));
        response.responses[0].partition_responses[0].clone()
    }

    /// Fetches a partition from an offset without waiting. Returns the response and all values.
    #[track_caller]
    pub(crate) fn fetch(
        &mut self,
        client: Client,
        topic: &str,
        index: i32,
        offset: i64,
    ) -> (FetchResponse, Vec<String>) {
        let response: FetchResponse = self.ask(client, 12, &fetch_request(topic, index, offset, 0));
        let values = values(&response);
        (response, values)
    }
}

/// A request to fetch one partition, which waits up to `max_wait_ms` for a byte.
pub(crate) fn fetch_request(
    topic: &str,
    partition: i32,
    fetch_offset: i64,
    max_wait_ms: i32,
) -> FetchRequest {
    let partition = FetchPartition {
        partition,
        fetch_offset,
        partition_max_bytes: 1024 * 1024,
        ..FetchPartition::default()
    };
    let topic = FetchTopic { topic: topic.into(), partitions: vec![partition], ..FetchTopic::default() };
    FetchRequest { max_wait_ms, min_bytes: 1, topics: vec![topic], ..FetchRequest::default() }
}

/// The values of all records in a response.
pub(crate) fn values(response: &FetchResponse) -> Vec<String> {
    let partitions = response.responses.iter().flat_map(|topic| &topic.partitions);
    let records = partitions.filter_map(|partition| partition.records.as_deref());
    let mut values = Vec::new();
    for batch in records.flat_map(batches).filter(|batch| !batch.header.is_control()) {
        for record in batch.records() {
            let value = record.expect("a record").value.unwrap_or_default();
            values.push(String::from_utf8_lossy(value).into_owned());
        }
    }
    values
}

/// A request to append to one partition.
pub(crate) fn produce_request(topic: &str, index: i32, records: Vec<u8>) -> ProduceRequest {
    let partition = PartitionProduceData { index, records: Some(records) };
    let topic = TopicProduceData {
        name: topic.into(),
        partition_data: vec![partition],
        ..TopicProduceData::default()
    };
    ProduceRequest { acks: -1, timeout_ms: 30_000, topic_data: vec![topic], ..ProduceRequest::default() }
}

/// A record batch of these values, without keys.
pub(crate) fn batch(unix_ms: i64, values: &[&str]) -> Vec<u8> {
    let mut builder = BatchBuilder::default();
    for value in values {
        builder.push(unix_ms, None, Some(value.as_bytes()));
    }
    builder.finish().to_vec()
}

/// A request in its wire format, with its length in front.
pub(crate) fn frame<R: Request>(correlation_id: i32, version: i16, request: &R) -> Vec<u8> {
    let mut frame = vec![0; 4];
    let client_id = Some("kit".to_owned());
    RequestHeader { api_key: R::KEY, api_version: version, correlation_id, client_id }.put(&mut frame);
    request.encode(&mut frame, version);
    let length = (frame.len() - 4) as u32;
    frame[..4].copy_from_slice(&length.to_be_bytes());
    frame
}

impl Service for KafkaService {
    type Mail = Mail;

    fn accepted(&mut self, io: &mut Io<'_, Mail>, conn: ConnId, protocol: ProtocolTag) {
        self.shard.accepted(io, conn, protocol);
    }

    fn received(&mut self, io: &mut Io<'_, Mail>, conn: ConnId, bytes: &[u8]) -> Received {
        self.shard.received(io, conn, bytes)
    }

    fn drained(&mut self, io: &mut Io<'_, Mail>, conn: ConnId) {
        self.shard.drained(io, conn);
    }

    fn closed(&mut self, io: &mut Io<'_, Mail>, conn: ConnId) {
        self.shard.closed(io, conn);
    }

    fn mail(&mut self, io: &mut Io<'_, Mail>, from: usize, mail: Mail) {
        self.shard.mail(io, from, mail);
    }

    fn timer(&mut self, io: &mut Io<'_, Mail>, token: u64) {
        self.shard.timer(io, token);
    }

    fn turn_begins(&mut self, io: &mut Io<'_, Mail>) {
        self.shard.turn_begins(io);
    }

    fn takes_held(&mut self, io: &mut Io<'_, Mail>) -> bool {
        self.shard.takes_held(io)
    }

    fn turn_ends(&mut self, io: &mut Io<'_, Mail>) {
        self.shard.turn_ends(io);
        if !self.is_stuck {
            self.shard.stores_mut().commit();
            self.shard.poll_completions(io);
        }
    }

    fn drain(&mut self, io: &mut Io<'_, Mail>) {
        self.shard.drain(io);
    }
}
