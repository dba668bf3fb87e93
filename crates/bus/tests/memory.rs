//! Allocations: one per publish at most, and no growth with the number of topics or subscriptions over time.

use allocation_counter::measure;
use mainstem_bus::{Bus, Overflow};

#[test]
fn callbacks_allocate_nothing_and_mailboxes_share_one_allocation() {
    let bus = Bus::new();
    let _callbacks: Vec<_> = (0..5)
        .map(|_| bus.subscribe("a/+").callback(|event| assert_ne!(*event.payload(), 0)).unwrap())
        .collect();
    bus.publish("a/b", 1_u64).unwrap();
    let allocations = measure(|| assert_eq!(bus.publish("a/b", 2).unwrap().delivered, 5));
    assert_eq!((allocations.count_total, allocations.bytes_current), (0, 0));

    let mailboxes: Vec<_> = (0..5).map(|_| bus.subscribe("a/b").mailbox().unwrap()).collect();
    let mut cursors: Vec<_> = (0..5).map(|_| bus.subscribe("a/b").cursor().unwrap()).collect();
    let mut round = |bus: &Bus<u64>| {
        let allocations = measure(|| assert_eq!(bus.publish("a/b", 3).unwrap().delivered, 15));
        assert!(mailboxes.iter().all(|mailbox| mailbox.try_recv().is_ok()));
        assert!(cursors.iter_mut().all(|cursor| cursor.try_batch(1).unwrap().len() == 1));
        allocations.count_total
    };
    round(&bus);
    assert_eq!(round(&bus), 1);
}

#[test]
fn memory_does_not_grow_with_distinct_topics() {
    const CACHED: u32 = 256;
    let bus = Bus::builder().cached_topics(CACHED).build();
    let mailbox = bus.subscribe("#").capacity(10).mailbox().unwrap();
    let mut cursor = bus.subscribe("d/#").capacity(10).cursor().unwrap();
    let _blocked = bus.subscribe("x/+/y").capacity(1).overflow(Overflow::DropNewest).mailbox().unwrap();
    let flow = |from: usize| {
        for number in from..from + 20_000 {
            bus.publish(&format!("d/{number}/temperature"), number).unwrap();
            bus.publish(&format!("x/{number}/y"), number).unwrap();
        }
    };
    flow(0);
    let allocations = measure(|| (1..10).for_each(|round| flow(round * 20_000)));
    assert!(allocations.bytes_current.abs() < 4 << 10, "{allocations:?}");
    assert!(allocations.bytes_max < 64 << 10, "{allocations:?}");
    assert_eq!(mailbox.stats().lag, 10);
    assert_eq!(cursor.try_batch(100).unwrap().len() + cursor.try_batch(100).unwrap().len(), 10);
}

#[test]
fn subscribing_and_unsubscribing_leaks_nothing() {
    let bus = Bus::new();
    let churn = |from: usize| {
        for number in from..from + 1_000 {
            let (topic, filter) = (format!("a/{number}"), format!("a/{number}/#"));
            let mailbox = bus.subscribe(&filter).mailbox().unwrap();
            let cursor = bus.subscribe(&filter).capacity(number + 1).cursor().unwrap();
            let member = bus.subscribe(&format!("$share/{number}/a/+")).mailbox().unwrap();
            let callback = bus.subscribe(&topic).callback(|_| {}).unwrap();
            assert_eq!(bus.publish(&topic, number).unwrap().delivered, 4);
            drop((mailbox, cursor, member, callback));
        }
    };
    churn(0);
    let allocations = measure(|| (1..5).for_each(|round| churn(round * 1_000)));
    assert!(allocations.bytes_current.abs() < 4 << 10, "{allocations:?}");
    assert_eq!((bus.stats().filters, bus.stats().in_flight), (0, 0));
}
