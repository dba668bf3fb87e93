//! Pending output of a connection.
//!
//! Small writes are copied into one buffer, large payloads stay shared among their receivers, and file ranges are sent
//! by the kernel. Shared payloads and file ranges are inserts at positions of the buffer, so that a flush is one
//! `writev` in the common case. A flush sends a bounded amount of file data, so that a fast reader cannot starve the
//! other connections.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;

use crate::file::{FileBytes, Sink};
use crate::shared::SharedBytes;

/// Payloads of at least this size are shared by all of their receivers instead of copied into each output, bytes.
///
/// Below it one copy is cheaper than a second `iovec` and a reference count.
pub const SHARED_MIN_BYTES: usize = 8 * 1024;

/// Maximum number of slices per `writev`. The kernel accepts 1,024, but a socket buffer is full long before.
pub(crate) const IOVECS_MAX: usize = 32;
/// Maximum file bytes per flush, so that a peer that reads as fast as the shard sends does not starve others.
const FILE_BYTES_PER_FLUSH: usize = 1024 * 1024;
/// Number of sent bytes at which they are removed from the front of a buffer that never runs empty.
const COMPACT_BYTES: usize = 64 * 1024;
/// Maximum capacity of a pooled buffer; larger ones are freed.
const POOLED_BUFFER_BYTES_MAX: usize = 64 * 1024;
/// Initial capacity of a buffer, enough for about ten small packets.
const FRESH_BUFFER_BYTES: usize = 1024;
/// Maximum total capacity of a shard's pooled buffers, bytes.
const POOL_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Pending output of one connection, in order. Owned by the connection's shard.
///
/// An empty output allocates no memory.
#[derive(Debug, Default)]
pub struct Output {
    buf: Vec<u8>,
    /// Number of bytes at the front of `buf` that were sent.
    sent: usize,
    inserts: Option<Box<Inserts>>,
}

/// Payloads to insert between the bytes of `buf`.
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
    /// Position in `buf` before which it is sent.
    at: usize,
    sent: usize,
    payload: Payload,
}

#[derive(Debug)]
enum Payload {
    Shared(SharedBytes),
    File { file: Arc<dyn FileBytes>, position: u64, len: usize },
}

impl Payload {
    fn len(&self) -> usize {
        match self {
            Self::Shared(bytes) => bytes.len(),
            Self::File { len, .. } => *len,
        }
    }
}

/// Result of a flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flushed {
    /// Number of bytes sent.
    pub(crate) bytes: usize,
    /// The flush stopped at its limit although the socket may accept more. No event follows: flush again next turn.
    pub(crate) yields: bool,
}

impl Output {
    /// Total pending bytes.
    pub fn pending(&self) -> usize {
        self.pending_memory() + self.pending_files()
    }

    /// Pending bytes in memory.
    pub(crate) fn pending_memory(&self) -> usize {
        self.pending_own() + self.pending_shared()
    }

    /// Pending bytes in this output's own buffer.
    pub(crate) fn pending_own(&self) -> usize {
        self.buf.len() - self.sent
    }

    /// Pending bytes in shared payloads.
    pub(crate) fn pending_shared(&self) -> usize {
        self.inserts.as_ref().map_or(0, |inserts| inserts.pending_shared)
    }

    /// Memory of this output. Shared payloads are counted where they were made.
    #[inline]
    pub(crate) fn memory(&self) -> usize {
        let inserts = self.inserts.as_ref().map_or(0, |inserts| inserts.queue.capacity());
        self.buf.capacity() + inserts * size_of::<Insert>()
    }

    /// Pending bytes in files.
    pub(crate) fn pending_files(&self) -> usize {
        self.inserts.as_ref().map_or(0, |inserts| inserts.pending_files)
    }

    /// Whether less is pending in shared payloads and in files than these limits, bytes.
    #[inline]
    pub(crate) fn has_fewer_inserts(&self, shared_max: usize, files_max: usize) -> bool {
        self.inserts
            .as_ref()
            .is_none_or(|inserts| inserts.pending_shared < shared_max && inserts.pending_files < files_max)
    }

    /// Whether nothing is pending.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.sent == self.buf.len()
            && self.inserts.as_ref().is_none_or(|inserts| inserts.pending_shared + inserts.pending_files == 0)
    }

    /// Returns the buffer for small writes. Only append to it: its contents may be partly sent.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buf
    }

    /// Discards all pending output, none of which may have been sent.
    pub(crate) fn clear(&mut self) {
        debug_assert_eq!(self.sent, 0, "part of the output was sent");
        self.buf.clear();
        self.inserts = None;
    }

    /// Appends a payload without copying it.
    pub fn push_shared(&mut self, bytes: SharedBytes) {
        let at = self.buf.len();
        let inserts = self.inserts.get_or_insert_default();
        inserts.pending_shared += bytes.len();
        inserts.queue.push_back(Insert { at, sent: 0, payload: Payload::Shared(bytes) });
    }

    /// Appends `len` bytes of a file from `position` on. The range must not change until it is sent. If the file is
    /// too short, the connection is closed.
    pub fn push_file(&mut self, file: Arc<dyn FileBytes>, position: u64, len: usize) {
        if len == 0 {
            return;
        }
        let at = self.buf.len();
        let inserts = self.inserts.get_or_insert_default();
        inserts.pending_files += len;
        inserts.queue.push_back(Insert { at, sent: 0, payload: Payload::File { file, position, len } });
    }

    /// Writes until the socket is full, the output is empty, or the file limit of one flush is reached. `calls` counts
    /// system calls.
    ///
    /// # Errors
    /// Errors of the socket except `WouldBlock` and `Interrupted`, and errors of the files. The output is then
    /// unusable.
    #[inline]
    pub(crate) fn write_to(&mut self, socket: &mut impl Sink, calls: &mut u64) -> io::Result<Flushed> {
        // The flush of most connections in most turns: small enough to be inlined, and free of the bookkeeping that
        // anything else needs.
        let len = self.buf.len();
        if self.inserts.is_none() && self.sent == 0 && len > 0 {
            *calls += 1;
            return match socket.write(&self.buf) {
                Ok(count) if count == len => {
                    self.buf.clear();
                    Ok(Flushed { bytes: count, yields: false })
                }
                outcome => self.write_rest(outcome, socket, calls),
            };
        }
        self.write_some(socket, calls)
    }

    /// Continues after a first write of the buffer that has not taken all of it.
    #[inline(never)]
    fn write_rest(
        &mut self,
        outcome: io::Result<usize>,
        socket: &mut impl Sink,
        calls: &mut u64,
    ) -> io::Result<Flushed> {
        match outcome {
            Ok(0) => Err(io::ErrorKind::WriteZero.into()),
            // A short write means a full socket: a retry would only cost a system call.
            Ok(count) => {
                self.sent = count;
                self.compact();
                Ok(Flushed { bytes: count, yields: false })
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Flushed::default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => self.write_some(socket, calls),
            Err(error) => Err(error),
        }
    }

    #[inline(never)]
    fn write_some(&mut self, socket: &mut impl Sink, calls: &mut u64) -> io::Result<Flushed> {
        let mut flushed = Flushed::default();
        let mut file_room = FILE_BYTES_PER_FLUSH;
        while !self.is_empty() {
            *calls += 1;
            let (written, min_written) = match self.file_at_front() {
                Some(_) if file_room == 0 => {
                    flushed.yields = true;
                    break;
                }
                Some((file, at, len)) => {
                    let written = socket.send_file(file, at, len.min(file_room));
                    file_room -= written.as_ref().map_or(0, |count| *count);
                    // `sendfile` may be short for other reasons than a full socket: retry to find out.
                    (written, 0)
                }
                // As in `write_rest`, a short write means a full socket.
                None => self.write_memory(socket),
            };
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    flushed.bytes += count;
                    self.advance(count);
                    if count < min_written {
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

    /// The file range to send next, if an insert of that kind is at the front.
    fn file_at_front(&self) -> Option<(&dyn FileBytes, u64, usize)> {
        let insert = self.inserts.as_ref()?.queue.front().filter(|insert| insert.at == self.sent)?;
        let Payload::File { file, position, len } = &insert.payload else { return None };
        Some((&**file, position + insert.sent as u64, len - insert.sent))
    }

    /// Writes the bytes in memory before the next file range. Returns the result and the number of bytes attempted.
    fn write_memory(&self, socket: &mut impl Sink) -> (io::Result<usize>, usize) {
        if self.inserts.is_none() {
            return (socket.write(&self.buf[self.sent..]), self.pending_own());
        }
        let mut slices = [IoSlice::new(&[]); IOVECS_MAX];
        let (count, more) = self.gather(&mut slices);
        let slices = &slices[..count];
        let attempted = slices.iter().map(|slice| slice.len()).sum();
        (if more { socket.write_more(slices) } else { socket.write_vectored(slices) }, attempted)
    }

    /// Collects the bytes in memory before the next file range. Returns the slice count and whether such a range
    /// follows.
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
            let Payload::Shared(bytes) = &insert.payload else { return (count, true) };
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
            let within = count.min(insert.payload.len() - insert.sent);
            insert.sent += within;
            match insert.payload {
                Payload::Shared(_) => inserts.pending_shared -= within,
                Payload::File { .. } => inserts.pending_files -= within,
            }
            count -= within;
            if self.sent < insert.at || insert.sent < insert.payload.len() {
                return;
            }
            inserts.queue.pop_front();
        }
        self.sent += count;
    }

    #[inline]
    fn compact(&mut self) {
        if self.sent == self.buf.len() && self.inserts.is_none() {
            self.buf.clear();
            self.sent = 0;
        } else if self.sent >= COMPACT_BYTES {
            self.drop_sent();
        }
    }

    /// Drops the bytes that were sent.
    #[cold]
    fn drop_sent(&mut self) {
        self.buf.drain(..self.sent);
        // A reader that keeps a little pending must not keep the memory of a large packet.
        if self.buf.len() < self.buf.capacity() / 4 {
            self.buf.shrink_to(POOLED_BUFFER_BYTES_MAX);
        }
        for insert in self.inserts.iter_mut().flat_map(|inserts| &mut inserts.queue) {
            insert.at -= self.sent;
        }
        self.sent = 0;
    }
}

/// Pool of idle buffers of one shard.
#[derive(Debug, Default)]
pub(crate) struct BufferPool {
    idle: Vec<Vec<u8>>,
    bytes: usize,
}

impl BufferPool {
    /// Assigns a buffer to `output` if it has none.
    #[inline]
    pub(crate) fn assign_buffer(&mut self, output: &mut Output) {
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

    /// Capacity of all idle buffers.
    pub(crate) fn memory(&self) -> usize {
        self.bytes
    }

    /// Returns the buffer of an empty output to the pool.
    #[inline]
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

    /// A socket that accepts `room` bytes per call and then blocks.
    #[derive(Default)]
    struct LimitedSocket {
        taken: Vec<u8>,
        room: Vec<usize>,
        /// Number of `write_more` calls.
        more: usize,
    }

    impl Write for LimitedSocket {
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

    impl Sink for LimitedSocket {
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
    fn preserves_order_for_any_write_size() {
        let file: Arc<dyn FileBytes> = Arc::new(Bytes((0..200).collect()));
        for step in [1, 2, 3, 5, 7, 1000] {
            let mut output = Output::default();
            let mut expected = Vec::new();
            for round in 0..40_u8 {
                output.buffer().extend_from_slice(&[round; 3]);
                expected.extend_from_slice(&[round; 3]);
                if round % 3 == 0 {
                    output.push_shared(SharedBytes::from(&[100 + round; 5][..]));
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
            let mut socket = LimitedSocket::default();
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
    fn bytes_before_a_file_set_the_more_flag() {
        let file: Arc<dyn FileBytes> = Arc::new(Bytes(vec![1; 10]));
        let mut output = Output::default();
        output.buffer().extend_from_slice(b"header");
        output.push_file(Arc::clone(&file), 0, 10);
        output.push_file(file, 0, 10);
        output.buffer().extend_from_slice(b"end");
        let mut socket = LimitedSocket { room: vec![1000; 10], ..LimitedSocket::default() };
        let mut calls = 0;
        output.write_to(&mut socket, &mut calls).unwrap();
        assert_eq!((socket.more, calls), (1, 4));
        assert_eq!(socket.taken.len(), 6 + 10 + 10 + 3);
    }

    #[test]
    fn long_file_ranges_yield() {
        let len = 2 * FILE_BYTES_PER_FLUSH + 1;
        let mut output = Output::default();
        output.push_file(Arc::new(Bytes(vec![1; len])), 0, len);
        let mut taken = LimitedSocket { room: vec![usize::MAX; 10], ..LimitedSocket::default() };
        for (bytes, yields) in [(FILE_BYTES_PER_FLUSH, true), (FILE_BYTES_PER_FLUSH, true), (1, false)] {
            assert_eq!(output.write_to(&mut taken, &mut 0).unwrap(), Flushed { bytes, yields });
        }
        assert!(output.is_empty());
    }

    #[test]
    fn truncated_file_is_an_error() {
        let mut output = Output::default();
        output.push_file(Arc::new(Bytes(vec![1; 10])), 5, 6);
        let mut sent = Vec::new();
        let error = output.write_to(&mut sent, &mut 0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(sent, [1; 5]);
    }

    #[test]
    fn buffer_that_never_drains_stays_bounded() {
        let mut output = Output::default();
        let mut calls = 0;
        let mut socket = LimitedSocket::default();
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
    fn reclaims_the_buffer_of_a_drained_output() {
        let mut pool = BufferPool::default();
        let mut output = Output::default();
        pool.assign_buffer(&mut output);
        let address = output.buf.as_ptr();
        pool.reclaim(&mut output);
        assert_eq!(output.buf.capacity(), 0);
        let mut other = Output::default();
        pool.assign_buffer(&mut other);
        assert_eq!(other.buf.as_ptr(), address);
    }
}
