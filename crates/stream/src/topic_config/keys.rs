//! The keys that a topic can be set with, in one table.

use super::Default_::{Broker, Fixed};
use super::{DURABILITY, Key, Kind, durability_name};

const INT_MAX: i64 = i32::MAX as i64;
/// As Kafka since KIP-1030.
const SEGMENT_BYTES_MIN: i64 = 1024 * 1024;

/// A key; `broker` is what its default is called in a broker's configuration, nothing if it is not there.
const fn key(
    name: &'static str,
    broker: &'static str,
    kind: Kind,
    default: super::Default_,
    doc: &'static str,
) -> Key {
    Key { name, broker, kind, default, doc }
}

/// All keys, in the order of their names.
pub(crate) const KEYS: &[Key] = &[
    key(
        "cleanup.policy",
        "log.cleanup.policy",
        Kind::SomeOf(&["compact", "delete"]),
        Fixed("delete"),
        "Whether old records are removed by age and size, or of each key the newest is kept, or both; empty for neither.",
    ),
    key(
        "compression.gzip.level",
        "compression.gzip.level",
        Kind::Level(1, 9),
        Fixed("-1"),
        "Level of gzip if compression.type is gzip; -1 for its own default.",
    ),
    key(
        "compression.lz4.level",
        "compression.lz4.level",
        Kind::Int(1, 17),
        Fixed("9"),
        "Level of lz4 if compression.type is lz4.",
    ),
    key(
        "compression.type",
        "compression.type",
        Kind::OneOf(&["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"]),
        Fixed("producer"),
        "How batches are kept: as the producer compressed them, or compressed anew.",
    ),
    key(
        "compression.zstd.level",
        "compression.zstd.level",
        Kind::Int(-131_072, 22),
        Fixed("3"),
        "Level of zstd if compression.type is zstd.",
    ),
    key(
        "delete.retention.ms",
        "log.cleaner.delete.retention.ms",
        Kind::Long(0, i64::MAX),
        Fixed("86400000"),
        "How long compaction keeps a record without value, ms.",
    ),
    key(
        "file.delete.delay.ms",
        "log.segment.delete.delay.ms",
        Kind::Long(0, i64::MAX),
        Fixed("60000"),
        "Accepted; files are removed at once, and stay readable to whoever reads them.",
    ),
    key(
        "flush.messages",
        "log.flush.interval.messages",
        Kind::Long(1, i64::MAX),
        Fixed("9223372036854775807"),
        "Accepted; mainstem.durability says what is synced.",
    ),
    key(
        "flush.ms",
        "log.flush.interval.ms",
        Kind::Long(0, i64::MAX),
        Fixed("9223372036854775807"),
        "Accepted; mainstem.durability says what is synced.",
    ),
    key(
        "follower.replication.throttled.replicas",
        "",
        Kind::Replicas,
        Fixed(""),
        "Accepted; there are no followers.",
    ),
    key(
        "index.interval.bytes",
        "log.index.interval.bytes",
        Kind::Int(0, INT_MAX),
        Fixed("4096"),
        "Accepted; the index has an interval of its own.",
    ),
    key(
        "leader.replication.throttled.replicas",
        "",
        Kind::Replicas,
        Fixed(""),
        "Accepted; there are no followers.",
    ),
    key(
        "local.retention.bytes",
        "log.local.retention.bytes",
        Kind::Long(-2, i64::MAX),
        Fixed("-2"),
        "Accepted; there is no remote storage.",
    ),
    key(
        "local.retention.ms",
        "log.local.retention.ms",
        Kind::Long(-2, i64::MAX),
        Fixed("-2"),
        "Accepted; there is no remote storage.",
    ),
    key(
        DURABILITY,
        DURABILITY,
        Kind::OneOf(&["fsync", "os"]),
        Broker(|config| durability_name(config.durability).to_owned()),
        "When an append counts as done: on disk, or in the hands of the operating system.",
    ),
    key(
        "max.compaction.lag.ms",
        "log.cleaner.max.compaction.lag.ms",
        Kind::Long(1, i64::MAX),
        Fixed("9223372036854775807"),
        "Accepted; min.cleanable.dirty.ratio decides when a log is compacted.",
    ),
    key(
        "max.message.bytes",
        "message.max.bytes",
        Kind::Int(0, INT_MAX),
        Broker(|config| config.message_bytes_max.to_string()),
        "Largest record batch, as it is compressed, bytes.",
    ),
    key(
        "message.timestamp.after.max.ms",
        "log.message.timestamp.after.max.ms",
        Kind::Long(0, i64::MAX),
        Fixed("3600000"),
        "How far ahead of the broker's clock a record's timestamp may be, ms.",
    ),
    key(
        "message.timestamp.before.max.ms",
        "log.message.timestamp.before.max.ms",
        Kind::Long(0, i64::MAX),
        Fixed("9223372036854775807"),
        "How far behind the broker's clock a record's timestamp may be, ms.",
    ),
    key(
        "message.timestamp.type",
        "log.message.timestamp.type",
        Kind::OneOf(&["CreateTime", "LogAppendTime"]),
        Fixed("CreateTime"),
        "Whether a record's timestamp is its producer's, or the time of its arrival.",
    ),
    key(
        "min.cleanable.dirty.ratio",
        "log.cleaner.min.cleanable.ratio",
        Kind::Double(0.0, 1.0),
        Fixed("0.5"),
        "Part of a log that must be uncompacted before it is compacted again.",
    ),
    key(
        "min.compaction.lag.ms",
        "log.cleaner.min.compaction.lag.ms",
        Kind::Long(0, i64::MAX),
        Fixed("0"),
        "Accepted; only closed segments are compacted.",
    ),
    key(
        "min.insync.replicas",
        "min.insync.replicas",
        Kind::Int(1, INT_MAX),
        Fixed("1"),
        "Accepted; one replica is all there is.",
    ),
    key(
        "preallocate",
        "log.preallocate",
        Kind::Boolean,
        Fixed("false"),
        "Accepted; files grow as they are written.",
    ),
    key(
        "remote.log.copy.disable",
        "",
        Kind::Boolean,
        Fixed("false"),
        "Accepted; there is no remote storage.",
    ),
    key(
        "remote.log.delete.on.disable",
        "",
        Kind::Boolean,
        Fixed("false"),
        "Accepted; there is no remote storage.",
    ),
    key(
        "remote.storage.enable",
        "",
        Kind::Never,
        Fixed("false"),
        "There is no remote storage: only false is accepted.",
    ),
    key(
        "retention.bytes",
        "log.retention.bytes",
        Kind::Long(i64::MIN, i64::MAX),
        Broker(|config| config.retention_bytes.to_string()),
        "Size of a partition beyond which its oldest segments are removed, bytes; -1 for no limit.",
    ),
    key(
        "retention.ms",
        "log.retention.ms",
        Kind::Long(-1, i64::MAX),
        Broker(|config| config.retention_ms.to_string()),
        "Age of its newest record from which on a segment is removed, ms; -1 for no limit.",
    ),
    key(
        "segment.bytes",
        "log.segment.bytes",
        Kind::Int(SEGMENT_BYTES_MIN, INT_MAX),
        Broker(|config| config.segment_bytes.to_string()),
        "Size from which on a segment is closed and another begun, bytes.",
    ),
    key(
        "segment.index.bytes",
        "log.index.size.max.bytes",
        Kind::Int(4, INT_MAX),
        Fixed("10485760"),
        "Accepted; the index is as large as its segment needs.",
    ),
    key(
        "segment.jitter.ms",
        "log.roll.jitter.ms",
        Kind::Long(0, i64::MAX),
        Fixed("0"),
        "Accepted; segments are closed when they are due.",
    ),
    key(
        "segment.ms",
        "log.roll.ms",
        Kind::Long(1, i64::MAX),
        Fixed("604800000"),
        "Age from which on a segment is closed, ms.",
    ),
    key(
        "unclean.leader.election.enable",
        "unclean.leader.election.enable",
        Kind::Boolean,
        Fixed("false"),
        "Accepted; there is nobody to elect.",
    ),
];
