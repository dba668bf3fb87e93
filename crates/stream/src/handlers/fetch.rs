//! `Fetch`, versions 4 to 18: batches from where partitions live, as they are. Runs here.
//!
//! A fetch that finds less than it wants is parked: the partitions have it as a watcher, and the first news, or its
//! deadline, lets it look again from the beginning.

use std::sync::Arc;

use mainstem_kafka::api::fetch::{AbortedTransaction, FetchRequest, FetchResponseWriter, PartitionData};
use mainstem_kafka::{ErrorCode, Uuid, frame, put_response_header};
use mainstem_runtime::Io;

use crate::catalogue::PartitionId;
use crate::handlers::fetch_session::{PartKey, Plan, Want};
use crate::handlers::offset_for_leader_epoch::{LEADER_EPOCH, check_epoch};
use crate::jobs::Job;
use crate::mail::{Call, Letter, Mail, Watcher};
use crate::partition::Reach;
use crate::shard::{Shard, Timer};
use crate::work::{FetchWork, Fetched, FileRange, Isolation, Records, Work, is_short};

/// What one response carries at most, bytes, whatever the consumer allows (`fetch.max.bytes`).
const RESPONSE_BYTES_MAX: usize = 55 * 1024 * 1024;
/// The most of it that waits in memory.
const COPIED_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Longest wait that is granted, ms.
const WAIT_MS_MAX: i32 = 5 * 60 * 1000;

/// A fetch that is under way, or parked.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "facts about a fetch, independent of each other")]
pub(crate) struct FetchJob {
    call: Call,
    deadline_ms: u64,
    bytes_min: usize,
    bytes_max: usize,
    isolation: Isolation,
    session_id: i32,
    is_incremental: bool,
    parts: Vec<Part>,
    /// Shards that have not said what they have.
    waiting: u32,
    is_parked: bool,
    has_parked: bool,
    /// There has been news while it was being looked after.
    has_news: bool,
    /// Its deadline has passed, or it need not wait.
    is_due: bool,
}

#[derive(Debug)]
struct Part {
    key: PartKey,
    want: Want,
    place: Result<Place, ErrorCode>,
    /// What another shard has read.
    fetched: Option<Fetched>,
    /// Another shard may have the fetch hear of news in it.
    is_watched: bool,
}

impl Part {
    /// What another shard has read, bytes.
    fn bytes_fetched(&self) -> usize {
        self.fetched.as_ref().map_or(0, |fetched| fetched.records.len())
    }
}

#[derive(Clone, Copy, Debug)]
struct Place {
    id: PartitionId,
    shard: usize,
}

pub(crate) fn handle(shard: &mut Shard, io: &mut Io<'_, Mail>, call: Call, request: FetchRequest) {
    // A topic whose deletion has been answered is not there any more.
    shard.shared.refresh(&mut shard.catalogue);
    let Some(conn) = shard.conns.get_mut(call.caller.conn.slot()) else { return };
    let mine = &mut conn.fetch_session;
    let plan = shard.fetch_sessions.plan(call.caller.conn, mine, call.version, &request);
    let Plan { parts, session_id, is_incremental } = match plan {
        Ok(plan) => plan,
        Err(code) => return answer_error(shard, io, &call, code),
    };
    let wait_ms = request.max_wait_ms.clamp(0, WAIT_MS_MAX);
    let bytes_max = (request.max_bytes.max(0).unsigned_abs() as usize).min(RESPONSE_BYTES_MAX);
    let bytes_min = (request.min_bytes.max(0).unsigned_abs() as usize).min(bytes_max);
    let asks_for_nothing = parts.is_empty();
    let parts = parts.into_iter().map(|(key, want)| {
        let place = locate(shard, session_id, &key, &want);
        Part { key, want, place, fetched: None, is_watched: false }
    });
    let job = FetchJob {
        deadline_ms: io.clock.now_ms + u64::from(wait_ms.unsigned_abs()),
        bytes_min,
        bytes_max,
        isolation: Isolation::from_level(request.isolation_level),
        session_id,
        is_incremental,
        parts: parts.collect(),
        waiting: 0,
        is_parked: false,
        has_parked: false,
        has_news: false,
        is_due: wait_ms == 0 || bytes_min == 0 || asks_for_nothing,
        call,
    };
    let conn = job.call.caller.conn;
    let number = shard.jobs.add(Job::Fetch(Box::new(job)));
    if let Some(conn) = shard.conn_mut(conn) {
        conn.fetch_job = number;
    }
    shard.look(io, number);
}

fn locate(shard: &mut Shard, session_id: i32, key: &PartKey, want: &Want) -> Result<Place, ErrorCode> {
    let catalogue = &shard.catalogue;
    let topic = if key.topic_id == Uuid::default() {
        catalogue.topic(&key.topic).ok_or(ErrorCode::UnknownTopicOrPartition)?
    } else {
        match (catalogue.topic_by_id(key.topic_id), &want.name) {
            (Some(topic), Some(_)) => topic,
            (Some(topic), None) => {
                shard.fetch_sessions.named(session_id, key, &topic.name);
                topic
            }
            (None, None) => return Err(ErrorCode::UnknownTopicId),
            // As in Kafka, a session looks for what the identifier has named before.
            (None, Some(name)) if catalogue.topic(name).is_some() => {
                return Err(ErrorCode::InconsistentTopicId);
            }
            (None, Some(_)) => return Err(ErrorCode::UnknownTopicOrPartition),
        }
    };
    let home = topic.home(key.index).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    check_epoch(want.current_leader_epoch)?;
    // Of epochs to come it cannot have read anything.
    if want.last_fetched_epoch > LEADER_EPOCH {
        return Err(ErrorCode::OffsetOutOfRange);
    }
    Ok(Place { id: topic.partition(key.index), shard: shard.shared.owner(home) })
}

/// Whether a partition is answered with an error that is told in the end, and does not keep the others from waiting:
/// there is no such partition. Any other error is told at once.
fn is_left_out(part: &Part) -> bool {
    matches!(part.place, Err(ErrorCode::UnknownTopicOrPartition | ErrorCode::UnknownTopicId))
}

fn answer_error(shard: &mut Shard, io: &mut Io<'_, Mail>, call: &Call, code: ErrorCode) {
    let response = mainstem_kafka::api::fetch::FetchResponse {
        error_code: code as i16,
        ..mainstem_kafka::api::fetch::FetchResponse::default()
    };
    shard.reply::<FetchRequest>(io, call, &response);
}

impl FetchJob {
    fn watcher(&self, number: u64) -> Watcher {
        Watcher { shard: self.call.caller.shard, job: number }
    }
}

impl Shard {
    fn take_fetch(&mut self, number: u64) -> Option<Box<FetchJob>> {
        if !matches!(self.jobs.get(number), Some(Job::Fetch(_))) {
            return None;
        }
        match self.jobs.take(number) {
            Some(Job::Fetch(job)) => Some(job),
            _ => None,
        }
    }

    /// Looks for records: first where other shards have partitions.
    fn look(&mut self, io: &mut Io<'_, Mail>, number: u64) {
        let Some(mut job) = self.take_fetch(number) else { return };
        if self.conn_mut(job.call.caller.conn).is_none() {
            return self.forget_fetch(io, number, &job);
        }
        job.has_news = false;
        let watcher = (!job.is_due).then(|| job.watcher(number));
        let mut elsewhere: Vec<FetchWork> = Vec::new();
        for (part, Part { want, place, .. }) in job.parts.iter().enumerate() {
            let Ok(Place { id, shard }) = *place else { continue };
            if shard == self.me {
                continue;
            }
            if elsewhere.is_empty() {
                let work = |_| FetchWork {
                    parts: Vec::new(),
                    isolation: job.isolation,
                    bytes_max: job.bytes_max,
                    bytes_min: job.bytes_min,
                    watcher,
                };
                elsewhere.extend((0..self.shared.shards).map(work));
            }
            elsewhere[shard].parts.push(want.part(part as u32, id));
        }
        // All together they are to find no more than the consumer takes.
        for work in &mut elsewhere {
            let share = job.bytes_max * work.parts.len() / job.parts.len();
            work.bytes_max = share.max(job.bytes_min);
        }
        job.waiting = elsewhere.iter().filter(|work| !work.parts.is_empty()).count() as u32;
        if job.waiting == 0 {
            return self.assemble(io, number, job);
        }
        self.jobs.put(number, Job::Fetch(job));
        for (shard, work) in elsewhere.into_iter().enumerate().filter(|(_, work)| !work.parts.is_empty()) {
            self.give_work(io, shard, number, Work::Fetch(work));
        }
    }

    /// Another shard has looked.
    pub(crate) fn fetched(&mut self, io: &mut Io<'_, Mail>, number: u64, all: Vec<Fetched>) {
        let Some(mut job) = self.take_fetch(number) else { return };
        let is_watched = is_short(&all, job.bytes_min);
        for fetched in all {
            let part = &mut job.parts[fetched.part as usize];
            part.fetched = Some(fetched);
            part.is_watched |= is_watched;
        }
        job.waiting -= 1;
        if job.waiting == 0 {
            self.assemble(io, number, job);
        } else {
            self.jobs.put(number, Job::Fetch(job));
        }
    }

    /// A partition that a parked fetch waits for has news.
    pub(crate) fn hear_news(&mut self, io: &mut Io<'_, Mail>, number: u64) {
        if let Some(Job::Fetch(job)) = self.jobs.get(number) {
            job.has_news = true;
            if std::mem::take(&mut job.is_parked) {
                self.look(io, number);
            }
        }
    }

    /// A fetch has waited long enough.
    pub(crate) fn fetch_is_due(&mut self, io: &mut Io<'_, Mail>, number: u64) {
        if let Some(Job::Fetch(job)) = self.jobs.get(number) {
            job.is_due = true;
            if std::mem::take(&mut job.is_parked) {
                self.look(io, number);
            }
        }
    }

    /// A connection has gone: its fetch need not wait any longer. One that is not parked finds out by itself.
    pub(crate) fn drop_fetch(&mut self, io: &mut Io<'_, Mail>, number: u64) {
        let is_parked = matches!(self.jobs.get(number), Some(Job::Fetch(job)) if job.is_parked);
        if is_parked && let Some(job) = self.take_fetch(number) {
            self.forget_fetch(io, number, &job);
        }
    }

    /// All is known but what is here: answers, or parks.
    fn assemble(&mut self, io: &mut Io<'_, Mail>, number: u64, mut job: Box<FetchJob>) {
        if self.conn_mut(job.call.caller.conn).is_none() {
            return self.forget_fetch(io, number, &job);
        }
        if !job.is_due && !self.has_enough(&job) {
            if job.has_news {
                // Whoever had it does not tell again.
                self.jobs.put(number, Job::Fetch(job));
                return self.look(io, number);
            }
            let watcher = job.watcher(number);
            for part in &mut job.parts {
                part.fetched = None;
                if let Ok(Place { id, shard }) = part.place
                    && shard == self.me
                {
                    self.watch(id, watcher);
                }
            }
            if !std::mem::replace(&mut job.has_parked, true) {
                io.set_timer(job.deadline_ms, Timer::Fetch(number).token());
            }
            job.is_parked = true;
            self.jobs.put(number, Job::Fetch(job));
            return;
        }
        self.forget_fetch(io, number, &job);
        self.write(io, &mut job);
    }

    /// Whether there are enough bytes, or an error, which need not wait.
    fn has_enough(&mut self, job: &FetchJob) -> bool {
        let mut to_wait_for = job.parts.iter().filter(|part| !is_left_out(part)).peekable();
        if to_wait_for.peek().is_none() || to_wait_for.any(|part| part.place.is_err()) {
            return true;
        }
        let mut bytes = 0;
        for part in &job.parts {
            let Ok(Place { id, shard }) = part.place else { continue };
            if let Some(fetched) = &part.fetched {
                if fetched.outcome.is_err() {
                    return true;
                }
                bytes += fetched.found;
            } else if shard == self.me {
                let Ok(reach) = self.reach_of(&part.want, id) else { return true };
                if has_records(&part.want, reach, job.isolation) {
                    if job.bytes_min <= 1 {
                        return true;
                    }
                    let mut plain = Records::default();
                    let wanted = part.want.part(0, id);
                    let read = self.read_here(
                        &wanted,
                        job.isolation,
                        wanted.bytes_max,
                        true,
                        &mut Vec::new(),
                        &mut plain,
                    );
                    let Ok(reach) = read else { return true };
                    bytes += plain.found(reach.end(job.isolation), wanted.bytes_max);
                }
            }
            if bytes >= job.bytes_min.max(1) {
                return true;
            }
        }
        false
    }

    /// How far a partition of this shard reaches, if it has the offset that is wanted.
    fn reach_of(&mut self, want: &Want, id: PartitionId) -> Result<Reach, ErrorCode> {
        let reach = self.reach_here(id)?;
        let is_there = u64::try_from(want.offset)
            .is_ok_and(|offset| (reach.start..=reach.high_watermark).contains(&offset));
        if is_there { Ok(reach) } else { Err(ErrorCode::OffsetOutOfRange) }
    }

    /// Lets nobody wake a fetch that has ended.
    fn forget_fetch(&mut self, io: &mut Io<'_, Mail>, number: u64, job: &FetchJob) {
        if !job.has_parked && job.parts.iter().all(|part| !part.is_watched) {
            return;
        }
        let watcher = job.watcher(number);
        let mut elsewhere: Vec<Vec<PartitionId>> = vec![Vec::new(); self.shared.shards];
        for part in &job.parts {
            let Ok(Place { id, shard }) = part.place else { continue };
            if shard == self.me {
                self.forget_watcher(id, watcher);
            } else if part.is_watched {
                elsewhere[shard].push(id);
            }
        }
        for (shard, partitions) in elsewhere.into_iter().enumerate().filter(|(_, ids)| !ids.is_empty()) {
            let job = crate::mail::JobId { shard: self.me, job: number };
            io.send(shard, Mail(Letter::Work { job, work: Work::Forget { watcher, partitions } }));
        }
    }

    /// Writes the response, with the records of this shard read right into the connection's output.
    fn write(&mut self, io: &mut Io<'_, Mail>, job: &mut FetchJob) {
        // What each partition is answered with, as far as it is known before its records are read.
        let mut known = Vec::with_capacity(job.parts.len());
        for part in &job.parts {
            let outcome = match (&part.place, &part.fetched) {
                (Err(code), _) => Err(*code),
                (Ok(_), Some(fetched)) => fetched.outcome,
                (Ok(place), None) => self.reach_of(&part.want, place.id),
            };
            let has_records = match (&outcome, &part.fetched) {
                (Ok(_), Some(fetched)) => !fetched.records.is_empty(),
                (Ok(reach), None) => has_records(&part.want, *reach, job.isolation),
                (Err(_), _) => false,
            };
            let is_news = outcome.is_err() || has_records || part.want.told != outcome.ok();
            known.push((!job.is_incremental || is_news, outcome, has_records));
        }
        let caller = job.call.caller;
        let Some(conn) = self.conn_mut(caller.conn) else { return };
        debug_assert!(conn.is_next(caller.request), "a fetch is under way alone");
        conn.answered();
        let Some(output) = io.output(caller.conn) else { return };
        let response = output.buffer();
        let begun = frame::begin(response);
        put_response_header(job.call.correlation_id, job.call.api_key, job.call.version, response);
        let topics = count_topics(job, &known);
        let mut writer =
            FetchResponseWriter::begin(response, job.call.version, 0, 0, job.session_id, topics.len());
        let mut topics = topics.into_iter();
        let mut before: Option<PartKey> = None;
        let lacks_room =
            |part: &&Part| part.fetched.as_ref().is_some_and(|fetched| fetched.starves(part, job.isolation));
        let mut starved = job.parts.iter().find(lacks_room).map(|part| part.key.clone());
        let (mut left, mut is_first) = (job.bytes_max, true);
        // What other shards have found and is still to come.
        let mut to_come: usize = job.parts.iter().map(Part::bytes_fetched).sum();
        let (mut copied, mut in_files) = (0, 0);
        for (part, (is_told, outcome, has_records)) in job.parts.iter_mut().zip(known) {
            if !is_told {
                continue;
            }
            let key = &part.key;
            if before.as_ref().is_none_or(|last| last.topic_id != key.topic_id || last.topic != key.topic) {
                let partitions = topics.next().unwrap_or(0);
                writer.topic(output.buffer(), &key.topic, key.topic_id, partitions);
            }
            before = Some(key.clone());
            to_come -= part.bytes_fetched();
            let mut bytes_max = part.want.bytes_max.min(left.saturating_sub(to_come));
            if copied >= COPIED_BYTES_MAX {
                bytes_max = 0;
            }
            if has_records && bytes_max == 0 && !is_first && starved.is_none() {
                starved = Some(key.clone());
            }
            let mut fetched = match part.fetched.take() {
                Some(fetched) => fetched,
                None => {
                    Fetched { part: 0, outcome, aborted: Vec::new(), records: Records::default(), found: 0 }
                }
            };
            if has_records
                && fetched.records.is_empty()
                && let Ok(Place { id, .. }) = part.place
            {
                let wanted = part.want.part(0, id);
                let Fetched { aborted, records, .. } = &mut fetched;
                fetched.outcome =
                    self.read_here(&wanted, job.isolation, bytes_max, is_first, aborted, records);
            }
            if !is_first && fetched.records.len() > left {
                // Each shard gives its first batch whole, but only that of one may exceed the limit: KIP-74.
                (fetched.records, fetched.aborted) = Default::default();
                starved.get_or_insert_with(|| key.clone());
            }
            left = left.saturating_sub(fetched.records.len());
            is_first &= fetched.records.is_empty();
            self.fetch_sessions.told(job.session_id, key, fetched.outcome.ok());
            let data = data_of(key.index, &fetched, job.isolation);
            let Records { bytes, files } = fetched.records;
            copied += bytes.len();
            let in_files_here = files.iter().map(|range| range.len).sum::<usize>();
            in_files += in_files_here;
            writer.partition(output.buffer(), &data);
            writer.begin_records(output.buffer(), bytes.len() + in_files_here);
            output.buffer().extend_from_slice(&bytes);
            for FileRange { file, position, len, .. } in files {
                output.push_file(file, position, len);
            }
            writer.end_records(output.buffer());
        }
        writer.finish(output.buffer());
        frame::end(output.buffer(), begun, in_files);
        if let Some(key) = starved {
            self.fetch_sessions.begin_with(job.session_id, key);
        }
        self.list(caller.conn);
    }
}

impl Fetched {
    /// Whether another shard had no room for what the partition has.
    fn starves(&self, part: &Part, isolation: Isolation) -> bool {
        self.records.is_empty() && self.outcome.is_ok_and(|reach| has_records(&part.want, reach, isolation))
    }
}

fn has_records(want: &Want, reach: Reach, isolation: Isolation) -> bool {
    u64::try_from(want.offset).is_ok_and(|offset| offset < reach.end(isolation))
}

/// For each run of partitions of one topic that are answered, how many they are.
fn count_topics(job: &FetchJob, known: &[(bool, Result<Reach, ErrorCode>, bool)]) -> Vec<usize> {
    let mut counts: Vec<usize> = Vec::new();
    let mut before: Option<(Uuid, &Arc<str>)> = None;
    for (part, (is_told, ..)) in job.parts.iter().zip(known) {
        if !is_told {
            continue;
        }
        let topic = (part.key.topic_id, &part.key.topic);
        match counts.last_mut().filter(|_| before == Some(topic)) {
            Some(count) => *count += 1,
            None => counts.push(1),
        }
        before = Some(topic);
    }
    counts
}

fn data_of(index: i32, fetched: &Fetched, isolation: Isolation) -> PartitionData {
    match fetched.outcome {
        Ok(reach) => {
            let aborted = fetched.aborted.iter();
            let aborted = aborted.map(|(producer_id, first_offset)| AbortedTransaction {
                producer_id: *producer_id,
                first_offset: *first_offset,
            });
            PartitionData {
                partition_index: index,
                high_watermark: reach.high_watermark.cast_signed(),
                last_stable_offset: reach.last_stable.cast_signed(),
                log_start_offset: reach.start.cast_signed(),
                aborted_transactions: (isolation == Isolation::ReadCommitted).then(|| aborted.collect()),
                ..PartitionData::default()
            }
        }
        Err(code) => PartitionData {
            partition_index: index,
            error_code: code as i16,
            high_watermark: -1,
            ..PartitionData::default()
        },
    }
}
