//! Writing a backup into a directory.
//!
//! A marker file is durable before the first file is written and goes when all are durable. So whoever finds it knows
//! that the directory is not complete; everything in it may be overwritten then.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::fetch;
use crate::manifest::Manifest;
use crate::restore_marker::RESTORE_MARKER;
use crate::target::Target;

/// A backup that was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Identifier.
    pub id: String,
    /// Number of files.
    pub files: u64,
    /// Size of all files, bytes.
    pub bytes: u64,
}

/// Restores a backup.
pub(crate) async fn restore(target: &Target, manifest: &Manifest, into: &Path) -> Result<(), Error> {
    prepare(into)?;
    let mut writer = Writer { into, manifest, open: None };
    writer.create_files()?;
    fetch::all(target, manifest, |file, position, content| writer.write(file, position, content)).await?;
    finish(into).map_err(|error| Error::of_file(into, &error))
}

/// Marks a directory as incomplete, and removes what an interrupted restore has left in it.
fn prepare(into: &Path) -> Result<(), Error> {
    let failed = |error: io::Error| Error::of_file(into, &error);
    fs::create_dir_all(into).map_err(failed)?;
    let mut found: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(into).map_err(failed)? {
        found.push(entry.map_err(failed)?.path());
    }
    let marker = into.join(RESTORE_MARKER);
    if !found.is_empty() && !found.contains(&marker) {
        return Err(Error::of_file(into, &"the directory is not empty"));
    }
    File::create(&marker).and_then(|file| file.sync_all()).map_err(failed)?;
    sync_dir(into).map_err(failed)?;
    for path in found.iter().filter(|path| **path != marker) {
        let metadata = path.symlink_metadata();
        let is_dir = metadata.map_err(failed)?.is_dir();
        let removed = if is_dir { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        removed.map_err(|error| Error::of_file(path, &error))?;
    }
    Ok(())
}

/// Makes everything durable, and the directory complete.
fn finish(into: &Path) -> io::Result<()> {
    // One call instead of a sync of each file.
    rustix::fs::syncfs(File::open(into)?)?;
    fs::remove_file(into.join(RESTORE_MARKER))?;
    sync_dir(into)
}

fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Writes contents to files.
struct Writer<'a> {
    into: &'a Path,
    manifest: &'a Manifest,
    /// The last file that was written to, and its number.
    open: Option<(usize, File)>,
}

impl Writer<'_> {
    fn path(&self, file: usize) -> PathBuf {
        self.into.join(&self.manifest.files[file].path)
    }

    fn create_files(&self) -> Result<(), Error> {
        for file in 0..self.manifest.files.len() {
            let path = self.path(file);
            let create = || {
                fs::create_dir_all(path.parent().unwrap_or(self.into))?;
                File::options().write(true).create_new(true).open(&path)
            };
            create().map_err(|error| Error::of_file(&path, &error))?;
        }
        Ok(())
    }

    fn write(&mut self, file: usize, position: u64, content: &[u8]) -> Result<(), Error> {
        let path = self.path(file);
        let failed = |error: io::Error| Error::of_file(&path, &error);
        let opened = match self.open.take() {
            Some((number, open)) if number == file => open,
            _ => File::options().write(true).open(&path).map_err(failed)?,
        };
        opened.write_all_at(content, position).map_err(failed)?;
        self.open = Some((file, opened));
        Ok(())
    }
}
