//! A repository: which backups it has, and whether one is sound.

use std::collections::BTreeMap;
use std::path::Path as FilePath;

use bytes::Bytes;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};

use crate::create::{Created, SourceFile, create};
use crate::error::Error;
use crate::fetch;
use crate::manifest::{Manifest, VERSION};
use crate::prune::{Pruned, prune};
use crate::restore::{Restored, restore};
use crate::target::{self, MARKER, Target, manifest_path, time_of};

/// Backups in a directory or an object store. Methods block.
#[derive(Debug)]
pub struct Repository {
    target: Target,
    runtime: Runtime,
}

/// A backup of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// The newest.
    Newest,
    /// The one with this identifier.
    Id(String),
    /// The newest that began no later than this Unix time in ms.
    At(u64),
}

/// What is known of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupInfo {
    /// Identifier. Identifiers sort by time.
    pub id: String,
    /// When the backup began, Unix time in ms.
    pub unix_ms: u64,
    /// Number of files.
    pub files: u64,
    /// Size of all files, bytes.
    pub bytes: u64,
    /// What its creator has noted.
    pub about: BTreeMap<String, String>,
    /// Why it cannot be restored, if its manifest is damaged. Nothing else is known of it then.
    pub damage: Option<String>,
}

/// A backup that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Identifier.
    pub id: String,
    /// Number of files.
    pub files: u64,
    /// Size of all files, bytes.
    pub bytes: u64,
}

impl Repository {
    /// Opens the repository at `target`: a directory, or a URL such as `s3://bucket/prefix`, `gs://bucket/prefix`,
    /// `az://container/prefix`. What the store needs to know, such as credentials, comes from the environment: `AWS_*`,
    /// `GOOGLE_*`, `AZURE_*`.
    ///
    /// # Errors
    /// The place cannot be used, or contains a repository of another version.
    pub fn open(target: &str) -> Result<Self, Error> {
        Self::open_or_create(target, false)
    }

    /// The same, and creates a directory that does not exist.
    ///
    /// # Errors
    /// As for [`Repository::open`].
    pub fn create_or_open(target: &str) -> Result<Self, Error> {
        Self::open_or_create(target, true)
    }

    fn open_or_create(target: &str, may_create: bool) -> Result<Self, Error> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Error::new(format!("no runtime: {error}")))?;
        // A store may want the runtime when it is made.
        let target = runtime.block_on(async { target::open(target, may_create) })?;
        Self::with(target, runtime)
    }

    fn with(target: Target, runtime: Runtime) -> Result<Self, Error> {
        if let Some(marker) = runtime.block_on(target.get(&MARKER.into()))? {
            let found: Option<serde_json::Value> = serde_json::from_slice(&marker).ok();
            if found.as_ref().and_then(|found| found["version"].as_u64()) != Some(VERSION.into()) {
                let error = format!("it is not that of a repository of version {VERSION}");
                return Err(Error::of_object(&MARKER.into(), &error));
            }
        }
        Ok(Self { target, runtime })
    }

    #[cfg(test)]
    pub(crate) fn of_store(store: std::sync::Arc<dyn object_store::ObjectStore>) -> Result<Self, Error> {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        Self::with(Target(store), runtime)
    }

    /// Stores the first bytes of files below the directory `source`, as a backup that begins now. `about` is stored
    /// with it.
    ///
    /// # Errors
    /// A file is too short or cannot be read; the store fails. There is no backup then; objects may be left that the
    /// next backup uses, or that [`Repository::prune`] removes.
    pub fn create(
        &self,
        source: &FilePath,
        files: &[SourceFile],
        about: &BTreeMap<String, String>,
    ) -> Result<Created, Error> {
        self.runtime.block_on(async {
            let marker = Bytes::from(json!({ "version": VERSION }).to_string());
            self.target.create(&MARKER.into(), marker).await?;
            let ids = self.target.backups().await?;
            // Identifiers keep the order of backups, also if two begin at once or the clock is set back.
            let earliest_ms =
                ids.last().and_then(|id| time_of(id)).map_or(0, |newest_ms| newest_ms.saturating_add(1));
            let previous = self.previous(ids.last()).await?;
            create(&self.target, previous, earliest_ms, source, files, about).await
        })
    }

    /// Lists all backups, the newest last.
    ///
    /// # Errors
    /// The store fails.
    pub fn list(&self) -> Result<Vec<BackupInfo>, Error> {
        self.runtime.block_on(async {
            let mut backups = Vec::new();
            for id in self.target.backups().await? {
                let Some(bytes) = self.target.get(&manifest_path(&id)).await? else { continue };
                let (manifest, damage) = match fetch::decode(&id, &bytes) {
                    Ok(manifest) => (manifest, None),
                    Err(error) => (Manifest::default(), Some(error.to_string())),
                };
                let (files, bytes) = (manifest.files.len() as u64, manifest.bytes());
                let unix_ms = time_of(&id).unwrap_or(manifest.unix_ms);
                backups.push(BackupInfo { id, unix_ms, files, bytes, about: manifest.about, damage });
            }
            Ok(backups)
        })
    }

    /// Restores a backup into a directory that does not exist, is empty, or has what an interrupted restore has left.
    ///
    /// # Errors
    /// There is no such backup; something of it is missing or damaged; the directory is not empty or cannot be written.
    /// What was restored so far is left, with the file [`RESTORE_MARKER`](crate::RESTORE_MARKER).
    pub fn restore(&self, which: &Which, into: &FilePath) -> Result<Restored, Error> {
        self.runtime.block_on(async {
            let (id, manifest) = self.choose(which).await?;
            restore(&self.target, &manifest, into).await?;
            Ok(Restored { id, files: manifest.files.len() as u64, bytes: manifest.bytes() })
        })
    }

    /// Reads everything that a backup needs, and compares it with its checksums.
    ///
    /// # Errors
    /// There is no such backup; something of it is missing or damaged; the store fails.
    pub fn check(&self, which: &Which) -> Result<Checked, Error> {
        self.runtime.block_on(async {
            let (id, manifest) = self.choose(which).await?;
            fetch::all(&self.target, &manifest, |_, _, _| Ok(())).await?;
            Ok(Checked { id, files: manifest.files.len() as u64, bytes: manifest.bytes() })
        })
    }

    /// Removes all backups but the newest `keep` ones, and objects that no other backup needs. What another command may
    /// be using stays: backups that were the newest within the last `grace_ms` ms, and objects that were written within
    /// that time. Safe beside other commands if none of them takes longer than that.
    ///
    /// # Errors
    /// The store fails, or the manifest of a backup that stays is damaged. Call it again to remove the rest.
    pub fn prune(&self, keep: usize, grace_ms: u64) -> Result<Pruned, Error> {
        self.runtime.block_on(prune(&self.target, keep.max(1), grace_ms))
    }

    /// The newest backup. One with a damaged manifest is of no use for the next one, but does not prevent it.
    async fn previous(&self, id: Option<&String>) -> Result<Option<Manifest>, Error> {
        let Some(id) = id else { return Ok(None) };
        let Some(bytes) = self.target.get(&manifest_path(id)).await? else { return Ok(None) };
        let decoded = fetch::decode(id, &bytes);
        Ok(decoded.inspect_err(|error| log::warn!("everything is stored again: {error}")).ok())
    }

    async fn choose(&self, which: &Which) -> Result<(String, Manifest), Error> {
        let mut ids = self.target.backups().await?;
        match which {
            Which::Newest => {
                let id = ids.pop().ok_or_else(|| Error::new("there are no backups"))?;
                let manifest = fetch::manifest(&self.target, &id).await?;
                Ok((id, manifest))
            }
            Which::Id(id) if ids.contains(id) => Ok((id.clone(), fetch::manifest(&self.target, id).await?)),
            Which::Id(id) => Err(Error::new(format!("there is no backup {id:?}"))),
            Which::At(unix_ms) => {
                let is_early = |id: &String| time_of(id).is_some_and(|time_ms| time_ms <= *unix_ms);
                let id = ids.into_iter().rfind(is_early);
                let id = id.ok_or_else(|| Error::new("there is no backup of that time or before"))?;
                let manifest = fetch::manifest(&self.target, &id).await?;
                Ok((id, manifest))
            }
        }
    }
}
