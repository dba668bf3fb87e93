//! Failing callbacks are contained, counted and reported.

use std::sync::{Arc, Mutex};

use mainstem_bus::{Bus, Cause, Delivered, Event};

type Log = Arc<Mutex<Vec<String>>>;

/// Returns a bus that records its faults, and the record.
fn recording_bus() -> (Bus<u32>, Log) {
    let log = Log::default();
    let faults = Arc::clone(&log);
    let bus = Bus::builder().on_fault(move |fault| {
        let cause = match fault.cause {
            Cause::Error(error) => error.to_string(),
            Cause::Panic(message) => format!("panic: {message}"),
        };
        faults
            .lock()
            .unwrap()
            .push(format!("{} {} {} {cause}", fault.subscription, fault.filter, fault.topic));
    });
    (bus.build(), log)
}

/// Returns false, in a way that the compiler cannot evaluate.
fn opaque_false(event: &Event<'_, u32>) -> bool {
    event.topic().is_empty()
}

#[test]
fn errors_and_panics_reach_only_the_reporter() {
    let (bus, log) = recording_bus();
    let failing =
        bus.subscribe("a").callback(|event| "x".parse::<u32>().map(|_| *event.payload()).map(drop)).unwrap();
    let panicking = bus.subscribe("a").callback(|event| assert!(*event.payload() != 2, "two")).unwrap();
    let formatted = bus
        .subscribe("#")
        .callback(|event| assert!(opaque_false(event), "number {}", event.payload()))
        .unwrap();
    let mailbox = bus.subscribe("a").mailbox().unwrap();
    let ran = Arc::new(Mutex::new(0));
    let count = Arc::clone(&ran);
    let last = bus.subscribe("a").callback(move |_| *count.lock().unwrap() += 1).unwrap();

    assert_eq!(bus.publish("a", 1), Ok(Delivered { delivered: 3, dropped: 0, failed: 2 }));
    assert_eq!(bus.publish("a", 2), Ok(Delivered { delivered: 2, dropped: 0, failed: 3 }));
    assert_eq!((*ran.lock().unwrap(), mailbox.stats().lag), (2, 2));
    let invalid = "0 a a invalid digit found in string";
    let expected = [invalid, "2 # a panic: number 1", invalid, "1 a a panic: two", "2 # a panic: number 2"];
    assert_eq!(*log.lock().unwrap(), expected);
    let failed = [&failing, &panicking, &formatted, &last].map(|subscription| subscription.stats().failed);
    assert_eq!(failed, [2, 1, 2, 0]);
    assert_eq!(bus.stats().failed, 5);
    drop((failing, panicking));
    assert_eq!(bus.stats().failed, 5);
}

#[test]
fn group_members_and_replays_are_contained() {
    let (bus, log) = recording_bus();
    bus.message("a", 1).retain().publish().unwrap();
    let replayed =
        bus.subscribe("a").replay().callback(|event| assert!(opaque_false(event), "replayed")).unwrap();
    let worker = bus.subscribe("$share/g/b").callback(|_| Err::<(), _>("tired")).unwrap();
    assert_eq!(bus.publish("b", 2), Ok(Delivered { delivered: 0, dropped: 0, failed: 1 }));
    assert_eq!((worker.stats().lag, worker.stats().failed, replayed.stats().failed), (0, 1, 1));
    assert_eq!(*log.lock().unwrap(), ["0 a a panic: replayed", "1 $share/g/b b tired"]);
}

#[test]
fn panicking_reporter_does_not_affect_delivery() {
    let bus = Bus::builder().on_fault(|_| panic!("the reporter itself")).build();
    let _failing = bus.subscribe("a").callback(|_| Err::<(), _>("no")).unwrap();
    let mailbox = bus.subscribe("a").mailbox().unwrap();
    for value in 0..3 {
        assert_eq!(bus.publish("a", value).unwrap().failed, 1);
    }
    assert_eq!((mailbox.stats().lag, bus.stats().failed), (3, 3));
}
