//! A connection: its requests in flight, and the order of its responses.
//!
//! Kafka clients expect responses in the order of their requests. Requests may finish in another order, because they
//! depend on different shards and disks. A connection therefore stores a response until all earlier ones are sent.
//!
//! Produce requests are pipelined: several are in flight at once. Any other request waits until the connection has no
//! request in flight, so that requests take effect in order. Frames that must wait are queued up to a limit in bytes.

mod affinity;
mod authorization;
mod bans;
mod failed_log_ins;
mod log_ins;
mod throttling;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::fetch::FetchRequest;
use mainstem_runtime::{ConnId, Io, MemoryPressure};

pub(crate) use self::affinity::HandOver;
use self::bans::ConnectionCheck;
use self::failed_log_ins::FailedLogIns;
pub(crate) use self::log_ins::{TokenAnswer, nonce};
use crate::answer::Answer;
use crate::conn_quotas::ConnQuotas;
use crate::environment::Environment;
use crate::fetch_session::{Plan, Sessions};
use crate::grants::ConnGrants;
use crate::log_in::{LOG_IN_FRAME_BYTES_MAX, LogIn};
use crate::long_request::{LONG_FRAME_BYTES, PartlyDecoded};
use crate::request_memory::{Reservation, UNRESERVED_BYTES};

/// Most requests of one connection in flight. Producers pipeline a handful.
pub(crate) const PIPELINED_MAX: usize = 1024;
/// Bytes of queued requests beyond which the connection is no longer read.
const QUEUED_BYTES_MAX: usize = 256 * 1024;
/// The same before the log-in: strangers may open many connections. One request of the largest size fits.
const QUEUED_BEFORE_LOG_IN_BYTES_MAX: usize = LOG_IN_FRAME_BYTES_MAX;

/// Calls of [`Connections::next_idle`] that cover all connections, and the least number of slots that one covers.
const IDLE_CHECK_PARTS: usize = 16;
const IDLE_CHECK_MIN: usize = 1024;

/// State of a connection.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "facts about a connection, independent of each other")]
pub(crate) struct Conn {
    generation: u32,
    is_open: bool,
    /// Address of the client, if known.
    pub(crate) peer: Option<IpAddr>,
    /// Number of its listener.
    pub(crate) listener: u16,
    /// Whether it has a user, or how far its log-in is.
    pub(crate) log_in: LogIn,
    /// What it may do.
    pub(crate) grants: ConnGrants,
    /// Its quotas, and how long it is throttled.
    pub(crate) quotas: ConnQuotas,
    /// When it last sent something, ms.
    last_input_ms: u64,
    /// Number of the request whose response is sent next.
    next_response: u64,
    /// Requests in flight, from `next_response` on, each with its response if that is ready.
    in_flight: VecDeque<Option<Answer>>,
    /// Whether the requests in flight are pipelined.
    pipelines: bool,
    /// Frames queued until the requests in flight are answered.
    queued: VecDeque<Box<[u8]>>,
    queued_bytes: usize,
    /// Since when a request is there in part, ms.
    unfinished_since_ms: Option<u64>,
    /// Memory for that request.
    reservation: Option<Reservation>,
    /// The next request, if it is long and decoded in part.
    pub(crate) decoding: Option<PartlyDecoded>,
    /// Whether it has been logged that the request waits for memory.
    has_logged_wait: bool,
    /// Whether the shard has listed the connection because a queued frame may begin.
    is_listed: bool,
    /// Whether an unsupported request of this client has been logged.
    pub(crate) has_logged_unsupported: bool,
    /// The client id of the last request.
    pub(crate) client_id: Option<Arc<str>>,
    /// Name and version of the client library (KIP-511).
    pub(crate) software: Option<(String, String)>,
    /// Whether the connection has produced or fetched, so that it stays on this shard.
    pub(crate) is_settled: bool,
    /// The newest fetch session of this connection.
    fetch_session: i32,
    /// Job number of the last fetch, which may have ended.
    pub(crate) fetch_job: u64,
}

/// The connections of a shard.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    slots: Vec<Conn>,
    /// Connections whose queued frames may begin, because a response has left.
    ready: Vec<ConnId>,
    /// Slot at which the search for idle connections continues.
    idle_check: usize,
    /// Bytes of queued frames of all connections.
    queued_bytes: usize,
    fetch_sessions: Sessions,
    is_draining: bool,
    /// Which have been checked for bans.
    check: ConnectionCheck,
    failed_log_ins: FailedLogIns,
}

impl Connections {
    fn open(&mut self, id: ConnId, peer: Option<IpAddr>, listener: u16, now_ms: u64) {
        if self.slots.len() <= id.slot() {
            self.slots.resize_with(id.slot() + 1, Conn::default);
        }
        self.slots[id.slot()] = Conn { last_input_ms: now_ms, ..Conn::open(id.generation(), peer, listener) };
    }

    /// A connection, if it is open.
    pub(crate) fn get_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.slots.get_mut(id.slot()).filter(|conn| conn.is_open && conn.generation == id.generation())
    }

    /// Removes a connection and its fetch session.
    pub(crate) fn remove(&mut self, id: ConnId) -> Option<Conn> {
        let conn = self.get_mut(id).map(std::mem::take)?;
        self.queued_bytes -= conn.queued_bytes;
        self.fetch_sessions.remove(conn.fetch_session);
        Some(conn)
    }

    /// Begins to shut down: connections without appends in flight close.
    pub(crate) fn start_draining(&mut self) {
        self.is_draining = true;
    }

    /// Whether the broker is shutting down.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// The partitions of a fetch, from its request and the fetch session of its connection; `None` if that has closed.
    ///
    /// # Errors
    /// See [`Sessions::resolve`].
    pub(crate) fn resolve_fetch(
        &mut self,
        id: ConnId,
        version: i16,
        request: &FetchRequest,
    ) -> Option<Result<Plan, ErrorCode>> {
        let slot = self.slots.get_mut(id.slot())?;
        let conn = Some(slot).filter(|conn| conn.is_open && conn.generation == id.generation())?;
        Some(self.fetch_sessions.resolve(id, &mut conn.fetch_session, version, request))
    }

    /// The fetch sessions of all connections.
    pub(crate) fn fetch_sessions(&mut self) -> &mut Sessions {
        &mut self.fetch_sessions
    }

    /// Sends the responses of a connection that are ready. Returns false if the connection must close, because the
    /// broker is shutting down and it has no appends in flight.
    pub(crate) fn send_answers<M>(&mut self, env: &Environment, io: &mut Io<'_, M>, id: ConnId) -> bool {
        let is_draining = self.is_draining;
        let Some(conn) = self.get_mut(id) else { return true };
        while let Some(answer) = conn.next_answer() {
            if !answer.is_empty()
                && let Some(output) = io.output(id)
            {
                answer.send(output, env.memory().map(|memory| &memory.responses));
            }
        }
        if is_draining && !conn.is_producing() {
            return false;
        }
        self.mark_ready(id);
        true
    }

    /// Whether more may be read of a request of `len` bytes, of which `arrived` are there.
    pub(crate) fn has_memory_for<M>(
        &mut self,
        env: &mut Environment,
        io: &Io<'_, M>,
        id: ConnId,
        (len, arrived): (usize, usize),
    ) -> bool {
        let now_ms = io.clock.now_ms;
        let (Some(conn), Some(memory)) = (self.get_mut(id), env.memory()) else { return true };
        let reservation = conn.unfinished_request(now_ms);
        if let Some(reservation) = reservation {
            reservation.note_arrived(arrived);
            return true;
        }
        if len <= UNRESERVED_BYTES && io.memory().pressure() < MemoryPressure::Critical {
            return true;
        }
        match env.shared().request_pool.reserve((len, arrived), &memory.requests, io.memory(), now_ms) {
            Ok(reserved) => {
                *reservation = Some(reserved);
                true
            }
            Err(shortage) => {
                if conn.waits_first() && env.should_log(now_ms) {
                    let client_id = conn.client_id.as_deref().unwrap_or("");
                    let peer = conn.peer.map(|peer| peer.to_string()).unwrap_or_default();
                    log::warn!(
                        "kafka client {client_id:?} {peer}: a request of {len} bytes has to wait: {shortage}"
                    );
                }
                false
            }
        }
    }

    /// Queues a frame of a connection; false if it must wait in the input: too many bytes are queued, or it is decoded
    /// there in steps, because it is long and does not pipeline.
    pub(crate) fn wait(&mut self, id: ConnId, frame: &[u8], pipelines: bool) -> bool {
        let is_long = frame.len() >= LONG_FRAME_BYTES && !pipelines;
        let is_queued = !is_long && self.get_mut(id).is_some_and(|conn| conn.wait(frame));
        self.queued_bytes += if is_queued { frame.len() } else { 0 };
        is_queued
    }

    /// The next queued frame of a connection, if it may begin now; `pipelines` classifies it.
    pub(crate) fn next_waiting(
        &mut self,
        id: ConnId,
        pipelines: impl Fn(&[u8]) -> bool,
    ) -> Option<Box<[u8]>> {
        let frame = self.get_mut(id)?.next_waiting(pipelines)?;
        self.queued_bytes -= frame.len();
        Some(frame)
    }

    /// The request of a connection is complete.
    pub(crate) fn finish_request(&mut self, id: ConnId) {
        if let Some(conn) = self.get_mut(id) {
            conn.finish_request();
        }
    }

    /// Bytes of queued frames of all connections.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// The connections with requests that have been unfinished for too long while others wait for memory.
    pub(crate) fn overdue(&self, env: &Environment, now_ms: u64) -> Vec<ConnId> {
        let pool = &env.shared().request_pool;
        if !pool.is_short(now_ms) {
            return Vec::new();
        }
        let is_overdue = |since_ms| pool.is_overdue(since_ms, now_ms);
        let slots = self.slots.iter().enumerate();
        let overdue = slots.filter(|(_, conn)| conn.unfinished_since_ms.is_some_and(is_overdue));
        overdue.map(|(slot, conn)| ConnId::from_parts(slot as u32, conn.generation)).collect()
    }

    /// Lists a connection whose queued frames may begin in this turn.
    pub(crate) fn mark_ready(&mut self, id: ConnId) {
        if let Some(conn) = self.get_mut(id)
            && conn.has_waiting()
            && !std::mem::replace(&mut conn.is_listed, true)
        {
            self.ready.push(id);
        }
    }

    /// Takes a connection from the list.
    pub(crate) fn pop_ready(&mut self) -> Option<ConnId> {
        let id = self.ready.pop()?;
        if let Some(conn) = self.get_mut(id) {
            conn.is_listed = false;
        }
        Some(id)
    }

    /// Finds idle connections, and those that have not logged in in time, among the next slots. Calls of one round
    /// cover all slots.
    pub(crate) fn next_idle(&mut self, now_ms: u64, max_idle_ms: u64, log_in_timeout_ms: u64) -> Vec<ConnId> {
        let count = self.slots.len();
        let part = count.div_ceil(IDLE_CHECK_PARTS).max(IDLE_CHECK_MIN).min(count);
        let first = self.idle_check.min(count);
        let slots = (first..(first + part).min(count)).chain(0..(first + part).saturating_sub(count));
        let is_late = |conn: &Conn| {
            conn.is_idle(now_ms, max_idle_ms) || conn.log_in.is_overdue(now_ms, log_in_timeout_ms)
        };
        let idle = slots.filter(|slot| is_late(&self.slots[*slot]));
        let found = idle.map(|slot| ConnId::from_parts(slot as u32, self.slots[slot].generation)).collect();
        self.idle_check = (first + part) % count.max(1);
        found
    }

    /// The connection in a slot, if it is open.
    fn open_in(&self, slot: usize) -> Option<ConnId> {
        let conn = self.slots.get(slot).filter(|conn| conn.is_open)?;
        Some(ConnId::from_parts(slot as u32, conn.generation))
    }

    /// The open connections without appends in flight.
    pub(crate) fn idle(&self) -> Vec<ConnId> {
        let slots = self.slots.iter().enumerate();
        let idle = slots.filter(|(_, conn)| conn.is_open && !conn.is_producing());
        idle.map(|(slot, conn)| ConnId::from_parts(slot as u32, conn.generation)).collect()
    }
}

impl Conn {
    fn open(generation: u32, peer: Option<IpAddr>, listener: u16) -> Self {
        Self { generation, is_open: true, peer, listener, ..Self::default() }
    }

    /// Largest request that it may send, bytes; `bytes_max` once it has logged in.
    pub(crate) fn request_bytes_max(&self, bytes_max: usize) -> usize {
        if self.log_in.is_complete() { bytes_max } else { bytes_max.min(LOG_IN_FRAME_BYTES_MAX) }
    }

    /// Whether a request may begin now. Pipelined requests need not wait for each other.
    pub(crate) fn may_begin(&self, pipelines: bool) -> bool {
        self.queued.is_empty() && self.has_turn(pipelines)
    }

    fn has_turn(&self, pipelines: bool) -> bool {
        self.in_flight.is_empty() || (pipelines && self.pipelines && self.in_flight.len() < PIPELINED_MAX)
    }

    /// Whether a request waits for its response.
    pub(crate) fn waits(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// Begins a request and returns its number.
    pub(crate) fn begin(&mut self, pipelines: bool) -> u64 {
        self.pipelines = pipelines;
        self.in_flight.push_back(None);
        self.next_response + self.in_flight.len() as u64 - 1
    }

    /// Queues a frame; false if too many bytes are queued.
    fn wait(&mut self, frame: &[u8]) -> bool {
        let bytes_max =
            if self.log_in.is_complete() { QUEUED_BYTES_MAX } else { QUEUED_BEFORE_LOG_IN_BYTES_MAX };
        if self.queued_bytes + frame.len() > bytes_max {
            return false;
        }
        self.queued_bytes += frame.len();
        self.queued.push_back(frame.into());
        true
    }

    /// The next queued frame, if it may begin now; `pipelines` classifies it.
    fn next_waiting(&mut self, pipelines: impl Fn(&[u8]) -> bool) -> Option<Box<[u8]>> {
        let frame = self.queued.front()?;
        if !self.has_turn(pipelines(frame)) {
            return None;
        }
        self.queued_bytes -= frame.len();
        self.queued.pop_front()
    }

    /// A request is not complete. Returns its reservation, if there is one.
    fn unfinished_request(&mut self, now_ms: u64) -> &mut Option<Reservation> {
        self.unfinished_since_ms.get_or_insert(now_ms);
        &mut self.reservation
    }

    /// The request waits for memory. True for the first time.
    fn waits_first(&mut self) -> bool {
        !std::mem::replace(&mut self.has_logged_wait, true)
    }

    /// The request is complete.
    pub(crate) fn finish_request(&mut self) {
        if self.unfinished_since_ms.take().is_some() {
            self.reservation = None;
            self.has_logged_wait = false;
        }
    }

    /// The client has sent something. What a peer that `has_closed` has left behind may wait for long, because of a
    /// quota, and does not count.
    pub(crate) fn on_input(&mut self, now_ms: u64, has_closed: bool) {
        if !has_closed {
            self.last_input_ms = now_ms;
        }
    }

    /// Whether the client has sent nothing for `max_idle_ms`. One that waits for a response is not idle.
    fn is_idle(&self, now_ms: u64, max_idle_ms: u64) -> bool {
        let has_requests = !self.in_flight.is_empty() || !self.queued.is_empty();
        self.is_open && !has_requests && now_ms.saturating_sub(self.last_input_ms) >= max_idle_ms
    }

    /// Whether appends are in flight.
    pub(crate) fn is_producing(&self) -> bool {
        self.pipelines && !self.in_flight.is_empty()
    }

    /// Whether frames are queued.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.queued.is_empty()
    }

    /// Whether the response to this request is sent next.
    pub(crate) fn is_next(&self, request: u64) -> bool {
        self.next_response == request
    }

    /// The handler has written the next response to the output directly.
    pub(crate) fn answered(&mut self) {
        self.in_flight.pop_front();
        self.next_response += 1;
    }

    /// Stores the response to a request until all earlier ones are sent. An empty response sends nothing.
    pub(crate) fn answer(&mut self, request: u64, response: Answer) {
        let Some(index) = request.checked_sub(self.next_response) else { return };
        if let Some(slot) = self.in_flight.get_mut(index as usize) {
            *slot = Some(response);
        }
    }

    /// Takes the next response, if it is ready.
    fn next_answer(&mut self) -> Option<Answer> {
        let answer = self.in_flight.front_mut()?.take()?;
        self.answered();
        Some(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_sent_in_request_order() {
        let mut conn = Conn::open(1, None, 0);
        assert!(conn.may_begin(true));
        let earlier = conn.begin(true);
        assert!(!conn.may_begin(false) && conn.may_begin(true));
        let later = conn.begin(true);
        let next = |conn: &mut Conn| conn.next_answer().map(|answer| answer.bytes());
        conn.answer(later, vec![2].into());
        assert_eq!(next(&mut conn), None);
        conn.answer(earlier, vec![1].into());
        assert_eq!(next(&mut conn), Some(vec![1]));
        assert_eq!(next(&mut conn), Some(vec![2]));
        assert!(conn.may_begin(false));
    }

    #[test]
    fn idle_connections_are_found_in_parts_and_waiting_ones_are_not_idle() {
        const COUNT: usize = 5_000;
        let mut conns = Connections::default();
        for slot in 0..COUNT {
            conns.open(ConnId::from_parts(slot as u32, 1), None, 0, 100);
        }
        let busy = ConnId::from_parts(7, 1);
        let request = conns.get_mut(busy).unwrap().begin(false);
        let late = ConnId::from_parts(4_321, 1);
        conns.get_mut(late).unwrap().on_input(200, false);
        assert_eq!(conns.next_idle(699, 600, u64::MAX), []);
        let mut found = std::collections::BTreeSet::new();
        for _ in 0..COUNT.div_ceil(IDLE_CHECK_MIN) {
            let part = conns.next_idle(700, 600, u64::MAX);
            assert!(part.len() <= IDLE_CHECK_MIN);
            found.extend(part.iter().map(|id| id.slot()));
        }
        assert_eq!(found.len(), COUNT - 2);
        assert!(!found.contains(&busy.slot()) && !found.contains(&late.slot()));
        let conn = conns.get_mut(busy).unwrap();
        conn.answer(request, vec![1].into());
        assert!(conn.next_answer().is_some());
        let mut rest = (0..COUNT).flat_map(|_| conns.next_idle(700, 600, u64::MAX));
        assert!(rest.any(|id| id == busy));
    }

    #[test]
    fn a_connection_that_has_not_logged_in_queues_one_request_of_the_largest_size() {
        let mut conn = Conn { log_in: LogIn::Required { since_ms: 0 }, ..Conn::open(1, None, 0) };
        conn.begin(false);
        assert!(!conn.wait(&vec![0; QUEUED_BEFORE_LOG_IN_BYTES_MAX + 1]));
        assert!(conn.wait(&vec![0; QUEUED_BEFORE_LOG_IN_BYTES_MAX]));
        assert!(!conn.wait(&[7]));
        conn.log_in = LogIn::NotRequired;
        assert!(conn.wait(&[7]), "after the log-in there is more room");
    }

    #[test]
    fn frames_queue_behind_requests_in_flight_up_to_a_limit() {
        let mut conn = Conn::open(1, None, 0);
        let fetch = conn.begin(false);
        assert!(!conn.may_begin(true));
        assert!(conn.wait(&[7]));
        assert!(!conn.wait(&vec![0; QUEUED_BYTES_MAX]));
        assert_eq!(conn.next_waiting(|_| true), None);
        conn.answer(fetch, Answer::default());
        assert!(conn.next_answer().is_some_and(|answer| answer.is_empty()));
        assert_eq!(conn.next_waiting(|_| true).as_deref(), Some(&[7][..]));
        assert!(!conn.has_waiting());
    }
}
