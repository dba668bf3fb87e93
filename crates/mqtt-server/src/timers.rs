//! Timers of a shard, packed into the 64-bit tokens of the runtime.
//!
//! The highest bit is not used: the host tells the timers of its servers apart by it. Timers are not cancelled: each
//! checks whether it still matters when it fires.

use mainstem_runtime::ConnId;

use crate::message::SessionKey;

/// Bits of a token that hold the slot of a connection or session.
const SLOT_BITS: u32 = 28;
/// Purpose of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// CONNECT is overdue.
    Connect(ConnId),
    /// The keep alive may have ended.
    KeepAlive(ConnId),
    /// A disconnected session may have expired.
    Expiry(SessionKey),
    /// A delayed will may be due.
    Will(SessionKey),
    /// `$SYS` is updated.
    Sys,
    /// Expired retained messages are removed.
    Sweep,
    /// Stores do what is due by itself.
    Maintenance,
    /// Journal marks are due: the turn that this starts ends with a commit.
    Marks,
    /// Refused queue consumers ask again.
    Queues,
    /// What proves who the client is may have ended.
    Proof(ConnId),
}

impl Timer {
    pub(crate) fn token(self) -> u64 {
        let pack = |kind: u64, slot: u32, generation: u32| {
            kind << 60 | u64::from(slot & ((1 << SLOT_BITS) - 1)) << 32 | u64::from(generation)
        };
        match self {
            Self::Connect(conn) => pack(0, conn.slot() as u32, conn.generation()),
            Self::KeepAlive(conn) => pack(1, conn.slot() as u32, conn.generation()),
            Self::Expiry(key) => pack(2, key.slot, key.generation),
            Self::Will(key) => pack(3, key.slot, key.generation),
            Self::Sys => pack(4, 0, 0),
            Self::Sweep => pack(5, 0, 0),
            Self::Maintenance => pack(7, 0, 2),
            Self::Marks => pack(7, 0, 0),
            Self::Queues => pack(7, 0, 1),
            Self::Proof(conn) => pack(6, conn.slot() as u32, conn.generation()),
        }
    }

    pub(crate) fn from_token(token: u64) -> Self {
        let slot = (token >> 32) as u32 & ((1 << SLOT_BITS) - 1);
        let generation = token as u32;
        // The token has no shard: a timer fires on the shard that set it.
        let key = SessionKey { shard: 0, slot, generation };
        match token >> 60 {
            0 => Self::Connect(ConnId::from_parts(slot, generation)),
            1 => Self::KeepAlive(ConnId::from_parts(slot, generation)),
            2 => Self::Expiry(key),
            3 => Self::Will(key),
            4 => Self::Sys,
            5 => Self::Sweep,
            6 => Self::Proof(ConnId::from_parts(slot, generation)),
            _ => match generation {
                0 => Self::Marks,
                1 => Self::Queues,
                _ => Self::Maintenance,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_round_trip() {
        let conn = ConnId::from_parts((1 << SLOT_BITS) - 1, u32::MAX);
        let key = SessionKey { shard: 0, slot: 77, generation: 3 };
        for timer in [
            Timer::Connect(conn),
            Timer::KeepAlive(conn),
            Timer::Expiry(key),
            Timer::Will(key),
            Timer::Sys,
            Timer::Sweep,
            Timer::Maintenance,
            Timer::Marks,
            Timer::Queues,
            Timer::Proof(conn),
        ] {
            assert_eq!(Timer::from_token(timer.token()), timer);
            assert_eq!(timer.token() >> 63, 0, "the bit of the host");
        }
    }
}
