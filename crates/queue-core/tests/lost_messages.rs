//! A loss of power takes the end of the log of messages, but not of the state log. New messages must not be taken for
//! the lost ones.

use mainstem_log::{
    Batch, BatchBuilder, BatchHeader, Durability, Header, LogAdmin, LogId, LogReader, LogWriter, MemoryStore,
    Options, Store, put_headers,
};
use mainstem_queue_core::{
    Config, Disposition, DurableQueue, GroupId, LeaseRequest, Settlement, Tuning, header,
};

fn no_decompression(_: &Batch<'_>) -> Option<Vec<u8>> {
    None
}

struct World {
    store: MemoryStore,
    messages: LogId,
    queue: DurableQueue,
    now_ms: u64,
}

fn open(store: &mut MemoryStore, messages: LogId) -> DurableQueue {
    let queue =
        DurableQueue::open(store, "state", messages, Durability::Os, Config::default(), no_decompression);
    queue.expect("a state that can be read")
}

impl World {
    fn new() -> Self {
        let mut store = MemoryStore::new();
        let messages = store.open("messages", &Options::default()).unwrap();
        let queue = open(&mut store, messages);
        Self { store, messages, queue, now_ms: 1_000 }
    }

    /// A loss of power leaves the messages below `end`; reopens the queue.
    fn lose_power(&mut self, end: u64) {
        self.commit();
        self.store.truncate_suffix(self.messages, end).unwrap();
        self.now_ms += 1_000;
        self.queue = open(&mut self.store, self.messages);
        self.queue.begin_incarnation(self.now_ms as u32);
        self.queue.skip_numbers(self.now_ms);
        if let Some(batch) = self.queue.gap(&mut self.store, self.now_ms).unwrap() {
            let header = BatchHeader::parse(&batch).unwrap();
            assert_eq!((header.attributes, header.producer_id, header.records), (0x200, -1, 0));
            self.store.append(self.messages, &batch).unwrap();
        }
        assert_eq!(self.queue.gap(&mut self.store, self.now_ms), Ok(None), "once is enough");
        self.register();
    }

    fn commit(&mut self) {
        self.queue.store_events(&mut self.store, self.now_ms);
        self.store.commit();
        let mut completions = Vec::new();
        self.store.completions(&mut completions);
        for completion in completions {
            self.queue.on_completion(&mut self.store, &completion, self.now_ms);
        }
    }

    fn register(&mut self) {
        self.store.commit();
        let to = self.store.status(self.messages).committed;
        while self.queue.register(&mut self.store, to, self.now_ms, BatchHeader::is_control).unwrap() {}
        self.commit();
    }

    /// Appends messages; the text of each is its deduplication identifier.
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

    fn take(&mut self, max: usize, disposition: Disposition) -> Vec<String> {
        let group = GroupId::DEFAULT;
        let taking = LeaseRequest { group, consumer: 1, max, bytes_max: usize::MAX, lease_ms: None };
        let (mut texts, mut receipts) = (Vec::new(), Vec::new());
        let each = |delivery: mainstem_queue_core::Delivery| {
            let value = delivery.payload.record().value.unwrap_or_default().to_vec();
            texts.push(String::from_utf8(value).unwrap());
            receipts.push(delivery.receipt);
        };
        self.queue.lease(&mut self.store, &taking, self.now_ms, each).unwrap();
        for receipt in receipts {
            self.queue.settle(group, &Settlement { receipt, disposition }, self.now_ms, 0).unwrap();
        }
        self.commit();
        texts
    }

    /// Transfer numbers of all leaving messages, which arrive at once.
    fn transfer_numbers(&mut self) -> Vec<u64> {
        let (transfers, failed) = self.queue.take_transfers(&mut self.store, 100);
        assert!(failed.is_none());
        let leaving = transfers.into_iter().map(|transfer| transfer.leaving);
        let numbers = leaving.map(|leaving| {
            self.queue.machine_mut().complete_transfer(leaving.group, leaving.number);
            leaving.number
        });
        numbers.collect()
    }
}

#[test]
fn new_messages_do_not_inherit_settlements_of_lost_ones() {
    let mut world = World::new();
    world.put(&["a", "b", "c", "d"]);
    assert_eq!(world.take(3, Disposition::Ack), ["a", "b", "c"]);
    world.lose_power(1);
    assert!(world.take(9, Disposition::Release).is_empty(), "all others are lost");
    world.put(&["e", "f"]);
    assert_eq!(world.take(9, Disposition::Release), ["e", "f"]);
    // The same after another restart.
    let end = world.store.status(world.messages).end;
    assert_eq!(end, 6, "no offset is given to two");
    world.lose_power(end);
    assert_eq!(world.take(9, Disposition::Ack), ["e", "f"]);
    assert!(world.take(9, Disposition::Ack).is_empty());
}

#[test]
fn a_lost_message_sent_again_is_no_duplicate() {
    let mut world = World::new();
    world.put(&["a", "b", "c"]);
    world.lose_power(2);
    world.put(&["a", "b", "c"]);
    assert_eq!(world.take(9, Disposition::Release), ["a", "b", "c"]);
    world.put(&["c"]);
    let end = world.store.status(world.messages).end;
    world.lose_power(end);
    world.put(&["c"]);
    assert_eq!(world.take(9, Disposition::Release), ["a", "b", "c"]);
    // The same again, after the first loss.
    world.put(&["d", "e"]);
    let end = world.store.status(world.messages).end;
    world.lose_power(end - 1);
    world.put(&["c", "d", "e"]);
    assert_eq!(world.take(9, Disposition::Ack), ["a", "b", "c", "d", "e"]);
}

#[test]
fn a_settled_message_stays_a_duplicate_after_a_loss() {
    let mut world = World::new();
    world.put(&["a", "b", "c"]);
    assert_eq!(world.take(2, Disposition::Ack), ["a", "b"]);
    world.lose_power(2);
    world.put(&["c", "d"]);
    // No message before the gap is left.
    world.store.truncate_prefix(world.messages, 2).unwrap();
    for _ in 0..2 {
        let end = world.store.status(world.messages).end;
        world.lose_power(end);
        world.put(&["a", "b", "c", "d"]);
        assert_eq!(world.take(9, Disposition::Release), ["c", "d"]);
    }
}

#[test]
fn transfer_numbers_are_not_reused_after_a_loss() {
    let mut world = World::new();
    world.put(&["a", "b", "c"]);
    world.take(1, Disposition::Reject);
    let state = world.queue.state_log();
    let end = world.store.status(state).end;
    world.take(2, Disposition::Reject);
    let before = world.transfer_numbers();
    assert_eq!(before.len(), 3);
    // The events of the last two transfers are lost.
    world.commit();
    world.store.truncate_suffix(state, end).unwrap();
    world.now_ms += 1_000;
    world.lose_power(3);
    world.take(9, Disposition::Reject);
    let after = world.transfer_numbers();
    assert_eq!(after[0], before[0], "what has its number keeps it");
    assert!(after[1..].iter().all(|number| *number > before[2]) && after.len() == 3, "{before:?}, {after:?}");
}

#[test]
fn a_lost_message_with_a_copy_is_restored() {
    let mut world = World::new();
    // Old messages are copied as soon as most others are settled.
    let tuning = Tuning { waste_bytes: 0, ..Tuning::default() };
    world.queue.tune(tuning);
    world.put(&["old"]);
    assert_eq!(world.take(1, Disposition::Nack(Some(0))), ["old"]);
    let texts: Vec<String> = (0..50).map(|number| number.to_string()).collect();
    world.put(&texts.iter().map(String::as_str).collect::<Vec<_>>());
    world.take(1, Disposition::Nack(Some(100_000)));
    assert_eq!(world.take(99, Disposition::Ack).len(), 50);
    assert_eq!(world.queue.take_trim(&mut world.store, u64::MAX), None, "it is copied first");
    world.commit();
    // All messages are lost, also the old one before its original was deleted.
    world.lose_power(0);
    world.put(&["old", "new"]);
    world.now_ms += 200_000;
    world.queue.maintain(world.now_ms);
    assert_eq!(world.take(9, Disposition::Release), ["old", "new"]);
    let end = world.store.status(world.messages).end;
    world.store.truncate_prefix(world.messages, end - 1).unwrap();
    world.lose_power(end);
    assert_eq!(world.take(9, Disposition::Ack), ["old", "new"]);
}

#[test]
fn a_copy_keeps_its_offset_when_no_event_was_due() {
    let mut world = World::new();
    world.queue.tune(Tuning { waste_bytes: 0, ..Tuning::default() });
    // Most of the log is no message of the queue, so its only message is copied. It has no identifier, and nobody has
    // taken it: no event was due.
    let other = vec![b'x'; 10_000];
    for value in [&*other, b"old"] {
        let mut builder = BatchBuilder::default();
        builder.push(1_000, None, Some(value));
        world.store.append(world.messages, builder.finish()).unwrap();
    }
    world.store.commit();
    let to = world.store.status(world.messages).committed;
    while world.queue.register(&mut world.store, to, 1_000, |batch| batch.base_offset == 0).unwrap() {}
    for _ in 0..4 {
        world.queue.take_trim(&mut world.store, u64::MAX);
        world.commit();
    }
    // Nothing has been deleted yet. All messages are lost, but not the copy.
    world.lose_power(0);
    world.put(&["new", "newer"]);
    assert_eq!(world.take(9, Disposition::Ack), ["old", "new", "newer"]);
}

/// A queue with copies of two messages, whose originals are deleted, and with a snapshot that is due.
fn with_copies_before_a_snapshot() -> World {
    let mut world = World::new();
    world.queue.tune(Tuning { waste_bytes: 0, ..Tuning::default() });
    world.put(&["old", "older"]);
    assert_eq!(world.take(2, Disposition::Nack(Some(0))).len(), 2);
    let texts: Vec<String> = (0..50).map(|number| number.to_string()).collect();
    world.put(&texts.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(world.take(2, Disposition::Nack(Some(100_000))), ["old", "older"]);
    assert_eq!(world.take(99, Disposition::Ack).len(), 50);
    let trimmed = (0..9).find_map(|_| {
        world.commit();
        world.queue.take_trim(&mut world.store, u64::MAX)
    });
    world.store.truncate_prefix(world.messages, trimmed.expect("all others are settled")).unwrap();
    world.queue.tune(Tuning { snapshot_bytes: 0, ..Tuning::default() });
    world
}

#[test]
fn a_loss_during_a_snapshot_keeps_the_copies() {
    let mut has_replaced = false;
    for turns in 0..8 {
        for cut in 0.. {
            let mut world = with_copies_before_a_snapshot();
            let state = world.queue.state_log();
            (0..turns).for_each(|_| world.commit());
            let from = world.store.status(state).end;
            world.queue.store_events(&mut world.store, world.now_ms);
            // The power fails in this commit, which leaves some of its records.
            if from + cut > world.store.status(state).end {
                break;
            }
            has_replaced |= world.store.status(state).start > 0;
            world.store.truncate_suffix(state, from + cut).unwrap();
            world.queue = open(&mut world.store, world.messages);
            world.register();
            world.now_ms += 200_000;
            world.queue.maintain(world.now_ms);
            assert_eq!(world.take(9, Disposition::Ack), ["old", "older"], "turn {turns}, {cut} records");
        }
    }
    assert!(has_replaced, "the snapshot was completed");
}

#[test]
fn a_loss_does_not_forget_later_identifiers() {
    let mut world = World::new();
    world.put(&["a", "b", "c"]);
    assert_eq!(world.take(2, Disposition::Ack), ["a", "b"]);
    // The newest message that is left is the second one.
    world.lose_power(2);
    world.now_ms += 2 * Config::default().dedup_window_ms;
    world.put(&["b"]);
    assert_eq!(world.take(9, Disposition::Ack), ["b"], "that is long ago");
    let end = world.store.status(world.messages).end;
    world.lose_power(end);
    world.put(&["b"]);
    assert!(world.take(9, Disposition::Ack).is_empty(), "that is not");
}
