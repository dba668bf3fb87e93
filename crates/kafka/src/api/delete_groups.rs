//! `DeleteGroups`: deletes empty groups (KIP-229).

api! {
    DeleteGroups, key 42, versions 0..=2, flexible 2..;

    request DeleteGroupsRequest {
        groups_names: Vec<String>;
    }

    response DeleteGroupsResponse {
        throttle_time_ms: i32;
        results: Vec<DeletableGroupResult>;
    }

    struct DeletableGroupResult {
        group_id: String;
        error_code: i16;
    }
}
