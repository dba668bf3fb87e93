//! Snapshots of the data directory, while the broker runs.
//!
//! A snapshot is a directory with the layout of a data directory, whose files are hard links to those of the broker.
//! Its list of files, `files.json`, is written last and says how much of each belongs to it; a copy of that is what the
//! broker would have found after a kill at that moment. Snapshots do not survive a start of the broker.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use mainstem_admin::SnapshotHost;
use mainstem_auth::Host;
use mainstem_backup::SourceFile;
use mainstem_log::ImageFile;
use mainstem_node::{SnapshotFiles, Snapshots};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::storage::SharedState;
use crate::{security, storage};

/// Directory of all snapshots, in the data directory.
pub(crate) const DIRECTORY: &str = "snapshot";
/// The list of the files of a snapshot.
const LIST: &str = "files.json";
/// Version of the list.
const VERSION: u32 = 1;
/// Largest number of snapshots: each keeps removed records on disk.
const SNAPSHOTS_MAX: usize = 4;

/// The snapshots of a running broker.
pub(crate) struct SnapshotManager {
    /// The data directory.
    data: PathBuf,
    shards: Arc<Snapshots>,
    security: Arc<Host>,
    /// Lets one request at a time take or remove a snapshot. Never waited for by [`SnapshotHost::list`].
    changing: Mutex<()>,
    taken: Mutex<Vec<Snapshot>>,
}

#[derive(Clone, Debug, Serialize)]
struct Snapshot {
    id: String,
    unix_ms: u64,
    directory: PathBuf,
    files: usize,
    bytes: u64,
}

/// The list of the files of a snapshot.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileList {
    version: u32,
    /// What follows the bytes of a file in it does not belong to the snapshot.
    files: Vec<SourceFile>,
}

impl SnapshotManager {
    /// Removes the snapshots of an earlier run.
    ///
    /// # Errors
    /// A message for the user: they cannot be removed.
    pub(crate) fn new(data: &Path, shared: &SharedState, security: &Arc<Host>) -> Result<Arc<Self>, String> {
        let directory = data.join(DIRECTORY);
        match std::fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(format!("{}: {error}", directory.display()));
            }
            _ => {}
        }
        let data = std::path::absolute(data).map_err(|error| format!("{}: {error}", data.display()))?;
        let (shards, security) = (Arc::clone(&shared.snapshots), Arc::clone(security));
        Ok(Arc::new(Self { data, shards, security, changing: Mutex::default(), taken: Mutex::default() }))
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn taken(&self) -> MutexGuard<'_, Vec<Snapshot>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Links all files into a new directory, and lists them.
    fn link(&self, directory: &Path) -> Result<Vec<SourceFile>, String> {
        let explain = |path: &Path, error: &io::Error| format!("{}: {error}", path.display());
        let stores = directory.join(storage::STORES);
        std::fs::create_dir_all(&stores).map_err(|error| explain(&stores, &error))?;
        let SnapshotFiles { stores } = self.shards.take(&stores)?;
        let mut files = Vec::new();
        let mut list = |prefix: &str, linked: Vec<ImageFile>| {
            let listed = |ImageFile { path, bytes }| SourceFile { path: format!("{prefix}/{path}"), bytes };
            files.extend(linked.into_iter().map(listed));
        };
        for (store_id, linked) in stores {
            list(&format!("{}/{store_id}", storage::STORES), linked);
        }
        list(security::STORE, self.security.link_image(&directory.join(security::STORE))?);
        let secret = self.data.join(security::SECRET);
        let copied = std::fs::copy(&secret, directory.join(security::SECRET));
        let bytes = copied.map_err(|error| explain(&secret, &error))?;
        files.push(SourceFile { path: security::SECRET.into(), bytes });
        let list = directory.join(LIST);
        write_list(&list, &files).map_err(|error| explain(&list, &error))?;
        Ok(files)
    }
}

impl SnapshotHost for SnapshotManager {
    fn list(&self) -> Vec<Value> {
        self.taken().iter().map(|snapshot| json!(snapshot)).collect()
    }

    fn take(&self) -> Result<Value, String> {
        let _changing = self.changing();
        let (count, newest_ms) = {
            let taken = self.taken();
            (taken.len(), taken.last().map_or(0, |snapshot| snapshot.unix_ms))
        };
        if count >= SNAPSHOTS_MAX {
            return Err(format!("there are {SNAPSHOTS_MAX} snapshots already: remove one first"));
        }
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_ms = (unix.as_millis() as u64).max(newest_ms + 1);
        let id = unix_ms.to_string();
        let directory = self.data.join(DIRECTORY).join(&id);
        let files = self.link(&directory).inspect_err(|_| {
            if let Err(error) = std::fs::remove_dir_all(&directory) {
                log::warn!("{}: {error}; the next start removes it", directory.display());
            }
        })?;
        let bytes = files.iter().map(|file| file.bytes).sum();
        let snapshot = Snapshot { id, unix_ms, directory, files: files.len(), bytes };
        log::info!("snapshot {}: {} files, {bytes} bytes", snapshot.id, snapshot.files);
        self.taken().push(snapshot.clone());
        Ok(json!(snapshot))
    }

    fn remove(&self, id: &str) -> Result<bool, String> {
        let _changing = self.changing();
        let found = self.taken().iter().find(|snapshot| snapshot.id == id).cloned();
        let Some(Snapshot { directory, .. }) = found else { return Ok(false) };
        match std::fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(format!("{}: {error}", directory.display()));
            }
            _ => self.taken().retain(|snapshot| snapshot.id != id),
        }
        Ok(true)
    }
}

fn write_list(path: &Path, files: &[SourceFile]) -> io::Result<()> {
    let list = FileList { version: VERSION, files: files.to_vec() };
    let mut file = io::BufWriter::new(std::fs::File::create(path)?);
    serde_json::to_writer(&mut file, &list)?;
    file.flush()
}

/// Reads the list of the files of a snapshot.
///
/// # Errors
/// A message for the user: the file cannot be read, or is of another version.
pub(crate) fn read_list(directory: &Path) -> Result<Vec<SourceFile>, String> {
    let path = directory.join(LIST);
    let explain = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let bytes = std::fs::read(&path).map_err(|error| explain(&error))?;
    let FileList { version, files } = serde_json::from_slice(&bytes).map_err(|error| explain(&error))?;
    if version != VERSION {
        return Err(explain(&format!("its version is {version}, this program reads {VERSION}")));
    }
    Ok(files)
}
