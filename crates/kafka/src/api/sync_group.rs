//! `SyncGroup`: distributes the assignment that the leader of a consumer group computed (classic protocol).

api! {
    SyncGroup, key 14, versions 0..=5, flexible 4..;

    request SyncGroupRequest {
        group_id: String;
        generation_id: i32;
        member_id: String;
        group_instance_id: Option<String>, in 3..;
        protocol_type: Option<String>, in 5..;
        protocol_name: Option<String>, in 5..;
        assignments: Vec<SyncGroupRequestAssignment>;
    }

    struct SyncGroupRequestAssignment {
        member_id: String;
        assignment: Vec<u8>;
    }

    response SyncGroupResponse {
        throttle_time_ms: i32, in 1..;
        error_code: i16;
        protocol_type: Option<String>, in 5..;
        protocol_name: Option<String>, in 5..;
        assignment: Vec<u8>;
    }
}
