//! `CreateAcls`: adds access control entries.

api! {
    CreateAcls, key 30, versions 1..=3, flexible 2..;

    request CreateAclsRequest {
        creations: Vec<AclCreation>;
    }

    struct AclCreation {
        resource_type: i8;
        resource_name: String;
        resource_pattern_type: i8 = 3;
        principal: String;
        host: String;
        operation: i8;
        permission_type: i8;
    }

    response CreateAclsResponse {
        throttle_time_ms: i32;
        results: Vec<AclCreationResult>;
    }

    struct AclCreationResult {
        error_code: i16;
        error_message: Option<String>;
    }
}
