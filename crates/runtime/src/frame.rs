//! Frames: output that leaves as it is behind a header of its layer.
//!
//! A layer such as WebSocket adds a few bytes in front of a payload that it does not change. Header and payload then
//! leave by one `writev`, and a payload that many connections share is not copied for any of them.

use std::io::{self, IoSlice, Write};

use crate::file::{FileBytes, Sink};
use crate::output::IOVECS_MAX;

/// Longest header of a frame: that of WebSocket, bytes.
const HEADER_BYTES_MAX: usize = 14;

/// The next bytes of an output, and the header in front of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Frame {
    header: [u8; HEADER_BYTES_MAX],
    header_len: u8,
    header_sent: u8,
    left: usize,
}

impl Frame {
    /// A frame of the next `len` bytes.
    ///
    /// # Panics
    /// If the header has more than 14 bytes.
    pub fn new(header: &[u8], len: usize) -> Self {
        let mut frame = Self { header_len: header.len() as u8, left: len, ..Self::default() };
        frame.header[..header.len()].copy_from_slice(header);
        frame
    }

    /// Number of bytes of output that belong to it and are not sent.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Number of bytes of its header that are sent.
    pub(crate) fn header_sent(&self) -> usize {
        usize::from(self.header_sent)
    }

    fn unsent_header(&self) -> &[u8] {
        &self.header[usize::from(self.header_sent)..usize::from(self.header_len)]
    }

    /// Counts bytes that the socket accepted. Returns how many of them are output.
    fn advance(&mut self, written: usize) -> usize {
        let header = written.min(self.unsent_header().len());
        self.header_sent += header as u8;
        self.left -= written - header;
        written - header
    }
}

/// A sink that sends the header of a frame, then as much output as the frame has.
pub(crate) struct FrameSink<'a, S> {
    pub(crate) frame: &'a mut Frame,
    pub(crate) socket: &'a mut S,
}

impl<S: Sink> FrameSink<'_, S> {
    fn write_slices(
        &mut self,
        output: &[IoSlice<'_>],
        write: impl FnOnce(&mut S, &[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); IOVECS_MAX + 1];
        let header = self.frame.unsent_header();
        slices[0] = IoSlice::new(header);
        let mut count = 1;
        let mut room = self.frame.left;
        for slice in &output[..output.len().min(IOVECS_MAX)] {
            if room == 0 {
                break;
            }
            slices[count] = IoSlice::new(&slice[..slice.len().min(room)]);
            room -= slices[count].len();
            count += 1;
        }
        let first = usize::from(header.is_empty());
        let written = if first < count { write(self.socket, &slices[first..count])? } else { 0 };
        self.advance(written)
    }

    /// Counts bytes that the socket accepted. Without output among them, the socket counts as full.
    fn advance(&mut self, written: usize) -> io::Result<usize> {
        match self.frame.advance(written) {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            output => Ok(output),
        }
    }
}

impl<S: Sink> Write for FrameSink<'_, S> {
    /// Small packets are written by this call, so it has no array of slices.
    fn write(&mut self, output: &[u8]) -> io::Result<usize> {
        let output = &output[..output.len().min(self.frame.left)];
        let written = match self.frame.unsent_header() {
            // The output goes on behind the frame.
            _ if output.is_empty() => 0,
            [] => self.socket.write(output)?,
            header => self.socket.write_vectored(&[IoSlice::new(header), IoSlice::new(output)])?,
        };
        self.advance(written)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write_slices(slices, S::write_vectored)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<S: Sink> Sink for FrameSink<'_, S> {
    fn write_more(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write_slices(slices, S::write_more)
    }

    fn send_file(&mut self, file: &dyn FileBytes, at: u64, len: usize) -> io::Result<usize> {
        let header = self.frame.unsent_header();
        if !header.is_empty() {
            let written = self.socket.write_more(&[IoSlice::new(header)])?;
            self.frame.advance(written);
        }
        if self.frame.left == 0 || !self.frame.unsent_header().is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let written = self.socket.send_file(file, at, len.min(self.frame.left))?;
        self.advance(written)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::layer::{StreamState, TransportLayer};
    use crate::output::Output;
    use crate::shared::SharedBytes;
    use crate::transport::Transport;

    const FRAME_BYTES_MAX: usize = 1000;
    const FRAME: u8 = b'F';
    const PONG: u8 = b'P';

    /// Sends frames with a header of kind and length, and answers input with a pong.
    struct Framing;

    fn header(kind: u8, len: usize) -> [u8; 3] {
        let [high, low] = (len as u16).to_be_bytes();
        [kind, high, low]
    }

    impl TransportLayer for Framing {
        fn receive(
            &mut self,
            received: &[u8],
            _input: &mut Vec<u8>,
            to_send: &mut Vec<u8>,
        ) -> io::Result<StreamState> {
            to_send.extend_from_slice(&header(PONG, received.len()));
            to_send.extend_from_slice(received);
            Ok(StreamState::Open)
        }

        fn send(&mut self, _output: &[u8], _to_send: &mut Vec<u8>) -> usize {
            unreachable!("it passes output")
        }

        fn close(&mut self, to_send: &mut Vec<u8>) {
            to_send.extend_from_slice(&header(PONG, 0));
        }

        fn passes_output(&self) -> bool {
            true
        }

        fn begin_frame(&mut self, pending: usize) -> Frame {
            let len = pending.min(FRAME_BYTES_MAX);
            Frame::new(&header(FRAME, len), len)
        }
    }

    /// A socket that accepts so many bytes in each of its next calls, and then blocks.
    #[derive(Default)]
    struct Socket {
        taken: Vec<u8>,
        room: Vec<usize>,
    }

    impl Write for Socket {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            self.write_vectored(&[IoSlice::new(buf)])
        }

        fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
            assert!(slices.iter().any(|slice| !slice.is_empty()), "an empty write");
            let mut room = self.room.pop().filter(|room| *room > 0).ok_or(io::ErrorKind::WouldBlock)?;
            let before = self.taken.len();
            for slice in slices {
                let count = room.min(slice.len());
                self.taken.extend_from_slice(&slice[..count]);
                room -= count;
            }
            Ok(self.taken.len() - before)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Sink for Socket {
        fn write_more(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
            self.write_vectored(slices)
        }

        fn send_file(&mut self, file: &dyn FileBytes, at: u64, len: usize) -> io::Result<usize> {
            let mut bytes = vec![0; len];
            let count = file.read_at(&mut bytes, at)?;
            self.write(&bytes[..count])
        }
    }

    struct File;

    impl FileBytes for File {
        fn as_fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
            for (index, byte) in into.iter_mut().enumerate() {
                *byte = (at + index as u64) as u8;
            }
            Ok(into.len())
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Small(usize),
        Shared(usize),
        File(usize),
        Ping(usize),
        Flush(Vec<usize>),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1_usize..50).prop_map(Step::Small),
            (1_usize..2500).prop_map(Step::Shared),
            (1_usize..2500).prop_map(Step::File),
            (0_usize..20).prop_map(Step::Ping),
            prop::collection::vec(0_usize..1500, 0..6).prop_map(Step::Flush),
        ]
    }

    /// Splits a stream into the payloads of its frames and of its pongs.
    fn parse(mut stream: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let (mut output, mut pongs) = (Vec::new(), Vec::new());
        while let [kind, high, low, rest @ ..] = stream {
            let len = usize::from(u16::from_be_bytes([*high, *low]));
            match *kind {
                FRAME => output.extend_from_slice(&rest[..len]),
                PONG => pongs.extend_from_slice(&rest[..len]),
                other => panic!("{other} is no kind of a frame"),
            }
            stream = &rest[len..];
        }
        assert_eq!(stream, b"", "half a header");
        (output, pongs)
    }

    proptest! {
        #[test]
        fn frames_and_answers_do_not_mix_whatever_the_socket_accepts(
            steps in prop::collection::vec(step(), 1..40),
        ) {
            let mut transport = Transport::layered(Box::new(Framing));
            let (mut output, mut socket) = (Output::default(), Socket::default());
            let (mut expected, mut pongs) = (Vec::new(), Vec::new());
            for (number, step) in steps.into_iter().enumerate() {
                let byte = number as u8;
                match step {
                    Step::Small(len) => {
                        output.buffer().extend(vec![byte; len]);
                        expected.extend(vec![byte; len]);
                    }
                    Step::Shared(len) => {
                        output.push_shared(SharedBytes::from(&vec![byte; len][..]));
                        expected.extend(vec![byte; len]);
                    }
                    Step::File(len) => {
                        output.push_file(Arc::new(File), number as u64, len);
                        expected.extend((number..number + len).map(|at| at as u8));
                    }
                    Step::Ping(len) => {
                        transport.receive(&vec![byte; len], &mut Vec::new());
                        pongs.extend(vec![byte; len]);
                    }
                    Step::Flush(room) => {
                        socket.room = room;
                        transport.write(&mut output, &mut socket, &mut 0).unwrap();
                    }
                }
            }
            prop_assert!(transport.end_output());
            while !output.is_empty() || transport.pending() > 0 {
                socket.room = vec![700];
                transport.write(&mut output, &mut socket, &mut 0).unwrap();
            }
            socket.room = vec![700; 2];
            transport.write(&mut output, &mut socket, &mut 0).unwrap();
            prop_assert!(socket.taken.ends_with(&header(PONG, 0)), "the stream has ended");
            prop_assert_eq!(parse(&socket.taken), (expected, pongs));
        }
    }

    #[test]
    fn header_and_payload_leave_by_one_write() {
        let mut transport = Transport::layered(Box::new(Framing));
        let (mut output, mut socket) = (Output::default(), Socket::default());
        output.buffer().extend_from_slice(b"ab");
        output.push_shared(SharedBytes::from(&[1; 900][..]));
        output.buffer().extend_from_slice(b"cd");
        let mut calls = 0;
        socket.room = vec![2000];
        let flushed = transport.write(&mut output, &mut socket, &mut calls).unwrap();
        assert_eq!((socket.taken.len(), flushed.bytes, calls), (907, 907, 1));
    }

    #[test]
    fn nothing_follows_a_frame_whose_output_was_discarded() {
        let mut transport = Transport::layered(Box::new(Framing));
        let (mut output, mut socket) = (Output::default(), Socket::default());
        output.buffer().extend_from_slice(b"abcd");
        socket.room = vec![5];
        transport.write(&mut output, &mut socket, &mut 0).unwrap();
        transport.receive(b"ping", &mut Vec::new());
        output = Output::default();
        assert!(transport.end_output());
        socket.room = vec![100];
        transport.write(&mut output, &mut socket, &mut 0).unwrap();
        assert_eq!((socket.taken.as_slice(), transport.pending()), (b"F\0\x04ab".as_slice(), 0));
    }
}
