//! Images of a store: what its files contained at one moment, for a backup.
//!
//! A segment only grows, and one that is closed never changes. So the state of a store at any moment is a list of
//! segments with their lengths at that moment, and stays there to be copied as long as no file of the list is removed
//! or replaced. The image is what a clean shutdown at that moment would have left: with its checkpoint and its clean
//! mark, a store that opens it recovers nothing. Indexes are left out, since they are rebuilt, and so are notes, which
//! may be lost anyway.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstem_log::{Error, ImageFile, LogId, StoreImage};

use crate::checkpoint::{self, Known};
use crate::failure::store_error;
use crate::fs::{Fs, Mode};
use crate::log_dir::LogDir;
use crate::name;
use crate::scan::Place;
use crate::segments::Segments;

/// Bytes that are copied at once where there are no hard links.
const COPY_BYTES: usize = 1 << 20;

/// The files of a store at one moment.
pub(crate) struct Image {
    fs: Arc<dyn Fs>,
    /// Directory of the store.
    dir: PathBuf,
    logs: Vec<ImageLog>,
}

/// A log in an image.
struct ImageLog {
    name: Arc<str>,
    known: Known,
    /// Base offset and size of each segment, oldest first.
    segments: Vec<(u64, u64)>,
}

/// An image of which not everything may be durable.
pub(crate) struct Capturing {
    image: Image,
    /// Ends of the logs that were not durable when they were last looked at.
    waiting: Vec<(LogId, Place)>,
}

impl Capturing {
    pub(crate) fn new(fs: Arc<dyn Fs>, dir: PathBuf) -> Self {
        Self { image: Image { fs, dir, logs: Vec::new() }, waiting: Vec::new() }
    }

    /// Adds a log that ends as `known` says.
    pub(crate) fn add(&mut self, log: &LogDir, known: Known, segments: &Segments, is_durable: bool) {
        let segments = segments.iter().map(|segment| (segment.base, segment.bytes)).collect();
        self.image.logs.push(ImageLog { name: log.name().clone(), known, segments });
        if !is_durable {
            self.waiting.push((log.id(), known.committed));
        }
    }

    /// Returns the image once `is_durable` is true of all logs that were not durable; otherwise `self`.
    ///
    /// # Errors
    /// The first error of `is_durable`.
    pub(crate) fn finish(
        mut self,
        mut is_durable: impl FnMut(LogId, Place) -> Result<bool, Error>,
    ) -> Result<Result<Image, Self>, Error> {
        while let Some((log, end)) = self.waiting.last() {
            if !is_durable(*log, *end)? {
                return Ok(Err(self));
            }
            self.waiting.pop();
        }
        Ok(Ok(self.image))
    }
}

impl StoreImage for Image {
    fn link(&self, into: &Path) -> Result<Vec<ImageFile>, Error> {
        let mut files = Vec::new();
        self.fs.create_dir(into).map_err(|error| failed(into, &error))?;
        for log in &self.logs {
            let dir = name::log_dir(&log.name);
            self.fs.create_dir(&into.join(&dir)).map_err(|error| failed(&into.join(&dir), &error))?;
            for (base, bytes) in &log.segments {
                let path = format!("{dir}/{}", name::segment(*base));
                self.link_file(&path, *bytes, into)?;
                files.push(ImageFile { path, bytes: *bytes });
            }
        }
        let entries = self.logs.iter().map(|log| (&*log.name, log.known));
        let bytes = checkpoint::encode(entries);
        // A sync would wait for the links, and commits of the store for the sync.
        checkpoint::write_clean(&*self.fs, into, &bytes).map_err(|error| failed(into, &error))?;
        files.push(ImageFile { path: name::CHECKPOINT.into(), bytes: bytes.len() as u64 });
        files.push(ImageFile { path: name::CLEAN.into(), bytes: checkpoint::CLEAN_BYTES as u64 });
        Ok(files)
    }
}

impl Image {
    /// Links a file of the store into the directory `into`, or copies it. It must have at least `bytes` bytes.
    fn link_file(&self, path: &str, bytes: u64, into: &Path) -> Result<(), Error> {
        let (from, to) = (self.dir.join(path), into.join(path));
        let linked = match self.fs.link(&from, &to) {
            Err(error) if has_no_links(&error) => copy(&*self.fs, &from, &to, bytes),
            outcome => outcome,
        };
        let len = linked.and_then(|()| self.fs.open(&to, Mode::ReadOnly)).and_then(|file| file.len());
        match len {
            Ok(len) if len >= bytes => Ok(()),
            Ok(len) => {
                Err(Error::System(format!("{}: it has {len} bytes instead of {bytes}", from.display())))
            }
            Err(error) => Err(failed(&from, &error)),
        }
    }
}

/// Whether the file system has no hard links, or not between these two.
fn has_no_links(error: &io::Error) -> bool {
    use io::ErrorKind::{CrossesDevices, PermissionDenied, TooManyLinks, Unsupported};
    matches!(error.kind(), CrossesDevices | PermissionDenied | TooManyLinks | Unsupported)
}

/// Copies the first `bytes` bytes of a file.
fn copy(fs: &dyn Fs, from: &Path, to: &Path, bytes: u64) -> io::Result<()> {
    let (source, target) = (fs.open(from, Mode::ReadOnly)?, fs.open(to, Mode::New)?);
    let mut buffer = vec![0; COPY_BYTES];
    let mut at = 0;
    while at < bytes {
        let most = COPY_BYTES.min(usize::try_from(bytes - at).unwrap_or(COPY_BYTES));
        let read = source.read_at(&mut buffer[..most], at)?;
        if read == 0 {
            break;
        }
        target.write_at(&buffer[..read], at)?;
        at += read as u64;
    }
    Ok(())
}

fn failed(path: &Path, error: &io::Error) -> Error {
    match store_error(error) {
        Error::System(what) => Error::System(format!("{}: {what}", path.display())),
        error => error,
    }
}
