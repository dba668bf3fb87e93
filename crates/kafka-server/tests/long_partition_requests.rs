//! Requests over thousands of partitions of topics, large and small: they are handled in parts, other clients are
//! served in between, and the response is that of small requests for the same partitions.

mod kit;

use kit::turns::ask_in_parts;
use kit::{Broker, batch};
use mainstem_kafka::Uuid;
use mainstem_kafka::api::create_topics::{CreatableTopic, CreateTopicsRequest};
use mainstem_kafka::api::delete_records::{DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic};
use mainstem_kafka::api::describe_producers::{DescribeProducersRequest, TopicRequest};
use mainstem_kafka::api::describe_transactions::DescribeTransactionsRequest;
use mainstem_kafka::api::init_producer_id::InitProducerIdRequest;
use mainstem_kafka::api::list_offsets::{ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic};
use mainstem_kafka::api::metadata::MetadataRequest;
use mainstem_kafka::api::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_kafka::api::offset_for_leader_epoch::{
    OffsetForLeaderEpochRequest, OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use mainstem_kafka::api::produce::{PartitionProduceData, ProduceRequest, TopicProduceData};
use mainstem_kafka::api::txn_offset_commit::{
    TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};

/// Partitions of the large topic, which is between small ones. The requests name some more.
const LARGE: i32 = 2_500;
const MORE: i32 = 7;
const SMALL_TOPICS: usize = 300;

/// A broker with a record in each partition of the large topic.
struct World {
    broker: Broker,
    /// Name and identifier of each topic, one of them unknown, and the number of partitions that requests name.
    topics: Vec<(String, Uuid, i32)>,
}

impl World {
    fn new() -> Self {
        let mut broker = Broker::new(2);
        let small = (0..SMALL_TOPICS).map(|index| (format!("topic-{index}"), 2));
        let mut all: Vec<(String, i32)> = small.collect();
        all.insert(SMALL_TOPICS / 2, ("large".into(), LARGE));
        let topic = |(name, partitions): &(String, i32)| CreatableTopic {
            name: name.clone(),
            num_partitions: *partitions,
            replication_factor: 1,
            ..CreatableTopic::default()
        };
        let client = broker.connect(0);
        let request = CreateTopicsRequest { topics: all.iter().map(topic).collect(), ..Default::default() };
        broker.ask(client, 7, &request);
        let known = broker.ask(client, 12, &MetadataRequest { topics: None, ..Default::default() }).topics;
        let id_of = |name: &str| known.iter().find(|topic| topic.name.as_deref() == Some(name));
        let with_id = |(name, partitions): (String, i32)| {
            let id = id_of(&name).unwrap().topic_id;
            (name, id, partitions + MORE)
        };
        let mut topics: Vec<_> = all.into_iter().map(with_id).collect();
        topics.push(("unknown".into(), Uuid([7; 16]), LARGE));
        let records = batch(broker.unix_ms(), &["a", "b"]);
        let partition = |index| PartitionProduceData { index, records: Some(records.clone()) };
        let data = TopicProduceData {
            name: "large".into(),
            partition_data: (0..LARGE).map(partition).collect(),
            ..TopicProduceData::default()
        };
        let request =
            ProduceRequest { acks: -1, timeout_ms: 30_000, topic_data: vec![data], ..Default::default() };
        broker.ask(client, 9, &request);
        Self { broker, topics }
    }

    /// All topics of a request, each with its partitions.
    fn all<T, P>(&self, partition: impl Fn(i32) -> P, topic: impl Fn(String, Uuid, Vec<P>) -> T) -> Vec<T> {
        let topics = self.topics.iter().cloned();
        topics.map(|(name, id, count)| topic(name, id, (0..count).map(&partition).collect())).collect()
    }
}

/// Sends a request in each of these versions, and the same partitions in small requests. The responses must be equal.
/// Returns the number of partitions in the last of them whose error code is zero.
macro_rules! check_both_ways {
    ($world:expr, $versions:expr, $request:expr, $partitions:ident) => {{
        let (world, request) = (&mut $world, $request);
        let mut accepted = 0;
        for version in $versions {
            let whole = ask_in_parts(&mut world.broker, version, &request);
            let client = world.broker.connect(0);
            let mut joined = Vec::new();
            for topic in &request.topics {
                let mut pieces = topic.$partitions.chunks(100).map(|piece| {
                    let mut small = request.clone();
                    small.topics = vec![topic.clone()];
                    small.topics[0].$partitions = piece.to_vec();
                    world.broker.ask(client, version, &small).topics.remove(0)
                });
                let mut first = pieces.next().unwrap();
                pieces.for_each(|piece| first.partitions.extend(piece.partitions));
                joined.push(first);
            }
            let differing = whole.topics.iter().zip(&joined).position(|(one, other)| one != other);
            assert_eq!((differing, whole.topics.len()), (None, joined.len()), "version {version}");
            let partitions = joined.iter().flat_map(|topic| &topic.partitions);
            accepted = partitions.filter(|partition| partition.error_code == 0).count();
        }
        accepted
    }};
}

/// Number of partitions that exist.
fn existing() -> usize {
    LARGE as usize + 2 * SMALL_TOPICS
}

#[test]
fn queries_to_partitions_are_answered_in_parts() {
    let mut world = World::new();
    let partition =
        |partition_index| ListOffsetsPartition { partition_index, timestamp: -1, ..Default::default() };
    let topics = world.all(partition, |name, _, partitions| ListOffsetsTopic { name, partitions });
    let request = ListOffsetsRequest { topics, replica_id: -1, ..Default::default() };
    assert_eq!(check_both_ways!(world, [5, 6], request, partitions), existing());

    let partition = |partition| OffsetForLeaderPartition { partition, ..Default::default() };
    let topics = world.all(partition, |topic, _, partitions| OffsetForLeaderTopic { topic, partitions });
    let request = OffsetForLeaderEpochRequest { topics, replica_id: -2 };
    assert_eq!(check_both_ways!(world, [3, 4], request, partitions), existing());

    let topics =
        world.all(|index| index, |name, _, partition_indexes| TopicRequest { name, partition_indexes });
    let request = DescribeProducersRequest { topics };
    assert_eq!(check_both_ways!(world, [0], request, partition_indexes), existing());

    let partition = |partition_index| DeleteRecordsPartition { partition_index, offset: -1 };
    let topics = world.all(partition, |name, _, partitions| DeleteRecordsTopic { name, partitions });
    let request = DeleteRecordsRequest { topics, timeout_ms: 1_000 };
    assert_eq!(check_both_ways!(world, [1, 2], request, partitions), existing());
}

#[test]
fn offsets_are_committed_in_parts() {
    let mut world = World::new();
    let partition = |partition_index| OffsetCommitRequestPartition {
        partition_index,
        committed_offset: i64::from(partition_index) + 10,
        ..OffsetCommitRequestPartition::default()
    };
    let topic = |name, topic_id, partitions| OffsetCommitRequestTopic { name, topic_id, partitions };
    let topics = world.all(partition, topic);
    let request = OffsetCommitRequest { group_id: "group".into(), topics, ..Default::default() };
    assert_eq!(check_both_ways!(world, [7, 9, 10], request, partitions), existing());
}

#[test]
fn offsets_are_committed_in_parts_within_a_transaction() {
    let mut world = World::new();
    let client = world.broker.connect(0);
    let init = InitProducerIdRequest {
        transactional_id: Some("tx".into()),
        transaction_timeout_ms: 60_000,
        producer_id: -1,
        producer_epoch: -1,
    };
    let producer = world.broker.ask::<InitProducerIdRequest>(client, 4, &init);
    let partition = |partition_index| TxnOffsetCommitRequestPartition {
        partition_index,
        committed_offset: 1,
        ..TxnOffsetCommitRequestPartition::default()
    };
    let topics = world.all(partition, |name, _, partitions| TxnOffsetCommitRequestTopic { name, partitions });
    let request = TxnOffsetCommitRequest {
        transactional_id: "tx".into(),
        group_id: "group".into(),
        producer_id: producer.producer_id,
        producer_epoch: producer.producer_epoch,
        topics,
        ..TxnOffsetCommitRequest::default()
    };
    // Version 5 adds the group to the transaction.
    assert_eq!(check_both_ways!(world, [5, 2], request, partitions), existing());
}

#[test]
fn transactions_are_described_in_parts() {
    let mut broker = Broker::new(2);
    let transactional_ids: Vec<String> = (0..500).map(|index| format!("tx-{index}")).collect();
    let request = DescribeTransactionsRequest { transactional_ids: transactional_ids.clone() };
    let response = ask_in_parts(&mut broker, 0, &request);
    let described = response.transaction_states.into_iter().map(|state| state.transactional_id);
    assert!(described.eq(transactional_ids), "in the order of the request");
}
