//! `Produce`, versions 3 to 13: appends record batches on the shards that own the partitions.
//!
//! A producer must not get an acknowledgment before its batch is as durable as its topic requires. The response is
//! therefore sent when every batch is durable or has failed. Batches for partitions of this shard go to the log from
//! the frame. Batches for other shards are copied into one message per shard.

use std::sync::Arc;

use mainstem_kafka::api::produce::{
    BatchIndexAndErrorMessage, PartitionProduceResponse, ProduceRequest, ProduceRequestRef, ProduceResponse,
    TopicProduceResponse,
};
use mainstem_kafka::{ErrorCode, Uuid};
use mainstem_log::BatchHeader;
use mainstem_partition::{AppendInfo, TopicId, Waiter};
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::append_error::AppendError;
use crate::catalogue::{PartitionId, Topic};
use crate::jobs::Job;
use crate::partition_message::{PartitionRequest, ProducePart};
use crate::produce_job::{ProduceJob, ProduceTopic};
use crate::shard::Shard;
use crate::shard_message::{JobId, Mail, RequestContext, ShardMessage};
use crate::unverified_batches::Transactional;

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: ProduceRequestRef<'_>,
) {
    let version = call.version;
    let acks_error = (!(-1..=1).contains(&request.acks)).then_some(ErrorCode::InvalidRequiredAcks);
    let request_error = acks_error.or_else(|| transactional_id_error(&call, &request));
    let mut job = ProduceJob {
        call,
        wants_response: request.acks != 0,
        topics: Vec::with_capacity(request.topics.len()),
        parts: Vec::new(),
        waiting: 0,
        mailed_bytes: 0,
    };
    let mut appends = Vec::new();
    for topic in &request.topics {
        let found = find(shard, &job.call, topic.name, topic.topic_id);
        for partition in &topic.partitions {
            let append = match (&found, request_error) {
                (_, Some(code)) => Err(code),
                (Err(code), None) => Err(*code),
                (Ok(found), None) => found
                    .store_id(partition.index)
                    .map(|store_id| (shard.env.shared().owner(store_id), found.partition(partition.index)))
                    .ok_or(ErrorCode::UnknownTopicOrPartition),
            };
            let outcome = match append {
                Ok((owner, id)) => {
                    appends.push((owner, job.parts.len() as u32, id, partition.records.unwrap_or_default()));
                    ErrorCode::UnknownServerError
                }
                Err(code) => code,
            };
            job.parts.push((partition.index, Err(outcome.into())));
        }
        let name = found.as_ref().map_or_else(|_| topic.name.into(), |found| Arc::clone(&found.name));
        job.topics.push(ProduceTopic { name, id: topic.topic_id, parts: topic.partitions.len() });
    }
    job.waiting = appends.len() as u32;
    let remote_appends = appends.iter().filter(|(owner, ..)| *owner != shard.env.me());
    job.mailed_bytes = remote_appends.map(|(_, _, _, records)| records.len()).sum();
    if appends.is_empty() {
        return finish(shard, io, &job);
    }
    let number = shard.jobs.add(Job::Produce(job));
    let id = request.transactional_id.map(Into::into);
    let transactional = id.map(|id| Transactional { id, version });
    dispatch_parts(shard, io, number, appends, transactional.as_ref());
}

/// Handles a request over thousands of partitions, which is decoded in steps, or a part of it. Such a request is not
/// pipelined: its parts are handled one after the other, and later requests must not overtake them.
pub(crate) fn handle_owned(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: ProduceRequest,
) {
    if let Some(request) = shard.divide(io, &call, request) {
        handle(shard, io, call, (&request).into());
    }
}

/// The error of a request with a transactional batch, but without the transactional id that must name it. As in Kafka,
/// no batch of such a request is appended.
fn transactional_id_error(call: &RequestContext, request: &ProduceRequestRef<'_>) -> Option<ErrorCode> {
    if let Some(id) = request.transactional_id {
        return call.check_transactional_id(Action::Produce, id).err();
    }
    let mut partitions = request.topics.iter().flat_map(|topic| &topic.partitions);
    let is_transactional =
        |records: &[u8]| BatchHeader::parse(records).is_ok_and(|header| header.is_transactional());
    let is_unnamed = partitions.any(|partition| partition.records.is_some_and(is_transactional));
    is_unnamed.then_some(ErrorCode::TransactionalIdAuthorizationFailed)
}

fn find(shard: &Shard, call: &RequestContext, name: &str, id: Uuid) -> Result<Arc<Topic>, ErrorCode> {
    if id == Uuid::default() {
        call.check_produce(&shard.env, name)?;
        shard.env.catalogue().topic(name).cloned().ok_or(ErrorCode::UnknownTopicOrPartition)
    } else {
        let topic = shard.env.catalogue().topic_by_id(TopicId(id.0)).ok_or(ErrorCode::UnknownTopicId)?;
        call.check_produce(&shard.env, &topic.name)?;
        Ok(Arc::clone(topic))
    }
}

/// Appends to the partitions of this shard and sends the rest to their owners.
fn dispatch_parts(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    number: u64,
    appends: Vec<(usize, u32, PartitionId, &[u8])>,
    transactional: Option<&Transactional>,
) {
    let job = JobId { shard: shard.env.me(), job: number };
    let mut remote: Vec<Vec<ProducePart>> = Vec::new();
    for (owner, part, id, records) in appends {
        if owner == shard.env.me() {
            shard.produce_local(io, Waiter { job, part }, id, records, transactional);
            continue;
        }
        if remote.is_empty() {
            remote.resize_with(shard.env.shared().shards, Vec::new);
        }
        let transactional = transactional.cloned();
        remote[owner].push(ProducePart { part, id, records: records.to_vec(), transactional });
    }
    for (owner, parts) in remote.into_iter().enumerate().filter(|(_, parts)| !parts.is_empty()) {
        io.send(owner, Mail(ShardMessage::PartitionRequest { job, work: PartitionRequest::Produce(parts) }));
    }
}

/// Answers a request whose appends have ended.
pub(crate) fn finish(shard: &mut Shard, io: &mut Io<'_, Mail>, job: &ProduceJob) {
    if job.wants_response {
        return shard.reply::<ProduceRequest>(io, &job.call, &response(job));
    }
    let failed = job.parts.iter().any(|(_, outcome)| outcome.is_err());
    match job.call.division {
        Some(number) if !failed => shard.continue_divided(io, number),
        Some(_) => {}
        None => shard.reply_with(io, job.call.caller, Vec::new()),
    }
    if let Some((_, Err(refused))) = job.parts.iter().find(|(_, outcome)| outcome.is_err()) {
        // With `acks=0` a closed connection is the only sign of an error.
        shard.refuse_call(io, &job.call, refused.code.name());
    }
}

fn response(job: &ProduceJob) -> ProduceResponse {
    let mut parts = job.parts.iter();
    let topic = |topic: &ProduceTopic| TopicProduceResponse {
        name: topic.name.to_string(),
        topic_id: topic.id,
        partition_responses: parts.by_ref().take(topic.parts).map(part_response).collect(),
    };
    let responses = job.topics.iter().map(topic).collect();
    ProduceResponse { responses, ..ProduceResponse::default() }
}

fn part_response((index, outcome): &(i32, Result<AppendInfo, AppendError>)) -> PartitionProduceResponse {
    match outcome {
        Ok(info) => PartitionProduceResponse {
            index: *index,
            base_offset: info.base_offset.cast_signed(),
            log_append_time_ms: info.append_time_ms.unwrap_or(-1),
            log_start_offset: info.log_start.cast_signed(),
            ..PartitionProduceResponse::default()
        },
        Err(refused) => PartitionProduceResponse {
            index: *index,
            error_code: refused.code as i16,
            base_offset: -1,
            log_start_offset: refused.log_start.map_or(-1, u64::cast_signed),
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

fn record_error(batch_index: i32, refused: &AppendError) -> BatchIndexAndErrorMessage {
    BatchIndexAndErrorMessage { batch_index, batch_index_error_message: refused.message.clone() }
}
