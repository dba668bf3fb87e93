//! `Fetch`, versions 4 to 18: returns record batches of partitions, byte for byte as they are stored.
//!
//! ```text
//!               all shards have answered            enough, an error, or the deadline
//!  Collecting ──────────────────────────► Reading ───────────────────────────────────► response
//!      ▲                                    │ too little
//!      └──────── new records, deadline ── Parked
//! ```
//! One request names partitions of several shards, and may wait for records. It must return at least `min_bytes` unless
//! its deadline passes, and must not copy more than the response can hold.
//!
//! An attempt first collects the records that other shards read, then reads the partitions of this shard within the
//! remaining room. If it has enough, the response contains what it read, so an attempt reads each partition once. If
//! not, the fetch drops the records and becomes a watcher of its partitions. The first new record or the deadline
//! starts the next attempt. A record that arrives during an attempt also starts one, so no wakeup is lost.
//!
//! A request may name thousands of partitions, some of which must be opened first. What does not fit into a turn is
//! read in the next ones, see `work_slices.rs`. The fetch then watches partitions before it reads them.

use mainstem_kafka::api::fetch::{AbortedTransaction, FetchRequest, FetchResponseWriter, PartitionData};
use mainstem_kafka::{ErrorCode, Uuid, frame, put_response_header};
use mainstem_partition::{Isolation, TopicId};
use mainstem_quota::QuotaKey;
use mainstem_runtime::{Io, Output};
use mainstem_security::Action;

use crate::catalogue::PartitionId;
use crate::conn::Connections;
use crate::counters::Counters;
use crate::fetch_job::{Fetch, FetchJob, Location, Part, ReadBudget};
use crate::fetch_session::{CachedPartition, PartKey, Plan};
use crate::jobs::Job;
use crate::leader_epoch::{LEADER_EPOCH, check_epoch};
use crate::partition_message::{Fetched, FileRange, PartitionRequest, Records, isolation};
use crate::pending_work::Task;
use crate::shard::Shard;
use crate::shard_message::{JobId, Mail, RequestContext, ShardMessage};
use crate::timer::Timer;

/// Most bytes of records in a response, whatever the consumer allows (`fetch.max.bytes`).
const RESPONSE_BYTES_MAX: usize = 55 * 1024 * 1024;
/// Longest wait, ms.
const WAIT_MS_MAX: i32 = 5 * 60 * 1000;

pub(crate) fn handle(shard: &mut Shard, io: &mut Io<'_, Mail>, call: RequestContext, request: FetchRequest) {
    // After the response to a deletion, no fetch may read the topic.
    shard.env.refresh();
    let Some(plan) = shard.conns.resolve_fetch(call.caller.conn, call.version, &request) else { return };
    let Plan { parts, session_id, is_incremental } = match plan {
        Ok(plan) => plan,
        Err(code) => return answer_error(shard, io, &call, code),
    };
    let bucket = call.quotas.as_ref().and_then(|quotas| quotas.get(QuotaKey::ConsumerByteRate));
    if let Some(throttle_ms) = bucket.map(|bucket| bucket.wait_ms(io.clock.now_ms)).filter(|wait| *wait > 0) {
        return answer_throttled(shard, io, call, throttle_ms, if is_incremental { session_id } else { 0 });
    }
    // No response has more than a window of the quota.
    let window = bucket.map_or(usize::MAX, |bucket| bucket.burst() as usize).max(1);
    let wait_ms = request.max_wait_ms.clamp(0, WAIT_MS_MAX);
    let bytes_max = (request.max_bytes.max(0).unsigned_abs() as usize).min(RESPONSE_BYTES_MAX).min(window);
    let bytes_min = (request.min_bytes.max(0).unsigned_abs() as usize).min(bytes_max);
    let is_empty = parts.is_empty();
    let parts = parts.into_iter().map(|(key, cached)| {
        let location = locate(shard, &call, session_id, &key, &cached);
        Part { key, cached, location, fetched: None, is_watched: false }
    });
    let fetch = Fetch {
        deadline_ms: io.clock.now_ms + u64::from(wait_ms.unsigned_abs()),
        bytes_min,
        bytes_max,
        isolation: isolation(request.isolation_level),
        session_id,
        is_incremental,
        parts: parts.collect(),
        is_due: wait_ms == 0 || bytes_min == 0 || is_empty,
        has_parked: false,
        call,
    };
    let conn = fetch.call.caller.conn;
    let number = shard.jobs.reserve();
    if let Some(conn) = shard.conns.get_mut(conn) {
        conn.fetch_job = number;
    }
    shard.start_attempt(io, number, Box::new(fetch));
}

fn locate(
    shard: &mut Shard,
    call: &RequestContext,
    session_id: i32,
    key: &PartKey,
    cached: &CachedPartition,
) -> Result<Location, ErrorCode> {
    let catalogue = shard.env.catalogue();
    let topic = if key.topic_id == Uuid::default() {
        call.check_topic(Action::Consume, &key.topic)?;
        catalogue.topic(&key.topic).ok_or(ErrorCode::UnknownTopicOrPartition)?
    } else {
        let topic = catalogue.topic_by_id(TopicId(key.topic_id.0));
        if let Some(name) = topic.map(|topic| &topic.name).or(cached.name.as_ref()) {
            call.check_topic(Action::Consume, name)?;
        }
        match (topic, &cached.name) {
            (Some(topic), Some(_)) => topic,
            (Some(topic), None) => {
                shard.conns.fetch_sessions().set_name(session_id, key, &topic.name);
                topic
            }
            (None, None) => return Err(ErrorCode::UnknownTopicId),
            // As in Kafka, a session also looks for the name that the identifier had before.
            (None, Some(name)) if catalogue.topic(name).is_some() => {
                return Err(ErrorCode::InconsistentTopicId);
            }
            (None, Some(_)) => return Err(ErrorCode::UnknownTopicOrPartition),
        }
    };
    let store_id = topic.store_id(key.index).ok_or(ErrorCode::UnknownTopicOrPartition)?;
    check_epoch(cached.current_leader_epoch)?;
    // The consumer cannot have read records of a later epoch.
    if cached.last_fetched_epoch > LEADER_EPOCH {
        return Err(ErrorCode::OffsetOutOfRange);
    }
    Ok(Location { id: topic.partition(key.index), shard: shard.env.shared().owner(store_id) })
}

fn answer_error(shard: &mut Shard, io: &mut Io<'_, Mail>, call: &RequestContext, code: ErrorCode) {
    let response = mainstem_kafka::api::fetch::FetchResponse {
        error_code: code as i16,
        ..mainstem_kafka::api::fetch::FetchResponse::default()
    };
    shard.reply::<FetchRequest>(io, call, &response);
}

/// Answers at once and without records: other clients of the same user or client id have exceeded the quota. The client
/// asks again after the throttle time (KIP-219).
fn answer_throttled(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    mut call: RequestContext,
    throttle_ms: u64,
    session_id: i32,
) {
    call.throttle(throttle_ms);
    let throttle = (throttle_ms, QuotaKey::ConsumerByteRate);
    shard.conns.mute(&mut shard.env, io, call.caller.conn, throttle);
    let response = mainstem_kafka::api::fetch::FetchResponse {
        session_id,
        ..mainstem_kafka::api::fetch::FetchResponse::default()
    };
    shard.reply::<FetchRequest>(io, &call, &response);
}

impl Shard {
    /// Starts an attempt: requests the partitions of other shards.
    pub(crate) fn start_attempt(&mut self, io: &mut Io<'_, Mail>, number: u64, fetch: Box<Fetch>) {
        if self.conns.get_mut(fetch.call.caller.conn).is_none() {
            return self.unregister_fetch(io, number, &fetch);
        }
        let requests = fetch.remote_requests(number, self.env.me(), self.env.shared().shards);
        let waiting = requests.iter().filter(|work| !work.parts.is_empty()).count() as u32;
        if waiting == 0 {
            return self.finish_attempt(io, number, fetch, false);
        }
        self.jobs.put(number, Job::Fetch(FetchJob::Collecting { fetch, waiting, is_woken: false }));
        for (shard, work) in requests.into_iter().enumerate().filter(|(_, work)| !work.parts.is_empty()) {
            self.send_partition_request(io, shard, number, PartitionRequest::Fetch(work));
        }
    }

    /// A partition that the fetch watches has new records.
    pub(crate) fn on_fetch_wakeup(&mut self, io: &mut Io<'_, Mail>, number: u64) {
        if let Some(fetch) = self.jobs.wake_fetch(number) {
            self.start_attempt(io, number, fetch);
        }
    }

    /// Reads the partitions of this shard, then answers or parks the fetch.
    pub(crate) fn finish_attempt(
        &mut self,
        io: &mut Io<'_, Mail>,
        number: u64,
        fetch: Box<Fetch>,
        is_woken: bool,
    ) {
        self.pending_work.begin_request(io.charged());
        let budget = ReadBudget::of(&fetch);
        self.read_own_partitions(io, number, FetchJob::Reading { fetch, budget, next: 0, is_woken });
    }

    /// Continues a fetch that reads in slices. Returns whether it must go on.
    pub(crate) fn continue_fetch(&mut self, io: &mut Io<'_, Mail>, number: u64) -> bool {
        self.pending_work.begin_request(io.charged());
        let Some(job) = self.jobs.take_fetch(number) else { return false };
        self.read_own_partitions(io, number, job);
        matches!(self.jobs.get(number), Some(Job::Fetch(FetchJob::Reading { .. })))
    }

    /// Reads partitions of this shard within the limits of the response, and as far as the turn lasts. After the last
    /// one, answers or parks the fetch.
    fn read_own_partitions(&mut self, io: &mut Io<'_, Mail>, number: u64, job: FetchJob) {
        let FetchJob::Reading { mut fetch, mut budget, next, is_woken } = job else {
            return self.jobs.put(number, Job::Fetch(job));
        };
        if self.conns.get_mut(fetch.call.caller.conn).is_none() {
            return self.unregister_fetch(io, number, &fetch);
        }
        let is_first_slice = next == 0;
        for index in next..fetch.parts.len() {
            if !self.pending_work.has_room(io.charged()) {
                if !fetch.is_due {
                    // Records may arrive before the last partition is read.
                    let read = if is_first_slice { 0 } else { next }..index;
                    fetch.watch_own(number, read.clone(), &mut self.storage, &mut self.env);
                    fetch.parts[read].iter_mut().for_each(|part| part.is_watched = true);
                }
                if is_first_slice {
                    self.pending_work.add(Task::ReadFetch { number });
                }
                let job = FetchJob::Reading { fetch, budget, next: index, is_woken };
                self.jobs.put(number, Job::Fetch(job));
                return io.request_turn();
            }
            let part = &mut fetch.parts[index];
            let fetched = match (part.fetched.take(), part.location) {
                (Some(fetched), _) => budget.trim_remote(fetched),
                (None, Err(code)) => Fetched::failed(0, code),
                (None, Ok(Location { id, .. })) => {
                    let limit = budget.limit(part.cached.bytes_max, fetch.bytes_min);
                    self.storage.read(&mut self.env, io, &part.cached.part(0, id), fetch.isolation, limit)
                }
            };
            budget.spend(&fetched.records);
            part.fetched = Some(fetched);
        }
        if fetch.is_due || fetch.has_enough(&budget) {
            self.unregister_fetch(io, number, &fetch);
            if let Err(what) = self.conns.recheck_fetch(&self.env, io, &mut fetch) {
                return self.refuse(io, fetch.call.caller.conn, what);
            }
            self.conns.throttle_fetch(&mut self.env, io, &mut fetch);
            return write_response(&mut self.conns, self.env.counters(), io, *fetch);
        }
        fetch.parts.iter_mut().for_each(|part| part.fetched = None);
        if is_woken {
            // A wakeup unregisters the watcher, so the fetch must register again.
            self.start_attempt(io, number, fetch);
        } else {
            self.park(io, number, fetch);
        }
    }

    fn park(&mut self, io: &mut Io<'_, Mail>, number: u64, mut fetch: Box<Fetch>) {
        fetch.watch_own(number, .., &mut self.storage, &mut self.env);
        if !std::mem::replace(&mut fetch.has_parked, true) {
            io.set_timer(fetch.deadline_ms, Timer::Fetch(number).token());
        }
        self.jobs.put(number, Job::Fetch(FetchJob::Parked(fetch)));
    }

    /// Removes an ended fetch from the watchers of its partitions.
    pub(crate) fn unregister_fetch(&mut self, io: &mut Io<'_, Mail>, number: u64, fetch: &Fetch) {
        if !fetch.has_parked && fetch.parts.iter().all(|part| !part.is_watched) {
            return;
        }
        let watcher = fetch.watcher(number);
        let mut by_shard: Vec<Vec<PartitionId>> = vec![Vec::new(); self.env.shared().shards];
        for part in &fetch.parts {
            let Ok(Location { id, shard }) = part.location else { continue };
            if shard == self.env.me() {
                self.storage.unwatch(id, watcher);
            } else if part.is_watched {
                by_shard[shard].push(id);
            }
        }
        for (shard, partitions) in by_shard.into_iter().enumerate().filter(|(_, ids)| !ids.is_empty()) {
            let job = JobId { shard: self.env.me(), job: number };
            let work = PartitionRequest::Unwatch { watcher, partitions };
            io.send(shard, Mail(ShardMessage::PartitionRequest { job, work }));
        }
    }
}

/// Writes the response. Records in files are queued for sending; others are copied to the output.
fn write_response(conns: &mut Connections, counters: &Counters, io: &mut Io<'_, Mail>, mut fetch: Fetch) {
    let isolation = fetch.isolation;
    let starving = fetch.parts.iter().find(|part| part.fetched_bytes() == 0 && part.has_records(isolation));
    if let Some(starving) = starving {
        conns.fetch_sessions().set_first(fetch.session_id, starving.key.clone());
    }
    if fetch.is_incremental {
        fetch.parts.retain(|part| part.has_changed(isolation));
    }
    let RequestContext { caller, api_key, version, correlation_id, throttle_ms, .. } = fetch.call;
    let throttle_ms = i32::try_from(throttle_ms).unwrap_or(i32::MAX);
    let Some(conn) = conns.get_mut(caller.conn) else { return };
    debug_assert!(conn.is_next(caller.request), "a fetch is the only request of its connection");
    conn.answered();
    let Some(output) = io.output(caller.conn) else { return };
    let response = output.buffer();
    let begun = frame::begin_frame(response);
    put_response_header(correlation_id, api_key, version, response);
    let topics = fetch.parts.chunk_by(|one, next| one.key.is_same_topic(&next.key)).count();
    let mut writer = FetchResponseWriter::begin(response, version, throttle_ms, 0, fetch.session_id, topics);
    let mut file_bytes = 0;
    for parts in fetch.parts.chunk_by_mut(|one, next| one.key.is_same_topic(&next.key)) {
        let PartKey { topic, topic_id, .. } = &parts[0].key;
        writer.topic(output.buffer(), topic, *topic_id, parts.len());
        for part in parts {
            let Some(fetched) = part.fetched.take() else { continue };
            conns.fetch_sessions().set_last_sent(fetch.session_id, &part.key, fetched.outcome.ok());
            file_bytes += fetched.records.file_bytes();
            counters.count_fetched(fetched.records.len());
            write_part(output, &mut writer, &data_of(part.key.index, &fetched, isolation), fetched.records);
        }
    }
    writer.finish(output.buffer());
    frame::end_frame(output.buffer(), begun, file_bytes);
    conns.mark_ready(caller.conn);
}

fn write_part(output: &mut Output, writer: &mut FetchResponseWriter, data: &PartitionData, records: Records) {
    writer.partition(output.buffer(), data);
    writer.begin_records(output.buffer(), records.len());
    output.buffer().extend_from_slice(&records.bytes);
    for FileRange { file, position, len, .. } in records.files {
        output.push_file(file, position, len);
    }
    writer.end_records(output.buffer());
}

fn data_of(index: i32, fetched: &Fetched, isolation: Isolation) -> PartitionData {
    match fetched.outcome {
        Ok(watermarks) => {
            let aborted = fetched.aborted.iter();
            let aborted = aborted.map(|(producer_id, first_offset)| AbortedTransaction {
                producer_id: *producer_id,
                first_offset: *first_offset,
            });
            PartitionData {
                partition_index: index,
                high_watermark: watermarks.high_watermark.cast_signed(),
                last_stable_offset: watermarks.last_stable.cast_signed(),
                log_start_offset: watermarks.start.cast_signed(),
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
