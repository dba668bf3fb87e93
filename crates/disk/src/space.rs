//! Space that is reserved in the newest segment of a log, before it is written.

use std::io;

use crate::fs::File;
use crate::single::Failure;

/// Space is reserved in steps of at least and at most so many bytes, as large as the segment is by then.
const STEP_MIN: u64 = 64 * 1024;
const STEP_MAX: u64 = 4 << 20;

#[derive(Debug, Default)]
pub(crate) struct Space {
    /// How much is reserved, from the start of the file on, bytes.
    pub(crate) end: u64,
    /// The file system cannot do this.
    cannot: bool,
    /// Nothing could be reserved behind `end`: that is tried again when it is needed.
    is_scarce: bool,
}

impl Space {
    /// So much of the newest segment is reserved.
    pub(crate) fn restart(&mut self, end: u64) {
        *self = Self { end, cannot: self.cannot, is_scarce: false };
    }

    /// Reserves space in `file` for what is to be written up to byte offset `to`, and some more if there is; and up to the
    /// end of the segment at `most` so much that `ahead` bytes behind `to` are reserved before they are needed.
    ///
    /// # Errors
    /// There is none; what the system says.
    #[inline]
    pub(crate) fn reserve(&mut self, file: &dyn File, to: u64, ahead: u64, most: u64) -> Result<(), Failure> {
        let is_early = to <= self.end;
        if to + ahead <= self.end || self.cannot || (is_early && (self.is_scarce || self.end >= most)) {
            return Ok(());
        }
        let outcome = self.extend(file, to.saturating_sub(self.end), ahead, most);
        self.is_scarce = outcome.is_err();
        if is_early { Ok(()) } else { outcome }
    }

    fn extend(&mut self, file: &dyn File, needed: u64, ahead: u64, most: u64) -> Result<(), Failure> {
        let from = self.end;
        let step = from.clamp(STEP_MIN, STEP_MAX) + ahead;
        let wanted = step.min(most.saturating_sub(from)).max(needed);
        match file.allocate(from, wanted) {
            Ok(()) => self.end = from + wanted,
            Err(error) if error.kind() == io::ErrorKind::Unsupported => self.cannot = true,
            Err(error) => match Failure::from(error) {
                Failure::Full if needed > 0 => {
                    file.allocate(from, needed)?;
                    self.end = from + needed;
                }
                failure => return Err(failure),
            },
        }
        Ok(())
    }
}
