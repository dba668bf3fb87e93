//! Members of a group of the consumer protocol (KIP-848): they join, get and give up partitions of a topic, commit
//! offsets for those they own, leave, fall silent, and vanish.
//!
//! At any time a partition is owned by one member only, whatever is lost or restarted; a member owns its partitions
//! until it gives them up, or has had no response for a session timeout. The committed offset never goes back.

use std::collections::BTreeMap;

use mainstem_kafka::api::consumer_group_heartbeat::{ConsumerGroupHeartbeatRequest, TopicPartitions};
use mainstem_kafka::api::offset_commit::OffsetCommitRequest;
use mainstem_kafka::api::offset_fetch::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use mainstem_kafka::{ErrorCode, Uuid};

use super::client::{Client, Context, is_storage};
use super::connection::Response;
use super::oracle::{Oracle, PartitionId};
use crate::Violation;

const GROUP: &str = "consumers";
/// The topic whose partitions are assigned.
const TOPIC: usize = 0;
/// `group.consumer.session.timeout.ms` of the broker.
pub(crate) const SESSION_MS: u32 = 10_000;
const HEARTBEAT_MS: u64 = 3_000;
/// So long that no member loses partitions without having heard of it.
const REBALANCE_TIMEOUT_MS: i32 = 1_000_000_000;

#[derive(Debug)]
pub(crate) struct ConsumerMember {
    id: String,
    /// 0 if it is to join.
    epoch: i32,
    topic_id: Uuid,
    /// Next offset of each partition that it owns, once fetched.
    positions: BTreeMap<i32, Option<u64>>,
    /// The next heartbeat must say everything: the broker may not know it.
    must_tell_all: bool,
    heartbeat_at_ms: u64,
    /// When it stops to use its partitions unless a heartbeat is answered.
    deadline_ms: u64,
    in_flight: Option<InFlight>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InFlight {
    /// A heartbeat, and when it was sent.
    Heartbeat(u64),
    Leave,
    /// Fetches the committed offset of a partition, which was at least this.
    FetchOffset(i32, u64),
    Commit(i32, u64),
}

fn part(index: i32) -> PartitionId {
    PartitionId { topic: TOPIC, index }
}

impl ConsumerMember {
    pub(crate) fn new(number: usize) -> Self {
        Self {
            id: format!("consumer-{number}"),
            epoch: 0,
            topic_id: Uuid::default(),
            positions: BTreeMap::new(),
            must_tell_all: true,
            heartbeat_at_ms: 0,
            deadline_ms: 0,
            in_flight: None,
        }
    }

    /// Stops to use all partitions.
    fn abandon(&mut self, oracle: &mut Oracle) {
        for index in std::mem::take(&mut self.positions).into_keys() {
            oracle.give_up(part(index), &self.id);
        }
        (self.epoch, self.must_tell_all) = (0, true);
    }

    fn next(&mut self, context: &mut Context<'_>) -> Option<InFlight> {
        if self.epoch == 0 || context.now_ms >= self.heartbeat_at_ms {
            return Some(InFlight::Heartbeat(context.now_ms));
        }
        if let Some((index, _)) = self.positions.iter().find(|(_, position)| position.is_none()) {
            return Some(InFlight::FetchOffset(*index, context.oracle.committed(GROUP, part(*index)).0));
        }
        if context.is_ending {
            return None;
        }
        let which = context.rng.below(self.positions.len().max(1) as u64) as usize;
        let owned = self.positions.iter().nth(which).map(|(index, position)| (*index, *position));
        match (context.rng.below(30), owned) {
            (0, _) => Some(InFlight::Leave),
            (1, _) => Some(InFlight::Heartbeat(context.now_ms)),
            (2..5, Some((index, _))) => {
                Some(InFlight::FetchOffset(index, context.oracle.committed(GROUP, part(index)).0))
            }
            (_, Some((index, Some(position)))) => {
                Some(InFlight::Commit(index, position + 1 + context.rng.below(3)))
            }
            _ => None,
        }
    }

    fn ask(&mut self, context: &mut Context<'_>, in_flight: InFlight) {
        self.in_flight = Some(in_flight);
        match in_flight {
            InFlight::Heartbeat(_) => self.send_heartbeat(context),
            InFlight::Leave => {
                let epoch = self.epoch;
                self.abandon(context.oracle);
                self.epoch = epoch;
                let request = ConsumerGroupHeartbeatRequest { member_epoch: -1, ..self.heartbeat() };
                context.connection.send(1, &request);
            }
            InFlight::FetchOffset(index, _) => {
                let topic = OffsetFetchRequestTopics {
                    name: context.name(part(0)),
                    partition_indexes: vec![index],
                    ..OffsetFetchRequestTopics::default()
                };
                let group = OffsetFetchRequestGroup {
                    group_id: GROUP.to_owned(),
                    member_id: Some(self.id.clone()),
                    member_epoch: self.epoch,
                    topics: Some(vec![topic]),
                };
                let request = OffsetFetchRequest { groups: vec![group], ..OffsetFetchRequest::default() };
                context.connection.send(9, &request);
            }
            InFlight::Commit(index, offset) => {
                let member = (GROUP, self.id.as_str(), self.epoch);
                context.send_commit(9, member, part(index), offset);
            }
        }
    }

    fn heartbeat(&self) -> ConsumerGroupHeartbeatRequest {
        ConsumerGroupHeartbeatRequest {
            group_id: GROUP.to_owned(),
            member_id: self.id.clone(),
            member_epoch: self.epoch,
            ..ConsumerGroupHeartbeatRequest::default()
        }
    }

    fn send_heartbeat(&mut self, context: &mut Context<'_>) {
        self.heartbeat_at_ms = context.now_ms + HEARTBEAT_MS;
        let partitions: Vec<i32> = self.positions.keys().copied().collect();
        let owned = TopicPartitions { topic_id: self.topic_id, partitions };
        let owned = if owned.partitions.is_empty() { Vec::new() } else { vec![owned] };
        let mut request = ConsumerGroupHeartbeatRequest { topic_partitions: Some(owned), ..self.heartbeat() };
        if self.must_tell_all {
            request.rebalance_timeout_ms = REBALANCE_TIMEOUT_MS;
            request.subscribed_topic_names = Some(vec![context.name(part(0))]);
        }
        context.connection.send(1, &request);
    }

    /// Handles an error.
    fn refused(
        &mut self,
        context: &mut Context<'_>,
        in_flight: InFlight,
        code: i16,
    ) -> Result<(), Violation> {
        match ErrorCode::from_code(code) {
            Some(ErrorCode::FencedMemberEpoch | ErrorCode::UnknownMemberId | ErrorCode::GroupIdNotFound) => {
                self.abandon(context.oracle);
            }
            // The broker knows a later epoch, whose response was lost: the next heartbeat tells it.
            Some(ErrorCode::StaleMemberEpoch) => self.heartbeat_at_ms = context.now_ms,
            _ => {
                self.must_tell_all = true;
                return context.unexpected(&format!("{in_flight:?} of {}", self.id), code);
            }
        }
        Ok(())
    }

    fn was_answered(
        &mut self,
        context: &mut Context<'_>,
        sent_at_ms: u64,
        response: &Response,
    ) -> Result<(), Violation> {
        let answer = response.read::<ConsumerGroupHeartbeatRequest>()?;
        if answer.error_code != 0 {
            return self.refused(context, InFlight::Heartbeat(sent_at_ms), answer.error_code);
        }
        self.epoch = answer.member_epoch;
        self.must_tell_all = false;
        self.deadline_ms = sent_at_ms + u64::from(SESSION_MS);
        if self.deadline_ms <= context.now_ms {
            // The broker may have removed it meanwhile.
            self.abandon(context.oracle);
            return Ok(());
        }
        if let Some(assignment) = answer.assignment {
            let topics = assignment.topic_partitions;
            self.topic_id = topics.first().map_or(self.topic_id, |topic| topic.topic_id);
            let assigned: Vec<i32> = topics.into_iter().flat_map(|topic| topic.partitions).collect();
            let lost: Vec<i32> =
                self.positions.keys().copied().filter(|index| !assigned.contains(index)).collect();
            for index in lost {
                self.positions.remove(&index);
                context.oracle.give_up(part(index), &self.id);
                // Whoever is to have it waits for that.
                self.heartbeat_at_ms = context.now_ms;
            }
            for index in assigned {
                self.positions.entry(index).or_insert(None);
            }
        }
        for index in self.positions.keys() {
            context.oracle.own(part(*index), &self.id, context.now_ms, self.deadline_ms)?;
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
        let group = answer.groups.first().ok_or_else(|| Violation("an answer without a group".to_owned()))?;
        let found = group.topics.iter().flat_map(|topic| &topic.partitions).next();
        let code = found.map_or(group.error_code, |found| found.error_code.max(group.error_code));
        let Some(found) = found.filter(|_| code == 0) else {
            return self.refused(context, InFlight::FetchOffset(index, floor), code);
        };
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

impl Client for ConsumerMember {
    fn act(&mut self, context: &mut Context<'_>) {
        if self.epoch > 0 && context.now_ms >= self.deadline_ms {
            self.abandon(context.oracle);
        }
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
        match in_flight {
            InFlight::Heartbeat(sent_at_ms) => self.was_answered(context, sent_at_ms, response),
            InFlight::FetchOffset(index, floor) => self.has_looked(context, (index, floor), response),
            InFlight::Leave => {
                self.epoch = 0;
                let code = response.read::<ConsumerGroupHeartbeatRequest>()?.error_code;
                if code == 0 { Ok(()) } else { self.refused(context, in_flight, code) }
            }
            InFlight::Commit(index, offset) => {
                let answer = response.read::<OffsetCommitRequest>()?;
                let first = answer.topics.iter().flat_map(|topic| &topic.partitions).next();
                let code = first.map_or(-1, |first| first.error_code);
                if code == 0 {
                    context.oracle.commit_acked(GROUP, part(index), offset);
                    if let Some(position) = self.positions.get_mut(&index) {
                        *position = Some(offset);
                    }
                    return Ok(());
                }
                if is_storage(code)
                    && let Some(position) = self.positions.get_mut(&index)
                {
                    *position = None;
                }
                self.refused(context, in_flight, code)
            }
        }
    }

    fn connection_lost(&mut self, oracle: &mut Oracle) -> Result<(), Violation> {
        let in_flight = self.in_flight.take();
        self.must_tell_all = true;
        let number = oracle.tick();
        if in_flight == Some(InFlight::Leave) {
            self.epoch = 0;
        } else if number.is_multiple_of(3) {
            // Some return as new members.
            self.abandon(oracle);
            self.id = format!("consumer-again-{number}");
        }
        if let Some(InFlight::Commit(index, _)) = in_flight
            && let Some(position) = self.positions.get_mut(&index)
        {
            *position = None;
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.in_flight.is_none() && self.epoch > 0 && self.positions.values().all(Option::is_some)
    }
}
