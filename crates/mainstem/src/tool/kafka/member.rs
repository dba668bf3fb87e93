//! A member of a consumer group: the classic protocol, as far as a reader needs it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::heartbeat::HeartbeatRequest;
use mainstem_kafka::api::join_group::{JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse};
use mainstem_kafka::api::leave_group::{LeaveGroupRequest, MemberIdentity};
use mainstem_kafka::api::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_kafka::api::offset_fetch::{OffsetFetchRequest, OffsetFetchRequestTopic};
use mainstem_kafka::api::sync_group::{SyncGroupRequest, SyncGroupRequestAssignment};

use super::assignment::{PROTOCOL, assigned_partitions, assignment, deal, subscribed_topics, subscription};
use super::cluster::{Cluster, Partition};
use super::errors::{check, persist};
use crate::tool::failure::Failure;

const SESSION_TIMEOUT_MS: i32 = 45_000;
const REBALANCE_TIMEOUT_MS: i32 = 60_000;
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(3);
/// Longest that other members may keep a rebalance waiting: five minutes is their default.
const OTHERS_PATIENCE: Duration = Duration::from_mins(5);

/// Whether a member goes on with what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It does.
    Fine,
    /// It has to join again.
    Rejoin,
}

/// A member of a group.
#[derive(Debug)]
pub(super) struct Member {
    group: String,
    topics: Vec<String>,
    coordinator: i32,
    /// Its member id; empty until the broker has given one.
    id: String,
    generation_id: i32,
    beat: Instant,
}

impl Member {
    /// A member to be, which has not joined.
    ///
    /// # Errors
    /// If the group has no coordinator.
    pub(super) fn new(cluster: &mut Cluster, group: &str, topics: &[String]) -> Result<Self, Failure> {
        Ok(Self {
            coordinator: cluster.coordinator(group)?,
            group: group.into(),
            topics: topics.to_vec(),
            id: String::new(),
            generation_id: -1,
            beat: Instant::now(),
        })
    }

    /// Joins, or joins again, and waits for the partitions that are dealt to it.
    ///
    /// # Errors
    /// If the broker refuses.
    pub(super) fn join(&mut self, cluster: &mut Cluster) -> Result<Vec<Partition>, Failure> {
        let patience = cluster.patience();
        persist(patience, || {
            let joined = loop {
                if let Some(joined) = self.ask_to_join(cluster)? {
                    break joined;
                }
            };
            let assignments = if joined.leader == joined.member_id {
                self.assignments(cluster, &joined)?
            } else {
                Vec::new()
            };
            let request = SyncGroupRequest {
                group_id: self.group.clone(),
                generation_id: self.generation_id,
                member_id: self.id.clone(),
                protocol_type: joined.protocol_type.clone(),
                protocol_name: joined.protocol_name.clone(),
                assignments,
                ..SyncGroupRequest::default()
            };
            let answer = cluster.node(self.coordinator)?.call_slow(&request, OTHERS_PATIENCE)?;
            if self.standing("sync", answer.error_code)? == Standing::Rejoin {
                return Err(Failure::lost(format!("group {}: it is rebalancing", self.group)));
            }
            self.beat = Instant::now();
            assigned_partitions(&answer.assignment)
                .map_err(|error| Failure::new(format!("group {}: assignment: {error}", self.group)))
        })
    }

    /// `None` if it has to be asked once more.
    fn ask_to_join(&mut self, cluster: &mut Cluster) -> Result<Option<JoinGroupResponse>, Failure> {
        let protocol =
            JoinGroupRequestProtocol { name: PROTOCOL.into(), metadata: subscription(&self.topics) };
        let request = JoinGroupRequest {
            group_id: self.group.clone(),
            session_timeout_ms: SESSION_TIMEOUT_MS,
            rebalance_timeout_ms: REBALANCE_TIMEOUT_MS,
            member_id: self.id.clone(),
            protocol_type: "consumer".into(),
            protocols: vec![protocol],
            ..JoinGroupRequest::default()
        };
        let answer = cluster.node(self.coordinator)?.call_slow(&request, OTHERS_PATIENCE)?;
        if answer.error_code == ErrorCode::MemberIdRequired.code() {
            // The broker wants to see that we come back (KIP-394).
            self.id = answer.member_id;
            return Ok(None);
        }
        if answer.error_code == ErrorCode::NotCoordinator.code() {
            self.coordinator = cluster.coordinator(&self.group)?;
        }
        if self.standing("join", answer.error_code)? == Standing::Rejoin {
            return Ok(None);
        }
        self.id.clone_from(&answer.member_id);
        self.generation_id = answer.generation_id;
        Ok(Some(answer))
    }

    /// As the leader of the group: who gets what.
    fn assignments(
        &self,
        cluster: &mut Cluster,
        joined: &JoinGroupResponse,
    ) -> Result<Vec<SyncGroupRequestAssignment>, Failure> {
        let mut wishes = BTreeMap::new();
        for member in &joined.members {
            let topics = subscribed_topics(&member.metadata)
                .map_err(|error| Failure::new(format!("group {}: subscription: {error}", self.group)))?;
            wishes.insert(member.member_id.clone(), topics);
        }
        let mut counts = BTreeMap::new();
        for topic in wishes.values().flatten() {
            if !counts.contains_key(topic)
                && let Ok(found) = cluster.topic(topic)
            {
                counts.insert(topic.clone(), found.partition_count());
            }
        }
        let dealt = deal(&wishes, &counts).into_iter();
        let one = |(member_id, partitions): (String, Vec<Partition>)| SyncGroupRequestAssignment {
            member_id,
            assignment: assignment(&partitions),
        };
        Ok(dealt.map(one).collect())
    }

    /// Tells the coordinator that it is alive, if it is time for that.
    ///
    /// # Errors
    /// If the broker refuses.
    pub(super) fn keep_alive(&mut self, cluster: &mut Cluster) -> Result<Standing, Failure> {
        if self.beat.elapsed() < HEARTBEAT_INTERVAL {
            return Ok(Standing::Fine);
        }
        self.beat = Instant::now();
        let request = HeartbeatRequest {
            group_id: self.group.clone(),
            generation_id: self.generation_id,
            member_id: self.id.clone(),
            ..HeartbeatRequest::default()
        };
        let answer = cluster.node(self.coordinator)?.call(&request)?;
        self.standing("heartbeat", answer.error_code)
    }

    /// Stores how far the group has read.
    ///
    /// # Errors
    /// If the broker refuses for another reason than that the partitions are no longer this member's.
    pub(super) fn commit(
        &mut self,
        cluster: &mut Cluster,
        offsets: &BTreeMap<Partition, i64>,
    ) -> Result<(), Failure> {
        if offsets.is_empty() {
            return Ok(());
        }
        let request = OffsetCommitRequest {
            group_id: self.group.clone(),
            generation_id_or_member_epoch: self.generation_id,
            member_id: self.id.clone(),
            ..commit_request(offsets)
        };
        let answer = cluster.node(self.coordinator)?.call(&request)?;
        for partition in answer.topics.into_iter().flat_map(|topic| topic.partitions) {
            // The next heartbeat finds out that it has to join again.
            self.standing("commit", partition.error_code)?;
        }
        Ok(())
    }

    /// How far the group has read these partitions; those it has not read are left out.
    ///
    /// # Errors
    /// If the broker refuses.
    pub(super) fn stored(
        &self,
        cluster: &mut Cluster,
        partitions: &[Partition],
    ) -> Result<BTreeMap<Partition, i64>, Failure> {
        stored_offsets(cluster, self.coordinator, &self.group, Some(partitions))
    }

    /// Leaves the group, so that the others need not wait for the session to end.
    ///
    /// # Errors
    /// If the broker refuses.
    pub(super) fn leave(self, cluster: &mut Cluster) -> Result<(), Failure> {
        let member = MemberIdentity { member_id: self.id.clone(), ..MemberIdentity::default() };
        let request =
            LeaveGroupRequest { group_id: self.group.clone(), member_id: self.id, members: vec![member] };
        let answer = cluster.node(self.coordinator)?.call(&request)?;
        check(&format!("group {}: leave", self.group), answer.error_code, None)
    }

    fn standing(&mut self, doing: &str, code: i16) -> Result<Standing, Failure> {
        match ErrorCode::from_code(code) {
            Some(ErrorCode::RebalanceInProgress) => Ok(Standing::Rejoin),
            Some(ErrorCode::UnknownMemberId | ErrorCode::IllegalGeneration) => {
                self.id.clear();
                self.generation_id = -1;
                Ok(Standing::Rejoin)
            }
            _ => check(&format!("group {}: {doing}", self.group), code, None).map(|()| Standing::Fine),
        }
    }
}

/// A request that stores offsets, yet without group and member.
pub(super) fn commit_request(offsets: &BTreeMap<Partition, i64>) -> OffsetCommitRequest {
    let mut topics: BTreeMap<&str, Vec<OffsetCommitRequestPartition>> = BTreeMap::new();
    for ((topic, index), offset) in offsets {
        topics.entry(topic).or_default().push(OffsetCommitRequestPartition {
            partition_index: *index,
            committed_offset: *offset,
            committed_metadata: Some(String::new()),
            ..OffsetCommitRequestPartition::default()
        });
    }
    let topic = |(name, partitions): (&str, Vec<_>)| OffsetCommitRequestTopic {
        name: name.into(),
        partitions,
        ..OffsetCommitRequestTopic::default()
    };
    OffsetCommitRequest { topics: topics.into_iter().map(topic).collect(), ..OffsetCommitRequest::default() }
}

/// How far a group has read these partitions, or all of which it has stored that.
///
/// # Errors
/// If the broker refuses.
pub(super) fn stored_offsets(
    cluster: &mut Cluster,
    coordinator: i32,
    group: &str,
    partitions: Option<&[Partition]>,
) -> Result<BTreeMap<Partition, i64>, Failure> {
    let topics = partitions.map(|partitions| {
        let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
        for (topic, index) in partitions {
            topics.entry(topic).or_default().push(*index);
        }
        let topic = |(name, partition_indexes): (&str, Vec<i32>)| OffsetFetchRequestTopic {
            name: name.into(),
            partition_indexes,
        };
        topics.into_iter().map(topic).collect()
    });
    let request = OffsetFetchRequest { group_id: group.into(), topics, ..OffsetFetchRequest::default() };
    let patience = cluster.patience();
    let answer = persist(patience, || {
        let answer = cluster.node(coordinator)?.call(&request)?;
        check(&format!("group {group}: offsets"), answer.error_code, None)?;
        Ok(answer)
    })?;
    let mut offsets = BTreeMap::new();
    for topic in answer.topics {
        for partition in topic.partitions {
            let index = partition.partition_index;
            check(&format!("group {group}: {} [{index}]", topic.name), partition.error_code, None)?;
            if partition.committed_offset >= 0 {
                offsets.insert((topic.name.clone(), index), partition.committed_offset);
            }
        }
    }
    Ok(offsets)
}
