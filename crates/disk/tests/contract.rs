//! The segment log keeps every promise of a store: with and without a thread of its own, on the machine's file
//! system and on the faulty one while nothing fails there.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use mainstem_disk::fault::FaultFs;
use mainstem_disk::{Committer, Fs, RealFs, SegmentStore, Settings};
use mainstem_log::Store;
use mainstem_log::contract::{self, Step, Subject};
use proptest::prelude::*;

/// Longest time without a completion.
const PATIENCE: Duration = Duration::from_secs(20);

/// Tells whoever waits that completions have arrived.
#[derive(Default)]
struct Bell {
    has_rung: Mutex<bool>,
    rung: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.has_rung.lock().unwrap() = true;
        self.rung.notify_all();
    }

    /// Waits until it has rung since the last time. Whether it has.
    fn wait(&self) -> bool {
        let has_rung = self.has_rung.lock().unwrap();
        let (mut has_rung, _) =
            self.rung.wait_timeout_while(has_rung, PATIENCE, |has_rung| !*has_rung).unwrap();
        std::mem::take(&mut *has_rung)
    }
}

struct Segments {
    fs: Arc<dyn Fs>,
    /// Where its stores lie; each has a directory of its own there.
    root: PathBuf,
    stores: u32,
    settings: Settings,
    bell: Option<Arc<Bell>>,
}

impl Segments {
    fn on(fs: Arc<dyn Fs>, root: PathBuf) -> Self {
        Self { fs, root, stores: 0, settings: Settings::default(), bell: None }
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
        self.bell = Some(Arc::default());
        self
    }

    /// Bounds so small that everything is at its bound.
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
        let committer = match &self.bell {
            None => Committer::Inline,
            Some(bell) => {
                let bell = bell.clone();
                Committer::Thread { wake: Arc::new(move || bell.ring()) }
            }
        };
        let dir = self.root.join(self.stores.to_string());
        Box::new(SegmentStore::open(self.fs.clone(), dir, self.settings.clone(), committer).unwrap())
    }
}

impl Subject for Segments {
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
        self.bell.as_ref().is_some_and(|bell| bell.wait())
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        if self.root.starts_with(std::env::temp_dir())
            && let Err(error) = fs::remove_dir_all(&self.root)
        {
            eprintln!("{} is left behind: {error}", self.root.display());
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
    fn it_is_the_plain_version(steps in steps()) {
        contract::follow(&mut Segments::faulty(), &steps);
    }

    #[test]
    fn it_is_the_plain_version_within_tight_bounds(steps in steps()) {
        contract::follow(&mut Segments::faulty().tight(), &steps);
        contract::follow(&mut Segments::faulty().tight().without_journal(), &steps);
    }
}

proptest! {
    // The real disk is slow.
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn it_is_the_plain_version_with_a_thread(steps in steps()) {
        contract::follow(&mut Segments::faulty().tight().with_thread(), &steps);
        contract::follow(&mut Segments::real().with_thread(), &steps);
        contract::follow(&mut Segments::real().mapped().with_thread(), &steps);
        contract::follow(&mut Segments::real().tight().mapped(), &steps);
    }
}
