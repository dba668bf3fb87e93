//! Something that threads wait for.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Something that threads wait for. It costs next to nothing while nobody does.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    given: AtomicU64,
    waiting: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Signal {
    pub(crate) fn give(&self) {
        self.given.fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            // Whoever has looked and not begun to wait has the lock.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
    }

    /// How often it was given. To be asked before one looks whether there is something to wait for.
    pub(crate) fn seen(&self) -> u64 {
        self.given.load(Ordering::SeqCst)
    }

    /// Waits until it has been given since `seen`, or so long.
    pub(crate) fn wait(&self, seen: u64, most: Duration) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(lock, most, |()| self.seen() == seen);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}
