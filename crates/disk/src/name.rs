//! Names of files and directories.

use mainstem_log::Error;

/// Maximum length of a log name, bytes. With its suffix it just fits into a file name (255 bytes).
const LOG_NAME_MAX: usize = 249;

/// Suffix of a log directory.
const LOG: &str = ".log";
/// Suffix of a log directory that is being removed.
const GONE: &str = ".gone";
/// Suffix of a segment.
const SEGMENT: &str = ".segment";
/// Suffix of a file that may become the next segment.
const CREATING: &str = ".creating";
/// Suffix of a segment index.
const INDEX: &str = ".index";
/// Suffix of an incomplete compaction output.
const CLEANED: &str = ".cleaned";
/// Suffix of a complete compaction output.
const SWAP: &str = ".swap";
/// Suffix of a damaged file that was set aside.
const DAMAGED: &str = ".damaged";

/// Notes file in a log directory.
pub(crate) const NOTES: &str = "notes";
/// Checkpoint of the store.
pub(crate) const CHECKPOINT: &str = "checkpoint";
/// Checkpoint being written.
pub(crate) const CHECKPOINT_NEW: &str = "checkpoint.new";
/// Exists while the store is closed, if it was closed cleanly.
pub(crate) const CLEAN: &str = "clean";
/// The two journal files.
pub(crate) const JOURNAL: [&str; 2] = ["journal-0", "journal-1"];

/// Validates a log name.
pub(crate) fn check(name: &str) -> Result<(), Error> {
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let is_name = (1..=LOG_NAME_MAX).contains(&name.len()) && !matches!(name, "." | "..");
    if !is_name || !name.bytes().all(is_safe) {
        return Err(Error::System(format!("{name:?} cannot name a log")));
    }
    Ok(())
}

/// Directory of a log.
pub(crate) fn log_dir(name: &str) -> String {
    format!("{name}{LOG}")
}

/// Directory of a log, or nothing for the store itself, whose name is empty.
pub(crate) fn log_dir_of(name: &str) -> String {
    if name.is_empty() { String::new() } else { log_dir(name) }
}

/// Directory of a log that is being removed.
pub(crate) fn gone_dir(name: &str) -> String {
    format!("{name}{GONE}")
}

/// Log name of a directory.
pub(crate) fn log_of(dir: &str) -> Option<&str> {
    dir.strip_suffix(LOG).filter(|name| check(name).is_ok())
}

/// Whether this is the directory of a log that is being removed.
pub(crate) fn is_gone(dir: &str) -> bool {
    dir.strip_suffix(GONE).is_some_and(|name| check(name).is_ok())
}

/// Segment with base offset `base`.
pub(crate) fn segment(base: u64) -> String {
    format!("{base:020}{SEGMENT}")
}

/// File number `number` that may become a segment, before it has the name of one.
pub(crate) fn creating(number: u64) -> String {
    format!("{number:020}{CREATING}")
}

/// Whether a file was to become a segment and has no name of one.
pub(crate) fn is_creating(file: &str) -> bool {
    file.ends_with(CREATING)
}

/// Index of that segment.
pub(crate) fn index(base: u64) -> String {
    format!("{base:020}{INDEX}")
}

/// Incomplete compaction output for a group that starts with that segment.
pub(crate) fn cleaned(base: u64) -> String {
    format!("{base:020}{CLEANED}")
}

/// Complete compaction output that replaces all segments from `base` to before `end`.
pub(crate) fn swap(base: u64, end: u64) -> String {
    format!("{base:020}-{end:020}{SWAP}")
}

/// Range of segments that a complete compaction output replaces.
pub(crate) fn bases_of_swap(file: &str) -> Option<(u64, u64)> {
    let (base, end) = file.strip_suffix(SWAP)?.split_once('-')?;
    Some((base.parse().ok()?, end.parse().ok()?))
}

/// Base offset of a segment file.
pub(crate) fn base_of_segment(file: &str) -> Option<u64> {
    base_before(file, SEGMENT)
}

/// Base offset of an index file.
pub(crate) fn base_of_index(file: &str) -> Option<u64> {
    base_before(file, INDEX)
}

fn base_before(file: &str, ending: &str) -> Option<u64> {
    file.strip_suffix(ending).filter(|digits| digits.len() == 20)?.parse().ok()
}

/// New name of a damaged file that is set aside.
pub(crate) fn damaged(file: &str) -> String {
    format!("{file}{DAMAGED}")
}

/// Whether a file is an incomplete compaction output.
pub(crate) fn is_cleaned(file: &str) -> bool {
    file.ends_with(CLEANED)
}
