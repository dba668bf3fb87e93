//! Quotas: set and listed by Kafka's requests, reported as throttle time, and enforced by not reading the connection.

mod kit;

use std::sync::Arc;

use kit::security::Host;
use kit::{Broker, Client, batch, fetch_request, produce_request, values};
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::alter_client_quotas::{AlterClientQuotasRequest, AlterEntity, AlterEntry, AlterOp};
use mainstem_kafka::api::create_partitions::{CreatePartitionsRequest, CreatePartitionsTopic};
use mainstem_kafka::api::create_topics::{CreatableTopic, CreateTopicsRequest};
use mainstem_kafka::api::delete_topics::{DeleteTopicState, DeleteTopicsRequest};
use mainstem_kafka::api::describe_client_quotas::{ComponentData, DescribeClientQuotasRequest};
use mainstem_kafka::api::fetch::{FetchRequest, FetchResponse};
use mainstem_kafka::api::metadata::MetadataRequest;
use mainstem_kafka::api::produce::{ProduceRequest, ProduceResponse};
use mainstem_kafka_server::Config;
use mainstem_quota::{Counts, Entity, Name, QuotaKey, Quotas};
use mainstem_security::{
    Action, Ban, BanSubject, Change, Effect, Pattern, Resource, ResourceKind, Rule, RuleId, Subject,
};

const OK: i16 = ErrorCode::None as i16;
const INVALID: i16 = ErrorCode::InvalidRequest as i16;
const OVER: i16 = ErrorCode::ThrottlingQuotaExceeded as i16;
const KB: usize = 1000;

type Part<'a> = (&'a str, Option<&'a str>);

struct World {
    broker: Broker,
    host: Host,
    client: Client,
}

impl World {
    fn new() -> Self {
        let host = Host::open_to_all(&[]);
        let mut broker = Broker::secured(2, Config::default(), host.security());
        let client = broker.connect(0);
        Self { broker, host, client }
    }

    fn alter(&mut self, entity: &[Part<'_>], ops: &[(&str, Option<f64>)], validate_only: bool) -> i16 {
        let part = |(entity_type, name): &Part<'_>| AlterEntity {
            entity_type: (*entity_type).into(),
            entity_name: name.map(Into::into),
        };
        let op = |(key, value): &(&str, Option<f64>)| AlterOp {
            key: (*key).into(),
            value: value.unwrap_or(0.0),
            remove: value.is_none(),
        };
        let entry =
            AlterEntry { entity: entity.iter().map(part).collect(), ops: ops.iter().map(op).collect() };
        let request = AlterClientQuotasRequest { entries: vec![entry], validate_only };
        let response = self.broker.ask(self.client, 1, &request);
        let names: Vec<_> =
            response.entries[0].entity.iter().map(|part| part.entity_name.as_deref()).collect();
        assert_eq!(names, entity.iter().map(|(_, name)| *name).collect::<Vec<_>>());
        response.entries[0].error_code
    }

    fn set(&mut self, entity: &[Part<'_>], key: &str, value: f64) {
        assert_eq!(self.alter(entity, &[(key, Some(value))], false), OK);
    }

    /// The entities that match a filter, as text, with their quotas.
    fn describe(&mut self, filter: &[(&str, i8, Option<&str>)], strict: bool) -> Result<Vec<String>, i16> {
        let component = |(kind, match_type, name): &(&str, i8, Option<&str>)| ComponentData {
            entity_type: (*kind).into(),
            match_type: *match_type,
            match_: name.map(Into::into),
        };
        let request =
            DescribeClientQuotasRequest { components: filter.iter().map(component).collect(), strict };
        let response = self.broker.ask(self.client, 1, &request);
        if response.error_code != OK {
            return Err(response.error_code);
        }
        let entry = |entry: mainstem_kafka::api::describe_client_quotas::EntryData| {
            let part = |part: &mainstem_kafka::api::describe_client_quotas::EntityData| {
                format!("{}={}", part.entity_type, part.entity_name.as_deref().unwrap_or("*"))
            };
            let parts: Vec<_> = entry.entity.iter().map(part).collect();
            let values: Vec<_> =
                entry.values.iter().map(|value| format!("{}={}", value.key, value.value)).collect();
            format!("{}: {}", parts.join(","), values.join(","))
        };
        Ok(response.entries.unwrap_or_default().into_iter().map(entry).collect())
    }

    fn send_produce(&mut self, client: Client, bytes: usize) {
        let records = batch(self.broker.unix_ms(), &["x".repeat(bytes).as_str()]);
        self.broker.send(client, 9, &produce_request("orders", 0, records));
        self.broker.run();
    }

    /// Produces and returns the throttle time, ms; `None` if there is no response yet.
    fn produce(&mut self, client: Client, bytes: usize) -> Option<i32> {
        self.send_produce(client, bytes);
        let response: ProduceResponse = self.broker.take::<ProduceRequest>(client, 9)?;
        assert_eq!(response.responses[0].partition_responses[0].error_code, OK);
        Some(response.throttle_time_ms)
    }

    fn counts(&self, key: QuotaKey) -> Counts {
        self.host.published.buckets().counts(key)
    }
}

#[test]
fn quotas_are_altered_and_described() {
    let mut world = World::new();
    let alice = ("user", Some("alice"));
    world.set(&[alice], "producer_byte_rate", 1024.0);
    world.set(&[alice], "request_percentage", 12.5);
    world.set(&[alice, ("client-id", None)], "consumer_byte_rate", 2048.0);
    world.set(&[("user", None)], "consumer_byte_rate", 1.0);
    world.set(&[("client-id", Some("app"))], "controller_mutation_rate", 0.5);
    world.set(&[("ip", Some("192.0.2.1"))], "connection_creation_rate", 5.0);
    let all = world.describe(&[], false).unwrap();
    assert_eq!(all.len(), 5);
    assert!(
        all.contains(&"user=alice: producer_byte_rate=1024,request_percentage=12.5".to_owned()),
        "{all:?}"
    );
    // Exact, default, any; strict or not.
    assert_eq!(world.describe(&[("user", 0, Some("alice"))], false).unwrap().len(), 2);
    assert_eq!(world.describe(&[("user", 0, Some("alice"))], true).unwrap().len(), 1);
    assert_eq!(world.describe(&[("user", 1, None)], true).unwrap(), ["user=*: consumer_byte_rate=1"]);
    assert_eq!(world.describe(&[("user", 2, None)], false).unwrap().len(), 3);
    assert_eq!(
        world.describe(&[("user", 2, None), ("client-id", 1, None)], true).unwrap(),
        ["user=alice,client-id=*: consumer_byte_rate=2048"]
    );
    assert_eq!(
        world.describe(&[("ip", 0, Some("192.0.2.1"))], true).unwrap(),
        ["ip=192.0.2.1: connection_creation_rate=5"]
    );
    assert_eq!(world.describe(&[("user", 0, Some("bob"))], false).unwrap(), Vec::<String>::new());
    // One quota is removed, then the last one, and with it the entity.
    assert_eq!(world.alter(&[alice], &[("producer_byte_rate", None)], false), OK);
    assert_eq!(
        world.describe(&[("user", 0, Some("alice"))], true).unwrap(),
        ["user=alice: request_percentage=12.5"]
    );
    assert_eq!(world.alter(&[alice], &[("request_percentage", None)], false), OK);
    assert_eq!(world.describe(&[("user", 0, Some("alice"))], true).unwrap(), Vec::<String>::new());
    // Validated only.
    assert_eq!(world.alter(&[alice], &[("producer_byte_rate", Some(7.0))], true), OK);
    assert_eq!(world.describe(&[("user", 0, Some("alice"))], true).unwrap(), Vec::<String>::new());
}

#[test]
fn invalid_quotas_and_filters_are_refused() {
    let mut world = World::new();
    let alice = ("user", Some("alice"));
    for (entity, key, value) in [
        (&[alice][..], "flying_rate", 1.0),
        (&[alice], "producer_byte_rate", 0.0),
        (&[alice], "producer_byte_rate", -1.0),
        (&[alice], "producer_byte_rate", 0.5),
        (&[alice], "producer_byte_rate", f64::NAN),
        (&[alice], "connection_creation_rate", 5.0),
        (&[], "producer_byte_rate", 1.0),
        (&[("user", Some(""))], "producer_byte_rate", 1.0),
        (&[("role", Some("a"))], "producer_byte_rate", 1.0),
        (&[alice, alice], "producer_byte_rate", 1.0),
        (&[alice, ("ip", None)], "producer_byte_rate", 1.0),
        (&[("ip", None)], "producer_byte_rate", 1.0),
        (&[("ip", Some("no address"))], "connection_creation_rate", 1.0),
    ] {
        assert_eq!(world.alter(entity, &[(key, Some(value))], false), INVALID, "{entity:?} {key} {value}");
    }
    for filter in [
        &[("", 2, None)][..],
        &[("user", 0, None)],
        &[("user", 1, Some("a"))],
        &[("user", 2, Some("a"))],
        &[("user", 3, None)],
        &[("user", 2, None), ("user", 1, None)],
        &[("user", 2, None), ("ip", 2, None)],
    ] {
        assert_eq!(world.describe(filter, false), Err(INVALID), "{filter:?}");
    }
    let unsupported = ErrorCode::UnsupportedVersion as i16;
    assert_eq!(world.describe(&[("role", 2, None)], false), Err(unsupported));
    assert_eq!(world.describe(&[], false), Ok(Vec::new()));
}

#[test]
fn quotas_need_rights_on_the_cluster() {
    let mut world = World::new();
    let allow = |id, action| {
        world.host.apply(&Change::PutRule(
            RuleId(id),
            Arc::new(Rule {
                subject: Subject::Anonymous,
                effect: Effect::Allow,
                action,
                resource: Resource { kind: Some(ResourceKind::Cluster), pattern: Pattern::Any },
                listener: None,
                network: None,
            }),
        ));
    };
    allow(1, Action::IdempotentWrite);
    let denied = ErrorCode::ClusterAuthorizationFailed as i16;
    let (entity, ops) = (&[("user", None)][..], &[("producer_byte_rate", Some(1.0))][..]);
    assert_eq!(world.alter(entity, ops, false), denied);
    assert_eq!(world.describe(&[], false), Err(denied));
    let mut world = World::new();
    for (id, action) in [(1, Action::AlterConfigs), (2, Action::DescribeConfigs)] {
        let rule = Rule {
            subject: Subject::Anonymous,
            effect: Effect::Allow,
            action,
            resource: Resource { kind: Some(ResourceKind::Cluster), pattern: Pattern::Any },
            listener: None,
            network: None,
        };
        world.host.apply(&Change::PutRule(RuleId(id), Arc::new(rule)));
    }
    assert_eq!(world.alter(entity, ops, false), OK);
    assert_eq!(world.describe(&[], false).unwrap().len(), 1);
}

/// A window of the quota at once, then its rate: the response comes at once and says for how long the client is
/// throttled; for that time, the connection is not read (KIP-219).
#[test]
fn a_producer_is_throttled_by_what_it_exceeds() {
    let mut world = World::new();
    world.broker.create_topic("orders", 1);
    world.set(&[("client-id", Some("kit"))], "producer_byte_rate", 1_000.0);
    let client = world.client;
    assert_eq!(world.produce(client, 9 * KB), Some(0));
    let throttle_ms = world.produce(client, 3 * KB).expect("the response comes at once");
    assert!((2_000..2_500).contains(&throttle_ms), "{throttle_ms}");
    let counts = world.counts(QuotaKey::ProducerByteRate);
    assert_eq!((counts.throttled, counts.throttled_ms), (1, throttle_ms.unsigned_abs().into()));
    // Muted: not even another request is read.
    assert_eq!(world.produce(client, 1), None);
    assert!(world.broker.is_held(client));
    world.broker.pass(u64::from(throttle_ms.unsigned_abs()) - 100);
    assert!(world.broker.take_frame(client).is_none());
    world.broker.pass(200);
    assert!(world.broker.take::<ProduceRequest>(client, 9).is_some());
    // It has made a debt, too.
    world.broker.pass(1_000);
    assert_eq!(world.alter(&[("client-id", Some("kit"))], &[("producer_byte_rate", None)], false), OK);
    assert_eq!(world.produce(client, 100 * KB), Some(0));
}

#[test]
fn connections_of_a_user_share_a_quota_on_all_shards() {
    let mut world = World::new();
    world.broker.create_topic("orders", 2);
    world.set(&[("user", Some("ANONYMOUS"))], "producer_byte_rate", 1_000.0);
    let (one, other) = (world.client, world.broker.connect(1));
    assert_eq!(world.produce(one, 9 * KB), Some(0));
    let throttle_ms = world.produce(other, 3 * KB).unwrap();
    assert!((2_000..2_500).contains(&throttle_ms), "{throttle_ms}");
    // The first connection is not muted; its next request finds the debt.
    assert!(world.produce(one, 1).unwrap() >= throttle_ms);
}

#[test]
fn a_consumer_is_throttled_and_gets_nothing_while_others_have_used_the_quota() {
    let mut world = World::new();
    world.broker.create_topic("orders", 1);
    let client = world.client;
    for _ in 0..12 {
        assert_eq!(world.produce(client, KB), Some(0));
    }
    world.set(&[("user", None)], "consumer_byte_rate", 1_000.0);
    let fetch = |world: &mut World, client, offset| -> FetchResponse {
        world.broker.ask(client, 12, &fetch_request("orders", 0, offset, 0))
    };
    // At most a window, which is 10 s.
    let response = fetch(&mut world, client, 0);
    assert_eq!((values(&response).len(), response.throttle_time_ms), (9, 0));
    let response = fetch(&mut world, client, 9);
    assert_eq!(values(&response).len(), 3);
    assert!((2_000..4_000).contains(&response.throttle_time_ms), "{}", response.throttle_time_ms);
    // Another connection of the user: at once, without records, and with the throttle time.
    let other = world.broker.connect(1);
    let response = fetch(&mut world, other, 0);
    assert_eq!((response.error_code, response.responses.len()), (OK, 0));
    assert!(response.throttle_time_ms >= 2_000);
    assert_eq!(world.counts(QuotaKey::ConsumerByteRate).throttled, 2);
    world.broker.send(other, 12, &fetch_request("orders", 0, 0, 0));
    world.broker.run();
    assert!(world.broker.take_frame(other).is_none());
    world.broker.pass(12_000);
    let response = world.broker.take::<FetchRequest>(other, 12).unwrap();
    assert!(!values(&response).is_empty());
}

/// A client that pipelines its requests is throttled like any other: what is queued waits, too.
#[test]
fn queued_requests_wait_for_the_throttle_time() {
    let mut world = World::new();
    world.broker.create_topic("orders", 1);
    let client = world.client;
    for _ in 0..12 {
        assert_eq!(world.produce(client, KB), Some(0));
    }
    world.set(&[("user", None)], "consumer_byte_rate", 500.0);
    // The first waits for records that do not exist, the others behind it.
    world.broker.send(client, 12, &fetch_request("orders", 0, 12, 500));
    for _ in 0..3 {
        world.broker.send(client, 12, &fetch_request("orders", 0, 0, 0));
    }
    world.broker.run();
    assert!(world.broker.take_frame(client).is_none());
    world.broker.pass(600);
    let responses = std::iter::from_fn(|| world.broker.take::<FetchRequest>(client, 12)).count();
    assert!(responses >= 2, "{responses}");
    assert!(responses < 4, "the last one is beyond the quota");
    world.broker.pass(30_000);
    assert!(world.broker.take::<FetchRequest>(client, 12).is_some());
}

#[test]
fn the_share_of_time_is_throttled_in_any_response() {
    let mut world = World::new();
    world.broker.create_topic("orders", 1);
    // A thousandth of a percent is 100 units of work per second, and 1,000 per window.
    world.set(&[("user", None)], "request_percentage", 0.001);
    let mut throttle_ms = 0;
    for _ in 0..400 {
        world.broker.send(world.client, 9, &MetadataRequest::default());
        world.broker.run();
        let Some(response) = world.broker.take::<MetadataRequest>(world.client, 9) else { break };
        throttle_ms = throttle_ms.max(response.throttle_time_ms);
    }
    // At most a sample of the window, as in Kafka.
    assert!((1..=1_000).contains(&throttle_ms), "{throttle_ms}");
    assert_eq!(world.counts(QuotaKey::RequestPercentage).throttled, 1);
}

#[test]
fn partitions_beyond_the_quota_are_not_created_for_clients_that_know_the_error() {
    let mut world = World::new();
    world.set(&[("user", None)], "controller_mutation_rate", 1.0);
    // On the shard that is not the controller.
    let client = world.broker.connect(1);
    let create = |world: &mut World, name: &str, version| {
        let topic = CreatableTopic {
            name: name.into(),
            num_partitions: 6,
            replication_factor: 1,
            ..CreatableTopic::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 1000, validate_only: false };
        let response = world.broker.ask(client, version, &request);
        (response.topics[0].error_code, response.throttle_time_ms)
    };
    assert_eq!(create(&mut world, "a", 7), (OK, 0));
    assert_eq!(create(&mut world, "b", 7), (OK, 2_000));
    let (code, throttle_ms) = create(&mut world, "c", 7);
    assert_eq!((code, throttle_ms), (OVER, 2_000));
    assert_eq!(world.counts(QuotaKey::ControllerMutationRate).refused, 1);
    // Now the client is muted.
    world.broker.pass(2_000);
    assert_eq!(create(&mut world, "c", 7).0, OK);
    // Deletions and more partitions count, too.
    world.broker.pass(6_000);
    let topic = CreatePartitionsTopic { name: "c".into(), count: 20, assignments: None };
    let request = CreatePartitionsRequest { topics: vec![topic], timeout_ms: 1000, validate_only: false };
    assert_eq!(world.broker.ask(client, 3, &request).results[0].error_code, OK);
    let topic = DeleteTopicState { name: Some("a".into()), ..DeleteTopicState::default() };
    let request = DeleteTopicsRequest { topics: vec![topic], timeout_ms: 1000, ..Default::default() };
    assert_eq!(world.broker.ask(client, 6, &request).responses[0].error_code, OVER);
    world.broker.pass(30_000);
    assert_eq!(world.broker.ask(client, 6, &request).responses[0].error_code, OK);
    // A client of an older version does not know the error: it is served, and throttled.
    world.broker.pass(30_000);
    for (name, expected_ms) in [("d", 0), ("e", 2_000)] {
        assert_eq!(create(&mut world, name, 5), (OK, expected_ms));
    }
}

/// The debt is paid at the new rate, by those who have it already, too.
#[test]
fn a_throttled_connection_goes_on_as_soon_as_its_quota_is_raised_or_deleted() {
    let (kind, name) = ("client-id", Some("kit"));
    for is_deleted in [false, true] {
        let mut world = World::new();
        world.broker.create_topic("orders", 1);
        world.set(&[(kind, name)], "producer_byte_rate", 1_000.0);
        let client = world.client;
        assert_eq!(world.produce(client, 9 * KB), Some(0));
        let throttle_ms = world.produce(client, 90 * KB).unwrap();
        assert!(throttle_ms > 80_000, "{throttle_ms}");
        assert_eq!(world.produce(client, 1), None);
        let entity = Entity::ClientId(Name::Exact("kit".into()));
        if is_deleted {
            world.host.apply(&Change::DeleteQuotas(entity));
        } else {
            let mut quotas = Quotas::default();
            quotas.set(QuotaKey::ProducerByteRate, Some(1_000_000.0));
            world.host.apply(&Change::PutQuotas(entity, quotas));
        }
        world.broker.turn(2);
        world.broker.pass(1_100);
        let response = world.broker.take::<ProduceRequest>(client, 9);
        assert!(response.is_some(), "deleted: {is_deleted}");
    }
}

#[test]
fn connections_of_banned_clients_are_closed() {
    let mut world = World::new();
    let ban = |until_ms| Arc::new(Ban { reason: "".into(), since_ms: 0, until_ms });
    world.broker.ask(world.client, 9, &MetadataRequest::default());
    let other = BanSubject::ClientId("other".into());
    world.host.apply(&Change::PutBan(other, ban(None)));
    world.broker.turn(2);
    assert!(world.broker.is_open(world.client));
    let subject = BanSubject::ClientId("kit".into());
    let until_ms = world.broker.unix_ms().unsigned_abs() + 60_000;
    world.host.apply(&Change::PutBan(subject, ban(Some(until_ms))));
    world.broker.turn(2);
    assert!(!world.broker.is_open(world.client), "it is idle, and closed nevertheless");
    assert_eq!(*world.host.banned.lock().unwrap(), ["- kit"]);
    let again = world.broker.connect(1);
    world.broker.send(again, 9, &MetadataRequest::default());
    world.broker.run();
    assert!(!world.broker.is_open(again) && world.broker.take_frame(again).is_none());
    assert_eq!(*world.host.banned.lock().unwrap(), ["- kit", "- kit"]);
    assert_eq!(world.host.published.bans_refused(), 2);
    world.broker.pass(60_000);
    let later = world.broker.connect(1);
    world.broker.ask(later, 9, &MetadataRequest::default());
}
