//! Members of a consumer group, by the classic protocol: they join, share out the partitions of a topic, commit
//! offsets for those they were given, leave, and vanish.

use std::collections::BTreeMap;

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::heartbeat::HeartbeatRequest;
use mainstem_kafka::api::join_group::{JoinGroupRequest, JoinGroupRequestProtocol};
use mainstem_kafka::api::leave_group::{LeaveGroupRequest, MemberIdentity};
use mainstem_kafka::api::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_kafka::api::offset_fetch::{OffsetFetchRequest, OffsetFetchRequestTopic};
use mainstem_kafka::api::sync_group::{SyncGroupRequest, SyncGroupRequestAssignment};

use super::client::{Client, Desk};
use super::ledger::{Ledger, Part};
use super::wire::Response;
use crate::ledger::Violation;

const GROUP: &str = "members";
const PROTOCOL_TYPE: &str = "consumer";
const PROTOCOL: &str = "range";
/// The topic whose partitions are shared out.
const TOPIC: usize = 0;
const SESSION_TIMEOUT_MS: i32 = 10_000;
const HEARTBEAT_MS: u64 = 3_000;

#[derive(Debug, Default)]
pub(crate) struct GroupMember {
    /// Its identifier, once it has one.
    id: String,
    generation: i32,
    stage: Stage,
    /// Who leads the generation, and identifiers of all its members if this one does.
    leader: String,
    members: Vec<String>,
    /// The next offset of each partition that it was given, as far as it has asked.
    positions: BTreeMap<i32, Option<u64>>,
    heartbeat_at_ms: u64,
    asked: Option<Asked>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Out,
    /// It knows its generation, and not what it is given.
    Joined,
    In,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Join,
    Sync,
    Heartbeat,
    Leave,
    /// What is committed of a partition, which was this at least.
    Look(i32, u64),
    Commit(i32, u64),
}

fn part(index: i32) -> Part {
    Part { topic: TOPIC, index }
}

/// What a member says of itself: the topics it wants (version 0 of Kafka's `ConsumerProtocolSubscription`).
fn subscription(topic: &str) -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 0, 0, 1];
    bytes.extend_from_slice(&(topic.len() as u16).to_be_bytes());
    bytes.extend_from_slice(topic.as_bytes());
    bytes.extend_from_slice(&(-1_i32).to_be_bytes());
    bytes
}

impl GroupMember {
    fn next(&mut self, desk: &mut Desk<'_>) -> Option<Asked> {
        match self.stage {
            Stage::Out => return Some(Asked::Join),
            Stage::Joined => return Some(Asked::Sync),
            Stage::In => {}
        }
        if let Some((index, _)) = self.positions.iter().find(|(_, position)| position.is_none()) {
            return Some(Asked::Look(*index, desk.ledger.committed(GROUP, part(*index)).0));
        }
        if desk.now_ms >= self.heartbeat_at_ms {
            return Some(Asked::Heartbeat);
        }
        if desk.is_ending {
            return None;
        }
        let which = desk.dice.below(self.positions.len().max(1) as u64) as usize;
        let owned = self.positions.iter().nth(which).map(|(index, position)| (*index, *position));
        match (desk.dice.below(20), owned) {
            (0, _) => Some(Asked::Leave),
            (1..4, Some((index, _))) => Some(Asked::Look(index, desk.ledger.committed(GROUP, part(index)).0)),
            (_, Some((index, Some(position)))) => {
                Some(Asked::Commit(index, position + 1 + desk.dice.below(3)))
            }
            _ => None,
        }
    }

    fn ask(&mut self, desk: &mut Desk<'_>, asked: Asked) {
        let (group_id, member_id, generation_id) = (GROUP.to_owned(), self.id.clone(), self.generation);
        let name = desk.name(part(0));
        self.asked = Some(asked);
        match asked {
            Asked::Join => {
                let protocol =
                    JoinGroupRequestProtocol { name: PROTOCOL.to_owned(), metadata: subscription(&name) };
                let request = JoinGroupRequest {
                    group_id,
                    member_id,
                    session_timeout_ms: SESSION_TIMEOUT_MS,
                    rebalance_timeout_ms: SESSION_TIMEOUT_MS,
                    protocol_type: PROTOCOL_TYPE.to_owned(),
                    protocols: vec![protocol],
                    ..JoinGroupRequest::default()
                };
                desk.wire.ask(7, &request);
            }
            Asked::Sync => {
                let assignments = self.share_out(desk.topics[TOPIC].partitions);
                let request = SyncGroupRequest {
                    group_id,
                    generation_id,
                    member_id,
                    assignments,
                    ..SyncGroupRequest::default()
                };
                desk.wire.ask(3, &request);
            }
            Asked::Heartbeat => {
                self.heartbeat_at_ms = desk.now_ms + HEARTBEAT_MS;
                let request =
                    HeartbeatRequest { group_id, generation_id, member_id, group_instance_id: None };
                desk.wire.ask(3, &request);
            }
            Asked::Leave => {
                let members = vec![MemberIdentity { member_id, ..MemberIdentity::default() }];
                desk.wire.ask(4, &LeaveGroupRequest { group_id, members, ..LeaveGroupRequest::default() });
            }
            Asked::Look(index, _) => {
                let topics = vec![OffsetFetchRequestTopic { name, partition_indexes: vec![index] }];
                let request =
                    OffsetFetchRequest { group_id, topics: Some(topics), ..OffsetFetchRequest::default() };
                desk.wire.ask(6, &request);
            }
            Asked::Commit(index, offset) => {
                desk.ledger.commit_tried(GROUP, part(index), offset);
                let partition = OffsetCommitRequestPartition {
                    partition_index: index,
                    committed_offset: offset.cast_signed(),
                    ..OffsetCommitRequestPartition::default()
                };
                let topic = OffsetCommitRequestTopic {
                    name,
                    partitions: vec![partition],
                    ..OffsetCommitRequestTopic::default()
                };
                let request = OffsetCommitRequest {
                    group_id,
                    generation_id_or_member_epoch: generation_id,
                    member_id,
                    topics: vec![topic],
                    ..OffsetCommitRequest::default()
                };
                desk.wire.ask(7, &request);
            }
        }
    }

    /// What the leader gives to whom: partitions in turn, as bytes that nobody else looks at.
    fn share_out(&self, partitions: u16) -> Vec<SyncGroupRequestAssignment> {
        let count = self.members.len();
        let assignment = |(number, member_id): (usize, &String)| {
            let mine = (0..partitions).filter(|index| usize::from(*index) % count == number);
            SyncGroupRequestAssignment {
                member_id: member_id.clone(),
                assignment: mine.flat_map(|index| i32::from(index).to_be_bytes()).collect(),
            }
        };
        self.members.iter().enumerate().map(assignment).collect()
    }

    /// An error. Most of them say that a generation, or the member, is over.
    fn refused(&mut self, desk: &Desk<'_>, asked: Asked, code: i16) -> Result<(), Violation> {
        match ErrorCode::from_code(code) {
            Some(ErrorCode::RebalanceInProgress | ErrorCode::IllegalGeneration) => {}
            Some(ErrorCode::UnknownMemberId) => self.id.clear(),
            _ => return desk.unexpected(&format!("{asked:?}"), code),
        }
        self.stage = Stage::Out;
        Ok(())
    }

    fn has_joined(&mut self, desk: &Desk<'_>, response: &Response) -> Result<(), Violation> {
        let answer = response.read::<JoinGroupRequest>()?;
        if answer.error_code == ErrorCode::MemberIdRequired.code() && self.id.is_empty() {
            self.id = answer.member_id;
            return Ok(());
        }
        if answer.error_code != 0 {
            return self.refused(desk, Asked::Join, answer.error_code);
        }
        if !self.id.is_empty() && self.id != answer.member_id {
            return Err(Violation(format!("member {} joins as {}", self.id, answer.member_id)));
        }
        (self.id, self.generation, self.stage) = (answer.member_id, answer.generation_id, Stage::Joined);
        self.members = answer.members.into_iter().map(|member| member.member_id).collect();
        self.leader = answer.leader;
        self.positions.clear();
        Ok(())
    }

    fn has_synced(&mut self, desk: &mut Desk<'_>, response: &Response) -> Result<(), Violation> {
        let answer = response.read::<SyncGroupRequest>()?;
        if answer.error_code != 0 {
            return self.refused(desk, Asked::Sync, answer.error_code);
        }
        let (indexes, _) = answer.assignment.as_chunks::<4>();
        self.positions = indexes.iter().map(|index| (i32::from_be_bytes(*index), None)).collect();
        self.stage = Stage::In;
        self.heartbeat_at_ms = desk.now_ms + HEARTBEAT_MS;
        for index in self.positions.keys() {
            desk.ledger.given_part((&self.leader, self.generation), part(*index), &self.id)?;
        }
        Ok(())
    }

    fn has_looked(
        &mut self,
        desk: &mut Desk<'_>,
        (index, floor): (i32, u64),
        response: &Response,
    ) -> Result<(), Violation> {
        let answer = response.read::<OffsetFetchRequest>()?;
        let found = answer.topics.iter().flat_map(|topic| &topic.partitions).next();
        let code = found.map_or(answer.error_code, |found| found.error_code.max(answer.error_code));
        let Some(found) = found.filter(|_| code == 0) else { return desk.unexpected("OffsetFetch", code) };
        let at = u64::try_from(found.committed_offset).unwrap_or(0);
        let (_, tried) = desk.ledger.committed(GROUP, part(index));
        if !(floor..=tried).contains(&at) {
            return Err(Violation(format!(
                "{GROUP}: {floor} was committed and {tried} asked for at last, and {at} is found"
            )));
        }
        if let Some(position) = self.positions.get_mut(&index) {
            *position = Some(position.unwrap_or(0).max(at));
        }
        Ok(())
    }
}

impl Client for GroupMember {
    fn act(&mut self, desk: &mut Desk<'_>) {
        if self.asked.is_none()
            && let Some(asked) = self.next(desk)
        {
            self.ask(desk, asked);
        }
    }

    fn answered(&mut self, desk: &mut Desk<'_>, response: &Response) -> Result<(), Violation> {
        let Some(asked) = self.asked.take() else {
            return Err(Violation("an answer that no member waits for".to_owned()));
        };
        let code = match asked {
            Asked::Join => return self.has_joined(desk, response),
            Asked::Sync => return self.has_synced(desk, response),
            Asked::Look(index, floor) => return self.has_looked(desk, (index, floor), response),
            Asked::Heartbeat => response.read::<HeartbeatRequest>()?.error_code,
            Asked::Leave => {
                (self.stage, self.id) = (Stage::Out, String::new());
                response.read::<LeaveGroupRequest>()?;
                0
            }
            Asked::Commit(index, offset) => {
                let answer = response.read::<OffsetCommitRequest>()?;
                let first = answer.topics.iter().flat_map(|topic| &topic.partitions).next();
                let code = first.map_or(-1, |first| first.error_code);
                if code == 0 {
                    desk.ledger.committed_to(GROUP, part(index), offset);
                    self.positions.insert(index, Some(offset));
                }
                code
            }
        };
        if code == 0 { Ok(()) } else { self.refused(desk, asked, code) }
    }

    fn lost(&mut self, ledger: &mut Ledger) -> Result<(), Violation> {
        let asked = self.asked.take();
        if self.stage == Stage::Joined || asked == Some(Asked::Join) || asked == Some(Asked::Leave) {
            self.stage = Stage::Out;
        }
        // Some have forgotten who they were.
        if ledger.tick().is_multiple_of(3) {
            (self.stage, self.id) = (Stage::Out, String::new());
        }
        if let Some(Asked::Commit(index, _)) = asked
            && let Some(position) = self.positions.get_mut(&index)
        {
            *position = None;
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.asked.is_none() && self.stage == Stage::In
    }
}
