//! What a run on a work queue found, as values, as one line of JSON, and as a table.

use std::fmt;

use serde::Serialize;

use crate::report::{BrokerCost, Latency, grouped, number, row};

/// What a run found. Serialises to the JSON that `--json` prints.
#[derive(Clone, Debug, Default, Serialize)]
pub struct QueueReport {
    /// Host and port.
    pub server: String,
    /// What was spoken.
    pub protocol: &'static str,
    /// How the queue was made, where there is a choice.
    pub made: Option<&'static str>,
    /// The queue.
    pub queue: String,
    /// What was done.
    pub work: &'static str,
    /// Connections that put messages in.
    pub publishers: u32,
    /// Connections that took messages out.
    pub consumers: u32,
    /// Messages that each publisher had under way unacknowledged, at most.
    pub in_flight: u32,
    /// Messages that each consumer could have unacknowledged.
    pub prefetch: u16,
    /// Size of each payload.
    pub payload_bytes: usize,
    /// Messages per second on schedule, in an open loop.
    pub rate: Option<f64>,
    /// Length of the measured part. Where a queue was emptied: until its last message came.
    pub seconds: f64,
    /// If messages were put in while it was measured.
    pub enqueue: Option<EnqueueReport>,
    /// If messages were taken out.
    pub consume: Option<ConsumeReport>,
    /// From due to received, if both was done at the same time.
    pub delivery: Option<Latency>,
    /// Answers and deliveries that belong to nothing.
    pub foreign: u64,
    /// What it cost the server, per million messages: acknowledged to publishers, or else received and acknowledged.
    pub cost: Option<BrokerCost>,
    /// CPU seconds of the generator per million messages.
    pub generator_cpu_s_per_million: f64,
    /// CPU time of the generator in percent of one core. Near 100, it is the generator that is measured.
    pub generator_cpu_percent: f64,
}

/// What publishers saw. Messages that were refused, and so on, are those of the whole run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct EnqueueReport {
    /// Messages acknowledged in the measured part.
    pub messages: u64,
    /// The same per second.
    pub messages_per_s: f64,
    /// From due (open loop) or sent (closed loop) to acknowledged.
    pub latency: Latency,
    /// From due to sent, in an open loop: what the generator and messages that may not be in flight yet add to it.
    pub lag: Option<Latency>,
    /// Messages that were due and not sent.
    pub unsent: u64,
    /// Messages that the server refused.
    pub refused: u64,
    /// What it said to the first of them.
    pub first_refusal: Option<String>,
    /// Messages without an answer at the end.
    pub unanswered: u64,
    /// Messages that were acknowledged and are not in the queue, if the server counts them and nobody took them out.
    pub missing: Option<u64>,
}

/// What consumers saw.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ConsumeReport {
    /// Messages that were in the queue before.
    pub filled: Option<u64>,
    /// How long it took to put them in.
    pub fill_s: Option<f64>,
    /// Different messages received in the measured part.
    pub messages: u64,
    /// The same per second.
    pub messages_per_s: f64,
    /// Messages that were acknowledged to their publishers, did not come, and are not in the queue.
    pub lost: Option<u64>,
    /// Deliveries of messages that had come before.
    pub repeated: u64,
    /// Messages that were received and acknowledged, and are in the queue all the same, if all were received.
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
            row(f, "belonging to nothing", &grouped(self.foreign))?;
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
            row(f, "  of it before sending", &lag.to_string())?;
        }
        if let Some(refusal) = &self.first_refusal {
            row(f, "  refused", &format!("{} (first: {refusal})", grouped(self.refused)))?;
        }
        rare(f, "  due and not sent", self.unsent)?;
        rare(f, "  not answered", self.unanswered)?;
        rare(f, "  missing in the queue", self.missing.unwrap_or(0))
    }
}

impl ConsumeReport {
    fn write(&self, f: &mut fmt::Formatter<'_>, seconds: f64) -> fmt::Result {
        if let Some((filled, fill_s)) = self.filled.zip(self.fill_s) {
            row(f, "filled with", &format!("{} in {fill_s:.1} s", grouped(filled)))?;
        }
        let (messages, rate) = (grouped(self.messages), number(self.messages_per_s));
        row(f, "consumed", &format!("{messages} in {seconds:.1} s ({rate}/s)"))?;
        rare(f, "  lost", self.lost.unwrap_or(0))?;
        rare(f, "  repeated", self.repeated)?;
        rare(f, "  not settled", self.unsettled.unwrap_or(0))
    }
}

/// A line about what there should be none of.
fn rare(f: &mut fmt::Formatter<'_>, name: &str, count: u64) -> fmt::Result {
    if count == 0 { Ok(()) } else { row(f, name, &grouped(count)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_one_line_of_json_and_a_table() {
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
