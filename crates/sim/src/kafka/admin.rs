//! An administrator that creates, fills, grows, configures, empties, deletes and describes a topic of its own.
//!
//! It also deletes records of the topics that the other clients use. A change without an answer may have happened or
//! not, so the client keeps every state that its topic may have, and each answer rules some of them out.

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

use super::client::{self, Client, Context, named};
use super::connection::Response;
use super::oracle::{Oracle, PartitionId};
use crate::Violation;

/// Configuration key that it changes.
const KEY: &str = "max.message.bytes";
/// Resource type of a topic.
const TOPIC: i8 = 2;
/// Operation that sets a value.
const SET: i8 = 0;
/// Timestamp that asks for the end of a partition.
const LATEST: i64 = -1;
const PARTITIONS_MAX: i32 = 5;

/// State of the topic.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TopicState {
    partitions: i32,
    value: u32,
    /// Records in its first partition: those certain to be there, and all that were sent.
    records: (i64, i64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InFlight {
    Make,
    Fill,
    Grow,
    Set,
    Delete,
    DescribePartitions,
    LookAtValue,
    LookAtEnd,
    DeleteRecords(PartitionId),
}

#[derive(Debug)]
pub(crate) struct Admin {
    name: String,
    /// States that the topic may have: two if the last change may have happened or not.
    possible: Vec<Option<TopicState>>,
    /// Until this many brokers have ended, a failed change may still take effect.
    unsure_until: u64,
    /// State after the change in progress.
    next_state: Option<TopicState>,
    in_flight: Option<InFlight>,
}

impl Admin {
    pub(crate) fn new(index: usize) -> Self {
        Self {
            name: format!("a{index}"),
            possible: vec![None],
            unsure_until: 0,
            next_state: None,
            in_flight: None,
        }
    }

    fn choose(&mut self, context: &mut Context<'_>) -> Option<InFlight> {
        let is_certain = self.possible.len() == 1;
        if context.is_ending && is_certain {
            return None;
        }
        let looks = [InFlight::DescribePartitions, InFlight::LookAtValue, InFlight::LookAtEnd];
        let look = looks[context.rng.below(3) as usize];
        if context.rng.chance(15) && !context.is_ending {
            let part = context.any_partition();
            return Some(InFlight::DeleteRecords(part));
        }
        match (&self.possible[..], context.rng.below(10)) {
            ([None], 0..6) => Some(InFlight::Make),
            ([None], _) => Some(InFlight::DescribePartitions),
            ([Some(_)], 0..2) => Some(InFlight::Fill),
            ([Some(shape)], 2) if shape.partitions < PARTITIONS_MAX => Some(InFlight::Grow),
            ([Some(_)], 3) => Some(InFlight::Set),
            ([Some(_)], 4) => Some(InFlight::Delete),
            // Only this request shows whether the topic exists.
            (all, _) if all.contains(&None) => Some(InFlight::DescribePartitions),
            _ => Some(look),
        }
    }

    fn ask(&mut self, context: &mut Context<'_>, in_flight: InFlight) {
        let now = self.possible.first().cloned().flatten();
        let shape = now.clone().unwrap_or(TopicState { partitions: 1, value: 0, records: (0, 0) });
        let name = self.name.clone();
        self.in_flight = Some(in_flight);
        self.next_state = now;
        match in_flight {
            InFlight::Make => self.make(context),
            InFlight::Fill => {
                let (there, sent) = shape.records;
                self.next_state = Some(TopicState { records: (there + 1, sent + 1), ..shape });
                self.fill(context);
            }
            InFlight::Grow => {
                let count = shape.partitions + 1;
                self.next_state = Some(TopicState { partitions: count, ..shape });
                let topics = vec![CreatePartitionsTopic { name, count, ..CreatePartitionsTopic::default() }];
                context
                    .connection
                    .send(3, &CreatePartitionsRequest { topics, timeout_ms: 30_000, ..Default::default() });
            }
            InFlight::Set => self.set(context, &shape),
            InFlight::Delete => {
                self.next_state = None;
                let topic_names = vec![name];
                context
                    .connection
                    .send(5, &DeleteTopicsRequest { topic_names, timeout_ms: 30_000, ..Default::default() });
            }
            InFlight::DescribePartitions => {
                let topics = Some(vec![MetadataRequestTopic { name: Some(name), ..Default::default() }]);
                let allow_auto_topic_creation = false;
                context
                    .connection
                    .send(12, &MetadataRequest { topics, allow_auto_topic_creation, ..Default::default() });
            }
            InFlight::LookAtValue => {
                let resource = DescribeConfigsResource {
                    resource_type: TOPIC,
                    resource_name: name,
                    configuration_keys: Some(vec![KEY.to_owned()]),
                };
                context
                    .connection
                    .send(4, &DescribeConfigsRequest { resources: vec![resource], ..Default::default() });
            }
            InFlight::LookAtEnd => {
                let partition = ListOffsetsPartition { timestamp: LATEST, ..ListOffsetsPartition::default() };
                let topics = vec![ListOffsetsTopic { name, partitions: vec![partition] }];
                context
                    .connection
                    .send(7, &ListOffsetsRequest { replica_id: -1, topics, ..Default::default() });
            }
            InFlight::DeleteRecords(part) => {
                let offset = context.rng.below(context.oracle.watermarks(part).high_watermark + 1);
                context.oracle.delete_before(part, offset);
                let partition =
                    DeleteRecordsPartition { partition_index: part.index, offset: offset.cast_signed() };
                let topic = DeleteRecordsTopic { name: context.name(part), partitions: vec![partition] };
                context.connection.send(2, &DeleteRecordsRequest { topics: vec![topic], timeout_ms: 30_000 });
            }
        }
    }

    /// Produces one record to partition 0.
    fn fill(&mut self, context: &mut Context<'_>) {
        // Some of it may be there even if no answer comes.
        if let Some(Some(known)) = self.possible.first_mut() {
            known.records.1 += 1;
        }
        let part = PartitionId { topic: 0, index: 0 };
        let records = client::batch(&[0], part, context.unix_ms, None, BatchKind::Plain);
        let data = PartitionProduceData { index: 0, records: Some(records.bytes) };
        let name = self.name.clone();
        let topic = TopicProduceData { name, partition_data: vec![data], ..TopicProduceData::default() };
        let request =
            ProduceRequest { acks: -1, timeout_ms: 30_000, topic_data: vec![topic], ..Default::default() };
        context.connection.send(9, &request);
    }

    fn make(&mut self, context: &mut Context<'_>) {
        let partitions = 1 + context.rng.below(3) as i32;
        let value = 10_000 + context.rng.below(1_000) as u32;
        self.next_state = Some(TopicState { partitions, value, records: (0, 0) });
        let config = CreatableTopicConfig { name: KEY.to_owned(), value: Some(value.to_string()) };
        let topic = CreatableTopic {
            name: self.name.clone(),
            num_partitions: partitions,
            replication_factor: 1,
            configs: vec![config],
            ..CreatableTopic::default()
        };
        context
            .connection
            .send(7, &CreateTopicsRequest { topics: vec![topic], ..CreateTopicsRequest::default() });
    }

    fn set(&mut self, context: &mut Context<'_>, shape: &TopicState) {
        let value = 10_000 + context.rng.below(1_000) as u32;
        self.next_state = Some(TopicState { value, ..shape.clone() });
        let config =
            AlterableConfig { name: KEY.to_owned(), config_operation: SET, value: Some(value.to_string()) };
        let resource = AlterConfigsResource {
            resource_type: TOPIC,
            resource_name: self.name.clone(),
            configs: vec![config],
        };
        context
            .connection
            .send(1, &IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false });
    }

    fn changed(
        &mut self,
        context: &mut Context<'_>,
        in_flight: InFlight,
        code: i16,
    ) -> Result<(), Violation> {
        let next_state = self.next_state.take();
        if code == 0 {
            self.possible = vec![next_state];
            return Ok(());
        }
        if !self.possible.contains(&next_state) {
            // It may have happened all the same, and take effect when the next broker recovers.
            self.possible.push(next_state);
            self.unsure_until = context.oracle.ends + 1;
        }
        context.unexpected(&format!("{in_flight:?} of {}", self.name), code)
    }

    /// Keeps the states that agree with an observation.
    fn seen(
        &mut self,
        context: &Context<'_>,
        what: &str,
        is_it: impl Fn(&Option<TopicState>) -> bool,
    ) -> Result<(), Violation> {
        if !self.possible.iter().any(&is_it) {
            return Err(Violation(format!("{} is {:?}, and {what}", self.name, self.possible)));
        }
        if context.oracle.ends >= self.unsure_until {
            self.possible.retain(is_it);
            self.possible.dedup();
        }
        Ok(())
    }

    fn see_partitions(&mut self, context: &Context<'_>, response: &Response) -> Result<(), Violation> {
        let topics = response.read::<MetadataRequest>()?.topics;
        let Some(found) = topics.first() else { return Err(Violation("no metadata".to_owned())) };
        if found.error_code == ErrorCode::UnknownTopicOrPartition.code() {
            return self.seen(context, "is not there", Option::is_none);
        }
        if found.error_code != 0 {
            return context.unexpected("Metadata", found.error_code);
        }
        let count = i32::try_from(found.partitions.len()).unwrap_or(i32::MAX);
        let is_it =
            |shape: &Option<TopicState>| shape.as_ref().is_some_and(|shape| shape.partitions == count);
        self.seen(context, &format!("has {count} partitions"), is_it)
    }

    fn see_value(&mut self, context: &Context<'_>, response: &Response) -> Result<(), Violation> {
        let results = response.read::<DescribeConfigsRequest>()?.results;
        let Some(found) = results.first() else { return Err(Violation("no configuration".to_owned())) };
        if found.error_code != 0 {
            return context.unexpected(&format!("DescribeConfigs of {}", self.name), found.error_code);
        }
        let value = found.configs.first().and_then(|config| config.value.clone()).unwrap_or_default();
        let is_it =
            |shape: &Option<TopicState>| shape.as_ref().is_some_and(|shape| shape.value.to_string() == value);
        self.seen(context, &format!("is set to {value}"), is_it)
    }

    fn see_end(&mut self, context: &Context<'_>, response: &Response) -> Result<(), Violation> {
        let topics = response.read::<ListOffsetsRequest>()?.topics;
        let found = topics.iter().flat_map(|topic| &topic.partitions).next();
        let Some(found) = found else { return Err(Violation("no end of a partition".to_owned())) };
        if found.error_code != 0 {
            return context.unexpected(&format!("ListOffsets of {}", self.name), found.error_code);
        }
        let end = found.offset;
        let is_in = |(there, sent): (i64, i64)| (there..=sent).contains(&end);
        self.seen(context, &format!("has {end} records"), |shape| {
            shape.as_ref().is_some_and(|shape| is_in(shape.records))
        })?;
        for shape in self.possible.iter_mut().flatten() {
            shape.records.0 = end;
        }
        self.possible.dedup();
        Ok(())
    }
}

impl Client for Admin {
    fn act(&mut self, context: &mut Context<'_>) {
        if self.in_flight.is_none()
            && let Some(in_flight) = self.choose(context)
        {
            self.ask(context, in_flight);
        }
    }

    fn handle_response(&mut self, context: &mut Context<'_>, response: &Response) -> Result<(), Violation> {
        let Some(in_flight) = self.in_flight.take() else {
            return Err(Violation("an answer that no administrator waits for".to_owned()));
        };
        let code = match in_flight {
            InFlight::DescribePartitions => return self.see_partitions(context, response),
            InFlight::LookAtValue => return self.see_value(context, response),
            InFlight::LookAtEnd => return self.see_end(context, response),
            InFlight::DeleteRecords(part) => {
                let topics = response.read::<DeleteRecordsRequest>()?.topics;
                let first = topics.iter().flat_map(|topic| &topic.partitions).next();
                let Some(found) = first else { return Err(Violation("no records deleted".to_owned())) };
                if found.error_code != 0 {
                    return context.unexpected("DeleteRecords", found.error_code);
                }
                context.oracle.deleted_before(part, found.low_watermark.cast_unsigned());
                return Ok(());
            }
            InFlight::Make => {
                response.read::<CreateTopicsRequest>()?.topics.first().map(|topic| topic.error_code)
            }
            InFlight::Grow => {
                response.read::<CreatePartitionsRequest>()?.results.first().map(|topic| topic.error_code)
            }
            InFlight::Set => {
                let all = response.read::<IncrementalAlterConfigsRequest>()?.responses;
                all.first().map(|topic| topic.error_code)
            }
            InFlight::Delete => {
                response.read::<DeleteTopicsRequest>()?.responses.first().map(|topic| topic.error_code)
            }
            InFlight::Fill => {
                let topics = response.read::<ProduceRequest>()?.responses;
                topics.iter().flat_map(|topic| &topic.partition_responses).next().map(|part| part.error_code)
            }
        };
        let code = code.ok_or_else(|| Violation(format!("{in_flight:?} is not answered: {}", named(-1))))?;
        self.changed(context, in_flight, code)
    }

    fn connection_lost(&mut self, _oracle: &mut Oracle) -> Result<(), Violation> {
        let changes = [InFlight::Make, InFlight::Fill, InFlight::Grow, InFlight::Set, InFlight::Delete];
        let next_state = self.next_state.take();
        if self.in_flight.take().is_some_and(|in_flight| changes.contains(&in_flight))
            && !self.possible.contains(&next_state)
        {
            self.possible.push(next_state);
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.in_flight.is_none() && self.possible.len() == 1
    }
}
