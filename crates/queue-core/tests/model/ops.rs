//! Random operations. Their numbers are interpreted when they are applied, so that failing cases shrink well.

use mainstem_queue_core::{Config, Disposition, Overflow, Start};
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;

/// More messages than any case has.
pub(crate) const EVERYTHING: u64 = 1_000_000;

#[derive(Clone, Debug)]
pub(crate) struct Headers {
    pub(crate) key: Option<u64>,
    pub(crate) priority: u8,
    pub(crate) delay_ms: Option<u64>,
    pub(crate) ttl_ms: Option<u64>,
    pub(crate) dedup_id: Option<u8>,
    pub(crate) moved_by: Option<(u8, u64)>,
    pub(crate) bytes: u32,
}

#[derive(Clone, Debug)]
pub(crate) enum Op {
    Append(Headers),
    /// Appends and registers this many messages of two keys.
    Burst(usize),
    Gap,
    Register(usize),
    /// Lagging groups load up to this many messages.
    LoadMissed(usize),
    /// The last `unread` leases are cancelled at once.
    Lease {
        group: usize,
        consumer: u64,
        max: usize,
        lease_ms: Option<u64>,
        unread: usize,
    },
    /// A consumer of the group leases and acknowledges up to `max` messages.
    Consume {
        group: usize,
        max: usize,
    },
    Settle {
        which: usize,
        disposition: Disposition,
        random: u32,
    },
    Leave {
        group: usize,
        consumer: u64,
    },
    AdvanceTime(u64),
    Maintain,
    Flush,
    Durable(usize),
    TakeTransfers(usize),
    ReturnTransfer(usize),
    Transferred(usize),
    /// Creates a group that takes over `at_once` messages per call.
    OpenGroup {
        group: usize,
        at_once: usize,
    },
    /// New groups take over some messages.
    Join(usize),
    RemoveGroup(usize),
    Purge(Option<usize>),
    Redrive(u64),
    Replay {
        group: usize,
        from: u64,
        len: u64,
    },
    Snapshot,
    /// Continues an incremental snapshot, or begins one.
    SnapshotParts {
        parts: usize,
        most: usize,
    },
    Crash {
        kept: usize,
        by_snapshot: bool,
    },
    Trim(usize),
    /// Changes the configuration, and does the first step of applying it.
    Configure {
        max_deliveries: u32,
        length_max: u64,
        ttl_ms: u64,
        drops_oldest: bool,
        is_single: bool,
    },
    /// Switches order by key on or off, and does the first step of applying it.
    ToggleFifo,
    /// Continues to apply the configuration.
    ContinueConfigure(usize),
}

pub(crate) fn config() -> impl Strategy<Value = Config> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let limits = (prop_oneof![Just(0), 3..10_u64], prop_oneof![Just(0), 50..200_u64]);
    let times =
        (prop_oneof![Just(0), 50..500_u64], prop_oneof![Just(0), Just(100_u64)], 0..4_u32, 0..=100_u8);
    (flags, limits, times).prop_map(
        |(flags, (length_max, bytes_max), (ttl_ms, dedup_window_ms, tries, jitter))| Config {
            lease_ms: 50,
            max_deliveries: tries,
            backoff_ms: 10,
            backoff_max_ms: 40,
            backoff_jitter_percent: jitter,
            dead_letters: flags.0,
            ttl_ms,
            fifo: flags.1,
            single_active_consumer: flags.2 && flags.3,
            dedup_window_ms,
            length_max,
            bytes_max,
            overflow: if flags.3 { Overflow::DropOldest } else { Overflow::Reject },
            start: if flags.4 { Start::Earliest } else { Start::Latest },
            ..Config::default()
        },
    )
}

/// How many messages the queue keeps in memory.
pub(crate) fn known_max() -> impl Strategy<Value = u64> {
    3..16_u64
}

fn headers() -> impl Strategy<Value = Headers> {
    let who = weighted(0.15, (0..2_u8, 1..8_u64));
    let when = (weighted(0.2, 1..100_u64), weighted(0.2, 1..200_u64));
    let what = (weighted(0.7, 1..4_u64), prop_oneof![4 => Just(0_u8), 1 => 0..12_u8], weighted(0.2, 0..3_u8));
    (what, when, who, 1..40_u32).prop_map(
        |((key, priority, dedup_id), (delay_ms, ttl_ms), moved_by, bytes)| Headers {
            key,
            priority,
            delay_ms,
            ttl_ms,
            dedup_id,
            moved_by,
            bytes,
        },
    )
}

fn disposition() -> impl Strategy<Value = Disposition> {
    prop_oneof![
        6 => Just(Disposition::Ack),
        2 => weighted(0.5, 0..60_u64).prop_map(Disposition::Nack),
        1 => Just(Disposition::Reject),
        2 => Just(Disposition::Release),
        1 => Just(Disposition::Unsent),
        1 => (0..100_u64).prop_map(Disposition::Extend),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        20 => headers().prop_map(Op::Append),
        1 => Just(Op::Gap),
        14 => (1..5_usize).prop_map(Op::Register),
        20 => (0..3_usize, 0..3_u64, 1..4_usize, weighted(0.2, 1..100_u64), weighted(0.1, 1..4_usize)).prop_map(
            |(group, consumer, max, lease_ms, unread)| {
                Op::Lease { group, consumer, max, lease_ms, unread: unread.unwrap_or(0) }
            }
        ),
        20 => (any::<usize>(), disposition(), any::<u32>())
            .prop_map(|(which, disposition, random)| Op::Settle { which, disposition, random }),
        1 => (0..3_usize, 0..3_u64).prop_map(|(group, consumer)| Op::Leave { group, consumer }),
        8 => (1..40_u64).prop_map(Op::AdvanceTime),
        8 => Just(Op::Maintain),
        12 => Just(Op::Flush),
        10 => (0..4_usize).prop_map(Op::Durable),
        5 => (1..4_usize).prop_map(Op::TakeTransfers),
        1 => any::<usize>().prop_map(Op::ReturnTransfer),
        4 => any::<usize>().prop_map(Op::Transferred),
        4 => (0..3_usize, prop_oneof![1..6_usize, Just(1_000)])
            .prop_map(|(group, at_once)| Op::OpenGroup { group, at_once }),
        6 => (1..6_usize).prop_map(Op::Join),
        1 => (0..3_usize).prop_map(Op::RemoveGroup),
        1 => weighted(0.5, 0..3_usize).prop_map(Op::Purge),
        2 => (1..4_u64).prop_map(Op::Redrive),
        2 => (0..3_usize, 0..30_u64, 1..10_u64).prop_map(|(group, from, len)| Op::Replay { group, from, len }),
        2 => Just(Op::Snapshot),
        6 => (1..5_usize, 1..4_usize).prop_map(|(parts, most)| Op::SnapshotParts { parts, most }),
        4 => (0..4_usize, any::<bool>()).prop_map(|(kept, by_snapshot)| Op::Crash { kept, by_snapshot }),
        2 => (0..4_usize).prop_map(Op::Trim),
        1 => (0..4_u32, prop_oneof![Just(0), 2..8_u64], prop_oneof![Just(0), 50..500_u64], any::<bool>(), weighted(0.2, Just(())))
            .prop_map(|(max_deliveries, length_max, ttl_ms, drops_oldest, is_single)| {
                let is_single = is_single.is_some();
                Op::Configure { max_deliveries, length_max, ttl_ms, drops_oldest, is_single }
            }),
        2 => Just(Op::ToggleFifo),
        4 => (1..4_usize).prop_map(Op::ContinueConfigure),
    ]
}

pub(crate) fn ops(most: usize) -> impl Strategy<Value = Vec<Op>> {
    vec(op(), 1..most)
}

/// Operations that make groups lag and catch up.
fn op_of_slow_groups() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (1..5_usize).prop_map(Op::Burst),
        8 => (0..3_usize, 1..8_usize).prop_map(|(group, max)| Op::Consume { group, max }),
        8 => (1..5_usize).prop_map(Op::LoadMissed),
        2 => (0..3_usize, 1..6_usize).prop_map(|(group, at_once)| Op::OpenGroup { group, at_once }),
        1 => weighted(0.5, 0..3_usize).prop_map(Op::Purge),
        1 => (0..3_usize, 0..60_u64, 1..10_u64).prop_map(|(group, from, len)| Op::Replay { group, from, len }),
        1 => (0..4_usize, any::<bool>()).prop_map(|(kept, by_snapshot)| Op::Crash { kept, by_snapshot }),
    ]
}

/// Operations for queues with lagging groups.
pub(crate) fn ops_of_slow_groups(most: usize) -> impl Strategy<Value = Vec<Op>> {
    vec(prop_oneof![op(), op_of_slow_groups()], 1..most)
}
