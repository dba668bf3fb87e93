//! `Metadata`, versions 0 to 13: returns the broker, topics and partitions. If client and configuration allow it,
//! missing topics are created first, which forwards the request to the controller.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_kafka::api::metadata::{
    MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataResponseBroker,
    MetadataResponsePartition, MetadataResponseTopic,
};
use mainstem_kafka::{ErrorCode, Message, Uuid};
use mainstem_partition::TopicId;
use mainstem_runtime::Io;
use mainstem_security::{Action, ResourceKind};

use crate::append_error::AppendError;
use crate::catalogue::{Catalogue, Topic, name_error, new_name_error};
use crate::division::Division;
use crate::metadata_division::{MetadataPart, MetadataRest, MetadataTopics};
use crate::pending::{AfterChanges, AfterTopicChange};
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext, ShardMessage};
use crate::topic_change::NewTopic;

/// Authorized operations on a topic, a bit set of Kafka's `AclOperation`. Without an authorizer, all are allowed.
pub(crate) const TOPIC_OPERATIONS: i32 =
    1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 11;
const CLUSTER_OPERATIONS: i32 = 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12;

/// Most topics that one request creates. Clients retry for the rest.
const CREATED_MAX: usize = 200;
/// Topics of a request among which missing ones are looked for: about half a millisecond. Those behind are not created.
const LOOKED_FOR_MAX: usize = 5_000;

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: MetadataRequest,
) {
    let missing = missing(shard, &call, &request);
    if missing.is_empty() {
        return answer(shard, io, &call, request);
    }
    if !shard.env.is_controller() {
        let mut body = Vec::new();
        request.encode(&mut body, call.version);
        return io.send(0, Mail(ShardMessage::ForwardToController { call, body }));
    }
    create_missing_topics(shard, io, call, request, missing);
}

/// Whether missing topics are to be created.
fn creates_topics(shard: &Shard, call: &RequestContext, request: &MetadataRequest) -> bool {
    shard.env.shared().config.auto_create_topics && (call.version < 4 || request.allow_auto_topic_creation)
}

/// Requested topics that do not exist and may be created.
fn missing(shard: &Shard, call: &RequestContext, request: &MetadataRequest) -> Vec<Arc<str>> {
    if !creates_topics(shard, call, request) {
        return Vec::new();
    }
    let is_allowed = |name: &str| call.may_topic(Action::Describe, name) && call.may_create(name);
    let requested = request.topics.iter().flatten().take(LOOKED_FOR_MAX);
    let names = requested.filter(|topic| topic.topic_id == Uuid::default());
    let mut missing: Vec<Arc<str>> = names
        .filter_map(|topic| topic.name.as_deref())
        .filter(|name| new_name_error(name).is_none() && shard.env.catalogue().topic(name).is_none())
        .filter(|name| is_allowed(name))
        .map(Into::into)
        .collect();
    missing.sort_unstable();
    missing.dedup();
    missing.truncate(CREATED_MAX);
    missing
}

/// Creates the topics, then answers.
fn create_missing_topics(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: MetadataRequest,
    missing: Vec<Arc<str>>,
) {
    let outcomes = vec![Ok(()); missing.len()];
    let waiting = missing.len();
    let job = shard.begin_changes(io, outcomes, waiting, AfterChanges::Metadata { call, request });
    for (part, name) in missing.into_iter().enumerate() {
        let new =
            NewTopic { name, partitions: shard.env.shared().config.partitions, config: BTreeMap::new() };
        shard.create_topic(io, new, AfterTopicChange::AutoCreatedTopic { job, part });
    }
}

/// A missing topic has been created, or not.
pub(crate) fn on_created(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    (job, part): (u64, usize),
    outcome: Result<(), AppendError>,
) {
    if let Err(refused) = &outcome {
        log::debug!("automatic creation of a topic failed: {refused:?}");
    }
    shard.change_done(io, job, part, outcome);
}

/// Answers when the missing topics have been created.
pub(crate) fn finish(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    request: MetadataRequest,
) {
    shard.env.refresh();
    answer(shard, io, call, request);
}

/// Answers a request, in parts if it is long.
fn answer(shard: &mut Shard, io: &mut Io<'_, Mail>, call: &RequestContext, request: MetadataRequest) {
    let is_all = match &request.topics {
        None => true,
        // In version 0 an empty list requests all topics.
        Some(topics) => topics.is_empty() && call.version == 0,
    };
    let template = response(shard, call, &request);
    let catalogue = Arc::clone(shard.env.catalogue());
    match MetadataRest::of(request, &catalogue, is_all) {
        Ok(rest) => {
            let division = Division::of_metadata(call, rest, &template, &shard.env.response_meter());
            shard.pending_work.add_division(io, &mut shard.jobs, division);
        }
        Err(mut request) => {
            let named = request.topics.take().unwrap_or_default();
            let topics = if is_all {
                MetadataTopics::Known(catalogue.by_name.values().cloned().collect())
            } else {
                MetadataTopics::Named(named)
            };
            let topics = describe_topics(shard, call, &request, &catalogue, topics);
            shard.reply::<MetadataRequest>(io, call, &MetadataResponse { topics, ..template });
        }
    }
}

/// Answers a part of a request.
pub(crate) fn answer_part(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    part: MetadataPart,
) {
    let MetadataPart { request, catalogue, topics } = part;
    let topics = describe_topics(shard, call, &request, &catalogue, topics);
    shard.reply::<MetadataRequest>(io, call, &MetadataResponse { topics, ..MetadataResponse::default() });
}

fn describe_topics(
    shard: &Shard,
    call: &RequestContext,
    request: &MetadataRequest,
    catalogue: &Catalogue,
    topics: MetadataTopics,
) -> Vec<MetadataResponseTopic> {
    let node = shard.env.shared().config.node_id;
    let describe = |topic: &Arc<Topic>| {
        let with_operations = request.include_topic_authorized_operations;
        let all = if with_operations { TOPIC_OPERATIONS } else { i32::MIN };
        describe(topic, node, call.operations(all, ResourceKind::Topic, &topic.name))
    };
    match topics {
        MetadataTopics::Known(topics) => {
            let is_visible = |topic: &&Arc<Topic>| call.may_topic(Action::Describe, &topic.name);
            topics.iter().filter(is_visible).map(describe).collect()
        }
        MetadataTopics::Named(topics) => {
            let creates = creates_topics(shard, call, request);
            let find = |requested: &MetadataRequestTopic| {
                find(catalogue, call, requested, creates).map_or_else(|error| error, |topic| describe(&topic))
            };
            topics.iter().map(find).collect()
        }
    }
}

/// The response without topics.
fn response(shard: &Shard, call: &RequestContext, request: &MetadataRequest) -> MetadataResponse {
    let node = shard.env.shared().config.node_id;
    let (host, port) = shard.env.shared().advertised(call.listener);
    let all = if request.include_cluster_authorized_operations { CLUSTER_OPERATIONS } else { i32::MIN };
    let operations = call.operations(all, ResourceKind::Cluster, "");
    MetadataResponse {
        brokers: vec![MetadataResponseBroker {
            node_id: node,
            host: host.to_string(),
            port: i32::from(port),
            rack: None,
        }],
        cluster_id: Some(shard.env.shared().cluster_id().to_string()),
        controller_id: node,
        cluster_authorized_operations: operations,
        ..MetadataResponse::default()
    }
}

/// Finds a topic. `creates`: those that the sender may create have been created.
fn find(
    catalogue: &Catalogue,
    call: &RequestContext,
    requested: &MetadataRequestTopic,
    creates: bool,
) -> Result<Arc<Topic>, MetadataResponseTopic> {
    let error = |error: ErrorCode| MetadataResponseTopic {
        error_code: error as i16,
        name: requested.name.clone(),
        topic_id: requested.topic_id,
        ..MetadataResponseTopic::default()
    };
    if requested.topic_id != Uuid::default() {
        let topic = catalogue.topic_by_id(TopicId(requested.topic_id.0)).cloned();
        let topic = topic.ok_or_else(|| error(ErrorCode::UnknownTopicId))?;
        // Whoever may not see the topic does not learn its name.
        return call.check_topic(Action::Describe, &topic.name).map(|()| topic).map_err(error);
    }
    let name = requested.name.as_deref().unwrap_or("");
    if name_error(name).is_some() {
        return Err(error(ErrorCode::InvalidTopicException));
    }
    call.check_topic(Action::Describe, name).map_err(error)?;
    let unknown = || {
        let denied = creates.then(|| call.check_creation(name).err()).flatten();
        error(denied.unwrap_or(ErrorCode::UnknownTopicOrPartition))
    };
    catalogue.topic(name).cloned().ok_or_else(unknown)
}

fn describe(topic: &Topic, node: i32, operations: i32) -> MetadataResponseTopic {
    let partition = |partition_index: i32| MetadataResponsePartition {
        partition_index,
        leader_id: node,
        leader_epoch: 0,
        replica_nodes: vec![node],
        isr_nodes: vec![node],
        ..MetadataResponsePartition::default()
    };
    MetadataResponseTopic {
        name: Some(topic.name.to_string()),
        topic_id: Uuid(topic.id.0),
        partitions: (0..topic.partitions()).map(partition).collect(),
        topic_authorized_operations: operations,
        ..MetadataResponseTopic::default()
    }
}
