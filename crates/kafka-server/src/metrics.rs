//! Metrics of the Kafka server: what its counters mean to monitoring.

use std::sync::atomic::Ordering;

use mainstem_metrics::{Exposition, Metric};

use crate::counters::Counters;
use crate::handlers::SERVED;
use crate::shared::Shared;

const API: &[&str] = &["api"];

const CONNECTIONS: Metric = Metric::gauge("mainstem_kafka_connections", &[], "Open connections.");
const TOPICS: Metric = Metric::gauge("mainstem_kafka_topics", &[], "Topics, those of work queues included.");
const PARTITIONS: Metric = Metric::gauge("mainstem_kafka_partitions", &[], "Partitions of these topics.");
const REQUESTS: Metric = Metric::counter(
    "mainstem_kafka_requests_total",
    API,
    "Requests, by API; an API without requests is missing.",
);
const REQUEST_BYTES: Metric =
    Metric::counter("mainstem_kafka_request_bytes_total", API, "Size of these requests.");
const APPENDED_RECORDS: Metric = Metric::counter(
    "mainstem_kafka_appended_records_total",
    &[],
    "Records appended to partitions: of producers, of bindings and of work queues.",
);
const APPENDED_BYTES: Metric =
    Metric::counter("mainstem_kafka_appended_bytes_total", &[], "Size of their batches, as they were sent.");
const FETCHED_BYTES: Metric =
    Metric::counter("mainstem_kafka_fetched_bytes_total", &[], "Size of the batches in Fetch responses.");

/// All metrics of the Kafka server.
pub fn metrics() -> impl Iterator<Item = Metric> {
    let levels = [CONNECTIONS, TOPICS, PARTITIONS];
    levels.into_iter().chain([REQUESTS, REQUEST_BYTES, APPENDED_RECORDS, APPENDED_BYTES, FETCHED_BYTES])
}

impl Shared {
    /// Writes the metrics of all shards.
    pub fn write_metrics(&self, text: &mut Exposition) {
        let catalogue = self.snapshot();
        text.begin(&CONNECTIONS).value(&[], self.connections.load(Ordering::Relaxed).max(0));
        text.begin(&TOPICS).value(&[], catalogue.by_name.len());
        text.begin(&PARTITIONS).value(&[], catalogue.partitions);
        let counts = Counters::sum(&self.counters);
        for (metric, by_key) in [(REQUESTS, &counts.requests), (REQUEST_BYTES, &counts.request_bytes)] {
            let mut family = text.begin(&metric);
            for served in SERVED {
                let count = usize::try_from(served.api.key).ok().and_then(|key| by_key.get(key));
                if let Some(count) = count.filter(|count| **count > 0) {
                    family.value(&[served.api.name], count);
                }
            }
        }
        text.begin(&APPENDED_RECORDS).value(&[], counts.appended_records);
        text.begin(&APPENDED_BYTES).value(&[], counts.appended_bytes);
        text.begin(&FETCHED_BYTES).value(&[], counts.fetched_bytes);
    }
}
