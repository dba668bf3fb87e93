//! `OffsetFetch`, versions 1 to 10: returns the committed offsets of a group; of several groups at once since version 8
//! (KIP-709).

use mainstem_coordinator::Error;
use mainstem_coordinator::group::{
    FetchedGroup, FetchedOffset, GroupOffsetFetch, OffsetFetch, Response, TopicRequest, TopicResult,
};
use mainstem_kafka::api::offset_fetch::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
    OffsetFetchResponse, OffsetFetchResponseGroup, OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions, OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use mainstem_kafka::{ErrorCode, Uuid};
use mainstem_partition::TopicId;
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::catalogue::Catalogue;
use crate::division::Division;
use crate::offset_fetch_division::{BATCHED, KnownOffsets, OffsetFetchPart, OffsetFetchRest, TOPIC_IDS};
use crate::pending::AfterGroupReply;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: OffsetFetchRequest,
) {
    let require_stable = request.require_stable;
    let groups = if call.version >= BATCHED { request.groups } else { vec![only_group(request)] };
    let known = KnownOffsets {
        groups: shard.controller.as_deref().map(|controller| &controller.groups),
        catalogue: shard.env.catalogue(),
    };
    match OffsetFetchRest::of(OffsetFetchPart { groups, require_stable }, &call, &known) {
        Ok(rest) => {
            let division = Division::of_offset_fetch(&call, rest, &shard.env.response_meter());
            shard.pending_work.add_division(io, &mut shard.jobs, division);
        }
        Err(request) => answer(shard, io, call, request),
    }
}

/// Answers a request that is short, or a part of another one.
pub(crate) fn answer(shard: &mut Shard, io: &mut Io<'_, Mail>, call: RequestContext, part: OffsetFetchPart) {
    let OffsetFetchPart { groups: mut requested, require_stable } = part;
    if call.version >= TOPIC_IDS {
        name_topics(&mut requested, shard.env.catalogue());
    }
    let denied = take_denied(&call, &mut requested);
    let fetch = OffsetFetch { groups: requested.iter().map(offsets_of).collect(), require_stable };
    shard.call_groups(
        io,
        |groups, _, caller| groups.handle_offset_fetch(&fetch, caller),
        AfterGroupReply::OffsetFetch { call, denied },
    );
}

/// Answers with what the groups have answered.
pub(crate) fn finish(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    denied: Vec<OffsetFetchResponseGroup>,
    answer: Response,
) {
    if let Response::Fetch(groups) = answer {
        let response = response(call, groups, denied, shard.env.catalogue());
        shard.reply::<OffsetFetchRequest>(io, call, &response);
    }
}

/// Removes the groups and topics that the sender may not see, and returns their results.
fn take_denied(
    call: &RequestContext,
    requested: &mut Vec<OffsetFetchRequestGroup>,
) -> Vec<OffsetFetchResponseGroup> {
    let mut denied = Vec::new();
    if call.is_unrestricted() {
        return denied;
    }
    requested.retain_mut(|group| {
        let group_id = group.group_id.clone();
        if let Err(code) = call.check_group(Action::Describe, &group_id) {
            let error_code = code as i16;
            denied.push(OffsetFetchResponseGroup { group_id, topics: Vec::new(), error_code });
            return false;
        }
        let is_denied = |topic: &mut OffsetFetchRequestTopics| {
            !topic.name.is_empty() && call.check_topic(Action::Describe, &topic.name).is_err()
        };
        let topics: Vec<_> =
            group.topics.iter_mut().flat_map(|topics| topics.extract_if(.., is_denied)).collect();
        if !topics.is_empty() {
            let topics = topics.into_iter().map(denied_topic).collect();
            denied.push(OffsetFetchResponseGroup { group_id, topics, error_code: ErrorCode::None as i16 });
        }
        true
    });
    denied
}

fn denied_topic(topic: OffsetFetchRequestTopics) -> OffsetFetchResponseTopics {
    let partition = |partition_index: i32| OffsetFetchResponsePartitions {
        partition_index,
        committed_offset: -1,
        metadata: Some(String::new()),
        error_code: ErrorCode::TopicAuthorizationFailed as i16,
        ..OffsetFetchResponsePartitions::default()
    };
    OffsetFetchResponseTopics {
        name: topic.name,
        topic_id: topic.topic_id,
        partitions: topic.partition_indexes.into_iter().map(partition).collect(),
    }
}

/// Converts a request of an older version to the current form.
fn only_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup {
    let topic = |topic: OffsetFetchRequestTopic| OffsetFetchRequestTopics {
        name: topic.name,
        partition_indexes: topic.partition_indexes,
        ..OffsetFetchRequestTopics::default()
    };
    OffsetFetchRequestGroup {
        group_id: request.group_id,
        topics: request.topics.map(|topics| topics.into_iter().map(topic).collect()),
        ..OffsetFetchRequestGroup::default()
    }
}

fn name_topics(groups: &mut [OffsetFetchRequestGroup], catalogue: &Catalogue) {
    for topic in groups.iter_mut().flat_map(|group| group.topics.iter_mut().flatten()) {
        let known = catalogue.topic_by_id(TopicId(topic.topic_id.0));
        topic.name = known.map_or_else(String::new, |known| known.name.to_string());
    }
}

fn offsets_of(group: &OffsetFetchRequestGroup) -> GroupOffsetFetch<'_> {
    GroupOffsetFetch {
        group_id: &group.group_id,
        member_id: group.member_id.as_deref(),
        member_epoch: group.member_epoch,
        topics: group.topics.as_ref().map(|topics| topics.iter().map(requested_topic).collect()),
    }
}

fn requested_topic(topic: &OffsetFetchRequestTopics) -> TopicRequest<'_, i32> {
    TopicRequest { name: &topic.name, id: topic.topic_id.0, partitions: topic.partition_indexes.clone() }
}

fn response(
    call: &RequestContext,
    groups: Vec<FetchedGroup>,
    denied: Vec<OffsetFetchResponseGroup>,
    catalogue: &Catalogue,
) -> OffsetFetchResponse {
    let groups = groups.into_iter().map(|group| group_response(group, call.version, catalogue));
    let mut groups: Vec<_> = groups.collect();
    for topics in groups.iter_mut().map(|group| &mut group.topics) {
        // Of all topics of a group, those that the sender may not see are left out.
        let is_hidden = |topic: &OffsetFetchResponseTopics| !call.may_topic(Action::Describe, &topic.name);
        topics.retain(|topic| topic.name.is_empty() || !is_hidden(topic));
    }
    for denied in denied {
        match groups.iter_mut().find(|group| group.group_id == denied.group_id) {
            Some(group) => group.topics.extend(denied.topics),
            None => groups.push(denied),
        }
    }
    if call.version >= BATCHED {
        return OffsetFetchResponse { groups, ..OffsetFetchResponse::default() };
    }
    let group = groups.pop().unwrap_or_default();
    OffsetFetchResponse {
        topics: group.topics.into_iter().map(old_topic).collect(),
        error_code: group.error_code,
        ..OffsetFetchResponse::default()
    }
}

fn group_response(group: FetchedGroup, version: i16, catalogue: &Catalogue) -> OffsetFetchResponseGroup {
    let (topics, error_code) = match group.outcome {
        Ok(topics) => (topics, ErrorCode::None as i16),
        Err(error) => (Vec::new(), error.code()),
    };
    let mut topics: Vec<_> = topics.into_iter().map(topic_response).collect();
    if version >= TOPIC_IDS {
        for topic in topics.iter_mut().filter(|topic| topic.topic_id == Uuid::default()) {
            topic.topic_id =
                catalogue.topic(&topic.name).map_or_else(Uuid::default, |known| Uuid(known.id.0));
        }
        // Deleted topics have no identifier, so their offsets appear in older versions only.
        topics.retain(|topic| topic.topic_id != Uuid::default());
    }
    OffsetFetchResponseGroup { group_id: group.group_id, topics, error_code }
}

fn topic_response(topic: TopicResult<FetchedOffset>) -> OffsetFetchResponseTopics {
    let by_unknown_id = topic.name.is_empty() && topic.id != [0; 16];
    let partition = |fetched: FetchedOffset| {
        let none = OffsetFetchResponsePartitions {
            partition_index: fetched.partition,
            committed_offset: -1,
            metadata: Some(String::new()),
            ..OffsetFetchResponsePartitions::default()
        };
        match fetched.outcome {
            Ok(Some(committed)) => OffsetFetchResponsePartitions {
                committed_offset: committed.offset,
                committed_leader_epoch: committed.leader_epoch,
                metadata: Some(committed.metadata),
                ..none
            },
            Ok(None) if by_unknown_id => {
                OffsetFetchResponsePartitions { error_code: ErrorCode::UnknownTopicId as i16, ..none }
            }
            Ok(None) => none,
            Err(error) => OffsetFetchResponsePartitions { error_code: Error::code(error), ..none },
        }
    };
    OffsetFetchResponseTopics {
        name: topic.name,
        topic_id: Uuid(topic.id),
        partitions: topic.partitions.into_iter().map(partition).collect(),
    }
}

fn old_topic(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic {
    let partition = |partition: OffsetFetchResponsePartitions| OffsetFetchResponsePartition {
        partition_index: partition.partition_index,
        committed_offset: partition.committed_offset,
        committed_leader_epoch: partition.committed_leader_epoch,
        metadata: partition.metadata,
        error_code: partition.error_code,
    };
    OffsetFetchResponseTopic {
        name: topic.name,
        partitions: topic.partitions.into_iter().map(partition).collect(),
    }
}
