//! The gate in front of hyper: bytes of a connection pass it only behind a valid request head.
//!
//! [`RequestGate`] follows the requests of a connection. It collects each head and passes it on once
//! [`check_head`] accepts it, and then passes the body, whose end it finds itself. The first invalid head is replaced
//! by a request of the method [`REJECTED_METHOD`], to which the server responds with the problem in [`Rejection`], and
//! everything behind it is discarded. The response is thus sent after those to earlier requests of the connection.

use std::sync::{Arc, Mutex, PoisonError};

use crate::head::{Framing, HEAD_BYTES_MAX, check_head};
use crate::problem::Problem;

/// Method of the request that stands for an invalid one.
pub(crate) const REJECTED_METHOD: &str = "MAINSTEM-REJECTED";
/// The request that stands for an invalid one.
const REJECTED_HEAD: &[u8] = b"MAINSTEM-REJECTED / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
/// Longest line of a chunk's size with its extensions, or of a trailer, in bytes.
const CHUNK_LINE_BYTES_MAX: usize = 4096;
/// Trailers of a body, in bytes of all lines together.
const TRAILER_BYTES_MAX: usize = 16 * 1024;

/// Why a connection's input was rejected. Shared by its gate and its requests.
#[derive(Clone, Default)]
pub(crate) struct Rejection(Arc<Mutex<Option<Problem>>>);

impl Rejection {
    fn set(&self, problem: Problem) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(problem);
    }

    pub(crate) fn problem(&self) -> Option<Problem> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Position in the input of a connection.
#[derive(Debug)]
enum State {
    /// In a head, of which these bytes have arrived.
    Head(Vec<u8>),
    /// In a body, with this many bytes left.
    Body(u64),
    /// In the line with a chunk's size.
    ChunkSize(ChunkLine),
    /// In a chunk, with this many bytes left.
    ChunkData(u64),
    /// In the CRLF behind a chunk, of which so many bytes have arrived.
    ChunkEnd(usize),
    /// In the trailers, behind so many bytes; the current line has so many.
    Trailers { bytes: usize, line: ChunkLine },
    /// The framing of a body was invalid: the rest of the input is discarded, and the request ends early.
    Broken,
    /// A head was invalid: the rest of the input is discarded.
    Rejected,
}

/// The line of a chunk's size, or of a trailer.
#[derive(Debug, Default)]
struct ChunkLine {
    len: usize,
    last: u8,
    size: u64,
    digits: u32,
    is_past_size: bool,
}

/// See the documentation of this module.
pub(crate) struct RequestGate {
    state: State,
    rejection: Rejection,
}

impl RequestGate {
    pub(crate) fn new(rejection: Rejection) -> Self {
        Self { state: State::Head(Vec::new()), rejection }
    }

    /// Whether the rest of the input is discarded because a head was invalid.
    pub(crate) fn is_rejected(&self) -> bool {
        matches!(self.state, State::Rejected)
    }

    /// Whether the rest of the input is discarded because a body was malformed.
    pub(crate) fn is_broken(&self) -> bool {
        matches!(self.state, State::Broken)
    }

    /// Takes input, and appends what passes to `passed`.
    pub(crate) fn feed(&mut self, mut input: &[u8], passed: &mut Vec<u8>) {
        while !input.is_empty() {
            input = match &mut self.state {
                State::Head(_) => self.feed_head(input, passed),
                State::Body(left) | State::ChunkData(left) => {
                    let len = usize::try_from(*left).unwrap_or(usize::MAX).min(input.len());
                    passed.extend_from_slice(&input[..len]);
                    *left -= len as u64;
                    if *left == 0 {
                        let is_chunk = matches!(self.state, State::ChunkData(_));
                        self.state = if is_chunk { State::ChunkEnd(0) } else { State::Head(Vec::new()) };
                    }
                    &input[len..]
                }
                State::ChunkSize(_) | State::ChunkEnd(_) | State::Trailers { .. } => {
                    self.feed_framing(input[0]);
                    if !self.is_broken() {
                        passed.push(input[0]);
                    }
                    &input[1..]
                }
                State::Broken | State::Rejected => return,
            };
        }
    }

    /// Takes input up to the end of the head, and returns the rest.
    fn feed_head<'a>(&mut self, input: &'a [u8], passed: &mut Vec<u8>) -> &'a [u8] {
        let State::Head(head) = &mut self.state else { return input };
        for (at, &byte) in input.iter().enumerate() {
            head.push(byte);
            if head == b"\r\n" {
                // RFC 9112, 2.2: ignore empty lines in front of a request.
                head.clear();
            }
            let is_line_end = byte == b'\n';
            let result = if is_line_end && !head.is_empty() && !head.ends_with(b"\r\n") {
                Err(Problem::malformed("each line of the request head must end with CRLF"))
            } else if is_line_end && head.ends_with(b"\r\n\r\n") {
                check_head(head).map(Some)
            } else if head.len() >= HEAD_BYTES_MAX {
                Err(Problem::head_too_large(head.contains(&b'\n'), HEAD_BYTES_MAX))
            } else {
                Ok(None)
            };
            match result {
                Ok(None) => {}
                Ok(Some(framing)) => {
                    passed.append(head);
                    self.state = match framing {
                        Framing::Length(0) => State::Head(Vec::new()),
                        Framing::Length(len) => State::Body(len),
                        Framing::Chunked => State::ChunkSize(ChunkLine::default()),
                    };
                    return &input[at + 1..];
                }
                Err(problem) => {
                    self.rejection.set(problem);
                    self.state = State::Rejected;
                    passed.extend_from_slice(REJECTED_HEAD);
                    return &[];
                }
            }
        }
        &[]
    }

    /// Takes one byte of a chunked body's framing.
    fn feed_framing(&mut self, byte: u8) {
        let next = match &mut self.state {
            State::ChunkSize(line) => line.feed_size(byte).map(|is_end| match line.size {
                _ if !is_end => None,
                0 => Some(State::Trailers { bytes: 0, line: ChunkLine::default() }),
                size => Some(State::ChunkData(size)),
            }),
            State::ChunkEnd(seen) => {
                let expected = b"\r\n"[*seen];
                *seen += 1;
                let end = (*seen == 2).then(|| State::ChunkSize(ChunkLine::default()));
                if byte == expected { Some(end) } else { None }
            }
            State::Trailers { bytes, line } => {
                *bytes += 1;
                let is_fit = *bytes <= TRAILER_BYTES_MAX;
                line.feed(byte).filter(|_| is_fit).map(|is_end| {
                    let is_empty = line.len == 2;
                    if is_end {
                        *line = ChunkLine::default();
                    }
                    (is_end && is_empty).then(|| State::Head(Vec::new()))
                })
            }
            _ => Some(None),
        };
        match next {
            Some(Some(state)) => self.state = state,
            Some(None) => {}
            None => self.state = State::Broken,
        }
    }
}

impl ChunkLine {
    /// Takes a byte. Returns whether the line ends; `None` if it is malformed.
    fn feed(&mut self, byte: u8) -> Option<bool> {
        self.len += 1;
        let is_end = byte == b'\n' && self.last == b'\r';
        // A CR or LF of its own is where implementations differ.
        let is_stray = (byte == b'\n' || self.last == b'\r') && !is_end;
        self.last = byte;
        (!is_stray && self.len <= CHUNK_LINE_BYTES_MAX).then_some(is_end)
    }

    /// Takes a byte of a chunk's size or extensions. Returns whether the line ends; `None` if it is malformed.
    fn feed_size(&mut self, byte: u8) -> Option<bool> {
        let is_end = self.feed(byte)?;
        match char::from(byte).to_digit(16) {
            _ if self.is_past_size => {}
            Some(digit) => {
                self.digits += 1;
                // 15 digits fit into the integers of every implementation.
                self.size = self.size << 4 | u64::from(digit);
            }
            None => self.is_past_size = matches!(byte, b';' | b' ' | b'\t' | b'\r'),
        }
        let is_size = self.is_past_size || char::from(byte).is_ascii_hexdigit();
        ((1..=15).contains(&self.digits) && is_size).then_some(is_end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What passes of this input, arriving in pieces of this size, and whether it was broken or rejected.
    fn pass(input: &[u8], piece: usize) -> (Vec<u8>, bool, Option<u16>) {
        let rejection = Rejection::default();
        let mut gate = RequestGate::new(rejection.clone());
        let mut passed = Vec::new();
        input.chunks(piece).for_each(|piece| gate.feed(piece, &mut passed));
        let status = rejection.problem().map(|problem| problem.status().as_u16());
        assert_eq!(gate.is_rejected(), status.is_some());
        (passed, gate.is_broken(), status)
    }

    const GET: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    const CHUNKED: &str = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";

    #[test]
    fn finds_the_end_of_each_request() {
        let post = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nG\n\0\r\n";
        let chunks = "5;x=\"y\"\r\nhello\r\n0A \r\n0123456789\r\n0\r\na: b\r\n\r\n";
        let all = format!("{GET}{post}\r\n{CHUNKED}{chunks}{GET}BAD\r\n\r\n{GET}");
        let expected = format!("{GET}{post}{CHUNKED}{chunks}{GET}");
        for piece in 1..40 {
            let (passed, is_broken, status) = pass(all.as_bytes(), piece);
            let expected = [expected.as_bytes(), REJECTED_HEAD].concat();
            assert_eq!((passed, is_broken, status), (expected, false, Some(400)), "{piece}");
        }
    }

    #[test]
    fn stops_at_a_malformed_chunk() {
        for chunks in [
            "\r\n",
            "x\r\n",
            "5\n",
            "-5\r\n",
            "+5\r\n",
            "0x5\r\n",
            "1\rx",
            "1\r\nab",
            "1\r\na\n",
            "1;\n",
            "1000000000000000\r\n",
            "00000000000000001\r\n",
            "0\r\na: b\n",
            "0\r\na\rb",
            "5 5;\n",
        ] {
            let (_, is_broken, status) = pass(format!("{CHUNKED}{chunks}{GET}").as_bytes(), 1);
            assert!(is_broken && status.is_none(), "{chunks:?}");
        }
        let long = format!("{CHUNKED}1;{}\r\n", "x".repeat(CHUNK_LINE_BYTES_MAX));
        assert!(pass(long.as_bytes(), 100).1);
        let trailers = format!("{CHUNKED}0\r\n{}", "a: b\r\n".repeat(TRAILER_BYTES_MAX / 6 + 1));
        assert!(pass(trailers.as_bytes(), 100).1);
    }

    #[test]
    fn bounds_the_head() {
        let fitting = format!("GET / HTTP/1.1\r\nhost: a\r\na: {}\r\n\r\n", "x".repeat(HEAD_BYTES_MAX - 32));
        assert_eq!(
            (fitting.len(), pass(fitting.as_bytes(), 999)),
            (HEAD_BYTES_MAX, (fitting.into(), false, None))
        );
        let larger = format!("GET / HTTP/1.1\r\nhost: a\r\na: {}", "x".repeat(HEAD_BYTES_MAX));
        assert_eq!(pass(larger.as_bytes(), 999).2, Some(431));
        let target = format!("GET /{}", "x".repeat(HEAD_BYTES_MAX));
        assert_eq!(pass(target.as_bytes(), 999).2, Some(414));
        assert_eq!(pass(b"GET / HTTP/1.1\nhost: a\n\n", 9).2, Some(400));
    }

    proptest! {
        /// No input panics, whatever the pieces, and the pieces make no difference.
        #[test]
        fn pieces_make_no_difference(
            parts in proptest::collection::vec(prop_oneof![
                Just(GET.to_owned()), Just(CHUNKED.to_owned()), Just("1\r\na\r\n".to_owned()),
                Just("0\r\n\r\n".to_owned()), "[\\x00-\\x7f]{0,9}",
            ], 0..9),
            piece in 1_usize..30,
        ) {
            let input = parts.concat();
            prop_assert_eq!(pass(input.as_bytes(), piece), pass(input.as_bytes(), usize::MAX));
        }
    }
}
