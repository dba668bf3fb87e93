//! The segment log passes the store contract suite: inline and with a committer thread, on the real file system and on
//! the simulated one without faults.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use mainstem_disk::fault::FaultFs;
use mainstem_disk::{Committer, Fs, RealFs, SegmentStore, Settings};
use mainstem_log::Store;
use mainstem_log::contract::{self, Step, StoreFactory};
use proptest::prelude::*;

/// Maximum wait for a completion.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(20);

/// Wakes the test when completions have arrived.
#[derive(Default)]
struct WakeSignal {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl WakeSignal {
    fn set(&self) {
        *self.is_set.lock().unwrap() = true;
        self.changed.notify_all();
    }

    /// Waits until it is set and clears it. Returns `false` on a timeout.
    fn wait(&self) -> bool {
        let is_set = self.is_set.lock().unwrap();
        let (mut is_set, _) =
            self.changed.wait_timeout_while(is_set, COMPLETION_TIMEOUT, |is_set| !*is_set).unwrap();
        std::mem::take(&mut *is_set)
    }
}

struct Segments {
    fs: Arc<dyn Fs>,
    /// Root directory, with one subdirectory per store.
    root: PathBuf,
    stores: u32,
    settings: Settings,
    signal: Option<Arc<WakeSignal>>,
}

impl Segments {
    fn on(fs: Arc<dyn Fs>, root: PathBuf) -> Self {
        Self { fs, root, stores: 0, settings: Settings::default(), signal: None }
    }

    fn faulty() -> Self {
        Self::on(Arc::new(FaultFs::new(1)), PathBuf::from("/"))
    }

    fn real() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("mainstem-disk-contract-{}-{made}", std::process::id()));
        fs::create_dir(&root).unwrap();
        Self::on(Arc::new(RealFs), root)
    }

    fn with_thread(mut self) -> Self {
        self.signal = Some(Arc::default());
        self
    }

    /// Bounds so small that every cache evicts.
    fn tight(mut self) -> Self {
        self.settings = Settings {
            open_files: 2,
            cache_bytes: 4096,
            tail_bytes: 1024,
            journal_bytes: 16384,
            checkpoint_bytes: 4096,
            indexes: 1,
            retention_check_ms: 0,
            ..Settings::default()
        };
        self
    }

    fn without_journal(mut self) -> Self {
        self.settings.journal_bytes = 0;
        self
    }

    fn mapped(mut self) -> Self {
        self.settings.mapped_writes = true;
        self
    }

    fn open(&self) -> Box<dyn Store> {
        let committer = match &self.signal {
            None => Committer::Inline,
            Some(signal) => {
                let signal = signal.clone();
                Committer::Thread { wake: Arc::new(move || signal.set()) }
            }
        };
        let dir = self.root.join(self.stores.to_string());
        Box::new(SegmentStore::open(self.fs.clone(), dir, self.settings.clone(), committer).unwrap())
    }
}

impl StoreFactory for Segments {
    fn fresh(&mut self) -> Box<dyn Store> {
        self.stores += 1;
        self.fs.create_dir(&self.root.join(self.stores.to_string())).unwrap();
        self.open()
    }

    fn reopen(&mut self, store: Box<dyn Store>) -> Option<Box<dyn Store>> {
        drop(store);
        Some(self.open())
    }

    fn wait(&mut self) -> bool {
        self.signal.as_ref().is_some_and(|signal| signal.wait())
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        if self.root.starts_with(std::env::temp_dir())
            && let Err(error) = fs::remove_dir_all(&self.root)
        {
            eprintln!("cannot remove {}: {error}", self.root.display());
        }
    }
}

#[test]
fn inline_on_the_real_file_system() {
    contract::run(&mut Segments::real());
}

#[test]
fn with_a_thread_on_the_real_file_system() {
    contract::run(&mut Segments::real().with_thread());
}

#[test]
fn inline_on_the_faulty_file_system() {
    contract::run(&mut Segments::faulty());
}

#[test]
fn with_a_thread_on_the_faulty_file_system() {
    contract::run(&mut Segments::faulty().with_thread());
}

#[test]
fn without_journal() {
    contract::run(&mut Segments::real().without_journal());
    contract::run(&mut Segments::faulty().with_thread().without_journal());
}

#[test]
fn within_tight_bounds() {
    contract::run(&mut Segments::faulty().tight());
    contract::run(&mut Segments::faulty().tight().with_thread());
}

#[test]
fn mapped() {
    contract::run(&mut Segments::real().mapped());
    contract::run(&mut Segments::real().tight().mapped().with_thread());
    contract::run(&mut Segments::faulty().tight().mapped());
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(any::<Step>(), 0..150)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn matches_the_reference_log(steps in steps()) {
        contract::run_steps(&mut Segments::faulty(), &steps);
    }

    #[test]
    fn matches_the_reference_log_within_tight_bounds(steps in steps()) {
        contract::run_steps(&mut Segments::faulty().tight(), &steps);
        contract::run_steps(&mut Segments::faulty().tight().without_journal(), &steps);
    }
}

proptest! {
    // The real disk is slow.
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn matches_the_reference_log_with_a_thread(steps in steps()) {
        contract::run_steps(&mut Segments::faulty().tight().with_thread(), &steps);
        contract::run_steps(&mut Segments::real().with_thread(), &steps);
        contract::run_steps(&mut Segments::real().mapped().with_thread(), &steps);
        contract::run_steps(&mut Segments::real().tight().mapped(), &steps);
    }
}
