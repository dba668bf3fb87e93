//! The store and all queues on it, behind one lock, and the thread that does what is due by itself.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use mainstem_disk::{Committer, Fs, RealFs, SegmentStore, Settings as StoreSettings};

use crate::error::Error;
use crate::inner::Inner;
use crate::queue::Queue;
use crate::settings::Settings;
use crate::signal::Signal;
use crate::time::now_ms;

/// What the records of one batch may take when they are decompressed, bytes.
pub(crate) const PLAIN_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Longest time between two looks at what is due by itself.
const PATIENCE: Duration = Duration::from_millis(500);
/// The shortest, and the longest while messages are on their way to other queues.
const BUSY: Duration = Duration::from_millis(1);

/// All queues in one directory. Clones are the same queues; they are closed when the last clone, queue and
/// delivery is gone.
#[derive(Clone, Debug)]
pub struct Queues {
    pub(crate) common: Arc<Common>,
    _tender: Arc<Tender>,
}

/// The thread that does what is due by itself. It ends with the last handle.
#[derive(Debug)]
struct Tender {
    common: Arc<Common>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Tender {
    fn drop(&mut self) {
        self.common.ends.store(true, Ordering::Release);
        self.common.due.give();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread of the queues has failed");
        }
    }
}

impl Queues {
    /// Opens the queues in a directory, and makes it if it is not there.
    ///
    /// # Errors
    /// [`Error::InUse`]; what the disk says.
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

    /// The same in a directory of a file system that nobody else has, or has a lock for.
    pub(crate) fn on(fs: Arc<dyn Fs>, directory: PathBuf, lock: Option<File>) -> Result<Self, Error> {
        let disk = Arc::new(Signal::default());
        let woken = Arc::clone(&disk);
        let committer = Committer::Thread { wake: Arc::new(move || woken.give()) };
        let settings = StoreSettings {
            mapped_writes: true,
            // Messages on their way to somebody are in memory anyway; what is not read need not crowd out what is.
            tail_bytes: 64 << 10,
            decompress: Some(Arc::new(|codec, bytes| {
                mainstem_compress::decompress(codec, bytes, PLAIN_BYTES_MAX).ok()
            })),
            ..StoreSettings::default()
        };
        let store = SegmentStore::open(fs, directory, settings, committer)?;
        let common = Arc::new(Common {
            inner: Mutex::new(Inner::new(store)),
            disk,
            news: Signal::default(),
            due: Signal::default(),
            ends: AtomicBool::new(false),
            _lock: lock,
        });
        let tended = Arc::clone(&common);
        let thread =
            std::thread::Builder::new().name("mainstem-queues".into()).spawn(move || tend(&tended))?;
        let thread = Arc::new(Tender { common: Arc::clone(&common), thread: Some(thread) });
        Ok(Self { common, _tender: thread })
    }

    /// Names of all queues there are, in order, those included that nobody has opened.
    pub fn names(&self) -> Vec<String> {
        self.common.lock().names()
    }

    /// The queue of this name, made if it is not there, with these settings from now on: they hold for everybody who
    /// has this queue, and for what is in it.
    ///
    /// A name has ASCII letters, digits, `.`, `_` and `-`, 1 to 247 of them.
    ///
    /// # Errors
    /// [`Error::Fault`] if that is no name, or a setting is out of its bounds, or the queue would be that of its own
    /// dead letters; what the disk says.
    pub fn queue(&self, name: &str, settings: Settings) -> Result<Queue, Error> {
        settings.check(name)?;
        let at = self.common.lock().open(name, settings)?;
        // What it is set to now may ask something of what is there.
        self.common.due.give();
        Ok(Queue::new(self.clone(), at))
    }
}

/// What all handles share.
pub(crate) struct Common {
    inner: Mutex<Inner>,
    /// The disk has done something.
    disk: Arc<Signal>,
    /// There may be messages for those who wait.
    pub(crate) news: Signal,
    /// Something may be due earlier than it was.
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
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commits what has been done to a queue, and waits until `is_done` says something.
    pub(crate) fn finish<'a, R>(
        &'a self,
        mut inner: MutexGuard<'a, Inner>,
        at: usize,
        mut now_ms: u64,
        mut is_done: impl FnMut(&mut Inner) -> Option<R>,
    ) -> R {
        inner.commit(at, now_ms);
        loop {
            let seen = self.disk.seen();
            inner.poll(now_ms);
            if let Some(done) = is_done(&mut inner) {
                return done;
            }
            drop(inner);
            self.disk.wait(seen, PATIENCE);
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

/// What is due by itself, until the last handle is gone.
fn tend(common: &Common) {
    loop {
        let seen = common.due.seen();
        if common.ends.load(Ordering::Acquire) {
            return;
        }
        let (is_busy, next_ms) = common.lock().go_on();
        // What has come back, or gone elsewhere, may be what somebody waits for.
        common.news.give();
        let patience = Duration::from_millis(next_ms.saturating_sub(now_ms()));
        let most = if is_busy { BUSY } else { PATIENCE };
        common.due.wait(seen, patience.clamp(BUSY, most));
    }
}
