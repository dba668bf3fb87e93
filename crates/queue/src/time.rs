//! Milliseconds, and milliseconds since 1970.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) fn now_ms() -> u64 {
    ms_of(SystemTime::now())
}

/// Earlier times are 0.
pub(crate) fn ms_of(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs().saturating_mul(1000).saturating_add(since.subsec_millis().into())
}

pub(crate) fn as_ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Times outside the system's range become 1970.
pub(crate) fn time_of(ms: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_millis(ms)).unwrap_or(UNIX_EPOCH)
}
