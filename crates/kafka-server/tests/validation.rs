//! Batches and requests that are refused, with the errors of Apache Kafka 4.3.

mod kit;

use kit::queues::Queues;
use kit::{Broker, Client, produce_request};
use mainstem_compress::{Compression, compress};
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::delete_topics::{DeleteTopicState, DeleteTopicsRequest};
use mainstem_kafka::api::produce::{PartitionProduceData, ProduceRequest, TopicProduceData};
use mainstem_kafka::api::write_txn_markers::{
    WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest,
};
use mainstem_kafka_server::Config;
use mainstem_log::{Batch, BatchBuilder, BatchKind, HEADER_BYTES, Origin, repack};
use mainstem_queue_core::{QueueError, Reply};

const TOPIC: &str = "topic";

fn code(code: i16) -> ErrorCode {
    ErrorCode::from_code(code).expect("a known error code")
}

fn create_topic(broker: &mut Broker, name: &str, configs: &[(&str, &str)]) -> ErrorCode {
    code(broker.try_create_topic(name, 1, configs))
}

fn produce(broker: &mut Broker, client: Client, topic: &str, records: Vec<u8>) -> ErrorCode {
    let response = broker.ask(client, 9, &produce_request(topic, 0, records));
    code(response.responses[0].partition_responses[0].error_code)
}

fn batch(timestamps_ms: &[i64], origin: &Origin) -> Vec<u8> {
    let mut builder = BatchBuilder::default();
    for timestamp_ms in timestamps_ms {
        builder.push(*timestamp_ms, None, Some(b"value"));
    }
    builder.finish_as(origin).bytes().to_vec()
}

/// The batch `plain` with these bytes as its compressed records.
fn with_payload(plain: &[u8], compressed: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    repack(&Batch::parse(plain).unwrap().header, Compression::Zstd, compressed, &mut bytes);
    bytes
}

fn compressed(plain: &[u8]) -> Vec<u8> {
    with_payload(plain, &compress(Compression::Zstd, None, &plain[HEADER_BYTES..]).unwrap())
}

#[test]
fn transactional_batches_need_a_transactional_id_and_a_producer_id() {
    let mut broker = Broker::new(2);
    broker.create_topic(TOPIC, 2);
    let client = broker.connect(1);
    let kind = BatchKind::Transactional;
    let named = Origin { producer_id: 5, producer_epoch: 0, base_sequence: 0, kind };
    let plain = batch(&[broker.unix_ms()], &Origin::default());
    let transactional = batch(&[broker.unix_ms()], &named);
    let partition_data = [transactional, plain]
        .into_iter()
        .zip(0..)
        .map(|(records, index)| PartitionProduceData { index, records: Some(records) });
    let topic = TopicProduceData {
        name: TOPIC.into(),
        partition_data: partition_data.collect(),
        ..TopicProduceData::default()
    };
    let request = ProduceRequest { acks: -1, topic_data: vec![topic], ..ProduceRequest::default() };
    let response = broker.ask(client, 9, &request);
    let codes: Vec<ErrorCode> =
        response.responses[0].partition_responses.iter().map(|part| code(part.error_code)).collect();
    assert_eq!(codes, [ErrorCode::TransactionalIdAuthorizationFailed; 2], "the whole request is refused");
    assert_eq!(broker.fetch(client, TOPIC, 1, 0).1, [""; 0]);

    let unnamed = batch(&[broker.unix_ms()], &Origin { kind, ..Origin::default() });
    let request =
        ProduceRequest { transactional_id: Some("id".into()), ..produce_request(TOPIC, 0, unnamed) };
    let response = broker.ask(client, 9, &request);
    let refused = code(response.responses[0].partition_responses[0].error_code);
    assert_eq!(refused, ErrorCode::InvalidProducerIdMapping);
}

#[test]
fn timestamps_are_checked_in_plain_and_compressed_batches() {
    let mut broker = Broker::new(1);
    let now_ms = broker.unix_ms();
    let configs = [("message.timestamp.before.max.ms", "1000"), ("message.timestamp.after.max.ms", "1000")];
    assert_eq!(create_topic(&mut broker, TOPIC, &configs), ErrorCode::None);
    let client = broker.connect(0);
    for (timestamps_ms, expected) in [
        (&[now_ms - 1000, now_ms + 1000][..], ErrorCode::None),
        (&[now_ms, now_ms - 1001], ErrorCode::InvalidTimestamp),
        (&[now_ms, now_ms + 1001, now_ms], ErrorCode::InvalidTimestamp),
        (&[now_ms, -5], ErrorCode::InvalidTimestamp),
        (&[-1], ErrorCode::None),
    ] {
        let plain = batch(timestamps_ms, &Origin::default());
        // A header with a harmless latest timestamp does not hide that of a record.
        let mut hidden = compressed(&plain);
        Batch::set_max_timestamp(&mut hidden, now_ms);
        for records in [plain.clone(), compressed(&plain), hidden] {
            assert_eq!(produce(&mut broker, client, TOPIC, records), expected, "{timestamps_ms:?}");
        }
    }
}

#[test]
fn compressed_bytes_that_hold_no_records_are_refused_unless_the_topic_is_not_to_check() {
    let mut broker = Broker::new(1);
    broker.create_topic(TOPIC, 1);
    let unchecked = [("mainstem.compressed.records.check", "false")];
    assert_eq!(create_topic(&mut broker, "unchecked", &unchecked), ErrorCode::None);
    let client = broker.connect(0);
    let plain = batch(&[broker.unix_ms()], &Origin::default());
    let garbage = [
        with_payload(&plain, b"garbage"),
        with_payload(&plain, &compress(Compression::Zstd, None, b"x").unwrap()),
    ];
    for records in garbage {
        assert_eq!(produce(&mut broker, client, TOPIC, records.clone()), ErrorCode::InvalidRecord);
        assert_eq!(produce(&mut broker, client, "unchecked", records), ErrorCode::None);
    }
    let mut corrupt = compressed(&plain);
    *corrupt.last_mut().unwrap() ^= 1;
    assert_eq!(produce(&mut broker, client, TOPIC, corrupt), ErrorCode::CorruptMessage);
    assert_eq!(produce(&mut broker, client, TOPIC, compressed(&plain)), ErrorCode::None);
}

#[test]
fn a_marker_of_an_older_coordinator_is_fenced() {
    let mut broker = Broker::new(2);
    broker.create_topic(TOPIC, 1);
    let client = broker.connect(1);
    let mut write = |coordinator_epoch| {
        let marker = WritableTxnMarker {
            producer_id: 7,
            producer_epoch: 1,
            transaction_result: false,
            topics: vec![WritableTxnMarkerTopic { name: TOPIC.into(), partition_indexes: vec![0] }],
            coordinator_epoch,
            ..WritableTxnMarker::default()
        };
        let response = broker.ask(client, 1, &WriteTxnMarkersRequest { markers: vec![marker] });
        code(response.markers[0].topics[0].partitions[0].error_code)
    };
    assert_eq!(write(5), ErrorCode::None);
    assert_eq!(write(4), ErrorCode::TransactionCoordinatorFenced);
    assert_eq!(write(5), ErrorCode::None);
}

#[test]
fn names_of_internal_topics_are_reserved() {
    let mut broker = Broker::new(2);
    let client = broker.connect(1);
    for name in ["__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"] {
        assert_eq!(create_topic(&mut broker, name, &[]), ErrorCode::InvalidTopicException, "{name}");
        let queue = broker.create(name, &[]);
        assert!(matches!(queue, Reply::Refused(QueueError::Invalid(_))), "{name}: {queue:?}");
        let metadata = broker.metadata(client, Some(name));
        assert_eq!(code(metadata.topics[0].error_code), ErrorCode::UnknownTopicOrPartition, "{name}");
    }
    let dead_letters = broker.create("jobs", &[("dead-letter-queue", "__consumer_offsets")]);
    assert!(matches!(dead_letters, Reply::Refused(QueueError::Invalid(_))), "{dead_letters:?}");
}

#[test]
fn a_work_queue_is_not_deleted_as_a_topic() {
    let mut broker = Broker::new(2);
    assert!(matches!(broker.create("jobs", &[]), Reply::Done));
    broker.create_topic(TOPIC, 1);
    let client = broker.connect(0);
    let named = |name: &str| DeleteTopicState { name: Some(name.into()), ..DeleteTopicState::default() };
    let request =
        DeleteTopicsRequest { topics: vec![named("jobs"), named(TOPIC)], ..DeleteTopicsRequest::default() };
    let response = broker.ask(client, 6, &request);
    let codes: Vec<ErrorCode> = response.responses.iter().map(|topic| code(topic.error_code)).collect();
    assert_eq!(codes, [ErrorCode::PolicyViolation, ErrorCode::None]);
    let message = response.responses[0].error_message.as_deref().unwrap_or_default();
    assert!(message.contains("mainstem queue delete jobs"), "{message}");
    assert_eq!(&*broker.info("jobs").name, "jobs");
    let deleted = broker.ask_queue(0, "jobs", mainstem_queue_core::Request::Delete);
    assert!(matches!(deleted, Reply::Done));
}

/// With little memory, and with the answers that clients need to continue.
#[test]
fn a_producer_that_was_forgotten_for_lack_of_memory_begins_a_new_epoch() {
    let config = Config { producer_bytes_max: 32 * 1024, ..Config::default() };
    let mut broker = Broker::with(1, config);
    broker.create_topic(TOPIC, 1);
    let client = broker.connect(0);
    let numbered = |broker: &Broker, producer_id, producer_epoch, base_sequence| {
        let kind = BatchKind::Plain;
        batch(&[broker.unix_ms()], &Origin { producer_id, producer_epoch, base_sequence, kind })
    };
    for producer_id in 0..500 {
        let records = numbered(&broker, producer_id, 0, 0);
        assert_eq!(produce(&mut broker, client, TOPIC, records), ErrorCode::None);
    }
    let records = numbered(&broker, 0, 0, 1);
    let response = broker.ask(client, 9, &produce_request(TOPIC, 0, records));
    let refused = &response.responses[0].partition_responses[0];
    assert_eq!(code(refused.error_code), ErrorCode::UnknownProducerId);
    assert_eq!(refused.log_start_offset, 0, "clients decide by it");
    let records = numbered(&broker, 0, 1, 0);
    assert_eq!(produce(&mut broker, client, TOPIC, records), ErrorCode::None);
    let records = numbered(&broker, 499, 0, 1);
    assert_eq!(produce(&mut broker, client, TOPIC, records), ErrorCode::None, "it was active");
}

#[test]
fn producers_expire_by_time_as_in_kafka() {
    let config = Config { producer_id_expiration_ms: 5_000, ..Config::default() };
    let mut broker = Broker::with(1, config);
    broker.create_topic(TOPIC, 1);
    let client = broker.connect(0);
    let numbered = |broker: &Broker, base_sequence| {
        let kind = BatchKind::Plain;
        batch(&[broker.unix_ms()], &Origin { producer_id: 1, producer_epoch: 0, base_sequence, kind })
    };
    let records = numbered(&broker, 0);
    assert_eq!(produce(&mut broker, client, TOPIC, records), ErrorCode::None);
    let records = numbered(&broker, 7);
    assert_eq!(produce(&mut broker, client, TOPIC, records), ErrorCode::OutOfOrderSequenceNumber);
    broker.pass(7_000);
    let records = numbered(&broker, 7);
    assert_eq!(produce(&mut broker, client, TOPIC, records), ErrorCode::None);
}
