//! Repositories in a directory and in memory, with failing requests and damaged objects.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path as FilePath, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use proptest::prelude::*;

use crate::content::{CHUNK_BYTES, hash};
use crate::create::SourceFile;
use crate::repository::{Repository, Which};
use crate::restore_marker::RESTORE_MARKER;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// A directory that is removed with this value.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("mainstem-repository-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, path: &str, content: &[u8]) {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        // Long before any backup: then it is trusted.
        let modified = Duration::from_micros(1_000_000_000_000_000 + COUNT.fetch_add(1, Ordering::Relaxed));
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(UNIX_EPOCH + modified).unwrap();
    }

    fn remove(&self, path: &str) {
        std::fs::remove_file(self.0.join(path)).unwrap();
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// All files below a directory.
fn tree(root: &FilePath) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                files.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    files
}

fn sources(root: &FilePath) -> Vec<SourceFile> {
    let source = |(path, content): (String, Vec<u8>)| SourceFile { path, bytes: content.len() as u64 };
    tree(root).into_iter().map(source).collect()
}

fn store(repository: &Repository, source: &Directory) -> crate::Created {
    try_store(repository, source).unwrap()
}

fn try_store(repository: &Repository, source: &Directory) -> Result<crate::Created, crate::Error> {
    repository.create(&source.0, &sources(&source.0), &BTreeMap::new())
}

fn restored(repository: &Repository, which: &Which) -> BTreeMap<String, Vec<u8>> {
    let into = Directory::new();
    repository.restore(which, &into.0).unwrap();
    tree(&into.0)
}

fn repository(store: &Arc<impl ObjectStore>) -> Repository {
    Repository::of_store(store.clone()).unwrap()
}

fn block_on<R>(future: impl Future<Output = R>) -> R {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Bytes that differ for each `salt`.
fn content(salt: u64, len: usize) -> Vec<u8> {
    let mut state = salt.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Fails one request, before or after it was carried out.
#[derive(Debug)]
struct FailingStore {
    inner: Arc<InMemory>,
    requests: AtomicUsize,
    failing: usize,
    is_lost_answer: bool,
    /// A directory to store a backup of, beside what removes the first object.
    beside: Mutex<Option<PathBuf>>,
}

impl FailingStore {
    fn new(inner: InMemory, failing: usize, is_lost_answer: bool) -> Arc<Self> {
        let (inner, requests, beside) = (Arc::new(inner), AtomicUsize::new(0), Mutex::default());
        Arc::new(Self { inner, requests, failing, is_lost_answer, beside })
    }

    /// Fails nothing.
    fn with_backup_beside(inner: Arc<InMemory>, source: PathBuf) -> Arc<Self> {
        let (requests, beside) = (AtomicUsize::new(0), Mutex::new(Some(source)));
        Arc::new(Self { inner, requests, failing: usize::MAX, is_lost_answer: false, beside })
    }

    fn count(&self) -> bool {
        self.requests.fetch_add(1, Ordering::Relaxed) == self.failing
    }
}

fn failure() -> object_store::Error {
    object_store::Error::Generic { store: "failing", source: "a planned failure".into() }
}

impl std::fmt::Display for FailingStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("failing")
    }
}

#[async_trait::async_trait]
impl ObjectStore for FailingStore {
    async fn put_opts(&self, at: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let fails = self.count();
        if fails && !self.is_lost_answer {
            return Err(failure());
        }
        let outcome = self.inner.put_opts(at, payload.clone(), options.clone()).await;
        if fails {
            // As a client does that gets no answer: it tries again.
            return self.inner.put_opts(at, payload, options).await;
        }
        outcome
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        if self.count() { Err(failure()) } else { self.inner.get_opts(at, options).await }
    }

    async fn get_ranges(&self, at: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.inner.get_ranges(at, ranges).await
    }

    fn delete_stream(&self, at: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        if let Some(source) = self.beside.lock().unwrap().take() {
            // It has a runtime of its own, and so needs a thread of its own.
            let inner = self.inner.clone();
            let store =
                move || repository(&inner).create(&source, &sources(&source), &BTreeMap::new()).map(drop);
            std::thread::spawn(store).join().unwrap().unwrap();
        }
        if self.count() {
            return Box::pin(futures_util::stream::iter([Err(failure())]));
        }
        self.inner.delete_stream(at)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        if self.count() {
            return Box::pin(futures_util::stream::iter([Err(failure())]));
        }
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// Files of all kinds: empty, tiny, of several chunks, equal to another.
fn fill(source: &Directory) {
    source.write("empty", b"");
    source.write("log/0/a", &content(1, 700_000));
    source.write("log/0/b", &content(2, 700_000));
    source.write("log/0/large", &content(3, 2 * CHUNK_BYTES + 100));
    source.write("log/1/again", &content(1, 700_000));
    for number in 0..30 {
        source.write(&format!("small/{number}"), &content(100 + number, 400_000));
    }
}

#[test]
fn what_was_stored_is_restored() {
    let (source, target, into) = (Directory::new(), Directory::new(), Directory::new());
    fill(&source);
    let repository = Repository::create_or_open(target.0.to_str().unwrap()).unwrap();
    let files = sources(&source.0);
    let about: BTreeMap<String, String> = [("made".to_owned(), "here".to_owned())].into();
    // What follows in a file does not belong to the backup.
    let expected = tree(&source.0);
    source.write("log/0/a", &[content(1, 700_000), content(9, 1000)].concat());
    let created = repository.create(&source.0, &files, &about).unwrap();
    assert_eq!(created.bytes - created.uploaded_bytes, 700_000, "equal contents are stored once");
    repository.restore(&Which::Newest, &into.0).unwrap();
    assert!(tree(&into.0) == expected);
    let listed = repository.list().unwrap();
    assert_eq!((listed.len(), &listed[0].id, &listed[0].about), (1, &created.id, &about));
    assert_eq!(repository.check(&Which::Id(created.id.clone())).unwrap().bytes, created.bytes);
    // 30 small files and some more take a few objects.
    let objects = tree(&target.0.join("data")).len();
    assert!(objects <= 7, "{objects}");
    let error = repository.restore(&Which::Newest, &into.0).unwrap_err().to_string();
    assert!(error.contains("not empty"), "{error}");
    let error = repository.restore(&Which::At(5), &into.0.join("new")).unwrap_err().to_string();
    assert!(error.contains("no backup of that time"), "{error}");
    // The same directory, as a URL.
    let url = format!("file://{}", target.0.display());
    assert_eq!(Repository::open(&url).unwrap().list().unwrap(), listed);
}

#[test]
fn only_what_is_new_is_read_and_stored() {
    let (source, store_) = (Directory::new(), Arc::new(InMemory::new()));
    fill(&source);
    let repository = repository(&store_);
    let first = store(&repository, &source);
    let second = store(&repository, &source);
    assert_eq!((second.uploaded_bytes, second.unread_files), (0, first.files));
    // It has grown: only its last chunk is new.
    let mut large = content(3, 2 * CHUNK_BYTES + 100);
    large.extend(content(4, 50));
    source.write("log/0/large", &large);
    source.write("new", b"new");
    let third = store(&repository, &source);
    assert_eq!((third.uploaded_bytes, third.unread_files), (150 + 3, first.files - 1));
    assert!(restored(&repository, &Which::Newest) == tree(&source.0));
    assert!(restored(&repository, &Which::Id(first.id))["log/0/large"].len() == 2 * CHUNK_BYTES + 100);
    // An object that is gone is stored again.
    let gone = block_on(async {
        let objects = crate::target::Target(store_.clone()).objects().await.unwrap();
        let first_chunk = hash(&content(3, CHUNK_BYTES));
        let name = objects.into_keys().find(|name| name.starts_with(&first_chunk)).unwrap();
        let path = crate::target::data_path(&name);
        store_.delete(&path).await.unwrap();
        path
    });
    assert!(repository.check(&Which::Newest).unwrap_err().to_string().contains(gone.as_ref()));
    assert_eq!(store(&repository, &source).uploaded_bytes, CHUNK_BYTES as u64);
    assert!(restored(&repository, &Which::Newest) == tree(&source.0));
}

#[test]
fn a_file_that_is_too_short_fails_the_backup() {
    let (source, store_) = (Directory::new(), Arc::new(InMemory::new()));
    source.write("a", b"12345");
    let files = [SourceFile { path: "a".into(), bytes: 6 }];
    let repository = repository(&store_);
    let error = repository.create(&source.0, &files, &BTreeMap::new()).unwrap_err().to_string();
    assert!(error.contains("shorter than 6 bytes"), "{error}");
    let missing = [SourceFile { path: "b".into(), bytes: 6 }];
    assert!(repository.create(&source.0, &missing, &BTreeMap::new()).is_err());
    let marker = [SourceFile { path: RESTORE_MARKER.into(), bytes: 0 }];
    assert!(repository.create(&source.0, &marker, &BTreeMap::new()).is_err());
    let outside = [SourceFile { path: "../b".into(), bytes: 6 }];
    assert!(repository.create(&source.0, &outside, &BTreeMap::new()).is_err());
    assert!(repository.list().unwrap().is_empty());
}

/// Copies all objects into another store.
fn copy(store: &InMemory) -> InMemory {
    store.fork()
}

#[test]
fn a_request_that_fails_loses_nothing() {
    let (source, base) = (Directory::new(), Arc::new(InMemory::new()));
    fill(&source);
    let first = store(&repository(&base), &source);
    let before = tree(&source.0);
    source.write("log/0/large", &content(5, CHUNK_BYTES + 7));
    source.write("small/3", &content(6, 1000));
    source.remove("small/4");
    let mut failed = 0;
    for (failing, is_lost_answer) in (0..20).flat_map(|failing| [(failing, false), (failing, true)]) {
        let failing_store = FailingStore::new(copy(&base), failing, is_lost_answer);
        let outcome = Repository::of_store(failing_store.clone())
            .and_then(|repository| try_store(&repository, &source).map(|_| repository));
        failed += usize::from(outcome.is_err());
        let repository = Repository::of_store(Arc::new(copy(&failing_store.inner))).unwrap();
        assert!(restored(&repository, &Which::Id(first.id.clone())) == before, "{failing}");
        store(&repository, &source);
        assert!(restored(&repository, &Which::Newest) == tree(&source.0), "{failing}");

        // And so does a restore.
        let failing_store = FailingStore::new(copy(&base), failing, false);
        let into = Directory::new();
        if let Ok(repository) = Repository::of_store(failing_store) {
            let outcome = repository.restore(&Which::Newest, &into.0);
            let is_complete = !into.0.join(RESTORE_MARKER).exists() && !tree(&into.0).is_empty();
            assert_eq!(outcome.is_ok(), is_complete, "{failing}");
            if outcome.is_err() {
                repository.restore(&Which::Newest, &into.0).unwrap();
            }
            assert!(tree(&into.0) == before, "{failing}");
        }
    }
    assert!(failed >= 6, "{failed} requests failed");
}

#[test]
fn damage_is_found_and_never_restored() {
    let (source, base) = (Directory::new(), Arc::new(InMemory::new()));
    fill(&source);
    store(&repository(&base), &source);
    let objects = block_on(async {
        use futures_util::TryStreamExt as _;
        base.list(None).try_collect::<Vec<_>>().await.unwrap()
    });
    assert!(objects.len() > 4);
    for object in objects {
        let whole = block_on(async { base.get(&object.location).await.unwrap().bytes().await.unwrap() });
        let mut flipped = whole.to_vec();
        flipped[whole.len() / 2] ^= 1;
        for damaged in [Some(flipped), Some(whole[..whole.len() - 1].to_vec()), Some(Vec::new()), None] {
            let store_ = copy(&base);
            block_on(async {
                match damaged {
                    Some(damaged) => drop(store_.put(&object.location, damaged.into()).await.unwrap()),
                    None => store_.delete(&object.location).await.unwrap(),
                }
            });
            let into = Directory::new();
            let outcome = Repository::of_store(Arc::new(store_)).and_then(|repository| {
                let checked = repository.check(&Which::Newest).map(drop);
                let outcome = repository.restore(&Which::Newest, &into.0).map(drop);
                assert_eq!(checked.is_ok(), outcome.is_ok(), "{}", object.location);
                outcome
            });
            match outcome {
                // Without its marker, a repository is still one.
                Ok(()) => assert!(tree(&into.0) == tree(&source.0), "{}", object.location),
                Err(error) if object.location.as_ref().starts_with("backups/") && whole.len() > 1 => {
                    assert!(!error.to_string().is_empty());
                }
                Err(error) => assert!(error.to_string().contains(object.location.as_ref()), "{error}"),
            }
        }
    }
}

#[test]
fn a_repository_of_another_version_is_refused() {
    let store_ = Arc::new(InMemory::new());
    block_on(async { store_.put(&"mainstem-backup".into(), "{\"version\":2}".into()).await.unwrap() });
    let error = Repository::of_store(store_).unwrap_err().to_string();
    assert!(error.contains("version 1"), "{error}");
}

#[test]
fn formats_of_version_1_can_be_read() {
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/repository-1");
    let repository = Repository::open(fixture).unwrap();
    let backups = repository.list().unwrap();
    assert_eq!((backups.len(), backups[0].files, backups[0].bytes), (1, 3, 26));
    let files = restored(&repository, &Which::Newest);
    let expected = [
        ("log/0/empty", ""),
        ("log/0/one.log/00000000000000000000.segment", "hello, backup"),
        ("log/0/same", "hello, backup"),
    ];
    assert_eq!(files, expected.map(|(path, text)| (path.to_owned(), text.as_bytes().to_vec())).into());
}

/// Content that only an old backup has, or one that was interrupted, may be stored again while prune removes it.
#[test]
fn a_backup_that_is_stored_beside_a_prune_is_whole() {
    for is_interrupted in [false, true] {
        let (source, base) = (Directory::new(), Arc::new(InMemory::new()));
        source.write("first", &content(1, 2 << 20));
        source.write("kept", &content(2, 2 << 20));
        let first = store(&repository(&base), &source);
        if is_interrupted {
            block_on(base.delete(&crate::target::manifest_path(&first.id))).unwrap();
        }
        source.remove("first");
        store(&repository(&base), &source);
        source.write("again", &content(1, 2 << 20));
        let beside = FailingStore::with_backup_beside(base.clone(), source.0.clone());
        let pruned = Repository::of_store(beside).unwrap().prune(1, 0).unwrap();
        assert!(pruned.objects > 0, "{pruned:?}");
        assert!(restored(&repository(&base), &Which::Newest) == tree(&source.0), "{is_interrupted}");
    }
}

#[test]
fn backups_stay_in_order_whatever_the_clock_says() {
    let (source, store_) = (Directory::new(), Arc::new(InMemory::new()));
    let repository = repository(&store_);
    source.write("a", b"one");
    let mut ids: Vec<String> = (0..20).map(|_| store(&repository, &source).id).collect();
    // One of the future, as a clock leaves that was set back since.
    let (future, newest) = ("009999999999999-00000000", crate::target::manifest_path(&ids[19]));
    let manifest = block_on(async { store_.get(&newest).await.unwrap().bytes().await.unwrap() });
    block_on(store_.put(&crate::target::manifest_path(future), manifest.into())).unwrap();
    ids.extend([future.to_owned(), store(&repository, &source).id]);
    let listed: Vec<String> = repository.list().unwrap().into_iter().map(|backup| backup.id).collect();
    assert_eq!(listed, ids);
}

#[test]
fn a_damaged_manifest_hides_no_other_backup() {
    let (source, store_) = (Directory::new(), Arc::new(InMemory::new()));
    let repository = repository(&store_);
    source.write("a", b"one");
    let first = store(&repository, &source);
    let second = store(&repository, &source);
    let path = crate::target::manifest_path(&second.id);
    block_on(store_.put(&path, "{".into())).unwrap();
    let listed = repository.list().unwrap();
    assert_eq!((listed.len(), listed[0].damage.as_ref()), (2, None));
    assert!(listed[1].damage.as_ref().unwrap().contains(&second.id));
    assert!(restored(&repository, &Which::Id(first.id)) == tree(&source.0));
    assert!(repository.prune(1, 0).unwrap_err().to_string().contains(&second.id));
    store(&repository, &source);
    assert!(restored(&repository, &Which::Newest) == tree(&source.0));
}

#[test]
fn only_directories_and_object_stores_are_targets() {
    for target in ["memory:///", "http://localhost/x", "nothing://x", "/no/such/directory"] {
        assert!(Repository::open(target).is_err(), "{target}");
    }
}

#[test]
fn old_backups_go_with_what_only_they_need() {
    let (source, store_) = (Directory::new(), Arc::new(InMemory::new()));
    let repository = repository(&store_);
    let count = || block_on(crate::target::Target(store_.clone()).objects()).unwrap().len();
    source.write("kept", &content(1, 2 << 20));
    source.write("old", &content(2, 2 << 20));
    let first = store(&repository, &source);
    source.remove("old");
    store(&repository, &source);
    source.write("new", &content(3, 2 << 20));
    store(&repository, &source);
    assert_eq!(count(), 3);
    // Another command might use them.
    assert_eq!(repository.prune(1, DAY_MS).unwrap(), crate::Pruned::default());
    let pruned = repository.prune(2, 0).unwrap();
    assert_eq!((pruned.backups, pruned.objects, pruned.bytes), (1, 1, 2 << 20));
    assert!(repository.check(&Which::Id(first.id)).is_err());
    assert_eq!((repository.list().unwrap().len(), count()), (2, 2));
    // The newest one always stays.
    repository.prune(0, 0).unwrap();
    assert!(restored(&repository, &Which::Newest) == tree(&source.0));
    assert_eq!((repository.list().unwrap().len(), count()), (1, 2));
}

#[test]
fn a_prune_that_is_interrupted_can_be_repeated() {
    let (source, base) = (Directory::new(), Arc::new(InMemory::new()));
    for salt in 0..3 {
        source.write("a", &content(salt, 2 << 20));
        store(&repository(&base), &source);
    }
    for failing in 0..12 {
        let failing_store = FailingStore::new(copy(&base), failing, false);
        if let Ok(repository) = Repository::of_store(failing_store.clone()) {
            drop(repository.prune(1, 0));
        }
        let repository = Repository::of_store(Arc::new(copy(&failing_store.inner))).unwrap();
        for backup in repository.list().unwrap() {
            repository.check(&Which::Id(backup.id)).unwrap();
        }
        repository.prune(1, 0).unwrap();
        assert!(restored(&repository, &Which::Newest) == tree(&source.0), "{failing}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    /// Backups of a tree that changes: each is restored as it was.
    #[test]
    fn every_backup_is_restored_as_it_was(
        changes in prop::collection::vec((0..12_u8, 0..4_u64, 0..3_000_000_usize, any::<bool>()), 1..40),
    ) {
        let (source, store_) = (Directory::new(), Arc::new(InMemory::new()));
        let repository = repository(&store_);
        let mut backups = Vec::new();
        for (name, salt, len, is_stored) in changes {
            let path = format!("{}/{name}", name % 3);
            if salt == 0 && source.0.join(&path).exists() {
                source.remove(&path);
            } else {
                source.write(&path, &content(salt, len));
            }
            if is_stored {
                let created = store(&repository, &source);
                backups.push((created.id, tree(&source.0)));
            }
        }
        for (id, expected) in &backups {
            prop_assert!(restored(&repository, &Which::Id(id.clone())) == *expected);
        }
        if let Some((_, expected)) = backups.last() {
            repository.prune(1, 0).unwrap();
            prop_assert!(restored(&repository, &Which::Newest) == *expected);
        }
    }
}
