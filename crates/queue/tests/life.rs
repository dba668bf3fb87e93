//! The life of messages in a queue, one step after the other.

use mainstem_queue::{Config, GroupId, Lease, Meta, Queue, Reason, Receipt, Refusal, Settlement, Verdict};

const GROUP: GroupId = GroupId::DEFAULT;

fn message(offset: u64) -> Meta {
    Meta { offset, timestamp_ms: 1_000, bytes: 10, expires_ms: u64::MAX, ..Meta::default() }
}

fn queue(pairs: &[(&str, &str)], messages: impl IntoIterator<Item = Meta>) -> Queue {
    let mut queue = Queue::new(Config::from_pairs(pairs.iter().copied()).unwrap());
    for meta in messages {
        queue.register(meta, 1_000);
    }
    queue
}

fn lease(queue: &mut Queue, consumer: u64, max: usize, now_ms: u64) -> Vec<Lease> {
    let mut leases = Vec::new();
    queue.lease(GROUP, consumer, max, None, now_ms, &mut leases);
    leases
}

fn offsets(leases: &[Lease]) -> Vec<u64> {
    leases.iter().map(|lease| lease.receipt.offset).collect()
}

fn settle(queue: &mut Queue, receipt: Receipt, verdict: Verdict, now_ms: u64) -> Result<(), Refusal> {
    queue.settle(GROUP, &Settlement { receipt, verdict }, now_ms, 0)
}

/// Flushes, as if to a disk that is at once.
fn flush(queue: &mut Queue, now_ms: u64) -> Option<Vec<u8>> {
    let mut events = Vec::new();
    let number = queue.flush(&mut events)?;
    queue.durable(number, now_ms);
    Some(events)
}

/// The same queue after a crash that left these batches.
fn again(batches: &[&[u8]], life: u32) -> Queue {
    let mut again = queue(&[], []);
    for batch in batches {
        again.replay(batch).unwrap();
    }
    again.begin_life(life);
    again.register(message(0), 3_000);
    again
}

#[test]
fn a_delivery_that_was_never_sent_counts_for_nothing() {
    let mut queue = queue(&[("max-deliveries", "2"), ("backoff-ms", "0")], [message(0)]);
    let mut receipts = Vec::new();
    for _ in 0..5 {
        let receipt = lease(&mut queue, 1, 1, 1_000)[0].receipt;
        assert_eq!(receipt.count, 1);
        assert_eq!(settle(&mut queue, receipt, Verdict::Unsent, 1_000), Ok(()));
        assert_eq!(settle(&mut queue, receipt, Verdict::Ack, 1_000), Err(Refusal::Stale));
        assert!(!receipts.contains(&receipt));
        receipts.push(receipt);
    }
    let first = lease(&mut queue, 1, 1, 1_000)[0].receipt;
    assert_eq!(settle(&mut queue, first, Verdict::Nack(None), 1_000), Ok(()));
    let second = lease(&mut queue, 1, 1, 1_000)[0].receipt;
    assert_eq!((first.count, second.count), (1, 2));
    assert_eq!(settle(&mut queue, second, Verdict::Unsent, 1_000), Ok(()));
    let third = lease(&mut queue, 1, 1, 1_000)[0].receipt;
    assert_eq!(third.count, 2);
    assert_eq!(settle(&mut queue, third, Verdict::Nack(None), 1_000), Ok(()));
    assert_eq!(offsets(&lease(&mut queue, 1, 1, 1_000)), [] as [u64; 0], "it is a dead letter now");
}

#[test]
fn a_receipt_of_a_delivery_that_a_crash_has_made_forget_fits_no_other_one() {
    let mut first = queue(&[], [message(0)]);
    first.begin_life(10);
    let lost = lease(&mut first, 1, 1, 1_000)[0].receipt;
    let mut second = again(&[], 20);
    let receipt = lease(&mut second, 2, 1, 3_000)[0].receipt;
    assert_eq!((lost.offset, lost.count), (receipt.offset, receipt.count));
    assert_eq!(settle(&mut second, lost, Verdict::Ack, 3_001), Err(Refusal::Stale));
    // Nor after another crash, which forgets nothing.
    let delivered = flush(&mut second, 3_002).unwrap();
    let mut snapshot = Vec::new();
    second.snapshot(&mut snapshot);
    for batch in [&delivered, &snapshot] {
        let mut third = again(&[batch], 30);
        assert_eq!(settle(&mut third, lost, Verdict::Ack, 4_000), Err(Refusal::Stale));
        assert_eq!(settle(&mut third, receipt, Verdict::Ack, 4_000), Ok(()), "nobody else has had it since");
    }
}

#[test]
fn a_receipt_still_counts_when_nobody_could_be_given_the_message_since() {
    let mut first = queue(&[], [message(0)]);
    first.begin_life(10);
    let receipt = lease(&mut first, 1, 1, 1_000)[0].receipt;
    let mut second = again(&[&flush(&mut first, 1_001).unwrap()], 20);
    let unread = lease(&mut second, 2, 1, 3_000)[0];
    second.take_back(GROUP, &unread, 3_001);
    assert_eq!(settle(&mut second, unread.receipt, Verdict::Ack, 3_002), Err(Refusal::Stale));
    assert_eq!(settle(&mut second, receipt, Verdict::Ack, 3_002), Ok(()));
}

#[test]
fn a_receipt_from_before_a_replay_fits_no_delivery_behind_it() {
    let mut queue = queue(&[], [message(0)]);
    let before = lease(&mut queue, 1, 1, 1_000)[0].receipt;
    settle(&mut queue, before, Verdict::Ack, 1_001).unwrap();
    assert_eq!(queue.replay_from(GROUP, &[message(0)], 1_002), 1);
    let receipt = lease(&mut queue, 2, 1, 1_003)[0].receipt;
    assert_eq!(settle(&mut queue, before, Verdict::Ack, 1_004), Err(Refusal::Stale));
    settle(&mut queue, receipt, Verdict::Ack, 1_004).unwrap();
}

#[test]
fn a_rejected_message_leaves_once_its_event_is_durable() {
    let mut queue = queue(&[], [message(0), message(1)]);
    let leases = lease(&mut queue, 1, 1, 1_000);
    settle(&mut queue, leases[0].receipt, Verdict::Reject, 1_001).unwrap();
    assert_eq!(queue.take_leaving(9), []);
    flush(&mut queue, 1_002).unwrap();
    let leaving = queue.take_leaving(9);
    assert_eq!(leaving.len(), 1);
    assert_eq!((leaving[0].offset, leaving[0].number, leaving[0].reason), (0, 1, Reason::Rejected));
    assert_eq!(queue.take_leaving(9), []);
    queue.give_back_leaving(GROUP, 1);
    assert_eq!(queue.take_leaving(9), leaving);
    assert_eq!(queue.needed_from(), 0);
    queue.left(GROUP, 1);
    assert_eq!(queue.needed_from(), 1);
}

#[test]
fn a_message_waits_until_it_is_durable_that_the_one_before_of_its_key_is_settled() {
    let keyed = |offset| Meta { key: Some(5), ..message(offset) };
    let mut queue = queue(&[], [keyed(0), keyed(1), message(2)]);
    let leases = lease(&mut queue, 1, 9, 1_000);
    assert_eq!(offsets(&leases), [0, 2]);
    settle(&mut queue, leases[0].receipt, Verdict::Ack, 1_001).unwrap();
    assert!(!queue.can_lease(GROUP, 1));
    flush(&mut queue, 1_002).unwrap();
    assert_eq!(offsets(&lease(&mut queue, 1, 9, 1_003)), [1]);
}

#[test]
fn what_is_made_again_is_where_it_was() {
    let mut queue = queue(&[], (0..4).map(message));
    let leases = lease(&mut queue, 1, 3, 2_000);
    settle(&mut queue, leases[0].receipt, Verdict::Ack, 2_000).unwrap();
    settle(&mut queue, leases[1].receipt, Verdict::Nack(Some(500)), 2_000).unwrap();
    let events = flush(&mut queue, 2_000).unwrap();
    let mut again = Queue::new(Config::default());
    again.replay(&events).unwrap();
    assert_eq!((again.registered_to(), again.needed_from()), (0, 1));
    for offset in 0..5 {
        again.register(message(offset), 2_100);
    }
    let mut seen = Vec::new();
    again.peek(GROUP, 0, 9, &mut seen);
    assert_eq!(seen, [(1, 1, "delayed"), (2, 1, "ready"), (3, 0, "ready"), (4, 0, "ready")]);
    assert_eq!(again.next_due(), Some(2_500));
    let late = lease(&mut again, 2, 1, 2_100)[0];
    assert_eq!((late.receipt.count, late.first_delivered_ms), (2, 2_000));
}

#[test]
fn a_message_that_came_back_may_still_be_acknowledged_while_nobody_else_has_it() {
    let mut queue = queue(&[("lease-ms", "100")], [message(0), message(1)]);
    let leases = lease(&mut queue, 1, 2, 1_000);
    queue.tend(1_100);
    assert!(queue.can_lease(GROUP, 2));
    for late in [Verdict::Nack(None), Verdict::Release, Verdict::Extend(10)] {
        assert_eq!(settle(&mut queue, leases[0].receipt, late, 1_101), Err(Refusal::Stale));
    }
    assert_eq!(settle(&mut queue, leases[0].receipt, Verdict::Ack, 1_101), Ok(()));
    let again = lease(&mut queue, 2, 9, 1_102);
    assert_eq!((offsets(&again), again[0].receipt.count), (vec![1], 2));
    assert_eq!(settle(&mut queue, leases[1].receipt, Verdict::Ack, 1_103), Err(Refusal::Stale));
}

#[test]
fn refused_messages_wait_longer_each_time_and_then_leave() {
    let settings = [
        ("backoff-ms", "100"),
        ("backoff-max-ms", "300"),
        ("backoff-jitter-percent", "0"),
        ("max-deliveries", "4"),
    ];
    let mut queue = queue(&settings, [message(0)]);
    let mut now_ms = 1_000;
    for wait_ms in [100, 200, 300] {
        let receipt = lease(&mut queue, 1, 1, now_ms)[0].receipt;
        settle(&mut queue, receipt, Verdict::Nack(None), now_ms).unwrap();
        assert_eq!(queue.next_due(), Some(now_ms + wait_ms));
        now_ms += wait_ms;
        queue.tend(now_ms - 1);
        assert!(!queue.can_lease(GROUP, 1));
        queue.tend(now_ms);
    }
    let receipt = lease(&mut queue, 1, 1, now_ms)[0].receipt;
    settle(&mut queue, receipt, Verdict::Nack(None), now_ms).unwrap();
    flush(&mut queue, now_ms).unwrap();
    assert_eq!(queue.take_leaving(1)[0].reason, Reason::MaxDeliveries);
}

#[test]
fn one_consumer_is_active_until_it_leaves_or_is_silent_and_has_nothing() {
    let settings = [("single-active-consumer", "true"), ("lease-ms", "100")];
    let mut queue = queue(&settings, (0..4).map(message));
    let first = lease(&mut queue, 1, 1, 1_000);
    assert!(!queue.can_lease(GROUP, 2));
    assert_eq!(lease(&mut queue, 2, 1, 1_001), []);
    settle(&mut queue, first[0].receipt, Verdict::Extend(500), 1_050).unwrap();
    queue.tend(1_200);
    assert_eq!(lease(&mut queue, 2, 1, 1_200), []);
    settle(&mut queue, first[0].receipt, Verdict::Ack, 1_201).unwrap();
    assert_eq!(offsets(&lease(&mut queue, 2, 1, 1_202)), [1]);
    queue.leave(GROUP, 2, 1_203);
    assert_eq!(offsets(&lease(&mut queue, 3, 1, 1_203)), [2]);
}

#[test]
fn order_by_key_can_be_turned_off_and_on() {
    let keyed = |offset| Meta { key: Some(5), ..message(offset) };
    let mut queue = queue(&[], (0..4).map(keyed));
    assert_eq!(offsets(&lease(&mut queue, 1, 9, 1_000)), [0]);
    queue.configure(Config { fifo: false, ..Config::default() }, 1_001);
    let second = lease(&mut queue, 1, 1, 1_002);
    assert_eq!(offsets(&second), [1]);
    queue.configure(Config::default(), 1_003);
    assert!(!queue.can_lease(GROUP, 1));
    queue.tend(40_000);
    assert_eq!(offsets(&lease(&mut queue, 1, 9, 40_001)), [0]);
}

#[test]
fn order_by_key_is_turned_off_and_on_in_steps() {
    let keyed = |offset| Meta { key: Some(5), ..message(offset) };
    let mut queue = queue(&[], (0..100).map(keyed));
    queue.set_at_once(40);
    let off = Config { fifo: false, ..Config::default() };
    queue.configure(off.clone(), 1_000);
    // A message that is let in or out counts as four; and the next one in line is out.
    assert_eq!((queue.ready(GROUP), queue.is_busy()), (11, true));
    queue.tend(1_000);
    assert_eq!((queue.ready(GROUP), queue.next_due()), (21, Some(0)));
    // Half-way back again: those that are out line up, the others are where they were.
    queue.configure(Config::default(), 1_001);
    assert_eq!((queue.ready(GROUP), queue.is_busy()), (11, true));
    queue.tend(1_001);
    assert_eq!(queue.ready(GROUP), 1);
    while queue.is_busy() {
        queue.tend(1_001);
    }
    assert_eq!(offsets(&lease(&mut queue, 1, 100, 1_002)), [0]);
    queue.configure(off, 1_003);
    while queue.is_busy() {
        queue.tend(1_003);
    }
    assert_eq!(offsets(&lease(&mut queue, 1, 100, 1_003)), (1..100).collect::<Vec<_>>());
}

#[test]
fn nobody_of_a_key_comes_out_until_all_are_back_that_were_out_without_order() {
    let keyed = |offset| Meta { key: Some(5), ..message(offset) };
    let mut queue = queue(&[("fifo", "false")], (0..6).map(keyed));
    let leases = lease(&mut queue, 1, 4, 1_000);
    settle(&mut queue, leases[0].receipt, Verdict::Release, 1_000).unwrap();
    queue.configure(Config::default(), 1_001);
    for (at, verdict) in [(2, Verdict::Ack), (1, Verdict::Release)] {
        assert!(!queue.can_lease(GROUP, 1));
        settle(&mut queue, leases[at].receipt, verdict, 1_002).unwrap();
    }
    assert!(!queue.can_lease(GROUP, 1));
    settle(&mut queue, leases[3].receipt, Verdict::Release, 1_002).unwrap();
    assert_eq!(offsets(&lease(&mut queue, 1, 9, 1_003)), [0]);
}

/// Three of a key without order, of which the first is durably settled in line, the second not durably, and both come again.
fn settled_in_line_and_again_without_order() -> Queue {
    let keyed = |offset| Meta { key: Some(5), ..message(offset) };
    let mut queue = queue(&[], (0..3).map(keyed));
    let first = lease(&mut queue, 1, 9, 1_000);
    settle(&mut queue, first[0].receipt, Verdict::Ack, 1_000).unwrap();
    flush(&mut queue, 1_000);
    let second = lease(&mut queue, 1, 9, 1_000);
    settle(&mut queue, second[0].receipt, Verdict::Ack, 1_000).unwrap();
    queue.configure(Config { fifo: false, ..Config::default() }, 1_000);
    assert_eq!(queue.replay_from(GROUP, &[keyed(0), keyed(1)], 1_000), 2);
    queue.set_at_once(4);
    queue
}

#[test]
fn what_was_settled_in_line_may_come_again_without_order() {
    let mut queue = settled_in_line_and_again_without_order();
    for (ready, is_busy) in [(3, true), (2, true), (1, false)] {
        queue.configure(Config::default(), 1_000);
        assert_eq!((queue.ready(GROUP), queue.is_busy()), (ready, is_busy));
    }
    flush(&mut queue, 1_000);
    assert_eq!(offsets(&lease(&mut queue, 1, 9, 1_001)), [0]);
}

#[test]
fn that_it_was_settled_before_lets_nobody_out_while_somebody_has_a_message() {
    let mut queue = settled_in_line_and_again_without_order();
    let leases = lease(&mut queue, 1, 2, 1_000);
    settle(&mut queue, leases[0].receipt, Verdict::Release, 1_000).unwrap();
    while queue.is_busy() || !queue.config().fifo {
        queue.configure(Config::default(), 1_000);
    }
    flush(&mut queue, 1_000);
    assert!(!queue.can_lease(GROUP, 1), "somebody has the second");
    settle(&mut queue, leases[1].receipt, Verdict::Release, 1_000).unwrap();
    assert_eq!(offsets(&lease(&mut queue, 1, 9, 1_001)), [0]);
}

#[test]
fn the_time_to_live_may_change_faster_than_all_messages_can_be_looked_at() {
    let mut queue = queue(&[], (0..1_000).map(message));
    queue.set_at_once(1);
    for ttl_ms in (1..2_000).rev() {
        queue.configure(Config { ttl_ms: 1_000 + ttl_ms, ..Config::default() }, 1_000);
    }
    assert_eq!(offsets(&lease(&mut queue, 1, 1, 1_500)), [0]);
    queue.set_at_once(1_000);
    while queue.is_busy() {
        queue.tend(1_000);
    }
    assert_eq!(queue.next_due(), Some(2_001), "all are there, and expire as was said last");
    for _ in 0..2 {
        queue.tend(2_001);
    }
    assert_eq!(queue.ready(GROUP), 0);
    queue.configure(Config::default(), 2_002);
    assert_eq!(queue.needed(0, 9).len(), 9, "what leaves stays until it has arrived");
}

#[test]
fn who_has_been_given_more_time_does_not_expire_while_that_goes_round() {
    let mut queue = queue(&[("ttl-ms", "100")], (0..20).map(message));
    queue.set_at_once(4);
    queue.configure(Config { ttl_ms: 1_000, ..Config::default() }, 1_000);
    while queue.is_busy() {
        assert_eq!(queue.ready(GROUP), 20);
        queue.tend(1_500);
    }
    assert_eq!((queue.ready(GROUP), queue.next_due()), (20, Some(2_000)));
}

#[test]
fn names_of_groups_and_how_many_there_are_are_bounded() {
    let mut queue = queue(&[], []);
    for name in ["", "a/b", "a+", "#", "a\n", &"a".repeat(256)] {
        assert!(matches!(queue.open_group(&name.into(), 0), Err(Refusal::Invalid(_))), "{name:?}");
    }
    for number in 1..256 {
        queue.open_group(&format!("group {number}").into(), 0).unwrap();
    }
    assert_eq!(queue.open_group(&"one more".into(), 0), Err(Refusal::TooMany));
}

#[test]
fn a_queue_has_a_group_and_default_only_if_it_was_not_removed() {
    let mut first = queue(&[], [message(0)]);
    assert!(matches!(first.remove_group(GROUP), Err(Refusal::Invalid(_))), "it is the only one");
    let workers = first.open_group(&"workers".into(), 1_000).unwrap();
    assert_eq!(first.remove_group(GROUP), Ok(()));
    assert_eq!(first.remove_group(GROUP), Err(Refusal::UnknownGroup));
    assert!(matches!(first.remove_group(workers), Err(Refusal::Invalid(_))), "now it is the only one");
    let events = flush(&mut first, 1_000).unwrap();
    let mut snapshot = Vec::new();
    first.snapshot(&mut snapshot);
    for told in [events, snapshot] {
        let mut second = again(&[&told], 20);
        assert_eq!(second.group("default"), None);
        assert_eq!(second.ready(workers), 1);
        second.register(message(1), 3_000);
        let anew = second.open_group(&"default".into(), 3_000).unwrap();
        assert!(anew != GROUP);
        assert_eq!((second.ready(workers), second.ready(anew)), (2, 2));
    }
}

#[test]
fn dead_letters_go_back_in_their_order() {
    let moved = |offset| Meta {
        key: Some(5),
        moved_by: Some(("work/default".into(), offset + 1)),
        ..message(offset)
    };
    let mut queue = queue(&[], (0..3).map(moved).chain([message(3)]));
    assert_eq!(queue.redrive(9, 1_000), 3);
    flush(&mut queue, 1_001).unwrap();
    let leaving = queue.take_leaving(9);
    let seen: Vec<_> =
        leaving.iter().map(|leaving| (leaving.number, leaving.offset, leaving.reason)).collect();
    assert_eq!(seen, [(1, 0, Reason::Redriven), (2, 1, Reason::Redriven), (3, 2, Reason::Redriven)]);
}

#[test]
fn the_oldest_make_room_for_the_newest() {
    let settings = [("length-max", "2"), ("overflow", "drop-oldest"), ("dead-letters", "false")];
    let mut queue = queue(&settings, [message(0), message(1)]);
    assert_eq!(offsets(&lease(&mut queue, 1, 1, 1_000)), [0]);
    queue.register(message(2), 1_000);
    assert_eq!(queue.needed(0, 9), [0, 2]);
    assert!(queue.admits(10, 10));
}

#[test]
fn a_duplicate_does_not_come_with_a_replay() {
    let twin = |offset| Meta { dedup_id: Some(b"a".as_slice().into()), ..message(offset) };
    let twins = [twin(0), twin(1)];
    let mut queue = queue(&[], twins.clone());
    let leases = lease(&mut queue, 1, 9, 1_000);
    assert_eq!(offsets(&leases), [0]);
    settle(&mut queue, leases[0].receipt, Verdict::Ack, 1_001).unwrap();
    let events = flush(&mut queue, 1_002).unwrap();
    let mut snapshot = Vec::new();
    queue.snapshot(&mut snapshot);
    for made_from in [events, snapshot] {
        let mut again = Queue::new(Config::default());
        again.replay(&made_from).unwrap();
        for twin in &twins {
            again.register(twin.clone(), 1_003);
        }
        assert_eq!(again.replay_from(GROUP, &twins, 1_003), 1, "after a restart");
        assert_eq!(offsets(&lease(&mut again, 1, 9, 1_003)), [0]);
    }
    assert_eq!(queue.replay_from(GROUP, &twins, 1_003), 1);
    assert_eq!(offsets(&lease(&mut queue, 1, 9, 1_003)), [0]);
}

/// Does what is due, as often as there is something.
fn tend_all(queue: &mut Queue, now_ms: u64) {
    while queue.next_due().is_some_and(|due_ms| due_ms <= now_ms) {
        queue.tend(now_ms);
    }
}

fn counts(queue: &Queue) -> Vec<(String, u64, u64)> {
    let mut info = mainstem_queue::Info::default();
    queue.info(&mut info);
    info.groups.iter().map(|group| (group.name.clone(), group.ready, group.blocked)).collect()
}

#[test]
fn a_purge_goes_on_in_steps_and_leaves_what_came_later() {
    let mut queue = queue(&[], (0..50).map(message));
    queue.open_group(&"other".into(), 1_000).unwrap();
    queue.set_at_once(10);
    lease(&mut queue, 1, 30, 1_000);
    let (mut next, mut steps, mut purged) = (Some(0), 0, 0);
    while let Some(from) = next {
        queue.register(message(50 + steps), 1_000);
        let (count, rest) = queue.purge_some(None, from..50);
        (next, steps, purged) = (rest, steps + 1, purged + count);
    }
    assert_eq!((purged, steps), (50, 10));
    assert_eq!(queue.needed_from(), 50);
    flush(&mut queue, 1_001).unwrap();
    assert_eq!(counts(&queue), [("default".into(), 10, 0), ("other".into(), 10, 0)]);
}

#[test]
fn a_purge_that_is_cut_short_has_settled_what_it_said() {
    let mut queue = queue(&[], (0..50).map(message));
    queue.set_at_once(10);
    let (count, next) = queue.purge_some(None, 0..50);
    assert_eq!((count, next), (10, Some(10)));
    let events = flush(&mut queue, 1_001).unwrap();
    queue.purge_some(None, 10..50);
    let mut again = Queue::new(Config::default());
    again.replay(&events).unwrap();
    assert_eq!(again.needed_from(), 10);
}

#[test]
fn a_new_group_gets_old_messages_in_steps_though_others_settle_them() {
    let keyed = |offset| Meta { key: Some(5), ..message(offset) };
    let mut queue = queue(&[("fifo", "true")], (0..50).map(keyed));
    queue.set_at_once(10);
    let group = queue.open_group(&"late".into(), 1_000).unwrap();
    let mut events = flush(&mut queue, 1_000).unwrap();
    assert_eq!(counts(&queue), [("default".into(), 1, 49), ("late".into(), 1, 9)]);
    // Those that are given later are there all the same, behind a snapshot too, and what comes now stands behind them.
    queue.purge(Some(GROUP));
    queue.register(keyed(50), 1_000);
    flush(&mut queue, 1_000).unwrap();
    assert_eq!(queue.needed_from(), 0);
    assert_eq!(queue.needed(20, 3), [20, 21, 22]);
    let mut snapshot = Vec::new();
    queue.snapshot(&mut snapshot);
    events.clear();
    tend_all(&mut queue, 1_000);
    assert_eq!(counts(&queue)[1], ("late".into(), 1, 50));
    let mut again = Queue::new(Config::default());
    again.replay(&snapshot).unwrap();
    for offset in 0..51 {
        again.register(keyed(offset), 1_000);
    }
    assert_eq!(counts(&again), [("default".into(), 1, 0), ("late".into(), 1, 50)]);
    for offset in 0..51 {
        let mut leases = Vec::new();
        queue.lease(group, 1, 9, None, 1_000, &mut leases);
        assert_eq!(offsets(&leases), [offset]);
        let settlement = Settlement { receipt: leases[0].receipt, verdict: Verdict::Ack };
        queue.settle(group, &settlement, 1_000, 0).unwrap();
        flush(&mut queue, 1_000).unwrap();
    }
    assert_eq!(queue.needed_from(), 50);
}

#[test]
fn a_new_group_gives_nothing_before_it_lasts_that_it_is_there() {
    let mut queue = queue(&[("single-active-consumer", "true")], (0..3).map(message));
    let group = queue.open_group(&"new".into(), 1_000).unwrap();
    let mut leases = Vec::new();
    queue.lease(group, 7, 1, None, 1_000, &mut leases);
    assert!(leases.is_empty() && queue.begins(group) && !queue.can_lease(group, 7));
    // Who asked first is the active one all the same, and nobody else waits.
    assert_eq!(offsets(&lease(&mut queue, 1, 1, 1_000)), [0]);
    let mut events = Vec::new();
    let opened = queue.flush(&mut events).unwrap();
    queue.open_group(&"newer".into(), 1_000).unwrap();
    let newer = queue.flush(&mut Vec::new()).unwrap();
    queue.durable(opened, 1_000);
    assert!(!queue.begins(group) && queue.can_lease(group, 7) && !queue.can_lease(group, 8));
    queue.lease(group, 7, 1, None, 1_000, &mut leases);
    assert_eq!(offsets(&leases), [0]);
    assert!(queue.group("newer").is_some_and(|newer| queue.begins(newer)));
    queue.durable(newer, 1_000);
    assert!(queue.group("newer").is_some_and(|newer| !queue.begins(newer)));
    // One that is made again is there.
    let again = again(&[&events], 20);
    assert!(!again.begins(group) && again.ready(group) == 1);
    // And so is one of the same name that begins anew only when that lasts.
    queue.remove_group(group).unwrap();
    let anew = queue.open_group(&"new".into(), 1_000).unwrap();
    assert!(queue.begins(anew));
    flush(&mut queue, 1_000).unwrap();
    assert!(!queue.begins(anew));
}

#[test]
fn a_group_may_be_opened_and_another_removed_before_all_messages_are_back() {
    let mut queue = queue(&[], (0..30).map(message));
    queue.open_group(&"gone".into(), 1_000).unwrap();
    let mut batches = vec![flush(&mut queue, 1_000).unwrap()];
    for lease in lease(&mut queue, 1, 30, 1_000) {
        // The group that will be gone has more of them.
        let verdict = if lease.receipt.offset % 3 == 0 { Verdict::Release } else { Verdict::Ack };
        settle(&mut queue, lease.receipt, verdict, 1_000).unwrap();
    }
    let gone = queue.group("gone").unwrap();
    let mut leases = Vec::new();
    queue.lease(gone, 1, 20, None, 1_000, &mut leases);
    for lease in leases {
        let verdict = match lease.receipt.offset % 3 {
            0 => Verdict::Ack,
            1 => Verdict::Reject,
            _ => continue,
        };
        queue.settle(gone, &Settlement { receipt: lease.receipt, verdict }, 1_000, 0).unwrap();
    }
    batches.extend(flush(&mut queue, 1_000));

    let mut queue = Queue::new(Config::default());
    for batch in &batches {
        queue.replay(batch).unwrap();
    }
    queue.set_at_once(2);
    (0..12).for_each(|offset| queue.register(message(offset), 1_000));
    let late = queue.open_group(&"late".into(), 1_000).unwrap();
    queue.remove_group(queue.group("gone").unwrap()).unwrap();
    // Two are not there any more.
    (12..30)
        .filter(|offset| ![18, 20].contains(offset))
        .for_each(|offset| queue.register(message(offset), 1_000));
    queue.register(message(30), 1_000);
    batches.extend(flush(&mut queue, 1_000));
    tend_all(&mut queue, 1_000);
    let mut expected: Vec<u64> = (0..20).filter(|offset| offset % 3 != 1).chain(20..31).collect();
    expected.retain(|offset| ![18, 20].contains(offset));
    let pending = |queue: &Queue| {
        let mut pending = Vec::new();
        queue.peek(late, 0, 99, &mut pending);
        pending.into_iter().map(|(offset, ..)| offset).collect::<Vec<_>>()
    };
    assert_eq!(pending(&queue), expected);

    let mut again = Queue::new(Config::default());
    for batch in &batches {
        again.replay(batch).unwrap();
    }
    (0..31)
        .filter(|offset| ![18, 20].contains(offset))
        .for_each(|offset| again.register(message(offset), 1_000));
    assert_eq!(pending(&again), expected);

    queue.purge(None);
    let mut info = mainstem_queue::Info::default();
    queue.info(&mut info);
    assert_eq!((info.messages, info.bytes, queue.needed_from()), (0, 0, 31));
    assert!(queue.admits(1, 1));
}

#[test]
fn what_only_a_removed_group_had_is_needed_until_a_new_one_knows_of_it() {
    let mut queue = queue(&[], (0..30).map(message));
    let gone = queue.open_group(&"gone".into(), 1_000).unwrap();
    flush(&mut queue, 1_000).unwrap();
    for lease in lease(&mut queue, 1, 30, 1_000) {
        settle(&mut queue, lease.receipt, Verdict::Ack, 1_000).unwrap();
    }
    let settle_all = |queue: &mut Queue, group, is_settled: fn(u64) -> bool| {
        let mut leases = Vec::new();
        queue.lease(group, 1, 30, None, 1_000, &mut leases);
        for lease in leases.into_iter().filter(|lease| is_settled(lease.receipt.offset)) {
            let settlement = Settlement { receipt: lease.receipt, verdict: Verdict::Ack };
            queue.settle(group, &settlement, 1_000, 0).unwrap();
        }
    };
    settle_all(&mut queue, gone, |offset| offset % 2 == 0);
    queue.set_at_once(4);
    let late = queue.open_group(&"late".into(), 1_000).unwrap();
    flush(&mut queue, 1_000).unwrap();
    queue.remove_group(gone).unwrap();
    let mut known = Vec::new();
    queue.peek(late, 0, 99, &mut known);
    assert!(queue.is_listing() && (1..5).contains(&known.len()), "{known:?}");
    settle_all(&mut queue, late, |_| true);
    assert_eq!(queue.needed_from(), 2 * known.len() as u64 + 1);
    assert_eq!(queue.needed(0, 99).len(), 15 - known.len());
    // A further one is given what the new one is to be given, and nothing else of the removed one.
    queue.open_group(&"later".into(), 1_000).unwrap();
    tend_all(&mut queue, 1_000);
    assert!(!queue.is_listing());
    let rest = 15 - known.len() as u64;
    assert_eq!(
        counts(&queue),
        [("default", 0, 0), ("late", rest, 0), ("later", rest, 0)].map(|(name, ready, blocked)| (
            name.into(),
            ready,
            blocked
        ))
    );
}

#[test]
fn a_group_that_is_removed_lets_its_messages_go_in_steps() {
    let mut queue = queue(&[], (0..50).map(message));
    queue.set_at_once(10);
    for is_joined in [true, false] {
        let group = queue.open_group(&"other".into(), 1_000).unwrap();
        if is_joined {
            tend_all(&mut queue, 1_000);
            flush(&mut queue, 1_000).unwrap();
            queue.lease(group, 7, 20, None, 1_000, &mut Vec::new());
        }
        queue.remove_group(group).unwrap();
        assert_eq!(queue.group("other"), None);
        tend_all(&mut queue, 1_000);
    }
    assert_eq!(queue.purge(None), 50);
    let mut info = mainstem_queue::Info::default();
    queue.info(&mut info);
    assert_eq!((info.messages, info.bytes, queue.needed_from()), (0, 0, 50));
    assert!(queue.admits(1, 1));
    let mut pieces = 1;
    (50..1_000).for_each(|offset| queue.register(message(offset), 1_000));
    lease(&mut queue, 1, 900, 1_000);
    while queue.dissolve() {
        pieces += 1;
    }
    assert!(pieces > 10, "{pieces}");
}

#[test]
fn what_follows_of_a_key_is_redriven_in_the_next_step_too() {
    let moved = |offset| Meta { key: Some(5), moved_by: Some(("q/g".into(), offset + 1)), ..message(offset) };
    let mut queue = queue(&[], (0..25).map(moved));
    queue.set_at_once(10);
    let (mut next, mut moved) = (Some(0), 0);
    while let Some(from) = next {
        let (count, rest) = queue.redrive_some(from, 100, 1_000);
        (next, moved) = (rest, moved + count);
    }
    assert_eq!(moved, 25);
}

#[test]
fn many_of_a_key_become_free_in_steps() {
    let keyed = |offset| Meta { key: Some(1 + offset / 2), ..message(offset) };
    let mut queue = queue(&[], (0..100).map(keyed));
    queue.set_at_once(10);
    for lease in lease(&mut queue, 1, 100, 1_000) {
        settle(&mut queue, lease.receipt, Verdict::Ack, 1_000).unwrap();
    }
    flush(&mut queue, 1_001).unwrap();
    assert_eq!(counts(&queue), [("default".into(), 10, 40)]);
    tend_all(&mut queue, 1_001);
    assert_eq!(counts(&queue), [("default".into(), 50, 0)]);
}
