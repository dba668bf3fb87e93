//! What is measured of work queues, and what is aimed at. `docs/benchmarks.md` says why each row is there.
//!
//! Servers differ in when a message reaches the disk, so each name says it ([`policy`]). The targets compare like with
//! like: Mainstem, which syncs before it acknowledges, with RabbitMQ's quorum queues, which do so too; and
//! `mainstem-os` with JetStream, which both leave it to the system.

use super::brokers::Ground;
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
        ground: Ground::Queue,
        subject: "mainstem",
        load,
        then: None,
        metrics,
        targets,
        excused: &[],
    }
}

/// When a message that was acknowledged is on the disk.
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

/// What is aimed at where messages are put in.
const ENQUEUE_TARGETS: &[Target] = &[
    target(MessagesPerS, TimesMin(1.5, "rabbit-quorum")),
    target(CpuPerMillion, TimesMax(1.0, "rabbit-quorum")),
];

/// What is aimed at where messages are taken out and acknowledged.
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

/// All rows, in the order in which they run.
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
        "500,000 waiting messages of 100 bytes, one consumer, 500 unacknowledged, each acknowledged by itself",
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

/// The load that fills a queue, for ten seconds at most, and empties it.
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
    fn every_server_says_when_it_syncs() {
        assert!(policy("mainstem").is_some());
        assert!(Ground::Queue.peers().iter().all(|peer| policy(peer).is_some()));
        assert_eq!(policy("kafka"), None);
    }
}
