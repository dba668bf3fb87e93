//! Producers without transactions: idempotent ones, which send again what was not acknowledged, and plain ones,
//! which do not.

use std::collections::{BTreeMap, VecDeque};

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::init_producer_id::InitProducerIdRequest;
use mainstem_kafka::api::produce::{
    PartitionProduceData, PartitionProduceResponse, ProduceRequest, TopicProduceData,
};
use mainstem_log::BatchKind;

use super::client::{self, Batch, Client, Desk, ProducerId, named};
use super::ledger::{Ledger, Part};
use super::wire::Response;
use crate::ledger::Violation;

/// Batches of an idempotent producer that are under way to one partition at most: a broker knows the last five.
const IN_FLIGHT_MAX: usize = 5;
/// Records that a batch has at most.
const RECORDS_MAX: u64 = 6;

/// What a producer asks of its appends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Idempotent,
    /// With an acknowledgement, which it does not wait for.
    Plain,
    /// Without.
    Blind,
}

#[derive(Debug)]
pub(crate) struct Producer {
    index: usize,
    kind: Kind,
    id: Option<ProducerId>,
    /// What is sent in one keeps its order: a plain producer's connection, or what an idempotent one does under one id.
    life: u64,
    parts: BTreeMap<Part, Outgoing>,
    asked: VecDeque<Asked>,
}

/// What has not been acknowledged.
#[derive(Debug, Default)]
struct Outgoing {
    next_sequence: i32,
    batches: VecDeque<Batch>,
    /// Of them, the first so many are under way.
    sent: usize,
    /// Requests that have not been answered.
    waiting: usize,
    /// One was refused: nothing is sent until all are answered.
    was_refused: bool,
}

#[derive(Debug)]
enum Asked {
    Id,
    /// A batch for each of some partitions, in one of its lives.
    Produce(u64, Vec<(Part, Batch)>),
}

impl Producer {
    pub(crate) fn new(index: usize, kind: Kind) -> Self {
        Self { index, kind, id: None, life: 0, parts: BTreeMap::new(), asked: VecDeque::new() }
    }

    /// A new batch for some partition, if it may have another.
    fn make(&mut self, desk: &mut Desk<'_>) -> Option<Part> {
        let part = desk.any_part();
        let outgoing = self.parts.entry(part).or_default();
        if outgoing.batches.len() >= IN_FLIGHT_MAX {
            return None;
        }
        let stream = (self.index, self.life);
        let count = 1 + desk.dice.below(RECORDS_MAX);
        let records: Vec<_> = (0..count).map(|_| desk.ledger.record(part, stream, None)).collect();
        let producer = self.id.map(|id| (id, outgoing.next_sequence));
        outgoing.next_sequence += count as i32;
        let batch = client::batch(&records, part, desk.unix_ms, producer, BatchKind::Plain);
        outgoing.batches.push_back(batch);
        Some(part)
    }

    /// Sends the next batch of each of these partitions that has one.
    fn send(&mut self, desk: &mut Desk<'_>, parts: &[Part]) {
        let mut sent = Vec::new();
        for part in parts {
            let Some(outgoing) = self.parts.get_mut(part) else { continue };
            if let Some(batch) = outgoing.batches.get(outgoing.sent).filter(|_| !outgoing.was_refused) {
                sent.push((*part, batch.clone()));
                outgoing.sent += 1;
                outgoing.waiting += 1;
            }
        }
        if sent.is_empty() {
            return;
        }
        let is_blind = self.kind == Kind::Blind;
        let request = produce(desk, None, if is_blind { 0 } else { -1 }, &sent);
        if is_blind {
            desk.wire.tell(9, &request);
            for (part, _) in sent {
                self.parts.remove(&part);
            }
        } else {
            desk.wire.ask(9 + desk.dice.below(4) as i16, &request);
            self.asked.push_back(Asked::Produce(self.life, sent));
        }
    }

    fn acknowledged(
        &mut self,
        desk: &mut Desk<'_>,
        part: Part,
        batch: &Batch,
        answer: &PartitionProduceResponse,
    ) -> Result<(), Violation> {
        let Some(outgoing) = self.parts.get_mut(&part) else { return Ok(()) };
        outgoing.waiting -= 1;
        let is_idempotent = self.kind == Kind::Idempotent;
        let is_first = outgoing.batches.front().is_some_and(|first| first.records == batch.records);
        let is_taken = answer.error_code == 0;
        let is_behind = answer.error_code == ErrorCode::OutOfOrderSequenceNumber.code();
        if is_taken {
            desk.ledger.acked(&batch.records, answer.base_offset.cast_unsigned())?;
        }
        let follows = is_behind && !is_first && outgoing.was_refused;
        let is_broken = (is_taken && !is_first) || (is_behind && !follows);
        if is_idempotent && is_broken {
            // With records that were deleted, a loss of power takes what was known of who had sent them.
            let has_lost = desk.has_lost_power && desk.ledger.deletable(part) > 0;
            if !desk.has_failed && !has_lost {
                return Err(Violation(format!(
                    "{part:?}: the batch with sequence {} is answered with {} out of its turn",
                    batch.sequence,
                    named(answer.error_code)
                )));
            }
            // A log that could not be opened for one batch and could for the next knows of neither.
            self.id = None;
            self.begin_anew();
            return Ok(());
        }
        if !is_taken && !follows {
            desk.unexpected(&format!("{part:?}: a batch"), answer.error_code)?;
        }
        if is_taken || !is_idempotent {
            outgoing.batches.retain(|known| known.records != batch.records);
            outgoing.sent -= 1;
        } else {
            outgoing.was_refused = true;
        }
        if outgoing.waiting == 0 && std::mem::take(&mut outgoing.was_refused) {
            outgoing.sent = 0;
        }
        Ok(())
    }

    fn begin_anew(&mut self) {
        self.parts.clear();
        self.life += 1;
    }

    /// Sends all that is not under way, in order.
    fn send_all(&mut self, desk: &mut Desk<'_>) {
        let parts: Vec<Part> = self.parts.keys().copied().collect();
        for _ in 0..IN_FLIGHT_MAX {
            self.send(desk, &parts);
        }
    }
}

/// A request for batches, each in its partition.
pub(crate) fn produce(
    desk: &Desk<'_>,
    transactional_id: Option<String>,
    acks: i16,
    batches: &[(Part, Batch)],
) -> ProduceRequest {
    let mut topic_data: Vec<TopicProduceData> = Vec::new();
    for (part, batch) in batches {
        let data = PartitionProduceData { index: part.index, records: Some(batch.bytes.clone()) };
        let name = desk.name(*part);
        match topic_data.iter_mut().find(|topic| topic.name == name) {
            Some(topic) => topic.partition_data.push(data),
            None => topic_data.push(TopicProduceData {
                name,
                partition_data: vec![data],
                ..TopicProduceData::default()
            }),
        }
    }
    ProduceRequest { transactional_id, acks, timeout_ms: 30_000, topic_data }
}

/// What the response says of each partition.
pub(crate) fn produced(
    desk: &Desk<'_>,
    response: &Response,
) -> Result<Vec<(Part, PartitionProduceResponse)>, Violation> {
    let mut all = Vec::new();
    for topic in response.read::<ProduceRequest>()?.responses {
        for answer in topic.partition_responses {
            all.push((desk.part(&topic.name, answer.index)?, answer));
        }
    }
    Ok(all)
}

impl Client for Producer {
    fn act(&mut self, desk: &mut Desk<'_>) {
        if self.kind == Kind::Idempotent && self.id.is_none() {
            if self.asked.is_empty() {
                desk.wire
                    .ask(4, &InitProducerIdRequest { transaction_timeout_ms: 60_000, ..Default::default() });
                self.asked.push_back(Asked::Id);
            }
            return;
        }
        self.send_all(desk);
        if desk.is_ending {
            return;
        }
        let mut parts = Vec::new();
        for _ in 0..=desk.dice.below(3) {
            parts.extend(self.make(desk).filter(|part| !parts.contains(part)));
        }
        self.send(desk, &parts);
    }

    fn answered(&mut self, desk: &mut Desk<'_>, response: &Response) -> Result<(), Violation> {
        match self.asked.pop_front() {
            Some(Asked::Id) => {
                let answer = response.read::<InitProducerIdRequest>()?;
                if answer.error_code != 0 {
                    return desk.unexpected("InitProducerId", answer.error_code);
                }
                self.id = Some((answer.producer_id, answer.producer_epoch));
                desk.ledger.given_id(answer.producer_id, &format!("producer {}", self.index))
            }
            Some(Asked::Produce(life, sent)) => {
                let answers = produced(desk, response)?;
                for (part, batch) in sent {
                    let answer = answers.iter().find(|(answered, _)| *answered == part);
                    let (_, answer) =
                        answer.ok_or_else(|| Violation(format!("{part:?}: no answer to a batch")))?;
                    if life == self.life {
                        self.acknowledged(desk, part, &batch, answer)?;
                    } else if answer.error_code == 0 {
                        desk.ledger.acked(&batch.records, answer.base_offset.cast_unsigned())?;
                    }
                }
                Ok(())
            }
            None => Err(Violation("an answer that no producer waits for".to_owned())),
        }
    }

    fn lost(&mut self, _ledger: &mut Ledger) -> Result<(), Violation> {
        self.asked.clear();
        if self.kind != Kind::Idempotent {
            self.begin_anew();
        }
        for outgoing in self.parts.values_mut() {
            (outgoing.sent, outgoing.waiting, outgoing.was_refused) = (0, 0, false);
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.asked.is_empty() && self.parts.values().all(|outgoing| outgoing.batches.is_empty())
    }

    /// Sequences tell a broker what it has had.
    fn is_careful(&self) -> bool {
        self.kind != Kind::Idempotent
    }
}
