//! Definition of a row, and the rows and targets of MQTT. `docs/benchmarks.md` gives the purpose of each row.

use super::brokers::Category;
use super::metric::{self, Metric};
use super::server::End;

/// One load, run on every broker of its category.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) category: Category,
    /// The broker that targets and ratios apply to: Mainstem with its defaults or with a weaker durability.
    pub(super) subject: &'static str,
    /// Arguments of the load generator.
    pub(super) load: &'static [&'static str],
    /// Restart with a second load.
    pub(super) restart: Option<Restart>,
    /// Columns of the table.
    pub(super) metrics: &'static [Metric],
    pub(super) targets: &'static [Target],
    /// Peers that cannot run this load, and the reason.
    pub(super) excluded: &'static [(&'static str, &'static str)],
}

impl Row {
    /// Whether the row measures a broker.
    pub(super) fn includes(&self, broker: &str) -> bool {
        let is_there = broker == "mainstem" || self.category.peers().contains(&broker);
        is_there && self.exclusion(broker).is_none()
    }

    /// Why a peer of this category is excluded, if it is.
    fn exclusion(&self, broker: &str) -> Option<&'static str> {
        self.excluded.iter().find(|(name, _)| *name == broker).map(|(_, why)| *why)
    }

    /// Brokers that targets apply to; the row's subject first.
    pub(super) fn subjects(&self) -> Vec<&'static str> {
        let mut subjects = vec![self.subject];
        for subject in self.targets.iter().filter_map(|target| target.subject) {
            if !subjects.contains(&subject) {
                subjects.push(subject);
            }
        }
        subjects
    }

    /// Excluded peers with their reasons.
    pub(super) fn exclusions(&self) -> impl Iterator<Item = &(&'static str, &'static str)> {
        self.excluded.iter()
    }
}

/// Stops the broker, starts it again on its files, and runs a second load.
#[derive(Debug)]
pub(super) struct Restart {
    pub(super) end: End,
    pub(super) load: &'static [&'static str],
}

/// Required bound of a median.
#[derive(Debug)]
pub(super) struct Target {
    /// The broker it applies to; `None` for the row's subject.
    pub(super) subject: Option<&'static str>,
    pub(super) metric: Metric,
    pub(super) bound: Bound,
}

/// Bound of a target.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bound {
    Max(f64),
    Min(f64),
    /// At most this multiple of the median of a peer.
    TimesMax(f64, &'static str),
    /// At least this multiple of the median of a peer.
    TimesMin(f64, &'static str),
}

use Bound::{Max, Min, TimesMax, TimesMin};
use Metric::{ConnectionsPerS, CpuPerMillion, DeliveredPercent, DeliveriesPerS, FetchS, IdleKib, NotFetched};
use Metric::{LifePeakMib, P50Ms, P99Ms, RestartS, RssPeakMib, RssStoredMib};

pub(super) const fn target(metric: Metric, bound: Bound) -> Target {
    Target { subject: None, metric, bound }
}

pub(super) const fn target_of(subject: &'static str, metric: Metric, bound: Bound) -> Target {
    Target { subject: Some(subject), metric, bound }
}

const fn traffic(
    name: &'static str,
    about: &'static str,
    load: &'static [&'static str],
    targets: &'static [Target],
) -> Row {
    Row {
        name,
        about,
        category: Category::Memory,
        subject: "mainstem",
        load,
        restart: None,
        metrics: metric::OF_LOAD,
        targets,
        excluded: &[],
    }
}

const fn over_tls(
    name: &'static str,
    about: &'static str,
    load: &'static [&'static str],
    targets: &'static [Target],
) -> Row {
    Row { category: Category::Tls, ..traffic(name, about, load, targets) }
}

/// All rows, in the order of the runs.
pub(super) const ROWS: [Row; 26] = [
    traffic(
        "fan-out-qos2",
        "100 publishers to 2,000 subscribers, QoS 2, 64 bytes, 10 in flight per publisher",
        &FAN_OUT_QOS2,
        &[
            target(CpuPerMillion, TimesMax(0.8, "flashmq")),
            target(DeliveriesPerS, TimesMin(1.2, "flashmq")),
            target(RssPeakMib, TimesMax(1.0, "flashmq")),
        ],
    ),
    traffic(
        "fan-out-open",
        "the same on schedule: 95 messages/s, which are 190,000 deliveries/s",
        &FAN_OUT_OPEN,
        &[
            target(DeliveredPercent, Min(100.0)),
            target(P50Ms, TimesMax(0.5, "flashmq")),
            target(P99Ms, TimesMax(0.5, "flashmq")),
            target(CpuPerMillion, TimesMax(0.5, "flashmq")),
        ],
    ),
    traffic(
        "fan-out-open-qos0",
        "the same with QoS 0",
        &FAN_OUT_OPEN_QOS0,
        &[target(DeliveredPercent, Min(100.0)), target(CpuPerMillion, TimesMax(0.5, "rumqttd"))],
    ),
    traffic(
        "fan-out-10-qos0",
        "100 publishers to 2,000 subscribers, QoS 0, 64 bytes, 10 in flight in all",
        &FAN_OUT_10_QOS0,
        &[target(CpuPerMillion, TimesMax(0.9, "rumqttd")), target(DeliveriesPerS, TimesMin(1.0, "rumqttd"))],
    ),
    traffic(
        "fan-out-10-qos1",
        "the same with QoS 1",
        &FAN_OUT_10_QOS1,
        &[target(CpuPerMillion, TimesMax(0.75, "rumqttd")), target(DeliveriesPerS, TimesMin(1.0, "rumqttd"))],
    ),
    traffic(
        "fan-out-10-qos2",
        "the same with QoS 2",
        &FAN_OUT_10_QOS2,
        &[target(CpuPerMillion, TimesMax(0.5, "flashmq")), target(DeliveriesPerS, TimesMin(1.2, "flashmq"))],
    ),
    traffic(
        "fan-out-qos1",
        "100 publishers to 2,000 subscribers, QoS 1, 64 bytes, 10 in flight per publisher",
        &FAN_OUT_QOS1,
        &[target(CpuPerMillion, TimesMax(0.9, "rumqttd")), target(RssPeakMib, TimesMax(0.25, "rumqttd"))],
    ),
    traffic(
        "fan-out-qos0",
        "100 publishers to 2,000 subscribers, QoS 0, 64 bytes, 10 in flight per publisher",
        &FAN_OUT_QOS0,
        &[target(CpuPerMillion, TimesMax(1.0, "rumqttd")), target(RssPeakMib, TimesMax(0.25, "rumqttd"))],
    ),
    traffic(
        "fan-in-qos0",
        "2,000 publishers to 100 subscribers, 20 topics each, QoS 0, 64 bytes, 10 in flight per publisher",
        &FAN_IN_QOS0,
        &[target(CpuPerMillion, TimesMax(0.8, "flashmq"))],
    ),
    traffic(
        "fan-in-qos2",
        "the same with QoS 2",
        &FAN_IN_QOS2,
        &[target(CpuPerMillion, TimesMax(0.7, "flashmq"))],
    ),
    traffic(
        "fan-in-10-qos0",
        "2,000 publishers to 100 subscribers, 20 topics each, QoS 0, 64 bytes, 10 in flight in all",
        &FAN_IN_10_QOS0,
        &[target(CpuPerMillion, TimesMax(0.65, "flashmq"))],
    ),
    traffic(
        "fan-in-10-qos2",
        "the same with QoS 2",
        &FAN_IN_10_QOS2,
        &[target(CpuPerMillion, TimesMax(0.5, "flashmq"))],
    ),
    traffic(
        "large",
        "one publisher to 200 subscribers, QoS 0, 64 KiB, 10 in flight",
        &LARGE,
        &[target(CpuPerMillion, TimesMax(0.8, "mosquitto")), target(RssPeakMib, Max(16.0))],
    ),
    Row {
        name: "idle",
        about: "10,000 idle connections",
        category: Category::Memory,
        subject: "mainstem",
        restart: None,
        load: &["--idle", "10000"],
        metrics: metric::OF_IDLE,
        targets: &[target(IdleKib, Max(0.7)), target(ConnectionsPerS, TimesMin(1.0, "mosquitto"))],
        excluded: &[],
    },
    Row {
        name: "tls-idle",
        about: "5,000 idle connections over TLS 1.3, each with a whole handshake",
        category: Category::Tls,
        subject: "mainstem",
        restart: None,
        load: &["--idle", "5000"],
        metrics: metric::OF_IDLE,
        targets: &[target(IdleKib, Max(12.0)), target(ConnectionsPerS, TimesMin(1.0, "mosquitto"))],
        excluded: &[],
    },
    over_tls(
        "tls-fan-out-qos0",
        "fan-out-qos0 to 500 subscribers over TLS 1.3",
        &TLS_FAN_OUT_QOS0,
        &[target(CpuPerMillion, TimesMax(0.6, "flashmq")), target(CpuPerMillion, TimesMax(0.6, "mosquitto"))],
    ),
    over_tls(
        "tls-fan-out-qos1",
        "the same with QoS 1",
        &TLS_FAN_OUT_QOS1,
        &[target(CpuPerMillion, TimesMax(0.6, "flashmq")), target(CpuPerMillion, TimesMax(0.6, "mosquitto"))],
    ),
    traffic(
        "one-to-one",
        "one publisher to one subscriber, QoS 1, 64 bytes, 200 messages/s on schedule",
        &ONE_TO_ONE,
        &[target(P50Ms, TimesMax(1.0, "mosquitto")), target(P99Ms, TimesMax(1.0, "mosquitto"))],
    ),
    Row {
        name: "retained",
        about: "100,000 retained messages of 64 bytes, QoS 0, then one new subscriber to all of them",
        category: Category::Memory,
        subject: "mainstem",
        restart: None,
        load: &["--retained", "100000", "--qos", "0", "--payload", "64"],
        metrics: metric::OF_RETAINED,
        targets: &[target(FetchS, TimesMax(1.0, "flashmq")), target(NotFetched, Max(0.0))],
        excluded: &[("rumqttd", "it does not complete 100,000 retained messages")],
    },
    Row {
        name: "durable-qos1",
        about: "16 publishers to 16 subscribers with durable sessions, QoS 1, 64 bytes, 512 in flight in all",
        category: Category::Disk,
        subject: "mainstem",
        load: &DURABLE_QOS1,
        restart: None,
        metrics: metric::OF_LOAD,
        targets: &[target(DeliveriesPerS, Min(65_000.0))],
        excluded: &[],
    },
    Row {
        name: "durable-qos1-open",
        about: "the same on schedule: 100,000 messages/s in all",
        category: Category::Disk,
        subject: "mainstem",
        load: &DURABLE_QOS1_OPEN,
        restart: None,
        metrics: metric::OF_LOAD,
        targets: &[
            target(DeliveredPercent, Min(100.0)),
            // CPU cost of the log without the disk: `mainstem-os` writes without syncing.
            target_of("mainstem-os", CpuPerMillion, TimesMax(1.3, "mainstem-none")),
        ],
        excluded: &[("mosquitto", TOO_MANY), ("nats", TOO_MANY)],
    },
    Row {
        name: "queued",
        about: "1,000 offline sessions; 1,000 messages of 64 bytes for each; then all reconnect",
        category: Category::Disk,
        subject: "mainstem",
        load: &QUEUED,
        restart: None,
        metrics: metric::OF_QUEUED,
        targets: &[
            target(NotFetched, Max(0.0)),
            target(RssStoredMib, Max(256.0)),
            target(LifePeakMib, Max(256.0)),
        ],
        excluded: &[("nats", TOO_SLOW)],
    },
    Row {
        name: "queued-for-all",
        about: "the same with 1,000 messages, each for all sessions",
        category: Category::Disk,
        subject: "mainstem",
        load: &QUEUED_FOR_ALL,
        restart: None,
        metrics: metric::OF_QUEUED,
        targets: &[target(NotFetched, Max(0.0))],
        excluded: &[("nats", TOO_SLOW)],
    },
    Row {
        name: "queued-restart",
        about: "1,000 messages for each of 1,000 sessions, and a restart of the broker before they reconnect",
        category: Category::Disk,
        subject: "mainstem",
        load: &QUEUED_STORE,
        restart: Some(Restart { end: End::Term, load: &QUEUED_FETCH }),
        metrics: metric::OF_RESTART,
        targets: &[target(NotFetched, Max(0.0)), target(RestartS, Max(5.0)), target(LifePeakMib, Max(256.0))],
        excluded: &[("mainstem-none", NOT_PERSISTENT), ("nats", TOO_SLOW)],
    },
    Row {
        name: "retained-restart",
        about: "a million retained messages of 64 bytes, a restart of the broker, then one subscriber to all of them",
        category: Category::Disk,
        subject: "mainstem",
        load: &RETAINED_STORE,
        restart: Some(Restart { end: End::Term, load: &RETAINED_FETCH }),
        metrics: metric::OF_RESTART,
        targets: &[target(NotFetched, Max(0.0)), target(RestartS, Max(5.0))],
        excluded: &[("mainstem-none", NOT_PERSISTENT), ("nats", TOO_SLOW)],
    },
    Row {
        name: "retained-kill",
        about: "the same, with SIGKILL instead of SIGTERM",
        category: Category::Disk,
        subject: "mainstem",
        load: &RETAINED_STORE,
        restart: Some(Restart { end: End::Kill, load: &RETAINED_FETCH }),
        metrics: metric::OF_RESTART,
        targets: &[target(NotFetched, Max(0.0)), target(RestartS, Max(5.0))],
        excluded: &[
            ("mainstem-none", NOT_PERSISTENT),
            ("mosquitto", "it writes only on exit and every 30 minutes"),
            ("nats", TOO_SLOW),
        ],
    },
];

const NOT_PERSISTENT: &str = "it persists nothing";
const TOO_SLOW: &str = "with a sync per message, a million messages take too long";

const TOO_MANY: &str = "it cannot persist this rate";

const FAN_OUT_QOS2: [&str; 14] = fan_out("2", "--window", "10");
const FAN_OUT_OPEN: [&str; 14] = fan_out("2", "--rate", "95");
const FAN_OUT_QOS1: [&str; 14] = fan_out("1", "--window", "10");
const FAN_OUT_QOS0: [&str; 14] = fan_out("0", "--window", "10");
const FAN_OUT_OPEN_QOS0: [&str; 14] = fan_out("0", "--rate", "95");
const FAN_OUT_10_QOS0: [&str; 14] = fan_out("0", "--in-flight", "10");
const FAN_OUT_10_QOS1: [&str; 14] = fan_out("1", "--in-flight", "10");
const FAN_OUT_10_QOS2: [&str; 14] = fan_out("2", "--in-flight", "10");
const FAN_IN_10_QOS0: [&str; 14] = load("fan-in", "2000", "100", "0", "64", "--in-flight", "10");
const FAN_IN_10_QOS2: [&str; 14] = load("fan-in", "2000", "100", "2", "64", "--in-flight", "10");
const FAN_IN_QOS0: [&str; 14] = load("fan-in", "2000", "100", "0", "64", "--window", "10");
const FAN_IN_QOS2: [&str; 14] = load("fan-in", "2000", "100", "2", "64", "--window", "10");
const LARGE: [&str; 14] = load("fan-out", "1", "200", "0", "65536", "--window", "10");
const TLS_FAN_OUT_QOS0: [&str; 14] = load("fan-out", "25", "500", "0", "64", "--window", "10");
const TLS_FAN_OUT_QOS1: [&str; 14] = load("fan-out", "25", "500", "1", "64", "--window", "10");
const ONE_TO_ONE: [&str; 14] = load("pairs", "1", "1", "1", "64", "--rate", "200");

const DURABLE_QOS1: [&str; 15] = with_durable(load("pairs", "16", "16", "1", "64", "--window", "32"));
const DURABLE_QOS1_OPEN: [&str; 15] = with_durable(load("pairs", "16", "16", "1", "64", "--rate", "100000"));
const QUEUED: [&str; 12] = queued("1000", "both");
const QUEUED_FOR_ALL: [&str; 12] = queued("1", "both");
const QUEUED_STORE: [&str; 12] = queued("1000", "store");
const QUEUED_FETCH: [&str; 12] = queued("1000", "fetch");
const RETAINED_STORE: [&str; 12] = million_retained("store");
const RETAINED_FETCH: [&str; 12] = million_retained("fetch");

const fn with_durable(load: [&'static str; 14]) -> [&'static str; 15] {
    let mut durable = ["--durable"; 15];
    let mut at = 0;
    while at < load.len() {
        durable[at] = load[at];
        at += 1;
    }
    durable
}

const fn queued(topics: &'static str, part: &'static str) -> [&'static str; 12] {
    let count = "1000000";
    [
        "--queued",
        count,
        "--subscribers",
        "1000",
        "--topics",
        topics,
        "--qos",
        "1",
        "--payload",
        "64",
        "--part",
        part,
    ]
}

const fn million_retained(part: &'static str) -> [&'static str; 12] {
    let count = "1000000";
    ["--retained", count, "--qos", "1", "--payload", "64", "--window", "512", "--drain", "30", "--part", part]
}

const fn fan_out(qos: &'static str, pace: &'static str, value: &'static str) -> [&'static str; 14] {
    load("fan-out", "100", "2000", qos, "64", pace, value)
}

const fn load(
    scenario: &'static str,
    publishers: &'static str,
    subscribers: &'static str,
    qos: &'static str,
    payload: &'static str,
    pace: &'static str,
    value: &'static str,
) -> [&'static str; 14] {
    [
        "--scenario",
        scenario,
        "--publishers",
        publishers,
        "--subscribers",
        subscribers,
        "--qos",
        qos,
        "--payload",
        payload,
        pace,
        value,
        "--drain",
        // In a closed loop, messages of slow brokers arrive late, so wait for them. In an open loop, late is lost.
        if is_open(pace) { "5" } else { "60" },
    ]
}

const fn is_open(pace: &str) -> bool {
    matches!(pace.as_bytes(), b"--rate")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::kafka_rows::KAFKA_ROWS;
    use crate::bench::queue_rows::QUEUE_ROWS;

    #[test]
    fn rows_print_their_targets_and_name_existing_peers() {
        for row in ROWS.iter().chain(&KAFKA_ROWS).chain(&QUEUE_ROWS) {
            for Target { metric, bound, .. } in row.targets {
                assert!(row.metrics.contains(metric), "{}: {metric:?}", row.name);
                if let TimesMax(_, peer) | TimesMin(_, peer) = bound {
                    assert!(row.includes(peer), "{}", row.name);
                }
            }
            assert!(row.exclusions().all(|(peer, _)| row.category.peers().contains(peer)), "{}", row.name);
            assert!(row.subjects().iter().all(|subject| row.includes(subject)), "{}", row.name);
        }
    }
}
