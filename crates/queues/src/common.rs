//! The store and all queues on it, behind one lock, and the thread that does what is due by itself.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mainstem_compress::batch::plain;
use mainstem_disk::{Committer, RealFs, SegmentStore, Settings as StoreSettings};
use mainstem_log::{
    Appended, Batch, BatchBuilder, BatchHeader, Completion, Durability, LogId, Options, Store, Ticket,
};
use mainstem_queue::{Config, Keeper, MOVER, Moved, Origin, destination};

use crate::error::Error;
use crate::queue::Queue;

/// What the records of one batch may take when they are decompressed, bytes.
const PLAIN_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Size of a segment of messages, bytes.
const SEGMENT_BYTES: u64 = 16 * 1024 * 1024;
/// Longest time between two looks at what is due by itself.
const PATIENCE: Duration = Duration::from_millis(500);
/// The shortest, and the longest while messages are on their way to other queues.
const BUSY: Duration = Duration::from_millis(1);
/// Messages that leave for another queue at once.
const DEPARTURES: usize = 256;
/// Names of logs: of messages, and of what has become of them.
const MESSAGES: &str = "m-";
const STATE: &str = "q-";

/// What a queue is set to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Leases, retries, limits.
    pub config: Config,
    /// When something counts as done.
    pub durability: Durability,
}

/// All queues in one directory. Clones are the same queues; they are closed when the last clone, queue and
/// delivery is gone.
#[derive(Clone, Debug)]
pub struct Queues {
    pub(crate) common: Arc<Common>,
    _tender: Arc<Tender>,
}

/// The thread that does what is due by itself. It ends with the last handle.
#[derive(Debug)]
struct Tender {
    common: Arc<Common>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Tender {
    fn drop(&mut self) {
        self.common.ends.store(true, Ordering::Release);
        self.common.due.give();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread of the queues has failed");
        }
    }
}

impl Queues {
    /// Opens the queues in a directory, and makes it if it is not there.
    ///
    /// # Errors
    /// [`Error::InUse`]; what the disk says.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, Error> {
        let directory: PathBuf = directory.as_ref().to_owned();
        std::fs::create_dir_all(&directory)?;
        let lock = File::create(directory.join("lock"))?;
        lock.try_lock().map_err(|error| match error {
            std::fs::TryLockError::WouldBlock => Error::InUse,
            std::fs::TryLockError::Error(error) => error.into(),
        })?;
        let disk = Arc::new(Signal::default());
        let woken = Arc::clone(&disk);
        let committer = Committer::Thread { wake: Arc::new(move || woken.give()) };
        let settings = StoreSettings {
            mapped_writes: true,
            decompress: Some(Arc::new(|codec, bytes| {
                mainstem_compress::decompress(codec, bytes, PLAIN_BYTES_MAX).ok()
            })),
            ..StoreSettings::default()
        };
        let store = SegmentStore::open(Arc::new(RealFs), directory.join("log"), settings, committer)?;
        let inner =
            Inner { store, queues: Vec::new(), by_name: BTreeMap::new(), completions: Vec::new(), seed: 1 };
        let common = Arc::new(Common {
            inner: Mutex::new(inner),
            disk,
            news: Signal::default(),
            due: Signal::default(),
            ends: AtomicBool::new(false),
            _lock: lock,
        });
        let tended = Arc::clone(&common);
        let thread =
            std::thread::Builder::new().name("mainstem-queues".into()).spawn(move || tend(&tended))?;
        let thread = Arc::new(Tender { common: Arc::clone(&common), thread: Some(thread) });
        Ok(Self { common, _tender: thread })
    }

    /// The queue of this name, made if it is not there, with these settings from now on.
    ///
    /// # Errors
    /// [`Error::Fault`] if it cannot be set to this; what the disk says.
    pub fn queue(&self, name: &str, settings: Settings) -> Result<Queue, Error> {
        let at = self.common.lock().open(name, settings)?;
        Ok(Queue::new(self.clone(), at))
    }
}

/// What all handles share.
pub(crate) struct Common {
    inner: Mutex<Inner>,
    /// The disk has done something.
    disk: Arc<Signal>,
    /// There may be messages for those who wait.
    pub(crate) news: Signal,
    /// Something may be due earlier than it was.
    pub(crate) due: Signal,
    ends: AtomicBool,
    _lock: File,
}

impl fmt::Debug for Common {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Common")
    }
}

impl Common {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commits what has been done, and waits until `is_done` says something.
    pub(crate) fn finish<'a, R>(
        &'a self,
        mut inner: MutexGuard<'a, Inner>,
        mut now_ms: u64,
        mut is_done: impl FnMut(&mut Inner) -> Option<R>,
    ) -> R {
        inner.commit(now_ms);
        loop {
            let seen = self.disk.seen();
            inner.poll(now_ms);
            if let Some(done) = is_done(&mut inner) {
                return done;
            }
            drop(inner);
            self.disk.wait(seen, PATIENCE);
            now_ms = self::now_ms();
            inner = self.lock();
        }
    }
}

impl Drop for Common {
    fn drop(&mut self) {
        self.inner.get_mut().unwrap_or_else(PoisonError::into_inner).commit(now_ms());
    }
}

/// Something that threads wait for. It costs next to nothing while nobody does.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    given: AtomicU64,
    waiting: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Signal {
    pub(crate) fn give(&self) {
        self.given.fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            // Whoever has looked and not begun to wait has the lock.
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
    }

    /// How often it was given. To be asked before one looks whether there is something to wait for.
    pub(crate) fn seen(&self) -> u64 {
        self.given.load(Ordering::SeqCst)
    }

    /// Waits until it has been given since `seen`, or so long.
    pub(crate) fn wait(&self, seen: u64, most: Duration) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(lock, most, |()| self.seen() == seen);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What is due by itself, until the last handle is gone.
fn tend(common: &Common) {
    loop {
        let seen = common.due.seen();
        if common.ends.load(Ordering::Acquire) {
            return;
        }
        let (is_busy, next_ms) = common.lock().go_on();
        // What has come back, or gone elsewhere, may be what somebody waits for.
        common.news.give();
        let patience = Duration::from_millis(next_ms.saturating_sub(now_ms()));
        let most = if is_busy { BUSY } else { PATIENCE };
        common.due.wait(seen, patience.clamp(BUSY, most));
    }
}

pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

fn decompress(batch: &Batch<'_>) -> Option<Vec<u8>> {
    plain(batch, PLAIN_BYTES_MAX).ok().map(std::borrow::Cow::into_owned)
}

/// The store and its queues.
pub(crate) struct Inner {
    pub(crate) store: SegmentStore,
    pub(crate) queues: Vec<One>,
    by_name: BTreeMap<String, usize>,
    completions: Vec<Completion>,
    seed: u64,
}

/// One queue.
#[derive(Debug)]
pub(crate) struct One {
    pub(crate) name: String,
    pub(crate) keeper: Keeper,
    pub(crate) messages: LogId,
    pub(crate) builder: BatchBuilder,
    /// The last append that failed.
    failed: Option<Ticket>,
    /// What is on its way to another queue: its group, number, and where it went.
    leaving: Vec<(mainstem_queue::GroupId, u64, usize, Appended)>,
}

impl One {
    /// What has become of an append: nothing if that is not known yet.
    pub(crate) fn outcome(&self, store: &SegmentStore, appended: Appended) -> Option<Result<(), Error>> {
        if self.failed.is_some_and(|failed| appended.ticket <= failed) {
            return Some(Err(Error::Refused(mainstem_queue::Refusal::Storage)));
        }
        (store.status(self.messages).committed > appended.base_offset).then_some(Ok(()))
    }
}

impl Inner {
    fn open(&mut self, name: &str, settings: Settings) -> Result<usize, Error> {
        let Settings { config, durability } = settings;
        if let Some(at) = self.by_name.get(name) {
            self.queues[*at].keeper.queue_mut().configure(config, now_ms());
            return Ok(*at);
        }
        let options = Options { durability, segment_bytes: SEGMENT_BYTES, ..Options::default() };
        let messages = self.store.open(&format!("{MESSAGES}{name}"), &options)?;
        let state = format!("{STATE}{name}");
        let mut keeper = Keeper::open(&mut self.store, &state, messages, durability, config, decompress)?;
        // What hashes are keyed with is random, and different for each.
        keeper.begin_life(RandomState::new().hash_one(name) as u32);
        let at = self.queues.len();
        self.by_name.insert(name.to_owned(), at);
        self.queues.push(One {
            name: name.to_owned(),
            keeper,
            messages,
            builder: BatchBuilder::default(),
            failed: None,
            leaving: Vec::new(),
        });
        self.register(at, now_ms())?;
        Ok(at)
    }

    /// Makes what is durable known to the queue.
    pub(crate) fn register(&mut self, at: usize, now_ms: u64) -> Result<(), Error> {
        let one = &mut self.queues[at];
        let to = self.store.status(one.messages).committed;
        while one.keeper.register(&mut self.store, to, now_ms, BatchHeader::is_control)? {}
        Ok(())
    }

    /// Appends a batch that has been put together in the queue's builder.
    pub(crate) fn append(&mut self, at: usize) -> Result<Appended, Error> {
        let one = &mut self.queues[at];
        let batch = one.builder.finish_sound();
        let appended = self.store.append_sound(one.messages, batch)?;
        one.keeper.appended(batch, appended.base_offset);
        Ok(appended)
    }

    /// A number for what is left to chance.
    pub(crate) fn random(&mut self) -> u32 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 32) as u32
    }

    /// Sets all that has happened on its way to the disk.
    pub(crate) fn commit(&mut self, now_ms: u64) {
        for one in &mut self.queues {
            one.keeper.store_events(&mut self.store, now_ms);
        }
        self.store.commit();
    }

    /// Takes note of what the disk has done.
    pub(crate) fn poll(&mut self, now_ms: u64) {
        let mut completions = std::mem::take(&mut self.completions);
        self.store.completions(&mut completions);
        for completion in completions.drain(..) {
            for one in &mut self.queues {
                if one.messages == completion.log && completion.outcome.is_err() {
                    one.failed = Some(completion.ticket);
                }
                one.keeper.arrived(&mut self.store, &completion, now_ms);
            }
        }
        self.completions = completions;
    }

    /// Does what is due in all queues. Returns whether something goes on, and when something is due next, ms since
    /// 1970.
    fn go_on(&mut self) -> (bool, u64) {
        let now_ms = now_ms();
        self.poll(now_ms);
        for at in 0..self.queues.len() {
            if let Err(error) = self.register(at, now_ms) {
                log::error!("queue {}: its messages cannot be read: {error}", self.queues[at].name);
                continue;
            }
            let one = &mut self.queues[at];
            one.keeper.tend(now_ms);
            self.arrive(at);
            if let Err(error) = self.depart(at) {
                log::warn!("queue {}: messages cannot leave yet: {error}", self.queues[at].name);
            }
            self.trim(at);
        }
        self.commit(now_ms);
        let goes_on = |one: &One| !one.leaving.is_empty() || one.keeper.queue().flush_is_due();
        let dues = self.queues.iter().filter_map(|one| one.keeper.queue().next_due());
        (self.queues.iter().any(goes_on), dues.min().unwrap_or(u64::MAX))
    }

    /// Brings messages to the queues that they leave for.
    fn depart(&mut self, at: usize) -> Result<(), Error> {
        if !self.queues[at].leaving.is_empty() {
            return Ok(());
        }
        let (departures, unread) = self.queues[at].keeper.take_departures(&mut self.store, DEPARTURES);
        let mut failed = None;
        for departure in departures {
            let leaving = departure.leaving;
            let one = &mut self.queues[at];
            if failed.is_some() {
                one.keeper.queue_mut().give_back_leaving(leaving.group, leaving.number);
                continue;
            }
            let Some(payload) = departure.payload else {
                log::error!("queue {}: message {} cannot be read and is gone", one.name, leaving.offset);
                one.keeper.queue_mut().left(leaving.group, leaving.number);
                continue;
            };
            let record = payload.record();
            let queue = one.keeper.queue();
            let to = destination(queue.config(), &one.name, &record, leaving.reason);
            let origin = Origin { id: &one.name, queue: &one.name, group: queue.group_name(leaving.group) };
            let moved = Moved::new(&record, &leaving, origin);
            match self.take_in(&to, &moved) {
                Ok((there, appended)) => {
                    let one = &mut self.queues[at];
                    one.leaving.push((leaving.group, leaving.number, there, appended));
                }
                Err(error) => {
                    self.queues[at].keeper.queue_mut().give_back_leaving(leaving.group, leaving.number);
                    failed = Some(error);
                }
            }
        }
        failed.or(unread.map(Error::from)).map_or(Ok(()), Err)
    }

    /// Takes a message of another queue into the queue of this name.
    fn take_in(&mut self, name: &str, moved: &Moved) -> Result<(usize, Appended), Error> {
        let at = if let Some(at) = self.by_name.get(name) {
            *at
        } else {
            // Nobody is to lose dead letters because they fail again.
            let config = Config { max_deliveries: 0, ..Config::default() };
            self.open(name, Settings { config, durability: Durability::Fsync })?
        };
        let one = &mut self.queues[at];
        let mut builder = BatchBuilder::default();
        let Moved { key, value, headers } = moved;
        builder.push_with_headers(now_ms().cast_signed(), key.as_deref(), value.as_deref(), headers);
        let origin = mainstem_log::Origin { producer_id: MOVER, ..mainstem_log::Origin::default() };
        let batch = builder.finish_as(&origin);
        let appended = self.store.append_sound(one.messages, batch)?;
        one.keeper.appended(batch, appended.base_offset);
        Ok((at, appended))
    }

    /// Settles what has arrived elsewhere.
    fn arrive(&mut self, at: usize) {
        let leaving = std::mem::take(&mut self.queues[at].leaving);
        let mut is_lost = false;
        for (group, number, there, appended) in leaving {
            let outcome = self.queues[there].outcome(&self.store, appended);
            let one = &mut self.queues[at];
            match outcome {
                _ if is_lost => one.keeper.queue_mut().give_back_leaving(group, number),
                None => one.leaving.push((group, number, there, appended)),
                Some(Ok(())) => one.keeper.queue_mut().left(group, number),
                Some(Err(_)) => {
                    is_lost = true;
                    one.keeper.queue_mut().give_back_leaving(group, number);
                }
            }
        }
    }

    /// Lets what is not needed any more go from the disk.
    fn trim(&mut self, at: usize) {
        let one = &mut self.queues[at];
        let retention_ms = one.keeper.queue().config().retention_ms;
        let mut keep_from = u64::MAX;
        if retention_ms > 0 {
            let oldest_ms = now_ms().saturating_sub(retention_ms).cast_signed();
            match self.store.find_time(one.messages, oldest_ms) {
                Ok(Some(found)) => keep_from = found.offset,
                Ok(None) => {}
                Err(_) => return,
            }
        }
        if let Some(offset) = one.keeper.take_trim(&mut self.store, keep_from)
            && let Err(error) = self.store.truncate_prefix(one.messages, offset)
        {
            log::warn!("queue {}: settled messages are not removed: {error}", one.name);
        }
    }
}
