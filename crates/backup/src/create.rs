//! Storing a backup.
//!
//! Files are cut into chunks of a fixed size. A chunk whose hash the newest backup has is not stored again, so a file
//! that has only grown costs its new end. A file that has the same path, length, inode and time of modification as in
//! the newest backup is not even read, unless it was modified just before that. Objects of the newest backup that are
//! gone are stored again. All other objects get names of their own, even if there is one with the same content: it may
//! be about to be removed.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path as FilePath;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use serde::{Deserialize, Serialize};

use crate::content::{CHUNK_BYTES, Hash, ObjectName, hash, object_name};
use crate::error::Error;
use crate::manifest::{Chunk, Manifest, StoredFile, VERSION, check_path};
use crate::pack::{PACKED_BYTES, Pack};
use crate::target::{Target, data_path, manifest_path};

/// Largest number of uploads at the same time.
const UPLOADS_MAX: usize = 4;
/// How much older than the newest backup a file must be for its time of modification to be trusted, ns: clocks of file
/// systems are coarse.
const SETTLED_NS: i128 = 2_000_000_000;

/// A file to store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceFile {
    /// Path below the source directory, with `/` between its parts.
    pub path: String,
    /// How much of it belongs to the backup. It may be longer.
    pub bytes: u64,
}

/// A backup that was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// Identifier.
    pub id: String,
    /// Number of files.
    pub files: u64,
    /// Size of all files, bytes.
    pub bytes: u64,
    /// What was not in the repository before, bytes.
    pub uploaded_bytes: u64,
    /// Files that were not read, because the newest backup has them.
    pub unread_files: u64,
}

/// Stores a backup. `previous` is the newest one; the time of this one is `earliest_ms` at least, Unix time in ms.
pub(crate) async fn create(
    target: &Target,
    previous: Option<Manifest>,
    earliest_ms: u64,
    source: &FilePath,
    files: &[SourceFile],
    about: &BTreeMap<String, String>,
) -> Result<Created, Error> {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let random = random()?;
    let mut writer = Writer::new(target, random.clone(), previous).await?;
    for file in files {
        writer.store(source, file).await?;
    }
    writer.finish().await?;
    let Writer { stored, uploaded_bytes, unread_files, .. } = writer;
    let unix_ms = (unix.as_millis() as u64).max(earliest_ms);
    let manifest = Manifest { version: VERSION, unix_ms, about: about.clone(), files: stored };
    let id = format!("{:015}-{random}", manifest.unix_ms);
    let path = manifest_path(&id);
    let content = manifest.encode().map_err(|error| Error::of_object(&path, &error))?;
    // What cannot be read back is no backup.
    Manifest::decode(&content).map_err(Error::new)?;
    target.create(&path, content.into()).await?;
    let files = manifest.files.len() as u64;
    Ok(Created { id, files, bytes: manifest.bytes(), uploaded_bytes, unread_files })
}

/// What distinguishes this backup from others of the same millisecond, and its objects from theirs.
fn random() -> Result<String, Error> {
    let mut random = [0; 4];
    getrandom::fill(&mut random).map_err(|error| Error::new(format!("no random numbers: {error}")))?;
    Ok(format!("{:08x}", u32::from_be_bytes(random)))
}

type Upload<'a> = std::pin::Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;

/// Where a chunk is.
#[derive(Clone, Debug)]
enum Location {
    Stored {
        object: ObjectName,
        offset: u32,
    },
    /// In the pack that is being filled.
    Packed {
        offset: u32,
    },
}

/// A backup in the making.
struct Writer<'a> {
    target: &'a Target,
    /// What the names of its objects end with.
    random: String,
    /// Files of the newest backup, by path.
    previous: HashMap<String, StoredFile>,
    /// Chunks that are stored, by hash.
    known: HashMap<Hash, Location>,
    stored: Vec<StoredFile>,
    pack: Pack,
    uploads: FuturesUnordered<Upload<'a>>,
    uploaded_bytes: u64,
    unread_files: u64,
}

impl<'a> Writer<'a> {
    async fn new(target: &'a Target, random: String, previous: Option<Manifest>) -> Result<Self, Error> {
        // Only what really is there can be referred to.
        let objects = if previous.is_some() { target.objects().await? } else { BTreeMap::new() };
        let has = |chunk: &Chunk| {
            let end = u64::from(chunk.offset) + u64::from(chunk.bytes);
            objects.get(&chunk.object).is_some_and(|(bytes, _)| *bytes >= end)
        };
        let settled_ns = previous.as_ref().map_or(0, |previous| i128::from(previous.unix_ms) * 1_000_000);
        let mut files = previous.map(|manifest| manifest.files).unwrap_or_default();
        let mut known = HashMap::new();
        for chunk in files.iter().flat_map(|file| &file.chunks).filter(|chunk| has(chunk)) {
            let location = Location::Stored { object: chunk.object.clone(), offset: chunk.offset };
            known.insert(chunk.sha256.clone(), location);
        }
        files.retain(|file| file.modified_ns < settled_ns - SETTLED_NS && file.chunks.iter().all(has));
        Ok(Self {
            target,
            random,
            previous: files.into_iter().map(|file| (file.path.clone(), file)).collect(),
            known,
            stored: Vec::new(),
            pack: Pack::default(),
            uploads: FuturesUnordered::new(),
            uploaded_bytes: 0,
            unread_files: 0,
        })
    }

    async fn store(&mut self, source: &FilePath, file: &SourceFile) -> Result<(), Error> {
        check_path(&file.path).map_err(Error::new)?;
        let path = source.join(&file.path);
        let failed = |error: std::io::Error| Error::of_file(&path, &error);
        let mut input = File::open(&path).map_err(failed)?;
        let metadata = input.metadata().map_err(failed)?;
        let modified_ns = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
        let mut new = StoredFile {
            path: file.path.clone(),
            bytes: file.bytes,
            inode: metadata.ino(),
            modified_ns,
            chunks: Vec::new(),
        };
        if let Some(before) = self.previous.get(&file.path)
            && (before.bytes, before.inode, before.modified_ns) == (new.bytes, new.inode, new.modified_ns)
            && metadata.len() >= file.bytes
        {
            self.unread_files += 1;
            self.stored.push(before.clone());
            return Ok(());
        }
        let number = self.stored.len();
        let mut left = file.bytes;
        while left > 0 {
            let len = CHUNK_BYTES.min(usize::try_from(left).unwrap_or(CHUNK_BYTES));
            let mut content = vec![0; len];
            input.read_exact(&mut content).map_err(|error| match error.kind() {
                std::io::ErrorKind::UnexpectedEof => {
                    Error::of_file(&path, &format!("it is shorter than {} bytes", file.bytes))
                }
                _ => failed(error),
            })?;
            let chunk = self.add(content, (number, new.chunks.len())).await?;
            new.chunks.push(chunk);
            left -= len as u64;
        }
        self.stored.push(new);
        Ok(())
    }

    /// Adds a chunk of a file. That in a pack gets its object when the pack is complete.
    async fn add(&mut self, content: Vec<u8>, at: (usize, usize)) -> Result<Chunk, Error> {
        let (sha256, bytes) = (hash(&content), content.len());
        let new = |object: ObjectName, offset: u32| Chunk {
            sha256: sha256.clone(),
            bytes: bytes as u32,
            object,
            offset,
        };
        match self.known.get(&sha256) {
            Some(Location::Stored { object, offset }) => return Ok(new(object.clone(), *offset)),
            Some(Location::Packed { offset }) => {
                self.pack.share(at);
                return Ok(new(ObjectName::new(), *offset));
            }
            None => self.uploaded_bytes += bytes as u64,
        }
        if bytes >= PACKED_BYTES {
            let object = object_name(&sha256, &self.random);
            self.upload(object.clone(), content.into()).await?;
            self.known.insert(sha256.clone(), Location::Stored { object: object.clone(), offset: 0 });
            return Ok(new(object, 0));
        }
        if !self.pack.has_room(bytes) {
            self.flush().await?;
        }
        let offset = self.pack.add(&content, at);
        self.known.insert(sha256.clone(), Location::Packed { offset });
        Ok(new(ObjectName::new(), offset))
    }

    /// Stores the pack, and tells its chunks where they are.
    async fn flush(&mut self) -> Result<(), Error> {
        let Some(Pack { bytes, chunks }) = self.pack.take() else { return Ok(()) };
        let object = object_name(&hash(&bytes), &self.random);
        self.upload(object.clone(), bytes.into()).await?;
        for (file, chunk) in chunks {
            // The file that is being read is not among them yet: see `store`.
            if let Some(chunk) = self.stored.get_mut(file).and_then(|file| file.chunks.get_mut(chunk)) {
                chunk.object.clone_from(&object);
            }
        }
        for location in self.known.values_mut() {
            if let Location::Packed { offset } = *location {
                *location = Location::Stored { object: object.clone(), offset };
            }
        }
        Ok(())
    }

    /// Begins an upload, once there are few enough.
    async fn upload(&mut self, object: ObjectName, content: Bytes) -> Result<(), Error> {
        while self.uploads.len() >= UPLOADS_MAX {
            self.uploads.next().await.unwrap_or(Ok(()))?;
        }
        let target = self.target;
        self.uploads.push(Box::pin(async move { target.put(&data_path(&object), content).await }));
        Ok(())
    }

    /// Waits until everything is stored.
    async fn finish(&mut self) -> Result<(), Error> {
        self.flush().await?;
        while let Some(uploaded) = self.uploads.next().await {
            uploaded?;
        }
        Ok(())
    }
}
