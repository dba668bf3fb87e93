//! The dashboards.

use super::{Dashboard, Panel, Unit};

/// All of them.
pub(super) const ALL: &[Dashboard] = &[
    Dashboard { name: "overview", panels: OVERVIEW },
    Dashboard { name: "mqtt", panels: MQTT },
    Dashboard { name: "kafka", panels: KAFKA },
    Dashboard { name: "queues", panels: QUEUES },
];

const fn panel(title: &'static str, unit: Unit, series: &'static [(&'static str, &'static str)]) -> Panel {
    Panel { title, unit, series }
}

const OVERVIEW: &[Panel] = &[
    panel(
        "Connections",
        Unit::Count,
        &[
            ("mainstem_mqtt_connections{instance=~\"$instance\"}", "MQTT {{instance}}"),
            ("mainstem_kafka_connections{instance=~\"$instance\"}", "Kafka {{instance}}"),
        ],
    ),
    panel(
        "Messages and records",
        Unit::PerSecond,
        &[
            (
                "rate(mainstem_mqtt_publishes_received_total{instance=~\"$instance\"}[$__rate_interval])",
                "MQTT in {{instance}}",
            ),
            (
                "rate(mainstem_mqtt_publishes_sent_total{instance=~\"$instance\"}[$__rate_interval])",
                "MQTT out {{instance}}",
            ),
            (
                "rate(mainstem_kafka_appended_records_total{instance=~\"$instance\"}[$__rate_interval])",
                "appended {{instance}}",
            ),
        ],
    ),
    panel(
        "CPU",
        Unit::Count,
        &[(
            "rate(process_cpu_seconds_total{job=\"mainstem\", instance=~\"$instance\"}[$__rate_interval])",
            "cores {{instance}}",
        )],
    ),
    panel(
        "Event loops busy",
        Unit::Share,
        &[(
            "sum by (instance, shard) (rate(mainstem_turn_duration_seconds_sum{phase=\"total\", instance=~\"$instance\"}[$__rate_interval]))",
            "shard {{shard}} {{instance}}",
        )],
    ),
    panel(
        "Turns, p99.9",
        Unit::Seconds,
        &[(
            "histogram_quantile(0.999, sum by (instance, le) (rate(mainstem_turn_duration_seconds_bucket{phase=\"total\", instance=~\"$instance\"}[$__rate_interval])))",
            "{{instance}}",
        )],
    ),
    panel(
        "Turns, time by phase",
        Unit::Share,
        &[(
            "sum by (phase) (rate(mainstem_turn_duration_seconds_sum{phase!=\"total\", instance=~\"$instance\"}[$__rate_interval]))",
            "{{phase}}",
        )],
    ),
    panel(
        "Commits",
        Unit::Seconds,
        &[
            (
                "histogram_quantile(0.5, sum by (instance, le) (rate(mainstem_commit_duration_seconds_bucket{instance=~\"$instance\"}[$__rate_interval])))",
                "p50 {{instance}}",
            ),
            (
                "histogram_quantile(0.99, sum by (instance, le) (rate(mainstem_commit_duration_seconds_bucket{instance=~\"$instance\"}[$__rate_interval])))",
                "p99 {{instance}}",
            ),
        ],
    ),
    panel(
        "Commits per second",
        Unit::PerSecond,
        &[(
            "sum by (instance) (rate(mainstem_commit_duration_seconds_count{instance=~\"$instance\"}[$__rate_interval]))",
            "{{instance}}",
        )],
    ),
    panel(
        "Memory",
        Unit::Bytes,
        &[
            (
                "process_resident_memory_bytes{job=\"mainstem\", instance=~\"$instance\"}",
                "resident {{instance}}",
            ),
            ("mainstem_memory_max_bytes{instance=~\"$instance\"}", "budget {{instance}}"),
        ],
    ),
    panel(
        "Memory of the budget, by owner",
        Unit::Bytes,
        &[("sum by (owner) (mainstem_memory_bytes{instance=~\"$instance\"})", "{{owner}}")],
    ),
    panel(
        "File descriptors",
        Unit::Share,
        &[(
            "process_open_fds{job=\"mainstem\", instance=~\"$instance\"} / process_max_fds{job=\"mainstem\", instance=~\"$instance\"}",
            "{{instance}}",
        )],
    ),
    panel(
        "Throttled and refused",
        Unit::PerSecond,
        &[
            (
                "sum by (quota) (rate(mainstem_quota_throttled_total{instance=~\"$instance\"}[$__rate_interval]))",
                "throttled {{quota}}",
            ),
            (
                "sum by (quota) (rate(mainstem_quota_refused_total{instance=~\"$instance\"}[$__rate_interval]))",
                "refused {{quota}}",
            ),
            ("sum(rate(mainstem_bans_refused_total{instance=~\"$instance\"}[$__rate_interval]))", "banned"),
        ],
    ),
];

const MQTT: &[Panel] = &[
    panel(
        "Sessions",
        Unit::Count,
        &[
            ("mainstem_mqtt_sessions{instance=~\"$instance\"}", "all {{instance}}"),
            ("mainstem_mqtt_sessions_connected{instance=~\"$instance\"}", "connected {{instance}}"),
        ],
    ),
    panel(
        "New connections",
        Unit::PerSecond,
        &[(
            "rate(mainstem_mqtt_connections_accepted_total{instance=~\"$instance\"}[$__rate_interval])",
            "{{instance}}",
        )],
    ),
    panel(
        "Publishes",
        Unit::PerSecond,
        &[
            (
                "rate(mainstem_mqtt_publishes_received_total{instance=~\"$instance\"}[$__rate_interval])",
                "received {{instance}}",
            ),
            (
                "rate(mainstem_mqtt_publishes_sent_total{instance=~\"$instance\"}[$__rate_interval])",
                "sent {{instance}}",
            ),
        ],
    ),
    panel(
        "Bytes",
        Unit::BytesPerSecond,
        &[
            (
                "rate(mainstem_mqtt_received_bytes_total{instance=~\"$instance\"}[$__rate_interval])",
                "received {{instance}}",
            ),
            (
                "rate(mainstem_mqtt_sent_bytes_total{instance=~\"$instance\"}[$__rate_interval])",
                "sent {{instance}}",
            ),
        ],
    ),
    panel(
        "Messages dropped",
        Unit::PerSecond,
        &[(
            "sum by (reason) (rate(mainstem_mqtt_publishes_dropped_total{instance=~\"$instance\"}[$__rate_interval]))",
            "{{reason}}",
        )],
    ),
    panel(
        "Messages queued",
        Unit::Count,
        &[("mainstem_mqtt_queued_messages{instance=~\"$instance\"}", "{{instance}}")],
    ),
    panel(
        "Subscriptions",
        Unit::Count,
        &[
            ("mainstem_mqtt_subscriptions{instance=~\"$instance\"}", "all {{instance}}"),
            ("mainstem_mqtt_shared_subscriptions{instance=~\"$instance\"}", "shared {{instance}}"),
        ],
    ),
    panel(
        "Retained messages",
        Unit::Count,
        &[("mainstem_mqtt_retained_messages{instance=~\"$instance\"}", "{{instance}}")],
    ),
    panel(
        "Publishes sent per call of the kernel",
        Unit::Count,
        &[(
            "rate(mainstem_mqtt_publishes_sent_total{instance=~\"$instance\"}[$__rate_interval]) / rate(mainstem_mqtt_socket_writes_total{instance=~\"$instance\"}[$__rate_interval])",
            "{{instance}}",
        )],
    ),
    panel(
        "Failures of the log",
        Unit::PerSecond,
        &[(
            "rate(mainstem_mqtt_log_failures_total{instance=~\"$instance\"}[$__rate_interval])",
            "{{instance}}",
        )],
    ),
];

const KAFKA: &[Panel] = &[
    panel(
        "Requests",
        Unit::PerSecond,
        &[(
            "sum by (api) (rate(mainstem_kafka_requests_total{instance=~\"$instance\"}[$__rate_interval]))",
            "{{api}}",
        )],
    ),
    panel(
        "Connections",
        Unit::Count,
        &[("mainstem_kafka_connections{instance=~\"$instance\"}", "{{instance}}")],
    ),
    panel(
        "Records appended",
        Unit::PerSecond,
        &[(
            "rate(mainstem_kafka_appended_records_total{instance=~\"$instance\"}[$__rate_interval])",
            "{{instance}}",
        )],
    ),
    panel(
        "Bytes",
        Unit::BytesPerSecond,
        &[
            (
                "rate(mainstem_kafka_appended_bytes_total{instance=~\"$instance\"}[$__rate_interval])",
                "appended {{instance}}",
            ),
            (
                "rate(mainstem_kafka_fetched_bytes_total{instance=~\"$instance\"}[$__rate_interval])",
                "fetched {{instance}}",
            ),
        ],
    ),
    panel(
        "Records per Produce request",
        Unit::Count,
        &[(
            "rate(mainstem_kafka_appended_records_total{instance=~\"$instance\"}[$__rate_interval]) / ignoring (api) rate(mainstem_kafka_requests_total{api=\"Produce\", instance=~\"$instance\"}[$__rate_interval])",
            "{{instance}}",
        )],
    ),
    panel(
        "Topics and partitions",
        Unit::Count,
        &[
            ("mainstem_kafka_topics{instance=~\"$instance\"}", "topics {{instance}}"),
            ("mainstem_kafka_partitions{instance=~\"$instance\"}", "partitions {{instance}}"),
        ],
    ),
];

const QUEUES: &[Panel] = &[
    panel("Messages", Unit::Count, &[("mainstem_queue_messages{instance=~\"$instance\"}", "{{queue}}")]),
    panel(
        "Age of the oldest message",
        Unit::Seconds,
        &[(
            "time() - (mainstem_queue_group_oldest_timestamp_seconds{instance=~\"$instance\"} > 0)",
            "{{queue}} {{group}}",
        )],
    ),
    panel(
        "Ready and leased",
        Unit::Count,
        &[
            ("mainstem_queue_group_ready{instance=~\"$instance\"}", "ready {{queue}} {{group}}"),
            ("mainstem_queue_group_leased{instance=~\"$instance\"}", "leased {{queue}} {{group}}"),
        ],
    ),
    panel(
        "Delayed and blocked",
        Unit::Count,
        &[
            ("mainstem_queue_group_delayed{instance=~\"$instance\"}", "delayed {{queue}} {{group}}"),
            ("mainstem_queue_group_blocked{instance=~\"$instance\"}", "blocked {{queue}} {{group}}"),
        ],
    ),
    panel(
        "Settled",
        Unit::PerSecond,
        &[
            (
                "rate(mainstem_queue_group_acked_total{instance=~\"$instance\"}[$__rate_interval])",
                "acknowledged {{queue}} {{group}}",
            ),
            (
                "rate(mainstem_queue_group_dead_total{instance=~\"$instance\"}[$__rate_interval])",
                "dead {{queue}} {{group}}",
            ),
        ],
    ),
    panel(
        "Delivered",
        Unit::PerSecond,
        &[
            (
                "rate(mainstem_queue_group_delivered_total{instance=~\"$instance\"}[$__rate_interval])",
                "all {{queue}} {{group}}",
            ),
            (
                "rate(mainstem_queue_group_redelivered_total{instance=~\"$instance\"}[$__rate_interval])",
                "again {{queue}} {{group}}",
            ),
        ],
    ),
    panel(
        "Consumers waiting",
        Unit::Count,
        &[("mainstem_queue_group_waiting{instance=~\"$instance\"}", "{{queue}} {{group}}")],
    ),
    panel("Size", Unit::Bytes, &[("mainstem_queue_bytes{instance=~\"$instance\"}", "{{queue}}")]),
];
