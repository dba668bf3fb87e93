//! The state of one connection, except its socket: its phase, its transport, its input and its output.
//!
//! A connection outlives the service's interest in it. After the service has closed it, pending output must still reach
//! the peer, and closing a socket with unread input would make the kernel reset the connection and destroy that output.
//! So it passes from open to closing, and then lingers: its input is read and discarded, up to a limit, until the peer
//! closes.
//!
//! Slots are used again. A generation in each identifier tells a connection from earlier ones of its slot, so an
//! identifier that is kept too long finds nothing.

use std::any::Any;
use std::io;
use std::net::IpAddr;

use super::input::LinkInput;
use super::output::LinkOutput;
use crate::admission::{Permit, client_address};
use crate::file::Sink;
use crate::listener::ProtocolTag;
use crate::output::{BufferPool, Flushed};
use crate::proxy::ProxiedClient;
use crate::transport::Transport;

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
pub(crate) struct Link {
    generation: u32,
    phase: Phase,
    /// Protocol of the listener that accepted it.
    protocol: ProtocolTag,
    transport: Transport,
    /// The handshake of its transport is not complete.
    is_handshaking: bool,
    pub(crate) input: LinkInput,
    pub(crate) output: LinkOutput,
    /// Input that may still be read and discarded while it lingers, bytes.
    linger_bytes: u32,
    /// Memory of its buffers, as last counted.
    charged_bytes: usize,
    /// Its share in the counts of open connections; `None` without a socket.
    permit: Option<Permit>,
    /// What its service hands over with it.
    baggage: Baggage,
}

/// What moves with a connection to another shard, beside its socket.
#[derive(Debug)]
pub(crate) struct MovedLink {
    pub(crate) permit: Option<Permit>,
    pub(crate) protocol: ProtocolTag,
    pub(crate) transport: Transport,
    /// Input that this shard has read but not consumed.
    pub(crate) input: Vec<u8>,
    pub(crate) baggage: Baggage,
}

impl Link {
    pub(super) fn new() -> Self {
        Self {
            generation: 1,
            phase: Phase::Open,
            protocol: ProtocolTag::default(),
            transport: Transport::Plain,
            is_handshaking: false,
            input: LinkInput::default(),
            output: LinkOutput::default(),
            linger_bytes: 0,
            charged_bytes: 0,
            permit: None,
            baggage: None,
        }
    }

    /// Opens a free slot for another connection.
    pub(super) fn reopen(&mut self) {
        debug_assert_eq!(self.phase, Phase::Free);
        self.phase = Phase::Open;
    }

    /// Frees the slot and invalidates the connection's identifier. Returns how many bytes no longer count as unsent,
    /// and how many no longer as memory.
    pub(super) fn release(&mut self) -> (u64, usize) {
        debug_assert_ne!(self.phase, Phase::Free);
        debug_assert!(!self.is_handshaking, "it would count forever");
        self.phase = Phase::Free;
        self.generation = self.generation.wrapping_add(1);
        self.permit = None;
        self.transport = Transport::Plain;
        self.baggage = None;
        self.input.reset();
        (self.output.reset(), std::mem::take(&mut self.charged_bytes))
    }

    #[inline]
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    #[inline]
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    #[inline]
    pub(crate) fn is_free(&self) -> bool {
        self.phase == Phase::Free
    }

    /// Address of the peer; `None` without a socket.
    pub(crate) fn peer(&self) -> Option<IpAddr> {
        self.permit.as_ref()?.peer()
    }

    /// What identifies its client among the connections that wait for their turn.
    pub(crate) fn client_address(&self) -> Option<IpAddr> {
        self.peer().map(client_address)
    }

    /// What a proxy has said about the client.
    pub(crate) fn proxied_client(&self) -> Option<&ProxiedClient> {
        self.permit.as_ref()?.client()
    }

    /// The certificate of the peer, in DER, which the transport has verified.
    pub(crate) fn peer_certificate(&self) -> Option<&[u8]> {
        self.transport.peer_certificate()
    }

    pub(super) fn set_permit(&mut self, permit: Option<Permit>) {
        self.permit = permit;
    }

    /// Returns whether the transport begins with a handshake.
    pub(super) fn set_transport(&mut self, protocol: ProtocolTag, transport: Transport) -> bool {
        self.protocol = protocol;
        self.transport = transport;
        self.is_handshaking = self.transport.is_handshaking();
        self.is_handshaking
    }

    #[inline]
    pub(crate) fn is_layered(&self) -> bool {
        self.transport.is_layered()
    }

    #[inline]
    pub(crate) fn is_handshaking(&self) -> bool {
        self.is_handshaking
    }

    /// Returns whether the connection was in its handshake; it no longer is.
    pub(super) fn end_handshake(&mut self) -> bool {
        std::mem::take(&mut self.is_handshaking)
    }

    /// Decodes bytes from the socket behind the unconsumed input. Returns whether there is more input than before, and
    /// whether the handshake is now complete.
    pub(super) fn decode(&mut self, received: &[u8]) -> (bool, bool) {
        let len = self.input.len();
        self.transport.receive(received, self.input.buffer());
        (self.input.len() > len, self.is_handshaking && !self.transport.is_handshaking())
    }

    /// What its layer has to be charged since the last call, units.
    pub(crate) fn take_charge(&mut self) -> u32 {
        self.transport.take_charge()
    }

    /// Closes the connection. It is read no more.
    pub(super) fn close(&mut self) {
        debug_assert_eq!(self.phase, Phase::Open);
        self.phase = Phase::Closing;
    }

    /// Hands the connection over to a shard.
    pub(super) fn move_to(&mut self, shard: usize) {
        debug_assert!(self.is_open() && self.output.is_empty());
        self.phase = Phase::Moving(shard as u16);
    }

    /// Adds what the service hands over with the connection, if it is being handed over.
    pub(crate) fn set_baggage(&mut self, baggage: Box<dyn Any + Send>) {
        if matches!(self.phase, Phase::Moving(_)) {
            self.baggage = Some(baggage);
        }
    }

    /// Takes what moves with the connection to another shard.
    pub(crate) fn take_moved(&mut self) -> MovedLink {
        debug_assert!(matches!(self.phase, Phase::Moving(_)));
        MovedLink {
            permit: self.permit.take(),
            protocol: self.protocol,
            transport: std::mem::take(&mut self.transport),
            input: self.input.take(),
            baggage: self.baggage.take(),
        }
    }

    /// Begins to linger: up to `bytes` of input are read and discarded.
    pub(super) fn linger(&mut self, bytes: u32) {
        debug_assert_eq!(self.phase, Phase::Closing);
        self.phase = Phase::Lingering;
        self.linger_bytes = bytes;
    }

    /// How much input may still be read and discarded, bytes: none unless the connection lingers.
    pub(crate) fn discardable_bytes(&self) -> usize {
        if self.phase == Phase::Lingering { self.linger_bytes as usize } else { 0 }
    }

    /// Counts input that was read and discarded.
    pub(crate) fn count_discarded(&mut self, bytes: usize) {
        self.linger_bytes -= bytes as u32;
    }

    /// Whether bytes wait for the socket, encoded or not.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        !self.output.is_empty() || self.transport.pending() > 0
    }

    /// Whether the peer has ended the layer's stream, the service was offered all input before it, and does not know.
    pub(crate) fn has_ended(&self) -> bool {
        self.is_open() && !self.input.is_held() && self.transport.input_has_ended()
    }

    /// Requests the end of the layer's stream after all output. Returns `true` if a flush must send it.
    pub(crate) fn end_output(&mut self) -> bool {
        self.transport.end_output()
    }

    /// The connection has left the list of connections to flush. Returns whether its output may leave.
    #[inline]
    pub(crate) fn begin_flush(&mut self) -> bool {
        self.output.begin_flush() && self.phase != Phase::Free
    }

    /// Writes as much as the socket accepts.
    ///
    /// # Errors
    /// As for [`Output::write_to`](crate::output::Output::write_to).
    #[inline]
    pub(crate) fn write_to(&mut self, socket: &mut impl Sink, calls: &mut u64) -> io::Result<Flushed> {
        self.transport.write(self.output.pending_mut(), socket, calls)
    }

    /// Writes everything that may leave to a vector and returns the number of bytes.
    ///
    /// # Errors
    /// As for [`Output::write_to`](crate::output::Output::write_to).
    pub(crate) fn drain_to(&mut self, sink: &mut Vec<u8>) -> io::Result<usize> {
        let before = sink.len();
        while self.write_to(sink, &mut 0)?.yields {}
        Ok(sink.len() - before)
    }

    /// Counts what the last flush has left. Returns whether it left any.
    pub(super) fn count_unsent(&mut self) -> bool {
        self.output.count_unsent(self.transport.pending())
    }

    /// Returns the buffers to the pool when nothing is left to send.
    #[inline]
    pub(super) fn reclaim_buffers(&mut self, pool: &mut BufferPool) {
        pool.reclaim(self.output.pending_mut());
        self.transport.reclaim(pool);
    }

    /// Counts the memory of the buffers. Returns what it was before, and what it is, if it has changed.
    #[inline]
    pub(super) fn count_memory(&mut self) -> Option<(usize, usize)> {
        let bytes = self.input.memory() + self.output.pending().memory() + self.transport.memory();
        if bytes == self.charged_bytes {
            return None;
        }
        Some((std::mem::replace(&mut self.charged_bytes, bytes), bytes))
    }
}
