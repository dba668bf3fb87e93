//! What is asked of groups: the requests of the protocol without what only differs between their versions.

/// JoinGroup.
#[derive(Clone, Debug)]
pub struct JoinGroup<'a> {
    /// Which group.
    pub group_id: &'a str,
    /// Empty for a member that has none yet.
    pub member_id: &'a str,
    /// `group.instance.id` of a static member (KIP-345).
    pub instance_id: Option<&'a str>,
    /// From the header of the request; a new member's identifier begins with it.
    pub client_id: &'a str,
    /// Where the client is, for DescribeGroups.
    pub client_host: &'a str,
    /// How long the member may be silent.
    pub session_timeout_ms: i32,
    /// How long the member may take to join again when the group rebalances.
    pub rebalance_timeout_ms: i32,
    /// `consumer`, `connect`, or whatever its members agree on.
    pub protocol_type: &'a str,
    /// Names and metadata, the best first.
    pub protocols: Vec<(&'a str, &'a [u8])>,
    /// Whether a new member must come back with the identifier it is given (KIP-394): from version 4 on.
    pub needs_member_id: bool,
    /// Whether the answer can say that the leader need not assign (KIP-814): from version 9 on.
    pub can_skip_assignment: bool,
    /// What makes a new member's identifier unique.
    pub random: u128,
}

/// SyncGroup.
#[derive(Clone, Debug)]
pub struct SyncGroup<'a> {
    /// Which group.
    pub group_id: &'a str,
    /// Who asks.
    pub member_id: &'a str,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<&'a str>,
    /// From the answer to JoinGroup.
    pub generation: i32,
    /// What the member takes for the group's, if it says so (KIP-559).
    pub protocol_type: Option<&'a str>,
    /// What the member takes for the group's, if it says so (KIP-559).
    pub protocol: Option<&'a str>,
    /// From the leader only: what each member gets.
    pub assignments: Vec<(&'a str, &'a [u8])>,
}

/// Heartbeat.
#[derive(Clone, Copy, Debug)]
pub struct Heartbeat<'a> {
    /// Which group.
    pub group_id: &'a str,
    /// Who lives.
    pub member_id: &'a str,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<&'a str>,
    /// From the answer to JoinGroup.
    pub generation: i32,
}

/// One of those that leave. With an empty member identifier it is whoever goes by the instance identifier.
#[derive(Clone, Copy, Debug)]
pub struct Leaving<'a> {
    /// Who leaves.
    pub member_id: &'a str,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<&'a str>,
}

/// LeaveGroup.
#[derive(Clone, Debug)]
pub struct LeaveGroup<'a> {
    /// Which group.
    pub group_id: &'a str,
    /// Who leaves.
    pub members: Vec<Leaving<'a>>,
}

/// Topics that a request names, each with what it says of its partitions. The identifier goes back with the answer
/// as it came.
#[derive(Clone, Debug)]
pub struct Topic<'a, P> {
    /// Its name.
    pub name: &'a str,
    /// Its identifier, or zeroes.
    pub id: [u8; 16],
    /// What is said of its partitions.
    pub partitions: Vec<P>,
}

/// An offset to be kept.
#[derive(Clone, Copy, Debug)]
pub struct OffsetToCommit<'a> {
    /// Which partition.
    pub partition: i32,
    /// Whether there is such a partition. If not, it is answered with [`Error::UnknownTopicOrPartition`](crate::Error).
    pub exists: bool,
    /// Where the group will go on reading.
    pub offset: i64,
    /// Leader epoch of the record before, or -1.
    pub leader_epoch: i32,
    /// The client's own text.
    pub metadata: &'a str,
}

/// OffsetCommit. A consumer that is no member of the group has no member identifier, and generation -1.
#[derive(Clone, Debug)]
pub struct OffsetCommit<'a> {
    /// Which group.
    pub group_id: &'a str,
    /// Who commits.
    pub member_id: &'a str,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<&'a str>,
    /// From the answer to JoinGroup.
    pub generation: i32,
    /// How long the offsets are to be kept, if the request has its own opinion (up to version 4).
    pub retention_ms: Option<u64>,
    /// What the client is told if there is no such group: [`Error::IllegalGeneration`](crate::Error) up to version 8,
    /// [`Error::GroupIdNotFound`](crate::Error) from then on.
    pub no_group: crate::Error,
    /// The offsets.
    pub topics: Vec<Topic<'a, OffsetToCommit<'a>>>,
}

/// TxnOffsetCommit. That the producer may speak for its transaction has been seen to before.
#[derive(Clone, Debug)]
pub struct TxnOffsetCommit<'a> {
    /// Which group.
    pub group_id: &'a str,
    /// Whose transaction it is.
    pub producer_id: i64,
    /// Who commits; empty if the request does not say (up to version 2, KIP-447).
    pub member_id: &'a str,
    /// `group.instance.id` of a static member.
    pub instance_id: Option<&'a str>,
    /// From the answer to JoinGroup, or -1.
    pub generation: i32,
    /// The offsets.
    pub topics: Vec<Topic<'a, OffsetToCommit<'a>>>,
}

/// How a transaction has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionEnd {
    /// What it has said counts.
    Commit,
    /// It does not.
    Abort,
}

/// The offsets of one group that OffsetFetch asks for.
#[derive(Clone, Debug)]
pub struct OffsetsOf<'a> {
    /// Which group.
    pub group_id: &'a str,
    /// Of which partitions; nothing for all there are.
    pub topics: Option<Vec<Topic<'a, i32>>>,
}

/// OffsetFetch.
#[derive(Clone, Debug)]
pub struct OffsetFetch<'a> {
    /// Of which groups.
    pub groups: Vec<OffsetsOf<'a>>,
    /// Whether an offset that an open transaction has changed is better not told (KIP-447).
    pub require_stable: bool,
}

/// OffsetDelete.
#[derive(Clone, Debug)]
pub struct OffsetDelete<'a> {
    /// Which group.
    pub group_id: &'a str,
    /// Of which partitions, and whether there is such a partition.
    pub topics: Vec<Topic<'a, OffsetToDelete>>,
}

/// A partition whose offset is to be deleted.
#[derive(Clone, Copy, Debug)]
pub struct OffsetToDelete {
    /// Which partition.
    pub partition: i32,
    /// Whether there is such a partition. If not, it is answered with [`Error::UnknownTopicOrPartition`](crate::Error).
    pub exists: bool,
}
