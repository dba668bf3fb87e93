//! `DeleteTopics`, versions 1 to 6: deletes topics by name or by id (KIP-516).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mainstem_kafka::api::delete_topics::{
    DeletableTopicResult, DeleteTopicState, DeleteTopicsRequest, DeleteTopicsResponse,
};
use mainstem_kafka::{ErrorCode, Uuid};
use mainstem_partition::TopicId;
use mainstem_runtime::Io;
use mainstem_security::{Action, ChangedSettings};

use super::create_topics::{invalid_request, over_quota};
use crate::append_error::AppendError;
use crate::catalogue::Topic;
use crate::conn_quotas::may_mutate;
use crate::pending::{AfterChanges, AfterTopicChange};
use crate::pending_work::{Deletion, Task};
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};
use crate::topic_audit::audited_topic;

/// The name and the identifier of a topic to delete, as far as the request or the catalogue tells.
type TopicKey = (Option<String>, Uuid);

/// A topic to delete: how the request names it, and its result.
struct RequestedTopic {
    name: Option<String>,
    id: Uuid,
    outcome: Result<(), AppendError>,
}

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    mut call: RequestContext,
    mut request: DeleteTopicsRequest,
) {
    let state = |name| DeleteTopicState { name: Some(name), topic_id: Uuid::default() };
    let named = std::mem::take(&mut request.topic_names).into_iter().map(state);
    request.topics.splice(..0, named);
    let Some(request) = shard.divide(io, &call, request) else { return };
    let states = request.topics.into_iter().map(|DeleteTopicState { name, topic_id }| (name, topic_id));
    let mut deleted = take_deleted(shard, &call);
    let mut requested = resolve(shard, &call, states, &mut deleted);
    if let Some(division) = call.division.and_then(|number| shard.jobs.division(number)) {
        *division.deleted() = deleted;
    }
    for topic in requested.iter_mut().filter(|topic| topic.outcome.is_ok()) {
        let known = shard.env.catalogue().topic_by_id(TopicId(topic.id.0));
        let partitions = known.map_or(0, |known| known.partitions().unsigned_abs() as usize);
        if !may_mutate(&mut shard.env, &mut call, partitions, io.clock.now_ms) {
            topic.outcome = Err(over_quota());
        }
    }
    let outcomes = requested.iter().map(|requested| requested.outcome.clone()).collect();
    let to_delete = |(part, requested): (usize, &RequestedTopic)| {
        requested.outcome.is_ok().then_some((part, requested.id))
    };
    let to_delete: Vec<(usize, Uuid)> = requested.iter().enumerate().filter_map(to_delete).collect();
    let audited = |requested: &RequestedTopic| {
        requested
            .name
            .as_deref()
            .filter(|_| requested.outcome.is_ok())
            .and_then(|name| audited_topic(shard.env.catalogue(), name))
    };
    let before = requested.iter().map(audited).collect();
    let topics = requested.into_iter().map(|requested| (requested.name, requested.id)).collect();
    let then = AfterChanges::DeleteTopics { call, topics, before };
    let job = shard.begin_changes(io, outcomes, to_delete.len(), then);
    for (part, id) in to_delete {
        shard.delete_topic(io, TopicId(id.0), AfterTopicChange::Job { job, part });
    }
}

/// Answers when all topics are deleted or refused. Whoever knows that a topic is deleted must not find its offsets.
pub(crate) fn finish(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    (topics, before): (Vec<TopicKey>, Vec<Option<ChangedSettings>>),
    outcomes: Vec<Result<(), AppendError>>,
) {
    for (((name, _), before), outcome) in topics.iter().zip(before).zip(&outcomes) {
        if let (Some(name), Some(before), Ok(())) = (name, before, outcome) {
            call.note_change("delete-topic", name, Some(before), None);
        }
    }
    let controller = shard.controller.as_ref();
    match controller.and_then(|controller| controller.groups.unfinished_removal()) {
        None => answer(shard, io, &call, topics, outcomes),
        Some(removal) => {
            let deletion = Deletion { call, topics, outcomes, removal };
            shard.pending_work.add(Task::AnswerDeletion(Box::new(deletion)));
            io.request_turn();
        }
    }
}

/// Answers a request whose topics are deleted, if their offsets are removed too. Otherwise returns it.
pub(crate) fn answer_deletion(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    deletion: Box<Deletion>,
) -> Option<Box<Deletion>> {
    let controller = shard.controller.as_ref();
    if controller.is_some_and(|controller| !controller.groups.has_forgotten(deletion.removal)) {
        return Some(deletion);
    }
    let Deletion { call, topics, outcomes, .. } = *deletion;
    answer(shard, io, &call, topics, outcomes);
    None
}

fn answer(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    topics: Vec<TopicKey>,
    outcomes: Vec<Result<(), AppendError>>,
) {
    let result = |((name, topic_id), outcome): (TopicKey, Result<(), AppendError>)| {
        let AppendError { code, message, .. } = outcome.err().unwrap_or(ErrorCode::None.into());
        DeletableTopicResult { name, topic_id, error_code: code as i16, error_message: message }
    };
    let responses = topics.into_iter().zip(outcomes).map(result).collect();
    let response = DeleteTopicsResponse { responses, ..DeleteTopicsResponse::default() };
    shard.reply::<DeleteTopicsRequest>(io, call, &response);
}

/// The names of the topics that earlier parts of the request have deleted.
fn take_deleted(shard: &mut Shard, call: &RequestContext) -> BTreeSet<Arc<str>> {
    let division = call.division.and_then(|number| shard.jobs.division(number));
    division.map(|division| std::mem::take(division.deleted())).unwrap_or_default()
}

/// Finds the topics, and adds them to those `deleted` by the request. A topic that is listed twice is not deleted and
/// gets one result.
fn resolve(
    shard: &Shard,
    call: &RequestContext,
    topics: impl Iterator<Item = (Option<String>, Uuid)>,
    deleted: &mut BTreeSet<Arc<str>>,
) -> Vec<RequestedTopic> {
    let mut counts: BTreeMap<(Option<String>, Uuid), usize> = BTreeMap::new();
    for key in topics {
        *counts.entry(key).or_default() += 1;
    }
    let resolve = |((name, id), count): ((Option<String>, Uuid), usize)| {
        let found = find(shard, call, (name.as_deref(), id), count, deleted);
        if let Ok(topic) = found {
            deleted.insert(Arc::clone(&topic.name));
        }
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
    (name, id): (Option<&str>, Uuid),
    count: usize,
    deleted: &BTreeSet<Arc<str>>,
) -> Result<&'a Arc<Topic>, AppendError> {
    match (name, id == Uuid::default()) {
        (None, true) => Err(invalid_request("Neither topic name nor id were specified.")),
        (Some(_), false) => Err(invalid_request("You may not specify both topic name and topic id.")),
        (Some(_), true) if count > 1 => Err(invalid_request("Duplicate topic name.")),
        (None, false) if count > 1 => Err(invalid_request("Duplicate topic id.")),
        (Some(name), true) => {
            may_delete(call, name)?;
            if deleted.contains(name) {
                let message = "The provided topic name maps to an ID that was already supplied.";
                return Err(invalid_request(message));
            }
            shard.env.catalogue().topic(name).ok_or_else(|| ErrorCode::UnknownTopicOrPartition.into())
        }
        (None, false) => {
            let topic = shard.env.catalogue().topic_by_id(TopicId(id.0)).ok_or(ErrorCode::UnknownTopicId)?;
            may_delete(call, &topic.name)?;
            Ok(topic)
        }
    }
}
