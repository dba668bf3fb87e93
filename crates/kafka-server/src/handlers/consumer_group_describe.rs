//! `ConsumerGroupDescribe`, versions 0 to 1: returns state and members of groups of the consumer protocol.

use mainstem_coordinator::group::{self, DescribedConsumerGroup, DescribedConsumerMember};
use mainstem_kafka::api::consumer_group_describe::{
    Assignment, ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, DescribedGroup, Member,
    TopicPartitions,
};
use mainstem_kafka::{ErrorCode, Uuid};
use mainstem_runtime::Io;
use mainstem_security::{Action, ResourceKind};

use crate::catalogue::{Catalogue, TopicId};
use crate::handlers::describe_groups::OPERATIONS;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

/// Type of a member by its protocol.
const CLASSIC_MEMBER: i8 = 0;
const CONSUMER_MEMBER: i8 = 1;

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: ConsumerGroupDescribeRequest,
) {
    let Some(request) = shard.divide(io, &call, request) else { return };
    let all = if request.include_authorized_operations { OPERATIONS } else { i32::MIN };
    let catalogue = shard.env.catalogue().clone();
    let described = shard.with_groups(io, |groups, _| {
        let describe = |group_id: String| {
            if let Err(code) = call.check_group(Action::Describe, &group_id) {
                return DescribedGroup { error_code: code as i16, group_id, ..DescribedGroup::default() };
            }
            let group = match groups.describe_consumer_group(&group_id) {
                Ok(group) => existing_group(group, &catalogue, &call),
                Err(_) if group_id.is_empty() => DescribedGroup {
                    error_code: ErrorCode::InvalidGroupId as i16,
                    ..DescribedGroup::default()
                },
                Err(error) => {
                    let is_known = groups.uses_consumer_protocol(&group_id).is_some();
                    let what = if is_known { "is not a consumer group" } else { "not found" };
                    DescribedGroup {
                        error_code: error.code(),
                        error_message: Some(format!("Group {group_id} {what}.")),
                        ..DescribedGroup::default()
                    }
                }
            };
            let authorized_operations = call.operations(all, ResourceKind::Group, &group_id);
            DescribedGroup { group_id, authorized_operations, ..group }
        };
        request.group_ids.into_iter().map(describe).collect()
    });
    let groups = described.unwrap_or_default();
    let response = ConsumerGroupDescribeResponse { groups, ..ConsumerGroupDescribeResponse::default() };
    shard.reply::<ConsumerGroupDescribeRequest>(io, &call, &response);
}

/// Topics that the sender may not see are left out.
fn existing_group(
    group: DescribedConsumerGroup,
    catalogue: &Catalogue,
    call: &RequestContext,
) -> DescribedGroup {
    let member = |member: DescribedConsumerMember| Member {
        member_id: member.member_id,
        instance_id: member.instance_id,
        rack_id: member.rack_id,
        member_epoch: member.epoch,
        client_id: member.client_id,
        client_host: member.client_host,
        subscribed_topic_names: member
            .topic_names
            .into_iter()
            .filter(|name| call.may_topic(Action::Describe, name))
            .collect(),
        subscribed_topic_regex: Some(member.topic_regex),
        assignment: assignment(member.assignment, catalogue, call),
        target_assignment: assignment(member.target, catalogue, call),
        member_type: if member.is_classic { CLASSIC_MEMBER } else { CONSUMER_MEMBER },
    };
    DescribedGroup {
        group_state: group.state.name().into(),
        group_epoch: group.epoch,
        assignment_epoch: group.assignment_epoch,
        assignor_name: group.assignor.into(),
        members: group.members.into_iter().map(member).collect(),
        ..DescribedGroup::default()
    }
}

fn assignment(
    topics: Vec<group::TopicPartitions>,
    catalogue: &Catalogue,
    call: &RequestContext,
) -> Assignment {
    let topic = |topic: group::TopicPartitions| {
        let known = catalogue.topic_by_id(TopicId(topic.topic_id))?;
        call.may_topic(Action::Describe, &known.name).then(|| TopicPartitions {
            topic_id: Uuid(topic.topic_id),
            topic_name: known.name.to_string(),
            partitions: topic.partitions,
        })
    };
    Assignment { topic_partitions: topics.into_iter().filter_map(topic).collect() }
}
