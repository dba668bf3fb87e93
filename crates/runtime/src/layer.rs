//! The interface of a layer between the socket and the service of one connection.

use std::{fmt, io};

use crate::frame::Frame;

/// A protocol between the socket and the service of one connection, such as TLS. Every call may append bytes for the
/// peer to `to_send`.
pub trait TransportLayer: Send {
    /// Consumes all bytes `received` from the socket and appends the decoded bytes to `input`. Retains a partial
    /// record.
    ///
    /// # Errors
    /// A violation of the protocol by the peer. The connection is then closed after `to_send`, such as an alert, is
    /// sent.
    fn receive(
        &mut self,
        received: &[u8],
        input: &mut Vec<u8>,
        to_send: &mut Vec<u8>,
    ) -> io::Result<StreamState>;

    /// Encodes a prefix of `output`, which is not empty, and returns its length: 0 before the handshake is complete,
    /// and at least 1 afterwards.
    fn send(&mut self, output: &[u8], to_send: &mut Vec<u8>) -> usize;

    /// Ends the stream, after all output. Called once, also after the peer has ended the stream or violated the
    /// protocol, and possibly before the handshake is complete.
    fn close(&mut self, to_send: &mut Vec<u8>);

    /// Whether output bypasses the layer in frames from now on: shared payloads without a copy, file ranges through
    /// `sendfile`. For a layer that adds headers to output but does not change it, and one that passed its keys to the
    /// kernel.
    fn passes_output(&self) -> bool {
        false
    }

    /// Begins a frame: the next bytes of output, at most `pending`, leave as they are behind its header. An empty frame
    /// lets output wait, before the handshake is complete. Called only if [`passes_output`](Self::passes_output), and
    /// not before the last frame was sent.
    fn begin_frame(&mut self, pending: usize) -> Frame {
        Frame::new(&[], pending)
    }

    /// Whether the handshake is not complete.
    fn is_handshaking(&self) -> bool {
        false
    }

    /// The certificate of the peer in DER, if it has presented one and the layer has verified it.
    fn peer_certificate(&self) -> Option<&[u8]> {
        None
    }

    /// Work done by [`receive`](Self::receive) since the last call, in the units of [`Io::charge`](crate::Io::charge).
    fn take_charge(&mut self) -> u32 {
        0
    }
}

impl fmt::Debug for dyn TransportLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TransportLayer")
    }
}

/// State of the stream from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamState {
    /// More input may arrive.
    Open,
    /// The peer ended the stream within the layer's protocol.
    Ended,
}
