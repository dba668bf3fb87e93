//! Readers: with fetch sessions and without, of committed transactions only or of all.

use std::collections::{BTreeMap, BTreeSet};

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::fetch::{
    AbortedTransaction, FetchPartition, FetchRequest, FetchTopic, PartitionData,
};
use mainstem_kafka::record::{Marker, Outcome};
use mainstem_log::{Batch, BatchHeader, HEADER_BYTES};

use super::client::{self, Client, Desk, named};
use super::ledger::{Entry, Isolation, Ledger, Part, Reach};
use super::wire::Response;
use crate::ledger::Violation;

/// What a reader is like.
#[derive(Clone, Debug)]
pub(crate) struct Habits {
    pub(crate) isolation: Isolation,
    /// It says only what has changed since its last request (KIP-227).
    pub(crate) has_session: bool,
    pub(crate) max_wait_ms: i32,
    pub(crate) partition_max_bytes: i32,
    /// It goes through everything once, from the start on, and tells what is there.
    pub(crate) sweeps: bool,
}

#[derive(Debug)]
pub(crate) struct Consumer {
    habits: Habits,
    /// The next offset of each partition that it reads.
    positions: BTreeMap<Part, u64>,
    /// Of the partitions, those whose last response said that there is no more.
    at_end: BTreeSet<Part>,
    /// Those of which something has come.
    begun: BTreeSet<Part>,
    /// Number and epoch of the fetch session, and what the broker knows of it.
    session: Option<(i32, i32)>,
    session_knows: BTreeMap<Part, u64>,
    asked: Option<BTreeMap<Part, (u64, Reach)>>,
}

impl Consumer {
    pub(crate) fn new(habits: Habits, parts: Vec<Part>) -> Self {
        Self {
            habits,
            positions: parts.into_iter().map(|part| (part, 0)).collect(),
            at_end: BTreeSet::new(),
            begun: BTreeSet::new(),
            session: None,
            session_knows: BTreeMap::new(),
            asked: None,
        }
    }

    fn ask(&mut self, desk: &mut Desk<'_>) {
        let mut topics: Vec<FetchTopic> = Vec::new();
        let mut asked = BTreeMap::new();
        let is_new = |part: &Part, offset: u64| self.session_knows.get(part) != Some(&offset);
        for (part, offset) in &self.positions {
            asked.insert(*part, (*offset, desk.ledger.reach(*part)));
            if self.session.is_some_and(|(_, epoch)| epoch > 0) && !is_new(part, *offset) {
                continue;
            }
            let wanted = FetchPartition {
                partition: part.index,
                fetch_offset: offset.cast_signed(),
                partition_max_bytes: self.habits.partition_max_bytes,
                ..FetchPartition::default()
            };
            let topic = desk.name(*part);
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
            max_wait_ms: self.habits.max_wait_ms,
            min_bytes: 1,
            isolation_level: self.habits.isolation as i8,
            session_id,
            session_epoch,
            topics,
            ..FetchRequest::default()
        };
        desk.wire.ask(12, &request);
        self.asked = Some(asked);
    }

    /// Takes what came of one partition.
    fn take(
        &mut self,
        desk: &mut Desk<'_>,
        part: Part,
        (offset, floor): (u64, Reach),
        data: &PartitionData,
    ) -> Result<(), Violation> {
        if data.error_code == ErrorCode::OffsetOutOfRange.code() {
            let deletable = desk.ledger.deletable(part);
            if offset >= deletable {
                return Err(Violation(format!(
                    "{part:?}: {offset}, where a reader had come to, is out of range"
                )));
            }
            self.positions.insert(part, deletable);
            return Ok(());
        }
        if data.error_code != 0 {
            return desk.unexpected(&format!("{part:?}: a fetch from {offset}"), data.error_code);
        }
        let told = Reach {
            start: data.log_start_offset.cast_unsigned(),
            high_watermark: data.high_watermark.cast_unsigned(),
            last_stable: data.last_stable_offset.cast_unsigned(),
        };
        desk.ledger.told(part, floor, told)?;
        if self.habits.sweeps && self.begun.insert(part) {
            desk.ledger.sweep(part, self.habits.isolation, offset);
        }
        let next = self.read(desk, part, offset, data)?;
        let limit = match self.habits.isolation {
            Isolation::ReadUncommitted => told.high_watermark,
            Isolation::ReadCommitted => told.last_stable,
        };
        if next > limit.max(offset) {
            return Err(Violation(format!("{part:?}: records up to {next}, where {limit} is the end")));
        }
        if self.positions.get(&part) == Some(&offset) {
            self.positions.insert(part, next);
        }
        if next == told.high_watermark {
            self.at_end.insert(part);
        } else {
            self.at_end.remove(&part);
        }
        Ok(())
    }

    /// Goes through the batches that came; returns the offset behind the last.
    fn read(
        &self,
        desk: &mut Desk<'_>,
        part: Part,
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
            let skips = self.habits.isolation == Isolation::ReadCommitted && aborted.skips(&batch)?;
            self.read_batch(desk, part, &batch, offset, skips)?;
            next = header.end_offset();
        }
        Ok(next)
    }

    fn read_batch(
        &self,
        desk: &mut Desk<'_>,
        part: Part,
        batch: &Batch<'_>,
        from: u64,
        skips: bool,
    ) -> Result<(), Violation> {
        let isolation = self.habits.isolation;
        for record in batch.records() {
            let record = record.map_err(|error| Violation(format!("{part:?}: no record: {error}")))?;
            if record.offset < from {
                continue;
            }
            if batch.header.is_control() {
                let is_commit = is_commit(batch)?;
                desk.ledger.place(part, record.offset, Entry::Marker { is_commit })?;
            } else if desk.topics[part.topic].is_bound {
                let topic = String::from_utf8_lossy(record.key.unwrap_or_default());
                let payload = record.value.unwrap_or_default();
                desk.ledger.consume_bound(part, record.offset, &topic, payload)?;
                // All of them are in no transaction.
            } else {
                let id = client::record_of(record.value.unwrap_or_default(), part)?;
                match desk.ledger.txn_of(id).filter(|_| skips) {
                    Some(txn) => {
                        desk.ledger.place(part, record.offset, Entry::Record(id))?;
                        desk.ledger.hidden(txn)?;
                    }
                    None => desk.ledger.consume(part, record.offset, id, isolation)?,
                }
            }
            if self.habits.sweeps && !skips {
                desk.ledger.swept(part, isolation, record.offset);
            }
        }
        Ok(())
    }
}

/// Whether a control batch says that a transaction was committed.
fn is_commit(batch: &Batch<'_>) -> Result<bool, Violation> {
    let record = batch.records().next().and_then(Result::ok);
    let marker = record.as_ref().and_then(|record| Marker::parse(record).ok().flatten());
    let marker = marker.ok_or_else(|| Violation("a control batch without a marker".to_owned()))?;
    Ok(marker.outcome == Outcome::Commit)
}

/// The aborted transactions that a response names, as far as they have begun.
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

    /// Whether a batch, the next, belongs to one.
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
    fn act(&mut self, desk: &mut Desk<'_>) {
        if self.asked.is_some() || (self.habits.sweeps && self.is_done()) {
            return;
        }
        if !self.habits.sweeps && desk.is_ending {
            return;
        }
        if !self.habits.sweeps && desk.dice.chance(2) {
            // It reads again what it had.
            for (part, position) in &mut self.positions {
                let first = desk.ledger.deletable(*part).min(*position);
                *position = first + desk.dice.below(*position - first + 1);
            }
        }
        if self.habits.has_session && self.session.is_none() {
            self.session = Some((0, 0));
        }
        self.ask(desk);
    }

    fn answered(&mut self, desk: &mut Desk<'_>, response: &Response) -> Result<(), Violation> {
        let Some(asked) = self.asked.take() else {
            return Err(Violation("an answer that no reader waits for".to_owned()));
        };
        let answer = response.read::<FetchRequest>()?;
        if answer.error_code != 0 {
            let has_gone = [ErrorCode::FetchSessionIdNotFound, ErrorCode::InvalidFetchSessionEpoch];
            self.session = None;
            self.session_knows.clear();
            if has_gone.map(ErrorCode::code).contains(&answer.error_code) && self.habits.has_session {
                return Ok(());
            }
            return Err(Violation(format!("a fetch is answered with {}", named(answer.error_code))));
        }
        if let Some((_, epoch)) = self.session {
            // Without a session of its own it says everything each time.
            self.session = (answer.session_id != 0).then_some((answer.session_id, epoch + 1));
        }
        for topic in &answer.responses {
            for data in &topic.partitions {
                let part = desk.part(&topic.topic, data.partition_index)?;
                let asked = asked.get(&part).copied().ok_or_else(|| {
                    Violation(format!("{part:?} comes to a reader that has not asked for it"))
                })?;
                self.take(desk, part, asked, data)?;
            }
        }
        Ok(())
    }

    fn lost(&mut self, _ledger: &mut Ledger) -> Result<(), Violation> {
        self.asked = None;
        self.session = None;
        self.session_knows.clear();
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.asked.is_none()
            && (!self.habits.sweeps || self.positions.keys().all(|part| self.at_end.contains(part)))
    }

    fn is_careful(&self) -> bool {
        false
    }
}
