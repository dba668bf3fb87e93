//! `DeleteAcls`: deletes access control entries.

api! {
    DeleteAcls, key 31, versions 1..=3, flexible 2..;

    request DeleteAclsRequest {
        filters: Vec<DeleteAclsFilter>;
    }

    struct DeleteAclsFilter {
        resource_type_filter: i8;
        resource_name_filter: Option<String>;
        pattern_type_filter: i8 = 3;
        principal_filter: Option<String>;
        host_filter: Option<String>;
        operation: i8;
        permission_type: i8;
    }

    response DeleteAclsResponse {
        throttle_time_ms: i32;
        filter_results: Vec<DeleteAclsFilterResult>;
    }

    struct DeleteAclsFilterResult {
        error_code: i16;
        error_message: Option<String>;
        matching_acls: Vec<DeleteAclsMatchingAcl>;
    }

    struct DeleteAclsMatchingAcl {
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
