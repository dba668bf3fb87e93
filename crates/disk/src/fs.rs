//! The seam to the file system: few calls, each with one meaning, so that a faulty one can be put in its place.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::FallocateFlags;

use crate::mapped::Mapped;

/// A file system, as far as a store needs one. Paths are absolute, or relative to wherever the owner stands.
///
/// What a call has changed can be read at once. It lasts, should the machine lose power, only after
/// [`File::sync_data`] for what is in a file, and after [`Fs::sync_dir`] of its directory for names that came,
/// went or changed.
pub trait Fs: Send + Sync {
    /// Names of what lies in `dir`, files and directories alike, in no order.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there is no such directory; what the system says.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Makes `dir`, whose parent is there. It is no error if it is there already.
    ///
    /// # Errors
    /// What the system says.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] or [`io::ErrorKind::NotFound`], as `mode` has it; what the system says.
    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn File>>;

    /// Removes a file. Whoever has it open goes on reading it.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`]; what the system says.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`]; what the system says.
    fn remove_dir(&self, dir: &Path) -> io::Result<()>;

    /// Gives a file or directory another name, in place of a file that had it.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`]; what the system says.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Waits until the names in `dir` are on disk as they are.
    ///
    /// # Errors
    /// What the system says. Which of the names lasts is unsure then.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
}

/// What [`Fs::open`] expects to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing: the file is made, empty.
    New,
    /// The file.
    Existing,
}

/// An open file. Several threads may use it at once.
#[expect(clippy::len_without_is_empty, reason = "nobody asks whether a file is empty")]
pub trait File: Send + Sync {
    /// Reads from byte offset `at` on as much as there is, up to the length of `into`; less at the end only.
    ///
    /// # Errors
    /// What the system says.
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize>;

    /// Appends up to `len` bytes from byte offset `at` on to `into`; less at the end only.
    ///
    /// # Errors
    /// What the system says. Nothing was appended then.
    fn read_into(&self, into: &mut Vec<u8>, len: usize, at: u64) -> io::Result<()> {
        let before = into.len();
        into.resize(before + len, 0);
        let read = self.read_at(&mut into[before..], at);
        into.truncate(before + *read.as_ref().unwrap_or(&0));
        read.map(|_| ())
    }

    /// Writes all of `bytes` at byte offset `at`. The file grows if it must; a gap reads as zeros.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`]; what the system says. Some of the bytes may be written all the same.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Does the same where nothing but zeros stands at `at` and behind it. It may do so by way of a mapping, which costs
    /// no system call, but within what [`File::allocate`] has reserved through this same file only. A disk that fails under a
    /// mapping ends the process, and so does whoever cuts the file off by another way than [`File::set_len`].
    ///
    /// # Errors
    /// As [`File::write_at`].
    fn append_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_at(bytes, at)
    }

    /// Lets this be a file of so many zeros, which [`File::overwrite_at`] may reach by way of a mapping.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`]; what the system says. The file may have any length up to that, and is full of zeros.
    fn map(&self, len: u64) -> io::Result<()> {
        self.set_len(0)?;
        self.allocate(0, len)
    }

    /// As [`File::append_at`], over whatever stands there, in what was [mapped](File::map).
    ///
    /// # Errors
    /// As [`File::write_at`].
    fn overwrite_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_at(bytes, at)
    }

    /// Waits until all that was written, and the length, are on disk.
    ///
    /// # Errors
    /// What the system says. What was written since the last success may be lost then, and a second call that
    /// succeeds says nothing about it.
    fn sync_data(&self) -> io::Result<()>;

    /// Length, bytes.
    ///
    /// # Errors
    /// What the system says.
    fn len(&self) -> io::Result<u64>;

    /// The kernel's file, if it is one.
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Cuts the file off, or lets it grow by zeros.
    ///
    /// # Errors
    /// What the system says.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Reserves space for `len` bytes from byte offset `at` on, so that writing them cannot fail for want of it.
    /// The file grows to hold them; what was not written reads as zeros.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`]; what the system says. The length may have changed all the same.
    fn allocate(&self, at: u64, len: u64) -> io::Result<()>;

    /// The file itself, if it is one of the machine's: for `sendfile`.
    fn as_std(&self) -> Option<&fs::File>;
}

/// The file system of the machine.
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
        options.read(true).write(true).create_new(mode == Mode::New);
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

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::open(dir)?.sync_all()
    }
}

struct RealFile {
    file: Arc<fs::File>,
    mapped: Mutex<Mapped>,
}

impl RealFile {
    /// What is mapped of it. A panic elsewhere leaves that as good as it was.
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
        reason = "filling memory with zeros before it is read into costs a third of reading"
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
            // SAFETY: the system has written so many bytes behind those that were there.
            unsafe { into.set_len(before + read) };
        }
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.mapped().make_way(at + bytes.len() as u64);
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
        // Its window is where it is written to, or else it has none.
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
        mapped.cut(len);
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
    fn files_and_names_do_what_the_seam_says() {
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
        assert_eq!(file.len().unwrap(), 5, "whoever has it open goes on");
        RealFs.remove_dir(&root).unwrap();
        assert_eq!(RealFs.list(&root).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
