//! Standard input line by line, read without blocking the connection beside it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::failure::{Failure, io_words};

const READ_BYTES: usize = 64 * 1024;
/// A PUBLISH cannot carry more (2.1.4).
const LINE_BYTES_MAX: usize = 268_435_455;

/// Splits a descriptor's bytes into lines.
#[derive(Debug)]
pub(crate) struct Lines<F> {
    input: F,
    buffer: Vec<u8>,
    /// Bytes of `buffer` already handed out.
    taken: usize,
    /// Bytes of `buffer` known to hold no further line end.
    searched: usize,
    ended: bool,
}

impl<F: AsFd> Lines<F> {
    /// Lines of `input`.
    pub(crate) fn new(input: F) -> Self {
        Self { input, buffer: Vec::new(), taken: 0, searched: 0, ended: false }
    }

    /// What to wait for before the next [`Lines::read`].
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.input.as_fd()
    }

    /// Whether the input has ended; lines may remain.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Reads once.
    ///
    /// # Errors
    /// Those of the descriptor, or a line beyond what a message may hold.
    pub(crate) fn read(&mut self) -> Result<(), Failure> {
        self.buffer.drain(..self.taken);
        self.searched -= self.taken;
        self.taken = 0;
        if self.buffer.len() > LINE_BYTES_MAX {
            return Err(Failure::new("a line longer than any message"));
        }
        let filled = self.buffer.len();
        self.buffer.resize(filled + READ_BYTES, 0);
        let result = rustix::io::read(&self.input, &mut self.buffer[filled..]);
        self.buffer.truncate(filled + *result.as_ref().unwrap_or(&0));
        match result {
            Ok(0) => self.ended = true,
            Ok(_) | Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(error) => {
                return Err(Failure::new(format!("standard input: {}", io_words(&io::Error::from(error)))));
            }
        }
        Ok(())
    }

    /// The next line among the bytes read, without its end. Empty lines are skipped.
    pub(crate) fn next(&mut self) -> Option<&[u8]> {
        loop {
            let from = self.taken.max(self.searched);
            let end = self.buffer[from..].iter().position(|byte| *byte == b'\n').map(|at| from + at);
            let (start, end) = match end {
                Some(end) => {
                    let start = std::mem::replace(&mut self.taken, end + 1);
                    self.searched = end + 1;
                    (start, end)
                }
                None if self.ended && self.taken < self.buffer.len() => {
                    let end = self.buffer.len();
                    self.searched = end;
                    (std::mem::replace(&mut self.taken, end), end)
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
    fn lines_come_out_whole_however_they_went_in() {
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
        assert_eq!(lines.next(), Some(&b"three"[..]), "the last line needs no end");
        assert_eq!(lines.next(), None);
    }
}
