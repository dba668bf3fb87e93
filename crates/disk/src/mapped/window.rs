//! A memory-mapped range of a file.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use memmap2::{Advice, MmapOptions, MmapRaw};

/// Maximum length of a window, bytes.
pub(super) const WINDOW_BYTES: u64 = 256 * 1024;
/// Number of cache lines prefetched ahead of stores.
const PREFETCHED_LINES: usize = 4;
const LINE_BYTES: usize = 64;
const ZEROS: &[u8] = &[0; WINDOW_BYTES as usize];

#[derive(Debug)]
pub(super) struct Window {
    memory: MmapRaw,
    /// File range of the window.
    pub(super) bytes: Range<u64>,
}

impl Window {
    /// Writes zeros to a range of a file and maps it. The range must not hold data or be written concurrently.
    pub(super) fn open(file: &fs::File, bytes: Range<u64>) -> io::Result<Self> {
        let len = (bytes.end - bytes.start) as usize;
        file.write_all_at(&ZEROS[..len], bytes.start)?;
        let memory = MmapOptions::new().offset(bytes.start).len(len).map_raw(file)?;
        // Populating all pages at once is cheaper than a fault per page. Requires Linux 5.14.
        if let Err(error) = memory.advise(Advice::PopulateWrite) {
            log::trace!("cannot populate a file window: {error}");
        }
        Ok(Self { memory, bytes })
    }

    /// Stores `bytes` at position `at` of the file, from front to back. If the process is killed in between, a prefix
    /// is stored and zeros follow, like after a torn write.
    #[expect(unsafe_code, reason = "writes to memory shared with the kernel")]
    #[expect(clippy::cast_ptr_alignment, reason = "unaligned leading bytes are written first, one by one")]
    pub(super) fn store(&mut self, bytes: &[u8], at: u64) {
        assert!(self.bytes.start <= at && at + bytes.len() as u64 <= self.bytes.end);
        let from = (at - self.bytes.start) as usize;
        // SAFETY: the assertion above guarantees that `from` lies within the mapping.
        let mut to = unsafe { self.memory.as_mut_ptr().add(from) };
        let (first, rest) = bytes.split_at(to.align_offset(8).min(bytes.len()));
        let (words, last) = rest.as_chunks::<8>();
        // SAFETY: the assertion above guarantees that all of `bytes` lies within the mapping. Each word is aligned
        // because `first` ends at an aligned address. The mapping lives as long as `self`, which is borrowed
        // exclusively, and nothing else in the process has a pointer into it. The file is at least as long as the
        // window ([`super::Mapped::truncate`]), so the pages exist. Volatile writes are not reordered.
        unsafe {
            for byte in first {
                to.write_volatile(*byte);
                to = to.add(1);
            }
            for word in words {
                to.cast::<u64>().write_volatile(u64::from_ne_bytes(*word));
                to = to.add(8);
            }
            for byte in last {
                to.write_volatile(*byte);
                to = to.add(1);
            }
        }
        prefetch(to);
    }
}

/// Prefetches the memory of the next store. Another thread zeroed it, so that it is in that CPU's cache.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "prefetch intrinsic")]
fn prefetch(next: *mut u8) {
    use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
    for line in 0..PREFETCHED_LINES {
        // SAFETY: a prefetch is a hint and valid for any address, mapped or not.
        unsafe { _mm_prefetch(next.wrapping_add(line * LINE_BYTES).cast(), _MM_HINT_ET0) };
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn prefetch(_next: *mut u8) {}
