//! Outputs of [`Groups`](super::Groups): effects, and the replies to each kind of request.
//!
//! Effects are data: the machine performs no I/O. Their order matters, because a reply may promise what the records
//! before it contain.

use super::changes::WriteId;
use super::consumer::{ConsumerHeartbeatResult, Refusal};
use super::state::State;
use crate::{Caller, Error, Record};

/// An action for the owner of the groups. Effects must be performed in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Persist these records together: all of them or none. Report the outcome with
    /// [`Groups::write_succeeded`](super::Groups::write_succeeded) or
    /// [`Groups::write_failed`](super::Groups::write_failed).
    Persist {
        /// Identifies the write in the report.
        keep: WriteId,
        /// The records.
        records: Vec<Record>,
    },
    /// Reply at once.
    Reply {
        /// The request.
        caller: Caller,
        /// The reply.
        answer: Response,
    },
    /// Reply once all earlier records are durable. If a write fails, reply with [`Response::with_error`]
    /// instead.
    ReplyWhenDurable {
        /// The request.
        caller: Caller,
        /// The reply.
        answer: Response,
    },
}

/// A reply, by the request it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// To JoinGroup.
    Join(JoinResponse),
    /// To ConsumerGroupHeartbeat.
    ConsumerHeartbeat(Result<ConsumerHeartbeatResult, Refusal>),
    /// To SyncGroup.
    Sync(Result<SyncResult, Error>),
    /// To LeaveGroup.
    Leave(Result<Vec<LeaveResult>, Error>),
    /// To OffsetCommit and TxnOffsetCommit.
    Commit(Vec<TopicResult<PartitionResult>>),
    /// To OffsetFetch, one entry per group.
    Fetch(Vec<FetchedGroup>),
    /// To OffsetDelete.
    OffsetDelete(Result<Vec<TopicResult<PartitionResult>>, Error>),
    /// To DeleteGroups.
    Delete(Vec<DeletedGroup>),
    /// To the configuration of a group.
    Configure(Result<(), Error>),
    /// To the end of a transaction: its offsets have been committed or dropped.
    TransactionEnd(Result<(), Error>),
}

/// To JoinGroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinResponse {
    /// The member id, or the one to join with next (KIP-394).
    pub member_id: String,
    /// The generation that the member has joined.
    pub outcome: Result<JoinResult, Error>,
}

/// A member of a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinResult {
    /// Generation id.
    pub generation: i32,
    /// Protocol type, for example `consumer`.
    pub protocol_type: String,
    /// The protocol with the most votes among those that all members support.
    pub protocol: String,
    /// Member id of the leader, which computes the assignment.
    pub leader: String,
    /// Whether the leader, a static member that rejoined, must not assign again (KIP-814).
    pub skip_assignment: bool,
    /// All members, for the leader; empty for followers.
    pub members: Vec<JoinedMember>,
}

/// A member, as reported to the group's leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedMember {
    /// Identifier.
    pub member_id: String,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<String>,
    /// Its metadata for the chosen protocol.
    pub metadata: Vec<u8>,
}

/// To SyncGroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncResult {
    /// Protocol type, for example `consumer`.
    pub protocol_type: String,
    /// The group's protocol.
    pub protocol: String,
    /// The member's assignment; empty if the leader assigned nothing.
    pub assignment: Vec<u8>,
}

/// Outcome for one leaving member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaveResult {
    /// As in the request.
    pub member_id: String,
    /// As in the request.
    pub instance_id: Option<String>,
    /// Whether the member has left.
    pub outcome: Result<(), Error>,
}

/// Results for the partitions of one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicResult<P> {
    /// Topic name.
    pub name: String,
    /// Topic id as in the request, or zeroes.
    pub id: [u8; 16],
    /// One entry per partition.
    pub partitions: Vec<P>,
}

/// Outcome for one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionResult {
    /// Partition index.
    pub partition: i32,
    /// Outcome.
    pub outcome: Result<(), Error>,
}

/// The committed offsets of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedGroup {
    /// Group id.
    pub group_id: String,
    /// Its offsets by topic, or an error for the whole group.
    pub outcome: Result<Vec<TopicResult<FetchedOffset>>, Error>,
}

/// The committed offset of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedOffset {
    /// Partition index.
    pub partition: i32,
    /// The offset; `None` if none is committed.
    pub outcome: Result<Option<CommittedOffset>, Error>,
}

/// A committed offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedOffset {
    /// Offset of the next record to read.
    pub offset: i64,
    /// Leader epoch of the last record read, or -1.
    pub leader_epoch: i32,
    /// The client's metadata string.
    pub metadata: String,
}

/// Outcome for one group of DeleteGroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedGroup {
    /// Group id.
    pub group_id: String,
    /// Whether it was deleted.
    pub outcome: Result<(), Error>,
}

/// A group, as listed by ListGroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedGroup {
    /// Identifier.
    pub group_id: String,
    /// Protocol type; empty for a group that only has offsets.
    pub protocol_type: String,
    /// State.
    pub state: State,
    /// Whether it uses the consumer protocol.
    pub is_consumer: bool,
}

/// A group, as reported by DescribeGroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedGroup {
    /// State.
    pub state: State,
    /// Protocol type; empty for a group that only has offsets.
    pub protocol_type: String,
    /// The chosen protocol; empty unless the group is stable.
    pub protocol: String,
    /// Members, ordered by member id.
    pub members: Vec<DescribedMember>,
}

/// A member, as reported by DescribeGroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedMember {
    /// Identifier.
    pub member_id: String,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<String>,
    /// Client id.
    pub client_id: String,
    /// Client host.
    pub client_host: String,
    /// Metadata for the chosen protocol; empty unless the group is stable.
    pub metadata: Vec<u8>,
    /// Assignment; empty unless the group is stable.
    pub assignment: Vec<u8>,
}

impl Response {
    /// The same reply as a failure, for when its records could not be persisted.
    #[must_use]
    pub fn with_error(self, error: Error) -> Self {
        match self {
            Self::Join(answer) => Self::Join(JoinResponse { outcome: Err(error), ..answer }),
            Self::ConsumerHeartbeat(_) => {
                Self::ConsumerHeartbeat(Err(Refusal { error, message: "The change could not be stored." }))
            }
            Self::Sync(_) => Self::Sync(Err(error)),
            Self::Leave(_) => Self::Leave(Err(error)),
            Self::Commit(topics) => Self::Commit(fail_all(topics, error)),
            Self::Fetch(groups) => Self::Fetch(
                groups.into_iter().map(|group| FetchedGroup { outcome: Err(error), ..group }).collect(),
            ),
            Self::OffsetDelete(_) => Self::OffsetDelete(Err(error)),
            Self::Delete(groups) => Self::Delete(
                groups.into_iter().map(|group| DeletedGroup { outcome: Err(error), ..group }).collect(),
            ),
            Self::Configure(_) => Self::Configure(Err(error)),
            Self::TransactionEnd(_) => Self::TransactionEnd(Err(error)),
        }
    }
}

fn fail_all(topics: Vec<TopicResult<PartitionResult>>, error: Error) -> Vec<TopicResult<PartitionResult>> {
    let failed = |done: PartitionResult| PartitionResult { outcome: done.outcome.and(Err(error)), ..done };
    topics
        .into_iter()
        .map(|topic| TopicResult { partitions: topic.partitions.into_iter().map(failed).collect(), ..topic })
        .collect()
}
