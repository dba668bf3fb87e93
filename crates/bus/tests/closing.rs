//! The end of a bus: what was published before is received, then everybody learns that it is over.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use mainstem_bus::{Bus, Overflow, PublishError, RecvError, SubscribeError};

/// Long enough for any machine; nothing here waits for it to pass.
const DEADLINE: Duration = Duration::from_secs(30);

#[test]
fn what_waits_is_received_and_then_comes_the_end() {
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
        assert_eq!(mailbox.try_recv().map(drop), Err(RecvError::Closed));
        assert_eq!(mailbox.recv().map(drop), Err(RecvError::Closed));
    }
    assert!(!bus.close_and_wait(Duration::ZERO));
    assert_eq!(cursor.next_batch(9).unwrap().len(), 3);
    assert_eq!(cursor.next_batch(9).map(drop).unwrap_err(), RecvError::Closed);
    assert_eq!(cursor.try_batch(9).map(drop).unwrap_err(), RecvError::Closed);
    assert!(bus.close_and_wait(Duration::ZERO));
}

#[test]
fn closing_wakes_whoever_waits() {
    let bus: Bus<()> = Bus::new();
    let mailbox = bus.subscribe("a").mailbox().unwrap();
    let mut cursor = bus.subscribe("a").cursor().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(mailbox.recv().map(drop), Err(RecvError::Closed)));
        scope.spawn(|| assert_eq!(cursor.next_batch(1).map(drop).unwrap_err(), RecvError::Closed));
        assert!(bus.close_and_wait(DEADLINE));
    });
}

#[test]
fn the_last_handle_closes_and_dropped_subscriptions_are_not_waited_for() {
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
fn what_was_published_while_closing_is_received_if_it_was_counted() {
    for round in 0..200 {
        let bus = Bus::new();
        let mailbox = bus.subscribe("a").capacity(2).overflow(Overflow::Block).mailbox().unwrap();
        let mut cursor = bus.subscribe("+").capacity(2).overflow(Overflow::Block).cursor().unwrap();
        let counted = AtomicUsize::new(0);
        let publish_on = || {
            while let Ok(told) = bus.publish("a", round) {
                counted.fetch_add(told.delivered, Ordering::Relaxed);
            }
        };
        let received = thread::scope(|scope| {
            scope.spawn(publish_on);
            scope.spawn(publish_on);
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
