//! Damage to any one file of a store: it never takes what is sound with it, and no offset is assigned twice.
//!
//! A populated store is closed or killed, one file of it is damaged in one way, and the store is opened again, twice.
//! Since logs have no files in common, one file of each is damaged at a time. Every batch that the damage did not touch
//! must be readable, every other segment file must still have its bytes, and new records must get new offsets. The one
//! exception is what a crash looks like: after a kill, damage in the newest segment beyond the checkpoint ends the log
//! there.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstem_disk::fault::{FaultFs, Plan};
use mainstem_disk::{Committer, Fs, Mode, SegmentStore, Settings, repair, verify};
use mainstem_log::contract::batch;
use mainstem_log::{
    Cleanup, Durability, Error, LogAdmin, LogId, LogReader, LogWriter, Options, Store, batches,
};

/// Logs of the store, and their options.
const NAMES: [&str; 5] = ["plain", "os", "cut", "compacted", "small"];
/// Number of positions at which a byte is flipped, and at which a file is truncated.
const POSITIONS: u64 = 2;

fn options(name: &str) -> Options {
    let segment_bytes = if name == "small" { 1 << 20 } else { 700 };
    let plain = Options { segment_bytes, ..Options::default() };
    match name {
        "os" => Options { durability: Durability::Os, ..plain },
        "compacted" => Options { cleanup: Cleanup::Compact, min_cleanable_dirty_ratio: 0.0, ..plain },
        _ => plain,
    }
}

fn open(fs: &FaultFs) -> Result<SegmentStore, Error> {
    let settings = Settings { journal_bytes: 1 << 16, checkpoint_bytes: 6000, ..Settings::default() };
    SegmentStore::open(Arc::new(fs.clone()), PathBuf::from("/"), settings, Committer::Inline)
}

/// One batch as it was written.
#[derive(Clone, Debug)]
struct Stored {
    segment: String,
    position: u64,
    base: u64,
    bytes: Vec<u8>,
}

/// A populated store, and what it contains.
struct Populated {
    fs: FaultFs,
    was_closed: bool,
    files: BTreeMap<String, Vec<u8>>,
    /// Size of the batches in each segment file.
    used: BTreeMap<String, usize>,
    batches: BTreeMap<&'static str, Vec<Stored>>,
    ends: BTreeMap<&'static str, u64>,
}

/// Damage to one file.
struct Case<'a> {
    path: &'a str,
    damage: Damage,
}

/// A kind of damage, and the bytes of the file that it affects.
#[derive(Clone, Debug)]
enum Damage {
    Missing,
    Truncated(u64),
    Flipped(u64),
    Zeros,
    Longer(Vec<u8>),
}

fn content(fs: &FaultFs, path: &str) -> Vec<u8> {
    let file = fs.open(Path::new(path), Mode::Existing).unwrap();
    let mut bytes = Vec::new();
    file.read_into(&mut bytes, file.len().unwrap() as usize, 0).unwrap();
    bytes
}

fn contents(fs: &FaultFs) -> BTreeMap<String, Vec<u8>> {
    fs.files().into_iter().map(|(path, _)| (path.clone(), content(fs, &path))).collect()
}

/// Fills a store with several segments per log, indexes, notes, journaled writes and a compaction.
fn populate(was_closed: bool) -> Populated {
    let fs = FaultFs::new(7);
    let mut store = open(&fs).unwrap();
    let logs: Vec<LogId> = NAMES.iter().map(|name| store.open(name, &options(name)).unwrap()).collect();
    for salt in 0..16_u64 {
        for (at, log) in logs.iter().enumerate() {
            let len = if NAMES[at] == "small" { 20 } else { 90 + salt as usize };
            store.append(*log, &batch(salt, 1 + (salt % 2) as u32, len, salt.cast_signed())).unwrap();
        }
        store.commit();
        if salt == 9 {
            store.truncate_prefix(logs[2], 8).unwrap();
        }
        if salt == 12 {
            for _ in 0..60 {
                store.maintain(1_000_000);
            }
        }
    }
    store.commit();
    assert!(store.note(logs[0], b"a note"));
    let ends = NAMES.iter().zip(&logs).map(|(name, log)| (*name, store.status(*log).end)).collect();
    let fs = if was_closed {
        drop(store);
        fs.killed(1)
    } else {
        let killed = fs.killed(1);
        drop(store);
        killed
    };
    let files = contents(&fs);
    let batches: BTreeMap<_, _> = NAMES.iter().map(|name| (*name, stored(name, &files))).collect();
    let mut used = BTreeMap::new();
    for batch in batches.values().flatten() {
        *used.entry(batch.segment.clone()).or_default() += batch.bytes.len();
    }
    Populated { fs, was_closed, files, used, batches, ends }
}

/// The batches in the segment files of a log.
fn stored(name: &str, files: &BTreeMap<String, Vec<u8>>) -> Vec<Stored> {
    let prefix = format!("/{name}.log/");
    let mut all = Vec::new();
    for (path, bytes) in files {
        if path.starts_with(&prefix) && path.ends_with(".segment") {
            let mut position = 0;
            for batch in batches(bytes) {
                let bytes = batch.bytes().to_vec();
                let len = bytes.len() as u64;
                all.push(Stored { segment: path.clone(), position, base: batch.header.base_offset, bytes });
                position += len;
            }
        }
    }
    all
}

impl Damage {
    /// Every kind, at several positions of a file.
    fn all(content: &[u8]) -> Vec<Self> {
        let len = content.len() as u64;
        let mut all = vec![Self::Missing, Self::Truncated(0), Self::Zeros];
        all.extend([vec![0; 700], vec![0xA5; 700], content.to_vec()].map(Self::Longer));
        if len == 0 {
            return all;
        }
        let used = content.iter().rposition(|byte| *byte != 0).map_or(1, |at| at as u64 + 1);
        let positions = (0..POSITIONS).map(|at| at * used / POSITIONS).chain([used - 1]);
        for at in positions {
            all.extend([Self::Truncated(at), Self::Flipped(at)]);
        }
        all.extend([8, 16, 40].into_iter().filter(|at| *at < used).map(Self::Flipped));
        all
    }

    fn apply(&self, fs: &FaultFs, path: &str) {
        let path = Path::new(path);
        let file = fs.open(path, Mode::Existing).unwrap();
        let len = file.len().unwrap();
        match self {
            Self::Missing => fs.remove_file(path).unwrap(),
            Self::Truncated(to) => file.set_len(*to).unwrap(),
            Self::Flipped(at) => fs.flip_bit(path, *at, 3).unwrap(),
            Self::Zeros => file.write_at(&vec![0; len as usize], 0).unwrap(),
            Self::Longer(bytes) => file.write_at(bytes, len).unwrap(),
        }
        fs.sync_dir(path.parent().unwrap()).unwrap();
    }

    /// Affected bytes of the file.
    fn range(&self) -> Range<u64> {
        match self {
            Self::Missing | Self::Zeros => 0..u64::MAX,
            Self::Truncated(to) => *to..u64::MAX,
            Self::Flipped(at) => *at..*at + 1,
            Self::Longer(_) => 0..0,
        }
    }
}

impl Case<'_> {
    fn hits(&self, batch: &Stored) -> bool {
        let range = self.damage.range();
        let end = batch.position + batch.bytes.len() as u64;
        batch.segment == self.path && range.start < end && batch.position < range.end
    }
}

impl Populated {
    /// Cases that are tried together: one of each log, or one of a file that all logs share.
    fn rounds(&self) -> Vec<Vec<Case<'_>>> {
        let mut of_logs: BTreeMap<&str, Vec<Case<'_>>> = BTreeMap::new();
        let mut rounds = Vec::new();
        for (path, content) in &self.files {
            for damage in Damage::all(content) {
                let case = Case { path, damage };
                match path.split_once(".log/") {
                    Some((log, _)) => of_logs.entry(log).or_default().push(case),
                    None => rounds.push(vec![case]),
                }
            }
        }
        while of_logs.values().any(|left| !left.is_empty()) {
            rounds.push(of_logs.values_mut().filter_map(Vec::pop).collect());
        }
        rounds
    }

    /// Damages files and checks what two restarts make of it.
    fn check(&self, cases: &[Case<'_>], closes_between: bool) {
        let fs = self.fs.killed(2);
        for Case { path, damage } in cases {
            damage.apply(&fs, path);
        }
        let mut appended = BTreeMap::new();
        let fs = self.restart(&fs, cases, closes_between, &mut appended);
        drop(self.restart(&fs, cases, true, &mut appended));
    }

    /// Opens the store, checks it, appends to every log, and ends it.
    fn restart(
        &self,
        fs: &FaultFs,
        cases: &[Case<'_>],
        closes: bool,
        appended: &mut BTreeMap<&'static str, Vec<u64>>,
    ) -> FaultFs {
        let damaged: Vec<_> = cases.iter().map(|case| format!("{}: {:?}", case.path, case.damage)).collect();
        let what = format!("{}, closed: {}", damaged.join(", "), self.was_closed);
        let mut store = open(fs).unwrap_or_else(|error| panic!("{what}: {error}"));
        for name in NAMES {
            let log = store.open(name, &options(name)).unwrap_or_else(|error| panic!("{what}: {error}"));
            let readable_to = self.check_batches(&mut store, name, log, cases, &what);
            let offset = store.append(log, &batch(1000, 1, 30, 5000)).unwrap().base_offset;
            assert!(offset >= readable_to, "{what}: {name} assigns {offset} again");
            let before = appended.entry(name).or_default();
            for known in before.iter() {
                assert!(offset > *known, "{what}: {name} assigns {offset} again");
                let mut read = Vec::new();
                store
                    .read(log, *known..*known + 1, 1, &mut read)
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(
                    batches(&read).next().map(|batch| batch.header.base_offset),
                    Some(*known),
                    "{what}"
                );
            }
            before.push(offset);
        }
        store.commit();
        let next = if closes {
            drop(store);
            fs.killed(3)
        } else {
            let next = fs.killed(3);
            drop(store);
            next
        };
        self.check_files(&next, cases, &what);
        next
    }

    /// Checks every batch of a log. Returns the offset below which offsets must not be assigned again.
    fn check_batches(
        &self,
        store: &mut SegmentStore,
        name: &str,
        log: LogId,
        cases: &[Case<'_>],
        what: &str,
    ) -> u64 {
        let all = &self.batches[name];
        let newest = all.last().map_or("", |last| last.segment.as_str());
        let is_hit = |batch: &Stored| cases.iter().any(|case| case.hits(batch));
        let first_hit = all.iter().find(|batch| is_hit(batch)).map(|batch| batch.base);
        // After a kill, this looks like a torn write.
        let is_torn = |case: &Case<'_>| case.path == newest && !matches!(case.damage, Damage::Missing);
        let may_end_at = first_hit.filter(|_| !self.was_closed && cases.iter().any(is_torn));
        let end = store.status(log).end;
        assert!(end >= may_end_at.unwrap_or(self.ends[name]), "{what}: {name} ends at {end}");
        let start = store.status(log).start;
        for expected in all {
            if expected.base >= end || is_hit(expected) {
                continue;
            }
            let in_torn_tail = may_end_at.is_some_and(|from| expected.base >= from);
            let is_readable = expected.base >= start && read_batch(store, log, expected);
            let is_truncated = name == "cut" && expected.base < 8;
            assert!(is_readable || in_torn_tail || is_truncated, "{what}: {name} misses {}", expected.base);
        }
        may_end_at.unwrap_or(self.ends[name])
    }

    /// Checks that the segments which the damage did not touch still have their bytes.
    fn check_files(&self, fs: &FaultFs, cases: &[Case<'_>], what: &str) {
        for (path, used) in &self.used {
            if !cases.iter().any(|case| case.path == path) {
                assert!(fs.files().iter().any(|(found, _)| found == path), "{what}: {path} was deleted");
                let (bytes, found) = (&self.files[path], content(fs, path));
                assert!(
                    found.len() >= *used && found[..*used] == bytes[..*used],
                    "{what}: {path} has changed"
                );
            }
        }
    }
}

/// Reads a whole log, as its owner does at a start.
fn read_all(store: &mut SegmentStore, log: LogId) -> Result<(), Error> {
    let status = store.status(log);
    let mut next = status.start;
    while next < status.end {
        let mut read = Vec::new();
        store.read(log, next..status.end, 1000, &mut read)?;
        match batches(&read).last() {
            Some(last) => next = last.header.end_offset(),
            // Nothing but a gap follows.
            None => break,
        }
    }
    Ok(())
}

impl Populated {
    /// Damages one file, checks what `verify` says, repairs the store and checks the result.
    fn check_repair(&self, path: &str, damage: Damage) {
        let what: String =
            format!("{path}: {damage:?}, closed: {}", self.was_closed).chars().take(200).collect();
        let cases = [Case { path, damage }];
        let damage = &cases[0].damage;
        let fs = self.fs.killed(2);
        damage.apply(&fs, path);
        let dir = Path::new("/");
        let before = contents(&fs);
        let report = verify(&fs, dir).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(before == contents(&fs), "{what}: verify has changed a file");
        // Whether it is readable without a repair.
        let opened = fs.killed(4);
        let mut store = open(&opened).unwrap();
        let is_readable = NAMES.iter().all(|name| {
            let log = store.open(name, &options(name)).unwrap();
            store.status(log).end <= self.ends[name] && read_all(&mut store, log).is_ok()
        });
        drop(store);
        // Nothing tells whether a damaged journal or checkpoint had anything that is missing now, nor which records of
        // a compacted segment are missing.
        let is_unsure =
            matches!(path, "/checkpoint" | "/journal-0" | "/journal-1") || path.starts_with("/compacted");
        assert!(is_readable == report.is_sound() || is_unsure, "{what}: {report:?}");
        assert!(is_readable || !report.is_sound(), "{what}: {report:?}");
        if !report.needs_repair() {
            return;
        }
        let fs = fs.killed(5);
        let saved = PathBuf::from("/damaged");
        let shared: Arc<dyn Fs> = Arc::new(fs.clone());
        repair(&shared, dir, &saved, &mut |_| {}).unwrap_or_else(|error| panic!("{what}: {error}"));
        let report = verify(&fs, dir).unwrap();
        assert!(report.findings.is_empty(), "{what}: {:?} after the repair", report.findings);
        let after = contents(&fs);
        if let Some(bytes) = before.get(path) {
            let is_saved = after.iter().any(|(path, saved)| path.starts_with("/damaged/") && saved == bytes);
            assert!(is_saved || after.get(path) == Some(bytes), "{what}: the damaged file is not saved");
        }
        let mut store = open(&fs).unwrap();
        for name in NAMES {
            let log = store.open(name, &options(name)).unwrap();
            self.check_batches(&mut store, name, log, &cases, &what);
            read_all(&mut store, log).unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
        }
    }
}

#[test]
fn verify_finds_damage_and_repair_accepts_the_loss() {
    for was_closed in [true, false] {
        let populated = populate(was_closed);
        let report = verify(&populated.fs.killed(2), Path::new("/")).unwrap();
        assert!(report.is_sound() && report.findings.is_empty() == was_closed, "{report:?}");
        assert_eq!(report.logs, NAMES.len());
        for (path, content) in &populated.files {
            for damage in Damage::all(content) {
                populated.check_repair(path, damage);
            }
        }
    }
}

/// Each call to the file system is the last one before a loss of power, once.
#[test]
fn an_interrupted_repair_can_be_repeated() {
    let populated = populate(true);
    let (path, dir) = ("/plain.log/00000000000000000004.segment", Path::new("/"));
    let cases = [Case { path, damage: Damage::Flipped(30) }];
    for crash_at in 1.. {
        let fs = populated.fs.killed(2);
        cases[0].damage.apply(&fs, path);
        fs.set(Plan { crash_at: Some(crash_at), ..Plan::default() });
        let run = |fs: &FaultFs| {
            let shared: Arc<dyn Fs> = Arc::new(fs.clone());
            repair(&shared, dir, Path::new("/damaged"), &mut |_| {})
        };
        let outcome = run(&fs);
        let is_complete = !fs.has_crashed();
        let fs = if is_complete { fs.killed(1) } else { fs.survivor(crash_at) };
        if is_complete {
            outcome.unwrap();
        } else {
            run(&fs).unwrap_or_else(|error| panic!("after call {crash_at}: {error}"));
        }
        let what = format!("after call {crash_at}");
        let report = verify(&fs, dir).unwrap();
        assert!(report.findings.is_empty(), "{what}: {:?}", report.findings);
        let mut store = open(&fs).unwrap();
        for name in NAMES {
            let log = store.open(name, &options(name)).unwrap();
            populated.check_batches(&mut store, name, log, &cases, &what);
            read_all(&mut store, log).unwrap_or_else(|error| panic!("{what}: {name}: {error}"));
        }
        if is_complete {
            assert!(crash_at > 50, "{crash_at} calls");
            return;
        }
    }
}

#[test]
fn verify_accepts_an_interrupted_compaction() {
    let (populated, swap) = interrupted_compaction();
    let report = verify(&populated.fs, Path::new("/")).unwrap();
    let notes: Vec<&str> = report.findings.iter().map(|finding| finding.kind.name()).collect();
    assert!(report.is_sound() && notes.contains(&"compaction"), "{:?}", report.findings);
    // Its segment may be gone already.
    let (base, _) = swap.split_once('-').unwrap();
    populated.fs.remove_file(Path::new(&format!("{base}.segment"))).unwrap();
    let report = verify(&populated.fs, Path::new("/")).unwrap();
    assert!(report.is_sound(), "{:?}", report.findings);
}

/// Whether a batch is read as it was written. The leader epoch does not count, since no checksum covers it.
fn read_batch(store: &mut SegmentStore, log: LogId, expected: &Stored) -> bool {
    let mut read = Vec::new();
    match store.read(log, expected.base..expected.base + 1, 1, &mut read) {
        Ok(()) => {
            let expected = &expected.bytes;
            read.len() == expected.len() && read[..12] == expected[..12] && read[16..] == expected[16..]
        }
        Err(Error::Corrupt { .. } | Error::OutOfRange) => false,
        Err(error) => panic!("{error}"),
    }
}

fn damage_every_file(was_closed: bool) {
    let populated = populate(was_closed);
    let rounds = populated.rounds();
    for (at, cases) in rounds.iter().enumerate() {
        // Every other round is killed between the two restarts.
        populated.check(cases, at % 2 == 0);
    }
    let (files, cases) = (populated.files.len(), rounds.iter().map(Vec::len).sum::<usize>());
    println!("{cases} cases in {files} files, {} rounds", rounds.len());
    assert!(files > 25 && cases > 300, "{cases} cases in {files} files");
}

/// A killed store with a complete compaction output beside the segment that it replaces, and the path of the output.
fn interrupted_compaction() -> (Populated, String) {
    let populated = populate(false);
    let segments: Vec<&String> =
        populated.used.keys().filter(|path| path.starts_with("/compacted.log/")).collect();
    let base_of = |path: &str| path["/compacted.log/".len()..].trim_end_matches(".segment").to_owned();
    let (base, end) = (base_of(segments[0]), base_of(segments[1]));
    let swap = format!("/compacted.log/{base}-{end}.swap");
    let file = populated.fs.open(Path::new(&swap), Mode::New).unwrap();
    file.write_at(&populated.files[segments[0]][..populated.used[segments[0]]], 0).unwrap();
    populated.fs.sync_dir(Path::new("/compacted.log")).unwrap();
    (populated, swap)
}

#[test]
fn a_damaged_compaction_output_does_not_replace_its_segments() {
    let (populated, swap) = interrupted_compaction();
    let whole = content(&populated.fs, &swap);
    for damage in Damage::all(&whole) {
        // Without a damaged byte the output replaces its segment, and has the same batches.
        populated.check(&[Case { path: &swap, damage }], true);
    }
}

#[test]
fn compaction_leaves_a_segment_alone_that_lost_its_end() {
    let populated = populate(true);
    let fs = populated.fs.killed(2);
    let batches = &populated.batches["compacted"];
    let segment = &batches[0].segment;
    let last = batches.iter().rfind(|batch| batch.segment == *segment).unwrap();
    Damage::Truncated(last.position).apply(&fs, segment);
    let mut store = open(&fs).unwrap();
    let log = store.open("compacted", &options("compacted")).unwrap();
    for salt in 0..16 {
        store.append(log, &batch(salt, 1, 90, 5000)).unwrap();
        store.commit();
    }
    for _ in 0..60 {
        store.maintain(1_000_000);
    }
    let left: Vec<String> = fs.files().into_iter().map(|(path, _)| path).collect();
    assert!(batches.iter().all(|batch| left.contains(&batch.segment)), "{left:?}");
    assert_eq!(content(&fs, segment), populated.files[segment][..last.position as usize]);
}

#[test]
fn a_log_can_be_given_up() {
    for was_closed in [false, true] {
        let populated = populate(was_closed);
        let fs = populated.fs.killed(2);
        for (path, _) in populated.fs.files() {
            if path.starts_with("/plain.log/") || path == "/clean" {
                fs.remove_file(Path::new(&path)).unwrap();
            }
        }
        fs.remove_dir(Path::new("/plain.log")).unwrap();
        let mut store = open(&fs).unwrap();
        for name in NAMES {
            let log = store.open(name, &options(name)).unwrap();
            let end = store.status(log).end;
            assert_eq!(end, if name == "plain" { 0 } else { populated.ends[name] }, "{name}");
        }
    }
}

#[test]
fn damage_to_a_closed_store_takes_nothing_sound_with_it() {
    damage_every_file(true);
}

#[test]
fn damage_to_a_killed_store_takes_nothing_sound_with_it() {
    damage_every_file(false);
}
