//! The Kafka server as a service of the runtime: connections, frames, and the turn.
//!
//! A frame begins its request at once if the connection's earlier requests allow it; otherwise the connection queues
//! it. `turn_begins` delivers what has become durable, `turn_ends` hands the stores what this turn has gathered, and
//! the caller then commits all logs of the shard together.

use std::sync::atomic::Ordering;

use mainstem_kafka::{RequestHeader, frame};
use mainstem_queue_server::QueueHost;
use mainstem_runtime::{ConnId, Io, ProtocolTag, Received, Service};

use crate::conn::{HandOver, TokenAnswer};
use crate::conn_quotas::count_request_time;
use crate::frame_decoding::{Taken, pipelines};
use crate::long_request::LongRequest;
use crate::security::SecurityReply;
use crate::shard::Shard;
use crate::shard_message::{Caller, Mail, RequestContext, ShardMessage};
use crate::storage::MAINTENANCE_INTERVAL_MS;
use crate::timer::Timer;

/// Bytes of records in flight to other shards, or held for later turns, beyond which producers are no longer read.
const MAILED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Cost of a request in units of the turn's budget, besides its partitions and its response.
const REQUEST_UNITS: u32 = 5;
/// Bytes of a request that one unit pays for: decoding it.
const REQUEST_BYTES_PER_UNIT: usize = 1024;
/// Why a connection is closed whose request is unfinished.
const OVERDUE: &str = "a request is unfinished for too long while others wait for memory \
     (kafka.queued_max_request_bytes, memory.max_bytes)";

impl Service for Shard {
    type Mail = Mail;

    fn accepted(&mut self, io: &mut Io<'_, Mail>, conn: ConnId, ProtocolTag(listener): ProtocolTag) {
        self.conns.accept(&self.env, io, conn, listener);
        self.env.shared().connections.fetch_add(1, Ordering::Relaxed);
        if self.conns.is_draining() {
            self.remove_connection(io, conn);
            io.close(conn);
        }
    }

    fn received(&mut self, io: &mut Io<'_, Mail>, id: ConnId, bytes: &[u8]) -> Received {
        let mut received = Received::default();
        if self.conns.is_draining() {
            received.consumed = bytes.len();
            return received;
        }
        let all_bytes_max = self.env.shared().config.request_bytes_max as usize;
        if let Some(conn) = self.conns.get_mut(id) {
            conn.on_input(io.clock.now_ms, io.peer_has_closed(id));
            if conn.log_in.has_failed() {
                received.consumed = bytes.len();
                return received;
            }
        }
        loop {
            let rest = &bytes[received.consumed..];
            // Until the log-in, only small requests.
            let conn = self.conns.get_mut(id);
            let bytes_max = conn.map_or(all_bytes_max, |conn| conn.request_bytes_max(all_bytes_max));
            let end = match frame::frame_len(rest, bytes_max) {
                Ok(Some(end)) => end,
                Ok(None) => break,
                Err(error) => {
                    self.refuse(io, id, &error.to_string());
                    received.consumed = bytes.len();
                    break;
                }
            };
            if let Some(conn) = self.conns.get_mut(id)
                && conn.quotas.is_muted(io.clock.now_ms)
            {
                received.hold = true;
                received.pause_ms = conn.quotas.pause_ms(io.clock.now_ms);
                break;
            }
            let Some(frame) = rest.get(frame::LENGTH_BYTES..end) else {
                received.next_len = end;
                received.hold = !self.conns.has_memory_for(&mut self.env, io, id, (end, rest.len()));
                break;
            };
            let appended_bytes = self.jobs.mailed_bytes() + self.pending_work.bytes();
            let must_wait = io.is_exhausted() && received.consumed > 0;
            if must_wait || io.congested() || (pipelines(frame) && appended_bytes > MAILED_BYTES_MAX) {
                received.hold = true;
                break;
            }
            match self.take_frame(io, id, frame) {
                Taken::Yes => {}
                Taken::HandedOver => return received,
                Taken::Later => {
                    received.hold = true;
                    break;
                }
                Taken::Closed => {
                    received.consumed = bytes.len();
                    break;
                }
            }
            received.consumed += end;
        }
        self.conns.mark_ready(id);
        self.begin_queued_requests(io);
        received
    }

    fn drained(&mut self, io: &mut Io<'_, Mail>, id: ConnId) {
        self.conns.mark_ready(id);
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
            ShardMessage::ForwardDecoded { call, request } => self.coordinate_long(io, call, request),
            ShardMessage::Response { caller, response } => self.reply_with(io, caller, response),
            ShardMessage::CloseConnection { conn, what } => self.refuse(io, conn, &what),
            ShardMessage::VerifyTxn(request) => self.verify_txn(io, request),
            ShardMessage::TxnVerified(verified) => self.on_txn_verified(io, &verified),
            ShardMessage::FetchWakeup { watcher } => self.on_fetch_wakeup(io, watcher.job),
            ShardMessage::RemovePartitions { partitions } => self.pending_work.add_removal(io, partitions),
            ShardMessage::CatalogueChanged { changed } => {
                self.storage.apply_catalogue(&mut self.env, &changed);
                self.batch_waiting_records(io);
            }
            ShardMessage::CreateBoundTopic { bound } => self.create_bound_topic(io, bound),
            ShardMessage::QueueRequest(request) => self.route_queue_request(io, *request),
            ShardMessage::QueueReply { to, reply } => self.reply_to_requester(io, to, reply),
        }
        debug_assert_ne!(from, self.env.me());
        self.begin_queued_requests(io);
    }

    fn timer(&mut self, io: &mut Io<'_, Mail>, token: u64) {
        match Timer::from_token(token) {
            Timer::Fetch(job) => {
                if let Some(fetch) = self.jobs.expire_fetch(job) {
                    self.start_attempt(io, job, fetch);
                }
            }
            Timer::MaintainMore => self.storage.on_maintenance_timer(io),
            Timer::Maintain => {
                self.env.log_suppressed(io.clock.now_ms);
                let ids =
                    self.controller.as_mut().map_or(0, |controller| controller.transactions.take_evictions());
                self.env.log_evictions(io.clock.now_ms, self.storage.take_evicted_producers(), ids);
                self.storage.run_maintenance(io);
                self.bindings.clear_topic_requests();
                self.batch_waiting_records(io);
                self.retry_audit_events(io);
                self.with_queues(io, QueueHost::retry_awaiting_creation);
                self.with_queues(io, QueueHost::trim);
                self.close_idle_connections(io);
                for id in self.conns.overdue(&self.env, io.clock.now_ms) {
                    self.refuse(io, id, OVERDUE);
                }
                // There may be thousands of queues, so this is not for each turn.
                self.env.count_queues(io.memory(), self.queues.memory());
                self.storage.maintain_producers(io);
                io.set_timer(io.clock.now_ms + MAINTENANCE_INTERVAL_MS, Timer::Maintain.token());
            }
            Timer::Coordinate => self.coordinate_due(io),
            Timer::Queues => self.with_queues(io, |queues, cx| queues.on_timer(cx.now_ms)),
            Timer::FailedLogIns => {
                while let Some(TokenAnswer { caller, response }) = self.conns.next_failed_log_in(io) {
                    self.reply_with(io, caller, response);
                    self.remove_connection(io, caller.conn);
                    io.close(caller.conn);
                }
            }
            Timer::Unmute(slot) => self.conns.unmute(slot),
        }
        self.begin_queued_requests(io);
    }

    fn turn_begins(&mut self, io: &mut Io<'_, Mail>) {
        self.storage.begin_turn(io.clock.unix_ms);
        if self.env.begin_first_turn(io.memory().budget()) {
            io.set_timer(io.clock.now_ms + MAINTENANCE_INTERVAL_MS, Timer::Maintain.token());
            self.start_coordinators(io);
            self.create_audit_topic(io);
        }
        self.poll_completions(io);
        self.poll_security_replies(io);
        for (id, what) in self.conns.next_refused(&self.env, io) {
            self.refuse(io, id, what);
        }
        self.continue_work(io);
        self.storage.open_pending_logs(&mut self.env, io);
        self.storage.continue_maintenance(io);
        self.poll_queues(io);
    }

    fn takes_held(&mut self, io: &mut Io<'_, Mail>) -> bool {
        !io.congested()
    }

    fn turn_ends(&mut self, io: &mut Io<'_, Mail>) {
        self.begin_queued_requests(io);
        self.append_all_gathered(io);
        self.append_audit_events(io);
        self.poll_queues(io);
        if self.queues.has_unappended() {
            self.with_queues(io, QueueHost::end_batches);
            self.with_queues(io, QueueHost::append_events);
        }
        if let (Some(controller), Some(first)) = (&mut self.controller, self.storage.first_store()) {
            controller.store_pending(first);
        }
        self.bindings.store_positions(self.storage.stores_mut());
        self.storage.store_snapshots();
        let waiting = self.conns.queued_bytes() + self.jobs.mailed_bytes() + self.pending_work.bytes();
        self.env.count_records(io.memory(), waiting);
    }

    /// Answers the appends in flight, begins nothing else, and closes the other connections.
    fn drain(&mut self, io: &mut Io<'_, Mail>) {
        // Records that other protocols brought before the shutdown still count.
        self.append_all_gathered(io);
        self.append_audit_events(io);
        self.conns.start_draining();
        self.with_queues(io, QueueHost::drain);
        self.storage.end_producer_maintenance();
        for id in self.conns.idle() {
            self.remove_connection(io, id);
            io.close(id);
        }
    }
}

impl Shard {
    /// Begins queued frames of the connections that are ready.
    pub(crate) fn begin_queued_requests(&mut self, io: &mut Io<'_, Mail>) {
        while let Some(id) = self.conns.pop_ready() {
            if self.conns.is_draining() {
                continue;
            }
            // Without room, `drained` continues.
            while io.has_ample_room(id)
                && !self.conns.get_mut(id).is_some_and(|conn| conn.quotas.is_muted(io.clock.now_ms))
                && let Some(frame) = self.conns.next_waiting(id, pipelines)
            {
                self.begin(io, id, &frame, None);
            }
        }
    }

    /// Closes connections that have been idle for too long, among a part of all.
    fn close_idle_connections(&mut self, io: &mut Io<'_, Mail>) {
        let config = &self.env.shared().config;
        let (max_idle_ms, log_in_timeout_ms) = (config.connections_max_idle_ms, config.log_in_timeout_ms);
        for id in self.conns.next_idle(io.clock.now_ms, max_idle_ms, log_in_timeout_ms) {
            let Some(conn) = self.conns.get_mut(id) else { continue };
            if conn.log_in.is_overdue(io.clock.now_ms, log_in_timeout_ms) {
                self.refuse(io, id, "it has not logged in for kafka.log_in_timeout_ms");
                continue;
            }
            let client_id = conn.client_id.clone().unwrap_or_default();
            log::debug!(
                "kafka client {client_id:?} is disconnected: idle for kafka.connections_max_idle_ms, {max_idle_ms}"
            );
            self.remove_connection(io, id);
            io.close(id);
        }
    }

    /// Takes the answers of the host about users and rules.
    fn poll_security_replies(&mut self, io: &mut Io<'_, Mail>) {
        for reply in self.env.shared().security_replies.take(self.env.me()) {
            match reply {
                SecurityReply::LogIn { caller, result } => {
                    let answer = self.conns.on_password_checked(&mut self.env, io, caller, result);
                    self.answer_token(io, answer);
                }
                SecurityReply::Changed { after, result } => self.on_security_change(io, after, &result),
            }
        }
    }

    /// Sends the answer to a token of a log-in, if there is one already.
    pub(crate) fn answer_token(&mut self, io: &mut Io<'_, Mail>, answer: Option<TokenAnswer>) {
        if let Some(TokenAnswer { caller, response }) = answer {
            self.reply_with(io, caller, response);
        }
    }

    /// Hands a connection over, with this frame, if another shard owns most of its partitions.
    pub(crate) fn hand_over_if_remote(&mut self, io: &mut Io<'_, Mail>, id: ConnId, frame: &[u8]) -> bool {
        let Some(HandOver { shard, session }) = self.conns.hand_over(&mut self.env, io, id, frame) else {
            return false;
        };
        self.remove_connection(io, id);
        match session {
            Some(session) => io.hand_over_with(id, shard, Box::new(session)),
            None => io.hand_over(id, shard),
        }
        true
    }

    /// Begins the request of a frame, which is decoded already if it is long.
    pub(crate) fn begin(
        &mut self,
        io: &mut Io<'_, Mail>,
        id: ConnId,
        frame: &[u8],
        decoded: Option<Box<dyn LongRequest>>,
    ) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        if conn.log_in.expects_bare_token() {
            let answer = self.conns.on_bare_token(&mut self.env, io, id, frame);
            return self.answer_token(io, answer);
        }
        let Ok((header, body)) = RequestHeader::parse(frame) else {
            return self.refuse(io, id, "a request without a header");
        };
        let me = self.env.me();
        let Some(conn) = self.conns.get_mut(id) else { return };
        if let Err(what) = conn.log_in.check(header.api_key, io.clock.now_ms) {
            return self.refuse(io, id, what);
        }
        if let Err(what) = self.conns.refresh_grants(&self.env, io, id) {
            return self.refuse(io, id, what);
        }
        let Some(conn) = self.conns.get_mut(id) else { return };
        let client_id = header.client_id.as_deref().unwrap_or("");
        let is_other_client = conn.client_id.as_deref() != Some(client_id);
        if is_other_client {
            conn.client_id = Some(client_id.into());
        }
        if (is_other_client || conn.quotas.epoch != conn.grants.epoch)
            && let Err(what) = self.conns.refresh_quotas(&self.env, io, id)
        {
            return self.refuse(io, id, what);
        }
        let Some(conn) = self.conns.get_mut(id) else { return };
        let client_id = conn.client_id.clone().unwrap_or_default();
        let (peer, listener, sender) = (conn.peer, conn.listener, conn.grants.sender.clone());
        let quotas = conn.quotas.quotas.clone();
        let caller =
            Caller { shard: me, conn: id, request: conn.begin(decoded.is_none() && pipelines(frame)) };
        let RequestHeader { api_key, api_version: version, correlation_id, .. } = header;
        self.env.counters().count_request(api_key, frame.len());
        let mut call = RequestContext {
            caller,
            api_key,
            version,
            correlation_id,
            client_id,
            peer,
            listener,
            sender,
            quotas,
            throttle_ms: 0,
            division: None,
        };
        let metered = call.quotas.clone().map(|quotas| (quotas, io.charged()));
        if metered.is_some() {
            self.conns.throttle_request(&mut self.env, io, &mut call, frame.len());
        }
        io.charge(REQUEST_UNITS + (body.len() / REQUEST_BYTES_PER_UNIT) as u32);
        self.pending_work.begin_request(io.charged());
        self.dispatch(io, call, decoded.ok_or(body));
        if let Some((quotas, charged_before)) = metered {
            let units = io.charged().saturating_sub(charged_before);
            count_request_time(&quotas, me, units, io.clock.now_ms);
        }
    }
}
