//! `CreatePartitions`, versions 0 to 3: adds partitions to topics.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::create_partitions::{
    CreatePartitionsRequest, CreatePartitionsResponse, CreatePartitionsTopicResult,
};
use mainstem_runtime::Io;
use mainstem_security::{Action, ChangedSettings};

use super::create_topics::{duplicates, invalid_request, over_quota};
use crate::append_error::AppendError;
use crate::conn_quotas::may_mutate;
use crate::pending::{AfterChanges, AfterTopicChange};
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};
use crate::topic_audit::{audited_topic, note_topic_change};
use crate::topic_change::TopicChange;

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    mut call: RequestContext,
    request: CreatePartitionsRequest,
) {
    let Some(request) = shard.divide(io, &call, request) else { return };
    let validate_only = request.validate_only;
    let duplicates = duplicates(request.topics.iter().map(|topic| topic.name.as_str()));
    let mut names: Vec<String> = duplicates.iter().map(|name| (*name).to_owned()).collect();
    let mut outcomes: Vec<Result<(), AppendError>> =
        duplicates.iter().map(|_| Err(invalid_request("Duplicate topic name."))).collect();
    let mut to_apply = Vec::new();
    for topic in request.topics.iter().filter(|topic| !duplicates.contains(topic.name.as_str())) {
        let known = shard.env.catalogue().topic(&topic.name);
        let before = known.map_or(0, |topic| topic.partitions());
        let mut changed = match (call.check_topic(Action::Alter, &topic.name), &shard.controller, known) {
            (Err(code), ..) => Err(code.into()),
            (_, None, _) => Err(ErrorCode::NotController.into()),
            (.., None) => Err(ErrorCode::UnknownTopicOrPartition.into()),
            (Ok(()), Some(controller), Some(existing)) => controller.add_partitions(existing, topic),
        };
        let added = topic.count.saturating_sub(before).max(0).unsigned_abs() as usize;
        if changed.is_ok() && !validate_only && !may_mutate(&mut shard.env, &mut call, added, io.clock.now_ms)
        {
            changed = Err(over_quota());
        }
        if changed.is_ok() && !validate_only {
            to_apply.push((names.len(), topic.clone()));
        }
        names.push(topic.name.clone());
        outcomes.push(changed.map(drop));
    }
    let before = names.iter().map(|name| audited_topic(shard.env.catalogue(), name)).collect();
    let then = AfterChanges::CreatePartitions { call, names, before };
    let job = shard.begin_changes(io, outcomes, to_apply.len(), then);
    for (part, topic) in to_apply {
        let name = topic.name.clone();
        let change = TopicChange::AddPartitions(topic);
        shard.change_topic(io, &name, change, AfterTopicChange::Job { job, part });
    }
}

/// Answers when the partitions of all topics are durable or refused.
pub(crate) fn finish(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    (names, before): (Vec<String>, Vec<Option<ChangedSettings>>),
    outcomes: Vec<Result<(), AppendError>>,
) {
    for (name, before) in names.iter().zip(before) {
        note_topic_change(shard.env.catalogue(), call, "add-partitions", name, before);
    }
    let result = |(name, outcome): (String, Result<(), AppendError>)| {
        let AppendError { code, message, .. } = outcome.err().unwrap_or(ErrorCode::None.into());
        CreatePartitionsTopicResult { name, error_code: code as i16, error_message: message }
    };
    let results = names.into_iter().zip(outcomes).map(result).collect();
    let response = CreatePartitionsResponse { results, ..CreatePartitionsResponse::default() };
    shard.reply::<CreatePartitionsRequest>(io, call, &response);
}
