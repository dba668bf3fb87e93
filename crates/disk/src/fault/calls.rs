//! The [`Fs`] and [`File`] calls of the fault injector. Each call is counted and may fail.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;

use super::content::Content;
use super::names::{Change, Names};
use super::{Disk, Fate, FaultFs, Kind, Node, crashed};
use crate::fs::{File, Fs, Mode};

fn into_result(fate: Fate) -> io::Result<()> {
    match fate {
        Fate::Succeeds => Ok(()),
        Fate::Fails(error) => Err(error),
    }
}

impl Fs for FaultFs {
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let disk = self.disk();
        if disk.has_crashed {
            return Err(crashed());
        }
        let node = disk.find(dir)?;
        Ok(disk.names(node)?.iter().map(|(name, _)| name.to_owned()).collect())
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        let fate = disk.fate(Kind::Name, &|| format!("create_dir {}", dir.display()))?;
        if disk.find(dir).is_ok_and(|node| disk.names(node).is_ok()) {
            return into_result(fate);
        }
        // A failed call has no effect. Taking effect and then failing equals a crash after the call.
        into_result(fate)?;
        disk.make(dir, Node::Directory(Names::default()))?;
        Ok(())
    }

    fn open(&self, path: &Path, mode: Mode) -> io::Result<Arc<dyn File>> {
        let mut disk = self.disk();
        let known = disk.find(path);
        let node = match (mode, known) {
            (Mode::Existing | Mode::ReadOnly, known) => {
                if disk.has_crashed {
                    return Err(crashed());
                }
                known?
            }
            (Mode::New, known) => {
                let fate = disk.fate(Kind::Name, &|| format!("create {}", path.display()))?;
                into_result(fate)?;
                if known.is_ok() {
                    return Err(Errno::EXIST.into());
                }
                disk.make(path, Node::File(Content::default()))?
            }
        };
        disk.content(node)?;
        drop(disk);
        Ok(Arc::new(FaultFile { fs: self.clone(), node, path: path.display().to_string() }))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        let fate = disk.fate(Kind::Name, &|| format!("remove {}", path.display()))?;
        into_result(fate)?;
        let node = disk.find(path)?;
        disk.content(node)?;
        let (parent, name) = disk.find_parent(path)?;
        disk.names_mut(parent)?.change(Change::Unset { name });
        Ok(())
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        let fate = disk.fate(Kind::Name, &|| format!("remove_dir {}", dir.display()))?;
        into_result(fate)?;
        let node = disk.find(dir)?;
        if disk.names(node)?.iter().next().is_some() {
            return Err(Errno::NOTEMPTY.into());
        }
        let (parent, name) = disk.find_parent(dir)?;
        disk.names_mut(parent)?.change(Change::Unset { name });
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        let fate = disk.fate(Kind::Name, &|| format!("rename {} to {}", from.display(), to.display()))?;
        into_result(fate)?;
        disk.calls.renames += 1;
        if disk.calls.renames <= disk.plan.full_renames {
            return Err(Errno::NOSPC.into());
        }
        let node = disk.find(from)?;
        let (parent, from) = disk.find_parent(from)?;
        let (other_parent, to) = disk.find_parent(to)?;
        if parent != other_parent {
            // Renames across directories are not atomic under power loss, so no store should use them.
            return Err(Errno::XDEV.into());
        }
        disk.names_mut(parent)?.change(Change::Move { from, to, node });
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        let fate = disk.fate(Kind::Sync, &|| format!("sync_dir {}", dir.display()))?;
        let node = disk.find(dir)?;
        // On failure the changes stay unsynced. A real file system that cannot write its metadata shuts down and
        // forgets none of them.
        if let Fate::Succeeds = fate {
            disk.names_mut(node)?.sync();
        }
        into_result(fate)
    }
}

struct FaultFile {
    fs: FaultFs,
    node: usize,
    path: String,
}

impl FaultFile {
    /// Checks the space for the file to grow to `end`. Returns the possible length if there is too little.
    fn check_space(&self, disk: &mut Disk, end: u64) -> io::Result<Result<(), u64>> {
        let left = disk.space_left();
        let len = disk.content(self.node)?.len();
        let grows = end.saturating_sub(len);
        Ok(if grows <= left { Ok(()) } else { Err(len + left) })
    }
}

impl File for FaultFile {
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        let mut disk = self.fs.disk();
        let fate = disk.fate(Kind::Read, &|| format!("read {} at {at} {}", self.path, into.len()))?;
        into_result(fate)?;
        Ok(disk.content(self.node)?.read(into, at))
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let mut disk = self.fs.disk();
        let fate = disk.fate(Kind::Write, &|| format!("write {} at {at} {}", self.path, bytes.len()))?;
        if let Fate::Fails(error) = fate {
            let written = disk.rng.below(bytes.len() as u64 + 1) as usize;
            disk.content(self.node)?.write(&bytes[..written], at);
            return Err(error);
        }
        if let Err(end) = self.check_space(&mut disk, at + bytes.len() as u64)? {
            let written = end.saturating_sub(at) as usize;
            disk.content(self.node)?.write(&bytes[..written], at);
            return Err(Errno::NOSPC.into());
        }
        disk.content(self.node)?.write(bytes, at);
        Ok(())
    }

    fn append_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let mut disk = self.fs.disk();
        let content = disk.content(self.node)?;
        let mut rest = vec![0; content.len().saturating_sub(at) as usize];
        content.read(&mut rest, at);
        assert!(rest.iter().all(|byte| *byte == 0), "{}: data after {at}", self.path);
        drop(disk);
        self.write_at(bytes, at)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.fs.disk();
        let fate = disk.fate(Kind::Sync, &|| format!("sync {}", self.path))?;
        let mut rng = disk.rng.fork();
        let has_crashed = disk.has_crashed;
        let content = disk.content(self.node)?;
        match &fate {
            Fate::Succeeds => content.sync(),
            Fate::Fails(_) if !has_crashed => content.fail_to_sync(&mut rng),
            Fate::Fails(_) => {}
        }
        into_result(fate)
    }

    fn len(&self) -> io::Result<u64> {
        let mut disk = self.fs.disk();
        if disk.has_crashed {
            return Err(crashed());
        }
        Ok(disk.content(self.node)?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut disk = self.fs.disk();
        let fate = disk.fate(Kind::Write, &|| format!("set_len {} {len}", self.path))?;
        into_result(fate)?;
        // A hole uses no space.
        disk.content(self.node)?.set_len(len);
        Ok(())
    }

    fn allocate(&self, at: u64, len: u64) -> io::Result<()> {
        let mut disk = self.fs.disk();
        let fate = disk.fate(Kind::Write, &|| format!("allocate {} at {at} {len}", self.path))?;
        into_result(fate)?;
        if self.check_space(&mut disk, at + len)?.is_err() {
            return Err(Errno::NOSPC.into());
        }
        let content = disk.content(self.node)?;
        let len = content.len().max(at + len);
        content.set_len(len);
        Ok(())
    }

    fn as_std(&self) -> Option<&fs::File> {
        None
    }
}
