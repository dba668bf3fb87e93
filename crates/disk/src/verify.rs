//! Offline check of a store: every checkpoint, journal, segment, checksum and index. Changes nothing.
//!
//! The check judges what the next start will find, so it looks at the segments with the journal replayed
//! ([`Overlay`]), and at a complete compaction output in place of the segments that it replaces. What that start
//! repairs by itself, because a crash explains it, is a note. Everything else is damage: durable records are missing or
//! unreadable, and [`repair`](crate::repair()) can only accept the loss.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::checkpoint::{self, Checkpoint, Known, Loaded};
use crate::compact;
use crate::fs::{Fs, Mode};
use crate::index::Index;
use crate::journal;
use crate::name;
use crate::overlay::Overlay;
use crate::recover::is_durable;
use crate::redo;
use crate::scan::{Gaps, Place, Scan, Step};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The next start repairs it, and no record is lost that was durable.
    Note,
    /// Records that were durable are missing or unreadable.
    Damage,
}

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingKind {
    /// The checkpoint, or the mark of a clean shutdown.
    Checkpoint,
    /// A journal file.
    Journal,
    /// A log without segments.
    Log,
    /// A segment.
    Segment,
    /// An index of a segment.
    Index,
    /// The output of a compaction.
    Compaction,
}

/// Something that is not as it should be.
#[derive(Clone, Debug)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is about.
    pub kind: FindingKind,
    /// The log; empty for a file of the store itself.
    pub log: String,
    /// The file.
    pub file: PathBuf,
    /// Where in the file it begins, bytes.
    pub position: Option<u64>,
    /// Offsets of the records that are affected, as far as they are known.
    pub offsets: Option<Range<u64>>,
    /// What is wrong.
    pub problem: String,
    /// What repairing it does.
    pub repair: String,
}

/// Result of checking one store.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Number of logs.
    pub logs: usize,
    /// Number of segments.
    pub segments: usize,
    /// Number of valid batches.
    pub batches: u64,
    /// Size of the valid batches.
    pub bytes: u64,
    /// Everything that is not as it should be.
    pub findings: Vec<Finding>,
}

impl FindingKind {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Checkpoint => "checkpoint",
            Self::Journal => "journal",
            Self::Log => "log",
            Self::Segment => "segment",
            Self::Index => "index",
            Self::Compaction => "compaction",
        }
    }
}

impl Severity {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Damage => "damage",
        }
    }
}

impl Finding {
    /// Whether the file belongs into quarantine: it is damaged, or an index to be rebuilt.
    pub(crate) fn needs_repair(&self) -> bool {
        self.severity == Severity::Damage || self.kind == FindingKind::Index
    }
}

impl Report {
    /// Whether no durable record is missing or unreadable.
    pub fn is_sound(&self) -> bool {
        self.findings.iter().all(|finding| finding.severity == Severity::Note)
    }

    /// Whether [`repair`](crate::repair()) would change anything that the next start does not.
    pub fn needs_repair(&self) -> bool {
        self.findings.iter().any(Finding::needs_repair)
    }

    fn add(
        &mut self,
        severity: Severity,
        kind: FindingKind,
        log: &str,
        file: PathBuf,
        problem: impl Into<String>,
    ) -> &mut Finding {
        let repair = match severity {
            Severity::Note => "none is needed: the next start does it",
            Severity::Damage => "readers skip the missing records",
        };
        self.findings.push(Finding {
            severity,
            kind,
            log: log.into(),
            file,
            position: None,
            offsets: None,
            problem: problem.into(),
            repair: repair.into(),
        });
        self.findings.last_mut().expect("it has just been added")
    }
}

/// Checks the store in `dir`, which no process may have open.
///
/// # Errors
/// IO errors. [`io::ErrorKind::NotFound`] if there is no such directory.
pub fn verify(fs: &dyn Fs, dir: &Path) -> io::Result<Report> {
    let mut report = Report::default();
    let fs = &Overlay::new(fs);
    let files = fs.list(dir)?;
    let logs: BTreeSet<&str> = files.iter().filter_map(|file| name::log_of(file)).collect();
    let loaded = checkpoint::load(fs, dir)?;
    let is_lost = !matches!(loaded, Loaded::Valid { .. }) && has_segments(fs, dir, &logs);
    if is_lost {
        let problem = "missing or damaged: removed records may reappear, and missing ones go unnoticed";
        let file = dir.join(name::CHECKPOINT);
        report.add(Severity::Damage, FindingKind::Checkpoint, "", file, problem).repair =
            "a new one is written".into();
    }
    let (known, was_closed) = match loaded {
        Loaded::Valid { logs, was_closed } => (logs, was_closed),
        Loaded::Missing | Loaded::Damaged => (Checkpoint::new(), false),
    };
    if !was_closed && !logs.is_empty() {
        let file = dir.join(name::CLEAN);
        report.add(Severity::Note, FindingKind::Checkpoint, "", file, "the store was not closed cleanly");
    }
    let journal = journal::Found::read(fs, dir)?;
    for file in journal.damaged() {
        let file = dir.join(file);
        report.add(Severity::Damage, FindingKind::Journal, "", file, "the journal is damaged").repair =
            "it is set aside, after what is readable was repeated".into();
    }
    if !was_closed {
        redo::redo_from(fs, dir, &journal, &known)?;
    }
    let missing = known.keys().filter(|name| was_closed && !logs.contains(name.as_str()));
    for name in missing.map(String::as_str).chain(logs.iter().copied()) {
        let known = known.get(name).copied().or(is_lost.then_some(Known::LOST));
        let path = dir.join(name::log_dir(name));
        report.logs += 1;
        let is_exact = was_closed && known.is_some();
        LogCheck { fs, dir: &path, name, known, is_exact, report: &mut report }.run()?;
    }
    Ok(report)
}

fn has_segments(fs: &dyn Fs, dir: &Path, logs: &BTreeSet<&str>) -> bool {
    logs.iter().any(|log| bases(fs, &dir.join(name::log_dir(log))).is_ok_and(|bases| !bases.is_empty()))
}

/// Valid parts of a segment, and what is between them.
pub(crate) struct SegmentContents {
    /// Bytes of the segment with valid batches.
    pub(crate) valid: Vec<Range<u64>>,
    /// Begin and end of each damaged part that valid batches follow.
    pub(crate) damaged: Vec<(Place, Place)>,
    /// After the last valid batch.
    pub(crate) end: Place,
    /// Whether anything but zeros follows.
    pub(crate) has_rest: bool,
    /// Length of the file.
    pub(crate) len: u64,
    /// Position and offset of each batch.
    pub(crate) batches: Vec<(u64, u64)>,
}

impl SegmentContents {
    /// Reads the segment at `path` with base offset `base`, whose records are all below `limit`.
    pub(crate) fn read(fs: &dyn Fs, path: &Path, base: u64, limit: u64, gaps: Gaps) -> io::Result<Self> {
        let file = fs.open(path, Mode::ReadOnly)?;
        let len = file.len()?;
        let mut scan = Scan::new(&*file, len, limit, gaps);
        let mut place = Place::beginning(base);
        let (mut valid, mut damaged, mut batches) = (Vec::new(), Vec::new(), Vec::new());
        let mut from = 0;
        loop {
            if let Step::Batch(header) = scan.step_verified(place)? {
                batches.push((place.position, header.base_offset));
                place = place.after(&header);
                continue;
            }
            if place.position > from {
                valid.push(from..place.position);
            }
            let Some(next) = scan.resume(place)? else { break };
            damaged.push((place, next));
            place = next;
            from = next.position;
        }
        let has_rest = scan.has_rest(place.position)?;
        Ok(Self { valid, damaged, end: place, has_rest, len, batches })
    }
}

/// Base offsets of the segments in a log directory, sorted.
pub(crate) fn bases(fs: &dyn Fs, dir: &Path) -> io::Result<Vec<u64>> {
    let mut bases: Vec<u64> = fs.list(dir)?.iter().filter_map(|file| name::base_of_segment(file)).collect();
    bases.sort_unstable();
    Ok(bases)
}

/// Check of one log.
struct LogCheck<'a> {
    fs: &'a dyn Fs,
    dir: &'a Path,
    name: &'a str,
    known: Option<Known>,
    /// Whether the checkpoint says exactly where the log starts and ends.
    is_exact: bool,
    report: &'a mut Report,
}

/// The segments of a log, sorted.
struct Found {
    bases: Vec<u64>,
    paths: Vec<PathBuf>,
}

impl LogCheck<'_> {
    fn run(&mut self) -> io::Result<()> {
        let found = self.segments()?;
        let bases = &found.bases;
        self.report.segments += bases.len();
        let known = self.known.unwrap_or_default();
        let Some((first, last)) = bases.first().zip(bases.last()) else {
            if self.known.is_some() {
                let dir = self.dir.to_owned();
                let offsets = known.start..known.committed.offset.max(known.start);
                self.damage(FindingKind::Log, dir, "the log has no segments", offsets);
            }
            return Ok(());
        };
        if self.is_exact && *first > known.start {
            let file = self.dir.join(name::segment(known.start));
            self.damage(FindingKind::Segment, file, "the oldest segments are missing", known.start..*first);
        }
        let mut end = Place::beginning(*last);
        for at in 0..bases.len() {
            end = self.check_segment(&found, at, known)?;
        }
        let committed = known.committed;
        if let Some(next) = Index::sealed_end(self.fs, &self.dir.join(name::index(*last)), *last)? {
            let file = self.dir.join(name::segment(next));
            let offsets = next..committed.offset.max(next);
            self.damage(FindingKind::Segment, file, "the newest segment is missing", offsets);
        } else if end.offset < committed.offset {
            let file = self.dir.join(name::segment(committed.base));
            let problem = "durable records at the end are missing";
            self.damage(FindingKind::Segment, file, problem, end.offset..committed.offset);
        }
        Ok(())
    }

    /// Finds the segments. A complete compaction output takes the place of those that it replaces.
    fn segments(&mut self) -> io::Result<Found> {
        let files = match self.fs.list(self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            outcome => outcome?,
        };
        let mut all: Vec<(u64, PathBuf)> = files
            .iter()
            .filter_map(|file| Some((name::base_of_segment(file)?, self.dir.join(file))))
            .collect();
        for file in &files {
            let Some((base, end)) = name::bases_of_swap(file) else { continue };
            let path = self.dir.join(file);
            if compact::is_valid_output(self.fs, &path, base, end)? {
                all.retain(|(known, _)| !(base..end).contains(known));
                all.push((base, path.clone()));
                let problem = "a compaction is complete, and was interrupted before it took effect";
                self.report.add(Severity::Note, FindingKind::Compaction, self.name, path, problem);
            } else {
                let problem = "the output of a compaction is damaged";
                self.report.add(Severity::Damage, FindingKind::Compaction, self.name, path, problem).repair =
                    "it is set aside".into();
            }
        }
        all.sort_unstable();
        let (bases, paths) = all.into_iter().unzip();
        Ok(Found { bases, paths })
    }

    /// Checks the segment at `at`. Returns its end.
    fn check_segment(&mut self, segments: &Found, at: usize, known: Known) -> io::Result<Place> {
        let Found { bases, paths } = segments;
        let (base, path) = (bases[at], &paths[at]);
        let is_output = path.extension().is_some_and(|ending| ending == "swap");
        let next = bases.get(at + 1).copied();
        let gaps = if base < known.sparse || is_output { Gaps::Allowed } else { Gaps::None };
        let found = SegmentContents::read(self.fs, path, base, next.unwrap_or(i64::MAX as u64), gaps)?;
        self.report.batches += found.batches.len() as u64;
        self.report.bytes += found.valid.iter().map(|part| part.end - part.start).sum::<u64>();
        // What recovery may take for a torn write.
        let may_be_torn = |place: Place| -> io::Result<bool> {
            if self.is_exact || place < known.committed {
                return Ok(false);
            }
            Ok(next.is_none() || !is_durable(self.fs, self.dir, bases, at, place, known.committed)?)
        };
        let mut findings = Vec::new();
        for (from, to) in &found.damaged {
            findings.push((may_be_torn(*from)?, *from, to.offset, "damaged"));
        }
        let end = found.end;
        let what = if found.has_rest { "damaged up to its end" } else { "too short" };
        match next {
            // Compaction retains the last batch.
            Some(next) if end.offset != next => {
                findings.push((may_be_torn(end)?, end, next, what));
            }
            // No record is missing: readers ignore these bytes, or the next start removes them.
            _ if found.has_rest => findings.push((true, end, end.offset, "followed by other bytes")),
            _ => {}
        }
        for (may_be_torn, from, to, what) in findings {
            self.add_segment_finding(path, may_be_torn, from, to, what);
        }
        if !is_output {
            self.check_index(base, &found.batches)?;
        }
        Ok(end)
    }

    fn add_segment_finding(&mut self, path: &Path, may_be_torn: bool, from: Place, to: u64, what: &str) {
        let severity = if may_be_torn { Severity::Note } else { Severity::Damage };
        let problem = match severity {
            Severity::Note => "an incomplete write, or other bytes behind the last batch".to_owned(),
            Severity::Damage => format!("the segment is {what}"),
        };
        let finding = self.report.add(severity, FindingKind::Segment, self.name, path.to_owned(), problem);
        finding.position = Some(from.position);
        finding.offsets = Some(from.offset..to.max(from.offset));
        if severity == Severity::Damage {
            finding.repair =
                "the valid batches are copied; the file is set aside; readers skip the rest".into();
        }
    }

    fn check_index(&mut self, base: u64, batches: &[(u64, u64)]) -> io::Result<()> {
        let path = self.dir.join(name::index(base));
        match self.fs.open(&path, Mode::ReadOnly) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            outcome => outcome?,
        };
        let index = Index::load_any(self.fs, &path, base)?;
        if !index.is_some_and(|index| index.agrees_with(batches)) {
            let problem = "the index is damaged, or of another version";
            self.report.add(Severity::Note, FindingKind::Index, self.name, path, problem).repair =
                "it is set aside and rebuilt".into();
        }
        Ok(())
    }

    fn damage(&mut self, kind: FindingKind, file: PathBuf, problem: &str, offsets: Range<u64>) {
        self.report.add(Severity::Damage, kind, self.name, file, problem).offsets = Some(offsets);
    }
}
