//! The time.

use std::sync::LazyLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

static STARTED: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Monotonic time since the first call, ms.
pub(crate) fn now_ms() -> u64 {
    STARTED.elapsed().as_millis() as u64
}

/// Unix time, ms.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
