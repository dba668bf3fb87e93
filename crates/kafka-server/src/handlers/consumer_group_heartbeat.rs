//! `ConsumerGroupHeartbeat`, versions 0 to 1: the consumer protocol of KIP-848, in which the coordinator assigns
//! partitions.

use mainstem_coordinator::group::{
    ConsumerHeartbeat, ConsumerHeartbeatResult, OwnedTopic, Refusal, Response,
};
use mainstem_kafka::api::consumer_group_heartbeat::{
    Assignment, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, TopicPartitions,
};
use mainstem_kafka::{ErrorCode, Uuid};
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::pending::AfterGroupReply;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};
use crate::visible_topics::VisibleTopics;

/// Last version in which the coordinator chooses the identifier of a new member (KIP-1082).
const MEMBER_ID_CHOSEN: i16 = 0;

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    mut request: ConsumerGroupHeartbeatRequest,
) {
    if let Err(code) = check(&call, &request) {
        let error = ConsumerGroupHeartbeatResponse { error_code: code as i16, ..Default::default() };
        return shard.reply::<ConsumerGroupHeartbeatRequest>(io, &call, &error);
    }
    if call.version <= MEMBER_ID_CHOSEN && request.member_id.is_empty() && request.member_epoch == 0 {
        request.member_id = new_member_id(io);
    }
    let client_id = call.client_id.clone();
    let client_host = call.client_host();
    let heartbeat = ConsumerHeartbeat {
        group_id: &request.group_id,
        member_id: &request.member_id,
        member_epoch: request.member_epoch,
        instance_id: request.instance_id.as_deref(),
        rack_id: request.rack_id.as_deref(),
        rebalance_timeout_ms: request.rebalance_timeout_ms,
        topic_names: request
            .subscribed_topic_names
            .as_ref()
            .map(|names| names.iter().map(|name| &**name).collect()),
        topic_regex: request.subscribed_topic_regex.as_deref(),
        assignor: request.server_assignor.as_deref(),
        owned: request.topic_partitions.as_ref().map(|topics| topics.iter().map(owned_topic).collect()),
        client_id: &client_id,
        client_host: &client_host,
    };
    let catalogue = shard.env.catalogue().clone();
    let topics = VisibleTopics::new(&catalogue, &call);
    let mut assigned = 0;
    shard.call_groups(
        io,
        |groups, now_ms, caller| {
            groups.handle_consumer_heartbeat(now_ms, &heartbeat, &topics, caller);
            assigned = groups.take_assigned();
        },
        AfterGroupReply::ConsumerGroupHeartbeat(call.clone()),
    );
    io.charge(topics.units(assigned));
}

fn check(call: &RequestContext, request: &ConsumerGroupHeartbeatRequest) -> Result<(), ErrorCode> {
    call.check_group(Action::Group, &request.group_id)?;
    let names = request.subscribed_topic_names.iter().flatten();
    let is_denied = |name: &String| !name.is_empty() && call.check_topic(Action::Describe, name).is_err();
    if names.into_iter().any(is_denied) { Err(ErrorCode::TopicAuthorizationFailed) } else { Ok(()) }
}

fn owned_topic(topic: &TopicPartitions) -> OwnedTopic<'_> {
    OwnedTopic { topic_id: topic.topic_id.0, partitions: &topic.partitions }
}

/// A random identifier, as clients choose them: a UUID in Kafka's encoding.
fn new_member_id(io: &mut Io<'_, Mail>) -> String {
    let random = u128::from(io.random()) << 64 | u128::from(io.random());
    Uuid(random.to_be_bytes()).to_string()
}

/// Answers with what the groups have answered.
pub(crate) fn finish(shard: &mut Shard, io: &mut Io<'_, Mail>, call: &RequestContext, answer: Response) {
    if let Response::ConsumerHeartbeat(answer) = answer {
        shard.reply::<ConsumerGroupHeartbeatRequest>(io, call, &response(answer));
    }
}

fn response(answer: Result<ConsumerHeartbeatResult, Refusal>) -> ConsumerGroupHeartbeatResponse {
    let result = match answer {
        Ok(result) => result,
        Err(refusal) => {
            return ConsumerGroupHeartbeatResponse {
                error_code: refusal.error.code(),
                error_message: Some(refusal.message.into()),
                ..ConsumerGroupHeartbeatResponse::default()
            };
        }
    };
    let topic = |topic: mainstem_coordinator::group::TopicPartitions| TopicPartitions {
        topic_id: Uuid(topic.topic_id),
        partitions: topic.partitions,
    };
    ConsumerGroupHeartbeatResponse {
        member_id: Some(result.member_id),
        member_epoch: result.member_epoch,
        heartbeat_interval_ms: i32::try_from(result.heartbeat_interval_ms).unwrap_or(i32::MAX),
        assignment: result
            .assignment
            .map(|topics| Assignment { topic_partitions: topics.into_iter().map(topic).collect() }),
        ..ConsumerGroupHeartbeatResponse::default()
    }
}
