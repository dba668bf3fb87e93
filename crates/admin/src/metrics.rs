//! `/metrics`: what the broker counts, in the Prometheus text format.
//!
//! The protocol servers describe and read their metrics themselves ([`Broker::write_metrics`]); those of work queues,
//! memory, turns, quotas and bans are here. A queue whose state cannot be read is reported as unavailable and has no
//! other metrics; it does not make the scrape fail.
//!
//! [`Broker::write_metrics`]: crate::Broker::write_metrics

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use mainstem_metrics::{CONTENT_TYPE, Exposition, Metric, Reading};
use mainstem_queue_core::{GroupInfo, Info};
use mainstem_quota::QuotaKey;
use mainstem_security::Published;

use crate::app::App;
use crate::broker::{MemoryUsage, PhaseDurations, TurnDurations};
use crate::queues::info_of_all;

const QUEUE: &[&str] = &["queue"];
const GROUP: &[&str] = &["queue", "group"];
const QUOTA: &[&str] = &["quota"];

const QUEUE_AVAILABLE: Metric = Metric::gauge(
    "mainstem_queue_available",
    QUEUE,
    "1 if the state of the queue can be read, otherwise 0; its other metrics are then missing.",
);
const MEMORY: Metric = Metric::gauge(
    "mainstem_memory_bytes",
    &["owner"],
    "Memory counted in the budget: `connections` (buffers), `messages` (MQTT), `sessions` (identifiers, subscriptions), \
     `requests` (Kafka requests still to arrive), `responses` (large Kafka responses that wait), `records` (Kafka \
     requests that wait, records on their way to their logs), `queues` (work queues), `quotas` (buckets of quotas).",
);
const MEMORY_MAX: Metric =
    Metric::gauge("mainstem_memory_max_bytes", &[], "Memory budget of the process, `memory.max_bytes`.");
const RESIDENT: Metric = Metric::gauge(
    "process_resident_memory_bytes",
    &[],
    "Resident memory of the process, by the operating system.",
);
const TURNS: Metric = Metric::histogram(
    "mainstem_turn_duration_seconds",
    &["shard", "phase"],
    "Duration of the turns of a shard's event loop: `total`, and what it was spent on, if there was any: `completion` \
     (of disk writes, and continued work), `mailbox` (messages from other shards), `input` (reads and the requests in \
     them), `timers`, `commit` (what the turn writes to disk), `flush` (writes to sockets), `held` (input of \
     connections beyond their share).",
);
const THROTTLED: Metric =
    Metric::counter("mainstem_quota_throttled_total", QUOTA, "Times that a client had to wait, by quota.");
const THROTTLED_SECONDS: Metric = Metric::counter(
    "mainstem_quota_throttled_seconds_total",
    QUOTA,
    "Time that clients had to wait, by quota.",
);
const REFUSED: Metric = Metric::counter(
    "mainstem_quota_refused_total",
    QUOTA,
    "Messages, requests and connections refused, by quota.",
);
const BANS: Metric = Metric::counter(
    "mainstem_bans_refused_total",
    &[],
    "Connections and requests of banned clients that were refused.",
);

const AUDIT_DROPPED: Metric = Metric::counter(
    "mainstem_audit_topic_dropped_total",
    &[],
    "Events of the audit log that `security.audit_topic` lacks, because it could not be written for too long.",
);

static QUEUES: [Reading<Info>; 3] = [
    Reading::new(
        Metric::gauge("mainstem_queue_messages", QUEUE, "Messages that at least one group has not settled."),
        |info| info.messages,
    ),
    Reading::new(Metric::gauge("mainstem_queue_bytes", QUEUE, "Size of these messages."), |info| info.bytes),
    Reading::new(
        Metric::counter("mainstem_queue_duplicates_total", QUEUE, "Messages discarded as duplicates."),
        |info| info.duplicates,
    ),
];

static GROUPS: [Reading<GroupInfo>; 12] = [
    Reading::new(
        Metric::gauge("mainstem_queue_group_ready", GROUP, "Messages ready for delivery."),
        |group| group.ready,
    ),
    Reading::new(
        Metric::gauge("mainstem_queue_group_leased", GROUP, "Messages leased to consumers."),
        |group| group.leased,
    ),
    Reading::new(
        Metric::gauge("mainstem_queue_group_delayed", GROUP, "Messages with a delay that has not passed."),
        |group| group.delayed,
    ),
    Reading::new(
        Metric::gauge(
            "mainstem_queue_group_blocked",
            GROUP,
            "Messages blocked by an earlier message with the same key.",
        ),
        |group| group.blocked,
    ),
    Reading::new(
        Metric::gauge("mainstem_queue_group_leaving", GROUP, "Messages in transfer to another queue."),
        |group| group.leaving,
    ),
    Reading::new(
        Metric::gauge(
            "mainstem_queue_group_oldest_timestamp_seconds",
            GROUP,
            "Unix time at which the oldest unsettled message arrived; 0 without one.",
        ),
        |group| group.oldest_ms.unwrap_or(0) / 1000,
    ),
    Reading::new(
        Metric::gauge("mainstem_queue_group_waiting", GROUP, "Consumers waiting for messages."),
        |group| group.waiting,
    ),
    Reading::new(Metric::counter("mainstem_queue_group_delivered_total", GROUP, "Deliveries."), |group| {
        group.delivered
    }),
    Reading::new(
        Metric::counter(
            "mainstem_queue_group_redelivered_total",
            GROUP,
            "Deliveries after the first delivery of a message.",
        ),
        |group| group.redelivered,
    ),
    Reading::new(
        Metric::counter("mainstem_queue_group_acked_total", GROUP, "Acknowledged messages."),
        |group| group.acked,
    ),
    Reading::new(
        Metric::counter("mainstem_queue_group_nacked_total", GROUP, "Negatively acknowledged deliveries."),
        |group| group.nacked,
    ),
    Reading::new(
        Metric::counter("mainstem_queue_group_dead_total", GROUP, "Messages that became dead letters."),
        |group| group.dead,
    ),
];

/// All metrics of this crate.
pub fn metrics() -> Vec<Metric> {
    let queues = QUEUES.iter().map(|reading| reading.metric);
    let groups = GROUPS.iter().map(|reading| reading.metric);
    let others =
        [MEMORY, MEMORY_MAX, RESIDENT, TURNS, THROTTLED, THROTTLED_SECONDS, REFUSED, BANS, AUDIT_DROPPED];
    [QUEUE_AVAILABLE].into_iter().chain(queues).chain(groups).chain(others).collect()
}

pub(crate) async fn scrape(State(app): State<App>) -> Response {
    let mut queues = Vec::new();
    let mut unavailable = Vec::new();
    for (name, result) in info_of_all(&app).await {
        match result {
            Ok(info) => queues.push(info),
            Err(_) => unavailable.push(name),
        }
    }
    let mut text = Exposition::default();
    app.broker().write_metrics(&mut text);
    write_queues(&mut text, &queues, &unavailable);
    write_memory(&mut text, &app.broker().memory());
    write_turns(&mut text, &app.broker().turn_durations());
    if let Some(security) = app.broker().security() {
        write_quotas(&mut text, security.published());
    }
    let mut response = (StatusCode::OK, text.finish()).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
    response
}

fn write_queues(text: &mut Exposition, queues: &[Info], unavailable: &[Arc<str>]) {
    let mut available = text.begin(&QUEUE_AVAILABLE);
    for info in queues {
        available.value(&[&info.name], 1);
    }
    for name in unavailable {
        available.value(&[name], 0);
    }
    for Reading { metric, value } in &QUEUES {
        let mut family = text.begin(metric);
        for info in queues {
            family.value(&[&info.name], value(info));
        }
    }
    for Reading { metric, value } in &GROUPS {
        let mut family = text.begin(metric);
        for info in queues {
            for group in &info.groups {
                family.value(&[&info.name, &group.name], value(group));
            }
        }
    }
}

/// Memory by owner, its limit, and what the operating system counts.
fn write_memory(text: &mut Exposition, memory: &MemoryUsage) {
    let mut by_owner = text.begin(&MEMORY);
    for (owner, bytes) in &memory.by_owner {
        by_owner.value(&[owner], bytes);
    }
    text.begin(&MEMORY_MAX).value(&[], memory.bytes_max);
    text.begin(&RESIDENT).value(&[], memory.resident_bytes);
}

/// What quotas and bans have throttled and refused, and what the audit topic lacks.
fn write_quotas(text: &mut Exposition, published: &Published) {
    let counts = QuotaKey::ALL.map(|key| (key.to_string(), published.buckets().counts(key)));
    let mut throttled = text.begin(&THROTTLED);
    for (key, counts) in &counts {
        throttled.value(&[key], counts.throttled);
    }
    let mut seconds = text.begin(&THROTTLED_SECONDS);
    for (key, counts) in &counts {
        seconds.value(&[key], Duration::from_millis(counts.throttled_ms).as_secs_f64());
    }
    let mut refused = text.begin(&REFUSED);
    for (key, counts) in &counts {
        refused.value(&[key], counts.refused);
    }
    text.begin(&BANS).value(&[], published.bans_refused());
    text.begin(&AUDIT_DROPPED).value(&[], published.audit_events().dropped());
}

/// Histograms of how long turns take.
fn write_turns(text: &mut Exposition, turns: &TurnDurations) {
    let mut family = text.begin(&TURNS);
    let bounds_s = turns.bounds_us.iter().map(|bound| Duration::from_micros(*bound).as_secs_f64());
    for PhaseDurations { shard, phase, buckets, sum_ns } in &turns.series {
        let below = bounds_s.clone().zip(buckets.iter().copied());
        let above = buckets.get(turns.bounds_us.len()).copied().unwrap_or(0);
        let sum_s = Duration::from_nanos(*sum_ns).as_secs_f64();
        family.histogram(&[&shard.to_string(), phase], below, above, sum_s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_one_line_per_owner() {
        let mut text = Exposition::default();
        let by_owner = vec![("connections", 5), ("sessions", 7)];
        write_memory(&mut text, &MemoryUsage { by_owner, bytes_max: 100, resident_bytes: 9 });
        let text = text.finish();
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
        published.audit_events().note_dropped(3);
        let mut text = Exposition::default();
        write_quotas(&mut text, &published);
        let text = text.finish();
        for line in [
            "mainstem_quota_throttled_total{quota=\"publish_rate\"} 1\n",
            "mainstem_quota_throttled_seconds_total{quota=\"publish_rate\"} 1.5\n",
            "mainstem_quota_refused_total{quota=\"publish_rate\"} 0\n",
            "mainstem_bans_refused_total 1\n",
            "mainstem_audit_topic_dropped_total 3\n",
        ] {
            assert!(text.contains(line), "{line}");
        }
    }

    #[test]
    fn turns_are_histograms_in_seconds() {
        let phase =
            PhaseDurations { shard: 1, phase: "input", buckets: vec![4, 0, 2], sum_ns: 1_500_000_000 };
        let mut text = Exposition::default();
        write_turns(&mut text, &TurnDurations { bounds_us: &[10, 2_000], series: vec![phase] });
        let text = text.finish();
        let expected = "\
            mainstem_turn_duration_seconds_bucket{shard=\"1\",phase=\"input\",le=\"0.00001\"} 4\n\
            mainstem_turn_duration_seconds_bucket{shard=\"1\",phase=\"input\",le=\"0.002\"} 4\n\
            mainstem_turn_duration_seconds_bucket{shard=\"1\",phase=\"input\",le=\"+Inf\"} 6\n\
            mainstem_turn_duration_seconds_sum{shard=\"1\",phase=\"input\"} 1.5\n\
            mainstem_turn_duration_seconds_count{shard=\"1\",phase=\"input\"} 6\n";
        assert!(text.ends_with(expected), "{text}");
    }

    #[test]
    fn each_metric_has_one_header_and_one_line_per_queue_or_group() {
        let group =
            GroupInfo { name: "a\"b".into(), ready: 3, oldest_ms: Some(61_500), ..GroupInfo::default() };
        let info = Info { name: "jobs".into(), messages: 7, groups: vec![group], ..Info::default() };
        let mut text = Exposition::default();
        write_queues(&mut text, &[info], &["broken".into()]);
        let text = text.finish();
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
        assert_eq!(text.matches("# TYPE ").count(), 1 + QUEUES.len() + GROUPS.len());
    }
}
