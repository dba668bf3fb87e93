//! Key compaction with Kafka's semantics: retains the newest record of each key, at its offset.
//!
//! A compaction first reads the segments since the last one and collects the newest offset of each key. Then it
//! rewrites every closed segment without obsolete records and merges small segments. It runs in bounded steps
//! ([`Compactor::compact`]) so that the shard stays responsive.
//!
//! A tombstone is retained for `delete_retention_ms` after the first compaction that processes it; its batch then
//! carries the deadline (KIP-534). Control batches are retained. Records of a transaction count once it is committed.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::Path;

use mainstem_log::{Batch, Options, Records};

use crate::cleaning::{Cleaning, Compaction, Output, Phase, Replacing};
use crate::disk::Disk;
use crate::filter::{Filter, decompressed};
use crate::fs::{Fs, Mode};
use crate::index::Index;
use crate::keys::Keys;
use crate::log_dir::LogDir;
use crate::name;
use crate::positions::Positions;
use crate::read::SegmentReader;
use crate::removal::forget_unsealed;
use crate::replacement::Replacement;
use crate::scan::{Gaps, Place, Scan, Step};
use crate::segments::{Segment, Segments, time};
use crate::tail::Tail;

/// Bytes read per step.
pub(crate) const STEP_BYTES: u64 = 256 << 10;
/// Bytes of an output after which the committer syncs it, so that no sync takes long.
const SYNC_BYTES: u64 = 8 << 20;
/// Maximum number of indexes loaded per step.
const INDEXES_MAX: usize = 8;
/// Maximum number of segments that are merged: their files stay open while the new one takes their place.
const GROUP_MAX: usize = 64;
/// Maximum number of keys per compaction, checked at segment ends. The next compaction continues after them.
const KEYS_MAX: usize = 1 << 20;

/// Outcome of a compaction step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// More steps follow.
    More,
    /// A checkpoint must record which segments may have gaps before the next step.
    Checkpoint,
    /// An output segment is complete, and the committer syncs it.
    Syncing,
    /// An output segment is complete and on disk, and the committer puts it in the place of its group.
    Replacing,
    /// The compaction is finished.
    Done,
}

/// When the next compaction of a log starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextCompaction {
    /// Now, with the segments before this offset.
    Start { end: u64 },
    /// At this Unix time in ms; `None` for not before another segment is closed.
    At(Option<u64>),
    /// Some timestamps are not known yet; ask again.
    Unknown,
}

/// The closed segments that compaction has not processed, as far as it may now.
#[derive(Clone, Copy, Debug)]
struct Dirty {
    /// Base offset of the first segment that must stay as it is.
    end: u64,
    /// Timestamp of the oldest first batch, ms.
    oldest_ms: Option<u64>,
    /// When the segment at `end` may be compacted, Unix time in ms.
    blocked_until_ms: Option<u64>,
}

/// The parts of a log that compaction needs.
pub(crate) struct Compactor<'a> {
    pub(crate) dir: &'a LogDir,
    pub(crate) options: &'a Options,
    pub(crate) segments: &'a mut Segments,
    pub(crate) positions: &'a Positions,
    pub(crate) tail: &'a Tail,
    pub(crate) cleaning: &'a mut Cleaning,
}

impl Compactor<'_> {
    fn reader(&mut self) -> SegmentReader<'_> {
        let Self { dir, segments, positions, tail, cleaning, .. } = self;
        let start = segments[0].base;
        SegmentReader { dir, segments, positions, tail, cleaning, start }
    }

    /// Base offset of the first segment that is not closed, or not known to be on disk.
    fn closed_end(&self) -> u64 {
        self.positions.synced().base.min(self.positions.head().base)
    }

    /// Determines the segments that compaction may process now: records younger than the minimum lag stay. `None` if
    /// some timestamps are not known yet.
    fn dirty(&mut self, disk: &mut Disk, unix_ms: u64) -> io::Result<Option<Dirty>> {
        let mut dirty = Dirty { end: self.closed_end(), oldest_ms: None, blocked_until_ms: None };
        let min_lag_ms = self.options.min_compaction_lag_ms;
        if min_lag_ms == 0 && self.options.max_compaction_lag_ms.is_none() {
            return Ok(Some(dirty));
        }
        let mut loaded = 0;
        for at in 0..self.segments.len() {
            let base = self.segments[at].base;
            if base < self.cleaning.cleaned() {
                continue;
            }
            if base >= dirty.end {
                break;
            }
            if self.segments[at].times.is_none() {
                loaded += 1;
            }
            if loaded > INDEXES_MAX {
                return Ok(None);
            }
            let (first_ms, newest_ms) = self.reader().closed_times(disk, at)?;
            let free_ms = time(newest_ms, min_lag_ms);
            if min_lag_ms > 0 && free_ms > unix_ms {
                (dirty.end, dirty.blocked_until_ms) = (base, Some(free_ms));
                break;
            }
            // Records without a timestamp have no age.
            let first_ms = u64::try_from(first_ms).ok().filter(|first_ms| *first_ms > 0);
            dirty.oldest_ms = dirty.oldest_ms.into_iter().chain(first_ms).min();
        }
        Ok(Some(dirty))
    }

    /// Whether the uncompacted share of the segments before `end` suffices; `None` if nothing is uncompacted.
    #[expect(clippy::cast_precision_loss, reason = "the ratio is a rough threshold")]
    fn is_dirty_enough(&self, end: u64) -> Option<bool> {
        let (mut all, mut dirty) = (0, 0);
        for segment in self.segments.iter().take_while(|segment| segment.base < end) {
            all += segment.bytes;
            if segment.base >= self.cleaning.cleaned() {
                dirty += segment.bytes;
            }
        }
        (dirty > 0).then_some(dirty as f64 >= all as f64 * self.options.min_cleanable_dirty_ratio)
    }

    /// When the next compaction starts (KIP-58, KIP-354): as soon as enough of the log is uncompacted, and at the
    /// latest when the oldest uncompacted record has reached the maximum lag.
    pub(crate) fn next_compaction(&mut self, disk: &mut Disk, unix_ms: u64) -> io::Result<NextCompaction> {
        let Some(dirty) = self.dirty(disk, unix_ms)? else { return Ok(NextCompaction::Unknown) };
        let is_enough = self.is_dirty_enough(dirty.end).filter(|_| self.cleaning.is_beyond_last(dirty.end));
        let Some(is_enough) = is_enough else { return Ok(NextCompaction::At(dirty.blocked_until_ms)) };
        let lag_ms = self.options.max_compaction_lag_ms;
        let forced_ms = lag_ms.and_then(|lag_ms| Some(dirty.oldest_ms?.saturating_add(lag_ms)));
        if is_enough || forced_ms.is_some_and(|forced_ms| forced_ms <= unix_ms) {
            return Ok(NextCompaction::Start { end: dirty.end });
        }
        Ok(NextCompaction::At(forced_ms.into_iter().chain(dirty.blocked_until_ms).min()))
    }

    /// Starts a compaction of the closed segments before `end`.
    pub(crate) fn start_compaction(&mut self, unix_ms: u64, end: u64) {
        let first = self.segments.iter().find(|segment| segment.base >= self.cleaning.cleaned());
        let place = Place::beginning(first.map_or(self.positions.head().base, |segment| segment.base));
        let phase = Phase::Collect(place);
        self.cleaning.start(Compaction { unix_ms, end, keys: Keys::default(), phase });
    }

    /// Runs one step of the current compaction.
    ///
    /// # Errors
    /// IO errors and damaged batches. Groups replaced so far stay replaced; the rest of the log is unchanged.
    pub(crate) fn compact(&mut self, disk: &mut Disk) -> io::Result<Progress> {
        let Some(mut compaction) = self.cleaning.take() else { return Ok(Progress::Done) };
        let progress = match &mut compaction.phase {
            Phase::Collect(place) => {
                let collected = self.collect_keys(disk, place, compaction.end, &mut compaction.keys)?;
                collected.map(|upto| {
                    compaction.phase = Phase::Rewrite(self.groups(upto), None);
                    self.cleaning.allow_gaps_before(upto);
                    Progress::Checkpoint
                })
            }
            Phase::Rewrite(groups, output) => {
                let decompress = disk.settings.decompress.clone();
                let filter = Filter {
                    keys: &compaction.keys,
                    decompress: decompress.as_ref(),
                    unix_ms: compaction.unix_ms,
                    delete_retention_ms: self.options.delete_retention_ms,
                };
                self.rewrite_group(disk, groups, output, &filter)?
            }
        };
        let progress = progress.unwrap_or(Progress::More);
        if progress != Progress::Done {
            self.cleaning.put_back(compaction);
        }
        Ok(progress)
    }

    /// Collects the keys of some batches. When done, returns the offset up to which all keys are collected.
    fn collect_keys(
        &mut self,
        disk: &mut Disk,
        place: &mut Place,
        end: u64,
        keys: &mut Keys,
    ) -> io::Result<Option<u64>> {
        let Some(at) = self.segments.position(place.base) else {
            return Ok(Some(end));
        };
        if place.base >= end || place.position == 0 && keys.len() >= KEYS_MAX {
            // The next compaction covers open transactions, starting with the segment of the first one.
            let upto = keys.first_open().unwrap_or(place.base).min(place.base);
            let upto = self.segments[self.segments.containing(upto)].base;
            if place.base < end && upto == place.base {
                self.cleaning.cut_range(upto);
            }
            return Ok(Some(upto));
        }
        let next = self.segments.get(at + 1).map_or(end, |next| next.base);
        let bytes = self.segments[at].bytes;
        let file = self.dir.file(&mut disk.files, place.base)?;
        let mut scan = Scan::new(&*file, bytes, next, self.cleaning.gaps(place.base));
        let from = place.position;
        while place.position - from < STEP_BYTES {
            let Some(batch) = valid_batch(&mut scan, *place)? else {
                *place = Place::beginning(next);
                break;
            };
            if let Some(decompressed) = decompressed(&batch, disk.settings.decompress.as_ref()) {
                for record in Records::of(batch.header, &decompressed) {
                    keys.note(&batch.header, &record.map_err(damaged)?);
                }
            }
            *place = place.after(&batch.header);
        }
        Ok(None)
    }

    /// Partitions the closed segments before `upto` into groups that fit into one segment.
    fn groups(&self, upto: u64) -> VecDeque<Vec<u64>> {
        let mut groups: VecDeque<Vec<u64>> = VecDeque::new();
        let mut bytes = 0;
        for segment in self.segments.iter().take_while(|segment| segment.base < upto) {
            bytes += segment.bytes;
            match groups.back_mut() {
                Some(group) if bytes <= self.options.segment_bytes && group.len() < GROUP_MAX => {
                    group.push(segment.base);
                }
                _ => {
                    bytes = segment.bytes;
                    groups.push_back(vec![segment.base]);
                }
            }
        }
        groups
    }

    /// Rewrites some batches of the current group.
    fn rewrite_group(
        &mut self,
        disk: &mut Disk,
        groups: &mut VecDeque<Vec<u64>>,
        output: &mut Option<Box<Output>>,
        filter: &Filter<'_>,
    ) -> io::Result<Option<Progress>> {
        if let Some(output) = output {
            let is_synced = if let Some(synced) = &output.synced {
                synced.take().transpose()?.is_some()
            } else {
                let is_complete = self.rewrite_some(disk, output, filter)?;
                if !is_complete {
                    return Ok(None);
                }
                sync_output(disk, output)?
            };
            if !is_synced {
                return Ok(Some(Progress::Syncing));
            }
        }
        if let Some(output) = output.take() {
            self.begin_replacement(disk, *output)?;
            return Ok(Some(Progress::Replacing));
        }
        let Some(bases) = groups.pop_front() else {
            self.cleaning.complete();
            return Ok(Some(Progress::Done));
        };
        *output = Some(Box::new(self.create_output(disk, bases)?));
        Ok(None)
    }

    fn create_output(&self, disk: &mut Disk, bases: Vec<u64>) -> io::Result<Output> {
        let base = bases[0];
        let path = self.dir.path().join(name::cleaned(base));
        let file = match disk.fs.open(&path, Mode::New) {
            // Left by an abandoned compaction.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let file = disk.fs.open(&path, Mode::Existing)?;
                file.set_len(0)?;
                file
            }
            outcome => outcome?,
        };
        let place = Place::beginning(base);
        Ok(Output {
            bases,
            at: 0,
            place,
            file,
            bytes: 0,
            index: Index::new(base),
            last_of: BTreeMap::new(),
            survey: Some(place),
            syncing_bytes: 0,
            synced: None,
        })
    }

    /// Size of the closed segment with this base, and the base of the next segment.
    fn closed_segment(&self, base: u64) -> io::Result<(u64, u64)> {
        let at = self.segments.containing(base);
        match (self.segments.get(at), self.segments.get(at + 1)) {
            (Some(segment), Some(next)) if segment.base == base => Ok((segment.bytes, next.base)),
            _ => Err(io::Error::other("the segment was removed during compaction")),
        }
    }

    /// Collects the last batch of each producer in some of the segment that is read next. Returns where to continue.
    fn survey_producers(
        &self,
        disk: &mut Disk,
        base: u64,
        from: Place,
        last_of: &mut BTreeMap<i64, u64>,
    ) -> io::Result<Option<Place>> {
        let (bytes, next) = self.closed_segment(base)?;
        let file = self.dir.file(&mut disk.files, base)?;
        let mut scan = Scan::new(&*file, bytes, next, self.cleaning.gaps(base));
        let mut place = from;
        while place.position - from.position < STEP_BYTES {
            let Step::Batch(header) = scan.step(place)? else { return Ok(None) };
            if header.producer_id >= 0 {
                last_of.insert(header.producer_id, header.base_offset);
            }
            place = place.after(&header);
        }
        Ok(Some(place))
    }

    /// Rewrites some batches of a group. Returns whether the group is complete.
    fn rewrite_some(
        &mut self,
        disk: &mut Disk,
        output: &mut Output,
        filter: &Filter<'_>,
    ) -> io::Result<bool> {
        let base = output.bases[output.at];
        if let Some(place) = output.survey {
            output.survey = self.survey_producers(disk, base, place, &mut output.last_of)?;
            return Ok(false);
        }
        let (bytes, next) = self.closed_segment(base)?;
        let file = self.dir.file(&mut disk.files, base)?;
        let mut scan = Scan::new(&*file, bytes, next, self.cleaning.gaps(base));
        let from = output.place.position;
        let is_last = output.at + 1 == output.bases.len();
        let mut retained = Vec::new();
        let mut is_at_end = false;
        while output.place.position - from < STEP_BYTES && !is_at_end {
            let Some(batch) = valid_batch(&mut scan, output.place)? else {
                is_at_end = true;
                break;
            };
            let header = batch.header;
            // The next segment must continue without a gap, so retain the last batch, even if it is empty.
            let is_end = is_last && header.end_offset() == next;
            let is_last_of = output.last_of.get(&header.producer_id) == Some(&header.base_offset);
            let before = retained.len();
            filter.apply(&batch, is_end || is_last_of, &mut retained).map_err(damaged)?;
            if let Ok(retained) = Batch::parse_unchecked(&retained[before..]) {
                let place = Place { position: output.bytes + before as u64, ..output.index.end() };
                output.index.note(place, &retained.header);
            }
            output.place = output.place.after(&header);
        }
        output.file.write_at(&retained, output.bytes)?;
        output.bytes += retained.len() as u64;
        if output.bytes - output.syncing_bytes >= SYNC_BYTES && disk.queue.has_thread() {
            // The last sync is the one that counts; this one makes it short.
            drop(disk.group.deferred.sync(output.file.clone()));
            output.syncing_bytes = output.bytes;
        }
        if is_at_end && !is_last {
            output.at += 1;
            let base = output.bases[output.at];
            output.place = Place::beginning(base);
            output.survey = Some(output.place);
            output.last_of.clear();
        }
        Ok(is_at_end && is_last)
    }

    /// Lets the committer replace a group with its complete output segment. The log is read from the old segments
    /// [until it has](Self::finish_replacement).
    ///
    /// # Errors
    /// A segment of the group cannot be opened, and it stays.
    pub(crate) fn begin_replacement(&mut self, disk: &mut Disk, output: Output) -> io::Result<()> {
        let Output { bases, file, bytes, mut index, .. } = output;
        let (_, end) = self.closed_segment(bases[bases.len() - 1])?;
        index.extend_to(Place { base: bases[0], position: bytes, offset: end });
        for base in &bases {
            if let Err(error) = disk.files.keep_replaced(self.dir.key(*base), || self.dir.segment(*base)) {
                self.release(disk, &bases);
                return Err(error);
            }
        }
        forget_unsealed(self.dir, self.segments, disk, |base| bases.contains(&base));
        let (dir, log) = (self.dir.path().to_owned(), self.dir.name().clone());
        let replacement = Replacement { dir, log, bases: bases.clone(), end };
        disk.group.deferred.replacements.insert(self.dir.id(), replacement);
        self.cleaning.begin_replacing(Replacing { bases, file, bytes, index });
        Ok(())
    }

    /// The committer has replaced the group that it was given, or could not, and all is as it was.
    pub(crate) fn finish_replacement(&mut self, disk: &mut Disk, is_done: bool) {
        let Some(replacing) = self.cleaning.end_replacing() else { return };
        let Replacing { bases, file, bytes, index } = *replacing;
        self.release(disk, &bases);
        if !is_done {
            return;
        }
        let base = bases[0];
        disk.group
            .deferred
            .closing
            .extend(bases.iter().filter_map(|base| disk.files.take(self.dir.key(*base))));
        let at = self.segments.containing(base);
        self.segments.replace(at..at + bases.len(), Segment::new(base, bytes, Some(Box::new(index))));
        disk.files.hold(self.dir.key(base), file);
        self.reader().touch_index(disk, at);
    }

    /// The files of these segments need not stay open any more.
    fn release(&self, disk: &mut Disk, bases: &[u64]) {
        let keys = bases.iter().map(|base| self.dir.key(*base));
        let released = keys.filter_map(|key| disk.files.release_replaced(key));
        disk.group.deferred.closing.extend(released);
    }
}

/// Syncs a complete output: by the committer, unless that is the caller itself. Returns whether it is synced.
fn sync_output(disk: &mut Disk, output: &mut Output) -> io::Result<bool> {
    if disk.queue.has_thread() {
        output.synced = Some(disk.group.deferred.sync(output.file.clone()));
        return Ok(false);
    }
    output.file.sync_data()?;
    Ok(true)
}

/// Returns the batch at `place` after verifying its checksum; `None` at the end.
fn valid_batch<'a>(scan: &'a mut Scan<'_>, place: Place) -> io::Result<Option<Batch<'a>>> {
    match scan.step(place)? {
        Step::Batch(header) => Batch::parse(scan.batch(place, &header)?).map(Some).map_err(damaged),
        // A segment that ends early must not be replaced: what follows the damage would be lost.
        Step::End if scan.is_complete(place)? => Ok(None),
        Step::End | Step::Damaged => Err(io::Error::new(io::ErrorKind::InvalidData, "damaged batch")),
    }
}

fn damaged(malformed: mainstem_log::Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, malformed.to_string())
}

/// Whether `path` is a segment that replaces others from `base` to before `end`: valid batches only, up to `end`.
pub(crate) fn is_valid_output(fs: &dyn Fs, path: &Path, base: u64, end: u64) -> io::Result<bool> {
    let file = fs.open(path, Mode::Existing)?;
    let mut scan = Scan::new(&*file, file.len()?, end, Gaps::Allowed);
    let mut place = Place::beginning(base);
    while let Step::Batch(header) = scan.step_verified(place)? {
        place = place.after(&header);
    }
    Ok(scan.is_at_end(place) && place.offset == end)
}

/// Cleans up after an interrupted compaction: finishes a complete replacement and deletes partial output. A damaged
/// replacement is set aside, and the segments that it should have replaced stay.
pub(crate) fn finish_interrupted(fs: &dyn Fs, dir: &Path) -> io::Result<()> {
    let files = &fs.list(dir)?;
    for file in files.iter().filter(|file| name::is_cleaned(file)) {
        fs.remove_file(&dir.join(file))?;
    }
    for swap in files {
        let Some((base, end)) = name::bases_of_swap(swap) else { continue };
        let path = dir.join(swap);
        if !is_valid_output(fs, &path, base, end)? {
            log::error!("{} is damaged; it is set aside, and the segments it replaces stay", path.display());
            fs.rename(&path, &dir.join(name::damaged(swap)))?;
            fs.sync_dir(dir)?;
            continue;
        }
        let is_in_range = |base_of: Option<u64>| base_of.is_some_and(|of| (base..end).contains(&of));
        for file in files {
            if is_in_range(name::base_of_segment(file)) || is_in_range(name::base_of_index(file)) {
                fs.remove_file(&dir.join(file))?;
            }
        }
        fs.sync_dir(dir)?;
        fs.rename(&path, &dir.join(name::segment(base)))?;
        fs.sync_dir(dir)?;
    }
    Ok(())
}
