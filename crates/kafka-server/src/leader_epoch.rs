//! The leader epoch. The only broker leads every partition from its creation on, so there is one epoch.

use mainstem_kafka::ErrorCode;

/// The leader epoch of all partitions.
pub(crate) const LEADER_EPOCH: i32 = 0;
/// No leader epoch.
pub(crate) const NO_EPOCH: i32 = -1;

/// Checks the leader epoch `current` that a client knows (KIP-320).
///
/// # Errors
/// The epoch is older or newer.
pub(crate) fn check_epoch(current: i32) -> Result<(), ErrorCode> {
    match current {
        NO_EPOCH | LEADER_EPOCH => Ok(()),
        ..NO_EPOCH => Err(ErrorCode::FencedLeaderEpoch),
        _ => Err(ErrorCode::UnknownLeaderEpoch),
    }
}
