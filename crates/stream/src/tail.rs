//! Records on their way to other doors: partitions of bound topics are read to their end, and on as it moves.
//!
//! How far is kept, once everything before it is safe on the other side; so a crash lets some records go out twice,
//! and none get lost.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_compress::batch::plain;
use mainstem_kafka::Aborted;
use mainstem_log::{Batch, BatchHeader, Completion, Durability, Error, Record, Records, batches};
use mainstem_log::{Header, Headers};
use mainstem_runtime::Io;

use crate::catalogue::{PartitionId, hex};
use crate::kept::Kept;
use crate::mail::Mail;
use crate::partition::LOG_APPEND_TIME;
use crate::shard::Shard;

/// The log of positions, in each store with bound partitions.
const LOG: &str = "kafka-positions";
/// Bytes read at once.
const READ_BYTES: usize = 256 * 1024;
/// Reads of one partition at once, where all that is read is passed over.
const READS_MAX: usize = 16;
/// Largest batch that goes out, once it is decompressed, bytes.
const PLAIN_BYTES_MAX: usize = 64 * 1024 * 1024;
/// While of one batch some has gone out and some not, others go before it that are no larger than this, bytes.
const PASSING_BYTES_MAX: usize = 1024 * 1024;
/// What goes out at once, at most: records, and about so many bytes of memory.
const TAKEN_MAX: usize = 16 * 1024;
const TAKEN_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Headers of a record that goes out. Each takes more memory here than on the log, where two bytes suffice.
const HEADERS_MAX: usize = 64 * 1024;

/// A topic whose records go to another door.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// Names the positions: a source of another name begins anew.
    pub name: Arc<str>,
    /// The topic.
    pub topic: Arc<str>,
    /// Where it begins that has no position: with all there is, or with what comes.
    pub from_start: bool,
}

/// A record for another door.
#[derive(Debug)]
pub struct Outgoing {
    /// Which source it is from: the number of it in [`crate::Config::sources`], or what [`crate::Shared::add_source`]
    /// said.
    pub source: usize,
    /// Number of its partition.
    pub partition: i32,
    /// Its place there.
    pub offset: u64,
    /// Ms since 1970.
    pub timestamp_ms: i64,
    /// Its key.
    pub key: Option<Vec<u8>>,
    /// Its value; nothing is a tombstone.
    pub value: Option<Vec<u8>>,
    /// Its headers, in order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
}

/// All tails of one shard.
#[derive(Debug, Default)]
pub(crate) struct Tails {
    all: BTreeMap<(usize, PartitionId), Tail>,
    /// The positions of each store, opened when the first tail needs them.
    positions: Vec<Positions>,
    /// The versions of the catalogue and of what is bound for which they are right.
    versions: Option<(u64, u64)>,
    /// Number of sources that there were then.
    sources: usize,
    last_token: u64,
    /// Whose turn is next.
    turn: usize,
    /// A batch of which some has gone out. There is one at most: a small batch may hold millions of records.
    begun: Option<Begun>,
}

/// A batch of which some has gone out.
#[derive(Debug)]
struct Begun {
    of: (usize, PartitionId),
    header: BatchHeader,
    /// Its records as they were before compression, from byte `at` on those to come.
    plain: Vec<u8>,
    at: usize,
    left: u32,
}

/// Records that are gathered to go out together.
#[derive(Debug, Default)]
struct Taken {
    records: Vec<Outgoing>,
    bytes: usize,
    /// Much was passed over, and there is more to read.
    goes_on: bool,
}

impl Taken {
    fn is_full(&self) -> bool {
        self.records.len() >= TAKEN_MAX || self.bytes >= TAKEN_BYTES_MAX
    }
}

/// Where a source was told to stand in a partition.
type Known = BTreeMap<Vec<u8>, u64>;

/// Somebody waits until a position is kept: nobody does.
type Nobody = ();

#[derive(Debug)]
struct Positions {
    store: usize,
    kept: Kept<Nobody>,
    known: Known,
}

#[derive(Debug)]
struct Tail {
    /// Offset of the next record to go out.
    next: u64,
    /// What is kept.
    stored: u64,
    /// A fence that is under way, and what is to be kept when it is over.
    fence: Option<(u64, u64)>,
    /// It cannot be read, and that has been said.
    is_stuck: bool,
    /// A batch has been left out, and that has been said.
    has_left_out: bool,
}

fn position_key(source: &str, id: PartitionId) -> Vec<u8> {
    format!("{source}/{}/{}", hex(id.topic), id.index).into_bytes()
}

impl Shard {
    /// Makes tails for the partitions of sources that are here now, and forgets those that are no more.
    fn settle_tails(&mut self) {
        self.shared.refresh(&mut self.catalogue);
        let versions = (self.catalogue.version, self.bound.version);
        let Some((catalogue_before, bound_before)) = self.tails.versions.replace(versions) else {
            return self.make_tails(|_| true);
        };
        if (catalogue_before, bound_before) == versions {
            return;
        }
        // A topic that comes later has nothing that its source has not waited for; a source that comes later has.
        let has_waited = self.tails.sources;
        self.make_tails(|number| number >= has_waited);
    }

    /// Makes tails; those of sources that are `new` begin with what comes, unless they are to begin at the start.
    fn make_tails(&mut self, is_new: impl Fn(usize) -> bool) {
        let catalogue = Arc::clone(&self.catalogue);
        let bound = Arc::clone(&self.bound);
        self.tails.sources = bound.sources.len();
        self.tails.all.retain(|(source, id), _| {
            catalogue.topic_by_id(id.topic).is_some()
                && bound.sources.get(*source).is_some_and(Option::is_some)
        });
        let is_there = |begun: &Begun| self.tails.all.contains_key(&begun.of);
        self.tails.begun = self.tails.begun.take().filter(is_there);
        for (number, source) in bound.sources.iter().enumerate() {
            let Some(source) = source else { continue };
            let Some(topic) = catalogue.topic(&source.topic) else { continue };
            for index in 0..topic.partitions() {
                let id = topic.partition(index);
                if self.owner_of(id) != Ok(self.me) || self.tails.all.contains_key(&(number, id)) {
                    continue;
                }
                match self.make_tail(source, id, source.from_start || !is_new(number)) {
                    Ok(tail) => drop(self.tails.all.insert((number, id), tail)),
                    Err(error) => log::error!("source {}: partition {index}: {error}", source.name),
                }
            }
        }
    }

    /// What a source is called.
    fn source_name(&self, source: usize) -> Arc<str> {
        let source = self.bound.sources.get(source).and_then(Option::as_ref);
        source.map_or_else(|| "".into(), |source| Arc::clone(&source.name))
    }

    /// A tail that begins at the start if it has no position, or else with what comes.
    fn make_tail(&mut self, source: &Source, id: PartitionId, from_start: bool) -> Result<Tail, Error> {
        let failed = |code: mainstem_kafka::ErrorCode| Error::System(code.name().into());
        let (partition, store) = self.partition(id).map_err(failed)?;
        let (reach, store_index) = (partition.reach(store), partition.store);
        let known = self.positions(store_index)?.known.get(&position_key(&source.name, id)).copied();
        let begin = if from_start { reach.start } else { reach.high_watermark };
        let next = known.unwrap_or(begin).clamp(reach.start, reach.high_watermark);
        let stored = if known.is_some() { next } else { u64::MAX };
        Ok(Tail { next, stored, fence: None, is_stuck: false, has_left_out: false })
    }

    fn positions(&mut self, store: usize) -> Result<&mut Positions, Error> {
        if let Some(at) = self.tails.positions.iter().position(|known| known.store == store) {
            return Ok(&mut self.tails.positions[at]);
        }
        let mut known = Known::new();
        let kept = Kept::open(&mut *self.stores[store].store, LOG, Durability::Os, |key, value| {
            let offset = value.and_then(|value| Some(u64::from_be_bytes(*value.first_chunk()?)));
            match offset {
                Some(offset) => drop(known.insert(key.to_vec(), offset)),
                None => drop(known.remove(key)),
            }
        })?;
        self.tails.positions.push(Positions { store, kept, known });
        Ok(self.tails.positions.last_mut().expect("just pushed"))
    }

    /// Gives out what other doors are to get next, some at a time; nothing if there is none. It may be empty, and
    /// more come when this is asked again.
    pub fn take_outgoing(&mut self) -> Option<Vec<Outgoing>> {
        self.shared.bound.refresh(&mut self.bound);
        if self.bound.sources.is_empty() {
            return None;
        }
        self.settle_tails();
        let keys: Vec<(usize, PartitionId)> = self.tails.all.keys().copied().collect();
        let mut goes_on = false;
        for step in 0..keys.len() {
            let key = keys[(self.tails.turn + step) % keys.len()];
            let taken = self.take_from(key);
            goes_on |= taken.goes_on;
            if !taken.records.is_empty() {
                self.tails.turn = (self.tails.turn + step + 1) % keys.len();
                return Some(taken.records);
            }
        }
        goes_on.then(Vec::new)
    }

    fn take_from(&mut self, key: (usize, PartitionId)) -> Taken {
        let (source, id) = key;
        let mut taken = Taken::default();
        let Some(mut tail) = self.tails.all.remove(&key) else { return taken };
        if let Some(begun) = self.tails.begun.take_if(|begun| begun.of == key) {
            self.take_records(begun, &mut tail, &mut taken);
        }
        if !taken.is_full() {
            match self.read_tail(key, &mut tail, &mut taken) {
                Ok(()) => tail.is_stuck = false,
                Err(error) if !std::mem::replace(&mut tail.is_stuck, true) => {
                    let name = self.source_name(source);
                    log::error!("source {name}: partition {} at {}: {error}", id.index, tail.next);
                }
                Err(_) => {}
            }
        }
        self.tails.all.insert(key, tail);
        taken
    }

    fn read_tail(
        &mut self,
        key: (usize, PartitionId),
        tail: &mut Tail,
        taken: &mut Taken,
    ) -> Result<(), Error> {
        let failed = |code: mainstem_kafka::ErrorCode| Error::System(code.name().into());
        for _ in 0..READS_MAX {
            let (partition, store) = self.partition(key.1).map_err(failed)?;
            let reach = partition.reach(store);
            tail.next = tail.next.max(reach.start);
            if !taken.records.is_empty() || tail.next >= reach.last_stable {
                return Ok(());
            }
            let mut bytes = Vec::new();
            let wanted = tail.next..reach.last_stable;
            store.read(partition.log, wanted.clone(), READ_BYTES, &mut bytes)?;
            let mut aborted = Aborted::new(partition.aborted(wanted));
            let before = tail.next;
            for batch in batches(&bytes) {
                let header = batch.header;
                if aborted.passes_over(&header) {
                    tail.next = header.end_offset();
                    continue;
                }
                if taken.is_full() || !self.take_batch(key, tail, &batch, taken) {
                    break;
                }
            }
            if tail.next == before {
                return Ok(());
            }
        }
        taken.goes_on = true;
        Ok(())
    }

    /// False if it is large, and waits until another that is large has gone out.
    fn take_batch(
        &mut self,
        key: (usize, PartitionId),
        tail: &mut Tail,
        batch: &Batch<'_>,
        taken: &mut Taken,
    ) -> bool {
        let header = batch.header;
        let has_begun = self.tails.begun.is_some();
        if has_begun && (header.records as usize > TAKEN_MAX || header.total_bytes > PASSING_BYTES_MAX) {
            return false;
        }
        match plain(batch, if has_begun { PASSING_BYTES_MAX } else { PLAIN_BYTES_MAX }) {
            Ok(plain) => {
                let begun = Begun { of: key, header, plain: plain.into_owned(), at: 0, left: header.records };
                self.take_records(begun, tail, taken);
            }
            Err(mainstem_compress::Error::TooLarge) if has_begun => return false,
            Err(error) => self.leave_out(key, tail, &header, &error.to_string()),
        }
        true
    }

    /// Takes of a batch what is left of it, as much as may go out at once.
    fn take_records(&mut self, begun: Begun, tail: &mut Tail, taken: &mut Taken) {
        let Begun { of, header, ref plain, at, left } = begun;
        let mut records = Records::resume(header, &plain[at..], left);
        // Where another one has been begun, this is gone through to its end.
        let may_pause = self.tails.begun.is_none();
        while !(taken.is_full() && may_pause) {
            let outgoing = match records.next() {
                None => break,
                Some(Ok(record)) if record.offset < tail.next => continue,
                Some(Ok(record)) => outgoing(of, &header, &record),
                Some(Err(_)) => None,
            };
            let Some(outgoing) = outgoing else {
                return self.leave_out(
                    of,
                    tail,
                    &header,
                    "a record that is malformed, or has too many headers",
                );
            };
            tail.next = outgoing.offset + 1;
            taken.bytes += outgoing.memory_bytes();
            taken.records.push(outgoing);
        }
        let (at, left) = (plain.len() - records.rest().len(), records.left());
        if left > 0 {
            self.tails.begun = Some(Begun { at, left, ..begun });
        } else {
            tail.next = tail.next.max(header.end_offset());
        }
    }

    /// The rest of a batch cannot be read: nobody checks what is in a compressed one when it comes. It must not keep
    /// back what comes behind it.
    fn leave_out(&self, key: (usize, PartitionId), tail: &mut Tail, header: &BatchHeader, why: &str) {
        if !std::mem::replace(&mut tail.has_left_out, true) {
            let (name, index) = (self.source_name(key.0), key.1.index);
            log::error!(
                "source {name}: partition {index}: the batch at {} is left out from {} on: {why}",
                header.base_offset,
                tail.next
            );
        }
        tail.next = tail.next.max(header.end_offset());
    }

    /// Tokens of fences to be asked for: of positions that are to be kept when all before them is safe.
    pub fn wanted_fences(&mut self) -> Vec<u64> {
        let mut tokens = Vec::new();
        for tail in self.tails.all.values_mut() {
            if tail.next != tail.stored && tail.fence.is_none() {
                self.tails.last_token += 1;
                tail.fence = Some((self.tails.last_token, tail.next));
                tokens.push(self.tails.last_token);
            }
        }
        tokens
    }

    /// A fence is over: what went out before it is safe, or may not be.
    pub fn fenced(&mut self, io: &mut Io<'_, Mail>, token: u64, is_safe: bool) {
        let is_it = |tail: &Tail| tail.fence.is_some_and(|(known, _)| known == token);
        let Some((key, tail)) = self.tails.all.iter_mut().find(|(_, tail)| is_it(tail)) else { return };
        let (source, id) = *key;
        let Some((_, position)) = tail.fence.take() else { return };
        if !is_safe {
            return;
        }
        tail.stored = position;
        let name = self.source_name(source);
        let Some(store) = self.partitions.get(&id).map(|partition| partition.store) else { return };
        let Some(at) = self.tails.positions.iter().position(|known| known.store == store) else { return };
        let record = (position_key(&name, id), Some(position.to_be_bytes().to_vec()));
        self.tails.positions[at].kept.keep(&mut *self.stores[store].store, io.clock.unix_ms, &[record], ());
    }

    /// Hands the stores the positions that were gathered in this turn.
    pub(crate) fn store_positions(&mut self) {
        for Positions { store, kept, .. } in &mut self.tails.positions {
            kept.store(&mut *self.stores[*store].store);
        }
    }

    /// Takes note of a completion. False if it is not of positions.
    pub(crate) fn positions_arrived(&mut self, store: usize, completion: &Completion) -> bool {
        let Some(positions) = self.tails.positions.iter_mut().find(|known| known.store == store) else {
            return false;
        };
        positions.kept.arrived(completion, &mut Vec::new())
    }
}

impl Outgoing {
    /// What it takes in memory, about.
    fn memory_bytes(&self) -> usize {
        let len = |part: &Option<Vec<u8>>| part.as_ref().map_or(0, Vec::len);
        let headers = self.headers.iter();
        let headers = headers.map(|header| size_of_val(header) + header.0.len() + len(&header.1));
        size_of::<Self>() + len(&self.key) + len(&self.value) + headers.sum::<usize>()
    }
}

/// A record as it goes out; nothing if its headers cannot be read, or are too many.
fn outgoing(key: (usize, PartitionId), header: &BatchHeader, record: &Record<'_>) -> Option<Outgoing> {
    // Records of a batch whose time is that of its arrival still have their producer's.
    let arrived_ms = (header.attributes & LOG_APPEND_TIME != 0).then_some(header.max_timestamp_ms);
    let headers = Headers::parse(record.headers).ok()?.take(HEADERS_MAX + 1).map(|header| {
        let Header { key, value } = header.ok()?;
        Some((key.to_owned(), value.map(<[u8]>::to_vec)))
    });
    let headers: Vec<_> = headers.collect::<Option<_>>()?;
    (headers.len() <= HEADERS_MAX).then(|| Outgoing {
        source: key.0,
        partition: key.1.index,
        offset: record.offset,
        timestamp_ms: arrived_ms.unwrap_or(record.timestamp_ms),
        key: record.key.map(<[u8]>::to_vec),
        value: record.value.map(<[u8]>::to_vec),
        headers,
    })
}
