//! [`Io`], through which a service acts.
//!
//! A service never touches a socket: it appends to outputs, sends messages and sets timers, and the driver carries that
//! out at the end of the turn. The high-water marks here bound how much output a slow reader can accumulate.

use std::any::Any;
use std::net::IpAddr;

use crate::discard::Discards;
use crate::links::{ConnId, Link, Links};
use crate::mailbox::MailboxStatus;
use crate::memory::{MemoryPressure, ShardMemory};
use crate::output::Output;
use crate::proxy::ProxiedClient;
use crate::timer::Wheel;
use crate::work::Work;

/// Pending output at which a connection is congested, bytes.
const HIGH_WATER_BYTES: usize = 256 * 1024;
/// The same limit for shared payloads, which use memory once for all connections.
const HIGH_WATER_SHARED_BYTES: usize = 4 * 1024 * 1024;
/// The same limit for file ranges, which use no process memory. A reader with this much pending needs no more.
const HIGH_WATER_FILE_BYTES: usize = 4 * 1024 * 1024;

/// A connection is stalled if its socket accepted no bytes for this long, ms.
const STALLED_MS: u64 = 500;

/// IO counters of one shard.
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "each counts what its name says, since the start of the shard")]
pub struct IoStats {
    pub turns: u64,
    pub reads: u64,
    pub writes: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

/// Current time, read once per turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// Monotonic time since the start of the process, ms.
    pub now_ms: u64,
    /// Unix time, ms.
    pub unix_ms: u64,
}

/// The actions available to a service during a call.
pub struct Io<'a, M> {
    /// Time of this turn.
    pub clock: Clock,
    /// This shard's number.
    pub shard: usize,
    /// IO counters of this shard.
    pub stats: &'a IoStats,
    pub(crate) work: &'a mut Work,
    pub(crate) links: &'a mut Links,
    pub(crate) memory: &'a ShardMemory,
    pub(crate) timers: &'a mut Wheel,
    pub(crate) mailboxes: &'a dyn MailboxStatus,
    pub(crate) outbox: &'a mut [Vec<M>],
    pub(crate) random: &'a mut u64,
    /// `None` without threads.
    pub(crate) discards: Option<&'a Discards>,
    /// Bits set in timer tokens to identify the subservice.
    pub(crate) timer_mark: u64,
}

/// Reserved bit of timer tokens. It distinguishes two services that share a shard.
pub const TIMER_MARK: u64 = 1 << 63;

impl<M> Io<'_, M> {
    /// Returns an `Io` for one of several services that share the shard. Its messages go to `outbox`, one queue per
    /// shard, and the caller sends them. `timer_mark` is set in the tokens of its timers.
    pub fn for_subservice<'b, N>(&'b mut self, outbox: &'b mut [Vec<N>], timer_mark: u64) -> Io<'b, N> {
        debug_assert_eq!(outbox.len(), self.mailboxes.shards());
        Io {
            clock: self.clock,
            shard: self.shard,
            stats: self.stats,
            work: self.work,
            links: self.links,
            memory: self.memory,
            timers: self.timers,
            mailboxes: self.mailboxes,
            outbox,
            random: self.random,
            discards: self.discards,
            timer_mark,
        }
    }

    /// Frees a value on another thread, because freeing it takes longer than a turn may: megabytes, or many thousands
    /// of small allocations.
    pub fn discard(&self, value: Box<dyn Any + Send>) {
        if let Some(discards) = self.discards {
            discards.free_later(value);
        }
    }

    /// The memory budget as this shard sees it.
    pub fn memory(&self) -> &ShardMemory {
        self.memory
    }

    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.mailboxes.shards()
    }

    /// Returns the connection's output, which is flushed at the end of the turn; `None` if the connection is closed.
    pub fn output(&mut self, conn: ConnId) -> Option<&mut Output> {
        self.links.output_if(conn, |_| true)
    }

    /// Holds back the connection's pending and future output until [`Io::release_output`].
    pub fn hold_output(&mut self, conn: ConnId) {
        if let Some(link) = self.links.get_mut(conn) {
            link.output.hold();
        }
    }

    /// Releases held output. It is flushed at the end of the turn.
    pub fn release_output(&mut self, conn: ConnId) {
        if self.links.get_mut(conn).is_some_and(|link| link.output.end_hold()) {
            self.links.mark_dirty(conn.slot);
        }
    }

    /// Discards held output and stops holding.
    pub fn discard_output(&mut self, conn: ConnId) {
        if let Some(link) = self.links.get_mut(conn) {
            link.output.discard_held();
        }
    }

    /// Like [`Io::output`], but returns `None` if the output is congested.
    /// [`Service::drained`](crate::Service::drained) is then called once it has drained.
    pub fn output_if_room(&mut self, conn: ConnId) -> Option<&mut Output> {
        let shift = self.limit_shift();
        self.links.output_if(conn, |output| has_room(output, shift))
    }

    /// Like [`Io::output_if_room`], for a message that many connections get. It may wait for others that follow soon,
    /// for `Options::flush_delay_us` at most; see [`Io::note_fan_out`].
    #[inline]
    pub fn fan_out_output_if_room(&mut self, conn: ConnId) -> Option<&mut Output> {
        let shift = self.limit_shift();
        self.links.fan_out_output_if(conn, |output| has_room(output, shift))
    }

    /// Like [`Io::output`], for bytes that can wait for a message of a fan-out to the same connection, if there are
    /// fan-outs.
    pub fn output_with_fan_outs(&mut self, conn: ConnId) -> Option<&mut Output> {
        if self.links.fan_outs.is_paced(self.clock.now_ms) {
            self.links.fan_out_output_if(conn, |_| true)
        } else {
            self.links.output_if(conn, |_| true)
        }
    }

    /// Counts a message of this many bytes that was appended to outputs of [`Io::fan_out_output_if_room`]; each output
    /// has a copy of `copied_bytes` of them and shares the rest. How often this happens decides how long they wait for
    /// the next message.
    pub fn note_fan_out(&mut self, bytes: usize, copied_bytes: usize) {
        self.links.fan_outs.note(bytes, copied_bytes);
    }

    /// Whether the output is below half of the congestion limits. If not,
    /// [`Service::drained`](crate::Service::drained) is called once it has drained.
    pub fn has_ample_room(&mut self, conn: ConnId) -> bool {
        let shift = 1 + self.limit_shift();
        let Some(link) = self.links.get_mut(conn) else { return false };
        let is_ample = has_room(link.output.pending(), shift);
        if !is_ample {
            link.output.set_congested();
        }
        is_ample
    }

    /// Whether the output is congested: [`Io::output_if_room`] would return `None`.
    pub fn is_congested(&self, conn: ConnId) -> bool {
        let shift = self.limit_shift();
        self.links.get(conn).is_some_and(|link| !has_room(link.output.pending(), shift))
    }

    /// By how many bits the high-water marks are lower: when memory runs out, slow readers get a quarter.
    fn limit_shift(&self) -> u32 {
        if self.memory.pressure() >= MemoryPressure::High { 2 } else { 0 }
    }

    /// Whether output is pending and the peer has not read for a while. `true` for a closed connection.
    pub fn is_stalled(&self, conn: ConnId) -> bool {
        let is_late = |last_progress_ms: u64| self.clock.now_ms >= last_progress_ms + STALLED_MS;
        self.links.get(conn).is_none_or(|link| link.output.waits_since_ms().is_some_and(is_late))
    }

    /// Pending output in memory over all connections of this shard, bytes.
    pub fn backlog_bytes(&self) -> u64 {
        self.links.backlog_bytes()
    }

    /// Number of connections of this shard.
    pub fn connections(&self) -> usize {
        self.links.open_count()
    }

    /// Address of the peer, or of the client that a proxy has named, available only during
    /// [`Service::accepted`](crate::Service::accepted). `None` for a Unix socket, or under a driver without sockets.
    pub fn peer(&self) -> Option<IpAddr> {
        self.links.accepting_peer()
    }

    /// Address of the peer of a connection, also after it was accepted. `None` if the connection is closed, or under a
    /// driver without sockets.
    pub fn peer_address(&self, conn: ConnId) -> Option<IpAddr> {
        self.links.get(conn)?.peer()
    }

    /// The certificate that the peer of a connection has presented, in DER, once its transport has verified it.
    pub fn peer_certificate(&self, conn: ConnId) -> Option<&[u8]> {
        self.links.get(conn)?.peer_certificate()
    }

    /// What a proxy has said about the client of a connection; `None` without a proxy.
    pub fn proxied_client(&self, conn: ConnId) -> Option<&ProxiedClient> {
        self.links.get(conn)?.proxied_client()
    }

    /// Whether the connection is open.
    pub fn is_open(&self, conn: ConnId) -> bool {
        self.links.get(conn).is_some_and(Link::is_open)
    }

    /// Whether the peer of a connection has closed it, or its direction of it, and some of its input is not handled
    /// yet. What it has asked for and cannot be answered any more needs no further work. `true` if the connection is
    /// closed here.
    pub fn peer_has_closed(&self, conn: ConnId) -> bool {
        self.links.get(conn).is_none_or(|link| link.input.has_ended())
    }

    /// Sends a TCP ACK immediately, although no data is sent in response. A peer with Nagle's algorithm (RFC 896) holds
    /// back its next small write until the ACK, which the kernel otherwise delays by some 40 ms.
    pub fn confirm_receipt(&mut self, conn: ConnId) {
        self.links.request_quickack(conn);
    }

    /// Closes a connection after its output is flushed; held output is discarded. The service receives no more calls
    /// for it.
    pub fn close(&mut self, conn: ConnId) {
        self.links.close(conn);
    }

    /// Whether a connection has pending output.
    pub fn has_output(&self, conn: ConnId) -> bool {
        self.links.get(conn).is_some_and(|link| !link.output.is_empty())
    }

    /// Moves a connection to another shard, where it is accepted again and offered all unconsumed input. It must have
    /// no pending output. The service on this shard receives no more calls for it.
    pub fn hand_over(&mut self, conn: ConnId, shard: usize) {
        self.links.hand_over(conn, shard);
    }

    /// As [`Io::hand_over`], with what the service there needs to know of the connection: it takes that with
    /// [`Io::take_baggage`] when it accepts the connection.
    pub fn hand_over_with(&mut self, conn: ConnId, shard: usize, baggage: Box<dyn Any + Send>) {
        self.hand_over(conn, shard);
        if let Some(link) = self.links.get_mut(conn) {
            link.set_baggage(baggage);
        }
    }

    /// What the service of another shard has handed over with a connection, available only during
    /// [`Service::accepted`](crate::Service::accepted).
    pub fn take_baggage(&mut self) -> Option<Box<dyn Any + Send>> {
        self.links.take_baggage()
    }

    /// Sends a message to another shard at the end of the turn. Messages to one shard stay in order.
    pub fn send(&mut self, shard: usize, mail: M) {
        debug_assert_ne!(shard, self.shard, "a shard must not send to itself");
        self.outbox[shard].push(mail);
    }

    /// Whether the mailbox of any other shard is full. The service should then hold input that causes messages.
    pub fn congested(&self) -> bool {
        (0..self.shards())
            .any(|to| to != self.shard && self.mailboxes.is_full(self.shard, to, self.outbox[to].len()))
    }

    /// Charges work that the current call does, in units of about 100 ns of a core. A turn has
    /// [`TURN_UNITS`](crate::TURN_UNITS) of them.
    ///
    /// Charge what a client can cause, where the amount is known: per item of each loop whose length a client chooses
    /// (packets, filters, subscribers, entries removed), and per KiB copied. As a guide, a unit pays for one or two
    /// hash lookups, for copying 1 KiB, or for parsing a small packet. Estimates within a factor of two will do.
    ///
    /// After [`Io::is_exhausted`] returns `true`, finish the current item and stop: return
    /// [`Received::hold`](crate::Received::hold) from `received`, and continue long work from `turn_begins` or
    /// `turn_ends` of later turns, see [`Io::request_turn`]. No item should cost more than a few thousand units.
    #[inline]
    pub fn charge(&mut self, units: u32) {
        self.work.charge(units);
    }

    /// Whether the current call has used up its share of the turn. Each call may handle one item even then.
    ///
    /// In `received`, this is the share of the connection, which depends on how many others have input. In the other
    /// calls it is the share of the phase of the turn.
    #[inline]
    pub fn is_exhausted(&self) -> bool {
        self.work.is_exhausted()
    }

    /// Units charged in this turn so far.
    pub fn charged(&self) -> u64 {
        self.work.spent()
    }

    /// Whether messages from other shards wait for the next turn, because this one had no share left for them. Input
    /// that must be handled after every message sent before it must then be held.
    pub fn has_pending_mail(&self) -> bool {
        self.work.has_mail
    }

    /// Requests another turn immediately, without waiting for events.
    pub fn request_turn(&mut self) {
        self.links.request_turn();
    }

    /// Schedules [`Service::timer`](crate::Service::timer) with `token` at [`Clock::now_ms`] = `at_ms`, or a few ms
    /// later.
    pub fn set_timer(&mut self, at_ms: u64, token: u64) {
        self.timers.set(at_ms, token | self.timer_mark);
    }

    /// Returns a pseudorandom number (xorshift64*, Vigna 2016), for tie-breaks and names, not for secrets.
    pub fn random(&mut self) -> u64 {
        *self.random ^= *self.random >> 12;
        *self.random ^= *self.random << 25;
        *self.random ^= *self.random >> 27;
        self.random.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

/// Whether all pending output is below its limits, each shifted to the right.
#[inline]
fn has_room(output: &Output, shift: u32) -> bool {
    output.pending_own() < HIGH_WATER_BYTES >> shift
        && output.has_fewer_inserts(HIGH_WATER_SHARED_BYTES >> shift, HIGH_WATER_FILE_BYTES >> shift)
}
