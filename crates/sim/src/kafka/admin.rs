//! An administrator with a topic of its own, which it makes, fills, grows, configures, empties and deletes, and looks
//! at in between. It also deletes records of the topics that others use.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::create_partitions::{CreatePartitionsRequest, CreatePartitionsTopic};
use mainstem_kafka::api::create_topics::{CreatableTopic, CreatableTopicConfig, CreateTopicsRequest};
use mainstem_kafka::api::delete_records::{DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic};
use mainstem_kafka::api::delete_topics::DeleteTopicsRequest;
use mainstem_kafka::api::describe_configs::{DescribeConfigsRequest, DescribeConfigsResource};
use mainstem_kafka::api::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use mainstem_kafka::api::list_offsets::{ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic};
use mainstem_kafka::api::metadata::{MetadataRequest, MetadataRequestTopic};
use mainstem_kafka::api::produce::{PartitionProduceData, ProduceRequest, TopicProduceData};
use mainstem_log::BatchKind;

use super::client::{self, Client, Desk, named};
use super::ledger::{Ledger, Part};
use super::wire::Response;
use crate::ledger::Violation;

/// The key of the configuration that it changes.
const KEY: &str = "max.message.bytes";
/// Stands for a topic.
const TOPIC: i8 = 2;
/// Kafka's number for "set this".
const SET: i8 = 0;
/// Kafka's number for "the end" where offsets are asked for.
const LATEST: i64 = -1;
const PARTITIONS_MAX: i32 = 5;

/// The topic, as it may be.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shape {
    partitions: i32,
    value: u32,
    /// Records in its first partition: those that are there for certain, and those that were sent.
    records: (i64, i64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Make,
    Fill,
    Grow,
    Set,
    Delete,
    LookAtPartitions,
    LookAtValue,
    LookAtEnd,
    DeleteRecords(Part),
}

#[derive(Debug)]
pub(crate) struct Admin {
    name: String,
    /// The topic; two if the last change may have happened or not.
    maybe: Vec<Option<Shape>>,
    /// Until so many brokers have ended, it may turn out to be another than is seen: a change has failed.
    unsure_until: u64,
    /// What becomes of it with the change that is asked for.
    then: Option<Shape>,
    asked: Option<Asked>,
}

impl Admin {
    pub(crate) fn new(index: usize) -> Self {
        Self { name: format!("a{index}"), maybe: vec![None], unsure_until: 0, then: None, asked: None }
    }

    fn choose(&mut self, desk: &mut Desk<'_>) -> Option<Asked> {
        let is_certain = self.maybe.len() == 1;
        if desk.is_ending && is_certain {
            return None;
        }
        let looks = [Asked::LookAtPartitions, Asked::LookAtValue, Asked::LookAtEnd];
        let look = looks[desk.dice.below(3) as usize];
        if desk.dice.chance(15) && !desk.is_ending {
            let part = desk.any_part();
            return Some(Asked::DeleteRecords(part));
        }
        match (&self.maybe[..], desk.dice.below(10)) {
            ([None], 0..6) => Some(Asked::Make),
            ([None], _) => Some(Asked::LookAtPartitions),
            ([Some(_)], 0..2) => Some(Asked::Fill),
            ([Some(shape)], 2) if shape.partitions < PARTITIONS_MAX => Some(Asked::Grow),
            ([Some(_)], 3) => Some(Asked::Set),
            ([Some(_)], 4) => Some(Asked::Delete),
            // Only this tells whether there is a topic.
            (all, _) if all.contains(&None) => Some(Asked::LookAtPartitions),
            _ => Some(look),
        }
    }

    fn ask(&mut self, desk: &mut Desk<'_>, asked: Asked) {
        let now = self.maybe.first().cloned().flatten();
        let shape = now.clone().unwrap_or(Shape { partitions: 1, value: 0, records: (0, 0) });
        let name = self.name.clone();
        self.asked = Some(asked);
        self.then = now;
        match asked {
            Asked::Make => self.make(desk),
            Asked::Fill => {
                let (there, sent) = shape.records;
                self.then = Some(Shape { records: (there + 1, sent + 1), ..shape });
                // What may be there even if no answer comes.
                if let Some(Some(known)) = self.maybe.first_mut() {
                    known.records.1 += 1;
                }
                let records =
                    client::batch(&[0], Part { topic: 0, index: 0 }, desk.unix_ms, None, BatchKind::Plain);
                let data = PartitionProduceData { index: 0, records: Some(records.bytes) };
                let topic =
                    TopicProduceData { name, partition_data: vec![data], ..TopicProduceData::default() };
                let request = ProduceRequest {
                    acks: -1,
                    timeout_ms: 30_000,
                    topic_data: vec![topic],
                    ..Default::default()
                };
                desk.wire.ask(9, &request);
            }
            Asked::Grow => {
                let count = shape.partitions + 1;
                self.then = Some(Shape { partitions: count, ..shape });
                let topics = vec![CreatePartitionsTopic { name, count, ..CreatePartitionsTopic::default() }];
                desk.wire
                    .ask(3, &CreatePartitionsRequest { topics, timeout_ms: 30_000, ..Default::default() });
            }
            Asked::Set => self.set(desk, &shape),
            Asked::Delete => {
                self.then = None;
                let topic_names = vec![name];
                desk.wire
                    .ask(5, &DeleteTopicsRequest { topic_names, timeout_ms: 30_000, ..Default::default() });
            }
            Asked::LookAtPartitions => {
                let topics = Some(vec![MetadataRequestTopic { name: Some(name), ..Default::default() }]);
                let allow_auto_topic_creation = false;
                desk.wire
                    .ask(12, &MetadataRequest { topics, allow_auto_topic_creation, ..Default::default() });
            }
            Asked::LookAtValue => {
                let resource = DescribeConfigsResource {
                    resource_type: TOPIC,
                    resource_name: name,
                    configuration_keys: Some(vec![KEY.to_owned()]),
                };
                desk.wire.ask(4, &DescribeConfigsRequest { resources: vec![resource], ..Default::default() });
            }
            Asked::LookAtEnd => {
                let partition = ListOffsetsPartition { timestamp: LATEST, ..ListOffsetsPartition::default() };
                let topics = vec![ListOffsetsTopic { name, partitions: vec![partition] }];
                desk.wire.ask(7, &ListOffsetsRequest { replica_id: -1, topics, ..Default::default() });
            }
            Asked::DeleteRecords(part) => {
                let offset = desk.dice.below(desk.ledger.reach(part).high_watermark + 1);
                desk.ledger.delete_before(part, offset);
                let partition =
                    DeleteRecordsPartition { partition_index: part.index, offset: offset.cast_signed() };
                let topic = DeleteRecordsTopic { name: desk.name(part), partitions: vec![partition] };
                desk.wire.ask(2, &DeleteRecordsRequest { topics: vec![topic], timeout_ms: 30_000 });
            }
        }
    }

    fn make(&mut self, desk: &mut Desk<'_>) {
        let partitions = 1 + desk.dice.below(3) as i32;
        let value = 10_000 + desk.dice.below(1_000) as u32;
        self.then = Some(Shape { partitions, value, records: (0, 0) });
        let config = CreatableTopicConfig { name: KEY.to_owned(), value: Some(value.to_string()) };
        let topic = CreatableTopic {
            name: self.name.clone(),
            num_partitions: partitions,
            replication_factor: 1,
            configs: vec![config],
            ..CreatableTopic::default()
        };
        desk.wire.ask(7, &CreateTopicsRequest { topics: vec![topic], ..CreateTopicsRequest::default() });
    }

    fn set(&mut self, desk: &mut Desk<'_>, shape: &Shape) {
        let value = 10_000 + desk.dice.below(1_000) as u32;
        self.then = Some(Shape { value, ..shape.clone() });
        let config =
            AlterableConfig { name: KEY.to_owned(), config_operation: SET, value: Some(value.to_string()) };
        let resource = AlterConfigsResource {
            resource_type: TOPIC,
            resource_name: self.name.clone(),
            configs: vec![config],
        };
        desk.wire.ask(1, &IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false });
    }

    /// A change has been answered.
    fn changed(&mut self, desk: &mut Desk<'_>, asked: Asked, code: i16) -> Result<(), Violation> {
        let then = self.then.take();
        if code == 0 {
            self.maybe = vec![then];
            return Ok(());
        }
        if !self.maybe.contains(&then) {
            // It may have happened all the same, as the next broker will see.
            self.maybe.push(then);
            self.unsure_until = desk.ledger.ends + 1;
        }
        desk.unexpected(&format!("{asked:?} of {}", self.name), code)
    }

    /// Keeps what the topic may be, by what was seen of it.
    fn seen(
        &mut self,
        desk: &Desk<'_>,
        what: &str,
        is_it: impl Fn(&Option<Shape>) -> bool,
    ) -> Result<(), Violation> {
        if !self.maybe.iter().any(&is_it) {
            return Err(Violation(format!("{} is {:?}, and {what}", self.name, self.maybe)));
        }
        if desk.ledger.ends >= self.unsure_until {
            self.maybe.retain(is_it);
            self.maybe.dedup();
        }
        Ok(())
    }

    fn see_partitions(&mut self, desk: &Desk<'_>, response: &Response) -> Result<(), Violation> {
        let topics = response.read::<MetadataRequest>()?.topics;
        let Some(found) = topics.first() else { return Err(Violation("no metadata".to_owned())) };
        if found.error_code == ErrorCode::UnknownTopicOrPartition.code() {
            return self.seen(desk, "is not there", Option::is_none);
        }
        if found.error_code != 0 {
            return desk.unexpected("Metadata", found.error_code);
        }
        let count = i32::try_from(found.partitions.len()).unwrap_or(i32::MAX);
        let is_it = |shape: &Option<Shape>| shape.as_ref().is_some_and(|shape| shape.partitions == count);
        self.seen(desk, &format!("has {count} partitions"), is_it)
    }

    fn see_value(&mut self, desk: &Desk<'_>, response: &Response) -> Result<(), Violation> {
        let results = response.read::<DescribeConfigsRequest>()?.results;
        let Some(found) = results.first() else { return Err(Violation("no configuration".to_owned())) };
        if found.error_code != 0 {
            return desk.unexpected(&format!("DescribeConfigs of {}", self.name), found.error_code);
        }
        let value = found.configs.first().and_then(|config| config.value.clone()).unwrap_or_default();
        let is_it =
            |shape: &Option<Shape>| shape.as_ref().is_some_and(|shape| shape.value.to_string() == value);
        self.seen(desk, &format!("is set to {value}"), is_it)
    }

    fn see_end(&mut self, desk: &Desk<'_>, response: &Response) -> Result<(), Violation> {
        let topics = response.read::<ListOffsetsRequest>()?.topics;
        let found = topics.iter().flat_map(|topic| &topic.partitions).next();
        let Some(found) = found else { return Err(Violation("no end of a partition".to_owned())) };
        if found.error_code != 0 {
            return desk.unexpected(&format!("ListOffsets of {}", self.name), found.error_code);
        }
        let end = found.offset;
        let is_in = |(there, sent): (i64, i64)| (there..=sent).contains(&end);
        self.seen(desk, &format!("has {end} records"), |shape| {
            shape.as_ref().is_some_and(|shape| is_in(shape.records))
        })?;
        for shape in self.maybe.iter_mut().flatten() {
            shape.records.0 = end;
        }
        self.maybe.dedup();
        Ok(())
    }
}

impl Client for Admin {
    fn act(&mut self, desk: &mut Desk<'_>) {
        if self.asked.is_none()
            && let Some(asked) = self.choose(desk)
        {
            self.ask(desk, asked);
        }
    }

    fn answered(&mut self, desk: &mut Desk<'_>, response: &Response) -> Result<(), Violation> {
        let Some(asked) = self.asked.take() else {
            return Err(Violation("an answer that no administrator waits for".to_owned()));
        };
        let code = match asked {
            Asked::LookAtPartitions => return self.see_partitions(desk, response),
            Asked::LookAtValue => return self.see_value(desk, response),
            Asked::LookAtEnd => return self.see_end(desk, response),
            Asked::DeleteRecords(part) => {
                let topics = response.read::<DeleteRecordsRequest>()?.topics;
                let first = topics.iter().flat_map(|topic| &topic.partitions).next();
                let Some(found) = first else { return Err(Violation("no records deleted".to_owned())) };
                if found.error_code != 0 {
                    return desk.unexpected("DeleteRecords", found.error_code);
                }
                desk.ledger.deleted_before(part, found.low_watermark.cast_unsigned());
                return Ok(());
            }
            Asked::Make => {
                response.read::<CreateTopicsRequest>()?.topics.first().map(|topic| topic.error_code)
            }
            Asked::Grow => {
                response.read::<CreatePartitionsRequest>()?.results.first().map(|topic| topic.error_code)
            }
            Asked::Set => {
                let all = response.read::<IncrementalAlterConfigsRequest>()?.responses;
                all.first().map(|topic| topic.error_code)
            }
            Asked::Delete => {
                response.read::<DeleteTopicsRequest>()?.responses.first().map(|topic| topic.error_code)
            }
            Asked::Fill => {
                let topics = response.read::<ProduceRequest>()?.responses;
                topics.iter().flat_map(|topic| &topic.partition_responses).next().map(|part| part.error_code)
            }
        };
        let code = code.ok_or_else(|| Violation(format!("{asked:?} is not answered: {}", named(-1))))?;
        self.changed(desk, asked, code)
    }

    fn lost(&mut self, _ledger: &mut Ledger) -> Result<(), Violation> {
        let changes = [Asked::Make, Asked::Fill, Asked::Grow, Asked::Set, Asked::Delete];
        let then = self.then.take();
        if self.asked.take().is_some_and(|asked| changes.contains(&asked)) && !self.maybe.contains(&then) {
            self.maybe.push(then);
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.asked.is_none() && self.maybe.len() == 1
    }
}
