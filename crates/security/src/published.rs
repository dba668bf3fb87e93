//! The newest state, as all threads see it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::state::{Anonymous, SecurityState, Settings};

/// The newest [`SecurityState`]. Reading the epoch costs one load; the lock is taken after a change only.
#[derive(Debug)]
pub struct Published {
    epoch: AtomicU64,
    state: RwLock<Arc<SecurityState>>,
}

impl Published {
    /// Publishes a first state.
    pub fn new(state: SecurityState) -> Self {
        Self { epoch: AtomicU64::new(state.epoch()), state: RwLock::new(Arc::new(state)) }
    }

    /// The epoch of the newest state.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The newest state.
    pub fn state(&self) -> Arc<SecurityState> {
        Arc::clone(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the state. A reader that sees its epoch also sees the state.
    pub fn publish(&self, state: Arc<SecurityState>) {
        let epoch = state.epoch();
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state;
        self.epoch.store(epoch, Ordering::Release);
    }
}

impl Default for Published {
    /// Everyone may do everything.
    fn default() -> Self {
        let settings = Settings { anonymous: Anonymous::Allowed, ..Settings::default() };
        Self::new(SecurityState::new(settings))
    }
}
