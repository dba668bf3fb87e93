//! `DeleteGroups` (key 42): deletes empty groups (KIP-229).

request!(DeleteGroupsRequest => DeleteGroupsResponse, key 42, versions 0..=2, flexible 2..);

message! {
    pub struct DeleteGroupsRequest {
        groups_names: Vec<String>;
    }
}

message! {
    pub struct DeleteGroupsResponse {
        throttle_time_ms: i32;
        results: Vec<DeletableGroupResult>;
    }
}

message! {
    pub struct DeletableGroupResult {
        group_id: String;
        error_code: i16;
    }
}
