//! The Kafka door on one shard: connections, frames, and the turn.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hashbrown::HashMap;
use mainstem_kafka::{Message, Request, RequestHeader, frame, put_response_header};
use mainstem_log::{Completion, Error, LogId, Store};
use mainstem_runtime::{Clock, ConnId, Io, Received, Service};

use crate::bound::Bound;
use crate::catalogue::{Catalogue, PartitionId};
use crate::conn::Conn;
use crate::controller::Controller;
use crate::faults::Faults;
use crate::jobs::Jobs;
use crate::mail::{Call, Caller, Letter, Mail};
use crate::partition::Partition;
use crate::producers::{IsLast, Snapshots};
use crate::queues::Queues;
use crate::shared::Shared;
use crate::sink::Sinks;
use crate::tail::Tails;
use crate::tending::Tending;
use crate::unmade::Unmade;

/// How often stores do what is due by itself, ms.
const TEND_MS: u64 = 1_000;
/// Bytes of records that may be on their way to other shards before producers have to wait.
const MAILED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Number that requests carry which producers pipeline.
const PRODUCE: i16 = 0;

/// A store and the number of the shard that it belongs to, or belonged to.
pub struct StoreAt {
    /// The shard's number.
    pub home: u16,
    /// Its logs.
    pub store: Box<dyn Store>,
}

/// The Kafka door on one shard: a [`Service`] for the runtime's loop.
pub struct Shard {
    pub(crate) me: usize,
    pub(crate) shared: Arc<Shared>,
    /// The topics there are, as of the last look.
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) stores: Vec<StoreAt>,
    /// For each store, what its partitions know of their producers.
    pub(crate) snapshots: Vec<Snapshots>,
    /// The time of the turn, ms since 1970.
    pub(crate) unix_ms: u64,
    pub(crate) partitions: HashMap<PartitionId, Partition, foldhash::fast::RandomState>,
    pub(crate) by_log: HashMap<(usize, LogId), PartitionId, foldhash::fast::RandomState>,
    pub(crate) tending: Tending,
    pub(crate) unmade: Unmade,
    /// What is coordinated; shard 0 has it.
    pub(crate) controller: Option<Box<Controller>>,
    pub(crate) conns: Vec<Conn>,
    pub(crate) jobs: Jobs,
    pub(crate) fetch_sessions: crate::handlers::fetch_session::Sessions,
    /// What other doors write to and read, as of the last look.
    pub(crate) bound: Arc<Bound>,
    pub(crate) sinks: Sinks,
    pub(crate) tails: Tails,
    pub(crate) queues: Queues,
    /// Connections to be looked at before the turn ends: something of theirs has been answered.
    listed: Vec<ConnId>,
    completions: Vec<Completion>,
    /// Bytes of records that went to other shards and have not come to their end there.
    pub(crate) mailed_bytes: usize,
    pub(crate) faults: Faults,
    is_draining: bool,
    pub(crate) has_begun: bool,
}

/// What a timer of this door is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// A parked fetch has waited long enough.
    Fetch(u64),
    /// Stores are to do what is due by itself.
    Tend,
    /// They had more to do.
    TendMore,
    /// A coordinator has something due.
    Coordinate,
    /// A queue has something due.
    Queues,
}

impl Timer {
    const KIND_BIT: u32 = 60;

    pub(crate) fn token(self) -> u64 {
        match self {
            Self::Fetch(job) => job & ((1 << Self::KIND_BIT) - 1),
            Self::Tend => 1 << Self::KIND_BIT,
            Self::Coordinate => 2 << Self::KIND_BIT,
            Self::TendMore => 3 << Self::KIND_BIT,
            Self::Queues => 4 << Self::KIND_BIT,
        }
    }

    fn from_token(token: u64) -> Self {
        match token >> Self::KIND_BIT & 7 {
            0 => Self::Fetch(token & ((1 << Self::KIND_BIT) - 1)),
            1 => Self::Tend,
            2 => Self::Coordinate,
            4 => Self::Queues,
            _ => Self::TendMore,
        }
    }
}

impl Shard {
    /// The shard number `me`, with what `stores` have. The first store is the shard's own; others may be of
    /// shards that are no more. Shard 0 has to be made first: it knows the topics.
    ///
    /// # Errors
    /// What a store says.
    pub fn restore(
        me: usize,
        shared: Arc<Shared>,
        mut stores: Vec<StoreAt>,
        clock: Clock,
    ) -> Result<Self, Error> {
        let mut controller = None;
        if me == 0
            && let Some(first) = stores.first_mut()
        {
            controller = Some(Box::new(Controller::restore(&mut *first.store, &shared, clock)?));
        }
        let open = |at: &mut StoreAt| Snapshots::open(&mut *at.store);
        let snapshots = stores.iter_mut().map(open).collect::<Result<_, Error>>()?;
        let mut made = Self {
            me,
            catalogue: Arc::default(),
            stores,
            snapshots,
            unix_ms: clock.unix_ms,
            partitions: HashMap::default(),
            by_log: HashMap::default(),
            tending: Tending::default(),
            unmade: Unmade::default(),
            controller,
            conns: Vec::new(),
            jobs: Jobs::default(),
            fetch_sessions: crate::handlers::fetch_session::Sessions::default(),
            bound: Arc::default(),
            sinks: Sinks::default(),
            tails: Tails::default(),
            queues: Queues::default(),
            listed: Vec::new(),
            completions: Vec::new(),
            mailed_bytes: 0,
            faults: Faults::default(),
            is_draining: false,
            has_begun: false,
            shared,
        };
        made.shared.refresh(&mut made.catalogue);
        made.tending = Tending::find(&made.stores, &made.catalogue);
        Ok(made)
    }

    /// Looks at what has become durable. To be called at the beginning of a turn, and after its commit.
    pub fn poll_commits(&mut self, io: &mut Io<'_, Mail>) {
        let mut completions = std::mem::take(&mut self.completions);
        for at in 0..self.stores.len() {
            self.stores[at].store.completions(&mut completions);
            for completion in completions.drain(..) {
                if (at == 0 && self.controller_arrived(io, &completion))
                    || self.snapshots[at].arrived(&completion)
                {
                    continue;
                }
                if !self.queue_arrived(io, at, &completion) && !self.positions_arrived(at, &completion) {
                    self.partition_arrived(io, at, &completion);
                }
            }
        }
        self.completions = completions;
        self.tell_visitors();
        self.go_on_coordinating(io);
        self.go_on(io);
    }

    /// Answers a request: at once if it is its turn, or else when it is.
    pub(crate) fn reply<R: Request>(&mut self, io: &mut Io<'_, Mail>, call: &Call, response: &R::Response) {
        debug_assert_eq!(call.api_key, R::KEY);
        let mut answer = Vec::new();
        let begun = frame::begin(&mut answer);
        put_response_header(call.correlation_id, call.api_key, call.version, &mut answer);
        response.encode(&mut answer, call.version);
        frame::end(&mut answer, begun, 0);
        self.reply_with(io, call.caller, answer);
    }

    /// Answers a request with a whole frame; an empty one is no answer.
    pub(crate) fn reply_with(&mut self, io: &mut Io<'_, Mail>, caller: Caller, response: Vec<u8>) {
        if caller.shard != self.me {
            return io.send(caller.shard, Mail(Letter::Answer { caller, response }));
        }
        let Some(conn) = self.conn_mut(caller.conn) else { return };
        conn.answer(caller.request, response);
        self.send_answers(io, caller.conn);
    }

    fn send_answers(&mut self, io: &mut Io<'_, Mail>, id: ConnId) {
        let Some(conn) = self.conn_mut(id) else { return };
        while let Some(answer) = conn.next_answer() {
            if !answer.is_empty()
                && let Some(output) = io.output(id)
            {
                output.buffer().extend_from_slice(&answer);
            }
        }
        if self.is_draining && self.conn_mut(id).is_some_and(|conn| !conn.is_producing()) {
            self.leave(io, id);
            return io.close(id);
        }
        self.list(id);
    }

    /// Has a connection looked at before the turn ends, if frames of it wait.
    pub(crate) fn list(&mut self, id: ConnId) {
        if let Some(conn) = self.conn_mut(id)
            && conn.has_waiting()
            && !conn.is_listed
        {
            conn.is_listed = true;
            self.listed.push(id);
        }
    }

    /// Whether the process is to end.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining
    }

    pub(crate) fn conn_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.conns.get_mut(id.slot()).filter(|conn| conn.is_open && conn.generation == id.generation())
    }

    /// Begins what has been waiting on connections that had something answered.
    fn go_on(&mut self, io: &mut Io<'_, Mail>) {
        while let Some(id) = self.listed.pop() {
            if let Some(conn) = self.conn_mut(id) {
                conn.is_listed = false;
            }
            if self.is_draining {
                continue;
            }
            // Where there is none, the connection is told when it has drained.
            while io.has_ample_room(id)
                && let Some(conn) = self.conn_mut(id)
                && let Some(frame) = conn.next_waiting(pipelines)
            {
                self.begin(io, id, &frame);
            }
        }
    }

    /// Begins a request.
    fn begin(&mut self, io: &mut Io<'_, Mail>, id: ConnId, frame: &[u8]) {
        let Ok((header, body)) = RequestHeader::parse(frame) else {
            return self.refuse(io, id, "a request without a header");
        };
        let me = self.me;
        let Some(conn) = self.conn_mut(id) else { return };
        let client_id = header.client_id.as_deref().unwrap_or("");
        if conn.client_id.as_deref() != Some(client_id) {
            conn.client_id = Some(client_id.into());
        }
        let client_id = conn.client_id.clone().unwrap_or_default();
        let peer = conn.peer;
        let caller = Caller { shard: me, conn: id, request: conn.begin(pipelines(frame)) };
        let RequestHeader { api_key, api_version: version, correlation_id, .. } = header;
        let call = Call { caller, api_key, version, correlation_id, client_id, peer };
        self.dispatch(io, call, body);
    }

    /// Ends a connection that broke the protocol.
    pub(crate) fn refuse(&mut self, io: &mut Io<'_, Mail>, id: ConnId, what: &str) {
        if let Some(conn) = self.conn_mut(id) {
            let client_id = conn.client_id.clone().unwrap_or_default();
            if self.faults.may_say(io.clock.now_ms) {
                log::info!("kafka client {client_id:?} is disconnected: {what}");
            }
            self.leave(io, id);
            io.close(id);
        }
    }

    /// Does what is due about the producers of partitions.
    fn tend_producers(&mut self, unix_ms: u64, is_last: IsLast) {
        for partition in self.partitions.values_mut() {
            let store = &mut *self.stores[partition.store].store;
            if !partition.known.producers.is_empty() {
                partition.started_later(store);
            }
            self.snapshots[partition.store].tend(store, unix_ms, partition, is_last);
        }
    }

    /// Records of a partition have been deleted: what has gone is not to come back with an end of the process.
    pub(crate) fn started_later(&mut self, id: PartitionId) {
        let Some(partition) = self.partitions.get_mut(&id) else { return };
        let store = &mut *self.stores[partition.store].store;
        partition.started_later(store);
        self.snapshots[partition.store].tend(store, self.unix_ms, partition, IsLast::No);
    }

    pub(crate) fn leave(&mut self, io: &mut Io<'_, Mail>, id: ConnId) {
        if let Some(conn) = self.conn_mut(id) {
            let Conn { fetch_session, fetch_job, .. } = std::mem::take(conn);
            self.fetch_sessions.remove(fetch_session);
            self.drop_fetch(io, fetch_job);
            self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Whether a frame holds a request that need not wait for those like it.
fn pipelines(frame: &[u8]) -> bool {
    frame.first_chunk().is_some_and(|key| i16::from_be_bytes(*key) == PRODUCE)
}

impl Service for Shard {
    type Mail = Mail;

    fn accepted(&mut self, io: &mut Io<'_, Mail>, conn: ConnId, _listener: usize) {
        if self.conns.len() <= conn.slot() {
            self.conns.resize_with(conn.slot() + 1, Conn::default);
        }
        self.conns[conn.slot()] = Conn::open(conn.generation(), io.peer());
        self.shared.connections.fetch_add(1, Ordering::Relaxed);
        if self.is_draining {
            self.leave(io, conn);
            io.close(conn);
        }
    }

    fn received(&mut self, io: &mut Io<'_, Mail>, id: ConnId, bytes: &[u8]) -> Received {
        let mut received = Received::default();
        if self.is_draining {
            received.consumed = bytes.len();
            return received;
        }
        let bytes_max = self.shared.config.request_bytes_max as usize;
        loop {
            let rest = &bytes[received.consumed..];
            let end = match frame::len(rest, bytes_max) {
                Ok(Some(end)) => end,
                Ok(None) => break,
                Err(error) => {
                    self.refuse(io, id, &error.to_string());
                    received.consumed = bytes.len();
                    break;
                }
            };
            let Some(frame) = rest.get(frame::LENGTH_BYTES..end) else {
                received.next_len = end;
                break;
            };
            if io.congested() || (pipelines(frame) && self.mailed_bytes > MAILED_BYTES_MAX) {
                received.hold = true;
                break;
            }
            let has_room = io.has_ample_room(id);
            let Some(conn) = self.conn_mut(id) else {
                received.consumed = bytes.len();
                break;
            };
            if conn.may_begin(pipelines(frame)) && has_room {
                if !conn.is_settled && self.follows(io, id, frame) {
                    return received;
                }
                self.begin(io, id, frame);
            } else if !conn.wait(frame) {
                received.hold = true;
                break;
            }
            received.consumed += end;
        }
        self.list(id);
        self.go_on(io);
        received
    }

    fn drained(&mut self, io: &mut Io<'_, Mail>, id: ConnId) {
        self.list(id);
        self.go_on(io);
    }

    fn closed(&mut self, io: &mut Io<'_, Mail>, id: ConnId) {
        self.leave(io, id);
    }

    fn mail(&mut self, io: &mut Io<'_, Mail>, from: usize, Mail(letter): Mail) {
        match letter {
            Letter::Work { job, work } => self.begin_work(io, job, work),
            Letter::Done { job, done } => self.finish_part(io, job, done),
            Letter::Ask { call, body } => self.coordinate(io, &call, &body),
            Letter::Answer { caller, response } => self.reply_with(io, caller, response),
            Letter::Refuse { conn, what } => self.refuse(io, conn, &what),
            Letter::Vouch(vouch) => self.vouch(io, vouch),
            Letter::Vouched(vouched) => self.vouched(io, &vouched),
            Letter::News { watcher } => self.hear_news(io, watcher.job),
            Letter::Remove { partitions } => self.remove_partitions(io, partitions),
            Letter::Changed => {
                self.look_at_changes();
                self.place(io);
            }
            Letter::Make { bound } => self.make_bound(io, bound),
            Letter::Errand(errand) => self.run_errand(io, *errand),
            Letter::Errands { to, reply } => self.answer_queue(io, to, reply),
        }
        debug_assert_ne!(from, self.me);
        self.go_on(io);
    }

    fn timer(&mut self, io: &mut Io<'_, Mail>, token: u64) {
        match Timer::from_token(token) {
            Timer::Fetch(job) => self.fetch_is_due(io, job),
            Timer::TendMore => self.tend_more(io),
            Timer::Tend => {
                self.faults.tell(io.clock.now_ms);
                self.tend(io);
                self.ask_again(io);
                self.go_on_with_errands(io);
                self.trim_queues();
                self.tend_producers(io.clock.unix_ms, IsLast::No);
                io.set_timer(io.clock.now_ms + TEND_MS, Timer::Tend.token());
            }
            Timer::Coordinate => self.coordinate_due(io),
            Timer::Queues => self.queues_due(io),
        }
        self.go_on(io);
    }

    fn turn_begins(&mut self, io: &mut Io<'_, Mail>) {
        self.unix_ms = io.clock.unix_ms;
        if !std::mem::replace(&mut self.has_begun, true) {
            io.set_timer(io.clock.now_ms + TEND_MS, Timer::Tend.token());
            self.begin_coordinating(io);
        }
        self.poll_commits(io);
        self.open_some(io);
        self.go_on_with_queues(io);
    }

    fn takes_held(&mut self, io: &mut Io<'_, Mail>) -> bool {
        !io.congested()
    }

    fn turn_ends(&mut self, io: &mut Io<'_, Mail>) {
        self.go_on(io);
        self.append_all_gathered(io);
        self.go_on_with_queues(io);
        self.store_queues(io);
        self.store_kept();
        self.store_positions();
        for (snapshots, at) in self.snapshots.iter_mut().zip(&mut self.stores) {
            snapshots.store_kept(&mut *at.store);
        }
    }

    /// Appends that are under way are answered; the rest is not begun.
    fn drain(&mut self, io: &mut Io<'_, Mail>) {
        // What was brought before is taken in.
        self.append_all_gathered(io);
        self.is_draining = true;
        self.drain_queues(io);
        self.tend_producers(io.clock.unix_ms, IsLast::Yes);
        for slot in 0..self.conns.len() {
            let conn = &self.conns[slot];
            if conn.is_open && !conn.is_producing() {
                let id = ConnId::from_parts(slot as u32, conn.generation);
                self.leave(io, id);
                io.close(id);
            }
        }
    }
}
