//! Connection slots: what a shard knows of each connection besides its socket.

use std::net::IpAddr;

use crate::output::{BufferPool, Output};

/// Names one connection of one shard. A slot is used again after its connection has gone, with another
/// generation, so a stale identifier finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl ConnId {
    /// Index into tables kept beside the connections; small and dense.
    pub fn slot(self) -> usize {
        self.slot as usize
    }

    /// Which tenant of the slot this is.
    pub fn generation(self) -> u32 {
        self.generation
    }

    /// The identifier with this slot and generation, for services that store the two apart.
    pub fn from_parts(slot: u32, generation: u32) -> Self {
        Self { slot, generation }
    }
}

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nobody has the slot.
    Free,
    Open,
    /// The service is done with it: what is in the output still leaves, input is thrown away.
    Closing,
    /// The end has been sent, or will be when the output has left; the peer has a moment to read it.
    Lingering,
    /// The service wants the socket on this shard instead.
    Moving(u16),
}

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "facts about a connection, independent of each other")]
pub(crate) struct Link {
    pub(crate) generation: u32,
    pub(crate) phase: Phase,
    /// Number of the listener that accepted it.
    pub(crate) listener: usize,
    pub(crate) dirty: bool,
    /// Its output waits for a word of the service.
    pub(crate) holds_output: bool,
    /// Output passed the high-water mark; the service wants to hear when it has drained.
    pub(crate) congested: bool,
    /// Waits in the driver's queue of held connections; its socket is not read.
    pub(crate) held: bool,
    /// Output in memory that the last flush left behind, as counted in [`Links::backlog_bytes`]; nothing if it left
    /// none, not even in files.
    pub(crate) left_bytes: Option<u32>,
    /// When the socket last took output.
    pub(crate) moved_ms: u64,
    /// Length of the packet that `partial` begins, if known.
    pub(crate) next_len: u32,
    pub(crate) output: Output,
    /// Input not yet taken by the service: part of a packet, or what a held connection has read already.
    pub(crate) partial: Vec<u8>,
}

/// All connections of one shard.
#[derive(Debug, Default)]
pub(crate) struct Links {
    pub(crate) slots: Vec<Link>,
    free: Vec<u32>,
    pub(crate) dirty: Vec<u32>,
    pub(crate) pool: BufferPool,
    /// Connections that `Io::close` or `Io::hand_over` touched this turn.
    pub(crate) leaving: Vec<u32>,
    /// Output in memory of all connections that their sockets have not taken, as of their last flush.
    pub(crate) backlog_bytes: u64,
    /// Connections whose peers should hear at once that their bytes arrived.
    pub(crate) quick: Vec<u32>,
    /// The service asked for another turn at once.
    pub(crate) soon: bool,
    /// The other end of the connection that the service is being told of.
    pub(crate) arriving: Option<IpAddr>,
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
            listener: 0,
            dirty: false,
            holds_output: false,
            congested: false,
            held: false,
            left_bytes: None,
            moved_ms: 0,
            next_len: 0,
            output: Output::default(),
            partial: Vec::new(),
        });
        ConnId { slot, generation: 1 }
    }

    /// Frees the slot; the connection's identifier is stale from here on.
    pub(crate) fn release(&mut self, slot: u32) {
        let link = &mut self.slots[slot as usize];
        debug_assert_ne!(link.phase, Phase::Free);
        link.phase = Phase::Free;
        link.generation = link.generation.wrapping_add(1);
        link.holds_output = false;
        link.congested = false;
        link.held = false;
        link.next_len = 0;
        self.backlog_bytes -= link.left_bytes.take().map_or(0, u64::from);
        link.output = Output::default();
        link.partial = Vec::new();
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

    /// Lets the connection's output be flushed at the end of the turn.
    pub(crate) fn mark_dirty(&mut self, slot: u32) {
        let link = &mut self.slots[slot as usize];
        if !std::mem::replace(&mut link.dirty, true) {
            self.dirty.push(slot);
        }
    }

    /// Notes what a flush did.
    pub(crate) fn flushed(&mut self, slot: u32, written: usize, now_ms: u64) {
        let link = &mut self.slots[slot as usize];
        let left = u32::try_from(link.output.pending_memory()).unwrap_or(u32::MAX);
        let left_before = link.left_bytes.map_or(0, u64::from);
        self.backlog_bytes = self.backlog_bytes + u64::from(left) - left_before;
        link.left_bytes = (!link.output.is_empty()).then_some(left);
        if written > 0 {
            link.moved_ms = now_ms;
        }
    }

    pub(crate) fn open_count(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
