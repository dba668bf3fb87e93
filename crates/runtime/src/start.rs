//! Starting the shards: listeners, threads, pinning, limits, and the handle that ends them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use mio::{Poll, Waker};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::accept::{Arrivals, Listener};
use crate::driver::{Common, Driver, WAKE};
use crate::mailbox::Post;
use crate::service::Service;

/// Most shards that one process runs.
const SHARDS_MAX: usize = 61;

/// How to run the shards.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of shards; 0 means one for each core that the process may use. At most 64.
    pub shards: usize,
    /// Whether each shard's thread is pinned to one core.
    pub pin: bool,
    /// Where to listen. The index of an address is what [`Service::accepted`] gets as `listener`.
    pub listen: Vec<Listen>,
    /// How long after a busy turn began the next one waits for more input, microseconds; quiet shards never
    /// wait.
    pub coalesce_us: u32,
    /// Connections that stay together on the first shard before the others get any.
    pub first_shard_connections: usize,
    /// Where randomness starts from.
    pub seed: u64,
}

/// An address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Port 0 takes a free one.
    pub address: SocketAddr,
    /// Bytes that the kernel may hold for one connection that is slow to read; 0 leaves it to the kernel.
    pub send_buffer_bytes: usize,
}

/// The running shards.
pub struct Handle {
    addresses: Vec<SocketAddr>,
    drain: Arc<dyn Fn() + Send + Sync>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Handle {
    /// Where the listeners really listen, in the order of [`Options::listen`].
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// A function that starts the drain of all shards; calling it again changes nothing.
    pub fn drainer(&self) -> Arc<dyn Fn() + Send + Sync> {
        Arc::clone(&self.drain)
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

/// Lets a shard take a turn, from whatever thread.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// Number of shards that [`start`] runs with these options.
pub fn shard_count(options: &Options) -> usize {
    let shards = if options.shards == 0 { usable_cpus().len() } else { options.shards };
    shards.clamp(1, SHARDS_MAX)
}

/// Binds the listeners and runs one service per shard, each on a thread of its own.
///
/// `make` is called once per shard, with the shard's number and what wakes it, on the calling thread.
///
/// # Errors
/// If an address cannot be bound, or the system refuses a poll instance or a thread.
pub fn start<S>(options: &Options, mut make: impl FnMut(usize, Wake) -> S) -> io::Result<Handle>
where
    S: Service + Send + 'static,
{
    let cpus = usable_cpus();
    let shards = shard_count(options);
    let mut listeners = Vec::new();
    for (number, Listen { address, send_buffer_bytes }) in options.listen.iter().enumerate() {
        let listener = Listener::bind(*address, number, *send_buffer_bytes)
            .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}")))?;
        listeners.push(listener);
    }
    let addresses = listeners.iter().map(Listener::address).collect::<io::Result<Vec<_>>>()?;
    let polls = (0..shards).map(|_| Poll::new()).collect::<io::Result<Vec<_>>>()?;
    let wakers = polls
        .iter()
        .map(|poll| Waker::new(poll.registry(), WAKE).map(|waker| Some(Arc::new(waker))))
        .collect::<io::Result<Vec<_>>>()?;
    let common = Arc::new(Common {
        post: Post::new(wakers),
        arrivals: Arrivals::new(shards),
        draining: AtomicBool::new(false),
        empty: AtomicUsize::new(0),
        started: Instant::now(),
    });
    let span = Duration::from_micros(u64::from(options.coalesce_us));
    let mut threads = Vec::new();
    for (shard, poll) in polls.into_iter().enumerate() {
        let mine = if shard == 0 { std::mem::take(&mut listeners) } else { Vec::new() };
        let seed = options.seed.wrapping_add(shard as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let waked = Arc::clone(&common);
        let service = make(shard, Arc::new(move || waked.post.wake(shard)));
        let driver = Driver::new(shard, Arc::clone(&common), poll, mine, service, seed)?
            .coalescing(span)
            .gathering(options.first_shard_connections);
        let cpu = options.pin.then(|| cpus[shard % cpus.len()]);
        threads.push(Builder::new().name(format!("shard-{shard}")).spawn(move || {
            if let Some(cpu) = cpu {
                pin(cpu);
            }
            driver.run()
        })?);
    }
    let drain = Arc::new(move || {
        common.draining.store(true, Ordering::Release);
        for shard in 0..common.post.shards() {
            common.post.wake(shard);
        }
    });
    Ok(Handle { addresses, drain, threads })
}

/// The processors this process may run on; one at least.
fn usable_cpus() -> Vec<usize> {
    let cpus: Vec<usize> = sched_getaffinity(None)
        .map(|set| (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
        .unwrap_or_default();
    if cpus.is_empty() { vec![0] } else { cpus }
}

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    if let Err(error) = sched_setaffinity(None, &set) {
        log::warn!("a shard could not be pinned to processor {cpu}: {error}");
    }
}

/// Raises the limit of open files to the hard limit, and returns what it is then.
pub fn raise_open_files_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        log::warn!("the limit of open files could not be raised: {error}");
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
