//! Startup of the shards: listeners, threads and limits; and the handle that drains and joins them.
//!
//! Listeners and poll instances are made before the first thread starts, so that an address in use or a lack of file
//! descriptors is an error of the start, not of a running shard. Services are made one by one on the calling thread,
//! because restoring the first shard reads what the others need.

use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use mio::{Poll, Waker};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::set_current_timer_slack;

use crate::accept::{Arrivals, bind_all};
use crate::admission::Admission;
use crate::discard::Discards;
use crate::driver::{Common, Driver, WAKE};
use crate::listener::{BoundListener, ListenerConfig};
use crate::mailbox::Mailboxes;
use crate::memory::MemoryBudget;
use crate::pinning::{Pinning, pin, usable_cpus};
use crate::service::Service;
use crate::turn_times::{Monotonic, TurnTimes};

/// Maximum number of shards per process. Services keep sets of shards as bits of a `u64`.
pub const SHARDS_MAX: usize = 64;
/// How much longer a sleep of a shard may take than it says, ns.
const TIMER_SLACK_NS: u64 = 1_000;

/// Options of the runtime.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of shards; 0 for one per core available to the process. Clamped to [`SHARDS_MAX`].
    pub shards: usize,
    /// Whether to pin each shard's thread to one core.
    pub pin: Pinning,
    /// Listeners, with unique names.
    pub listeners: Vec<ListenerConfig>,
    /// Longest time from the start of a busy turn to the next turn, microseconds. Idle shards never wait.
    pub coalesce_us: u32,
    /// Longest time that output of frequent fan-outs waits for more of them, microseconds.
    pub flush_delay_us: u32,
    /// Number of connections assigned to the first shard before the others get any.
    pub first_shard_connections: usize,
    /// Limits of the number of connections.
    pub admission: Arc<Admission>,
    /// Maximum number of connections whose handshake is not complete; divided among the shards.
    pub handshakes_max: usize,
    /// Longest time for what precedes the service's bytes of a connection: a header of a proxy, a handshake.
    pub handshake_timeout: Duration,
    /// Seed of the pseudorandom numbers.
    pub seed: u64,
    /// The memory budget of the process, for at least as many shards as [`shard_count`] returns.
    pub memory: Arc<MemoryBudget>,
}

/// The running shards.
pub struct Handle {
    listeners: Vec<BoundListener>,
    drain: Arc<dyn Fn() + Send + Sync>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    turn_times: Arc<TurnTimes>,
}

impl Handle {
    /// The listeners with their bound addresses.
    pub fn listeners(&self) -> &[BoundListener] {
        &self.listeners
    }

    /// Returns a function that starts the drain of all shards. Calling it again has no effect.
    pub fn drainer(&self) -> Arc<dyn Fn() + Send + Sync> {
        Arc::clone(&self.drain)
    }

    /// How long the turns of the shards take.
    pub fn turn_times(&self) -> Arc<TurnTimes> {
        Arc::clone(&self.turn_times)
    }

    /// Waits until every shard has ended.
    ///
    /// # Errors
    /// The first error that ended a shard.
    ///
    /// # Panics
    /// If a shard panicked.
    pub fn join(self) -> io::Result<()> {
        let mut outcome = Ok(());
        for thread in self.threads {
            let ended = thread.join().expect("a shard does not panic");
            outcome = outcome.and(ended);
        }
        outcome
    }
}

/// Wakes a shard for a turn. Callable from any thread.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// Number of shards that [`start`] creates for this value of [`Options::shards`].
pub fn shard_count(shards: usize) -> usize {
    let shards = if shards == 0 { usable_cpus().len() } else { shards };
    shards.clamp(1, SHARDS_MAX)
}

/// Binds the listeners and runs one service per shard, each on its own thread.
///
/// Calls `make` once per shard on the calling thread, with the shard number and a function that wakes the shard.
///
/// # Errors
/// If the table of listeners is invalid, an address cannot be bound, or a poll instance or thread cannot be created.
pub fn start<S>(options: &Options, mut make: impl FnMut(usize, Wake) -> S) -> io::Result<Handle>
where
    S: Service + Send + 'static,
{
    let cpus = usable_cpus();
    let is_pinned = options.pin.applies_here(&cpus);
    let shards = shard_count(options.shards);
    let (mut listeners, bound) = bind_all(&options.listeners)?;
    let polls = (0..shards).map(|_| Poll::new()).collect::<io::Result<Vec<_>>>()?;
    let wakers = polls
        .iter()
        .map(|poll| Waker::new(poll.registry(), WAKE).map(|waker| Some(Arc::new(waker))))
        .collect::<io::Result<Vec<_>>>()?;
    let common = Arc::new(Common {
        mailboxes: Mailboxes::new(wakers),
        arrivals: Arrivals::new(shards),
        admission: Arc::clone(&options.admission),
        draining: AtomicBool::new(false),
        empty: AtomicUsize::new(0),
        clock: Monotonic::start(),
        turn_times: Arc::new(TurnTimes::new(shards)),
        memory: Arc::clone(&options.memory),
        discards: Discards::default(),
    });
    let turn_times = Arc::clone(&common.turn_times);
    let mut threads = Vec::new();
    for (shard, poll) in polls.into_iter().enumerate() {
        let shard_listeners = if shard == 0 { std::mem::take(&mut listeners) } else { Vec::new() };
        let seed = options.seed.wrapping_add(shard as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let common_for_wake = Arc::clone(&common);
        let service = make(shard, Arc::new(move || common_for_wake.mailboxes.wake(shard)));
        let driver = Driver::new(shard, Arc::clone(&common), poll, shard_listeners, service, seed)?
            .with_coalescing_us(options.coalesce_us)
            .with_flush_delay_us(options.flush_delay_us)
            .with_handshakes((options.handshakes_max / shards).max(1), options.handshake_timeout)
            .with_first_shard_connections(options.first_shard_connections);
        let cpu = is_pinned.then(|| cpus[shard % cpus.len()]);
        threads.push(Builder::new().name(format!("shard-{shard}")).spawn(move || {
            // By default the kernel adds 50 us to each sleep, which is as long as the shortest pause of a shard.
            set_current_timer_slack(NonZeroU64::new(TIMER_SLACK_NS)).ok();
            if let Some(cpu) = cpu {
                pin(cpu);
            }
            driver.run()
        })?);
    }
    let drain = Arc::new(move || {
        common.draining.store(true, Ordering::Release);
        for shard in 0..common.mailboxes.shards() {
            common.mailboxes.wake(shard);
        }
    });
    Ok(Handle { listeners: bound, drain, threads, turn_times })
}

/// Raises the soft limit of open files to the hard limit and returns the resulting limit.
pub fn raise_open_files_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        log::warn!("cannot raise the limit of open files: {error}");
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
