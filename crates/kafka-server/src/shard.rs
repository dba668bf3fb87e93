//! The Kafka server on one shard: connections, frames, and the turn.
//!
//! A frame begins its request at once if the connection's earlier requests allow it; otherwise the connection queues
//! it. `turn_begins` delivers what has become durable, `turn_ends` hands the stores what this turn has gathered, and
//! the caller then commits all logs of the shard together.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mainstem_kafka::{Message, Request, RequestHeader, frame, put_response_header};
use mainstem_log::{Completion, Error};
use mainstem_partition::{IsLast, Partitions, StoreAt};
use mainstem_runtime::{Clock, ConnId, Io, ProtocolTag, Received, Service};

use crate::binding_registry::BindingRegistry;
use crate::catalogue::{Catalogue, PartitionId};
use crate::conn::Conn;
use crate::controller::Controller;
use crate::jobs::Jobs;
use crate::log_throttle::LogThrottle;
use crate::maintenance::Maintenance;
use crate::queues::{Queues, topic_of_state};
use crate::shard_message::{Caller, Mail, RequestContext, ShardMessage};
use crate::shared::Shared;
use crate::sinks::Sinks;
use crate::source_reader::SourceReaders;
use crate::unverified_batches::UnverifiedBatches;

/// Interval of background work, ms.
const MAINTENANCE_INTERVAL_MS: u64 = 1_000;
/// Bytes of records in flight to other shards beyond which producers are no longer read.
const MAILED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// API key of Produce, the only pipelined request.
const PRODUCE: i16 = 0;

/// The Kafka server on one shard: a [`Service`] for the runtime's loop.
pub struct Shard {
    pub(crate) me: usize,
    pub(crate) shared: Arc<Shared>,
    /// Snapshot of the topics.
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) stores: Vec<StoreAt>,
    /// The time of the turn, ms since 1970.
    pub(crate) unix_ms: u64,
    pub(crate) partitions: Partitions,
    pub(crate) maintenance: Maintenance,
    /// The timer of further background work is set.
    pub(crate) is_maintaining: bool,
    pub(crate) unverified: UnverifiedBatches,
    /// The coordinators, on shard 0.
    pub(crate) controller: Option<Box<Controller>>,
    pub(crate) conns: Vec<Conn>,
    pub(crate) jobs: Jobs,
    pub(crate) fetch_sessions: crate::handlers::fetch_session::Sessions,
    /// Snapshot of the topics that other protocols write to and read.
    pub(crate) bindings: Arc<BindingRegistry>,
    pub(crate) sinks: Sinks,
    pub(crate) source_readers: SourceReaders,
    pub(crate) queues: Queues,
    /// Connections whose queued frames may begin, because a response has left.
    listed: Vec<ConnId>,
    completions: Vec<Completion>,
    /// Bytes of records that other shards have not answered yet.
    pub(crate) mailed_bytes: usize,
    pub(crate) log_throttle: LogThrottle,
    is_draining: bool,
    pub(crate) has_begun: bool,
}

/// Purpose of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// Deadline of a parked fetch.
    Fetch(u64),
    /// Background work is due.
    Maintain,
    /// Background work continues.
    MaintainMore,
    /// A deadline of a coordinator.
    Coordinate,
    /// A deadline of a queue.
    Queues,
}

impl Timer {
    const KIND_BIT: u32 = 60;

    pub(crate) fn token(self) -> u64 {
        match self {
            Self::Fetch(job) => job & ((1 << Self::KIND_BIT) - 1),
            Self::Maintain => 1 << Self::KIND_BIT,
            Self::Coordinate => 2 << Self::KIND_BIT,
            Self::MaintainMore => 3 << Self::KIND_BIT,
            Self::Queues => 4 << Self::KIND_BIT,
        }
    }

    fn from_token(token: u64) -> Self {
        match token >> Self::KIND_BIT & 7 {
            0 => Self::Fetch(token & ((1 << Self::KIND_BIT) - 1)),
            1 => Self::Maintain,
            2 => Self::Coordinate,
            4 => Self::Queues,
            _ => Self::MaintainMore,
        }
    }
}

impl Shard {
    /// Restores shard `me` from its stores. The first store is its own; others belonged to shards that no longer
    /// exist. Restore shard 0 first: it reads the catalogue.
    ///
    /// # Errors
    /// A store fails.
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
        let partitions = Partitions::restore(&mut stores)?;
        let mut made = Self {
            me,
            catalogue: Arc::default(),
            stores,
            unix_ms: clock.unix_ms,
            partitions,
            maintenance: Maintenance::default(),
            is_maintaining: false,
            unverified: UnverifiedBatches::default(),
            controller,
            conns: Vec::new(),
            jobs: Jobs::default(),
            fetch_sessions: crate::handlers::fetch_session::Sessions::default(),
            bindings: Arc::default(),
            sinks: Sinks::default(),
            source_readers: SourceReaders::default(),
            queues: Queues::default(),
            listed: Vec::new(),
            completions: Vec::new(),
            mailed_bytes: 0,
            log_throttle: LogThrottle::default(),
            is_draining: false,
            has_begun: false,
            shared,
        };
        made.shared.refresh(&mut made.catalogue);
        made.maintenance = Maintenance::find(&made.stores, &made.catalogue, topic_of_state);
        Ok(made)
    }

    /// Delivers completions of the stores. Call it at the beginning of a turn and after its commit.
    pub fn poll_completions(&mut self, io: &mut Io<'_, Mail>) {
        let mut completions = std::mem::take(&mut self.completions);
        for at in 0..self.stores.len() {
            self.stores[at].store.completions(&mut completions);
            for completion in completions.drain(..) {
                if (at == 0 && self.on_controller_completion(io, &completion))
                    || self.partitions.on_snapshot_completion(at, &completion)
                {
                    continue;
                }
                if !self.on_queue_completion(io, at, &completion)
                    && !self.on_positions_completion(at, &completion)
                {
                    self.on_partition_completion(io, at, &completion);
                }
            }
        }
        self.completions = completions;
        self.take_partition_events(io);
        self.deliver_client_replies();
        self.poll_coordinators(io);
        self.begin_queued_requests(io);
    }

    /// Answers a request. The response leaves when all earlier requests of the connection are answered.
    pub(crate) fn reply<R: Request>(
        &mut self,
        io: &mut Io<'_, Mail>,
        call: &RequestContext,
        response: &R::Response,
    ) {
        debug_assert_eq!(call.api_key, R::KEY);
        let mut answer = Vec::new();
        let begun = frame::begin_frame(&mut answer);
        put_response_header(call.correlation_id, call.api_key, call.version, &mut answer);
        response.encode(&mut answer, call.version);
        frame::end_frame(&mut answer, begun, 0);
        self.reply_with(io, call.caller, answer);
    }

    /// Answers a request with an encoded frame. An empty frame sends nothing.
    pub(crate) fn reply_with(&mut self, io: &mut Io<'_, Mail>, caller: Caller, response: Vec<u8>) {
        if caller.shard != self.me {
            return io.send(caller.shard, Mail(ShardMessage::Response { caller, response }));
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
            self.remove_connection(io, id);
            return io.close(id);
        }
        self.note_ready(id);
    }

    /// Lists a connection whose queued frames may begin in this turn.
    pub(crate) fn note_ready(&mut self, id: ConnId) {
        if let Some(conn) = self.conn_mut(id)
            && conn.has_waiting()
            && !conn.is_listed
        {
            conn.is_listed = true;
            self.listed.push(id);
        }
    }

    /// Whether the broker is shutting down.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining
    }

    pub(crate) fn conn_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.conns.get_mut(id.slot()).filter(|conn| conn.is_open && conn.generation == id.generation())
    }

    /// Begins queued frames of the listed connections.
    fn begin_queued_requests(&mut self, io: &mut Io<'_, Mail>) {
        while let Some(id) = self.listed.pop() {
            if let Some(conn) = self.conn_mut(id) {
                conn.is_listed = false;
            }
            if self.is_draining {
                continue;
            }
            // Without room, `drained` continues.
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
        let call = RequestContext { caller, api_key, version, correlation_id, client_id, peer };
        self.dispatch(io, call, body);
    }

    /// Closes a connection that violated the protocol.
    pub(crate) fn refuse(&mut self, io: &mut Io<'_, Mail>, id: ConnId, what: &str) {
        if let Some(conn) = self.conn_mut(id) {
            let client_id = conn.client_id.clone().unwrap_or_default();
            if self.log_throttle.should_log(io.clock.now_ms) {
                log::info!("kafka client {client_id:?} is disconnected: {what}");
            }
            self.remove_connection(io, id);
            io.close(id);
        }
    }

    /// Records the new start of a partition after a deletion, so that a restart does not restore deleted records.
    pub(crate) fn on_partition_start_advanced(&mut self, id: PartitionId) {
        self.partitions.on_start_advanced(&mut self.stores, self.unix_ms, id);
    }

    pub(crate) fn remove_connection(&mut self, io: &mut Io<'_, Mail>, id: ConnId) {
        if let Some(conn) = self.conn_mut(id) {
            let Conn { fetch_session, fetch_job, .. } = std::mem::take(conn);
            self.fetch_sessions.remove(fetch_session);
            self.cancel_fetch(io, fetch_job);
            self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Whether the frame holds a pipelined request.
fn pipelines(frame: &[u8]) -> bool {
    frame.first_chunk().is_some_and(|key| i16::from_be_bytes(*key) == PRODUCE)
}

impl Service for Shard {
    type Mail = Mail;

    fn accepted(&mut self, io: &mut Io<'_, Mail>, conn: ConnId, _protocol: ProtocolTag) {
        if self.conns.len() <= conn.slot() {
            self.conns.resize_with(conn.slot() + 1, Conn::default);
        }
        self.conns[conn.slot()] = Conn::open(conn.generation(), io.peer());
        self.shared.connections.fetch_add(1, Ordering::Relaxed);
        if self.is_draining {
            self.remove_connection(io, conn);
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
            let end = match frame::frame_len(rest, bytes_max) {
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
                if !conn.is_settled && self.hand_over_if_remote(io, id, frame) {
                    return received;
                }
                self.begin(io, id, frame);
            } else if !conn.wait(frame) {
                received.hold = true;
                break;
            }
            received.consumed += end;
        }
        self.note_ready(id);
        self.begin_queued_requests(io);
        received
    }

    fn drained(&mut self, io: &mut Io<'_, Mail>, id: ConnId) {
        self.note_ready(id);
        self.begin_queued_requests(io);
    }

    fn closed(&mut self, io: &mut Io<'_, Mail>, id: ConnId) {
        self.remove_connection(io, id);
    }

    fn mail(&mut self, io: &mut Io<'_, Mail>, from: usize, Mail(message): Mail) {
        match message {
            ShardMessage::PartitionRequest { job, work } => self.handle_partition_request(io, job, work),
            ShardMessage::PartitionResponse { job, done } => self.on_partition_response(io, job, done),
            ShardMessage::ForwardToController { call, body } => self.coordinate(io, call, &body),
            ShardMessage::Response { caller, response } => self.reply_with(io, caller, response),
            ShardMessage::CloseConnection { conn, what } => self.refuse(io, conn, &what),
            ShardMessage::VerifyTxn(request) => self.verify_txn(io, request),
            ShardMessage::TxnVerified(verified) => self.on_txn_verified(io, &verified),
            ShardMessage::FetchWakeup { watcher } => self.on_fetch_wakeup(io, watcher.job),
            ShardMessage::RemovePartitions { partitions } => self.remove_partitions(io, partitions),
            ShardMessage::CatalogueChanged => {
                self.apply_catalogue_changes();
                self.place(io);
            }
            ShardMessage::CreateBoundTopic { bound } => self.create_bound_topic(io, bound),
            ShardMessage::QueueRequest(request) => self.route_queue_request(io, *request),
            ShardMessage::QueueReply { to, reply } => self.reply_to_requester(io, to, reply),
        }
        debug_assert_ne!(from, self.me);
        self.begin_queued_requests(io);
    }

    fn timer(&mut self, io: &mut Io<'_, Mail>, token: u64) {
        match Timer::from_token(token) {
            Timer::Fetch(job) => self.on_fetch_timeout(io, job),
            Timer::MaintainMore => self.continue_maintenance(io),
            Timer::Maintain => {
                self.log_throttle.log_suppressed(io.clock.now_ms);
                self.run_maintenance(io);
                self.retry_topic_creation(io);
                self.retry_pending_requests(io);
                self.trim_queues(io);
                self.partitions.maintain(&mut self.stores, io.clock.unix_ms, IsLast::No);
                io.set_timer(io.clock.now_ms + MAINTENANCE_INTERVAL_MS, Timer::Maintain.token());
            }
            Timer::Coordinate => self.coordinate_due(io),
            Timer::Queues => self.queues_due(io),
        }
        self.begin_queued_requests(io);
    }

    fn turn_begins(&mut self, io: &mut Io<'_, Mail>) {
        self.unix_ms = io.clock.unix_ms;
        if !std::mem::replace(&mut self.has_begun, true) {
            io.set_timer(io.clock.now_ms + MAINTENANCE_INTERVAL_MS, Timer::Maintain.token());
            self.start_coordinators(io);
        }
        self.poll_completions(io);
        self.open_pending_logs(io);
        self.poll_queues(io);
    }

    fn takes_held(&mut self, io: &mut Io<'_, Mail>) -> bool {
        !io.congested()
    }

    fn turn_ends(&mut self, io: &mut Io<'_, Mail>) {
        self.begin_queued_requests(io);
        self.append_all_gathered(io);
        self.poll_queues(io);
        self.append_queue_events(io);
        self.store_compacted_logs();
        self.store_positions();
        self.partitions.store_snapshots(&mut self.stores);
    }

    /// Answers the appends in flight, begins nothing else, and closes the other connections.
    fn drain(&mut self, io: &mut Io<'_, Mail>) {
        // Records that other protocols brought before the shutdown still count.
        self.append_all_gathered(io);
        self.is_draining = true;
        self.drain_queues(io);
        self.partitions.maintain(&mut self.stores, io.clock.unix_ms, IsLast::Yes);
        for slot in 0..self.conns.len() {
            let conn = &self.conns[slot];
            if conn.is_open && !conn.is_producing() {
                let id = ConnId::from_parts(slot as u32, conn.generation);
                self.remove_connection(io, id);
                io.close(id);
            }
        }
    }
}
