//! Connection slots: the state of each connection of a shard, except its socket.
//!
//! A slot is reused after its connection is closed. The generation in [`ConnId`] makes stale identifiers resolve to
//! nothing. The lists in [`Links`] collect the connections that need work at the end of the turn.

use std::any::Any;
use std::io;
use std::net::IpAddr;

use crate::admission::Permit;
use crate::file::Sink;
use crate::listener::ProtocolTag;
use crate::output::{BufferPool, Flushed, Output};
use crate::transport::Transport;

/// Identifier of a connection within its shard. A reused slot has another generation, so a stale identifier resolves
/// to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl ConnId {
    /// Slot index, small and dense, suitable for side tables.
    pub fn slot(self) -> usize {
        self.slot as usize
    }

    /// Generation of the slot.
    pub fn generation(self) -> u32 {
        self.generation
    }

    /// Rebuilds an identifier from its parts, for services that store them separately.
    pub fn from_parts(slot: u32, generation: u32) -> Self {
        Self { slot, generation }
    }
}

/// What a service hands over with a connection to its counterpart on another shard.
pub(crate) type Baggage = Option<Box<dyn Any + Send>>;

/// Life cycle phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The slot is unused.
    Free,
    Open,
    /// Closed by the service: pending output is still sent, input is discarded.
    Closing,
    /// The write side is shut down, or will be once the output is sent. The peer has a grace period to read it.
    Lingering,
    /// Being handed over to this shard.
    Moving(u16),
}

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent flags of a connection")]
pub(crate) struct Link {
    pub(crate) generation: u32,
    pub(crate) phase: Phase,
    /// Protocol of the listener that accepted it.
    pub(crate) protocol: ProtocolTag,
    pub(crate) dirty: bool,
    /// Output is held until the service releases it.
    pub(crate) holds_output: bool,
    /// Output passed the high-water mark; `drained` is called once it has drained.
    pub(crate) congested: bool,
    /// In the driver's queue of held connections; its socket is not read.
    pub(crate) held: bool,
    /// The handshake of its transport is not complete.
    pub(crate) is_handshaking: bool,
    /// In the driver's list of sockets to read in the next turn.
    pub(crate) reads_later: bool,
    /// Work done beyond the connection's share, units.
    pub(crate) debt: u32,
    /// Output in memory after the last flush, as counted in [`Links::backlog_bytes`]; `None` if no output was left, not
    /// even in files.
    pub(crate) unsent_bytes: Option<u32>,
    /// Memory of its buffers, as counted in [`Links::memory`].
    charged_bytes: usize,
    /// When the socket last accepted output.
    pub(crate) last_progress_ms: u64,
    /// Its share in the counts of open connections; `None` without a socket.
    pub(crate) permit: Option<Permit>,
    /// Input that may still be read and discarded while it lingers, bytes.
    pub(crate) linger_bytes: u32,
    /// Length of the packet at the start of `partial`, if known.
    pub(crate) next_len: u32,
    pub(crate) transport: Transport,
    pub(crate) output: Output,
    /// Unconsumed input: part of a packet, or the input of a held connection.
    pub(crate) partial: Vec<u8>,
    /// What its service hands over with it.
    pub(crate) baggage: Baggage,
}

impl Link {
    /// Whether bytes wait for the socket, encoded or not.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        !self.output.is_empty() || self.transport.pending() > 0
    }

    /// Whether the peer has ended the layer's stream, the service was offered all input before it, and does not know.
    pub(crate) fn has_ended(&self) -> bool {
        self.phase == Phase::Open && !self.held && self.transport.input_has_ended()
    }

    /// Returns the buffers to the pool when nothing is left to send.
    #[inline]
    pub(crate) fn reclaim_buffers(&mut self, pool: &mut BufferPool) {
        pool.reclaim(&mut self.output);
        self.transport.reclaim(pool);
    }

    /// Writes as much as the socket accepts.
    ///
    /// # Errors
    /// As for [`Output::write_to`].
    #[inline]
    pub(crate) fn write_to(&mut self, socket: &mut impl Sink, calls: &mut u64) -> io::Result<Flushed> {
        self.transport.write(&mut self.output, socket, calls)
    }

    /// Writes everything that may leave to a vector and returns the number of bytes.
    ///
    /// # Errors
    /// As for [`Output::write_to`].
    pub(crate) fn drain_to(&mut self, sink: &mut Vec<u8>) -> io::Result<usize> {
        let before = sink.len();
        while self.write_to(sink, &mut 0)?.yields {}
        Ok(sink.len() - before)
    }
}

/// All connections of one shard.
#[derive(Debug, Default)]
pub(crate) struct Links {
    pub(crate) slots: Vec<Link>,
    free: Vec<u32>,
    pub(crate) dirty: Vec<u32>,
    pub(crate) pool: BufferPool,
    /// Connections closed or handed over in this turn.
    pub(crate) pending_close: Vec<u32>,
    /// Pending output in memory of all connections after their last flush, bytes.
    pub(crate) backlog_bytes: u64,
    /// Memory of the buffers of all connections, bytes.
    charged_bytes: usize,
    /// Number of connections whose handshake is not complete.
    pub(crate) handshaking: usize,
    /// Connections that need an immediate TCP ACK.
    pub(crate) quickack: Vec<u32>,
    /// The service requested another turn.
    pub(crate) turn_requested: bool,
    /// Peer address of the connection passed to `accepted`.
    pub(crate) accepting_peer: Option<IpAddr>,
    /// What another shard has handed over with the connection passed to `accepted`.
    pub(crate) accepting_baggage: Baggage,
}

impl Links {
    pub(crate) fn open(&mut self) -> ConnId {
        if let Some(slot) = self.free.pop() {
            let link = &mut self.slots[slot as usize];
            link.phase = Phase::Open;
            return ConnId { slot, generation: link.generation };
        }
        let slot = self.slots.len() as u32;
        self.slots.push(Link {
            generation: 1,
            phase: Phase::Open,
            protocol: ProtocolTag::default(),
            dirty: false,
            holds_output: false,
            congested: false,
            held: false,
            is_handshaking: false,
            reads_later: false,
            debt: 0,
            unsent_bytes: None,
            charged_bytes: 0,
            last_progress_ms: 0,
            permit: None,
            linger_bytes: 0,
            next_len: 0,
            transport: Transport::Plain,
            output: Output::default(),
            partial: Vec::new(),
            baggage: None,
        });
        ConnId { slot, generation: 1 }
    }

    /// Frees the slot and invalidates the connection's identifier.
    pub(crate) fn release(&mut self, slot: u32) {
        self.end_handshake(slot);
        let link = &mut self.slots[slot as usize];
        debug_assert_ne!(link.phase, Phase::Free);
        link.phase = Phase::Free;
        link.generation = link.generation.wrapping_add(1);
        link.holds_output = false;
        link.congested = false;
        link.held = false;
        link.debt = 0;
        link.permit = None;
        link.next_len = 0;
        self.backlog_bytes -= link.unsent_bytes.take().map_or(0, u64::from);
        link.transport = Transport::Plain;
        link.output = Output::default();
        link.partial = Vec::new();
        link.baggage = None;
        self.charged_bytes -= std::mem::take(&mut link.charged_bytes);
        self.free.push(slot);
    }

    pub(crate) fn get(&self, conn: ConnId) -> Option<&Link> {
        let link = self.slots.get(conn.slot())?;
        (link.phase != Phase::Free && link.generation == conn.generation).then_some(link)
    }

    pub(crate) fn get_mut(&mut self, conn: ConnId) -> Option<&mut Link> {
        let link = self.slots.get_mut(conn.slot())?;
        (link.phase != Phase::Free && link.generation == conn.generation).then_some(link)
    }

    pub(crate) fn id(&self, slot: u32) -> ConnId {
        ConnId { slot, generation: self.slots[slot as usize].generation }
    }

    /// Sets the protocol and transport of a connection that was just opened. A layer that another shard handed over may
    /// have bytes to send.
    pub(crate) fn set_transport(&mut self, slot: u32, protocol: ProtocolTag, transport: Transport) {
        let link = &mut self.slots[slot as usize];
        link.protocol = protocol;
        link.transport = transport;
        link.is_handshaking = link.transport.is_handshaking();
        self.handshaking += usize::from(link.is_handshaking);
        if link.has_pending() {
            self.mark_dirty(slot);
        }
    }

    /// Decodes bytes from the socket of a connection that has a layer. Returns all unconsumed input if there is more of
    /// it than before and the service may be offered it; otherwise retains it.
    pub(crate) fn decode(&mut self, slot: u32, received: &[u8]) -> Option<Vec<u8>> {
        let link = &mut self.slots[slot as usize];
        let rest_len = link.partial.len();
        link.transport.receive(received, &mut link.partial);
        if link.is_handshaking && !link.transport.is_handshaking() {
            self.end_handshake(slot);
        }
        let link = &mut self.slots[slot as usize];
        let takes_input = link.phase == Phase::Open && !link.held && link.partial.len() > rest_len;
        let input = takes_input.then(|| std::mem::take(&mut link.partial));
        self.count_memory(slot);
        let link = &mut self.slots[slot as usize];
        // The layer may have responded, or have completed the handshake that output waited for.
        if link.has_pending() {
            self.mark_dirty(slot);
        }
        input
    }

    /// Counts a connection no more as one in its handshake.
    pub(crate) fn end_handshake(&mut self, slot: u32) {
        let link = &mut self.slots[slot as usize];
        self.handshaking -= usize::from(std::mem::take(&mut link.is_handshaking));
    }

    /// Closes a connection whose peer has ended the layer's stream. Output that is not encoded yet is discarded.
    pub(crate) fn close_ended(&mut self, slot: u32) {
        let link = &mut self.slots[slot as usize];
        debug_assert_eq!(link.phase, Phase::Open);
        link.phase = Phase::Closing;
        link.holds_output = false;
        link.output = Output::default();
        link.partial = Vec::new();
        self.pending_close.push(slot);
    }

    /// The output of an open connection, which the end of the turn flushes. `None` for another connection, and if
    /// `has_room` is false of the output: the connection is then congested.
    #[inline]
    pub(crate) fn output_if(
        &mut self,
        conn: ConnId,
        has_room: impl FnOnce(&Output) -> bool,
    ) -> Option<&mut Output> {
        let Self { slots, dirty, pool, .. } = self;
        let link = slots.get_mut(conn.slot())?;
        if link.phase != Phase::Open || link.generation != conn.generation {
            return None;
        }
        if !has_room(&link.output) {
            link.congested = true;
            return None;
        }
        if !std::mem::replace(&mut link.dirty, true) {
            dirty.push(conn.slot);
        }
        pool.assign_buffer(&mut link.output);
        Some(&mut link.output)
    }

    /// Schedules a flush of the connection's output at the end of the turn.
    #[inline]
    pub(crate) fn mark_dirty(&mut self, slot: u32) {
        let link = &mut self.slots[slot as usize];
        if !std::mem::replace(&mut link.dirty, true) {
            self.dirty.push(slot);
        }
    }

    /// Updates the backlog after a flush. Returns whether bytes still wait for the socket.
    #[inline]
    pub(crate) fn flushed(&mut self, slot: u32, written: usize, now_ms: u64) -> bool {
        let link = &mut self.slots[slot as usize];
        if written > 0 {
            link.last_progress_ms = now_ms;
        }
        // Most flushes leave nothing behind, as did the one before.
        if link.unsent_bytes.is_none() && !link.has_pending() {
            return false;
        }
        self.count_backlog(slot)
    }

    fn count_backlog(&mut self, slot: u32) -> bool {
        let link = &mut self.slots[slot as usize];
        let in_memory = link.output.pending_memory() + link.transport.pending();
        let unsent = u32::try_from(in_memory).unwrap_or(u32::MAX);
        let unsent_before = link.unsent_bytes.map_or(0, u64::from);
        self.backlog_bytes = self.backlog_bytes + u64::from(unsent) - unsent_before;
        let has_pending = in_memory + link.output.pending_files() > 0;
        link.unsent_bytes = has_pending.then_some(unsent);
        has_pending
    }

    /// Counts the memory of a connection's buffers, which may have changed.
    #[inline]
    pub(crate) fn count_memory(&mut self, slot: u32) {
        let link = &mut self.slots[slot as usize];
        let bytes = link.partial.capacity() + link.output.memory() + link.transport.memory();
        if bytes != link.charged_bytes {
            self.charged_bytes = self.charged_bytes + bytes - link.charged_bytes;
            link.charged_bytes = bytes;
        }
    }

    /// Memory of all connections: their slots, their buffers as last counted, and the pooled buffers.
    pub(crate) fn memory(&self) -> u64 {
        (self.slots.capacity() * size_of::<Link>() + self.charged_bytes + self.pool.memory()) as u64
    }

    pub(crate) fn open_count(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
