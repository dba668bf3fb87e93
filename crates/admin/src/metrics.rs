//! `/metrics`: all queues, memory, and the turns of the shards in the Prometheus text format, version 0.0.4.
//!
//! A queue whose state cannot be read is reported as unavailable and has no other metrics; it does not make the scrape
//! fail.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use mainstem_queue_core::{GroupInfo, Info};
use mainstem_quota::{Counts, QuotaKey};
use mainstem_security::Published;

use crate::app::App;
use crate::broker::{MemoryUsage, PhaseDurations, TurnDurations};
use crate::queues::info_of_all;

const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A metric of a queue or a group.
struct Metric<T> {
    /// Name without the prefix.
    name: &'static str,
    /// [`GAUGE`] or [`COUNTER`].
    kind: &'static str,
    help: &'static str,
    value: fn(&T) -> u64,
}

const AVAILABLE: &str = "mainstem_queue_available";

const GAUGE: &str = "gauge";
const COUNTER: &str = "counter";
const HISTOGRAM: &str = "histogram";

const QUEUE_METRICS: [Metric<Info>; 3] = [
    Metric {
        name: "messages",
        kind: GAUGE,
        help: "Messages that at least one group has not settled.",
        value: |i| i.messages,
    },
    Metric { name: "bytes", kind: GAUGE, help: "Size of these messages in bytes.", value: |info| info.bytes },
    Metric {
        name: "duplicates_total",
        kind: COUNTER,
        help: "Messages discarded as duplicates.",
        value: |info| info.duplicates,
    },
];

const GROUP_METRICS: [Metric<GroupInfo>; 12] = [
    Metric { name: "ready", kind: GAUGE, help: "Messages ready for delivery.", value: |g| g.ready },
    Metric { name: "leased", kind: GAUGE, help: "Messages leased to consumers.", value: |g| g.leased },
    Metric {
        name: "delayed",
        kind: GAUGE,
        help: "Messages with a delay that has not passed.",
        value: |g| g.delayed,
    },
    Metric {
        name: "blocked",
        kind: GAUGE,
        help: "Messages blocked by an earlier message with the same key.",
        value: |g| g.blocked,
    },
    Metric {
        name: "leaving",
        kind: GAUGE,
        help: "Messages in transfer to another queue.",
        value: |g| g.leaving,
    },
    Metric {
        name: "oldest_timestamp_seconds",
        kind: GAUGE,
        help: "Unix time at which the oldest unsettled message arrived; 0 without one.",
        value: |group| group.oldest_ms.unwrap_or(0) / 1000,
    },
    Metric { name: "waiting", kind: GAUGE, help: "Consumers waiting for messages.", value: |g| g.waiting },
    Metric { name: "delivered_total", kind: COUNTER, help: "Deliveries.", value: |g| g.delivered },
    Metric {
        name: "redelivered_total",
        kind: COUNTER,
        help: "Deliveries after the first delivery of a message.",
        value: |g| g.redelivered,
    },
    Metric { name: "acked_total", kind: COUNTER, help: "Acknowledged messages.", value: |g| g.acked },
    Metric {
        name: "nacked_total",
        kind: COUNTER,
        help: "Negatively acknowledged deliveries.",
        value: |g| g.nacked,
    },
    Metric {
        name: "dead_total",
        kind: COUNTER,
        help: "Messages that became dead letters.",
        value: |g| g.dead,
    },
];

pub(crate) async fn metrics(State(app): State<App>) -> Response {
    let mut queues = Vec::new();
    let mut unavailable = Vec::new();
    for (name, result) in info_of_all(&app).await {
        match result {
            Ok(info) => queues.push(info),
            Err(_) => unavailable.push(name),
        }
    }
    let mut text = text(&queues, &unavailable);
    memory_metrics(&mut text, &app.broker().memory());
    turn_metrics(&mut text, &app.broker().turn_durations());
    if let Some(security) = app.broker().security() {
        quota_metrics(&mut text, security.published());
    }
    let mut response = (StatusCode::OK, text).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
    response
}

fn text(queues: &[Info], unavailable: &[Arc<str>]) -> String {
    let mut text = String::new();
    head(
        &mut text,
        AVAILABLE,
        GAUGE,
        "1 if the state of the queue can be read, otherwise 0; other metrics are then missing.",
    );
    for info in queues {
        line(&mut text, AVAILABLE, &info.name, None, 1);
    }
    for name in unavailable {
        line(&mut text, AVAILABLE, name, None, 0);
    }
    for metric in &QUEUE_METRICS {
        head(&mut text, &format!("mainstem_queue_{}", metric.name), metric.kind, metric.help);
        for info in queues {
            line(
                &mut text,
                &format!("mainstem_queue_{}", metric.name),
                &info.name,
                None,
                (metric.value)(info),
            );
        }
    }
    for metric in &GROUP_METRICS {
        let name = format!("mainstem_queue_group_{}", metric.name);
        head(&mut text, &name, metric.kind, metric.help);
        for info in queues {
            for group in &info.groups {
                line(&mut text, &name, &info.name, Some(&group.name), (metric.value)(group));
            }
        }
    }
    text
}

/// Memory by owner, its limit, and what the operating system counts.
fn memory_metrics(text: &mut String, memory: &MemoryUsage) {
    const BYTES: &str = "mainstem_memory_bytes";
    head(text, BYTES, GAUGE, "Memory counted in the budget, by owner.");
    for (owner, bytes) in &memory.by_owner {
        writeln!(text, "{BYTES}{{owner=\"{owner}\"}} {bytes}").expect("writing to a string cannot fail");
    }
    for (name, help, value) in [
        ("mainstem_memory_max_bytes", "Memory budget of the process.", memory.bytes_max),
        ("process_resident_memory_bytes", "Resident memory size in bytes.", memory.resident_bytes),
    ] {
        head(text, name, GAUGE, help);
        writeln!(text, "{name} {value}").expect("writing to a string cannot fail");
    }
}

/// What quotas and bans have throttled and refused.
fn quota_metrics(text: &mut String, published: &Published) {
    const THROTTLED: &str = "mainstem_quota_throttled_total";
    const SECONDS: &str = "mainstem_quota_throttled_seconds_total";
    const REFUSED: &str = "mainstem_quota_refused_total";
    const BANS: &str = "mainstem_bans_refused_total";
    let counts = QuotaKey::ALL.map(|key| (key, published.buckets().counts(key)));
    let mut write = |name: &str, help: &str, value: fn(&Counts) -> f64| {
        head(text, name, COUNTER, help);
        for (key, counts) in &counts {
            writeln!(text, "{name}{{quota=\"{key}\"}} {}", value(counts))
                .expect("writing to a string cannot fail");
        }
    };
    write(THROTTLED, "Times that a client had to wait, by quota.", |counts| as_f64(counts.throttled));
    write(SECONDS, "Time that clients had to wait, by quota.", |counts| as_f64(counts.throttled_ms) / 1000.0);
    write(REFUSED, "Messages, requests and connections refused, by quota.", |counts| as_f64(counts.refused));
    head(text, BANS, COUNTER, "Connections and requests of banned clients that were refused.");
    writeln!(text, "{BANS} {}", published.bans_refused()).expect("writing to a string cannot fail");
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus reads numbers as f64")]
fn as_f64(count: u64) -> f64 {
    count as f64
}

/// Histograms of how long turns take. The number of all durations is that of the last bucket, so that both agree even
/// if a shard records one meanwhile.
fn turn_metrics(text: &mut String, turns: &TurnDurations) {
    const SECONDS: &str = "mainstem_turn_duration_seconds";
    head(text, SECONDS, HISTOGRAM, "Duration of the turns of a shard, by phase.");
    for PhaseDurations { shard, phase, buckets, sum_ns } in &turns.series {
        let labels = format!("shard=\"{shard}\",phase=\"{phase}\"");
        let bounds =
            turns.bounds_us.iter().map(|bound| Duration::from_micros(*bound).as_secs_f64().to_string());
        let mut count = 0;
        for (bound, durations) in bounds.chain(["+Inf".to_owned()]).zip(buckets) {
            count += durations;
            writeln!(text, "{SECONDS}_bucket{{{labels},le=\"{bound}\"}} {count}")
                .expect("writing to a string cannot fail");
        }
        let sum_s = Duration::from_nanos(*sum_ns).as_secs_f64();
        writeln!(text, "{SECONDS}_sum{{{labels}}} {sum_s}\n{SECONDS}_count{{{labels}}} {count}")
            .expect("writing to a string cannot fail");
    }
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}").expect("writing to a string cannot fail");
}

fn line(text: &mut String, name: &str, queue: &str, group: Option<&str>, value: u64) {
    let queue = escape(queue);
    let group = group.map_or_else(String::new, |group| format!(",group=\"{}\"", escape(group)));
    writeln!(text, "{name}{{queue=\"{queue}\"{group}}} {value}").expect("writing to a string cannot fail");
}

/// Escapes a label value. Names of groups may contain any character.
fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_one_line_per_owner() {
        let mut text = String::new();
        let by_owner = vec![("connections", 5), ("sessions", 7)];
        memory_metrics(&mut text, &MemoryUsage { by_owner, bytes_max: 100, resident_bytes: 9 });
        assert!(text.contains("mainstem_memory_bytes{owner=\"connections\"} 5\n"));
        assert!(text.contains("mainstem_memory_bytes{owner=\"sessions\"} 7\n"));
        assert!(text.contains("# TYPE mainstem_memory_max_bytes gauge\nmainstem_memory_max_bytes 100\n"));
        assert!(text.contains("\nprocess_resident_memory_bytes 9\n"));
    }

    #[test]
    fn quotas_have_a_line_per_kind() {
        let published = Published::default();
        published.buckets().note_throttled(QuotaKey::PublishRate, 1_500);
        published.note_ban_refused();
        let mut text = String::new();
        quota_metrics(&mut text, &published);
        for line in [
            "mainstem_quota_throttled_total{quota=\"publish_rate\"} 1\n",
            "mainstem_quota_throttled_seconds_total{quota=\"publish_rate\"} 1.5\n",
            "mainstem_quota_refused_total{quota=\"publish_rate\"} 0\n",
            "mainstem_bans_refused_total 1\n",
        ] {
            assert!(text.contains(line), "{line}");
        }
    }

    #[test]
    fn turns_are_histograms_in_seconds() {
        let phase =
            PhaseDurations { shard: 1, phase: "input", buckets: vec![4, 0, 2], sum_ns: 1_500_000_000 };
        let mut text = String::new();
        turn_metrics(&mut text, &TurnDurations { bounds_us: &[10, 2_000], series: vec![phase] });
        let expected = "\
            # HELP mainstem_turn_duration_seconds Duration of the turns of a shard, by phase.\n\
            # TYPE mainstem_turn_duration_seconds histogram\n\
            mainstem_turn_duration_seconds_bucket{shard=\"1\",phase=\"input\",le=\"0.00001\"} 4\n\
            mainstem_turn_duration_seconds_bucket{shard=\"1\",phase=\"input\",le=\"0.002\"} 4\n\
            mainstem_turn_duration_seconds_bucket{shard=\"1\",phase=\"input\",le=\"+Inf\"} 6\n\
            mainstem_turn_duration_seconds_sum{shard=\"1\",phase=\"input\"} 1.5\n\
            mainstem_turn_duration_seconds_count{shard=\"1\",phase=\"input\"} 6\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn each_metric_has_one_header_and_one_line_per_queue_or_group() {
        let group =
            GroupInfo { name: "a\"b".into(), ready: 3, oldest_ms: Some(61_500), ..GroupInfo::default() };
        let info = Info { name: "jobs".into(), messages: 7, groups: vec![group], ..Info::default() };
        let text = text(&[info], &["broken".into()]);
        assert!(text.contains("mainstem_queue_available{queue=\"jobs\"} 1\n"));
        assert!(text.contains("mainstem_queue_available{queue=\"broken\"} 0\n"));
        assert_eq!(text.matches("broken").count(), 1);
        assert!(
            text.contains(
                "# TYPE mainstem_queue_messages gauge\nmainstem_queue_messages{queue=\"jobs\"} 7\n"
            )
        );
        assert!(text.contains("mainstem_queue_group_ready{queue=\"jobs\",group=\"a\\\"b\"} 3\n"));
        assert!(
            text.contains(
                "mainstem_queue_group_oldest_timestamp_seconds{queue=\"jobs\",group=\"a\\\"b\"} 61\n"
            )
        );
        assert_eq!(text.matches("# TYPE ").count(), 1 + QUEUE_METRICS.len() + GROUP_METRICS.len());
    }
}
