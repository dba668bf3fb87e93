//! Writing a backup into a directory.
//!
//! A marker file is durable before the first file is written and goes when all are durable. So whoever finds it knows
//! that the directory is not complete; everything in it may be overwritten then.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::fetch;
use crate::manifest::Manifest;
use crate::target::Target;

/// File that a directory has while a restore into it is not complete.
pub const RESTORE_MARKER: &str = "restore-incomplete";

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
    let mut writer = Writer { into, manifest, created: 0, current: None };
    fetch::all(target, manifest, |file, content| writer.write(file, content)).await?;
    writer.create_up_to(manifest.files.len())?;
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

/// Writes files in the order of the manifest.
struct Writer<'a> {
    into: &'a Path,
    manifest: &'a Manifest,
    /// Number of files that were created.
    created: usize,
    /// The last of them.
    current: Option<File>,
}

impl Writer<'_> {
    fn write(&mut self, file: usize, content: &[u8]) -> Result<(), Error> {
        self.create_up_to(file + 1)?;
        let path = self.into.join(&self.manifest.files[file].path);
        let output = self.current.as_mut().ok_or_else(|| Error::of_file(&path, &"it is not open"))?;
        output.write_all(content).map_err(|error| Error::of_file(&path, &error))
    }

    /// Creates the first `count` files.
    fn create_up_to(&mut self, count: usize) -> Result<(), Error> {
        while self.created < count {
            let path = self.into.join(&self.manifest.files[self.created].path);
            let create = || {
                fs::create_dir_all(path.parent().unwrap_or(self.into))?;
                File::options().write(true).create_new(true).open(&path)
            };
            self.current = Some(create().map_err(|error| Error::of_file(&path, &error))?);
            self.created += 1;
        }
        Ok(())
    }
}
