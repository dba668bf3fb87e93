//! Poll timeouts with microsecond precision.
//!
//! The epoll timeout counts milliseconds, which is too coarse for a schedule of many messages per millisecond. Short
//! waits therefore use a timerfd; longer ones use the epoll timeout and wake up early, to leave a short wait.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

/// Maximum wait of one turn.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// Waits up to this long use the timerfd.
const FINE_WAIT_NS: u64 = 3_000_000;

/// A timerfd registered with epoll.
#[derive(Debug)]
pub(crate) struct PollTimer(OwnedFd);

impl PollTimer {
    /// A timer whose events carry `token`.
    ///
    /// # Errors
    /// Errors of epoll and timerfd.
    pub(crate) fn new(registry: &Registry, token: Token) -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        registry.register(&mut SourceFd(&timer.as_raw_fd()), token, Interest::READABLE)?;
        Ok(Self(timer))
    }

    /// The epoll timeout for a wait until `until_ns`. Arms the timerfd if milliseconds are too coarse.
    ///
    /// # Errors
    /// Errors of timerfd.
    pub(crate) fn poll_timeout(&self, until_ns: Option<u64>, now_ns: u64) -> io::Result<Duration> {
        let Some(until) = until_ns else { return Ok(WAIT_MAX) };
        let wait_ns = until.saturating_sub(now_ns);
        if wait_ns == 0 {
            return Ok(Duration::ZERO);
        }
        if wait_ns > FINE_WAIT_NS {
            return Ok(Duration::from_nanos(wait_ns - FINE_WAIT_NS / 2).min(WAIT_MAX));
        }
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let once = Itimerspec {
            it_interval: never,
            it_value: Timespec { tv_sec: 0, tv_nsec: wait_ns.cast_signed() },
        };
        rustix::time::timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once)?;
        Ok(WAIT_MAX)
    }
}
