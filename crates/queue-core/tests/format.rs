//! The encoding of a queue's state matches `docs/formats/queue-state.md`: the expected bytes are written, can be
//! read, and malformed bytes are rejected.

use mainstem_log::BatchBuilder;
use mainstem_queue_core::{
    Config, Disposition, GroupId, GroupName, Info, Lease, Malformed, Meta, Queue, Reason, Receipt,
    Settlement, TransferredMessage, transfer_batch,
};
use proptest::prelude::*;

fn message(offset: u64) -> Meta {
    Meta { offset, timestamp_ms: 1_000, bytes: 10, expires_ms: u64::MAX, ..Meta::default() }
}

fn lease(queue: &mut Queue, group: GroupId, max: usize, now_ms: u64) -> Vec<Receipt> {
    let mut leases = Vec::new();
    queue.lease(group, 1, max, None, now_ms, &mut leases);
    leases.iter().map(|lease: &Lease| lease.receipt).collect()
}

fn settle(queue: &mut Queue, receipt: Receipt, disposition: Disposition) {
    queue.settle(GroupId::DEFAULT, &Settlement { receipt, disposition }, 2_000, 0).unwrap();
}

fn flush(queue: &mut Queue) -> Vec<u8> {
    let mut bytes = Vec::new();
    let number = queue.flush(&mut bytes).unwrap();
    queue.durable(number, 2_000);
    bytes
}

/// A queue after operations of every kind, with the batches that it has flushed.
fn busy() -> (Queue, Vec<Vec<u8>>) {
    let mut queue = Queue::new(Config::default());
    queue.begin_incarnation(300);
    let mut batches = Vec::new();
    for offset in 0..200 {
        queue.register(message(offset), 1_000);
    }
    queue.register(Meta { dedup_id: Some([7, 8].into()), ..message(200) }, 1_000);
    queue.register(Meta { dedup_id: Some([7, 8].into()), ..message(201) }, 1_000);
    queue.register(Meta { moved_by: Some(("q/g".into(), 3)), ..message(202) }, 1_000);
    let receipts = lease(&mut queue, GroupId::DEFAULT, 4, 1_500);
    settle(&mut queue, receipts[0], Disposition::Ack);
    settle(&mut queue, receipts[1], Disposition::Ack);
    batches.push(flush(&mut queue));

    settle(&mut queue, receipts[2], Disposition::Nack(Some(500)));
    settle(&mut queue, receipts[3], Disposition::Reject);
    queue.replay_from(GroupId::DEFAULT, &[message(0)], 2_000);
    batches.push(flush(&mut queue));

    let name: GroupName = "g".into();
    let group = queue.open_group(&name, 2_000).unwrap();
    queue.register(message(203), 2_000);
    batches.push(flush(&mut queue));

    queue.remove_group(group).unwrap();
    batches.push(flush(&mut queue));
    (queue, batches)
}

fn of_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

/// Version and kind 1 first, then one line per event.
const BATCHES: [&str; 4] = [
    "01 01 cb01
     09 02 0708 e807
     08 9203 01
     0d ac02
     05 00 9303 04 01 dc0b
     04 00 07 02
     0a 03 712f67 03",
    "01 01 cb01
     06 00 04 c413
     07 00 02 01 00 d00f
     0b 00 05 01",
    "01 01 cb01
     02 01 01 67 00
     0b 01 00 01
     0b 01 02 01
     0b 01 02 c501
     0b 01 02 01
     01 cc01",
    "01 01 cc01
     03 01",
];

const SNAPSHOT: &str = "01 01 cc01
     0c 00
     0a 03 712f67 03
     09 02 0708 e807
     08 9203 01
     02 00 07 64656661756c74 01
     0b 00 9303 01
     0b 00 02 c701
     0b 00 02 02
     0d ac02
     05 00 9303 02 01 dc0b
     06 00 03 c413
     07 00 02 01 00 d00f";

/// The same state in parts of about two entries.
const PARTS: [&str; 5] = [
    "01 01 cc01
     0c 00
     0a 03 712f67 03
     02 00 07 64656661756c74 01",
    "01 01 cc01
     09 02 0708 e807",
    "01 01 cc01
     08 9203 01",
    "01 01 cc01
     04 00 00 ca01
     0b 00 9303 01
     0b 00 02 c701
     0d ac02
     05 00 8d03 02 01 dc0b
     06 00 03 c413
     07 00 02 01 00 d00f",
    "01 01 cc01
     04 00 9403 02
     0b 00 03 02",
];

#[test]
fn the_encoding_of_snapshot_parts_is_stable() {
    let (queue, _) = busy();
    let mut parts = vec![Vec::new()];
    let mut cursor = queue.begin_snapshot(&mut parts[0]);
    loop {
        let mut part = Vec::new();
        if queue.snapshot_part(&mut cursor, 2, &mut part).is_none() {
            break;
        }
        parts.push(part);
    }
    let parts: Vec<String> = parts.iter().map(|part| hex(part)).collect();
    assert_eq!(parts, PARTS.map(|part| hex(&of_hex(part))));
}

#[test]
fn the_encoding_of_events_is_stable() {
    let (queue, batches) = busy();
    for (batch, expected) in batches.iter().zip(BATCHES) {
        assert_eq!(hex(batch), hex(&of_hex(expected)));
    }
    let mut snapshot = Vec::new();
    queue.snapshot(&mut snapshot);
    assert_eq!(hex(&snapshot), hex(&of_hex(SNAPSHOT)));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
}

#[test]
fn encoded_events_can_be_replayed() {
    let batches = BATCHES.map(of_hex);
    for batches in [&batches[..], &[of_hex(SNAPSHOT)], &PARTS.map(of_hex)] {
        let mut queue = Queue::new(Config::default());
        for batch in batches {
            queue.replay(batch).unwrap();
        }
        assert_eq!(queue.needed_from(), 0);
        for offset in 0..=203 {
            queue.register(message(offset), 2_000);
        }
        let mut pending = Vec::new();
        queue.peek(GroupId::DEFAULT, 0, 4, &mut pending);
        assert_eq!(pending, [(0, 0, "ready"), (2, 1, "delayed"), (3, 1, "leaving"), (4, 0, "ready")]);
        let leaving = queue.take_pending_transfers(9);
        assert_eq!(leaving.len(), 1);
        assert_eq!((leaving[0].number, leaving[0].offset, leaving[0].count), (1, 3, 1));
        assert_eq!((leaving[0].reason, leaving[0].since_ms), (Reason::Rejected, 2_000));
        assert_eq!(queue.next_due(), Some(2_500));
        queue.register(Meta { dedup_id: Some([7, 8].into()), ..message(204) }, 2_000);
        queue.register(Meta { moved_by: Some(("q/g".into(), 3)), ..message(205) }, 2_000);
        let mut info = Info::default();
        queue.info(&mut info);
        assert_eq!((info.messages, info.duplicates), (202, 2));
    }
}

/// A group is created while many messages are pending and one is on its way to another queue.
const OPENED: [&str; 2] = [
    "01 01 08
     04 00 00 01
     04 00 02 01
     0d ac02
     05 00 05 07 01 dc0b
     04 00 05 01
     07 00 00 01 00 d00f",
    "01 01 08
     02 01 01 67 00
     0f 01
     01 08",
];

#[test]
fn the_encoding_of_a_large_new_group_is_stable() {
    let mut queue = Queue::new(Config::default());
    queue.begin_incarnation(300);
    queue.set_at_once(2);
    (0..8).for_each(|offset| queue.register(message(offset), 1_000));
    for receipt in lease(&mut queue, GroupId::DEFAULT, 7, 1_500) {
        match receipt.offset {
            0 | 2 | 4 => settle(&mut queue, receipt, Disposition::Ack),
            5 => settle(&mut queue, receipt, Disposition::Reject),
            _ => {}
        }
    }
    let before = flush(&mut queue);
    queue.open_group(&"g".into(), 2_000).unwrap();
    let opened = flush(&mut queue);
    assert_eq!([before, opened].map(|batch| hex(&batch)), OPENED.map(|batch| hex(&of_hex(batch))));

    let mut again = Queue::new(Config::default());
    for batch in OPENED {
        again.replay(&of_hex(batch)).unwrap();
    }
    (0..8).for_each(|offset| again.register(message(offset), 2_000));
    let mut pending = Vec::new();
    again.peek(again.group("g").unwrap(), 0, 9, &mut pending);
    assert_eq!(pending, [1, 3, 6, 7].map(|offset| (offset, 0, "ready")));
}

/// Header fields of a batch with messages that another queue has moved.
#[test]
fn the_mark_of_transferred_messages_is_stable() {
    let message = TransferredMessage { key: None, value: Some(b"x".to_vec()), headers: vec![0] };
    let mut builder = BatchBuilder::default();
    let batch = transfer_batch(&[message], 1_000, &mut builder);
    let (attributes, producer) = (&batch.bytes()[21..23], &batch.bytes()[43..57]);
    assert_eq!([hex(attributes), hex(producer)], ["0100", "ffffffffffffffffffffffffffff"]);
}

#[test]
fn settlements_in_order_take_few_bytes() {
    let mut queue = Queue::new(Config::default());
    queue.begin_incarnation(u32::MAX);
    for offset in 0..10_000 {
        queue.register(message(offset), 1_000);
        queue.registered(offset + 1);
    }
    for receipt in lease(&mut queue, GroupId::DEFAULT, 10_000, 1_700_000_000_000) {
        settle(&mut queue, receipt, Disposition::Ack);
    }
    let batch = flush(&mut queue);
    assert!(batch.len() < 160, "{} bytes", batch.len());
    queue.register(message(10_000), 1_000);
    let receipt = lease(&mut queue, GroupId::DEFAULT, 1, 1_700_000_000_000)[0];
    let delivered = flush(&mut queue);
    settle(&mut queue, receipt, Disposition::Ack);
    let settled = flush(&mut queue);
    assert!(delivered.len() <= 24 && settled.len() <= 10, "{} and {}", delivered.len(), settled.len());
}

#[test]
fn malformed_events_are_rejected() {
    let refused = |bytes: &[u8]| Queue::new(Config::default()).replay(bytes).unwrap_err();
    assert_eq!(refused(&[]), Malformed("truncated event"));
    assert_eq!(refused(&[2]), Malformed("unknown version"));
    assert_eq!(refused(&[1, 14]), Malformed("unknown kind of event"));
    assert_eq!(refused(&[1, 4, 0, 2]), Malformed("truncated event"));
    assert_eq!(refused(&of_hex("01 07 00 00 01 05 00")), Malformed("unknown reason"));
    assert_eq!(refused(&of_hex("01 01 ffffffffffffffffff01")), Malformed("an offset is out of bounds"));
    assert_eq!(refused(&of_hex("01 01 ffffffffffffffffff7f")), Malformed("a number has more than 64 bits"));
    assert_eq!(refused(&of_hex("01 02 01 ff01")), Malformed("truncated event"));
    assert_eq!(refused(&of_hex("01 02 01 02 c328 00")), Malformed("a name is not UTF-8"));
    assert_eq!(refused(&of_hex("01 02 01 07 64656661756c74 00")), Malformed("two groups have the same name"));
    assert_eq!(
        refused(&of_hex("01 05 00 00 8108 01 00")),
        Malformed("too many offsets in one delivery event")
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2_000, ..ProptestConfig::default() })]

    /// A batch with any changes is rejected, or yields a queue that works.
    #[test]
    fn corrupted_events_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        from_snapshot in any::<bool>(),
    ) {
        let mut bytes = if from_snapshot { of_hex(SNAPSHOT) } else { BATCHES.map(of_hex).into_iter().flat_map(|batch| batch.into_iter().skip(1)).collect() };
        if !from_snapshot {
            bytes.insert(0, 1);
        }
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let mut queue = Queue::new(Config::default());
        if queue.replay(&bytes).is_ok() {
            for offset in 0..210 {
                queue.register(message(offset), 2_000);
            }
            queue.registered(1 << 62);
            let groups: Vec<GroupId> = queue.groups().collect();
            for group in groups {
                for receipt in lease(&mut queue, group, 50, 2_000) {
                    let settlement = Settlement { receipt, disposition: Disposition::Reject };
                    prop_assert_eq!(queue.settle(group, &settlement, 2_000, 0), Ok(()), "{:?} {:?} {:?}", receipt, group, hex(&bytes));
                }
            }
            queue.maintain(3_000);
            if queue.flush_is_due() {
                flush(&mut queue);
            }
            for leaving in queue.take_pending_transfers(100) {
                queue.complete_transfer(leaving.group, leaving.number);
            }
            queue.purge(None);
            if queue.flush_is_due() {
                flush(&mut queue);
            }
            let mut snapshot = Vec::new();
            queue.snapshot(&mut snapshot);
            prop_assert!(Queue::new(Config::default()).replay(&snapshot).is_ok());
        }
    }
}
