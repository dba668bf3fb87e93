//! Rules decide what each user may do, request by request, and Kafka's ACL requests change the rules.

mod kit;

use std::sync::Arc;

use kit::security::Host;
use kit::{Broker, Client, fetch_request};
use mainstem_kafka::api::alter_configs::{AlterConfigsRequest, AlterConfigsResource};
use mainstem_kafka::api::consumer_group_describe::ConsumerGroupDescribeRequest;
use mainstem_kafka::api::consumer_group_heartbeat::ConsumerGroupHeartbeatRequest;
use mainstem_kafka::api::create_acls::{AclCreation, CreateAclsRequest};
use mainstem_kafka::api::create_partitions::{CreatePartitionsRequest, CreatePartitionsTopic};
use mainstem_kafka::api::delete_acls::{DeleteAclsFilter, DeleteAclsRequest};
use mainstem_kafka::api::delete_groups::DeleteGroupsRequest;
use mainstem_kafka::api::delete_topics::DeleteTopicsRequest;
use mainstem_kafka::api::describe_acls::DescribeAclsRequest;
use mainstem_kafka::api::describe_configs::{DescribeConfigsRequest, DescribeConfigsResource};
use mainstem_kafka::api::describe_groups::DescribeGroupsRequest;
use mainstem_kafka::api::describe_topic_partitions::DescribeTopicPartitionsRequest;
use mainstem_kafka::api::describe_user_scram_credentials::DescribeUserScramCredentialsRequest;
use mainstem_kafka::api::end_txn::EndTxnRequest;
use mainstem_kafka::api::fetch::{FetchRequest, FetchTopic};
use mainstem_kafka::api::find_coordinator::FindCoordinatorRequest;
use mainstem_kafka::api::heartbeat::HeartbeatRequest;
use mainstem_kafka::api::init_producer_id::InitProducerIdRequest;
use mainstem_kafka::api::join_group::JoinGroupRequest;
use mainstem_kafka::api::list_groups::ListGroupsRequest;
use mainstem_kafka::api::list_offsets::{ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic};
use mainstem_kafka::api::list_transactions::ListTransactionsRequest;
use mainstem_kafka::api::metadata::{MetadataRequest, MetadataRequestTopic, MetadataResponseTopic};
use mainstem_kafka::api::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_kafka::api::offset_fetch::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use mainstem_kafka::api::sasl_authenticate::SaslAuthenticateRequest;
use mainstem_kafka::api::sasl_handshake::SaslHandshakeRequest;
use mainstem_kafka::{ErrorCode, Uuid};
use mainstem_kafka_server::{Config, ListenerSettings};
use mainstem_sasl::Mechanism;
use mainstem_security::{Action, Change, Effect, Pattern, Resource, ResourceKind, Rule, RuleId, Subject};

const OK: i16 = ErrorCode::None as i16;
const TOPIC: i16 = ErrorCode::TopicAuthorizationFailed as i16;
const GROUP: i16 = ErrorCode::GroupAuthorizationFailed as i16;
const CLUSTER: i16 = ErrorCode::ClusterAuthorizationFailed as i16;
const TRANSACTIONAL_ID: i16 = ErrorCode::TransactionalIdAuthorizationFailed as i16;

/// Numbers of the protocol.
const READ: i8 = 3;
const WRITE: i8 = 4;
const CREATE: i8 = 5;
const DESCRIBE: i8 = 8;
const ALLOW: i8 = 3;
const DENY: i8 = 2;
const LITERAL: i8 = 3;
const PREFIXED: i8 = 4;

struct World {
    broker: Broker,
    host: Host,
    root: Client,
    alice: Client,
}

impl World {
    /// Two topics, a super user and a user without rights. One rule of nobody makes everything denied by default.
    fn new() -> Self {
        let host = Host::new(&[("root", "secret"), ("alice", "secret")]);
        let listener = ListenerSettings { name: "kafka".into(), mechanisms: vec![Mechanism::Plain] };
        let config = Config { listeners: vec![listener], ..Config::default() };
        let broker = Broker::secured(2, config, host.security());
        let mut world = Self { broker, host, root: Client::NONE, alice: Client::NONE };
        world.root = world.log_in("root", 0);
        world.alice = world.log_in("alice", 1);
        for topic in ["orders", "secrets"] {
            assert_eq!(world.broker.try_create_topic_by(world.root, topic, 1, &[]), OK);
        }
        world.allow("User:nobody", (2, "nothing", LITERAL), READ);
        world
    }

    fn log_in(&mut self, user: &str, shard: usize) -> Client {
        let client = self.broker.connect(shard);
        let handshake = SaslHandshakeRequest { mechanism: "PLAIN".into() };
        assert_eq!(self.broker.ask(client, 1, &handshake).error_code, OK);
        let token = SaslAuthenticateRequest { auth_bytes: format!("\0{user}\0secret").into_bytes() };
        assert_eq!(self.broker.ask(client, 2, &token).error_code, OK);
        client
    }

    fn create_acl(&mut self, client: Client, creation: AclCreation) -> i16 {
        let request = CreateAclsRequest { creations: vec![creation] };
        self.broker.ask(client, 3, &request).results[0].error_code
    }

    fn allow(&mut self, principal: &str, resource: (i8, &str, i8), operation: i8) {
        let creation = acl(principal, resource, operation, ALLOW);
        assert_eq!(self.create_acl(self.root, creation), OK);
    }

    fn deny(&mut self, principal: &str, resource: (i8, &str, i8), operation: i8) {
        let creation = acl(principal, resource, operation, DENY);
        assert_eq!(self.create_acl(self.root, creation), OK);
    }

    fn produce(&mut self, topic: &str) -> i16 {
        self.broker.produce(self.alice, topic, 0, &["a value"]).error_code
    }

    fn fetch(&mut self, topic: &str) -> i16 {
        let (response, _) = self.broker.fetch(self.alice, topic, 0, 0);
        response.responses[0].partitions[0].error_code
    }

    fn topics(&mut self, names: Option<&[&str]>) -> Vec<(String, i16)> {
        let topic = |name: &&str| MetadataRequestTopic { name: Some((*name).into()), ..Default::default() };
        let request = MetadataRequest {
            topics: names.map(|names| names.iter().map(topic).collect()),
            allow_auto_topic_creation: true,
            ..MetadataRequest::default()
        };
        let topics = self.broker.ask(self.alice, 12, &request).topics;
        topics.into_iter().map(|topic| (topic.name.unwrap_or_default(), topic.error_code)).collect()
    }
}

#[test]
fn a_rule_that_denies_the_connection_ends_it() {
    let mut world = World::new();
    world.allow("User:alice", (2, "orders", LITERAL), WRITE);
    assert_eq!(world.produce("orders"), OK);
    let rule = Rule {
        subject: Subject::User("alice".into()),
        effect: Effect::Deny,
        action: Action::Connect,
        resource: Resource { kind: Some(ResourceKind::Cluster), pattern: Pattern::Any },
        listener: None,
        network: None,
    };
    world.host.apply(&Change::PutRule(RuleId(99), Arc::new(rule)));
    let request = MetadataRequest { topics: Some(Vec::new()), ..MetadataRequest::default() };
    world.broker.send(world.alice, 12, &request);
    world.broker.run();
    assert!(!world.broker.is_open(world.alice));
    assert!(world.broker.is_open(world.root));
}

#[test]
fn patterns_of_transactional_ids_are_short() {
    let mut world = World::new();
    for (length, expected) in [(1_000, OK), (2_000, ErrorCode::InvalidRegularExpression as i16)] {
        let pattern = Some("a".repeat(length));
        let request = ListTransactionsRequest {
            transactional_id_pattern: pattern,
            ..ListTransactionsRequest::default()
        };
        assert_eq!(world.broker.ask(world.root, 2, &request).error_code, expected, "{length}");
    }
}

fn acl(
    principal: &str,
    (resource_type, name, pattern): (i8, &str, i8),
    operation: i8,
    permission: i8,
) -> AclCreation {
    AclCreation {
        resource_type,
        resource_name: name.into(),
        resource_pattern_type: pattern,
        principal: principal.into(),
        host: "*".into(),
        operation,
        permission_type: permission,
    }
}

#[test]
fn without_rules_everything_is_allowed() {
    let host = Host::new(&[("alice", "secret")]);
    let listener = ListenerSettings { name: "kafka".into(), mechanisms: vec![Mechanism::Plain] };
    let config = Config { listeners: vec![listener], ..Config::default() };
    let broker = Broker::secured(1, config, host.security());
    let mut world = World { broker, host, root: Client::NONE, alice: Client::NONE };
    world.alice = world.log_in("alice", 0);
    assert_eq!(world.broker.try_create_topic_by(world.alice, "orders", 1, &[]), OK);
    assert_eq!((world.produce("orders"), world.fetch("orders")), (OK, OK));
}

#[test]
fn producing_needs_the_right_to_write() {
    let mut world = World::new();
    assert_eq!(world.produce("orders"), TOPIC);
    assert_eq!(world.produce("unknown"), TOPIC, "which topics exist is not told");
    world.allow("User:alice", (2, "orders", LITERAL), WRITE);
    assert_eq!((world.produce("orders"), world.produce("secrets")), (OK, TOPIC));
    world.deny("User:alice", (2, "ord", PREFIXED), WRITE);
    assert_eq!(world.produce("orders"), TOPIC, "a rule that denies wins");
}

#[test]
fn fetching_needs_the_right_to_read_by_name_and_by_id() {
    let mut world = World::new();
    let metadata = world.broker.metadata(world.root, Some("secrets"));
    let secrets = metadata.topics[0].topic_id;
    world.allow("User:alice", (2, "ord", PREFIXED), READ);
    assert_eq!((world.fetch("orders"), world.fetch("secrets"), world.fetch("unknown")), (OK, TOPIC, TOPIC));
    let mut by_id = |id: Uuid| {
        let request = fetch_request("", 0, 0, 0);
        let topics = request.topics.into_iter().map(|topic| FetchTopic { topic_id: id, ..topic }).collect();
        let response =
            world.broker.ask(world.alice, 13, &FetchRequest { topics, ..fetch_request("", 0, 0, 0) });
        response.responses[0].partitions[0].error_code
    };
    assert_eq!(by_id(secrets), TOPIC);
    assert_eq!(by_id(Uuid([9; 16])), ErrorCode::UnknownTopicId as i16);

    let partition = ListOffsetsPartition { timestamp: -1, ..ListOffsetsPartition::default() };
    let topic = |name: &str| ListOffsetsTopic { name: name.into(), partitions: vec![partition.clone()] };
    let request =
        ListOffsetsRequest { topics: vec![topic("orders"), topic("secrets")], ..Default::default() };
    let response = world.broker.ask(world.alice, 7, &request);
    let codes: Vec<i16> = response.topics.iter().map(|topic| topic.partitions[0].error_code).collect();
    assert_eq!(codes, [OK, TOPIC], "reading implies describing");
}

#[test]
fn metadata_shows_what_may_be_described() {
    let mut world = World::new();
    assert_eq!(world.topics(None), []);
    world.allow("User:*", (2, "orders", LITERAL), DESCRIBE);
    assert_eq!(world.topics(None), [("orders".into(), OK)]);
    let requested = world.topics(Some(&["orders", "secrets", "new"]));
    assert_eq!(requested, [("orders".into(), OK), ("secrets".into(), TOPIC), ("new".into(), TOPIC)]);
    // To create a topic by asking for it needs both rights.
    world.allow("User:alice", (2, "new", PREFIXED), DESCRIBE);
    assert_eq!(world.topics(Some(&["new"])), [("new".into(), TOPIC)]);
    world.allow("User:alice", (2, "new", PREFIXED), CREATE);
    assert_eq!(world.topics(Some(&["new"])), [("new".into(), OK)]);

    let secrets = world.broker.metadata(world.root, Some("secrets")).topics[0].topic_id;
    let topic = MetadataRequestTopic { topic_id: secrets, name: None };
    let request = MetadataRequest { topics: Some(vec![topic]), ..MetadataRequest::default() };
    let hidden = world.broker.ask(world.alice, 12, &request).topics.remove(0);
    let MetadataResponseTopic { error_code, name, partitions, .. } = hidden;
    assert_eq!((error_code, name, partitions.len()), (TOPIC, None, 0));

    let described = world.broker.ask(world.alice, 0, &DescribeTopicPartitionsRequest::default());
    let names: Vec<_> = described.topics.iter().filter_map(|topic| topic.name.as_deref()).collect();
    assert_eq!(names, ["new", "orders"]);
    let describes_only = 1 << DESCRIBE;
    assert_eq!(described.topics[1].topic_authorized_operations, describes_only);
}

#[test]
fn topics_are_created_changed_and_deleted_by_those_who_may() {
    let mut world = World::new();
    let (broker, alice, root) = (&mut world.broker, world.alice, world.root);
    assert_eq!(broker.try_create_topic_by(alice, "new", 1, &[]), TOPIC);
    let partitions = CreatePartitionsTopic { name: "orders".into(), count: 2, ..Default::default() };
    let more = CreatePartitionsRequest { topics: vec![partitions], ..Default::default() };
    assert_eq!(broker.ask(alice, 3, &more).results[0].error_code, TOPIC);
    let resource = |resource_type: i8, name: &str| DescribeConfigsResource {
        resource_type,
        resource_name: name.into(),
        configuration_keys: None,
    };
    let resources = vec![resource(2, "orders"), resource(4, "1")];
    let described = broker.ask(alice, 4, &DescribeConfigsRequest { resources, ..Default::default() });
    assert_eq!(
        described.results.iter().map(|result| result.error_code).collect::<Vec<_>>(),
        [TOPIC, CLUSTER]
    );
    assert!(described.results.iter().all(|result| result.configs.is_empty()));
    let resource = |resource_type: i8, name: &str| AlterConfigsResource {
        resource_type,
        resource_name: name.into(),
        configs: Vec::new(),
    };
    let resources = vec![resource(2, "orders"), resource(4, "1")];
    let altered = broker.ask(alice, 2, &AlterConfigsRequest { resources, ..Default::default() });
    assert_eq!(
        altered.responses.iter().map(|result| result.error_code).collect::<Vec<_>>(),
        [TOPIC, CLUSTER]
    );
    let delete = DeleteTopicsRequest { topic_names: vec!["orders".into()], ..Default::default() };
    assert_eq!(broker.ask(alice, 5, &delete).responses[0].error_code, TOPIC);
    assert_eq!(broker.ask(root, 3, &more).results[0].error_code, OK, "a super user may do everything");
    assert_eq!(broker.ask(root, 5, &delete).responses[0].error_code, OK);

    world.allow("User:alice", (4, "kafka-cluster", LITERAL), CREATE);
    assert_eq!(world.broker.try_create_topic_by(world.alice, "new", 1, &[]), OK);
}

#[test]
fn groups_need_the_right_to_read_the_group_and_its_topics() {
    let mut world = World::new();
    let join = JoinGroupRequest { group_id: "team".into(), session_timeout_ms: 10_000, ..Default::default() };
    let heartbeat = HeartbeatRequest { group_id: "team".into(), ..Default::default() };
    let (broker, alice) = (&mut world.broker, world.alice);
    assert_eq!(broker.ask(alice, 5, &join).error_code, GROUP);
    assert_eq!(broker.ask(alice, 4, &heartbeat).error_code, GROUP);
    let find = FindCoordinatorRequest { coordinator_keys: vec!["team".into()], ..Default::default() };
    assert_eq!(broker.ask(alice, 4, &find).coordinators[0].error_code, GROUP);
    let describe = DescribeGroupsRequest { groups: vec!["team".into()], ..Default::default() };
    assert_eq!(broker.ask(alice, 5, &describe).groups[0].error_code, GROUP);
    let delete = DeleteGroupsRequest { groups_names: vec!["team".into()] };
    assert_eq!(broker.ask(alice, 2, &delete).results[0].error_code, GROUP);

    let commit = |topic: &str| {
        let partition = OffsetCommitRequestPartition { committed_offset: 3, ..Default::default() };
        let topic = OffsetCommitRequestTopic {
            name: topic.into(),
            partitions: vec![partition],
            ..Default::default()
        };
        OffsetCommitRequest { group_id: "team".into(), topics: vec![topic], ..Default::default() }
    };
    let fetch = |topics: Option<&[&str]>| {
        let topic = |name: &&str| OffsetFetchRequestTopics {
            name: (*name).into(),
            partition_indexes: vec![0],
            ..Default::default()
        };
        let topics = topics.map(|topics| topics.iter().map(topic).collect());
        let group = OffsetFetchRequestGroup { group_id: "team".into(), topics, ..Default::default() };
        OffsetFetchRequest { groups: vec![group], ..Default::default() }
    };
    let committed = |broker: &mut Broker, client: Client, topic: &str| {
        broker.ask(client, 8, &commit(topic)).topics[0].partitions[0].error_code
    };
    assert_eq!(committed(broker, alice, "orders"), GROUP);
    assert_eq!(broker.ask(alice, 8, &fetch(None)).groups[0].error_code, GROUP);
    assert_eq!(committed(broker, world.root, "secrets"), OK);

    world.allow("User:alice", (3, "team", LITERAL), READ);
    let (broker, alice) = (&mut world.broker, world.alice);
    assert_eq!(committed(broker, alice, "orders"), TOPIC);
    world.allow("User:alice", (2, "orders", LITERAL), READ);
    let (broker, alice) = (&mut world.broker, world.alice);
    assert_eq!(committed(broker, alice, "orders"), OK);
    assert_eq!(committed(broker, alice, "unknown"), TOPIC);
    let named = broker.ask(alice, 8, &fetch(Some(&["orders", "secrets"]))).groups.remove(0);
    let codes: Vec<_> =
        named.topics.iter().map(|topic| (topic.name.as_str(), topic.partitions[0].error_code)).collect();
    assert_eq!(codes, [("orders", OK), ("secrets", TOPIC)]);
    assert_eq!(named.topics[1].partitions[0].committed_offset, -1);
    let all = broker.ask(alice, 8, &fetch(None)).groups.remove(0);
    assert_eq!(all.topics.iter().map(|topic| topic.name.as_str()).collect::<Vec<_>>(), ["orders"]);
    let listed = broker.ask(alice, 4, &ListGroupsRequest::default()).groups;
    assert_eq!(listed.iter().map(|group| group.group_id.as_str()).collect::<Vec<_>>(), ["team"]);
}

#[test]
fn members_of_the_consumer_protocol_see_topics_that_they_may_describe() {
    let mut world = World::new();
    let heartbeat = |names: &[&str], regex: Option<&str>| ConsumerGroupHeartbeatRequest {
        group_id: "g".into(),
        member_id: "m".into(),
        rebalance_timeout_ms: 1_000,
        subscribed_topic_names: Some(names.iter().map(|name| (*name).into()).collect()),
        subscribed_topic_regex: regex.map(Into::into),
        topic_partitions: Some(Vec::new()),
        ..ConsumerGroupHeartbeatRequest::default()
    };
    let ask = |world: &mut World, client, request: &ConsumerGroupHeartbeatRequest| {
        let response = world.broker.ask(client, 1, request);
        let topics = response.assignment.map_or(0, |assignment| assignment.topic_partitions.len());
        (response.error_code, topics)
    };
    let alice = world.alice;
    assert_eq!(ask(&mut world, alice, &heartbeat(&["orders"], None)), (GROUP, 0));
    world.allow("User:alice", (3, "g", LITERAL), READ);
    assert_eq!(ask(&mut world, alice, &heartbeat(&["orders"], None)), (TOPIC, 0));
    world.allow("User:alice", (2, "orders", LITERAL), DESCRIBE);
    assert_eq!(ask(&mut world, alice, &heartbeat(&["orders"], None)), (OK, 1));
    assert_eq!(ask(&mut world, alice, &heartbeat(&["orders", "secrets"], None)), (TOPIC, 0));
    assert_eq!(ask(&mut world, alice, &heartbeat(&[], Some(".*"))), (OK, 1), "only what she may describe");

    // Who may describe the group sees the topics that he may describe.
    let describe = ConsumerGroupDescribeRequest { group_ids: vec!["g".into()], ..Default::default() };
    let mut described = |client| {
        let group = world.broker.ask(client, 1, &describe).groups.remove(0);
        (group.error_code, group.members.first().map(|member| member.assignment.topic_partitions.len()))
    };
    assert_eq!(described(alice), (OK, Some(1)));
    let root = world.root;
    assert_eq!(
        ask(
            &mut world,
            root,
            &ConsumerGroupHeartbeatRequest { member_id: "r".into(), ..heartbeat(&["secrets"], None) }
        ),
        (OK, 1)
    );
    let group = world.broker.ask(alice, 1, &describe).groups.remove(0);
    let seen =
        group.members.iter().map(|member| member.target_assignment.topic_partitions.len()).sum::<usize>();
    assert_eq!((group.members.len(), seen), (2, 1));
    assert!(group.members.iter().all(|member| member.subscribed_topic_names.is_empty()));
}

#[test]
fn transactions_need_the_right_to_their_id() {
    let mut world = World::new();
    let init = |id: Option<&str>| InitProducerIdRequest {
        transactional_id: id.map(Into::into),
        transaction_timeout_ms: 10_000,
        ..Default::default()
    };
    let (broker, alice) = (&mut world.broker, world.alice);
    assert_eq!(broker.ask(alice, 4, &init(Some("txn"))).error_code, TRANSACTIONAL_ID);
    assert_eq!(broker.ask(alice, 4, &init(None)).error_code, CLUSTER);
    let end = EndTxnRequest { transactional_id: "txn".into(), ..Default::default() };
    assert_eq!(broker.ask(alice, 3, &end).error_code, TRANSACTIONAL_ID);
    // Whoever may write to any topic may do so idempotently (KIP-679).
    world.allow("User:alice", (2, "orders", LITERAL), WRITE);
    let (broker, alice) = (&mut world.broker, world.alice);
    assert_eq!(broker.ask(alice, 4, &init(None)).error_code, OK);
    world.allow("User:alice", (5, "t", PREFIXED), WRITE);
    assert_eq!(world.broker.ask(world.alice, 4, &init(Some("txn"))).error_code, OK);
}

#[test]
fn only_administrators_see_and_change_rules_and_credentials() {
    let mut world = World::new();
    let everything = || DescribeAclsRequest {
        resource_type_filter: 1,
        pattern_type_filter: 1,
        operation: 1,
        permission_type: 1,
        ..DescribeAclsRequest::default()
    };
    let alice = world.alice;
    assert_eq!(world.broker.ask(alice, 3, &everything()).error_code, CLUSTER);
    assert_eq!(world.create_acl(alice, acl("User:alice", (2, "*", LITERAL), READ, ALLOW)), CLUSTER);
    let users = DescribeUserScramCredentialsRequest::default();
    assert_eq!(world.broker.ask(alice, 0, &users).error_code, CLUSTER);
    let filter = DeleteAclsFilter {
        resource_type_filter: 1,
        pattern_type_filter: 1,
        principal_filter: Some("User:nobody".into()),
        operation: 1,
        permission_type: 1,
        ..DeleteAclsFilter::default()
    };
    let delete = DeleteAclsRequest { filters: vec![filter] };
    assert_eq!(world.broker.ask(alice, 3, &delete).filter_results[0].error_code, CLUSTER);

    let root = world.root;
    assert_eq!(
        world.create_acl(root, acl("alice", (2, "*", LITERAL), READ, ALLOW)),
        ErrorCode::InvalidRequest as i16
    );
    world.allow("User:alice", (2, "orders", LITERAL), READ);
    world.allow("User:alice", (2, "orders", LITERAL), READ);
    let listed = world.broker.ask(root, 3, &everything()).resources;
    let counts: Vec<_> = listed.iter().map(|one| (one.resource_name.as_str(), one.acls.len())).collect();
    assert_eq!(counts, [("nothing", 1), ("orders", 1)], "a second addition changes nothing");
    let deleted = world.broker.ask(root, 3, &delete).filter_results.remove(0);
    assert_eq!((deleted.error_code, deleted.matching_acls.len()), (OK, 1));
    assert_eq!(deleted.matching_acls[0].resource_name, "nothing");
    assert_eq!(world.broker.ask(root, 3, &everything()).resources.len(), 1);
    assert_eq!(world.fetch("orders"), OK);
}

#[test]
fn a_deleted_user_is_disconnected_with_its_next_request() {
    let mut world = World::new();
    world.allow("User:alice", (2, "orders", LITERAL), READ);
    assert_eq!(world.fetch("orders"), OK);
    world.host.apply(&Change::DeleteUser("alice".into()));
    world.broker.send(world.alice, 12, &MetadataRequest::default());
    world.broker.run();
    assert!(!world.broker.is_open(world.alice));
    assert_eq!(world.broker.take_frame(world.alice), None);
}

/// Without a mechanism, a listener serves clients without a user only if the configuration allows them.
#[test]
fn clients_without_a_user_are_refused_unless_allowed() {
    let mut broker = Broker::secured(1, Config::default(), Host::new(&[("alice", "secret")]).security());
    let client = broker.connect(0);
    broker.send(client, 12, &MetadataRequest::default());
    broker.run();
    assert!(!broker.is_open(client));
}
