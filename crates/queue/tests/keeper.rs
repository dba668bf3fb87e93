//! A keeper and its log of messages: what is delivered is what stands in the log, whatever was there before.

use std::collections::{BTreeMap, BTreeSet};

use mainstem_log::{Batch, BatchBuilder, BatchHeader, Durability, LogId, Memory, Options, Store};
use mainstem_queue::{Config, GroupId, Keeper, Settlement, Taking, Tuning, Verdict};

/// Of a batch, more than the keeper has room for.
const TOO_LARGE_BYTES: usize = 5 * 1024 * 1024;

/// Compressed batches are none of these tests' business.
fn nothing(_: &Batch<'_>) -> Option<Vec<u8>> {
    None
}

struct World {
    store: Memory,
    messages: LogId,
    keeper: Keeper,
}

impl World {
    fn new() -> Self {
        let mut store = Memory::new();
        let messages = store.open("messages", &Options::default()).unwrap();
        let config = Config::default();
        let keeper = Keeper::open(&mut store, "state", messages, Durability::Os, config, nothing).unwrap();
        Self { store, messages, keeper }
    }

    /// Commits what has happened, and tells the keeper.
    fn keep(&mut self) {
        self.keeper.store_events(&mut self.store, 1_000);
        self.store.commit();
        let mut completions = Vec::new();
        self.store.completions(&mut completions);
        for completion in completions {
            self.keeper.arrived(&mut self.store, &completion, 1_000);
        }
    }

    /// Another keeper, that begins with what is in the logs.
    fn again(&mut self) -> Keeper {
        self.again_with(Tuning::default())
    }

    fn again_with(&mut self, tuning: Tuning) -> Keeper {
        let (config, to) = (Config::default(), self.store.status(self.messages).committed);
        let mut again =
            Keeper::open(&mut self.store, "state", self.messages, Durability::Os, config, nothing).unwrap();
        again.tune(tuning);
        while again.register(&mut self.store, to, 1_000, BatchHeader::is_control).unwrap() {}
        again
    }

    /// Appends a batch, and tells the keeper of it or not.
    fn append(&mut self, texts: &[&str], is_told: bool) {
        let mut builder = BatchBuilder::default();
        for text in texts {
            builder.push(1_000, None, Some(text.as_bytes()));
        }
        let batch = builder.finish_sound();
        let appended = self.store.append_sound(self.messages, batch).unwrap();
        if is_told {
            self.keeper.appended(batch, appended.base_offset);
        }
    }

    /// What has been appended from an offset on comes to nothing.
    fn take_back(&mut self, from: u64) {
        self.store.truncate_suffix(self.messages, from).unwrap();
    }

    fn register(&mut self) {
        self.store.commit();
        let to = self.store.status(self.messages).committed;
        while self.keeper.register(&mut self.store, to, 1_000, BatchHeader::is_control).unwrap() {}
    }

    fn take(&mut self, max: usize) -> Vec<String> {
        self.take_with(max, Verdict::Ack)
    }

    /// Takes messages, and settles none of them.
    fn hold(&mut self, max: usize) -> usize {
        let taking =
            Taking { group: GroupId::DEFAULT, consumer: 1, max, bytes_max: usize::MAX, lease_ms: None };
        self.keeper.lease(&mut self.store, &taking, 1_000, drop).unwrap()
    }

    fn take_with(&mut self, max: usize, verdict: Verdict) -> Vec<String> {
        self.take_as(GroupId::DEFAULT, max, verdict)
    }

    fn take_as(&mut self, group: GroupId, max: usize, verdict: Verdict) -> Vec<String> {
        let taking = Taking { group, consumer: 1, max, bytes_max: usize::MAX, lease_ms: None };
        let mut texts = Vec::new();
        let mut receipts = Vec::new();
        let each = |delivery: mainstem_queue::Delivery| {
            let value = delivery.payload.record().value.unwrap_or_default().to_vec();
            texts.push(String::from_utf8(value).unwrap());
            receipts.push(delivery.receipt);
        };
        let count = self.keeper.lease(&mut self.store, &taking, 1_000, each).unwrap();
        assert_eq!(count, texts.len());
        for receipt in receipts {
            let settlement = Settlement { receipt, verdict };
            self.keeper.settle(group, &settlement, 1_000, 0).unwrap();
        }
        texts
    }
}

/// What somebody sees of a queue.
fn seen(keeper: &Keeper) -> Vec<(u64, u32)> {
    let mut messages = Vec::new();
    keeper.queue().peek(GroupId::DEFAULT, 0, usize::MAX, &mut messages);
    messages.into_iter().map(|(offset, count, _)| (offset, count)).collect()
}

#[test]
fn a_snapshot_in_parts_is_as_good_as_what_was_before_it_wherever_the_process_ends() {
    let mut world = World::new();
    world.keeper.tune(Tuning { at_once: 3, snapshot_bytes: 40, ..Tuning::default() });
    let mut removed = 0;
    for round in 0..400 {
        if round % 2 == 0 {
            world.append(&["a", "b", "c"], true);
            world.register();
        }
        // Every third one comes back, and is delivered again some time.
        let verdict = if round % 3 == 0 { Verdict::Nack(Some(0)) } else { Verdict::Ack };
        world.take_with(1, verdict);
        world.keep();
        removed += u64::from(world.store.status(world.keeper.state_log()).start > 0);
        // Another one, that begins here.
        let again = world.again();
        assert_eq!(seen(&again), seen(&world.keeper), "after {round} rounds");
    }
    assert!(removed > 0);
}

#[test]
fn a_group_that_is_opened_has_what_others_had_then_wherever_the_process_ends() {
    let mut world = World::new();
    world.keeper.tune(Tuning { at_once: 3, snapshot_bytes: 40, ..Tuning::default() });
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
            world.keeper.open_group(&name.into(), 1_000).unwrap();
            let all = expected.values().flatten().copied().collect();
            expected.insert(name, all);
            opened += 1;
        } else if round % 40 == 39 {
            let queue = world.keeper.queue_mut();
            let other = ["b", "a"][round / 40 % 2];
            queue.group(other).into_iter().for_each(|group| queue.remove_group(group).unwrap());
            expected.remove(other);
        }
        world.keeper.tend(1_000);
        // Holes come to be, here and there.
        for (&name, pending) in &mut expected {
            let queue = world.keeper.queue_mut();
            let group = queue.group(name).unwrap();
            let mut leases = Vec::new();
            queue.lease(group, 1, 30, None, 1_000, &mut leases);
            let count = leases.len();
            for (at, lease) in leases.into_iter().enumerate() {
                let receipt = lease.receipt;
                let is_done = at == round % count || receipt.offset + 40 < end;
                let verdict = if is_done { Verdict::Ack } else { Verdict::Release };
                queue.settle(group, &Settlement { receipt, verdict }, 1_000, 0).unwrap();
                assert!(!is_done || pending.remove(&receipt.offset));
            }
        }
        world.keep();
        removed += u64::from(world.store.status(world.keeper.state_log()).start > 0);
        // Another one, that begins here.
        let again = world.again();
        assert_eq!(again.queue().groups().count(), expected.len());
        for (name, expected) in &expected {
            let mut messages = Vec::new();
            again.queue().peek(again.queue().group(name).unwrap(), 0, usize::MAX, &mut messages);
            let pending: BTreeSet<u64> = messages.into_iter().map(|(offset, ..)| offset).collect();
            assert_eq!(&pending, expected, "{name} after {round} rounds");
        }
    }
    assert!(removed > 0 && opened > 5, "{removed}, {opened}");
}

#[test]
fn messages_are_the_same_whether_the_keeper_was_told_of_them_or_reads_them() {
    for told in [[true, true, true], [false, false, false], [true, false, true], [false, true, false]] {
        let mut world = World::new();
        world.append(&["a", "b"], told[0]);
        world.append(&["c"], told[1]);
        world.append(&["d", "e", "f"], told[2]);
        world.register();
        assert_eq!(world.take(4), ["a", "b", "c", "d"], "{told:?}");
        assert_eq!(world.take(4), ["e", "f"], "{told:?}");
    }
}

#[test]
fn what_came_to_nothing_is_not_delivered() {
    let mut world = World::new();
    world.append(&["a"], true);
    world.append(&["lost", "lost too"], true);
    world.take_back(1);
    world.append(&["b"], true);
    world.register();
    assert_eq!(world.take(9), ["a", "b"]);
    world.append(&["lost"], true);
    world.take_back(2);
    world.keeper.came_to_nothing();
    world.append(&["c"], false);
    world.register();
    assert_eq!(world.take(9), ["c"]);
}

#[test]
fn nothing_is_remembered_of_what_was_read_before_it_was_durable() {
    let mut world = World::new();
    world.append(&["a"], false);
    world.register();
    // The keeper forgets it for one that it has no room for, so that it is read once more when it is taken.
    let mut builder = BatchBuilder::default();
    builder.push(1_000, None, Some(&vec![b'x'; TOO_LARGE_BYTES]));
    world.keeper.appended(builder.finish_sound(), 0);
    world.append(&["lost"], false);
    assert_eq!(world.take(1), ["a"]);
    world.take_back(1);
    world.append(&["b"], false);
    world.register();
    assert_eq!(world.take(1), ["b"]);
}

#[test]
fn deliveries_are_counted_wherever_the_process_ends() {
    let mut world = World::new();
    world.keeper.tune(Tuning { at_once: 3, snapshot_bytes: 40, ..Tuning::default() });
    let (mut noted, mut written) = (0, 0);
    for round in 0..400 {
        if round % 3 == 0 {
            world.append(&["a", "b", "c"], true);
            world.register();
            world.keeper.open_group(&["default", "other"][round / 200].into(), 1_000).unwrap();
        }
        match round % 7 {
            0 | 1 => drop(world.take(2)),
            2 => drop(world.take_with(1, Verdict::Nack(Some(0)))),
            _ => {
                let before = world.store.status(world.keeper.state_log()).end;
                let held = world.hold(1 + round % 2);
                world.keep();
                let is_written = world.store.status(world.keeper.state_log()).end > before;
                *if is_written { &mut written } else { &mut noted } += held;
            }
        }
        world.keep();
        // Another one, that begins here, and one more behind what that one has written.
        let mut again = world.again();
        assert_eq!(seen(&again), seen(&world.keeper), "after {round} rounds");
        if round % 50 == 49 {
            again.store_events(&mut world.store, 1_000);
            world.store.commit();
            world.keeper = world.again();
            assert_eq!(seen(&again), seen(&world.keeper), "after {round} rounds, once more");
        }
    }
    assert!(noted > 50 && written > 0, "{noted}, {written}");
}

/// So few that groups fall behind soon.
const FEW: Tuning = Tuning { at_once: 10, known_max: 20, snapshot_bytes: 200, waste_bytes: 64 * 1024 * 1024 };

impl World {
    /// With a group besides, which takes whatever comes.
    fn with_fast_group() -> (Self, GroupId) {
        let mut world = Self::new();
        world.keeper.tune(FEW);
        let fast = world.keeper.open_group(&"fast".into(), 1_000).unwrap();
        world.keep();
        (world, fast)
    }

    /// Lets messages come in batches, each of which the fast group has before the next one comes.
    fn pass_through(&mut self, fast: GroupId, numbers: std::ops::Range<usize>) {
        let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
        for batch in numbers.chunks(7) {
            let texts: Vec<&str> = batch.iter().map(String::as_str).collect();
            self.append(&texts, true);
            self.register();
            self.go_on();
            assert_eq!(self.take_as(fast, 100, Verdict::Ack), texts);
            self.go_on();
        }
    }

    /// What whoever has a keeper does now and then.
    fn go_on(&mut self) {
        while self.keeper.learn(&mut self.store, 1_000).unwrap() {}
        self.keeper.tend(1_000);
        self.keep();
        if let Some(to) = self.keeper.take_trim(&mut self.store, u64::MAX) {
            self.store.truncate_prefix(self.messages, to).unwrap();
        }
    }

    fn crash(&mut self) {
        self.keep();
        self.keeper = self.again_with(FEW);
    }
}

#[test]
fn a_group_that_settles_nothing_holds_up_no_other_and_gets_all_in_order_in_the_end() {
    let (mut world, fast) = World::with_fast_group();
    world.pass_through(fast, 0..300);
    let slow = GroupId::DEFAULT;
    assert!(world.keeper.queue().unknown(slow) > 270, "{}", world.keeper.queue().unknown(slow));
    world.crash();
    assert!(world.keeper.queue().unknown(slow) > 270, "{}", world.keeper.queue().unknown(slow));
    world.pass_through(fast, 300..400);
    let mut info = mainstem_queue::Info::default();
    world.keeper.info(&mut info);
    let ready = info.groups.iter().map(|group| (group.name.as_str(), group.ready)).collect::<Vec<_>>();
    assert_eq!((info.messages, ready), (400, vec![("default", 400), ("fast", 0)]));
    assert_eq!(seen(&world.keeper), (0..400).map(|offset| (offset, 0)).collect::<Vec<_>>());
    let mut taken = Vec::new();
    for round in 0.. {
        let texts = world.take(3);
        if texts.is_empty() {
            break;
        }
        taken.extend(texts);
        world.go_on();
        if round % 50 == 49 {
            world.crash();
        }
        if round == 20 {
            // It is on its way, and the other one has no more to wait than before.
            world.pass_through(fast, 400..450);
        }
    }
    assert_eq!(taken, (0..450).map(|number| number.to_string()).collect::<Vec<_>>());
    world.go_on();
    world.keep();
    assert_eq!(world.keeper.queue().unfinished(), [] as [&str; 0]);
    assert!(!world.keeper.queue().is_crowded() && !world.keeper.queue().is_behind());
}

#[test]
fn what_a_group_does_not_know_may_be_copied_and_go_from_the_disk() {
    let (mut world, fast) = World::with_fast_group();
    world.keeper.tune(Tuning { waste_bytes: 0, ..FEW });
    let slow = GroupId::DEFAULT;
    // One that the slow group has for long, and 200 that it settles.
    world.append(&["first"], true);
    world.register();
    world.take_as(fast, 1, Verdict::Ack);
    let taking =
        Taking { group: slow, consumer: 7, max: 1, bytes_max: usize::MAX, lease_ms: Some(1_000_000) };
    let mut first = None;
    world.keeper.lease(&mut world.store, &taking, 1_000, |delivery| first = Some(delivery.receipt)).unwrap();
    world.append(&["x"; 200], true);
    world.register();
    for group in [fast, slow] {
        assert_eq!(world.take_as(group, 300, Verdict::Ack).len(), 200);
    }
    // Thirty more, not all of which it knows: all of these are in front of what is settled.
    world.pass_through(fast, 0..30);
    assert!(world.keeper.queue().unknown(slow) > 0);
    (0..9).for_each(|_| world.go_on());
    let (start, first_unknown) =
        (world.store.status(world.messages).start, world.keeper.queue().first_unknown(slow, 0));
    assert!(first_unknown.is_some_and(|first| first < start), "{first_unknown:?} is copied, {start}");
    let settlement = Settlement { receipt: first.unwrap(), verdict: Verdict::Ack };
    world.keeper.settle(slow, &settlement, 1_000, 0).unwrap();
    let mut taken = Vec::new();
    while taken.len() < 30 {
        if taken.len() == 20 {
            assert!(world.keeper.queue().unknown(slow) == 0, "it has learnt of all by now");
            world.crash();
        }
        let texts = world.take(4);
        assert!(!texts.is_empty(), "{taken:?}");
        taken.extend(texts);
        world.go_on();
    }
    assert_eq!(taken, (0..30).map(|number| number.to_string()).collect::<Vec<_>>());
    world.keep();
    assert_eq!(world.keeper.queue().unfinished(), [] as [&str; 0]);
}

#[test]
fn what_is_replayed_while_it_is_about_to_go_from_the_disk_stays() {
    let mut world = World::new();
    world.append(&["a", "b", "c", "d"], true);
    world.register();
    assert_eq!(world.take(9).len(), 4);
    world.keep();
    assert_eq!(world.keeper.take_trim(&mut world.store, u64::MAX), None, "it is not durable yet that it may");
    world.keep();
    let World { store, keeper, .. } = &mut world;
    let replayed = keeper.replay_from(store, GroupId::DEFAULT, 1, 1_000, BatchHeader::is_control);
    assert_eq!(replayed, Ok((3, None)));
    for _ in 0..3 {
        let trimmed = world.keeper.take_trim(&mut world.store, u64::MAX);
        assert!(trimmed.is_none_or(|to| to <= 1), "{trimmed:?}");
        world.keep();
    }
    assert_eq!(world.take(9), ["b", "c", "d"]);
}

#[test]
fn what_comes_back_to_the_disk_between_copies_of_others_is_there() {
    let mut world = World::new();
    world.keeper.tune(Tuning { waste_bytes: 0, ..Tuning::default() });
    world.append(&["a", "b", "c", "d", "e", "f"], true);
    world.register();
    for _ in 0..2 {
        assert_eq!((world.hold(1), world.take(2).len()), (1, 2));
    }
    let mut trimmed = None;
    for _ in 0..10 {
        world.keep();
        trimmed = trimmed.or(world.keeper.take_trim(&mut world.store, u64::MAX));
    }
    assert_eq!(trimmed, Some(6), "those that are not settled are copied");
    // It was not removed when the process ended.
    let again = world.again();
    assert_eq!(seen(&again), seen(&world.keeper));
    world.keeper = again;
    let World { store, keeper, .. } = &mut world;
    keeper.replay_from(store, GroupId::DEFAULT, 0, 1_000, BatchHeader::is_control).unwrap();
    world.keep();
    let again = world.again();
    assert_eq!(seen(&world.keeper).len(), 6);
    assert_eq!(seen(&again), seen(&world.keeper));
}
