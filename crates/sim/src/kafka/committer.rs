//! Commits offsets for a group without members, higher ones each time, and looks at what is committed.

use mainstem_kafka::api::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_kafka::api::offset_fetch::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};

use super::client::{Client, Desk};
use super::ledger::{Ledger, Part};
use super::wire::Response;
use crate::ledger::Violation;

/// The partition of which offsets are committed.
const PART: Part = Part { topic: 0, index: 0 };

#[derive(Debug)]
pub(crate) struct Committer {
    group: String,
    /// Committed for certain.
    floor: i64,
    /// Asked to be committed.
    tried: i64,
    asked: Option<Asked>,
    /// It has seen what there is at the end of the run.
    has_looked_last: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Commit(i64),
    Look,
}

impl Committer {
    pub(crate) fn new(index: usize) -> Self {
        Self { group: format!("group {index}"), floor: -1, tried: -1, asked: None, has_looked_last: false }
    }

    fn commit(&mut self, desk: &mut Desk<'_>) {
        self.tried += 1 + desk.dice.below(3).cast_signed();
        let partition = OffsetCommitRequestPartition {
            partition_index: PART.index,
            committed_offset: self.tried,
            committed_metadata: Some(self.tried.to_string()),
            ..OffsetCommitRequestPartition::default()
        };
        let topic = OffsetCommitRequestTopic {
            name: desk.name(PART),
            partitions: vec![partition],
            ..OffsetCommitRequestTopic::default()
        };
        let request = OffsetCommitRequest {
            group_id: self.group.clone(),
            topics: vec![topic],
            ..OffsetCommitRequest::default()
        };
        desk.wire.ask(2 + desk.dice.below(8) as i16, &request);
        self.asked = Some(Asked::Commit(self.tried));
    }

    fn look(&mut self, desk: &mut Desk<'_>) {
        let topic = OffsetFetchRequestTopics {
            name: desk.name(PART),
            partition_indexes: vec![PART.index],
            ..OffsetFetchRequestTopics::default()
        };
        let group = OffsetFetchRequestGroup {
            group_id: self.group.clone(),
            topics: Some(vec![topic]),
            ..OffsetFetchRequestGroup::default()
        };
        let request = OffsetFetchRequest { groups: vec![group], ..OffsetFetchRequest::default() };
        desk.wire.ask(8, &request);
        self.asked = Some(Asked::Look);
    }

    fn found(&self, desk: &Desk<'_>, response: &Response) -> Result<(), Violation> {
        let answer = response.read::<OffsetFetchRequest>()?;
        let first = answer.groups.first().ok_or_else(|| Violation("no answer for a group".to_owned()))?;
        let found = first.topics.iter().flat_map(|topic| &topic.partitions).next();
        let code = found.map_or(first.error_code, |found| found.error_code.max(first.error_code));
        let Some(found) = found.filter(|_| code == 0) else { return desk.unexpected("OffsetFetch", code) };
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
    fn act(&mut self, desk: &mut Desk<'_>) {
        if self.asked.is_some() {
            return;
        }
        if desk.is_ending {
            if !self.has_looked_last {
                self.look(desk);
            }
        } else if desk.dice.chance(30) {
            self.look(desk);
        } else {
            self.commit(desk);
        }
    }

    fn answered(&mut self, desk: &mut Desk<'_>, response: &Response) -> Result<(), Violation> {
        match self.asked.take() {
            Some(Asked::Look) => {
                self.has_looked_last = desk.is_ending;
                self.found(desk, response)
            }
            Some(Asked::Commit(offset)) => {
                let answer = response.read::<OffsetCommitRequest>()?;
                let code = answer.topics.iter().flat_map(|topic| &topic.partitions).next();
                match code.map(|partition| partition.error_code) {
                    Some(0) => self.floor = offset,
                    code => desk.unexpected("OffsetCommit", code.unwrap_or(-1))?,
                }
                Ok(())
            }
            None => Err(Violation("an answer that no group waits for".to_owned())),
        }
    }

    fn lost(&mut self, _ledger: &mut Ledger) -> Result<(), Violation> {
        self.asked = None;
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.asked != Some(Asked::Commit(self.tried))
    }
}
