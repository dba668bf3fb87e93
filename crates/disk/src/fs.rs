//! The file system interface, and its implementation by the operating system.
//!
//! The traits have few calls with precise durability semantics, so that [`FaultFs`](crate::fault::FaultFs) can
//! replace the real file system in tests and inject every failure that these semantics allow.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::FallocateFlags;

use crate::mapped::Mapped;

/// The file system operations that a store needs. Paths are absolute or relative to the working directory.
///
/// The effect of a call is visible immediately. It survives a power failure only after a sync: [`File::sync_data`]
/// for the contents of a file, [`Fs::sync_dir`] of the directory for created, removed and renamed entries.
pub trait Fs: Send + Sync {
    /// Names of the files and directories in `dir`, in no particular order.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if the directory does not exist; other IO errors.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Creates `dir` in an existing parent. Succeeds if it already exists.
    ///
    /// # Errors
    /// IO errors.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// Opens a file for reading and, unless `mode` says otherwise, for writing.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] or [`io::ErrorKind::NotFound`], depending on `mode`; other IO errors.
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn File>>;

    /// Removes a file. Open handles remain usable.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`]; other IO errors.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`]; other IO errors.
    fn remove_dir(&self, dir: &Path) -> io::Result<()>;

    /// Renames a file or directory, replacing an existing file of that name.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`]; other IO errors.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Gives a file a second name. Both stay the same file.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`]; [`io::ErrorKind::AlreadyExists`]; [`io::ErrorKind::Unsupported`] and others if
    /// there are no such names here; other IO errors.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let _ = (from, to);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Makes the entries of `dir` durable.
    ///
    /// # Errors
    /// IO errors. Which entry changes are durable is then unknown.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
}

/// Whether [`Fs::open`] creates the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Create an empty file, which must not exist.
    New,
    /// Open an existing file.
    Existing,
    /// Open an existing file for reading only.
    ReadOnly,
}

/// An open file. Safe for concurrent use by several threads.
#[expect(clippy::len_without_is_empty, reason = "no caller needs `is_empty`")]
pub trait File: Send + Sync {
    /// Reads from position `at` until `into` is full or the file ends. Returns the number of bytes read.
    ///
    /// # Errors
    /// IO errors.
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize>;

    /// Appends up to `len` bytes from position `at` to `into`; fewer only at the end of the file.
    ///
    /// # Errors
    /// IO errors. Nothing is appended then.
    fn read_into(&self, into: &mut Vec<u8>, len: usize, at: u64) -> io::Result<()> {
        let before = into.len();
        into.resize(before + len, 0);
        let read = self.read_at(&mut into[before..], at);
        into.truncate(before + *read.as_ref().unwrap_or(&0));
        read.map(|_| ())
    }

    /// Writes all of `bytes` at position `at`. Extends the file if necessary; a gap reads as zeros.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`]; other IO errors. Some of the bytes may be written.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Like [`File::write_at`], where only zeros exist from `at` on. The implementation may write through a memory
    /// mapping without a system call, but only within the range reserved by [`File::allocate`] through this handle. If
    /// the disk fails under a mapping, or the file is truncated other than by [`File::set_len`], the process ends.
    ///
    /// # Errors
    /// As [`File::write_at`].
    fn append_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_at(bytes, at)
    }

    /// Resizes the file to `len` zero bytes, which [`File::overwrite_at`] may access through a memory mapping.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`]; other IO errors. The file then consists of up to `len` zero bytes.
    fn map(&self, len: u64) -> io::Result<()> {
        self.set_len(0)?;
        self.allocate(0, len)
    }

    /// Like [`File::append_at`], but overwrites existing bytes of a [mapped](File::map) file.
    ///
    /// # Errors
    /// As [`File::write_at`].
    fn overwrite_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_at(bytes, at)
    }

    /// Makes everything written, and the length, durable.
    ///
    /// # Errors
    /// IO errors. Writes since the last successful sync may be lost, even if a later sync succeeds.
    fn sync_data(&self) -> io::Result<()>;

    /// Length, bytes.
    ///
    /// # Errors
    /// IO errors.
    fn len(&self) -> io::Result<u64>;

    /// File descriptor, if the file has one.
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Truncates the file, or extends it with zeros.
    ///
    /// # Errors
    /// IO errors.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Reserves space for `len` bytes from position `at` on, so that writing them cannot fail for lack of space.
    /// Extends the file to include them; unwritten bytes read as zeros.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`]; other IO errors. The length may have changed.
    fn allocate(&self, at: u64, len: u64) -> io::Result<()>;

    /// The standard library file, if there is one, for `sendfile`.
    fn as_std(&self) -> Option<&fs::File>;
}

/// Creates a directory and its missing parents, durably.
pub(crate) fn create_dir_durably(fs: &dyn Fs, dir: &Path) -> io::Result<()> {
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
    match fs.create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            create_dir_durably(fs, parent.ok_or(error)?)?;
            fs.create_dir(dir)?;
        }
        outcome => outcome?,
    }
    fs.sync_dir(parent.unwrap_or(Path::new(".")))
}

/// The file system of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealFs;

impl Fs for RealFs {
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
        fs::read_dir(dir)?.map(name).collect()
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        match fs::create_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            outcome => outcome,
        }
    }

    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn File>> {
        let mut options = fs::File::options();
        options.read(true).write(mode != Mode::ReadOnly).create_new(mode == Mode::New);
        Ok(Arc::new(RealFile { file: Arc::new(options.open(path)?), mapped: Mutex::default() }))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        fs::remove_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::open(dir)?.sync_all()
    }
}

struct RealFile {
    file: Arc<fs::File>,
    mapped: Mutex<Mapped>,
}

impl RealFile {
    /// State of the mapping. Ignores poisoning: no panic leaves it inconsistent.
    fn mapped(&self) -> MutexGuard<'_, Mapped> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl File for RealFile {
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        let mut read = 0;
        while read < into.len() {
            match self.file.read_at(&mut into[read..], at + read as u64) {
                Ok(0) => break,
                Ok(some) => read += some,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    #[expect(
        unsafe_code,
        reason = "zeroing the buffer before reading would add a third to the cost of a read"
    )]
    fn read_into(&self, into: &mut Vec<u8>, len: usize, at: u64) -> io::Result<()> {
        let before = into.len();
        into.reserve_exact(len);
        let mut read = 0;
        while read < len {
            let spare = &mut into.spare_capacity_mut()[..len - read];
            match rustix::io::pread(&self.file, spare, at + read as u64) {
                Ok(([], _)) => break,
                Ok((some, _)) => read += some.len(),
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => {
                    into.truncate(before);
                    return Err(error.into());
                }
            }
            // SAFETY: `pread` initialized `read` bytes after the first `before` ones.
            unsafe { into.set_len(before + read) };
        }
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.mapped().before_direct_write(at + bytes.len() as u64);
        self.file.write_all_at(bytes, at)
    }

    fn append_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.mapped().append(&self.file, bytes, at)
    }

    fn map(&self, len: u64) -> io::Result<()> {
        self.set_len(0)?;
        self.allocate(0, len)?;
        self.mapped().open_whole(&self.file, len)
    }

    fn overwrite_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        // The window covers the whole file, or there is none.
        self.mapped().append(&self.file, bytes, at)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut mapped = self.mapped();
        mapped.truncate(len);
        self.file.set_len(len)
    }

    fn allocate(&self, at: u64, len: u64) -> io::Result<()> {
        loop {
            match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), at, len) {
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(()) => {
                    self.mapped().reserve(at..at + len);
                    return Ok(());
                }
            }
        }
    }

    fn as_std(&self) -> Option<&fs::File> {
        Some(&self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn implements_the_file_system_contract() {
        let root = std::env::temp_dir().join(format!("mainstem-disk-fs-{}", std::process::id()));
        RealFs.create_dir(&root).unwrap();
        RealFs.create_dir(&root).unwrap();
        let (one, two) = (root.join("one"), root.join("two"));
        let missing = RealFs.open(&one, Mode::Existing).err().unwrap();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        let file = RealFs.open(&one, Mode::New).unwrap();
        let taken = RealFs.open(&one, Mode::New).err().unwrap();
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);

        file.write_at(b"stem", 3).unwrap();
        file.allocate(0, 4096).unwrap();
        file.sync_data().unwrap();
        assert_eq!(file.len().unwrap(), 4096);
        let mut read = [9; 8];
        assert_eq!(file.read_at(&mut read, 0).unwrap(), 8);
        assert_eq!(&read, b"\0\0\0stem\0");
        for (room, len) in [(0, 4), (100, 4), (0, 5000)] {
            let mut into = Vec::with_capacity(room);
            into.push(b'>');
            file.read_into(&mut into, len, 3).unwrap();
            assert_eq!(into.len(), 1 + len.min(4096 - 3));
            assert!(into.starts_with(b">stem"));
        }
        file.set_len(5).unwrap();
        assert_eq!(file.read_at(&mut read, 2).unwrap(), 3);

        RealFs.rename(&one, &two).unwrap();
        RealFs.sync_dir(&root).unwrap();
        assert_eq!(RealFs.list(&root).unwrap(), ["two"]);
        RealFs.remove_file(&two).unwrap();
        assert_eq!(file.len().unwrap(), 5, "an open handle stays usable");
        RealFs.remove_dir(&root).unwrap();
        assert_eq!(RealFs.list(&root).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
