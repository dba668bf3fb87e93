//! `Produce`, versions 3 to 13: batches to the shards that have their partitions, and the answer when all are as
//! durable as their topics ask for. Runs here.

use std::sync::Arc;

use mainstem_kafka::api::produce::{
    BatchIndexAndErrorMessage, PartitionProduceResponse, ProduceRequest, ProduceRequestRef, ProduceResponse,
    TopicProduceResponse,
};
use mainstem_kafka::{ErrorCode, Reader, Uuid};
use mainstem_runtime::Io;

use crate::catalogue::{PartitionId, Topic};
use crate::held::Transactional;
use crate::jobs::Job;
use crate::mail::{Call, JobId, Letter, Mail};
use crate::partition::{Placed, Produced, Refused};
use crate::shard::Shard;
use crate::work::{ProducePart, Work};

/// A request whose appends are under way.
#[derive(Debug)]
pub(crate) struct ProduceJob {
    call: Call,
    wants_answer: bool,
    topics: Vec<ProduceTopic>,
    /// For each partition of the request, in its order: its number, and what became of it.
    parts: Vec<(i32, Result<Placed, Refused>)>,
    /// Parts not heard of.
    waiting: u32,
    /// Bytes of records that went to other shards.
    mailed_bytes: usize,
}

#[derive(Debug)]
struct ProduceTopic {
    name: Arc<str>,
    id: Uuid,
    /// How many parts are of this topic.
    parts: usize,
}

pub(crate) fn handle(shard: &mut Shard, io: &mut Io<'_, Mail>, call: &Call, body: &[u8]) {
    let request = match ProduceRequestRef::decode(&mut Reader::new(body), call.version) {
        Ok(request) => request,
        Err(error) => return shard.refuse_call(io, call, &error.to_string()),
    };
    let fault = (!(-1..=1).contains(&request.acks)).then_some(ErrorCode::InvalidRequiredAcks);
    let mut job = ProduceJob {
        call: call.clone(),
        wants_answer: request.acks != 0,
        topics: Vec::with_capacity(request.topics.len()),
        parts: Vec::new(),
        waiting: 0,
        mailed_bytes: 0,
    };
    let mut orders = Vec::new();
    for topic in &request.topics {
        let known = find(shard, topic.name, topic.topic_id);
        for partition in &topic.partitions {
            let order = match (&known, fault) {
                (_, Some(code)) => Err(code),
                (Err(code), None) => Err(*code),
                (Ok(known), None) => known
                    .home(partition.index)
                    .map(|home| (shard.shared.owner(home), known.partition(partition.index)))
                    .ok_or(ErrorCode::UnknownTopicOrPartition),
            };
            let outcome = match order {
                Ok((owner, id)) => {
                    orders.push((owner, job.parts.len() as u32, id, partition.records.unwrap_or_default()));
                    ErrorCode::UnknownServerError
                }
                Err(code) => code,
            };
            job.parts.push((partition.index, Err(outcome.into())));
        }
        let name = known.as_ref().map_or_else(|_| topic.name.into(), |known| Arc::clone(&known.name));
        job.topics.push(ProduceTopic { name, id: topic.topic_id, parts: topic.partitions.len() });
    }
    job.waiting = orders.len() as u32;
    let mailed = orders.iter().filter(|(owner, ..)| *owner != shard.me);
    job.mailed_bytes = mailed.map(|(_, _, _, records)| records.len()).sum();
    if orders.is_empty() {
        return answer(shard, io, &job);
    }
    shard.mailed_bytes += job.mailed_bytes;
    let number = shard.jobs.add(Job::Produce(job));
    let id = request.transactional_id.map(Into::into);
    let transactional = id.map(|id| Transactional { id, version: call.version });
    give(shard, io, number, orders, transactional.as_ref());
}

fn find(shard: &Shard, name: &str, id: Uuid) -> Result<Arc<Topic>, ErrorCode> {
    if id == Uuid::default() {
        shard.catalogue.topic(name).cloned().ok_or(ErrorCode::UnknownTopicOrPartition)
    } else {
        shard.catalogue.topic_by_id(id).cloned().ok_or(ErrorCode::UnknownTopicId)
    }
}

/// Appends what is here, and sends the rest to where it belongs.
fn give(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    number: u64,
    orders: Vec<(usize, u32, PartitionId, &[u8])>,
    transactional: Option<&Transactional>,
) {
    let job = JobId { shard: shard.me, job: number };
    let mut elsewhere: Vec<Vec<ProducePart>> = Vec::new();
    for (owner, part, id, records) in orders {
        if owner == shard.me {
            shard.produce_here(io, (job, part, id), records, transactional);
            continue;
        }
        if elsewhere.is_empty() {
            elsewhere.resize_with(shard.shared.shards, Vec::new);
        }
        let transactional = transactional.cloned();
        elsewhere[owner].push(ProducePart { part, id, records: records.to_vec(), transactional });
    }
    for (owner, parts) in elsewhere.into_iter().enumerate().filter(|(_, parts)| !parts.is_empty()) {
        io.send(owner, Mail(Letter::Work { job, work: Work::Produce(parts) }));
    }
}

impl Shard {
    /// One append of a request has come to its end.
    pub(crate) fn produced(&mut self, io: &mut Io<'_, Mail>, number: u64, produced: Produced) {
        let Some(Job::Produce(job)) = self.jobs.get(number) else { return };
        job.parts[produced.part as usize].1 = produced.outcome;
        job.waiting -= 1;
        if job.waiting == 0
            && let Some(Job::Produce(job)) = self.jobs.take(number)
        {
            self.mailed_bytes -= job.mailed_bytes;
            answer(self, io, &job);
        }
    }
}

fn answer(shard: &mut Shard, io: &mut Io<'_, Mail>, job: &ProduceJob) {
    if !job.wants_answer {
        shard.reply_with(io, job.call.caller, Vec::new());
        if let Some((_, Err(refused))) = job.parts.iter().find(|(_, outcome)| outcome.is_err()) {
            // Nothing else tells a producer that wants no answers.
            shard.refuse_call(io, &job.call, refused.code.name());
        }
        return;
    }
    let mut parts = job.parts.iter();
    let topic = |topic: &ProduceTopic| TopicProduceResponse {
        name: topic.name.to_string(),
        topic_id: topic.id,
        partition_responses: parts.by_ref().take(topic.parts).map(part_response).collect(),
    };
    let responses = job.topics.iter().map(topic).collect();
    let response = ProduceResponse { responses, ..ProduceResponse::default() };
    shard.reply::<ProduceRequest>(io, &job.call, &response);
}

fn part_response((index, outcome): &(i32, Result<Placed, Refused>)) -> PartitionProduceResponse {
    match outcome {
        Ok(placed) => PartitionProduceResponse {
            index: *index,
            base_offset: placed.base_offset,
            log_append_time_ms: placed.append_time_ms,
            log_start_offset: placed.log_start,
            ..PartitionProduceResponse::default()
        },
        Err(refused) => PartitionProduceResponse {
            index: *index,
            error_code: refused.code as i16,
            base_offset: -1,
            record_errors: refused
                .records
                .iter()
                .map(|batch_index| record_error(*batch_index, refused))
                .collect(),
            error_message: refused.message.clone(),
            ..PartitionProduceResponse::default()
        },
    }
}

fn record_error(batch_index: i32, refused: &Refused) -> BatchIndexAndErrorMessage {
    BatchIndexAndErrorMessage { batch_index, batch_index_error_message: refused.message.clone() }
}
