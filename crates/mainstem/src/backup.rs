//! `mainstem backup` and `mainstem restore`: backups of a data directory.
//!
//! A running broker links its files as they are at one moment ([`crate::snapshots`]), and this process copies them into
//! a repository of the crate `mainstem-backup`, with its own credentials. So the broker needs none, and its threads
//! copy nothing. The snapshot is removed when the copy is done, or has failed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mainstem_backup::{BackupInfo, Created, Pruned, Repository, SourceFile, Which};
use serde_json::{Value, json};

use crate::check;
use crate::cli::{BackupArgs, BackupCommand, RestoreArgs, WhichArgs, format_time};
use crate::snapshots::read_list;
use crate::tool::SnapshotClient;
use crate::{print, security, storage};

/// `mainstem backup`.
///
/// # Errors
/// A message for the user.
pub(crate) fn run_backup(args: &BackupArgs) -> Result<(), String> {
    match (&args.command, &args.target) {
        (None, Some(target)) => create(args, target),
        (None, None) => Err("no target".into()),
        (Some(BackupCommand::List { target, json }), _) => list(target, *json),
        (Some(BackupCommand::Check { target, which }), _) => check_backup(target, which),
        (Some(BackupCommand::Prune { target, keep, grace }), _) => prune(target, *keep, *grace),
    }
}

/// `mainstem restore`.
///
/// # Errors
/// A message for the user.
pub(crate) fn run_restore(args: &RestoreArgs) -> Result<(), String> {
    security::create_private_files();
    let restored = open(&args.target)?.restore(&which(&args.which), &args.data).map_err(text)?;
    print(&format!(
        "restored {} to {}: {} files, {} bytes\n",
        restored.id,
        args.data.display(),
        restored.files,
        restored.bytes
    ))
}

fn create(args: &BackupArgs, target: &str) -> Result<(), String> {
    let repository = Repository::create_or_open(target).map_err(text)?;
    let created = if let Some(data) = &args.data {
        let _lock = check::lock_exclusively(data)?;
        store(&repository, data, &files_of(data)?)?
    } else {
        store_snapshot(&repository, args)?
    };
    let Created { id, files, bytes, uploaded_bytes, .. } = created;
    if args.json {
        let object = json!({"id": id, "files": files, "bytes": bytes, "uploaded_bytes": uploaded_bytes});
        return print(&format!("{object}\n"));
    }
    print(&format!("stored {id}: {files} files, {bytes} bytes, of which {uploaded_bytes} were new\n"))
}

/// Stores a snapshot of a running broker.
fn store_snapshot(repository: &Repository, args: &BackupArgs) -> Result<Created, String> {
    let client = SnapshotClient::new(&args.http).map_err(text)?;
    let (id, directory) = client.take().map_err(text)?;
    // Who runs the command on another machine, or as another user, should know why it fails.
    let not_here = |error| format!("{error}; a backup is made on the broker's machine, as its user");
    let stored =
        read_list(&directory).map_err(not_here).and_then(|files| store(repository, &directory, &files));
    let removed = client.remove(&id);
    let created = stored?;
    removed.map_err(text)?;
    Ok(created)
}

fn store(repository: &Repository, source: &Path, files: &[SourceFile]) -> Result<Created, String> {
    let about: BTreeMap<String, String> =
        [("mainstem".to_owned(), env!("CARGO_PKG_VERSION").to_owned())].into_iter().collect();
    repository.create(source, files, &about).map_err(text)
}

/// The files of a data directory that no broker uses.
fn files_of(data: &Path) -> Result<Vec<SourceFile>, String> {
    let mut files = Vec::new();
    for part in [storage::STORES, security::STORE, security::SECRET] {
        add_files(data, Path::new(part), &mut files)?;
    }
    Ok(files)
}

/// Adds the files at `path` below the data directory.
fn add_files(data: &Path, path: &Path, files: &mut Vec<SourceFile>) -> Result<(), String> {
    let full: PathBuf = data.join(path);
    let explain = |error: std::io::Error| format!("{}: {error}", full.display());
    let metadata = match full.symlink_metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        metadata => metadata.map_err(explain)?,
    };
    if metadata.is_file() {
        let path = path.to_str().ok_or_else(|| format!("{}: the name is not UTF-8", full.display()))?;
        files.push(SourceFile { path: path.to_owned(), bytes: metadata.len() });
    } else if metadata.is_dir() {
        for entry in std::fs::read_dir(&full).map_err(explain)? {
            add_files(data, &path.join(entry.map_err(explain)?.file_name()), files)?;
        }
    }
    Ok(())
}

fn list(target: &str, is_json: bool) -> Result<(), String> {
    let line = |BackupInfo { id, unix_ms, files, bytes, damage, .. }: BackupInfo| {
        let time = format_time(unix_ms);
        if is_json {
            let object: Value =
                json!({"id": id, "time": time, "files": files, "bytes": bytes, "damage": damage});
            return format!("{object}\n");
        }
        if let Some(damage) = damage {
            return format!("{id}  {time}  damaged: {damage}\n");
        }
        format!("{id}  {time}  {files} files  {bytes} bytes\n")
    };
    print(&open(target)?.list().map_err(text)?.into_iter().map(line).collect::<String>())
}

fn check_backup(target: &str, args: &WhichArgs) -> Result<(), String> {
    let checked = open(target)?.check(&which(args)).map_err(text)?;
    print(&format!("{}: {} files, {} bytes: sound\n", checked.id, checked.files, checked.bytes))
}

fn prune(target: &str, keep: u32, grace: Duration) -> Result<(), String> {
    let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
    let Pruned { backups, objects, bytes } = open(target)?.prune(keep as usize, grace_ms).map_err(text)?;
    print(&format!("removed {backups} backups, {objects} objects, {bytes} bytes\n"))
}

fn open(target: &str) -> Result<Repository, String> {
    Repository::open(target).map_err(text)
}

fn which(args: &WhichArgs) -> Which {
    match (&args.id, args.at) {
        (Some(id), _) => Which::Id(id.clone()),
        (None, Some(unix_ms)) => Which::At(unix_ms),
        (None, None) => Which::Newest,
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
