//! Planted bugs: the store as it is, on a file system or behind a wrapper that makes it wrong.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstem_disk::fault::FaultFs;
use mainstem_disk::{Committer, File, Fs, Mode, SegmentStore, Settings};
use mainstem_log::{
    Appended, Batch, BatchHeader, Completion, Error, Found, LogId, Options, Sound, Status, Store, batches,
};

use crate::life::Make;

/// Every planted bug.
pub(crate) const ALL: &[(&str, Make)] = &[
    ("directories are not synced", |fs, settings| on(Careless { fs: fs.clone(), of: Of::Names }, settings)),
    ("files are not synced", |fs, settings| on(Careless { fs: fs.clone(), of: Of::Content }, settings)),
    ("a failed sync is tried again", |fs, settings| {
        on(Careless { fs: fs.clone(), of: Of::Failures }, settings)
    }),
    ("what is to be synced for once is not", |fs, settings| {
        Ok(Box::new(Deaf { store: crate::open(fs, settings)? }))
    }),
    ("acknowledged before the sync", |fs, settings| {
        Ok(Box::new(Hasty { store: crate::open(fs, settings)?, early: Vec::new() }))
    }),
    ("recovery stops one batch early", |fs, settings| {
        Ok(Box::new(Short { store: crate::open(fs, settings)?, opened: Vec::new() }))
    }),
    ("recovery ignores checksums", forgiving),
];

fn on(fs: impl Fs + 'static, settings: &Settings) -> Result<Box<dyn Store>, Error> {
    let store = SegmentStore::open(Arc::new(fs), PathBuf::from("/"), settings.clone(), Committer::Inline)?;
    Ok(Box::new(store))
}

/// What is not synced as it should be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Names,
    Content,
    /// What fails is done once more, and believed.
    Failures,
}

/// Leaves out syncs.
struct Careless {
    fs: FaultFs,
    of: Of,
}

impl Fs for Careless {
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.fs.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.fs.create_dir(dir)
    }

    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn File>> {
        Ok(Arc::new(CarelessFile { file: self.fs.open(path, mode)?, of: self.of }))
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
        if self.of == Of::Names { Ok(()) } else { self.fs.sync_dir(dir) }
    }
}

struct CarelessFile {
    file: Arc<dyn File>,
    of: Of,
}

impl File for CarelessFile {
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        self.file.read_at(into, at)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.file.write_at(bytes, at)
    }

    fn sync_data(&self) -> io::Result<()> {
        match self.of {
            Of::Names => self.file.sync_data(),
            Of::Content => Ok(()),
            Of::Failures => self.file.sync_data().or_else(|_| self.file.sync_data()),
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

/// Opens the store on segments in which every batch looks sound.
pub(crate) fn forgiving(fs: &FaultFs, settings: &Settings) -> Result<Box<dyn Store>, Error> {
    forgive(fs).map_err(|error| Error::System(error.to_string()))?;
    crate::open(fs, settings)
}

/// Makes the checksum of every batch in a segment right, whatever has become of it.
fn forgive(fs: &FaultFs) -> io::Result<()> {
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

/// Acknowledges what is about to be synced.
struct Hasty {
    store: Box<dyn Store>,
    early: Vec<Completion>,
}

/// Loses the last batch when it opens a log.
struct Short {
    store: Box<dyn Store>,
    opened: Vec<LogId>,
}

/// Has nothing synced that need not be.
struct Deaf {
    store: Box<dyn Store>,
}

/// The methods of a store that a wrapper leaves as they are.
macro_rules! as_it_is {
    () => {
        fn names(&self) -> Vec<String> {
            self.store.names()
        }

        fn remove(&mut self, log: LogId) -> Result<(), Error> {
            self.store.remove(log)
        }

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

        fn find_time(&mut self, log: LogId, timestamp_ms: i64) -> Result<Option<Found>, Error> {
            self.store.find_time(log, timestamp_ms)
        }

        fn truncate_prefix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
            self.store.truncate_prefix(log, offset)
        }

        fn truncate_suffix(&mut self, log: LogId, offset: u64) -> Result<(), Error> {
            self.store.truncate_suffix(log, offset)
        }

        fn tend(&mut self, unix_ms: u64) -> Option<u64> {
            self.store.tend(unix_ms)
        }
    };
}

/// The same of those by which something is appended.
macro_rules! appends_as_it_is {
    () => {
        fn append_sound(&mut self, log: LogId, batch: Sound<'_>) -> Result<Appended, Error> {
            self.store.append_sound(log, batch)
        }

        fn commit(&mut self) {
            self.store.commit();
        }

        fn completions(&mut self, into: &mut Vec<Completion>) {
            self.store.completions(into);
        }
    };
}

impl Store for Hasty {
    as_it_is!();

    fn sync_next(&mut self, log: LogId) {
        self.store.sync_next(log);
    }

    fn open(&mut self, name: &str, options: &Options) -> Result<LogId, Error> {
        self.store.open(name, options)
    }

    fn append_sound(&mut self, log: LogId, batch: Sound<'_>) -> Result<Appended, Error> {
        let appended = self.store.append_sound(log, batch)?;
        self.early.retain(|known| known.log != log);
        self.early.push(Completion { log, ticket: appended.ticket, outcome: Ok(()) });
        Ok(appended)
    }

    fn commit(&mut self) {
        self.store.commit();
    }

    fn completions(&mut self, into: &mut Vec<Completion>) {
        let mut late = Vec::new();
        self.store.completions(&mut late);
        into.append(&mut self.early);
    }
}

impl Store for Short {
    as_it_is!();
    appends_as_it_is!();

    fn sync_next(&mut self, log: LogId) {
        self.store.sync_next(log);
    }

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

impl Store for Deaf {
    as_it_is!();
    appends_as_it_is!();

    fn sync_next(&mut self, _log: LogId) {}

    fn open(&mut self, name: &str, options: &Options) -> Result<LogId, Error> {
        self.store.open(name, options)
    }
}
