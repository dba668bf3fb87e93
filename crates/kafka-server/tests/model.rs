//! Property test: random operations on topics and partitions, with kills, against a plain model in memory.

mod kit;

use std::collections::BTreeMap;

use kit::Broker;
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::create_partitions::{CreatePartitionsRequest, CreatePartitionsTopic};
use mainstem_kafka::api::create_topics::{CreatableTopic, CreateTopicsRequest};
use mainstem_kafka::api::delete_records::{DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic};
use mainstem_kafka::api::delete_topics::DeleteTopicsRequest;
use mainstem_kafka_server::Config;
use proptest::prelude::*;

const NAMES: [&str; 3] = ["a", "b", "c"];

/// One operation.
#[derive(Clone, Debug)]
enum Step {
    Create { topic: usize, partitions: i32 },
    AddPartitions { topic: usize, partitions: i32 },
    Delete { topic: usize },
    Produce { topic: usize, index: i32 },
    DeleteRecords { topic: usize, index: i32, offset: i64 },
    Restart { shards: usize },
    Reconnect { shard: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let topic = 0..NAMES.len();
    prop_oneof![
        2 => (topic.clone(), 1..5).prop_map(|(topic, partitions)| Step::Create { topic, partitions }),
        1 => (topic.clone(), 1..7).prop_map(|(topic, partitions)| Step::AddPartitions { topic, partitions }),
        1 => topic.clone().prop_map(|topic| Step::Delete { topic }),
        8 => (topic.clone(), 0..6).prop_map(|(topic, index)| Step::Produce { topic, index }),
        1 => (topic, 0..6, -1..6_i64)
            .prop_map(|(topic, index, offset)| Step::DeleteRecords { topic, index, offset }),
        1 => (1..4_usize).prop_map(|shards| Step::Restart { shards }),
        1 => (0..4_usize).prop_map(|shard| Step::Reconnect { shard }),
    ]
}

/// A partition: its log start offset and all records ever appended.
#[derive(Clone, Debug, Default)]
struct Partition {
    start: usize,
    values: Vec<String>,
}

type Model = BTreeMap<&'static str, Vec<Partition>>;

/// A broker and its model.
struct Pair {
    broker: Broker,
    model: Model,
    shards: usize,
    /// Shard of the next connection.
    shard: usize,
    produced: usize,
}

impl Pair {
    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Create { topic, partitions } => self.create(NAMES[topic], partitions),
            Step::AddPartitions { topic, partitions } => self.add_partitions(NAMES[topic], partitions),
            Step::Delete { topic } => self.delete(NAMES[topic]),
            Step::Produce { topic, index } => self.produce(NAMES[topic], index),
            Step::DeleteRecords { topic, index, offset } => self.delete_records(NAMES[topic], index, offset),
            Step::Restart { shards } => {
                self.broker.restart(shards);
                self.shards = shards;
            }
            Step::Reconnect { shard } => self.shard = shard,
        }
    }

    fn client(&mut self) -> kit::Client {
        self.broker.connect(self.shard % self.shards)
    }

    fn create(&mut self, name: &'static str, num_partitions: i32) {
        let topic = CreatableTopic {
            name: name.into(),
            num_partitions,
            replication_factor: -1,
            ..CreatableTopic::default()
        };
        let client = self.client();
        let request = CreateTopicsRequest { topics: vec![topic], ..CreateTopicsRequest::default() };
        let result = self.broker.ask(client, 7, &request).topics[0].error_code;
        if self.model.contains_key(name) {
            assert_eq!(result, ErrorCode::TopicAlreadyExists.code());
        } else {
            assert_eq!(result, 0);
            self.model.insert(name, vec![Partition::default(); num_partitions.unsigned_abs() as usize]);
        }
    }

    fn add_partitions(&mut self, name: &'static str, count: i32) {
        let topics = vec![CreatePartitionsTopic { name: name.into(), count, assignments: None }];
        let client = self.client();
        let request = CreatePartitionsRequest { topics, ..CreatePartitionsRequest::default() };
        let result = self.broker.ask(client, 3, &request).results[0].error_code;
        let count = count.unsigned_abs() as usize;
        match self.model.get_mut(name) {
            None => assert_eq!(result, ErrorCode::UnknownTopicOrPartition.code()),
            Some(partitions) if partitions.len() >= count => {
                assert_eq!(result, ErrorCode::InvalidPartitions.code());
            }
            Some(partitions) => {
                assert_eq!(result, 0);
                partitions.resize(count, Partition::default());
            }
        }
    }

    fn delete(&mut self, name: &'static str) {
        let client = self.client();
        let request =
            DeleteTopicsRequest { topic_names: vec![name.into()], ..DeleteTopicsRequest::default() };
        let result = self.broker.ask(client, 4, &request).responses[0].error_code;
        let is_known = self.model.remove(name).is_some();
        assert_eq!(result, if is_known { 0 } else { ErrorCode::UnknownTopicOrPartition.code() });
    }

    fn produce(&mut self, name: &'static str, index: i32) {
        self.produced += 1;
        let value = self.produced.to_string();
        let client = self.client();
        let result = self.broker.produce(client, name, index, &[&value]);
        match self.model.get_mut(name).and_then(|all| all.get_mut(index.unsigned_abs() as usize)) {
            None => assert_eq!(result.error_code, ErrorCode::UnknownTopicOrPartition.code()),
            Some(partition) => {
                assert_eq!(result.error_code, 0);
                assert_eq!(usize::try_from(result.base_offset), Ok(partition.values.len()));
                partition.values.push(value);
            }
        }
    }

    fn delete_records(&mut self, name: &'static str, partition_index: i32, offset: i64) {
        let partitions = vec![DeleteRecordsPartition { partition_index, offset }];
        let topics = vec![DeleteRecordsTopic { name: name.into(), partitions }];
        let client = self.client();
        let request = DeleteRecordsRequest { topics, ..DeleteRecordsRequest::default() };
        let response = self.broker.ask(client, 2, &request);
        let result = &response.topics[0].partitions[0];
        let index = partition_index.unsigned_abs() as usize;
        match self.model.get_mut(name).and_then(|all| all.get_mut(index)) {
            None => assert_eq!(result.error_code, ErrorCode::UnknownTopicOrPartition.code()),
            Some(partition) => {
                let end = partition.values.len();
                let to = usize::try_from(offset).unwrap_or(end);
                if to > end {
                    assert_eq!(result.error_code, ErrorCode::OffsetOutOfRange.code());
                } else {
                    partition.start = partition.start.max(to);
                    assert_eq!(result.error_code, 0);
                    // A kill may have restored deleted records.
                    let low = usize::try_from(result.low_watermark).expect("an offset");
                    assert!((to..=partition.start).contains(&low), "{low}");
                }
            }
        }
    }

    /// Asserts that the broker has the topics and records of the model, and no others.
    fn check(&mut self) {
        let client = self.client();
        let metadata = self.broker.metadata(client, None);
        let names = metadata.topics.iter().map(|topic| topic.name.clone().unwrap_or_default());
        assert_eq!(names.collect::<Vec<_>>(), self.model.keys().copied().collect::<Vec<_>>());
        let mut logs = 0;
        for (name, partitions) in self.model.clone() {
            let known = metadata.topics.iter().find(|topic| topic.name.as_deref() == Some(name));
            assert_eq!(known.map(|topic| topic.partitions.len()), Some(partitions.len()));
            for (index, partition) in (0..).zip(partitions) {
                let offset = i64::try_from(partition.start).expect("a small number");
                let (response, values) = self.broker.fetch(client, name, index, offset);
                assert_eq!(response.responses[0].partitions[0].error_code, 0);
                assert_eq!(values, partition.values[partition.start..]);
                logs += usize::from(!partition.values.is_empty());
            }
        }
        assert_eq!(self.broker.partition_logs().len(), logs);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_broker_agrees_with_the_model(steps in prop::collection::vec(step(), 1..60)) {
        let broker = Broker::on_disk(2, Config::default());
        let mut pair = Pair { broker, model: Model::new(), shards: 2, shard: 0, produced: 0 };
        for step in &steps {
            pair.apply(step);
        }
        pair.check();
        pair.apply(&Step::Restart { shards: 2 });
        pair.check();
    }
}
