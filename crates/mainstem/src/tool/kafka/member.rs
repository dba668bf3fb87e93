//! A member of a consumer group in the classic protocol: join, sync, heartbeat, commit, leave.
//!
//! If this member becomes the group's leader, it also assigns the partitions. Errors that end the membership are not
//! failures: they make the member rejoin.

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

use super::assignment::{
    PROTOCOL, assign_ranges, assigned_partitions, assignment, subscribed_topics, subscription,
};
use super::cluster::{Cluster, Partition};
use super::errors::{check, retry};
use crate::tool::failure::Failure;

const SESSION_TIMEOUT_MS: i32 = 45_000;
const REBALANCE_TIMEOUT_MS: i32 = 60_000;
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(3);
/// Longest wait for other members to rejoin. Five minutes is the default of the Java client.
const REBALANCE_WAIT_MAX: Duration = Duration::from_mins(5);

/// Whether a member keeps its assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Membership {
    Stable,
    /// The member has to join again.
    Rejoin,
}

/// A member of a group.
#[derive(Debug)]
pub(super) struct Member {
    group: String,
    topics: Vec<String>,
    coordinator: i32,
    /// Member id; empty until the broker has assigned one.
    id: String,
    generation_id: i32,
    last_heartbeat: Instant,
}

impl Member {
    /// A member that has not joined.
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
            last_heartbeat: Instant::now(),
        })
    }

    /// Joins or rejoins the group, and waits for the assigned partitions.
    ///
    /// # Errors
    /// If the broker returns an error.
    pub(super) fn join(&mut self, cluster: &mut Cluster) -> Result<Vec<Partition>, Failure> {
        let timeout = cluster.timeout();
        retry(timeout, || {
            let joined = loop {
                if let Some(joined) = self.try_join(cluster)? {
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
            let response = cluster.node(self.coordinator)?.call_with_wait(&request, REBALANCE_WAIT_MAX)?;
            if self.check_membership("sync", response.error_code)? == Membership::Rejoin {
                return Err(Failure::transient(format!("group {}: rebalance in progress", self.group)));
            }
            self.last_heartbeat = Instant::now();
            assigned_partitions(&response.assignment)
                .map_err(|error| Failure::new(format!("group {}: assignment: {error}", self.group)))
        })
    }

    /// Sends `JoinGroup`. Returns `None` if the request has to be repeated.
    fn try_join(&mut self, cluster: &mut Cluster) -> Result<Option<JoinGroupResponse>, Failure> {
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
        let response = cluster.node(self.coordinator)?.call_with_wait(&request, REBALANCE_WAIT_MAX)?;
        if response.error_code == ErrorCode::MemberIdRequired.code() {
            // The broker assigned a member id, with which the member has to join again (KIP-394).
            self.id = response.member_id;
            return Ok(None);
        }
        if response.error_code == ErrorCode::NotCoordinator.code() {
            self.coordinator = cluster.coordinator(&self.group)?;
        }
        if self.check_membership("join", response.error_code)? == Membership::Rejoin {
            return Ok(None);
        }
        self.id.clone_from(&response.member_id);
        self.generation_id = response.generation_id;
        Ok(Some(response))
    }

    /// Assigns partitions to all members, as the leader of the group.
    fn assignments(
        &self,
        cluster: &mut Cluster,
        joined: &JoinGroupResponse,
    ) -> Result<Vec<SyncGroupRequestAssignment>, Failure> {
        let mut subscriptions = BTreeMap::new();
        for member in &joined.members {
            let topics = subscribed_topics(&member.metadata)
                .map_err(|error| Failure::new(format!("group {}: subscription: {error}", self.group)))?;
            subscriptions.insert(member.member_id.clone(), topics);
        }
        let mut counts = BTreeMap::new();
        for topic in subscriptions.values().flatten() {
            if !counts.contains_key(topic)
                && let Ok(found) = cluster.topic(topic)
            {
                counts.insert(topic.clone(), found.partition_count());
            }
        }
        let assigned = assign_ranges(&subscriptions, &counts).into_iter();
        let encode = |(member_id, partitions): (String, Vec<Partition>)| SyncGroupRequestAssignment {
            member_id,
            assignment: assignment(&partitions),
        };
        Ok(assigned.map(encode).collect())
    }

    /// Sends a heartbeat if one is due.
    ///
    /// # Errors
    /// If the broker returns an error.
    pub(super) fn heartbeat_if_due(&mut self, cluster: &mut Cluster) -> Result<Membership, Failure> {
        if self.last_heartbeat.elapsed() < HEARTBEAT_INTERVAL {
            return Ok(Membership::Stable);
        }
        self.last_heartbeat = Instant::now();
        let request = HeartbeatRequest {
            group_id: self.group.clone(),
            generation_id: self.generation_id,
            member_id: self.id.clone(),
            ..HeartbeatRequest::default()
        };
        let response = cluster.node(self.coordinator)?.call(&request)?;
        self.check_membership("heartbeat", response.error_code)
    }

    /// Commits offsets.
    ///
    /// # Errors
    /// If the broker returns an error other than that the membership has ended.
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
        let response = cluster.node(self.coordinator)?.call(&request)?;
        for partition in response.topics.into_iter().flat_map(|topic| topic.partitions) {
            // If the membership has ended, the next heartbeat detects it.
            self.check_membership("commit", partition.error_code)?;
        }
        Ok(())
    }

    /// Committed offsets of these partitions. Partitions without one are omitted.
    ///
    /// # Errors
    /// If the broker returns an error.
    pub(super) fn stored(
        &self,
        cluster: &mut Cluster,
        partitions: &[Partition],
    ) -> Result<BTreeMap<Partition, i64>, Failure> {
        stored_offsets(cluster, self.coordinator, &self.group, Some(partitions))
    }

    /// Leaves the group, so that a rebalance starts before the session times out.
    ///
    /// # Errors
    /// If the broker returns an error.
    pub(super) fn leave(self, cluster: &mut Cluster) -> Result<(), Failure> {
        let member = MemberIdentity { member_id: self.id.clone(), ..MemberIdentity::default() };
        let request =
            LeaveGroupRequest { group_id: self.group.clone(), member_id: self.id, members: vec![member] };
        let response = cluster.node(self.coordinator)?.call(&request)?;
        check(&format!("group {}: leave", self.group), response.error_code, None)
    }

    fn check_membership(&mut self, request_name: &str, code: i16) -> Result<Membership, Failure> {
        match ErrorCode::from_code(code) {
            Some(ErrorCode::RebalanceInProgress) => Ok(Membership::Rejoin),
            Some(ErrorCode::UnknownMemberId | ErrorCode::IllegalGeneration) => {
                self.id.clear();
                self.generation_id = -1;
                Ok(Membership::Rejoin)
            }
            _ => check(&format!("group {}: {request_name}", self.group), code, None)
                .map(|()| Membership::Stable),
        }
    }
}

/// An offset commit without group and member.
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

/// Committed offsets of these partitions, or of all partitions with one.
///
/// # Errors
/// If the broker returns an error.
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
    let timeout = cluster.timeout();
    let response = retry(timeout, || {
        let response = cluster.node(coordinator)?.call(&request)?;
        check(&format!("group {group}: offsets"), response.error_code, None)?;
        Ok(response)
    })?;
    let mut offsets = BTreeMap::new();
    for topic in response.topics {
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
