//! The longest CPU time of one call to a queue with a million messages. A shard runs one call at a time, so this is
//! how long other work stalls: `cargo bench -p mainstem-queue-core --bench stalls`.

use std::time::Duration;

use mainstem_queue_core::{Config, Disposition, GroupId, GroupName, Info, Meta, Queue, Settlement};
use rustix::time::{ClockId, clock_gettime};

const MESSAGES: u64 = 1_000_000;
const GROUP: GroupId = GroupId::DEFAULT;

/// Kinds of messages.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Plain,
    /// Each with its own key.
    Keyed,
    /// A hundred messages per key, far from each other.
    Scattered,
    /// All with the same key.
    OneKey,
    /// All with an expiry.
    Expiring,
    /// All moved here, from a hundred groups.
    Moved,
    /// Each with a deduplication identifier.
    Identified,
}

fn message(kind: Kind, offset: u64) -> Meta {
    let mut meta = Meta { offset, timestamp_ms: 1_000, bytes: 100, expires_ms: u64::MAX, ..Meta::default() };
    match kind {
        Kind::Plain => {}
        Kind::Keyed => meta.key = Some(offset.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
        Kind::Scattered => meta.key = Some((offset % 10_000).wrapping_mul(0x9E37_79B9_7F4A_7C15)),
        Kind::OneKey => meta.key = Some(7),
        Kind::Expiring => meta.expires_ms = 5_000,
        Kind::Moved => meta.moved_by = Some((format!("q/{}", offset % 100).into(), offset / 100 + 1)),
        Kind::Identified => meta.dedup_id = Some(offset.to_be_bytes().into()),
    }
    meta
}

fn filled(kind: Kind) -> Queue {
    filled_as(kind, Config::default())
}

fn filled_as(kind: Kind, config: Config) -> Queue {
    let mut queue = Queue::new(config);
    for offset in 0..MESSAGES {
        queue.register(message(kind, offset), 1_000);
    }
    flush(&mut queue);
    queue
}

fn flush(queue: &mut Queue) -> usize {
    let mut bytes = Vec::new();
    if let Some(number) = queue.flush(&mut bytes) {
        queue.durable(number, 2_000);
    }
    bytes.len()
}

/// Every second message is settled, every fourth one is leased.
fn with_gaps(kind: Kind) -> Queue {
    let mut queue = filled(kind);
    let mut leases = Vec::new();
    queue.lease(GROUP, 1, MESSAGES as usize, None, 1_000, &mut leases);
    for lease in &leases {
        let disposition = match lease.receipt.offset % 4 {
            0 | 2 => Disposition::Ack,
            1 => Disposition::Release,
            _ => continue,
        };
        let settlement = Settlement { receipt: lease.receipt, disposition };
        queue.settle(GROUP, &settlement, 1_000, 0).expect("it is leased");
    }
    flush(&mut queue);
    queue
}

fn show(what: &str, longest: Duration, calls: usize, all: Duration) {
    println!(
        "{what:<46} {:>9.2} ms the longest of {calls:>6}, {:>9.1} ms all",
        longest.as_secs_f64() * 1e3,
        all.as_secs_f64() * 1e3
    );
}

/// CPU time of this thread: other load on the machine does not count.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Calls `step` until it returns false.
fn measure(what: &str, mut step: impl FnMut() -> bool) {
    let (mut longest, mut all, mut calls) = (Duration::ZERO, Duration::ZERO, 0);
    loop {
        let begun = cpu_time();
        let has_more = step();
        let took = cpu_time().saturating_sub(begun);
        (longest, all, calls) = (longest.max(took), all + took, calls + 1);
        if !has_more {
            return show(what, longest, calls, all);
        }
    }
}

fn once(what: &str, call: impl FnOnce()) {
    let mut call = Some(call);
    measure(what, || {
        call.take().into_iter().for_each(|call| call());
        false
    });
}

fn purge(queue: &mut Queue, what: &str) {
    let mut from = 0;
    measure(what, || {
        let (_, next) = queue.purge_some(None, from..u64::MAX);
        from = next.unwrap_or(from);
        flush(queue);
        next.is_some()
    });
    maintain(queue, "  unblocking keys");
}

/// Calls `maintain` until nothing is due.
fn maintain(queue: &mut Queue, what: &str) {
    measure(what, || {
        queue.maintain(100_000);
        flush(queue);
        queue.next_due().is_some_and(|due_ms| due_ms <= 100_000)
    });
}

/// Changes the configuration, and applies it to all messages.
fn set(queue: &mut Queue, what: &str, change: fn(&mut Config)) {
    let mut config = queue.config().clone();
    change(&mut config);
    let mut config = Some(config);
    measure(&format!("set {what}"), || {
        match config.take() {
            Some(config) => queue.configure(config, 1_000),
            None => queue.maintain(1_000),
        }
        flush(queue);
        queue.is_busy() || queue.next_due() == Some(0)
    });
}

fn redrive(queue: &mut Queue, what: &str) {
    let mut from = 0;
    measure(what, || {
        let (_, next) = queue.redrive_some(from, MESSAGES, 2_000);
        from = next.unwrap_or(from);
        flush(queue);
        next.is_some()
    });
}

fn add_group(queue: &mut Queue) -> GroupId {
    let name: GroupName = "late".into();
    let mut group = None;
    once("new group", || group = queue.open_group(&name, 1_000).ok());
    once("  flush", || {
        flush(queue);
    });
    maintain(queue, "  taking over messages");
    group.expect("there is room")
}

fn operations(kind: Kind) {
    println!("{kind:?}");
    let mut queue = filled(kind);
    purge(&mut queue, "purge");
    let mut queue = filled(kind);
    let group = add_group(&mut queue);
    once("remove group", || queue.remove_group(group).expect("it is there"));
    maintain(&mut queue, "  releasing its messages");
    let mut queue = filled(kind);
    set(&mut queue, "fifo off", |config| config.fifo = false);
    let mut queue = filled_as(kind, Config { fifo: false, ..Config::default() });
    set(&mut queue, "fifo on", |config| config.fifo = true);
    set(&mut queue, "ttl", |config| config.ttl_ms = 1_000_000);
    set(&mut queue, "another ttl", |config| config.ttl_ms = 2_000_000);
    set(&mut queue, "no ttl", |config| config.ttl_ms = 0);
    set(&mut queue, "length and overflow", |config| {
        (config.length_max, config.overflow) = (900_000, mainstem_queue_core::Overflow::DropOldest);
    });
    set(&mut queue, "no length", |config| *config = Config::default());
    measure("delete", || queue.drop_step());
    once("  the rest", || drop(queue));
}

/// Writes an incremental snapshot.
fn snapshot(queue: &Queue, what: &str) -> Vec<Vec<u8>> {
    let (mut all, mut cursor) = (Vec::new(), None);
    measure(what, || {
        let mut part = Vec::new();
        let Some(cursor) = &mut cursor else {
            cursor = Some(queue.begin_snapshot(&mut part));
            all.push(part);
            return true;
        };
        let has_more = queue.snapshot_part(cursor, queue.at_once(), &mut part).is_some();
        all.push(part);
        has_more
    });
    all.retain(|part| !part.is_empty());
    all
}

fn parts(kind: Kind) {
    println!("{kind:?}, every second message settled, every fourth leased");
    let mut queue = with_gaps(kind);
    let written = snapshot(&queue, "snapshot");
    println!("  {} bytes", written.iter().map(Vec::len).sum::<usize>());
    let mut again = Queue::new(Config::default());
    once("read a snapshot", || written.iter().for_each(|part| again.replay(part).expect("it is one")));
    once("needed", || drop(queue.needed(0, 1_025)));
    once("info", || queue.info(&mut Info::default()));
    once("peek 1,000", || queue.peek(GROUP, 500_000, 1_000, &mut Vec::new()));
    redrive(&mut queue, "redrive nothing");
    maintain(&mut queue, "end of leases");
    add_group(&mut queue);
    snapshot(&queue, "snapshot of both groups");
}

fn rest() {
    println!("other");
    let mut queue = filled(Kind::Expiring);
    maintain(&mut queue, "expiring messages");
    snapshot(&queue, "snapshot of transfers");
    let mut queue = filled(Kind::Moved);
    redrive(&mut queue, "redrive");
    let mut queue = filled(Kind::Identified);
    snapshot(&queue, "snapshot of identifiers");
    once("forgetting identifiers", || queue.maintain(1_000_000_000));
    let mut queue = filled(Kind::Plain);
    let mut leases = Vec::new();
    once("lease 1,000", || queue.lease(GROUP, 1, 1_000, None, 1_000, &mut leases));
    once("settle 1,000", || {
        for lease in &leases {
            let settlement = Settlement { receipt: lease.receipt, disposition: Disposition::Release };
            queue.settle(GROUP, &settlement, 1_000, 0).expect("it is leased");
        }
    });
    once("register 4,000", || {
        for offset in MESSAGES..MESSAGES + 4_000 {
            queue.register(message(Kind::Plain, offset), 1_000);
        }
    });
}

/// Two million messages that one group has settled and another has not.
fn with_slow_group() -> Queue {
    let mut queue = Queue::new(Config::default());
    let fast = queue.open_group(&"fast".into(), 1_000).expect("there is room");
    let opened = queue.flush(&mut Vec::new()).expect("it is to last");
    queue.durable(opened, 1_000);
    let mut leases = Vec::new();
    for offset in 0..2 * MESSAGES {
        queue.register(message(Kind::Keyed, offset), 1_000);
        if offset % 1_000 == 999 {
            queue.lease(fast, 1, 1_000, None, 1_000, &mut leases);
            for lease in leases.drain(..) {
                let settlement = Settlement { receipt: lease.receipt, disposition: Disposition::Ack };
                queue.settle(fast, &settlement, 1_000, 0).expect("it is leased");
            }
            flush(&mut queue);
        }
    }
    queue
}

fn lagging() {
    println!("a group that lags by two million messages, and another one");
    let mut queue = with_slow_group();
    println!("  {} are not loaded", queue.unknown(GROUP));
    once("register 4,000", || {
        for offset in 2 * MESSAGES..2 * MESSAGES + 4_000 {
            queue.register(message(Kind::Keyed, offset), 1_000);
        }
    });
    flush(&mut queue);
    once("needed", || drop(queue.needed(0, 1_025)));
    snapshot(&queue, "snapshot");
    let mut leases = Vec::new();
    queue.lease(GROUP, 1, MESSAGES as usize, None, 1_000, &mut leases);
    for lease in &leases {
        let settlement = Settlement { receipt: lease.receipt, disposition: Disposition::Ack };
        queue.settle(GROUP, &settlement, 1_000, 0).expect("it is leased");
    }
    flush(&mut queue);
    measure("load 2,000", || {
        let Some(from) = queue.next_to_load() else { return false };
        let messages: Vec<Meta> = (from..from + 2_000).map(|offset| message(Kind::Keyed, offset)).collect();
        queue.load_missed(from..from + 2_000, &messages, 1_000);
        true
    });
    add_group(&mut queue);
    once("remove group", || queue.remove_group(GROUP).expect("it is there"));
    maintain(&mut queue, "  releasing its messages");
    purge(&mut queue, "purge");
}

fn main() {
    [Kind::Plain, Kind::Keyed, Kind::Scattered, Kind::OneKey].into_iter().for_each(operations);
    [Kind::Plain, Kind::Keyed].into_iter().for_each(parts);
    rest();
    lagging();
}
