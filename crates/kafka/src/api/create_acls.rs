//! `CreateAcls` (key 30): adds access control entries.

request!(CreateAclsRequest => CreateAclsResponse, key 30, versions 1..=3, flexible 2..);

message! {
    pub struct CreateAclsRequest {
        creations: Vec<AclCreation>;
    }
}

message! {
    pub struct AclCreation {
        resource_type: i8;
        resource_name: String;
        resource_pattern_type: i8 = 3;
        principal: String;
        host: String;
        operation: i8;
        permission_type: i8;
    }
}

message! {
    pub struct CreateAclsResponse {
        throttle_time_ms: i32;
        results: Vec<AclCreationResult>;
    }
}

message! {
    pub struct AclCreationResult {
        error_code: i16;
        error_message: Option<String>;
    }
}
