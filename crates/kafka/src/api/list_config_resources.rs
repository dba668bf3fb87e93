//! `ListConfigResources` (key 74): lists the resources that have a configuration (KIP-1142).

request!(ListConfigResourcesRequest => ListConfigResourcesResponse, key 74, versions 0..=1, flexible 0..);

message! {
    pub struct ListConfigResourcesRequest {
        resource_types: Vec<i8>, in 1..;
    }
}

message! {
    pub struct ListConfigResourcesResponse {
        throttle_time_ms: i32;
        error_code: i16;
        config_resources: Vec<ConfigResource>;
    }
}

message! {
    pub struct ConfigResource {
        resource_name: String;
        resource_type: i8 = 16, in 1..;
    }
}
