//! A whole broker without sockets, threads or a clock: shards, the connections of their clients, and virtual time. A
//! run is determined by its calls and its seed.

mod random;

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use mainstem_mqtt_server::{Counters, Mail, MqttConfig, Shard, Shared};
use mainstem_runtime::{Clock, ConnId, Detached, Io};

pub(crate) use random::Random;

/// Start of the virtual time, ms.
pub(crate) const START_MS: u64 = 1_000;
/// Rounds of turns without output after which nothing is in flight: a message of a shared subscription goes from member
/// to member, one turn each, at most 16 times.
pub(crate) const QUIET_ROUNDS: u32 = 20;

/// A connection of a client; stays the same when it is handed to another shard.
pub(crate) type LinkId = usize;

/// Output of one connection.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) link: LinkId,
    pub(crate) bytes: Vec<u8>,
    /// Whether the client has read it.
    pub(crate) seen: bool,
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// This shard serves it.
    Open(usize),
    /// It is being handed to this shard.
    Moving(usize),
    /// It has ended, except for its last output.
    Closed,
}

#[derive(Debug)]
struct Link {
    shard: usize,
    /// `None` while it is being handed over, and when it has ended.
    conn: Option<ConnId>,
    /// Input that waits for it to arrive.
    transit: Option<Vec<u8>>,
    fed: usize,
    is_stalled: bool,
    /// The client has hung up while the connection was being handed over.
    is_abandoned: bool,
}

/// A broker and its connections.
pub(crate) struct World {
    pub(crate) now_ms: u64,
    shared: Arc<Shared>,
    shards: Vec<Shard>,
    detached: Vec<Detached<Mail>>,
    links: Vec<Link>,
    by_conn: HashMap<(usize, ConnId), LinkId>,
    /// Connections being handed to each shard, in order.
    arrivals: Vec<VecDeque<LinkId>>,
    /// Hash over every byte sent, with its connection.
    trace: DefaultHasher,
    bytes_sent: u64,
}

impl World {
    pub(crate) fn new(config: MqttConfig, shards: usize, seed: u64) -> Self {
        let shared = Shared::new(config, shards, seed);
        let mut world = Self {
            now_ms: START_MS,
            shards: (0..shards).map(|me| Shard::new(me, Arc::clone(&shared))).collect(),
            detached: Io::<Mail>::detached(shards, seed),
            links: Vec::new(),
            by_conn: HashMap::new(),
            arrivals: vec![VecDeque::new(); shards],
            trace: DefaultHasher::new(),
            bytes_sent: 0,
            shared,
        };
        (0..shards).for_each(|shard| world.begin_turn(shard));
        world
    }

    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }

    pub(crate) fn counters(&self) -> Counters {
        self.shared.counters()
    }

    /// The accounts of all sessions: what each says, and what it should say.
    pub(crate) fn accounts(&mut self) -> Vec<(u64, u64)> {
        self.shards.iter_mut().flat_map(Shard::accounts).collect()
    }

    /// What sessions are charged for in the memory budget, bytes.
    pub(crate) fn charged_for_sessions(&self) -> u64 {
        let by_owner = self.shared.memory().used_by_owner();
        by_owner.iter().find(|(owner, _)| *owner == "sessions").expect("an owner of memory").1
    }

    /// Hash over every byte sent and its connection, and the number of bytes.
    pub(crate) fn trace(&self) -> (u64, u64) {
        (self.trace.finish(), self.bytes_sent)
    }

    /// Opens a connection to a shard.
    pub(crate) fn open(&mut self, shard: usize) -> LinkId {
        let conn = self.detached[shard].connect(&mut self.shards[shard]);
        let link = self.links.len();
        self.links.push(Link {
            shard,
            conn: Some(conn),
            transit: None,
            fed: 0,
            is_stalled: false,
            is_abandoned: false,
        });
        self.by_conn.insert((shard, conn), link);
        link
    }

    pub(crate) fn state(&mut self, link: LinkId) -> State {
        let Link { shard, conn, ref transit, .. } = self.links[link];
        let Some(conn) = conn else {
            return if transit.is_some() { State::Moving(shard) } else { State::Closed };
        };
        let detached = &mut self.detached[shard];
        match detached.bound_for(conn) {
            Some(to) => State::Moving(to),
            None if detached.io().is_open(conn) => State::Open(shard),
            None => State::Closed,
        }
    }

    /// Sends bytes to the broker.
    pub(crate) fn feed(&mut self, link: LinkId, bytes: &[u8]) {
        let known = &mut self.links[link];
        known.fed += bytes.len();
        if let Some(transit) = &mut known.transit {
            transit.extend_from_slice(bytes);
        } else if let Some(conn) = known.conn {
            self.detached[known.shard].feed(&mut self.shards[known.shard], conn, bytes);
        }
    }

    /// Bytes of a connection that the broker has consumed or never will.
    pub(crate) fn consumed(&self, link: LinkId) -> usize {
        let Link { shard, conn, ref transit, fed, .. } = self.links[link];
        let waiting = match (transit, conn) {
            (Some(transit), _) => transit.len(),
            (None, Some(conn)) => self.detached[shard].unconsumed(conn),
            (None, None) => 0,
        };
        fed - waiting
    }

    /// The client disappears. Returns what it would have read next. A connection that is being handed over still
    /// arrives, see [`World::is_abandoned`].
    pub(crate) fn hang_up(&mut self, link: LinkId) -> Output {
        let state = self.state(link);
        let known = &mut self.links[link];
        let mut bytes = Vec::new();
        match (state, known.conn) {
            (State::Moving(_), _) => known.is_abandoned = true,
            (State::Open(shard), Some(conn)) => {
                known.conn = None;
                self.by_conn.remove(&(shard, conn));
                bytes = self.detached[shard].hang_up(&mut self.shards[shard], conn);
                self.note(link, &bytes);
            }
            _ => {}
        }
        Output { link, bytes, seen: false }
    }

    /// Whether the client hung up while the connection was being handed over.
    pub(crate) fn is_abandoned(&self, link: LinkId) -> bool {
        self.links[link].is_abandoned
    }

    /// The client reads nothing from now on.
    pub(crate) fn stall(&mut self, link: LinkId) {
        let known = &mut self.links[link];
        known.is_stalled = true;
        if let Some(conn) = known.conn {
            self.detached[known.shard].stall(conn);
        }
    }

    /// The client reads again.
    pub(crate) fn resume(&mut self, link: LinkId) {
        let known = &mut self.links[link];
        known.is_stalled = false;
        if let Some(conn) = known.conn {
            self.detached[known.shard].resume(conn);
        }
    }

    pub(crate) fn is_stalled(&self, link: LinkId) -> bool {
        self.links[link].is_stalled
    }

    /// Connections of a shard whose input is held.
    pub(crate) fn held_count(&self, shard: usize) -> usize {
        self.detached[shard].held_count()
    }

    /// Offers one held connection its input again.
    pub(crate) fn offer_held(&mut self, shard: usize) -> Option<LinkId> {
        let conn = self.detached[shard].offer_held(&mut self.shards[shard])?;
        Some(self.by_conn[&(shard, conn)])
    }

    /// Ends a shard's turn: delivers its output and mail, and removes connections that it has closed.
    pub(crate) fn end_turn(&mut self, shard: usize) -> Vec<Output> {
        let mut sent = Vec::new();
        let Self { detached, shards, by_conn, links, .. } = self;
        let here = &mut detached[shard];
        here.end_turn(&mut shards[shard], |conn, bytes| {
            let link = by_conn[&(shard, conn)];
            sent.push(Output { link, bytes: bytes.to_vec(), seen: !links[link].is_stalled });
        });
        for departure in here.departures() {
            let link = by_conn[&(shard, departure.conn)];
            links[link].transit = Some(departure.input);
            links[link].shard = departure.to;
            self.arrivals[departure.to].push_back(link);
        }
        by_conn.retain(|(at, conn), link| {
            let stays = *at != shard || here.is_known(*conn);
            if !stays {
                links[*link].conn = None;
            }
            stays
        });
        for output in &sent {
            self.note(output.link, &output.bytes);
        }
        sent
    }

    /// Begins a shard's next turn: mail and timers.
    pub(crate) fn begin_turn(&mut self, shard: usize) {
        let clock = Clock { now_ms: self.now_ms, unix_ms: 1_800_000_000_000 + self.now_ms };
        self.detached[shard].begin_turn(&mut self.shards[shard], clock);
    }

    /// Accepts the next connection from another shard, with its unread input.
    pub(crate) fn adopt(&mut self, shard: usize) -> Option<LinkId> {
        let link = self.arrivals[shard].pop_front()?;
        let conn = self.detached[shard].connect(&mut self.shards[shard]);
        self.by_conn.insert((shard, conn), link);
        let known = &mut self.links[link];
        known.conn = Some(conn);
        if known.is_stalled {
            self.detached[shard].stall(conn);
        }
        if let Some(input) = known.transit.take() {
            self.detached[shard].feed(&mut self.shards[shard], conn, &input);
        }
        Some(link)
    }

    /// Whether a shard has work to do at once.
    pub(crate) fn is_busy(&self) -> bool {
        self.arrivals.iter().any(|waiting| !waiting.is_empty())
            || self.detached.iter().any(Detached::wants_turn)
    }

    fn note(&mut self, link: LinkId, bytes: &[u8]) {
        self.trace.write_usize(link);
        self.trace.write(bytes);
        self.bytes_sent += bytes.len() as u64;
    }
}
