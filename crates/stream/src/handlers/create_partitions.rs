//! `CreatePartitions`, versions 0 to 3: adds partitions to topics. Runs on the controller.

use std::sync::Arc;

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::create_partitions::{
    CreatePartitionsRequest, CreatePartitionsResponse, CreatePartitionsTopic, CreatePartitionsTopicResult,
};
use mainstem_runtime::Io;

use super::create_topics::{check_assignment, invalid_request, twice};
use crate::catalogue::Topic;
use crate::mail::{Call, Mail};
use crate::partition::Refused;
use crate::shard::Shard;

pub(crate) fn handle(shard: &mut Shard, io: &mut Io<'_, Mail>, call: Call, request: CreatePartitionsRequest) {
    let validate_only = request.validate_only;
    let twice = twice(request.topics.iter().map(|topic| topic.name.as_str()));
    let mut names: Vec<String> = twice.iter().map(|name| (*name).to_owned()).collect();
    let mut outcomes: Vec<Result<(), Refused>> =
        twice.iter().map(|_| Err(invalid_request("Duplicate topic name."))).collect();
    let mut wanted = Vec::new();
    for topic in request.topics.iter().filter(|topic| !twice.contains(topic.name.as_str())) {
        let unknown = || Err(ErrorCode::UnknownTopicOrPartition.into());
        let grown =
            shard.catalogue.topic(&topic.name).map_or_else(unknown, |known| grow(shard, known, topic));
        if grown.is_ok() && !validate_only {
            wanted.push((names.len(), topic.clone()));
        }
        names.push(topic.name.clone());
        outcomes.push(grown.map(drop));
    }
    let job = shard.begin_changes(io, outcomes, wanted.len(), move |shard, io, outcomes| {
        let result = |(name, outcome): (String, Result<(), Refused>)| {
            let Refused { code, message, .. } = outcome.err().unwrap_or(ErrorCode::None.into());
            CreatePartitionsTopicResult { name, error_code: code as i16, error_message: message }
        };
        let results = names.into_iter().zip(outcomes).map(result).collect();
        let response = CreatePartitionsResponse { results, ..CreatePartitionsResponse::default() };
        shard.reply::<CreatePartitionsRequest>(io, &call, &response);
    });
    for (part, topic) in wanted {
        let name: Arc<str> = topic.name.as_str().into();
        let change = move |shard: &Shard, known: &Topic| grow(shard, known, &topic);
        shard.change_topic(io, &name, change, move |shard, io, outcome| {
            shard.change_done(io, job, part, outcome);
        });
    }
}

/// The topic with as many partitions as are wanted.
fn grow(shard: &Shard, known: &Topic, wanted: &CreatePartitionsTopic) -> Result<Topic, Refused> {
    let refused = |code, message: String| Err(Refused::new(code, message));
    let (count, now) = (wanted.count, known.partitions());
    if count == now {
        return refused(ErrorCode::InvalidPartitions, format!("Topic already has {now} partition(s)."));
    }
    if count < now {
        let message = format!(
            "The topic {} currently has {now} partition(s); {count} would not be an increase.",
            wanted.name
        );
        return refused(ErrorCode::InvalidPartitions, message);
    }
    if known.config.queue.is_some() {
        let message = format!("The topic {} is a work queue, which has one partition.", wanted.name);
        return refused(ErrorCode::InvalidPartitions, message);
    }
    let more = count - now;
    if let Some(assignments) = &wanted.assignments {
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
    if let Some(refused) = shard.partitions_fault(more) {
        return Err(refused);
    }
    let next = known.homes.last().map_or(0, |home| usize::from(*home) + 1);
    let mut grown = known.clone();
    grown.homes.extend(shard.shared.homes_from(next, more));
    Ok(grown)
}
