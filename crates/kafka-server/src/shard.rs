//! The state of the Kafka server on one shard, and the responses to its connections.
//!
//! Each subsystem is a field with its own type. The files that implement [`Shard`] for one subsystem carry out what
//! that type returns; `service.rs` is the entry of all events.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mainstem_kafka::Request;
use mainstem_log::{Completion, Error, Stores};
use mainstem_queue_server::QueueHost;
use mainstem_runtime::{Clock, ConnId, Io};

use crate::answer::Answer;
use crate::audit_appends::AuditAppends;
use crate::bindings::Bindings;
use crate::conn::Connections;
use crate::controller::Controller;
use crate::environment::Environment;
use crate::jobs::Jobs;
use crate::pending_work::{PendingWork, Task};
use crate::shard_message::{Caller, Mail, RequestContext, ShardMessage};
use crate::shared::Shared;
use crate::storage::Storage;
use crate::topic_config::TopicConfig;
use crate::unverified_batches::UnverifiedBatches;

/// Bytes of a response that one unit of the turn's budget pays for: building and encoding it.
const RESPONSE_BYTES_PER_UNIT: usize = 64;

/// Most completions that are delivered at once. Each may answer a client, which takes a microsecond or two.
const COMPLETIONS_PER_POLL: usize = 1_000;

/// The Kafka server on one shard: a [`Service`](mainstem_runtime::Service) for the runtime's loop.
pub struct Shard {
    pub(crate) env: Environment,
    pub(crate) storage: Storage,
    pub(crate) unverified: UnverifiedBatches,
    pub(crate) pending_work: PendingWork,
    /// The coordinators, on shard 0.
    pub(crate) controller: Option<Box<Controller>>,
    pub(crate) conns: Connections,
    pub(crate) jobs: Jobs,
    pub(crate) bindings: Bindings,
    /// Events of the audit log, on shard 0.
    pub(crate) audit: AuditAppends,
    pub(crate) queues: QueueHost<TopicConfig>,
    completions: Vec<Completion>,
    /// Completions that were too many for a turn, with the index of their store.
    late_completions: VecDeque<(usize, Completion)>,
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
        let queues = QueueHost::new(me, shared.command_queues.clone(), shared.config.queue_tuning);
        let env = Environment::new(me, shared);
        let limits = env.shared().producer_limits();
        Ok(Self {
            storage: Storage::restore(stores, limits, env.catalogue(), clock.unix_ms)?,
            env,
            unverified: UnverifiedBatches::default(),
            pending_work: PendingWork::default(),
            controller,
            conns: Connections::default(),
            jobs: Jobs::default(),
            bindings: Bindings::default(),
            audit: AuditAppends::default(),
            queues,
            completions: Vec::new(),
            late_completions: VecDeque::new(),
        })
    }

    /// The stores, to lend them and to take them back.
    pub fn stores_mut(&mut self) -> &mut Stores {
        self.storage.stores_mut()
    }

    /// Delivers completions of the stores. Call it at the beginning of a turn and after its commit. A slow commit may
    /// end the appends of many turns, so what is too much for one turn is delivered in the next.
    pub fn poll_completions(&mut self, io: &mut Io<'_, Mail>) {
        let mut left = COMPLETIONS_PER_POLL;
        while left > 0
            && let Some((at, completion)) = self.late_completions.pop_front()
        {
            self.on_completion(io, at, &completion);
            left -= 1;
        }
        let mut completions = std::mem::take(&mut self.completions);
        let mut stores = 0..;
        while let Some(at) = stores.next()
            && self.storage.take_completions(at, &mut completions).is_some()
        {
            for completion in completions.drain(..) {
                if left > 0 {
                    self.on_completion(io, at, &completion);
                    left -= 1;
                } else {
                    self.late_completions.push_back((at, completion));
                }
            }
        }
        self.completions = completions;
        if !self.late_completions.is_empty() {
            io.request_turn();
        }
        self.take_partition_events(io);
        self.queues.deliver_client_replies();
        self.poll_coordinators(io);
        self.begin_queued_requests(io);
    }

    /// Delivers a completion of the store with index `at`.
    fn on_completion(&mut self, io: &mut Io<'_, Mail>, at: usize, completion: &Completion) {
        if (at == 0 && self.on_controller_completion(io, completion))
            || self.storage.on_snapshot_completion(at, completion)
        {
            return;
        }
        // Most completions are of partitions.
        let is_of_queue = self.queues.is_state_log(at, completion.log)
            && self.with_queues(io, |queues, cx| queues.on_completion(cx, at, completion));
        if !is_of_queue && !self.bindings.on_positions_completion(at, completion) {
            self.on_partition_completion(io, at, completion);
        }
    }

    /// Answers a request. The response leaves when all earlier requests of the connection are answered.
    pub(crate) fn reply<R: Request>(
        &mut self,
        io: &mut Io<'_, Mail>,
        call: &RequestContext,
        response: &R::Response,
    ) {
        debug_assert_eq!(call.api_key, R::KEY);
        if let Some(number) = call.division {
            // The next part is handled in a later turn.
            let mut answer = Vec::new();
            call.encode(response, &mut answer);
            io.charge((answer.len() / RESPONSE_BYTES_PER_UNIT) as u32);
            if let Some(division) = self.jobs.division(number) {
                division.throttle(call.throttle_ms);
            }
            if self.jobs.add_part(number, &answer) {
                return self.continue_divided(io, number);
            }
            if let Some(division) = self.jobs.take_division(number) {
                io.discard(division);
            }
            return self.refuse_call(io, call, "the response would exceed 128 MiB; ask for fewer items");
        }
        let answer = call.encode_frame::<R>(response);
        io.charge((answer.len() / RESPONSE_BYTES_PER_UNIT) as u32);
        self.reply_with(io, call.caller, answer);
    }

    /// Has the next part of a request handled in a later turn.
    pub(crate) fn continue_divided(&mut self, io: &mut Io<'_, Mail>, number: u64) {
        self.pending_work.add(Task::Divided { number });
        io.request_turn();
    }

    /// Answers a request with an encoded frame. An empty frame sends nothing.
    pub(crate) fn reply_with(&mut self, io: &mut Io<'_, Mail>, caller: Caller, response: impl Into<Answer>) {
        let response = response.into();
        if caller.shard != self.env.me() {
            return io.send(caller.shard, Mail(ShardMessage::Response { caller, response }));
        }
        let Some(conn) = self.conns.get_mut(caller.conn) else { return };
        conn.answer(caller.request, response);
        if !self.conns.send_answers(&self.env, io, caller.conn) {
            self.remove_connection(io, caller.conn);
            io.close(caller.conn);
        }
    }

    /// Closes a connection that violated the protocol.
    pub(crate) fn refuse(&mut self, io: &mut Io<'_, Mail>, id: ConnId, what: &str) {
        if let Some(conn) = self.conns.get_mut(id) {
            let client_id = conn.client_id.clone().unwrap_or_default();
            if self.env.should_log(io.clock.now_ms) {
                log::info!("kafka client {client_id:?} is disconnected: {what}");
            }
            self.remove_connection(io, id);
            io.close(id);
        }
    }

    pub(crate) fn remove_connection(&mut self, io: &mut Io<'_, Mail>, id: ConnId) {
        let Some(mut conn) = self.conns.remove(id) else { return };
        if let Some(decoding) = conn.decoding.take() {
            io.discard(decoding.request);
        }
        self.env.shared().connections.fetch_sub(1, Ordering::Relaxed);
        // A fetch that is not parked notices the closed connection itself.
        if let Some(fetch) = self.jobs.take_parked_fetch(conn.fetch_job) {
            self.unregister_fetch(io, conn.fetch_job, &fetch);
        }
    }
}
