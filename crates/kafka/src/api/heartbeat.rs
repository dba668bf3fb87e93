//! `Heartbeat`: renews a member's session in its consumer group (classic protocol).

api! {
    Heartbeat, key 12, versions 0..=4, flexible 4..;

    request HeartbeatRequest {
        group_id: String;
        generation_id: i32;
        member_id: String;
        group_instance_id: Option<String>, in 3..;
    }

    response HeartbeatResponse {
        throttle_time_ms: i32, in 1..;
        error_code: i16;
    }
}
