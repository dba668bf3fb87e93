//! `DescribeGroups`: reports state and members of consumer groups (classic protocol).

api! {
    DescribeGroups, key 15, versions 0..=6, flexible 5..;

    request DescribeGroupsRequest {
        groups: Vec<String>;
        include_authorized_operations: bool, in 3..;
    }

    response DescribeGroupsResponse {
        throttle_time_ms: i32, in 1..;
        groups: Vec<DescribedGroup>;
    }

    struct DescribedGroup {
        error_code: i16;
        error_message: Option<String>, in 6..;
        group_id: String;
        group_state: String;
        protocol_type: String;
        protocol_data: String;
        members: Vec<DescribedGroupMember>;
        authorized_operations: i32 = i32::MIN, in 3..;
    }

    struct DescribedGroupMember {
        member_id: String;
        group_instance_id: Option<String>, in 4..;
        client_id: String;
        client_host: String;
        member_metadata: Vec<u8>;
        member_assignment: Vec<u8>;
    }
}
