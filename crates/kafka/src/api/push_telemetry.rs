//! `PushTelemetry` (key 72): brings metrics of the client (KIP-714).

use crate::Uuid;

request!(PushTelemetryRequest => PushTelemetryResponse, key 72, versions 0..=0, flexible 0..);

message! {
    pub struct PushTelemetryRequest {
        client_instance_id: Uuid;
        subscription_id: i32;
        terminating: bool;
        compression_type: i8;
        metrics: Vec<u8>;
    }
}

message! {
    pub struct PushTelemetryResponse {
        throttle_time_ms: i32;
        error_code: i16;
    }
}
