//! Commits offsets for a group without members, ever higher ones, and fetches the committed offset.
//!
//! A committed offset must never be lower than one whose commit was acknowledged, nor higher than any that was sent.

use mainstem_kafka::api::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_kafka::api::offset_fetch::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};

use super::client::{Client, Context};
use super::connection::Response;
use super::oracle::{Oracle, PartitionId};
use crate::Violation;

/// Partition whose offsets are committed.
const PART: PartitionId = PartitionId { topic: 0, index: 0 };

#[derive(Debug)]
pub(crate) struct Committer {
    group: String,
    /// Highest acknowledged offset.
    floor: i64,
    /// Highest offset sent.
    tried: i64,
    in_flight: Option<InFlight>,
    /// It has fetched the offset at the end of the run.
    has_looked_last: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InFlight {
    Commit(i64),
    FetchOffset,
}

impl Committer {
    pub(crate) fn new(index: usize) -> Self {
        Self {
            group: format!("group {index}"),
            floor: -1,
            tried: -1,
            in_flight: None,
            has_looked_last: false,
        }
    }

    fn commit(&mut self, context: &mut Context<'_>) {
        self.tried += 1 + context.rng.below(3).cast_signed();
        let partition = OffsetCommitRequestPartition {
            partition_index: PART.index,
            committed_offset: self.tried,
            committed_metadata: Some(self.tried.to_string()),
            ..OffsetCommitRequestPartition::default()
        };
        let topic = OffsetCommitRequestTopic {
            name: context.name(PART),
            partitions: vec![partition],
            ..OffsetCommitRequestTopic::default()
        };
        let request = OffsetCommitRequest {
            group_id: self.group.clone(),
            topics: vec![topic],
            ..OffsetCommitRequest::default()
        };
        context.connection.send(2 + context.rng.below(8) as i16, &request);
        self.in_flight = Some(InFlight::Commit(self.tried));
    }

    fn look(&mut self, context: &mut Context<'_>) {
        let topic = OffsetFetchRequestTopics {
            name: context.name(PART),
            partition_indexes: vec![PART.index],
            ..OffsetFetchRequestTopics::default()
        };
        let group = OffsetFetchRequestGroup {
            group_id: self.group.clone(),
            topics: Some(vec![topic]),
            ..OffsetFetchRequestGroup::default()
        };
        let request = OffsetFetchRequest { groups: vec![group], ..OffsetFetchRequest::default() };
        context.connection.send(8, &request);
        self.in_flight = Some(InFlight::FetchOffset);
    }

    fn found(&self, context: &Context<'_>, response: &Response) -> Result<(), Violation> {
        let answer = response.read::<OffsetFetchRequest>()?;
        let first = answer.groups.first().ok_or_else(|| Violation("no answer for a group".to_owned()))?;
        let found = first.topics.iter().flat_map(|topic| &topic.partitions).next();
        let code = found.map_or(first.error_code, |found| found.error_code.max(first.error_code));
        let Some(found) = found.filter(|_| code == 0) else { return context.unexpected("OffsetFetch", code) };
        let (group, offset) = (&self.group, found.committed_offset);
        if !(self.floor..=self.tried).contains(&offset) {
            return Err(Violation(format!(
                "{group}: {} was committed and {} asked for at last, and {offset} is found",
                self.floor, self.tried
            )));
        }
        let metadata = found.metadata.as_deref().unwrap_or_default();
        if offset >= 0 && metadata != offset.to_string() {
            return Err(Violation(format!("{group}: beside {offset} stands {metadata:?}")));
        }
        Ok(())
    }
}

impl Client for Committer {
    fn act(&mut self, context: &mut Context<'_>) {
        if self.in_flight.is_some() {
            return;
        }
        if context.is_ending {
            if !self.has_looked_last {
                self.look(context);
            }
        } else if context.rng.chance(30) {
            self.look(context);
        } else {
            self.commit(context);
        }
    }

    fn handle_response(&mut self, context: &mut Context<'_>, response: &Response) -> Result<(), Violation> {
        match self.in_flight.take() {
            Some(InFlight::FetchOffset) => {
                self.has_looked_last = context.is_ending;
                self.found(context, response)
            }
            Some(InFlight::Commit(offset)) => {
                let answer = response.read::<OffsetCommitRequest>()?;
                let code = answer.topics.iter().flat_map(|topic| &topic.partitions).next();
                match code.map(|partition| partition.error_code) {
                    Some(0) => self.floor = offset,
                    code => context.unexpected("OffsetCommit", code.unwrap_or(-1))?,
                }
                Ok(())
            }
            None => Err(Violation("an answer that no group waits for".to_owned())),
        }
    }

    fn connection_lost(&mut self, _oracle: &mut Oracle) -> Result<(), Violation> {
        self.in_flight = None;
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.in_flight != Some(InFlight::Commit(self.tried))
    }
}
