//! The life cycle of messages in a [`Queue`], one step per assertion: leases, receipts, retries, order by key,
//! groups, purges and restarts.

use mainstem_queue_core::{
    Config, Disposition, GroupId, Lease, Meta, Queue, QueueError, Reason, Receipt, Redriven, Settlement,
};

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

fn settle(
    queue: &mut Queue,
    receipt: Receipt,
    disposition: Disposition,
    now_ms: u64,
) -> Result<(), QueueError> {
    queue.settle(GROUP, &Settlement { receipt, disposition }, now_ms, 0)
}

/// Flushes; the batch is durable at once.
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
    again.begin_incarnation(life);
    again.register(message(0), 3_000);
    again
}

#[test]
fn an_unsent_delivery_does_not_count() {
    let mut queue = queue(&[("max-deliveries", "2"), ("backoff-ms", "0")], [message(0)]);
    let mut receipts = Vec::new();
    for _ in 0..5 {
        let receipt = lease(&mut queue, 1, 1, 1_000)[0].receipt;
        assert_eq!(receipt.count, 1);
        assert_eq!(settle(&mut queue, receipt, Disposition::Unsent, 1_000), Ok(()));
        assert_eq!(settle(&mut queue, receipt, Disposition::Ack, 1_000), Err(QueueError::Stale));
        assert!(!receipts.contains(&receipt));
        receipts.push(receipt);
    }
    let first = lease(&mut queue, 1, 1, 1_000)[0].receipt;
    assert_eq!(settle(&mut queue, first, Disposition::Nack(None), 1_000), Ok(()));
    let second = lease(&mut queue, 1, 1, 1_000)[0].receipt;
    assert_eq!((first.count, second.count), (1, 2));
    assert_eq!(settle(&mut queue, second, Disposition::Unsent, 1_000), Ok(()));
    let third = lease(&mut queue, 1, 1, 1_000)[0].receipt;
    assert_eq!(third.count, 2);
    assert_eq!(settle(&mut queue, third, Disposition::Nack(None), 1_000), Ok(()));
    assert_eq!(offsets(&lease(&mut queue, 1, 1, 1_000)), [] as [u64; 0], "it is a dead letter now");
}

#[test]
fn a_receipt_forgotten_by_a_crash_matches_no_later_delivery() {
    let mut first = queue(&[], [message(0)]);
    first.begin_incarnation(10);
    let lost = lease(&mut first, 1, 1, 1_000)[0].receipt;
    let mut second = again(&[], 20);
    let receipt = lease(&mut second, 2, 1, 3_000)[0].receipt;
    assert_eq!((lost.offset, lost.count), (receipt.offset, receipt.count));
    assert_eq!(settle(&mut second, lost, Disposition::Ack, 3_001), Err(QueueError::Stale));
    // The lost receipt does not match after another crash either.
    let delivered = flush(&mut second, 3_002).unwrap();
    let mut snapshot = Vec::new();
    second.snapshot(&mut snapshot);
    for batch in [&delivered, &snapshot] {
        let mut third = again(&[batch], 30);
        assert_eq!(settle(&mut third, lost, Disposition::Ack, 4_000), Err(QueueError::Stale));
        assert_eq!(
            settle(&mut third, receipt, Disposition::Ack, 4_000),
            Ok(()),
            "nobody else has had it since"
        );
    }
}

#[test]
fn a_receipt_stays_valid_after_a_cancelled_lease() {
    let mut first = queue(&[], [message(0)]);
    first.begin_incarnation(10);
    let receipt = lease(&mut first, 1, 1, 1_000)[0].receipt;
    let mut second = again(&[&flush(&mut first, 1_001).unwrap()], 20);
    let unread = lease(&mut second, 2, 1, 3_000)[0];
    second.cancel_lease(GROUP, &unread, 3_001);
    assert_eq!(settle(&mut second, unread.receipt, Disposition::Ack, 3_002), Err(QueueError::Stale));
    assert_eq!(settle(&mut second, receipt, Disposition::Ack, 3_002), Ok(()));
}

#[test]
fn a_receipt_from_before_a_replay_matches_no_later_delivery() {
    let mut queue = queue(&[], [message(0)]);
    let before = lease(&mut queue, 1, 1, 1_000)[0].receipt;
    settle(&mut queue, before, Disposition::Ack, 1_001).unwrap();
    assert_eq!(queue.replay_from(GROUP, &[message(0)], 1_002), 1);
    let receipt = lease(&mut queue, 2, 1, 1_003)[0].receipt;
    assert_eq!(settle(&mut queue, before, Disposition::Ack, 1_004), Err(QueueError::Stale));
    settle(&mut queue, receipt, Disposition::Ack, 1_004).unwrap();
}

#[test]
fn a_rejected_message_leaves_once_its_event_is_durable() {
    let mut queue = queue(&[], [message(0), message(1)]);
    let leases = lease(&mut queue, 1, 1, 1_000);
    settle(&mut queue, leases[0].receipt, Disposition::Reject, 1_001).unwrap();
    assert_eq!(queue.take_pending_transfers(9), []);
    flush(&mut queue, 1_002).unwrap();
    let leaving = queue.take_pending_transfers(9);
    assert_eq!(leaving.len(), 1);
    assert_eq!((leaving[0].offset, leaving[0].number, leaving[0].reason), (0, 1, Reason::Rejected));
    assert_eq!(queue.take_pending_transfers(9), []);
    queue.return_pending_transfer(GROUP, 1);
    assert_eq!(queue.take_pending_transfers(9), leaving);
    assert_eq!(queue.needed_from(), 0);
    queue.complete_transfer(GROUP, 1);
    assert_eq!(queue.needed_from(), 1);
}

#[test]
fn a_message_waits_for_the_durable_settlement_of_its_predecessor() {
    let keyed = |offset| Meta { key: Some(5), ..message(offset) };
    let mut queue = queue(&[], [keyed(0), keyed(1), message(2)]);
    let leases = lease(&mut queue, 1, 9, 1_000);
    assert_eq!(offsets(&leases), [0, 2]);
    settle(&mut queue, leases[0].receipt, Disposition::Ack, 1_001).unwrap();
    assert!(!queue.can_lease(GROUP, 1));
    flush(&mut queue, 1_002).unwrap();
    assert_eq!(offsets(&lease(&mut queue, 1, 9, 1_003)), [1]);
}

#[test]
fn replay_restores_the_state_of_messages() {
    let mut queue = queue(&[], (0..4).map(message));
    let leases = lease(&mut queue, 1, 3, 2_000);
    settle(&mut queue, leases[0].receipt, Disposition::Ack, 2_000).unwrap();
    settle(&mut queue, leases[1].receipt, Disposition::Nack(Some(500)), 2_000).unwrap();
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
fn a_late_ack_counts_until_the_message_is_redelivered() {
    let mut queue = queue(&[("lease-ms", "100")], [message(0), message(1)]);
    let leases = lease(&mut queue, 1, 2, 1_000);
    queue.maintain(1_100);
    assert!(queue.can_lease(GROUP, 2));
    for late in [Disposition::Nack(None), Disposition::Release, Disposition::Extend(10)] {
        assert_eq!(settle(&mut queue, leases[0].receipt, late, 1_101), Err(QueueError::Stale));
    }
    assert_eq!(settle(&mut queue, leases[0].receipt, Disposition::Ack, 1_101), Ok(()));
    let again = lease(&mut queue, 2, 9, 1_102);
    assert_eq!((offsets(&again), again[0].receipt.count), (vec![1], 2));
    assert_eq!(settle(&mut queue, leases[1].receipt, Disposition::Ack, 1_103), Err(QueueError::Stale));
}

#[test]
fn failed_messages_back_off_and_become_dead_letters() {
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
        settle(&mut queue, receipt, Disposition::Nack(None), now_ms).unwrap();
        assert_eq!(queue.next_due(), Some(now_ms + wait_ms));
        now_ms += wait_ms;
        queue.maintain(now_ms - 1);
        assert!(!queue.can_lease(GROUP, 1));
        queue.maintain(now_ms);
    }
    let receipt = lease(&mut queue, 1, 1, now_ms)[0].receipt;
    settle(&mut queue, receipt, Disposition::Nack(None), now_ms).unwrap();
    flush(&mut queue, now_ms).unwrap();
    assert_eq!(queue.take_pending_transfers(1)[0].reason, Reason::MaxDeliveries);
}

#[test]
fn the_active_consumer_changes_when_it_leaves_or_is_silent_without_leases() {
    let settings = [("single-active-consumer", "true"), ("lease-ms", "100")];
    let mut queue = queue(&settings, (0..4).map(message));
    let first = lease(&mut queue, 1, 1, 1_000);
    assert!(!queue.can_lease(GROUP, 2));
    assert_eq!(lease(&mut queue, 2, 1, 1_001), []);
    settle(&mut queue, first[0].receipt, Disposition::Extend(500), 1_050).unwrap();
    queue.maintain(1_200);
    assert_eq!(lease(&mut queue, 2, 1, 1_200), []);
    settle(&mut queue, first[0].receipt, Disposition::Ack, 1_201).unwrap();
    assert_eq!(offsets(&lease(&mut queue, 2, 1, 1_202)), [1]);
    queue.leave(GROUP, 2, 1_203);
    assert_eq!(offsets(&lease(&mut queue, 3, 1, 1_203)), [2]);
}

#[test]
fn fifo_can_be_switched_off_and_on() {
    let keyed = |offset| Meta { key: Some(5), ..message(offset) };
    let mut queue = queue(&[], (0..4).map(keyed));
    assert_eq!(offsets(&lease(&mut queue, 1, 9, 1_000)), [0]);
    queue.configure(Config { fifo: false, ..Config::default() }, 1_001);
    let second = lease(&mut queue, 1, 1, 1_002);
    assert_eq!(offsets(&second), [1]);
    queue.configure(Config::default(), 1_003);
    assert!(!queue.can_lease(GROUP, 1));
    queue.maintain(40_000);
    assert_eq!(offsets(&lease(&mut queue, 1, 9, 40_001)), [0]);
}

#[test]
fn fifo_is_switched_in_steps() {
    let keyed = |offset| Meta { key: Some(5), ..message(offset) };
    let mut queue = queue(&[], (0..100).map(keyed));
    queue.set_at_once(40);
    let off = Config { fifo: false, ..Config::default() };
    queue.configure(off.clone(), 1_000);
    // A message that enters or leaves the order of its key counts as four.
    assert_eq!((queue.ready(GROUP), queue.is_busy()), (11, true));
    queue.maintain(1_000);
    assert_eq!((queue.ready(GROUP), queue.next_due()), (21, Some(0)));
    // Half-way back again: the messages that are available wait for their key again, the others are as they were.
    queue.configure(Config::default(), 1_001);
    assert_eq!((queue.ready(GROUP), queue.is_busy()), (11, true));
    queue.maintain(1_001);
    assert_eq!(queue.ready(GROUP), 1);
    while queue.is_busy() {
        queue.maintain(1_001);
    }
    assert_eq!(offsets(&lease(&mut queue, 1, 100, 1_002)), [0]);
    queue.configure(off, 1_003);
    while queue.is_busy() {
        queue.maintain(1_003);
    }
    assert_eq!(offsets(&lease(&mut queue, 1, 100, 1_003)), (1..100).collect::<Vec<_>>());
}

#[test]
fn a_key_stays_blocked_until_all_its_leased_messages_return() {
    let keyed = |offset| Meta { key: Some(5), ..message(offset) };
    let mut queue = queue(&[("fifo", "false")], (0..6).map(keyed));
    let leases = lease(&mut queue, 1, 4, 1_000);
    settle(&mut queue, leases[0].receipt, Disposition::Release, 1_000).unwrap();
    queue.configure(Config::default(), 1_001);
    for (at, disposition) in [(2, Disposition::Ack), (1, Disposition::Release)] {
        assert!(!queue.can_lease(GROUP, 1));
        settle(&mut queue, leases[at].receipt, disposition, 1_002).unwrap();
    }
    assert!(!queue.can_lease(GROUP, 1));
    settle(&mut queue, leases[3].receipt, Disposition::Release, 1_002).unwrap();
    assert_eq!(offsets(&lease(&mut queue, 1, 9, 1_003)), [0]);
}

/// Three messages of one key, with order by key off. While it was on, the first was settled durably and the second
/// not durably. Both were replayed.
fn settled_then_replayed_without_fifo() -> Queue {
    let keyed = |offset| Meta { key: Some(5), ..message(offset) };
    let mut queue = queue(&[], (0..3).map(keyed));
    let first = lease(&mut queue, 1, 9, 1_000);
    settle(&mut queue, first[0].receipt, Disposition::Ack, 1_000).unwrap();
    flush(&mut queue, 1_000);
    let second = lease(&mut queue, 1, 9, 1_000);
    settle(&mut queue, second[0].receipt, Disposition::Ack, 1_000).unwrap();
    queue.configure(Config { fifo: false, ..Config::default() }, 1_000);
    assert_eq!(queue.replay_from(GROUP, &[keyed(0), keyed(1)], 1_000), 2);
    queue.set_at_once(4);
    queue
}

#[test]
fn a_message_settled_in_order_can_be_replayed_without_order() {
    let mut queue = settled_then_replayed_without_fifo();
    for (ready, is_busy) in [(3, true), (2, true), (1, false)] {
        queue.configure(Config::default(), 1_000);
        assert_eq!((queue.ready(GROUP), queue.is_busy()), (ready, is_busy));
    }
    flush(&mut queue, 1_000);
    assert_eq!(offsets(&lease(&mut queue, 1, 9, 1_001)), [0]);
}

#[test]
fn an_old_settlement_does_not_unblock_a_key_with_a_leased_message() {
    let mut queue = settled_then_replayed_without_fifo();
    let leases = lease(&mut queue, 1, 2, 1_000);
    settle(&mut queue, leases[0].receipt, Disposition::Release, 1_000).unwrap();
    while queue.is_busy() || !queue.config().fifo {
        queue.configure(Config::default(), 1_000);
    }
    flush(&mut queue, 1_000);
    assert!(!queue.can_lease(GROUP, 1), "somebody has the second");
    settle(&mut queue, leases[1].receipt, Disposition::Release, 1_000).unwrap();
    assert_eq!(offsets(&lease(&mut queue, 1, 9, 1_001)), [0]);
}

#[test]
fn the_ttl_can_change_faster_than_messages_are_reindexed() {
    let mut queue = queue(&[], (0..1_000).map(message));
    queue.set_at_once(1);
    for ttl_ms in (1..2_000).rev() {
        queue.configure(Config { ttl_ms: 1_000 + ttl_ms, ..Config::default() }, 1_000);
    }
    assert_eq!(offsets(&lease(&mut queue, 1, 1, 1_500)), [0]);
    queue.set_at_once(1_000);
    while queue.is_busy() {
        queue.maintain(1_000);
    }
    assert_eq!(queue.next_due(), Some(2_001), "all are there, and expire as was said last");
    for _ in 0..2 {
        queue.maintain(2_001);
    }
    assert_eq!(queue.ready(GROUP), 0);
    queue.configure(Config::default(), 2_002);
    assert_eq!(queue.needed(0, 9).len(), 9, "what leaves stays until it has arrived");
}

#[test]
fn a_longer_ttl_applies_before_all_messages_are_reindexed() {
    let mut queue = queue(&[("ttl-ms", "100")], (0..20).map(message));
    queue.set_at_once(4);
    queue.configure(Config { ttl_ms: 1_000, ..Config::default() }, 1_000);
    while queue.is_busy() {
        assert_eq!(queue.ready(GROUP), 20);
        queue.maintain(1_500);
    }
    assert_eq!((queue.ready(GROUP), queue.next_due()), (20, Some(2_000)));
}

#[test]
fn group_names_and_their_number_are_limited() {
    let mut queue = queue(&[], []);
    for name in ["", "a/b", "a+", "#", "a\n", &"a".repeat(256)] {
        assert!(matches!(queue.open_group(&name.into(), 0), Err(QueueError::Invalid(_))), "{name:?}");
    }
    for number in 1..256 {
        queue.open_group(&format!("group {number}").into(), 0).unwrap();
    }
    assert_eq!(queue.open_group(&"one more".into(), 0), Err(QueueError::TooMany));
}

#[test]
fn the_default_group_can_be_removed_but_not_the_last_one() {
    let mut first = queue(&[], [message(0)]);
    assert!(matches!(first.remove_group(GROUP), Err(QueueError::Invalid(_))), "it is the only one");
    let workers = first.open_group(&"workers".into(), 1_000).unwrap();
    assert_eq!(first.remove_group(GROUP), Ok(()));
    assert_eq!(first.remove_group(GROUP), Err(QueueError::UnknownGroup));
    assert!(matches!(first.remove_group(workers), Err(QueueError::Invalid(_))), "now it is the only one");
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
fn dead_letters_are_redriven_in_order() {
    let moved = |offset| Meta {
        key: Some(5),
        moved_by: Some(("work/default".into(), offset + 1)),
        ..message(offset)
    };
    let mut queue = queue(&[], (0..3).map(moved).chain([message(3)]));
    assert_eq!(queue.redrive(9, 1_000), Redriven { moved: 3, skipped: 0 });
    flush(&mut queue, 1_001).unwrap();
    let leaving = queue.take_pending_transfers(9);
    let seen: Vec<_> =
        leaving.iter().map(|leaving| (leaving.number, leaving.offset, leaving.reason)).collect();
    assert_eq!(seen, [(1, 0, Reason::Redriven), (2, 1, Reason::Redriven), (3, 2, Reason::Redriven)]);
}

#[test]
fn a_redrive_ends_delays_and_counts_what_consumers_hold() {
    let moved = |offset| Meta {
        key: [None, None, None, Some(5), Some(5)][offset as usize],
        moved_by: Some(("work/default".into(), offset + 1)),
        ..message(offset)
    };
    let mut queue =
        queue(&[("backoff-ms", "60000"), ("max-deliveries", "0")], (0..5).map(moved).chain([message(5)]));
    let leases = lease(&mut queue, 1, 9, 1_000);
    assert_eq!(leases.len(), 5, "offset 4 waits behind its key");
    for at in [0, 4] {
        settle(&mut queue, leases[at].receipt, Disposition::Nack(None), 1_001).unwrap();
    }
    // Delayed: 0, and 5, which is no dead letter. Leased: 1, 2, and 3, behind which 4 waits.
    assert_eq!(queue.redrive(9, 1_002), Redriven { moved: 1, skipped: 4 });
    settle(&mut queue, leases[3].receipt, Disposition::Nack(None), 1_003).unwrap();
    assert_eq!(queue.redrive(9, 1_004), Redriven { moved: 2, skipped: 2 });
    flush(&mut queue, 1_005).unwrap();
    let leaving: Vec<u64> = queue.take_pending_transfers(9).iter().map(|leaving| leaving.offset).collect();
    assert_eq!(leaving, [0, 3, 4]);
}

#[test]
fn drop_oldest_makes_room_for_new_messages() {
    let settings = [("length-max", "2"), ("overflow", "drop-oldest"), ("dead-letters", "false")];
    let mut queue = queue(&settings, [message(0), message(1)]);
    assert_eq!(offsets(&lease(&mut queue, 1, 1, 1_000)), [0]);
    queue.register(message(2), 1_000);
    assert_eq!(queue.needed(0, 9), [0, 2]);
    assert!(queue.admits(10, 10));
}

#[test]
fn a_replay_skips_duplicates() {
    let twin = |offset| Meta { dedup_id: Some(b"a".as_slice().into()), ..message(offset) };
    let twins = [twin(0), twin(1)];
    let mut queue = queue(&[], twins.clone());
    let leases = lease(&mut queue, 1, 9, 1_000);
    assert_eq!(offsets(&leases), [0]);
    settle(&mut queue, leases[0].receipt, Disposition::Ack, 1_001).unwrap();
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

/// Calls [`Queue::maintain`] until nothing is due.
fn maintain_all(queue: &mut Queue, now_ms: u64) {
    while queue.next_due().is_some_and(|due_ms| due_ms <= now_ms) {
        queue.maintain(now_ms);
    }
}

fn counts(queue: &Queue) -> Vec<(String, u64, u64)> {
    let mut info = mainstem_queue_core::Info::default();
    queue.info(&mut info);
    info.groups.iter().map(|group| (group.name.clone(), group.ready, group.blocked)).collect()
}

#[test]
fn a_purge_runs_in_steps_and_spares_later_messages() {
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
fn an_interrupted_purge_has_settled_what_it_reported() {
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
fn a_new_group_takes_over_messages_that_others_settle_meanwhile() {
    let keyed = |offset| Meta { key: Some(5), ..message(offset) };
    let mut queue = queue(&[("fifo", "true")], (0..50).map(keyed));
    queue.set_at_once(10);
    let group = queue.open_group(&"late".into(), 1_000).unwrap();
    let mut events = flush(&mut queue, 1_000).unwrap();
    assert_eq!(counts(&queue), [("default".into(), 1, 49), ("late".into(), 1, 9)]);
    // Messages that the group takes over later are kept, also by a snapshot, and new messages come after them.
    queue.purge(Some(GROUP));
    queue.register(keyed(50), 1_000);
    flush(&mut queue, 1_000).unwrap();
    assert_eq!(queue.needed_from(), 0);
    assert_eq!(queue.needed(20, 3), [20, 21, 22]);
    let mut snapshot = Vec::new();
    queue.snapshot(&mut snapshot);
    events.clear();
    maintain_all(&mut queue, 1_000);
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
        let settlement = Settlement { receipt: leases[0].receipt, disposition: Disposition::Ack };
        queue.settle(group, &settlement, 1_000, 0).unwrap();
        flush(&mut queue, 1_000).unwrap();
    }
    assert_eq!(queue.needed_from(), 50);
}

#[test]
fn a_new_group_delivers_nothing_before_it_is_durable() {
    let mut queue = queue(&[("single-active-consumer", "true")], (0..3).map(message));
    let group = queue.open_group(&"new".into(), 1_000).unwrap();
    let mut leases = Vec::new();
    queue.lease(group, 7, 1, None, 1_000, &mut leases);
    assert!(leases.is_empty() && queue.is_pending_creation(group) && !queue.can_lease(group, 7));
    // The first consumer that asked is the active one all the same.
    assert_eq!(offsets(&lease(&mut queue, 1, 1, 1_000)), [0]);
    let mut events = Vec::new();
    let opened = queue.flush(&mut events).unwrap();
    queue.open_group(&"newer".into(), 1_000).unwrap();
    let newer = queue.flush(&mut Vec::new()).unwrap();
    queue.durable(opened, 1_000);
    assert!(!queue.is_pending_creation(group) && queue.can_lease(group, 7) && !queue.can_lease(group, 8));
    queue.lease(group, 7, 1, None, 1_000, &mut leases);
    assert_eq!(offsets(&leases), [0]);
    assert!(queue.group("newer").is_some_and(|newer| queue.is_pending_creation(newer)));
    queue.durable(newer, 1_000);
    assert!(queue.group("newer").is_some_and(|newer| !queue.is_pending_creation(newer)));
    // A group that was restored can deliver.
    let again = again(&[&events], 20);
    assert!(!again.is_pending_creation(group) && again.ready(group) == 1);
    // A new group with the same name can deliver only when it is durable.
    queue.remove_group(group).unwrap();
    let anew = queue.open_group(&"new".into(), 1_000).unwrap();
    assert!(queue.is_pending_creation(anew));
    flush(&mut queue, 1_000).unwrap();
    assert!(!queue.is_pending_creation(anew));
}

#[test]
fn groups_can_be_created_and_removed_during_registration() {
    let mut queue = queue(&[], (0..30).map(message));
    queue.open_group(&"gone".into(), 1_000).unwrap();
    let mut batches = vec![flush(&mut queue, 1_000).unwrap()];
    for lease in lease(&mut queue, 1, 30, 1_000) {
        // The group that is removed later has more of them.
        let disposition = if lease.receipt.offset % 3 == 0 { Disposition::Release } else { Disposition::Ack };
        settle(&mut queue, lease.receipt, disposition, 1_000).unwrap();
    }
    let gone = queue.group("gone").unwrap();
    let mut leases = Vec::new();
    queue.lease(gone, 1, 20, None, 1_000, &mut leases);
    for lease in leases {
        let disposition = match lease.receipt.offset % 3 {
            0 => Disposition::Ack,
            1 => Disposition::Reject,
            _ => continue,
        };
        queue.settle(gone, &Settlement { receipt: lease.receipt, disposition }, 1_000, 0).unwrap();
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
    // Two messages no longer exist.
    (12..30)
        .filter(|offset| ![18, 20].contains(offset))
        .for_each(|offset| queue.register(message(offset), 1_000));
    queue.register(message(30), 1_000);
    batches.extend(flush(&mut queue, 1_000));
    maintain_all(&mut queue, 1_000);
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
    let mut info = mainstem_queue_core::Info::default();
    queue.info(&mut info);
    assert_eq!((info.messages, info.bytes, queue.needed_from()), (0, 0, 31));
    assert!(queue.admits(1, 1));
}

#[test]
fn messages_of_a_removed_group_are_kept_for_a_new_one() {
    let mut queue = queue(&[], (0..30).map(message));
    let gone = queue.open_group(&"gone".into(), 1_000).unwrap();
    flush(&mut queue, 1_000).unwrap();
    for lease in lease(&mut queue, 1, 30, 1_000) {
        settle(&mut queue, lease.receipt, Disposition::Ack, 1_000).unwrap();
    }
    let settle_all = |queue: &mut Queue, group, is_settled: fn(u64) -> bool| {
        let mut leases = Vec::new();
        queue.lease(group, 1, 30, None, 1_000, &mut leases);
        for lease in leases.into_iter().filter(|lease| is_settled(lease.receipt.offset)) {
            let settlement = Settlement { receipt: lease.receipt, disposition: Disposition::Ack };
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
    // Another new group takes over what the first new group takes over, and nothing else of the removed one.
    queue.open_group(&"later".into(), 1_000).unwrap();
    maintain_all(&mut queue, 1_000);
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
fn a_removed_group_releases_its_messages_in_steps() {
    let mut queue = queue(&[], (0..50).map(message));
    queue.set_at_once(10);
    for is_joined in [true, false] {
        let group = queue.open_group(&"other".into(), 1_000).unwrap();
        if is_joined {
            maintain_all(&mut queue, 1_000);
            flush(&mut queue, 1_000).unwrap();
            queue.lease(group, 7, 20, None, 1_000, &mut Vec::new());
        }
        queue.remove_group(group).unwrap();
        assert_eq!(queue.group("other"), None);
        maintain_all(&mut queue, 1_000);
    }
    assert_eq!(queue.purge(None), 50);
    let mut info = mainstem_queue_core::Info::default();
    queue.info(&mut info);
    assert_eq!((info.messages, info.bytes, queue.needed_from()), (0, 0, 50));
    assert!(queue.admits(1, 1));
    let mut pieces = 1;
    (50..1_000).for_each(|offset| queue.register(message(offset), 1_000));
    lease(&mut queue, 1, 900, 1_000);
    while queue.drop_step() {
        pieces += 1;
    }
    assert!(pieces > 10, "{pieces}");
}

#[test]
fn a_redrive_in_steps_moves_all_messages_of_a_key() {
    let moved = |offset| Meta { key: Some(5), moved_by: Some(("q/g".into(), offset + 1)), ..message(offset) };
    let mut queue = queue(&[], (0..25).map(moved));
    queue.set_at_once(10);
    let (mut next, mut moved) = (Some(0), 0);
    while let Some(from) = next {
        let (count, rest) = queue.redrive_some(from, 100, 1_000);
        (next, moved) = (rest, moved + count.moved);
    }
    assert_eq!(moved, 25);
}

#[test]
fn keys_are_unblocked_in_steps() {
    let keyed = |offset| Meta { key: Some(1 + offset / 2), ..message(offset) };
    let mut queue = queue(&[], (0..100).map(keyed));
    queue.set_at_once(10);
    for lease in lease(&mut queue, 1, 100, 1_000) {
        settle(&mut queue, lease.receipt, Disposition::Ack, 1_000).unwrap();
    }
    flush(&mut queue, 1_001).unwrap();
    assert_eq!(counts(&queue), [("default".into(), 10, 40)]);
    maintain_all(&mut queue, 1_001);
    assert_eq!(counts(&queue), [("default".into(), 50, 0)]);
}
