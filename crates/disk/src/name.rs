//! What files and directories are called.

use mainstem_log::Error;

/// Longest name of a log, bytes: with its ending it just fits into a file name.
const LOG_NAME_MAX: usize = 249;

/// Ends the name of a log's directory.
const LOG: &str = ".log";
/// Ends that of one which is being removed.
const GONE: &str = ".gone";
/// Ends the name of a segment.
const SEGMENT: &str = ".segment";
/// Ends that of its index.
const INDEX: &str = ".index";
/// Ends that of what compaction is writing in its place.
const CLEANED: &str = ".cleaned";
/// Ends that of the same when it is complete.
const SWAP: &str = ".swap";

/// What is noted beside a log, in its directory.
pub(crate) const NOTES: &str = "notes";
/// The positions of the store's logs, as they were lately.
pub(crate) const CHECKPOINT: &str = "checkpoint";
/// The same while it is written.
pub(crate) const CHECKPOINT_NEW: &str = "checkpoint.new";
/// Is there while nobody has the store open, if it was closed in order.
pub(crate) const CLEAN: &str = "clean";
/// The two files of the journal.
pub(crate) const JOURNAL: [&str; 2] = ["journal-0", "journal-1"];

/// Refuses what cannot name a log.
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

/// Directory of a log that is being removed.
pub(crate) fn gone_dir(name: &str) -> String {
    format!("{name}{GONE}")
}

/// The log whose directory this is.
pub(crate) fn log_of(dir: &str) -> Option<&str> {
    dir.strip_suffix(LOG).filter(|name| check(name).is_ok())
}

/// Whether this is the directory of a log that is being removed.
pub(crate) fn is_gone(dir: &str) -> bool {
    dir.strip_suffix(GONE).is_some_and(|name| check(name).is_ok())
}

/// The segment whose first record has, or would have, offset `base`.
pub(crate) fn segment(base: u64) -> String {
    format!("{base:020}{SEGMENT}")
}

/// The index of that segment.
pub(crate) fn index(base: u64) -> String {
    format!("{base:020}{INDEX}")
}

/// What compaction writes in place of the segments from that one on.
pub(crate) fn cleaned(base: u64) -> String {
    format!("{base:020}{CLEANED}")
}

/// The same when it is complete: it stands for all segments from `base` to before `end`.
pub(crate) fn swap(base: u64, end: u64) -> String {
    format!("{base:020}-{end:020}{SWAP}")
}

/// What segments a file stands for that a compaction has completed.
pub(crate) fn bases_of_swap(file: &str) -> Option<(u64, u64)> {
    let (base, end) = file.strip_suffix(SWAP)?.split_once('-')?;
    Some((base.parse().ok()?, end.parse().ok()?))
}

/// The base offset of the segment that a file is.
pub(crate) fn base_of_segment(file: &str) -> Option<u64> {
    base_before(file, SEGMENT)
}

/// The base offset of the segment that a file is the index of.
pub(crate) fn base_of_index(file: &str) -> Option<u64> {
    base_before(file, INDEX)
}

fn base_before(file: &str, ending: &str) -> Option<u64> {
    file.strip_suffix(ending).filter(|digits| digits.len() == 20)?.parse().ok()
}

/// Whether this is what a compaction left when it was cut short.
pub(crate) fn is_cleaned(file: &str) -> bool {
    file.ends_with(CLEANED)
}
