//! Where a repository is, and the requests to it.
//!
//! The crate `object_store` gives a directory and the stores of the large clouds one interface, with the conditional
//! writes that keep two backups from overwriting each other. Writes to a directory are synced.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutPayload, parse_url_opts};
use url::Url;

use crate::content::ObjectName;
use crate::error::Error;

/// Object that makes a place a repository.
pub(crate) const MARKER: &str = "mainstem-backup";
/// Directory of the manifests.
const MANIFESTS: &str = "backups";
/// Directory of the contents.
const DATA: &str = "data";

/// Schemes of the object stores.
const SCHEMES: [&str; 8] = ["s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss"];
/// Prefixes of the environment variables that configure an object store.
const VARIABLES: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];

/// The objects of a repository.
#[derive(Clone, Debug)]
pub(crate) struct Target(pub(crate) Arc<dyn ObjectStore>);

/// Opens the place that `target` names, a directory or a URL. With `may_create`, a missing directory is created.
pub(crate) fn open(target: &str, may_create: bool) -> Result<Target, Error> {
    let failed = |error: &dyn std::fmt::Display| Error::new(format!("{target}: {error}"));
    // A name such as "C:" is no URL of a store.
    let url = target.contains("://").then(|| Url::parse(target));
    let url = url.transpose().map_err(|error| failed(&error))?;
    let directory = match &url {
        None => Some(std::path::PathBuf::from(target)),
        Some(url) if url.scheme() == "file" => {
            Some(url.to_file_path().map_err(|()| failed(&"it is no path on this machine"))?)
        }
        Some(_) => None,
    };
    if let Some(directory) = directory {
        if may_create {
            std::fs::create_dir_all(&directory).map_err(|error| failed(&error))?;
        }
        let store = LocalFileSystem::new_with_prefix(&directory).map_err(|error| failed(&error))?;
        return Ok(Target(Arc::new(store.with_fsync(true))));
    }
    let variables = std::env::vars_os().filter_map(|(name, value)| {
        let name =
            name.into_string().ok().filter(|name| VARIABLES.iter().any(|prefix| name.starts_with(prefix)))?;
        Some((name.to_ascii_lowercase(), value.into_string().ok()?))
    });
    let url = url.filter(|url| SCHEMES.contains(&url.scheme()));
    let url =
        url.ok_or_else(|| failed(&format!("it is neither a directory nor a URL of {}", SCHEMES.join(", "))))?;
    let (store, prefix) = parse_url_opts(&url, variables).map_err(|error| failed(&error))?;
    let store: Arc<dyn ObjectStore> = Arc::from(store);
    Ok(Target(if prefix.as_ref().is_empty() { store } else { Arc::new(PrefixStore::new(store, prefix)) }))
}

/// Object with contents.
pub(crate) fn data_path(name: &str) -> Path {
    Path::from_iter([DATA, name.get(..2).unwrap_or(""), name])
}

/// Manifest of the backup with this identifier.
pub(crate) fn manifest_path(id: &str) -> Path {
    Path::from_iter([MANIFESTS, &format!("{id}.json")])
}

/// When the backup with this identifier began, Unix time in ms.
pub(crate) fn time_of(id: &str) -> Option<u64> {
    id.split_once('-')?.0.parse().ok()
}

impl Target {
    /// Reads an object; `None` if there is none.
    pub(crate) async fn get(&self, path: &Path) -> Result<Option<Bytes>, Error> {
        let read = async { self.0.get(path).await?.bytes().await };
        match read.await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(Error::of_object(path, &error)),
        }
    }

    /// Reads a part of an object.
    pub(crate) async fn get_range(&self, path: &Path, range: std::ops::Range<u64>) -> Result<Bytes, Error> {
        self.0.get_range(path, range).await.map_err(|error| Error::of_object(path, &error))
    }

    /// Writes an object whose name nobody else uses.
    pub(crate) async fn put(&self, path: &Path, content: Bytes) -> Result<(), Error> {
        let put = self.0.put(path, PutPayload::from_bytes(content)).await;
        put.map(drop).map_err(|error| Error::of_object(path, &error))
    }

    /// Creates an object that does not exist.
    ///
    /// # Errors
    /// It exists, with other content.
    pub(crate) async fn create(&self, path: &Path, content: Bytes) -> Result<(), Error> {
        let payload = PutPayload::from_bytes(content.clone());
        match self.0.put_opts(path, payload, PutMode::Create.into()).await {
            Ok(_) => Ok(()),
            // An attempt whose answer was lost may have written it.
            Err(error) => match self.get(path).await {
                Ok(Some(found)) if found == content => Ok(()),
                _ => Err(Error::of_object(path, &error)),
            },
        }
    }

    /// Removes an object, which may be gone.
    pub(crate) async fn delete(&self, path: &Path) -> Result<(), Error> {
        match self.0.delete(path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(Error::of_object(path, &error)),
        }
    }

    /// Identifiers of all backups, oldest first.
    pub(crate) async fn backups(&self) -> Result<Vec<String>, Error> {
        let directory = Path::from(MANIFESTS);
        let listed: Result<Vec<ObjectMeta>, _> = self.0.list(Some(&directory)).try_collect().await;
        let listed = listed.map_err(|error| Error::of_object(&directory, &error))?;
        let id = |meta: ObjectMeta| meta.location.filename()?.strip_suffix(".json").map(str::to_owned);
        let mut ids: Vec<String> = listed.into_iter().filter_map(id).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// All objects with contents: their size, and when they were written, Unix time in ms.
    pub(crate) async fn objects(&self) -> Result<BTreeMap<ObjectName, (u64, i64)>, Error> {
        let directory = Path::from(DATA);
        let listed: Result<Vec<ObjectMeta>, _> = self.0.list(Some(&directory)).try_collect().await;
        let listed = listed.map_err(|error| Error::of_object(&directory, &error))?;
        let entry = |meta: ObjectMeta| {
            let name = meta.location.filename()?.to_owned();
            Some((name, (meta.size, meta.last_modified.timestamp_millis())))
        };
        Ok(listed.into_iter().filter_map(entry).collect())
    }
}
