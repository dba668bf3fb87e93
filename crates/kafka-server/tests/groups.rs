//! Consumer groups over the wire: every version of their requests, on the coordinator's shard and on another one.

mod kit;

use kit::{Broker, Client};
use mainstem_kafka::api::delete_groups::DeleteGroupsRequest;
use mainstem_kafka::api::describe_groups::{DescribeGroupsRequest, DescribedGroup};
use mainstem_kafka::api::find_coordinator::FindCoordinatorRequest;
use mainstem_kafka::api::heartbeat::HeartbeatRequest;
use mainstem_kafka::api::join_group::{JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse};
use mainstem_kafka::api::leave_group::{LeaveGroupRequest, MemberIdentity};
use mainstem_kafka::api::list_groups::ListGroupsRequest;
use mainstem_kafka::api::metadata::{MetadataRequest, MetadataRequestTopic};
use mainstem_kafka::api::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_kafka::api::offset_delete::{
    OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use mainstem_kafka::api::offset_fetch::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use mainstem_kafka::api::sync_group::{SyncGroupRequest, SyncGroupRequestAssignment};
use mainstem_kafka::{ErrorCode, Uuid};
use mainstem_kafka_server::Config;

const GROUP: &str = "group";
const TOPIC: &str = "topic";
const SESSION_MS: u64 = 10_000;

fn join(member_id: &str) -> JoinGroupRequest {
    JoinGroupRequest {
        group_id: GROUP.into(),
        session_timeout_ms: SESSION_MS as i32,
        rebalance_timeout_ms: 60_000,
        member_id: member_id.into(),
        protocol_type: "consumer".into(),
        protocols: vec![JoinGroupRequestProtocol { name: "range".into(), metadata: vec![1, 2] }],
        ..JoinGroupRequest::default()
    }
}

fn sync(member_id: &str, generation_id: i32, assignments: &[(&str, &[u8])]) -> SyncGroupRequest {
    let assignment = |(member_id, assignment): &(&str, &[u8])| SyncGroupRequestAssignment {
        member_id: (*member_id).into(),
        assignment: assignment.to_vec(),
    };
    SyncGroupRequest {
        group_id: GROUP.into(),
        generation_id,
        member_id: member_id.into(),
        protocol_type: Some("consumer".into()),
        protocol_name: Some("range".into()),
        assignments: assignments.iter().map(assignment).collect(),
        ..SyncGroupRequest::default()
    }
}

fn heartbeat(member_id: &str, generation_id: i32) -> HeartbeatRequest {
    HeartbeatRequest {
        group_id: GROUP.into(),
        generation_id,
        member_id: member_id.into(),
        ..HeartbeatRequest::default()
    }
}

fn commit(member_id: &str, generation: i32, topic_id: Uuid, offset: i64) -> OffsetCommitRequest {
    let partition = |partition_index| OffsetCommitRequestPartition {
        partition_index,
        committed_offset: offset,
        committed_metadata: Some("note".into()),
        ..OffsetCommitRequestPartition::default()
    };
    OffsetCommitRequest {
        group_id: GROUP.into(),
        generation_id_or_member_epoch: generation,
        member_id: member_id.into(),
        topics: vec![OffsetCommitRequestTopic {
            name: TOPIC.into(),
            topic_id,
            partitions: vec![partition(0), partition(7)],
        }],
        ..OffsetCommitRequest::default()
    }
}

/// Creates the topic with one partition. Returns its topic ID.
fn create_topic(broker: &mut Broker) -> Uuid {
    let client = broker.connect(0);
    let topic = MetadataRequestTopic { name: Some(TOPIC.into()), ..MetadataRequestTopic::default() };
    let request = MetadataRequest {
        topics: Some(vec![topic]),
        allow_auto_topic_creation: true,
        ..MetadataRequest::default()
    };
    let response = broker.ask(client, 12, &request);
    assert_eq!(response.topics[0].error_code, 0);
    response.topics[0].topic_id
}

/// Joins as the only member, in any version. Returns the final response.
fn join_alone(broker: &mut Broker, client: Client, version: i16) -> JoinGroupResponse {
    let first = broker.ask(client, version, &join(""));
    if version < 4 {
        return first;
    }
    assert_eq!(first.error_code, ErrorCode::MemberIdRequired as i16);
    assert_eq!(first.generation_id, -1);
    assert_eq!(first.protocol_name.is_none(), version >= 7);
    broker.ask(client, version, &join(&first.member_id))
}

/// Brings a group with one member to the stable state. Returns the member ID and the generation.
fn settle(broker: &mut Broker, client: Client) -> (String, i32) {
    let joined = join_alone(broker, client, 9);
    let (id, generation) = (joined.member_id, joined.generation_id);
    let synced = broker.ask(client, 5, &sync(&id, generation, &[(&id, b"all")]));
    assert_eq!(synced.error_code, 0);
    (id, generation)
}

fn describe(broker: &mut Broker, client: Client, version: i16) -> DescribedGroup {
    let request = DescribeGroupsRequest { groups: vec![GROUP.into()], ..DescribeGroupsRequest::default() };
    broker.ask(client, version, &request).groups.remove(0)
}

/// The committed offset of partition 0 and its error code.
fn fetch(broker: &mut Broker, client: Client, version: i16, topic_id: Uuid) -> (i64, i16) {
    if version < 8 {
        let topic = OffsetFetchRequestTopic { name: TOPIC.into(), partition_indexes: vec![0] };
        let request = OffsetFetchRequest {
            group_id: GROUP.into(),
            topics: Some(vec![topic]),
            ..OffsetFetchRequest::default()
        };
        let response = broker.ask(client, version, &request);
        let partition = &response.topics[0].partitions[0];
        return (partition.committed_offset, partition.error_code);
    }
    let topic = OffsetFetchRequestTopics { name: TOPIC.into(), topic_id, partition_indexes: vec![0] };
    let group = OffsetFetchRequestGroup {
        group_id: GROUP.into(),
        topics: Some(vec![topic]),
        ..OffsetFetchRequestGroup::default()
    };
    let response = broker.ask(
        client,
        version,
        &OffsetFetchRequest { groups: vec![group], ..OffsetFetchRequest::default() },
    );
    let partition = &response.groups[0].topics[0].partitions[0];
    (partition.committed_offset, partition.error_code)
}

#[test]
fn a_member_joins_syncs_and_leaves_in_every_version() {
    for shard in [0, 1] {
        for version in 0..=9 {
            let mut broker = Broker::new(2);
            let client = broker.connect(shard);
            let joined = join_alone(&mut broker, client, version);
            assert_eq!((joined.error_code, joined.generation_id), (0, 1), "version {version}");
            assert_eq!(joined.leader, joined.member_id);
            assert_eq!(joined.members[0].metadata, [1, 2]);
            assert_eq!(joined.protocol_name.as_deref(), Some("range"));
            let id = joined.member_id;
            let synced = broker.ask(client, version.min(5), &sync(&id, 1, &[(&id, b"all")]));
            assert_eq!((synced.error_code, synced.assignment.as_slice()), (0, &b"all"[..]));
            assert_eq!(broker.ask(client, version.min(4), &heartbeat(&id, 1)).error_code, 0);
            let illegal = broker.ask(client, version.min(4), &heartbeat(&id, 2)).error_code;
            assert_eq!(illegal, ErrorCode::IllegalGeneration as i16);
            let described = describe(&mut broker, client, version.min(6));
            assert_eq!(
                (described.group_state.as_str(), described.protocol_data.as_str()),
                ("Stable", "range")
            );
            assert_eq!(described.members[0].member_assignment, b"all");
            let leave = LeaveGroupRequest {
                group_id: GROUP.into(),
                member_id: id.clone(),
                members: vec![MemberIdentity { member_id: id.clone(), ..MemberIdentity::default() }],
            };
            let left = broker.ask(client, version.min(5), &leave);
            assert_eq!(left.error_code, 0);
            assert!(left.members.iter().all(|member| member.error_code == 0));
            let again = broker.ask(client, version.min(5), &leave);
            let error = if version < 3 { again.error_code } else { again.members[0].error_code };
            assert_eq!(error, ErrorCode::UnknownMemberId as i16);
            assert_eq!(describe(&mut broker, client, version.min(6)).group_state, "Empty");
        }
    }
}

#[test]
fn offsets_are_committed_and_fetched_in_every_version() {
    for version in 1..=10 {
        let mut broker = Broker::new(2);
        let topic_id = create_topic(&mut broker);
        let client = broker.connect(1);
        assert_eq!(fetch(&mut broker, client, version, topic_id), (-1, 0), "version {version}");
        let response = broker.ask(client, version.max(2), &commit("", -1, topic_id, 42));
        let errors: Vec<i16> = response.topics[0].partitions.iter().map(|done| done.error_code).collect();
        assert_eq!(errors, [0, ErrorCode::UnknownTopicOrPartition as i16]);
        assert_eq!(fetch(&mut broker, client, version, topic_id), (42, 0));
        broker.restart(2);
        let client = broker.connect(1);
        assert_eq!(fetch(&mut broker, client, version, topic_id), (42, 0));
    }
}

#[test]
fn all_offsets_of_a_group_are_fetched_at_once() {
    let mut broker = Broker::new(1);
    let topic_id = create_topic(&mut broker);
    let client = broker.connect(0);
    broker.ask(client, 9, &commit("", -1, topic_id, 42));
    for version in [2, 7] {
        let request =
            OffsetFetchRequest { group_id: GROUP.into(), topics: None, ..OffsetFetchRequest::default() };
        let response = broker.ask(client, version, &request);
        assert_eq!(response.topics[0].partitions[0].metadata.as_deref(), Some("note"));
    }
    for version in [8, 9, 10] {
        let group = OffsetFetchRequestGroup {
            group_id: GROUP.into(),
            topics: None,
            ..OffsetFetchRequestGroup::default()
        };
        let request = OffsetFetchRequest { groups: vec![group], ..OffsetFetchRequest::default() };
        let response = broker.ask(client, version, &request);
        let topic = &response.groups[0].topics[0];
        assert_eq!(topic.partitions[0].committed_offset, 42);
        if version == 10 {
            assert_eq!(topic.topic_id, topic_id);
        } else {
            assert_eq!(topic.name, TOPIC);
        }
    }
}

#[test]
fn an_unknown_topic_id_is_rejected() {
    let mut broker = Broker::new(1);
    create_topic(&mut broker);
    let client = broker.connect(0);
    let unknown = Uuid([7; 16]);
    let response = broker.ask(client, 10, &commit("", -1, unknown, 42));
    assert_eq!(response.topics[0].topic_id, unknown);
    assert_eq!(response.topics[0].partitions[0].error_code, ErrorCode::UnknownTopicId as i16);
    assert_eq!(fetch(&mut broker, client, 10, unknown), (-1, ErrorCode::UnknownTopicId as i16));
}

#[test]
fn an_unknown_group_gets_the_error_of_the_version() {
    let mut broker = Broker::new(1);
    let topic_id = create_topic(&mut broker);
    let client = broker.connect(0);
    for (version, error) in [(8, ErrorCode::IllegalGeneration), (9, ErrorCode::GroupIdNotFound)] {
        let response = broker.ask(client, version, &commit("nobody", 3, topic_id, 1));
        assert_eq!(response.topics[0].partitions[0].error_code, error as i16);
    }
    for (version, error) in [(0, 0), (5, 0), (6, ErrorCode::GroupIdNotFound as i16)] {
        let described = describe(&mut broker, client, version);
        assert_eq!((described.group_state.as_str(), described.error_code), ("Dead", error));
    }
}

#[test]
fn a_commit_is_answered_and_visible_when_durable() {
    let mut broker = Broker::new(1);
    let topic_id = create_topic(&mut broker);
    let (writer, reader) = (broker.connect(0), broker.connect(0));
    broker.set_stuck(true);
    broker.send(writer, 9, &commit("", -1, topic_id, 42));
    broker.run();
    assert!(broker.take::<OffsetCommitRequest>(writer, 9).is_none());
    let group = OffsetFetchRequestGroup {
        group_id: GROUP.into(),
        topics: None,
        ..OffsetFetchRequestGroup::default()
    };
    let request = OffsetFetchRequest { groups: vec![group], ..OffsetFetchRequest::default() };
    broker.send(reader, 8, &request);
    broker.run();
    assert!(broker.take::<OffsetFetchRequest>(reader, 8).is_none(), "no client sees it before");
    broker.set_stuck(false);
    broker.run();
    let committed = broker.take::<OffsetCommitRequest>(writer, 9).expect("a response");
    assert_eq!(committed.topics[0].partitions[0].error_code, 0);
    let fetched = broker.take::<OffsetFetchRequest>(reader, 8).expect("a response");
    assert_eq!(fetched.groups[0].topics[0].partitions[0].committed_offset, 42);
}

#[test]
fn a_group_survives_a_restart() {
    let mut broker = Broker::new(2);
    let topic_id = create_topic(&mut broker);
    let client = broker.connect(1);
    let (id, generation) = settle(&mut broker, client);
    broker.ask(client, 9, &commit(&id, generation, topic_id, 5));
    broker.restart(2);
    let client = broker.connect(0);
    assert_eq!(broker.ask(client, 4, &heartbeat(&id, generation)).error_code, 0);
    let synced = broker.ask(client, 5, &sync(&id, generation, &[]));
    assert_eq!(synced.assignment, b"all");
    assert_eq!(fetch(&mut broker, client, 8, topic_id), (5, 0));
    broker.pass(SESSION_MS + 1_000);
    let unknown = broker.ask(client, 4, &heartbeat(&id, generation)).error_code;
    assert_eq!(unknown, ErrorCode::UnknownMemberId as i16);
}

#[test]
fn members_are_answered_when_all_have_joined_or_one_times_out() {
    let mut broker = Broker::new(2);
    let (one, two) = (broker.connect(0), broker.connect(1));
    let (first, generation) = settle(&mut broker, one);
    let second = broker.ask(two, 9, &join("")).member_id;
    broker.send(two, 9, &join(&second));
    broker.run();
    assert!(broker.take::<JoinGroupRequest>(two, 9).is_none());
    let error = broker.ask(one, 4, &heartbeat(&first, generation)).error_code;
    assert_eq!(error, ErrorCode::RebalanceInProgress as i16);
    let again = broker.ask(one, 9, &join(&first));
    let joined = broker.take::<JoinGroupRequest>(two, 9).expect("a response");
    assert_eq!((again.generation_id, joined.generation_id), (2, 2));

    // The leader never sends its assignments.
    broker.send(two, 5, &sync(&second, 2, &[]));
    broker.run();
    assert!(broker.take::<SyncGroupRequest>(two, 5).is_none());
    broker.pass(SESSION_MS + 1_000);
    let synced = broker.take::<SyncGroupRequest>(two, 5).expect("a response");
    assert_eq!(synced.error_code, ErrorCode::RebalanceInProgress as i16);
    let alone = broker.ask(two, 9, &join(&second));
    assert_eq!((alone.leader.as_str(), alone.members.len()), (second.as_str(), 1));
}

#[test]
fn a_session_expires_to_the_millisecond_although_timers_fire_later() {
    for (silent_ms, error) in [(SESSION_MS - 1, ErrorCode::NonEmptyGroup), (SESSION_MS, ErrorCode::None)] {
        let mut broker = Broker::new(2);
        let client = broker.connect(0);
        broker.pass(1);
        settle(&mut broker, client);
        broker.pass(silent_ms);
        let request = DeleteGroupsRequest { groups_names: vec![GROUP.into()] };
        assert_eq!(broker.ask(client, 2, &request).results[0].error_code, error as i16);
    }
}

#[test]
fn a_waiting_client_may_disconnect() {
    let mut broker = Broker::new(2);
    let (one, two) = (broker.connect(0), broker.connect(1));
    let (first, _) = settle(&mut broker, one);
    let second = broker.ask(two, 9, &join("")).member_id;
    broker.send(two, 9, &join(&second));
    broker.run();
    broker.hang_up(two);
    let again = broker.ask(one, 9, &join(&first));
    assert_eq!(again.generation_id, 2);
    let next = broker.connect(1);
    assert_eq!(broker.ask(next, 4, &heartbeat("x", 1)).error_code, ErrorCode::UnknownMemberId as i16);
}

#[test]
fn groups_are_listed_filtered_and_deleted() {
    let mut broker = Broker::new(2);
    let topic_id = create_topic(&mut broker);
    let client = broker.connect(1);
    let list = |broker: &mut Broker, version, states: &[&str], types: &[&str]| {
        let request = ListGroupsRequest {
            states_filter: states.iter().map(ToString::to_string).collect(),
            types_filter: types.iter().map(ToString::to_string).collect(),
        };
        broker.ask(client, version, &request).groups
    };
    broker.ask(client, 9, &commit("", -1, topic_id, 42));
    for version in 0..=5 {
        let listed = list(&mut broker, version, &[], &[]);
        assert_eq!((listed[0].group_id.as_str(), listed[0].protocol_type.as_str()), (GROUP, ""));
        assert_eq!(listed[0].group_state, if version >= 4 { "Empty" } else { "" });
        assert_eq!(listed[0].group_type, if version >= 5 { "classic" } else { "" });
    }
    assert_eq!(list(&mut broker, 4, &["Stable"], &[]).len(), 0);
    assert_eq!(list(&mut broker, 5, &["Empty"], &["classic"]).len(), 1);
    assert_eq!(list(&mut broker, 5, &[], &["share"]).len(), 0);
    for version in 0..=2 {
        broker.ask(client, 9, &commit("", -1, topic_id, 42));
        let request = DeleteGroupsRequest { groups_names: vec![GROUP.into(), "other".into()] };
        let response = broker.ask(client, version, &request);
        let errors: Vec<i16> = response.results.iter().map(|deleted| deleted.error_code).collect();
        assert_eq!(errors, [0, ErrorCode::GroupIdNotFound as i16]);
        assert_eq!(list(&mut broker, 0, &[], &[]).len(), 0);
    }
}

#[test]
fn one_offset_is_deleted() {
    let mut broker = Broker::new(1);
    let topic_id = create_topic(&mut broker);
    let client = broker.connect(0);
    let partition = |partition_index| OffsetDeleteRequestPartition { partition_index };
    let delete = OffsetDeleteRequest {
        group_id: GROUP.into(),
        topics: vec![OffsetDeleteRequestTopic {
            name: TOPIC.into(),
            partitions: vec![partition(0), partition(7)],
        }],
    };
    assert_eq!(broker.ask(client, 0, &delete).error_code, ErrorCode::GroupIdNotFound as i16);
    broker.ask(client, 9, &commit("", -1, topic_id, 42));
    let response = broker.ask(client, 0, &delete);
    let errors: Vec<i16> = response.topics[0].partitions.iter().map(|done| done.error_code).collect();
    assert_eq!((response.error_code, errors), (0, vec![0, ErrorCode::UnknownTopicOrPartition as i16]));
    assert_eq!(fetch(&mut broker, client, 8, topic_id), (-1, 0));
}

#[test]
fn this_node_coordinates_all_groups_and_transactions() {
    let mut broker = Broker::new(2);
    let client = broker.connect(1);
    for version in 0..=6 {
        for key_type in if version == 0 { 0..=0 } else { 0..=2 } {
            let request = FindCoordinatorRequest {
                key: GROUP.into(),
                key_type,
                coordinator_keys: vec![GROUP.into(), "other".into()],
            };
            let found = broker.ask(client, version, &request);
            let (node, error) = if version >= 4 {
                assert_eq!(found.coordinators[1].key, "other");
                (found.coordinators[0].node_id, found.coordinators[0].error_code)
            } else {
                (found.node_id, found.error_code)
            };
            let known = (1, 0);
            let unknown = (-1, ErrorCode::InvalidRequest as i16);
            assert_eq!((node, error), if key_type < 2 { known } else { unknown }, "version {version}");
        }
    }
}

/// A rejected commit has no effect, before and after a restart.
#[test]
fn an_offset_that_did_not_fit_on_the_disk_is_not_shown() {
    let mut broker = Broker::on_disk(1, Config::default());
    let topic_id = create_topic(&mut broker);
    let client = broker.connect(0);
    let commit = |broker: &mut Broker, offset| {
        let mut request = commit("", -1, topic_id, offset);
        request.topics[0].partitions[0].committed_metadata = Some("x".repeat(4096));
        broker.ask(client, 9, &request).topics[0].partitions[0].error_code
    };
    broker.set_space(0, Some(1024 * 1024));
    let mut committed = 0;
    while commit(&mut broker, committed + 1) == 0 {
        committed += 1;
    }
    assert_eq!(commit(&mut broker, 9_999), ErrorCode::NotCoordinator as i16);
    assert_eq!(fetch(&mut broker, client, 9, topic_id), (committed, 0));
    broker.set_space(0, None);
    assert_eq!(fetch(&mut broker, client, 9, topic_id), (committed, 0));
    assert_eq!(commit(&mut broker, 10_000), 0);
    assert_eq!(fetch(&mut broker, client, 9, topic_id), (10_000, 0));
}

#[test]
fn the_configured_bounds_of_session_timeouts_apply() {
    let outcome = |config: Config, session_timeout_ms| {
        let mut broker = Broker::with(1, config);
        let client = broker.connect(0);
        let request = JoinGroupRequest { session_timeout_ms, ..join("") };
        broker.ask(client, 3, &request).error_code
    };
    let refused = ErrorCode::InvalidSessionTimeout as i16;
    assert_eq!(outcome(Config::default(), 3_000), refused);
    let set = Config {
        group_session_timeout_min_ms: 3_000,
        group_session_timeout_max_ms: 4_000,
        ..Config::default()
    };
    let outcomes = [2_999, 3_000, 4_000, 4_001].map(|timeout| outcome(set.clone(), timeout));
    assert_eq!(outcomes, [refused, 0, 0, refused]);
}
