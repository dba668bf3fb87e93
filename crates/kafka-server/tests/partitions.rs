//! Partitions as administrators see them: `DeleteRecords`, sizes, pages of topics, reassignment; and retention.

mod kit;

use kit::{Broker, Client, batch, fetch_request, produce_request, values};
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::alter_partition_reassignments::{
    AlterPartitionReassignmentsRequest, ReassignablePartition, ReassignableTopic,
};
use mainstem_kafka::api::delete_records::{DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic};
use mainstem_kafka::api::delete_topics::DeleteTopicsRequest;
use mainstem_kafka::api::describe_log_dirs::{DescribableLogDirTopic, DescribeLogDirsRequest};
use mainstem_kafka::api::describe_topic_partitions::{Cursor, DescribeTopicPartitionsRequest, TopicRequest};
use mainstem_kafka::api::elect_leaders::{ElectLeadersRequest, TopicPartitions};
use mainstem_kafka::api::fetch::FetchRequest;
use mainstem_kafka::api::list_offsets::{ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic};
use mainstem_kafka::api::list_partition_reassignments::ListPartitionReassignmentsRequest;
use mainstem_kafka_server::Config;
use mainstem_log::{BatchBuilder, BatchKind, Origin};

fn code(code: i16) -> ErrorCode {
    ErrorCode::from_code(code).expect("a known error code")
}

fn delete_before(
    broker: &mut Broker,
    client: Client,
    topic: &str,
    partition_index: i32,
    offset: i64,
) -> (ErrorCode, i64) {
    let partitions = vec![DeleteRecordsPartition { partition_index, offset }];
    let topics = vec![DeleteRecordsTopic { name: topic.into(), partitions }];
    let response = broker.ask(client, 2, &DeleteRecordsRequest { topics, ..DeleteRecordsRequest::default() });
    let partition = &response.topics[0].partitions[0];
    (code(partition.error_code), partition.low_watermark)
}

fn offset_at(
    broker: &mut Broker,
    client: Client,
    topic: &str,
    partition_index: i32,
    timestamp: i64,
) -> (ErrorCode, i64) {
    let partition = ListOffsetsPartition { partition_index, timestamp, ..ListOffsetsPartition::default() };
    let topics = vec![ListOffsetsTopic { name: topic.into(), partitions: vec![partition] }];
    let request = ListOffsetsRequest { topics, replica_id: -1, ..ListOffsetsRequest::default() };
    let response = broker.ask(client, 8, &request);
    let partition = &response.topics[0].partitions[0];
    (code(partition.error_code), partition.offset)
}

#[test]
fn records_are_deleted_up_to_an_offset_but_not_beyond_the_high_watermark() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 2);
    broker.create_topic_with("compacted", 1, &[("cleanup.policy", "compact")]);
    let client = broker.connect(1);
    for index in 0..2 {
        for value in ["a", "b", "c", "d"] {
            assert_eq!(broker.produce(client, "t", index, &[value]).error_code, 0);
        }
        assert_eq!(delete_before(&mut broker, client, "t", index, 2), (ErrorCode::None, 2));
        assert_eq!(delete_before(&mut broker, client, "t", index, 1), (ErrorCode::None, 2));
        let out_of_range = (ErrorCode::OffsetOutOfRange, -1);
        assert_eq!(delete_before(&mut broker, client, "t", index, 5), out_of_range);
        assert_eq!(delete_before(&mut broker, client, "t", index, -2), out_of_range);
        assert_eq!(broker.fetch(client, "t", index, 2).1, ["c", "d"]);
        let (response, _) = broker.fetch(client, "t", index, 1);
        let partition = &response.responses[0].partitions[0];
        assert_eq!(code(partition.error_code), ErrorCode::OffsetOutOfRange);
        assert_eq!(delete_before(&mut broker, client, "t", index, -1), (ErrorCode::None, 4));
        assert_eq!(broker.produce(client, "t", index, &["e"]).base_offset, 4);
    }
    let unknown = (ErrorCode::UnknownTopicOrPartition, -1);
    assert_eq!(delete_before(&mut broker, client, "t", 2, 0), unknown);
    assert_eq!(delete_before(&mut broker, client, "x", 0, 0), unknown);
    assert_eq!(delete_before(&mut broker, client, "compacted", 0, 0), (ErrorCode::PolicyViolation, -1));
}

#[test]
fn partition_sizes_are_reported() {
    let mut broker = Broker::new(2);
    broker.create_topic("a", 2);
    broker.create_topic("b", 1);
    let client = broker.connect(0);
    assert_eq!(broker.produce(client, "a", 1, &["value"]).error_code, 0);
    let mut sizes = |topics: Option<Vec<DescribableLogDirTopic>>| {
        let response = broker.ask(client, 4, &DescribeLogDirsRequest { topics });
        assert_eq!(response.results.len(), 1);
        let of = |topic: &mainstem_kafka::api::describe_log_dirs::DescribeLogDirsTopic| {
            let sizes = topic.partitions.iter().map(|part| part.partition_size > 0).collect::<Vec<_>>();
            (topic.name.clone(), sizes)
        };
        response.results[0].topics.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(sizes(None), [("a".into(), vec![false, true]), ("b".into(), vec![false])]);
    let requested = |topic: &str, partitions: &[i32]| DescribableLogDirTopic {
        topic: topic.into(),
        partitions: partitions.to_vec(),
    };
    let some = vec![requested("a", &[1, 1, 9]), requested("x", &[0])];
    assert_eq!(sizes(Some(some)), [("a".into(), vec![true])]);
    assert_eq!(sizes(Some(Vec::new())), []);
}

#[test]
fn topics_are_described_in_pages() {
    let mut broker = Broker::new(2);
    for (name, partitions) in [("a", 3), ("b", 1), ("c", 4)] {
        broker.create_topic(name, partitions);
    }
    let client = broker.connect(1);
    let (mut cursor, mut pages) = (None, Vec::new());
    loop {
        let request = DescribeTopicPartitionsRequest {
            response_partition_limit: 2,
            cursor,
            ..DescribeTopicPartitionsRequest::default()
        };
        let response = broker.ask(client, 0, &request);
        let page = response.topics.iter().map(|topic| {
            let indexes: Vec<i32> = topic.partitions.iter().map(|part| part.partition_index).collect();
            format!("{}{indexes:?}", topic.name.as_deref().unwrap_or_default())
        });
        pages.push(page.collect::<Vec<_>>().join(" "));
        cursor = response.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(pages, ["a[0, 1]", "a[2] b[0]", "c[0, 1]", "c[2, 3]"]);

    let named = |name: &str| TopicRequest { name: name.into() };
    let request = DescribeTopicPartitionsRequest {
        topics: vec![named("x"), named("b"), named("no/name"), named("b")],
        ..DescribeTopicPartitionsRequest::default()
    };
    let response = broker.ask(client, 0, &request);
    let codes: Vec<_> = response.topics.iter().map(|topic| code(topic.error_code)).collect();
    let expected = [ErrorCode::None, ErrorCode::InvalidTopicException, ErrorCode::UnknownTopicOrPartition];
    assert_eq!(codes, expected);

    let cursor = Some(Cursor { topic_name: "b".into(), partition_index: -1 });
    let request = DescribeTopicPartitionsRequest { topics: vec![named("b")], cursor, ..request };
    let response = broker.ask(client, 0, &request);
    assert_eq!(code(response.topics[0].error_code), ErrorCode::InvalidRequest);
}

#[test]
fn the_only_node_leads_all_partitions_and_reassigns_none() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 1);
    let client = broker.connect(1);
    let requested = |topic: &str, partitions: &[i32]| TopicPartitions {
        topic: topic.into(),
        partitions: partitions.to_vec(),
    };
    let request = ElectLeadersRequest {
        topic_partitions: Some(vec![requested("t", &[0, 7]), requested("x", &[0])]),
        ..ElectLeadersRequest::default()
    };
    let response = broker.ask(client, 2, &request);
    let results = response.replica_election_results.iter().flat_map(|topic| &topic.partition_result);
    let codes: Vec<_> = results.map(|partition| code(partition.error_code)).collect();
    let unknown = ErrorCode::UnknownTopicOrPartition;
    assert_eq!(codes, [ErrorCode::ElectionNotNeeded, unknown, unknown]);
    let response = broker.ask(client, 2, &ElectLeadersRequest::default());
    assert!(response.error_code == 0 && response.replica_election_results.is_empty());

    for (index, replicas, expected) in [
        (0, Some(vec![1]), ErrorCode::None),
        (0, Some(vec![2]), ErrorCode::InvalidReplicaAssignment),
        (0, None, ErrorCode::NoReassignmentInProgress),
        (7, Some(vec![1]), unknown),
    ] {
        let partitions = vec![ReassignablePartition { partition_index: index, replicas }];
        let topics = vec![ReassignableTopic { name: "t".into(), partitions }];
        let request =
            AlterPartitionReassignmentsRequest { topics, ..AlterPartitionReassignmentsRequest::default() };
        let response = broker.ask(client, 1, &request);
        assert_eq!(code(response.responses[0].partitions[0].error_code), expected);
    }
    let response = broker.ask(client, 0, &ListPartitionReassignmentsRequest::default());
    assert!(response.error_code == 0 && response.topics.is_empty());
}

#[test]
fn a_fetch_creates_no_log() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 4);
    let client = broker.connect(0);
    let waiting: Vec<_> = (0..4).zip([0, 1, 0, 1].map(|shard| broker.connect(shard))).collect();
    for (index, reader) in &waiting {
        broker.send(*reader, 12, &fetch_request("t", *index, 0, 60_000));
    }
    for index in 0..4 {
        for (timestamp, offset) in [(-1, 0), (-2, 0), (-3, -1), (5, -1)] {
            assert_eq!(offset_at(&mut broker, client, "t", index, timestamp), (ErrorCode::None, offset));
        }
        assert_eq!(delete_before(&mut broker, client, "t", index, -1), (ErrorCode::None, 0));
        assert_eq!(delete_before(&mut broker, client, "t", index, 1), (ErrorCode::OffsetOutOfRange, -1));
        let (response, _) = broker.fetch(client, "t", index, 1);
        assert_eq!(code(response.responses[0].partitions[0].error_code), ErrorCode::OffsetOutOfRange);
    }
    assert_eq!(broker.partition_logs(), [""; 0]);
    for ((index, reader), logs) in waiting.into_iter().zip(1..) {
        assert_eq!(broker.produce(client, "t", index, &["first"]).base_offset, 0);
        assert_eq!(broker.partition_logs().len(), logs);
        let response = broker.take::<FetchRequest>(reader, 12).expect("the fetch was woken");
        assert_eq!(values(&response), ["first"]);
    }
}

#[test]
fn deleting_a_topic_answers_fetches_waiting_for_its_first_record() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 2);
    let readers = [broker.connect(0), broker.connect(0)];
    for (index, reader) in (0..).zip(readers) {
        broker.send(reader, 12, &fetch_request("t", index, 0, 60_000));
    }
    broker.run();
    let client = broker.connect(1);
    let topic_names = vec!["t".to_owned()];
    let request = DeleteTopicsRequest { topic_names, ..DeleteTopicsRequest::default() };
    assert_eq!(broker.ask(client, 3, &request).responses[0].error_code, 0);
    for reader in readers {
        let response = broker.take::<FetchRequest>(reader, 12).expect("a response");
        let error = code(response.responses[0].partitions[0].error_code);
        assert_eq!(error, ErrorCode::UnknownTopicOrPartition);
    }
}

/// A restarted broker applies retention to every partition, whatever its history.
#[test]
fn retention_applies_to_partitions_without_clients() {
    let mut broker = Broker::on_disk(2, Config::default());
    broker.create_topic_with("t", 6, &[("retention.ms", "60000"), ("segment.ms", "1000")]);
    let client = broker.connect(0);
    for index in 0..6 {
        assert_eq!(broker.produce(client, "t", index, &["old"]).error_code, 0);
    }
    broker.restart(3);
    broker.pass(120_000);
    let client = broker.connect(1);
    for index in 0..6 {
        let (response, values) = broker.fetch(client, "t", index, 0);
        let partition = &response.responses[0].partitions[0];
        assert!(values.is_empty(), "partition {index} still has {values:?}");
        assert_eq!(code(partition.error_code), ErrorCode::OffsetOutOfRange);
        assert_eq!(broker.produce(client, "t", index, &["new"]).base_offset, 1);
    }
}

#[test]
fn acknowledged_records_survive_a_kill_with_any_number_of_shards() {
    let mut broker = Broker::on_disk(3, Config::default());
    broker.create_topic("t", 8);
    let mut shards = 3;
    for (round, next) in (0..).zip([1, 4, 2]) {
        let client = broker.connect(shards - 1);
        for index in 0..8 {
            let produced = broker.produce(client, "t", index, &["a"]);
            assert_eq!((code(produced.error_code), produced.base_offset), (ErrorCode::None, round));
        }
        broker.restart(next);
        shards = next;
    }
    let client = broker.connect(0);
    for index in 0..8 {
        assert_eq!(broker.fetch(client, "t", index, 0).1, ["a", "a", "a"]);
    }
}

/// The broker was killed when the deletion was durable and the files still existed.
#[test]
fn leftovers_of_a_deleted_topic_are_removed_at_the_next_start() {
    let mut broker = Broker::on_disk(2, Config::default());
    broker.create_topic("t", 4);
    let client = broker.connect(0);
    for index in 0..4 {
        assert_eq!(broker.produce(client, "t", index, &["a"]).error_code, 0);
    }
    let known = broker.partition_logs();
    assert_eq!(known.len(), 4);
    for store_id in 0..2 {
        broker.leave_log(store_id, "p-0123456789abcdef0123456789abcdef-0");
    }
    broker.restart(2);
    assert_eq!(broker.partition_logs(), known);
}

#[test]
fn deleting_a_topic_removes_logs_that_are_not_open() {
    let mut broker = Broker::on_disk(2, Config::default());
    broker.create_topic("t", 4);
    let client = broker.connect(1);
    assert_eq!(broker.produce(client, "t", 0, &["a"]).error_code, 0);
    let topic_names = vec!["t".to_owned()];
    let request = DeleteTopicsRequest { topic_names, ..DeleteTopicsRequest::default() };
    assert_eq!(broker.ask(client, 3, &request).responses[0].error_code, 0);
    assert_eq!(broker.partition_logs(), [""; 0]);
}

/// KIP-467: the response lists the invalid records.
#[test]
fn a_compacted_topic_reports_the_records_without_a_key() {
    let mut broker = Broker::new(1);
    broker.create_topic_with("compact", 1, &[("cleanup.policy", "compact")]);
    let client = broker.connect(0);
    let refused = broker.produce(client, "compact", 0, &["a", "b", "c"]);
    assert_eq!(code(refused.error_code), ErrorCode::InvalidRecord);
    let blamed: Vec<i32> = refused.record_errors.iter().map(|error| error.batch_index).collect();
    assert_eq!(blamed, [0, 1, 2]);
}

/// KIP-734. Timestamps of producers may decrease.
#[test]
fn the_record_with_the_largest_timestamp_is_found_at_any_offset() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 1);
    let client = broker.connect(1);
    let largest = |broker: &mut Broker| offset_at(broker, client, "t", 0, -3).1;
    assert_eq!(largest(&mut broker), -1);
    for (timestamp_ms, wanted) in [(-1, 0), (5, 1), (900, 2), (300, 2), (900, 2), (0, 2), (901, 6)] {
        let request = produce_request("t", 0, batch(timestamp_ms, &["value"]));
        let response = broker.ask(client, 9, &request);
        assert_eq!(response.responses[0].partition_responses[0].error_code, 0);
        assert_eq!(largest(&mut broker), wanted, "behind {timestamp_ms}");
    }
}

/// Otherwise a consumer of a deleted topic would fetch in a busy loop.
#[test]
fn an_unknown_partition_does_not_end_the_wait_for_others() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 1);
    let client = broker.connect(0);
    let mut request = fetch_request("t", 0, 0, 500);
    request.topics.extend(fetch_request("gone", 0, 0, 500).topics);
    broker.send(client, 12, &request);
    broker.run();
    assert!(broker.take::<FetchRequest>(client, 12).is_none());
    broker.pass(600);
    let response = broker.take::<FetchRequest>(client, 12).unwrap();
    let codes: Vec<_> = response.responses.iter().map(|topic| code(topic.partitions[0].error_code)).collect();
    assert_eq!(codes, [ErrorCode::None, ErrorCode::UnknownTopicOrPartition]);
    let alone = broker.ask(client, 12, &fetch_request("gone", 0, 0, 500));
    assert_eq!(code(alone.responses[0].partitions[0].error_code), ErrorCode::UnknownTopicOrPartition);
}

/// A batch of one record of an idempotent producer.
fn numbered(broker: &Broker, base_sequence: i32) -> Vec<u8> {
    let mut builder = BatchBuilder::default();
    builder.push(broker.unix_ms(), None, Some(b"value"));
    let origin = Origin { producer_id: 7, producer_epoch: 0, base_sequence, kind: BatchKind::Plain };
    builder.finish_as(&origin).bytes().to_vec()
}

/// Only the snapshot of the producers knows the batches whose records were deleted.
#[test]
fn a_retry_is_recognized_after_its_records_were_deleted_and_the_power_was_lost() {
    let config = Config { segment_bytes: 1024 * 1024, ..Config::default() };
    let mut broker = Broker::on_disk(2, config);
    broker.create_topic("other", 2);
    for round in 0..20 {
        let topic = format!("t{round}");
        broker.create_topic(&topic, 1);
        let client = broker.connect(round % 2);
        let produce = |broker: &mut Broker, client, sequence| {
            let records = numbered(broker, sequence);
            let response = broker.ask(client, 9, &produce_request(&topic, 0, records));
            let part = &response.responses[0].partition_responses[0];
            (code(part.error_code), part.base_offset)
        };
        for sequence in 0..3 {
            let offset = i64::from(sequence);
            assert_eq!(produce(&mut broker, client, sequence), (ErrorCode::None, offset));
        }
        assert_eq!(delete_before(&mut broker, client, &topic, 0, -1), (ErrorCode::None, 3));
        // Others write so much that the store records the new start of the log.
        for index in 0..2 {
            for _ in 0..4 {
                assert_eq!(broker.produce(client, "other", index, &[&"x".repeat(50_000)]).error_code, 0);
            }
        }
        broker.lose_power(2);
        let client = broker.connect(0);
        assert_eq!(produce(&mut broker, client, 2), (ErrorCode::None, 2), "a retry in round {round}");
        assert_eq!(produce(&mut broker, client, 3), (ErrorCode::None, 3), "the next in round {round}");
    }
}
