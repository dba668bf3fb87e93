//! Work queues: topics of one partition, with a [`Keeper`] on the shard that has it.
//!
//! | file | holds |
//! |---|---|
//! | `errand` | requests on their way to the shard of a queue, and answers on their way back |
//! | `desk` | requests of threads that are no shards |
//! | `order` | making, setting and deleting queues, on shard 0 |
//! | `dead` | where dead letters may go, and what such a queue is made with |
//! | `serve` | requests where the queue is |
//! | `chores` | those of them that take long |
//! | `send` | messages on their way into the log |
//! | `depart` | messages that leave for another queue |
//! | `gap` | what stands in the place of messages that a loss of power has taken |

mod chores;
mod dead;
mod depart;
pub(crate) mod desk;
mod errand;
mod gap;
mod order;
mod send;
mod serve;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use hashbrown::HashMap;
use mainstem_compress::batch::plain;
use mainstem_kafka::Aborted;
use mainstem_log::{Batch, Completion, Durability, Error, LogId};
use mainstem_queue::{Keeper, Refusal, Reply};
use mainstem_runtime::Io;
use slab::Slab;

use crate::catalogue::{PartitionId, Topic, hex};
use crate::mail::Mail;
use crate::partition::PLAIN_BYTES_MAX;
use crate::shard::{Shard, Timer};
use chores::Chore;
use depart::Departing;
pub(crate) use errand::{Errand, ReplyTo, Wanted, Whom};
pub(crate) use send::SendJob;
use send::Sends;
use serve::{Held, Wait};

/// Reads of messages of one queue in a turn.
const READS_PER_TURN: usize = 8;
/// Messages of one queue that are registered in a turn, after which nothing more is read.
const REGISTERED_PER_TURN: u64 = 4_000;
/// Bytes of messages that were read lately, of all queues together, about.
const CACHE_BYTES: usize = 128 * 1024 * 1024;
/// What a name of a log of a queue's state begins with.
const STATE: &str = "q-";

/// The queues of one shard.
#[derive(Default)]
pub(crate) struct Queues {
    open: BTreeMap<PartitionId, Open>,
    by_state: HashMap<(usize, LogId), PartitionId, foldhash::fast::RandomState>,
    /// The catalogue's version for which all queues have been looked at.
    version: Option<u64>,
    /// Queues here that are not open yet.
    unopened: VecDeque<PartitionId>,
    /// Queues in which something has happened that is to be gone on with.
    stirred: BTreeSet<PartitionId>,
    /// Queues in which something has happened that the stores have not been handed.
    changed: BTreeSet<PartitionId>,
    /// Queues in which something has happened since it was last looked at what they need.
    untrimmed: BTreeSet<PartitionId>,
    /// When something is due, ms since 1970.
    due: BTreeSet<(u64, PartitionId)>,
    /// When the timer is set for.
    timer_ms: Option<u64>,
    /// Who has sent messages and waits.
    senders: Slab<send::Sender>,
    /// Answers for the other doors of this shard.
    replies: Vec<(u64, Reply)>,
    /// Who asked from other threads.
    visitors: Slab<desk::Answer>,
    /// Answers for them.
    told: Vec<(desk::Answer, Reply)>,
    /// Queues that are no more, and take a while to be freed.
    gone: Vec<Keeper>,
    /// What waits for queues that are being made; on shard 0.
    unmade: Vec<Errand>,
}

/// A queue that is open.
struct Open {
    topic: Arc<Topic>,
    /// Which of the shard's stores has it.
    store: usize,
    keeper: Keeper,
    /// All that was there when it was opened is registered.
    is_ready: bool,
    /// Requests that wait for that.
    held: Vec<Held>,
    sends: Sends,
    waits: Vec<Wait>,
    /// Answers that wait until what has happened is durable.
    kept: VecDeque<(u64, ReplyTo, Reply)>,
    chores: VecDeque<Chore>,
    departing: Departing,
    due_ms: Option<u64>,
    /// It cannot be read, and that has been said.
    is_unreadable: bool,
    /// A group is so far behind that it, or all groups, wait for later messages until others are settled, and that has been
    /// said when it had so many to settle.
    crowd_told: Option<u64>,
}

impl Open {
    /// Says once which group is furthest behind, when there is more than the queue knows at a time.
    fn tell_crowd(&mut self) {
        let queue = self.keeper.queue();
        let (is_crowded, is_behind) = (queue.is_crowded(), queue.is_behind());
        if !is_crowded && !is_behind && self.crowd_told.is_none() {
            return;
        }
        let Some((group, pending)) = queue.most_behind() else { return };
        match self.crowd_told {
            // A tenth of it has gone: the next time is another one.
            Some(told) if pending < told / 10 * 9 => self.crowd_told = None,
            Some(_) => {}
            None => {
                let name = &self.topic.name;
                let whom = if is_crowded { "all groups" } else { "this group" };
                log::warn!(
                    "queue {name}: group {group} has {pending} messages to settle; later ones wait, for {whom}"
                );
                self.crowd_told = Some(pending);
            }
        }
    }

    /// Whoever waits for messages is not silent, and stays the active consumer if it is that.
    fn waiting_is_asking(&mut self, now_ms: u64) {
        if !self.keeper.queue().config().single_active_consumer {
            return;
        }
        for wait in &self.waits {
            if let Some(group) = self.keeper.queue().group(&wait.group) {
                let queue = self.keeper.queue_mut();
                queue.lease(group, wait.consumer, 0, wait.lease_ms, now_ms, &mut Vec::new());
            }
        }
    }
}

/// The name of the log of a queue's state.
fn state_name(id: PartitionId) -> String {
    format!("{STATE}{}", hex(id.topic))
}

/// The topic whose state a log of this name has; nothing if it is another log.
pub(crate) fn topic_of_state(name: &str) -> Option<mainstem_kafka::Uuid> {
    crate::catalogue::from_hex(name.strip_prefix(STATE)?)
}

/// Decompresses a batch for a queue.
fn decompress(batch: &Batch<'_>) -> Option<Vec<u8>> {
    plain(batch, PLAIN_BYTES_MAX).ok().map(std::borrow::Cow::into_owned)
}

impl Shard {
    /// Takes the answers for other doors of this shard that have come since this was last called, with their tokens.
    pub fn take_queue_replies(&mut self) -> Vec<(u64, Reply)> {
        std::mem::take(&mut self.queues.replies)
    }

    /// Looks for queues that have come or gone, opens one of those that are not open, and goes on with those in which
    /// something has happened. To be called when a turn begins, and before it ends.
    pub(crate) fn go_on_with_queues(&mut self, io: &mut Io<'_, Mail>) {
        self.take_visits(io);
        self.look_at_queues();
        if let Some(id) = self.queues.unopened.pop_front() {
            self.open_queue_of_catalogue(io, id);
            io.again_soon();
        }
        if let Some(gone) = self.queues.gone.last_mut() {
            if !gone.queue_mut().dissolve() {
                self.queues.gone.pop();
            }
            io.again_soon();
        }
        let mut again = BTreeSet::new();
        while let Some(id) = self.queues.stirred.pop_first() {
            self.queues.changed.insert(id);
            if self.go_on_with_queue(io, id) {
                again.insert(id);
                io.again_soon();
            }
        }
        self.queues.stirred = again;
        self.set_queue_timer(io);
    }

    /// Hands the stores what has happened in queues. To be called before the turn's commit.
    pub(crate) fn store_queues(&mut self, io: &mut Io<'_, Mail>) {
        for id in std::mem::take(&mut self.queues.changed) {
            self.queues.untrimmed.insert(id);
            self.append_sends(io, id);
            let Some(open) = self.queues.open.get_mut(&id) else { continue };
            let store = &mut *self.stores[open.store].store;
            open.keeper.store_events(store, io.clock.unix_ms);
            if open.keeper.is_behind() {
                // It is tried again, each turn.
                self.queues.changed.insert(id);
            }
        }
    }

    /// Takes note of what has become durable. False if it is of no queue's state.
    pub(crate) fn queue_arrived(
        &mut self,
        io: &mut Io<'_, Mail>,
        at: usize,
        completion: &Completion,
    ) -> bool {
        let Some(id) = self.queues.by_state.get(&(at, completion.log)).copied() else { return false };
        if let Some(open) = self.queues.open.get_mut(&id) {
            open.keeper.arrived(&mut *self.stores[at].store, completion, io.clock.unix_ms);
            self.queues.stirred.insert(id);
            io.again_soon();
        }
        true
    }

    /// A partition reaches further now, which may be a queue's.
    pub(crate) fn stir_queue(&mut self, io: &mut Io<'_, Mail>, id: PartitionId) {
        if self.queues.open.contains_key(&id) {
            self.queues.stirred.insert(id);
            io.again_soon();
        }
    }

    /// The timer of queues is due.
    pub(crate) fn queues_due(&mut self, io: &mut Io<'_, Mail>) {
        self.queues.timer_ms = None;
        while let Some((due_ms, id)) = self.queues.due.first().copied() {
            if due_ms > io.clock.unix_ms {
                break;
            }
            self.queues.due.pop_first();
            if let Some(open) = self.queues.open.get_mut(&id) {
                open.due_ms = None;
                self.queues.stirred.insert(id);
                io.again_soon();
            }
        }
        self.set_queue_timer(io);
    }

    fn set_queue_timer(&mut self, io: &mut Io<'_, Mail>) {
        let Some((due_ms, _)) = self.queues.due.first().copied() else { return };
        if self.queues.timer_ms.is_none_or(|timer_ms| due_ms < timer_ms) {
            self.queues.timer_ms = Some(due_ms);
            let in_ms = due_ms.saturating_sub(io.clock.unix_ms);
            io.set_timer(io.clock.now_ms + in_ms, Timer::Queues.token());
        }
    }

    /// Finds the queues that are here, and what they are set to now.
    fn look_at_queues(&mut self) {
        self.shared.refresh(&mut self.catalogue);
        if self.queues.version == Some(self.catalogue.version) {
            return;
        }
        self.queues.version = Some(self.catalogue.version);
        let catalogue = Arc::clone(&self.catalogue);
        for topic in catalogue.by_name.values() {
            let Some(config) = &topic.config.queue else { continue };
            let id = topic.partition(0);
            if let Some(open) = self.queues.open.get_mut(&id) {
                if !Arc::ptr_eq(&open.topic, topic) {
                    let durability = topic.config.options.durability;
                    if open.topic.config.options.durability != durability {
                        let store = &mut *self.stores[open.store].store;
                        let set = open.keeper.set_durability(store, durability);
                        if let Err(error) = set {
                            log::error!("queue {}: its state keeps its old durability: {error}", topic.name);
                        }
                    }
                    open.topic = Arc::clone(topic);
                    open.keeper.queue_mut().configure(config.clone(), self.unix_ms);
                    self.queues.stirred.insert(id);
                }
            } else if self.owner_of(id) == Ok(self.me) && !self.queues.unopened.contains(&id) {
                self.queues.unopened.push_back(id);
            }
        }
    }

    fn open_queue_of_catalogue(&mut self, io: &mut Io<'_, Mail>, id: PartitionId) {
        let Some(topic) = self.catalogue.topic_by_id(id.topic) else { return };
        let name = Arc::clone(&topic.name);
        if let Err(refusal) = self.open_queue(io, id) {
            log::error!("queue {name}: {refusal}");
        }
    }

    /// Opens a queue that is here, if it is not open.
    fn open_queue(&mut self, io: &mut Io<'_, Mail>, id: PartitionId) -> Result<(), Refusal> {
        if self.queues.open.contains_key(&id) {
            return Ok(());
        }
        let topic = Arc::clone(self.catalogue.topic_by_id(id.topic).ok_or(Refusal::UnknownQueue)?);
        let config = topic.config.queue.clone().ok_or(Refusal::NotAQueue)?;
        let (partition, _) = self.partition(id).map_err(|_| Refusal::Storage)?;
        let (at, messages) = (partition.store, partition.log);
        let store = &mut *self.stores[at].store;
        let durability = topic.config.options.durability;
        let opened = Keeper::open(store, &state_name(id), messages, durability, config, decompress);
        let mut keeper = opened.map_err(|error| {
            log::error!("queue {}: its state cannot be read: {error}", topic.name);
            Refusal::Storage
        })?;
        keeper.tune(self.shared.config.queue_tuning);
        keeper.begin_life((io.random() >> 32) as u32);
        if durability != Durability::Fsync {
            keeper.pass_over_numbers(io.clock.unix_ms);
        }
        self.queues.by_state.insert((at, keeper.state_log()), id);
        let open = Open {
            topic,
            store: at,
            keeper,
            is_ready: false,
            held: Vec::new(),
            sends: Sends::default(),
            waits: Vec::new(),
            kept: VecDeque::new(),
            chores: VecDeque::new(),
            departing: Departing::default(),
            due_ms: None,
            is_unreadable: false,
            crowd_told: None,
        };
        self.queues.open.insert(id, open);
        self.queues.unopened.retain(|unopened| *unopened != id);
        self.queues.stirred.insert(id);
        self.fill_gap(io, id);
        Ok(())
    }

    /// Does what there is to do in a queue. Returns whether there is more.
    fn go_on_with_queue(&mut self, io: &mut Io<'_, Mail>, id: PartitionId) -> bool {
        if !self.fill_gap(io, id) {
            return false;
        }
        let registered = self.register_messages(io, id);
        let told = registered.and_then(|has_more| Ok(self.teach_groups(io, id)? || has_more));
        let has_more = match told {
            Ok(has_more) => {
                if let Some(open) = self.queues.open.get_mut(&id) {
                    open.is_unreadable = false;
                }
                has_more
            }
            Err(error) => {
                let open = self.queues.open.get_mut(&id);
                if let Some(open) = open.filter(|open| !open.is_unreadable) {
                    open.is_unreadable = true;
                    log::error!("queue {}: its messages cannot be read: {error}", open.topic.name);
                }
                false
            }
        };
        let Some(open) = self.queues.open.get_mut(&id) else { return false };
        if !open.is_ready && has_more {
            return true;
        }
        if !std::mem::replace(&mut open.is_ready, true) {
            for held in std::mem::take(&mut open.held) {
                self.serve_held(io, id, held);
            }
        }
        let Some(open) = self.queues.open.get_mut(&id) else { return false };
        open.tell_crowd();
        open.waiting_is_asking(io.clock.unix_ms);
        open.keeper.tend(io.clock.unix_ms);
        self.go_on_with_chores(io, id);
        self.serve_waits(io, id);
        self.depart(io, id);
        self.answer_kept_of_queue(io, id);
        self.note_due(io, id);
        let goes_on = |open: &Open| {
            let queue = open.keeper.queue();
            open.has_chores() || queue.is_busy() || !open.is_unreadable && queue.learns_from().is_some()
        };
        has_more || self.queues.open.get(&id).is_some_and(goes_on)
    }

    /// Registers messages that have become durable. Returns whether there are more.
    fn register_messages(&mut self, io: &mut Io<'_, Mail>, id: PartitionId) -> Result<bool, Error> {
        let unix_ms = io.clock.unix_ms;
        let mut left = REGISTERED_PER_TURN;
        for _ in 0..READS_PER_TURN {
            let Some(open) = self.queues.open.get_mut(&id) else { return Ok(false) };
            let Some(partition) = self.partitions.get(&id) else { return Ok(false) };
            let store = &mut *self.stores[open.store].store;
            let reach = partition.reach(store);
            let from = open.keeper.queue().registered_to();
            open.sends.registered(from);
            if from >= reach.last_stable {
                return Ok(false);
            }
            let mut aborted = Aborted::new(partition.aborted(from..reach.last_stable));
            let passes_over = |header: &mainstem_log::BatchHeader| aborted.passes_over(header);
            let has_more = open.keeper.register(store, reach.last_stable, unix_ms, passes_over)?;
            open.sends.registered(open.keeper.queue().registered_to());
            if !has_more {
                return Ok(false);
            }
            left = left.saturating_sub(open.keeper.queue().registered_to() - from);
            if left == 0 {
                return Ok(true);
            }
        }
        Ok(true)
    }

    /// Tells groups that are behind of some more messages. Returns whether they can be told of others at once.
    fn teach_groups(&mut self, io: &Io<'_, Mail>, id: PartitionId) -> Result<bool, Error> {
        let Some(open) = self.queues.open.get_mut(&id).filter(|open| open.is_ready) else { return Ok(false) };
        open.keeper.learn(&mut *self.stores[open.store].store, io.clock.unix_ms)
    }

    /// Takes note of when something will be due by itself.
    fn note_due(&mut self, io: &Io<'_, Mail>, id: PartitionId) {
        let Some(open) = self.queues.open.get_mut(&id) else { return };
        // Whoever has waited long enough and is still there waits for the disk.
        let waits = open.waits.iter().map(|wait| wait.until_ms);
        let waits = waits.filter(|until_ms| (io.clock.unix_ms + 1..u64::MAX).contains(until_ms)).min();
        let own = open.keeper.queue().next_due();
        let due_ms = [waits, own, open.departing.retry_ms()].into_iter().flatten().min();
        // What was due already has been done.
        let due_ms = due_ms.map(|due_ms| due_ms.max(io.clock.unix_ms + 1));
        if due_ms == open.due_ms {
            return;
        }
        if let Some(before_ms) = std::mem::replace(&mut open.due_ms, due_ms) {
            self.queues.due.remove(&(before_ms, id));
        }
        if let Some(due_ms) = due_ms {
            self.queues.due.insert((due_ms, id));
        }
    }

    /// Answers those who waited until something is durable.
    fn answer_kept_of_queue(&mut self, io: &mut Io<'_, Mail>, id: PartitionId) {
        let Some(open) = self.queues.open.get_mut(&id) else { return };
        let durable = open.keeper.durable();
        let is_stuck = open.keeper.is_stuck();
        let mut answers = Vec::new();
        while let Some((_, to, reply)) = open.kept.pop_front_if(|(number, ..)| *number <= durable || is_stuck)
        {
            answers.push((to, reply));
        }
        for (to, reply) in answers {
            let reply = if is_stuck { Reply::Refused(Refusal::Storage) } else { reply };
            self.answer_queue(io, to, reply);
        }
    }

    /// Lets what queues do not need any more go from the disk. To be called now and then.
    pub(crate) fn trim_queues(&mut self) {
        let cache_bytes = CACHE_BYTES / self.queues.open.len().max(1);
        for id in std::mem::take(&mut self.queues.untrimmed) {
            let Some(open) = self.queues.open.get_mut(&id) else { continue };
            open.keeper.rest(cache_bytes);
            open.sends.rest();
            let Some(partition) = self.partitions.get(&id) else { continue };
            let store = &mut *self.stores[open.store].store;
            let retention_ms = open.keeper.queue().config().retention_ms;
            let oldest_ms = self.unix_ms.saturating_sub(retention_ms).cast_signed();
            let found = if retention_ms == 0 { Ok(None) } else { store.find_time(partition.log, oldest_ms) };
            let Ok(found) = found else { continue };
            let keep_from = if retention_ms == 0 {
                u64::MAX
            } else {
                found.map_or(partition.high_watermark, |found| found.offset)
            };
            if !open.is_ready {
                self.queues.untrimmed.insert(id);
                continue;
            }
            let trimmed = open.keeper.take_trim(store, keep_from);
            // It waits for the disk, or for time to pass, or has been settled since it was decided what goes now.
            if retention_ms > 0 || open.keeper.is_trimming() || trimmed.is_some() {
                self.queues.untrimmed.insert(id);
            }
            if open.keeper.is_behind() {
                self.queues.changed.insert(id);
            }
            if let Some(offset) = trimmed {
                if let Err(error) = store.truncate_prefix(partition.log, offset) {
                    log::warn!("queue {}: settled messages are not removed: {error}", open.topic.name);
                }
                self.started_later(id);
            }
        }
    }

    /// A topic has been deleted, which may be a queue.
    pub(crate) fn remove_queue(&mut self, io: &mut Io<'_, Mail>, id: PartitionId) {
        self.queues.unopened.retain(|unopened| *unopened != id);
        let Some(open) = self.queues.open.remove(&id) else {
            return self.tending.remove_state(&self.stores, &state_name(id));
        };
        if let Some(due_ms) = open.due_ms {
            self.queues.due.remove(&(due_ms, id));
        }
        let log = open.keeper.state_log();
        self.queues.by_state.remove(&(open.store, log));
        self.tending.remove_log(open.store, log);
        let waits = open.waits.iter().map(|wait| wait.to);
        let held = open.held.iter().map(Held::to);
        let kept = open.kept.iter().map(|(_, to, _)| *to);
        let chores = open.chores.iter().map(Chore::to);
        for to in waits.chain(held).chain(kept).chain(chores).collect::<Vec<_>>() {
            self.answer_queue(io, to, Reply::Refused(Refusal::UnknownQueue));
        }
        self.refuse_sends(io, &open.sends);
        self.queues.gone.push(open.keeper);
        io.again_soon();
    }

    /// The process is to end: whoever waits for messages is told that none come.
    pub(crate) fn drain_queues(&mut self, io: &mut Io<'_, Mail>) {
        let waits: Vec<Wait> = self.queues.open.values_mut().flat_map(|open| open.waits.drain(..)).collect();
        for wait in waits {
            self.answer_queue(io, wait.to, Reply::Received(Vec::new()));
        }
    }
}
