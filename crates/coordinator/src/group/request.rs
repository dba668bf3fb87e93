//! Requests to [`Groups`](super::Groups): Kafka's requests without version differences, borrowing from the decoded
//! message.

/// JoinGroup.
#[derive(Clone, Debug)]
pub struct JoinGroup<'a> {
    /// Group id.
    pub group_id: &'a str,
    /// Member id; empty for a member that has none yet.
    pub member_id: &'a str,
    /// `group.instance.id` of a static member (KIP-345).
    pub instance_id: Option<&'a str>,
    /// Client id from the request header; a new member id starts with it.
    pub client_id: &'a str,
    /// Client address, for DescribeGroups.
    pub client_host: &'a str,
    /// Session timeout: time without a heartbeat after which the member is removed.
    pub session_timeout_ms: i32,
    /// Time that the member may take to rejoin during a rebalance.
    pub rebalance_timeout_ms: i32,
    /// Protocol type: `consumer`, `connect`, or anything else that all members share.
    pub protocol_type: &'a str,
    /// Names and metadata, in order of preference.
    pub protocols: Vec<(&'a str, &'a [u8])>,
    /// Whether a new member must join again with its assigned member id (KIP-394): version 4 and later.
    pub needs_member_id: bool,
    /// Whether the response has `skip_assignment` (KIP-814): version 9 and later.
    pub can_skip_assignment: bool,
    /// Random number that makes a new member id unique.
    pub random: u128,
}

/// SyncGroup.
#[derive(Clone, Debug)]
pub struct SyncGroup<'a> {
    /// Group id.
    pub group_id: &'a str,
    /// Member id.
    pub member_id: &'a str,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<&'a str>,
    /// Generation id from the JoinGroup response.
    pub generation: i32,
    /// Checked against the group's if the request has it (KIP-559).
    pub protocol_type: Option<&'a str>,
    /// Checked against the group's if the request has it (KIP-559).
    pub protocol: Option<&'a str>,
    /// From the leader: the assignment of each member.
    pub assignments: Vec<(&'a str, &'a [u8])>,
}

/// Heartbeat.
#[derive(Clone, Copy, Debug)]
pub struct Heartbeat<'a> {
    /// Group id.
    pub group_id: &'a str,
    /// Member id.
    pub member_id: &'a str,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<&'a str>,
    /// Generation id from the JoinGroup response.
    pub generation: i32,
}

/// A leaving member. With an empty member id, the instance id identifies it.
#[derive(Clone, Copy, Debug)]
pub struct LeavingMember<'a> {
    /// Who leaves.
    pub member_id: &'a str,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<&'a str>,
}

/// LeaveGroup.
#[derive(Clone, Debug)]
pub struct LeaveGroup<'a> {
    /// Group id.
    pub group_id: &'a str,
    /// Who leaves.
    pub members: Vec<LeavingMember<'a>>,
}

/// A topic of a request, with one entry per partition. The response repeats the topic id.
#[derive(Clone, Debug)]
pub struct TopicRequest<'a, P> {
    /// Topic name.
    pub name: &'a str,
    /// Topic id, or zeroes.
    pub id: [u8; 16],
    /// One entry per partition.
    pub partitions: Vec<P>,
}

/// An offset to commit.
#[derive(Clone, Copy, Debug)]
pub struct OffsetToCommit<'a> {
    /// Partition index.
    pub partition: i32,
    /// Why the offset is not committed, if so: for example, the partition does not exist.
    pub refused: Option<crate::Error>,
    /// Offset of the next record to read.
    pub offset: i64,
    /// Leader epoch of the last record read, or -1.
    pub leader_epoch: i32,
    /// The client's metadata string.
    pub metadata: &'a str,
}

/// OffsetCommit. A consumer that does not use the group protocol has no member id, and generation -1.
#[derive(Clone, Debug)]
pub struct OffsetCommit<'a> {
    /// Group id.
    pub group_id: &'a str,
    /// Member id.
    pub member_id: &'a str,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<&'a str>,
    /// Generation id from the JoinGroup response.
    pub generation: i32,
    /// Retention of these offsets, if the request sets one (up to version 4).
    pub retention_ms: Option<u64>,
    /// Error if there is no such group: [`Error::IllegalGeneration`](crate::Error) up to version 8,
    /// [`Error::GroupIdNotFound`](crate::Error) later.
    pub no_group: crate::Error,
    /// Offsets by topic.
    pub topics: Vec<TopicRequest<'a, OffsetToCommit<'a>>>,
}

/// TxnOffsetCommit. The caller has verified the producer's transaction.
#[derive(Clone, Debug)]
pub struct TxnOffsetCommit<'a> {
    /// Group id.
    pub group_id: &'a str,
    /// Producer id of the transaction.
    pub producer_id: i64,
    /// Member id; empty if the request has none (up to version 2, KIP-447).
    pub member_id: &'a str,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<&'a str>,
    /// Generation id from the JoinGroup response, or -1.
    pub generation: i32,
    /// Offsets by topic.
    pub topics: Vec<TopicRequest<'a, OffsetToCommit<'a>>>,
}

/// Outcome of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionEnd {
    /// Its offsets become committed.
    Commit,
    /// Its offsets are dropped.
    Abort,
}

/// The offsets of one group to fetch.
#[derive(Clone, Debug)]
pub struct GroupOffsetFetch<'a> {
    /// Group id.
    pub group_id: &'a str,
    /// Member id of the consumer protocol, if the group is asked for by a member.
    pub member_id: Option<&'a str>,
    /// Epoch of the member, or -1.
    pub member_epoch: i32,
    /// Partitions by topic; `None` for all committed offsets.
    pub topics: Option<Vec<TopicRequest<'a, i32>>>,
}

/// OffsetFetch.
#[derive(Clone, Debug)]
pub struct OffsetFetch<'a> {
    /// Groups to fetch.
    pub groups: Vec<GroupOffsetFetch<'a>>,
    /// Whether an offset that a pending transaction would change is an error (KIP-447).
    pub require_stable: bool,
}

/// OffsetDelete.
#[derive(Clone, Debug)]
pub struct OffsetDelete<'a> {
    /// Group id.
    pub group_id: &'a str,
    /// Partitions by topic.
    pub topics: Vec<TopicRequest<'a, OffsetToDelete>>,
}

/// A partition whose offset is deleted.
#[derive(Clone, Copy, Debug)]
pub struct OffsetToDelete {
    /// Partition index.
    pub partition: i32,
    /// Whether the partition exists. If not, the response has [`Error::UnknownTopicOrPartition`](crate::Error).
    pub exists: bool,
}
