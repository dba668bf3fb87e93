//! `Metadata`, versions 0 to 13: the node, topics and partitions. Runs here; on the controller if topics are to be made.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_kafka::api::metadata::{
    MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataResponseBroker,
    MetadataResponsePartition, MetadataResponseTopic,
};
use mainstem_kafka::{ErrorCode, Message, Uuid};
use mainstem_runtime::Io;

use crate::catalogue::{Topic, name_fault};
use crate::controller::NewTopic;
use crate::mail::{Call, Letter, Mail};
use crate::shard::Shard;

/// What everybody may do with a topic, as long as there is no authorisation: bits by Kafka's `AclOperation`.
pub(crate) const TOPIC_OPERATIONS: i32 =
    1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 11;
const CLUSTER_OPERATIONS: i32 = 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12;

/// Topics that are made for one request. The others are not there, and clients ask again for those.
const MADE_MAX: usize = 1_000;

pub(crate) fn handle(shard: &mut Shard, io: &mut Io<'_, Mail>, call: Call, request: MetadataRequest) {
    let missing = missing(shard, &call, &request);
    if missing.is_empty() {
        let response = response(shard, &call, &request);
        return shard.reply::<MetadataRequest>(io, &call, &response);
    }
    if !shard.is_controller() {
        let mut body = Vec::new();
        request.encode(&mut body, call.version);
        return io.send(0, Mail(Letter::Ask { call, body }));
    }
    make(shard, io, call, request, missing);
}

/// Names of topics that are asked for, are not there, and may be made.
fn missing(shard: &Shard, call: &Call, request: &MetadataRequest) -> Vec<Arc<str>> {
    let may_make =
        shard.shared.config.auto_create_topics && (call.version < 4 || request.allow_auto_topic_creation);
    if !may_make {
        return Vec::new();
    }
    let names = request.topics.iter().flatten().filter(|topic| topic.topic_id == Uuid::default());
    let mut missing: Vec<Arc<str>> = names
        .filter_map(|topic| topic.name.as_deref())
        .filter(|name| name_fault(name).is_none() && shard.catalogue.topic(name).is_none())
        .map(Into::into)
        .collect();
    missing.sort_unstable();
    missing.dedup();
    missing.truncate(MADE_MAX);
    missing
}

/// Makes the topics, then answers.
fn make(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: Call,
    request: MetadataRequest,
    missing: Vec<Arc<str>>,
) {
    let outcomes = vec![Ok(()); missing.len()];
    let job = shard.begin_changes(io, outcomes, missing.len(), move |shard, io, _| {
        shard.shared.refresh(&mut shard.catalogue);
        let response = response(shard, &call, &request);
        shard.reply::<MetadataRequest>(io, &call, &response);
    });
    for (part, name) in missing.into_iter().enumerate() {
        let new = NewTopic { name, partitions: shard.shared.config.partitions, config: BTreeMap::new() };
        shard.make_topic(io, new, move |shard, io, outcome| {
            if let Err(refused) = &outcome {
                log::debug!("a topic was not made: {refused:?}");
            }
            shard.change_done(io, job, part, outcome.map(drop));
        });
    }
}

fn response(shard: &Shard, call: &Call, request: &MetadataRequest) -> MetadataResponse {
    let node = shard.shared.config.node_id;
    let (host, port) = shard.shared.advertised();
    let asks_for_all = match &request.topics {
        None => true,
        // Until version 0 nobody could ask for none.
        Some(topics) => topics.is_empty() && call.version == 0,
    };
    let describe = |topic: &Arc<Topic>| describe(topic, node, request.include_topic_authorized_operations);
    let topics = if asks_for_all {
        shard.catalogue.by_name.values().map(describe).collect()
    } else {
        let find = |asked: &MetadataRequestTopic| {
            find(shard, asked).map_or_else(|error| error, |topic| describe(&topic))
        };
        request.topics.iter().flatten().map(find).collect()
    };
    let operations =
        if request.include_cluster_authorized_operations { CLUSTER_OPERATIONS } else { i32::MIN };
    MetadataResponse {
        brokers: vec![MetadataResponseBroker {
            node_id: node,
            host: host.to_string(),
            port: i32::from(port),
            rack: None,
        }],
        cluster_id: Some(shard.shared.cluster_id().to_string()),
        controller_id: node,
        topics,
        cluster_authorized_operations: operations,
        ..MetadataResponse::default()
    }
}

fn find(shard: &Shard, asked: &MetadataRequestTopic) -> Result<Arc<Topic>, MetadataResponseTopic> {
    let error = |error: ErrorCode| MetadataResponseTopic {
        error_code: error as i16,
        name: asked.name.clone(),
        topic_id: asked.topic_id,
        ..MetadataResponseTopic::default()
    };
    if asked.topic_id != Uuid::default() {
        let topic = shard.catalogue.topic_by_id(asked.topic_id).cloned();
        return topic.ok_or_else(|| error(ErrorCode::UnknownTopicId));
    }
    let name = asked.name.as_deref().unwrap_or("");
    if name_fault(name).is_some() {
        return Err(error(ErrorCode::InvalidTopicException));
    }
    shard.catalogue.topic(name).cloned().ok_or_else(|| error(ErrorCode::UnknownTopicOrPartition))
}

fn describe(topic: &Topic, node: i32, with_operations: bool) -> MetadataResponseTopic {
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
        topic_id: topic.id,
        partitions: (0..topic.partitions()).map(partition).collect(),
        topic_authorized_operations: if with_operations { TOPIC_OPERATIONS } else { i32::MIN },
        ..MetadataResponseTopic::default()
    }
}
