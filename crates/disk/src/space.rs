//! Space reserved in the newest segment before it is written.
//!
//! Writes into reserved space cannot fail for lack of it, and mapped writes require it. Steps grow with the segment,
//! so that small logs stay small. For mapped writes, the writer reserves it itself ([`Space::reserve`]). Otherwise the
//! committer does, ahead of the writes ([`Space::next`]); a write that comes first extends the file.

use std::io;
use std::ops::Range;

use crate::failure::Failure;
use crate::fs::File;

/// Minimum reservation step, bytes. A step is as large as the segment, within these bounds.
pub(crate) const STEP_MIN: u64 = 64 * 1024;
const STEP_MAX: u64 = 4 << 20;

#[derive(Debug, Default)]
pub(crate) struct Space {
    /// End of the reserved part of the file, bytes.
    pub(crate) end: u64,
    /// The file system does not support reservations.
    is_unsupported: bool,
    /// The last reservation ahead failed. It is retried when the space is needed.
    ahead_failed: bool,
}

impl Space {
    /// Resets the state for a new or truncated segment.
    pub(crate) fn restart(&mut self, end: u64) {
        *self = Self { end, is_unsupported: self.is_unsupported, ahead_failed: false };
    }

    /// The space to reserve next, if a write up to byte `to` leaves less than half a step of it. It counts as reserved,
    /// whether or not that succeeds: without it, writes extend the file. `most` is the segment limit.
    #[inline]
    pub(crate) fn next(&mut self, to: u64, most: u64) -> Option<Range<u64>> {
        let from = self.end;
        let step = from.clamp(STEP_MIN, STEP_MAX);
        if to + step / 2 <= from || from >= most {
            return None;
        }
        self.end = from + step.min(most - from).max(to.saturating_sub(from));
        Some(from..self.end)
    }

    /// Reserves space in `file` for a write up to byte `to`, rounded up to a step. Also keeps `ahead` bytes after `to`
    /// reserved, but not beyond the segment limit `most`.
    ///
    /// # Errors
    /// No space; IO errors. A failed reservation ahead of need is not an error.
    #[inline]
    pub(crate) fn reserve(&mut self, file: &dyn File, to: u64, ahead: u64, most: u64) -> Result<(), Failure> {
        let is_early = to <= self.end;
        if to + ahead <= self.end
            || self.is_unsupported
            || (is_early && (self.ahead_failed || self.end >= most))
        {
            return Ok(());
        }
        let outcome = self.extend(file, to.saturating_sub(self.end), ahead, most);
        self.ahead_failed = outcome.is_err();
        if is_early { Ok(()) } else { outcome }
    }

    fn extend(&mut self, file: &dyn File, needed: u64, ahead: u64, most: u64) -> Result<(), Failure> {
        let from = self.end;
        let step = from.clamp(STEP_MIN, STEP_MAX) + ahead;
        let size = step.min(most.saturating_sub(from)).max(needed);
        match file.allocate(from, size) {
            Ok(()) => self.end = from + size,
            Err(error) if error.kind() == io::ErrorKind::Unsupported => self.is_unsupported = true,
            Err(error) => match Failure::from(error) {
                Failure::Full(_) if needed > 0 => {
                    file.allocate(from, needed)?;
                    self.end = from + needed;
                }
                failure => return Err(failure),
            },
        }
        Ok(())
    }
}
