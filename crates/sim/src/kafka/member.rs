//! Members of a consumer group (classic protocol): they join, share the partitions of a topic, commit offsets for those
//! they are assigned, leave, and vanish.
//!
//! In one generation, a partition must be assigned to one member only, and its committed offset never goes back.

use std::collections::BTreeMap;

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::heartbeat::HeartbeatRequest;
use mainstem_kafka::api::join_group::{JoinGroupRequest, JoinGroupRequestProtocol};
use mainstem_kafka::api::leave_group::{LeaveGroupRequest, MemberIdentity};
use mainstem_kafka::api::offset_commit::OffsetCommitRequest;
use mainstem_kafka::api::offset_fetch::{OffsetFetchRequest, OffsetFetchRequestTopic};
use mainstem_kafka::api::sync_group::{SyncGroupRequest, SyncGroupRequestAssignment};

use super::client::{Client, Context};
use super::connection::Response;
use super::oracle::{Oracle, PartitionId};
use crate::Violation;

const GROUP: &str = "members";
const PROTOCOL_TYPE: &str = "consumer";
const PROTOCOL: &str = "range";
/// The topic whose partitions are assigned.
const TOPIC: usize = 0;
const SESSION_TIMEOUT_MS: i32 = 10_000;
const HEARTBEAT_MS: u64 = 3_000;

#[derive(Debug, Default)]
pub(crate) struct GroupMember {
    /// Member id, once assigned.
    id: String,
    generation: i32,
    stage: Stage,
    /// Leader of the generation, and all member ids if that is this one.
    leader: String,
    members: Vec<String>,
    /// Next offset of each assigned partition, once fetched.
    positions: BTreeMap<i32, Option<u64>>,
    heartbeat_at_ms: u64,
    in_flight: Option<InFlight>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Out,
    /// It has a generation, and no assignment yet.
    Joined,
    In,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InFlight {
    Join,
    Sync,
    Heartbeat,
    Leave,
    /// Fetches the committed offset of a partition, which was at least this.
    FetchOffset(i32, u64),
    Commit(i32, u64),
}

fn part(index: i32) -> PartitionId {
    PartitionId { topic: TOPIC, index }
}

/// Topics subscribed to, as version 0 of `ConsumerProtocolSubscription`.
fn subscription(topic: &str) -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 0, 0, 1];
    bytes.extend_from_slice(&(topic.len() as u16).to_be_bytes());
    bytes.extend_from_slice(topic.as_bytes());
    bytes.extend_from_slice(&(-1_i32).to_be_bytes());
    bytes
}

impl GroupMember {
    fn next(&mut self, context: &mut Context<'_>) -> Option<InFlight> {
        match self.stage {
            Stage::Out => return Some(InFlight::Join),
            Stage::Joined => return Some(InFlight::Sync),
            Stage::In => {}
        }
        if let Some((index, _)) = self.positions.iter().find(|(_, position)| position.is_none()) {
            return Some(InFlight::FetchOffset(*index, context.oracle.committed(GROUP, part(*index)).0));
        }
        if context.now_ms >= self.heartbeat_at_ms {
            return Some(InFlight::Heartbeat);
        }
        if context.is_ending {
            return None;
        }
        let which = context.rng.below(self.positions.len().max(1) as u64) as usize;
        let owned = self.positions.iter().nth(which).map(|(index, position)| (*index, *position));
        match (context.rng.below(20), owned) {
            (0, _) => Some(InFlight::Leave),
            (1..4, Some((index, _))) => {
                Some(InFlight::FetchOffset(index, context.oracle.committed(GROUP, part(index)).0))
            }
            (_, Some((index, Some(position)))) => {
                Some(InFlight::Commit(index, position + 1 + context.rng.below(3)))
            }
            _ => None,
        }
    }

    fn ask(&mut self, context: &mut Context<'_>, in_flight: InFlight) {
        let (group_id, member_id, generation_id) = (GROUP.to_owned(), self.id.clone(), self.generation);
        let name = context.name(part(0));
        self.in_flight = Some(in_flight);
        match in_flight {
            InFlight::Join => {
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
                context.connection.send(7, &request);
            }
            InFlight::Sync => {
                let assignments = self.assign(context.topics[TOPIC].partitions);
                let request = SyncGroupRequest {
                    group_id,
                    generation_id,
                    member_id,
                    assignments,
                    ..SyncGroupRequest::default()
                };
                context.connection.send(3, &request);
            }
            InFlight::Heartbeat => {
                self.heartbeat_at_ms = context.now_ms + HEARTBEAT_MS;
                let request =
                    HeartbeatRequest { group_id, generation_id, member_id, group_instance_id: None };
                context.connection.send(3, &request);
            }
            InFlight::Leave => {
                let members = vec![MemberIdentity { member_id, ..MemberIdentity::default() }];
                context
                    .connection
                    .send(4, &LeaveGroupRequest { group_id, members, ..LeaveGroupRequest::default() });
            }
            InFlight::FetchOffset(index, _) => {
                let topics = vec![OffsetFetchRequestTopic { name, partition_indexes: vec![index] }];
                let request =
                    OffsetFetchRequest { group_id, topics: Some(topics), ..OffsetFetchRequest::default() };
                context.connection.send(6, &request);
            }
            InFlight::Commit(index, offset) => {
                let member = (GROUP, self.id.as_str(), self.generation);
                context.send_commit(7, member, part(index), offset);
            }
        }
    }

    /// The leader's assignment: partitions in turn, in a format of its own.
    fn assign(&self, partitions: u16) -> Vec<SyncGroupRequestAssignment> {
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

    /// Handles an error. Most errors mean that the generation, or the membership, is over.
    fn refused(&mut self, context: &Context<'_>, in_flight: InFlight, code: i16) -> Result<(), Violation> {
        match ErrorCode::from_code(code) {
            Some(ErrorCode::RebalanceInProgress | ErrorCode::IllegalGeneration) => {}
            Some(ErrorCode::UnknownMemberId) => self.id.clear(),
            _ => return context.unexpected(&format!("{in_flight:?}"), code),
        }
        self.stage = Stage::Out;
        Ok(())
    }

    fn has_joined(&mut self, context: &Context<'_>, response: &Response) -> Result<(), Violation> {
        let answer = response.read::<JoinGroupRequest>()?;
        if answer.error_code == ErrorCode::MemberIdRequired.code() && self.id.is_empty() {
            self.id = answer.member_id;
            return Ok(());
        }
        if answer.error_code != 0 {
            return self.refused(context, InFlight::Join, answer.error_code);
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

    fn has_synced(&mut self, context: &mut Context<'_>, response: &Response) -> Result<(), Violation> {
        let answer = response.read::<SyncGroupRequest>()?;
        if answer.error_code != 0 {
            return self.refused(context, InFlight::Sync, answer.error_code);
        }
        let (indexes, _) = answer.assignment.as_chunks::<4>();
        self.positions = indexes.iter().map(|index| (i32::from_be_bytes(*index), None)).collect();
        self.stage = Stage::In;
        self.heartbeat_at_ms = context.now_ms + HEARTBEAT_MS;
        for index in self.positions.keys() {
            context.oracle.assigned_partition((&self.leader, self.generation), part(*index), &self.id)?;
        }
        Ok(())
    }

    fn has_looked(
        &mut self,
        context: &mut Context<'_>,
        (index, floor): (i32, u64),
        response: &Response,
    ) -> Result<(), Violation> {
        let answer = response.read::<OffsetFetchRequest>()?;
        let found = answer.topics.iter().flat_map(|topic| &topic.partitions).next();
        let code = found.map_or(answer.error_code, |found| found.error_code.max(answer.error_code));
        let Some(found) = found.filter(|_| code == 0) else { return context.unexpected("OffsetFetch", code) };
        let at = u64::try_from(found.committed_offset).unwrap_or(0);
        let (_, tried) = context.oracle.committed(GROUP, part(index));
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
    fn act(&mut self, context: &mut Context<'_>) {
        if self.in_flight.is_none()
            && let Some(in_flight) = self.next(context)
        {
            self.ask(context, in_flight);
        }
    }

    fn handle_response(&mut self, context: &mut Context<'_>, response: &Response) -> Result<(), Violation> {
        let Some(in_flight) = self.in_flight.take() else {
            return Err(Violation("an answer that no member waits for".to_owned()));
        };
        let code = match in_flight {
            InFlight::Join => return self.has_joined(context, response),
            InFlight::Sync => return self.has_synced(context, response),
            InFlight::FetchOffset(index, floor) => return self.has_looked(context, (index, floor), response),
            InFlight::Heartbeat => response.read::<HeartbeatRequest>()?.error_code,
            InFlight::Leave => {
                (self.stage, self.id) = (Stage::Out, String::new());
                response.read::<LeaveGroupRequest>()?;
                0
            }
            InFlight::Commit(index, offset) => {
                let answer = response.read::<OffsetCommitRequest>()?;
                let first = answer.topics.iter().flat_map(|topic| &topic.partitions).next();
                let code = first.map_or(-1, |first| first.error_code);
                if code == 0 {
                    context.oracle.commit_acked(GROUP, part(index), offset);
                    self.positions.insert(index, Some(offset));
                }
                code
            }
        };
        if code == 0 { Ok(()) } else { self.refused(context, in_flight, code) }
    }

    fn connection_lost(&mut self, oracle: &mut Oracle) -> Result<(), Violation> {
        let in_flight = self.in_flight.take();
        if self.stage == Stage::Joined
            || in_flight == Some(InFlight::Join)
            || in_flight == Some(InFlight::Leave)
        {
            self.stage = Stage::Out;
        }
        // Some return as new members.
        if oracle.tick().is_multiple_of(3) {
            (self.stage, self.id) = (Stage::Out, String::new());
        }
        if let Some(InFlight::Commit(index, _)) = in_flight
            && let Some(position) = self.positions.get_mut(&index)
        {
            *position = None;
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.in_flight.is_none() && self.stage == Stage::In
    }
}
