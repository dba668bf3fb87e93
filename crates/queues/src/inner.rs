//! The store and its queues, as the one who has the lock sees them.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};

use mainstem_compress::batch::plain;
use mainstem_disk::SegmentStore;
use mainstem_log::{
    Appended, Batch, BatchBuilder, BatchHeader, Completion, Durability, LogId, Options, Origin, Store as _,
};
use mainstem_queue::{Keeper, Refusal};

use crate::common::PLAIN_BYTES_MAX;
use crate::depart::Departed;
use crate::error::Error;
use crate::message::Message;
use crate::sent::Sent;
use crate::settings::Settings;
use crate::time::now_ms;

/// Size of a segment of messages, bytes.
const SEGMENT_BYTES: u64 = 16 * 1024 * 1024;
/// Keys, values and headers that are put in at once, bytes.
const BATCH_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Names of logs: of messages, and of what has become of them.
const MESSAGES: &str = "m-";
const STATE: &str = "q-";

fn decompress(batch: &Batch<'_>) -> Option<Vec<u8>> {
    plain(batch, PLAIN_BYTES_MAX).ok().map(std::borrow::Cow::into_owned)
}

/// The store and its queues.
pub(crate) struct Inner {
    pub(crate) store: SegmentStore,
    pub(crate) queues: Vec<One>,
    by_name: BTreeMap<String, usize>,
    /// The queue of each log.
    by_log: Vec<Option<usize>>,
    completions: Vec<Completion>,
    seed: u64,
    /// Memory for headers that are put together.
    pub(crate) spare: Vec<u8>,
}

/// One queue.
#[derive(Debug)]
pub(crate) struct One {
    pub(crate) name: String,
    pub(crate) keeper: Keeper,
    pub(crate) messages: LogId,
    pub(crate) durability: Durability,
    pub(crate) builder: BatchBuilder,
    pub(crate) sent: Sent,
    /// When somebody who takes messages last did what is due, ms since 1970.
    pub(crate) tended_ms: u64,
    /// What is on its way to another queue.
    pub(crate) leaving: Vec<Departed>,
}

impl Inner {
    pub(crate) fn new(store: SegmentStore) -> Self {
        Self {
            store,
            queues: Vec::new(),
            by_name: BTreeMap::new(),
            by_log: Vec::new(),
            completions: Vec::new(),
            seed: 1,
            spare: Vec::new(),
        }
    }

    /// Names of all queues there are, open or not.
    pub(crate) fn names(&self) -> Vec<String> {
        let names = self.store.names();
        names.iter().filter_map(|name| name.strip_prefix(MESSAGES)).map(str::to_owned).collect()
    }

    /// The queue of this name, if somebody has opened it.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// The queue of this name, made if it is not there, with these settings from now on.
    pub(crate) fn open(&mut self, name: &str, settings: Settings) -> Result<usize, Error> {
        let Settings { config, durability } = settings;
        let options = Options { durability, segment_bytes: SEGMENT_BYTES, ..Options::default() };
        // If it is open, it gets the options all the same.
        let messages = self.store.open(&format!("{MESSAGES}{name}"), &options)?;
        if let Some(at) = self.find(name) {
            self.queues[at].durability = durability;
            let keeper = &mut self.queues[at].keeper;
            keeper.set_durability(&mut self.store, durability)?;
            keeper.queue_mut().configure(config, now_ms());
            return Ok(at);
        }
        let state = format!("{STATE}{name}");
        let mut keeper = Keeper::open(&mut self.store, &state, messages, durability, config, decompress)?;
        // What hashes are keyed with is random, and different for each.
        keeper.begin_life(RandomState::new().hash_one(name) as u32);
        if durability != Durability::Fsync {
            keeper.pass_over_numbers(now_ms());
        }
        if let Some(batch) = keeper.gap(&mut self.store, now_ms())? {
            self.store.append(messages, &batch)?;
            log::warn!("queue {name}: its log has lost its last messages, and its state has not");
        }
        let at = self.queues.len();
        self.by_name.insert(name.to_owned(), at);
        for log in [messages, keeper.state_log()] {
            let log = log.0 as usize;
            self.by_log.resize(self.by_log.len().max(log + 1), None);
            self.by_log[log] = Some(at);
        }
        self.queues.push(One {
            name: name.to_owned(),
            keeper,
            messages,
            durability,
            builder: BatchBuilder::default(),
            sent: Sent::default(),
            tended_ms: 0,
            leaving: Vec::new(),
        });
        self.register(at, now_ms())?;
        Ok(at)
    }

    /// Takes note of what the disk has done, and makes what is durable known to the queue.
    pub(crate) fn look(&mut self, at: usize, now_ms: u64) -> Result<(), Error> {
        self.poll(now_ms);
        self.register(at, now_ms)
    }

    /// Makes what is durable known to the queue.
    pub(crate) fn register(&mut self, at: usize, now_ms: u64) -> Result<(), Error> {
        let one = &mut self.queues[at];
        let to = self.store.status(one.messages).committed;
        while one.keeper.register(&mut self.store, to, now_ms, BatchHeader::is_control)? {}
        one.sent.registered(one.keeper.queue().registered_to());
        // Groups that are behind are told of some more messages with each look.
        one.keeper.learn(&mut self.store, now_ms)?;
        Ok(())
    }

    /// Puts messages together in the queue's builder. Returns how many they are, and the size of their keys, values and
    /// headers. If they are refused, the builder is of no use.
    pub(crate) fn put_together<'a, M: Into<Message<'a>>>(
        &mut self,
        at: usize,
        now_ms: u64,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<(u64, u64), Error> {
        let Self { queues, spare, .. } = self;
        let builder = &mut queues[at].builder;
        if !builder.is_empty() {
            // Whoever gave what is in it has panicked.
            *builder = BatchBuilder::default();
        }
        let mut bytes = 0;
        for message in messages {
            let message = message.into();
            let headers = message.encode(spare)?;
            let Message { key, value, .. } = message;
            bytes += (key.map_or(0, <[u8]>::len) + value.len() + headers.len()) as u64;
            if bytes > BATCH_BYTES_MAX {
                return Err(Refusal::TooLarge { most: BATCH_BYTES_MAX as usize }.into());
            }
            builder.push_with_headers(now_ms.cast_signed(), key, Some(value), headers);
        }
        Ok((builder.records().into(), bytes))
    }

    /// Whether a queue has room for so many more messages and bytes.
    pub(crate) fn admit(&self, at: usize, count: u64, bytes: u64) -> Result<(), Refusal> {
        let One { keeper, messages, sent, .. } = &self.queues[at];
        if keeper.is_stuck() {
            return Err(Refusal::Storage);
        }
        let end = self.store.status(*messages).end;
        let on_their_way = end.saturating_sub(keeper.queue().registered_to());
        let has_room = keeper.queue().admits(on_their_way + count, sent.bytes() + bytes);
        if has_room { Ok(()) } else { Err(Refusal::Full) }
    }

    /// Appends what has been put together in the queue's builder, of this size.
    pub(crate) fn append(&mut self, at: usize, origin: &Origin, bytes: u64) -> Result<Appended, Error> {
        let One { builder, keeper, messages, sent, .. } = &mut self.queues[at];
        let records = u64::from(builder.records());
        let batch = builder.finish_as(origin);
        let appended = self.store.append_sound(*messages, batch)?;
        keeper.appended(batch, appended.base_offset);
        sent.append(appended.ticket, appended.base_offset + records, bytes);
        Ok(appended)
    }

    /// A number for what is left to chance.
    pub(crate) fn random(&mut self) -> u32 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 32) as u32
    }

    /// Sets all that has happened to a queue on its way to the disk.
    pub(crate) fn commit(&mut self, at: usize, now_ms: u64) {
        self.queues[at].keeper.store_events(&mut self.store, now_ms);
        self.store.commit();
    }

    /// The same for all queues.
    pub(crate) fn commit_all(&mut self, now_ms: u64) {
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
            let Some(&Some(at)) = self.by_log.get(completion.log.0 as usize) else { continue };
            let one = &mut self.queues[at];
            if one.messages == completion.log {
                one.sent.complete(completion.ticket, completion.outcome.is_ok());
            } else {
                one.keeper.arrived(&mut self.store, &completion, now_ms);
            }
        }
        self.completions = completions;
    }

    /// Does what is due in all queues. Returns whether something goes on, and when something is due next, ms since
    /// 1970.
    pub(crate) fn go_on(&mut self) -> (bool, u64) {
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
        self.commit_all(now_ms);
        let goes_on = |one: &One| !one.leaving.is_empty() || one.keeper.queue().flush_is_due();
        let dues = self.queues.iter().filter_map(|one| one.keeper.queue().next_due());
        (self.queues.iter().any(goes_on), dues.min().unwrap_or(u64::MAX))
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
