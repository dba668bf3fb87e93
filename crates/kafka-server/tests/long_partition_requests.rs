//! Requests over thousands of partitions of topics, large and small: they are handled in parts, other clients are
//! served in between, and the response is that of small requests for the same partitions.

mod kit;

use std::collections::BTreeMap;

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
use mainstem_kafka::api::offset_fetch::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
    OffsetFetchResponse,
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

/// Commits an offset of each partition of a group, which must be divided. Returns how many exist.
fn commit_all(world: &mut World, versions: &[i16]) -> usize {
    let partition = |partition_index| OffsetCommitRequestPartition {
        partition_index,
        committed_offset: i64::from(partition_index) + 10,
        ..OffsetCommitRequestPartition::default()
    };
    let topic = |name, topic_id, partitions| OffsetCommitRequestTopic { name, topic_id, partitions };
    let topics = world.all(partition, topic);
    let request = OffsetCommitRequest { group_id: "group".into(), topics, ..Default::default() };
    check_both_ways!(*world, versions.iter().copied(), request, partitions)
}

#[test]
fn offsets_are_committed_in_parts() {
    let mut world = World::new();
    assert_eq!(commit_all(&mut world, &[7, 9, 10]), existing());
}

/// Topics of a group with their partitions; `None` for all offsets of the group.
type Topics = Option<Vec<(String, Uuid, Vec<i32>)>>;
/// The offset and error code of each partition.
type PartitionOffsets = Vec<(i32, i64, i16)>;
/// The same by name or identifier of the topic.
type Offsets = BTreeMap<String, PartitionOffsets>;

/// An OffsetFetch in this version; up to version 7 it has one group.
fn offset_fetch(version: i16, groups: &[(&str, Topics)]) -> OffsetFetchRequest {
    if version < 8 {
        let [(group_id, topics)] = groups else { panic!("one group") };
        let topic = |(name, _, partition_indexes): (String, Uuid, Vec<i32>)| OffsetFetchRequestTopic {
            name,
            partition_indexes,
        };
        let topics = topics.clone().map(|topics| topics.into_iter().map(topic).collect());
        return OffsetFetchRequest { group_id: (*group_id).into(), topics, ..Default::default() };
    }
    let topic = |(name, topic_id, partition_indexes): (String, Uuid, Vec<i32>)| OffsetFetchRequestTopics {
        name,
        topic_id,
        partition_indexes,
    };
    let group = |(group_id, topics): &(&str, Topics)| OffsetFetchRequestGroup {
        group_id: (*group_id).into(),
        topics: topics.clone().map(|topics| topics.into_iter().map(topic).collect()),
        ..OffsetFetchRequestGroup::default()
    };
    OffsetFetchRequest { groups: groups.iter().map(group).collect(), ..Default::default() }
}

/// The groups of a response. Each topic must occur once in a group.
fn offsets(version: i16, response: OffsetFetchResponse) -> Vec<Offsets> {
    let collect = |topics: Vec<(String, PartitionOffsets)>| {
        let count = topics.len();
        let topics: Offsets = topics.into_iter().collect();
        assert_eq!(topics.len(), count, "a topic occurs twice");
        topics
    };
    if version < 8 {
        assert_eq!(response.error_code, 0);
        let topics = response.topics.into_iter().map(|topic| {
            let partitions = topic.partitions.iter();
            let partitions = partitions.map(|at| (at.partition_index, at.committed_offset, at.error_code));
            (topic.name, partitions.collect())
        });
        return vec![collect(topics.collect())];
    }
    let groups = response.groups.into_iter().map(|group| {
        assert_eq!(group.error_code, 0);
        let topics = group.topics.into_iter().map(|topic| {
            let partitions = topic.partitions.iter();
            let partitions = partitions.map(|at| (at.partition_index, at.committed_offset, at.error_code));
            (if version < 10 { topic.name } else { topic.topic_id.to_string() }, partitions.collect())
        });
        collect(topics.collect())
    });
    groups.collect()
}

#[test]
fn offsets_are_fetched_in_parts() {
    let mut world = World::new();
    commit_all(&mut world, &[9]);
    let all = world.all(|index| index, |name, id, partitions| (name, id, partitions));
    let client = world.broker.connect(0);
    for version in [1, 5, 7, 8, 9, 10] {
        let mut expected = Offsets::new();
        for (name, id, partitions) in &all {
            for part in partitions.chunks(100) {
                let topics = Some(vec![(name.clone(), *id, part.to_vec())]);
                let small = offset_fetch(version, &[("group", topics)]);
                let response = world.broker.ask(client, version, &small);
                for (topic, offsets) in offsets(version, response).remove(0) {
                    expected.entry(topic).or_default().extend(offsets);
                }
            }
        }
        let request = offset_fetch(version, &[("group", Some(all.clone()))]);
        let response = ask_in_parts(&mut world.broker, version, &request);
        let expected = vec![expected];
        assert!(offsets(version, response) == expected, "version {version}");
        if version == 1 {
            continue;
        }
        let mut committed = expected[0].clone();
        committed.retain(|_, offsets| {
            offsets.retain(|(_, offset, _)| *offset >= 0);
            !offsets.is_empty()
        });
        assert_eq!(committed.values().map(Vec::len).sum::<usize>(), existing());
        let response = ask_in_parts(&mut world.broker, version, &offset_fetch(version, &[("group", None)]));
        assert!(offsets(version, response) == vec![committed.clone()], "all offsets in version {version}");
        if version >= 8 {
            let few = Some(all[..3].to_vec());
            let groups = [("group", few.clone()), ("none", None), ("group", None), ("group", few)];
            let response = ask_in_parts(&mut world.broker, version, &offset_fetch(version, &groups));
            let lens: Vec<usize> = offsets(version, response).iter().map(Offsets::len).collect();
            assert_eq!(lens, [3, 0, committed.len(), 3]);
        }
    }
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
