//! Closing a bus: readers receive what was published before, and then `Closed`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use mainstem_bus::{Bus, Overflow, PublishError, RecvError, SubscribeError, TryRecvError};

/// Upper bound for a hung test; no passing test waits this long.
const DEADLINE: Duration = Duration::from_secs(30);

#[test]
fn queued_messages_are_received_before_closed() {
    let bus = Bus::new();
    let mailbox = bus.subscribe("a").mailbox().unwrap();
    let mut cursor = bus.subscribe("a").cursor().unwrap();
    let member = bus.subscribe("$share/g/a").mailbox().unwrap();
    let _callback = bus.subscribe("a").callback(|_| {}).unwrap();
    bus.publish_batch("a", 0..3).unwrap();
    assert!(!bus.is_closed());
    bus.close();
    bus.close();
    assert!(bus.is_closed());
    assert_eq!(bus.publish("a", 3), Err(PublishError::Closed));
    assert_eq!(bus.publish("unmatched", 3), Err(PublishError::Closed));
    assert_eq!(bus.message("a", 3).retain().publish(), Err(PublishError::Closed));
    assert_eq!(bus.subscribe("a").mailbox().map(drop), Err(SubscribeError::Closed));
    assert!(!bus.close_and_wait(Duration::ZERO));

    for mailbox in [&mailbox, &member] {
        assert!(mailbox.iter().map(|message| *message.payload()).eq(0..3));
        assert_eq!(mailbox.try_recv().map(drop), Err(TryRecvError::Closed));
        assert_eq!(mailbox.recv().map(drop), Err(RecvError::Closed));
    }
    assert!(!bus.close_and_wait(Duration::ZERO));
    assert_eq!(cursor.next_batch(9).unwrap().len(), 3);
    assert_eq!(cursor.next_batch(9).map(drop).unwrap_err(), RecvError::Closed);
    assert_eq!(cursor.try_batch(9).map(drop).unwrap_err(), RecvError::Closed);
    assert!(bus.close_and_wait(Duration::ZERO));
}

#[test]
fn closing_wakes_blocked_readers() {
    let bus: Bus<()> = Bus::new();
    let mailbox = bus.subscribe("a").mailbox().unwrap();
    let mut cursor = bus.subscribe("a").cursor().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(mailbox.recv().map(drop), Err(RecvError::Closed)));
        scope.spawn(|| assert_eq!(cursor.next_batch(1).map(drop).unwrap_err(), RecvError::Closed));
        assert!(bus.close_and_wait(DEADLINE));
    });
}

/// A message of a publisher that waits for room is received although it exceeds the capacity.
#[test]
fn closing_wakes_blocked_publishers_without_loss() {
    for round in 0..200 {
        let bus = Bus::new();
        let filter = if round % 2 == 0 { "a" } else { "$share/g/a" };
        let subscribe = || bus.subscribe(filter).capacity(1).overflow(Overflow::Block);
        let mut read_all: Box<dyn FnMut() -> Vec<usize>> = if round % 4 < 2 {
            let mailbox = subscribe().mailbox().unwrap();
            Box::new(move || mailbox.iter().map(|message| *message.payload()).collect())
        } else {
            let mut cursor = subscribe().cursor().unwrap();
            Box::new(move || {
                let mut seen = Vec::new();
                while let Ok(batch) = cursor.next_batch(9) {
                    seen.extend(batch.iter().map(|event| *event.payload()));
                }
                seen
            })
        };
        bus.publish("a", 0).unwrap();
        let published = thread::scope(|scope| {
            let publishing = scope.spawn(|| bus.publish_batch("a", [1, 2]));
            (0..round).for_each(|_| thread::yield_now());
            bus.close();
            // Nobody reads until the publisher has returned.
            publishing.join().unwrap()
        });
        let seen = read_all();
        match published {
            Ok(tally) => assert_eq!((tally.delivered, seen), (2, vec![0, 1, 2])),
            Err(error) => assert_eq!((error, seen), (PublishError::Closed, vec![0])),
        }
        assert_eq!((bus.stats().dropped, bus.stats().in_flight), (0, 0));
    }
}

#[test]
fn dropping_the_last_handle_closes_the_bus() {
    let bus = Bus::new();
    let clone = bus.clone();
    let mailbox = bus.subscribe("a").mailbox().unwrap();
    let gone = bus.subscribe("a").cursor().unwrap();
    drop(bus);
    clone.publish("a", 1).unwrap();
    drop(gone);
    drop(clone);
    assert_eq!(mailbox.recv().map(|message| *message.payload()), Ok(1));
    assert_eq!(mailbox.recv().map(drop), Err(RecvError::Closed));
}

#[test]
fn messages_counted_as_delivered_while_closing_are_received() {
    for round in 0..200 {
        let bus = Bus::new();
        let mailbox = bus.subscribe("a").capacity(2).overflow(Overflow::Block).mailbox().unwrap();
        let mut cursor = bus.subscribe("+").capacity(2).overflow(Overflow::Block).cursor().unwrap();
        let counted = AtomicUsize::new(0);
        let publish_until_closed = || {
            while let Ok(result) = bus.publish("a", round) {
                counted.fetch_add(result.delivered, Ordering::Relaxed);
            }
        };
        let received = thread::scope(|scope| {
            scope.spawn(publish_until_closed);
            scope.spawn(publish_until_closed);
            let by_cursor = scope.spawn(move || {
                let mut received = 0;
                while let Ok(batch) = cursor.next_batch(9) {
                    received += batch.len();
                }
                received
            });
            let before = mailbox.iter().take(round).count();
            bus.close();
            before + mailbox.iter().count() + by_cursor.join().unwrap()
        });
        assert_eq!(received, counted.into_inner());
        assert_eq!((bus.stats().dropped, bus.stats().in_flight), (0, 0));
    }
}
