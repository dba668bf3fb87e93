//! Rows and targets of work queues. `docs/benchmarks.md` gives the purpose of each row.
//!
//! Servers differ in when a message reaches the disk, so each label includes the policy ([`policy`]). The targets
//! compare equal policies: Mainstem, which syncs before it acknowledges, with RabbitMQ's quorum queues; and
//! `mainstem-os` with JetStream, which both leave the sync to the operating system.

use super::brokers::Category;
use super::metric::{self, Metric};
use super::rows::Bound::{TimesMax, TimesMin};
use super::rows::{Row, Target, target, target_of};
use Metric::{CpuPerMillion, MessagesPerS};

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
        category: Category::Queue,
        subject: "mainstem",
        load,
        restart: None,
        metrics,
        targets,
        excluded: &[],
    }
}

/// When an acknowledged message reaches the disk.
pub(super) fn policy(server: &str) -> Option<&'static str> {
    Some(match server {
        "mainstem" | "rabbit-quorum" => "fsync before the ack",
        "mainstem-os" => "page cache",
        "jetstream" => "fsync every 2 min",
        "jetstream-sync" => "fsync of each message",
        "rabbit-classic" => "fsync in groups",
        "fluxmq" => "as it is set",
        _ => return None,
    })
}

/// Targets of rows that enqueue.
const ENQUEUE_TARGETS: &[Target] = &[
    target(MessagesPerS, TimesMin(1.5, "rabbit-quorum")),
    target(CpuPerMillion, TimesMax(1.0, "rabbit-quorum")),
];

/// Targets of rows that consume.
const CONSUME_TARGETS: &[Target] = &[
    target(MessagesPerS, TimesMin(1.5, "rabbit-quorum")),
    target(CpuPerMillion, TimesMax(1.0, "rabbit-quorum")),
    target_of("mainstem-os", MessagesPerS, TimesMin(1.2, "jetstream")),
    target_of("mainstem-os", CpuPerMillion, TimesMax(1.0, "jetstream")),
];

const fn enqueue(name: &'static str, about: &'static str, load: &'static [&'static str]) -> Row {
    row(name, about, metric::OF_QUEUE, load, ENQUEUE_TARGETS)
}

const fn consume(name: &'static str, about: &'static str, load: &'static [&'static str]) -> Row {
    row(name, about, metric::OF_QUEUE_CONSUME, load, CONSUME_TARGETS)
}

/// All rows, in the order of the runs.
pub(super) const QUEUE_ROWS: [Row; 8] = [
    enqueue(
        "enqueue",
        "100 bytes, one publisher, 1,000 in flight, each message acknowledged",
        &["enqueue", "--in-flight", "1000"],
    ),
    enqueue("enqueue-1k", "the same with 1 KiB", &["enqueue", "--in-flight", "1000", "--payload", "1024"]),
    enqueue(
        "enqueue-4",
        "100 bytes, 4 publishers, 250 in flight each",
        &["enqueue", "--publishers", "4", "--in-flight", "250"],
    ),
    consume(
        "consume",
        "500,000 waiting messages of 100 bytes, one consumer, 500 unacknowledged, each acknowledged individually",
        &const { emptying("500000", "100", "1") },
    ),
    consume(
        "consume-4",
        "the same with 4 consumers, 500 unacknowledged each",
        &const { emptying("500000", "100", "4") },
    ),
    consume(
        "consume-1k",
        "200,000 waiting messages of 1 KiB, one consumer, 500 unacknowledged",
        &const { emptying("200000", "1024", "1") },
    ),
    consume(
        "consume-4-1k",
        "the same with 4 consumers, 500 unacknowledged each",
        &const { emptying("200000", "1024", "4") },
    ),
    row(
        "flow",
        "100 bytes, one publisher on schedule, 1,000/s, and 4 consumers, 500 unacknowledged each",
        metric::OF_QUEUE_FLOW,
        &["flow", "--rate", "1000", "--in-flight", "1000", "--consumers", "4", "--prefetch", "500"],
        &[],
    ),
];

/// A load that fills a queue for at most ten seconds, then consumes it.
const fn emptying(
    messages: &'static str,
    payload: &'static str,
    consumers: &'static str,
) -> [&'static str; 13] {
    [
        "consume",
        "--messages",
        messages,
        "--payload",
        payload,
        "--consumers",
        consumers,
        "--in-flight",
        "1000",
        "--prefetch",
        "500",
        "--fill",
        "10",
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_has_a_sync_policy() {
        assert!(policy("mainstem").is_some());
        assert!(Category::Queue.peers().iter().all(|peer| policy(peer).is_some()));
        assert_eq!(policy("kafka"), None);
    }
}
