//! What responses show of topics besides the object of the request: only what the sender may see.

mod kit;

use std::sync::Arc;

use kit::security::Host;
use kit::{Broker, Client};
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::add_partitions_to_txn::{AddPartitionsToTxnRequest, AddPartitionsToTxnTopic};
use mainstem_kafka::api::create_acls::{AclCreation, CreateAclsRequest};
use mainstem_kafka::api::create_topics::{CreatableTopic, CreatableTopicResult, CreateTopicsRequest};
use mainstem_kafka::api::describe_transactions::DescribeTransactionsRequest;
use mainstem_kafka::api::init_producer_id::InitProducerIdRequest;
use mainstem_kafka::api::sasl_authenticate::SaslAuthenticateRequest;
use mainstem_kafka::api::sasl_handshake::SaslHandshakeRequest;
use mainstem_kafka_server::{Config, ListenerSettings};
use mainstem_sasl::Mechanism;
use mainstem_security::{Action, Change, Effect, Pattern, Resource, ResourceKind, Rule, RuleId, Subject};

/// A broker with a super user, `root`, and a user without rights, `alice`.
fn broker() -> (Broker, Host) {
    let host = Host::new(&[("root", "secret"), ("alice", "secret")]);
    let listener = ListenerSettings { name: "kafka".into(), mechanisms: vec![Mechanism::Plain] };
    let config = Config { listeners: vec![listener], ..Config::default() };
    (Broker::secured(1, config, host.security()), host)
}

fn log_in(broker: &mut Broker, user: &str) -> Client {
    let client = broker.connect(0);
    let handshake = SaslHandshakeRequest { mechanism: "PLAIN".into() };
    assert_eq!(broker.ask(client, 1, &handshake).error_code, 0);
    let token = SaslAuthenticateRequest { auth_bytes: format!("\0{user}\0secret").into_bytes() };
    assert_eq!(broker.ask(client, 2, &token).error_code, 0);
    client
}

/// Allows alice an action on one resource, or on all of its kind.
fn allow(host: &Host, id: u64, action: Action, kind: ResourceKind, name: Option<&str>) {
    let pattern = name.map_or(Pattern::Any, |name| Pattern::Literal(name.into()));
    let rule = Rule {
        subject: Subject::User("alice".into()),
        effect: Effect::Allow,
        action,
        resource: Resource { kind: Some(kind), pattern },
        listener: None,
        network: None,
    };
    host.apply(&Change::PutRule(RuleId(id), Arc::new(rule)));
}

fn create_topic(broker: &mut Broker, client: Client, name: &str) -> CreatableTopicResult {
    let topic = CreatableTopic {
        name: name.into(),
        num_partitions: 3,
        replication_factor: 1,
        ..CreatableTopic::default()
    };
    let request = CreateTopicsRequest { topics: vec![topic], ..CreateTopicsRequest::default() };
    let result = broker.ask(client, 7, &request).topics.remove(0);
    assert_eq!(result.error_code, 0);
    result
}

#[test]
fn the_configuration_of_a_new_topic_needs_the_right_to_describe_it() {
    let (mut broker, host) = broker();
    let alice = log_in(&mut broker, "alice");
    allow(&host, 1, Action::Create, ResourceKind::Cluster, None);
    let hidden = create_topic(&mut broker, alice, "hidden");
    assert_eq!(hidden.topic_config_error_code, ErrorCode::TopicAuthorizationFailed as i16);
    assert_eq!((hidden.num_partitions, hidden.replication_factor), (-1, -1));
    assert!(hidden.configs.unwrap_or_default().is_empty());
    allow(&host, 2, Action::DescribeConfigs, ResourceKind::Topic, Some("shown"));
    let shown = create_topic(&mut broker, alice, "shown");
    assert_eq!((shown.topic_config_error_code, shown.num_partitions), (0, 3));
    assert!(!shown.configs.unwrap_or_default().is_empty());
}

#[test]
fn the_partitions_of_a_transaction_are_those_of_topics_that_may_be_described() {
    let (mut broker, host) = broker();
    let (root, alice) = (log_in(&mut broker, "root"), log_in(&mut broker, "alice"));
    for name in ["orders", "secrets"] {
        create_topic(&mut broker, root, name);
    }
    let init = InitProducerIdRequest {
        transactional_id: Some("txn".into()),
        transaction_timeout_ms: 10_000,
        producer_id: -1,
        producer_epoch: -1,
    };
    let producer = broker.ask(root, 4, &init);
    let topic = |name: &str| AddPartitionsToTxnTopic { name: name.into(), partitions: vec![0, 1] };
    let add = AddPartitionsToTxnRequest {
        v3_and_below_transactional_id: "txn".into(),
        v3_and_below_producer_id: producer.producer_id,
        v3_and_below_producer_epoch: producer.producer_epoch,
        v3_and_below_topics: ["orders", "secrets"].map(topic).into(),
        ..AddPartitionsToTxnRequest::default()
    };
    broker.ask(root, 3, &add);
    let mut topics = |client| -> Vec<String> {
        let request = DescribeTransactionsRequest { transactional_ids: vec!["txn".into()] };
        let state = broker.ask(client, 0, &request).transaction_states.remove(0);
        assert_eq!(state.error_code, 0);
        state.topics.into_iter().map(|topic| topic.topic).collect()
    };
    assert_eq!(topics(root), ["orders", "secrets"]);
    allow(&host, 1, Action::Describe, ResourceKind::TransactionalId, None);
    assert_eq!(topics(alice), [""; 0]);
    allow(&host, 2, Action::Describe, ResourceKind::Topic, Some("orders"));
    assert_eq!(topics(alice), ["orders"]);
}

#[test]
fn a_request_creates_a_bounded_number_of_acls() {
    let (mut broker, _host) = broker();
    let root = log_in(&mut broker, "root");
    let creation = |number: usize| AclCreation {
        resource_type: 2,
        resource_name: format!("topic-{}", number / 2),
        resource_pattern_type: 3,
        principal: "User:alice".into(),
        host: "*".into(),
        operation: 3,
        permission_type: 3,
    };
    for (count, code) in [(2_001, ErrorCode::PolicyViolation), (2_000, ErrorCode::None)] {
        let request = CreateAclsRequest { creations: (0..count).map(creation).collect() };
        let results = broker.ask(root, 3, &request).results;
        assert_eq!(results.len(), count);
        assert!(results.iter().all(|result| result.error_code == code as i16), "{:?}", results[0]);
    }
}
