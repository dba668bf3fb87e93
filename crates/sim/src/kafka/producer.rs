//! Producers without transactions: idempotent ones, which send again what was not acknowledged, and others, which do
//! not.

use std::collections::{BTreeMap, VecDeque};

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::init_producer_id::InitProducerIdRequest;
use mainstem_kafka::api::produce::{
    PartitionProduceData, PartitionProduceResponse, ProduceRequest, TopicProduceData,
};
use mainstem_log::BatchKind;

use super::client::{self, Batch, Client, Context, ProducerId, named};
use super::connection::Response;
use super::oracle::{Oracle, PartitionId};
use crate::Violation;

/// Batches in flight per partition of an idempotent producer: a broker remembers the last five.
const IN_FLIGHT_MAX: usize = 5;
const RECORDS_MAX: u64 = 6;

/// Acknowledgements that a producer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Idempotent,
    /// Acknowledged, and never sent again.
    Plain,
    /// Not acknowledged.
    Unacknowledged,
}

#[derive(Debug)]
pub(crate) struct Producer {
    index: usize,
    kind: Kind,
    id: Option<ProducerId>,
    /// Number of its stream, whose records keep their order: a connection of a plain producer, or a producer id.
    stream: u64,
    parts: BTreeMap<PartitionId, Outgoing>,
    in_flight: VecDeque<InFlight>,
}

/// Batches of a partition that are not acknowledged.
#[derive(Debug, Default)]
struct Outgoing {
    next_sequence: i32,
    batches: VecDeque<Batch>,
    /// Number of batches in flight: the first ones.
    sent: usize,
    /// Requests without a response.
    waiting: usize,
    /// A batch was refused: nothing is sent until all responses have come.
    was_refused: bool,
}

#[derive(Debug)]
enum InFlight {
    Id,
    /// A batch for each of some partitions, and the stream they belong to.
    Produce(u64, Vec<(PartitionId, Batch)>),
}

impl Producer {
    pub(crate) fn new(index: usize, kind: Kind) -> Self {
        Self { index, kind, id: None, stream: 0, parts: BTreeMap::new(), in_flight: VecDeque::new() }
    }

    /// Makes a batch for a random partition, unless it has too many in flight.
    fn make(&mut self, context: &mut Context<'_>) -> Option<PartitionId> {
        let part = context.any_partition();
        let outgoing = self.parts.entry(part).or_default();
        if outgoing.batches.len() >= IN_FLIGHT_MAX {
            return None;
        }
        let stream = (self.index, self.stream);
        let count = 1 + context.rng.below(RECORDS_MAX);
        let records: Vec<_> = (0..count).map(|_| context.oracle.record(part, stream, None)).collect();
        let producer = self.id.map(|id| (id, outgoing.next_sequence));
        outgoing.next_sequence += count as i32;
        let batch = client::batch(&records, part, context.unix_ms, producer, BatchKind::Plain);
        outgoing.batches.push_back(batch);
        Some(part)
    }

    /// Sends the next batch of each of these partitions.
    fn send(&mut self, context: &mut Context<'_>, parts: &[PartitionId]) {
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
        let is_unacknowledged = self.kind == Kind::Unacknowledged;
        let request = produce(context, None, if is_unacknowledged { 0 } else { -1 }, &sent);
        if is_unacknowledged {
            context.connection.send_unanswered(9, &request);
            for (part, _) in sent {
                self.parts.remove(&part);
            }
        } else {
            context.connection.send(9 + context.rng.below(4) as i16, &request);
            self.in_flight.push_back(InFlight::Produce(self.stream, sent));
        }
    }

    fn acknowledged(
        &mut self,
        context: &mut Context<'_>,
        part: PartitionId,
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
            context.oracle.acked(&batch.records, answer.base_offset.cast_unsigned())?;
        }
        let follows = is_behind && !is_first && outgoing.was_refused;
        let is_broken = (is_taken && !is_first) || (is_behind && !follows);
        if is_idempotent && is_broken {
            // A loss of power after records were deleted loses the state of their producers.
            let has_lost = context.has_lost_power && context.oracle.deletable(part) > 0;
            if !context.has_failed && !has_lost {
                return Err(Violation(format!(
                    "{part:?}: the batch with sequence {} is answered with {} out of its turn",
                    batch.sequence,
                    named(answer.error_code)
                )));
            }
            // A log that could not be opened for one batch and could for the next has lost the first.
            self.id = None;
            self.begin_stream();
            return Ok(());
        }
        if !is_taken && !follows {
            context.unexpected(&format!("{part:?}: a batch"), answer.error_code)?;
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

    fn begin_stream(&mut self) {
        self.parts.clear();
        self.stream += 1;
    }

    /// Sends everything not in flight, in order.
    fn send_all(&mut self, context: &mut Context<'_>) {
        let parts: Vec<PartitionId> = self.parts.keys().copied().collect();
        for _ in 0..IN_FLIGHT_MAX {
            self.send(context, &parts);
        }
    }
}

/// A request with a batch for each partition.
pub(crate) fn produce(
    context: &Context<'_>,
    transactional_id: Option<String>,
    acks: i16,
    batches: &[(PartitionId, Batch)],
) -> ProduceRequest {
    let mut topic_data: Vec<TopicProduceData> = Vec::new();
    for (part, batch) in batches {
        let data = PartitionProduceData { index: part.index, records: Some(batch.bytes.clone()) };
        let name = context.name(*part);
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

/// The response for each partition.
pub(crate) fn produced(
    context: &Context<'_>,
    response: &Response,
) -> Result<Vec<(PartitionId, PartitionProduceResponse)>, Violation> {
    let mut all = Vec::new();
    for topic in response.read::<ProduceRequest>()?.responses {
        for answer in topic.partition_responses {
            all.push((context.part(&topic.name, answer.index)?, answer));
        }
    }
    Ok(all)
}

impl Client for Producer {
    fn act(&mut self, context: &mut Context<'_>) {
        if self.kind == Kind::Idempotent && self.id.is_none() {
            if self.in_flight.is_empty() {
                context
                    .connection
                    .send(4, &InitProducerIdRequest { transaction_timeout_ms: 60_000, ..Default::default() });
                self.in_flight.push_back(InFlight::Id);
            }
            return;
        }
        self.send_all(context);
        if context.is_ending {
            return;
        }
        let mut parts = Vec::new();
        for _ in 0..=context.rng.below(3) {
            parts.extend(self.make(context).filter(|part| !parts.contains(part)));
        }
        self.send(context, &parts);
    }

    fn handle_response(&mut self, context: &mut Context<'_>, response: &Response) -> Result<(), Violation> {
        match self.in_flight.pop_front() {
            Some(InFlight::Id) => {
                let answer = response.read::<InitProducerIdRequest>()?;
                if answer.error_code != 0 {
                    return context.unexpected("InitProducerId", answer.error_code);
                }
                self.id = Some((answer.producer_id, answer.producer_epoch));
                context.oracle.assigned_id(answer.producer_id, &format!("producer {}", self.index))
            }
            Some(InFlight::Produce(stream, sent)) => {
                let answers = produced(context, response)?;
                for (part, batch) in sent {
                    let answer = answers.iter().find(|(answered, _)| *answered == part);
                    let (_, answer) =
                        answer.ok_or_else(|| Violation(format!("{part:?}: no answer to a batch")))?;
                    if stream == self.stream {
                        self.acknowledged(context, part, &batch, answer)?;
                    } else if answer.error_code == 0 {
                        context.oracle.acked(&batch.records, answer.base_offset.cast_unsigned())?;
                    }
                }
                Ok(())
            }
            None => Err(Violation("an answer that no producer waits for".to_owned())),
        }
    }

    fn connection_lost(&mut self, _oracle: &mut Oracle) -> Result<(), Violation> {
        self.in_flight.clear();
        if self.kind != Kind::Idempotent {
            self.begin_stream();
        }
        for outgoing in self.parts.values_mut() {
            (outgoing.sent, outgoing.waiting, outgoing.was_refused) = (0, 0, false);
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.in_flight.is_empty() && self.parts.values().all(|outgoing| outgoing.batches.is_empty())
    }

    /// A broker recognizes repeated batches by their sequence numbers.
    fn waits_for_broker(&self) -> bool {
        self.kind != Kind::Idempotent
    }
}
