//! `CreatePartitions`, versions 0 to 3: adds partitions to topics.

use std::sync::Arc;

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::create_partitions::{
    CreatePartitionsRequest, CreatePartitionsResponse, CreatePartitionsTopic, CreatePartitionsTopicResult,
};
use mainstem_runtime::Io;

use super::create_topics::{check_assignment, duplicates, invalid_request};
use crate::append_error::AppendError;
use crate::catalogue::Topic;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: CreatePartitionsRequest,
) {
    let validate_only = request.validate_only;
    let duplicates = duplicates(request.topics.iter().map(|topic| topic.name.as_str()));
    let mut names: Vec<String> = duplicates.iter().map(|name| (*name).to_owned()).collect();
    let mut outcomes: Vec<Result<(), AppendError>> =
        duplicates.iter().map(|_| Err(invalid_request("Duplicate topic name."))).collect();
    let mut to_apply = Vec::new();
    for topic in request.topics.iter().filter(|topic| !duplicates.contains(topic.name.as_str())) {
        let unknown = || Err(ErrorCode::UnknownTopicOrPartition.into());
        let changed = shard
            .catalogue
            .topic(&topic.name)
            .map_or_else(unknown, |existing| add_partitions(shard, existing, topic));
        if changed.is_ok() && !validate_only {
            to_apply.push((names.len(), topic.clone()));
        }
        names.push(topic.name.clone());
        outcomes.push(changed.map(drop));
    }
    let job = shard.begin_changes(io, outcomes, to_apply.len(), move |shard, io, outcomes| {
        let result = |(name, outcome): (String, Result<(), AppendError>)| {
            let AppendError { code, message, .. } = outcome.err().unwrap_or(ErrorCode::None.into());
            CreatePartitionsTopicResult { name, error_code: code as i16, error_message: message }
        };
        let results = names.into_iter().zip(outcomes).map(result).collect();
        let response = CreatePartitionsResponse { results, ..CreatePartitionsResponse::default() };
        shard.reply::<CreatePartitionsRequest>(io, &call, &response);
    });
    for (part, topic) in to_apply {
        let name: Arc<str> = topic.name.as_str().into();
        let change = move |shard: &Shard, existing: &Topic| add_partitions(shard, existing, &topic);
        shard.change_topic(io, &name, change, move |shard, io, outcome| {
            shard.change_done(io, job, part, outcome);
        });
    }
}

/// The topic with the requested number of partitions.
fn add_partitions(
    shard: &Shard,
    existing: &Topic,
    request: &CreatePartitionsTopic,
) -> Result<Topic, AppendError> {
    let refused = |code, message: String| Err(AppendError::new(code, message));
    let (count, now) = (request.count, existing.partitions());
    if count == now {
        return refused(ErrorCode::InvalidPartitions, format!("Topic already has {now} partition(s)."));
    }
    if count < now {
        let message = format!(
            "The topic {} currently has {now} partition(s); {count} would not be an increase.",
            request.name
        );
        return refused(ErrorCode::InvalidPartitions, message);
    }
    if existing.config.queue.is_some() {
        let message = format!("The topic {} is a work queue, which has one partition.", request.name);
        return refused(ErrorCode::InvalidPartitions, message);
    }
    let more = count - now;
    if let Some(assignments) = &request.assignments {
        if assignments.len() != more.unsigned_abs() as usize {
            let message = format!(
                "Attempted to add {more} additional partition(s), but only {} assignment(s) were specified.",
                assignments.len()
            );
            return refused(ErrorCode::InvalidReplicaAssignment, message);
        }
        for assignment in assignments {
            check_assignment(shard.shared.config.node_id, &assignment.broker_ids)?;
        }
    }
    if let Some(refused) = shard.partitions_error(more) {
        return Err(refused);
    }
    let next = existing.homes.last().map_or(0, |home| usize::from(*home) + 1);
    let mut changed = existing.clone();
    changed.homes.extend(shard.shared.store_ids_from(next, more));
    Ok(changed)
}
