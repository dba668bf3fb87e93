//! A view of a file system in which the replayed journal is written, while no file changes.
//!
//! The offline check must judge what the next start will find, and that start replays the journal first. So the writes
//! of the replay are kept in memory and shown in place of what the files contain. Everything else is refused.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::fs::{File, Fs, Mode};

/// Writes to one file: position and bytes, oldest first.
type Writes = Vec<(u64, Vec<u8>)>;
/// Writes to all files.
type Written = Mutex<BTreeMap<PathBuf, Writes>>;

/// Files of another file system, opened for reading, with writes in memory.
pub(crate) struct Overlay<'a> {
    fs: &'a dyn Fs,
    written: Arc<Written>,
}

struct OverlayFile {
    file: Arc<dyn File>,
    path: PathBuf,
    written: Arc<Written>,
}

impl<'a> Overlay<'a> {
    pub(crate) fn new(fs: &'a dyn Fs) -> Self {
        Self { fs, written: Arc::default() }
    }
}

fn refused<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "a check changes nothing"))
}

impl Fs for Overlay<'_> {
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.fs.list(dir)
    }

    fn create_dir(&self, _dir: &Path) -> io::Result<()> {
        refused()
    }

    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn File>> {
        if mode == Mode::New {
            return refused();
        }
        let file = self.fs.open(path, Mode::ReadOnly)?;
        Ok(Arc::new(OverlayFile { file, path: path.to_owned(), written: Arc::clone(&self.written) }))
    }

    fn remove_file(&self, _path: &Path) -> io::Result<()> {
        refused()
    }

    fn remove_dir(&self, _dir: &Path) -> io::Result<()> {
        refused()
    }

    fn rename(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        refused()
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }
}

impl OverlayFile {
    fn written(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Writes>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl File for OverlayFile {
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        let mut read = self.file.read_at(into, at)?;
        let written = self.written();
        for (position, bytes) in written.get(&self.path).into_iter().flatten() {
            // The part of the write that is in the range.
            let from = (*position).max(at);
            let to = (position + bytes.len() as u64).min(at + into.len() as u64);
            if from >= to {
                continue;
            }
            let part = (from - at) as usize..(to - at) as usize;
            if part.start > read {
                into[read..part.start].fill(0);
            }
            read = read.max(part.end);
            into[part].copy_from_slice(&bytes[(from - position) as usize..(to - position) as usize]);
        }
        Ok(read)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.written().entry(self.path.clone()).or_default().push((at, bytes.to_vec()));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        let len = self.file.len()?;
        let written = self.written();
        let ends = written.get(&self.path).into_iter().flatten();
        Ok(ends.map(|(position, bytes)| position + bytes.len() as u64).fold(len, u64::max))
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        refused()
    }

    fn allocate(&self, _at: u64, _len: u64) -> io::Result<()> {
        refused()
    }

    fn as_std(&self) -> Option<&std::fs::File> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::FaultFs;

    #[test]
    fn shows_writes_and_changes_nothing() {
        let disk = FaultFs::new(1);
        let path = Path::new("/file");
        disk.open(path, Mode::New).unwrap().write_at(b"0123456789", 0).unwrap();
        let overlay = Overlay::new(&disk);
        let file = overlay.open(path, Mode::Existing).unwrap();
        for (bytes, at) in [(b"ab", 3), (b"cd", 4), (b"ef", 12)] {
            file.write_at(bytes, at).unwrap();
        }
        let read = |from: u64, len: usize| {
            let mut bytes = vec![b'?'; len];
            let file = overlay.open(path, Mode::Existing).unwrap();
            let read = file.read_at(&mut bytes, from).unwrap();
            bytes.truncate(read);
            bytes
        };
        assert_eq!(read(0, 20), b"012acd6789\0\0ef");
        assert_eq!((read(4, 2), read(13, 5), read(14, 5)), (b"cd".to_vec(), b"f".to_vec(), Vec::new()));
        assert_eq!(file.len().unwrap(), 14);
        assert!(overlay.open(Path::new("/new"), Mode::New).is_err() && file.set_len(0).is_err());
        assert!(overlay.remove_file(path).is_err() && overlay.rename(path, Path::new("/other")).is_err());
        let mut bytes = vec![0; 20];
        let len = disk.open(path, Mode::Existing).unwrap().read_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes[..len], *b"0123456789");
    }
}
