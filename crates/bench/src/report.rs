//! Results of an MQTT run, as values, one line of JSON, or a table.
//!
//! The JSON field names are the field names of these types; `xtask bench` and scripts read them.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::process::Usage;

/// Results of a run. Serializes to the JSON that `--json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Host and port.
    pub broker: String,
    /// MQTT protocol level: 4 or 5.
    pub version: u8,
    /// Quality of service of publishes and subscriptions.
    pub qos: u8,
    /// Payload size in bytes.
    pub payload_bytes: usize,
    /// Results of the idle connections, if any were requested.
    pub idle: Option<IdleReport>,
    /// Results of the traffic, if a scenario was requested.
    pub traffic: Option<TrafficReport>,
    /// Results of the retained messages, if any were requested.
    pub retained: Option<StoredReport>,
    /// Results of the messages queued for offline sessions, if any were requested.
    pub queued: Option<StoredReport>,
    /// Number of connections that broke during the run.
    pub connections_broken: u64,
    /// Cause of the first broken connection.
    pub first_fault: Option<String>,
}

/// Cost of opening and holding idle connections.
#[derive(Clone, Debug, Serialize)]
pub struct IdleReport {
    /// Number of connections opened.
    pub connections: u32,
    /// Connections opened per second, from the first connect to the last CONNACK.
    pub connections_per_s: f64,
    /// Growth of the broker's resident memory per connection, in KiB.
    pub rss_kib_per_connection: Option<f64>,
    /// CPU time of the broker while the connections were held, in percent of one core. Absent with a scenario.
    pub cpu_percent: Option<f64>,
}

/// Results of the traffic. Unless noted, counts cover messages due in the measured part.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TrafficReport {
    /// Name of the scenario.
    pub scenario: &'static str,
    /// Number of publishing connections.
    pub publishers: u32,
    /// Number of subscribing connections.
    pub subscribers: u32,
    /// Number of topics.
    pub topics: u32,
    /// Requested messages per second, in an open loop.
    pub rate: Option<f64>,
    /// Messages in flight per publisher, in a closed loop.
    pub window: Option<u32>,
    /// Closed loop: messages in flight over all publishers.
    pub in_flight: Option<u32>,
    /// Length of the measured part, in seconds.
    pub seconds: f64,
    /// Connections opened per second, from the first connect to the last SUBACK or CONNACK.
    pub connections_per_s: f64,
    /// Messages sent.
    pub published: u64,
    /// Messages due and not sent, because the generator or the broker's acknowledgements were too slow.
    pub unsent: u64,
    /// Deliveries expected from `published`.
    pub expected: u64,
    /// Deliveries received, without duplicates.
    pub delivered: u64,
    /// `delivered` in percent of `expected`.
    pub delivered_percent: f64,
    /// `expected` minus `delivered`.
    pub lost: u64,
    /// Duplicate deliveries.
    pub duplicates: u64,
    /// Deliveries that arrived after a later message of the same publisher and topic.
    pub out_of_order: u64,
    /// Received publishes that do not belong to this run, over the whole run.
    pub foreign: u64,
    /// Publishes that the broker rejected with a reason code, over the whole run.
    pub refused: u64,
    /// Deliveries written off by a stalled closed loop at QoS 0, over the whole run.
    pub written_off: u64,
    /// Messages sent per second.
    pub publishes_per_s: f64,
    /// Deliveries that arrived during the measured part, per second.
    pub deliveries_per_s: f64,
    /// Due time (open loop) or send time (closed loop) to receipt.
    pub latency: Latency,
    /// Due time to socket write: the generator's own delay, included in the latency.
    pub lag: Latency,
    /// Cost of the broker, if its process is known.
    pub broker: Option<BrokerCost>,
    /// CPU seconds of the generator per million deliveries.
    pub generator_cpu_s_per_million: f64,
    /// CPU time of the generator in percent of one core. Near 100 per thread, the generator is the bottleneck.
    pub generator_cpu_percent: f64,
    /// Time that the generator was runnable without a free core, in percent of the measured part.
    pub generator_waited_percent: f64,
}

/// A latency distribution, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Number of values.
    pub samples: u64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Maximum.
    pub max_us: f64,
}

/// Cost of the broker during the measured part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct BrokerCost {
    /// CPU time in user mode, in seconds.
    pub cpu_user_s: f64,
    /// CPU time in the kernel, in seconds.
    pub cpu_system_s: f64,
    /// CPU seconds (user and system) per million deliveries that arrived during the measured part.
    pub cpu_s_per_million: f64,
    /// Voluntary context switches of the broker's threads.
    pub voluntary_switches: u64,
    /// Time that its threads were runnable without a free core, in percent of the measured part. If high, the machine
    /// is the bottleneck.
    pub waited_percent: f64,
    /// Resident memory before the first connection, in MiB.
    pub rss_start_mib: f64,
    /// Peak resident memory over the samples of the run, in MiB.
    pub rss_peak_mib: f64,
    /// Peak resident memory since the broker started, in MiB.
    pub rss_life_peak_mib: f64,
}

/// Results of storing and fetching messages. Fields of a stage that did not run are absent.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StoredReport {
    /// Messages stored; one queued for several sessions counts once per session.
    pub messages: u32,
    /// Number of fetching sessions.
    pub sessions: u32,
    /// Messages stored per second, until the broker had processed the last one.
    pub stored_per_s: Option<f64>,
    /// Seconds from SUBSCRIBE, or from the first CONNECT, to the last message.
    pub fetch_s: Option<f64>,
    /// Messages fetched per second.
    pub fetched_per_s: Option<f64>,
    /// Messages that did not arrive.
    pub lost: u64,
    /// Duplicate messages.
    pub duplicates: u64,
    /// Messages that arrived after later ones. Counted only for queued messages of a single publisher.
    pub out_of_order: u64,
    /// CPU seconds of the broker per million messages stored.
    pub broker_store_cpu_s_per_million: Option<f64>,
    /// CPU seconds of the broker per million messages fetched.
    pub broker_fetch_cpu_s_per_million: Option<f64>,
    /// Growth of the broker's resident memory while storing, in bytes per message.
    pub rss_bytes_per_message: Option<f64>,
    /// Resident memory of the broker after storing, in MiB.
    pub rss_stored_mib: Option<f64>,
    /// Peak resident memory since the broker started, in MiB, read after fetching.
    pub rss_peak_mib: Option<f64>,
}

impl Latency {
    /// Summarizes a histogram of nanoseconds.
    #[expect(clippy::cast_precision_loss, reason = "at most two minutes, in nanoseconds")]
    pub(crate) fn of(ns: &Histogram<u64>) -> Self {
        let us = |value: u64| rounded(value as f64 / 1e3);
        Self {
            samples: ns.len(),
            p50_us: us(ns.value_at_quantile(0.5)),
            p99_us: us(ns.value_at_quantile(0.99)),
            p999_us: us(ns.value_at_quantile(0.999)),
            max_us: us(ns.max()),
        }
    }
}

impl Usage {
    /// CPU seconds (user and system) since `before`.
    pub(crate) fn cpu_s_since(&self, before: &Self) -> f64 {
        self.user_s - before.user_s + self.system_s - before.system_s
    }
}

/// `amount` per second; 0 for an empty time.
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
pub(crate) fn per_second(amount: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { rounded(amount as f64 / time.as_secs_f64()) }
}

/// `seconds` per million of `amount`; 0 if `amount` is 0.
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
pub(crate) fn per_million(seconds: f64, amount: u64) -> f64 {
    if amount == 0 { 0.0 } else { rounded(seconds * 1e6 / amount as f64) }
}

/// Bytes in MiB.
#[expect(clippy::cast_precision_loss, reason = "memory sizes stay far below 2^53")]
pub(crate) fn mib(bytes: u64) -> f64 {
    rounded(bytes as f64 / 1_048_576.0)
}

/// Rounds to three decimals.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (version, qos, bytes) = (self.version, self.qos, self.payload_bytes);
        writeln!(f, "broker {}, MQTT {version}, QoS {qos}, {bytes}-byte payloads", self.broker)?;
        if let Some(idle) = &self.idle {
            idle.fmt(f)?;
        }
        if let Some(traffic) = &self.traffic {
            traffic.fmt(f)?;
        }
        if let Some(retained) = &self.retained {
            retained.write(f, "retained messages")?;
        }
        if let Some(queued) = &self.queued {
            queued.write(f, "queued messages")?;
        }
        if let Some(fault) = &self.first_fault {
            let text = format!("{} (first: {fault})", self.connections_broken);
            row(f, "connections broken", &text)?;
        }
        Ok(())
    }
}

impl fmt::Display for IdleReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        row(f, "idle connections", &grouped(u64::from(self.connections)))?;
        row(f, "  opened", &format!("{}/s", number(self.connections_per_s)))?;
        if let Some(kib) = self.rss_kib_per_connection {
            row(f, "  broker memory", &format!("{kib:.2} KiB per connection"))?;
        }
        if let Some(percent) = self.cpu_percent {
            row(f, "  broker CPU", &format!("{percent:.2} % of a core while held"))?;
        }
        Ok(())
    }
}

impl fmt::Display for TrafficReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { publishers, subscribers, topics, .. } = self;
        let load = match (self.rate, self.in_flight.or(self.window)) {
            (Some(rate), _) => format!("{} messages/s on schedule", number(rate)),
            (_, Some(messages)) if self.in_flight.is_some() => format!("{messages} in flight in all"),
            (_, window) => format!("{} in flight per publisher", window.unwrap_or(0)),
        };
        row(
            f,
            self.scenario,
            &format!("{publishers} publishers, {subscribers} subscribers, {topics} topics, {load}"),
        )?;
        row(f, "connected", &format!("{}/s", number(self.connections_per_s)))?;
        row(f, "published", &self.published_row())?;
        let percent = self.delivered_percent;
        row(
            f,
            "delivered",
            &format!("{} of {} ({percent:.3} %)", grouped(self.delivered), grouped(self.expected)),
        )?;
        row(f, "deliveries", &format!("{}/s", number(self.deliveries_per_s)))?;
        row(f, "lost", &grouped(self.lost))?;
        row(f, "duplicates", &grouped(self.duplicates))?;
        row(f, "out of order", &grouped(self.out_of_order))?;
        let rare = [
            ("foreign", self.foreign),
            ("refused by the broker", self.refused),
            ("written off", self.written_off),
        ];
        for (name, count) in rare.into_iter().filter(|(_, count)| *count > 0) {
            row(f, name, &grouped(count))?;
        }
        row(f, "latency", &self.latency.to_string())?;
        if self.rate.is_some() {
            row(f, "  before sending", &self.lag.to_string())?;
        }
        if let Some(broker) = &self.broker {
            broker.fmt(f)?;
        }
        let (cpu, percent) = (self.generator_cpu_s_per_million, self.generator_cpu_percent);
        let waited = self.generator_waited_percent;
        row(
            f,
            "generator CPU",
            &format!(
                "{cpu:.3} s per million deliveries ({percent:.0} % of a core, waited for one {waited:.1} %)"
            ),
        )
    }
}

impl TrafficReport {
    fn published_row(&self) -> String {
        let unsent = match self.unsent {
            0 => String::new(),
            unsent => format!(", {} more were due but not sent", grouped(unsent)),
        };
        let (published, rate) = (grouped(self.published), number(self.publishes_per_s));
        format!("{published} in {:.1} s ({rate}/s){unsent}", self.seconds)
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99, p999, max] = [self.p50_us, self.p99_us, self.p999_us, self.max_us].map(number);
        write!(f, "p50 {p50} µs, p99 {p99} µs, p99.9 {p999} µs, max {max} µs")
    }
}

impl fmt::Display for BrokerCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (user, system) = (self.cpu_user_s, self.cpu_system_s);
        row(
            f,
            "broker CPU",
            &format!(
                "{:.3} s per million deliveries ({user:.2} s user, {system:.2} s system)",
                self.cpu_s_per_million
            ),
        )?;
        let sleeps = grouped(self.voluntary_switches);
        row(
            f,
            "broker sleeps",
            &format!("{sleeps}, waited for a core {:.1} % of the time", self.waited_percent),
        )?;
        let (start, peak, life) = (self.rss_start_mib, self.rss_peak_mib, self.rss_life_peak_mib);
        row(f, "broker memory", &format!("peak {peak:.1} MiB (before: {start:.1}, ever: {life:.1})"))
    }
}

impl StoredReport {
    fn write(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        row(f, name, &format!("{}, {} receivers", grouped(u64::from(self.messages)), self.sessions))?;
        if let Some(rate) = self.stored_per_s {
            row(f, "  stored", &format!("{}/s", number(rate)))?;
        }
        if let Some((seconds, rate)) = self.fetch_s.zip(self.fetched_per_s) {
            row(f, "  fetched", &format!("in {seconds:.3} s ({}/s)", number(rate)))?;
            row(f, "  lost", &grouped(self.lost))?;
            row(f, "  duplicates", &grouped(self.duplicates))?;
            row(f, "  out of order", &grouped(self.out_of_order))?;
        }
        let costs = [
            ("  CPU to store", self.broker_store_cpu_s_per_million),
            ("  CPU to fetch", self.broker_fetch_cpu_s_per_million),
        ];
        for (name, cost) in costs {
            if let Some(cost) = cost {
                row(f, name, &format!("{cost:.3} s per million"))?;
            }
        }
        if let Some((bytes, mib)) = self.rss_bytes_per_message.zip(self.rss_stored_mib) {
            row(f, "  broker memory", &format!("{mib:.1} MiB, {bytes:.0} bytes per message"))?;
        }
        if let Some(mib) = self.rss_peak_mib {
            row(f, "  at most", &format!("{mib:.1} MiB"))?;
        }
        Ok(())
    }
}

/// Writes one table row.
pub(crate) fn row(f: &mut fmt::Formatter<'_>, name: &str, value: &str) -> fmt::Result {
    writeln!(f, "  {name:<24}{value}")
}

/// Formats a number with two decimals below 10, one below 1,000, none above.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        small if small < 10.0 => format!("{value:.2}"),
        middle if middle < 1_000.0 => format!("{value:.1}"),
        #[expect(clippy::cast_sign_loss, reason = "rates and times are not negative")]
        _ => grouped(value.round() as u64),
    }
}

/// Formats a number with thousands separators.
pub(crate) fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_digits_from_the_right() {
        assert_eq!(
            [0, 12, 123, 1_234, 123_456, 1_234_567].map(grouped),
            ["0", "12", "123", "1,234", "123,456", "1,234,567"]
        );
        assert_eq!([0.1234, 99.99, 123_456.7].map(number), ["0.12", "100.0", "123,457"]);
    }

    #[test]
    fn ratios_with_zero_denominator_are_zero() {
        assert_eq!(per_million(3.0, 0).to_bits(), 0.0_f64.to_bits());
        assert_eq!(per_second(3, Duration::ZERO).to_bits(), 0.0_f64.to_bits());
        assert!((per_million(0.5, 250_000) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn report_prints_as_json_line_and_table() {
        let traffic = TrafficReport {
            scenario: "fan-out",
            published: 10,
            expected: 30,
            delivered: 29,
            lost: 1,
            unsent: 4,
            broker: Some(BrokerCost::default()),
            ..TrafficReport::default()
        };
        let report = Report {
            broker: "127.0.0.1:1883".into(),
            version: 5,
            qos: 1,
            payload_bytes: 100,
            idle: None,
            traffic: Some(traffic),
            retained: None,
            queued: None,
            connections_broken: 0,
            first_fault: None,
        };
        let json = serde_json::to_string(&report).unwrap();
        assert!(!json.contains('\n'));
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&value["traffic"]["lost"], &value["qos"]), (&1.into(), &1.into()));
        let table = report.to_string();
        assert!(table.contains("29 of 30") && table.contains("4 more were due"), "{table}");
    }
}
