//! A counter that threads wait on: a condition variable that is free of cost while nobody waits.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// A wakeup for waiting threads.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    count: AtomicU64,
    waiting: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Signal {
    pub(crate) fn notify(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            // A thread between its check and its wait holds the lock.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
    }

    /// Number of wakeups so far. Read it before checking the condition.
    pub(crate) fn seen(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Waits for a wakeup after `seen`, at most this long.
    pub(crate) fn wait(&self, seen: u64, most: Duration) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(lock, most, |()| self.seen() == seen);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}
