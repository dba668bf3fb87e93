//! Reading manifests and the contents of files back.
//!
//! Chunks that lie one after the other in an object come with one request. Several requests are under way at a time,
//! and their contents are handed on in the order of the files, each checked against its hash.

use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};

use crate::content::{CHUNK_BYTES, Hash, hash};
use crate::error::Error;
use crate::manifest::{Chunk, Manifest};
use crate::target::{Target, data_path, manifest_path};

/// Largest number of requests at the same time.
const REQUESTS_MAX: usize = 6;

/// Chunks that are read with one request.
struct Run<'a> {
    object: &'a Hash,
    from: u32,
    to: u32,
    /// Number of the file of each, and the chunk.
    chunks: Vec<(usize, &'a Chunk)>,
}

/// Reads the manifest of a backup.
pub(crate) async fn manifest(target: &Target, id: &str) -> Result<Manifest, Error> {
    let path = manifest_path(id);
    let bytes = target.get(&path).await?.ok_or_else(|| Error::of_object(&path, &"it does not exist"))?;
    Manifest::decode(&bytes).map_err(|error| Error::of_object(&path, &error))
}

/// Reads the contents of all files, and gives each piece, with the number of its file, to `take`.
///
/// # Errors
/// An object is missing, or a chunk is not what it was; the store fails; the first error of `take`.
pub(crate) async fn all(
    target: &Target,
    manifest: &Manifest,
    mut take: impl FnMut(usize, &[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let requests = stream::iter(runs(manifest)).map(|run| async move {
        let path = data_path(run.object);
        let content = target.get_range(&path, run.from.into()..run.to.into()).await?;
        Ok::<(Run<'_>, Bytes), Error>((run, content))
    });
    let mut contents = requests.buffered(REQUESTS_MAX);
    while let Some(read) = contents.next().await {
        let (run, content) = read?;
        for (file, chunk) in run.chunks {
            let from = (chunk.offset - run.from) as usize;
            let piece = content.get(from..from + chunk.bytes as usize);
            let Some(piece) = piece.filter(|piece| hash(piece) == chunk.sha256) else {
                let path = &manifest.files[file].path;
                let error = format!("it is damaged: {path:?} cannot be restored from it");
                return Err(Error::of_object(&data_path(run.object), &error));
            };
            take(file, piece)?;
        }
    }
    Ok(())
}

/// All chunks of all files, in order.
fn runs(manifest: &Manifest) -> Vec<Run<'_>> {
    let mut runs: Vec<Run<'_>> = Vec::new();
    let chunks = manifest
        .files
        .iter()
        .enumerate()
        .flat_map(|(file, stored)| stored.chunks.iter().map(move |chunk| (file, chunk)));
    for (file, chunk) in chunks {
        let to = chunk.offset + chunk.bytes;
        match runs.last_mut() {
            Some(last)
                if *last.object == chunk.object
                    && last.to == chunk.offset
                    && (to - last.from) as usize <= CHUNK_BYTES =>
            {
                last.to = to;
                last.chunks.push((file, chunk));
            }
            _ => {
                runs.push(Run { object: &chunk.object, from: chunk.offset, to, chunks: vec![(file, chunk)] });
            }
        }
    }
    runs
}
