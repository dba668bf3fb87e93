//! Results of a queue run, as values, one line of JSON, or a table.

use std::fmt;

use serde::Serialize;

use crate::report::{BrokerCost, Latency, grouped, number, row};

/// Results of a run. Serializes to the JSON that `--json` prints.
#[derive(Clone, Debug, Default, Serialize)]
pub struct QueueReport {
    /// Host and port.
    pub server: String,
    /// Protocol name.
    pub protocol: &'static str,
    /// Type or durability of the queue; `None` if there is no choice.
    pub made: Option<&'static str>,
    /// Name of the queue.
    pub queue: String,
    /// Type of load.
    pub work: &'static str,
    /// Number of publishing connections.
    pub publishers: u32,
    /// Number of consuming connections.
    pub consumers: u32,
    /// Maximum unacknowledged messages per publisher.
    pub in_flight: u32,
    /// Maximum unacknowledged messages per consumer.
    pub prefetch: u16,
    /// Payload size in bytes.
    pub payload_bytes: usize,
    /// Messages per second, in an open loop.
    pub rate: Option<f64>,
    /// Length of the measured part in seconds; if a queue was emptied, until its last message arrived.
    pub seconds: f64,
    /// Results of enqueueing, if part of the load.
    pub enqueue: Option<EnqueueReport>,
    /// Results of consuming, if part of the load.
    pub consume: Option<ConsumeReport>,
    /// Due time to receipt, if messages were enqueued and consumed at the same time.
    pub delivery: Option<Latency>,
    /// Acknowledgements and deliveries that match no sent message.
    pub foreign: u64,
    /// Cost of the server, per million messages acknowledged to publishers or, without publishers, consumed.
    pub cost: Option<BrokerCost>,
    /// CPU seconds of the generator per million messages.
    pub generator_cpu_s_per_million: f64,
    /// CPU time of the generator in percent of one core. Near 100, the generator is the bottleneck.
    pub generator_cpu_percent: f64,
}

/// Results of enqueueing. `unsent`, `refused`, `unanswered` and `missing` cover the whole run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct EnqueueReport {
    /// Messages acknowledged in the measured part.
    pub messages: u64,
    /// `messages` per second.
    pub messages_per_s: f64,
    /// Due time (open loop) or send time (closed loop) to acknowledgement.
    pub latency: Latency,
    /// Due time to send, in an open loop: delay by the generator and the in-flight limit, included in the latency.
    pub lag: Option<Latency>,
    /// Messages due and not sent.
    pub unsent: u64,
    /// Messages refused by the server.
    pub refused: u64,
    /// Reason of the first refusal.
    pub first_refusal: Option<String>,
    /// Messages neither acknowledged nor refused at the end.
    pub unanswered: u64,
    /// Messages acknowledged that are not in the queue. `None` if messages were consumed or the depth is unknown.
    pub missing: Option<u64>,
}

/// Results of consuming.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ConsumeReport {
    /// Messages in the queue before consuming.
    pub filled: Option<u64>,
    /// Seconds to fill the queue.
    pub fill_s: Option<f64>,
    /// Messages received in the measured part, without duplicates.
    pub messages: u64,
    /// `messages` per second.
    pub messages_per_s: f64,
    /// Messages acknowledged to publishers that were neither received nor are in the queue.
    pub lost: Option<u64>,
    /// Duplicate deliveries.
    pub repeated: u64,
    /// Messages acknowledged by consumers that are still in the queue. `None` unless all were received.
    pub unsettled: Option<u64>,
}

impl fmt::Display for QueueReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, protocol, work, payload_bytes, publishers, consumers, .. } = self;
        let made = self.made.map(|made| format!(" ({made})")).unwrap_or_default();
        writeln!(f, "server {server}, {protocol}{made}, {work}, {payload_bytes}-byte payloads")?;
        row(f, "publishers", &format!("{publishers}, {} in flight each", self.in_flight))?;
        if *consumers > 0 {
            row(f, "consumers", &format!("{consumers}, {} unacknowledged each", self.prefetch))?;
        }
        if let Some(rate) = self.rate {
            row(f, "on schedule", &format!("{}/s", number(rate)))?;
        }
        if let Some(enqueue) = &self.enqueue {
            enqueue.write(f, self.seconds)?;
        }
        if let Some(consume) = &self.consume {
            consume.write(f, self.seconds)?;
        }
        if let Some(delivery) = &self.delivery {
            row(f, "to the consumer", &delivery.to_string())?;
        }
        if self.foreign > 0 {
            row(f, "foreign", &grouped(self.foreign))?;
        }
        if let Some(cost) = &self.cost {
            let (cpu, user, system) = (cost.cpu_s_per_million, cost.cpu_user_s, cost.cpu_system_s);
            row(
                f,
                "server CPU",
                &format!("{cpu:.3} s per million messages ({user:.2} s user, {system:.2} s system)"),
            )?;
            let sleeps = grouped(cost.voluntary_switches);
            let waited = cost.waited_percent;
            row(f, "server sleeps", &format!("{sleeps}, waited for a core {waited:.1} % of the time"))?;
            let (start, peak, life) = (cost.rss_start_mib, cost.rss_peak_mib, cost.rss_life_peak_mib);
            let memory = format!("peak {peak:.1} MiB (before: {start:.1}, ever: {life:.1})");
            row(f, "server memory", &memory)?;
        }
        let (cpu, percent) = (self.generator_cpu_s_per_million, self.generator_cpu_percent);
        row(f, "generator CPU", &format!("{cpu:.3} s per million messages ({percent:.0} % of a core)"))
    }
}

impl EnqueueReport {
    fn write(&self, f: &mut fmt::Formatter<'_>, seconds: f64) -> fmt::Result {
        let (messages, rate) = (grouped(self.messages), number(self.messages_per_s));
        row(f, "enqueued", &format!("{messages} in {seconds:.1} s ({rate}/s)"))?;
        row(f, "  acknowledged after", &self.latency.to_string())?;
        if let Some(lag) = &self.lag {
            row(f, "  before sending", &lag.to_string())?;
        }
        if let Some(refusal) = &self.first_refusal {
            row(f, "  refused", &format!("{} (first: {refusal})", grouped(self.refused)))?;
        }
        row_if_any(f, "  due and not sent", self.unsent)?;
        row_if_any(f, "  not answered", self.unanswered)?;
        row_if_any(f, "  missing in the queue", self.missing.unwrap_or(0))
    }
}

impl ConsumeReport {
    fn write(&self, f: &mut fmt::Formatter<'_>, seconds: f64) -> fmt::Result {
        if let Some((filled, fill_s)) = self.filled.zip(self.fill_s) {
            row(f, "filled with", &format!("{} in {fill_s:.1} s", grouped(filled)))?;
        }
        let (messages, rate) = (grouped(self.messages), number(self.messages_per_s));
        row(f, "consumed", &format!("{messages} in {seconds:.1} s ({rate}/s)"))?;
        row_if_any(f, "  lost", self.lost.unwrap_or(0))?;
        row_if_any(f, "  repeated", self.repeated)?;
        row_if_any(f, "  not settled", self.unsettled.unwrap_or(0))
    }
}

/// Writes a row for a count that is normally 0, unless it is.
fn row_if_any(f: &mut fmt::Formatter<'_>, name: &str, count: u64) -> fmt::Result {
    if count == 0 { Ok(()) } else { row(f, name, &grouped(count)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_prints_as_json_line_and_table() {
        let report = QueueReport {
            protocol: "amqp",
            made: Some("quorum"),
            consume: Some(ConsumeReport {
                filled: Some(1_000),
                fill_s: Some(1.0),
                unsettled: Some(3),
                ..ConsumeReport::default()
            }),
            cost: Some(BrokerCost::default()),
            ..QueueReport::default()
        };
        let value: serde_json::Value = serde_json::to_value(&report).unwrap();
        assert_eq!(value["consume"]["unsettled"], 3);
        let table = report.to_string();
        for text in ["amqp (quorum)", "1,000 in 1.0 s", "not settled           3"] {
            assert!(table.contains(text), "{text}: {table}");
        }
        assert!(!table.contains("lost"), "{table}");
    }
}
