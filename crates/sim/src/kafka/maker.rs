//! Makes the topics of a run before anybody uses them, and sees that they stay.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::create_topics::{CreatableTopic, CreateTopicsRequest};
use mainstem_kafka::api::metadata::{MetadataRequest, MetadataRequestTopic};

use super::client::{Client, Desk, named};
use super::ledger::Ledger;
use super::wire::Response;
use crate::ledger::Violation;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Make,
    Look,
}

#[derive(Debug, Default)]
pub(crate) struct Maker {
    asked: Option<Asked>,
    are_made: bool,
}

impl Client for Maker {
    fn act(&mut self, desk: &mut Desk<'_>) {
        if self.asked.is_some() || (desk.ledger.has_topics && (desk.is_ending || desk.dice.chance(95))) {
            return;
        }
        if self.are_made {
            let named =
                |name: &String| MetadataRequestTopic { name: Some(name.clone()), ..Default::default() };
            let topics = desk.topics.iter().map(|topic| named(&topic.name)).collect();
            let request = MetadataRequest {
                topics: Some(topics),
                allow_auto_topic_creation: false,
                ..MetadataRequest::default()
            };
            desk.wire.ask(12, &request);
            self.asked = Some(Asked::Look);
            return;
        }
        let made = desk.topics.iter().filter(|topic| !topic.is_bound);
        let topics = made.map(|topic| CreatableTopic {
            name: topic.name.clone(),
            num_partitions: topic.partitions.into(),
            replication_factor: 1,
            ..CreatableTopic::default()
        });
        let request = CreateTopicsRequest { topics: topics.collect(), ..CreateTopicsRequest::default() };
        desk.wire.ask(7, &request);
        self.asked = Some(Asked::Make);
    }

    fn answered(&mut self, desk: &mut Desk<'_>, response: &Response) -> Result<(), Violation> {
        match self.asked.take() {
            Some(Asked::Make) => {
                self.are_made = true;
                for topic in response.read::<CreateTopicsRequest>()?.topics {
                    if topic.error_code != 0 && topic.error_code != ErrorCode::TopicAlreadyExists.code() {
                        self.are_made = false;
                        desk.unexpected("CreateTopics", topic.error_code)?;
                    }
                }
            }
            Some(Asked::Look) => {
                let found = response.read::<MetadataRequest>()?.topics;
                let is_made = |topic: &super::client::Topic| {
                    found.iter().any(|found| {
                        found.name.as_deref() == Some(&topic.name)
                            && found.error_code == 0
                            && found.partitions.len() == usize::from(topic.partitions)
                    })
                };
                let missing = desk.topics.iter().find(|topic| !is_made(topic));
                match missing {
                    None => desk.ledger.has_topics = true,
                    Some(topic) if desk.ledger.has_topics => {
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

    fn lost(&mut self, _ledger: &mut Ledger) -> Result<(), Violation> {
        self.asked = None;
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.asked.is_none()
    }
}
