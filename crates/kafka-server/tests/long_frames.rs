//! Requests of megabytes: they are decoded in steps and handled in parts, other clients are served in between, and the
//! responses are those to small requests.

mod kit;

use kit::turns::{ask_in_parts, check_shard, check_turn, turns_until};
use kit::{Broker, batch, frame, produce_request};
use mainstem_kafka::api::add_partitions_to_txn::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use mainstem_kafka::api::alter_client_quotas::{AlterClientQuotasRequest, AlterEntry};
use mainstem_kafka::api::alter_partition_reassignments::{
    AlterPartitionReassignmentsRequest, ReassignablePartition, ReassignableTopic,
};
use mainstem_kafka::api::alter_replica_log_dirs::{
    AlterReplicaLogDir, AlterReplicaLogDirTopic, AlterReplicaLogDirsRequest,
};
use mainstem_kafka::api::alter_user_scram_credentials::{
    AlterUserScramCredentialsRequest, ScramCredentialDeletion,
};
use mainstem_kafka::api::create_acls::{AclCreation, CreateAclsRequest};
use mainstem_kafka::api::create_topics::{CreatableTopic, CreatableTopicConfig, CreateTopicsRequest};
use mainstem_kafka::api::delete_acls::{DeleteAclsFilter, DeleteAclsRequest};
use mainstem_kafka::api::describe_groups::DescribeGroupsRequest;
use mainstem_kafka::api::describe_log_dirs::{DescribableLogDirTopic, DescribeLogDirsRequest};
use mainstem_kafka::api::describe_topic_partitions::{DescribeTopicPartitionsRequest, TopicRequest};
use mainstem_kafka::api::elect_leaders::{ElectLeadersRequest, TopicPartitions};
use mainstem_kafka::api::find_coordinator::FindCoordinatorRequest;
use mainstem_kafka::api::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use mainstem_kafka::api::init_producer_id::InitProducerIdRequest;
use mainstem_kafka::api::leave_group::{LeaveGroupRequest, MemberIdentity};
use mainstem_kafka::api::list_groups::ListGroupsRequest;
use mainstem_kafka::api::list_transactions::ListTransactionsRequest;
use mainstem_kafka::api::metadata::{MetadataRequest, MetadataRequestTopic};
use mainstem_kafka::api::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_kafka::api::offset_delete::{
    OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use mainstem_kafka::api::offset_fetch::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use mainstem_kafka::api::produce::{PartitionProduceData, ProduceRequest, TopicProduceData};
use mainstem_kafka::api::write_txn_markers::{
    WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest,
};
use mainstem_kafka::{ErrorCode, Request};

/// Items of a long request.
const ITEMS: usize = 20_000;
/// Partitions of a Produce that is handled in parts.
const WIDE: i32 = 2_500;

fn names(count: usize) -> Vec<String> {
    (0..count).map(|index| format!("name-{index}")).collect()
}

#[test]
fn a_long_request_is_decoded_over_several_turns() {
    let mut broker = Broker::new(1);
    let (large, small) = (broker.connect(0), broker.connect(0));
    // Refused at once, so that only decoding takes several turns.
    let topic = AddPartitionsToTxnTopic { name: "t".into(), partitions: (0..1_000_000).collect() };
    let transaction = AddPartitionsToTxnTransaction { topics: vec![topic], ..Default::default() };
    let request = AddPartitionsToTxnRequest { transactions: vec![transaction], ..Default::default() };
    broker.send(large, 4, &request);
    broker.send(small, 0, &ListGroupsRequest::default());
    let mut served = 0;
    let (response, turns) = turns_until::<AddPartitionsToTxnRequest>(&mut broker, large, 4, |broker| {
        if broker.take::<ListGroupsRequest>(small, 0).is_some() {
            served += 1;
            broker.send(small, 0, &ListGroupsRequest::default());
        }
        check_shard(broker, 0);
    });
    assert_eq!(response.error_code, ErrorCode::PolicyViolation as i16);
    assert!(turns > 50 && served * 5 >= turns, "{turns} turns, others are served in {served}");
}

#[test]
fn requests_behind_a_long_one_keep_their_order() {
    let mut broker = Broker::new(2);
    for shard in [0, 1] {
        let client = broker.connect(shard);
        let topics = names(ITEMS)
            .into_iter()
            .map(|name| MetadataRequestTopic { name: Some(name), ..MetadataRequestTopic::default() });
        let metadata = MetadataRequest {
            topics: Some(topics.collect()),
            allow_auto_topic_creation: false,
            ..MetadataRequest::default()
        };
        let groups = DescribeGroupsRequest { groups: names(ITEMS), ..Default::default() };
        broker.send(client, 0, &ListGroupsRequest::default());
        broker.send(client, 9, &metadata);
        broker.send(client, 5, &groups);
        broker.send(client, 0, &ListGroupsRequest::default());
        broker.run();
        // Each is decoded as what it must be.
        assert!(broker.take::<ListGroupsRequest>(client, 0).is_some());
        assert_eq!(broker.take::<MetadataRequest>(client, 9).unwrap().topics.len(), ITEMS);
        assert_eq!(broker.take::<DescribeGroupsRequest>(client, 5).unwrap().groups.len(), ITEMS);
        assert!(broker.take::<ListGroupsRequest>(client, 0).is_some());
    }
}

#[test]
fn a_long_request_may_be_malformed_or_its_connection_may_close() {
    let mut broker = Broker::new(1);
    let request = DescribeGroupsRequest { groups: names(ITEMS), ..Default::default() };
    let mut malformed = frame(1, 5, &request);
    let end = malformed.len() - 10;
    malformed[end..].fill(0xFF);
    let client = broker.connect(0);
    broker.send_bytes(client, &malformed);
    assert!(broker.is_open(client), "it has not been decoded to its end");
    broker.run();
    assert!(!broker.is_open(client));
    let client = broker.connect(0);
    broker.send(client, 5, &request);
    broker.turn(1);
    broker.hang_up(client);
    broker.run();
    let client = broker.connect(0);
    assert_eq!(broker.ask(client, 5, &request).groups.len(), ITEMS);
}

/// The connection of a request with too many elements is closed, and one with many is answered.
fn check_limit<R: Request>(version: i16, fits: &R, exceeds: &R) {
    let mut broker = Broker::new(1);
    let (client, other) = (broker.connect(0), broker.connect(0));
    broker.ask(client, version, fits);
    assert!(broker.is_open(client));
    let bytes = frame(1, version, exceeds);
    broker.send_bytes(client, &bytes);
    broker.run();
    assert!(!broker.is_open(client), "{} has no limit", std::any::type_name::<R>());
    broker.ask(other, 0, &ListGroupsRequest::default());
}

/// Requests that are not handled in parts are refused if they have too many elements for a turn.
#[test]
fn requests_of_one_turn_have_a_limit() {
    const FITS: usize = 2_000;
    const EXCEEDS: usize = 60_000;
    let partitions = |count: usize| (0..).take(count).collect::<Vec<i32>>();
    let groups = |count| ListGroupsRequest { states_filter: names(count), ..Default::default() };
    check_limit(5, &groups(FITS), &groups(EXCEEDS));
    let transactions = |count| ListTransactionsRequest { state_filters: names(count), ..Default::default() };
    check_limit(2, &transactions(FITS), &transactions(EXCEEDS));
    let markers = |count| {
        let topic = WritableTxnMarkerTopic { name: "t".into(), partition_indexes: partitions(count) };
        let marker = WritableTxnMarker { topics: vec![topic], ..Default::default() };
        WriteTxnMarkersRequest { markers: vec![marker] }
    };
    check_limit(1, &markers(FITS), &markers(EXCEEDS));
    let logs = |count| {
        let topic = DescribableLogDirTopic { topic: "t".into(), partitions: partitions(count) };
        DescribeLogDirsRequest { topics: Some(vec![topic]) }
    };
    check_limit(4, &logs(FITS), &logs(EXCEEDS));
    let moves = |count| {
        let topic = AlterReplicaLogDirTopic { name: "t".into(), partitions: partitions(count) };
        let dir = AlterReplicaLogDir { path: "/".into(), topics: vec![topic] };
        AlterReplicaLogDirsRequest { dirs: vec![dir] }
    };
    check_limit(2, &moves(FITS), &moves(EXCEEDS));
    let leaders = |count| {
        let topic = TopicPartitions { topic: "t".into(), partitions: partitions(count) };
        ElectLeadersRequest { topic_partitions: Some(vec![topic]), ..Default::default() }
    };
    check_limit(2, &leaders(FITS), &leaders(EXCEEDS));
    let pages = |count| {
        let topics = names(count).into_iter().map(|name| TopicRequest { name });
        DescribeTopicPartitionsRequest { topics: topics.collect(), ..Default::default() }
    };
    check_limit(0, &pages(FITS), &pages(EXCEEDS));
    let acls = |count| CreateAclsRequest { creations: vec![AclCreation::default(); count] };
    check_limit(3, &acls(FITS), &acls(EXCEEDS));
    let filters = |count| DeleteAclsRequest { filters: vec![DeleteAclsFilter::default(); count] };
    check_limit(3, &filters(FITS), &filters(EXCEEDS));
    let quotas = |count| AlterClientQuotasRequest {
        entries: vec![AlterEntry::default(); count],
        ..Default::default()
    };
    check_limit(1, &quotas(FITS), &quotas(EXCEEDS));
    let users = |count| {
        let deletions = vec![ScramCredentialDeletion::default(); count];
        AlterUserScramCredentialsRequest { deletions, ..Default::default() }
    };
    check_limit(0, &users(FITS), &users(EXCEEDS));
}

#[test]
fn items_that_do_not_depend_on_each_other_are_answered_in_parts() {
    let mut broker = Broker::new(2);
    let groups = names(ITEMS);
    let request = DescribeGroupsRequest { groups: groups.clone(), ..Default::default() };
    for version in [4, 6] {
        let response = ask_in_parts(&mut broker, version, &request);
        let described = response.groups.iter().map(|group| &group.group_id);
        assert!(described.eq(&groups), "version {version}");
    }
    let request = FindCoordinatorRequest { coordinator_keys: groups.clone(), ..Default::default() };
    let response = ask_in_parts(&mut broker, 6, &request);
    assert!(response.coordinators.iter().map(|found| &found.key).eq(&groups));
    assert!(response.coordinators.iter().all(|found| found.error_code == 0 && found.port > 0));
    let member = |member_id| MemberIdentity { member_id, ..MemberIdentity::default() };
    let members = groups.iter().cloned().map(member).collect();
    let request = LeaveGroupRequest { group_id: "group".into(), members, ..Default::default() };
    for version in [3, 5] {
        let response = ask_in_parts(&mut broker, version, &request);
        assert!(response.members.iter().map(|left| &left.member_id).eq(&groups));
        let unknown = ErrorCode::UnknownMemberId as i16;
        assert!(response.members.iter().all(|left| left.error_code == unknown), "version {version}");
    }
}

#[test]
fn items_of_the_same_name_are_found_among_a_hundred_thousand() {
    let mut broker = Broker::new(1);
    let client = broker.connect(0);
    let topic =
        |name| CreatableTopic { name, num_partitions: 1, replication_factor: 1, ..CreatableTopic::default() };
    let mut all = names(50_000);
    all.extend(names(50_000));
    all.push("once".into());
    let topics = all.into_iter().map(topic).collect();
    let request = CreateTopicsRequest { topics, validate_only: true, ..Default::default() };
    broker.send(client, 7, &request);
    let (response, turns) = turns_until::<CreateTopicsRequest>(&mut broker, client, 7, |broker| {
        check_shard(broker, 0);
    });
    assert!(turns > 1_000, "{turns} turns");
    assert_eq!(response.topics.len(), 50_001);
    let accepted: Vec<_> = response.topics.iter().filter(|topic| topic.error_code == 0).collect();
    assert!(accepted.len() == 1 && accepted[0].name == "once");
}

#[test]
fn more_configurations_than_there_are_get_refused() {
    let mut broker = Broker::new(1);
    broker.create_topic("t", 1);
    let client = broker.connect(0);
    for (count, is_refused) in [(200, false), (201, true), (100_000, true)] {
        // The handler refuses unknown names, with another message.
        let message = |message: Option<String>| message.unwrap_or_default();
        let configs = names(count).into_iter().map(|name| AlterableConfig {
            name,
            value: Some("1".into()),
            ..AlterableConfig::default()
        });
        let resources = vec![AlterConfigsResource {
            resource_type: 2,
            resource_name: "t".into(),
            configs: configs.collect(),
        }];
        let request = IncrementalAlterConfigsRequest { resources, validate_only: true };
        let altered = broker.ask(client, 1, &request).responses.remove(0);
        assert_ne!(altered.error_code, 0);
        assert_eq!(message(altered.error_message).contains("200 configurations"), is_refused, "{count}");
        let config = |name| CreatableTopicConfig { name, value: Some("1".into()) };
        let topics = vec![CreatableTopic {
            name: "new".into(),
            num_partitions: 1,
            replication_factor: 1,
            configs: names(count).into_iter().map(config).collect(),
            ..CreatableTopic::default()
        }];
        let request = CreateTopicsRequest { topics, validate_only: true, ..Default::default() };
        let created = broker.ask(client, 7, &request).topics.remove(0);
        assert_eq!(created.error_code, ErrorCode::InvalidConfig as i16);
        assert_eq!(message(created.error_message).contains("200 configurations"), is_refused, "{count}");
    }
}

#[test]
fn partitions_of_topics_are_answered_in_parts() {
    let mut broker = Broker::new(2);
    broker.create_topic("large", 3_000);
    let count = 10_000;
    let partition = |partition_index| ReassignablePartition { partition_index, replicas: None };
    let topic =
        |name: &str| ReassignableTopic { name: name.into(), partitions: (0..count).map(partition).collect() };
    let topics = vec![topic("large"), topic("unknown")];
    let request = AlterPartitionReassignmentsRequest { topics, ..Default::default() };
    let response = ask_in_parts(&mut broker, 1, &request);
    let codes = |index: usize, code: ErrorCode| {
        let partitions = response.responses[index].partitions.iter();
        partitions.filter(|partition| partition.error_code == code as i16).count()
    };
    assert_eq!(response.responses.len(), 2);
    assert_eq!(codes(0, ErrorCode::NoReassignmentInProgress), 3_000);
    assert_eq!(codes(0, ErrorCode::UnknownTopicOrPartition), 7_000);
    assert_eq!(codes(1, ErrorCode::UnknownTopicOrPartition), 10_000);
}

#[test]
fn offsets_of_a_group_are_deleted_in_parts() {
    let mut broker = Broker::new(2);
    broker.create_topic("large", 3_000);
    let client = broker.connect(0);
    let partition = |partition_index| OffsetCommitRequestPartition {
        partition_index,
        committed_offset: 7,
        committed_metadata: Some(String::new()),
        ..OffsetCommitRequestPartition::default()
    };
    let topic = OffsetCommitRequestTopic {
        name: "large".into(),
        partitions: (0..3_000).map(partition).collect(),
        ..OffsetCommitRequestTopic::default()
    };
    let commit = OffsetCommitRequest {
        group_id: "group".into(),
        generation_id_or_member_epoch: -1,
        topics: vec![topic],
        ..OffsetCommitRequest::default()
    };
    broker.ask(client, 8, &commit);
    let partition = |partition_index| OffsetDeleteRequestPartition { partition_index };
    let topic = |name: &str, count: i32| OffsetDeleteRequestTopic {
        name: name.into(),
        partitions: (0..count).map(partition).collect(),
    };
    // All but the last thousand, and some that do not exist.
    let topics = vec![topic("large", 2_000), topic("unknown", 2_000)];
    let delete = OffsetDeleteRequest { group_id: "group".into(), topics };
    let response = ask_in_parts(&mut broker, 0, &delete);
    let codes = |index: usize| response.topics[index].partitions.iter().map(|partition| partition.error_code);
    assert!(response.error_code == 0 && response.topics.len() == 2);
    assert!(codes(0).len() == 2_000 && codes(0).all(|code| code == 0));
    let unknown = ErrorCode::UnknownTopicOrPartition as i16;
    assert!(codes(1).len() == 2_000 && codes(1).all(|code| code == unknown));
    let topics = vec![OffsetFetchRequestTopics {
        name: "large".into(),
        partition_indexes: (0..3_000).collect(),
        ..OffsetFetchRequestTopics::default()
    }];
    let group =
        OffsetFetchRequestGroup { group_id: "group".into(), topics: Some(topics), ..Default::default() };
    let fetched = broker.ask(client, 8, &OffsetFetchRequest { groups: vec![group], ..Default::default() });
    let offsets = fetched.groups[0].topics[0].partitions.iter().map(|partition| partition.committed_offset);
    let expected = (0..3_000).map(|index| if index < 2_000 { -1 } else { 7 });
    assert!(offsets.eq(expected), "and no other");
}

#[test]
fn more_partitions_than_a_transaction_may_have_are_refused_in_parts() {
    let mut broker = Broker::new(2);
    broker.create_topic("many", 10);
    let client = broker.connect(0);
    let init = InitProducerIdRequest {
        transactional_id: Some("tx".into()),
        transaction_timeout_ms: 60_000,
        producer_id: -1,
        producer_epoch: -1,
    };
    let producer = broker.ask::<InitProducerIdRequest>(client, 4, &init);
    let topic =
        |name: &str, count| AddPartitionsToTxnTopic { name: name.into(), partitions: (0..count).collect() };
    let request = |topics| AddPartitionsToTxnRequest {
        v3_and_below_transactional_id: "tx".into(),
        v3_and_below_producer_id: producer.producer_id,
        v3_and_below_producer_epoch: producer.producer_epoch,
        v3_and_below_topics: topics,
        ..AddPartitionsToTxnRequest::default()
    };
    for version in [2, 3] {
        let refused = request(vec![topic("many", 10), topic("unknown", 30_000)]);
        let response = ask_in_parts(&mut broker, version, &refused);
        let results = &response.results_by_topic_v3_and_below;
        let counts: Vec<usize> = results.iter().map(|topic| topic.results_by_partition.len()).collect();
        assert_eq!(counts, [10, 30_000]);
        let mut codes = results.iter().flat_map(|topic| &topic.results_by_partition);
        let policy = ErrorCode::PolicyViolation as i16;
        assert!(codes.all(|partition| partition.partition_error_code == policy), "version {version}");
    }
    let response = broker.ask(client, 3, &request(vec![topic("many", 10)]));
    let results = &response.results_by_topic_v3_and_below[0].results_by_partition;
    assert!(results.iter().all(|partition| partition.partition_error_code == 0));
}

/// A Produce of `value` to each partition of the large topic, some that do not exist, and one of another topic.
fn wide_produce(broker: &Broker, value: &str, acks: i16) -> ProduceRequest {
    let records = batch(broker.unix_ms(), &[value]);
    let partition = |index| PartitionProduceData { index, records: Some(records.clone()) };
    let topic = |name: &str, count| TopicProduceData {
        name: name.into(),
        partition_data: (0..count).map(partition).collect(),
        ..TopicProduceData::default()
    };
    let topic_data = vec![topic("small", 1), topic("large", WIDE + 10)];
    ProduceRequest { acks, timeout_ms: 30_000, topic_data, ..ProduceRequest::default() }
}

#[test]
fn a_produce_to_thousands_of_partitions_is_handled_in_parts_and_in_order() {
    let mut broker = Broker::new(2);
    broker.create_topic("large", WIDE);
    broker.create_topic("small", 1);
    let client = broker.connect(0);
    for (round, version) in (0..).zip([7, 9, 11]) {
        let value = |place: &str| format!("{place}-{round}");
        let send = |broker: &mut Broker, value: &str| {
            let records = batch(broker.unix_ms(), &[value]);
            broker.send(client, version, &produce_request("large", WIDE - 1, records));
        };
        send(&mut broker, &value("before"));
        let wide = wide_produce(&broker, &value("wide"), -1);
        broker.send(client, version, &wide);
        send(&mut broker, &value("after"));
        let (first, _) = turns_until::<ProduceRequest>(&mut broker, client, version, check_turn);
        assert_eq!(first.responses[0].partition_responses[0].error_code, 0);
        let (response, turns) = turns_until::<ProduceRequest>(&mut broker, client, version, check_turn);
        assert!(turns > 10, "{turns} turns");
        let topics: Vec<_> = response.responses.iter().map(|topic| topic.name.as_str()).collect();
        assert_eq!(topics, ["small", "large"]);
        let parts = &response.responses[1].partition_responses;
        assert!(parts.iter().map(|part| part.index).eq(0..WIDE + 10));
        let (known, unknown) = parts.split_at(WIDE as usize);
        let base_offset = 3 * round + 1;
        assert!(known.iter().all(|part| part.error_code == 0));
        assert_eq!(known[WIDE as usize - 1].base_offset, base_offset);
        let code = ErrorCode::UnknownTopicOrPartition as i16;
        assert!(unknown.iter().all(|part| part.error_code == code && part.base_offset == -1));
        let (last, _) = turns_until::<ProduceRequest>(&mut broker, client, version, check_turn);
        assert_eq!(last.responses[0].partition_responses[0].base_offset, base_offset + 1);
    }
    let (_, values) = broker.fetch(client, "large", WIDE - 1, 0);
    let expected =
        (0..3).flat_map(|round| ["before", "wide", "after"].map(|place| format!("{place}-{round}")));
    assert!(values.into_iter().eq(expected));
}

#[test]
fn a_wide_produce_without_acknowledgement_is_not_answered() {
    let mut broker = Broker::new(1);
    broker.create_topic("large", WIDE + 10);
    broker.create_topic("small", 1);
    let client = broker.connect(0);
    let request = wide_produce(&broker, "wide", 0);
    broker.send(client, 9, &request);
    broker.send(client, 0, &ListGroupsRequest::default());
    broker.run();
    assert!(broker.take::<ListGroupsRequest>(client, 0).is_some(), "the next response");
    for index in [0, WIDE / 2, WIDE + 9] {
        assert_eq!(broker.fetch(client, "large", index, 0).1, ["wide"]);
    }
    let mut refused = wide_produce(&broker, "wide", 0);
    refused.topic_data[1].name = "unknown".into();
    broker.send(client, 9, &refused);
    broker.run();
    assert!(!broker.is_open(client), "a closed connection is the only sign of an error");
}

#[test]
fn the_producers_of_thousands_of_partitions_are_maintained_over_several_turns() {
    let mut broker = Broker::new(1);
    broker.create_topic("large", WIDE + 10);
    broker.create_topic("small", 1);
    let client = broker.connect(0);
    let request = wide_produce(&broker, "value", -1);
    broker.ask(client, 9, &request);
    broker.skip(1_000);
    let mut turns = 0;
    for _ in 0..50 {
        broker.turn(1);
        check_shard(&mut broker, 0);
        turns += u32::from(broker.charged(0) > 500);
    }
    assert!(turns > 10, "{turns} turns");
}
