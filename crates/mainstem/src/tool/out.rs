//! Standard output for what comes again and again, until nobody reads it any more.

use std::io::{self, BufWriter, Stdout, Write};

use super::failure::{Failure, io_words};

/// Standard output, until nobody reads it any more.
#[derive(Debug)]
pub(crate) struct Out {
    out: BufWriter<Stdout>,
    is_gone: bool,
}

impl Default for Out {
    fn default() -> Self {
        Self { out: BufWriter::new(io::stdout()), is_gone: false }
    }
}

impl Out {
    /// Whether nobody reads any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Prints some bytes.
    ///
    /// # Errors
    /// If the output fails, other than by nobody reading it.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let result = self.out.write_all(bytes);
        self.written(result)
    }

    /// Hands everything printed to the operating system.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        let result = self.out.flush();
        self.written(result)
    }

    fn written(&mut self, result: io::Result<()>) -> Result<(), Failure> {
        match result {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.is_gone = true;
                Ok(())
            }
            Err(error) => Err(Failure::new(format!("standard output: {}", io_words(&error)))),
        }
    }
}
