//! A partition: its log, the appends in flight, and the requests that wait for them.
//!
//! A producer may be answered, and a consumer may read, only what survives a crash. Appends become durable later than
//! they are made, in the order of the log, so a partition tracks them between the two points:
//!
//! ```text
//!   log start          last stable offset     high watermark          log end
//!      │ readable by all      │ readable           │ in flight           │
//!      │                      │ uncommitted        │ not readable        │
//! ```
//! An append is in flight until its store reports the completion. The high watermark then moves behind it, waiting
//! producers get their results, and parked fetches wake. If the store fails, the log ends at the high
//! watermark again and the producer state is rolled back to it. The next append may come before that completion, so
//! each append first compares the end of the log with what is in flight.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use mainstem_coordinator::Error as ProducerError;
use mainstem_coordinator::producer::{
    AbortedTransaction, AppendDecision, Marker, ProducerState, TxnVerification,
};
use mainstem_coordinator::transaction::Producer;
use mainstem_log::{BatchBuilder, BatchHeader, Completion, Error, LogId, Status, Store, Ticket, ValidBatch};

use crate::admission::Admission;
use crate::config::{PartitionConfig, TimestampType};
use crate::error::PartitionError;
use crate::ids::{JobId, PartitionId};
use crate::incoming::{IncomingBatch, Rewrite, Validity, batch_info, checksum_error};
use crate::marker::MarkerRecord;
use crate::preparation::Preparation;
use crate::producers::{IsLast, PartitionProducers, ProducerLimits};
use crate::snapshots::{DueSnapshot, ProducerSnapshot};

/// Where a batch was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendInfo {
    /// Offset of its first record.
    pub base_offset: u64,
    /// Timestamp that the broker gave its records; `None` if the producer set them.
    pub append_time_ms: Option<i64>,
    /// First offset of the partition.
    pub log_start: u64,
}

/// The result of an append that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// The batch is in flight. The waiter gets its result when it is durable.
    Pending {
        /// Offset after its last record.
        end: u64,
    },
    /// The batch was appended before and is durable.
    Durable(AppendInfo),
    /// The batch was not appended: it would begin a transaction, which the coordinator must verify first (KIP-890).
    Unverified(Producer),
    /// The batch was not appended: this would take too long at once, so a [`crate::RecordsWork`] must do it first.
    Unprepared(Preparation),
}

/// The pending request of an append, and the number of the batch within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The request.
    pub job: JobId,
    /// Number of the batch within the request.
    pub part: u32,
}

/// The result of an append, for its waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendResult {
    /// The waiter.
    pub waiter: Waiter,
    /// Where the batch is, or why it was lost.
    pub outcome: Result<AppendInfo, PartitionError>,
}

/// The transactions that a consumer sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// All records below the high watermark.
    ReadUncommitted,
    /// Records below the last stable offset.
    ReadCommitted,
}

/// The readable range of a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermarks {
    /// First offset.
    pub start: u64,
    /// Offset after the last durable record.
    pub high_watermark: u64,
    /// Offset of the first record of an open transaction, or the high watermark.
    pub last_stable: u64,
}

impl Watermarks {
    /// Offset after the last record that a consumer may read.
    pub fn end(self, isolation: Isolation) -> u64 {
        match isolation {
            Isolation::ReadUncommitted => self.high_watermark,
            Isolation::ReadCommitted => self.last_stable,
        }
    }
}

/// Appends that one commit of the store carries.
#[derive(Debug)]
struct InFlight {
    ticket: Ticket,
    /// Offset after the last record.
    end: u64,
    waiters: Vec<(Waiter, AppendInfo)>,
    /// The records are no longer in the log, although the completion has not come yet.
    is_lost: bool,
}

/// A partition of this shard.
#[derive(Debug)]
pub struct Partition {
    id: PartitionId,
    topic: Arc<str>,
    config: Arc<PartitionConfig>,
    /// The terms of its manager; `None` if it has none, or has not been taken over yet.
    admission: Option<Admission>,
    store: usize,
    log: LogId,
    high_watermark: u64,
    producers: PartitionProducers,
    in_flight: VecDeque<InFlight>,
    watchers: Vec<JobId>,
}

/// What [`Partition::open`] needs to know of a partition.
#[derive(Clone, Debug)]
pub struct PartitionSpec {
    /// Identifier.
    pub id: PartitionId,
    /// Name of its topic.
    pub topic: Arc<str>,
    /// Configuration of its topic.
    pub config: Arc<PartitionConfig>,
    /// Index of its store among those of the shard.
    pub store: usize,
}

impl Partition {
    /// Opens the log of the partition, creating it if it does not exist.
    pub(crate) fn open(
        spec: PartitionSpec,
        store: &mut dyn Store,
        snapshot: &ProducerSnapshot,
        limits: &ProducerLimits,
        unix_ms: u64,
    ) -> Result<Self, Error> {
        let PartitionSpec { id, topic, config, store: store_index } = spec;
        let log = store.open(&id.log_name(), &config.options)?;
        let producers = PartitionProducers::rebuild(store, log, snapshot, limits, unix_ms)?;
        Ok(Self {
            id,
            topic,
            config,
            admission: None,
            store: store_index,
            log,
            high_watermark: store.status(log).committed,
            producers,
            in_flight: VecDeque::new(),
            watchers: Vec::new(),
        })
    }

    /// Identifier.
    pub fn id(&self) -> PartitionId {
        self.id
    }

    /// Name of the topic.
    pub fn topic(&self) -> &Arc<str> {
        &self.topic
    }

    /// Configuration of the topic, as of the last [`crate::Partitions::reconfigure`].
    pub fn config(&self) -> &Arc<PartitionConfig> {
        &self.config
    }

    /// Index of its store among those of the shard.
    pub fn store_index(&self) -> usize {
        self.store
    }

    /// Its log.
    pub fn log(&self) -> LogId {
        self.log
    }

    /// Offset after the last durable record.
    pub fn high_watermark(&self) -> u64 {
        self.high_watermark
    }

    /// The readable range.
    pub fn watermarks(&self, store: &dyn Store) -> Watermarks {
        let start = store.status(self.log).start;
        let high_watermark = self.high_watermark.max(start);
        let last_stable = self.producers.state.last_stable_offset(high_watermark).max(start);
        Watermarks { start, high_watermark, last_stable }
    }

    /// Aborted transactions with records in a range: producer id and first offset, for [`crate::AbortedFilter`].
    pub fn aborted(&self, offsets: Range<u64>) -> Vec<(i64, i64)> {
        let all = self.producers.state.aborted_between(offsets.start, offsets.end);
        let pair = |aborted: AbortedTransaction| (aborted.producer_id, aborted.first_offset.cast_signed());
        all.map(pair).collect()
    }

    /// The producers with state in this partition.
    pub fn producers(&self) -> Vec<ProducerState> {
        self.producers.state.describe()
    }

    /// Whether its manager must act before anything is appended: it has not taken the partition over, or must fill
    /// offsets that the log has lost. Appends get [`PartitionError::NotReady`] until then.
    pub fn awaits_manager(&self, store: &dyn Store) -> bool {
        self.config.is_managed && self.is_closed(store.status(self.log).end)
    }

    fn is_closed(&self, log_end: u64) -> bool {
        self.admission.is_none_or(|admission| !admission.is_open(log_end))
    }

    /// Replaces the terms of its manager.
    pub(crate) fn admit(&mut self, admission: Admission) {
        self.admission = Some(admission);
    }

    /// Handles the log end before an append.
    fn begin_append(&mut self, log_end: u64) -> Result<(), PartitionError> {
        self.on_log_end(log_end);
        if self.config.is_managed && self.is_closed(log_end) {
            return Err(PartitionError::NotReady);
        }
        Ok(())
    }

    /// What a [`crate::RecordsWork`] must do before a batch can be appended at once. The work may turn out to be short.
    ///
    /// # Errors
    /// The batch is invalid.
    pub fn needed_preparation(
        &self,
        incoming: &IncomingBatch<'_>,
        unix_ms: u64,
    ) -> Result<Option<Preparation>, PartitionError> {
        Ok(match incoming.validate(&self.config, unix_ms)? {
            Validity::Unchecked => Some(Preparation::Check),
            Validity::Valid { .. } => incoming.needed_recompression(&self.config),
        })
    }

    /// Estimated time of the work on the records of a batch when it is appended, ns.
    pub fn records_work_ns(&self, incoming: &IncomingBatch<'_>) -> u64 {
        incoming.at_once_ns(&self.config)
    }

    /// Appends a batch unless its producer sent it before. `waiter` gets the result when it is durable.
    pub(crate) fn append(
        &mut self,
        store: &mut dyn Store,
        incoming: &IncomingBatch<'_>,
        unix_ms: u64,
        verification: TxnVerification,
        waiter: Waiter,
    ) -> Result<Accepted, PartitionError> {
        let status = store.status(self.log);
        self.begin_append(status.end)?;
        let Validity::Valid { max_timestamp_ms } = incoming.validate(&self.config, unix_ms)? else {
            return Ok(Accepted::Unprepared(Preparation::Check));
        };
        let header = incoming.header();
        if header.producer_id >= 0 {
            match self.producers.state.check(&batch_info(header), verification) {
                AppendDecision::Append => {}
                AppendDecision::Duplicate { base_offset, timestamp_ms } => {
                    let info = self.append_info(&status, base_offset, timestamp_ms);
                    return Ok(self.wait(waiter, info, end_of(header, base_offset)));
                }
                AppendDecision::Verify => return Ok(Accepted::Unverified(incoming.producer())),
                AppendDecision::Refused(ProducerError::UnknownProducerId) => {
                    return Err(PartitionError::UnknownProducer { log_start: status.start });
                }
                AppendDecision::Refused(error) => return Err(PartitionError::Producer(error)),
            }
        }
        let rewritten = match incoming.rewrite(&self.config, unix_ms, max_timestamp_ms)? {
            Rewrite::Unchanged => None,
            Rewrite::To(bytes) => Some(bytes),
            Rewrite::Needs(preparation) => return Ok(Accepted::Unprepared(preparation)),
        };
        let base_offset = self.append_to_log(store, incoming, rewritten.as_deref(), unix_ms)?;
        let info = self.append_info(&status, base_offset, unix_ms.cast_signed());
        Ok(self.wait(waiter, info, end_of(header, base_offset)))
    }

    /// Appends a batch, or the bytes that replace it, and returns its base offset.
    fn append_to_log(
        &mut self,
        store: &mut dyn Store,
        incoming: &IncomingBatch<'_>,
        rewritten: Option<&[u8]>,
        unix_ms: u64,
    ) -> Result<u64, PartitionError> {
        let header = incoming.header();
        let (records, bytes) = (u64::from(header.records), header.total_bytes as u64);
        let limit = self.admission.as_mut().filter(|_| incoming.is_from_client());
        let admitted = limit.as_ref().map_or(Ok(()), |limit| limit.check(records, bytes));
        let valid = || match rewritten {
            Some(bytes) => ValidBatch::parse(bytes),
            None => incoming.batch().verify(),
        };
        let appended = admitted.and_then(|()| valid().map_err(checksum_error)).and_then(|valid| {
            let appended = store.append_valid(self.log, valid)?;
            Ok((appended, valid.header()))
        });
        let (appended, stored) = appended.inspect_err(|_| {
            if header.producer_id >= 0 {
                self.producers.state.on_append_failed(&batch_info(header));
            }
        })?;
        if let Some(limit) = limit {
            limit.take(records, bytes);
        }
        if stored.producer_id >= 0 {
            self.producers.state.on_batch_appended(&batch_info(&stored), appended.base_offset, unix_ms);
        }
        self.on_appended(appended.ticket, end_of(header, appended.base_offset), stored.total_bytes);
        Ok(appended.base_offset)
    }

    fn append_info(&self, status: &Status, base_offset: u64, timestamp_ms: i64) -> AppendInfo {
        let is_set_by_broker = self.config.timestamp_type == TimestampType::LogAppend;
        let append_time_ms = is_set_by_broker.then_some(timestamp_ms);
        AppendInfo { base_offset, append_time_ms, log_start: status.start }
    }

    /// Appends the marker of a transaction that has ended.
    ///
    /// # Errors
    /// The marker contradicts the producer state, the partition is not ready, or the store fails. Nothing was appended.
    pub(crate) fn mark(
        &mut self,
        store: &mut dyn Store,
        marker: &Marker,
        unix_ms: u64,
        waiter: Waiter,
    ) -> Result<(), PartitionError> {
        let status = store.status(self.log);
        self.begin_append(status.end)?;
        self.producers.state.check_marker(marker).map_err(PartitionError::Producer)?;
        let Marker { producer_id, producer_epoch, timestamp_ms, outcome, coordinator_epoch } = *marker;
        let mut builder = BatchBuilder::default();
        let record = MarkerRecord { outcome, coordinator_epoch };
        let batch = record.batch(&mut builder, timestamp_ms, producer_id, producer_epoch);
        let appended = store.append_valid(self.log, batch)?;
        self.producers.state.on_marker_appended(marker, appended.base_offset, unix_ms);
        let end = appended.base_offset + 1;
        self.on_appended(appended.ticket, end, batch.bytes().len());
        let base_offset = appended.base_offset;
        let info = AppendInfo { base_offset, append_time_ms: None, log_start: status.start };
        self.wait(waiter, info, end);
        Ok(())
    }

    /// Appends a batch without records, which fills the offsets of records that were lost.
    ///
    /// # Errors
    /// The store fails. Nothing was appended.
    pub fn append_gap(&mut self, store: &mut dyn Store, batch: &[u8]) -> Result<(), Error> {
        self.on_log_end(store.status(self.log).end);
        let appended = store.append(self.log, batch)?;
        let end = store.status(self.log).end;
        self.on_appended(appended.ticket, end, batch.len());
        Ok(())
    }

    /// Compares the log end with the appends in flight. The store failed to write records beyond it: this rolls back
    /// their producer state. The next append reuses their offsets, possibly before their completions come.
    fn on_log_end(&mut self, end: u64) {
        if self.in_flight.back().is_none_or(|last| last.end <= end) {
            return;
        }
        self.producers.state.rollback_to(end);
        for flight in self.in_flight.iter_mut().rev().take_while(|flight| flight.end > end) {
            (flight.end, flight.is_lost) = (end, true);
        }
    }

    fn on_appended(&mut self, ticket: Ticket, end: u64, bytes: usize) {
        self.producers.on_appended(bytes);
        match self.in_flight.back_mut().filter(|last| last.ticket == ticket) {
            Some(last) => last.end = end,
            None => self.in_flight.push_back(InFlight { ticket, end, waiters: Vec::new(), is_lost: false }),
        }
    }

    /// Registers `waiter` until everything below `end` is durable.
    fn wait(&mut self, waiter: Waiter, info: AppendInfo, end: u64) -> Accepted {
        if end <= self.high_watermark {
            return Accepted::Durable(info);
        }
        let at = self.in_flight.partition_point(|flight| flight.end < end);
        match self.in_flight.get_mut(at) {
            Some(flight) => {
                flight.waiters.push((waiter, info));
                Accepted::Pending { end }
            }
            None => Accepted::Durable(info),
        }
    }

    /// Handles a completion: collects the results of waiters. Returns whether the high watermark has moved.
    pub(crate) fn on_completion(&mut self, completion: &Completion, results: &mut Vec<AppendResult>) -> bool {
        let before = self.high_watermark;
        while let Some(flight) = self.in_flight.pop_front_if(|flight| flight.ticket <= completion.ticket) {
            if completion.outcome.is_ok() {
                self.high_watermark = self.high_watermark.max(flight.end);
                self.producers.state.mark_durable(self.high_watermark);
            } else if !flight.is_lost {
                self.producers.state.rollback_to(self.high_watermark);
            }
            results.extend(flight.waiters.into_iter().map(|(waiter, info)| {
                let outcome = completion.outcome.clone().map(|()| info).map_err(PartitionError::Store);
                AppendResult { waiter, outcome }
            }));
        }
        self.high_watermark > before
    }

    /// Ends all appends in flight, because the partition is being deleted. Returns the parked fetches.
    pub(crate) fn into_waiters(self, results: &mut Vec<AppendResult>) -> Vec<JobId> {
        let waiters = self.in_flight.into_iter().flat_map(|flight| flight.waiters);
        let outcome = Err(PartitionError::UnknownPartition);
        results.extend(waiters.map(|(waiter, _)| AppendResult { waiter, outcome: outcome.clone() }));
        self.watchers
    }

    /// Applies a new configuration. Returns whether the partition has become a managed one.
    pub(crate) fn reconfigure(
        &mut self,
        config: &Arc<PartitionConfig>,
        store: &mut dyn Store,
    ) -> Result<bool, Error> {
        let before = std::mem::replace(&mut self.config, Arc::clone(config));
        if !config.is_managed {
            self.admission = None;
        }
        store.open(&self.id.log_name(), &config.options)?;
        Ok(config.is_managed && !before.is_managed)
    }

    /// The start of the log may have moved.
    pub(crate) fn on_start_advanced(&mut self, store: &dyn Store) {
        self.producers.on_start_advanced(store.status(self.log).start);
    }

    pub(crate) fn has_producers(&self) -> bool {
        !self.producers.state.is_empty()
    }

    /// Number of producers with state in this partition.
    pub(crate) fn producer_count(&self) -> usize {
        self.producers.state.len()
    }

    pub(crate) fn knows_producer(&self, producer_id: i64) -> bool {
        self.producers.state.contains(producer_id)
    }

    /// Evicts the state of up to `count` producers without an open transaction. Returns how many were evicted.
    pub(crate) fn evict_idle_producers(&mut self, count: usize) -> usize {
        self.producers.state.evict_idle(count)
    }

    /// A snapshot of the producers and the log start, if one is due.
    pub(crate) fn snapshot_if_due(&mut self, unix_ms: u64, is_last: IsLast) -> Option<DueSnapshot> {
        self.producers.maintain(unix_ms, self.high_watermark, is_last)
    }

    /// Registers a parked fetch. A connection has one at most.
    pub(crate) fn watch(&mut self, watcher: JobId) {
        if !self.watchers.contains(&watcher) {
            self.watchers.push(watcher);
        }
    }

    pub(crate) fn unwatch(&mut self, watcher: JobId) {
        self.watchers.retain(|known| *known != watcher);
    }

    pub(crate) fn take_watchers(&mut self) -> Vec<JobId> {
        std::mem::take(&mut self.watchers)
    }
}

fn end_of(header: &BatchHeader, base_offset: u64) -> u64 {
    base_offset + u64::from(header.last_offset_delta) + 1
}
