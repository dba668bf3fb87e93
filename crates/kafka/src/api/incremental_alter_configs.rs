//! `IncrementalAlterConfigs` (key 44): changes single keys of configurations (KIP-339).

request!(IncrementalAlterConfigsRequest => IncrementalAlterConfigsResponse, key 44, versions 0..=1, flexible 1..);

message! {
    pub struct IncrementalAlterConfigsRequest {
        resources: Vec<AlterConfigsResource>;
        validate_only: bool;
    }
}

message! {
    pub struct AlterConfigsResource {
        resource_type: i8;
        resource_name: String;
        configs: Vec<AlterableConfig>;
    }
}

message! {
    pub struct AlterableConfig {
        name: String;
        config_operation: i8;
        value: Option<String>;
    }
}

message! {
    pub struct IncrementalAlterConfigsResponse {
        throttle_time_ms: i32;
        responses: Vec<AlterConfigsResourceResponse>;
    }
}

message! {
    pub struct AlterConfigsResourceResponse {
        error_code: i16;
        error_message: Option<String>;
        resource_type: i8;
        resource_name: String;
    }
}
