//! Reading manifests and the contents of files back.
//!
//! Each object is read with one request, however its contents are scattered over the files, and several requests are
//! under way at a time. Each chunk is checked against its hash before it is handed on.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};

use crate::content::{ObjectName, hash};
use crate::error::Error;
use crate::manifest::{Chunk, Manifest};
use crate::target::{Target, data_path, manifest_path};

/// Largest number of requests at the same time.
const REQUESTS_MAX: usize = 4;

/// What is needed of an object.
struct Piece<'a> {
    from: u32,
    to: u32,
    /// The chunks in it: number of the file, position in the file, chunk.
    chunks: Vec<(usize, u64, &'a Chunk)>,
}

/// Reads the manifest of a backup.
pub(crate) async fn manifest(target: &Target, id: &str) -> Result<Manifest, Error> {
    let path = manifest_path(id);
    let bytes = target.get(&path).await?.ok_or_else(|| Error::of_object(&path, &"it does not exist"))?;
    decode(id, &bytes)
}

/// Decodes the manifest of a backup.
pub(crate) fn decode(id: &str, bytes: &[u8]) -> Result<Manifest, Error> {
    let failed = |error: String| {
        Error::of_object(&manifest_path(id), &format!("{error}; without this object, the backup is gone"))
    };
    Manifest::decode(bytes).map_err(failed)
}

/// Reads the contents of all files. Gives each chunk, with the number of its file and its position there, to `take`, in
/// any order.
///
/// # Errors
/// An object is missing, or a chunk is not what it was; the store fails; the first error of `take`.
pub(crate) async fn all(
    target: &Target,
    manifest: &Manifest,
    mut take: impl FnMut(usize, u64, &[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let requests = stream::iter(pieces(manifest)).map(|(object, piece)| async move {
        let content = target.get_range(&data_path(object), piece.from.into()..piece.to.into()).await?;
        Ok::<(&ObjectName, Piece<'_>, Bytes), Error>((object, piece, content))
    });
    let mut contents = requests.buffer_unordered(REQUESTS_MAX);
    while let Some(read) = contents.next().await {
        let (object, Piece { from, chunks, .. }, content) = read?;
        for (file, position, chunk) in chunks {
            let at = (chunk.offset - from) as usize;
            let found = content.get(at..at + chunk.bytes as usize);
            let Some(found) = found.filter(|found| hash(found) == chunk.sha256) else {
                let error = format!(
                    "it is damaged, and {:?} cannot be read from it; remove the object, and the next backup stores \
                     again what was in it",
                    manifest.files[file].path
                );
                return Err(Error::of_object(&data_path(object), &error));
            };
            take(file, position, found)?;
        }
    }
    Ok(())
}

/// What is needed of each object.
fn pieces(manifest: &Manifest) -> BTreeMap<&ObjectName, Piece<'_>> {
    let mut pieces: BTreeMap<&ObjectName, Piece<'_>> = BTreeMap::new();
    for (file, stored) in manifest.files.iter().enumerate() {
        let mut position = 0;
        for chunk in &stored.chunks {
            let (from, to) = (chunk.offset, chunk.offset + chunk.bytes);
            let piece = pieces.entry(&chunk.object).or_insert_with(|| Piece { from, to, chunks: Vec::new() });
            (piece.from, piece.to) = (piece.from.min(from), piece.to.max(to));
            piece.chunks.push((file, position, chunk));
            position += u64::from(chunk.bytes);
        }
    }
    pieces
}
