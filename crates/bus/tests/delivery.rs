//! Delivery: which subscriptions get a message, in which order, and with which metadata.

use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, SystemTime};

use futures_core::Stream;
use mainstem_bus::{
    Bus, Delivered, Mailbox, Overflow, PublishError, SubscribeError, TopicError, TryRecvError,
};

/// Upper bound for a hung test; no passing test waits this long.
const DEADLINE: Duration = Duration::from_secs(30);

fn drain_payloads<T: Copy + Send + Sync>(mailbox: &Mailbox<T>) -> Vec<T> {
    let mut messages = Vec::new();
    mailbox.drain(usize::MAX, &mut messages).expect("the bus is open");
    messages.iter().map(|message| *message.payload()).collect()
}

#[test]
fn all_subscription_kinds_get_matching_messages_only() {
    let bus = Bus::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let _callback = bus
        .subscribe("plant/+/temp")
        .callback(move |event| log.lock().unwrap().push((event.topic().to_owned(), *event.payload())))
        .unwrap();
    let mailbox = bus.subscribe("plant/#").mailbox().unwrap();
    let mut cursor = bus.subscribe("plant/7/temp").cursor().unwrap();

    let all = Delivered { delivered: 3, dropped: 0, failed: 0 };
    assert_eq!(bus.publish("plant/7/temp", 21), Ok(all));
    assert_eq!(bus.publish("plant", 1), Ok(Delivered { delivered: 1, ..Delivered::default() }));
    assert_eq!(bus.publish("plants/7/temp", 2), Ok(Delivered::default()));

    assert_eq!(*seen.lock().unwrap(), [("plant/7/temp".to_owned(), 21)]);
    assert_eq!(drain_payloads(&mailbox), [21, 1]);
    let batch = cursor.try_batch(10).unwrap();
    let events: Vec<_> = batch.iter().map(|event| (event.topic(), *event.payload())).collect();
    assert_eq!((batch.len(), events), (1, vec![("plant/7/temp", 21)]));
    assert!(cursor.try_batch(10).unwrap().is_empty());
}

#[test]
fn rejects_invalid_topics_and_filters() {
    let bus: Bus<()> = Bus::new();
    for (topic, error) in [
        ("", TopicError::Empty),
        ("a/+", TopicError::WildcardInName),
        ("a/#", TopicError::WildcardInName),
        ("a\0", TopicError::Nul),
        (&"x".repeat(65_536), TopicError::TooLong),
    ] {
        assert_eq!(bus.publish(topic, ()), Err(PublishError::Topic(error)), "{topic:.10?}");
        assert_eq!(bus.publish_batch(topic, [()]), Err(PublishError::Topic(error)));
        assert_eq!(bus.message(topic, ()).retain().publish(), Err(PublishError::Topic(error)));
    }
    for (filter, error) in [
        ("", TopicError::Empty),
        ("a/#/b", TopicError::MisplacedMultiLevel),
        ("a#", TopicError::MisplacedMultiLevel),
        ("a/b+", TopicError::MisplacedSingleLevel),
        ("$share//a", TopicError::ShareName),
        ("$share/g", TopicError::ShareFilterMissing),
    ] {
        let refused = bus.subscribe(filter).mailbox().map(drop);
        assert_eq!(refused, Err(SubscribeError::Filter(error)), "{filter:?}");
    }
    assert_eq!(bus.subscribe("a").capacity(0).mailbox().map(drop), Err(SubscribeError::Capacity));
    assert_eq!(bus.subscribe("a").capacity(usize::MAX).cursor().map(drop), Err(SubscribeError::Capacity));
    assert_eq!((bus.stats().filters, bus.stats().published), (0, 0));
}

#[test]
fn wildcards_do_not_match_dollar_topics() {
    let bus = Bus::new();
    let wild = bus.subscribe("#").mailbox().unwrap();
    let plain = bus.subscribe("$SYS/+").mailbox().unwrap();
    bus.publish("$SYS/load", 1).unwrap();
    assert_eq!((drain_payloads(&wild), drain_payloads(&plain)), (vec![], vec![1]));
}

#[test]
fn subscription_gets_messages_between_subscribe_and_drop() {
    let bus = Bus::new();
    bus.publish("a", 1).unwrap();
    let first = bus.subscribe("a").mailbox().unwrap();
    bus.publish("a", 2).unwrap();
    let second = bus.subscribe("+").mailbox().unwrap();
    bus.publish("a", 3).unwrap();
    assert_eq!((drain_payloads(&first), drain_payloads(&second)), (vec![2, 3], vec![3]));
    drop(first);
    assert_eq!(bus.publish("a", 4).unwrap().delivered, 1);
    drop(second);
    assert_eq!(bus.publish("a", 5).unwrap().delivered, 0);
    assert_eq!((bus.stats().filters, bus.stats().subscriptions.len()), (0, 0));
}

#[test]
fn unsubscribing_drops_the_callback() {
    let bus = Bus::new();
    let captured = Arc::new(());
    let held = Arc::clone(&captured);
    let subscription = bus.subscribe("a").callback(move |_| drop(Arc::clone(&held))).unwrap();
    // The match is cached now.
    assert_eq!(bus.publish("a", 0).unwrap().delivered, 1);
    assert_eq!(Arc::strong_count(&captured), 2);
    drop(subscription);
    assert_eq!(Arc::strong_count(&captured), 1);
    assert_eq!(bus.publish("a", 0).unwrap().delivered, 0);
}

#[test]
fn detached_callback_lives_as_long_as_the_bus() {
    let bus = Bus::new();
    let captured = Arc::new(());
    let held = Arc::clone(&captured);
    bus.subscribe("a").callback(move |_| drop(Arc::clone(&held))).unwrap().detach();
    assert_eq!(bus.publish("a", 0).unwrap().delivered, 1);
    drop(bus);
    assert_eq!(Arc::strong_count(&captured), 1);
}

#[test]
fn mailbox_sees_metadata_only_if_requested() {
    let bus = Bus::new();
    let with_metadata = bus.subscribe("a").metadata().mailbox().unwrap();
    let without_metadata = bus.subscribe("a").mailbox().unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(7);
    let draft = bus.message("a", 1).header("unit", "C").header("site", "b").header("unit", "F");
    draft.timestamp(time).publish().unwrap();
    let message = with_metadata.try_recv().unwrap();
    assert_eq!(message.headers().collect::<Vec<_>>(), [("unit", "C"), ("site", "b"), ("unit", "F")]);
    assert_eq!((message.header("unit"), message.header("x")), (Some("C"), None));
    assert_eq!(message.timestamp(), Some(time));
    let message = without_metadata.try_recv().unwrap();
    assert_eq!((message.headers().count(), message.timestamp()), (0, None));

    let before = SystemTime::now();
    bus.publish("a", 2).unwrap();
    bus.publish_batch("a", [3]).unwrap();
    for _ in 0..2 {
        let stamp = with_metadata.try_recv().unwrap().timestamp().unwrap();
        assert!((before..=SystemTime::now()).contains(&stamp));
        assert_eq!(without_metadata.try_recv().unwrap().timestamp(), None);
    }
}

#[test]
fn callback_sees_metadata_only_if_requested() {
    let bus = Bus::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (first, second) = (Arc::clone(&seen), Arc::clone(&seen));
    let units = |event: &mainstem_bus::Event<'_, u32>| event.header("unit").map(str::to_owned);
    let _with_metadata =
        bus.subscribe("a").metadata().callback(move |event| first.lock().unwrap().push(units(event)));
    let _without_metadata =
        bus.subscribe("a").callback(move |event| second.lock().unwrap().push(units(event)));
    bus.message("a", 1).header("unit", "C").publish().unwrap();
    assert_eq!(*seen.lock().unwrap(), [Some("C".to_owned()), None]);
}

#[test]
fn batch_arrives_in_order() {
    let bus = Bus::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let _callback =
        bus.subscribe("a").callback(move |event| log.lock().unwrap().push(*event.payload())).unwrap();
    let alone = bus.publish_batch("a", 0..3).unwrap();
    assert_eq!(alone, Delivered { delivered: 3, ..Delivered::default() });
    let mailbox = bus.subscribe("a").mailbox().unwrap();
    let mut cursor = bus.subscribe("a").cursor().unwrap();
    assert_eq!(bus.publish_batch("a", 3..6).unwrap().delivered, 9);
    assert_eq!(*seen.lock().unwrap(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(drain_payloads(&mailbox), [3, 4, 5]);
    let batch = cursor.try_batch(100).unwrap();
    assert_eq!(batch.iter().map(|event| *event.payload()).collect::<Vec<_>>(), [3, 4, 5]);
    assert_eq!(bus.stats().published, 6);
}

#[test]
fn payload_is_shared_and_the_last_holder_can_take_it() {
    struct NotClone(u32);
    let bus = Bus::new();
    let (one, two) = (bus.subscribe("a").mailbox().unwrap(), bus.subscribe("a").mailbox().unwrap());
    bus.publish("a", NotClone(7)).unwrap();
    let (one, two) = (one.try_recv().unwrap(), two.try_recv().unwrap());
    let Err(one) = one.try_into_payload() else { panic!("there are two references") };
    drop(two);
    assert_eq!(one.try_into_payload().map(|payload| payload.0).ok(), Some(7));
}

#[test]
fn callbacks_may_publish_and_subscribe() {
    let bus = Bus::new();
    let seen = bus.subscribe("out").mailbox().unwrap();
    let (inner, kept) = (bus.clone(), Mutex::new(Vec::new()));
    let subscription = bus
        .subscribe("in")
        .callback(move |event| {
            kept.lock().unwrap().push(inner.subscribe("out").mailbox().unwrap());
            inner.publish("out", *event.payload() + 1).map(drop)
        })
        .unwrap();
    bus.publish("in", 1).unwrap();
    bus.publish("in", 2).unwrap();
    assert_eq!(drain_payloads(&seen), [2, 3]);
    drop(subscription);
    assert_eq!(bus.stats().subscriptions.len(), 1);
}

#[test]
fn callback_recursion_is_limited() {
    let bus = Bus::builder().on_fault(|_| {}).build();
    let calls = Arc::new(Mutex::new(0));
    let (inner, count) = (bus.clone(), Arc::clone(&calls));
    let _echo = bus.subscribe("a").callback(move |event| {
        *count.lock().unwrap() += 1;
        inner.publish("a", *event.payload()).map(drop)
    });
    bus.publish("a", 1).unwrap();
    assert_eq!(*calls.lock().unwrap(), mainstem_bus::MAX_NESTED);
    // The depth is reset for the next publish.
    bus.publish("a", 1).unwrap();
    assert_eq!(*calls.lock().unwrap(), 2 * mainstem_bus::MAX_NESTED);
}

#[test]
fn each_subscriber_sees_each_publisher_in_order() {
    const PUBLISHERS: usize = 4;
    const EACH: usize = 2_000;
    let bus = Bus::new();
    let mailbox = bus.subscribe("p/+").capacity(16).overflow(Overflow::Block).mailbox().unwrap();
    let mut cursor = bus.subscribe("p/#").capacity(16).overflow(Overflow::Block).cursor().unwrap();
    let log = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&log);
    let _callback =
        bus.subscribe("#").callback(move |event| seen.lock().unwrap().push(*event.payload())).unwrap();
    let in_order = |seen: &[(usize, usize)]| {
        (0..PUBLISHERS).all(|publisher| {
            let own = seen.iter().filter(|(of, _)| *of == publisher).map(|&(_, number)| number);
            own.eq(0..EACH)
        })
    };
    thread::scope(|scope| {
        for publisher in 0..PUBLISHERS {
            let bus = &bus;
            scope.spawn(move || {
                for number in 0..EACH {
                    // On several topics: the order is per publisher, not per topic.
                    bus.publish(&format!("p/{}", number % 3), (publisher, number)).unwrap();
                }
            });
        }
        scope.spawn(|| {
            let mut seen = Vec::new();
            while seen.len() < PUBLISHERS * EACH {
                seen.extend(cursor.next_batch(7).unwrap().iter().map(|event| *event.payload()));
            }
            assert!(in_order(&seen));
        });
        let seen: Vec<_> = mailbox.iter().take(PUBLISHERS * EACH).map(|message| *message.payload()).collect();
        assert!(in_order(&seen));
    });
    assert!(in_order(&log.lock().unwrap()));
}

#[test]
fn subscription_gets_messages_published_by_other_threads_after_it() {
    let bus = Bus::new();
    thread::scope(|scope| {
        let (request, requests) = std::sync::mpsc::channel::<u32>();
        let (done, is_done) = std::sync::mpsc::channel();
        let publisher = bus.clone();
        scope.spawn(move || {
            for round in requests {
                publisher.publish("a/b", round).unwrap();
                done.send(()).unwrap();
            }
        });
        for round in 0..2_000 {
            let mailbox = bus.subscribe(if round % 2 == 0 { "a/b" } else { "a/+" }).mailbox().unwrap();
            request.send(round).unwrap();
            is_done.recv_timeout(DEADLINE).unwrap();
            assert_eq!(drain_payloads(&mailbox), [round]);
        }
        drop(request);
    });
}

#[test]
fn receive_waits_for_a_message_or_times_out() {
    let bus = Bus::new();
    let mailbox = bus.subscribe("a").mailbox().unwrap();
    assert!(mailbox.recv_timeout(Duration::from_millis(1)).unwrap().is_none());
    let mut cursor = bus.subscribe("a").cursor().unwrap();
    assert!(cursor.batch_timeout(1, Duration::from_millis(1)).unwrap().is_empty());
    thread::scope(|scope| {
        scope.spawn(|| bus.publish("a", 1).unwrap());
        assert_eq!(mailbox.recv_timeout(DEADLINE).unwrap().map(|message| *message.payload()), Some(1));
        assert_eq!(cursor.batch_timeout(1, DEADLINE).unwrap().len(), 1);
        scope.spawn(|| bus.publish("a", 2).unwrap());
        assert_eq!(mailbox.recv().map(|message| *message.payload()), Ok(2));
        assert_eq!(cursor.next_batch(1).unwrap().len(), 1);
    });
}

/// Counts its wake-ups.
#[derive(Default)]
struct WakeCounter(Mutex<usize>);

impl Wake for WakeCounter {
    fn wake(self: Arc<Self>) {
        *self.0.lock().unwrap() += 1;
    }
}

#[test]
fn stream_is_woken_by_a_message_and_by_close() {
    let bus = Bus::new();
    let mut mailbox = pin!(bus.subscribe("a").mailbox().unwrap());
    let wake_count = Arc::new(WakeCounter::default());
    let waker = Waker::from(Arc::clone(&wake_count));
    let mut context = Context::from_waker(&waker);
    let mut poll = |mailbox: Pin<&mut Mailbox<u32>>| {
        let polled = mailbox.poll_next(&mut context);
        polled.map(|message| message.map(|message| *message.payload()))
    };
    assert_eq!(poll(mailbox.as_mut()), Poll::Pending);
    assert_eq!(poll(mailbox.as_mut()), Poll::Pending);
    assert_eq!(*wake_count.0.lock().unwrap(), 0);
    bus.publish("a", 1).unwrap();
    bus.publish("a", 2).unwrap();
    assert_eq!(*wake_count.0.lock().unwrap(), 1);
    assert_eq!(poll(mailbox.as_mut()), Poll::Ready(Some(1)));
    assert_eq!(poll(mailbox.as_mut()), Poll::Ready(Some(2)));
    assert_eq!(poll(mailbox.as_mut()), Poll::Pending);
    bus.close();
    assert_eq!(*wake_count.0.lock().unwrap(), 2);
    assert_eq!(poll(mailbox.as_mut()), Poll::Ready(None));
    assert_eq!(mailbox.try_recv().map(drop), Err(TryRecvError::Closed));
}

#[test]
fn polling_a_full_mailbox_unblocks_its_publisher() {
    let bus = Bus::new();
    let mut mailbox = pin!(bus.subscribe("a").capacity(1).overflow(Overflow::Block).mailbox().unwrap());
    let mut seen = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| bus.publish_batch("a", 0..100).unwrap());
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        while seen.len() < 100 {
            match mailbox.as_mut().poll_next(&mut context) {
                Poll::Ready(message) => seen.extend(message.map(|message| *message.payload())),
                Poll::Pending => thread::park_timeout(DEADLINE),
            }
        }
    });
    assert!(seen.into_iter().eq(0..100));
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
