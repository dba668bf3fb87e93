//! The seam: what a service is told, and all that it may do.

use std::net::IpAddr;

use crate::links::{ConnId, Links, Phase};
use crate::mailbox::Mailboxes;
use crate::output::Output;
use crate::timer::Wheel;

/// Output pending on one connection from which on the connection counts as congested, bytes.
const HIGH_WATER_BYTES: usize = 256 * 1024;
/// The same for payloads that are shared: they cost memory once, however many connections wait for them.
const HIGH_WATER_SHARED_BYTES: usize = 4 * 1024 * 1024;
/// The same for ranges of files, which cost no memory of ours: whoever has this much to read needs no more.
const HIGH_WATER_FILE_BYTES: usize = 4 * 1024 * 1024;

/// A connection whose socket has taken nothing for this long is stalled, not merely behind.
const STALLED_MS: u64 = 500;

/// One door's code on one shard. The driver calls it, one call at a time, from the shard's thread.
pub trait Service: Sized {
    /// What the service's instances on different shards say to each other.
    type Mail: Send + 'static;

    /// A connection has been accepted on listener number `listener`.
    fn accepted(&mut self, io: &mut Io<'_, Self::Mail>, conn: ConnId, listener: usize);

    /// Input has come. `bytes` begins where the service last stopped consuming.
    fn received(&mut self, io: &mut Io<'_, Self::Mail>, conn: ConnId, bytes: &[u8]) -> Received;

    /// An output that had been congested ([`Io::output_if_room`] refused) has drained.
    fn drained(&mut self, io: &mut Io<'_, Self::Mail>, conn: ConnId);

    /// The peer has closed the connection or it has failed. Not called after [`Io::close`].
    fn closed(&mut self, io: &mut Io<'_, Self::Mail>, conn: ConnId);

    /// Mail from the service on shard `from`.
    fn mail(&mut self, io: &mut Io<'_, Self::Mail>, from: usize, mail: Self::Mail);

    /// A timer set with [`Io::set_timer`] is due.
    fn timer(&mut self, io: &mut Io<'_, Self::Mail>, token: u64);

    /// A turn begins: its mail and input come next.
    fn turn_begins(&mut self, io: &mut Io<'_, Self::Mail>);

    /// Whether held connections ([`Received::hold`]) may be offered their input again in this turn.
    fn takes_held(&mut self, io: &mut Io<'_, Self::Mail>) -> bool;

    /// The turn's input has been handled; output leaves right after.
    fn turn_ends(&mut self, io: &mut Io<'_, Self::Mail>);

    /// The process is to end: say goodbye and close what is open.
    fn drain(&mut self, io: &mut Io<'_, Self::Mail>);
}

/// What became of the input given to [`Service::received`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Bytes the service is done with.
    pub consumed: usize,
    /// Length of the packet that begins behind them, if its header was complete; otherwise 0.
    pub next_len: usize,
    /// The service wants no more input of this connection for now, although whole packets may wait: the
    /// driver keeps what it has, reads no further, and offers it again while [`Service::takes_held`].
    pub hold: bool,
}

/// What one shard's input and output has cost so far.
#[derive(Clone, Copy, Debug, Default)]
#[expect(missing_docs, reason = "each counts what its name says, since the start of the shard")]
pub struct IoStats {
    pub turns: u64,
    pub reads: u64,
    pub writes: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

/// Time as a service sees it: read once per turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// Milliseconds of a clock that never goes back; its zero is the start of the process.
    pub now_ms: u64,
    /// Milliseconds since 1970.
    pub unix_ms: u64,
}

/// Everything a service can do to the world outside.
pub struct Io<'a, M> {
    /// Time of this turn.
    pub clock: Clock,
    /// This shard's number.
    pub shard: usize,
    /// Counts of this shard's driver.
    pub stats: IoStats,
    pub(crate) others_wait: bool,
    pub(crate) links: &'a mut Links,
    pub(crate) timers: &'a mut Wheel,
    pub(crate) post: &'a dyn Mailboxes,
    pub(crate) outbox: &'a mut [Vec<M>],
    pub(crate) random: &'a mut u64,
    /// What is set in the tokens of timers, to tell whose they are.
    pub(crate) timer_mark: u64,
}

/// The bit of a timer's token that services leave alone: it tells two services apart that share a shard.
pub const TIMER_MARK: u64 = 1 << 63;

impl<M> Io<'_, M> {
    /// The same for one of several services that share the shard: its mail is gathered in `outbox`, one for each
    /// shard, for the caller to send. `timer_mark` is set in the tokens of its timers.
    pub fn narrow<'b, N>(&'b mut self, outbox: &'b mut [Vec<N>], timer_mark: u64) -> Io<'b, N> {
        debug_assert_eq!(outbox.len(), self.post.shards());
        Io {
            clock: self.clock,
            shard: self.shard,
            stats: self.stats,
            others_wait: self.others_wait,
            links: self.links,
            timers: self.timers,
            post: self.post,
            outbox,
            random: self.random,
            timer_mark,
        }
    }

    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.post.shards()
    }

    /// The connection's output, to be flushed at the end of the turn; nothing if the connection is gone.
    pub fn output(&mut self, conn: ConnId) -> Option<&mut Output> {
        let link = self.links.get_mut(conn)?;
        if link.phase != Phase::Open {
            return None;
        }
        self.links.mark_dirty(conn.slot);
        let link = &mut self.links.slots[conn.slot()];
        self.links.pool.equip(&mut link.output);
        Some(&mut link.output)
    }

    /// Keeps what waits in the connection's output, and what comes to it, until [`Io::release_output`].
    pub fn hold_output(&mut self, conn: ConnId) {
        if let Some(link) = self.links.get_mut(conn) {
            link.holds_output = true;
        }
    }

    /// Lets go what has been held back. It leaves at the end of the turn.
    pub fn release_output(&mut self, conn: ConnId) {
        if let Some(link) = self.links.get_mut(conn)
            && std::mem::take(&mut link.holds_output)
        {
            self.links.mark_dirty(conn.slot);
        }
    }

    /// Throws away what has been held back, and lets go what comes from here on.
    pub fn discard_output(&mut self, conn: ConnId) {
        if let Some(link) = self.links.get_mut(conn)
            && std::mem::take(&mut link.holds_output)
        {
            link.output.clear();
        }
    }

    /// As [`Io::output`], but nothing if more than a fair share of bytes waits there already; then
    /// [`Service::drained`] is called once they have left.
    pub fn output_if_room(&mut self, conn: ConnId) -> Option<&mut Output> {
        let link = self.links.get_mut(conn)?;
        if !has_room(&link.output, 1) {
            link.congested = true;
            return None;
        }
        self.output(conn)
    }

    /// Whether less than half of that waits; if more, [`Service::drained`] is called once it has left.
    pub fn has_ample_room(&mut self, conn: ConnId) -> bool {
        let Some(link) = self.links.get_mut(conn) else { return false };
        let ample = has_room(&link.output, 2);
        link.congested |= !ample;
        ample
    }

    /// Whether more output waits than [`Io::output_if_room`] adds to.
    pub fn is_congested(&self, conn: ConnId) -> bool {
        self.links.get(conn).is_some_and(|link| !has_room(&link.output, 1))
    }

    /// Whether output waits and the connection's socket has long taken none: its peer does not read.
    pub fn is_stalled(&self, conn: ConnId) -> bool {
        let is_late = |moved_ms: u64| self.clock.now_ms >= moved_ms + STALLED_MS;
        self.links.get(conn).is_none_or(|link| link.left_bytes.is_some() && is_late(link.moved_ms))
    }

    /// Bytes of output in memory that sockets have not taken, over all connections of this shard.
    pub fn backlog_bytes(&self) -> u64 {
        self.links.backlog_bytes
    }

    /// Number of connections of this shard.
    pub fn connections(&self) -> usize {
        self.links.open_count()
    }

    /// Where the peer is, during [`Service::accepted`] only: it is kept by whoever needs it. Nothing if it has gone
    /// already, or under a driver without sockets.
    pub fn peer(&self) -> Option<IpAddr> {
        self.links.arriving
    }

    /// Whether the connection is still there.
    pub fn is_open(&self, conn: ConnId) -> bool {
        self.links.get(conn).is_some_and(|link| link.phase == Phase::Open)
    }

    /// Lets the kernel confirm what has been received at once, although nothing is sent in answer. A peer that
    /// coalesces its own small writes (RFC 896) holds back the next until then, for some 40 ms.
    pub fn confirm_receipt(&mut self, conn: ConnId) {
        if self.links.get(conn).is_some() {
            self.links.quick.push(conn.slot);
        }
    }

    /// Ends a connection after its output has left; what is held back is thrown away. The service hears no more of it.
    pub fn close(&mut self, conn: ConnId) {
        self.discard_output(conn);
        if let Some(link) = self.links.get_mut(conn)
            && link.phase == Phase::Open
        {
            link.phase = Phase::Closing;
            self.links.leaving.push(conn.slot);
        }
    }

    /// Whether something waits to be sent to a connection.
    pub fn has_output(&self, conn: ConnId) -> bool {
        self.links.get(conn).is_some_and(|link| !link.output.is_empty())
    }

    /// Moves a connection to another shard, where it is accepted anew and offered all input that is not
    /// consumed. Nothing may wait to be sent to it. The service here hears no more of it.
    pub fn hand_over(&mut self, conn: ConnId, shard: usize) {
        if let Some(link) = self.links.get_mut(conn)
            && link.phase == Phase::Open
        {
            debug_assert!(link.output.is_empty());
            link.phase = Phase::Moving(shard as u16);
            self.links.leaving.push(conn.slot);
        }
    }

    /// Sends mail to another shard; it leaves at the end of the turn and keeps its order.
    pub fn send(&mut self, shard: usize, mail: M) {
        debug_assert_ne!(shard, self.shard, "mail to oneself");
        self.outbox[shard].push(mail);
    }

    /// Whether some other shard's mailbox is full. Whoever causes mail should then hold its input.
    pub fn congested(&self) -> bool {
        (0..self.shards())
            .any(|to| to != self.shard && self.post.is_full(self.shard, to, self.outbox[to].len()))
    }

    /// Whether held connections waited before this input came; false while they themselves are offered theirs.
    pub fn others_wait(&self) -> bool {
        self.others_wait
    }

    /// Asks for another turn at once, whatever happens outside.
    pub fn again_soon(&mut self) {
        self.links.soon = true;
    }

    /// Lets [`Service::timer`] be called with `token` at `at_ms` of [`Clock::now_ms`] or a few ms later.
    pub fn set_timer(&mut self, at_ms: u64, token: u64) {
        self.timers.set(at_ms, token | self.timer_mark);
    }

    /// A pseudo-random number (xorshift64*, Vigna 2016): for tie-breaks and names, not for secrets.
    pub fn random(&mut self) -> u64 {
        *self.random ^= *self.random >> 12;
        *self.random ^= *self.random << 25;
        *self.random ^= *self.random >> 27;
        self.random.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

/// Whether less than one `part`th of what may wait in an output does.
fn has_room(output: &Output, part: usize) -> bool {
    output.pending_own() < HIGH_WATER_BYTES / part
        && output.pending_shared() < HIGH_WATER_SHARED_BYTES / part
        && output.pending_files() < HIGH_WATER_FILE_BYTES / part
}
