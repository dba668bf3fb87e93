//! Memory for requests that have not arrived completely.
//!
//! A request is collected in memory until its last byte is there. A large one reserves its whole length before more of
//! it is read, within `kafka.queued_max_request_bytes` (Kafka's `queued.max.request.bytes`) and the memory budget of
//! the process. Reserving bytes only as they arrive would let requests that are half there block each other for ever.
//! A connection that finds no room is not read until there is some; requests that fit into one read go on.
//!
//! A client that announces a large request and never completes it would keep the room from others. While some wait,
//! requests that have been unfinished for longer than [`UNFINISHED_MS_MAX`] therefore end their connections.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mainstem_runtime::{MemoryCharge, MemoryMeter, MemoryPressure, ShardMemory};

/// Requests up to this length need no reservation, unless memory is short.
pub(crate) const UNRESERVED_BYTES: usize = 64 * 1024;
/// Longest time that a request may be unfinished while others wait for room, ms.
const UNFINISHED_MS_MAX: u64 = 60_000;
/// Time after a refused reservation in which others count as waiting, ms. Held connections try again within 10 ms.
const SHORTAGE_MS: u64 = 2_000;

/// Why there is no room for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// Unfinished requests take so many bytes, and may take no more than the limit: used, limit.
    Requests(u64, u64),
    /// The memory budget of the process is exhausted.
    Budget,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requests(used, most) => {
                write!(f, "unfinished requests take {used} of {most} bytes (kafka.queued_max_request_bytes)")
            }
            Self::Budget => f.write_str("the memory budget is exhausted (memory.max_bytes)"),
        }
    }
}

/// What unfinished requests of all shards have reserved.
#[derive(Debug)]
pub(crate) struct RequestPool {
    bytes_max: u64,
    reserved: AtomicU64,
    /// When a reservation was last refused, ms; 0 for never.
    refused_at_ms: AtomicU64,
}

/// The bytes of one unfinished request. Dropped when the request is complete or its connection has gone.
#[derive(Debug)]
pub(crate) struct Reservation {
    pool: Arc<RequestPool>,
    bytes: u64,
    /// Charges what has not arrived: what has is charged to the connection.
    missing: MemoryCharge,
}

impl Reservation {
    /// So many bytes of the request are there.
    pub(crate) fn note_arrived(&mut self, bytes: usize) {
        self.missing.set((self.bytes as usize).saturating_sub(bytes));
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.pool.reserved.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl RequestPool {
    /// A pool of `bytes_max` bytes; negative for no limit but the memory budget.
    pub(crate) fn new(bytes_max: i64) -> Arc<Self> {
        Arc::new(Self {
            bytes_max: u64::try_from(bytes_max).unwrap_or(u64::MAX),
            reserved: AtomicU64::new(0),
            refused_at_ms: AtomicU64::new(0),
        })
    }

    /// Reserves `bytes` for a request of which `arrived` are there. A single request always has room within the limit,
    /// or it would wait for ever.
    ///
    /// # Errors
    /// What is short.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        (bytes, arrived): (usize, usize),
        meter: &MemoryMeter,
        memory: &ShardMemory,
        now_ms: u64,
    ) -> Result<Reservation, Shortage> {
        let reserved = self.try_reserve((bytes, arrived), meter, memory);
        if reserved.is_err() {
            self.refused_at_ms.store(now_ms, Ordering::Relaxed);
        }
        reserved
    }

    fn try_reserve(
        self: &Arc<Self>,
        (bytes, arrived): (usize, usize),
        meter: &MemoryMeter,
        memory: &ShardMemory,
    ) -> Result<Reservation, Shortage> {
        if memory.pressure_now() >= MemoryPressure::Critical {
            return Err(Shortage::Budget);
        }
        let bytes = bytes as u64;
        let add = |reserved: u64| {
            let sum = reserved.saturating_add(bytes);
            (reserved == 0 || sum <= self.bytes_max).then_some(sum)
        };
        let before = self
            .reserved
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .map_err(|reserved| Shortage::Requests(reserved, self.bytes_max))?;
        let missing = meter.charge((bytes as usize).saturating_sub(arrived));
        let reservation = Reservation { pool: Arc::clone(self), bytes, missing };
        if before > 0 && memory.pressure_now() >= MemoryPressure::Critical {
            return Err(Shortage::Budget);
        }
        Ok(reservation)
    }

    /// Whether a request that is unfinished since `since_ms` has to go, because others wait for room.
    pub(crate) fn is_overdue(&self, since_ms: u64, now_ms: u64) -> bool {
        self.is_short(now_ms) && now_ms.saturating_sub(since_ms) > UNFINISHED_MS_MAX
    }

    /// Whether connections wait for room.
    pub(crate) fn is_short(&self, now_ms: u64) -> bool {
        let refused_at_ms = self.refused_at_ms.load(Ordering::Relaxed);
        refused_at_ms > 0 && now_ms.saturating_sub(refused_at_ms) < SHORTAGE_MS
    }
}

#[cfg(test)]
mod tests {
    use mainstem_runtime::MemoryBudget;

    use super::*;

    #[test]
    fn a_reservation_lasts_until_it_is_dropped() {
        let budget = MemoryBudget::unlimited(1);
        let (meter, memory) = (budget.meter(0, budget.owner("requests")), budget.shard(0));
        let pool = RequestPool::new(100);
        let reserve = |bytes, now_ms| pool.reserve((bytes, 10), &meter, &memory, now_ms);
        let mut first = reserve(60, 1).expect("room");
        assert_eq!(budget.used(), 50, "10 are there");
        first.note_arrived(55);
        assert_eq!(budget.used(), 5);
        assert_eq!(reserve(41, 2).err(), Some(Shortage::Requests(60, 100)));
        let second = reserve(40, 3).expect("room");
        drop(first);
        assert!(reserve(60, 4).is_ok());
        drop(second);
        assert!(reserve(200, 5).is_ok(), "one always has room");
        assert_eq!((budget.used(), pool.reserved.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn the_budget_of_the_process_limits_all_but_one() {
        let budget = MemoryBudget::new(1_000, 1);
        let (meter, memory) = (budget.meter(0, budget.owner("requests")), budget.shard(0));
        let pool = RequestPool::new(-1);
        let reserve = |bytes| pool.reserve((bytes, 0), &meter, &memory, 1);
        let first = reserve(600).expect("room");
        assert_eq!(reserve(351).err(), Some(Shortage::Budget), "95 % would be used");
        assert!(reserve(340).is_ok());
        drop(first);
        let large = reserve(2_000).expect("one always has room");
        assert_eq!(reserve(1).err(), Some(Shortage::Budget));
        drop(large);
        let others = meter.charge(950);
        assert_eq!(reserve(1).err(), Some(Shortage::Budget), "not if others take the memory");
        drop(others);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn unfinished_requests_are_overdue_only_while_others_wait() {
        let budget = MemoryBudget::unlimited(1);
        let (meter, memory) = (MemoryMeter::default(), budget.shard(0));
        let pool = RequestPool::new(10);
        let first = pool.reserve((10, 0), &meter, &memory, 1).expect("room");
        let late_ms = 2 + UNFINISHED_MS_MAX;
        assert!(!pool.is_overdue(1, late_ms));
        assert!(pool.reserve((10, 0), &meter, &memory, late_ms).is_err());
        assert!(pool.is_overdue(1, late_ms) && !pool.is_overdue(2, late_ms));
        assert!(!pool.is_overdue(1, late_ms + SHORTAGE_MS), "nobody waits any more");
        drop(first);
    }
}
