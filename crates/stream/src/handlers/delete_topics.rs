//! `DeleteTopics`, versions 1 to 6: deletes topics by name, or by id (KIP-516). Runs on the controller.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mainstem_kafka::api::delete_topics::{
    DeletableTopicResult, DeleteTopicState, DeleteTopicsRequest, DeleteTopicsResponse,
};
use mainstem_kafka::{ErrorCode, Uuid};
use mainstem_runtime::Io;

use super::create_topics::invalid_request;
use crate::catalogue::Topic;
use crate::mail::{Call, Mail};
use crate::partition::Refused;
use crate::shard::Shard;

/// A topic that is to be deleted, as it was asked for and as it is answered.
struct Asked {
    name: Option<String>,
    id: Uuid,
    outcome: Result<(), Refused>,
}

pub(crate) fn handle(shard: &mut Shard, io: &mut Io<'_, Mail>, call: Call, request: DeleteTopicsRequest) {
    let named = request.topic_names.into_iter().map(|name| (Some(name), Uuid::default()));
    let states = request.topics.into_iter().map(|DeleteTopicState { name, topic_id }| (name, topic_id));
    let asked = resolve(shard, named.chain(states));
    let outcomes = asked.iter().map(|asked| asked.outcome.clone()).collect();
    let doomed = |(part, asked): (usize, &Asked)| asked.outcome.is_ok().then_some((part, asked.id));
    let doomed: Vec<(usize, Uuid)> = asked.iter().enumerate().filter_map(doomed).collect();
    let job = shard.begin_changes(io, outcomes, doomed.len(), move |shard, io, outcomes| {
        let result = |(asked, outcome): (Asked, Result<(), Refused>)| {
            let Refused { code, message, .. } = outcome.err().unwrap_or(ErrorCode::None.into());
            DeletableTopicResult {
                name: asked.name,
                topic_id: asked.id,
                error_code: code as i16,
                error_message: message,
            }
        };
        let responses = asked.into_iter().zip(outcomes).map(result).collect();
        let response = DeleteTopicsResponse { responses, ..DeleteTopicsResponse::default() };
        shard.reply::<DeleteTopicsRequest>(io, &call, &response);
    });
    for (part, id) in doomed {
        shard.delete_topic(io, id, move |shard, io, outcome| shard.change_done(io, job, part, outcome));
    }
}

/// Finds the topics. One that is named twice is not deleted, and is answered once.
fn resolve(shard: &Shard, topics: impl Iterator<Item = (Option<String>, Uuid)>) -> Vec<Asked> {
    let mut counts: BTreeMap<(Option<String>, Uuid), usize> = BTreeMap::new();
    for key in topics {
        *counts.entry(key).or_default() += 1;
    }
    let mut doomed = BTreeSet::new();
    let resolve = |((name, id), count): ((Option<String>, Uuid), usize)| {
        let found = find(shard, name.as_deref(), id, count).and_then(|topic| {
            let told_twice = "The provided topic name maps to an ID that was already supplied.";
            if doomed.insert(topic.id) { Ok(topic) } else { Err(invalid_request(told_twice)) }
        });
        match found {
            Ok(topic) => Asked { name: Some(topic.name.to_string()), id: topic.id, outcome: Ok(()) },
            Err(refused) => Asked { name, id, outcome: Err(refused) },
        }
    };
    counts.into_iter().map(resolve).collect()
}

fn find<'a>(shard: &'a Shard, name: Option<&str>, id: Uuid, count: usize) -> Result<&'a Arc<Topic>, Refused> {
    match (name, id == Uuid::default()) {
        (None, true) => Err(invalid_request("Neither topic name nor id were specified.")),
        (Some(_), false) => Err(invalid_request("You may not specify both topic name and topic id.")),
        (Some(_), true) if count > 1 => Err(invalid_request("Duplicate topic name.")),
        (None, false) if count > 1 => Err(invalid_request("Duplicate topic id.")),
        (Some(name), true) => {
            shard.catalogue.topic(name).ok_or_else(|| ErrorCode::UnknownTopicOrPartition.into())
        }
        (None, false) => shard.catalogue.topic_by_id(id).ok_or_else(|| ErrorCode::UnknownTopicId.into()),
    }
}
