//! The broker under test: one process with its shards and stores, from its start to its end.
//!
//! It runs the product's shards, each with a detached runtime: nothing happens unless the engine feeds bytes, ends a
//! turn, or lets a disk sync. The engine identifies connections by [`LinkId`]; a connection that is handed over to
//! another shard keeps its number and gets another [`ConnId`].

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstem_disk::fault::FaultFs;
use mainstem_disk::{Committer, Fs, SegmentStore, Settings};
use mainstem_kafka_server as kafka;
use mainstem_log::{Error, Store, StoreAt, Stores};
use mainstem_mqtt_server::{Counters, MqttConfig, Shard, Shared, settle_origins};
use mainstem_node::{BindingTable, Bindings, Protocol, ShardMessage, ShardService, Snapshots};
use mainstem_queue_server::QueueClient;
use mainstem_runtime::{Clock, ConnId, Detached, Io, Service};

use super::network::LinkId;
use super::slow_store::{Gate, SlowStore};
use super::{UNIX_MS_AT_ZERO, Violation};

/// Directory of the stores, which are numbered.
const STORES: &str = "/log";

/// Wraps each store of a broker.
pub type WrapStore = Arc<dyn Fn(Box<dyn Store>) -> Box<dyn Store>>;

/// Configuration of a broker.
#[derive(Clone)]
pub(crate) struct BrokerPlan {
    pub(crate) mqtt: MqttConfig,
    pub(crate) kafka: kafka::Config,
    pub(crate) bindings: Arc<Bindings>,
    pub(crate) settings: Settings,
    /// Commits take time.
    pub(crate) is_slow: bool,
}

/// How every broker of a run is started.
pub(super) struct Setup {
    pub(super) plan: BrokerPlan,
    pub(super) wrap: WrapStore,
}

#[derive(Debug)]
struct Place {
    shard: usize,
    protocol: Protocol,
    /// None while it is on its way to another shard, and after it has ended.
    conn: Option<ConnId>,
    /// Input that waits for its arrival there.
    transit: Option<Vec<u8>>,
    is_stalled: bool,
    /// The client is gone since the connection was handed over.
    is_abandoned: bool,
}

/// What leaves a shard at the end of a turn.
#[derive(Debug, Default)]
pub(super) struct TurnOutput {
    /// When the turn began, in virtual time.
    pub(super) began_ms: u64,
    pub(super) output: Vec<(LinkId, Vec<u8>)>,
    /// Connections that the broker has closed.
    pub(super) closed: Vec<LinkId>,
}

/// A running broker.
pub(crate) struct Broker {
    shared: Arc<Shared>,
    topics: Arc<kafka::Shared>,
    shards: Vec<ShardService>,
    detached: Vec<Detached<ShardMessage>>,
    gates: Vec<Vec<Gate>>,
    links: BTreeMap<LinkId, Place>,
    by_conn: HashMap<(usize, ConnId), LinkId>,
    /// Connections on their way to each shard, in the order in which they left.
    arrivals: Vec<VecDeque<LinkId>>,
    /// When each shard began its turn.
    turns_ms: Vec<u64>,
    began_ms: u64,
}

fn clock(began_ms: u64, now_ms: u64) -> Clock {
    Clock { now_ms: now_ms - began_ms, unix_ms: UNIX_MS_AT_ZERO + now_ms }
}

impl Broker {
    /// Starts a broker of `count` shards on what a file system has.
    ///
    /// # Errors
    /// A store cannot be opened or recovered.
    pub(super) fn start(
        fs: &FaultFs,
        setup: &Setup,
        count: usize,
        seed: u64,
        now_ms: u64,
    ) -> Result<Self, Error> {
        let plan = &setup.plan;
        let shared = Shared::reproducible(plan.mqtt.clone(), count, seed);
        for binding in &plan.bindings.inbound {
            shared.add_sink(&binding.filter);
        }
        let topics = kafka::Shared::new(plan.kafka.clone(), count, None);
        let orphaned = orphaned_stores(fs, count);
        let clock = clock(now_ms, now_ms);
        let (mut mqtt, mut others, mut gates) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..count {
            let adopted = orphaned.iter().copied().filter(|id| usize::from(*id) % count == number);
            let ids = std::iter::once(number as u16).chain(adopted);
            let Opened { stores, gates: opened_gates } = open(fs, setup, ids)?;
            let mut kafka = kafka::Shard::restore(number, Arc::clone(&topics), stores, clock)?;
            let stores = std::mem::take(kafka.stores_mut());
            others.push(kafka);
            mqtt.push(Shard::restore(number, Arc::clone(&shared), stores, clock)?.0);
            gates.push(opened_gates);
        }
        settle_origins(&mut mqtt);
        let table = BindingTable::new(Bindings::clone(&plan.bindings));
        let service =
            |(mqtt, kafka)| ShardService::new(mqtt, kafka, Arc::clone(&table), Snapshots::new(count), count);
        let shards = mqtt.into_iter().zip(others).map(service).collect();
        let mut broker = Self {
            shared,
            topics,
            shards,
            detached: Io::<ShardMessage>::detached(count, seed),
            gates,
            links: BTreeMap::new(),
            by_conn: HashMap::new(),
            arrivals: vec![VecDeque::new(); count],
            turns_ms: vec![now_ms; count],
            began_ms: now_ms,
        };
        (0..count).for_each(|shard| broker.begin_turn(shard, now_ms));
        Ok(broker)
    }

    /// A broker with an empty disk of its own, which takes no part in the run.
    ///
    /// # Errors
    /// It does not start.
    pub(super) fn idle(setup: &Setup, now_ms: u64) -> Result<Self, Violation> {
        Self::start(&FaultFs::new(0), setup, 1, 0, now_ms)
            .map_err(|error| Violation(format!("the broker does not start on an empty disk: {error}")))
    }

    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }

    pub(crate) fn queue_client(&self) -> QueueClient {
        self.topics.queue_client()
    }

    pub(super) fn counters(&self) -> Counters {
        self.shared.counters()
    }

    /// Number of things under way that the MQTT servers hold.
    pub(super) fn unfinished(&mut self) -> usize {
        self.shards.iter_mut().map(|shard| shard.mqtt().unfinished()).sum()
    }

    /// The accounts of all MQTT sessions: what each says, and what it should say.
    pub(super) fn accounts(&mut self) -> Vec<(u64, u64)> {
        self.shards.iter_mut().flat_map(|shard| shard.mqtt().accounts()).collect()
    }

    /// Whether the broker reports that it cannot write to its journals.
    pub(crate) fn is_failing(&self) -> bool {
        self.shared.is_failing()
    }

    /// Opens a connection to a listener of `protocol`.
    pub(super) fn open(&mut self, link: LinkId, shard: usize, protocol: Protocol) {
        let conn = self.detached[shard].connect_to(&mut self.shards[shard], protocol.tag());
        let place = Place {
            shard,
            protocol,
            conn: Some(conn),
            transit: None,
            is_stalled: false,
            is_abandoned: false,
        };
        self.links.insert(link, place);
        self.by_conn.insert((shard, conn), link);
    }

    /// Whether the broker still has a connection. One that is being handed over outlives its client.
    pub(crate) fn is_known(&self, link: LinkId) -> bool {
        self.links.contains_key(&link)
    }

    /// Delivers bytes of a client.
    pub(crate) fn feed(&mut self, link: LinkId, bytes: &[u8]) {
        let Some(place) = self.links.get_mut(&link) else { return };
        if let Some(transit) = &mut place.transit {
            transit.extend_from_slice(bytes);
        } else if let Some(conn) = place.conn {
            self.detached[place.shard].feed(&mut self.shards[place.shard], conn, bytes);
        }
    }

    /// The broker notices that a client is gone. Returns output that was never sent.
    pub(super) fn hang_up(&mut self, link: LinkId) -> Vec<u8> {
        let Some(place) = self.links.get_mut(&link) else { return Vec::new() };
        let Some(conn) = place.conn else {
            place.is_abandoned = true;
            return Vec::new();
        };
        let detached = &mut self.detached[place.shard];
        if detached.bound_for(conn).is_some() {
            place.is_abandoned = true;
            return Vec::new();
        }
        let unsent = detached.hang_up(&mut self.shards[place.shard], conn);
        if !detached.is_known(conn) {
            self.by_conn.remove(&(place.shard, conn));
            self.links.remove(&link);
        }
        unsent
    }

    /// Sets whether a client reads nothing.
    pub(super) fn set_stalled(&mut self, link: LinkId, is_stalled: bool) {
        let Some(place) = self.links.get_mut(&link) else { return };
        place.is_stalled = is_stalled;
        let Some(conn) = place.conn else { return };
        let detached = &mut self.detached[place.shard];
        if is_stalled { detached.stall(conn) } else { detached.resume(conn) }
    }

    /// A shard ends its turn.
    pub(super) fn end_turn(&mut self, shard: usize) -> TurnOutput {
        while let Some(link) = self.arrivals[shard].pop_front() {
            self.adopt(shard, link);
        }
        for _ in 0..self.detached[shard].held_count() {
            if self.detached[shard].offer_held(&mut self.shards[shard]).is_none() {
                break;
            }
        }
        self.flush(shard)
    }

    fn adopt(&mut self, shard: usize, link: LinkId) {
        let Some(place) = self.links.get_mut(&link) else { return };
        let conn = self.detached[shard].connect_to(&mut self.shards[shard], place.protocol.tag());
        self.by_conn.insert((shard, conn), link);
        place.conn = Some(conn);
        if place.is_stalled {
            self.detached[shard].stall(conn);
        }
        let input = place.transit.take().unwrap_or_default();
        let is_abandoned = place.is_abandoned;
        self.detached[shard].feed(&mut self.shards[shard], conn, &input);
        if is_abandoned {
            self.hang_up(link);
        }
    }

    fn flush(&mut self, shard: usize) -> TurnOutput {
        let mut ended = TurnOutput { began_ms: self.turns_ms[shard], ..TurnOutput::default() };
        let Self { detached, shards, by_conn, links, arrivals, .. } = self;
        let here = &mut detached[shard];
        here.end_turn(&mut shards[shard], |conn, bytes| {
            if let Some(link) = by_conn.get(&(shard, conn)) {
                ended.output.push((*link, bytes.to_vec()));
            }
        });
        for departure in here.departures() {
            let Some(link) = by_conn.remove(&(shard, departure.conn)) else { continue };
            let Some(place) = links.get_mut(&link) else { continue };
            (place.shard, place.conn, place.transit) = (departure.to, None, Some(departure.input));
            arrivals[departure.to].push_back(link);
        }
        links.retain(|link, place| {
            let Some(conn) = place.conn.filter(|_| place.shard == shard) else { return true };
            let stays = here.is_known(conn);
            if !stays {
                by_conn.remove(&(shard, conn));
                ended.closed.push(*link);
            }
            stays
        });
        ended
    }

    /// A shard begins a turn.
    pub(super) fn begin_turn(&mut self, shard: usize, now_ms: u64) {
        let clock = clock(self.began_ms, now_ms);
        self.turns_ms[shard] = now_ms;
        self.detached[shard].begin_turn(&mut self.shards[shard], clock);
    }

    /// Syncs what a shard has committed, between two of its turns.
    pub(super) fn sync(&self, shard: usize) {
        self.gates[shard].iter().for_each(Gate::sync);
    }

    /// Reports to a shard what was synced.
    pub(super) fn report(&self, shard: usize) {
        for gate in &self.gates[shard] {
            gate.report();
        }
    }

    /// Whether commits, connection transfers or requested turns are pending.
    pub(super) fn is_busy(&self) -> bool {
        self.gates.iter().flatten().any(Gate::has_work)
            || self.arrivals.iter().any(|waiting| !waiting.is_empty())
            || self.detached.iter().any(Detached::wants_turn)
    }

    /// Asks the broker to end.
    pub(super) fn drain(&mut self) {
        for (shard, detached) in self.shards.iter_mut().zip(&mut self.detached) {
            shard.drain(&mut detached.io());
        }
    }
}

/// The stores of a shard.
#[derive(Default)]
struct Opened {
    stores: Stores,
    gates: Vec<Gate>,
}

fn open(fs: &FaultFs, setup: &Setup, ids: impl Iterator<Item = u16>) -> Result<Opened, Error> {
    let Setup { plan, wrap } = setup;
    let mut opened = Opened::default();
    for store_id in ids {
        let dir = PathBuf::from(format!("{STORES}/{store_id}"));
        let files = Arc::new(fs.clone());
        let store = SegmentStore::open(files, dir, plan.settings.clone(), Committer::Inline)?;
        let (store, gate) = SlowStore::new(wrap(Box::new(store)), plan.is_slow);
        opened.stores.push(StoreAt::new(store_id, Box::new(store)));
        opened.gates.push(gate);
    }
    Ok(opened)
}

/// Stores of shards that an earlier broker had and this one does not.
fn orphaned_stores(fs: &FaultFs, count: usize) -> Vec<u16> {
    let found = fs.list(Path::new(STORES)).unwrap_or_default();
    let ids = found.iter().filter_map(|name| name.parse::<u16>().ok());
    let mut orphaned: Vec<u16> = ids.filter(|id| usize::from(*id) >= count).collect();
    orphaned.sort_unstable();
    orphaned
}
