//! The transport of a connection: plain bytes, or a layer such as TLS between socket and service.
//!
//! A [`TransportLayer`] encodes the bytes of a connection, exchanges messages of its own with the peer, and ends its
//! stream before the socket is closed. It is a state machine without IO: the driver passes it the bytes that the socket
//! received and writes the bytes that it appends. Its state includes everything partially received or not yet sent, so
//! it moves with its connection to another shard at any time, also during a handshake.
//!
//! A connection without a layer is [`Transport::Plain`]. Reads and flushes match on it once; there is no copy, dynamic
//! call or allocation. A layer costs two dynamic calls per read and one per [`ENCODE_BYTES`] of output, or per frame
//! ([`Frame`]) if it does not change output.
//!
//! Output is encoded when it is flushed, and only as fast as the socket accepts it. Until then it counts toward the
//! same limits as on a plain connection, and shared payloads remain shared.

use std::fmt;
use std::io::{self, IoSlice, Write};
use std::sync::Arc;

use crate::file::{FileBytes, Sink, copy};
use crate::frame::{Frame, FrameSink};
use crate::layer::{StreamState, TransportLayer};
use crate::output::{BufferPool, Flushed, Output};
use crate::stacked::StackedLayer;

/// Encoded bytes pending for the socket at which encoding pauses.
const ENCODED_BYTES_MAX: usize = 64 * 1024;
/// Maximum output passed to a layer at once: the size of a TLS record.
const ENCODE_BYTES: usize = 16 * 1024;
/// Encoded bytes at which a connection is closed. Only responses of the layer itself exceed [`ENCODED_BYTES_MAX`] by so
/// much, for example to a peer that sends pings and does not read.
const RESPONSE_BYTES_MAX: usize = 256 * 1024;

/// Transport of a listener's connections.
#[derive(Clone, Default)]
pub enum ListenerTransport {
    /// The service receives and sends the bytes of the socket.
    #[default]
    Plain,
    /// Each accepted connection gets a layer from this function.
    Layered(MakeLayer),
}

/// Makes the layer of an accepted connection.
pub type MakeLayer = Arc<dyn Fn() -> Box<dyn TransportLayer> + Send + Sync>;

impl ListenerTransport {
    /// This transport with another layer above it, next to the service.
    #[must_use]
    pub fn with_layer(self, upper: MakeLayer) -> Self {
        match self {
            Self::Plain => Self::Layered(upper),
            Self::Layered(lower) => {
                Self::Layered(Arc::new(move || Box::new(StackedLayer::new(lower(), upper()))))
            }
        }
    }

    pub(crate) fn open(&self) -> Transport {
        match self {
            Self::Plain => Transport::Plain,
            Self::Layered(make) => Transport::layered(make()),
        }
    }
}

impl fmt::Debug for ListenerTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "Plain",
            Self::Layered(_) => "Layered",
        })
    }
}

/// Transport of one connection.
#[derive(Debug, Default)]
pub(crate) enum Transport {
    #[default]
    Plain,
    Layered(Box<Layered>),
}

impl Transport {
    pub(crate) fn layered(layer: Box<dyn TransportLayer>) -> Self {
        Self::Layered(Box::new(Layered {
            layer,
            to_send: Output::default(),
            input_has_ended: false,
            ending: Ending::No,
            frame: Frame::default(),
        }))
    }

    /// Writes as much of `output` as the socket accepts. `calls` counts system calls.
    ///
    /// # Errors
    /// As for [`Output::write_to`].
    #[inline]
    pub(crate) fn write(
        &mut self,
        output: &mut Output,
        socket: &mut impl Sink,
        calls: &mut u64,
    ) -> io::Result<Flushed> {
        match self {
            Self::Plain => output.write_to(socket, calls),
            Self::Layered(layered) => layered.write(output, socket, calls),
        }
    }

    pub(crate) fn is_layered(&self) -> bool {
        matches!(self, Self::Layered(_))
    }

    /// Decodes bytes from the socket and appends the service's bytes to `input`.
    pub(crate) fn receive(&mut self, received: &[u8], input: &mut Vec<u8>) {
        match self {
            Self::Plain => input.extend_from_slice(received),
            Self::Layered(layered) => layered.receive(received, input),
        }
    }

    /// Whether the handshake of its layer is not complete.
    pub(crate) fn is_handshaking(&self) -> bool {
        match self {
            Self::Plain => false,
            Self::Layered(layered) => layered.layer.is_handshaking(),
        }
    }

    /// The certificate that its layer has verified, in DER.
    pub(crate) fn peer_certificate(&self) -> Option<&[u8]> {
        match self {
            Self::Plain => None,
            Self::Layered(layered) => layered.layer.peer_certificate(),
        }
    }

    /// Returns what its layer has to be charged since the last call, units.
    pub(crate) fn take_charge(&mut self) -> u32 {
        match self {
            Self::Plain => 0,
            Self::Layered(layered) => layered.layer.take_charge(),
        }
    }

    /// Number of encoded bytes pending for the socket.
    pub(crate) fn pending(&self) -> usize {
        match self {
            Self::Plain => 0,
            Self::Layered(layered) => layered.to_send.pending_memory(),
        }
    }

    /// Memory of the encoded output, bytes.
    #[inline]
    pub(crate) fn memory(&self) -> usize {
        match self {
            Self::Plain => 0,
            Self::Layered(layered) => size_of::<Layered>() + layered.to_send.memory(),
        }
    }

    /// Returns an empty buffer to the pool.
    pub(crate) fn reclaim(&mut self, pool: &mut BufferPool) {
        if let Self::Layered(layered) = self {
            pool.reclaim(&mut layered.to_send);
        }
    }

    /// Requests the end of the stream after all output. Returns `true` if a flush must send it.
    pub(crate) fn end_output(&mut self) -> bool {
        match self {
            Self::Plain => false,
            Self::Layered(layered) => {
                layered.ending = Ending::Requested;
                true
            }
        }
    }

    /// Whether the peer has ended the layer's stream. Its socket may still be open.
    pub(crate) fn input_has_ended(&self) -> bool {
        match self {
            Self::Plain => false,
            Self::Layered(layered) => layered.input_has_ended,
        }
    }
}

/// A layer and its encoded output.
#[derive(Debug)]
pub(crate) struct Layered {
    layer: Box<dyn TransportLayer>,
    to_send: Output,
    input_has_ended: bool,
    ending: Ending,
    /// The frame that is being sent, of a layer that passes output. `to_send` waits for its end.
    frame: Frame,
}

/// Progress of the end of the stream to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    No,
    /// Pending until all output is encoded.
    Requested,
    Done,
}

impl Layered {
    fn receive(&mut self, received: &[u8], input: &mut Vec<u8>) {
        if self.input_has_ended {
            return;
        }
        match self.layer.receive(received, input, self.to_send.buffer()) {
            Ok(StreamState::Open) => {}
            Ok(StreamState::Ended) => self.input_has_ended = true,
            Err(error) => {
                log::debug!("transport of a connection failed: {error}");
                self.input_has_ended = true;
            }
        }
        if self.to_send.pending_memory() > RESPONSE_BYTES_MAX {
            log::debug!("a connection is closed: its peer does not read the responses of the transport");
            self.input_has_ended = true;
        }
    }

    // Out of line: the flush of a plain connection stays small enough to be inlined.
    #[inline(never)]
    fn write(&mut self, output: &mut Output, socket: &mut impl Sink, calls: &mut u64) -> io::Result<Flushed> {
        if self.layer.passes_output() {
            return self.write_frames(output, socket, calls);
        }
        let mut encoder = Encoder { layered: self, socket, calls, written: 0, is_blocked: false };
        let yields = output.write_to(&mut encoder, &mut 0)?.yields;
        encoder.layered.end_behind(output);
        encoder.flush_encoded()?;
        Ok(Flushed { bytes: encoder.written, yields })
    }

    /// Writes the layer's own bytes between frames, and `output` in frames.
    fn write_frames(
        &mut self,
        output: &mut Output,
        socket: &mut impl Sink,
        calls: &mut u64,
    ) -> io::Result<Flushed> {
        let mut flushed = Flushed::default();
        loop {
            if self.frame.left() == 0 {
                self.end_behind(output);
                flushed.bytes += self.to_send.write_to(socket, calls)?.bytes;
                if output.is_empty() || !self.to_send.is_empty() {
                    break;
                }
                self.frame = self.layer.begin_frame(output.pending());
                if self.frame.left() == 0 {
                    break;
                }
            } else if output.pending() < self.frame.left() {
                // The output was discarded, and nothing can follow half a frame.
                self.frame = Frame::default();
                self.to_send = Output::default();
                self.ending = Ending::Done;
                break;
            }
            let header_sent = self.frame.header_sent();
            let mut sink = FrameSink { frame: &mut self.frame, socket };
            let written = output.write_to(&mut sink, calls)?;
            flushed.bytes += written.bytes + self.frame.header_sent() - header_sent;
            flushed.yields = written.yields;
            if self.frame.left() > 0 {
                break;
            }
        }
        Ok(flushed)
    }

    fn end_behind(&mut self, output: &Output) {
        if self.ending == Ending::Requested && output.is_empty() {
            self.ending = Ending::Done;
            self.layer.close(self.to_send.buffer());
        }
    }
}

/// A sink that encodes, and blocks when the socket does.
struct Encoder<'a, S> {
    layered: &'a mut Layered,
    socket: &'a mut S,
    calls: &'a mut u64,
    /// Encoded bytes that the socket accepted.
    written: usize,
    is_blocked: bool,
}

impl<S: Sink> Encoder<'_, S> {
    fn flush_encoded(&mut self) -> io::Result<()> {
        if !self.is_blocked {
            self.written += self.layered.to_send.write_to(self.socket, self.calls)?.bytes;
            self.is_blocked = !self.layered.to_send.is_empty();
        }
        Ok(())
    }

    /// Flushes if necessary. Returns whether more may be encoded.
    fn make_room(&mut self) -> io::Result<bool> {
        if self.layered.to_send.pending_memory() >= ENCODED_BYTES_MAX {
            self.flush_encoded()?;
        }
        Ok(self.layered.to_send.pending_memory() < ENCODED_BYTES_MAX)
    }
}

impl<S: Sink> Write for Encoder<'_, S> {
    fn write(&mut self, output: &[u8]) -> io::Result<usize> {
        let mut taken = 0;
        while taken < output.len() && self.make_room()? {
            let end = output.len().min(taken + ENCODE_BYTES);
            match self.layered.layer.send(&output[taken..end], self.layered.to_send.buffer()) {
                0 => break,
                count => taken += count,
            }
        }
        if taken == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(taken) }
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut taken = 0;
        for slice in slices.iter().filter(|slice| !slice.is_empty()) {
            match self.write(slice) {
                Ok(count) => {
                    taken += count;
                    if count < slice.len() {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && taken > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<S: Sink> Sink for Encoder<'_, S> {
    fn write_more(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write_vectored(slices)
    }

    fn send_file(&mut self, file: &dyn FileBytes, at: u64, len: usize) -> io::Result<usize> {
        if !self.make_room()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        copy(self, file, at, len)
    }
}
