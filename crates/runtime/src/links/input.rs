//! Input of a connection that its service has not consumed, and whether it may be read and offered again.
//!
//! Input that the service does not consume is kept: most of the time there is none, and an idle connection then owns no
//! memory. While a connection is held, or has work to pay for, its socket is not read.

use std::io::{self, Read};

use crate::work::pay_debt;

/// Size of the read buffer that all connections of a shard share.
pub(crate) const READ_BUFFER_BYTES: usize = 128 * 1024;
/// Smallest read into a buffer that the connection owns.
const READ_BYTES_MIN: usize = 4096;
/// Size from which on the memory of a packet grows fourfold, bytes.
const LARGE_BYTES: usize = 1024 * 1024;

#[derive(Debug, Default)]
pub(crate) struct LinkInput {
    /// Unconsumed input: part of a packet, or the input of a held connection.
    partial: Vec<u8>,
    /// Length of the packet at the start of `partial`, if known.
    next_len: u32,
    /// Work done beyond the connection's share, units.
    debt: u32,
    /// The turn in which the input of the held connection was offered last.
    offered_turn: u64,
    /// In the driver's queue of held connections.
    is_held: bool,
    /// The peer has closed the connection, or its direction of it. Input from before may not have been handled yet.
    has_ended: bool,
    /// In the driver's list of sockets to read later, which knows slots only: it outlives the connection.
    reads_later: bool,
}

impl LinkInput {
    /// Forgets the connection, whose slot is free now.
    pub(super) fn reset(&mut self) {
        *self = Self { reads_later: self.reads_later, ..Self::default() };
    }

    /// Number of unconsumed bytes.
    pub(crate) fn len(&self) -> usize {
        self.partial.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.partial.is_empty()
    }

    /// Memory of the unconsumed bytes.
    pub(super) fn memory(&self) -> usize {
        self.partial.capacity()
    }

    /// The buffer that a layer appends decoded input to.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.partial
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.partial.extend_from_slice(bytes);
    }

    /// Takes the unconsumed bytes, to offer them or to hand them over.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.partial)
    }

    /// Moves the unconsumed bytes to the front of the shared buffer.
    pub(crate) fn move_to(&mut self, buffer: &mut [u8]) {
        buffer[..self.partial.len()].copy_from_slice(&self.partial);
        self.partial.clear();
    }

    /// Whether the next packet is larger than the shared buffer. It is read in place; otherwise every read would copy
    /// it.
    pub(crate) fn reads_in_place(&self) -> bool {
        !self.partial.is_empty() && self.partial.len() + self.next_len as usize > READ_BUFFER_BYTES
    }

    /// Reads once behind the unconsumed bytes. Returns the outcome and the most that could have been read.
    pub(crate) fn read_in_place(&mut self, socket: &mut impl Read) -> (io::Result<usize>, usize) {
        let (len, packet_len) = (self.partial.len(), self.next_len as usize);
        let room = packet_len.saturating_sub(len).clamp(READ_BYTES_MIN, READ_BUFFER_BYTES);
        reserve_packet(&mut self.partial, packet_len);
        self.partial.resize(len + room, 0);
        let outcome = socket.read(&mut self.partial[len..]);
        self.partial.truncate(len + outcome.as_ref().copied().unwrap_or(0));
        (outcome, room)
    }

    /// The service was offered input. What it has left is a packet of `next_len` bytes, if that is known.
    #[inline]
    pub(crate) fn end_offer(&mut self, next_len: usize, debt: u32) {
        self.next_len = next_len as u32;
        self.debt = debt;
    }

    /// Keeps what the service has left of a shared buffer.
    #[inline]
    pub(crate) fn keep_rest(&mut self, rest: &[u8]) {
        if !rest.is_empty() {
            self.partial.reserve_exact(rest.len());
            self.partial.extend_from_slice(rest);
        } else if self.partial.capacity() > 0 {
            self.partial = Vec::new();
        }
    }

    /// Keeps a buffer of unconsumed bytes that the connection owns.
    pub(crate) fn set(&mut self, input: Vec<u8>) {
        self.partial = input;
    }

    /// Notes whether the peer has closed the connection, or its direction of it.
    pub(crate) fn note_end(&mut self, has_ended: bool) {
        self.has_ended |= has_ended;
    }

    /// Whether the peer has closed the connection, or its direction of it.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Work done beyond the connection's share, units.
    #[inline]
    pub(crate) fn debt(&self) -> u32 {
        self.debt
    }

    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.is_held
    }

    /// The connection has joined the queue of held connections.
    pub(crate) fn hold(&mut self) {
        self.is_held = true;
    }

    /// Whether held input was offered in this turn before; it now was.
    pub(crate) fn was_offered_in(&mut self, turn: u64) -> bool {
        std::mem::replace(&mut self.offered_turn, turn) == turn
    }

    /// Pays the debt from a share, and ends the hold if some of the share is left. Returns what is left.
    pub(crate) fn end_hold(&mut self, share: u64) -> Option<u64> {
        let allowance = pay_debt(&mut self.debt, share)?;
        self.is_held = false;
        Some(allowance)
    }

    /// Returns whether the connection is to join the list of sockets to read later: it is not in it.
    pub(crate) fn read_later(&mut self) -> bool {
        !std::mem::replace(&mut self.reads_later, true)
    }

    /// The connection has left the list of sockets to read later.
    pub(crate) fn read_now(&mut self) {
        self.reads_later = false;
    }
}

/// Allocates memory for more of a large packet. Growing to the double each time would copy it more often, the last time
/// half of it at once.
fn reserve_packet(partial: &mut Vec<u8>, packet_len: usize) {
    let len = partial.len();
    let missing = packet_len.saturating_sub(len);
    if len >= LARGE_BYTES && partial.capacity() - len < missing.min(READ_BUFFER_BYTES) {
        partial.reserve_exact(missing.min(3 * len));
    }
}
