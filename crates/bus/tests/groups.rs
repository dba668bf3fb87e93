//! Shared subscriptions: each message goes to one member, and none is lost when a member leaves.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::thread;

use mainstem_bus::{Bus, Delivered, Mailbox, Overflow};

const ONE: Delivered = Delivered { delivered: 1, dropped: 0, failed: 0 };

fn drain_payloads(mailbox: &Mailbox<u32>) -> Vec<u32> {
    let mut messages = Vec::new();
    mailbox.drain(usize::MAX, &mut messages).expect("the bus is open");
    messages.iter().map(|message| *message.payload()).collect()
}

#[test]
fn each_message_goes_to_one_member_of_each_group() {
    let bus = Bus::new();
    let workers: Vec<_> = (0..3).map(|_| bus.subscribe("$share/w/job/+").mailbox().unwrap()).collect();
    let auditor = bus.subscribe("$share/audit/job/+").mailbox().unwrap();
    let plain = bus.subscribe("job/#").mailbox().unwrap();
    for job in 0..30 {
        assert_eq!(bus.publish(&format!("job/{job}"), job).unwrap().delivered, 3);
    }
    let shares: Vec<_> = workers.iter().map(drain_payloads).collect();
    assert!(shares.iter().all(|share| share.len() == 10), "{shares:?}");
    assert!(shares.iter().all(|share| share.is_sorted()), "{shares:?}");
    assert_eq!(shares.concat().into_iter().collect::<BTreeSet<_>>(), (0..30).collect());
    assert!(
        [drain_payloads(&auditor), drain_payloads(&plain)].iter().all(|all| all.iter().copied().eq(0..30))
    );
}

#[test]
fn least_loaded_member_is_chosen() {
    let bus = Bus::new();
    let busy = bus.subscribe("$share/w/job").mailbox().unwrap();
    (0..5).for_each(|job| assert_eq!(bus.publish("job", job), Ok(ONE)));
    let idle = bus.subscribe("$share/w/job").mailbox().unwrap();
    (5..10).for_each(|job| assert_eq!(bus.publish("job", job), Ok(ONE)));
    assert_eq!((busy.stats().lag, idle.stats().lag), (5, 5));
    assert_eq!(drain_payloads(&idle), [5, 6, 7, 8, 9]);
    assert_eq!(busy.stats().filter, "$share/w/job");
}

#[test]
fn members_of_all_kinds_share_messages() {
    let bus = Bus::new();
    let ran = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&ran);
    let mailbox = bus.subscribe("$share/w/job").capacity(3).overflow(Overflow::DropNewest).mailbox().unwrap();
    let mut cursor = bus.subscribe("$share/w/job").capacity(3).overflow(Overflow::Block).cursor().unwrap();
    for job in 0..6 {
        assert_eq!(bus.publish("job", job), Ok(ONE));
    }
    // Both are full now. A callback is never full.
    let _worker = bus
        .subscribe("$share/w/job")
        .callback(move |event| log.lock().unwrap().push(*event.payload()))
        .unwrap();
    for job in 6..9 {
        assert_eq!(bus.publish("job", job), Ok(ONE));
    }
    let mut all = drain_payloads(&mailbox);
    all.extend(cursor.try_batch(10).unwrap().iter().map(|event| *event.payload()));
    assert_eq!((all.len(), ran.lock().unwrap().as_slice()), (6, &[6, 7, 8][..]));
    all.extend(ran.lock().unwrap().iter());
    all.sort_unstable();
    assert!(all.into_iter().eq(0..9));
}

#[test]
fn full_group_applies_the_policy_of_its_least_loaded_member() {
    let bus = Bus::new();
    let member = bus.subscribe("$share/w/job").capacity(2).overflow(Overflow::DropOldest).mailbox().unwrap();
    (0..2).for_each(|job| assert_eq!(bus.publish("job", job), Ok(ONE)));
    assert_eq!(bus.publish("job", 2), Ok(Delivered { delivered: 1, dropped: 1, failed: 0 }));
    assert_eq!(bus.publish("job", 3), Ok(Delivered { delivered: 1, dropped: 1, failed: 0 }));
    assert_eq!((drain_payloads(&member), member.stats().dropped), (vec![2, 3], 2));
}

#[test]
fn messages_of_a_leaving_member_go_to_the_others() {
    for as_cursor in [false, true] {
        let bus = Bus::new();
        let subscribe = || bus.subscribe("$share/w/job").capacity(8).overflow(Overflow::Block);
        let mailbox = (!as_cursor).then(|| subscribe().mailbox().unwrap());
        let cursor = as_cursor.then(|| subscribe().cursor().unwrap());
        (0..8).for_each(|job| assert_eq!(bus.publish("job", job), Ok(ONE)));
        let remaining = subscribe().capacity(2).mailbox().unwrap();
        drop((mailbox, cursor));
        // This exceeds its capacity: accepted messages must not be lost.
        assert!(drain_payloads(&remaining).into_iter().eq(0..8));
        assert_eq!((bus.stats().abandoned, bus.stats().dropped), (0, 0));
        bus.publish("job", 8).unwrap();
        drop(remaining);
        assert_eq!(bus.stats().abandoned, 1);
        assert_eq!(bus.publish("job", 9), Ok(Delivered::default()));
    }
}

#[test]
fn blocked_publisher_moves_on_when_a_member_leaves() {
    for _ in 0..200 {
        let bus = Bus::new();
        let subscribe = || bus.subscribe("$share/w/job").capacity(1).overflow(Overflow::Block);
        let (leaving, staying) = (subscribe().mailbox().unwrap(), subscribe().mailbox().unwrap());
        (0..2).for_each(|job| assert_eq!(bus.publish("job", job), Ok(ONE)));
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(bus.publish("job", 2), Ok(ONE)));
            drop(leaving);
            let mut seen: Vec<_> = staying.iter().take(3).map(|message| *message.payload()).collect();
            seen.sort_unstable();
            assert_eq!(seen, [0, 1, 2]);
        });
    }
}

#[test]
fn disconnected_member_is_skipped() {
    let bus = Bus::new();
    let disconnected =
        bus.subscribe("$share/w/job").capacity(1).overflow(Overflow::Disconnect).mailbox().unwrap();
    bus.publish("job", 0).unwrap();
    assert_eq!(bus.publish("job", 1), Ok(Delivered { delivered: 0, dropped: 1, failed: 0 }));
    assert!(disconnected.stats().is_disconnected);
    let healthy = bus.subscribe("$share/w/job").mailbox().unwrap();
    (2..9).for_each(|job| assert_eq!(bus.publish("job", job), Ok(ONE)));
    assert!(drain_payloads(&healthy).into_iter().eq(2..9));
}

#[test]
fn joining_and_leaving_workers_lose_no_job() {
    const JOBS: u32 = 3_000;
    let bus = Bus::new();
    let subscribe = || bus.subscribe("$share/w/job").capacity(4).overflow(Overflow::Block).mailbox().unwrap();
    let done = Mutex::new(Vec::new());
    let permanent = subscribe();
    thread::scope(|scope| {
        scope.spawn(|| (0..JOBS).for_each(|job| assert_eq!(bus.publish("job", job), Ok(ONE))));
        let churning = scope.spawn(|| {
            for _ in 0..200 {
                let mailbox = subscribe();
                if let Ok(message) = mailbox.try_recv() {
                    done.lock().unwrap().push(*message.payload());
                }
            }
        });
        while done.lock().unwrap().len() < JOBS as usize {
            if let Some(message) = permanent.recv_timeout(std::time::Duration::from_millis(1)).unwrap() {
                done.lock().unwrap().push(*message.payload());
            }
        }
        churning.join().unwrap();
    });
    let mut done = done.into_inner().unwrap();
    done.sort_unstable();
    assert!(done.into_iter().eq(0..JOBS));
}
