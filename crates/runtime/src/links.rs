//! The connections of a shard, in slots.
//!
//! A slot is reused after its connection is closed. The generation in [`ConnId`] makes stale identifiers resolve to
//! nothing. The lists in [`Links`] collect the connections that need work at the end of the turn. Sums over all
//! connections, of unsent output, of memory and of handshakes, are kept as each connection changes, so that reading
//! them costs nothing.

use std::net::IpAddr;

pub(crate) use self::input::READ_BUFFER_BYTES;
pub(crate) use self::link::{Baggage, Link, MovedLink, Phase};
use self::output::LinkOutput;
use crate::admission::Permit;
use crate::fan_outs::FanOuts;
use crate::listener::ProtocolTag;
use crate::output::{BufferPool, Output};
use crate::transport::Transport;

mod input;
mod link;
mod output;

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

/// All connections of one shard.
#[derive(Debug, Default)]
pub(crate) struct Links {
    slots: Vec<Link>,
    free: Vec<u32>,
    /// Connections with output to flush.
    dirty: Vec<u32>,
    pub(crate) fan_outs: FanOuts,
    pool: BufferPool,
    /// Connections closed or handed over in this turn.
    pending_close: Vec<u32>,
    /// Pending output in memory of all connections after their last flush, bytes.
    backlog_bytes: u64,
    /// Memory of the buffers of all connections, bytes.
    charged_bytes: usize,
    /// Number of connections whose handshake is not complete.
    handshaking: usize,
    /// Connections that need an immediate TCP ACK.
    quickack: Vec<u32>,
    /// The service requested another turn.
    turn_requested: bool,
    accepting: Accepting,
}

/// What is known of the connection that is passed to `accepted`, during that call.
#[derive(Debug, Default)]
struct Accepting {
    peer: Option<IpAddr>,
    /// What another shard has handed over with it.
    baggage: Baggage,
}

impl Links {
    pub(crate) fn open(&mut self) -> ConnId {
        if let Some(slot) = self.free.pop() {
            let link = &mut self.slots[slot as usize];
            link.reopen();
            return ConnId { slot, generation: link.generation() };
        }
        let slot = self.slots.len() as u32;
        let link = Link::new();
        let conn = ConnId { slot, generation: link.generation() };
        self.slots.push(link);
        conn
    }

    /// Frees the slot and invalidates the connection's identifier.
    pub(crate) fn release(&mut self, slot: u32) {
        self.end_handshake(slot);
        let (unsent_bytes, charged_bytes) = self.slots[slot as usize].release();
        self.backlog_bytes -= unsent_bytes;
        self.charged_bytes -= charged_bytes;
        self.free.push(slot);
    }

    pub(crate) fn get(&self, conn: ConnId) -> Option<&Link> {
        let link = self.slots.get(conn.slot())?;
        (!link.is_free() && link.generation() == conn.generation).then_some(link)
    }

    pub(crate) fn get_mut(&mut self, conn: ConnId) -> Option<&mut Link> {
        let link = self.slots.get_mut(conn.slot())?;
        (!link.is_free() && link.generation() == conn.generation).then_some(link)
    }

    /// The connection in a slot, or the last one that was.
    #[inline]
    pub(crate) fn slot_mut(&mut self, slot: u32) -> &mut Link {
        &mut self.slots[slot as usize]
    }

    /// The connection in a slot, if there is one.
    pub(crate) fn at(&self, slot: usize) -> Option<&Link> {
        self.slots.get(slot).filter(|link| !link.is_free())
    }

    /// The connection in a slot, if there is one.
    pub(crate) fn at_mut(&mut self, slot: usize) -> Option<&mut Link> {
        self.slots.get_mut(slot).filter(|link| !link.is_free())
    }

    pub(crate) fn id(&self, slot: u32) -> ConnId {
        ConnId { slot, generation: self.slots[slot as usize].generation() }
    }

    /// Sets what is known of the connection that is passed to `accepted` next, and its share in the counts.
    pub(crate) fn begin_accept(&mut self, slot: u32, permit: Option<Permit>, baggage: Baggage) {
        self.accepting = Accepting { peer: permit.as_ref().and_then(Permit::peer), baggage };
        self.slots[slot as usize].set_permit(permit);
    }

    /// `accepted` has returned.
    pub(crate) fn end_accept(&mut self) {
        self.accepting = Accepting::default();
    }

    /// Address of the peer of the connection that is passed to `accepted`.
    pub(crate) fn accepting_peer(&self) -> Option<IpAddr> {
        self.accepting.peer
    }

    /// What another shard has handed over with the connection that is passed to `accepted`.
    pub(crate) fn take_baggage(&mut self) -> Baggage {
        self.accepting.baggage.take()
    }

    /// Sets the protocol and transport of a connection that was just opened. A layer that another shard handed over may
    /// have bytes to send.
    pub(crate) fn set_transport(&mut self, slot: u32, protocol: ProtocolTag, transport: Transport) {
        let link = &mut self.slots[slot as usize];
        self.handshaking += usize::from(link.set_transport(protocol, transport));
        if link.has_pending() {
            self.mark_dirty(slot);
        }
    }

    /// Decodes bytes from the socket of a connection that has a layer. Returns all unconsumed input if there is more of
    /// it than before and the service may be offered it; otherwise retains it.
    pub(crate) fn decode(&mut self, slot: u32, received: &[u8]) -> Option<Vec<u8>> {
        let link = &mut self.slots[slot as usize];
        let (has_more, handshake_ends) = link.decode(received);
        let takes_input = has_more && link.is_open() && !link.input.is_held();
        let input = takes_input.then(|| link.input.take());
        // The layer may have responded, or have completed the handshake that output waited for.
        if link.has_pending() {
            self.mark_dirty(slot);
        }
        if handshake_ends {
            self.end_handshake(slot);
        }
        self.count_memory(slot);
        input
    }

    /// Number of connections whose handshake is not complete.
    pub(crate) fn handshaking(&self) -> usize {
        self.handshaking
    }

    /// Counts a connection no more as one in its handshake.
    pub(crate) fn end_handshake(&mut self, slot: u32) {
        self.handshaking -= usize::from(self.slots[slot as usize].end_handshake());
    }

    /// Closes a connection after its output is flushed; held output is discarded.
    pub(crate) fn close(&mut self, conn: ConnId) {
        let Some(link) = self.get_mut(conn) else { return };
        link.output.discard_held();
        if link.is_open() {
            link.close();
            let has_pending = link.has_pending();
            self.pending_close.push(conn.slot);
            if has_pending {
                // Also what waits for more.
                self.mark_dirty(conn.slot);
            }
        }
    }

    /// Closes a connection whose peer has ended the layer's stream. Output that is not encoded yet is discarded.
    pub(crate) fn close_ended(&mut self, slot: u32) {
        let link = &mut self.slots[slot as usize];
        link.close();
        link.output.discard();
        drop(link.input.take());
        self.pending_close.push(slot);
    }

    /// Hands a connection over to another shard at the end of the turn.
    pub(crate) fn hand_over(&mut self, conn: ConnId, shard: usize) {
        if let Some(link) = self.get_mut(conn).filter(|link| link.is_open()) {
            link.move_to(shard);
            self.pending_close.push(conn.slot);
        }
    }

    /// Whether connections were closed or handed over in this turn.
    pub(crate) fn has_pending_close(&self) -> bool {
        !self.pending_close.is_empty()
    }

    /// Takes the connections closed or handed over in this turn.
    pub(crate) fn take_pending_close(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.pending_close)
    }

    /// Lets a closed connection linger: up to `bytes` of input are read and discarded.
    pub(crate) fn linger(&mut self, slot: u32, bytes: u32) {
        self.end_handshake(slot);
        self.slots[slot as usize].linger(bytes);
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
        let output = with_room(slots, conn, has_room)?;
        if output.mark_dirty() {
            dirty.push(conn.slot);
        }
        Some(output.append_with(pool))
    }

    /// As [`Links::output_if`], but the output is flushed with that of fan-outs.
    #[inline]
    pub(crate) fn fan_out_output_if(
        &mut self,
        conn: ConnId,
        has_room: impl FnOnce(&Output) -> bool,
    ) -> Option<&mut Output> {
        let Self { slots, fan_outs, pool, .. } = self;
        let output = with_room(slots, conn, has_room)?;
        if output.join_fan_outs() {
            fan_outs.push(conn.slot);
        }
        Some(output.append_with(pool))
    }

    /// The next connection of the current round of fan-outs that has output.
    #[inline]
    pub(crate) fn next_fan_out(&mut self) -> Option<u32> {
        loop {
            let slot = self.fan_outs.pop()?;
            let link = &mut self.slots[slot as usize];
            // It may have been flushed with other output, or will be.
            if link.output.leave_fan_outs() && link.has_pending() {
                return Some(slot);
            }
        }
    }

    /// Schedules a flush of all output of fan-outs at the end of the turn.
    pub(crate) fn hurry_fan_outs(&mut self) {
        while !self.fan_outs.is_empty() {
            self.fan_outs.begin_slice();
            while let Some(slot) = self.next_fan_out() {
                self.mark_dirty(slot);
            }
        }
        self.fan_outs.forget_messages();
    }

    /// Schedules a flush of the connection's output at the end of the turn.
    #[inline]
    pub(crate) fn mark_dirty(&mut self, slot: u32) {
        if self.slots[slot as usize].output.mark_dirty() {
            self.dirty.push(slot);
        }
    }

    pub(crate) fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Takes the connections with output to flush.
    pub(crate) fn take_dirty(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.dirty)
    }

    /// Puts back those that are still to be flushed, before those that were added meanwhile.
    pub(crate) fn return_dirty(&mut self, mut dirty: Vec<u32>) {
        dirty.append(&mut self.dirty);
        self.dirty = dirty;
    }

    /// Updates the backlog after a flush. Returns whether bytes still wait for the socket.
    #[inline]
    pub(crate) fn flushed(&mut self, slot: u32, written: usize, now_ms: u64) -> bool {
        let link = &mut self.slots[slot as usize];
        if written > 0 {
            link.output.note_progress(now_ms);
        }
        // Most flushes leave nothing behind, as did the one before.
        if !link.output.has_unsent() && !link.has_pending() {
            return false;
        }
        self.count_backlog(slot)
    }

    fn count_backlog(&mut self, slot: u32) -> bool {
        let link = &mut self.slots[slot as usize];
        let before = link.output.unsent_bytes();
        let has_pending = link.count_unsent();
        self.backlog_bytes = self.backlog_bytes + link.output.unsent_bytes() - before;
        has_pending
    }

    /// Everything that a connection had to send has left: returns its buffers to the pool, and whether `drained` is to
    /// be called.
    #[inline]
    pub(crate) fn drained(&mut self, slot: u32) -> bool {
        let link = &mut self.slots[slot as usize];
        link.reclaim_buffers(&mut self.pool);
        link.output.end_congestion()
    }

    /// Pending output in memory over all connections, as of their last flush, bytes.
    pub(crate) fn backlog_bytes(&self) -> u64 {
        self.backlog_bytes
    }

    /// Counts the memory of a connection's buffers, which may have changed.
    #[inline]
    pub(crate) fn count_memory(&mut self, slot: u32) {
        if let Some((before, bytes)) = self.slots[slot as usize].count_memory() {
            self.charged_bytes = self.charged_bytes + bytes - before;
        }
    }

    /// Memory of all connections: their slots, their buffers as last counted, output of fan-outs that is not counted
    /// yet, and the pooled buffers.
    pub(crate) fn memory(&self) -> u64 {
        let buffers = self.charged_bytes + self.fan_outs.waiting_bytes() + self.pool.memory();
        (self.slots.capacity() * size_of::<Link>() + buffers) as u64
    }

    pub(crate) fn open_count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Requests an immediate TCP ACK at the end of the turn.
    pub(crate) fn request_quickack(&mut self, conn: ConnId) {
        if self.get(conn).is_some() {
            self.quickack.push(conn.slot);
        }
    }

    /// Takes the connections that need an immediate TCP ACK.
    pub(crate) fn drain_quickacks(&mut self) -> impl Iterator<Item = u32> {
        self.quickack.drain(..)
    }

    /// Requests another turn immediately.
    pub(crate) fn request_turn(&mut self) {
        self.turn_requested = true;
    }

    pub(crate) fn is_turn_requested(&self) -> bool {
        self.turn_requested
    }

    /// Returns whether another turn was requested, and forgets it.
    pub(crate) fn take_turn_request(&mut self) -> bool {
        std::mem::take(&mut self.turn_requested)
    }
}

/// Output of an open connection. `None` for another one, and if `has_room` is false of it: it is then congested.
#[inline]
fn with_room(
    slots: &mut [Link],
    conn: ConnId,
    has_room: impl FnOnce(&Output) -> bool,
) -> Option<&mut LinkOutput> {
    let link = slots.get_mut(conn.slot())?;
    if !link.is_open() || link.generation() != conn.generation {
        return None;
    }
    let output = &mut link.output;
    if !has_room(output.pending()) {
        output.set_congested();
        return None;
    }
    Some(output)
}
