//! Images: a store that opens one has what the captured store had at that moment, whatever happened to it later.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainstem_disk::fault::FaultFs;
use mainstem_disk::{Committer, Fs, RealFs, SegmentStore, Settings, verify};
use mainstem_log::{
    BatchBuilder, Cleanup, Durability, Error, ImageFile, LogAdmin, LogId, LogReader, LogWriter, Options,
    Store,
};
use proptest::prelude::*;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;
const LOGS: usize = 4;

/// What a log contains: its start, its end and its batches.
type Content = BTreeMap<String, (u64, u64, Vec<u8>)>;

fn settings() -> Settings {
    Settings { journal_bytes: 16384, checkpoint_bytes: 5000, retention_check_ms: 0, ..Settings::default() }
}

/// A log that is compacted, one with retention, one that is truncated only, and one that the system writes back.
fn options(number: usize) -> Options {
    let options = Options { segment_bytes: 1000, ..Options::default() };
    match number {
        0 => Options {
            cleanup: Cleanup::Compact,
            min_cleanable_dirty_ratio: 0.1,
            delete_retention_ms: DAY_MS,
            ..options
        },
        1 => Options { cleanup: Cleanup::Delete, retention_bytes: Some(3000), ..options },
        2 => options,
        _ => Options { durability: Durability::Os, ..options },
    }
}

struct Broker {
    store: SegmentStore,
    logs: Vec<LogId>,
    woken: Receiver<()>,
    time: u64,
    /// A log has lost its end, or was made again.
    has_shrunk: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Put(usize, u8),
    Commit,
    Maintain,
    TruncatePrefix(usize, u64),
    TruncateSuffix(usize),
    Recreate(usize),
}

/// Steps after which all files of an image are as they were.
fn calm_step() -> impl Strategy<Value = Step> {
    step()
        .prop_filter("it shrinks a log", |step| !matches!(step, Step::TruncateSuffix(_) | Step::Recreate(_)))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        40 => (0..LOGS, any::<u8>()).prop_map(|(log, key)| Step::Put(log, key)),
        10 => Just(Step::Commit),
        10 => Just(Step::Maintain),
        3 => (0..LOGS, 0..100_u64).prop_map(|(log, percent)| Step::TruncatePrefix(log, percent)),
        1 => (0..LOGS).prop_map(Step::TruncateSuffix),
        1 => (0..LOGS).prop_map(Step::Recreate),
    ]
}

impl Broker {
    fn open(fs: Arc<dyn Fs>, dir: &Path, is_threaded: bool) -> Self {
        let (wake, woken) = channel();
        let wake = Mutex::new(wake);
        let wake = Arc::new(move || {
            // Nobody listens once the store is closed.
            wake.lock().unwrap().send(()).ok();
        });
        let committer = if is_threaded { Committer::Thread { wake } } else { Committer::Inline };
        let mut store = SegmentStore::open(fs, dir.to_owned(), settings(), committer).unwrap();
        let logs = (0..LOGS).map(|log| store.open(&name(log), &options(log)).unwrap()).collect();
        Self { store, logs, woken, time: 0, has_shrunk: false }
    }

    fn run_all<'a>(&mut self, steps: impl IntoIterator<Item = &'a Step>) {
        for step in steps {
            self.run(step);
        }
    }

    fn run(&mut self, step: &Step) {
        let Self { store, logs, time, .. } = self;
        *time += 10;
        match *step {
            Step::Put(log, key) => {
                let mut builder = BatchBuilder::default();
                let value = format!("a value that takes some place, put at {time}");
                builder.push(time.cast_signed(), Some(&[key % 8]), Some(value.as_bytes()));
                store.append(logs[log], builder.finish()).unwrap();
            }
            Step::Commit => store.commit(),
            Step::Maintain => drop(store.maintain(*time)),
            Step::TruncatePrefix(log, percent) => {
                let status = store.status(logs[log]);
                let offset = status.start + (status.committed - status.start) * percent / 100;
                store.truncate_prefix(logs[log], offset).unwrap();
            }
            Step::TruncateSuffix(log) => {
                let status = store.status(logs[log]);
                if status.end > status.start {
                    // Each batch has one record. Compaction may have left a gap there.
                    match store.truncate_suffix(logs[log], status.end - 1) {
                        Ok(()) => self.has_shrunk = true,
                        Err(error) => assert_eq!(error, Error::OutOfRange),
                    }
                }
            }
            Step::Recreate(log) => {
                store.remove(logs[log]).unwrap();
                logs[log] = store.open(&name(log), &options(log)).unwrap();
                self.has_shrunk = true;
            }
        }
    }

    /// Repeats `attempt` until it returns something.
    fn wait<R>(&mut self, what: &str, mut attempt: impl FnMut(&mut SegmentStore) -> Option<R>) -> R {
        for _ in 0..10_000 {
            self.store.commit();
            if let Some(done) = attempt(&mut self.store) {
                return done;
            }
            // The end of a removal wakes nobody.
            self.woken.recv_timeout(Duration::from_millis(1)).ok();
        }
        panic!("it never happens: {what}");
    }

    fn content(&mut self) -> Content {
        let names: Vec<String> = (0..LOGS).map(name).collect();
        names
            .into_iter()
            .zip(self.logs.clone())
            .map(|(name, log)| (name, read(&mut self.store, log)))
            .collect()
    }
}

fn name(log: usize) -> String {
    format!("log{log}")
}

fn read(store: &mut SegmentStore, log: LogId) -> (u64, u64, Vec<u8>) {
    let status = store.status(log);
    let mut bytes = Vec::new();
    store.read(log, status.start..status.end, usize::MAX, &mut bytes).unwrap();
    (status.start, status.end, bytes)
}

/// Captures the store between `before` and `during`, and links the image after that. Returns what the logs had, and the
/// files; `None` if a file could not stay.
fn capture(
    broker: &mut Broker,
    (before, during): (&[Step], &[Step]),
    into: &Path,
) -> (Content, Option<Vec<ImageFile>>) {
    broker.run_all(before);
    broker.store.hold_files();
    broker.wait("hold", |store| store.are_files_held().then_some(()));
    broker.has_shrunk = false;
    let content = broker.content();
    broker.store.capture().unwrap();
    let mut steps = during.iter();
    // Half of what follows happens before the image is durable.
    broker.run_all(steps.by_ref().take(during.len() / 2));
    let image = broker.wait("image", |store| store.take_image().transpose());
    let linked = image.map_err(|error| error.to_string()).and_then(|image| {
        broker.run_all(steps);
        image.link(into).map_err(|error| error.to_string())
    });
    let has_stayed = broker.store.release_files();
    match linked {
        Ok(files) if has_stayed => (content, Some(files)),
        linked => {
            assert!(broker.has_shrunk, "{has_stayed}: {linked:?}");
            (content, None)
        }
    }
}

/// Opens a store that has exactly what the image has.
fn check(fs: &Arc<dyn Fs>, dir: &Path, content: &Content) {
    let mut restored = SegmentStore::open(fs.clone(), dir.to_owned(), settings(), Committer::Inline).unwrap();
    for (name, expected) in content {
        assert!(expected.1 == 0 || restored.names().contains(name), "{name}");
        let number = name.trim_start_matches("log").parse().unwrap();
        let log = restored.open(name, &options(number)).unwrap();
        assert!(read(&mut restored, log) == *expected, "{name}: {:?}", restored.status(log));
        // It accepts appends.
        let mut builder = BatchBuilder::default();
        builder.push(0, Some(b"key"), Some(b"value"));
        assert_eq!(restored.append(log, builder.finish()).unwrap().base_offset, expected.1);
    }
    restored.commit();
}

/// In memory if possible: each case makes some hundred syncs.
fn temp_root() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}

fn fresh_dir() -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    temp_root().join(format!("mainstem-image-{}-{count}", std::process::id()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 0, ..ProptestConfig::default() })]

    /// Without hard links, and with the inline committer: nothing may happen between the capture and its end.
    #[test]
    fn image_of_a_store_without_threads(before in prop::collection::vec(step(), 0..300)) {
        let fs: Arc<dyn Fs> = Arc::new(FaultFs::new(1));
        let mut broker = Broker::open(fs.clone(), Path::new("/log"), false);
        let (content, files) = capture(&mut broker, (&before, &[]), Path::new("/image"));
        prop_assert!(files.is_some());
        check(&fs, Path::new("/image"), &content);
    }

    /// Removing the end of a log waits for everything that was submitted for it, also while its file is created.
    #[test]
    fn steps_of_a_store_with_threads(steps in prop::collection::vec(step(), 0..300)) {
        let root = fresh_dir();
        let mut broker = Broker::open(Arc::new(RealFs), &root.join("store"), true);
        broker.run_all(&steps);
        drop(broker);
        std::fs::remove_dir_all(root).unwrap();
    }

    /// With hard links, while the store goes on.
    #[test]
    fn image_of_a_store_that_goes_on(
        before in prop::collection::vec(step(), 0..300),
        during in prop_oneof![
            2 => prop::collection::vec(calm_step(), 0..300),
            1 => prop::collection::vec(step(), 0..300),
        ],
        after in prop::collection::vec(calm_step(), 0..100),
    ) {
        let root = fresh_dir();
        let (store, image, copy) = (root.join("store"), root.join("image"), root.join("copy"));
        let mut broker = Broker::open(Arc::new(RealFs), &store, true);
        let (content, files) = capture(&mut broker, (&before, &during), &image);
        broker.run_all(&after);
        if let Some(files) = files {
            for ImageFile { path, bytes } in files {
                let whole = std::fs::read(image.join(&path)).unwrap();
                let to = copy.join(&path);
                std::fs::create_dir_all(to.parent().unwrap()).unwrap();
                std::fs::write(to, &whole[..bytes as usize]).unwrap();
            }
            let fs: Arc<dyn Fs> = Arc::new(RealFs);
            let report = verify(&*fs, &copy);
            prop_assert!(report.is_ok(), "{:?}", report.err());
            check(&fs, &copy, &content);
        }
        drop(broker);
        // The store itself is as before: it opens, and holds nothing back.
        let again = Broker::open(Arc::new(RealFs), &store, false);
        drop(again);
        std::fs::remove_dir_all(root).unwrap();
    }
}

#[test]
fn a_missing_file_fails_the_image() {
    let root = fresh_dir();
    let mut broker = Broker::open(Arc::new(RealFs), &root.join("store"), true);
    for key in 0..60 {
        broker.run(&Step::Put(2, key));
    }
    broker.store.commit();
    broker.store.hold_files();
    broker.wait("hold", |store| store.are_files_held().then_some(()));
    broker.store.capture().unwrap();
    let image = broker.wait("image", |store| store.take_image().transpose()).unwrap();
    let first = root.join("store/log2.log/00000000000000000000.segment");
    std::fs::remove_file(&first).unwrap();
    let error = image.link(&root.join("image")).unwrap_err().to_string();
    assert!(error.contains("log2.log/00000000000000000000.segment"), "{error}");
    std::fs::write(first, b"short").unwrap();
    let error = image.link(&root.join("other")).unwrap_err().to_string();
    assert!(error.contains("5 bytes instead of"), "{error}");
    // Its threads create files.
    drop(broker);
    std::fs::remove_dir_all(root).unwrap();
}
