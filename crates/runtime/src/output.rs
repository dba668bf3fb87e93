//! Bytes on their way to one connection: small writes are copied together, large payloads stay shared, and what
//! stands in files is sent from there.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;

use crate::file::{FileBytes, Sink};

/// From this size on a payload is shared by all of its receivers instead of copied into each output.
///
/// Below it one copy is cheaper than a second `iovec` and a reference count.
pub const SHARED_MIN_BYTES: usize = 8 * 1024;

/// Slices handed to one `writev`; the kernel takes up to 1,024, but a socket buffer is full long before.
const IOVECS_MAX: usize = 32;
/// Bytes of files sent in one flush: a peer that reads as fast as we send must not keep the shard from the others.
const FILE_BYTES_PER_FLUSH: usize = 1024 * 1024;
/// Sent bytes at the front of a buffer that never runs empty are cut off at this size.
const COMPACT_BYTES: usize = 64 * 1024;
/// Buffers larger than this are freed rather than kept for the next connection.
const POOLED_BUFFER_BYTES_MAX: usize = 64 * 1024;
/// Capacity of a fresh buffer: some ten small packets.
const FRESH_BUFFER_BYTES: usize = 1024;
/// Bytes of idle buffers that one shard keeps.
const POOL_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What one connection still has to send, in order. Owned by the connection's shard.
///
/// An idle output owns no memory beyond itself.
#[derive(Debug, Default)]
pub struct Output {
    buf: Vec<u8>,
    /// Bytes at the front of `buf` that the socket has taken.
    sent: usize,
    inserts: Option<Box<Inserts>>,
}

/// What stands between the bytes of `buf`.
#[derive(Debug, Default)]
struct Inserts {
    queue: VecDeque<Insert>,
    /// Bytes of shared payloads not yet sent.
    pending_shared: usize,
    /// Bytes of files not yet sent.
    pending_files: usize,
}

#[derive(Debug)]
struct Insert {
    /// It follows the first `at` bytes of `buf`.
    at: usize,
    sent: usize,
    piece: Piece,
}

#[derive(Debug)]
enum Piece {
    Shared(Arc<[u8]>),
    File { file: Arc<dyn FileBytes>, position: u64, len: usize },
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Shared(bytes) => bytes.len(),
            Self::File { len, .. } => *len,
        }
    }
}

/// What a flush did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flushed {
    /// Bytes that the socket has taken.
    pub(crate) bytes: usize,
    /// It would take more, but others are to have their turn first. No event will tell when to go on.
    pub(crate) yields: bool,
}

impl Output {
    /// Bytes that wait to be sent.
    pub fn pending(&self) -> usize {
        self.pending_memory() + self.pending_files()
    }

    /// Bytes that wait in memory.
    pub(crate) fn pending_memory(&self) -> usize {
        self.pending_own() + self.pending_shared()
    }

    /// Bytes that wait in memory of this output's own.
    pub(crate) fn pending_own(&self) -> usize {
        self.buf.len() - self.sent
    }

    /// Bytes that wait in payloads shared with others.
    pub(crate) fn pending_shared(&self) -> usize {
        self.inserts.as_ref().map_or(0, |inserts| inserts.pending_shared)
    }

    /// Bytes that wait in files.
    pub(crate) fn pending_files(&self) -> usize {
        self.inserts.as_ref().map_or(0, |inserts| inserts.pending_files)
    }

    /// Whether nothing waits to be sent.
    pub fn is_empty(&self) -> bool {
        self.pending() == 0
    }

    /// The buffer to append small writes to. Only append: what stands in it may be half sent.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buf
    }

    /// Throws away what waits, of which the socket has taken nothing.
    pub(crate) fn clear(&mut self) {
        debug_assert_eq!(self.sent, 0, "half a packet has left");
        self.buf.clear();
        self.inserts = None;
    }

    /// Appends a payload without copying it.
    pub fn push_shared(&mut self, bytes: Arc<[u8]>) {
        let at = self.buf.len();
        let inserts = self.inserts.get_or_insert_default();
        inserts.pending_shared += bytes.len();
        inserts.queue.push_back(Insert { at, sent: 0, piece: Piece::Shared(bytes) });
    }

    /// Appends `len` bytes of a file from byte offset `position` on, which nothing may change until they have left.
    /// If the file ends before, the connection is closed.
    pub fn push_file(&mut self, file: Arc<dyn FileBytes>, position: u64, len: usize) {
        if len == 0 {
            return;
        }
        let at = self.buf.len();
        let inserts = self.inserts.get_or_insert_default();
        inserts.pending_files += len;
        inserts.queue.push_back(Insert { at, sent: 0, piece: Piece::File { file, position, len } });
    }

    /// Writes as much as the socket takes, of files no more than the share of one flush.
    ///
    /// # Errors
    /// Whatever the socket answers but `WouldBlock` and `Interrupted`, and whatever the files answer; the output is
    /// then worthless.
    pub(crate) fn write_to(&mut self, socket: &mut impl Sink, stats: &mut u64) -> io::Result<Flushed> {
        let mut flushed = Flushed::default();
        let mut file_room = FILE_BYTES_PER_FLUSH;
        while !self.is_empty() {
            *stats += 1;
            let is_file = self.file_at_front().is_some();
            let (written, wanted) = match self.file_at_front() {
                Some(_) if file_room == 0 => {
                    flushed.yields = true;
                    break;
                }
                Some((file, at, len)) => (socket.send_file(file, at, len.min(file_room)), 0),
                None => self.write_bytes(socket),
            };
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    flushed.bytes += count;
                    self.advance(count);
                    if is_file {
                        // It may have come short for other reasons than a full socket: only asking again tells.
                        file_room -= count;
                    } else if count < wanted {
                        // A short write means a full socket: asking again would only cost a call.
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.compact();
        Ok(flushed)
    }

    /// Writes all of it to a sink that takes everything, and says how many bytes that was.
    ///
    /// # Errors
    /// Whatever the files answer; the output is then worthless.
    pub(crate) fn drain_to(&mut self, sink: &mut Vec<u8>) -> io::Result<usize> {
        let before = sink.len();
        while !self.is_empty() {
            self.write_to(sink, &mut 0)?;
        }
        Ok(sink.len() - before)
    }

    /// The range of a file that is to be sent next, if it is one.
    fn file_at_front(&self) -> Option<(&dyn FileBytes, u64, usize)> {
        let insert = self.inserts.as_ref()?.queue.front().filter(|insert| insert.at == self.sent)?;
        let Piece::File { file, position, len } = &insert.piece else { return None };
        Some((&**file, position + insert.sent as u64, len - insert.sent))
    }

    /// Writes what stands in memory before the next file. Also says how many bytes that would have been.
    fn write_bytes(&self, socket: &mut impl Sink) -> (io::Result<usize>, usize) {
        if self.inserts.is_none() {
            return (socket.write(&self.buf[self.sent..]), self.pending_own());
        }
        let mut slices = [IoSlice::new(&[]); IOVECS_MAX];
        let (count, more) = self.gather(&mut slices);
        let slices = &slices[..count];
        let wanted = slices.iter().map(|slice| slice.len()).sum();
        (if more { socket.write_more(slices) } else { socket.write_vectored(slices) }, wanted)
    }

    /// What stands in memory before the next file, and whether there is one.
    fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>; IOVECS_MAX]) -> (usize, bool) {
        let mut count = 0;
        let mut from = self.sent;
        for insert in self.inserts.iter().flat_map(|inserts| &inserts.queue) {
            if count + 2 > IOVECS_MAX {
                return (count, false);
            }
            if from < insert.at {
                slices[count] = IoSlice::new(&self.buf[from..insert.at]);
                count += 1;
                from = insert.at;
            }
            let Piece::Shared(bytes) = &insert.piece else { return (count, true) };
            slices[count] = IoSlice::new(&bytes[insert.sent..]);
            count += 1;
        }
        if count < IOVECS_MAX && from < self.buf.len() {
            slices[count] = IoSlice::new(&self.buf[from..]);
            count += 1;
        }
        (count, false)
    }

    fn advance(&mut self, mut count: usize) {
        while let Some(inserts) = self.inserts.as_deref_mut() {
            let Some(insert) = inserts.queue.front_mut() else {
                self.inserts = None;
                break;
            };
            let before = count.min(insert.at - self.sent);
            self.sent += before;
            count -= before;
            let within = count.min(insert.piece.len() - insert.sent);
            insert.sent += within;
            match insert.piece {
                Piece::Shared(_) => inserts.pending_shared -= within,
                Piece::File { .. } => inserts.pending_files -= within,
            }
            count -= within;
            if self.sent < insert.at || insert.sent < insert.piece.len() {
                return;
            }
            inserts.queue.pop_front();
        }
        self.sent += count;
    }

    fn compact(&mut self) {
        if self.sent == self.buf.len() && self.inserts.is_none() {
            self.buf.clear();
            self.sent = 0;
        } else if self.sent >= COMPACT_BYTES {
            self.buf.drain(..self.sent);
            for insert in self.inserts.iter_mut().flat_map(|inserts| &mut inserts.queue) {
                insert.at -= self.sent;
            }
            self.sent = 0;
        }
    }
}

/// Idle buffers of one shard, so that an output which runs empty gives its memory to the next.
#[derive(Debug, Default)]
pub(crate) struct BufferPool {
    idle: Vec<Vec<u8>>,
    bytes: usize,
}

impl BufferPool {
    /// Gives `output` a buffer if it has none.
    pub(crate) fn equip(&mut self, output: &mut Output) {
        if output.buf.capacity() == 0 {
            output.buf = self.idle.pop().map_or_else(
                || Vec::with_capacity(FRESH_BUFFER_BYTES),
                |buf| {
                    self.bytes -= buf.capacity();
                    buf
                },
            );
        }
    }

    /// Takes the buffer of an output that has nothing left to send.
    pub(crate) fn reclaim(&mut self, output: &mut Output) {
        debug_assert!(output.is_empty());
        let buf = std::mem::take(&mut output.buf);
        output.sent = 0;
        let capacity = buf.capacity();
        if capacity > 0 && capacity <= POOLED_BUFFER_BYTES_MAX && self.bytes + capacity <= POOL_BYTES_MAX {
            self.bytes += capacity;
            self.idle.push(buf);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::BorrowedFd;

    use super::*;

    /// A socket that takes at most `room` bytes a call and then blocks.
    #[derive(Default)]
    struct Narrow {
        taken: Vec<u8>,
        room: Vec<usize>,
        /// Calls that said that more will follow.
        more: usize,
    }

    impl Write for Narrow {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            let Some(room) = self.room.pop() else { return Err(io::ErrorKind::WouldBlock.into()) };
            let count = room.min(buf.len());
            self.taken.extend_from_slice(&buf[..count]);
            Ok(count)
        }

        fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
            let all: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
            self.write(&all)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Sink for Narrow {
        fn write_more(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
            self.more += 1;
            self.write_vectored(slices)
        }

        fn send_file(&mut self, file: &dyn FileBytes, at: u64, len: usize) -> io::Result<usize> {
            let mut bytes = vec![0; len];
            match file.read_at(&mut bytes, at)? {
                0 => Err(io::ErrorKind::UnexpectedEof.into()),
                count => self.write(&bytes[..count]),
            }
        }
    }

    /// A file in memory.
    struct Bytes(Vec<u8>);

    impl FileBytes for Bytes {
        fn as_fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn read_at(&self, mut into: &mut [u8], at: u64) -> io::Result<usize> {
            into.write(&self.0[self.0.len().min(at as usize)..])
        }
    }

    #[test]
    fn bytes_leave_in_the_order_they_were_appended_whatever_the_socket_takes() {
        let file: Arc<dyn FileBytes> = Arc::new(Bytes((0..200).collect()));
        for step in [1, 2, 3, 5, 7, 1000] {
            let mut output = Output::default();
            let mut expected = Vec::new();
            for round in 0..40_u8 {
                output.buffer().extend_from_slice(&[round; 3]);
                expected.extend_from_slice(&[round; 3]);
                if round % 3 == 0 {
                    output.push_shared(Arc::from(vec![100 + round; 5]));
                    expected.extend_from_slice(&[100 + round; 5]);
                }
                if round % 4 == 0 {
                    output.push_file(Arc::clone(&file), u64::from(round), 6);
                    expected.extend(round..round + 6);
                }
                if round % 8 == 0 {
                    output.push_file(Arc::clone(&file), 190, 0);
                    output.push_file(Arc::clone(&file), 190, 10);
                    expected.extend(190..200);
                }
            }
            assert_eq!(output.pending(), expected.len());
            assert_eq!(output.pending_files(), 10 * 6 + 5 * 10);
            let mut socket = Narrow::default();
            let mut calls = 0;
            while !output.is_empty() {
                let before = output.pending();
                socket.room = vec![step];
                let flushed = output.write_to(&mut socket, &mut calls).unwrap();
                assert_eq!(output.pending(), before - flushed.bytes);
                assert!(!flushed.yields);
            }
            assert_eq!(socket.taken, expected);
            assert_eq!(output.pending_memory() + output.pending_files(), 0);
        }
    }

    #[test]
    fn what_stands_before_a_file_says_that_more_follows() {
        let file: Arc<dyn FileBytes> = Arc::new(Bytes(vec![1; 10]));
        let mut output = Output::default();
        output.buffer().extend_from_slice(b"header");
        output.push_file(Arc::clone(&file), 0, 10);
        output.push_file(file, 0, 10);
        output.buffer().extend_from_slice(b"end");
        let mut socket = Narrow { room: vec![1000; 10], ..Narrow::default() };
        let mut calls = 0;
        output.write_to(&mut socket, &mut calls).unwrap();
        assert_eq!((socket.more, calls), (1, 4));
        assert_eq!(socket.taken.len(), 6 + 10 + 10 + 3);
    }

    #[test]
    fn a_long_range_of_a_file_lets_others_have_their_turn() {
        let len = 2 * FILE_BYTES_PER_FLUSH + 1;
        let mut output = Output::default();
        output.push_file(Arc::new(Bytes(vec![1; len])), 0, len);
        let mut taken = Narrow { room: vec![usize::MAX; 10], ..Narrow::default() };
        for (bytes, yields) in [(FILE_BYTES_PER_FLUSH, true), (FILE_BYTES_PER_FLUSH, true), (1, false)] {
            assert_eq!(output.write_to(&mut taken, &mut 0).unwrap(), Flushed { bytes, yields });
        }
        assert!(output.is_empty());
    }

    #[test]
    fn a_file_that_ends_too_early_is_an_error() {
        let mut output = Output::default();
        output.push_file(Arc::new(Bytes(vec![1; 10])), 5, 6);
        let mut sent = Vec::new();
        let error = output.drain_to(&mut sent).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(sent, [1; 5]);
    }

    #[test]
    fn a_buffer_that_never_runs_empty_does_not_grow_without_end() {
        let mut output = Output::default();
        let mut calls = 0;
        let mut socket = Narrow::default();
        output.buffer().extend_from_slice(&[7; 1000]);
        for _ in 0..1000 {
            output.buffer().extend_from_slice(&[7; 1000]);
            socket.room = vec![1000];
            output.write_to(&mut socket, &mut calls).unwrap();
        }
        assert_eq!(output.pending(), 1000);
        assert!(output.buf.capacity() < 4 * COMPACT_BYTES, "{}", output.buf.capacity());
    }

    #[test]
    fn a_drained_output_gives_its_buffer_back() {
        let mut pool = BufferPool::default();
        let mut output = Output::default();
        pool.equip(&mut output);
        let address = output.buf.as_ptr();
        pool.reclaim(&mut output);
        assert_eq!(output.buf.capacity(), 0);
        let mut other = Output::default();
        pool.equip(&mut other);
        assert_eq!(other.buf.as_ptr(), address);
    }
}
