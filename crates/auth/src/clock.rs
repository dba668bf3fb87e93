//! The time of day.

use std::time::{SystemTime, UNIX_EPOCH};

/// Unix time in ms; 0 before 1970.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
