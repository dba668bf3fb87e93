//! Offline repair of a store: accepts the loss of what is missing, and keeps what is sound.
//!
//! Damaged files are copied to a directory of the caller before anything changes. The store is opened, recovered and
//! closed first, which repairs what a crash explains. Then each damaged log gets a new newest segment and an entry in
//! the checkpoint that allows gaps before it, and its damaged segments are replaced by their valid batches. A repair
//! that is interrupted can be repeated.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstem_log::{Batch, BatchBuilder, BatchHeader, LogAdmin, Options, batches, rebuild};

use crate::checkpoint::{self, Checkpoint, Known, Loaded};
use crate::fs::{Fs, Mode, create_dir_durably};
use crate::index::{self, Index};
use crate::name;
use crate::scan::{Gaps, Place};
use crate::settings::{Committer, Settings};
use crate::store::SegmentStore;
use crate::verify::{Finding, FindingKind, Report, SegmentContents, Severity, bases, verify};

/// Suffix of a repaired segment while it is written.
const REPAIRED: &str = ".repaired";

/// Repairs the store in `dir`, which no process may have open. Damaged files are copied to `damaged`, below the
/// directory of their log. Calls `log` with one line for each change.
///
/// # Errors
/// IO errors; a log that cannot be opened. The store is as before, or partly repaired.
pub fn repair(fs: &Arc<dyn Fs>, dir: &Path, damaged: &Path, log: &mut dyn FnMut(String)) -> io::Result<()> {
    let before = verify(&**fs, dir)?;
    // Recovery sets a damaged checkpoint and damaged journals aside: they are saved first.
    for finding in before.findings.iter().filter(|finding| finding.needs_repair()) {
        let into = damaged.join(name::log_dir_of(&finding.log));
        if save(&**fs, &finding.file, &into)? {
            log(format!("copied {} to {}", finding.file.display(), into.display()));
        }
    }
    recover(fs, dir)?;
    log(format!("recovered the logs in {}", dir.display()));
    let after = verify(&**fs, dir)?;
    let affected: BTreeSet<&str> = [&before, &after].into_iter().flat_map(damaged_logs).collect();
    let Loaded::Valid { mut logs, .. } = checkpoint::load(&**fs, dir)? else {
        return Err(io::Error::other("the checkpoint cannot be read"));
    };
    let affected: Vec<&str> = affected.into_iter().filter(|log| logs.contains_key(*log)).collect();
    checkpoint::mark_open(&**fs, dir)?;
    for name in &affected {
        let log_dir = dir.join(name::log_dir(name));
        let known = allow_gaps(&**fs, &log_dir, logs[*name])?;
        log(format!("log {name}: readers skip missing records before offset {}", known.committed.offset));
        logs.insert((*name).to_owned(), known);
    }
    let bytes = encode(&logs);
    checkpoint::store(&**fs, dir, &bytes)?;
    for name in &affected {
        let target = damaged.join(name::log_dir(name));
        repair_log(&**fs, &dir.join(name::log_dir(name)), &target, log)?;
    }
    let of_index = |finding: &&Finding| finding.kind == FindingKind::Index;
    for finding in before.findings.iter().chain(&after.findings).filter(of_index) {
        rebuild_index(&**fs, finding, &logs, log)?;
    }
    checkpoint::mark_clean(&**fs, dir, &bytes)
}

/// Replaces a damaged index by one of its segment, which is on disk, as all others are.
fn rebuild_index(
    fs: &dyn Fs,
    finding: &Finding,
    logs: &Checkpoint,
    log: &mut dyn FnMut(String),
) -> io::Result<()> {
    let (Some(dir), Some(file)) = (finding.file.parent(), finding.file.file_name()) else { return Ok(()) };
    let Some(base) = name::base_of_index(&file.to_string_lossy()) else { return Ok(()) };
    let bases = bases(fs, dir)?;
    Index::remove(fs, &finding.file)?;
    fs.sync_dir(dir)?;
    // The newest segment gets its index from the first reader, and one without a segment is not needed.
    let next = bases.iter().position(|known| *known == base).and_then(|at| bases.get(at + 1));
    if let Some(next) = next {
        let sparse = logs.get(&finding.log).map_or(u64::MAX, |known| known.sparse);
        let gaps = if base < sparse { Gaps::Allowed } else { Gaps::None };
        let path = dir.join(name::segment(base));
        let found = SegmentContents::read(fs, &path, base, *next, gaps)?;
        let (_, index) = valid_batches(fs, &path, base, *next, &found)?;
        index::write_sealed(fs, &finding.file, &index.encode())?;
        log(format!("{}: rebuilt", finding.file.display()));
    }
    Ok(())
}

fn encode(logs: &Checkpoint) -> Vec<u8> {
    checkpoint::encode(logs.iter().map(|(name, known)| (name.as_str(), *known)))
}

fn damaged_logs(report: &Report) -> impl Iterator<Item = &str> {
    let damaged = report.findings.iter().filter(|finding| finding.severity == Severity::Damage);
    damaged.map(|finding| finding.log.as_str()).filter(|log| !log.is_empty())
}

/// Opens every log, which recovers it, and closes the store.
fn recover(fs: &Arc<dyn Fs>, dir: &Path) -> io::Result<()> {
    let settings = Settings::default();
    let mut store = SegmentStore::open(fs.clone(), dir.to_owned(), settings, Committer::Inline)
        .map_err(|error| io::Error::other(error.to_string()))?;
    for name in store.names() {
        let opened = store.open(&name, &Options::default());
        opened.map_err(|error| io::Error::other(format!("log {name}: {error}")))?;
    }
    drop(store);
    Ok(())
}

/// Starts a new segment behind the end of a log, and allows gaps in all segments before it.
fn allow_gaps(fs: &dyn Fs, dir: &Path, known: Known) -> io::Result<Known> {
    let bases = bases(fs, dir)?;
    let end = known.committed.offset;
    if !bases.contains(&end) {
        fs.open(&dir.join(name::segment(end)), Mode::New)?;
        fs.sync_dir(dir)?;
    }
    let start = known.start.max(bases.first().copied().unwrap_or(end)).min(end);
    Ok(Known { start, cleaned: known.cleaned, sparse: end, committed: Place::beginning(end) })
}

/// Replaces the damaged segments of a log by their valid batches.
fn repair_log(fs: &dyn Fs, dir: &Path, damaged: &Path, log: &mut dyn FnMut(String)) -> io::Result<()> {
    let bases = bases(fs, dir)?;
    for (at, base) in bases.iter().enumerate().take(bases.len().saturating_sub(1)) {
        let path = dir.join(name::segment(*base));
        let next = bases[at + 1];
        let found = SegmentContents::read(fs, &path, *base, next, Gaps::Allowed)?;
        if found.damaged.is_empty() && found.len == found.end.position && found.end.offset == next {
            continue;
        }
        save(fs, &path, damaged)?;
        let (valid, index) = valid_batches(fs, &path, *base, next, &found)?;
        let new = dir.join(format!("{}{REPAIRED}", name::segment(*base)));
        write(fs, &new, &valid)?;
        fs.rename(&new, &path)?;
        fs.sync_dir(dir)?;
        index::write_sealed(fs, &dir.join(name::index(*base)), &index.encode())?;
        log(format!("{}: kept {} valid bytes", path.display(), valid.len()));
    }
    Ok(())
}

/// The valid batches of a segment, which an empty one extends to the next segment, and a sealed index of them.
fn valid_batches(
    fs: &dyn Fs,
    path: &Path,
    base: u64,
    next: u64,
    found: &SegmentContents,
) -> io::Result<(Vec<u8>, Index)> {
    let file = fs.open(path, Mode::Existing)?;
    let mut bytes = Vec::new();
    for part in &found.valid {
        file.read_into(&mut bytes, (part.end - part.start) as usize, part.start)?;
    }
    let newest_ms = batches(&bytes).map(|batch| batch.header.max_timestamp_ms).max().unwrap_or(0);
    if found.end.offset < next {
        end_at(next, newest_ms, &mut bytes);
    }
    let mut index = Index::new(base);
    let mut position = 0;
    for Batch { header, .. } in batches(&bytes) {
        index.note(Place { base, position: position as u64, offset: header.base_offset }, &header);
        position += header.total_bytes;
    }
    index.extend_to(Place { base, position: position as u64, offset: next });
    index.seal();
    Ok((bytes, index))
}

/// Appends a batch without records that ends at an offset, as compaction leaves one: a segment whose last batch ends
/// where the next one begins has lost nothing since.
fn end_at(next: u64, timestamp_ms: i64, bytes: &mut Vec<u8>) {
    let mut builder = BatchBuilder::default();
    builder.push(timestamp_ms, None, None);
    let header = BatchHeader { base_offset: next - 1, ..builder.finish_valid().header() };
    rebuild(&header, std::iter::empty(), bytes);
}

/// Copies a file into a directory durably, unless a copy exists. Returns whether there is such a file.
fn save(fs: &dyn Fs, path: &Path, into: &Path) -> io::Result<bool> {
    let file = match fs.open(path, Mode::Existing) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        // A directory: the files in it are findings of their own.
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => return Ok(false),
        outcome => outcome?,
    };
    create_dir_durably(fs, into)?;
    let mut bytes = Vec::new();
    file.read_into(&mut bytes, file.len()? as usize, 0)?;
    let mut target: PathBuf = into.join(path.file_name().unwrap_or_default());
    for copy in 1.. {
        match fs.open(&target, Mode::New) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if is_same(fs, &target, &bytes)? {
                    return Ok(true);
                }
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                target = into.join(format!("{name}.{copy}"));
            }
            outcome => {
                let copy = outcome?;
                copy.write_at(&bytes, 0)?;
                copy.sync_data()?;
                break;
            }
        }
    }
    fs.sync_dir(into)?;
    Ok(true)
}

fn is_same(fs: &dyn Fs, path: &Path, bytes: &[u8]) -> io::Result<bool> {
    let file = fs.open(path, Mode::Existing)?;
    let mut found = Vec::new();
    file.read_into(&mut found, bytes.len() + 1, 0)?;
    Ok(found == bytes)
}

/// Writes a file durably, replacing what an interrupted repair has left.
fn write(fs: &dyn Fs, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = match fs.open(path, Mode::New) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => fs.open(path, Mode::Existing)?,
        outcome => outcome?,
    };
    file.set_len(0)?;
    file.write_at(bytes, 0)?;
    file.sync_data()
}
