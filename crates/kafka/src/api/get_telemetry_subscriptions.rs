//! `GetTelemetrySubscriptions` (key 71): asks which metrics of the client the broker wants (KIP-714).

use crate::Uuid;

request!(GetTelemetrySubscriptionsRequest => GetTelemetrySubscriptionsResponse, key 71, versions 0..=0, flexible 0..);

message! {
    pub struct GetTelemetrySubscriptionsRequest {
        client_instance_id: Uuid;
    }
}

message! {
    pub struct GetTelemetrySubscriptionsResponse {
        throttle_time_ms: i32;
        error_code: i16;
        client_instance_id: Uuid;
        subscription_id: i32;
        accepted_compression_types: Vec<i8>;
        push_interval_ms: i32;
        telemetry_max_bytes: i32;
        delta_temporality: bool;
        requested_metrics: Vec<String>;
    }
}
