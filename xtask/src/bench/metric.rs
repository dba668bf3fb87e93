//! One number of a report: its name, JSON path and format.

use serde_json::Value;

/// A number in the report of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Metric {
    /// Deliveries in percent of those expected from all *due* messages. Messages that an open loop could not send count
    /// as not delivered.
    DeliveredPercent,
    DeliveriesPerS,
    CpuPerMillion,
    P50Ms,
    P99Ms,
    RssPeakMib,
    ConnectionsPerS,
    WaitedPercent,
    GeneratorPercent,
    IdleKib,
    IdleCpuPercent,
    StoredPerS,
    FetchS,
    FetchedPerS,
    NotFetched,
    StoreCpuPerMillion,
    FetchCpuPerMillion,
    /// Growth of resident memory per stored message.
    BytesPerMessage,
    /// Resident memory after storing.
    RssStoredMib,
    /// Peak resident memory since the process started.
    LifePeakMib,
    /// Process start to first connection, after a restart.
    RestartS,
    /// Resident memory after the restart.
    RestartRssMib,
    /// Size of the data directory at the restart.
    DataMib,
    /// Records acknowledged or fetched, per second.
    RecordsPerS,
    /// Megabytes of record batches per second.
    MbPerS,
    /// CPU seconds per gigabyte of record batches.
    CpuPerGb,
    /// Due time at the producer to receipt by the consumer.
    DeliveryP50Ms,
    DeliveryP99Ms,
    /// Process start, without data, to first response.
    ReadyMs,
    /// Resident memory before the load.
    StartMib,
    /// Messages enqueued or consumed, and acknowledged, per second.
    MessagesPerS,
    /// Messages in the queue before consuming.
    FilledWith,
}

/// Columns of traffic rows.
pub(super) const OF_LOAD: &[Metric] = &[
    Metric::DeliveredPercent,
    Metric::DeliveriesPerS,
    Metric::CpuPerMillion,
    Metric::P50Ms,
    Metric::P99Ms,
    Metric::RssPeakMib,
    Metric::ConnectionsPerS,
    Metric::WaitedPercent,
    Metric::GeneratorPercent,
];

/// Columns of rows with idle connections.
pub(super) const OF_IDLE: &[Metric] = &[Metric::ConnectionsPerS, Metric::IdleKib, Metric::IdleCpuPercent];

/// Columns of rows with retained messages.
pub(super) const OF_RETAINED: &[Metric] = &[
    Metric::StoredPerS,
    Metric::FetchS,
    Metric::NotFetched,
    Metric::StoreCpuPerMillion,
    Metric::FetchCpuPerMillion,
];

/// Columns of rows with messages queued for offline sessions.
pub(super) const OF_QUEUED: &[Metric] = &[
    Metric::StoredPerS,
    Metric::FetchedPerS,
    Metric::NotFetched,
    Metric::StoreCpuPerMillion,
    Metric::FetchCpuPerMillion,
    Metric::RssStoredMib,
    Metric::BytesPerMessage,
    Metric::LifePeakMib,
];

/// Columns of rows with a restart.
pub(super) const OF_RESTART: &[Metric] = &[
    Metric::StoredPerS,
    Metric::RssStoredMib,
    Metric::BytesPerMessage,
    Metric::DataMib,
    Metric::RestartS,
    Metric::RestartRssMib,
    Metric::FetchedPerS,
    Metric::NotFetched,
    Metric::StoreCpuPerMillion,
    Metric::FetchCpuPerMillion,
    Metric::LifePeakMib,
];

/// Columns of rows that produce.
pub(super) const OF_PRODUCE: &[Metric] = &[
    Metric::RecordsPerS,
    Metric::MbPerS,
    Metric::CpuPerGb,
    Metric::P50Ms,
    Metric::P99Ms,
    Metric::LifePeakMib,
    Metric::ConnectionsPerS,
    Metric::WaitedPercent,
    Metric::GeneratorPercent,
];

/// Columns of rows that produce and consume at the same time.
pub(super) const OF_DELIVERY: &[Metric] = &[
    Metric::RecordsPerS,
    Metric::DeliveryP50Ms,
    Metric::DeliveryP99Ms,
    Metric::P50Ms,
    Metric::P99Ms,
    Metric::IdleCpuPercent,
    Metric::WaitedPercent,
];

/// Columns of rows that fetch.
pub(super) const OF_FETCH: &[Metric] = &[
    Metric::RecordsPerS,
    Metric::MbPerS,
    Metric::CpuPerGb,
    Metric::LifePeakMib,
    Metric::WaitedPercent,
    Metric::GeneratorPercent,
];

/// Columns of rows with idle consumers.
pub(super) const OF_WAITING: &[Metric] = &[
    Metric::ReadyMs,
    Metric::StartMib,
    Metric::LifePeakMib,
    Metric::IdleCpuPercent,
    Metric::ConnectionsPerS,
];

/// Columns of Kafka rows with a restart.
pub(super) const OF_KAFKA_RESTART: &[Metric] = &[
    Metric::ReadyMs,
    Metric::DataMib,
    Metric::RestartS,
    Metric::RestartRssMib,
    Metric::MbPerS,
    Metric::CpuPerGb,
    Metric::LifePeakMib,
];

/// Columns of rows that enqueue.
pub(super) const OF_QUEUE: &[Metric] = &[
    Metric::MessagesPerS,
    Metric::CpuPerMillion,
    Metric::P50Ms,
    Metric::P99Ms,
    Metric::RssPeakMib,
    Metric::WaitedPercent,
    Metric::GeneratorPercent,
];

/// Columns of rows that consume a filled queue.
pub(super) const OF_QUEUE_CONSUME: &[Metric] = &[
    Metric::MessagesPerS,
    Metric::CpuPerMillion,
    Metric::RssPeakMib,
    Metric::FilledWith,
    Metric::WaitedPercent,
    Metric::GeneratorPercent,
];

/// Columns of rows that enqueue and consume at the same time.
pub(super) const OF_QUEUE_FLOW: &[Metric] = &[
    Metric::MessagesPerS,
    Metric::DeliveryP50Ms,
    Metric::DeliveryP99Ms,
    Metric::P50Ms,
    Metric::P99Ms,
    Metric::CpuPerMillion,
    Metric::RssPeakMib,
    Metric::WaitedPercent,
];

impl Metric {
    /// Column header.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::DeliveredPercent => "delivered %",
            Self::DeliveriesPerS => "deliveries/s",
            Self::CpuPerMillion => "CPU s/M",
            Self::P50Ms => "p50 ms",
            Self::P99Ms => "p99 ms",
            Self::RssPeakMib => "peak RSS MiB",
            Self::ConnectionsPerS => "connections/s",
            Self::WaitedPercent => "waited for a core %",
            Self::GeneratorPercent => "generator %",
            Self::IdleKib => "KiB/connection",
            Self::IdleCpuPercent => "CPU % of a core",
            Self::StoredPerS => "stored/s",
            Self::FetchS => "fetched in s",
            Self::NotFetched => "not fetched",
            Self::StoreCpuPerMillion => "CPU s/M stored",
            Self::FetchCpuPerMillion => "CPU s/M fetched",
            Self::FetchedPerS => "fetched/s",
            Self::BytesPerMessage => "bytes/message",
            Self::RssStoredMib => "stored MiB",
            Self::LifePeakMib => "at most MiB",
            Self::RestartS => "restart s",
            Self::RestartRssMib => "then MiB",
            Self::DataMib => "disk MiB",
            Self::RecordsPerS => "records/s",
            Self::MbPerS => "MB/s",
            Self::CpuPerGb => "CPU s/GB",
            Self::DeliveryP50Ms => "to consumer p50 ms",
            Self::DeliveryP99Ms => "p99 ms to consumer",
            Self::ReadyMs => "ready ms",
            Self::StartMib => "idle MiB",
            Self::MessagesPerS => "messages/s",
            Self::FilledWith => "were there",
        }
    }

    /// Whether the ratio between two brokers is meaningful.
    pub(super) fn is_compared(self) -> bool {
        !matches!(
            self,
            Self::DeliveredPercent
                | Self::WaitedPercent
                | Self::GeneratorPercent
                | Self::IdleCpuPercent
                | Self::NotFetched
                | Self::FilledWith
        )
    }

    /// Extracts the number from a report, if present.
    pub(super) fn of(self, report: &Value) -> Option<f64> {
        let at = |pointer: &str| report.pointer(pointer)?.as_f64();
        let either = |one: &str, other: &str| at(one).or_else(|| at(other));
        let stored = |name: &str| at(&format!("/retained/{name}")).or_else(|| at(&format!("/queued/{name}")));
        let acknowledged = |name: &str| {
            let parts = ["traffic", "produce", "enqueue"];
            parts.iter().find_map(|part| at(&format!("/{part}/latency/{name}")))
        };
        match self {
            Self::DeliveredPercent => {
                let (published, unsent) = (at("/traffic/published")?, at("/traffic/unsent")?);
                let percent = at("/traffic/delivered_percent")?;
                Some(if unsent > 0.0 { percent * published / (published + unsent) } else { percent })
            }
            Self::DeliveriesPerS => at("/traffic/deliveries_per_s"),
            Self::CpuPerMillion => either("/traffic/broker/cpu_s_per_million", "/cost/cpu_s_per_million"),
            Self::P50Ms => Some(acknowledged("p50_us")? / 1e3),
            Self::P99Ms => Some(acknowledged("p99_us")? / 1e3),
            Self::RssPeakMib => either("/traffic/broker/rss_peak_mib", "/cost/rss_peak_mib"),
            Self::ConnectionsPerS => either("/traffic/connections_per_s", "/idle/connections_per_s")
                .or_else(|| at("/connections_per_s")),
            Self::WaitedPercent => either("/traffic/broker/waited_percent", "/cost/waited_percent"),
            Self::GeneratorPercent => either("/traffic/generator_cpu_percent", "/generator_cpu_percent"),
            Self::IdleKib => at("/idle/rss_kib_per_connection"),
            Self::IdleCpuPercent => either("/idle/cpu_percent", "/cost/cpu_percent"),
            Self::StoredPerS => stored("stored_per_s"),
            Self::FetchS => stored("fetch_s"),
            Self::FetchedPerS => stored("fetched_per_s"),
            Self::NotFetched => stored("lost"),
            Self::StoreCpuPerMillion => stored("broker_store_cpu_s_per_million"),
            Self::FetchCpuPerMillion => stored("broker_fetch_cpu_s_per_million"),
            Self::BytesPerMessage => stored("rss_bytes_per_message"),
            Self::RssStoredMib => stored("rss_stored_mib"),
            Self::LifePeakMib => stored("rss_peak_mib").or_else(|| at("/cost/rss_life_peak_mib")),
            Self::RestartS => at("/restart/seconds"),
            Self::RestartRssMib => at("/restart/rss_mib"),
            Self::DataMib => at("/restart/data_mib"),
            Self::RecordsPerS => at("/records_per_s"),
            Self::MbPerS => at("/mb_per_s"),
            Self::CpuPerGb => at("/cost/cpu_s_per_gb"),
            Self::DeliveryP50Ms => Some(at("/delivery/p50_us")? / 1e3),
            Self::DeliveryP99Ms => Some(at("/delivery/p99_us")? / 1e3),
            Self::ReadyMs => Some(at("/ready_s")? * 1e3),
            Self::StartMib => at("/cost/rss_start_mib"),
            Self::MessagesPerS => either("/enqueue/messages_per_s", "/consume/messages_per_s"),
            Self::FilledWith => at("/consume/filled"),
        }
    }

    /// Formats the number with a precision that fits its size.
    pub(super) fn show(self, value: f64) -> String {
        match self {
            Self::FetchS
            | Self::P50Ms
            | Self::P99Ms
            | Self::DeliveryP50Ms
            | Self::DeliveryP99Ms
            | Self::CpuPerGb
            | Self::RestartS
                if value < 10.0 =>
            {
                format!("{value:.3}")
            }
            Self::RecordsPerS
            | Self::MbPerS
            | Self::ReadyMs
            | Self::DeliveriesPerS
            | Self::ConnectionsPerS
            | Self::StoredPerS
            | Self::FetchedPerS
            | Self::BytesPerMessage
            | Self::GeneratorPercent
            | Self::MessagesPerS
            | Self::FilledWith
            | Self::NotFetched => format!("{value:.0}"),
            // Three decimals, so that one lost message in 100,000 is visible.
            Self::DeliveredPercent => format!("{value:.3}"),
            Self::CpuPerMillion
            | Self::IdleKib
            | Self::IdleCpuPercent
            | Self::StoreCpuPerMillion
            | Self::FetchCpuPerMillion => {
                format!("{value:.2}")
            }
            _ => format!("{value:.1}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn unsent_messages_count_as_not_delivered() {
        let report =
            |unsent: u32| json!({"traffic": {"published": 60, "unsent": unsent, "delivered_percent": 50.0}});
        assert_eq!(Metric::DeliveredPercent.of(&report(0)), Some(50.0));
        assert_eq!(Metric::DeliveredPercent.of(&report(40)), Some(30.0));
    }

    #[test]
    fn absent_numbers_are_none() {
        let report = json!({"traffic": null, "idle": {"connections_per_s": 7.0}});
        assert_eq!(Metric::ConnectionsPerS.of(&report), Some(7.0));
        assert_eq!(Metric::CpuPerMillion.of(&report), None);
    }

    #[test]
    fn reads_queue_reports() {
        let enqueue =
            json!({"enqueue": {"messages_per_s": 5.0, "latency": {"p50_us": 20.0}}, "consume": null});
        assert_eq!(Metric::MessagesPerS.of(&enqueue), Some(5.0));
        assert_eq!(Metric::P50Ms.of(&enqueue), Some(0.02));
        let consume =
            json!({"consume": {"messages_per_s": 6.0, "filled": 7}, "cost": {"cpu_s_per_million": 1.5}});
        let numbers = [Metric::MessagesPerS, Metric::FilledWith, Metric::CpuPerMillion];
        assert_eq!(numbers.map(|metric| metric.of(&consume)), [Some(6.0), Some(7.0), Some(1.5)]);
    }

    #[test]
    fn reads_kafka_reports() {
        let report = json!({
            "records_per_s": 5.0,
            "connections_per_s": 6.0,
            "produce": {"latency": {"p99_us": 1500.0}},
            "delivery": {"p50_us": 250.0},
            "cost": {"cpu_s_per_gb": 0.5, "cpu_percent": 0.7, "rss_life_peak_mib": 20.0},
            "ready_s": 0.04,
        });
        let expected = [
            (Metric::RecordsPerS, "5"),
            (Metric::ConnectionsPerS, "6"),
            (Metric::P99Ms, "1.500"),
            (Metric::DeliveryP50Ms, "0.250"),
            (Metric::CpuPerGb, "0.500"),
            (Metric::IdleCpuPercent, "0.70"),
            (Metric::LifePeakMib, "20.0"),
            (Metric::ReadyMs, "40"),
        ];
        for (metric, shown) in expected {
            assert_eq!(
                metric.of(&report).map(|value| metric.show(value)).as_deref(),
                Some(shown),
                "{metric:?}"
            );
        }
    }
}
