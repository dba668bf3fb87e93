//! A queue with its log, its events and a clock, beside the naive implementation. Some worlds have a fault.

use std::collections::BTreeMap;

use mainstem_queue_core::{
    Config, Disposition, GroupId, Info, Malformed, Meta, Overflow, PendingTransfer, Queue, Receipt,
    Settlement, SnapshotCursor,
};

use crate::naive::{Naive, State};
use crate::ops::{EVERYTHING, Headers, Op};
use crate::rules::{Broken, Rules};

mod drain;

/// A fault of the world around the queue, or of what the world reports to the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// A flush is reported as durable before it is, as if the next message of a key did not wait for that.
    EarlyDurable,
    /// A crash loses the last durable batch.
    LostBatch,
    /// The same, and the naive implementation does not know.
    LostBatchUnseen,
    /// The arrival of transferred messages is not reported.
    LostArrival,
    /// Consumers hold messages for longer than the queue assumes.
    EarlyLeaseEnd,
    /// The queue does not see deduplication identifiers.
    LostIdentifiers,
    /// Parts of snapshots are lost.
    LostParts,
    /// A restarted queue gets the incarnation it had before.
    SameIncarnation,
    /// A message is withheld from groups that should load it.
    WithheldMessage,
}

struct Batch {
    events: Vec<u8>,
    after: Naive,
}

/// A snapshot, which replaces all batches before it.
struct Snapshot {
    /// Number of those batches.
    at: usize,
    bytes: Vec<u8>,
    /// Index of its first part.
    parts_from: usize,
    /// Number of batches when it was complete.
    whole_at: usize,
}

pub(crate) struct World {
    queue: Queue,
    naive: Naive,
    rules: Rules,
    fault: Fault,
    config: Config,
    known_max: u64,
    now_ms: u64,
    /// Messages in the log, and the end of the log.
    log: BTreeMap<u64, Meta>,
    end: u64,
    batches: Vec<Batch>,
    /// Number of batches when this queue was created.
    made_at: usize,
    /// Number of its own batches that are durable.
    durable: usize,
    snapshot: Option<Snapshot>,
    /// The incremental snapshot in progress.
    in_progress: Option<(Snapshot, SnapshotCursor)>,
    /// Parts of snapshots, with the number of batches before each.
    parts: Vec<(usize, Vec<u8>)>,
    receipts: Vec<(String, Receipt)>,
    crashes: u32,
    taken: Vec<(String, u64)>,
}

/// Distance of the numbers of two incarnations. A number grows while the queue runs.
const INCARNATION_STEP: u32 = 10_000;
/// More messages than any case has, also if each one counts several times.
const AT_ONCE: usize = 10_000;
const GROUPS: [&str; 3] = ["default", "a", "b"];

impl World {
    pub(crate) fn new(config: Config, known_max: u64, fault: Fault) -> Self {
        let (mut queue, mut naive) = (Queue::new(config.clone()), Naive::new(config.clone()));
        queue.set_known_max(known_max);
        queue.set_at_once(AT_ONCE);
        queue.begin_incarnation(INCARNATION_STEP);
        naive.begin_incarnation(INCARNATION_STEP);
        if known_max < EVERYTHING {
            // A single group never lags.
            queue.open_group(&GROUPS[1].into(), 0).expect("there is room");
            naive.open_group(GROUPS[1]);
            naive.join_all(0);
        }
        Self {
            queue,
            naive,
            rules: Rules::of(&config),
            fault,
            config,
            known_max,
            now_ms: 1_000,
            log: BTreeMap::new(),
            end: 0,
            batches: Vec::new(),
            made_at: 0,
            durable: 0,
            snapshot: None,
            in_progress: None,
            parts: Vec::new(),
            receipts: Vec::new(),
            crashes: 1,
            taken: Vec::new(),
        }
    }

    /// The group with this number, if it exists.
    fn find(&self, group: usize) -> Option<(&'static str, GroupId, usize)> {
        let name = GROUPS[group % GROUPS.len()];
        Some((name, self.queue.group(name)?, self.naive.index(name)?))
    }

    fn flush_to_come(&self) -> usize {
        self.batches.len() + 1
    }

    pub(crate) fn apply(&mut self, op: &Op) -> Broken {
        let now_ms = self.now_ms;
        match *op {
            Op::Append(ref headers) => self.append(headers),
            Op::Burst(count) => self.burst(count),
            Op::Consume { group, max } => self.consume(group, max)?,
            Op::Gap => self.end += 1,
            Op::Register(count) => self.register(count),
            Op::LoadMissed(count) => self.load_missed(count)?,
            Op::Lease { group, consumer, max, lease_ms, unread } => {
                self.lease(group, consumer, max, lease_ms, unread)?;
            }
            Op::Settle { which, disposition, random } => self.settle(which, disposition, random)?,
            Op::Leave { group, consumer } => {
                if let Some((_, id, at)) = self.find(group) {
                    self.queue.leave(id, consumer, now_ms);
                    self.naive.leave(at, consumer);
                }
            }
            Op::AdvanceTime(ms) => self.now_ms += ms,
            Op::Maintain => self.maintain()?,
            Op::Flush => self.flush(),
            Op::Durable(count) => self.become_durable(count),
            Op::TakeTransfers(max) => self.take_leaving(max)?,
            Op::ReturnTransfer(which) => {
                if let Some((name, number)) = pick(&self.taken, which) {
                    let at = self.naive.index(&name);
                    if let (Some(id), Some(at)) = (self.queue.group(&name), at) {
                        self.queue.return_pending_transfer(id, number);
                        self.naive.give_back(at, number);
                    }
                }
            }
            Op::Transferred(which) => self.complete_transfer(which),
            Op::OpenGroup { group, at_once } => self.open_group(GROUPS[group], at_once)?,
            Op::Join(at_once) => self.join(at_once)?,
            Op::RemoveGroup(group) => {
                if let Some((name, id, at)) = self.find(group) {
                    let is_the_only_one = self.naive.groups.len() == 1;
                    same("refused", &self.queue.remove_group(id).is_err(), &is_the_only_one)?;
                    if !is_the_only_one {
                        self.naive.remove_group(at);
                        self.release_removed();
                        self.rules.removed(name);
                    }
                }
            }
            Op::Purge(group) => self.purge(group)?,
            Op::Redrive(max) => {
                let moved = self.naive.redrive(max, now_ms);
                self.queue.set_at_once(2);
                same("redriven", &self.queue.redrive(max, now_ms), &moved)?;
                self.queue.set_at_once(AT_ONCE);
            }
            Op::Replay { group, from, len } => self.replay(group, from, len)?,
            Op::Snapshot => {
                if self.queue.is_listing() {
                    self.maintain()?;
                }
                self.flush();
                let mut snapshot = Vec::new();
                self.queue.snapshot(&mut snapshot);
                let (at, parts_from) = (self.batches.len(), self.parts.len());
                // A complete snapshot makes one in progress useless.
                self.in_progress = None;
                self.snapshot = Some(Snapshot { at, bytes: snapshot, parts_from, whole_at: at });
            }
            Op::SnapshotParts { parts, most } => self.snapshot_parts(parts, most),
            Op::Crash { kept, by_snapshot } => self.crash(kept, by_snapshot)?,
            Op::Trim(most) => self.trim(most),
            Op::Configure { max_deliveries, length_max, ttl_ms, drops_oldest, is_single } => {
                self.config.overflow = if drops_oldest { Overflow::DropOldest } else { Overflow::Reject };
                self.config.single_active_consumer = is_single;
                self.config = Config { max_deliveries, length_max, ttl_ms, ..self.config.clone() };
                self.configure(1);
            }
            Op::ToggleFifo => {
                self.config.fifo = !self.config.fifo;
                self.configure(1);
            }
            Op::ContinueConfigure(most) => self.configure(most),
        }
        self.compare()
    }

    fn open_group(&mut self, name: &str, at_once: usize) -> Broken {
        self.naive.open_group(name);
        let before = self.info();
        self.queue.set_at_once(at_once);
        let opened = self.queue.open_group(&name.into(), self.now_ms);
        self.queue.set_at_once(AT_ONCE);
        opened.map_err(|refusal| refusal.to_string())?;
        self.watch_joins(&before)
    }

    /// Calls `maintain` for a few messages, if nothing is due except new groups that take over messages.
    fn join(&mut self, at_once: usize) -> Broken {
        let is_due = self.naive.next_due().is_some_and(|due_ms| due_ms <= self.now_ms);
        let is_more = self.config.overflow == Overflow::DropOldest || self.config.single_active_consumer;
        if is_due || is_more || self.naive.is_applying_fifo() {
            return self.maintain();
        }
        let before = self.info();
        self.queue.set_at_once(at_once);
        self.queue.maintain(self.now_ms);
        self.queue.set_at_once(AT_ONCE);
        self.watch_joins(&before)
    }

    fn info(&self) -> Info {
        let mut info = Info::default();
        self.queue.info(&mut info);
        info
    }

    /// Lets groups of the naive implementation take over as many messages as in the queue: expired ones have become
    /// dead letters, the others are pending.
    fn watch_joins(&mut self, before: &Info) -> Broken {
        self.watch_unknown();
        let after = self.info();
        for at in 0..self.naive.groups.len() {
            let group = &self.naive.groups[at];
            let dead = |info: &Info| {
                info.groups.iter().find(|told| told.name == group.name).map_or(0, |told| told.dead)
            };
            let mut given = Vec::new();
            if let Some(id) = self.queue.group(&group.name) {
                self.queue.peek(id, 0, usize::MAX, &mut given);
            }
            let is_given = |(offset, ..): &&(u64, u32, &str)| {
                group.joining.contains(offset) && !self.naive.has_expired(*offset, self.now_ms)
            };
            let count = given.iter().filter(is_given).count() as u64 + dead(&after) - dead(before);
            self.naive.join(at, count as usize, self.now_ms);
        }
        // Messages of a removed group may be left, or a group may list an empty range.
        let is_listing = self.queue.is_listing();
        let lists_nothing = self.naive.groups.iter().any(|group| group.is_new && group.joining.is_empty());
        let is_unlike = if is_listing { lists_nothing } else { !self.naive.removed_groups.is_empty() };
        if is_unlike { self.maintain() } else { Ok(()) }
    }

    /// Messages of removed groups are released, unless a new group has still to list them.
    fn release_removed(&mut self) {
        if !self.queue.is_listing() {
            self.naive.removed_groups.clear();
        }
    }

    /// Changes the configuration, and applies it to this many messages.
    fn configure(&mut self, most: usize) {
        // A change of one message counts as four.
        self.queue.set_at_once(most * 4);
        self.queue.configure(self.config.clone(), self.now_ms);
        self.queue.set_at_once(AT_ONCE);
        self.naive.configure(self.config.clone(), most, self.now_ms);
        self.watch_order();
    }

    /// While order by key is being switched on or off, no order is required.
    fn watch_order(&mut self) {
        let has_order = self.config.fifo && !self.naive.is_applying_fifo();
        self.rules.has_order(has_order, self.flush_to_come());
    }

    fn append(&mut self, headers: &Headers) {
        let offset = self.end;
        self.end += 1;
        let from_now = |ms: u64| self.now_ms + ms;
        let meta = Meta {
            offset,
            timestamp_ms: self.now_ms,
            // The total size of unloaded messages is an estimate when some of them are settled, so all have one size.
            bytes: if self.known_max == EVERYTHING { headers.bytes } else { 20 },
            key: headers.key,
            priority: headers.priority.min(9),
            due_ms: headers.delay_ms.map_or(0, from_now),
            expires_ms: headers.ttl_ms.map_or(u64::MAX, from_now),
            dedup_id: headers.dedup_id.map(|id| [id].into()),
            moved_by: headers.moved_by.map(|(who, number)| (format!("queue {who}").into(), number)),
        };
        self.log.insert(offset, meta);
    }

    fn burst(&mut self, count: usize) {
        for key in (1..3).cycle().take(count) {
            let key = Some(key);
            let (delay_ms, ttl_ms, dedup_id, moved_by) = (None, None, None, None);
            self.append(&Headers { key, priority: 0, delay_ms, ttl_ms, dedup_id, moved_by, bytes: 5 });
        }
        self.register(usize::MAX);
    }

    fn consume(&mut self, group: usize, max: usize) -> Broken {
        let before = self.receipts.len();
        self.lease(group, 2, max, None, 0)?;
        for _ in before..self.receipts.len() {
            self.settle(0, Disposition::Ack, 0)?;
            self.receipts.pop();
        }
        Ok(())
    }

    fn register(&mut self, count: usize) {
        let from = self.queue.registered_to();
        let metas: Vec<Meta> = self.log.range(from..).take(count).map(|(_, meta)| meta.clone()).collect();
        for mut meta in metas {
            if self.fault == Fault::LostIdentifiers {
                meta.dedup_id = None;
            }
            self.queue.register(meta.clone(), self.now_ms);
            let queue = &self.queue;
            self.naive.register(&meta, self.now_ms, |group| is_unknown(queue, group, meta.offset));
        }
        if self.log.range(self.queue.registered_to()..).next().is_none() {
            self.queue.registered(self.end);
            self.naive.registered_to = self.end;
        }
    }

    /// Lagging groups load the first `count` messages.
    fn load_missed(&mut self, count: usize) -> Broken {
        let Some(from) = self.queue.next_to_load() else { return Ok(()) };
        let rest = self.log.range(from..self.queue.registered_to());
        let mut metas: Vec<Meta> = rest.take(count).map(|(_, meta)| meta.clone()).collect();
        let to = metas.last().map_or(self.queue.registered_to(), |meta| meta.offset + 1);
        if self.fault == Fault::WithheldMessage {
            metas.pop();
        }
        self.queue.load_missed(from..to, &metas, self.now_ms);
        let learnt = |group: &crate::naive::Group| {
            let unknown = group.unknown.keys().copied().filter(|offset| (from..to).contains(offset));
            let is_known = |offset: &u64| !is_unknown(&self.queue, &group.name, *offset);
            unknown.filter(is_known).collect::<Vec<u64>>()
        };
        let learnt: Vec<Vec<u64>> = self.naive.groups.iter().map(learnt).collect();
        for (at, offsets) in learnt.into_iter().enumerate() {
            for offset in offsets {
                if !metas.iter().any(|meta| meta.offset == offset) {
                    return Err(format!("a message is withheld: {offset}"));
                }
                self.naive.load_missed(at, offset, self.now_ms);
            }
        }
        if self.queue.next_to_load() == Some(from) {
            return Err(format!("no group loads {from}"));
        }
        Ok(())
    }

    /// Messages that a new group should take over may now be among those that it has not loaded.
    fn watch_unknown(&mut self) {
        for at in 0..self.naive.groups.len() {
            let group = &self.naive.groups[at];
            let is_it = |offset: &u64| is_unknown(&self.queue, &group.name, *offset);
            for offset in group.joining.iter().copied().filter(is_it).collect::<Vec<u64>>() {
                self.naive.miss_joining(at, offset);
            }
        }
    }

    fn lease(
        &mut self,
        group: usize,
        consumer: u64,
        max: usize,
        lease_ms: Option<u64>,
        unread: usize,
    ) -> Broken {
        let Some((name, id, at)) = self.find(group) else { return Ok(()) };
        let mut leases = Vec::new();
        self.queue.lease(id, consumer, max, lease_ms, self.now_ms, &mut leases);
        same("leases", &leases, &self.naive.lease(at, consumer, max, lease_ms, self.now_ms))?;
        for lease in leases.split_off(leases.len().saturating_sub(unread)) {
            self.queue.cancel_lease(id, &lease, self.now_ms);
            self.naive.cancel_lease(at, &lease, self.now_ms);
        }
        for mut lease in leases {
            if self.fault == Fault::EarlyLeaseEnd {
                lease.until_ms += 20;
            }
            self.rules.leased(name, consumer, &lease, &self.log, self.now_ms)?;
            self.receipts.push((name.to_owned(), lease.receipt));
        }
        Ok(())
    }

    fn settle(&mut self, which: usize, disposition: Disposition, random: u32) -> Broken {
        // Prefer recent receipts: older ones are settled.
        let Some((name, receipt)) = pick(&self.receipts, which % 8) else { return Ok(()) };
        let (Some(id), Some(at)) = (self.queue.group(&name), self.naive.index(&name)) else { return Ok(()) };
        let settlement = Settlement { receipt, disposition };
        let is_settled = self.queue.settle(id, &settlement, self.now_ms, random).is_ok();
        self.watch_unknown();
        same("settled", &is_settled, &self.naive.settle(at, settlement, self.now_ms, random))?;
        if is_settled {
            match disposition {
                Disposition::Extend(ms) => {
                    self.rules.extended(&name, receipt.offset, self.now_ms + ms.max(1));
                }
                Disposition::Ack => self.rules.settled(&name, receipt.offset, self.flush_to_come()),
                _ => self.rules.released(&name, receipt.offset),
            }
        }
        Ok(())
    }

    fn maintain(&mut self) -> Broken {
        self.queue.maintain(self.now_ms);
        self.watch_unknown();
        self.naive.maintain(self.now_ms);
        self.watch_order();
        match self.queue.next_due() {
            Some(due_ms) if due_ms <= self.now_ms => {
                Err(format!("maintenance at {} leaves work due at {due_ms}", self.now_ms))
            }
            _ => Ok(()),
        }
    }

    fn flush(&mut self) {
        let is_due = self.queue.flush_is_due();
        let mut events = Vec::new();
        match self.queue.flush(&mut events) {
            Some(number) => {
                self.naive.flushed += 1;
                assert_eq!(number, self.naive.flushed, "flushes are numbered in order");
                self.batches.push(Batch { events, after: self.naive.clone() });
                if self.fault == Fault::EarlyDurable {
                    self.queue.durable(number, self.now_ms);
                    self.naive.durable(number, self.now_ms);
                }
            }
            None => assert!(!is_due && events.is_empty(), "what is due is flushed"),
        }
    }

    fn become_durable(&mut self, count: usize) {
        self.durable = self.durable.saturating_add(count).min(self.batches.len() - self.made_at);
        if self.fault != Fault::EarlyDurable {
            self.queue.durable(self.durable as u64, self.now_ms);
            self.naive.durable(self.durable as u64, self.now_ms);
        }
    }

    fn take_leaving(&mut self, max: usize) -> Broken {
        let taken = self.queue.take_pending_transfers(max);
        let tell = |leaving: &PendingTransfer| {
            let name = self.queue.group_name(leaving.group).to_string();
            (name, leaving.number, leaving.offset, leaving.count, leaving.reason, leaving.since_ms)
        };
        let told: Vec<_> = taken.iter().map(tell).collect();
        same("leaving", &told, &self.naive.take_leaving(max))?;
        for (name, number, offset, ..) in told {
            if self.fault != Fault::EarlyDurable {
                self.rules.taken(&name, number, offset)?;
            }
            self.taken.push((name, number));
        }
        Ok(())
    }

    fn complete_transfer(&mut self, which: usize) {
        let Some((name, number)) = pick(&self.taken, which) else { return };
        let (Some(id), Some(at)) = (self.queue.group(&name), self.naive.index(&name)) else { return };
        self.rules.arrived(&name, number, self.flush_to_come());
        if self.fault != Fault::LostArrival {
            self.queue.complete_transfer(id, number);
            self.naive.complete_transfer(at, number);
        }
    }

    fn purge(&mut self, group: Option<usize>) -> Broken {
        let found = group.map(|group| self.find(group));
        let (id, at) = match found {
            Some(None) => return Ok(()),
            Some(Some((name, id, at))) => {
                self.rules.purged(name);
                (Some(id), Some(at))
            }
            None => {
                for name in GROUPS {
                    self.rules.purged(name);
                }
                (None, None)
            }
        };
        if self.queue.is_listing() {
            // A new group knows what it has not loaded only when it has listed what it takes over.
            let first = self.queue.groups().next().expect("there is one");
            self.queue.replay_from(first, &[], self.now_ms);
            self.naive.next_incarnation();
            self.watch_unknown();
        }
        self.queue.set_at_once(2);
        let purged = self.queue.purge(id);
        self.queue.set_at_once(AT_ONCE);
        self.watch_unknown();
        same("purged", &purged, &self.naive.purge(at))
    }

    fn replay(&mut self, group: usize, from: u64, len: u64) -> Broken {
        let Some((name, id, at)) = self.find(group) else { return Ok(()) };
        let range = self.log.range(from..from + len);
        let (pending, joining) = (&self.naive.groups[at].messages, &self.naive.groups[at].joining);
        let metas: Vec<Meta> = range.map(|(_, meta)| meta.clone()).collect();
        let offsets: Vec<u64> = metas
            .iter()
            .map(|meta| meta.offset)
            .filter(|offset| !pending.contains_key(offset) && !joining.contains(offset))
            .filter(|offset| !self.naive.groups[at].unknown.contains_key(offset))
            .collect();
        self.rules.replayed(name, &offsets, &self.log);
        let replayed = self.queue.replay_from(id, &metas, self.now_ms);
        self.watch_unknown();
        same("replayed", &replayed, &self.naive.replay_from(at, &metas, self.now_ms))
    }

    /// When everything is durable, the log drops what is not needed: all messages below an offset, except for a few.
    fn trim(&mut self, most: usize) {
        self.flush();
        self.become_durable(usize::MAX);
        let mut needed = self.queue.needed(0, most + 1);
        let to = if needed.len() > most { needed.pop() } else { None };
        let to = to.unwrap_or_else(|| self.queue.needed_from().max(self.queue.registered_to()));
        self.log.retain(|&offset, _| offset >= to || needed.contains(&offset));
    }

    fn snapshot_parts(&mut self, parts: usize, most: usize) {
        // Registered identifiers must be flushed before a snapshot begins; a part only requires events that somebody
        // waits for.
        if self.queue.flush_is_due() || self.in_progress.is_none() {
            self.flush();
        }
        let at = self.batches.len();
        let (mut snapshot, mut cursor) = self.in_progress.take().unwrap_or_else(|| {
            let mut bytes = Vec::new();
            let cursor = self.queue.begin_snapshot(&mut bytes);
            (Snapshot { at, bytes, parts_from: self.parts.len(), whole_at: at }, cursor)
        });
        for _ in 0..parts {
            let mut part = Vec::new();
            if self.queue.snapshot_part(&mut cursor, most, &mut part).is_none() {
                snapshot.whole_at = at;
                self.snapshot = Some(snapshot);
                return;
            }
            if self.fault != Fault::LostParts && !part.is_empty() {
                self.parts.push((at, part));
            }
        }
        self.in_progress = Some((snapshot, cursor));
    }

    /// Replays batches up to `told`, after those that a snapshot replaces, with the parts between them.
    fn replay_batches(&mut self, told: usize, by_snapshot: bool) -> Result<(), Malformed> {
        let (mut from, mut parts_from) = (0, 0);
        if let Some(snapshot) = self.snapshot.as_ref().filter(|_| by_snapshot) {
            self.queue.replay(&snapshot.bytes)?;
            (from, parts_from) = (snapshot.at, snapshot.parts_from);
        }
        let mut parts = self.parts[parts_from..].iter().peekable();
        for at in from..=told {
            while let Some((_, part)) = parts.next_if(|(before, _)| *before == at) {
                self.queue.replay(part)?;
            }
            if at < told {
                self.queue.replay(&self.batches[at].events)?;
            }
        }
        Ok(())
    }

    fn crash(&mut self, kept: usize, by_snapshot: bool) -> Broken {
        let kept = (self.made_at + self.durable + kept).min(self.batches.len());
        let is_lost = matches!(self.fault, Fault::LostBatch | Fault::LostBatchUnseen);
        let told = kept - usize::from(is_lost && kept > 0);
        self.batches.truncate(kept);
        self.snapshot.take_if(|snapshot| snapshot.whole_at > told);
        self.parts.retain(|(before, _)| *before <= told);
        self.in_progress = None;

        let crashed = std::mem::replace(&mut self.queue, Queue::new(self.config.clone()));
        self.queue.set_known_max(self.known_max);
        self.queue.set_at_once(AT_ONCE);
        self.replay_batches(told, by_snapshot).map_err(|malformed| malformed.to_string())?;
        same("registered", &self.queue.registered_to(), &0)?;
        for meta in self.log.values() {
            self.queue.register(meta.clone(), self.now_ms);
        }
        self.queue.registered(self.end);

        let base = if self.fault == Fault::LostBatchUnseen { kept } else { told };
        let before = base
            .checked_sub(1)
            .map_or_else(|| Naive::new(self.config.clone()), |at| self.batches[at].after.clone());
        let queue = &self.queue;
        self.naive = before.restored(&self.config, &self.log, self.end, self.now_ms, |group, offset| {
            is_unknown(queue, group, offset)
        });
        if self.fault != Fault::SameIncarnation {
            self.crashes += 1;
        }
        self.queue.begin_incarnation(self.crashes * INCARNATION_STEP);
        self.naive.begin_incarnation(self.crashes * INCARNATION_STEP);
        self.batches.truncate(told);
        (self.made_at, self.durable) = (told, 0);
        // A group may have been created, or created again, without a trace.
        let is_there = |name: &&str| self.queue.group(name).is_some_and(|id| crashed.group(name) == Some(id));
        let groups: Vec<&str> = GROUPS.into_iter().filter(is_there).collect();
        self.rules.crashed(kept, &groups);
        self.watch_order();
        Ok(())
    }

    /// Everything observable is the same in the queue and in the naive implementation.
    fn compare(&self) -> Broken {
        let names: Vec<String> =
            self.queue.groups().map(|id| self.queue.group_name(id).to_string()).collect();
        let naive: Vec<String> = self.naive.groups.iter().map(|group| group.name.clone()).collect();
        same("groups", &names, &naive)?;
        let mut info = Info::default();
        self.queue.info(&mut info);
        for (at, group) in self.naive.groups.iter().enumerate() {
            let state = |offset: u64, state: State| match state {
                State::Idle if self.naive.is_ready(at, offset) => "ready",
                State::Idle => "blocked",
                State::Leased { .. } => "leased",
                State::Delayed { .. } => "delayed",
                State::Leaving { .. } => "leaving",
            };
            let messages = group.messages.iter();
            let mut expected: Vec<_> = messages
                .map(|(&offset, message)| (offset, message.count, state(offset, message.state)))
                .collect();
            expected.extend(group.unknown.iter().map(|(&offset, message)| (offset, message.count, "ready")));
            expected.sort_unstable();
            let id = self.queue.group(&group.name).ok_or("a group is not found")?;
            same("unknown", &self.queue.unknown(id), &(group.unknown.len() as u64))?;
            let mut pending = Vec::new();
            self.queue.peek(id, 0, usize::MAX, &mut pending);
            same("pending", &pending, &expected)?;
            for consumer in 0..3 {
                same("can lease", &self.queue.can_lease(id, consumer), &self.naive.can_lease(at, consumer))?;
            }
            let told =
                info.groups.iter().find(|told| told.name == group.name).ok_or("a group is not shown")?;
            let count = |name: &str| expected.iter().filter(|(.., state)| *state == name).count() as u64;
            let counts = ["ready", "leased", "delayed", "blocked", "leaving"].map(count);
            same("counts", &[told.ready, told.leased, told.delayed, told.blocked, told.leaving], &counts)?;
            let counters = crate::naive::Counters {
                delivered: told.delivered,
                redelivered: told.redelivered,
                acked: told.acked,
                nacked: told.nacked,
                dead: told.dead,
            };
            same("counters", &counters, &group.counters)?;
        }
        same("size", &(info.messages, info.bytes), &self.naive.size())?;
        same("duplicates", &info.duplicates, &self.naive.duplicates)?;
        // Messages of removed groups are needed while a new group has still to list them.
        let (needed, most) = (self.queue.needed_from(), self.naive.needed_from());
        if needed > most || needed < most && !self.queue.is_listing() {
            return Err(format!("needed from: {needed}, but should be {most}"));
        }
        same("registered to", &self.queue.registered_to(), &self.naive.registered_to)?;
        let is_full = self.naive.exceeds(1, 10) && self.config.overflow == Overflow::Reject;
        same("admits", &self.queue.admits(1, 10), &!is_full)?;
        match (self.queue.next_due(), self.naive.next_due()) {
            (Some(due_ms), Some(latest_ms)) if due_ms <= latest_ms => Ok(()),
            (_, None) => Ok(()),
            (due_ms, latest_ms) => {
                Err(format!("maintenance is due at {due_ms:?}, but must be at {latest_ms:?}"))
            }
        }
    }
}

/// Whether a group has to settle a message that it has not loaded.
fn is_unknown(queue: &Queue, group: &str, offset: u64) -> bool {
    queue.group(group).is_some_and(|group| queue.first_unknown(group, offset) == Some(offset))
}

/// One of the last items.
fn pick<T: Clone>(from: &[T], which: usize) -> Option<T> {
    let at = from.len().checked_sub(1 + which % from.len().max(1))?;
    from.get(at).cloned()
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, there: &T, expected: &T) -> Broken {
    if there == expected { Ok(()) } else { Err(format!("{what}: {there:?}, but should be {expected:?}")) }
}
