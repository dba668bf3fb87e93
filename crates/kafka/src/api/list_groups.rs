//! `ListGroups`: lists the groups of a broker.

api! {
    ListGroups, key 16, versions 0..=5, flexible 3..;

    request ListGroupsRequest {
        states_filter: Vec<String>, in 4..;
        types_filter: Vec<String>, in 5..;
    }

    response ListGroupsResponse {
        throttle_time_ms: i32, in 1..;
        error_code: i16;
        groups: Vec<ListedGroup>;
    }

    struct ListedGroup {
        group_id: String;
        protocol_type: String;
        group_state: String, in 4..;
        group_type: String, in 5..;
    }
}
