//! Creates the topics of a run before anybody uses them, and checks that they continue to exist.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::create_topics::{CreatableTopic, CreateTopicsRequest};
use mainstem_kafka::api::metadata::{MetadataRequest, MetadataRequestTopic};

use super::client::{Client, Context, named};
use super::connection::Response;
use super::oracle::Oracle;
use crate::Violation;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InFlight {
    CreateTopics,
    DescribeTopics,
}

#[derive(Debug, Default)]
pub(crate) struct TopicCreator {
    in_flight: Option<InFlight>,
    are_made: bool,
}

impl Client for TopicCreator {
    fn act(&mut self, context: &mut Context<'_>) {
        if self.in_flight.is_some()
            || (context.oracle.has_topics && (context.is_ending || context.rng.chance(95)))
        {
            return;
        }
        if self.are_made {
            let named =
                |name: &String| MetadataRequestTopic { name: Some(name.clone()), ..Default::default() };
            let topics = context.topics.iter().map(|topic| named(&topic.name)).collect();
            let request = MetadataRequest {
                topics: Some(topics),
                allow_auto_topic_creation: false,
                ..MetadataRequest::default()
            };
            context.connection.send(12, &request);
            self.in_flight = Some(InFlight::DescribeTopics);
            return;
        }
        let made = context.topics.iter().filter(|topic| !topic.is_bound);
        let topics = made.map(|topic| CreatableTopic {
            name: topic.name.clone(),
            num_partitions: topic.partitions.into(),
            replication_factor: 1,
            ..CreatableTopic::default()
        });
        let request = CreateTopicsRequest { topics: topics.collect(), ..CreateTopicsRequest::default() };
        context.connection.send(7, &request);
        self.in_flight = Some(InFlight::CreateTopics);
    }

    fn handle_response(&mut self, context: &mut Context<'_>, response: &Response) -> Result<(), Violation> {
        match self.in_flight.take() {
            Some(InFlight::CreateTopics) => {
                self.are_made = true;
                for topic in response.read::<CreateTopicsRequest>()?.topics {
                    if topic.error_code != 0 && topic.error_code != ErrorCode::TopicAlreadyExists.code() {
                        self.are_made = false;
                        context.unexpected("CreateTopics", topic.error_code)?;
                    }
                }
            }
            Some(InFlight::DescribeTopics) => {
                let found = response.read::<MetadataRequest>()?.topics;
                let is_made = |topic: &super::client::Topic| {
                    found.iter().any(|found| {
                        found.name.as_deref() == Some(&topic.name)
                            && found.error_code == 0
                            && found.partitions.len() == usize::from(topic.partitions)
                    })
                };
                let missing = context.topics.iter().find(|topic| !is_made(topic));
                match missing {
                    None => context.oracle.has_topics = true,
                    Some(topic) if context.oracle.has_topics => {
                        let codes: Vec<_> = found.iter().map(|topic| named(topic.error_code)).collect();
                        return Err(Violation(format!("topic {} is gone: {codes:?}", topic.name)));
                    }
                    Some(_) => {}
                }
            }
            None => return Err(Violation("an answer that nobody waits for".to_owned())),
        }
        Ok(())
    }

    fn connection_lost(&mut self, _oracle: &mut Oracle) -> Result<(), Violation> {
        self.in_flight = None;
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.in_flight.is_none()
    }
}
