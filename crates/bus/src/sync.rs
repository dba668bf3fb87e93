//! What threads meet at: the standard library's primitives, or shuttle's where tests schedule them.

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

/// Keeps what one thread writes out of the cache lines (and the pairs of them) that another one reads.
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

/// Locks, poisoned or not: no user code runs under a lock of this crate, so none is left half changed.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks, unless another thread has the lock.
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

/// How long a caller is ready to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// Not at all.
    None,
    Until(Instant),
    Endless,
}

impl Patience {
    /// A wait of `timeout` from now on; endless where the clock does not reach that far.
    pub(crate) fn lasting(timeout: Duration) -> Self {
        Instant::now().checked_add(timeout).map_or(Self::Endless, Self::Until)
    }

    /// Waits once, which may end early; `Err` with the guard where there is no patience left.
    pub(crate) fn wait<'a, T>(
        self,
        condvar: &Condvar,
        guard: MutexGuard<'a, T>,
    ) -> Result<MutexGuard<'a, T>, MutexGuard<'a, T>> {
        match self {
            Self::None => Err(guard),
            Self::Endless => Ok(condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)),
            Self::Until(deadline) => {
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
