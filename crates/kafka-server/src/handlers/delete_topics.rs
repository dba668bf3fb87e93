//! `DeleteTopics`, versions 1 to 6: deletes topics by name or by id (KIP-516).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mainstem_kafka::api::delete_topics::{
    DeletableTopicResult, DeleteTopicState, DeleteTopicsRequest, DeleteTopicsResponse,
};
use mainstem_kafka::{ErrorCode, Uuid};
use mainstem_partition::TopicId;
use mainstem_runtime::Io;
use mainstem_security::Action;

use super::create_topics::invalid_request;
use crate::append_error::AppendError;
use crate::catalogue::Topic;
use crate::pending::{AfterChanges, AfterTopicChange};
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

/// A topic to delete: how the request names it, and its result.
struct RequestedTopic {
    name: Option<String>,
    id: Uuid,
    outcome: Result<(), AppendError>,
}

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: DeleteTopicsRequest,
) {
    let named = request.topic_names.into_iter().map(|name| (Some(name), Uuid::default()));
    let states = request.topics.into_iter().map(|DeleteTopicState { name, topic_id }| (name, topic_id));
    let requested = resolve(shard, &call, named.chain(states));
    let outcomes = requested.iter().map(|requested| requested.outcome.clone()).collect();
    let to_delete = |(part, requested): (usize, &RequestedTopic)| {
        requested.outcome.is_ok().then_some((part, requested.id))
    };
    let to_delete: Vec<(usize, Uuid)> = requested.iter().enumerate().filter_map(to_delete).collect();
    let topics = requested.into_iter().map(|requested| (requested.name, requested.id)).collect();
    let then = AfterChanges::DeleteTopics { call, topics };
    let job = shard.begin_changes(io, outcomes, to_delete.len(), then);
    for (part, id) in to_delete {
        shard.delete_topic(io, TopicId(id.0), AfterTopicChange::Job { job, part });
    }
}

/// Answers when all topics are deleted or refused.
pub(crate) fn finish(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    topics: Vec<(Option<String>, Uuid)>,
    outcomes: Vec<Result<(), AppendError>>,
) {
    let result = |((name, topic_id), outcome): ((Option<String>, Uuid), Result<(), AppendError>)| {
        let AppendError { code, message, .. } = outcome.err().unwrap_or(ErrorCode::None.into());
        DeletableTopicResult { name, topic_id, error_code: code as i16, error_message: message }
    };
    let responses = topics.into_iter().zip(outcomes).map(result).collect();
    let response = DeleteTopicsResponse { responses, ..DeleteTopicsResponse::default() };
    shard.reply::<DeleteTopicsRequest>(io, call, &response);
}

/// Finds the topics. A topic that is listed twice is not deleted and gets one result.
fn resolve(
    shard: &Shard,
    call: &RequestContext,
    topics: impl Iterator<Item = (Option<String>, Uuid)>,
) -> Vec<RequestedTopic> {
    let mut counts: BTreeMap<(Option<String>, Uuid), usize> = BTreeMap::new();
    for key in topics {
        *counts.entry(key).or_default() += 1;
    }
    let mut to_delete = BTreeSet::new();
    let resolve = |((name, id), count): ((Option<String>, Uuid), usize)| {
        let found = find(shard, call, name.as_deref(), id, count).and_then(|topic| {
            let message = "The provided topic name maps to an ID that was already supplied.";
            if to_delete.insert(topic.id) { Ok(topic) } else { Err(invalid_request(message)) }
        });
        match found {
            Ok(topic) => {
                RequestedTopic { name: Some(topic.name.to_string()), id: Uuid(topic.id.0), outcome: Ok(()) }
            }
            Err(refused) => RequestedTopic { name, id, outcome: Err(refused) },
        }
    };
    counts.into_iter().map(resolve).collect()
}

/// Deleting a topic needs the right to see it too.
fn may_delete(call: &RequestContext, topic: &str) -> Result<(), ErrorCode> {
    call.check_topic(Action::Describe, topic).and_then(|()| call.check_topic(Action::Delete, topic))
}

fn find<'a>(
    shard: &'a Shard,
    call: &RequestContext,
    name: Option<&str>,
    id: Uuid,
    count: usize,
) -> Result<&'a Arc<Topic>, AppendError> {
    match (name, id == Uuid::default()) {
        (None, true) => Err(invalid_request("Neither topic name nor id were specified.")),
        (Some(_), false) => Err(invalid_request("You may not specify both topic name and topic id.")),
        (Some(_), true) if count > 1 => Err(invalid_request("Duplicate topic name.")),
        (None, false) if count > 1 => Err(invalid_request("Duplicate topic id.")),
        (Some(name), true) => {
            may_delete(call, name)?;
            shard.env.catalogue().topic(name).ok_or_else(|| ErrorCode::UnknownTopicOrPartition.into())
        }
        (None, false) => {
            let topic = shard.env.catalogue().topic_by_id(TopicId(id.0)).ok_or(ErrorCode::UnknownTopicId)?;
            may_delete(call, &topic.name)?;
            Ok(topic)
        }
    }
}
