//! `DeleteAcls` (key 31): deletes access control entries.

request!(DeleteAclsRequest => DeleteAclsResponse, key 31, versions 1..=3, flexible 2..);

message! {
    pub struct DeleteAclsRequest {
        filters: Vec<DeleteAclsFilter>;
    }
}

message! {
    pub struct DeleteAclsFilter {
        resource_type_filter: i8;
        resource_name_filter: Option<String>;
        pattern_type_filter: i8 = 3;
        principal_filter: Option<String>;
        host_filter: Option<String>;
        operation: i8;
        permission_type: i8;
    }
}

message! {
    pub struct DeleteAclsResponse {
        throttle_time_ms: i32;
        filter_results: Vec<DeleteAclsFilterResult>;
    }
}

message! {
    pub struct DeleteAclsFilterResult {
        error_code: i16;
        error_message: Option<String>;
        matching_acls: Vec<DeleteAclsMatchingAcl>;
    }
}

message! {
    pub struct DeleteAclsMatchingAcl {
        error_code: i16;
        error_message: Option<String>;
        resource_type: i8;
        resource_name: String;
        pattern_type: i8 = 3;
        principal: String;
        host: String;
        operation: i8;
        permission_type: i8;
    }
}
