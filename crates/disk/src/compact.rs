//! Key compaction, as Kafka does it: of each key the newest record stays, at its offset.
//!
//! A compaction first reads what is new since the last one and notes the newest offset of each key. Then it
//! writes every complete segment anew without what is out of date, several small ones into one. It goes step by
//! step ([`Log::compact`]), since the shard has other things to do.
//!
//! A record without value stays for `delete_retention_ms` after the first compaction that has seen it; its batch
//! then says until when (KIP-534). Control batches stay. What was written in a transaction counts once the
//! transaction is committed.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::Arc;

use mainstem_log::{Batch, Records};

use crate::filter::{Filter, plain};
use crate::fs::{File, Fs, Mode};
use crate::index::Index;
use crate::journal::Journal;
use crate::keys::Keys;
use crate::name;
use crate::scan::{Place, Scan, Step};
use crate::single::{Disk, Log, Segment};

/// What one step reads, bytes.
const STEP_BYTES: u64 = 1 << 20;
/// The most keys one compaction notes, beyond those of one segment. What is left is for the next.
const KEYS_MAX: usize = 1 << 20;

/// A compaction under way.
pub(crate) struct Compaction {
    /// When it was begun, ms since 1970.
    unix_ms: u64,
    keys: Keys,
    phase: Phase,
}

enum Phase {
    /// Reading what is new, from here on.
    Note(Place),
    /// Writing anew: these segments, group by group.
    Write(VecDeque<Vec<u64>>, Option<Output>),
}

/// The segment that takes the place of a group.
struct Output {
    bases: Vec<u64>,
    /// Which of them is being read, and where.
    at: usize,
    place: Place,
    file: Arc<dyn File>,
    bytes: u64,
    index: Index,
    /// Last batch of each producer in the segment that is being read: its sequence number must not be forgotten.
    last_of: BTreeMap<i64, u64>,
}

/// What a step has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// There is more to do.
    More,
    /// Where segments may have gaps must be on disk before the next step.
    Checkpoint,
    /// A segment is complete, and is to be put in the place of what it was made from.
    Replace,
    /// It is over.
    Done,
}

impl Log {
    /// Bytes of complete segments, those of them that compaction has not seen, and where they end.
    fn cleanable(&self) -> (u64, u64, u64) {
        let end = self.synced.base.min(self.head.base);
        let complete = self.segments.iter().filter(|segment| segment.base < end);
        let (mut all, mut dirty) = (0, 0);
        for segment in complete {
            all += segment.bytes;
            if segment.base >= self.cleaned {
                dirty += segment.bytes;
            }
        }
        (all, dirty, end)
    }

    /// Whether there is enough for a compaction to do.
    #[expect(clippy::cast_precision_loss, reason = "it is compared with a share that someone guessed")]
    pub(crate) fn is_dirty(&self) -> bool {
        let (all, dirty, end) = self.cleanable();
        end > self.compacted_to
            && dirty > 0
            && dirty as f64 >= all as f64 * self.options.min_cleanable_dirty_ratio
    }

    /// Begins a compaction.
    pub(crate) fn begin_compaction(&mut self, unix_ms: u64) {
        self.compacted_to = self.cleanable().2;
        let first = self.segments.iter().find(|segment| segment.base >= self.cleaned);
        let place = Place::beginning(first.map_or(self.head.base, |segment| segment.base));
        let phase = Phase::Note(place);
        self.compaction = Some(Box::new(Compaction { unix_ms, keys: Keys::default(), phase }));
    }

    /// Goes one step on with the compaction that has begun.
    ///
    /// # Errors
    /// What the system says, or that a batch is damaged. The log is as it was, but for the groups done before.
    pub(crate) fn compact(&mut self, disk: &mut Disk) -> io::Result<Progress> {
        let Some(mut compaction) = self.compaction.take() else { return Ok(Progress::Done) };
        let progress = match &mut compaction.phase {
            Phase::Note(place) => self.note(disk, place, &mut compaction.keys)?.map(|upto| {
                compaction.phase = Phase::Write(self.groups(upto), None);
                self.sparse = self.sparse.max(upto);
                Progress::Checkpoint
            }),
            Phase::Write(groups, output) => {
                let decompress = disk.settings.decompress.clone();
                let filter = Filter {
                    keys: &compaction.keys,
                    decompress: decompress.as_ref(),
                    unix_ms: compaction.unix_ms,
                    delete_retention_ms: self.options.delete_retention_ms,
                };
                self.write_group(disk, groups, output, &filter)?
            }
        };
        let progress = progress.unwrap_or(Progress::More);
        if progress != Progress::Done {
            self.compaction = Some(compaction);
        }
        Ok(progress)
    }

    /// Notes the keys of some batches. Returns up to where they are all noted, when there are enough.
    fn note(&mut self, disk: &mut Disk, place: &mut Place, keys: &mut Keys) -> io::Result<Option<u64>> {
        let (_, _, end) = self.cleanable();
        let Some(at) = self.segments.iter().position(|segment| segment.base == place.base) else {
            return Ok(Some(end));
        };
        if place.base >= end || place.position == 0 && keys.len() >= KEYS_MAX {
            // A transaction that is not over is for the next compaction, with all of its segment.
            let upto = keys.first_open().unwrap_or(place.base).min(place.base);
            return Ok(Some(self.segments[self.segment_of(upto)].base));
        }
        let next = self.segments.get(at + 1).map_or(end, |next| next.base);
        let bytes = self.segments[at].bytes;
        let file = self.file(&mut disk.files, place.base)?;
        let mut scan = Scan::new(&*file, bytes, next, self.gaps(place.base));
        let from = place.position;
        while place.position - from < STEP_BYTES {
            let Some(batch) = sound_batch(&mut scan, *place)? else {
                *place = Place::beginning(next);
                break;
            };
            if let Some(plain) = plain(&batch, disk.settings.decompress.as_ref()) {
                for record in Records::of(batch.header, &plain) {
                    keys.note(&batch.header, &record.map_err(damaged)?);
                }
            }
            *place = place.behind(&batch.header);
        }
        Ok(None)
    }

    /// The complete segments before `upto`, put together to groups that fit into one segment.
    fn groups(&self, upto: u64) -> VecDeque<Vec<u64>> {
        let mut groups: VecDeque<Vec<u64>> = VecDeque::new();
        let mut bytes = 0;
        for segment in self.segments.iter().take_while(|segment| segment.base < upto) {
            bytes += segment.bytes;
            match groups.back_mut() {
                Some(group) if bytes <= self.options.segment_bytes => group.push(segment.base),
                _ => {
                    bytes = segment.bytes;
                    groups.push_back(vec![segment.base]);
                }
            }
        }
        groups
    }

    /// Writes some batches anew.
    fn write_group(
        &mut self,
        disk: &mut Disk,
        groups: &mut VecDeque<Vec<u64>>,
        output: &mut Option<Output>,
        filter: &Filter<'_>,
    ) -> io::Result<Option<Progress>> {
        if let Some(output) = output {
            let is_complete = self.write_some(disk, output, filter)?;
            return Ok(is_complete.then_some(Progress::Replace));
        }
        let Some(bases) = groups.pop_front() else {
            self.cleaned = self.cleaned.max(self.sparse);
            return Ok(Some(Progress::Done));
        };
        *output = Some(self.begin_output(disk, bases)?);
        Ok(None)
    }

    fn begin_output(&mut self, disk: &mut Disk, bases: Vec<u64>) -> io::Result<Output> {
        let base = bases[0];
        let path = self.dir.join(name::cleaned(base));
        let file = match disk.fs.open(&path, Mode::New) {
            // Left by a compaction that was given up.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let file = disk.fs.open(&path, Mode::Existing)?;
                file.set_len(0)?;
                file
            }
            outcome => outcome?,
        };
        let place = Place::beginning(base);
        let last_of = self.last_of_producers(disk, base)?;
        Ok(Output { bases, at: 0, place, file, bytes: 0, index: Index::new(base), last_of })
    }

    /// The complete segment that begins at `base`, and where the next one does.
    fn complete(&self, base: u64) -> io::Result<(u64, u64)> {
        let at = self.segment_of(base);
        match (self.segments.get(at), self.segments.get(at + 1)) {
            (Some(segment), Some(next)) if segment.base == base => Ok((segment.bytes, next.base)),
            _ => Err(io::Error::other("the segment has gone")),
        }
    }

    fn last_of_producers(&self, disk: &mut Disk, base: u64) -> io::Result<BTreeMap<i64, u64>> {
        let (bytes, next) = self.complete(base)?;
        let file = self.file(&mut disk.files, base)?;
        let mut scan = Scan::new(&*file, bytes, next, self.gaps(base));
        let mut place = Place::beginning(base);
        let mut last_of = BTreeMap::new();
        while let Step::Batch(header) = scan.step(place)? {
            if header.producer_id >= 0 {
                last_of.insert(header.producer_id, header.base_offset);
            }
            place = place.behind(&header);
        }
        Ok(last_of)
    }

    /// Writes some batches of a group anew. Whether that was the last of them.
    fn write_some(&mut self, disk: &mut Disk, output: &mut Output, filter: &Filter<'_>) -> io::Result<bool> {
        let base = output.bases[output.at];
        let (bytes, next) = self.complete(base)?;
        let file = self.file(&mut disk.files, base)?;
        let mut scan = Scan::new(&*file, bytes, next, self.gaps(base));
        let from = output.place.position;
        let is_last = output.at + 1 == output.bases.len();
        let mut kept = Vec::new();
        let mut is_over = false;
        while output.place.position - from < STEP_BYTES && !is_over {
            let Some(batch) = sound_batch(&mut scan, output.place)? else {
                is_over = true;
                break;
            };
            let header = batch.header;
            // What comes next must follow: so the very last batch stays, be it empty.
            let is_end = is_last && header.end_offset() == next;
            let is_last_of = output.last_of.get(&header.producer_id) == Some(&header.base_offset);
            let before = kept.len();
            filter.pass(&batch, is_end || is_last_of, &mut kept).map_err(damaged)?;
            if let Ok(kept) = Batch::parse_unchecked(&kept[before..]) {
                let place = Place { position: output.bytes + before as u64, ..output.index.end() };
                output.index.note(place, &kept.header);
            }
            output.place = output.place.behind(&header);
        }
        output.file.write_at(&kept, output.bytes)?;
        output.bytes += kept.len() as u64;
        if is_over && !is_last {
            output.at += 1;
            let base = output.bases[output.at];
            output.place = Place::beginning(base);
            output.last_of = self.last_of_producers(disk, base)?;
        }
        Ok(is_over && is_last)
    }

    /// Puts the segment that is complete in the place of its group. From the moment it has its second name on, a
    /// recovery does the rest. Nothing may be on its way to the disk.
    ///
    /// # Errors
    /// What the system says. What the directory holds is unsure then.
    pub(crate) fn replace_group(&mut self, disk: &mut Disk, journal: &mut Journal) -> io::Result<()> {
        let Some(Phase::Write(_, output)) = self.compaction.as_deref_mut().map(|running| &mut running.phase)
        else {
            return Ok(());
        };
        let Some(Output { bases, file, bytes, mut index, .. }) = output.take() else { return Ok(()) };
        let base = bases[0];
        let (_, end) = self.complete(bases[bases.len() - 1])?;
        file.sync_data()?;
        self.forget_journal(disk, journal)?;
        let cleaned = self.dir.join(name::cleaned(base));
        let swap = self.dir.join(name::swap(base, end));
        disk.fs.rename(&cleaned, &swap)?;
        disk.fs.sync_dir(&self.dir)?;
        for gone in &bases {
            self.remove_segment(disk, *gone)?;
        }
        // None of them may come back beside what stands for them, once that has lost the name that says so.
        disk.fs.sync_dir(&self.dir)?;
        disk.fs.rename(&swap, &self.path(base))?;
        disk.fs.sync_dir(&self.dir)?;
        let at = self.segment_of(base);
        self.segments.drain(at..at + bases.len());
        index.reach(Place { base, position: bytes, offset: end });
        let segment = Segment { base, bytes, index: Some(Box::new(index)), checked: 0 };
        self.segments.insert(at, segment);
        self.count_closed();
        disk.files.hold(self.key(base), file);
        self.note_index(disk, at);
        self.cursors = [Place::default(); 4];
        Ok(())
    }
}

/// The batch at `place`, its checksum compared; nothing at the end.
fn sound_batch<'a>(scan: &'a mut Scan<'_>, place: Place) -> io::Result<Option<Batch<'a>>> {
    match scan.step(place)? {
        Step::Batch(header) => Batch::parse(scan.batch(place, &header)?).map(Some).map_err(damaged),
        Step::End => Ok(None),
        Step::Damaged => Err(io::Error::new(io::ErrorKind::InvalidData, "damaged")),
    }
}

fn damaged(malformed: mainstem_log::Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, malformed.to_string())
}

/// Ends what a compaction that was cut short has left: what it had finished takes its place, the rest goes.
pub(crate) fn finish_cut_short(fs: &dyn Fs, dir: &Path) -> io::Result<()> {
    let files = &fs.list(dir)?;
    for file in files.iter().filter(|file| name::is_cleaned(file)) {
        fs.remove_file(&dir.join(file))?;
    }
    for swap in files {
        let Some((base, end)) = name::bases_of_swap(swap) else { continue };
        let is_replaced = |base_of: Option<u64>| base_of.is_some_and(|of| (base..end).contains(&of));
        for file in files {
            if is_replaced(name::base_of_segment(file)) || is_replaced(name::base_of_index(file)) {
                fs.remove_file(&dir.join(file))?;
            }
        }
        fs.sync_dir(dir)?;
        fs.rename(&dir.join(swap), &dir.join(name::segment(base)))?;
        fs.sync_dir(dir)?;
    }
    Ok(())
}
