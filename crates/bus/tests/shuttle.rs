//! Races between publishing, subscribing and closing, explored with the shuttle scheduler:
//! `RUSTFLAGS="--cfg mainstem_shuttle" cargo test -p mainstem-bus --release --test shuttle`.
//!
//! Each model has two or three threads with one or two operations each, to keep the number of interleavings small. The
//! assertions are the guarantees of the crate documentation.
#![cfg(mainstem_shuttle)]

use std::sync::Arc;

use mainstem_bus::{Bus, Mailbox, Overflow, RecvError};
use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use shuttle::thread;

/// Runs `model` under random scheduling and under probabilistic concurrency testing (PCT) with a few preemptions, which
/// is enough to trigger most races.
fn check(model: impl Fn() + Send + Sync + 'static) {
    const ITERATIONS: usize = 5_000;
    let model = Arc::new(model);
    let copy = Arc::clone(&model);
    shuttle::check_random(move || model(), ITERATIONS);
    shuttle::check_pct(move || copy(), ITERATIONS, 3);
}

fn small_bus() -> Bus<usize> {
    Bus::builder().cached_topics(4).build()
}

fn drain_payloads(mailbox: &Mailbox<usize>) -> Vec<usize> {
    std::iter::from_fn(|| mailbox.try_recv().ok()).map(|message| *message.payload()).collect()
}

#[test]
fn publish_after_subscribe_does_not_use_a_stale_match() {
    check(|| {
        let bus = small_bus();
        let ready = Arc::new(AtomicBool::new(false));
        let (publisher, is_ready) = (bus.clone(), Arc::clone(&ready));
        let publishing = thread::spawn(move || {
            publisher.publish("a", 0).unwrap();
            let was_ready = is_ready.load(Ordering::Acquire);
            publisher.publish("a", 1).unwrap();
            was_ready
        });
        let mailbox = bus.subscribe("+").mailbox().unwrap();
        ready.store(true, Ordering::Release);
        if publishing.join().unwrap() {
            assert!(drain_payloads(&mailbox).contains(&1));
        }
    });
}

#[test]
fn publishers_with_separate_caches_find_a_new_subscription() {
    check(|| {
        let bus = small_bus();
        let other = bus.clone();
        let publishing = thread::spawn(move || other.publish("a", 1).unwrap().delivered);
        bus.publish("a", 2).unwrap();
        let mailbox = bus.subscribe("a").mailbox().unwrap();
        bus.publish("a", 3).unwrap();
        let result = publishing.join().unwrap();
        let mut seen = drain_payloads(&mailbox);
        seen.sort_unstable();
        assert_eq!(seen, if result == 1 { vec![1, 3] } else { vec![3] });
    });
}

#[test]
fn unsubscribed_callback_is_dropped_despite_concurrent_publish() {
    check(|| {
        let bus = small_bus();
        let captured = Arc::new(());
        let held = Arc::clone(&captured);
        let subscription =
            bus.subscribe("a").callback(move |_| assert_eq!(Arc::strong_count(&held), 2)).unwrap();
        let publisher = bus.clone();
        let publishing = thread::spawn(move || publisher.publish("a", 1).unwrap());
        drop(subscription);
        assert_eq!(publishing.join().unwrap().failed, 0);
        assert_eq!(Arc::strong_count(&captured), 1);
        assert_eq!(bus.publish("a", 2).unwrap().delivered, 0);
    });
}

#[test]
fn full_mailbox_blocks_its_publisher_without_loss() {
    check(|| {
        let bus = small_bus();
        let mailbox = bus.subscribe("a").capacity(1).overflow(Overflow::Block).mailbox().unwrap();
        let publishing =
            thread::spawn(move || (0..3).for_each(|value| assert!(bus.publish("a", value).is_ok())));
        let seen: Vec<_> = mailbox.iter().map(|message| *message.payload()).collect();
        publishing.join().unwrap();
        assert_eq!(seen, [0, 1, 2]);
    });
}

#[test]
fn full_ring_blocks_its_publisher_without_loss() {
    check(|| {
        let bus = small_bus();
        let mut cursor = bus.subscribe("a").capacity(1).overflow(Overflow::Block).cursor().unwrap();
        let publishing =
            thread::spawn(move || (0..3).for_each(|value| assert!(bus.publish("a", value).is_ok())));
        let mut seen = Vec::new();
        while let Ok(batch) = cursor.next_batch(2) {
            seen.extend(batch.iter().map(|event| *event.payload()));
        }
        publishing.join().unwrap();
        assert_eq!(seen, [0, 1, 2]);
    });
}

#[test]
fn lagging_cursor_reads_in_order_and_counts_missed_messages() {
    check(|| {
        let bus = small_bus();
        let mut cursor = bus.subscribe("a").capacity(2).cursor().unwrap();
        let publishing =
            thread::spawn(move || (0..6).for_each(|value| assert!(bus.publish("a", value).is_ok())));
        let mut seen = Vec::new();
        while let Ok(batch) = cursor.next_batch(4) {
            seen.extend(batch.iter().map(|event| *event.payload()));
        }
        publishing.join().unwrap();
        assert!(seen.is_sorted() && seen.last() == Some(&5), "{seen:?}");
        assert_eq!(seen.len() as u64 + cursor.stats().dropped, 6);
    });
}

#[test]
fn messages_counted_as_delivered_while_closing_are_received() {
    check(|| {
        let bus = small_bus();
        let mailbox = bus.subscribe("a").mailbox().unwrap();
        let mut cursor = bus.subscribe("a").cursor().unwrap();
        let publisher = bus.clone();
        let publishing =
            thread::spawn(move || publisher.publish("a", 1).map_or(0, |result| result.delivered));
        bus.close();
        let mut received = mailbox.iter().count();
        while let Ok(batch) = cursor.next_batch(4) {
            received += batch.len();
        }
        assert_eq!(received, publishing.join().unwrap());
        assert_eq!(mailbox.recv().map(drop), Err(RecvError::Closed));
    });
}

/// With a full queue of each kind: what a publish counts as delivered is received, and nobody waits for ever.
#[test]
fn closing_wakes_a_blocked_publisher_without_loss() {
    for (filter, is_cursor) in [("a", false), ("a", true), ("$share/g/a", false), ("$share/g/a", true)] {
        check(move || {
            let bus = small_bus();
            let subscribe = bus.subscribe(filter).capacity(1).overflow(Overflow::Block);
            let mut read_all: Box<dyn FnMut() -> Vec<usize>> = if is_cursor {
                let mut cursor = subscribe.cursor().unwrap();
                Box::new(move || {
                    let mut seen = Vec::new();
                    while let Ok(batch) = cursor.next_batch(4) {
                        seen.extend(batch.iter().map(|event| *event.payload()));
                    }
                    seen
                })
            } else {
                let mailbox = subscribe.mailbox().unwrap();
                Box::new(move || mailbox.iter().map(|message| *message.payload()).collect())
            };
            bus.publish("a", 0).unwrap();
            let publisher = bus.clone();
            let publishing = thread::spawn(move || {
                publisher.publish_batch("a", [1, 2]).map_or(0, |tally| tally.delivered)
            });
            bus.close();
            let seen = read_all();
            assert_eq!(seen, (0..=publishing.join().unwrap()).collect::<Vec<_>>());
        });
    }
}

#[test]
fn subscriptions_of_two_threads_can_be_dropped() {
    check(|| {
        let bus = small_bus();
        let other = bus.clone();
        let subscribing = thread::spawn(move || drop(other.subscribe("a").callback(|_| {}).unwrap()));
        let subscription = bus.subscribe("a").callback(|_| {}).unwrap();
        let mailbox = bus.subscribe("a").mailbox().unwrap();
        drop((subscription, mailbox));
        subscribing.join().unwrap();
        assert_eq!(bus.publish("a", 1).unwrap().delivered, 0);
        assert_eq!(bus.stats().filters, 0);
    });
}

#[test]
fn leaving_member_hands_over_queued_and_concurrent_messages() {
    check(|| {
        let bus = small_bus();
        let subscribe = || bus.subscribe("$share/g/a").capacity(1).overflow(Overflow::Block);
        let (leaving, staying) = (subscribe().mailbox().unwrap(), subscribe().capacity(8).mailbox().unwrap());
        let publisher = bus.clone();
        let publishing = thread::spawn(move || {
            (0..2).map(|value| publisher.publish("a", value)).all(|result| result.is_ok())
        });
        drop(leaving);
        assert!(publishing.join().unwrap());
        let mut seen = drain_payloads(&staying);
        seen.sort_unstable();
        assert_eq!((seen, bus.stats().abandoned), (vec![0, 1], 0));
    });
}

#[test]
fn blocked_publisher_moves_on_to_another_member() {
    check(|| {
        let bus = small_bus();
        let subscribe = || bus.subscribe("$share/g/a").capacity(1).overflow(Overflow::Block);
        let leaving = subscribe().mailbox().unwrap();
        bus.publish("a", 0).unwrap();
        let publisher = bus.clone();
        let publishing = thread::spawn(move || publisher.publish("a", 1).unwrap().delivered);
        let staying = subscribe().mailbox().unwrap();
        drop(leaving);
        let mut seen: Vec<_> = (0..2).map(|_| *staying.recv().unwrap().payload()).collect();
        assert_eq!(publishing.join().unwrap(), 1);
        seen.sort_unstable();
        assert_eq!(seen, [0, 1]);
    });
}

#[test]
fn blocked_publisher_uses_the_first_member_with_room() {
    check(|| {
        let bus = small_bus();
        let subscribe = || bus.subscribe("$share/g/a").capacity(1).overflow(Overflow::Block);
        let (idle, mut busy) = (subscribe().mailbox().unwrap(), subscribe().cursor().unwrap());
        bus.publish_batch("a", [0, 1]).unwrap();
        let publisher = bus.clone();
        let publishing = thread::spawn(move || publisher.publish_batch("a", [2, 3]).unwrap().delivered);
        let mut seen = Vec::new();
        while seen.len() < 3 {
            seen.extend(busy.next_batch(1).unwrap().iter().map(|event| *event.payload()));
        }
        assert_eq!(publishing.join().unwrap(), 2);
        assert_eq!((seen.len(), drain_payloads(&idle).len()), (3, 1));
    });
}

#[test]
fn replayed_callback_sees_retained_value_and_all_later_ones() {
    check(|| {
        let bus = small_bus();
        bus.message("a", 0).retain().publish().unwrap();
        let publisher = bus.clone();
        let publishing = thread::spawn(move || {
            (1..3).for_each(|value| assert!(publisher.message("a", value).retain().publish().is_ok()));
        });
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let _subscription =
            bus.subscribe("a").replay().callback(move |event| log.lock().unwrap().push(*event.payload()));
        publishing.join().unwrap();
        let seen = seen.lock().unwrap().clone();
        assert!(seen.iter().copied().eq(seen[0]..3), "{seen:?}");
    });
}

#[test]
fn close_and_wait_is_woken_by_the_last_reader() {
    check(|| {
        let bus = small_bus();
        let mailbox = bus.subscribe("a").mailbox().unwrap();
        let ends = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&ends);
        let reading = thread::spawn(move || {
            assert_eq!(mailbox.recv().map(drop), Err(RecvError::Closed));
            seen.store(1, Ordering::Relaxed);
            drop(mailbox);
        });
        assert!(bus.close_and_wait(std::time::Duration::MAX));
        reading.join().unwrap();
        assert_eq!(ends.load(Ordering::Relaxed), 1);
    });
}
