//! Idempotent producers and transactions over the wire: across shards, restarts, and power losses at every turn.

mod kit;

use kit::{Broker, Client};
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::add_offsets_to_txn::AddOffsetsToTxnRequest;
use mainstem_kafka::api::add_partitions_to_txn::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use mainstem_kafka::api::describe_producers::{DescribeProducersRequest, TopicRequest};
use mainstem_kafka::api::describe_transactions::DescribeTransactionsRequest;
use mainstem_kafka::api::end_txn::{EndTxnRequest, EndTxnResponse};
use mainstem_kafka::api::fetch::{FetchRequest, FetchResponse};
use mainstem_kafka::api::init_producer_id::{InitProducerIdRequest, InitProducerIdResponse};
use mainstem_kafka::api::list_transactions::ListTransactionsRequest;
use mainstem_kafka::api::offset_fetch::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use mainstem_kafka::api::produce::{PartitionProduceResponse, ProduceRequest};
use mainstem_kafka::api::txn_offset_commit::{
    TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use mainstem_kafka::api::write_txn_markers::{
    WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest,
};
use mainstem_log::{BatchBuilder, BatchKind, Origin};

const TOPIC: &str = "topic";
const ID: &str = "transactional";
const GROUP: &str = "group";
const TIMEOUT_MS: u64 = 10_000;
/// Version of Produce that adds partitions to the transaction implicitly (KIP-890).
const ADDS: i16 = 12;
/// Version of Produce that needs `AddPartitionsToTxn` first.
const ADDED_BEFORE: i16 = 11;

/// A producer as a client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Producer {
    id: i64,
    epoch: i16,
}

const OK: i16 = ErrorCode::None as i16;

fn batch(
    broker: &Broker,
    producer: Producer,
    base_sequence: i32,
    kind: BatchKind,
    values: &[&str],
) -> Vec<u8> {
    let mut builder = BatchBuilder::default();
    for value in values {
        builder.push(broker.unix_ms(), None, Some(value.as_bytes()));
    }
    let Producer { id, epoch } = producer;
    let origin = Origin { producer_id: id, producer_epoch: epoch, base_sequence, kind };
    builder.finish_as(&origin).bytes().to_vec()
}

fn init_request(transactional_id: Option<&str>) -> InitProducerIdRequest {
    InitProducerIdRequest {
        transactional_id: transactional_id.map(Into::into),
        transaction_timeout_ms: TIMEOUT_MS as i32,
        ..InitProducerIdRequest::default()
    }
}

#[track_caller]
fn init(broker: &mut Broker, client: Client, transactional_id: Option<&str>) -> Producer {
    let response: InitProducerIdResponse = broker.ask(client, 5, &init_request(transactional_id));
    assert_eq!(response.error_code, OK);
    Producer { id: response.producer_id, epoch: response.producer_epoch }
}

/// Produces a batch outside any transaction.
#[track_caller]
fn write(
    broker: &mut Broker,
    client: Client,
    producer: Producer,
    sequence: i32,
    values: &[&str],
) -> PartitionProduceResponse {
    let records = batch(broker, producer, sequence, BatchKind::Plain, values);
    let response = broker.ask(client, 9, &kit::produce_request(TOPIC, 0, records));
    response.responses[0].partition_responses[0].clone()
}

fn write_in_transaction_request(
    broker: &Broker,
    producer: Producer,
    index: i32,
    sequence: i32,
    value: &str,
) -> ProduceRequest {
    let records = batch(broker, producer, sequence, BatchKind::Transactional, &[value]);
    ProduceRequest { transactional_id: Some(ID.into()), ..kit::produce_request(TOPIC, index, records) }
}

#[track_caller]
fn write_in_transaction(
    broker: &mut Broker,
    client: Client,
    version: i16,
    producer: Producer,
    (index, sequence): (i32, i32),
    value: &str,
) -> i16 {
    let request = write_in_transaction_request(broker, producer, index, sequence, value);
    let response = broker.ask(client, version, &request);
    response.responses[0].partition_responses[0].error_code
}

fn end_request(producer: Producer, committed: bool) -> EndTxnRequest {
    EndTxnRequest {
        transactional_id: ID.into(),
        producer_id: producer.id,
        producer_epoch: producer.epoch,
        committed,
    }
}

/// Ends a transaction. Returns the producer for the next one.
#[track_caller]
fn end(broker: &mut Broker, client: Client, producer: Producer, committed: bool) -> Producer {
    let response: EndTxnResponse = broker.ask(client, 5, &end_request(producer, committed));
    assert_eq!(response.error_code, OK);
    Producer { id: response.producer_id, epoch: response.producer_epoch }
}

/// The committed records of a partition, and its last stable offset.
#[track_caller]
fn committed(broker: &mut Broker, client: Client, index: i32) -> (Vec<String>, i64) {
    let request = FetchRequest { isolation_level: 1, ..kit::fetch_request(TOPIC, index, 0, 0) };
    let response: FetchResponse = broker.ask(client, 12, &request);
    let partition = &response.responses[0].partitions[0];
    assert_eq!(partition.error_code, OK);
    let mut aborted = partition.aborted_transactions.clone().unwrap_or_default();
    let mut leaving_out: Vec<i64> = Vec::new();
    let mut values = Vec::new();
    for batch in mainstem_log::batches(partition.records.as_deref().unwrap_or_default()) {
        let header = batch.header;
        aborted.retain(|one| {
            let has_begun = one.first_offset < header.end_offset().cast_signed();
            leaving_out.extend(has_begun.then_some(one.producer_id));
            !has_begun
        });
        if header.is_control() {
            leaving_out.retain(|id| *id != header.producer_id);
        } else if !header.is_transactional() || !leaving_out.contains(&header.producer_id) {
            let text = |value: Option<&[u8]>| String::from_utf8_lossy(value.unwrap_or_default()).into_owned();
            values.extend(batch.records().map(|record| text(record.expect("a record").value)));
        }
    }
    (values, partition.last_stable_offset)
}

#[test]
fn producer_ids_are_unique_over_restarts() {
    let mut broker = Broker::new(2);
    let mut ids = Vec::new();
    for round in 0..3 {
        for shard in 0..2 {
            let client = broker.connect(shard);
            for version in 0..=5 {
                let response = broker.ask(client, version, &init_request(None));
                assert_eq!((response.error_code, response.producer_epoch), (OK, 0), "{round}");
                ids.push(response.producer_id);
            }
        }
        broker.crash(2);
    }
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count);
}

#[test]
fn duplicate_batches_are_stored_once_over_restarts() {
    let mut broker = Broker::new(2);
    broker.create_topic(TOPIC, 1);
    let client = broker.connect(1);
    let producer = init(&mut broker, client, None);
    let mut sequence = 0;
    for round in 0..3 {
        let client = broker.connect(round % 2);
        let base = i64::from(sequence);
        for (values, count) in [(&["a", "b"][..], 2), (&["c"][..], 1)] {
            let first = write(&mut broker, client, producer, sequence, values);
            assert_eq!((first.error_code, first.base_offset), (OK, i64::from(sequence)));
            sequence += count;
        }
        for (offset, values) in [(base, &["a", "b"][..]), (base + 2, &["c"][..])] {
            let again = write(&mut broker, client, producer, offset as i32, values);
            assert_eq!((again.error_code, again.base_offset), (OK, offset), "once more");
        }
        let gap = write(&mut broker, client, producer, sequence + 1, &["z"]);
        assert_eq!(gap.error_code, ErrorCode::OutOfOrderSequenceNumber as i16);
        if round == 0 { broker.restart(2) } else { broker.crash(1) }
    }
    let client = broker.connect(0);
    let (_, values) = broker.fetch(client, TOPIC, 0, 0);
    assert_eq!(values, ["a", "b", "c", "a", "b", "c", "a", "b", "c"]);
    let old = Producer { epoch: producer.epoch, ..producer };
    let bumped = Producer { epoch: 1, ..producer };
    assert_eq!(write(&mut broker, client, bumped, 0, &["d"]).error_code, OK);
    let late = write(&mut broker, client, old, sequence, &["z"]);
    assert_eq!(late.error_code, ErrorCode::InvalidProducerEpoch as i16);
}

#[test]
fn a_duplicate_is_not_acknowledged_before_the_original_is_durable() {
    let mut broker = Broker::new(1);
    broker.create_topic(TOPIC, 1);
    let (client, other) = (broker.connect(0), broker.connect(0));
    let producer = init(&mut broker, client, None);
    let records = batch(&broker, producer, 0, BatchKind::Plain, &["a"]);
    broker.set_stuck(true);
    for client in [client, other] {
        broker.send(client, 9, &kit::produce_request(TOPIC, 0, records.clone()));
    }
    broker.run();
    assert_eq!(broker.take::<ProduceRequest>(other, 9), None);
    broker.set_stuck(false);
    broker.run();
    for client in [client, other] {
        let response = broker.take::<ProduceRequest>(client, 9).expect("it is durable");
        let answer = &response.responses[0].partition_responses[0];
        assert_eq!((answer.error_code, answer.base_offset), (OK, 0));
    }
}

#[test]
fn transactions_are_atomic_for_readers_of_committed_records() {
    let mut broker = Broker::new(3);
    broker.create_topic(TOPIC, 4);
    let (client, reader) = (broker.connect(1), broker.connect(2));
    let mut producer = init(&mut broker, client, Some(ID));
    let mut seen: Vec<String> = Vec::new();
    for (round, is_committed) in (0..).zip([true, false, true, false, true]) {
        for index in 0..4 {
            for (sequence, part) in (0..).zip(["first", "second"]) {
                let value = format!("{part} {round}");
                let at = (index, sequence);
                assert_eq!(write_in_transaction(&mut broker, client, ADDS, producer, at, &value), OK);
            }
            assert_eq!(committed(&mut broker, reader, index).0, seen);
        }
        let next = end(&mut broker, client, producer, is_committed);
        assert_eq!(next, Producer { epoch: producer.epoch + 1, ..producer });
        assert_eq!(end(&mut broker, client, producer, is_committed), next, "once more");
        producer = next;
        if is_committed {
            seen.extend(["first", "second"].map(|part| format!("{part} {round}")));
        }
        for index in 0..4 {
            let offsets = 3 * (round + 1);
            assert_eq!(committed(&mut broker, reader, index), (seen.clone(), offsets));
        }
    }
}

#[test]
fn clients_that_add_partitions_explicitly_are_served() {
    let mut broker = Broker::new(2);
    broker.create_topic(TOPIC, 2);
    let client = broker.connect(1);
    let producer = init(&mut broker, client, Some(ID));
    let unasked = write_in_transaction(&mut broker, client, ADDED_BEFORE, producer, (0, 0), "z");
    assert_eq!(unasked, ErrorCode::TransactionAbortable as i16);
    let unasked = write_in_transaction(&mut broker, client, 9, producer, (0, 0), "z");
    assert_eq!(unasked, ErrorCode::InvalidTxnState as i16);
    for (version, sequence) in (0..=3).zip(0..) {
        let topic = |partitions: Vec<i32>| AddPartitionsToTxnTopic { name: TOPIC.into(), partitions };
        let mut add = AddPartitionsToTxnRequest {
            v3_and_below_transactional_id: ID.into(),
            v3_and_below_producer_id: producer.id,
            v3_and_below_producer_epoch: producer.epoch,
            v3_and_below_topics: vec![topic(vec![0, 7])],
            ..AddPartitionsToTxnRequest::default()
        };
        let response = broker.ask(client, version, &add);
        let results = &response.results_by_topic_v3_and_below[0].results_by_partition;
        let codes: Vec<i16> = results.iter().map(|result| result.partition_error_code).collect();
        let unknown = ErrorCode::UnknownTopicOrPartition as i16;
        assert_eq!(codes, [ErrorCode::OperationNotAttempted as i16, unknown]);
        add.v3_and_below_topics = vec![topic(vec![0])];
        let response = broker.ask(client, version, &add);
        let results = &response.results_by_topic_v3_and_below[0].results_by_partition;
        assert_eq!(results[0].partition_error_code, OK);
        let value = format!("{version}");
        let at = (0, sequence);
        assert_eq!(write_in_transaction(&mut broker, client, ADDED_BEFORE, producer, at, &value), OK);
        let response = broker.ask(client, version, &end_request(producer, version != 1));
        assert_eq!(response.error_code, OK);
    }
    assert_eq!(committed(&mut broker, client, 0).0, ["0", "2", "3"]);
}

#[test]
fn partitions_can_be_verified_without_being_added() {
    let mut broker = Broker::new(1);
    broker.create_topic(TOPIC, 2);
    let client = broker.connect(0);
    let producer = init(&mut broker, client, Some(ID));
    assert_eq!(write_in_transaction(&mut broker, client, ADDS, producer, (1, 0), "a"), OK);
    let topics = vec![AddPartitionsToTxnTopic { name: TOPIC.into(), partitions: vec![0, 1] }];
    for version in 4..=5 {
        let transaction = AddPartitionsToTxnTransaction {
            transactional_id: ID.into(),
            producer_id: producer.id,
            producer_epoch: producer.epoch,
            verify_only: true,
            topics: topics.clone(),
        };
        let request = AddPartitionsToTxnRequest {
            transactions: vec![transaction],
            ..AddPartitionsToTxnRequest::default()
        };
        let response = broker.ask(client, version, &request);
        let results = &response.results_by_transaction[0].topic_results[0].results_by_partition;
        let codes: Vec<i16> = results.iter().map(|result| result.partition_error_code).collect();
        assert_eq!(codes, [ErrorCode::TransactionAbortable as i16, OK]);
    }
}

#[test]
fn batches_behind_an_unverified_one_keep_their_order() {
    let mut broker = Broker::new(2);
    broker.create_topic(TOPIC, 2);
    let client = broker.connect(1);
    let producer = init(&mut broker, client, Some(ID));
    for index in 0..2 {
        for sequence in 0..5 {
            let value = format!("{sequence}");
            let request = write_in_transaction_request(&broker, producer, index, sequence, &value);
            broker.send(client, ADDS, &request);
        }
    }
    broker.run();
    for _ in 0..10 {
        let response = broker.take::<ProduceRequest>(client, ADDS).expect("a response");
        assert_eq!(response.responses[0].partition_responses[0].error_code, OK);
    }
    end(&mut broker, client, producer, true);
    for index in 0..2 {
        assert_eq!(committed(&mut broker, client, index).0, ["0", "1", "2", "3", "4"]);
    }
}

#[test]
fn a_replaced_producer_is_fenced_and_its_transaction_aborted() {
    let mut broker = Broker::new(2);
    broker.create_topic(TOPIC, 2);
    let (client, other) = (broker.connect(0), broker.connect(1));
    let old = init(&mut broker, client, Some(ID));
    assert_eq!(write_in_transaction(&mut broker, client, ADDS, old, (0, 0), "old"), OK);
    let new = init(&mut broker, other, Some(ID));
    assert_eq!((new.id, new.epoch), (old.id, old.epoch + 2), "fencing uses one epoch");
    for index in 0..2 {
        let fenced = write_in_transaction(&mut broker, client, ADDS, old, (index, 1 - index), "late");
        assert_eq!(fenced, ErrorCode::InvalidProducerEpoch as i16);
    }
    for (version, code) in [(1, ErrorCode::InvalidProducerEpoch), (5, ErrorCode::ProducerFenced)] {
        assert_eq!(broker.ask(client, version, &end_request(old, true)).error_code, code as i16);
    }
    assert_eq!(write_in_transaction(&mut broker, other, ADDS, new, (0, 0), "new"), OK);
    end(&mut broker, other, new, true);
    assert_eq!(committed(&mut broker, client, 0).0, ["new"]);
}

#[test]
fn a_transaction_that_times_out_is_aborted() {
    let mut broker = Broker::new(2);
    broker.create_topic(TOPIC, 1);
    let client = broker.connect(1);
    let producer = init(&mut broker, client, Some(ID));
    assert_eq!(write_in_transaction(&mut broker, client, ADDS, producer, (0, 0), "a"), OK);
    broker.crash(2);
    let client = broker.connect(1);
    broker.pass(TIMEOUT_MS / 2);
    assert_eq!(committed(&mut broker, client, 0), (vec![], 0));
    broker.pass(TIMEOUT_MS);
    assert_eq!(committed(&mut broker, client, 0), (vec![], 2));
    let response = broker.ask(client, 5, &end_request(producer, true));
    assert_eq!(response.error_code, ErrorCode::ProducerFenced as i16);
}

/// Commits an offset as part of a transaction.
#[track_caller]
fn commit_offset(broker: &mut Broker, client: Client, version: i16, producer: Producer, offset: i64) -> i16 {
    let partition = TxnOffsetCommitRequestPartition {
        partition_index: 0,
        committed_offset: offset,
        ..TxnOffsetCommitRequestPartition::default()
    };
    let topics = vec![TxnOffsetCommitRequestTopic { name: TOPIC.into(), partitions: vec![partition] }];
    let request = TxnOffsetCommitRequest {
        transactional_id: ID.into(),
        group_id: GROUP.into(),
        producer_id: producer.id,
        producer_epoch: producer.epoch,
        topics,
        ..TxnOffsetCommitRequest::default()
    };
    broker.ask(client, version, &request).topics[0].partitions[0].error_code
}

/// The group's offset, -1 for none, and its error code.
#[track_caller]
fn offset_of_group(broker: &mut Broker, client: Client) -> (i64, i16) {
    let topic = OffsetFetchRequestTopics {
        name: TOPIC.into(),
        partition_indexes: vec![0],
        ..OffsetFetchRequestTopics::default()
    };
    let group = OffsetFetchRequestGroup {
        group_id: GROUP.into(),
        topics: Some(vec![topic]),
        ..OffsetFetchRequestGroup::default()
    };
    let request =
        OffsetFetchRequest { groups: vec![group], require_stable: true, ..OffsetFetchRequest::default() };
    let response = broker.ask(client, 8, &request);
    let partition = &response.groups[0].topics[0].partitions[0];
    (partition.committed_offset, partition.error_code)
}

#[test]
fn group_offsets_apply_when_their_transaction_commits() {
    let mut broker = Broker::new(2);
    broker.create_topic(TOPIC, 1);
    let client = broker.connect(1);
    let mut producer = init(&mut broker, client, Some(ID));
    let unasked = commit_offset(&mut broker, client, 4, producer, 7);
    assert_eq!(unasked, ErrorCode::TransactionAbortable as i16);
    assert_eq!(commit_offset(&mut broker, client, 3, producer, 7), ErrorCode::InvalidTxnState as i16);
    let unstable = (-1, ErrorCode::UnstableOffsetCommit as i16);
    assert_eq!(commit_offset(&mut broker, client, 5, producer, 5), OK);
    assert_eq!(offset_of_group(&mut broker, client), unstable);
    producer = end(&mut broker, client, producer, false);
    assert_eq!(offset_of_group(&mut broker, client), (-1, OK));
    for version in 0..=5 {
        let add = AddOffsetsToTxnRequest {
            transactional_id: ID.into(),
            producer_id: producer.id,
            producer_epoch: producer.epoch,
            group_id: GROUP.into(),
        };
        assert_eq!(broker.ask(client, version.min(4), &add).error_code, OK);
        let offset = 10 + i64::from(version);
        assert_eq!(commit_offset(&mut broker, client, version, producer, offset), OK);
        assert_eq!(offset_of_group(&mut broker, client), unstable);
        producer = end(&mut broker, client, producer, true);
        assert_eq!(offset_of_group(&mut broker, client), (offset, OK));
    }
}

#[test]
fn transactions_and_producers_are_described_and_aborted_by_administrators() {
    let mut broker = Broker::new(2);
    broker.create_topic(TOPIC, 1);
    let client = broker.connect(1);
    let producer = init(&mut broker, client, Some(ID));
    assert_eq!(write_in_transaction(&mut broker, client, ADDS, producer, (0, 0), "a"), OK);
    let describe = DescribeTransactionsRequest { transactional_ids: vec![ID.into(), "other".into()] };
    let described = broker.ask(client, 0, &describe).transaction_states;
    assert_eq!(described[0].transaction_state, "Ongoing");
    assert_eq!(
        (described[0].topics[0].topic.as_str(), &described[0].topics[0].partitions[..]),
        (TOPIC, &[0][..])
    );
    assert_eq!(described[1].error_code, ErrorCode::TransactionalIdNotFound as i16);
    for (pattern, states, count) in
        [("trans.*", &["Ongoing"][..], 1), ("tran", &[], 0), ("", &["Empty", "Nonsense"], 0), ("", &[], 1)]
    {
        let list = ListTransactionsRequest {
            transactional_id_pattern: Some(pattern.into()),
            state_filters: states.iter().map(|state| (*state).into()).collect(),
            ..ListTransactionsRequest::default()
        };
        let listed = broker.ask(client, 2, &list);
        assert_eq!((listed.error_code, listed.transaction_states.len()), (OK, count), "{pattern:?}");
        let unknown: &[String] = if states.len() == 2 { &["Nonsense".into()] } else { &[] };
        assert_eq!(listed.unknown_state_filters, unknown);
    }
    let wrong = ListTransactionsRequest {
        transactional_id_pattern: Some("(".into()),
        ..ListTransactionsRequest::default()
    };
    let listed = broker.ask(client, 2, &wrong);
    assert_eq!(listed.error_code, ErrorCode::InvalidRegularExpression as i16);
    let topics = vec![TopicRequest { name: TOPIC.into(), partition_indexes: vec![0, 1] }];
    let partitions = broker.ask(client, 0, &DescribeProducersRequest { topics }).topics[0].partitions.clone();
    let known = &partitions[0].active_producers[0];
    assert_eq!((known.producer_id, known.last_sequence, known.current_txn_start_offset), (producer.id, 0, 0));
    assert_eq!(partitions[1].error_code, ErrorCode::UnknownTopicOrPartition as i16);
    for version in 1..=2 {
        let marker = WritableTxnMarker {
            producer_id: producer.id,
            producer_epoch: producer.epoch,
            transaction_result: false,
            topics: vec![WritableTxnMarkerTopic { name: TOPIC.into(), partition_indexes: vec![0] }],
            coordinator_epoch: 0,
            ..WritableTxnMarker::default()
        };
        let request = WriteTxnMarkersRequest { markers: vec![marker] };
        let response = broker.ask(client, version, &request);
        assert_eq!(response.markers[0].topics[0].partitions[0].error_code, OK);
    }
    assert_eq!(committed(&mut broker, client, 0), (vec![], 3));
}

/// The power fails `turns` turns after a transaction over all partitions and a group starts to commit or abort. Every
/// acknowledged result holds, and a retried request takes effect once.
fn lose_power_after(turns: usize, is_committed: bool) {
    let mut broker = Broker::new(3);
    broker.create_topic(TOPIC, 4);
    let client = broker.connect(1);
    let mut producer = init(&mut broker, client, Some(ID));
    for index in 0..4 {
        assert_eq!(write_in_transaction(&mut broker, client, ADDS, producer, (index, 0), "a"), OK);
    }
    assert_eq!(commit_offset(&mut broker, client, 5, producer, 9), OK);
    broker.send(client, 5, &end_request(producer, is_committed));
    broker.turn(turns);
    let acknowledged = broker.take::<mainstem_kafka::api::end_txn::EndTxnRequest>(client, 5);
    broker.crash(1 + turns % 3);
    let client = broker.connect(0);
    let response = broker.ask(client, 5, &end_request(producer, is_committed));
    assert_eq!(response.error_code, OK, "after {turns} turns");
    if let Some(acknowledged) = acknowledged {
        assert_eq!(
            (acknowledged.producer_id, acknowledged.producer_epoch),
            (response.producer_id, response.producer_epoch)
        );
    }
    producer = Producer { id: response.producer_id, epoch: response.producer_epoch };
    let expected: &[&str] = if is_committed { &["a"] } else { &[] };
    for index in 0..4 {
        assert_eq!(committed(&mut broker, client, index).0, expected, "after {turns} turns");
        assert_eq!(write_in_transaction(&mut broker, client, ADDS, producer, (index, 0), "b"), OK);
    }
    let offset = if is_committed { 9 } else { -1 };
    assert_eq!(offset_of_group(&mut broker, client), (offset, OK), "after {turns} turns");
    end(&mut broker, client, producer, true);
    for index in 0..4 {
        let expected: &[&str] = if is_committed { &["a", "b"] } else { &["b"] };
        assert_eq!(committed(&mut broker, client, index).0, expected, "after {turns} turns");
    }
}

#[test]
fn a_transaction_ends_once_after_a_power_loss_at_any_turn() {
    for turns in 0..16 {
        lose_power_after(turns, true);
        lose_power_after(turns, false);
    }
}

/// The power fails `turns` turns after the batches of a transaction are sent. The producer retries all of them.
fn lose_power_while_writing(turns: usize) {
    let mut broker = Broker::new(3);
    broker.create_topic(TOPIC, 4);
    let client = broker.connect(1);
    let producer = init(&mut broker, client, Some(ID));
    let all: Vec<(i32, i32)> =
        (0..2).flat_map(|sequence| (0..4).map(move |index| (index, sequence))).collect();
    for (index, sequence) in &all {
        let value = format!("{sequence}");
        let request = write_in_transaction_request(&broker, producer, *index, *sequence, &value);
        broker.send(client, ADDS, &request);
    }
    broker.turn(turns);
    broker.crash(1 + turns % 3);
    let client = broker.connect(0);
    for at in all {
        let value = format!("{}", at.1);
        assert_eq!(write_in_transaction(&mut broker, client, ADDS, producer, at, &value), OK);
    }
    end(&mut broker, client, producer, true);
    for index in 0..4 {
        assert_eq!(committed(&mut broker, client, index).0, ["0", "1"], "after {turns} turns");
    }
}

#[test]
fn batches_of_a_transaction_are_stored_once_after_a_power_loss_at_any_turn() {
    (0..16).for_each(lose_power_while_writing);
}
