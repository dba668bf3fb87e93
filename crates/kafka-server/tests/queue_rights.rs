//! Kafka's requests for topics do not get round the rules of work queues, and what they are denied and what they change
//! is noted for the audit log.

mod kit;

use std::sync::Arc;

use kit::security::Host;
use kit::{Broker, Client, batch, fetch_request, frame, produce_request};
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::alter_configs::{AlterConfigsRequest, AlterConfigsResource, AlterableConfig};
use mainstem_kafka::api::create_partitions::{CreatePartitionsRequest, CreatePartitionsTopic};
use mainstem_kafka::api::delete_records::{DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic};
use mainstem_kafka::api::delete_topics::DeleteTopicsRequest;
use mainstem_kafka::api::fetch::FetchRequest;
use mainstem_kafka::api::incremental_alter_configs::{
    AlterConfigsResource as IncrementalResource, AlterableConfig as IncrementalConfig,
    IncrementalAlterConfigsRequest,
};
use mainstem_kafka::api::metadata::MetadataRequest;
use mainstem_kafka::api::sasl_authenticate::SaslAuthenticateRequest;
use mainstem_kafka::api::sasl_handshake::SaslHandshakeRequest;
use mainstem_kafka_server::{Config, ListenerSettings};
use mainstem_sasl::Mechanism;
use mainstem_security::{
    Action, Ban, BanSubject, Change, Effect, Pattern, Resource, ResourceKind, Rule, RuleId, Subject,
};

const OK: i16 = ErrorCode::None as i16;
const TOPIC: i16 = ErrorCode::TopicAuthorizationFailed as i16;
/// More connections than are checked for bans in four turns.
const CHECKED_FIRST: usize = 2_100;

struct World {
    broker: Broker,
    host: Host,
    root: Client,
    alice: Client,
    rules: u64,
}

impl World {
    /// The topic `secrets`, the queue `vault`, a super user, and alice, who may do everything with Kafka's topics that
    /// are not named `secrets`.
    fn new() -> Self {
        let host = Host::new(&[("root", "secret"), ("alice", "secret")]);
        let listener = ListenerSettings { name: "kafka".into(), mechanisms: vec![Mechanism::Plain] };
        let config = Config { listeners: vec![listener], ..Config::default() };
        let broker = Broker::secured(2, config, host.security());
        let mut world = Self { broker, host, root: Client::NONE, alice: Client::NONE, rules: 0 };
        world.root = world.log_in("root", 0);
        world.alice = world.log_in("alice", 1);
        assert_eq!(world.broker.try_create_topic_by(world.root, "secrets", 1, &[]), OK);
        assert_eq!(
            world.broker.try_create_topic_by(world.root, "vault", 1, &[("queue.enabled", "true")]),
            OK
        );
        for prefix in ["jobs", "other", "vault"] {
            world.allow(Action::Any, ResourceKind::Topic, Pattern::Prefix(prefix.into()));
        }
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

    fn rule(&mut self, effect: Effect, action: Action, kind: ResourceKind, pattern: Pattern) {
        let rule = Rule {
            subject: Subject::User("alice".into()),
            effect,
            action,
            resource: Resource { kind: Some(kind), pattern },
            listener: None,
            network: None,
        };
        self.rules += 1;
        self.host.apply(&Change::PutRule(RuleId(self.rules), Arc::new(rule)));
    }

    fn allow(&mut self, action: Action, kind: ResourceKind, pattern: Pattern) {
        self.rule(Effect::Allow, action, kind, pattern);
    }

    fn allow_queue(&mut self, action: Action, queue: &str) {
        self.allow(action, ResourceKind::Queue, Pattern::Literal(queue.into()));
    }

    fn create(&mut self, topic: &str, configs: &[(&str, &str)]) -> i16 {
        self.broker.try_create_topic_by(self.alice, topic, 1, configs)
    }

    /// Replaces the configuration of a topic.
    fn replace(&mut self, topic: &str, configs: &[(&str, &str)]) -> i16 {
        let config = |(name, value): &(&str, &str)| AlterableConfig {
            name: (*name).into(),
            value: Some((*value).into()),
        };
        let configs = configs.iter().map(config).collect();
        let resource = AlterConfigsResource { resource_type: 2, resource_name: topic.into(), configs };
        let request = AlterConfigsRequest { resources: vec![resource], ..Default::default() };
        self.broker.ask(self.alice, 2, &request).responses[0].error_code
    }

    /// Sets or deletes one key of a topic.
    fn alter(&mut self, topic: &str, name: &str, value: Option<&str>) -> i16 {
        let config = IncrementalConfig {
            name: name.into(),
            config_operation: i8::from(value.is_none()),
            value: value.map(Into::into),
        };
        let resource =
            IncrementalResource { resource_type: 2, resource_name: topic.into(), configs: vec![config] };
        let request = IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
        self.broker.ask(self.alice, 1, &request).responses[0].error_code
    }

    fn delete_records(&mut self, topic: &str) -> i16 {
        let partition = DeleteRecordsPartition { partition_index: 0, offset: -1 };
        let topic = DeleteRecordsTopic { name: topic.into(), partitions: vec![partition] };
        let request = DeleteRecordsRequest { topics: vec![topic], ..Default::default() };
        self.broker.ask(self.alice, 2, &request).topics[0].partitions[0].error_code
    }

    fn take_denials(&self) -> Vec<String> {
        std::mem::take(&mut self.host.denials.lock().unwrap())
    }
}

#[test]
fn whoever_names_a_dead_letter_queue_must_be_allowed_to_send_to_it() {
    let mut world = World::new();
    let queue = |to| [("queue.enabled", "true"), ("queue.dead-letter-queue", to)];
    world.allow_queue(Action::Manage, "jobs");
    for denied in ["secrets", "vault", "unknown"] {
        assert_eq!(world.create("jobs", &queue(denied)), TOPIC, "{denied}");
    }
    assert_eq!(
        world.take_denials(),
        ["alice produce topic:secrets", "alice send queue:vault", "alice send queue:unknown"]
    );
    assert_eq!(world.create("jobs", &queue("")), OK, "its own dead-letter queue needs no right");
    // Dead letters that are switched off now could be switched on later.
    let off =
        [("queue.enabled", "true"), ("queue.dead-letters", "false"), ("queue.dead-letter-queue", "vault")];
    for denied in ["secrets", "vault", "unknown"] {
        assert_eq!(world.alter("jobs", "queue.dead-letter-queue", Some(denied)), TOPIC, "{denied}");
        assert_eq!(world.replace("jobs", &queue(denied)), TOPIC, "{denied}");
    }
    assert_eq!(world.replace("jobs", &off), TOPIC);
    // A topic takes dead letters as records, so the right to send to a queue of that name does not suffice.
    world.allow_queue(Action::Send, "secrets");
    assert_eq!(world.alter("jobs", "queue.dead-letter-queue", Some("secrets")), TOPIC);
    world.allow_queue(Action::Send, "vault");
    assert_eq!(world.alter("jobs", "queue.dead-letter-queue", Some("vault")), OK);
    assert_eq!(world.replace("jobs", &queue("vault")), OK);
    assert_eq!(world.alter("jobs", "queue.dead-letter-queue", None), OK);
    world.allow(Action::Produce, ResourceKind::Topic, Pattern::Literal("secrets".into()));
    assert_eq!(world.alter("jobs", "queue.dead-letter-queue", Some("secrets")), OK);
}

#[test]
fn settings_and_messages_of_a_queue_need_the_right_to_manage_it() {
    let mut world = World::new();
    let enabled = [("queue.enabled", "true")];
    assert_eq!(world.create("jobs", &enabled), TOPIC);
    assert_eq!(world.create("other", &[]), OK, "a topic needs no such right");
    assert_eq!(world.alter("other", "queue.enabled", Some("true")), TOPIC, "nor may it become a queue");
    assert_eq!(world.alter("other", "retention.ms", Some("1000")), OK);
    assert_eq!(world.delete_records("other"), OK);
    for (key, value) in [
        ("queue.max-deliveries", Some("1")),
        ("queue.ttl-ms", None),
        ("mainstem.durability", Some("os")),
        ("retention.ms", Some("1000")),
    ] {
        assert_eq!(world.alter("vault", key, value), TOPIC, "{key}");
    }
    assert_eq!(world.replace("vault", &[]), TOPIC);
    assert_eq!(world.replace("vault", &enabled), TOPIC);
    assert_eq!(world.delete_records("vault"), TOPIC);
    let delete = DeleteTopicsRequest { topic_names: vec!["vault".into()], ..Default::default() };
    let deleted = world.broker.ask(world.alice, 5, &delete).responses[0].error_code;
    assert_eq!(deleted, ErrorCode::PolicyViolation as i16, "only an administrator of queues deletes one");
    world.allow_queue(Action::Manage, "vault");
    assert_eq!(world.alter("vault", "queue.max-deliveries", Some("1")), OK);
    assert_eq!(world.delete_records("vault"), OK);
    world.rule(Effect::Deny, Action::Manage, ResourceKind::Queue, Pattern::Prefix("v".into()));
    assert_eq!(world.alter("vault", "queue.max-deliveries", Some("2")), TOPIC, "a rule that denies wins");
}

/// The fetch begins with the right to read, and records arrive when it has been taken away.
#[test]
fn a_fetch_that_waits_is_checked_again_when_records_arrive() {
    for is_user_deleted in [false, true] {
        let mut world = World::new();
        let read = |wait_ms| FetchRequest { max_wait_ms: wait_ms, ..fetch_request("other", 0, 0, 0) };
        assert_eq!(world.create("other", &[]), OK);
        world.broker.send(world.alice, 12, &read(60_000));
        world.broker.run();
        assert!(world.broker.take::<FetchRequest>(world.alice, 12).is_none(), "it waits");
        if is_user_deleted {
            world.host.apply(&Change::DeleteUser("alice".into()));
        } else {
            let pattern = Pattern::Literal("other".into());
            world.rule(Effect::Deny, Action::Consume, ResourceKind::Topic, pattern);
        }
        assert_eq!(world.broker.produce(world.root, "other", 0, &["a secret"]).error_code, OK);
        world.broker.run();
        if is_user_deleted {
            assert!(!world.broker.is_open(world.alice));
            assert_eq!(world.broker.take_frame(world.alice), None);
        } else {
            let response = world.broker.take::<FetchRequest>(world.alice, 12).expect("a response");
            let partition = &response.responses[0].partitions[0];
            assert_eq!(partition.error_code, TOPIC);
            assert!(partition.records.as_ref().is_none_or(Vec::is_empty));
        }
    }
}

/// Connections are checked for bans some in each turn. The fetch is woken before its connection is.
#[test]
fn a_fetch_that_waits_gets_nothing_once_its_client_id_is_banned() {
    let mut world = World::new();
    assert_eq!(world.create("other", &[]), OK);
    for _ in 0..CHECKED_FIRST {
        world.broker.connect(1);
    }
    let alice = world.log_in("alice", 1);
    let read = FetchRequest { max_wait_ms: 60_000, ..fetch_request("other", 0, 0, 0) };
    world.broker.send(alice, 12, &read);
    world.broker.run();
    let records = batch(world.broker.unix_ms(), &["a secret"]);
    let mut produce = frame(1, 9, &produce_request("other", 0, records));
    let client_id = produce.windows(3).position(|bytes| bytes == b"kit").unwrap();
    produce[client_id..client_id + 3].copy_from_slice(b"own");
    world.broker.set_stuck(true);
    world.broker.send_bytes(world.root, &produce);
    world.broker.turn(3);
    assert_eq!(world.broker.take_frame(world.root), None, "not durable yet");
    let ban = Arc::new(Ban { reason: "".into(), since_ms: 0, until_ms: None });
    world.host.apply(&Change::PutBan(BanSubject::ClientId("kit".into()), ban));
    world.broker.set_stuck(false);
    world.broker.run();
    assert!(world.broker.take_frame(world.root).is_some());
    assert!(!world.broker.is_open(alice));
    assert_eq!(world.broker.take_frame(alice), None);
}

#[test]
fn denials_are_noted_but_not_what_a_list_leaves_out() {
    let mut world = World::new();
    assert_eq!(world.broker.produce(world.alice, "secrets", 0, &["x"]).error_code, TOPIC);
    let (fetched, _) = world.broker.fetch(world.alice, "secrets", 0, 0);
    assert_eq!(fetched.responses[0].partitions[0].error_code, TOPIC);
    assert_eq!(world.create("new", &[]), TOPIC);
    assert_eq!(
        world.take_denials(),
        ["alice produce topic:secrets", "alice consume topic:secrets", "alice create topic:new"]
    );
    let all = MetadataRequest { topics: None, ..MetadataRequest::default() };
    assert!(
        world
            .broker
            .ask(world.alice, 12, &all)
            .topics
            .iter()
            .all(|topic| { topic.name.as_deref() != Some("secrets") })
    );
    assert_eq!(world.take_denials(), [""; 0]);
}

#[test]
fn changes_of_topics_are_noted_with_what_was_before_and_after() {
    let mut world = World::new();
    world.host.changes_seen.lock().unwrap().clear();
    assert_eq!(world.create("other", &[("retention.ms", "1000")]), OK);
    assert_eq!(world.alter("other", "retention.ms", Some("2000")), OK);
    assert_eq!(world.alter("other", "retention.ms", Some("2000")), OK, "which changes nothing");
    let partitions = CreatePartitionsTopic { name: "other".into(), count: 2, ..Default::default() };
    let more = CreatePartitionsRequest { topics: vec![partitions], ..Default::default() };
    assert_eq!(world.broker.ask(world.alice, 3, &more).results[0].error_code, OK);
    assert_eq!(world.delete_records("other"), OK);
    let delete = DeleteTopicsRequest { topic_names: vec!["other".into()], ..Default::default() };
    assert_eq!(world.broker.ask(world.root, 5, &delete).responses[0].error_code, OK);
    let show = |(by, change): &(String, mainstem_security::AdminChange)| {
        let state = |state: &Option<mainstem_security::ChangedSettings>| match state {
            None => "-".to_owned(),
            Some(state) => {
                state.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
            }
        };
        format!(
            "{by} {} {}: {} {}",
            change.change,
            change.object,
            state(&change.before),
            state(&change.after)
        )
    };
    let seen: Vec<String> = world.host.changes_seen.lock().unwrap().iter().map(show).collect();
    assert_eq!(
        seen,
        [
            "alice create-topic other: - partitions=1,retention.ms=1000",
            "alice configure-topic other: partitions=1,retention.ms=1000 partitions=1,retention.ms=2000",
            "alice add-partitions other: partitions=1,retention.ms=2000 partitions=2,retention.ms=2000",
            "alice delete-records other: - start-offset-0=0",
            "root delete-topic other: partitions=2,retention.ms=2000 -",
        ]
    );
}
