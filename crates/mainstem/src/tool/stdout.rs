//! Buffered standard output that tolerates a closed pipe.

use std::io::{self, BufWriter, Stdout, Write};

use super::failure::{Failure, io_message};

/// Buffered standard output. A closed pipe is not an error: it sets a flag, so that the tool can stop.
#[derive(Debug)]
pub(crate) struct StdoutWriter {
    out: BufWriter<Stdout>,
    is_closed: bool,
}

impl Default for StdoutWriter {
    fn default() -> Self {
        Self { out: BufWriter::new(io::stdout()), is_closed: false }
    }
}

impl StdoutWriter {
    /// Whether standard output is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Writes to the buffer.
    ///
    /// # Errors
    /// If writing fails, except when standard output is closed.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let result = self.out.write_all(bytes);
        self.check_written(result)
    }

    /// Flushes the buffer.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        let result = self.out.flush();
        self.check_written(result)
    }

    fn check_written(&mut self, result: io::Result<()>) -> Result<(), Failure> {
        match result {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.is_closed = true;
                Ok(())
            }
            Err(error) => Err(Failure::new(format!("standard output: {}", io_message(&error)))),
        }
    }
}
