//! Wakes publishers that wait until a member of a full group has room.

use crate::sync::{AtomicUsize, Condvar, Deadline, Mutex, Ordering, lock};

/// Wakes publishers that wait for room in a full group. While no publisher waits, notifying costs one atomic load.
///
/// A waiter registers before it checks the members. A change after the check therefore advances the generation, and no
/// wakeup is lost.
pub(crate) struct RoomSignal {
    waiters: AtomicUsize,
    generation: Mutex<u64>,
    changed: Condvar,
}

impl RoomSignal {
    pub(crate) fn new() -> Self {
        Self { waiters: AtomicUsize::new(0), generation: Mutex::new(0), changed: Condvar::new() }
    }

    /// Called when a member may accept a message that it would have refused before.
    pub(crate) fn notify(&self) {
        if self.waiters.load(Ordering::SeqCst) > 0 {
            *lock(&self.generation) += 1;
            self.changed.notify_all();
        }
    }

    /// Whether publishers wait.
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::SeqCst) > 0
    }

    /// Registers a waiter. Call before checking the members.
    pub(crate) fn register(&self) -> RoomWaiter<'_> {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        RoomWaiter { signal: self, seen: *lock(&self.generation) }
    }
}

/// A registered publisher that waits for room.
pub(crate) struct RoomWaiter<'a> {
    signal: &'a RoomSignal,
    /// The generation at registration or after the last wait.
    seen: u64,
}

impl RoomWaiter<'_> {
    /// Waits until the generation differs from the last one seen.
    pub(crate) fn wait(&mut self) {
        let mut generation = lock(&self.signal.generation);
        while *generation == self.seen {
            generation = match Deadline::Never.wait(&self.signal.changed, generation) {
                Ok(generation) | Err(generation) => generation,
            };
        }
        self.seen = *generation;
    }
}

impl Drop for RoomWaiter<'_> {
    fn drop(&mut self) {
        self.signal.waiters.fetch_sub(1, Ordering::SeqCst);
    }
}
