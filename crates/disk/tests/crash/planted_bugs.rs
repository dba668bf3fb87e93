//! Planted bugs that the crash tests must detect: the real store on a file system, or behind a wrapper, that breaks one
//! guarantee.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use mainstem_disk::fault::FaultFs;
use mainstem_disk::{Committer, File, Fs, Mode, SegmentStore, Settings};
use mainstem_log::{
    Appended, Batch, BatchHeader, Completion, Error, LogAdmin, LogId, LogReader, LogWriter, Maintained,
    Options, Status, Store, TimestampOffset, ValidBatch, batches,
};

use crate::incarnation::OpenStore;

/// All planted bugs: name and constructor.
pub(crate) const ALL: &[(&str, OpenStore)] = &[
    ("directories are not synced", |fs, settings| {
        on(SkippingFs { fs: fs.clone(), broken: Broken::Names }, settings)
    }),
    ("files are not synced", |fs, settings| {
        on(SkippingFs { fs: fs.clone(), broken: Broken::Content }, settings)
    }),
    ("a failed sync is retried", |fs, settings| {
        on(SkippingFs { fs: fs.clone(), broken: Broken::Failures }, settings)
    }),
    ("segments get their names after their acknowledgments", |fs, settings| {
        on(LateNames { fs: fs.clone(), late: Mutex::default() }, settings)
    }),
    ("forced syncs are ignored", |fs, settings| {
        Ok(Box::new(IgnoresForcedSync { store: crate::open(fs, settings)? }))
    }),
    ("appends are acknowledged before the sync", |fs, settings| {
        Ok(Box::new(AckBeforeSync { store: crate::open(fs, settings)?, premature: Vec::new() }))
    }),
    ("recovery stops one batch premature", |fs, settings| {
        Ok(Box::new(LosesLastBatch { store: crate::open(fs, settings)?, opened: Vec::new() }))
    }),
    ("recovery ignores checksums", ignoring_checksums),
];

fn on(fs: impl Fs + 'static, settings: &Settings) -> Result<Box<dyn Store>, Error> {
    let store = SegmentStore::open(Arc::new(fs), PathBuf::from("/"), settings.clone(), Committer::Inline)?;
    Ok(Box::new(store))
}

/// Which syncs are broken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Broken {
    Names,
    Content,
    /// A failed sync is retried and the retry is trusted.
    Failures,
}

/// Skips syncs.
struct SkippingFs {
    fs: FaultFs,
    broken: Broken,
}

impl Fs for SkippingFs {
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.fs.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.fs.create_dir(dir)
    }

    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(SkippingFile { file: self.fs.open(path, mode)?, broken: self.broken }))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.fs.remove_file(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.fs.remove_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.fs.rename(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        if self.broken == Broken::Names { Ok(()) } else { self.fs.sync_dir(dir) }
    }
}

struct SkippingFile {
    file: Arc<dyn File>,
    broken: Broken,
}

impl File for SkippingFile {
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        self.file.read_at(into, at)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.file.write_at(bytes, at)
    }

    fn sync_data(&self) -> io::Result<()> {
        match self.broken {
            Broken::Names => self.file.sync_data(),
            Broken::Content => Ok(()),
            Broken::Failures => self.file.sync_data().or_else(|_| self.file.sync_data()),
        }
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn allocate(&self, at: u64, len: u64) -> io::Result<()> {
        self.file.allocate(at, len)
    }

    fn as_std(&self) -> Option<&fs::File> {
        self.file.as_std()
    }
}

/// Gives a file the name of a segment when something else is renamed, created or opened by that name.
struct LateNames {
    fs: FaultFs,
    late: Mutex<Vec<(PathBuf, PathBuf)>>,
}

impl LateNames {
    fn catch_up(&self) -> io::Result<()> {
        let late = std::mem::take(&mut *self.late.lock().expect("no panic holds it"));
        late.iter().try_for_each(|(from, to)| self.fs.rename(from, to))
    }
}

impl Fs for LateNames {
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.fs.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.fs.create_dir(dir)
    }

    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn File>> {
        self.catch_up()?;
        self.fs.open(path, mode)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.fs.remove_file(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.fs.remove_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.catch_up()?;
        if from.extension().is_some_and(|extension| extension == "creating") {
            self.late.lock().expect("no panic holds it").push((from.to_owned(), to.to_owned()));
            return Ok(());
        }
        self.fs.rename(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.fs.sync_dir(dir)
    }
}

/// Opens the store after recomputing all checksums, so that every batch looks valid.
pub(crate) fn ignoring_checksums(fs: &FaultFs, settings: &Settings) -> Result<Box<dyn Store>, Error> {
    recompute_checksums(fs).map_err(|error| Error::System(error.to_string()))?;
    crate::open(fs, settings)
}

/// Recomputes the checksum of every batch in all segments.
fn recompute_checksums(fs: &FaultFs) -> io::Result<()> {
    for (path, len) in fs.files() {
        if !path.ends_with(".segment") {
            continue;
        }
        let file = fs.open(Path::new(&path), Mode::Existing)?;
        let mut bytes = vec![0; len as usize];
        file.read_at(&mut bytes, 0)?;
        let mut at = 0;
        while let Ok(header) = BatchHeader::parse(&bytes[at..])
            && let Some(batch) = bytes.get_mut(at..at + header.total_bytes)
        {
            if Batch::parse(batch).is_err() {
                let checksum = crc32c::crc32c(&batch[21..]);
                file.write_at(&checksum.to_be_bytes(), at as u64 + 17)?;
            }
            at += header.total_bytes;
        }
        file.sync_data()?;
    }
    Ok(())
}

/// Acknowledges appends before their sync.
struct AckBeforeSync {
    store: Box<dyn Store>,
    premature: Vec<Completion>,
}

/// Loses the last batch when a log is opened.
struct LosesLastBatch {
    store: Box<dyn Store>,
    opened: Vec<LogId>,
}

/// Ignores forced syncs.
struct IgnoresForcedSync {
    store: Box<dyn Store>,
}

/// Forwards the methods of [`LogReader`].
macro_rules! forward_reads {
    () => {
        fn read(
            &mut self,
            log: LogId,
            offsets: Range<u64>,
            max_bytes: usize,
            into: &mut Vec<u8>,
        ) -> Result<(), Error> {
            self.store.read(log, offsets, max_bytes, into)
        }

        fn status(&self, log: LogId) -> Status {
            self.store.status(log)
        }

        fn find_time(&mut self, log: LogId, timestamp_ms: i64) -> Result<Option<TimestampOffset>, Error> {
            self.store.find_time(log, timestamp_ms)
        }
    };
}

/// Forwards the methods of [`LogAdmin`], except `open`.
macro_rules! forward_admin {
    () => {
        fn names(&self) -> Vec<String> {
            self.store.names()
        }

        fn remove(&mut self, log: LogId) -> Result<(), Error> {
            self.store.remove(log)
        }

        fn truncate_prefix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
            self.store.truncate_prefix(log, offset)
        }

        fn truncate_suffix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
            self.store.truncate_suffix(log, offset)
        }

        fn maintain(&mut self, unix_ms: u64) -> Maintained {
            self.store.maintain(unix_ms)
        }
    };
}

/// Forwards appends.
macro_rules! forward_append {
    () => {
        fn append_valid(&mut self, log: LogId, batch: ValidBatch<'_>) -> Result<Appended, Error> {
            self.store.append_valid(log, batch)
        }
    };
}

/// Forwards commits and their completions.
macro_rules! forward_commits {
    () => {
        fn commit(&mut self) {
            self.store.commit();
        }

        fn completions(&mut self, into: &mut Vec<Completion>) {
            self.store.completions(into);
        }
    };
}

impl LogReader for AckBeforeSync {
    forward_reads!();
}

impl LogWriter for AckBeforeSync {
    fn force_sync(&mut self, log: LogId) {
        self.store.force_sync(log);
    }

    fn append_valid(&mut self, log: LogId, batch: ValidBatch<'_>) -> Result<Appended, Error> {
        let appended = self.store.append_valid(log, batch)?;
        self.premature.retain(|known| known.log != log);
        self.premature.push(Completion { log, ticket: appended.ticket, outcome: Ok(()) });
        Ok(appended)
    }
}

impl LogAdmin for AckBeforeSync {
    forward_admin!();

    fn open(&mut self, name: &str, options: &Options) -> Result<LogId, Error> {
        self.store.open(name, options)
    }
}

impl Store for AckBeforeSync {
    fn commit(&mut self) {
        self.store.commit();
    }

    fn completions(&mut self, into: &mut Vec<Completion>) {
        let mut late = Vec::new();
        self.store.completions(&mut late);
        into.append(&mut self.premature);
    }
}

impl LogReader for LosesLastBatch {
    forward_reads!();
}

impl LogWriter for LosesLastBatch {
    forward_append!();

    fn force_sync(&mut self, log: LogId) {
        self.store.force_sync(log);
    }
}

impl LogAdmin for LosesLastBatch {
    forward_admin!();

    fn open(&mut self, name: &str, options: &Options) -> Result<LogId, Error> {
        let log = self.store.open(name, options)?;
        let status = self.store.status(log);
        if !self.opened.contains(&log) && status.end > status.start {
            let mut bytes = Vec::new();
            self.store.read(log, status.start..status.end, usize::MAX, &mut bytes)?;
            let last = batches(&bytes).last().map_or(status.end, |batch| batch.header.base_offset);
            if last >= status.start {
                self.store.truncate_suffix(log, last)?;
            }
        }
        self.opened.push(log);
        Ok(log)
    }
}

impl Store for LosesLastBatch {
    forward_commits!();
}

impl LogReader for IgnoresForcedSync {
    forward_reads!();
}

impl LogWriter for IgnoresForcedSync {
    forward_append!();

    fn force_sync(&mut self, _log: LogId) {}
}

impl LogAdmin for IgnoresForcedSync {
    forward_admin!();

    fn open(&mut self, name: &str, options: &Options) -> Result<LogId, Error> {
        self.store.open(name, options)
    }
}

impl Store for IgnoresForcedSync {
    forward_commits!();
}
