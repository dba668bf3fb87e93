//! The state of the Kafka server on one shard, and the responses to its connections.
//!
//! Each subsystem is a field with its own type. The files that implement [`Shard`] for one subsystem carry out what
//! that type returns; `service.rs` is the entry of all events.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mainstem_kafka::{Message, Request, frame, put_response_header};
use mainstem_log::{Completion, Error, LogOwner, Stores};
use mainstem_partition::Partitions;
use mainstem_queue_server::{QueueHost, topic_of_state};
use mainstem_runtime::{Clock, ConnId, Io};

use crate::binding_registry::BindingRegistry;
use crate::catalogue::{Catalogue, PartitionId};
use crate::conn::{Conn, Connections};
use crate::controller::Controller;
use crate::jobs::Jobs;
use crate::log_throttle::LogThrottle;
use crate::maintenance::Maintenance;
use crate::memory_use::MemoryUse;
use crate::pending_work::PendingWork;
use crate::shard_message::{Caller, Mail, RequestContext, ShardMessage};
use crate::shared::Shared;
use crate::sinks::Sinks;
use crate::sources::SourceReaders;
use crate::topic_config::TopicConfig;
use crate::unverified_batches::UnverifiedBatches;

/// Bytes of a response that one unit of the turn's budget pays for: building and encoding it.
const RESPONSE_BYTES_PER_UNIT: usize = 64;

/// The Kafka server on one shard: a [`Service`](mainstem_runtime::Service) for the runtime's loop.
pub struct Shard {
    pub(crate) me: usize,
    pub(crate) shared: Arc<Shared>,
    /// Snapshot of the topics.
    pub(crate) catalogue: Arc<Catalogue>,
    /// The stores of the shard, while it runs.
    pub(crate) stores: Stores,
    /// The time of the turn, ms since 1970.
    pub(crate) unix_ms: u64,
    pub(crate) partitions: Partitions,
    pub(crate) maintenance: Maintenance,
    pub(crate) unverified: UnverifiedBatches,
    pub(crate) pending_work: PendingWork,
    /// The coordinators, on shard 0.
    pub(crate) controller: Option<Box<Controller>>,
    pub(crate) conns: Connections,
    pub(crate) jobs: Jobs,
    pub(crate) fetch_sessions: crate::fetch_session::Sessions,
    /// Snapshot of the topics that other protocols write to and read.
    pub(crate) bindings: Arc<BindingRegistry>,
    pub(crate) sinks: Sinks,
    pub(crate) source_readers: SourceReaders,
    pub(crate) queues: QueueHost<TopicConfig>,
    completions: Vec<Completion>,
    pub(crate) log_throttle: LogThrottle,
    /// Set in the first turn.
    pub(crate) memory: Option<MemoryUse>,
    is_draining: bool,
    has_begun: bool,
}

impl Shard {
    /// Restores shard `me` from its stores. The first store is its own; others belonged to shards that no longer
    /// exist. Restore shard 0 first: it reads the catalogue.
    ///
    /// # Errors
    /// A store fails.
    pub fn restore(me: usize, shared: Arc<Shared>, mut stores: Stores, clock: Clock) -> Result<Self, Error> {
        let mut controller = None;
        if me == 0
            && let Some(first) = stores.first_mut()
        {
            controller = Some(Box::new(Controller::restore(&mut *first.store, &shared, clock)?));
        }
        let partitions = Partitions::restore(&mut stores, shared.producer_limits())?;
        let mut made = Self {
            me,
            catalogue: Arc::default(),
            stores,
            unix_ms: clock.unix_ms,
            partitions,
            maintenance: Maintenance::default(),
            unverified: UnverifiedBatches::default(),
            pending_work: PendingWork::default(),
            controller,
            conns: Connections::default(),
            jobs: Jobs::default(),
            fetch_sessions: crate::fetch_session::Sessions::default(),
            bindings: Arc::default(),
            sinks: Sinks::default(),
            source_readers: SourceReaders::default(),
            queues: QueueHost::new(me, shared.command_queues.clone(), shared.config.queue_tuning),
            completions: Vec::new(),
            log_throttle: LogThrottle::default(),
            memory: None,
            is_draining: false,
            has_begun: false,
            shared,
        };
        made.shared.refresh(&mut made.catalogue);
        made.maintenance = Maintenance::find(&made.stores, &made.catalogue, topic_of_state);
        Ok(made)
    }

    /// The stores, to lend them and to take them back.
    pub fn stores_mut(&mut self) -> &mut Stores {
        &mut self.stores
    }

    /// Delivers completions of the stores. Call it at the beginning of a turn and after its commit.
    pub fn poll_completions(&mut self, io: &mut Io<'_, Mail>) {
        let mut completions = std::mem::take(&mut self.completions);
        for at in 0..self.stores.len() {
            self.stores[at].take_completions(LogOwner::Default, &mut completions);
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
        self.queues.deliver_client_replies();
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
        io.charge((answer.len() / RESPONSE_BYTES_PER_UNIT) as u32);
        self.reply_with(io, call.caller, answer);
    }

    /// Answers a request with an encoded frame. An empty frame sends nothing.
    pub(crate) fn reply_with(&mut self, io: &mut Io<'_, Mail>, caller: Caller, response: Vec<u8>) {
        if caller.shard != self.me {
            return io.send(caller.shard, Mail(ShardMessage::Response { caller, response }));
        }
        let Some(conn) = self.conns.get_mut(caller.conn) else { return };
        conn.answer(caller.request, response);
        self.send_answers(io, caller.conn);
    }

    fn send_answers(&mut self, io: &mut Io<'_, Mail>, id: ConnId) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        while let Some(answer) = conn.next_answer() {
            if !answer.is_empty()
                && let Some(output) = io.output(id)
            {
                output.buffer().extend_from_slice(&answer);
            }
        }
        if self.is_draining && self.conns.get_mut(id).is_some_and(|conn| !conn.is_producing()) {
            self.remove_connection(io, id);
            return io.close(id);
        }
        self.conns.mark_ready(id);
    }

    /// Whether the broker is shutting down.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Whether this is the first turn.
    pub(crate) fn begin_first_turn(&mut self) -> bool {
        !std::mem::replace(&mut self.has_begun, true)
    }

    /// Begins to shut down: connections without appends in flight close.
    pub(crate) fn start_draining(&mut self) {
        self.is_draining = true;
    }

    /// Closes a connection that violated the protocol.
    pub(crate) fn refuse(&mut self, io: &mut Io<'_, Mail>, id: ConnId, what: &str) {
        if let Some(conn) = self.conns.get_mut(id) {
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
        if let Some(Conn { fetch_session, fetch_job, .. }) = self.conns.remove(id) {
            self.fetch_sessions.remove(fetch_session);
            self.cancel_fetch(io, fetch_job);
            self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
