//! What groups answer, and what else comes out of them.

use super::changes::Keep;
use super::state::State;
use crate::{Caller, Error, Record};

/// What is to be done for the groups, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// These records are to be kept together: all of them, or none. [`Groups::kept`](super::Groups::kept) or
    /// [`Groups::not_kept`](super::Groups::not_kept) hears of it.
    Keep {
        /// What they are called.
        keep: Keep,
        /// The records.
        records: Vec<Record>,
    },
    /// The caller has its answer.
    Reply {
        /// Who has asked.
        caller: Caller,
        /// What it is told.
        answer: Answer,
    },
    /// The caller has its answer as soon as all is kept that was to be kept before. If that fails, it is told
    /// [`Answer::refused`] instead.
    ReplyWhenKept {
        /// Who has asked.
        caller: Caller,
        /// What it is told.
        answer: Answer,
    },
}

/// An answer, by the request it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To JoinGroup.
    Join(JoinAnswer),
    /// To SyncGroup.
    Sync(Result<Synced, Error>),
    /// To LeaveGroup.
    Leave(Result<Vec<Left>, Error>),
    /// To OffsetCommit and TxnOffsetCommit.
    Commit(Vec<TopicAnswer<PartitionDone>>),
    /// To OffsetFetch, group by group.
    Fetch(Vec<FetchedGroup>),
    /// To OffsetDelete.
    OffsetDelete(Result<Vec<TopicAnswer<PartitionDone>>, Error>),
    /// To DeleteGroups.
    Delete(Vec<DeletedGroup>),
    /// To the end of a transaction: its offsets have been committed or dropped.
    TransactionEnd(Result<(), Error>),
}

/// To JoinGroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinAnswer {
    /// The member's identifier, or what it is to use next time.
    pub member_id: String,
    /// The generation it belongs to.
    pub outcome: Result<Joined, Error>,
}

/// A member is part of a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Its number.
    pub generation: i32,
    /// Of which kind the group is.
    pub protocol_type: String,
    /// The protocol that got most votes among those all members speak.
    pub protocol: String,
    /// Identifier of the member that assigns.
    pub leader: String,
    /// Whether the leader, which has come back, finds that all is assigned already (KIP-814).
    pub skip_assignment: bool,
    /// For the leader, all members; nothing for the others.
    pub members: Vec<JoinedMember>,
}

/// A member, as the group's leader gets to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedMember {
    /// Its identifier.
    pub member_id: String,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<String>,
    /// What it says of itself in the protocol that was chosen.
    pub metadata: Vec<u8>,
}

/// To SyncGroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synced {
    /// Of which kind the group is.
    pub protocol_type: String,
    /// Its protocol.
    pub protocol: String,
    /// What the leader has assigned to the member; empty if nothing.
    pub assignment: Vec<u8>,
}

/// One of those that leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// As the request named it.
    pub member_id: String,
    /// As the request named it.
    pub instance_id: Option<String>,
    /// Whether it has left.
    pub outcome: Result<(), Error>,
}

/// What is answered about the partitions of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicAnswer<P> {
    /// Its name.
    pub name: String,
    /// Its identifier as it came with the request, or zeroes.
    pub id: [u8; 16],
    /// Its partitions.
    pub partitions: Vec<P>,
}

/// Whether something has been done for a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionDone {
    /// Which partition.
    pub partition: i32,
    /// Whether it has.
    pub outcome: Result<(), Error>,
}

/// The offsets of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedGroup {
    /// Which group.
    pub group_id: String,
    /// Its offsets.
    pub outcome: Result<Vec<TopicAnswer<FetchedOffset>>, Error>,
}

/// The offset of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedOffset {
    /// Which partition.
    pub partition: i32,
    /// The offset; nothing if none is committed.
    pub outcome: Result<Option<CommittedOffset>, Error>,
}

/// An offset as it was committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedOffset {
    /// Where the group goes on reading.
    pub offset: i64,
    /// Leader epoch of the record before, or -1.
    pub leader_epoch: i32,
    /// The client's own text.
    pub metadata: String,
}

/// A group that was to be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedGroup {
    /// Which group.
    pub group_id: String,
    /// Whether it is no more.
    pub outcome: Result<(), Error>,
}

/// A group, as ListGroups shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedGroup {
    /// Its identifier.
    pub group_id: String,
    /// Of which kind it is; empty for one that has only offsets.
    pub protocol_type: String,
    /// What it is doing.
    pub state: State,
}

/// A group, as DescribeGroups shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedGroup {
    /// What it is doing.
    pub state: State,
    /// Of which kind it is; empty for one that has only offsets.
    pub protocol_type: String,
    /// Its protocol, once all members have agreed on one; otherwise empty.
    pub protocol: String,
    /// Its members.
    pub members: Vec<DescribedMember>,
}

/// A member, as DescribeGroups shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedMember {
    /// Its identifier.
    pub member_id: String,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<String>,
    /// As its client calls itself.
    pub client_id: String,
    /// Where its client is.
    pub client_host: String,
    /// What it has said of itself; empty while the group has no protocol.
    pub metadata: Vec<u8>,
    /// What it got; empty while the group has no protocol.
    pub assignment: Vec<u8>,
}

impl Answer {
    /// What is told instead if something that had to be kept could not be.
    #[must_use]
    pub fn refused(self, error: Error) -> Self {
        match self {
            Self::Join(answer) => Self::Join(JoinAnswer { outcome: Err(error), ..answer }),
            Self::Sync(_) => Self::Sync(Err(error)),
            Self::Leave(_) => Self::Leave(Err(error)),
            Self::Commit(topics) => Self::Commit(refuse_all(topics, error)),
            Self::Fetch(groups) => Self::Fetch(
                groups.into_iter().map(|group| FetchedGroup { outcome: Err(error), ..group }).collect(),
            ),
            Self::OffsetDelete(_) => Self::OffsetDelete(Err(error)),
            Self::Delete(groups) => Self::Delete(
                groups.into_iter().map(|group| DeletedGroup { outcome: Err(error), ..group }).collect(),
            ),
            Self::TransactionEnd(_) => Self::TransactionEnd(Err(error)),
        }
    }
}

fn refuse_all(topics: Vec<TopicAnswer<PartitionDone>>, error: Error) -> Vec<TopicAnswer<PartitionDone>> {
    let refused = |done: PartitionDone| PartitionDone { outcome: done.outcome.and(Err(error)), ..done };
    topics
        .into_iter()
        .map(|topic| TopicAnswer { partitions: topic.partitions.into_iter().map(refused).collect(), ..topic })
        .collect()
}
