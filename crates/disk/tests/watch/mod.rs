//! A file system that notes the slow calls of the thread that uses a store, and delays or refuses some of the others.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use mainstem_disk::fault::FaultFs;
use mainstem_disk::{Committer, File, Fs, Mode, SegmentStore, Settings};
use mainstem_log::{Completion, Store};
use rustix::io::Errno;

/// Longest wait for a completion.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Slow calls that a thread made.
pub(crate) struct Watch {
    thread: ThreadId,
    pub(crate) is_on: AtomicBool,
    pub(crate) calls: Mutex<Vec<String>>,
    /// The call at which other threads have to wait.
    held: Mutex<Option<&'static str>>,
    released: Condvar,
    /// Whether another thread waits at the call, or has waited.
    pub(crate) has_waited: AtomicBool,
    /// Files that cannot be created: a part of their paths, and why.
    pub(crate) refused: Mutex<Vec<(&'static str, Errno)>>,
    /// Whether directories are not synced.
    pub(crate) skips_dir_syncs: AtomicBool,
    /// How many files get the name of a replacement before there is space for it.
    pub(crate) refused_swaps: Mutex<u32>,
}

impl Watch {
    fn note(&self, call: &str, path: &Path) {
        if self.is_on.load(Ordering::Relaxed) && std::thread::current().id() == self.thread {
            self.calls.lock().unwrap().push(format!("{call} {}", path.display()));
        }
    }

    /// Lets other threads wait at this call from now on.
    pub(crate) fn hold(&self, call: Option<&'static str>) {
        *self.held.lock().unwrap() = call;
        self.released.notify_all();
    }

    /// Waits while this call is held. Gives up in the end, so that a test fails instead of hanging.
    fn wait_for_release(&self, call: &'static str) {
        if std::thread::current().id() != self.thread {
            let held = self.held.lock().unwrap();
            self.has_waited.fetch_or(*held == Some(call), Ordering::Relaxed);
            drop(self.released.wait_timeout_while(held, TIMEOUT, |held| *held == Some(call)).unwrap());
        }
    }

    fn refusal(&self, path: &Path) -> Option<Errno> {
        let refused = self.refused.lock().unwrap();
        let path = path.to_string_lossy();
        refused.iter().find(|(part, _)| path.contains(part)).map(|(_, error)| *error)
    }
}

/// Notes the slow calls of one thread.
pub(crate) struct WatchedFs {
    fs: FaultFs,
    watch: Arc<Watch>,
}

pub(crate) struct WatchedFile {
    file: Arc<dyn File>,
    path: PathBuf,
    watch: Arc<Watch>,
}

impl Fs for WatchedFs {
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.watch.note("list", dir);
        self.fs.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.watch.note("create_dir", dir);
        self.watch.wait_for_release("create_dir");
        self.fs.create_dir(dir)
    }

    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn File>> {
        self.watch.note("open", path);
        if mode == Mode::New
            && let Some(error) = self.watch.refusal(path)
        {
            return Err(error.into());
        }
        let file = self.fs.open(path, mode)?;
        Ok(Arc::new(WatchedFile { file, path: path.to_owned(), watch: Arc::clone(&self.watch) }))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.watch.note("remove_file", path);
        self.fs.remove_file(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.watch.note("remove_dir", dir);
        self.watch.wait_for_release("remove_dir");
        self.fs.remove_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.watch.note("rename", from);
        self.watch.wait_for_release("rename");
        let is_swap = to.extension().is_some_and(|extension| extension == "swap");
        if is_swap {
            self.watch.wait_for_release("swap");
        }
        let mut refused = self.watch.refused_swaps.lock().unwrap();
        if is_swap && *refused > 0 {
            *refused -= 1;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.fs.rename(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.watch.note("sync_dir", dir);
        if self.watch.skips_dir_syncs.load(Ordering::Relaxed) { Ok(()) } else { self.fs.sync_dir(dir) }
    }
}

impl File for WatchedFile {
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        self.file.read_at(into, at)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.file.write_at(bytes, at)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.watch.note("sync_data", &self.path);
        self.file.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.watch.note("set_len", &self.path);
        self.file.set_len(len)
    }

    fn allocate(&self, at: u64, len: u64) -> io::Result<()> {
        self.watch.note("allocate", &self.path);
        self.file.allocate(at, len)
    }

    fn as_std(&self) -> Option<&fs::File> {
        None
    }
}

/// Opens a store with a committer thread, whose calls by this thread can be watched.
pub(crate) fn open_watched(fs: &FaultFs) -> (SegmentStore, Arc<Watch>) {
    let thread = std::thread::current().id();
    let watch = Arc::new(Watch {
        thread,
        is_on: AtomicBool::new(false),
        calls: Mutex::default(),
        held: Mutex::default(),
        released: Condvar::new(),
        has_waited: AtomicBool::new(false),
        refused: Mutex::default(),
        skips_dir_syncs: AtomicBool::new(false),
        refused_swaps: Mutex::default(),
    });
    let watched = WatchedFs { fs: fs.clone(), watch: Arc::clone(&watch) };
    let committer = Committer::Thread { wake: Arc::new(|| {}) };
    let settings = Settings { checkpoint_bytes: 20_000, ..Settings::default() };
    let store = SegmentStore::open(Arc::new(watched), PathBuf::from("/"), settings, committer);
    (store.unwrap(), watch)
}

/// Waits for that many completions.
pub(crate) fn completions(store: &mut SegmentStore, count: usize) -> Vec<Completion> {
    let (since, mut completions) = (Instant::now(), Vec::new());
    while completions.len() < count {
        store.completions(&mut completions);
        assert!(since.elapsed() < TIMEOUT, "{} of {count}", completions.len());
        std::thread::yield_now();
    }
    completions
}

/// Commits and waits for that many completions.
pub(crate) fn commit(store: &mut SegmentStore, count: usize) {
    store.commit();
    let completions = completions(store, count);
    assert!(completions.iter().all(|completion| completion.outcome.is_ok()), "{completions:?}");
}
