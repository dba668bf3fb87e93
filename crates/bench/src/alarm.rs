//! How long epoll may wait, to the microsecond: its own timeout counts in milliseconds.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

/// Longest a turn waits for something to happen.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// Waits this short use the timer descriptor.
const FINE_WAIT_NS: u64 = 3_000_000;

/// A timer descriptor among the descriptors of an epoll.
#[derive(Debug)]
pub(crate) struct Alarm(OwnedFd);

impl Alarm {
    /// A timer whose events have the name `token`.
    ///
    /// # Errors
    /// Those of epoll and timerfd.
    pub(crate) fn new(registry: &Registry, token: Token) -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        registry.register(&mut SourceFd(&timer.as_raw_fd()), token, Interest::READABLE)?;
        Ok(Self(timer))
    }

    /// How long epoll may wait so as not to sleep beyond `until_ns`; sets the timer where milliseconds are too
    /// coarse.
    ///
    /// # Errors
    /// Those of timerfd.
    pub(crate) fn patience(&self, until_ns: Option<u64>, now_ns: u64) -> io::Result<Duration> {
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
