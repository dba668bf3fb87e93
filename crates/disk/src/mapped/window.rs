//! A part of a file that is mapped.

use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use memmap2::{Advice, MmapOptions, MmapRaw};

/// The longest, bytes.
pub(super) const WINDOW_BYTES: u64 = 256 * 1024;
/// Lines of memory that are brought near before they are stored into, and the size of one, bytes.
const PREFETCHED_LINES: usize = 4;
const LINE_BYTES: usize = 64;
const ZEROS: &[u8] = &[0; WINDOW_BYTES as usize];

#[derive(Debug)]
pub(super) struct Window {
    memory: MmapRaw,
    /// The bytes of the file that it shows.
    pub(super) bytes: Range<u64>,
}

impl Window {
    /// Writes zeros to a part of a file, and maps it. Nothing else may stand there, or be written there meanwhile.
    pub(super) fn open(file: &fs::File, bytes: Range<u64>) -> io::Result<Self> {
        let len = (bytes.end - bytes.start) as usize;
        file.write_all_at(&ZEROS[..len], bytes.start)?;
        let memory = MmapOptions::new().offset(bytes.start).len(len).map_raw(file)?;
        // All pages at once cost less than a fault each. Kernels before 5.14 do not know how.
        if let Err(error) = memory.advise(Advice::PopulateWrite) {
            log::trace!("a window's pages come one by one: {error}");
        }
        Ok(Self { memory, bytes })
    }

    /// Stores `bytes` at byte offset `at` of the file, from front to back: should the process be killed on the way, a first
    /// part of them is there and zeros behind, as a write leaves it that is cut short.
    #[expect(unsafe_code, reason = "memory that is shared with the kernel is written to")]
    #[expect(clippy::cast_ptr_alignment, reason = "what is not aligned is written before, byte by byte")]
    pub(super) fn store(&mut self, bytes: &[u8], at: u64) {
        assert!(self.bytes.start <= at && at + bytes.len() as u64 <= self.bytes.end);
        let from = (at - self.bytes.start) as usize;
        // SAFETY: `from` lies within the mapping, as has just been asserted.
        let mut to = unsafe { self.memory.as_mut_ptr().add(from) };
        let (first, rest) = bytes.split_at(to.align_offset(8).min(bytes.len()));
        let (words, last) = rest.as_chunks::<8>();
        // SAFETY: all of `bytes` lies within the mapping, as was asserted, and each word is aligned, since `first` ends
        // where that is so. The mapping lives as long as `self`, which is borrowed alone, and nothing else in the
        // process has a pointer into it. The file is as long as the window ([`super::Mapped::cut`]), so the
        // pages are there. Volatile writes are not put in another order.
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

/// Has the memory that is stored into next brought near: another thread wrote the zeros there, so its CPU has them.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "an instruction of its own")]
fn prefetch(next: *mut u8) {
    use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
    for line in 0..PREFETCHED_LINES {
        // SAFETY: this is a hint for any address, mapped or not.
        unsafe { _mm_prefetch(next.wrapping_add(line * LINE_BYTES).cast(), _MM_HINT_ET0) };
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn prefetch(_next: *mut u8) {}
