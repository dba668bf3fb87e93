//! Configuration of topics and of the node: described, changed, rejected.

mod kit;

use kit::{Broker, Client};
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::alter_configs::{self, AlterConfigsRequest};
use mainstem_kafka::api::create_topics::{CreatableTopic, CreatableTopicConfig, CreateTopicsRequest};
use mainstem_kafka::api::describe_configs::{
    DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResourceResult, DescribeConfigsResult,
};
use mainstem_kafka::api::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use mainstem_kafka::api::list_config_resources::ListConfigResourcesRequest;

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const LOGGER: i8 = 8;
const GROUP: i8 = 32;

const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

fn code(code: i16) -> ErrorCode {
    ErrorCode::from_code(code).expect("a known error code")
}

fn describe(broker: &mut Broker, client: Client, resource_type: i8, name: &str) -> DescribeConfigsResult {
    let resource = DescribeConfigsResource {
        resource_type,
        resource_name: name.into(),
        ..DescribeConfigsResource::default()
    };
    let request = DescribeConfigsRequest {
        resources: vec![resource],
        include_synonyms: true,
        include_documentation: true,
    };
    broker.ask(client, 4, &request).results.remove(0)
}

fn entry(result: &DescribeConfigsResult, name: &str) -> DescribeConfigsResourceResult {
    result.configs.iter().find(|config| config.name == name).cloned().expect("the key")
}

/// The value and the source of a topic's key.
fn value(broker: &mut Broker, client: Client, topic: &str, key: &str) -> (String, i8) {
    let entry = entry(&describe(broker, client, TOPIC, topic), key);
    (entry.value.expect("a value"), entry.config_source)
}

fn change(
    broker: &mut Broker,
    client: Client,
    (resource_type, name): (i8, &str),
    steps: &[(&str, i8, Option<&str>)],
) -> (ErrorCode, Option<String>) {
    let config = |(name, config_operation, value): &(&str, i8, Option<&str>)| AlterableConfig {
        name: (*name).into(),
        config_operation: *config_operation,
        value: value.map(Into::into),
    };
    let resource = AlterConfigsResource {
        resource_type,
        resource_name: name.into(),
        configs: steps.iter().map(config).collect(),
    };
    let request = IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
    let response = broker.ask(client, 1, &request).responses.remove(0);
    (code(response.error_code), response.error_message)
}

#[test]
fn incremental_changes_set_delete_append_and_subtract() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 1);
    let client = broker.connect(1);
    let on = (TOPIC, "t");
    assert_eq!(value(&mut broker, client, "t", "cleanup.policy"), ("delete".into(), 5));
    let none = (ErrorCode::None, None);
    let policy = "cleanup.policy";
    let steps = [(policy, APPEND, Some("compact")), ("retention.ms", SET, Some("77"))];
    assert_eq!(change(&mut broker, client, on, &steps), none);
    assert_eq!(value(&mut broker, client, "t", policy), ("delete,compact".into(), 1));
    assert_eq!(value(&mut broker, client, "t", "retention.ms"), ("77".into(), 1));
    assert_eq!(change(&mut broker, client, on, &[(policy, SUBTRACT, Some("delete"))]), none);
    assert_eq!(value(&mut broker, client, "t", policy), ("compact".into(), 1));
    broker.restart(3);
    let client = broker.connect(2);
    assert_eq!(value(&mut broker, client, "t", policy), ("compact".into(), 1));
    assert_eq!(change(&mut broker, client, on, &[(policy, DELETE, None)]), none);
    assert_eq!(value(&mut broker, client, "t", policy), ("delete".into(), 5));
    assert_eq!(value(&mut broker, client, "t", "retention.ms"), ("77".into(), 1));
}

#[test]
fn alter_configs_replaces_the_whole_configuration() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 1);
    let client = broker.connect(1);
    assert_eq!(
        change(&mut broker, client, (TOPIC, "t"), &[("retention.ms", SET, Some("77"))]).0,
        ErrorCode::None
    );
    let config = alter_configs::AlterableConfig { name: "segment.ms".into(), value: Some("1000".into()) };
    let resource = alter_configs::AlterConfigsResource {
        resource_type: TOPIC,
        resource_name: "t".into(),
        configs: vec![config],
    };
    for (validate_only, retention_ms) in [(true, "77"), (false, "604800000")] {
        let request = AlterConfigsRequest { resources: vec![resource.clone()], validate_only };
        let response = broker.ask(client, 2, &request);
        assert_eq!(code(response.responses[0].error_code), ErrorCode::None);
        assert_eq!(value(&mut broker, client, "t", "retention.ms").0, retention_ms);
    }
    assert_eq!(value(&mut broker, client, "t", "segment.ms"), ("1000".into(), 1));
}

#[test]
fn an_invalid_change_is_rejected_as_a_whole_with_a_message() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 1);
    let client = broker.connect(0);
    let good = ("segment.ms", SET, Some("5"));
    for (on, step, expected) in [
        ((TOPIC, "t"), ("retention.ms", SET, Some("soon")), ErrorCode::InvalidConfig),
        ((TOPIC, "t"), ("no.such.key", SET, Some("1")), ErrorCode::InvalidConfig),
        ((TOPIC, "t"), ("retention.ms", APPEND, Some("1")), ErrorCode::InvalidConfig),
        ((TOPIC, "t"), ("retention.ms", SET, None), ErrorCode::InvalidRequest),
        ((TOPIC, "t"), ("segment.ms", SET, Some("6")), ErrorCode::InvalidRequest),
        ((TOPIC, "t"), ("retention.ms", 9, Some("1")), ErrorCode::InvalidRequest),
        ((TOPIC, "x"), ("retention.ms", SET, Some("1")), ErrorCode::UnknownTopicOrPartition),
        ((TOPIC, "no/name"), ("retention.ms", SET, Some("1")), ErrorCode::InvalidTopicException),
        ((BROKER, "1"), ("node.id", SET, Some("1")), ErrorCode::InvalidRequest),
        ((BROKER, ""), ("log.retention.ms", SET, Some("1")), ErrorCode::InvalidRequest),
        ((BROKER, "1"), ("leader.replication.throttled.rate", SET, Some("1")), ErrorCode::InvalidRequest),
        ((BROKER, "2"), ("log.retention.ms", SET, Some("1")), ErrorCode::InvalidRequest),
        ((LOGGER, "1"), ("root", SET, Some("DEBUG")), ErrorCode::InvalidRequest),
        ((77, "1"), ("a", SET, Some("b")), ErrorCode::InvalidRequest),
    ] {
        let (got, message) = change(&mut broker, client, on, &[good, step]);
        assert_eq!(got, expected, "{on:?} {step:?}");
        assert!(message.is_some());
    }
    assert_eq!(value(&mut broker, client, "t", "segment.ms"), ("604800000".into(), 5));
    let resource =
        AlterConfigsResource { resource_type: TOPIC, resource_name: "t".into(), configs: Vec::new() };
    let resources = vec![resource.clone(), resource];
    let response = broker.ask(client, 1, &IncrementalAlterConfigsRequest { resources, validate_only: false });
    for response in response.responses {
        assert_eq!(code(response.error_code), ErrorCode::InvalidRequest);
    }
}

/// `kafka-reassign-partitions --verify` deletes the throttles, whether they are set or not.
#[test]
fn a_key_that_cannot_be_set_can_be_deleted() {
    let mut broker = Broker::new(1);
    let client = broker.connect(0);
    let on = (BROKER, "1");
    let steps = [("leader.replication.throttled.rate", DELETE, None)];
    assert_eq!(change(&mut broker, client, on, &steps), (ErrorCode::None, None));
    let steps = [("log.retention.ms", DELETE, None)];
    assert_eq!(change(&mut broker, client, on, &steps).0, ErrorCode::InvalidRequest);
}

#[test]
fn node_and_topic_configs_show_values_and_sources() {
    let config =
        mainstem_kafka_server::Config { retention_ms: 5, ..mainstem_kafka_server::Config::default() };
    let mut broker = Broker::with(2, config);
    broker.create_topic("t", 1);
    let client = broker.connect(1);
    let node = describe(&mut broker, client, BROKER, "1");
    let retention = entry(&node, "log.retention.ms");
    assert_eq!((retention.value.as_deref(), retention.config_source), (Some("5"), 4));
    assert!(retention.read_only && retention.documentation.is_some() && retention.config_type == 5);
    assert_eq!(entry(&node, "num.partitions").config_source, 5);
    let topic = describe(&mut broker, client, TOPIC, "t");
    let retention = entry(&topic, "retention.ms");
    assert_eq!((retention.value.as_deref(), retention.config_source), (Some("5"), 4));
    assert!(!retention.read_only);
    let synonyms: Vec<_> =
        retention.synonyms.iter().map(|synonym| (synonym.name.as_str(), synonym.source)).collect();
    assert_eq!(synonyms, [("log.retention.ms", 4), ("log.retention.ms", 5)]);
}

#[test]
fn unknown_resources_get_distinct_errors() {
    let mut broker = Broker::new(2);
    let client = broker.connect(1);
    for (resource_type, name, expected) in [
        (TOPIC, "x", ErrorCode::UnknownTopicOrPartition),
        (TOPIC, "no/name", ErrorCode::InvalidTopicException),
        (BROKER, "2", ErrorCode::InvalidRequest),
        (BROKER, "one", ErrorCode::InvalidRequest),
        (LOGGER, "", ErrorCode::InvalidRequest),
        (77, "x", ErrorCode::InvalidRequest),
        (BROKER, "", ErrorCode::None),
        (LOGGER, "1", ErrorCode::None),
        (GROUP, "g", ErrorCode::None),
    ] {
        let result = describe(&mut broker, client, resource_type, name);
        assert_eq!(code(result.error_code), expected, "{resource_type} {name}");
        assert_eq!((result.resource_type, result.resource_name.as_str()), (resource_type, name));
    }
}

#[test]
fn only_requested_keys_are_described() {
    let mut broker = Broker::new(1);
    broker.create_topic("t", 1);
    let client = broker.connect(0);
    let resource = DescribeConfigsResource {
        resource_type: TOPIC,
        resource_name: "t".into(),
        configuration_keys: Some(vec!["retention.ms".into(), "no.such.key".into()]),
    };
    let request = DescribeConfigsRequest { resources: vec![resource], ..DescribeConfigsRequest::default() };
    let response = broker.ask(client, 1, &request);
    let configs = &response.results[0].configs;
    assert_eq!(configs.len(), 1);
    assert_eq!(configs[0].name, "retention.ms");
    assert!(configs[0].synonyms.is_empty());
}

#[test]
fn resources_with_a_configuration_are_listed() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 1);
    let client = broker.connect(1);
    let mut list = |version: i16, resource_types: Vec<i8>| {
        let response = broker.ask(client, version, &ListConfigResourcesRequest { resource_types });
        let names = response.config_resources.into_iter().map(|resource| resource.resource_name);
        (code(response.error_code), names.collect::<Vec<_>>())
    };
    assert_eq!(list(1, vec![]), (ErrorCode::None, vec!["1".into(), "1".into(), "t".into()]));
    assert_eq!(list(1, vec![TOPIC]), (ErrorCode::None, vec!["t".into()]));
    assert_eq!(list(1, vec![TOPIC, 99]), (ErrorCode::UnsupportedVersion, vec![]));
    assert_eq!(list(0, vec![]), (ErrorCode::None, vec![]));
}

/// A change of configuration reaches open partitions.
#[test]
fn a_lower_max_message_bytes_applies_at_once() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 2);
    let client = broker.connect(0);
    for index in 0..2 {
        assert_eq!(broker.produce(client, "t", index, &["a"]).error_code, 0);
    }
    let steps = [("max.message.bytes", SET, Some("100"))];
    assert_eq!(change(&mut broker, client, (TOPIC, "t"), &steps).0, ErrorCode::None);
    for index in 0..2 {
        let produced = broker.produce(client, "t", index, &[&"b".repeat(100)]);
        assert_eq!(code(produced.error_code), ErrorCode::MessageTooLarge);
        assert_eq!(broker.produce(client, "t", index, &["c"]).error_code, 0);
    }
}

/// Creates a topic that is a work queue, with these settings. Returns the result.
fn create_queue(
    broker: &mut Broker,
    client: Client,
    name: &str,
    settings: &[(&str, &str)],
) -> (ErrorCode, Option<String>) {
    let config = |(name, value): &(&str, &str)| CreatableTopicConfig {
        name: (*name).into(),
        value: Some((*value).into()),
    };
    let topic = CreatableTopic {
        name: name.into(),
        num_partitions: 1,
        replication_factor: 1,
        configs: settings.iter().chain(&[("queue.enabled", "true")]).map(config).collect(),
        ..CreatableTopic::default()
    };
    let request = CreateTopicsRequest { topics: vec![topic], ..CreateTopicsRequest::default() };
    let topic = broker.ask(client, 7, &request).topics.remove(0);
    (code(topic.error_code), topic.error_message)
}

#[test]
fn an_invalid_dead_letter_queue_is_rejected() {
    let mut broker = Broker::new(2);
    let client = broker.connect(1);
    let dead = "queue.dead-letter-queue";
    assert_eq!(create_queue(&mut broker, client, "a", &[(dead, "b")]), (ErrorCode::None, None));
    let faults = [("jobs", "itself"), ("a/b", "invalid"), (".", "invalid")];
    let refused = |(code, message): (ErrorCode, Option<String>), word: &str| {
        assert_eq!(code, ErrorCode::InvalidConfig, "{message:?}");
        assert!(message.as_deref().is_some_and(|message| message.contains(word)), "{message:?}");
    };
    for (queue, word) in faults {
        refused(create_queue(&mut broker, client, "jobs", &[(dead, queue)]), word);
    }
    refused(create_queue(&mut broker, client, "b", &[(dead, "a")]), "come back here");
    assert_eq!(create_queue(&mut broker, client, "jobs", &[]), (ErrorCode::None, None));
    for (queue, word) in faults {
        refused(change(&mut broker, client, (TOPIC, "jobs"), &[(dead, SET, Some(queue))]), word);
        let config = alter_configs::AlterableConfig { name: dead.into(), value: Some(queue.into()) };
        let enabled =
            alter_configs::AlterableConfig { name: "queue.enabled".into(), value: Some("true".into()) };
        let resource = alter_configs::AlterConfigsResource {
            resource_type: TOPIC,
            resource_name: "jobs".into(),
            configs: vec![config, enabled],
        };
        let request = AlterConfigsRequest { resources: vec![resource], validate_only: false };
        let response = broker.ask(client, 2, &request).responses.remove(0);
        refused((code(response.error_code), response.error_message), word);
    }
    assert_eq!(value(&mut broker, client, "jobs", dead).0, "");
}

#[test]
fn groups_have_configurations() {
    const SESSION: &str = "consumer.session.timeout.ms";
    let mut broker = Broker::new(2);
    let client = broker.connect(1);
    let described = entry(&describe(&mut broker, client, GROUP, "g"), SESSION);
    assert_eq!((described.value.as_deref(), described.config_source), (Some("45000"), 5));
    let outcome = change(&mut broker, client, (GROUP, "g"), &[(SESSION, SET, Some("50000"))]);
    assert_eq!(outcome, (ErrorCode::None, None));
    let described = entry(&describe(&mut broker, client, GROUP, "g"), SESSION);
    assert_eq!((described.value.as_deref(), described.config_source), (Some("50000"), 8));
    let listed = broker.ask(client, 1, &ListConfigResourcesRequest { resource_types: vec![GROUP] });
    assert_eq!(listed.config_resources.len(), 1);
    let refused = change(&mut broker, client, (GROUP, "g"), &[("share.session.timeout.ms", SET, Some("1"))]);
    assert_eq!(refused.0, ErrorCode::InvalidConfig);
    assert_eq!(change(&mut broker, client, (GROUP, ""), &[]).0, ErrorCode::InvalidRequest);
    let outcome = change(&mut broker, client, (GROUP, "g"), &[(SESSION, DELETE, None)]);
    assert_eq!(outcome, (ErrorCode::None, None));
    let listed = broker.ask(client, 1, &ListConfigResourcesRequest { resource_types: vec![GROUP] });
    assert!(listed.config_resources.is_empty());
}
