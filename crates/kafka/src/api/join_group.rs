//! `JoinGroup`: joins a consumer group (classic protocol), which usually starts a rebalance.

api! {
    JoinGroup, key 11, versions 0..=9, flexible 6..;

    request JoinGroupRequest {
        group_id: String;
        session_timeout_ms: i32;
        rebalance_timeout_ms: i32 = -1, in 1..;
        member_id: String;
        group_instance_id: Option<String>, in 5..;
        protocol_type: String;
        protocols: Vec<JoinGroupRequestProtocol>;
        reason: Option<String>, in 8..;
    }

    struct JoinGroupRequestProtocol {
        name: String;
        metadata: Vec<u8>;
    }

    response JoinGroupResponse {
        throttle_time_ms: i32, in 2..;
        error_code: i16;
        generation_id: i32 = -1;
        protocol_type: Option<String>, in 7..;
        protocol_name: Option<String>, null 7..;
        leader: String;
        skip_assignment: bool, in 9..;
        member_id: String;
        members: Vec<JoinGroupResponseMember>;
    }

    struct JoinGroupResponseMember {
        member_id: String;
        group_instance_id: Option<String>, in 5..;
        metadata: Vec<u8>;
    }
}
