//! Records on their way to other doors: partitions of bound topics are read to their end, and on as it moves.
//!
//! How far is kept, once everything before it is safe on the other side; so a crash lets some records go out twice,
//! and none get lost.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_compress::batch::plain;
use mainstem_kafka::record::{Header, Headers};
use mainstem_log::{Batch, BatchHeader, Completion, Durability, Error, Records, batches};
use mainstem_runtime::Io;

use crate::catalogue::{PartitionId, hex};
use crate::kept::Kept;
use crate::mail::Mail;
use crate::partition::{LOG_APPEND_TIME, PLAIN_BYTES_MAX};
use crate::shard::Shard;

/// The log of positions, in each store with bound partitions.
const LOG: &str = "kafka-positions";
/// Bytes read at once.
const READ_BYTES: usize = 256 * 1024;

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
    /// Which of [`crate::Config::sources`] it is from.
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
    /// The catalogue's version for which they are right.
    version: Option<u64>,
    last_token: u64,
    /// Whose turn is next.
    turn: usize,
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
    is_stuck: bool,
}

fn position_key(source: &str, id: PartitionId) -> Vec<u8> {
    format!("{source}/{}/{}", hex(id.topic), id.index).into_bytes()
}

impl Shard {
    /// Makes tails for the partitions of sources that are here now, and forgets those that are no more.
    fn settle_tails(&mut self) {
        self.shared.refresh(&mut self.catalogue);
        if self.tails.version == Some(self.catalogue.version) {
            return;
        }
        let is_first = self.tails.version.is_none();
        self.tails.version = Some(self.catalogue.version);
        let catalogue = Arc::clone(&self.catalogue);
        let shared = Arc::clone(&self.shared);
        self.tails.all.retain(|(_, id), _| catalogue.topic_by_id(id.topic).is_some());
        // A topic that comes later has nothing that its source has not waited for.
        for (number, source) in shared.config.sources.iter().enumerate() {
            let Some(topic) = catalogue.topic(&source.topic) else { continue };
            for index in 0..topic.partitions() {
                let id = topic.partition(index);
                if self.owner_of(id) != Ok(self.me) || self.tails.all.contains_key(&(number, id)) {
                    continue;
                }
                match self.make_tail(source, id, source.from_start || !is_first) {
                    Ok(tail) => drop(self.tails.all.insert((number, id), tail)),
                    Err(error) => log::error!("source {}: partition {index}: {error}", source.name),
                }
            }
        }
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
        Ok(Tail { next, stored, fence: None, is_stuck: false })
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

    /// Gives out what other doors are to get next, a batch or so at a time.
    pub fn take_outgoing(&mut self) -> Vec<Outgoing> {
        if self.shared.config.sources.is_empty() {
            return Vec::new();
        }
        self.settle_tails();
        let keys: Vec<(usize, PartitionId)> = self.tails.all.keys().copied().collect();
        for step in 0..keys.len() {
            let key = keys[(self.tails.turn + step) % keys.len()];
            let taken = self.take_from(key);
            if !taken.is_empty() {
                self.tails.turn = (self.tails.turn + step + 1) % keys.len();
                return taken;
            }
        }
        Vec::new()
    }

    fn take_from(&mut self, key: (usize, PartitionId)) -> Vec<Outgoing> {
        let (source, id) = key;
        let mut taken = Vec::new();
        let Some(mut tail) = self.tails.all.remove(&key) else { return taken };
        if let Err(error) = self.read_tail(source, id, &mut tail, &mut taken)
            && !std::mem::replace(&mut tail.is_stuck, true)
        {
            let name = &self.shared.config.sources[source].name;
            log::error!("source {name}: partition {} at {}: {error}", id.index, tail.next);
        }
        self.tails.all.insert(key, tail);
        taken
    }

    fn read_tail(
        &mut self,
        source: usize,
        id: PartitionId,
        tail: &mut Tail,
        taken: &mut Vec<Outgoing>,
    ) -> Result<(), Error> {
        let failed = |code: mainstem_kafka::ErrorCode| Error::System(code.name().into());
        let (partition, store) = self.partition(id).map_err(failed)?;
        let reach = partition.reach(store);
        tail.next = tail.next.max(reach.start);
        while taken.is_empty() && tail.next < reach.last_stable {
            let mut bytes = Vec::new();
            let wanted = tail.next..reach.last_stable;
            store.read(partition.log, wanted.clone(), READ_BYTES, &mut bytes)?;
            let ahead = partition.aborted(wanted);
            let mut aborted = Aborted { ahead, open: Vec::new() };
            let before = tail.next;
            for batch in batches(&bytes) {
                let header = batch.header;
                if !aborted.passes_over(&header) {
                    take_records(source, id.index, tail.next, &batch, taken)?;
                }
                tail.next = tail.next.max(header.end_offset()).min(reach.last_stable);
            }
            if tail.next == before {
                break;
            }
        }
        tail.is_stuck = false;
        Ok(())
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
        let name = Arc::clone(&self.shared.config.sources[source].name);
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

/// Batches of aborted transactions, which consumers do not see.
struct Aborted {
    /// Producer and first offset of those that are yet to come, or have begun before.
    ahead: Vec<(i64, i64)>,
    /// Producers whose transaction is being passed over.
    open: Vec<i64>,
}

impl Aborted {
    /// Whether a batch is none that consumers see: a marker, or part of an aborted transaction.
    fn passes_over(&mut self, header: &BatchHeader) -> bool {
        let producer = header.producer_id;
        if header.is_control() {
            // A producer has one transaction at a time, and this ends it.
            self.open.retain(|known| *known != producer);
            return true;
        }
        if !header.is_transactional() {
            return false;
        }
        let begun = header.base_offset.cast_signed();
        if let Some(at) = self.ahead.iter().position(|(known, first)| *known == producer && *first <= begun) {
            self.ahead.swap_remove(at);
            self.open.push(producer);
        }
        self.open.contains(&producer)
    }
}

fn take_records(
    source: usize,
    partition: i32,
    next: u64,
    batch: &Batch<'_>,
    taken: &mut Vec<Outgoing>,
) -> Result<(), Error> {
    let corrupt = Error::Corrupt { offset: batch.header.base_offset };
    // Records of a batch whose time is that of its arrival still have their producer's.
    let arrived_ms =
        (batch.header.attributes & LOG_APPEND_TIME != 0).then_some(batch.header.max_timestamp_ms);
    let bytes = plain(batch, PLAIN_BYTES_MAX).map_err(|_| corrupt.clone())?;
    for record in Records::of(batch.header, &bytes) {
        let record = record.map_err(|_| corrupt.clone())?;
        if record.offset < next {
            continue;
        }
        let headers = Headers::parse(record.headers).map_err(|_| corrupt.clone())?;
        let headers = headers
            .map(|header| header.map(|Header { key, value }| (key.to_owned(), value.map(<[u8]>::to_vec))));
        taken.push(Outgoing {
            source,
            partition,
            offset: record.offset,
            timestamp_ms: arrived_ms.unwrap_or(record.timestamp_ms),
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.map(<[u8]>::to_vec),
            headers: headers.collect::<Result<_, _>>().map_err(|_| corrupt.clone())?,
        });
    }
    Ok(())
}
