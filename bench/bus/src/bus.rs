//! Rows of the Mainstem bus.
//!
//! Every row asserts its delivery counts, so a fast result with lost messages is impossible.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use mainstem_bus::{Bus, Cursor, Mailbox, Subscription};
use mainstem_topic::{Index, MatchCache};

use crate::meter::{cost, measure, print, thread_cpu, to_f64};
use crate::{BURST, RECEIVERS};

const FILTERS: usize = 1_000_000;
const TOPIC: &str = "plant/7/press/temp";

/// Delivery counter. One thread writes it at a time, so it avoids an atomic read-modify-write, which would cost more
/// than the delivery. Padded to avoid false sharing between threads.
#[derive(Default)]
#[repr(align(128))]
struct Count(AtomicU64);

impl Count {
    fn add(&self, messages: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + messages, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

fn counting(bus: &Bus<u64>, filter: &str) -> (Subscription<u64>, Arc<Count>) {
    let count = Arc::new(Count::default());
    let own = Arc::clone(&count);
    let subscription =
        bus.subscribe(filter).callback(move |event| own.add(*event.payload())).expect("the filter is valid");
    (subscription, count)
}

fn device_topic(device: usize) -> String {
    format!("site/{}/line/{}/device/{device:07}/state", device % 50, device % 1_000)
}

/// Topic names spread over the filters, matched repeatedly.
fn hot_names() -> Vec<String> {
    (0..16).map(|number| device_topic(number * FILTERS / 16 + 777)).collect()
}

pub(crate) fn matching() {
    let names = hot_names();
    let exact = index_of(device_topic);
    measure("match-exact", "mainstem", 16, || {
        for name in &names {
            let mut found = 0;
            exact.for_each_match(black_box(name), |_, ()| found += 1);
            assert_eq!(found, 1);
        }
    });
    drop(exact);
    // One filter in ten has a wildcard: most match one device, some a line, a few a site.
    let mixed = index_of(|number| match number % 1_000 {
        0 => format!("site/{}/line/{}/#", number / 1_000 % 50, number / 1_000),
        1 => format!("+/{}/line/{}/device/+/state", number / 1_000 % 50, number / 1_000),
        2..100 => format!("site/{}/line/{}/device/{number:07}/+", number % 50, number % 1_000),
        _ => device_topic(number),
    });
    measure("match-wildcard", "mainstem", 16, || {
        for name in &names {
            let mut found = 0;
            mixed.for_each_match(black_box(name), |_, ()| found += 1);
            assert!(found > 0);
        }
    });
    let mut cache = MatchCache::new(65_536);
    for name in &names {
        let mut found = Vec::new();
        mixed.for_each_match(name, |id, ()| found.push(id));
        cache.insert(name, mixed.epoch(), found);
    }
    measure("match-cached", "mainstem", 16, || {
        for name in &names {
            assert!(black_box(cache.get(black_box(name), mixed.epoch())).is_some());
        }
    });
}

fn index_of(filter: impl Fn(usize) -> String) -> Index<()> {
    let mut index = Index::new();
    for number in 0..FILTERS {
        index.insert_with(&filter(number), || ());
    }
    index
}

/// One publish to five counting receivers.
pub(crate) fn publish() {
    let bus = Bus::new();
    let receivers: Vec<_> = (0..5).map(|_| counting(&bus, "plant/+/press/temp")).collect();
    let mut sent = 0;
    measure("publish-5", "mainstem callbacks", 1_000, || {
        for _ in 0..1_000 {
            assert_eq!(bus.publish(TOPIC, 1).map(|receipt| receipt.delivered), Ok(5));
        }
        sent += 1_000;
    });
    assert!(receivers.iter().all(|(_, count)| count.get() == sent));

    let bus = Bus::new();
    let mailboxes: Vec<Mailbox<u64>> =
        (0..5).map(|_| bus.subscribe("plant/+/press/temp").mailbox().expect("the filter is valid")).collect();
    measure("publish-5", "mainstem mailboxes", 1_000, || {
        for _ in 0..1_000 {
            assert_eq!(bus.publish(TOPIC, 1).map(|receipt| receipt.delivered), Ok(5));
            let received = mailboxes.iter().filter(|mailbox| mailbox.try_recv().is_ok());
            assert_eq!(received.count(), 5);
        }
    });
}

/// Threads that each publish on their own topic to one callback.
pub(crate) fn concurrent() {
    if cfg!(feature = "allocations") {
        return;
    }
    let bus = Bus::new();
    let alone = publishing(&bus, 1);
    print("concurrent-1", "mainstem callbacks", alone, 1e9 / alone, None);
    let together = publishing(&bus, 2);
    print("concurrent-2", "mainstem callbacks", together, 2e9 / together, None);
}

/// CPU nanoseconds per publish with `threads` concurrent threads: the mean of each thread's best slice.
fn publishing(bus: &Bus<u64>, threads: u32) -> f64 {
    const PUBLISHES: u64 = 100_000;
    let one = |thread: u32| {
        let topic = format!("plant/{thread}/temp");
        let (_subscription, count) = counting(bus, &topic);
        let mut best = f64::INFINITY;
        let slices = 30;
        for _ in 0..slices {
            let start = thread_cpu();
            for _ in 0..PUBLISHES {
                assert_eq!(bus.publish(&topic, 1).map(|receipt| receipt.delivered), Ok(1));
            }
            best = best.min(thread_cpu().saturating_sub(start).as_secs_f64() * 1e9 / to_f64(PUBLISHES));
        }
        assert_eq!(count.get(), slices * PUBLISHES);
        best
    };
    let total: f64 = thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || one(thread))).collect();
        running.into_iter().map(|thread| thread.join().expect("it does not panic")).sum()
    });
    total / f64::from(threads)
}

/// One publisher to a thousand counting receivers.
pub(crate) fn fan_out() {
    let bus = Bus::new();
    let receivers: Vec<_> = (0..RECEIVERS).map(|_| counting(&bus, TOPIC)).collect();
    let mut sent = 0;
    measure("fan-out", "mainstem callbacks", BURST * RECEIVERS, || {
        for _ in 0..BURST {
            assert_eq!(bus.publish(TOPIC, 1).map(|receipt| receipt.delivered), Ok(1_000));
        }
        sent += BURST;
    });
    assert!(receivers.iter().all(|(_, count)| count.get() == sent));

    let bus = Bus::new();
    let mut cursors: Vec<(Cursor<u64>, u64)> =
        (0..RECEIVERS).map(|_| (bus.subscribe(TOPIC).cursor().expect("the filter is valid"), 0)).collect();
    let mut sent = 0;
    measure("fan-out", "mainstem cursors", BURST * RECEIVERS, || {
        for _ in 0..BURST {
            assert_eq!(bus.publish(TOPIC, 1).map(|receipt| receipt.delivered), Ok(1_000));
        }
        sent += BURST;
        for (cursor, count) in &mut cursors {
            while *count < sent {
                let batch = cursor.try_batch(256).expect("the bus is open");
                *count += batch.iter().map(|event| *event.payload()).sum::<u64>();
            }
        }
    });
    assert!(cursors.iter().all(|(cursor, count)| *count == sent && cursor.stats().dropped == 0));

    let bus = Bus::new();
    let mut mailboxes: Vec<(Mailbox<u64>, u64)> =
        (0..RECEIVERS).map(|_| (bus.subscribe(TOPIC).mailbox().expect("the filter is valid"), 0)).collect();
    let (mut sent, mut messages) = (0, Vec::new());
    measure("fan-out", "mainstem mailboxes", BURST * RECEIVERS, || {
        for _ in 0..BURST {
            assert_eq!(bus.publish(TOPIC, 1).map(|receipt| receipt.delivered), Ok(1_000));
        }
        sent += BURST;
        for (mailbox, count) in &mut mailboxes {
            mailbox.drain(usize::MAX, &mut messages).expect("the bus is open");
            *count += messages.drain(..).map(|message| *message.payload()).sum::<u64>();
        }
    });
    assert!(mailboxes.iter().all(|(_, count)| *count == sent));
}

/// Subscribe and unsubscribe a new filter, beside 100,000 others.
pub(crate) fn subscribe() {
    let bus = Bus::<u64>::new();
    let _others: Vec<_> = (0..100_000).map(|number| counting(&bus, &device_topic(number))).collect();
    for (row, filter) in [("subscribe-exact", "plant/7/temp"), ("subscribe-wildcard", "plant/+/temp")] {
        measure(row, "mainstem callbacks", 1_000, || {
            for _ in 0..1_000 {
                drop(black_box(bus.subscribe(black_box(filter)).callback(|_| {})));
            }
        });
    }
    // The same while the match caches are in use; each unsubscribe invalidates them.
    let (_subscription, count) = counting(&bus, "busy");
    let mut publishes = 0;
    let (alone, _) = cost(1_000, || (0..1_000).for_each(|_| assert!(bus.publish("busy", 0).is_ok())));
    let (both, allocations) = cost(1_000, || {
        for _ in 0..1_000 {
            drop(black_box(bus.subscribe("plant/7/temp").callback(|_| {})));
            assert!(bus.publish("busy", 1).is_ok());
            publishes += 1;
        }
    });
    assert_eq!(count.get(), publishes);
    let ns = both - alone;
    print("subscribe-publish", "mainstem callbacks", ns, 1e9 / ns, allocations);
}

/// Sequential messages to one receiver.
pub(crate) fn one_to_one() {
    let bus = Bus::new();
    let mailbox: Mailbox<u64> = bus.subscribe(TOPIC).mailbox().expect("the filter is valid");
    measure("one-to-one", "mainstem mailboxes", BURST, || {
        for number in 0..BURST {
            assert!(bus.publish(TOPIC, number).is_ok());
        }
        for number in 0..BURST {
            assert!(matches!(mailbox.try_recv(), Ok(message) if *message.payload() == number));
        }
    });
    let mut cursor: Cursor<u64> = bus.subscribe("cursor").cursor().expect("the filter is valid");
    measure("one-to-one", "mainstem cursors", BURST, || {
        for number in 0..BURST {
            assert!(bus.publish("cursor", number).is_ok());
        }
        let mut expected = 0..BURST;
        while !expected.is_empty() {
            let batch = cursor.try_batch(256).expect("the bus is open");
            assert!(batch.iter().all(|event| Some(*event.payload()) == expected.next()));
        }
    });
}
