//! A keeper whose log of messages has lost its end, and whose log of the state has not: what comes is not taken for what
//! was lost.

use mainstem_log::{
    Batch, BatchBuilder, BatchHeader, Durability, Header, LogId, Memory, Options, Store, put_headers,
};
use mainstem_queue::{Config, GroupId, Keeper, Settlement, Taking, Tuning, Verdict, header};

fn nothing(_: &Batch<'_>) -> Option<Vec<u8>> {
    None
}

struct World {
    store: Memory,
    messages: LogId,
    keeper: Keeper,
    now_ms: u64,
}

fn open(store: &mut Memory, messages: LogId) -> Keeper {
    let keeper = Keeper::open(store, "state", messages, Durability::Os, Config::default(), nothing);
    keeper.expect("a state that can be read")
}

impl World {
    fn new() -> Self {
        let mut store = Memory::new();
        let messages = store.open("messages", &Options::default()).unwrap();
        let keeper = open(&mut store, messages);
        Self { store, messages, keeper, now_ms: 1_000 }
    }

    /// Another keeper, on what a loss of power has left: of messages those below `end`.
    fn lose(&mut self, end: u64) {
        self.keep();
        self.store.truncate_suffix(self.messages, end).unwrap();
        self.now_ms += 1_000;
        self.keeper = open(&mut self.store, self.messages);
        self.keeper.begin_life(self.now_ms as u32);
        self.keeper.pass_over_numbers(self.now_ms);
        if let Some(batch) = self.keeper.gap(&mut self.store, self.now_ms).unwrap() {
            self.store.append(self.messages, &batch).unwrap();
        }
        assert_eq!(self.keeper.gap(&mut self.store, self.now_ms), Ok(None), "once is enough");
        self.register();
    }

    fn keep(&mut self) {
        self.keeper.store_events(&mut self.store, self.now_ms);
        self.store.commit();
        let mut completions = Vec::new();
        self.store.completions(&mut completions);
        for completion in completions {
            self.keeper.arrived(&mut self.store, &completion, self.now_ms);
        }
    }

    fn register(&mut self) {
        self.store.commit();
        let to = self.store.status(self.messages).committed;
        while self.keeper.register(&mut self.store, to, self.now_ms, BatchHeader::is_control).unwrap() {}
        self.keep();
    }

    /// Each is its own identifier.
    fn put(&mut self, texts: &[&str]) {
        for text in texts {
            self.now_ms += 1;
            let mut headers = Vec::new();
            let id = Header { key: header::DEDUP_ID, value: Some(text.as_bytes()) };
            put_headers(std::iter::once(id), &mut headers);
            let mut builder = BatchBuilder::default();
            let at_ms = self.now_ms.cast_signed();
            builder.push_with_headers(at_ms, None, Some(text.as_bytes()), &headers);
            self.store.append(self.messages, builder.finish()).unwrap();
        }
        self.register();
    }

    fn take(&mut self, max: usize, verdict: Verdict) -> Vec<String> {
        let group = GroupId::DEFAULT;
        let taking = Taking { group, consumer: 1, max, bytes_max: usize::MAX, lease_ms: None };
        let (mut texts, mut receipts) = (Vec::new(), Vec::new());
        let each = |delivery: mainstem_queue::Delivery| {
            let value = delivery.payload.record().value.unwrap_or_default().to_vec();
            texts.push(String::from_utf8(value).unwrap());
            receipts.push(delivery.receipt);
        };
        self.keeper.lease(&mut self.store, &taking, self.now_ms, each).unwrap();
        for receipt in receipts {
            self.keeper.settle(group, &Settlement { receipt, verdict }, self.now_ms, 0).unwrap();
        }
        self.keep();
        texts
    }

    /// Numbers of what leaves, which is gone at once.
    fn leaves(&mut self) -> Vec<u64> {
        let (departures, failed) = self.keeper.take_departures(&mut self.store, 100);
        assert!(failed.is_none());
        let leaving = departures.into_iter().map(|departure| departure.leaving);
        let numbers = leaving.map(|leaving| {
            self.keeper.queue_mut().left(leaving.group, leaving.number);
            leaving.number
        });
        numbers.collect()
    }
}

#[test]
fn what_comes_in_the_place_of_what_was_settled_and_lost_is_not_settled() {
    let mut world = World::new();
    world.put(&["a", "b", "c", "d"]);
    assert_eq!(world.take(3, Verdict::Ack), ["a", "b", "c"]);
    world.lose(1);
    assert!(world.take(9, Verdict::Release).is_empty(), "all others are lost");
    world.put(&["e", "f"]);
    assert_eq!(world.take(9, Verdict::Release), ["e", "f"]);
    // Nor when it is read once more.
    let end = world.store.status(world.messages).end;
    assert_eq!(end, 6, "no offset is given to two");
    world.lose(end);
    assert_eq!(world.take(9, Verdict::Ack), ["e", "f"]);
    assert!(world.take(9, Verdict::Ack).is_empty());
}

#[test]
fn what_is_sent_again_because_it_was_lost_is_no_duplicate() {
    let mut world = World::new();
    world.put(&["a", "b", "c"]);
    world.lose(2);
    world.put(&["a", "b", "c"]);
    assert_eq!(world.take(9, Verdict::Release), ["a", "b", "c"]);
    world.put(&["c"]);
    let end = world.store.status(world.messages).end;
    world.lose(end);
    world.put(&["c"]);
    assert_eq!(world.take(9, Verdict::Release), ["a", "b", "c"]);
    // A second time, behind the first.
    world.put(&["d", "e"]);
    let end = world.store.status(world.messages).end;
    world.lose(end - 1);
    world.put(&["c", "d", "e"]);
    assert_eq!(world.take(9, Verdict::Ack), ["a", "b", "c", "d", "e"]);
}

#[test]
fn what_was_settled_before_others_were_lost_stays_a_duplicate() {
    let mut world = World::new();
    world.put(&["a", "b", "c"]);
    assert_eq!(world.take(2, Verdict::Ack), ["a", "b"]);
    world.lose(2);
    world.put(&["c", "d"]);
    // Of those before the place of what was lost none is there any more.
    world.store.truncate_prefix(world.messages, 2).unwrap();
    for _ in 0..2 {
        let end = world.store.status(world.messages).end;
        world.lose(end);
        world.put(&["a", "b", "c", "d"]);
        assert_eq!(world.take(9, Verdict::Release), ["c", "d"]);
    }
}

#[test]
fn no_number_is_given_twice_though_the_state_forgets_the_first() {
    let mut world = World::new();
    world.put(&["a", "b", "c"]);
    world.take(1, Verdict::Reject);
    let state = world.keeper.state_log();
    let end = world.store.status(state).end;
    world.take(2, Verdict::Reject);
    let before = world.leaves();
    assert_eq!(before.len(), 3);
    // What was said of the last two is lost.
    world.keep();
    world.store.truncate_suffix(state, end).unwrap();
    world.now_ms += 1_000;
    world.lose(3);
    world.take(9, Verdict::Reject);
    let after = world.leaves();
    assert_eq!(after[0], before[0], "what has its number keeps it");
    assert!(after[1..].iter().all(|number| *number > before[2]) && after.len() == 3, "{before:?}, {after:?}");
}

#[test]
fn what_is_lost_but_for_a_copy_is_there_whether_the_log_begins_behind_it_or_not() {
    let mut world = World::new();
    // Copies are made as soon as most of what is there is settled.
    let tuning = Tuning { waste_bytes: 0, ..Tuning::default() };
    world.keeper.tune(tuning);
    world.put(&["old"]);
    assert_eq!(world.take(1, Verdict::Nack(Some(0))), ["old"]);
    let texts: Vec<String> = (0..50).map(|number| number.to_string()).collect();
    world.put(&texts.iter().map(String::as_str).collect::<Vec<_>>());
    world.take(1, Verdict::Nack(Some(100_000)));
    assert_eq!(world.take(99, Verdict::Ack).len(), 50);
    assert_eq!(world.keeper.take_trim(&mut world.store, u64::MAX), None, "it is copied first");
    world.keep();
    // All of it is lost, the old one included, before it goes.
    world.lose(0);
    world.put(&["old", "new"]);
    world.now_ms += 200_000;
    world.keeper.tend(world.now_ms);
    assert_eq!(world.take(9, Verdict::Release), ["old", "new"]);
    let end = world.store.status(world.messages).end;
    world.store.truncate_prefix(world.messages, end - 1).unwrap();
    world.lose(end);
    assert_eq!(world.take(9, Verdict::Ack), ["old", "new"]);
}

#[test]
fn what_came_again_long_after_others_were_lost_is_known_by_its_last_time() {
    let mut world = World::new();
    world.put(&["a", "b", "c"]);
    assert_eq!(world.take(2, Verdict::Ack), ["a", "b"]);
    // The newest that is left is the second one.
    world.lose(2);
    world.now_ms += 2 * Config::default().dedup_window_ms;
    world.put(&["b"]);
    assert_eq!(world.take(9, Verdict::Ack), ["b"], "that is long ago");
    let end = world.store.status(world.messages).end;
    world.lose(end);
    world.put(&["b"]);
    assert!(world.take(9, Verdict::Ack).is_empty(), "that is not");
}
