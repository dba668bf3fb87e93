//! Timers of the server: what a timer's token stands for.

/// Purpose of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// Deadline of a parked fetch.
    Fetch(u64),
    /// Background work is due.
    Maintain,
    /// Background work continues.
    MaintainMore,
    /// A deadline of a coordinator.
    Coordinate,
    /// A deadline of a queue.
    Queues,
    /// A failed log-in is to be answered.
    FailedLogIns,
    /// The connection in this slot may not be throttled any more.
    Unmute(u32),
}

impl Timer {
    const KIND_BIT: u32 = 60;

    pub(crate) fn token(self) -> u64 {
        match self {
            Self::Fetch(job) => job & ((1 << Self::KIND_BIT) - 1),
            Self::Maintain => 1 << Self::KIND_BIT,
            Self::Coordinate => 2 << Self::KIND_BIT,
            Self::MaintainMore => 3 << Self::KIND_BIT,
            Self::Queues => 4 << Self::KIND_BIT,
            Self::FailedLogIns => 5 << Self::KIND_BIT,
            Self::Unmute(slot) => 6 << Self::KIND_BIT | u64::from(slot),
        }
    }

    pub(crate) fn from_token(token: u64) -> Self {
        match token >> Self::KIND_BIT & 7 {
            0 => Self::Fetch(token & ((1 << Self::KIND_BIT) - 1)),
            1 => Self::Maintain,
            2 => Self::Coordinate,
            4 => Self::Queues,
            5 => Self::FailedLogIns,
            6 => Self::Unmute(token as u32),
            _ => Self::MaintainMore,
        }
    }
}
