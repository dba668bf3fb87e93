//! Bytes on their way to one connection: small writes are copied together, large payloads stay shared.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::sync::Arc;

/// From this size on a payload is shared by all of its receivers instead of copied into each output.
///
/// Below it one copy is cheaper than a second `iovec` and a reference count.
pub const SHARED_MIN_BYTES: usize = 8 * 1024;

/// Slices handed to one `writev`; the kernel takes up to 1,024, but a socket buffer is full long before.
const IOVECS_MAX: usize = 32;
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
    shared: Option<Box<Shared>>,
}

/// Shared payloads between the bytes of `buf`.
#[derive(Debug, Default)]
struct Shared {
    segments: VecDeque<Segment>,
    /// Bytes of all segments not yet sent.
    pending: usize,
}

#[derive(Debug)]
struct Segment {
    /// The segment follows the first `at` bytes of `buf`.
    at: usize,
    bytes: Arc<[u8]>,
    sent: usize,
}

impl Output {
    /// Bytes that wait to be sent.
    pub fn pending(&self) -> usize {
        self.buf.len() - self.sent + self.shared.as_ref().map_or(0, |shared| shared.pending)
    }

    /// Bytes that wait in memory of this output's own.
    pub(crate) fn pending_own(&self) -> usize {
        self.buf.len() - self.sent
    }

    /// Bytes that wait in payloads shared with others.
    pub(crate) fn pending_shared(&self) -> usize {
        self.shared.as_ref().map_or(0, |shared| shared.pending)
    }

    /// Whether nothing waits to be sent.
    pub fn is_empty(&self) -> bool {
        self.pending() == 0
    }

    /// The buffer to append small writes to. Only append: what stands in it may be half sent.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buf
    }

    /// Appends a payload without copying it.
    pub fn push_shared(&mut self, bytes: Arc<[u8]>) {
        let at = self.buf.len();
        let shared = self.shared.get_or_insert_default();
        shared.pending += bytes.len();
        shared.segments.push_back(Segment { at, bytes, sent: 0 });
    }

    /// Writes as much as the socket takes, and says how many bytes that was.
    ///
    /// # Errors
    /// Whatever the socket answers but `WouldBlock` and `Interrupted`; the output is then worthless.
    pub fn write_to(&mut self, socket: &mut impl Write, stats: &mut u64) -> io::Result<usize> {
        let mut total = 0;
        while !self.is_empty() {
            *stats += 1;
            let wanted;
            let written = if self.shared.is_none() {
                wanted = self.buf.len() - self.sent;
                socket.write(&self.buf[self.sent..])
            } else {
                let mut slices = [IoSlice::new(&[]); IOVECS_MAX];
                let count = self.gather(&mut slices);
                wanted = slices[..count].iter().map(|slice| slice.len()).sum();
                socket.write_vectored(&slices[..count])
            };
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    total += count;
                    self.advance(count);
                    // A short write means a full socket: asking again would only cost a call.
                    if count < wanted {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.compact();
        Ok(total)
    }

    fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>; IOVECS_MAX]) -> usize {
        let mut count = 0;
        let mut from = self.sent;
        for segment in self.shared.iter().flat_map(|shared| &shared.segments) {
            if count + 2 > IOVECS_MAX {
                return count;
            }
            if from < segment.at {
                slices[count] = IoSlice::new(&self.buf[from..segment.at]);
                count += 1;
                from = segment.at;
            }
            slices[count] = IoSlice::new(&segment.bytes[segment.sent..]);
            count += 1;
        }
        if count < IOVECS_MAX && from < self.buf.len() {
            slices[count] = IoSlice::new(&self.buf[from..]);
            count += 1;
        }
        count
    }

    fn advance(&mut self, mut count: usize) {
        while let Some(shared) = self.shared.as_deref_mut() {
            let Some(segment) = shared.segments.front_mut() else {
                self.shared = None;
                break;
            };
            let before = count.min(segment.at - self.sent);
            self.sent += before;
            count -= before;
            let within = count.min(segment.bytes.len() - segment.sent);
            segment.sent += within;
            shared.pending -= within;
            count -= within;
            if segment.sent < segment.bytes.len() {
                return;
            }
            shared.segments.pop_front();
        }
        self.sent += count;
    }

    fn compact(&mut self) {
        if self.sent == self.buf.len() && self.shared.is_none() {
            self.buf.clear();
            self.sent = 0;
        } else if self.sent >= COMPACT_BYTES {
            self.buf.drain(..self.sent);
            for segment in self.shared.iter_mut().flat_map(|shared| &mut shared.segments) {
                segment.at -= self.sent;
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
    use super::*;

    /// A socket that takes at most `room` bytes a call and then blocks.
    struct Narrow {
        taken: Vec<u8>,
        room: Vec<usize>,
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

    #[test]
    fn bytes_leave_in_the_order_they_were_appended_whatever_the_socket_takes() {
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
            }
            let mut socket = Narrow { taken: Vec::new(), room: Vec::new() };
            let mut calls = 0;
            while !output.is_empty() {
                let before = output.pending();
                socket.room = vec![step];
                let written = output.write_to(&mut socket, &mut calls).unwrap();
                assert_eq!(output.pending(), before - written);
            }
            assert_eq!(socket.taken, expected);
        }
    }

    #[test]
    fn a_buffer_that_never_runs_empty_does_not_grow_without_end() {
        let mut output = Output::default();
        let mut calls = 0;
        let mut socket = Narrow { taken: Vec::new(), room: Vec::new() };
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
