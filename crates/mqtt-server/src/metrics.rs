//! Metrics of the MQTT server: what each counter means to monitoring.
//!
//! A shard counts in plain numbers and publishes them at the end of a turn; a scrape adds up what the shards have
//! published, so it costs them nothing. `$SYS` shows the same counters under the names of mosquitto.

use mainstem_metrics::{Exposition, Metric, Reading};

use crate::broker_state::Shared;
use crate::counters::{Counters, DropReason};
use crate::retained::RetainedSize;

const DROPPED: Metric = Metric::counter(
    "mainstem_mqtt_publishes_dropped_total",
    &["reason"],
    "Messages dropped, by reason: `queue_full` (the client's, its session, or all queues), `slow_reader` and `memory` (at \
     QoS 0), `too_large` (for the client), `not_allowed`, `expired`, `no_receiver` (shared subscription without \
     members), `refused` (by the broker), `unreadable` (from disk).",
);

static RETAINED: [Reading<RetainedSize>; 2] = [
    Reading::new(Metric::gauge("mainstem_mqtt_retained_messages", &[], "Retained messages."), |retained| {
        retained.messages
    }),
    Reading::new(
        Metric::gauge(
            "mainstem_mqtt_retained_bytes",
            &[],
            "Size of the retained messages, with topics and properties.",
        ),
        |retained| retained.bytes,
    ),
];

static READINGS: [Reading<Counters>; 23] = [
    Reading::new(
        Metric::gauge("mainstem_mqtt_connections", &[], "Open connections, before and after CONNECT."),
        |all| all.connections,
    ),
    Reading::new(
        Metric::counter("mainstem_mqtt_connections_accepted_total", &[], "Connections accepted."),
        |all| all.connections_accepted,
    ),
    Reading::new(
        Metric::gauge("mainstem_mqtt_sessions", &[], "Sessions, with and without a connection."),
        |all| all.sessions,
    ),
    Reading::new(
        Metric::gauge("mainstem_mqtt_sessions_connected", &[], "Sessions with a connection."),
        |all| all.clients_connected,
    ),
    Reading::new(
        Metric::counter("mainstem_mqtt_sessions_expired_total", &[], "Sessions that have expired."),
        |all| all.clients_expired,
    ),
    Reading::new(
        Metric::gauge("mainstem_mqtt_subscriptions", &[], "Subscriptions, shared ones included."),
        |all| all.subscriptions,
    ),
    Reading::new(
        Metric::gauge(
            "mainstem_mqtt_shared_subscriptions",
            &[],
            "Shared subscriptions: members of all groups.",
        ),
        |all| all.shared_subscriptions,
    ),
    Reading::new(
        Metric::gauge("mainstem_mqtt_queued_messages", &[], "Messages queued for sessions."),
        |all| all.queued_messages,
    ),
    Reading::new(Metric::counter("mainstem_mqtt_packets_received_total", &[], "Packets received."), |all| {
        all.messages_received
    }),
    Reading::new(Metric::counter("mainstem_mqtt_packets_sent_total", &[], "Packets sent."), |all| {
        all.messages_sent
    }),
    Reading::new(Metric::counter("mainstem_mqtt_received_bytes_total", &[], "Bytes received."), |all| {
        all.bytes_received
    }),
    Reading::new(Metric::counter("mainstem_mqtt_sent_bytes_total", &[], "Bytes sent."), |all| all.bytes_sent),
    Reading::new(
        Metric::counter("mainstem_mqtt_publishes_received_total", &[], "PUBLISH packets received."),
        |all| all.publish_received,
    ),
    Reading::new(
        Metric::counter("mainstem_mqtt_publishes_sent_total", &[], "PUBLISH packets sent."),
        |all| all.publish_sent,
    ),
    Reading::new(
        Metric::counter(
            "mainstem_mqtt_payload_received_bytes_total",
            &[],
            "Payload bytes of PUBLISH packets received.",
        ),
        |all| all.publish_bytes_received,
    ),
    Reading::new(
        Metric::counter(
            "mainstem_mqtt_payload_sent_bytes_total",
            &[],
            "Payload bytes of PUBLISH packets sent.",
        ),
        |all| all.publish_bytes_sent,
    ),
    Reading::new(
        Metric::counter(
            "mainstem_mqtt_log_entries_total",
            &[],
            "Entries of session journals, and retained messages, that were handed to the log.",
        ),
        |all| all.log_entries,
    ),
    Reading::new(
        Metric::counter("mainstem_mqtt_log_bytes_total", &[], "Bytes of session journals handed to the log."),
        |all| all.log_bytes,
    ),
    Reading::new(
        Metric::counter(
            "mainstem_mqtt_log_commits_total",
            &[],
            "Turns whose entries were set on their way to the disk.",
        ),
        |all| all.log_commits,
    ),
    Reading::new(
        Metric::counter(
            "mainstem_mqtt_log_failures_total",
            &[],
            "Times that the log refused or lost something that was to be kept.",
        ),
        |all| all.log_failures,
    ),
    Reading::new(
        Metric::gauge(
            "mainstem_mqtt_logs_failing",
            &[],
            "Session journals and logs of retained messages that cannot keep anything.",
        ),
        |all| all.log_failing,
    ),
    Reading::new(
        Metric::counter("mainstem_mqtt_socket_reads_total", &[], "Calls to the kernel that read."),
        |all| all.socket_reads,
    ),
    Reading::new(
        Metric::counter("mainstem_mqtt_socket_writes_total", &[], "Calls to the kernel that write."),
        |all| all.socket_writes,
    ),
];

/// All metrics of the MQTT server.
pub fn metrics() -> impl Iterator<Item = Metric> {
    READINGS
        .iter()
        .map(|reading| reading.metric)
        .chain([DROPPED])
        .chain(RETAINED.iter().map(|reading| reading.metric))
}

impl Shared {
    /// Writes the metrics of all shards, each as of the end of its last turn.
    pub fn write_metrics(&self, text: &mut Exposition) {
        let counters = self.counters();
        text.read(&READINGS, &counters);
        let mut dropped = text.begin(&DROPPED);
        for reason in DropReason::ALL {
            dropped.value(&[reason.name()], counters.dropped_for(reason));
        }
        text.read(&RETAINED, &self.retained.size());
    }
}
