//! Removing backups, and the objects that no other backup needs.
//!
//! Two things may happen beside it. A backup that is being stored refers to objects of the backup that was the newest
//! when it began, and has stored others that no manifest names yet. So, for a time of grace, a backup stays after it
//! was the newest, and an object after it was written. Manifests go before the objects that they refer to: what is
//! interrupted leaves objects without a backup, and never a backup without its objects.

use std::collections::HashSet;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::Error;
use crate::fetch;
use crate::target::{Target, data_path, manifest_path, time_of};

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Number of backups.
    pub backups: u64,
    /// Number of objects with contents.
    pub objects: u64,
    /// Their size, bytes.
    pub bytes: u64,
}

/// Removes backups and objects. See [`Repository::prune`](crate::Repository::prune).
pub(crate) async fn prune(target: &Target, keep: usize, grace_ms: u64) -> Result<Pruned, Error> {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let is_old =
        |written_ms: u64| grace_ms == 0 || written_ms.saturating_add(grace_ms) <= unix.as_millis() as u64;
    // Before the manifests: what a backup stores from now on is not in the list.
    let objects = target.objects().await?;
    let ids = target.backups().await?;
    let first_kept = ids.len().saturating_sub(keep);
    // Each was the newest until the next one came.
    let (removed, kept): (Vec<usize>, Vec<usize>) =
        (0..ids.len()).partition(|at| *at < first_kept && time_of(&ids[at + 1]).is_some_and(is_old));
    let mut needed = HashSet::new();
    for at in kept {
        needed.extend(fetch::manifest(target, &ids[at]).await?.objects().cloned());
    }
    let mut pruned = Pruned::default();
    for at in removed {
        target.delete(&manifest_path(&ids[at])).await?;
        pruned.backups += 1;
    }
    for (object, (bytes, written_ms)) in objects {
        if needed.contains(&object) || !is_old(written_ms.max(0).cast_unsigned()) || object.len() < 2 {
            continue;
        }
        target.delete(&data_path(&object)).await?;
        pruned.objects += 1;
        pruned.bytes += bytes;
    }
    Ok(pruned)
}
