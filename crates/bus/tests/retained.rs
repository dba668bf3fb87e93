//! Retained messages and their replay to new subscriptions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use mainstem_bus::{Bus, Delivered, Overflow, PublishError, TryRecvError};

fn retain(bus: &Bus<u32>, topic: &str, value: u32) -> Result<Delivered, PublishError> {
    bus.message(topic, value).retain().publish()
}

#[test]
fn replay_delivers_retained_messages_first() {
    let bus = Bus::new();
    for (topic, value) in [("a/1", 1), ("a/2", 2), ("b/1", 9), ("a/1", 3)] {
        retain(&bus, topic, value).unwrap();
    }
    bus.publish("a/3", 4).unwrap();
    let mailbox = bus.subscribe("a/+").replay().capacity(1).mailbox().unwrap();
    let mut cursor = bus.subscribe("a/#").replay().capacity(1).cursor().unwrap();
    let without_replay = bus.subscribe("#").mailbox().unwrap();
    let shared = bus.subscribe("$share/g/#").replay().mailbox().unwrap();
    bus.publish("a/2", 5).unwrap();

    assert_eq!((mailbox.stats().lag, cursor.stats().lag, bus.stats().retained), (3, 3, 3));
    let mut seen = Vec::new();
    while let Ok(message) = mailbox.try_recv() {
        seen.push((message.topic().to_owned(), *message.payload(), message.is_replay()));
    }
    let expected = [("a/1", 3, true), ("a/2", 2, true), ("a/2", 5, false)];
    let expected = expected.map(|(topic, value, is_replay)| (topic.to_owned(), value, is_replay));
    assert_eq!(seen, expected);
    let mut seen = Vec::new();
    loop {
        let batch = cursor.try_batch(1).unwrap();
        if batch.is_empty() {
            break;
        }
        seen.extend(
            batch.iter().map(|event| (event.topic().to_owned(), *event.payload(), event.is_replay())),
        );
    }
    assert_eq!(seen, expected);
    for other in [without_replay, shared] {
        assert_eq!(other.try_recv().map(|message| *message.payload()), Ok(5));
    }
}

#[test]
fn callback_replay_completes_before_subscribe_returns() {
    let bus = Bus::new();
    retain(&bus, "a", 1).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (log, inner) = (Arc::clone(&seen), bus.clone());
    let subscription = bus
        .subscribe("a")
        .replay()
        .callback(move |event| {
            log.lock().unwrap().push((*event.payload(), event.is_replay()));
            if event.is_replay() {
                // Delivered after the replay.
                inner.publish("a", 2).unwrap();
                assert_eq!(log.lock().unwrap().len(), 1);
            }
        })
        .unwrap();
    assert_eq!(*seen.lock().unwrap(), [(1, true), (2, false)]);
    bus.publish("a", 3).unwrap();
    assert_eq!(*seen.lock().unwrap(), [(1, true), (2, false), (3, false)]);
    drop(subscription);
    assert_eq!(bus.publish("a", 4), Ok(Delivered::default()));
}

#[test]
fn number_of_retained_topics_is_bounded() {
    let bus = Bus::builder().retained_max(2).build();
    retain(&bus, "a", 1).unwrap();
    retain(&bus, "b", 2).unwrap();
    let mailbox = bus.subscribe("#").mailbox().unwrap();
    assert_eq!(retain(&bus, "c", 3), Err(PublishError::RetainedFull));
    assert_eq!(mailbox.try_recv().map(drop), Err(TryRecvError::Empty));
    retain(&bus, "a", 4).unwrap();
    assert_eq!(bus.retained("a").map(|message| *message.payload()), Some(4));
    assert!(bus.clear_retained("b"));
    assert!(!bus.clear_retained("b"));
    retain(&bus, "c", 5).unwrap();
    assert_eq!(bus.stats().retained, 2);
    assert!(bus.retained("b").is_none());
}

#[test]
fn retained_message_has_its_publish_time() {
    let bus = Bus::new();
    let before = std::time::SystemTime::now();
    retain(&bus, "a", 1).unwrap();
    let stamp = bus.subscribe("a").replay().metadata().mailbox().unwrap().try_recv().unwrap().timestamp();
    assert!(stamp.is_some_and(|stamp| stamp >= before));
}

/// A subscription made while values are published gets the retained value and then every later one, without a gap.
#[test]
fn replay_and_concurrent_publishes_form_one_sequence() {
    let bus = Bus::new();
    retain(&bus, "a", 0).unwrap();
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0;
            while !is_done.load(Ordering::Relaxed) {
                value += 1;
                retain(&bus, "a", value).unwrap();
            }
        });
        for _ in 0..300 {
            let subscribe = || bus.subscribe("a").replay().capacity(1 << 20).overflow(Overflow::Disconnect);
            let log = Arc::new(Mutex::new(Vec::new()));
            let seen = Arc::clone(&log);
            let callback =
                subscribe().callback(move |event| seen.lock().unwrap().push(*event.payload())).unwrap();
            let (mailbox, mut cursor) = (subscribe().mailbox().unwrap(), subscribe().cursor().unwrap());
            let by_mailbox: Vec<u32> = mailbox.iter().take(3).map(|message| *message.payload()).collect();
            let mut by_cursor = Vec::new();
            while by_cursor.len() < 3 {
                by_cursor.extend(cursor.next_batch(2).unwrap().iter().map(|event| *event.payload()));
            }
            drop(callback);
            let by_callback = log.lock().unwrap().clone();
            for seen in [by_callback, by_mailbox, by_cursor] {
                let first = *seen.first().expect("there is at least the retained value");
                assert!(seen.iter().copied().eq(first..first + seen.len() as u32), "{seen:?}");
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
}
