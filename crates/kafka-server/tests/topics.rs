//! Topics: created explicitly or by Metadata, extended, deleted.

mod kit;

use kit::Broker;
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::create_partitions::{CreatePartitionsRequest, CreatePartitionsTopic};
use mainstem_kafka::api::create_topics::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig, CreateTopicsRequest,
};
use mainstem_kafka::api::delete_topics::{DeleteTopicState, DeleteTopicsRequest};
use mainstem_kafka::api::metadata::{MetadataRequest, MetadataRequestTopic};

fn topic(name: &str, num_partitions: i32) -> CreatableTopic {
    CreatableTopic { name: name.into(), num_partitions, replication_factor: -1, ..CreatableTopic::default() }
}

fn create(topics: Vec<CreatableTopic>) -> CreateTopicsRequest {
    CreateTopicsRequest { topics, ..CreateTopicsRequest::default() }
}

fn code(code: i16) -> ErrorCode {
    ErrorCode::from_code(code).expect("a known error code")
}

#[test]
fn a_created_topic_exists_on_every_shard_and_after_a_restart() {
    let mut broker = Broker::new(3);
    let client = broker.connect(2);
    let response = broker.ask(client, 7, &create(vec![topic("t", 7)]));
    let created = &response.topics[0];
    assert_eq!(
        (code(created.error_code), created.num_partitions, created.replication_factor),
        (ErrorCode::None, 7, 1)
    );
    let configs = created.configs.as_ref().expect("the configuration");
    assert!(configs.iter().any(|config| config.name == "retention.ms" && config.config_source == 5));
    for shards in [3, 2, 5] {
        for shard in 0..shards {
            let client = broker.connect(shard);
            let metadata = broker.metadata(client, Some("t"));
            assert_eq!(metadata.topics[0].topic_id, created.topic_id);
            assert_eq!(metadata.topics[0].partitions.len(), 7);
        }
        broker.restart(if shards == 3 { 2 } else { 5 });
    }
}

#[test]
fn each_invalid_topic_is_rejected_on_its_own_with_a_message() {
    let mut broker = Broker::new(2);
    broker.create_topic("there", 1);
    broker.create_topic("a.b", 1);
    let client = broker.connect(1);
    let config = |name: &str, value: Option<&str>| CreatableTopicConfig {
        name: name.into(),
        value: value.map(Into::into),
    };
    let with = |configs| CreatableTopic { configs, ..topic("config", 1) };
    let assigned = |assignments: &[(i32, &[i32])]| CreatableTopic {
        num_partitions: -1,
        assignments: assignments
            .iter()
            .map(|(partition_index, brokers)| CreatableReplicaAssignment {
                partition_index: *partition_index,
                broker_ids: brokers.to_vec(),
            })
            .collect(),
        ..topic("assigned", -1)
    };
    for (invalid, expected) in [
        (topic("there", 1), ErrorCode::TopicAlreadyExists),
        (topic("", 1), ErrorCode::InvalidTopicException),
        (topic("no/name", 1), ErrorCode::InvalidTopicException),
        (topic("a_b", 1), ErrorCode::InvalidTopicException),
        (topic("none", 0), ErrorCode::InvalidPartitions),
        (topic("few", -2), ErrorCode::InvalidPartitions),
        (topic("many", 1_000_000), ErrorCode::PolicyViolation),
        (CreatableTopic { replication_factor: 3, ..topic("three", 1) }, ErrorCode::InvalidReplicationFactor),
        (CreatableTopic { replication_factor: 0, ..topic("zero", 1) }, ErrorCode::InvalidReplicationFactor),
        (with(vec![config("retention.ms", Some("soon"))]), ErrorCode::InvalidConfig),
        (with(vec![config("no.such.key", Some("1"))]), ErrorCode::InvalidConfig),
        (with(vec![config("retention.ms", None)]), ErrorCode::InvalidConfig),
        (CreatableTopic { num_partitions: 1, ..assigned(&[(0, &[1])]) }, ErrorCode::InvalidRequest),
        (CreatableTopic { replication_factor: 1, ..assigned(&[(0, &[1])]) }, ErrorCode::InvalidRequest),
        (assigned(&[(0, &[1]), (0, &[1])]), ErrorCode::InvalidReplicaAssignment),
        (assigned(&[(0, &[1]), (2, &[1])]), ErrorCode::InvalidReplicaAssignment),
        (assigned(&[(0, &[7])]), ErrorCode::InvalidReplicaAssignment),
        (assigned(&[(0, &[])]), ErrorCode::InvalidReplicaAssignment),
        (assigned(&[(0, &[1]), (1, &[1])]), ErrorCode::None),
    ] {
        let good = topic("good", 1);
        let request = CreateTopicsRequest { validate_only: true, ..create(vec![invalid.clone(), good]) };
        let response = broker.ask(client, 5, &request);
        assert_eq!(code(response.topics[0].error_code), expected, "{invalid:?}");
        assert_eq!(response.topics[0].error_message.is_some(), expected != ErrorCode::None);
        assert_eq!(code(response.topics[1].error_code), ErrorCode::None);
    }
    assert_eq!(broker.metadata(client, None).topics.len(), 2, "no topic was created");
}

#[test]
fn a_topic_named_twice_in_a_request_is_not_created() {
    let mut broker = Broker::new(1);
    let client = broker.connect(0);
    let response = broker.ask(client, 4, &create(vec![topic("a", 1), topic("b", 1), topic("a", 2)]));
    let codes: Vec<_> =
        response.topics.iter().map(|topic| (topic.name.as_str(), code(topic.error_code))).collect();
    assert_eq!(codes, [("b", ErrorCode::None), ("a", ErrorCode::InvalidRequest)]);
    assert_eq!(broker.metadata(client, None).topics.len(), 1);
}

#[test]
fn a_topic_is_not_visible_before_it_is_durable() {
    let mut broker = Broker::new(2);
    let client = broker.connect(1);
    broker.set_stuck(true);
    broker.send(client, 7, &create(vec![topic("t", 1)]));
    broker.run();
    assert!(broker.take::<CreateTopicsRequest>(client, 7).is_none());
    let other = broker.connect(0);
    assert_eq!(
        code(broker.metadata(other, Some("t")).topics[0].error_code),
        ErrorCode::UnknownTopicOrPartition
    );
    broker.set_stuck(false);
    broker.run();
    assert_eq!(broker.take::<CreateTopicsRequest>(client, 7).unwrap().topics[0].error_code, 0);
}

#[test]
fn metadata_creates_missing_topics_if_allowed() {
    let mut broker = Broker::new(2);
    let client = broker.connect(1);
    let named =
        |name: &str| MetadataRequestTopic { name: Some(name.into()), ..MetadataRequestTopic::default() };
    let request = MetadataRequest {
        topics: Some(vec![named("new"), named("no/name")]),
        allow_auto_topic_creation: true,
        ..MetadataRequest::default()
    };
    let response = broker.ask(client, 12, &request);
    assert_eq!(code(response.topics[0].error_code), ErrorCode::None);
    assert_eq!(response.topics[0].partitions.len(), 1);
    assert_eq!(code(response.topics[1].error_code), ErrorCode::InvalidTopicException);
    let response = broker.metadata(client, Some("other"));
    assert_eq!(code(response.topics[0].error_code), ErrorCode::UnknownTopicOrPartition);
    broker.config.auto_create_topics = false;
    broker.restart(2);
    let client = broker.connect(0);
    let request = MetadataRequest { topics: Some(vec![named("other")]), ..request };
    let response = broker.ask(client, 12, &request);
    assert_eq!(code(response.topics[0].error_code), ErrorCode::UnknownTopicOrPartition);
}

#[test]
fn a_deleted_topic_loses_its_records_and_frees_its_name() {
    let mut broker = Broker::new(2);
    let client = broker.connect(0);
    broker.create_topic("t", 4);
    let id = broker.metadata(client, Some("t")).topics[0].topic_id;
    for index in 0..4 {
        assert_eq!(broker.produce(client, "t", index, &["old"]).error_code, 0);
    }
    let by_id = DeleteTopicState { name: None, topic_id: id };
    let request = DeleteTopicsRequest { topics: vec![by_id], ..DeleteTopicsRequest::default() };
    let response = broker.ask(client, 6, &request);
    assert_eq!(code(response.responses[0].error_code), ErrorCode::None);
    assert_eq!(response.responses[0].name.as_deref(), Some("t"));
    let produced = broker.produce(client, "t", 0, &["lost"]);
    assert_eq!(code(produced.error_code), ErrorCode::UnknownTopicOrPartition);
    broker.create_topic("t", 4);
    assert_ne!(broker.metadata(client, Some("t")).topics[0].topic_id, id);
    for index in 0..4 {
        assert_eq!(broker.produce(client, "t", index, &["new"]).base_offset, 0);
        assert_eq!(broker.fetch(client, "t", index, 0).1, ["new"]);
    }
    broker.restart(1);
    let client = broker.connect(0);
    assert_eq!(broker.fetch(client, "t", 3, 0).1, ["new"]);
}

#[test]
fn deleting_a_topic_frees_the_names_that_collide_with_it() {
    let mut broker = Broker::new(2);
    let client = broker.connect(1);
    let make = |broker: &mut Broker, name| {
        code(broker.ask(client, 7, &create(vec![topic(name, 1)])).topics[0].error_code)
    };
    assert_eq!(make(&mut broker, "a.b"), ErrorCode::None);
    assert_eq!(make(&mut broker, "a_b"), ErrorCode::InvalidTopicException);
    broker.restart(2);
    let client = broker.connect(1);
    let make = |broker: &mut Broker, name| {
        code(broker.ask(client, 7, &create(vec![topic(name, 1)])).topics[0].error_code)
    };
    assert_eq!(make(&mut broker, "a_b"), ErrorCode::InvalidTopicException);
    let request = DeleteTopicsRequest { topic_names: vec!["a.b".into()], ..DeleteTopicsRequest::default() };
    assert_eq!(broker.ask(client, 5, &request).responses[0].error_code, 0);
    assert_eq!(make(&mut broker, "a_b"), ErrorCode::None);
    assert_eq!(make(&mut broker, "a.b"), ErrorCode::InvalidTopicException);
}

#[test]
fn failed_deletions_get_distinct_errors() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 1);
    let client = broker.connect(1);
    let id = broker.metadata(client, Some("t")).topics[0].topic_id;
    let zero = mainstem_kafka::Uuid::default();
    let unknown = mainstem_kafka::Uuid([7; 16]);
    let state = |name: Option<&str>, topic_id| DeleteTopicState { name: name.map(Into::into), topic_id };
    for (states, expected) in [
        (vec![state(None, zero)], ErrorCode::InvalidRequest),
        (vec![state(Some("t"), id)], ErrorCode::InvalidRequest),
        (vec![state(Some("t"), zero), state(Some("t"), zero)], ErrorCode::InvalidRequest),
        (vec![state(None, id), state(None, id)], ErrorCode::InvalidRequest),
        (vec![state(Some("x"), zero)], ErrorCode::UnknownTopicOrPartition),
        (vec![state(None, unknown)], ErrorCode::UnknownTopicId),
    ] {
        let request = DeleteTopicsRequest { topics: states.clone(), ..DeleteTopicsRequest::default() };
        let response = broker.ask(client, 6, &request);
        assert_eq!(response.responses.len(), 1);
        assert_eq!(code(response.responses[0].error_code), expected, "{states:?}");
    }
    let topic_names = vec!["t".to_owned(), "x".to_owned()];
    let response =
        broker.ask(client, 1, &DeleteTopicsRequest { topic_names, ..DeleteTopicsRequest::default() });
    let codes: Vec<_> = response.responses.iter().map(|topic| code(topic.error_code)).collect();
    assert_eq!(codes, [ErrorCode::None, ErrorCode::UnknownTopicOrPartition]);
}

#[test]
fn partitions_are_added_but_never_removed() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 2);
    let client = broker.connect(1);
    assert_eq!(broker.produce(client, "t", 1, &["a"]).error_code, 0);
    let mut grow = |name: &str, count: i32, validate_only: bool| {
        let topics = vec![CreatePartitionsTopic { name: name.into(), count, assignments: None }];
        let request = CreatePartitionsRequest { topics, validate_only, ..CreatePartitionsRequest::default() };
        let response = broker.ask(client, 3, &request);
        (code(response.results[0].error_code), broker.metadata(client, Some("t")).topics[0].partitions.len())
    };
    assert_eq!(grow("t", 5, true), (ErrorCode::None, 2));
    assert_eq!(grow("t", 5, false), (ErrorCode::None, 5));
    assert_eq!(grow("t", 5, false), (ErrorCode::InvalidPartitions, 5));
    assert_eq!(grow("t", 1, false), (ErrorCode::InvalidPartitions, 5));
    assert_eq!(grow("t", 1_000_000, false), (ErrorCode::PolicyViolation, 5));
    assert_eq!(grow("x", 5, false), (ErrorCode::UnknownTopicOrPartition, 5));
    assert_eq!(broker.produce(client, "t", 4, &["b"]).error_code, 0);
    broker.restart(2);
    let client = broker.connect(0);
    assert_eq!(broker.fetch(client, "t", 1, 0).1, ["a"]);
    assert_eq!(broker.fetch(client, "t", 4, 0).1, ["b"]);
}

#[test]
fn changes_of_one_topic_are_serialized() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 1);
    let clients: Vec<_> = (0..3).map(|shard| broker.connect(shard % 2)).collect();
    broker.set_stuck(true);
    for (client, count) in clients.iter().zip([2, 3]) {
        let topics = vec![CreatePartitionsTopic { name: "t".into(), count, assignments: None }];
        broker.send(*client, 3, &CreatePartitionsRequest { topics, ..CreatePartitionsRequest::default() });
        broker.run();
    }
    let topic_names = vec!["t".to_owned()];
    broker.send(clients[2], 3, &DeleteTopicsRequest { topic_names, ..DeleteTopicsRequest::default() });
    broker.run();
    broker.set_stuck(false);
    broker.run();
    for client in &clients[..2] {
        let response = broker.take::<CreatePartitionsRequest>(*client, 3).expect("a response");
        assert_eq!(code(response.results[0].error_code), ErrorCode::None);
    }
    let response = broker.take::<DeleteTopicsRequest>(clients[2], 3).expect("a response");
    assert_eq!(code(response.responses[0].error_code), ErrorCode::None);
    assert!(broker.metadata(clients[0], None).topics.is_empty());
}
