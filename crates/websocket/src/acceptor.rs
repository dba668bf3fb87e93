//! WebSocket on one listener: its settings and the log of the requests that it refuses.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use mainstem_quota::LogThrottle;

use crate::settings::Settings;
use crate::upgrade::Rejection;

/// WebSocket on one listener. Shared by its connections.
#[derive(Debug)]
pub struct Acceptor {
    listener: String,
    settings: Settings,
    log: Mutex<LogThrottle>,
}

impl Acceptor {
    /// `listener` is its name in the log.
    pub fn new(listener: impl Into<String>, settings: Settings) -> Arc<Self> {
        Arc::new(Self { listener: listener.into(), settings, log: Mutex::default() })
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Logs a request that the settings refuse.
    pub(crate) fn log_rejection(&self, rejection: &Rejection) {
        if !rejection.is_policy {
            return;
        }
        let count = self.log.lock().unwrap_or_else(PoisonError::into_inner).count(Instant::now());
        if let Some(count) = count {
            let (name, reason) = (&self.listener, &rejection.reason);
            log::warn!("listener {name:?}: {count} WebSocket connections refused, the last because {reason}");
        }
    }
}
