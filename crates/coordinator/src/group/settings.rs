//! Settings of groups, with the name of Kafka's setting where there is one.

/// Limits and timeouts of all groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `group.min.session.timeout.ms`.
    pub session_timeout_min_ms: u32,
    /// `group.max.session.timeout.ms`.
    pub session_timeout_max_ms: u32,
    /// `group.initial.rebalance.delay.ms`: how long an empty group waits for more members. At 0 it waits only briefly,
    /// and only for members that must join again with their assigned member id.
    pub initial_rebalance_delay_ms: u32,
    /// `group.max.size`: maximum members of one group, including pending member ids.
    pub members_max: usize,
    /// Maximum number of groups.
    pub groups_max: usize,
    /// Maximum memory charged to the members of one group (metadata and assignments), bytes.
    pub group_bytes_max: usize,
    /// Maximum memory charged to the members of all groups, bytes.
    pub groups_bytes_max: usize,
    /// `group.consumer.session.timeout.ms`.
    pub consumer_session_timeout_ms: u32,
    /// `group.consumer.heartbeat.interval.ms`.
    pub consumer_heartbeat_interval_ms: u32,
    /// `offset.metadata.max.bytes`.
    pub offset_metadata_max_bytes: usize,
    /// `offsets.retention.minutes`, in ms.
    pub offsets_retention_ms: u64,
    /// `offsets.retention.check.interval.ms`.
    pub offsets_retention_check_interval_ms: u64,
    /// Maximum number of offsets in all groups, including pending ones.
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
            consumer_session_timeout_ms: 45_000,
            consumer_heartbeat_interval_ms: 5_000,
            offset_metadata_max_bytes: 4_096,
            offsets_retention_ms: 7 * 24 * 60 * 60 * 1_000,
            offsets_retention_check_interval_ms: 600_000,
            offsets_max: 1_000_000,
        }
    }
}

/// How long an empty group without `initial_rebalance_delay_ms` waits for pending member ids (KIP-394). They need one
/// round trip; without the wait, the first member would get a generation of its own, and learn of the others only by
/// its next heartbeat.
pub(super) const PENDING_WAIT_MS: u64 = 200;

/// Kafka's `group.new.member.join.timeout.ms`: removes a new member whose JoinGroup has not been answered by then.
pub(super) const NEW_MEMBER_JOIN_TIMEOUT_MS: u64 = 5 * 60 * 1_000;

/// Maximum length of a group, member or topic name, bytes: what Kafka's own records can hold.
pub(super) const NAME_MAX_BYTES: usize = 32_767;

/// Maximum records per write, where more need not be atomic.
pub(super) const RECORDS_PER_WRITE_MAX: usize = 1_000;
