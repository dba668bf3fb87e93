//! The manifest of a backup: its files, and where their contents are.
//!
//! A manifest comes from a repository that others may have written to, so nothing in it is used before
//! [`Manifest::decode`] has checked it: paths must stay below the directory that is restored, and sizes must add up.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::content::{CHUNK_BYTES, Hash, ObjectName};
use crate::restore_marker::RESTORE_MARKER;

/// Version of manifests, and of the repository.
pub(crate) const VERSION: u32 = 1;
/// Longest path of a file, bytes.
const PATH_BYTES_MAX: usize = 4096;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    pub(crate) version: u32,
    /// When the backup began, Unix time in ms.
    pub(crate) unix_ms: u64,
    pub(crate) about: BTreeMap<String, String>,
    pub(crate) files: Vec<StoredFile>,
}

/// A file of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredFile {
    pub(crate) path: String,
    pub(crate) bytes: u64,
    /// Number of the file in its file system, and when it was modified: the next backup need not read it again.
    pub(crate) inode: u64,
    pub(crate) modified_ns: i128,
    /// Its content, in order.
    pub(crate) chunks: Vec<Chunk>,
}

/// A piece of the content of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Chunk {
    pub(crate) sha256: Hash,
    pub(crate) bytes: u32,
    /// The object that contains it, and where.
    pub(crate) object: ObjectName,
    pub(crate) offset: u32,
}

impl Manifest {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, String> {
        serde_json::to_vec(self).map_err(|error| error.to_string())
    }

    /// Decodes and checks a manifest.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }
        let Head { version } = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if version != VERSION {
            return Err(format!("its version is {version}, this program reads {VERSION}"));
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let mut paths = BTreeSet::new();
        for file in &manifest.files {
            check_path(&file.path)?;
            if !paths.insert(file.path.as_str()) {
                return Err(format!("it has {:?} twice", file.path));
            }
            file.check_chunks().map_err(|error| format!("{:?}: {error}", file.path))?;
        }
        // A file must not be the directory of another one.
        let has_file_as_directory = |path: &str| {
            let parents = path.match_indices('/').map(|(at, _)| &path[..at]);
            parents.into_iter().any(|parent| paths.contains(parent))
        };
        match manifest.files.iter().find(|file| has_file_as_directory(&file.path)) {
            Some(file) => Err(format!("{:?} is below another file", file.path)),
            None => Ok(manifest),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// All objects that it refers to.
    pub(crate) fn objects(&self) -> impl Iterator<Item = &ObjectName> {
        self.files.iter().flat_map(|file| &file.chunks).map(|chunk| &chunk.object)
    }
}

impl StoredFile {
    fn check_chunks(&self) -> Result<(), String> {
        let mut bytes = 0;
        for chunk in &self.chunks {
            let object = chunk.object.split_once('-');
            if !is_hex(&chunk.sha256, 64)
                || !object.is_some_and(|(hash, of)| is_hex(hash, 64) && is_hex(of, 8))
            {
                return Err("a checksum or the name of an object is not hexadecimal digits".into());
            }
            let end = u64::from(chunk.offset) + u64::from(chunk.bytes);
            if chunk.bytes == 0 || chunk.bytes as usize > CHUNK_BYTES || end > u64::from(u32::MAX) {
                return Err(format!("a piece of {} bytes", chunk.bytes));
            }
            bytes += u64::from(chunk.bytes);
        }
        if bytes == self.bytes {
            Ok(())
        } else {
            Err(format!("its pieces have {bytes} of {} bytes", self.bytes))
        }
    }
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f'))
}

/// Whether a path stays below its directory and is written in one way only.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn check_path(path: &str) -> Result<(), String> {
    let is_name = |name: &str| !matches!(name, "" | "." | "..") && !name.contains(['\0', '\\']);
    if path == RESTORE_MARKER {
        return Err(format!("a file may not be called {path:?}"));
    }
    if path.len() <= PATH_BYTES_MAX && path.split('/').all(is_name) {
        Ok(())
    } else {
        Err(format!("{path:?} is no path below a directory"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str) -> StoredFile {
        StoredFile { path: path.into(), bytes: 0, inode: 0, modified_ns: 0, chunks: Vec::new() }
    }

    fn with_files(files: Vec<StoredFile>) -> Result<Manifest, String> {
        let manifest = Manifest { version: VERSION, unix_ms: 1, about: BTreeMap::new(), files };
        Manifest::decode(&manifest.encode().unwrap())
    }

    #[test]
    fn paths_stay_below_the_directory() {
        for path in
            [RESTORE_MARKER, "", "/a", "a/", "a//b", "..", "a/../b", "./a", "a\\b", "a\0", &"a".repeat(5000)]
        {
            assert!(with_files(vec![file(path)]).is_err(), "{path:?}");
        }
        assert!(with_files(vec![file("a"), file("b/c.segment"), file("b/...")]).is_ok());
        assert!(with_files(vec![file("a"), file("a")]).unwrap_err().contains("twice"));
        assert!(with_files(vec![file("a/b"), file("a")]).unwrap_err().contains("below another file"));
    }

    #[test]
    fn pieces_add_up() {
        let hash = "0".repeat(64);
        let chunk = Chunk { sha256: hash.clone(), bytes: 5, object: format!("{hash}-0123abcd"), offset: 0 };
        let with_chunks = |bytes, chunks| with_files(vec![StoredFile { bytes, chunks, ..file("a") }]);
        assert!(with_chunks(5, vec![chunk.clone()]).is_ok());
        assert!(with_chunks(6, vec![chunk.clone()]).is_err());
        assert!(with_chunks(0, vec![Chunk { bytes: 0, ..chunk.clone() }]).is_err());
        let huge = Chunk { bytes: u32::MAX, offset: 1, ..chunk.clone() };
        assert!(with_chunks(u64::from(u32::MAX), vec![huge]).is_err());
        assert!(with_chunks(5, vec![Chunk { sha256: "../x".into(), ..chunk.clone() }]).is_err());
        assert!(with_chunks(5, vec![Chunk { object: hash, ..chunk }]).is_err());
    }

    #[test]
    fn another_version_is_refused() {
        let error = Manifest::decode(br#"{"version": 2, "chapters": []}"#).unwrap_err();
        assert!(error.contains("version is 2"), "{error}");
        assert!(Manifest::decode(b"{").is_err());
    }
}
