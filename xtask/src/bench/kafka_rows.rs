//! Rows and targets of the Kafka protocol. `docs/benchmarks.md` gives the purpose of each row.
//!
//! Apache Kafka lets the operating system decide when a record reaches the disk. The targets therefore apply to
//! `mainstem-os`, which does the same. Every row also shows Mainstem with its default, a sync before each
//! acknowledgement.

use super::brokers::Category;
use super::metric::{self, Metric};
use super::rows::Bound::{Max, Min, TimesMax, TimesMin};
use super::rows::{Restart, Row, Target, target};
use super::server::End;
use Metric::{CpuPerGb, IdleCpuPercent, LifePeakMib, MbPerS, ReadyMs, RecordsPerS};
use Metric::{DeliveryP50Ms, DeliveryP99Ms, P50Ms, P99Ms};

const fn row(
    name: &'static str,
    about: &'static str,
    metrics: &'static [Metric],
    load: &'static [&'static str],
    targets: &'static [Target],
) -> Row {
    Row {
        name,
        about,
        category: Category::Kafka,
        subject: "mainstem-os",
        load,
        restart: None,
        metrics,
        targets,
        excluded: &[],
    }
}

const fn produce(
    name: &'static str,
    about: &'static str,
    load: &'static [&'static str],
    targets: &'static [Target],
) -> Row {
    row(name, about, metric::OF_PRODUCE, load, targets)
}

/// All rows, in the order of the runs.
pub(super) const KAFKA_ROWS: [Row; 17] = [
    produce(
        "produce",
        "150 records of 100 bytes a batch, one connection, 5 in flight, acks 1",
        &["produce"],
        &[
            target(RecordsPerS, TimesMin(2.0, "kafka")),
            target(CpuPerGb, TimesMax(0.5, "kafka")),
            target(P50Ms, TimesMax(0.4, "kafka")),
            target(P99Ms, TimesMax(0.5, "kafka")),
            target(LifePeakMib, Max(100.0)),
        ],
    ),
    produce(
        "produce-all",
        "the same with acks all",
        &["produce", "--acks", "all"],
        &[target(RecordsPerS, TimesMin(2.0, "kafka")), target(CpuPerGb, TimesMax(0.5, "kafka"))],
    ),
    produce("produce-none", "the same without acknowledgements", &["produce", "--acks", "0"], &[]),
    produce(
        "produce-1k",
        "16 records of 1 KiB a batch, one connection, 5 in flight, acks 1",
        &["produce", "--records", "16", "--record-bytes", "1024"],
        &[target(RecordsPerS, TimesMin(2.0, "kafka")), target(CpuPerGb, TimesMax(0.5, "kafka"))],
    ),
    produce(
        "produce-large",
        "1,200 records of 100 bytes a batch, 4 connections, 4 partitions, 5 in flight each, acks 1",
        &LARGE,
        &[
            target(RecordsPerS, TimesMin(1.2, "kafka")),
            target(CpuPerGb, TimesMax(0.6, "kafka")),
            target(LifePeakMib, Max(100.0)),
        ],
    ),
    produce("produce-lz4", "the same, batches compressed with lz4", &LARGE_LZ4, &[]),
    produce("produce-zstd", "the same, batches compressed with zstd", &LARGE_ZSTD, &[]),
    Row {
        subject: "mainstem",
        ..produce(
            "in-flight-64",
            "150 records of 100 bytes a batch, one connection, 64 in flight, acks all",
            &["produce", "--acks", "all", "--window", "64"],
            &[target(RecordsPerS, Min(1e6))],
        )
    },
    produce(
        "produce-open",
        "150 records of 100 bytes a batch, 1,000 batches/s on schedule, acks 1",
        &["produce", "--rate", "1000"],
        &[target(P50Ms, TimesMax(0.4, "kafka")), target(P99Ms, TimesMax(0.5, "kafka"))],
    ),
    row(
        "produce-fetch",
        "one record of 100 bytes a batch, 1,000 batches/s on schedule, and a long-polling consumer",
        metric::OF_DELIVERY,
        &["produce", "--records", "1", "--rate", "1000", "--consume"],
        &[target(DeliveryP50Ms, TimesMax(0.5, "kafka")), target(DeliveryP99Ms, TimesMax(0.35, "kafka"))],
    ),
    row(
        "fetch",
        "1 GiB of records of 100 bytes in batches of 150, 4 partitions, read repeatedly by one connection",
        metric::OF_FETCH,
        &["fetch", "--partitions", "4"],
        &[
            target(MbPerS, TimesMin(1.0, "kafka")),
            target(CpuPerGb, TimesMax(1.0, "kafka")),
            target(LifePeakMib, Max(100.0)),
        ],
    ),
    row(
        "fetch-1k",
        "the same with records of 1 KiB in batches of 16",
        metric::OF_FETCH,
        &["fetch", "--partitions", "4", "--records", "16", "--record-bytes", "1024"],
        &[target(MbPerS, TimesMin(1.0, "kafka")), target(CpuPerGb, TimesMax(1.0, "kafka"))],
    ),
    row(
        "fetch-16",
        "as `fetch`, with 16 connections, a partition each",
        metric::OF_FETCH,
        &["fetch", "--partitions", "16", "--connections", "16"],
        &[],
    ),
    row(
        "waiting",
        "100 consumers with long polls of 500 ms and no records; and the start of the process",
        metric::OF_WAITING,
        &["idle", "--connections", "100"],
        &[target(IdleCpuPercent, Max(1.0)), target(ReadyMs, Max(50.0)), target(LifePeakMib, Max(100.0))],
    ),
    produce(
        "partitions",
        "150 records of 100 bytes a batch, 4 connections, 1,000 partitions, 5 in flight each, acks 1",
        &["produce", "--connections", "4", "--partitions", "1000"],
        &[],
    ),
    produce(
        "connections",
        "150 records of 100 bytes a batch, 1,000 connections, 16 partitions, 1 in flight each, acks 1",
        &["produce", "--connections", "1000", "--partitions", "16", "--window", "1"],
        &[],
    ),
    Row {
        restart: Some(Restart { end: End::Kill, load: &["fetch", "--topic", "kept", "--fill", "0"] }),
        ..row(
            "kill",
            "1 GiB in 4 partitions, the broker killed and restarted, then all of it read",
            metric::OF_KAFKA_RESTART,
            &["fetch", "--topic", "kept", "--partitions", "4", "--duration", "1", "--warmup", "0"],
            &[],
        )
    },
];

const LARGE: [&str; 11] = large("none");
const LARGE_LZ4: [&str; 11] = large("lz4");
const LARGE_ZSTD: [&str; 11] = large("zstd");

/// Shorter warm-up than other rows, so that the writes do not outrun the disk behind the page cache.
const fn large(compression: &'static str) -> [&'static str; 11] {
    [
        "produce",
        "--records",
        "1200",
        "--connections",
        "4",
        "--partitions",
        "4",
        "--compression",
        compression,
        "--warmup",
        "4",
    ]
}
