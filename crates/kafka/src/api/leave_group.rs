//! `LeaveGroup`: removes members from a consumer group (classic protocol).

api! {
    LeaveGroup, key 13, versions 0..=5, flexible 4..;

    request LeaveGroupRequest {
        group_id: String;
        member_id: String, in ..=2;
        members: Vec<MemberIdentity>, in 3..;
    }

    struct MemberIdentity {
        member_id: String;
        group_instance_id: Option<String>;
        reason: Option<String>, in 5..;
    }

    response LeaveGroupResponse {
        throttle_time_ms: i32, in 1..;
        error_code: i16;
        members: Vec<MemberResponse>, in 3..;
    }

    struct MemberResponse {
        member_id: String;
        group_instance_id: Option<String>;
        error_code: i16;
    }
}
