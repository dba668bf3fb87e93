//! Returns freed memory to the operating system.
//!
//! The allocator keeps what is freed for later use. After a burst, say of large messages that waited for a client, the
//! process would keep its largest size for ever. So a thread of its own compares the counted memory once per second
//! with its peak. When it has fallen by a quarter and 64 MiB, and stays there, the allocator releases its free pages.
//! It locks the memory of each thread in turn for that, which is why this is not done more often.
//!
//! Large blocks do not wait for that: they are mapped one by one and unmapped when they are freed. By default, the
//! allocator raises the size from which it does so to that of the largest block freed so far, up to 32 MiB. After one
//! packet of 16 MiB, the input of the next ones would grow by copying, and leave holes that stay resident.

use std::io;
use std::sync::Arc;
use std::thread::{self, Builder};
use std::time::Duration;

use crate::memory::MemoryBudget;

/// Interval of comparisons.
const INTERVAL: Duration = Duration::from_secs(1);
/// Smallest fall of the counted memory after which free pages are released, bytes.
const FALL_BYTES_MIN: u64 = 64 * 1024 * 1024;
/// Comparisons in which the memory must not have fallen further.
const STEADY_MIN: u32 = 2;
/// Size from which a block has pages of its own, bytes: above what the hot paths allocate.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_BLOCK_BYTES: libc::c_int = 1024 * 1024;

/// Finds out when much memory was freed and no more is being freed.
#[derive(Debug, Default)]
struct FallDetector {
    /// Most bytes since the last release.
    peak: u64,
    /// Least bytes since then.
    low: u64,
    /// Comparisons since the last fall.
    steady: u32,
}

impl FallDetector {
    /// So many bytes are in use. Returns how far that is below the peak, when free pages are to be released.
    fn observe(&mut self, used: u64) -> Option<u64> {
        if used >= self.peak {
            *self = Self { peak: used, low: used, steady: 0 };
            return None;
        }
        // Small changes do not count as a fall.
        let has_fallen = used < self.low - self.low / 16;
        if has_fallen {
            (self.low, self.steady) = (used, 0);
            return None;
        }
        self.steady += 1;
        let fall = self.peak - used;
        if self.steady < STEADY_MIN || fall < FALL_BYTES_MIN.max(self.peak / 4) {
            return None;
        }
        *self = Self { peak: used, low: used, steady: 0 };
        Some(fall)
    }
}

/// Lets the allocator map large blocks one by one, and starts the thread that releases free memory when what `budget`
/// counts has fallen. It runs until the process ends.
///
/// # Errors
/// If the operating system cannot start a thread.
pub fn return_free_memory(budget: Arc<MemoryBudget>) -> io::Result<()> {
    map_large_blocks();
    let watch = move || {
        let mut detector = FallDetector::default();
        loop {
            thread::sleep(INTERVAL);
            if let Some(fall) = detector.observe(budget.used()) {
                log::debug!("memory: {} MiB were freed; free pages go back to the system", fall >> 20);
                release_free_pages();
            }
        }
    };
    Builder::new().name("memory".into()).spawn(watch).map(drop)
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "a call of the C library")]
fn map_large_blocks() {
    // SAFETY: mallopt takes the lock of the allocator and changes only its parameters.
    let is_set = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BLOCK_BYTES) };
    debug_assert_eq!(is_set, 1, "mallopt accepts this size");
}

/// Other allocators decide this by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn map_large_blocks() {}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "a call of the C library")]
fn release_free_pages() {
    // SAFETY: malloc_trim may be called at any time and by any thread; it takes the locks of the allocator.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Other allocators release pages by themselves, or have no such call.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn release_free_pages() {}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    #[test]
    fn memory_is_released_once_after_a_fall_that_is_over() {
        let mut detector = FallDetector::default();
        for used in [10, 600, 580, 400, 200, 100, 101, 99] {
            assert_eq!(detector.observe(used * MIB), (used == 99).then_some(501 * MIB), "at {used} MiB");
        }
        for _ in 0..100 {
            assert_eq!(detector.observe(99 * MIB), None, "once");
        }
        for used in [300, 50, 50, 50] {
            detector.observe(used * MIB);
        }
        assert_eq!(detector.peak, 50 * MIB, "and again after the next");
    }

    #[test]
    fn small_falls_and_steady_use_release_nothing() {
        let mut detector = FallDetector::default();
        for used in [1_000, 990, 1_000, 800, 800, 800, 1_000, 60, 1_000, 800, 800] {
            assert_eq!(detector.observe(used * MIB), None, "at {used} MiB");
        }
        let mut detector = FallDetector::default();
        for used in [60, 1, 1, 1, 1] {
            assert_eq!(detector.observe(used * MIB), None, "at {used} MiB");
        }
    }
}
