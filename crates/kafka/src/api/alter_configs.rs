//! `AlterConfigs` (key 33): replaces the configuration of topics and brokers.

request!(AlterConfigsRequest => AlterConfigsResponse, key 33, versions 0..=2, flexible 2..);

message! {
    pub struct AlterConfigsRequest {
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
        value: Option<String>;
    }
}

message! {
    pub struct AlterConfigsResponse {
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
