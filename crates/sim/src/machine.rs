//! The machine under test: the process of a broker on its file system, from its start to its end.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstem_broker::{Counters, Durability, MqttConfig, Shard, Shared, StoreAt, settle_origins};
use mainstem_disk::fault::{self, Dice, FaultFs};
use mainstem_disk::{Committer, Fs, SegmentStore, Settings};
use mainstem_doors::{Bindings, Doors, Mail, Table};
use mainstem_log::{Error, Lender, Store};
use mainstem_runtime::{Clock, ConnId, Detached, Io, Service};
use mainstem_stream as stream;

use crate::disk::{Gate, SlowStore};
use crate::ledger::Violation;

/// Directory of the stores, one for each shard.
const STORES: &str = "/log";
/// Milliseconds since 1970 when virtual time begins.
pub(crate) const BEGAN_UNIX_MS: u64 = 1_800_000_000_000;

/// A connection as client and network know it.
pub(crate) type LinkId = usize;

/// Puts something between a broker and its store.
pub type Wrap = Arc<dyn Fn(Box<dyn Store>) -> Box<dyn Store>>;

/// How a broker is started.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) config: MqttConfig,
    pub(crate) stream: stream::Config,
    pub(crate) bindings: Arc<Bindings>,
    pub(crate) settings: Settings,
    /// Commits take time.
    pub(crate) is_slow: bool,
    pub(crate) wrap: Wrap,
}

#[derive(Debug)]
struct Place {
    shard: usize,
    /// The door that it came in by, as [`Doors`] numbers them.
    door: usize,
    /// Nothing while it is on its way to another shard, and when it has ended.
    conn: Option<ConnId>,
    /// Input that waits for it to arrive.
    transit: Option<Vec<u8>>,
    is_stalled: bool,
    /// The client has gone while the connection was being handed over.
    is_abandoned: bool,
}

/// What leaves a shard at the end of a turn.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// When the turn began, as the shard's clock says.
    pub(crate) began_ms: u64,
    pub(crate) output: Vec<(LinkId, Vec<u8>)>,
    /// Connections that the broker has ended.
    pub(crate) closed: Vec<LinkId>,
}

/// A running broker.
pub(crate) struct Machine {
    shared: Arc<Shared>,
    topics: Arc<stream::Shared>,
    shards: Vec<Doors>,
    detached: Vec<Detached<Mail>>,
    gates: Vec<Vec<Gate>>,
    links: BTreeMap<LinkId, Place>,
    by_conn: HashMap<(usize, ConnId), LinkId>,
    /// Connections on their way to each shard, in the order of their leaving.
    arrivals: Vec<VecDeque<LinkId>>,
    /// When each shard began its turn.
    turns_ms: Vec<u64>,
    began_ms: u64,
}

fn clock(began_ms: u64, now_ms: u64) -> Clock {
    Clock { now_ms: now_ms - began_ms, unix_ms: BEGAN_UNIX_MS + now_ms }
}

impl Machine {
    /// Starts a broker of `count` shards on what a file system has.
    ///
    /// # Errors
    /// What the stores say.
    pub(crate) fn start(
        fs: &FaultFs,
        setup: &Setup,
        count: usize,
        seed: u64,
        now_ms: u64,
    ) -> Result<Self, Error> {
        let shared = Shared::new(setup.config.clone(), count, seed);
        for binding in &setup.bindings.inbound {
            shared.add_sink(&binding.filter);
        }
        let topics = stream::Shared::new(setup.stream.clone(), count, None);
        let beyond = stores_beyond(fs, count);
        let clock = clock(now_ms, now_ms);
        let (mut mqtt, mut others, mut gates) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..count {
            let mine = beyond.iter().copied().filter(|home| usize::from(*home) % count == number);
            let homes = std::iter::once(number as u16).chain(mine);
            let Opened { lenders, gates: gates_here, for_mqtt, for_topics } = open(fs, setup, homes)?;
            mqtt.push(Shard::restore(number, Arc::clone(&shared), for_mqtt, clock)?.0);
            let streams = stream::Shard::restore(number, Arc::clone(&topics), for_topics, clock)?;
            others.push((streams, lenders));
            gates.push(gates_here);
        }
        settle_origins(&mut mqtt);
        let table = Table::new(Bindings::clone(&setup.bindings));
        let doors =
            |(mqtt, (streams, lenders))| Doors::new(mqtt, streams, lenders, Arc::clone(&table), count);
        let shards = mqtt.into_iter().zip(others).map(doors).collect();
        let mut machine = Self {
            shared,
            topics,
            shards,
            detached: Io::<Mail>::detached(count, seed),
            gates,
            links: BTreeMap::new(),
            by_conn: HashMap::new(),
            arrivals: vec![VecDeque::new(); count],
            turns_ms: vec![now_ms; count],
            began_ms: now_ms,
        };
        (0..count).for_each(|shard| machine.begin_turn(shard, now_ms));
        Ok(machine)
    }

    /// A broker that has nothing to do with any other.
    ///
    /// # Errors
    /// It does not start.
    pub(crate) fn idle(setup: &Setup, now_ms: u64) -> Result<Self, Violation> {
        Self::start(&FaultFs::new(0), setup, 1, 0, now_ms)
            .map_err(|error| Violation(format!("an empty disk is refused: {error}")))
    }

    /// Starts a broker on what another has left. That may end at any step, and is then tried again on what it leaves.
    /// Also says whether the power was lost meanwhile.
    ///
    /// # Errors
    /// It does not start although nothing ended it.
    pub(crate) fn begin_again(
        left: &FaultFs,
        setup: &Setup,
        shards: usize,
        now_ms: u64,
        dice: &mut Dice,
        loses_power: bool,
    ) -> Result<(Self, FaultFs, bool), Violation> {
        let seed = dice.roll();
        let (mut fs, mut was_lost) = (left.clone(), false);
        loop {
            let may_crash = dice.chance(20);
            let crash_at = may_crash.then(|| 1 + dice.below(60));
            fs.set(fault::Plan { crash_at, ..fault::Plan::default() });
            match Self::start(&fs, setup, shards, seed, now_ms) {
                Ok(machine) if !fs.has_crashed() => return Ok((machine, fs, was_lost)),
                Err(error) if !fs.has_crashed() => {
                    return Err(Violation(format!("the broker does not start again: {error}")));
                }
                _ => {
                    let seed = dice.roll();
                    fs = if loses_power { fs.survivor(seed) } else { fs.killed(seed) };
                    was_lost |= loses_power;
                }
            }
        }
    }

    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Where others than clients ask its queues.
    pub(crate) fn desk(&self) -> stream::Desk {
        stream::Desk::new(&self.topics)
    }

    pub(crate) fn counters(&self) -> Counters {
        self.shared.counters()
    }

    /// What the MQTT doors remember of things under way.
    pub(crate) fn unfinished(&mut self) -> usize {
        self.shards.iter_mut().map(|shard| shard.mqtt().unfinished()).sum()
    }

    /// Whether the broker says that it cannot keep anything now.
    pub(crate) fn is_failing(&self) -> bool {
        self.shared.is_failing()
    }

    /// Opens a connection to a door, as [`Doors`] numbers them.
    pub(crate) fn open(&mut self, link: LinkId, shard: usize, door: usize) {
        let conn = self.detached[shard].connect_to(&mut self.shards[shard], door);
        let place =
            Place { shard, door, conn: Some(conn), transit: None, is_stalled: false, is_abandoned: false };
        self.links.insert(link, place);
        self.by_conn.insert((shard, conn), link);
    }

    /// Whether something of a connection is left: one that is being handed over outlasts its client.
    pub(crate) fn is_known(&self, link: LinkId) -> bool {
        self.links.contains_key(&link)
    }

    /// Bytes from a client.
    pub(crate) fn feed(&mut self, link: LinkId, bytes: &[u8]) {
        let Some(place) = self.links.get_mut(&link) else { return };
        if let Some(transit) = &mut place.transit {
            transit.extend_from_slice(bytes);
        } else if let Some(conn) = place.conn {
            self.detached[place.shard].feed(&mut self.shards[place.shard], conn, bytes);
        }
    }

    /// The broker notices that a client has gone. Returns what it had to say and never will.
    pub(crate) fn hang_up(&mut self, link: LinkId) -> Vec<u8> {
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

    /// Lets a client read nothing, or read again.
    pub(crate) fn set_stalled(&mut self, link: LinkId, is_stalled: bool) {
        let Some(place) = self.links.get_mut(&link) else { return };
        place.is_stalled = is_stalled;
        let Some(conn) = place.conn else { return };
        let detached = &mut self.detached[place.shard];
        if is_stalled { detached.stall(conn) } else { detached.resume(conn) }
    }

    /// A shard ends its turn.
    pub(crate) fn end_turn(&mut self, shard: usize) -> Left {
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
        let conn = self.detached[shard].connect_to(&mut self.shards[shard], place.door);
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

    fn flush(&mut self, shard: usize) -> Left {
        let mut left = Left { began_ms: self.turns_ms[shard], ..Left::default() };
        let Self { detached, shards, by_conn, links, arrivals, .. } = self;
        let here = &mut detached[shard];
        here.end_turn(&mut shards[shard], |conn, bytes| {
            if let Some(link) = by_conn.get(&(shard, conn)) {
                left.output.push((*link, bytes.to_vec()));
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
                left.closed.push(*link);
            }
            stays
        });
        left
    }

    /// It begins the next.
    pub(crate) fn begin_turn(&mut self, shard: usize, now_ms: u64) {
        let clock = clock(self.began_ms, now_ms);
        self.turns_ms[shard] = now_ms;
        self.detached[shard].begin_turn(&mut self.shards[shard], clock);
    }

    /// Lets what a shard has committed reach its disk, between two of its turns.
    pub(crate) fn sync(&self, shard: usize) {
        self.gates[shard].iter().for_each(Gate::sync);
    }

    /// Lets a shard hear of it.
    pub(crate) fn report(&self, shard: usize) {
        for gate in &self.gates[shard] {
            gate.report();
        }
    }

    /// Whether something is under way that needs no client: commits, hand-overs, turns that were asked for.
    pub(crate) fn is_busy(&self) -> bool {
        self.gates.iter().flatten().any(Gate::has_work)
            || self.arrivals.iter().any(|waiting| !waiting.is_empty())
            || self.detached.iter().any(Detached::wants_turn)
    }

    /// Asks the broker to say goodbye to everybody.
    pub(crate) fn drain(&mut self) {
        for (shard, detached) in self.shards.iter_mut().zip(&mut self.detached) {
            shard.drain(&mut detached.io());
        }
    }
}

/// What a shard has of its stores.
#[derive(Default)]
struct Opened {
    lenders: Vec<Lender>,
    gates: Vec<Gate>,
    for_mqtt: Vec<StoreAt>,
    for_topics: Vec<stream::StoreAt>,
}

/// Opens the stores of one shard.
fn open(fs: &FaultFs, setup: &Setup, homes: impl Iterator<Item = u16>) -> Result<Opened, Error> {
    let mut opened = Opened::default();
    for home in homes {
        let dir = PathBuf::from(format!("{STORES}/{home}"));
        let files = Arc::new(fs.clone());
        let store = SegmentStore::open(files, dir, setup.settings.clone(), Committer::Inline)?;
        let (store, gate) = SlowStore::new((setup.wrap)(Box::new(store)), setup.is_slow);
        let lender = Lender::new(Box::new(store));
        if setup.config.durability != Durability::None {
            opened.for_mqtt.push(StoreAt { home, store: Box::new(lender.lend()) });
        }
        opened.for_topics.push(stream::StoreAt { home, store: Box::new(lender.lend()) });
        opened.lenders.push(lender);
        opened.gates.push(gate);
    }
    Ok(opened)
}

/// Stores of shards that there were in an earlier life and are not now.
fn stores_beyond(fs: &FaultFs, count: usize) -> Vec<u16> {
    let found = fs.list(Path::new(STORES)).unwrap_or_default();
    let homes = found.iter().filter_map(|name| name.parse::<u16>().ok());
    let mut beyond: Vec<u16> = homes.filter(|home| usize::from(*home) >= count).collect();
    beyond.sort_unstable();
    beyond
}
