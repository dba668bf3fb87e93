//! Overflow policies, compared with a simple model of each.

use std::collections::VecDeque;
use std::thread;

use mainstem_bus::{Bus, Cursor, Mailbox, Overflow, RecvError, TryRecvError};
use proptest::prelude::*;

/// Expected behavior of one subscription.
struct Model {
    capacity: usize,
    overflow: Overflow,
    queued: VecDeque<u32>,
    dropped: u64,
    is_disconnected: bool,
}

impl Model {
    fn new(capacity: usize, overflow: Overflow) -> Self {
        Self { capacity, overflow, queued: VecDeque::new(), dropped: 0, is_disconnected: false }
    }

    fn push(&mut self, value: u32) {
        if self.is_disconnected {
            return;
        }
        if self.queued.len() < self.capacity {
            self.queued.push_back(value);
            return;
        }
        self.dropped += 1;
        match self.overflow {
            Overflow::DropOldest => {
                self.queued.pop_front();
                self.queued.push_back(value);
            }
            Overflow::DropNewest => {}
            Overflow::Disconnect => self.is_disconnected = true,
            Overflow::Block => panic!("not covered by the model"),
        }
    }

    fn take(&mut self, max: usize) -> Result<Vec<u32>, RecvError> {
        if self.queued.is_empty() && self.is_disconnected {
            return Err(RecvError::Disconnected);
        }
        let count = self.queued.len().min(max);
        Ok(self.queued.drain(..count).collect())
    }
}

#[derive(Clone, Debug)]
enum Step {
    Publish(u32),
    PublishBatch(Vec<u32>),
    Take(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => any::<u32>().prop_map(Step::Publish),
        1 => prop::collection::vec(any::<u32>(), 0..20).prop_map(Step::PublishBatch),
        2 => (1..12_usize).prop_map(Step::Take),
    ];
    prop::collection::vec(step, 0..120)
}

fn policy() -> impl Strategy<Value = Overflow> {
    prop::sample::select(vec![Overflow::DropOldest, Overflow::DropNewest, Overflow::Disconnect])
}

/// Reads up to `max` messages, in several batches if needed.
fn from_cursor(cursor: &mut Cursor<u32>, max: usize) -> Result<Vec<u32>, RecvError> {
    let mut values = Vec::new();
    while values.len() < max {
        match cursor.try_batch(max - values.len()) {
            Ok(batch) if batch.is_empty() => break,
            Ok(batch) => values.extend(batch.iter().map(|event| *event.payload())),
            Err(error) if values.is_empty() => return Err(error),
            Err(_) => break,
        }
    }
    Ok(values)
}

fn from_mailbox(mailbox: &Mailbox<u32>, max: usize) -> Result<Vec<u32>, RecvError> {
    let mut messages = Vec::new();
    mailbox.drain(max, &mut messages)?;
    Ok(messages.iter().map(|message| *message.payload()).collect())
}

proptest! {
    #[test]
    fn mailbox_and_cursor_agree_with_the_model(
        capacity in 1..40_usize, overflow in policy(), shared in any::<bool>(), steps in steps(),
    ) {
        let bus = Bus::new();
        let filter = if shared { "$share/g/a" } else { "a" };
        let subscribe = |filter| bus.subscribe(filter).capacity(capacity).overflow(overflow);
        let mailbox = subscribe(filter).mailbox().unwrap();
        let mut cursor = subscribe(if shared { "$share/h/a" } else { "a" }).cursor().unwrap();
        let (mut model, mut published) = (Model::new(capacity, overflow), 0);
        for step in steps {
            match step {
                Step::Publish(value) => {
                    model.push(value);
                    bus.publish("a", value).unwrap();
                    published += 1;
                }
                Step::PublishBatch(values) => {
                    for value in &values {
                        model.push(*value);
                    }
                    published += values.len() as u64;
                    bus.publish_batch("a", values).unwrap();
                }
                Step::Take(max) => {
                    let expected = model.take(max);
                    prop_assert_eq!(&from_mailbox(&mailbox, max), &expected);
                    prop_assert_eq!(&from_cursor(&mut cursor, max), &expected);
                }
            }
            for stats in [mailbox.stats(), cursor.stats()] {
                prop_assert_eq!(stats.lag, model.queued.len());
                prop_assert_eq!(stats.dropped, model.dropped);
                prop_assert_eq!(stats.is_disconnected, model.is_disconnected);
            }
            let stats = bus.stats();
            prop_assert_eq!((stats.in_flight, stats.dropped), (2 * model.queued.len(), 2 * model.dropped));
            prop_assert_eq!(stats.published, published);
        }
        drop((mailbox, cursor));
        prop_assert_eq!(bus.stats().dropped, 2 * model.dropped);
        prop_assert_eq!(bus.stats().abandoned, 2 * model.queued.len() as u64);
    }
}

#[test]
fn publish_returns_the_number_of_drops() {
    let bus = Bus::new();
    let oldest = bus.subscribe("a").capacity(1).overflow(Overflow::DropOldest).mailbox().unwrap();
    let _newest = bus.subscribe("a").capacity(1).overflow(Overflow::DropNewest).mailbox().unwrap();
    let disconnected = bus.subscribe("a").capacity(1).overflow(Overflow::Disconnect).mailbox().unwrap();
    let publish = |bus: &Bus<u32>, value| {
        let result = bus.publish("a", value).unwrap();
        (result.delivered, result.dropped)
    };
    assert_eq!(publish(&bus, 1), (3, 0));
    assert_eq!(publish(&bus, 2), (1, 3));
    // The disconnected subscription no longer counts.
    assert_eq!(publish(&bus, 3), (1, 2));
    assert_eq!(from_mailbox(&oldest, 9), Ok(vec![3]));
    assert_eq!(from_mailbox(&disconnected, 9), Ok(vec![1]));
    assert_eq!(from_mailbox(&disconnected, 9), Err(RecvError::Disconnected));
    assert_eq!(disconnected.recv().map(drop), Err(RecvError::Disconnected));
}

#[test]
fn blocking_loses_nothing() {
    for capacity in [1, 2, 7, 300] {
        let bus = Bus::new();
        let subscribe = || bus.subscribe("a").capacity(capacity).overflow(Overflow::Block);
        let mailbox = subscribe().mailbox().unwrap();
        let (mut one, mut two) = (subscribe().cursor().unwrap(), subscribe().cursor().unwrap());
        thread::scope(|scope| {
            scope.spawn(|| {
                for value in 0..1_000 {
                    bus.publish("a", value).unwrap();
                }
            });
            for cursor in [&mut one, &mut two] {
                scope.spawn(move || {
                    let mut expected = 0..1_000;
                    while !expected.is_empty() {
                        for event in cursor.next_batch(5).unwrap().iter() {
                            assert_eq!(Some(*event.payload()), expected.next());
                        }
                    }
                });
            }
            let seen = mailbox.iter().take(1_000).map(|message| *message.payload());
            assert!(seen.eq(0..1_000));
        });
        assert_eq!(bus.stats().dropped, 0);
    }
}

#[test]
fn dropping_a_subscription_unblocks_its_publisher() {
    for as_cursor in [false, true] {
        let bus = Bus::new();
        let subscribe = || bus.subscribe("a").capacity(1).overflow(Overflow::Block);
        let mut mailbox = (!as_cursor).then(|| subscribe().mailbox().unwrap());
        let mut cursor = as_cursor.then(|| subscribe().cursor().unwrap());
        bus.publish("a", 1).unwrap();
        thread::scope(|scope| {
            let blocked = scope.spawn(|| bus.publish("a", 2).unwrap());
            drop((mailbox.take(), cursor.take()));
            assert_eq!(blocked.join().unwrap().dropped, 0);
        });
        assert_eq!(bus.stats().filters, 0);
    }
}

#[test]
fn only_block_blocks_publishers() {
    let bus = Bus::new();
    let policies = [Overflow::DropOldest, Overflow::DropNewest, Overflow::Disconnect];
    let subscribe = |overflow| bus.subscribe("a").capacity(2).overflow(overflow);
    let _mailboxes = policies.map(|overflow| subscribe(overflow).mailbox().unwrap());
    let _cursors = policies.map(|overflow| subscribe(overflow).cursor().unwrap());
    // Would hang if any of them blocked.
    for value in 0..10_000 {
        bus.publish("a", value).unwrap();
    }
    assert!(bus.stats().subscriptions.iter().all(|subscription| subscription.dropped > 0));
}

#[test]
fn lagging_cursor_does_not_affect_others_on_its_ring() {
    let bus = Bus::new();
    let mut fast = bus.subscribe("a").capacity(10).cursor().unwrap();
    let mut slow = bus.subscribe("a").capacity(10).cursor().unwrap();
    for value in 0..1_000 {
        bus.publish("a", value).unwrap();
        assert_eq!(from_cursor(&mut fast, 10), Ok(vec![value]));
    }
    assert_eq!((slow.stats().lag, slow.stats().dropped, fast.stats().dropped), (10, 990, 0));
    assert_eq!(from_cursor(&mut slow, 100), Ok((990..1_000).collect()));
    assert_eq!((slow.stats().lag, slow.stats().dropped), (0, 990));
}

#[test]
fn dropped_messages_are_reported_on_request() {
    for overflow in [Overflow::DropOldest, Overflow::DropNewest] {
        let bus = Bus::new();
        let mailbox = bus.subscribe("a").capacity(2).overflow(overflow).report_lag().mailbox().unwrap();
        let mut cursor = bus.subscribe("a").capacity(2).overflow(overflow).report_lag().cursor().unwrap();
        let silent = bus.subscribe("a").capacity(2).overflow(overflow).mailbox().unwrap();
        assert_eq!(mailbox.try_recv().map(drop), Err(TryRecvError::Empty));
        bus.publish_batch("a", 0..5).unwrap();
        let left = if overflow == Overflow::DropOldest { [3, 4] } else { [0, 1] };
        assert_eq!(mailbox.try_recv().map(drop), Err(TryRecvError::Lagged(3)));
        assert_eq!(cursor.try_batch(9).map(drop), Err(RecvError::Lagged(3)));
        let mut seen = Vec::new();
        while seen.len() < 2 {
            seen.extend(cursor.next_batch(9).unwrap().iter().map(|event| *event.payload()));
        }
        assert_eq!(seen, left);
        bus.publish_batch("a", 5..9).unwrap();
        assert_eq!(mailbox.recv().map(drop), Err(RecvError::Lagged(4)));
        bus.close();
        // An iterator skips the report.
        assert_eq!((mailbox.iter().count(), silent.iter().count()), (2, 2));
        assert_eq!(mailbox.recv().map(drop), Err(RecvError::Closed));
        assert_eq!(mailbox.stats().dropped, 7);
    }
}

#[tokio::test]
async fn messages_are_awaited() {
    let bus = Bus::new();
    let mailbox = bus.subscribe("a").capacity(1).report_lag().mailbox().unwrap();
    let publish = async {
        tokio::task::yield_now().await;
        bus.publish("a", 1).unwrap();
        bus.publish("a", 2).unwrap();
    };
    let (received, ()) = tokio::join!(mailbox.recv_async(), publish);
    assert_eq!(received.map(drop), Err(RecvError::Lagged(1)));
    assert_eq!(mailbox.recv_async().await.map(|message| *message.payload()), Ok(2));
    bus.close();
    assert_eq!(mailbox.recv_async().await.map(drop), Err(RecvError::Closed));
}
