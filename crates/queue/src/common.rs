//! All queues behind one lock, and the maintenance thread: it serves timers, transfers and truncation.
//!
//! Programs call from any thread, and an operation is short: one lock is simpler than a thread that owns the queues,
//! and costs less than a message to it. Nobody waits under the lock. A thread that needs something durable commits what
//! all have appended, waits for the signal of the committer, and looks for its own reply again.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use mainstem_disk::{Committer, Fs, RealFs, SegmentStore, Settings as StoreSettings};

use mainstem_queue_core::{Reply, Request};

use crate::error::Error;
use crate::host::{Host, PLAIN_BYTES_MAX};
use crate::signal::Signal;
use crate::time::now_ms;

/// Longest time between two checks for due messages.
pub(crate) const RECHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Longest time between two rounds of maintenance.
const MAINTENANCE_INTERVAL_MAX: Duration = Duration::from_millis(500);
/// The shortest; also the longest while transfers are in flight.
const BUSY: Duration = Duration::from_millis(1);

/// All queues in one directory. Clones share them; dropping the last clone, queue and delivery closes them.
#[derive(Clone, Debug)]
pub struct Queues {
    pub(crate) common: Arc<Common>,
    _maintenance: Arc<MaintenanceThread>,
}

/// The maintenance thread. It ends with the last handle.
#[derive(Debug)]
struct MaintenanceThread {
    common: Arc<Common>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for MaintenanceThread {
    fn drop(&mut self) {
        self.common.ends.store(true, Ordering::Release);
        self.common.due.notify();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the maintenance thread of the queues has panicked");
        }
    }
}

impl Queues {
    /// Opens the queues in a directory; creates it if it does not exist.
    ///
    /// # Errors
    /// [`Error::InUse`]; a disk error.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, Error> {
        let directory: PathBuf = directory.as_ref().to_owned();
        std::fs::create_dir_all(&directory)?;
        let lock = File::create(directory.join("lock"))?;
        lock.try_lock().map_err(|error| match error {
            std::fs::TryLockError::WouldBlock => Error::InUse,
            std::fs::TryLockError::Error(error) => error.into(),
        })?;
        Self::on(Arc::new(RealFs), directory.join("log"), Some(lock))
    }

    /// Opens the queues on any file system. `lock` guards the directory where several processes can open it.
    pub(crate) fn on(fs: Arc<dyn Fs>, directory: PathBuf, lock: Option<File>) -> Result<Self, Error> {
        let disk = Arc::new(Signal::default());
        let woken = Arc::clone(&disk);
        let committer = Committer::Thread { wake: Arc::new(move || woken.notify()) };
        let settings = StoreSettings {
            mapped_writes: true,
            // Leased messages are in memory anyway. A small tail keeps unread messages from displacing them.
            tail_bytes: 64 << 10,
            decompress: Some(Arc::new(|codec, bytes| {
                mainstem_compress::decompress(codec, bytes, PLAIN_BYTES_MAX).ok()
            })),
            ..StoreSettings::default()
        };
        let store = SegmentStore::open(fs, directory, settings, committer)?;
        let common = Arc::new(Common {
            inner: Mutex::new(Host::new(store)),
            disk,
            arrivals: Signal::default(),
            due: Signal::default(),
            ends: AtomicBool::new(false),
            _lock: lock,
        });
        let maintained = Arc::clone(&common);
        let thread = std::thread::Builder::new()
            .name("mainstem-queue".into())
            .spawn(move || run_maintenance(&maintained))?;
        let thread = Arc::new(MaintenanceThread { common: Arc::clone(&common), thread: Some(thread) });
        Ok(Self { common, _maintenance: thread })
    }

    /// Names of all queues in the directory, in order, open or not.
    pub fn names(&self) -> Vec<String> {
        self.common.lock().names()
    }
}

/// Shared by all handles.
pub(crate) struct Common {
    inner: Mutex<Host>,
    /// Completions of the log.
    disk: Arc<Signal>,
    /// Messages for waiting consumers.
    pub(crate) arrivals: Signal,
    /// An earlier deadline for the maintenance thread.
    pub(crate) due: Signal,
    ends: AtomicBool,
    _lock: Option<File>,
}

impl fmt::Debug for Common {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Common")
    }
}

impl Common {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Host> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a request to a queue, and waits for the reply.
    pub(crate) fn request(&self, at: usize, request: Request) -> Result<Reply, Error> {
        let mut inner = self.lock();
        inner.poll(now_ms());
        let number = inner.handle(at, request, now_ms());
        loop {
            let (seen, now_ms) = (self.disk.seen(), now_ms());
            inner.poll(now_ms);
            let has_more = inner.poll_queue(at, now_ms);
            if let Some(reply) = inner.take_reply(number) {
                break match reply {
                    Reply::Refused(error) => Err(error.into()),
                    reply => Ok(reply),
                };
            }
            inner.commit(at, now_ms);
            let is_waiting = !inner.poll(now_ms) && !has_more;
            drop(inner);
            self.arrivals.notify();
            if is_waiting {
                self.disk.wait(seen, RECHECK_INTERVAL);
            }
            inner = self.lock();
        }
    }

    /// Commits a queue's appends and events, and waits until `is_done` returns a result.
    pub(crate) fn finish<'a, R>(
        &'a self,
        mut inner: MutexGuard<'a, Host>,
        at: usize,
        mut now_ms: u64,
        mut is_done: impl FnMut(&mut Host) -> Option<R>,
    ) -> R {
        inner.commit(at, now_ms);
        loop {
            let seen = self.disk.seen();
            inner.poll(now_ms);
            if let Some(done) = is_done(&mut inner) {
                return done;
            }
            drop(inner);
            self.disk.wait(seen, MAINTENANCE_INTERVAL_MAX);
            now_ms = crate::time::now_ms();
            inner = self.lock();
        }
    }
}

impl Drop for Common {
    fn drop(&mut self) {
        self.inner.get_mut().unwrap_or_else(PoisonError::into_inner).commit_all(now_ms());
    }
}

/// Runs maintenance until the last handle is dropped.
fn run_maintenance(common: &Common) {
    loop {
        let seen = common.due.seen();
        if common.ends.load(Ordering::Acquire) {
            return;
        }
        let (is_busy, next_ms) = common.lock().poll_queues();
        // Released and transferred messages may be what consumers wait for.
        common.arrivals.notify();
        let timeout = Duration::from_millis(next_ms.saturating_sub(now_ms()));
        let most = if is_busy { BUSY } else { MAINTENANCE_INTERVAL_MAX };
        common.due.wait(seen, timeout.clamp(BUSY, most));
    }
}
