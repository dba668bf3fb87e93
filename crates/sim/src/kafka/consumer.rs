//! Consumers: with fetch sessions and without, at both isolation levels.
//!
//! Each compares what it is sent with what the oracle knows of the partition: offsets without gaps, watermarks that
//! never go back, and, when reading committed records only, nothing of transactions that are open or aborted.

use std::collections::{BTreeMap, BTreeSet};

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::fetch::{
    AbortedTransaction, FetchPartition, FetchRequest, FetchTopic, PartitionData,
};
use mainstem_log::{Batch, BatchHeader, HEADER_BYTES};
use mainstem_partition::{MarkerRecord, TransactionOutcome};

use super::client::{self, Client, Context, named};
use super::connection::Response;
use super::oracle::{Entry, Isolation, Oracle, PartitionId, Watermarks};
use crate::Violation;

/// Behavior of a consumer.
#[derive(Clone, Debug)]
pub(crate) struct ConsumerProfile {
    pub(crate) isolation: Isolation,
    /// It sends only what has changed since its last request (KIP-227).
    pub(crate) has_session: bool,
    pub(crate) max_wait_ms: i32,
    pub(crate) partition_max_bytes: i32,
    /// It reads everything once, from the start, and reports what is there.
    pub(crate) sweeps: bool,
}

#[derive(Debug)]
pub(crate) struct Consumer {
    profile: ConsumerProfile,
    /// Next offset of each partition.
    positions: BTreeMap<PartitionId, u64>,
    /// Partitions whose last response reached the high watermark.
    at_end: BTreeSet<PartitionId>,
    /// Partitions of which something has been received.
    begun: BTreeSet<PartitionId>,
    /// Fetch session id and epoch, and the positions that the broker has.
    session: Option<(i32, i32)>,
    session_knows: BTreeMap<PartitionId, u64>,
    in_flight: Option<BTreeMap<PartitionId, (u64, Watermarks)>>,
}

impl Consumer {
    pub(crate) fn new(profile: ConsumerProfile, parts: Vec<PartitionId>) -> Self {
        Self {
            profile,
            positions: parts.into_iter().map(|part| (part, 0)).collect(),
            at_end: BTreeSet::new(),
            begun: BTreeSet::new(),
            session: None,
            session_knows: BTreeMap::new(),
            in_flight: None,
        }
    }

    fn ask(&mut self, context: &mut Context<'_>) {
        let mut topics: Vec<FetchTopic> = Vec::new();
        let mut in_flight = BTreeMap::new();
        let is_new = |part: &PartitionId, offset: u64| self.session_knows.get(part) != Some(&offset);
        for (part, offset) in &self.positions {
            in_flight.insert(*part, (*offset, context.oracle.watermarks(*part)));
            if self.session.is_some_and(|(_, epoch)| epoch > 0) && !is_new(part, *offset) {
                continue;
            }
            let wanted = FetchPartition {
                partition: part.index,
                fetch_offset: offset.cast_signed(),
                partition_max_bytes: self.profile.partition_max_bytes,
                ..FetchPartition::default()
            };
            let topic = context.name(*part);
            match topics.iter_mut().find(|known| known.topic == topic) {
                Some(known) => known.partitions.push(wanted),
                None => {
                    topics.push(FetchTopic { topic, partitions: vec![wanted], ..FetchTopic::default() });
                }
            }
        }
        self.session_knows = self.positions.clone();
        let (session_id, session_epoch) = self.session.unwrap_or((0, -1));
        let request = FetchRequest {
            max_wait_ms: self.profile.max_wait_ms,
            min_bytes: 1,
            isolation_level: self.profile.isolation as i8,
            session_id,
            session_epoch,
            topics,
            ..FetchRequest::default()
        };
        context.connection.send(12, &request);
        self.in_flight = Some(in_flight);
    }

    /// Takes the response for one partition.
    fn take(
        &mut self,
        context: &mut Context<'_>,
        part: PartitionId,
        (offset, floor): (u64, Watermarks),
        data: &PartitionData,
    ) -> Result<(), Violation> {
        if data.error_code == ErrorCode::OffsetOutOfRange.code() {
            let deletable = context.oracle.deletable(part);
            if offset >= deletable {
                return Err(Violation(format!(
                    "{part:?}: {offset}, where a reader had come to, is out of range"
                )));
            }
            self.positions.insert(part, deletable);
            return Ok(());
        }
        if data.error_code != 0 {
            return context.unexpected(&format!("{part:?}: a fetch from {offset}"), data.error_code);
        }
        let observed = Watermarks {
            start: data.log_start_offset.cast_unsigned(),
            high_watermark: data.high_watermark.cast_unsigned(),
            last_stable: data.last_stable_offset.cast_unsigned(),
        };
        context.oracle.observe_watermarks(part, floor, observed)?;
        if self.profile.sweeps && self.begun.insert(part) {
            context.oracle.sweep(part, self.profile.isolation, offset);
        }
        let next = self.read(context, part, offset, data)?;
        let limit = match self.profile.isolation {
            Isolation::ReadUncommitted => observed.high_watermark,
            Isolation::ReadCommitted => observed.last_stable,
        };
        if next > limit.max(offset) {
            return Err(Violation(format!("{part:?}: records up to {next}, where {limit} is the end")));
        }
        if self.positions.get(&part) == Some(&offset) {
            self.positions.insert(part, next);
        }
        if next == observed.high_watermark {
            self.at_end.insert(part);
        } else {
            self.at_end.remove(&part);
        }
        Ok(())
    }

    /// Checks the batches of a response. Returns the offset after the last.
    fn read(
        &self,
        context: &mut Context<'_>,
        part: PartitionId,
        offset: u64,
        data: &PartitionData,
    ) -> Result<u64, Violation> {
        let mut bytes = data.records.as_deref().unwrap_or_default();
        let mut aborted = Aborted::of(data.aborted_transactions.as_deref().unwrap_or_default());
        let mut next = offset;
        while bytes.len() >= HEADER_BYTES {
            let header = BatchHeader::parse(bytes)
                .map_err(|error| Violation(format!("{part:?}: behind {next} comes no batch: {error}")))?;
            if bytes.len() < header.total_bytes {
                break;
            }
            let (one, rest) = bytes.split_at(header.total_bytes);
            bytes = rest;
            let batch = Batch::parse(one)
                .map_err(|error| Violation(format!("{part:?}: the batch at {next} is broken: {error}")))?;
            let is_next =
                if next == offset { header.base_offset <= next } else { header.base_offset == next };
            if !is_next || header.end_offset() <= next {
                return Err(Violation(format!(
                    "{part:?}: behind {next} come {}..{}",
                    header.base_offset,
                    header.end_offset()
                )));
            }
            let skips = self.profile.isolation == Isolation::ReadCommitted && aborted.skips(&batch)?;
            self.read_batch(context, part, &batch, offset, skips)?;
            next = header.end_offset();
        }
        Ok(next)
    }

    fn read_batch(
        &self,
        context: &mut Context<'_>,
        part: PartitionId,
        batch: &Batch<'_>,
        from: u64,
        skips: bool,
    ) -> Result<(), Violation> {
        let isolation = self.profile.isolation;
        for record in batch.records() {
            let record = record.map_err(|error| Violation(format!("{part:?}: no record: {error}")))?;
            if record.offset < from {
                continue;
            }
            if batch.header.is_control() {
                let is_commit = is_commit(batch)?;
                context.oracle.observe_entry(part, record.offset, Entry::Marker { is_commit })?;
            } else if context.topics[part.topic].is_bound {
                let topic = String::from_utf8_lossy(record.key.unwrap_or_default());
                let payload = record.value.unwrap_or_default();
                context.oracle.consume_bound(part, record.offset, &topic, payload)?;
                // All records of the batch are without a transaction.
            } else {
                let id = client::record_of(record.value.unwrap_or_default(), part)?;
                match context.oracle.txn_of(id).filter(|_| skips) {
                    Some(txn) => {
                        context.oracle.observe_entry(part, record.offset, Entry::Record(id))?;
                        context.oracle.seen_aborted(txn)?;
                    }
                    None => context.oracle.consume(part, record.offset, id, isolation)?,
                }
            }
            if self.profile.sweeps && !skips {
                context.oracle.swept(part, isolation, record.offset);
            }
        }
        Ok(())
    }
}

fn is_commit(batch: &Batch<'_>) -> Result<bool, Violation> {
    let record = batch.records().next().and_then(Result::ok);
    let marker = record.as_ref().and_then(|record| MarkerRecord::parse(record).ok().flatten());
    let marker = marker.ok_or_else(|| Violation("a control batch without a marker".to_owned()))?;
    Ok(marker.outcome == TransactionOutcome::Commit)
}

/// Aborted transactions of a response, as far as the reader has reached them.
struct Aborted<'a> {
    coming: Vec<&'a AbortedTransaction>,
    begun: BTreeSet<i64>,
}

impl<'a> Aborted<'a> {
    fn of(all: &'a [AbortedTransaction]) -> Self {
        let mut coming: Vec<_> = all.iter().collect();
        coming.sort_unstable_by_key(|aborted| std::cmp::Reverse(aborted.first_offset));
        Self { coming, begun: BTreeSet::new() }
    }

    /// Whether the next batch belongs to an aborted transaction.
    fn skips(&mut self, batch: &Batch<'_>) -> Result<bool, Violation> {
        let last = batch.header.end_offset().cast_signed() - 1;
        while let Some(next) = self.coming.pop_if(|next| next.first_offset <= last) {
            self.begun.insert(next.producer_id);
        }
        if batch.header.is_control() {
            if !is_commit(batch)? {
                self.begun.remove(&batch.header.producer_id);
            }
            return Ok(false);
        }
        Ok(batch.header.is_transactional() && self.begun.contains(&batch.header.producer_id))
    }
}

impl Client for Consumer {
    fn act(&mut self, context: &mut Context<'_>) {
        if self.in_flight.is_some() || (self.profile.sweeps && self.is_done()) {
            return;
        }
        if !self.profile.sweeps && context.is_ending {
            return;
        }
        if !self.profile.sweeps && context.rng.chance(2) {
            // It reads some records again.
            for (part, position) in &mut self.positions {
                let first = context.oracle.deletable(*part).min(*position);
                *position = first + context.rng.below(*position - first + 1);
            }
        }
        if self.profile.has_session && self.session.is_none() {
            self.session = Some((0, 0));
        }
        self.ask(context);
    }

    fn handle_response(&mut self, context: &mut Context<'_>, response: &Response) -> Result<(), Violation> {
        let Some(in_flight) = self.in_flight.take() else {
            return Err(Violation("an answer that no reader waits for".to_owned()));
        };
        let answer = response.read::<FetchRequest>()?;
        if answer.error_code != 0 {
            let has_gone = [ErrorCode::FetchSessionIdNotFound, ErrorCode::InvalidFetchSessionEpoch];
            self.session = None;
            self.session_knows.clear();
            if has_gone.map(ErrorCode::code).contains(&answer.error_code) && self.profile.has_session {
                return Ok(());
            }
            return Err(Violation(format!("a fetch is answered with {}", named(answer.error_code))));
        }
        if let Some((_, epoch)) = self.session {
            // Without a session, every request names all partitions.
            self.session = (answer.session_id != 0).then_some((answer.session_id, epoch + 1));
        }
        for topic in &answer.responses {
            for data in &topic.partitions {
                let part = context.part(&topic.topic, data.partition_index)?;
                let in_flight = in_flight.get(&part).copied().ok_or_else(|| {
                    Violation(format!("{part:?} comes to a reader that has not asked for it"))
                })?;
                self.take(context, part, in_flight, data)?;
            }
        }
        Ok(())
    }

    fn connection_lost(&mut self, _oracle: &mut Oracle) -> Result<(), Violation> {
        self.in_flight = None;
        self.session = None;
        self.session_knows.clear();
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.in_flight.is_none()
            && (!self.profile.sweeps || self.positions.keys().all(|part| self.at_end.contains(part)))
    }

    fn waits_for_broker(&self) -> bool {
        false
    }
}
