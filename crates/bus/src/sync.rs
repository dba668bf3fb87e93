//! Locks, atomics and condition variables: from the standard library, or from shuttle in tests.
//!
//! With `--cfg mainstem_shuttle` every primitive comes from shuttle, which then controls the order of all threads. The
//! rest of the crate imports them from here only. Lock poisoning is ignored, because no user code runs under a lock of
//! this crate and so no panic leaves one half updated.

#[cfg(mainstem_shuttle)]
pub(crate) use shuttle::sync::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};
#[cfg(not(mainstem_shuttle))]
pub(crate) use std::sync::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
};

use std::sync::{PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Aligns a value to 128 bytes, which prevents false sharing (x86 prefetches cache lines in pairs).
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

/// Locks, ignoring poison.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks without blocking. Returns `None` if another thread holds the lock.
#[inline]
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[inline]
pub(crate) fn read<T>(shared: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    shared.read().unwrap_or_else(PoisonError::into_inner)
}

#[inline]
pub(crate) fn write<T>(shared: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    shared.write().unwrap_or_else(PoisonError::into_inner)
}

/// How long a blocking call may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deadline {
    /// Return at once.
    Now,
    At(Instant),
    Never,
}

impl Deadline {
    /// The deadline `timeout` from now; `Never` if the clock cannot represent it.
    pub(crate) fn after(timeout: Duration) -> Self {
        Instant::now().checked_add(timeout).map_or(Self::Never, Self::At)
    }

    /// Waits once, possibly with a spurious wakeup. Returns `Err` with the guard if the deadline has passed.
    pub(crate) fn wait<'a, T>(
        self,
        condvar: &Condvar,
        guard: MutexGuard<'a, T>,
    ) -> Result<MutexGuard<'a, T>, MutexGuard<'a, T>> {
        match self {
            Self::Now => Err(guard),
            Self::Never => Ok(condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)),
            Self::At(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(guard);
                }
                let (guard, _) = condvar.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner);
                Ok(guard)
            }
        }
    }
}
