//! WebSocket of one connection, as a layer between socket and service.
//!
//! The layer starts as a request of HTTP and becomes a stream of frames. It buffers the request head only, within a
//! bound: payloads go to the service as they come, whatever the size of their frames, and output is framed when it is
//! written. A violation ends the connection with the close code of RFC 6455 after what was to be sent before; a flood
//! of pings costs one pong per read.

use std::io;
use std::sync::Arc;

use mainstem_runtime::{Frame, StreamState, TransportLayer};

use crate::acceptor::Acceptor;
use crate::close::{CloseCode, parse_close};
use crate::frame::{Control, FrameReader, Header, Opcode};
use crate::upgrade::{Head, Rejection, accept, find_head_end};

/// Longest payload of a frame to the peer, bytes. Longer ones are beyond the default limit of many client libraries.
const SENT_BYTES_MAX: usize = u16::MAX as usize;
/// Longest payload of a frame that another layer encodes: with its header, it fills one TLS record, bytes.
const ENCODED_BYTES_MAX: usize = 16 * 1024 - 4;
/// Cost of an upgrade, units.
const UPGRADE_UNITS: u32 = 50;
/// Frames whose headers cost one unit.
const FRAMES_PER_UNIT: u32 = 4;
/// Bytes unmasked for one unit.
const BYTES_PER_UNIT: usize = 1024;

/// WebSocket of one connection.
pub(crate) struct WebSocketLayer {
    acceptor: Arc<Acceptor>,
    state: State,
    /// Work since the last call of `take_charge`, units.
    charge: u32,
}

impl Acceptor {
    /// The layer of a new connection.
    pub fn layer(self: &Arc<Self>) -> Box<dyn TransportLayer> {
        Box::new(WebSocketLayer::new(Arc::clone(self)))
    }
}

enum State {
    /// The request head, as far as it has arrived.
    Upgrading(Vec<u8>),
    Open(FrameReader),
    /// The peer has ended its stream, or violated the protocol. The code is sent after all output.
    Ending(CloseCode),
    /// Nothing may be sent.
    Closed,
}

impl WebSocketLayer {
    pub(crate) fn new(acceptor: Arc<Acceptor>) -> Self {
        Self { acceptor, state: State::Upgrading(Vec::new()), charge: 0 }
    }

    /// Takes bytes of the request. Returns those behind it; `None` before its end.
    fn upgrade<'a>(&mut self, received: &'a [u8], to_send: &mut Vec<u8>) -> io::Result<Option<&'a [u8]>> {
        let State::Upgrading(head) = &mut self.state else { return Ok(Some(received)) };
        let known = head.len();
        head.extend_from_slice(received);
        let response = match find_head_end(head, known) {
            Ok(Head::Incomplete) => return Ok(None),
            Ok(Head::Complete(end)) => {
                self.charge += UPGRADE_UNITS;
                accept(&head[..end], self.acceptor.settings()).map(|response| (response, end))
            }
            Err(rejection) => Err(rejection),
        };
        match response {
            Ok((response, end)) => {
                self.state = State::Open(FrameReader::default());
                to_send.extend_from_slice(&response);
                Ok(Some(&received[end - known..]))
            }
            Err(rejection) => Err(self.reject(&rejection, to_send)),
        }
    }

    fn reject(&mut self, rejection: &Rejection, to_send: &mut Vec<u8>) -> io::Error {
        self.acceptor.log_rejection(rejection);
        rejection.write(to_send);
        self.state = State::Closed;
        io::Error::other(rejection.reason.clone())
    }

    /// Whether output may be sent.
    fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_) | State::Ending(_))
    }
}

impl TransportLayer for WebSocketLayer {
    fn receive(
        &mut self,
        received: &[u8],
        input: &mut Vec<u8>,
        to_send: &mut Vec<u8>,
    ) -> io::Result<StreamState> {
        let Some(mut received) = self.upgrade(received, to_send)? else { return Ok(StreamState::Open) };
        let State::Open(reader) = &mut self.state else { return Ok(StreamState::Ended) };
        self.charge += (received.len() / BYTES_PER_UNIT) as u32;
        // RFC 6455, section 5.5.3: only the last of several pings needs a pong. A flood of pings causes one per read.
        let mut ping = None;
        let outcome = loop {
            match reader.read(&mut received, input) {
                Ok(None) => break Ok(StreamState::Open),
                Ok(Some(Control::Ping(payload))) => ping = Some(payload),
                Ok(Some(Control::Pong)) => {}
                Ok(Some(Control::Close(payload))) => {
                    break parse_close(&payload).map(|code| {
                        self.charge += 1;
                        self.state = State::Ending(code);
                        StreamState::Ended
                    });
                }
                Err(violation) => break Err(violation),
            }
        };
        if let State::Open(reader) = &mut self.state {
            self.charge += reader.take_frames().div_ceil(FRAMES_PER_UNIT);
        }
        if let Some(payload) = ping {
            to_send.extend_from_slice(Header::new(Opcode::Pong, payload.len()).bytes());
            to_send.extend_from_slice(&payload);
        }
        outcome.map_err(|violation| {
            self.state = State::Ending(violation.code);
            io::Error::other(violation)
        })
    }

    fn send(&mut self, output: &[u8], to_send: &mut Vec<u8>) -> usize {
        if !self.is_open() {
            return 0;
        }
        let count = output.len().min(ENCODED_BYTES_MAX);
        to_send.extend_from_slice(Header::new(Opcode::Binary, count).bytes());
        to_send.extend_from_slice(&output[..count]);
        count
    }

    fn close(&mut self, to_send: &mut Vec<u8>) {
        let code = match self.state {
            State::Open(_) => CloseCode::NORMAL,
            State::Ending(code) => code,
            State::Upgrading(_) | State::Closed => return,
        };
        to_send.extend_from_slice(Header::new(Opcode::Close, 2).bytes());
        to_send.extend_from_slice(&code.0.to_be_bytes());
        self.state = State::Closed;
    }

    fn passes_output(&self) -> bool {
        true
    }

    fn begin_frame(&mut self, pending: usize) -> Frame {
        if !self.is_open() {
            return Frame::default();
        }
        let len = pending.min(SENT_BYTES_MAX);
        Frame::new(Header::new(Opcode::Binary, len).bytes(), len)
    }

    fn is_handshaking(&self) -> bool {
        matches!(self.state, State::Upgrading(_))
    }

    fn take_charge(&mut self) -> u32 {
        std::mem::take(&mut self.charge)
    }
}
