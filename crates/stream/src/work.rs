//! What is done where a partition lives, on behalf of a request that may have come to another shard.

use std::sync::Arc;

use mainstem_coordinator::producer::{Active, Membership};
use mainstem_coordinator::transaction::Producer;
use mainstem_kafka::ErrorCode;
use mainstem_log::{Completion, batches};
use mainstem_runtime::{FileBytes, Io};

use crate::catalogue::PartitionId;
use crate::held::Transactional;
use crate::mail::{JobId, Letter, Mail, Watcher};
use crate::markers::MarkPart;
use crate::partition::{Partition, Produced, Reach, Refused, Taken, Waiter};
use crate::shard::Shard;
use crate::shared::Sendable;

/// What a record takes in a batch besides its parts, bytes, at most.
pub(crate) const RECORD_OVERHEAD_BYTES: usize = 61 + 40;

/// Work for a shard that has partitions.
#[derive(Debug)]
pub(crate) enum Work {
    /// Append; each part is answered by itself.
    Produce(Vec<ProducePart>),
    /// Write markers of transactions; each part is answered by itself.
    Mark(Vec<MarkPart>),
    /// Read.
    Fetch(FetchWork),
    /// Anything else, all answered together.
    Ask(Vec<(u32, PartitionId, PartAsk)>),
    /// The fetch has ended: hear no more.
    Forget { watcher: Watcher, partitions: Vec<PartitionId> },
}

/// One batch for one partition.
#[derive(Debug)]
pub(crate) struct ProducePart {
    pub(crate) part: u32,
    pub(crate) id: PartitionId,
    pub(crate) records: Vec<u8>,
    /// The transaction that the request names.
    pub(crate) transactional: Option<Transactional>,
}

/// Partitions to read.
#[derive(Debug)]
pub(crate) struct FetchWork {
    pub(crate) parts: Vec<FetchPart>,
    pub(crate) isolation: Isolation,
    /// Of all together; the first batch comes whatever its size.
    pub(crate) bytes_max: usize,
    /// With less the fetch may have to wait.
    pub(crate) bytes_min: usize,
    /// Who is to hear of news in all these partitions, if what they have [is short](is_short).
    pub(crate) watcher: Option<Watcher>,
}

/// What consumers see of transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Isolation {
    ReadUncommitted,
    ReadCommitted,
}

impl Isolation {
    pub(crate) fn from_level(level: i8) -> Self {
        if level == 1 { Self::ReadCommitted } else { Self::ReadUncommitted }
    }
}

/// One partition to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FetchPart {
    pub(crate) part: u32,
    pub(crate) id: PartitionId,
    pub(crate) offset: i64,
    pub(crate) bytes_max: usize,
}

/// What was read of one partition.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) part: u32,
    pub(crate) outcome: Result<Reach, ErrorCode>,
    /// Transactions that were aborted, of those whose records these are: producer id and first offset.
    pub(crate) aborted: Vec<(i64, i64)>,
    pub(crate) records: Records,
    /// What the partition has: [`Records::found`].
    pub(crate) found: usize,
}

/// Batches as they lie in a log: copied, or where they are.
#[derive(Debug, Default)]
pub(crate) struct Records {
    pub(crate) bytes: Vec<u8>,
    /// What follows them.
    pub(crate) files: Vec<FileRange>,
}

/// Batches in a file.
#[derive(Clone, Debug)]
pub(crate) struct FileRange {
    pub(crate) file: Arc<dyn FileBytes>,
    pub(crate) position: u64,
    pub(crate) len: usize,
    /// Offset behind the last of them.
    pub(crate) end: u64,
}

impl Records {
    /// Offset behind the last batch; nothing if there is none.
    fn end(&self) -> Option<u64> {
        let of_files = self.files.last().map(|range| range.end);
        of_files.or_else(|| batches(&self.bytes).last().map(|batch| batch.header.end_offset()))
    }

    /// Bytes that a partition has for a consumer who takes `bytes_max`, which whole batches may make less of: a fetch
    /// that waits for as much as it takes must not wait for more.
    pub(crate) fn found(&self, end: u64, bytes_max: usize) -> usize {
        let is_cut = self.end().is_some_and(|own| own < end);
        if is_cut { self.len().max(bytes_max) } else { self.len() }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() + self.files.iter().map(|range| range.len).sum::<usize>()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A question about a partition, or an order.
#[derive(Clone, Debug)]
pub(crate) enum PartAsk {
    /// The offset for a timestamp, as `ListOffsets` names them.
    Offset { timestamp_ms: i64, isolation: Isolation },
    /// Remove records before this offset; -1 for all.
    DeleteBefore(i64),
    /// How far it reaches.
    Reach,
    /// Bytes on disk, and how far it reaches.
    Size,
    /// The producers it knows.
    Producers,
}

/// The answer.
#[derive(Clone, Debug)]
pub(crate) enum PartAnswer {
    Offset { offset: i64, timestamp_ms: i64 },
    DeletedBefore(i64),
    Reach(Reach),
    Size { bytes: u64 },
    Producers(Vec<Active>),
    Failed(ErrorCode),
}

/// What has become of work.
#[derive(Debug)]
pub(crate) enum Done {
    Produced(Produced),
    Fetched(Vec<Fetched>),
    Asked(Vec<(u32, PartAnswer)>),
}

impl Shard {
    /// Does work here, whoever wants it.
    pub(crate) fn begin_work(&mut self, io: &mut Io<'_, Mail>, job: JobId, work: Work) {
        match work {
            Work::Produce(parts) => {
                for ProducePart { part, id, records, transactional } in parts {
                    self.produce_here(io, (job, part, id), &records, transactional.as_ref());
                }
            }
            Work::Mark(parts) => {
                for part in parts {
                    self.mark_here(io, job, part);
                }
            }
            Work::Fetch(work) => {
                let fetched = self.fetch_here(&work);
                self.work_done(io, job, Done::Fetched(fetched));
            }
            Work::Ask(asks) => {
                let answer = |(part, id, ask): (u32, PartitionId, PartAsk)| {
                    let answer = self.ask_here(id, &ask);
                    (part, answer.unwrap_or_else(PartAnswer::Failed))
                };
                let answers = asks.into_iter().map(answer).collect();
                self.work_done(io, job, Done::Asked(answers));
            }
            Work::Forget { watcher, partitions } => {
                for id in partitions {
                    self.forget_watcher(id, watcher);
                }
            }
        }
    }

    /// Tells whoever wanted work what has become of it.
    pub(crate) fn work_done(&mut self, io: &mut Io<'_, Mail>, job: JobId, done: Done) {
        if job.shard == self.me {
            self.finish_part(io, job.job, done);
        } else {
            io.send(job.shard, Mail(Letter::Done { job: job.job, done }));
        }
    }

    /// Appends a batch here; its producer hears of it when it is durable.
    pub(crate) fn produce_here(
        &mut self,
        io: &mut Io<'_, Mail>,
        to: (JobId, u32, PartitionId),
        records: &[u8],
        transactional: Option<&Transactional>,
    ) {
        if let Err(refused) = self.try_produce(io, to, records, transactional) {
            let (job, part, _) = to;
            self.work_done(io, job, Done::Produced(Produced { part, outcome: Err(refused) }));
        }
    }

    fn try_produce(
        &mut self,
        io: &mut Io<'_, Mail>,
        to: (JobId, u32, PartitionId),
        records: &[u8],
        transactional: Option<&Transactional>,
    ) -> Result<(), Refused> {
        self.queue_takes(to.2, records)?;
        let (partition, _) = self.partition(to.2)?;
        if let (Some(transactional), Some(producer)) = (transactional, producer_of(records))
            && partition.held.has(producer.id)
        {
            return self.hold(io, to, producer, records, transactional);
        }
        match (self.append_here(io, to, records, Membership::Unknown)?, transactional) {
            (None, _) => {
                self.queue_has_taken(to.2, records);
                Ok(())
            }
            (Some(producer), Some(transactional)) => self.hold(io, to, producer, records, transactional),
            (Some(_), None) => Err(ErrorCode::TransactionalIdAuthorizationFailed.into()),
        }
    }

    /// Appends a batch here, unless the coordinator must be asked about its producer first.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn append_here(
        &mut self,
        io: &mut Io<'_, Mail>,
        (job, part, id): (JobId, u32, PartitionId),
        records: &[u8],
        membership: Membership,
    ) -> Result<Option<Producer>, Refused> {
        self.mend_queue(io, id)?;
        let (partition, store) = self.partition(id)?;
        match partition.append(store, records, io.clock.unix_ms, membership)? {
            Taken::Unverified(producer) => return Ok(Some(producer)),
            Taken::Appended { placed, end } | Taken::Duplicate { placed, end } => {
                if !partition.wait(Waiter { job, part, placed }, end) {
                    self.work_done(io, job, Done::Produced(Produced { part, outcome: Ok(placed) }));
                }
            }
        }
        Ok(None)
    }

    fn mark_here(&mut self, io: &mut Io<'_, Mail>, job: JobId, MarkPart { part, id, marker }: MarkPart) {
        let mended = self.mend_queue(io, id);
        let marked = mended.and_then(|()| {
            let (partition, store) = self.partition(id)?;
            let taken = partition.mark(store, &marker, io.clock.unix_ms)?;
            if let Taken::Appended { placed, end } = taken {
                partition.wait(Waiter { job, part, placed }, end);
            }
            Ok(())
        });
        if let Err(refused) = marked {
            self.work_done(io, job, Done::Produced(Produced { part, outcome: Err(refused) }));
        }
    }

    /// Reads partitions that are here.
    pub(crate) fn fetch_here(&mut self, work: &FetchWork) -> Vec<Fetched> {
        let mut left = work.bytes_max;
        let mut all = Vec::with_capacity(work.parts.len());
        let mut is_first = true;
        for part in &work.parts {
            let mut fetched = Fetched {
                part: part.part,
                outcome: Err(ErrorCode::None),
                aborted: Vec::new(),
                records: Records::default(),
                found: 0,
            };
            let bytes_max = part.bytes_max.min(left);
            let Fetched { aborted, records, .. } = &mut fetched;
            let outcome = self.read_here(part, work.isolation, bytes_max, is_first, aborted, records);
            left = left.saturating_sub(fetched.records.len());
            is_first &= fetched.records.is_empty();
            // Whoever waits for any is not concerned with how many there are.
            fetched.found = match outcome {
                Ok(reach) if work.bytes_min > 1 => {
                    fetched.records.found(reach.end(work.isolation), bytes_max)
                }
                _ => fetched.records.len(),
            };
            fetched.outcome = outcome;
            all.push(fetched);
        }
        if let Some(watcher) = work.watcher
            && is_short(&all, work.bytes_min)
        {
            for part in &work.parts {
                self.watch(part.id, watcher);
            }
        }
        all
    }

    /// Reads one partition. Unless `is_first`, nothing comes if not even one batch fits.
    pub(crate) fn read_here(
        &mut self,
        part: &FetchPart,
        isolation: Isolation,
        bytes_max: usize,
        is_first: bool,
        aborted: &mut Vec<(i64, i64)>,
        into: &mut Records,
    ) -> Result<Reach, ErrorCode> {
        let sendable = self.shared.sendable;
        if self.is_unmade(part.id) {
            return if part.offset == 0 { Ok(Reach::default()) } else { Err(ErrorCode::OffsetOutOfRange) };
        }
        let (partition, store) = self.partition(part.id)?;
        let reach = partition.reach(store);
        let offset = u64::try_from(part.offset).map_err(|_| ErrorCode::OffsetOutOfRange)?;
        if offset < reach.start || offset > reach.high_watermark {
            return Err(ErrorCode::OffsetOutOfRange);
        }
        let end = reach.end(isolation);
        if offset < end && (is_first || bytes_max > 0) {
            let files = match sendable {
                Some(sendable) => find_files(store, partition.log, offset..end, bytes_max, sendable),
                None => Ok(None),
            };
            match files.map_err(|error| read_error(&error))? {
                Some(files) => into.files = files,
                None => store
                    .read(partition.log, offset..end, bytes_max, &mut into.bytes)
                    .map_err(|error| read_error(&error))?,
            }
            if !is_first && into.len() > bytes_max {
                *into = Records::default();
            } else if isolation == Isolation::ReadCommitted {
                *aborted = partition.aborted(offset..end);
            }
        }
        Ok(reach)
    }

    fn ask_here(&mut self, id: PartitionId, ask: &PartAsk) -> Result<PartAnswer, ErrorCode> {
        if self.is_unmade(id) {
            return crate::unmade::answer(ask);
        }
        let (partition, store) = self.partition(id)?;
        let reach = partition.reach(store);
        Ok(match *ask {
            PartAsk::Offset { timestamp_ms, isolation } => {
                return crate::handlers::list_offsets::find(partition, store, reach, timestamp_ms, isolation);
            }
            PartAsk::DeleteBefore(offset) => {
                let offset = if offset == -1 { reach.high_watermark } else { offset.max(-1).cast_unsigned() };
                if offset > reach.high_watermark {
                    return Err(ErrorCode::OffsetOutOfRange);
                }
                store.truncate_prefix(partition.log, offset).map_err(|error| read_error(&error))?;
                let start = partition.reach(store).start;
                self.started_later(id);
                PartAnswer::DeletedBefore(start.cast_signed())
            }
            PartAsk::Reach => PartAnswer::Reach(reach),
            PartAsk::Producers => PartAnswer::Producers(partition.producers()),
            PartAsk::Size => PartAnswer::Size { bytes: store.status(partition.log).bytes },
        })
    }

    /// A partition that lives here, opened if need be, and its store.
    pub(crate) fn partition(
        &mut self,
        id: PartitionId,
    ) -> Result<(&mut Partition, &mut dyn mainstem_log::Store), ErrorCode> {
        if !self.partitions.contains_key(&id) {
            self.open_partition(id)?;
        }
        let partition = self.partitions.get_mut(&id).ok_or(ErrorCode::UnknownTopicOrPartition)?;
        let store = &mut *self.stores[partition.store].store;
        Ok((partition, store))
    }

    fn open_partition(&mut self, id: PartitionId) -> Result<(), ErrorCode> {
        self.shared.refresh(&mut self.catalogue);
        let unknown = ErrorCode::UnknownTopicOrPartition;
        let topic = Arc::clone(self.catalogue.topic_by_id(id.topic).ok_or(unknown)?);
        let home = topic.home(id.index).ok_or(unknown)?;
        let at = self.stores.iter().position(|known| known.home == home).ok_or(unknown)?;
        let found = self.snapshots[at].take(id);
        let store = &mut *self.stores[at].store;
        let opened = Partition::open(&topic, id.index, at, store, &found, self.unix_ms);
        let partition = opened.map_err(|error| {
            log::error!("partition {}-{}: {error}", topic.name, id.index);
            ErrorCode::KafkaStorageError
        })?;
        self.by_log.insert((at, partition.log), id);
        self.partitions.insert(id, partition);
        self.tending.has_opened(id);
        self.is_made(id);
        Ok(())
    }

    /// Takes note of what has become durable in a store.
    pub(crate) fn partition_arrived(&mut self, io: &mut Io<'_, Mail>, at: usize, completion: &Completion) {
        let Some(id) = self.by_log.get(&(at, completion.log)) else { return };
        let Some(partition) = self.partitions.get_mut(id) else { return };
        let mut told = Vec::new();
        let watchers = partition.arrived(completion, |job, produced| told.push((job, produced)));
        let id = *id;
        for (job, produced) in told {
            self.work_done(io, job, Done::Produced(produced));
        }
        if watchers.is_some() {
            self.stir_queue(io, id);
        }
        for watcher in watchers.into_iter().flatten() {
            self.tell_news(io, watcher);
        }
    }

    pub(crate) fn tell_news(&mut self, io: &mut Io<'_, Mail>, watcher: Watcher) {
        if watcher.shard == self.me {
            self.hear_news(io, watcher.job);
        } else {
            io.send(watcher.shard, Mail(Letter::News { watcher }));
        }
    }

    /// Removes partitions that are here; their topic is no more.
    pub(crate) fn remove_partitions(&mut self, io: &mut Io<'_, Mail>, partitions: Vec<PartitionId>) {
        for id in partitions {
            self.remove_queue(io, id);
            if let Some(partition) = self.partitions.remove(&id) {
                let (at, log) = (partition.store, partition.log);
                let mut told = Vec::new();
                let watchers = partition.dissolve(|job, produced| told.push((job, produced)));
                for (job, produced) in told {
                    self.work_done(io, job, Done::Produced(produced));
                }
                for watcher in watchers {
                    self.tell_news(io, watcher);
                }
                self.by_log.remove(&(at, log));
                self.snapshots[at].remove(&mut *self.stores[at].store, io.clock.unix_ms, id);
                self.tending.remove_log(at, log);
            } else if let Some(at) = self.tending.remove_unopened(id) {
                self.snapshots[at].remove(&mut *self.stores[at].store, io.clock.unix_ms, id);
            } else {
                self.forget_unmade(io, id);
            }
        }
    }
}

/// Where the files have what is wanted; nothing if it is better read.
fn find_files(
    store: &mut dyn mainstem_log::Store,
    log: mainstem_log::LogId,
    offsets: std::ops::Range<u64>,
    bytes_max: usize,
    sendable: Sendable,
) -> Result<Option<Vec<FileRange>>, mainstem_log::Error> {
    let Some(pieces) = store.pieces(log, offsets, bytes_max)? else { return Ok(None) };
    let range = |piece: mainstem_log::Piece| {
        let file = sendable(&piece.source)?;
        Some(FileRange { file, position: piece.position, len: piece.len as usize, end: piece.end })
    };
    Ok(pieces.into_iter().map(range).collect())
}

/// The producer that a batch names.
fn producer_of(records: &[u8]) -> Option<Producer> {
    let header = mainstem_log::BatchHeader::parse(records).ok()?;
    Some(Producer { id: header.producer_id, epoch: header.producer_epoch })
}

/// Whether what a shard has read does not suffice to answer a fetch that wants `bytes_min`. An error always does.
/// Both sides ask: the shard that reads has the fetch hear of news then, and the other lets that be forgotten.
pub(crate) fn is_short(all: &[Fetched], bytes_min: usize) -> bool {
    let bytes: usize = all.iter().map(|fetched| fetched.found).sum();
    bytes < bytes_min && all.iter().all(|fetched| fetched.outcome.is_ok())
}

fn read_error(error: &mainstem_log::Error) -> ErrorCode {
    log::error!("a partition cannot be read: {error}");
    match error {
        mainstem_log::Error::OutOfRange => ErrorCode::OffsetOutOfRange,
        _ => ErrorCode::KafkaStorageError,
    }
}
