//! Lines of standard input, read so that a connection can be served at the same time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::failure::{Failure, io_message};

const READ_BYTES: usize = 64 * 1024;
/// Largest remaining length of an MQTT packet (2.1.4).
const LINE_BYTES_MAX: usize = 268_435_455;

/// Splits the input of a descriptor into lines.
#[derive(Debug)]
pub(crate) struct Lines<F> {
    input: F,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that have been returned.
    consumed: usize,
    /// Bytes of `buffer` without another newline.
    searched: usize,
    ended: bool,
}

impl<F: AsFd> Lines<F> {
    pub(crate) fn new(input: F) -> Self {
        Self { input, buffer: Vec::new(), consumed: 0, searched: 0, ended: false }
    }

    /// The descriptor to poll before [`Lines::read`].
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.input.as_fd()
    }

    /// Whether the input has ended. There may be lines left.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Reads once.
    ///
    /// # Errors
    /// If reading fails, or a line exceeds the size of an MQTT packet.
    pub(crate) fn read(&mut self) -> Result<(), Failure> {
        self.buffer.drain(..self.consumed);
        self.searched -= self.consumed;
        self.consumed = 0;
        if self.buffer.len() > LINE_BYTES_MAX {
            return Err(Failure::new("standard input: a line is longer than the largest MQTT packet"));
        }
        let filled = self.buffer.len();
        self.buffer.resize(filled + READ_BYTES, 0);
        let result = rustix::io::read(&self.input, &mut self.buffer[filled..]);
        self.buffer.truncate(filled + *result.as_ref().unwrap_or(&0));
        match result {
            Ok(0) => self.ended = true,
            Ok(_) | Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(error) => {
                return Err(Failure::new(format!("standard input: {}", io_message(&io::Error::from(error)))));
            }
        }
        Ok(())
    }

    /// Returns the next line that has been read, without its line ending. Skips empty lines.
    pub(crate) fn next(&mut self) -> Option<&[u8]> {
        loop {
            let from = self.consumed.max(self.searched);
            let end = self.buffer[from..].iter().position(|byte| *byte == b'\n').map(|at| from + at);
            let (start, end) = match end {
                Some(end) => {
                    let start = std::mem::replace(&mut self.consumed, end + 1);
                    self.searched = end + 1;
                    (start, end)
                }
                None if self.ended && self.consumed < self.buffer.len() => {
                    let end = self.buffer.len();
                    self.searched = end;
                    (std::mem::replace(&mut self.consumed, end), end)
                }
                None => {
                    self.searched = self.buffer.len();
                    return None;
                }
            };
            let end = if end > start && self.buffer[end - 1] == b'\r' { end - 1 } else { end };
            if end > start {
                return Some(&self.buffer[start..end]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn reassembles_lines_from_partial_reads() {
        let (mut writer, reader) = UnixStream::pair().unwrap();
        let mut lines = Lines::new(reader);
        let mut seen: Vec<Vec<u8>> = Vec::new();
        for part in ["on", "e\ntwo\r\n\n", "\nthr", "ee"] {
            writer.write_all(part.as_bytes()).unwrap();
            lines.read().unwrap();
            while let Some(line) = lines.next() {
                seen.push(line.to_vec());
            }
        }
        assert_eq!(seen, [b"one", b"two"]);
        drop(writer);
        lines.read().unwrap();
        assert!(lines.is_ended());
        assert_eq!(lines.next(), Some(&b"three"[..]), "the last line needs no newline");
        assert_eq!(lines.next(), None);
    }
}
