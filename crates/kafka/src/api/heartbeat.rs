//! `Heartbeat` (key 12): keeps a member in its consumer group (classic protocol).

request!(HeartbeatRequest => HeartbeatResponse, key 12, versions 0..=4, flexible 4..);

message! {
    pub struct HeartbeatRequest {
        group_id: String;
        generation_id: i32;
        member_id: String;
        group_instance_id: Option<String>, in 3..;
    }
}

message! {
    pub struct HeartbeatResponse {
        throttle_time_ms: i32, in 1..;
        error_code: i16;
    }
}
