//! Output of a connection, when it may leave, and how its peer takes it.
//!
//! Output leaves at the end of the turn, unless the service holds it until something is durable, or it waits for more
//! of a fan-out. The flags say in which lists the connection is; those lists know slots and outlive connections, so a
//! slot that is used again keeps these flags.

use crate::output::{BufferPool, Output};

#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent flags of an output")]
pub(crate) struct LinkOutput {
    pending: Output,
    /// Output waits until the service releases it.
    is_held: bool,
    /// Output passed the high-water mark; `drained` is called once it has drained.
    is_congested: bool,
    /// In the list of connections to flush, which knows slots only: it outlives the connection.
    is_dirty: bool,
    /// In the queue of fan-outs, which knows slots only, too.
    is_in_fan_outs: bool,
    /// Output in memory after the last flush, as counted for the shard; `None` if no output was left, not even in
    /// files.
    unsent_bytes: Option<u32>,
    /// When the socket last accepted output.
    last_progress_ms: u64,
}

impl LinkOutput {
    /// Forgets the connection, whose slot is free now. Returns how many bytes no longer count as unsent.
    pub(super) fn reset(&mut self) -> u64 {
        let unsent_bytes = self.unsent_bytes();
        let Self { is_dirty, is_in_fan_outs, last_progress_ms, .. } = *self;
        *self = Self { is_dirty, is_in_fan_outs, last_progress_ms, ..Self::default() };
        unsent_bytes
    }

    /// What is not encoded by a layer, nor accepted by the socket.
    #[inline]
    pub(crate) fn pending(&self) -> &Output {
        &self.pending
    }

    pub(super) fn pending_mut(&mut self) -> &mut Output {
        &mut self.pending
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The output to append to, with a buffer.
    #[inline]
    pub(super) fn append_with(&mut self, pool: &mut BufferPool) -> &mut Output {
        pool.assign_buffer(&mut self.pending);
        &mut self.pending
    }

    /// Discards the output, held or not.
    pub(super) fn discard(&mut self) {
        self.is_held = false;
        self.pending = Output::default();
    }

    /// Holds back pending and future output.
    pub(crate) fn hold(&mut self) {
        self.is_held = true;
    }

    /// Ends the hold. Returns whether there was one.
    pub(crate) fn end_hold(&mut self) -> bool {
        std::mem::take(&mut self.is_held)
    }

    /// Discards held output, and ends the hold.
    pub(crate) fn discard_held(&mut self) {
        if self.end_hold() {
            self.pending.clear();
        }
    }

    /// Has `drained` called once the output has drained.
    #[inline]
    pub(crate) fn set_congested(&mut self) {
        self.is_congested = true;
    }

    /// Returns whether `drained` is to be called, now that the output has drained.
    #[inline]
    pub(crate) fn end_congestion(&mut self) -> bool {
        std::mem::take(&mut self.is_congested)
    }

    /// Returns whether the connection is to join the list of connections to flush: it is not in it.
    #[inline]
    pub(super) fn mark_dirty(&mut self) -> bool {
        !std::mem::replace(&mut self.is_dirty, true)
    }

    /// Returns whether the connection is to join the queue of fan-outs: it is neither in it nor in the list of
    /// connections to flush.
    #[inline]
    pub(super) fn join_fan_outs(&mut self) -> bool {
        !self.is_dirty && !std::mem::replace(&mut self.is_in_fan_outs, true)
    }

    /// The connection has left the queue of fan-outs. Returns whether no other flush of it is scheduled.
    #[inline]
    pub(super) fn leave_fan_outs(&mut self) -> bool {
        self.is_in_fan_outs = false;
        !self.is_dirty
    }

    /// The connection has left the list of connections to flush. Returns whether its output may leave.
    #[inline]
    pub(super) fn begin_flush(&mut self) -> bool {
        self.is_dirty = false;
        !self.is_held
    }

    /// The socket has accepted output.
    #[inline]
    pub(super) fn note_progress(&mut self, now_ms: u64) {
        self.last_progress_ms = now_ms;
    }

    /// When the socket last accepted output; `None` if the last flush left nothing.
    pub(crate) fn waits_since_ms(&self) -> Option<u64> {
        self.unsent_bytes.map(|_| self.last_progress_ms)
    }

    /// Output in memory as last counted, bytes.
    pub(super) fn unsent_bytes(&self) -> u64 {
        self.unsent_bytes.map_or(0, u64::from)
    }

    /// Whether the last flush left output.
    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        self.unsent_bytes.is_some()
    }

    /// Counts what a flush has left, with `encoded` bytes of a layer. Returns whether it left any.
    pub(super) fn count_unsent(&mut self, encoded: usize) -> bool {
        let in_memory = self.pending.pending_memory() + encoded;
        let is_left = in_memory + self.pending.pending_files() > 0;
        self.unsent_bytes = is_left.then(|| u32::try_from(in_memory).unwrap_or(u32::MAX));
        is_left
    }
}
