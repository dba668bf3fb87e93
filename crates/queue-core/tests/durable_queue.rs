//! [`DurableQueue`] on an in-memory store: it delivers what the log of messages contains, after restarts, snapshots,
//! trims and failed appends.

use std::collections::{BTreeMap, BTreeSet};

use mainstem_log::{
    Batch, BatchBuilder, BatchHeader, Durability, LogAdmin, LogId, LogReader, LogWriter, MemoryStore,
    Options, Store,
};
use mainstem_queue_core::{Config, Disposition, DurableQueue, GroupId, LeaseRequest, Settlement, Tuning};

/// Size of a batch that the cache cannot hold.
const TOO_LARGE_BYTES: usize = 5 * 1024 * 1024;

/// These tests compress nothing.
fn no_decompression(_: &Batch<'_>) -> Option<Vec<u8>> {
    None
}

struct World {
    store: MemoryStore,
    messages: LogId,
    queue: DurableQueue,
}

impl World {
    fn new() -> Self {
        let mut store = MemoryStore::new();
        let messages = store.open("messages", &Options::default()).unwrap();
        let config = Config::default();
        let queue =
            DurableQueue::open(&mut store, "state", messages, Durability::Os, config, no_decompression)
                .unwrap();
        Self { store, messages, queue }
    }

    /// Commits events, and passes the completions to the queue.
    fn commit(&mut self) {
        self.queue.store_events(&mut self.store, 1_000);
        self.store.commit();
        let mut completions = Vec::new();
        self.store.completions(&mut completions);
        for completion in completions {
            self.queue.on_completion(&mut self.store, &completion, 1_000);
        }
    }

    /// Reopens the queue from its logs.
    fn reopened(&mut self) -> DurableQueue {
        self.reopened_with(Tuning::default())
    }

    fn reopened_with(&mut self, tuning: Tuning) -> DurableQueue {
        let (config, to) = (Config::default(), self.store.status(self.messages).committed);
        let mut again = DurableQueue::open(
            &mut self.store,
            "state",
            self.messages,
            Durability::Os,
            config,
            no_decompression,
        )
        .unwrap();
        again.tune(tuning);
        while again.register(&mut self.store, to, 1_000, BatchHeader::is_control).unwrap() {}
        again
    }

    /// Appends a batch, and reports it to the queue or not.
    fn append(&mut self, texts: &[&str], is_reported: bool) {
        let mut builder = BatchBuilder::default();
        for text in texts {
            builder.push(1_000, None, Some(text.as_bytes()));
        }
        let batch = builder.finish_valid();
        let appended = self.store.append_valid(self.messages, batch).unwrap();
        if is_reported {
            self.queue.appended(batch, appended.base_offset);
        }
    }

    /// The appends from an offset on fail.
    fn fail_appends(&mut self, from: u64) {
        self.store.truncate_suffix(self.messages, from).unwrap();
    }

    fn register(&mut self) {
        self.store.commit();
        let to = self.store.status(self.messages).committed;
        while self.queue.register(&mut self.store, to, 1_000, BatchHeader::is_control).unwrap() {}
    }

    fn take(&mut self, max: usize) -> Vec<String> {
        self.take_with(max, Disposition::Ack)
    }

    /// Leases messages without settling them.
    fn hold(&mut self, max: usize) -> usize {
        let taking =
            LeaseRequest { group: GroupId::DEFAULT, consumer: 1, max, bytes_max: usize::MAX, lease_ms: None };
        self.queue.lease(&mut self.store, &taking, 1_000, drop).unwrap()
    }

    fn take_with(&mut self, max: usize, disposition: Disposition) -> Vec<String> {
        self.take_as(GroupId::DEFAULT, max, disposition)
    }

    fn take_as(&mut self, group: GroupId, max: usize, disposition: Disposition) -> Vec<String> {
        let taking = LeaseRequest { group, consumer: 1, max, bytes_max: usize::MAX, lease_ms: None };
        let mut texts = Vec::new();
        let mut receipts = Vec::new();
        let each = |delivery: mainstem_queue_core::Delivery| {
            let value = delivery.payload.record().value.unwrap_or_default().to_vec();
            texts.push(String::from_utf8(value).unwrap());
            receipts.push(delivery.receipt);
        };
        let count = self.queue.lease(&mut self.store, &taking, 1_000, each).unwrap();
        assert_eq!(count, texts.len());
        for receipt in receipts {
            let settlement = Settlement { receipt, disposition };
            self.queue.settle(group, &settlement, 1_000, 0).unwrap();
        }
        texts
    }
}

/// Offsets and delivery counts of all pending messages.
fn pending(queue: &DurableQueue) -> Vec<(u64, u32)> {
    let mut messages = Vec::new();
    queue.machine().peek(GroupId::DEFAULT, 0, usize::MAX, &mut messages);
    messages.into_iter().map(|(offset, count, _)| (offset, count)).collect()
}

#[test]
fn an_incremental_snapshot_survives_a_restart_at_any_point() {
    let mut world = World::new();
    world.queue.tune(Tuning { at_once: 3, snapshot_bytes: 40, ..Tuning::default() });
    let mut removed = 0;
    for round in 0..400 {
        if round % 2 == 0 {
            world.append(&["a", "b", "c"], true);
            world.register();
        }
        // Every third message is redelivered later.
        let disposition = if round % 3 == 0 { Disposition::Nack(Some(0)) } else { Disposition::Ack };
        world.take_with(1, disposition);
        world.commit();
        removed += u64::from(world.store.status(world.queue.state_log()).start > 0);
        // Restart here.
        let again = world.reopened();
        assert_eq!(pending(&again), pending(&world.queue), "after {round} rounds");
    }
    assert!(removed > 0);
}

#[test]
fn a_new_group_keeps_its_messages_across_a_restart_at_any_point() {
    let mut world = World::new();
    world.queue.tune(Tuning { at_once: 3, snapshot_bytes: 40, ..Tuning::default() });
    let mut expected: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::from([("default", BTreeSet::new())]);
    let (mut removed, mut opened, mut end) = (0, 0, 0);
    for round in 0..600 {
        if round % 3 == 0 {
            world.append(&["a", "b"], true);
            world.register();
            for pending in expected.values_mut() {
                pending.extend(end..end + 2);
            }
            end += 2;
        }
        let name = ["a", "b"][round / 40 % 2];
        if round % 20 == 7 && !expected.contains_key(name) {
            world.queue.open_group(&name.into(), 1_000).unwrap();
            let all = expected.values().flatten().copied().collect();
            expected.insert(name, all);
            opened += 1;
        } else if round % 40 == 39 {
            let queue = world.queue.machine_mut();
            let other = ["b", "a"][round / 40 % 2];
            queue.group(other).into_iter().for_each(|group| queue.remove_group(group).unwrap());
            expected.remove(other);
        }
        world.queue.maintain(1_000);
        // Settle with gaps.
        for (&name, pending) in &mut expected {
            let queue = world.queue.machine_mut();
            let group = queue.group(name).unwrap();
            let mut leases = Vec::new();
            queue.lease(group, 1, 30, None, 1_000, &mut leases);
            let count = leases.len();
            for (at, lease) in leases.into_iter().enumerate() {
                let receipt = lease.receipt;
                let is_done = at == round % count || receipt.offset + 40 < end;
                let disposition = if is_done { Disposition::Ack } else { Disposition::Release };
                queue.settle(group, &Settlement { receipt, disposition }, 1_000, 0).unwrap();
                assert!(!is_done || pending.remove(&receipt.offset));
            }
        }
        world.commit();
        removed += u64::from(world.store.status(world.queue.state_log()).start > 0);
        // Restart here.
        let again = world.reopened();
        assert_eq!(again.machine().groups().count(), expected.len());
        for (name, expected) in &expected {
            let mut messages = Vec::new();
            again.machine().peek(again.machine().group(name).unwrap(), 0, usize::MAX, &mut messages);
            let pending: BTreeSet<u64> = messages.into_iter().map(|(offset, ..)| offset).collect();
            assert_eq!(&pending, expected, "{name} after {round} rounds");
        }
    }
    assert!(removed > 0 && opened > 5, "{removed}, {opened}");
}

#[test]
fn cached_and_read_batches_deliver_the_same_messages() {
    for reported in [[true, true, true], [false, false, false], [true, false, true], [false, true, false]] {
        let mut world = World::new();
        world.append(&["a", "b"], reported[0]);
        world.append(&["c"], reported[1]);
        world.append(&["d", "e", "f"], reported[2]);
        world.register();
        assert_eq!(world.take(4), ["a", "b", "c", "d"], "{reported:?}");
        assert_eq!(world.take(4), ["e", "f"], "{reported:?}");
    }
}

#[test]
fn failed_appends_are_not_delivered() {
    let mut world = World::new();
    world.append(&["a"], true);
    world.append(&["lost", "lost too"], true);
    world.fail_appends(1);
    world.append(&["b"], true);
    world.register();
    assert_eq!(world.take(9), ["a", "b"]);
    world.append(&["lost"], true);
    world.fail_appends(2);
    world.queue.append_failed();
    world.append(&["c"], false);
    world.register();
    assert_eq!(world.take(9), ["c"]);
}

#[test]
fn records_read_before_they_are_durable_are_not_cached() {
    let mut world = World::new();
    world.append(&["a"], false);
    world.register();
    // A batch that the cache cannot hold evicts this one, so it is read again when it is leased.
    let mut builder = BatchBuilder::default();
    builder.push(1_000, None, Some(&vec![b'x'; TOO_LARGE_BYTES]));
    world.queue.appended(builder.finish_valid(), 0);
    world.append(&["lost"], false);
    assert_eq!(world.take(1), ["a"]);
    world.fail_appends(1);
    world.append(&["b"], false);
    world.register();
    assert_eq!(world.take(1), ["b"]);
}

#[test]
fn delivery_counts_survive_a_restart_at_any_point() {
    let mut world = World::new();
    world.queue.tune(Tuning { at_once: 3, snapshot_bytes: 40, ..Tuning::default() });
    let (mut noted, mut written) = (0, 0);
    for round in 0..400 {
        if round % 3 == 0 {
            world.append(&["a", "b", "c"], true);
            world.register();
            world.queue.open_group(&["default", "other"][round / 200].into(), 1_000).unwrap();
        }
        match round % 7 {
            0 | 1 => drop(world.take(2)),
            2 => drop(world.take_with(1, Disposition::Nack(Some(0)))),
            _ => {
                let before = world.store.status(world.queue.state_log()).end;
                let held = world.hold(1 + round % 2);
                world.commit();
                let is_written = world.store.status(world.queue.state_log()).end > before;
                *if is_written { &mut written } else { &mut noted } += held;
            }
        }
        world.commit();
        // Restart here, and sometimes once more after the restarted queue has written its events.
        let mut again = world.reopened();
        assert_eq!(pending(&again), pending(&world.queue), "after {round} rounds");
        if round % 50 == 49 {
            again.store_events(&mut world.store, 1_000);
            world.store.commit();
            world.queue = world.reopened();
            assert_eq!(pending(&again), pending(&world.queue), "after {round} rounds, once more");
        }
    }
    assert!(noted > 50 && written > 0, "{noted}, {written}");
}

/// Low enough that groups lag soon.
const FEW: Tuning = Tuning { at_once: 10, known_max: 20, snapshot_bytes: 200, waste_bytes: 64 * 1024 * 1024 };

impl World {
    /// A queue with a second group, which consumes everything at once.
    fn with_fast_group() -> (Self, GroupId) {
        let mut world = Self::new();
        world.queue.tune(FEW);
        let fast = world.queue.open_group(&"fast".into(), 1_000).unwrap();
        world.commit();
        (world, fast)
    }

    /// Appends messages in batches. The fast group consumes each batch before the next one arrives.
    fn pass_through(&mut self, fast: GroupId, numbers: std::ops::Range<usize>) {
        let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
        for batch in numbers.chunks(7) {
            let texts: Vec<&str> = batch.iter().map(String::as_str).collect();
            self.append(&texts, true);
            self.register();
            self.background_work();
            assert_eq!(self.take_as(fast, 100, Disposition::Ack), texts);
            self.background_work();
        }
    }

    /// The regular background work of a queue's owner.
    fn background_work(&mut self) {
        while self.queue.catch_up(&mut self.store, 1_000).unwrap() {}
        self.queue.maintain(1_000);
        self.commit();
        if let Some(to) = self.queue.take_trim(&mut self.store, u64::MAX) {
            self.store.truncate_prefix(self.messages, to).unwrap();
        }
    }

    fn crash(&mut self) {
        self.commit();
        self.queue = self.reopened_with(FEW);
    }
}

#[test]
fn a_lagging_group_does_not_hold_up_others_and_catches_up_in_order() {
    let (mut world, fast) = World::with_fast_group();
    world.pass_through(fast, 0..300);
    let slow = GroupId::DEFAULT;
    assert!(world.queue.machine().unknown(slow) > 270, "{}", world.queue.machine().unknown(slow));
    world.crash();
    assert!(world.queue.machine().unknown(slow) > 270, "{}", world.queue.machine().unknown(slow));
    world.pass_through(fast, 300..400);
    let mut info = mainstem_queue_core::Info::default();
    world.queue.info(&mut info);
    let ready = info.groups.iter().map(|group| (group.name.as_str(), group.ready)).collect::<Vec<_>>();
    assert_eq!((info.messages, ready), (400, vec![("default", 400), ("fast", 0)]));
    assert_eq!(pending(&world.queue), (0..400).map(|offset| (offset, 0)).collect::<Vec<_>>());
    let mut taken = Vec::new();
    for round in 0.. {
        let texts = world.take(3);
        if texts.is_empty() {
            break;
        }
        taken.extend(texts);
        world.background_work();
        if round % 50 == 49 {
            world.crash();
        }
        if round == 20 {
            // The slow group is catching up, and the fast one is not held up.
            world.pass_through(fast, 400..450);
        }
    }
    assert_eq!(taken, (0..450).map(|number| number.to_string()).collect::<Vec<_>>());
    world.background_work();
    world.commit();
    assert_eq!(world.queue.machine().unfinished(), [] as [&str; 0]);
    assert!(!world.queue.machine().is_crowded() && !world.queue.machine().is_lagging());
}

#[test]
fn unloaded_messages_can_be_relocated_and_trimmed() {
    let (mut world, fast) = World::with_fast_group();
    let slow = GroupId::DEFAULT;
    // One message that the slow group holds for long, and 200 that it settles.
    world.append(&["first"], true);
    world.register();
    world.take_as(fast, 1, Disposition::Ack);
    let taking =
        LeaseRequest { group: slow, consumer: 7, max: 1, bytes_max: usize::MAX, lease_ms: Some(1_000_000) };
    let mut first = None;
    world.queue.lease(&mut world.store, &taking, 1_000, |delivery| first = Some(delivery.receipt)).unwrap();
    world.append(&["x"; 200], true);
    world.register();
    for group in [fast, slow] {
        assert_eq!(world.take_as(group, 300, Disposition::Ack).len(), 200);
    }
    // Thirty more, some of which it has not loaded. All of them precede the settled ones.
    world.pass_through(fast, 0..30);
    assert!(world.queue.machine().unknown(slow) > 0);
    world.queue.tune(Tuning { waste_bytes: 0, ..FEW });
    (0..9).for_each(|_| world.background_work());
    let (start, first_unknown) =
        (world.store.status(world.messages).start, world.queue.machine().first_unknown(slow, 0));
    assert!(first_unknown.is_some_and(|first| first < start), "{first_unknown:?} is copied, {start}");
    let settlement = Settlement { receipt: first.unwrap(), disposition: Disposition::Ack };
    world.queue.settle(slow, &settlement, 1_000, 0).unwrap();
    let mut taken = Vec::new();
    while taken.len() < 30 {
        if taken.len() == 20 {
            assert!(world.queue.machine().unknown(slow) == 0, "it has learnt of all by now");
            world.crash();
        }
        let texts = world.take(4);
        assert!(!texts.is_empty(), "{taken:?}");
        taken.extend(texts);
        world.background_work();
    }
    assert_eq!(taken, (0..30).map(|number| number.to_string()).collect::<Vec<_>>());
    world.commit();
    assert_eq!(world.queue.machine().unfinished(), [] as [&str; 0]);
}

#[test]
fn a_replay_during_a_trim_keeps_its_messages() {
    let mut world = World::new();
    world.append(&["a", "b", "c", "d"], true);
    world.register();
    assert_eq!(world.take(9).len(), 4);
    world.commit();
    assert_eq!(world.queue.take_trim(&mut world.store, u64::MAX), None, "it is not durable yet that it may");
    world.commit();
    let World { store, queue, .. } = &mut world;
    let replayed = queue.replay_from(store, GroupId::DEFAULT, 1, 1_000, BatchHeader::is_control);
    assert_eq!(replayed, Ok((3, None)));
    for _ in 0..3 {
        let trimmed = world.queue.take_trim(&mut world.store, u64::MAX);
        assert!(trimmed.is_none_or(|to| to <= 1), "{trimmed:?}");
        world.commit();
    }
    assert_eq!(world.take(9), ["b", "c", "d"]);
}

#[test]
fn originals_that_reappear_between_copies_can_be_replayed() {
    let mut world = World::new();
    world.queue.tune(Tuning { waste_bytes: 0, ..Tuning::default() });
    world.append(&["a", "b", "c", "d", "e", "f"], true);
    world.register();
    for _ in 0..2 {
        assert_eq!((world.hold(1), world.take(2).len()), (1, 2));
    }
    let mut trimmed = None;
    for _ in 0..10 {
        world.commit();
        trimmed = trimmed.or(world.queue.take_trim(&mut world.store, u64::MAX));
    }
    assert_eq!(trimmed, Some(6), "those that are not settled are copied");
    // The messages were not deleted when the process ended.
    let again = world.reopened();
    assert_eq!(pending(&again), pending(&world.queue));
    world.queue = again;
    let World { store, queue, .. } = &mut world;
    queue.replay_from(store, GroupId::DEFAULT, 0, 1_000, BatchHeader::is_control).unwrap();
    world.commit();
    let again = world.reopened();
    assert_eq!(pending(&world.queue).len(), 6);
    assert_eq!(pending(&again), pending(&world.queue));
}
