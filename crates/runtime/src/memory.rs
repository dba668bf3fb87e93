//! The memory budget of the process: who holds how much, and how close the sum is to its limit.
//!
//! Each shard counts into cells of its own, one per owner, so that counting never contends: an owner is a kind of
//! state, such as the buffers of connections. A shard reads the cells of the others once per millisecond and knows the
//! [`MemoryPressure`] without a lock. The budget itself refuses nothing. Services do, in the order of the levels, so
//! that what a client can repeat goes first and what the broker has promised goes last.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of owners of a budget.
const OWNERS_MAX: usize = 16;
/// Shortest time between a logged level and a lower one, ms.
const LOG_INTERVAL_MS: u64 = 10_000;
/// The owner of the buffers of connections, which the driver counts.
const CONNECTIONS: MemoryOwner = MemoryOwner(0);

/// How much of the budget is used, lowest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryPressure {
    /// Below 80 %: nothing is refused.
    #[default]
    None,
    /// From 80 %: nothing new is stored that nobody was promised, such as messages at QoS 0.
    Moderate,
    /// From 90 %: no new message is stored at all, and slow readers get a quarter of their output buffers.
    High,
    /// From 95 %: no new connection, session or large request begins.
    Critical,
}

impl MemoryPressure {
    /// What the log says of the level.
    fn effect(self) -> &'static str {
        match self {
            Self::None => "nothing is refused any more",
            Self::Moderate => "retained messages and the queueing of QoS 0 are refused",
            Self::High => "publishes at QoS 1 and 2 are refused",
            Self::Critical => "new sessions and large requests are refused",
        }
    }

    /// Percentage of the budget at which each level begins.
    const LEVELS: [(Self, u64); 3] = [(Self::Critical, 95), (Self::High, 90), (Self::Moderate, 80)];

    fn of(used: u64, bytes_max: u64) -> Self {
        let reached = |percent: u64| used >= bytes_max / 100 * percent;
        Self::LEVELS.iter().find(|(_, percent)| reached(*percent)).map_or(Self::None, |(level, _)| *level)
    }
}

/// A kind of state that memory is counted for. See [`MemoryBudget::owner`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryOwner(u8);

/// The counts of one shard, on cache lines that other shards rarely touch.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Cells([AtomicU64; OWNERS_MAX]);

impl Cells {
    fn sum(&self) -> u64 {
        self.0.iter().map(|cell| cell.load(Ordering::Relaxed)).sum()
    }

    fn of(&self, owner: MemoryOwner) -> &AtomicU64 {
        &self.0[usize::from(owner.0)]
    }
}

/// A logged level, and since when it holds, ms.
#[derive(Debug, Default)]
struct Logged {
    level: MemoryPressure,
    at_ms: u64,
}

/// The memory budget of a process, shared by its shards.
#[derive(Debug)]
pub struct MemoryBudget {
    bytes_max: u64,
    owners: Mutex<Vec<&'static str>>,
    /// The level that was logged last.
    logged: Mutex<Logged>,
    shards: Vec<Arc<Cells>>,
}

impl MemoryBudget {
    /// A budget of `bytes_max` bytes for `shards` shards.
    pub fn new(bytes_max: u64, shards: usize) -> Arc<Self> {
        let shards = (0..shards).map(|_| Arc::default()).collect();
        Arc::new(Self {
            bytes_max,
            owners: Mutex::new(vec!["connections"]),
            logged: Mutex::default(),
            shards,
        })
    }

    /// A budget that is never exhausted; it only counts.
    pub fn unlimited(shards: usize) -> Arc<Self> {
        Self::new(u64::MAX, shards)
    }

    /// The owner of this name, which is registered by the first call. Names become labels of metrics.
    ///
    /// # Panics
    /// If there are more than 16 names.
    pub fn owner(&self, name: &'static str) -> MemoryOwner {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        let index = owners.iter().position(|known| *known == name).unwrap_or_else(|| {
            assert!(owners.len() < OWNERS_MAX, "too many owners of memory");
            owners.push(name);
            owners.len() - 1
        });
        MemoryOwner(index as u8)
    }

    /// The limit, bytes.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.shards.iter().map(|cells| cells.sum()).sum()
    }

    /// Bytes in use by owner, in the order of registration.
    pub fn used_by_owner(&self) -> Vec<(&'static str, u64)> {
        let owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let load = |cells: &Arc<Cells>, index: usize| cells.0[index].load(Ordering::Relaxed);
        let used = |index| self.shards.iter().map(|cells| load(cells, index)).sum();
        owners.into_iter().enumerate().map(|(index, name)| (name, used(index))).collect()
    }

    /// The current pressure, for threads that are no shard.
    pub fn pressure(&self) -> MemoryPressure {
        MemoryPressure::of(self.used(), self.bytes_max)
    }

    /// Logs a new level: a higher one at once, a lower one when the last has held for a while.
    #[cold]
    fn log_level(&self, level: MemoryPressure, used: u64, now_ms: u64) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = level > logged.level || now_ms >= logged.at_ms + LOG_INTERVAL_MS;
        if level == logged.level || !is_due {
            return;
        }
        *logged = Logged { level, at_ms: now_ms };
        let (used, most) = (used >> 20, self.bytes_max >> 20);
        log::warn!("memory: {used} of {most} MiB are in use (memory.max_bytes): {}", level.effect());
    }

    /// A meter that counts on behalf of `owner` on a shard.
    pub fn meter(&self, shard: usize, owner: MemoryOwner) -> MemoryMeter {
        MemoryMeter(Some(MeterCell { cells: Arc::clone(&self.shards[shard]), owner }))
    }

    /// The view of one shard.
    pub fn shard(self: &Arc<Self>, shard: usize) -> ShardMemory {
        let own = Arc::clone(&self.shards[shard]);
        ShardMemory {
            budget: Arc::clone(self),
            own,
            elsewhere: 0,
            read_at_ms: None,
            level: MemoryPressure::None,
        }
    }
}

/// What one shard knows of the budget.
#[derive(Debug)]
pub struct ShardMemory {
    budget: Arc<MemoryBudget>,
    own: Arc<Cells>,
    /// Bytes in use on other shards when they were last read.
    elsewhere: u64,
    read_at_ms: Option<u64>,
    level: MemoryPressure,
}

impl ShardMemory {
    /// The budget of the process.
    pub fn budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }

    /// Pressure as of the beginning of the turn: one load.
    #[inline]
    pub fn pressure(&self) -> MemoryPressure {
        self.level
    }

    /// Pressure with everything that this shard has counted up to now.
    pub fn pressure_now(&self) -> MemoryPressure {
        MemoryPressure::of(self.elsewhere + self.own.sum(), self.budget.bytes_max)
    }

    /// Sets what an owner holds on this shard. An owner is either set here, at the end of each turn, or counted by
    /// meters, not both.
    pub fn set(&self, owner: MemoryOwner, bytes: u64) {
        let cell = self.own.of(owner);
        if cell.load(Ordering::Relaxed) != bytes {
            cell.store(bytes, Ordering::Relaxed);
        }
    }

    /// Sets the bytes in buffers of connections.
    pub(crate) fn set_connections(&self, bytes: u64) {
        self.set(CONNECTIONS, bytes);
    }

    /// Begins a turn: reads what other shards use, at most once per millisecond.
    pub(crate) fn begin_turn(&mut self, now_ms: u64) {
        if self.read_at_ms.replace(now_ms) != Some(now_ms) {
            let all: u64 = self.budget.used();
            self.elsewhere = all.saturating_sub(self.own.sum());
        }
        let level = self.pressure_now();
        if level != self.level || level != MemoryPressure::None {
            self.budget.log_level(level, self.elsewhere + self.own.sum(), now_ms);
        }
        self.level = level;
    }
}

#[derive(Clone, Debug)]
struct MeterCell {
    cells: Arc<Cells>,
    owner: MemoryOwner,
}

/// Counts memory of one owner on one shard. Any thread may count down what was counted up here. The default meter
/// counts nothing.
#[derive(Clone, Debug, Default)]
pub struct MemoryMeter(Option<MeterCell>);

impl MemoryMeter {
    /// Charges `bytes` until the returned charge is dropped.
    pub fn charge(&self, bytes: usize) -> MemoryCharge {
        let mut charge = MemoryCharge { meter: self.clone(), bytes: 0 };
        charge.set(bytes);
        charge
    }

    fn change(&self, from: usize, to: usize) {
        if let Some(MeterCell { cells, owner }) = &self.0 {
            let cell = cells.of(*owner);
            if to >= from {
                cell.fetch_add((to - from) as u64, Ordering::Relaxed);
            } else {
                cell.fetch_sub((from - to) as u64, Ordering::Relaxed);
            }
        }
    }
}

/// Memory counted by a [`MemoryMeter`] until it is dropped.
#[derive(Debug, Default)]
pub struct MemoryCharge {
    meter: MemoryMeter,
    bytes: usize,
}

impl MemoryCharge {
    /// Charged bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes the charge.
    #[inline]
    pub fn set(&mut self, bytes: usize) {
        if bytes != self.bytes {
            self.meter.change(self.bytes, bytes);
            self.bytes = bytes;
        }
    }

    /// The meter that counts it.
    pub fn meter(&self) -> &MemoryMeter {
        &self.meter
    }
}

impl Drop for MemoryCharge {
    #[inline]
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_begin_at_their_share_of_the_budget() {
        let budget = MemoryBudget::new(1_000, 2);
        let owner = budget.owner("requests");
        let mut shard = budget.shard(0);
        let meter = budget.meter(1, owner);
        let mut charge = meter.charge(799);
        for (now_ms, bytes, level) in [
            (1, 799, MemoryPressure::None),
            (2, 800, MemoryPressure::Moderate),
            (3, 900, MemoryPressure::High),
            (4, 950, MemoryPressure::Critical),
            (5, 0, MemoryPressure::None),
        ] {
            charge.set(bytes);
            shard.begin_turn(now_ms);
            assert_eq!((shard.pressure(), shard.pressure_now()), (level, level), "{bytes} bytes");
        }
    }

    #[test]
    fn own_memory_counts_at_once_and_that_of_others_with_the_next_turn() {
        let budget = MemoryBudget::new(1_000, 2);
        let owner = budget.owner("requests");
        let (mut here, there) = (budget.shard(0), budget.shard(1));
        here.begin_turn(1);
        there.set(owner, 500);
        here.set(owner, 400);
        assert_eq!(here.pressure_now(), MemoryPressure::None);
        here.begin_turn(1);
        assert_eq!(here.pressure(), MemoryPressure::None, "read at most once per millisecond");
        here.begin_turn(2);
        assert_eq!(here.pressure(), MemoryPressure::High);
        here.set(owner, 0);
        assert_eq!(here.pressure_now(), MemoryPressure::None);
    }

    #[test]
    fn a_charge_ends_on_any_thread_and_is_counted_by_name() {
        let budget = MemoryBudget::unlimited(1);
        let meter = budget.meter(0, budget.owner("messages"));
        assert_eq!(budget.owner("messages"), budget.owner("messages"));
        let charge = meter.charge(70);
        assert_eq!(budget.used_by_owner(), [("connections", 0), ("messages", 70)]);
        std::thread::spawn(move || drop(charge)).join().unwrap();
        assert_eq!(budget.used(), 0);
        assert_eq!(MemoryMeter::default().charge(9).bytes(), 9, "a meter of nothing");
    }
}
