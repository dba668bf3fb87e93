//! Overload: very large requests, clients that do not read, full disks; and shutdown.

mod kit;

use kit::{Broker, batch, fetch_request, produce_request, values};
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::add_partitions_to_txn::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use mainstem_kafka::api::create_topics::{CreatableTopic, CreateTopicsRequest};
use mainstem_kafka::api::fetch::FetchRequest;
use mainstem_kafka::api::metadata::{MetadataRequest, MetadataRequestTopic};
use mainstem_kafka::api::produce::ProduceRequest;
use mainstem_kafka_server::Config;
use mainstem_log::{BatchBuilder, BatchKind, Origin};

fn code(code: i16) -> ErrorCode {
    ErrorCode::from_code(code).expect("a known error code")
}

/// A batch of one record of an idempotent producer.
fn numbered(broker: &Broker, base_sequence: i32, value: &str) -> Vec<u8> {
    let mut builder = BatchBuilder::default();
    builder.push(broker.unix_ms(), None, Some(value.as_bytes()));
    let kind = BatchKind::Plain;
    builder.finish_as(&Origin { producer_id: 7, producer_epoch: 0, base_sequence, kind }).bytes().to_vec()
}

/// Each name collides with an existing topic: they differ only in `.` and `_`.
#[test]
fn thousands_of_colliding_topics_are_rejected_one_by_one() {
    let mut broker = Broker::new(2);
    let name = |marks: u32| -> String {
        (0..13).map(|bit| if marks >> bit & 1 == 1 { "a_" } else { "a." }).collect()
    };
    broker.create_topic(&name(0), 1);
    let client = broker.connect(1);
    let requested =
        |marks| MetadataRequestTopic { name: Some(name(marks)), ..MetadataRequestTopic::default() };
    let request = MetadataRequest {
        topics: Some((0..1 << 13).map(requested).collect()),
        allow_auto_topic_creation: true,
        ..MetadataRequest::default()
    };
    let response = broker.ask(client, 12, &request);
    let existing = response.topics.iter().filter(|topic| topic.error_code == 0);
    assert_eq!((response.topics.len(), existing.count()), (1 << 13, 1));
}

#[test]
fn thousands_of_transactions_are_answered_in_one_request() {
    let mut broker = Broker::new(2);
    let client = broker.connect(1);
    let topics = vec![AddPartitionsToTxnTopic { name: "unknown".into(), partitions: vec![0] }];
    let transaction = |number: i32| AddPartitionsToTxnTransaction {
        transactional_id: format!("t-{number}"),
        // Every second transaction is empty, which only the coordinator rejects.
        topics: if number % 2 == 0 { topics.clone() } else { Vec::new() },
        ..AddPartitionsToTxnTransaction::default()
    };
    let transactions = (0..20_000).map(transaction).collect();
    let request = AddPartitionsToTxnRequest { transactions, ..AddPartitionsToTxnRequest::default() };
    let response = broker.ask(client, 5, &request);
    assert_eq!(response.results_by_transaction.len(), 20_000);
    for (number, result) in response.results_by_transaction.iter().enumerate() {
        assert_eq!(result.transactional_id, format!("t-{number}"));
        for topic in &result.topic_results {
            let error = topic.results_by_partition[0].partition_error_code;
            assert_eq!(code(error), ErrorCode::UnknownTopicOrPartition);
        }
    }
}

#[test]
fn topics_created_at_once_respect_max_partitions() {
    let mut broker = Broker::with(2, Config { partitions_max: 10, ..Config::default() });
    let client = broker.connect(1);
    let topic = |name: &str| CreatableTopic {
        name: name.into(),
        num_partitions: 9,
        replication_factor: 1,
        ..CreatableTopic::default()
    };
    let topics = vec![topic("one"), topic("two"), topic("three")];
    let request = CreateTopicsRequest { topics, ..CreateTopicsRequest::default() };
    let response = broker.ask(client, 7, &request);
    let codes: Vec<_> = response.topics.iter().map(|topic| code(topic.error_code)).collect();
    assert_eq!(codes, [ErrorCode::None, ErrorCode::PolicyViolation, ErrorCode::PolicyViolation]);
}

#[test]
fn a_request_behind_a_large_response_is_answered_when_the_client_has_read_it() {
    let mut broker = Broker::new(1);
    broker.create_topic("t", 1);
    let client = broker.connect(0);
    assert_eq!(broker.produce(client, "t", 0, &["x".repeat(300_000).as_str()]).error_code, 0);
    broker.stall(client);
    broker.send(client, 12, &fetch_request("t", 0, 0, 0));
    broker.run();
    let named = MetadataRequestTopic { name: Some("t".into()), ..MetadataRequestTopic::default() };
    let metadata = MetadataRequest { topics: Some(vec![named]), ..MetadataRequest::default() };
    broker.send(client, 12, &metadata);
    broker.run();
    broker.resume(client);
    broker.run();
    let fetched = broker.take::<FetchRequest>(client, 12).expect("a response");
    assert_eq!(values(&fetched)[0].len(), 300_000);
    let described = broker.take::<MetadataRequest>(client, 12).expect("a response");
    assert_eq!(described.topics[0].name.as_deref(), Some("t"));
}

#[test]
fn a_fetch_of_no_partitions_does_not_wait() {
    let mut broker = Broker::new(1);
    let client = broker.connect(0);
    let nothing = FetchRequest { max_wait_ms: 30_000, min_bytes: 1, ..FetchRequest::default() };
    assert_eq!(broker.ask(client, 12, &nothing).error_code, 0);
}

/// Appends of the turn in which space runs out are rejected, and later batches take their offsets.
#[test]
fn a_batch_that_fits_is_stored_after_others_that_did_not() {
    let mut broker = Broker::on_disk(1, Config::default());
    broker.create_topic("t", 1);
    let client = broker.connect(0);
    assert_eq!(broker.produce(client, "t", 0, &["before"]).base_offset, 0);
    broker.set_space(0, Some(1024 * 1024));
    let large = "x".repeat(1_000_000);
    for _ in 0..5 {
        let records = batch(broker.unix_ms(), &[&large]);
        broker.send(client, 9, &produce_request("t", 0, records));
    }
    let small = produce_request("t", 0, numbered(&broker, 0, "small"));
    broker.send(client, 9, &small);
    broker.run();
    let mut results = Vec::new();
    while let Some(response) = broker.take::<ProduceRequest>(client, 9) {
        let partition = &response.responses[0].partition_responses[0];
        results.push((code(partition.error_code), partition.base_offset));
    }
    assert_eq!(results.len(), 6);
    assert!(results[..5].iter().all(|result| *result == (ErrorCode::KafkaStorageError, -1)), "{results:?}");
    assert_eq!(results[5], (ErrorCode::None, 1));
    // Its sequence number is known, and the next batch follows it.
    let again = broker.ask(client, 9, &small);
    assert_eq!(again.responses[0].partition_responses[0].base_offset, 1);
    broker.set_space(0, None);
    let next = broker.ask(client, 9, &produce_request("t", 0, numbered(&broker, 1, "next")));
    assert_eq!(next.responses[0].partition_responses[0].base_offset, 2);
    assert_eq!(broker.fetch(client, "t", 0, 0).1, ["before", "small", "next"]);
}

#[test]
fn appends_in_progress_are_answered_before_shutdown() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 2);
    let (producer, idle) = (broker.connect(0), broker.connect(1));
    broker.set_stuck(true);
    for index in 0..2 {
        let records = batch(broker.unix_ms(), &["value"]);
        broker.send(producer, 9, &produce_request("t", index, records));
    }
    broker.run();
    broker.drain();
    broker.run();
    assert!(broker.is_open(producer) && !broker.is_open(idle));
    broker.set_stuck(false);
    broker.run();
    for _ in 0..2 {
        let response = broker.take::<ProduceRequest>(producer, 9).expect("a response");
        assert_eq!(response.responses[0].partition_responses[0].error_code, 0);
    }
    assert!(!broker.is_open(producer));
}
