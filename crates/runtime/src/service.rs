//! The [`Service`] trait: what the driver tells a protocol implementation.
//!
//! The driver calls a service from the shard's thread, one call at a time. The service acts through the [`Io`] that
//! each call is given.

use crate::io::Io;
use crate::links::ConnId;
use crate::listener::ProtocolTag;

/// A protocol implementation on one shard. The driver calls it from the shard's thread, one call at a time.
///
/// Methods with a default are notices that a service may have no use for. A service made of others forwards all of
/// them. What would be lost if it were ignored has no default: input, messages, and the shutdown.
pub trait Service: Sized {
    /// Message type between the service's instances on different shards.
    type Mail: Send + 'static;

    /// Called when a connection was accepted by a listener of `protocol`, before any handshake of its transport.
    fn accepted(&mut self, _io: &mut Io<'_, Self::Mail>, _conn: ConnId, _protocol: ProtocolTag) {}

    /// Called with input. `bytes` starts after the bytes that the service consumed last.
    fn received(&mut self, io: &mut Io<'_, Self::Mail>, conn: ConnId, bytes: &[u8]) -> Received;

    /// Called when a congested output has drained, after [`Io::output_if_room`] returned `None`.
    fn drained(&mut self, _io: &mut Io<'_, Self::Mail>, _conn: ConnId) {}

    /// Called when the peer closed the connection or it failed. Not called after [`Io::close`].
    fn closed(&mut self, _io: &mut Io<'_, Self::Mail>, _conn: ConnId) {}

    /// Whether to take messages from other shards in this turn. Those that are not taken wait, and their senders are
    /// [congested](Io::congested) when there are many.
    fn takes_mail(&mut self, _io: &mut Io<'_, Self::Mail>) -> bool {
        true
    }

    /// Called with a message from the service on shard `from`.
    fn mail(&mut self, io: &mut Io<'_, Self::Mail>, from: usize, mail: Self::Mail);

    /// Called when a timer set with [`Io::set_timer`] fires.
    fn timer(&mut self, _io: &mut Io<'_, Self::Mail>, _token: u64) {}

    /// Called at the start of a turn, before its messages and input.
    fn turn_begins(&mut self, _io: &mut Io<'_, Self::Mail>) {}

    /// Whether to offer held connections ([`Received::hold`]) their input again in this turn.
    fn takes_held(&mut self, _io: &mut Io<'_, Self::Mail>) -> bool {
        true
    }

    /// Called after the turn's input, immediately before output is flushed.
    fn turn_ends(&mut self, _io: &mut Io<'_, Self::Mail>) {}

    /// Called on shutdown: send final packets and close all connections.
    fn drain(&mut self, io: &mut Io<'_, Self::Mail>);
}

/// Result of [`Service::received`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Number of bytes consumed.
    pub consumed: usize,
    /// Length of the incomplete packet after the consumed bytes if its header is complete; otherwise 0.
    pub next_len: usize,
    /// Whether to hold the input of this connection, although complete packets may be pending. The driver retains the
    /// unconsumed input, stops reading, and offers the input again while [`Service::takes_held`] returns `true`.
    pub hold: bool,
    /// How long to hold the input at least, ms, if nothing can change before: the driver need not offer it again and
    /// again. 0 to offer it as soon as possible.
    pub pause_ms: u32,
}
