//! `DescribeAcls`: lists access control entries.

api! {
    DescribeAcls, key 29, versions 1..=3, flexible 2..;

    request DescribeAclsRequest {
        resource_type_filter: i8;
        resource_name_filter: Option<String>;
        pattern_type_filter: i8 = 3;
        principal_filter: Option<String>;
        host_filter: Option<String>;
        operation: i8;
        permission_type: i8;
    }

    response DescribeAclsResponse {
        throttle_time_ms: i32;
        error_code: i16;
        error_message: Option<String>;
        resources: Vec<DescribeAclsResource>;
    }

    struct DescribeAclsResource {
        resource_type: i8;
        resource_name: String;
        pattern_type: i8 = 3;
        acls: Vec<AclDescription>;
    }

    struct AclDescription {
        principal: String;
        host: String;
        operation: i8;
        permission_type: i8;
    }
}
