//! What can be set about groups, under the names of Kafka's configuration where it has one.

/// Bounds and times of all groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `group.min.session.timeout.ms`.
    pub session_timeout_min_ms: u32,
    /// `group.max.session.timeout.ms`.
    pub session_timeout_max_ms: u32,
    /// `group.initial.rebalance.delay.ms`: how long an empty group waits for more members than the first. With 0
    /// it only waits, and not for long, for those that have been told to come back with their identifier.
    pub initial_rebalance_delay_ms: u32,
    /// `group.max.size`: members of one group, those included that have only been given an identifier.
    pub members_max: usize,
    /// Groups that there may be.
    pub groups_max: usize,
    /// What the members of one group may keep here, their metadata and assignments, bytes.
    pub group_bytes_max: usize,
    /// What the members of all groups may keep here, bytes.
    pub groups_bytes_max: usize,
    /// `offset.metadata.max.bytes`.
    pub offset_metadata_max_bytes: usize,
    /// `offsets.retention.minutes`, in ms.
    pub offsets_retention_ms: u64,
    /// `offsets.retention.check.interval.ms`.
    pub offsets_retention_check_interval_ms: u64,
    /// Offsets of all groups, those of open transactions included.
    pub offsets_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            session_timeout_min_ms: 6_000,
            session_timeout_max_ms: 1_800_000,
            initial_rebalance_delay_ms: 0,
            members_max: 10_000,
            groups_max: 100_000,
            group_bytes_max: 16 << 20,
            groups_bytes_max: 256 << 20,
            offset_metadata_max_bytes: 4_096,
            offsets_retention_ms: 7 * 24 * 60 * 60 * 1_000,
            offsets_retention_check_interval_ms: 600_000,
            offsets_max: 1_000_000,
        }
    }
}

/// How long an empty group without `initial_rebalance_delay_ms` waits for members that have been told to come back
/// with their identifier (KIP-394). They need one round trip; without the wait the first one would get a
/// generation of its own, and hear of the others by its next heartbeat only.
pub(super) const PENDING_WAIT_MS: u64 = 200;

/// Kafka's `group.new.member.join.timeout.ms`: a new member whose JoinGroup is not answered after that is gone.
pub(super) const NEW_MEMBER_JOIN_TIMEOUT_MS: u64 = 5 * 60 * 1_000;

/// Bytes of a group's, a member's or a topic's name: what Kafka's own records can hold.
pub(super) const NAME_MAX_BYTES: usize = 32_767;

/// Records that are kept together where nothing needs more of them to be.
pub(super) const KEPT_TOGETHER_MAX: usize = 1_000;
