//! `ListConfigResources`: lists the resources that have a configuration (KIP-1142).

api! {
    ListConfigResources, key 74, versions 0..=1, flexible 0..;

    request ListConfigResourcesRequest {
        resource_types: Vec<i8>, in 1..;
    }

    response ListConfigResourcesResponse {
        throttle_time_ms: i32;
        error_code: i16;
        config_resources: Vec<ConfigResource>;
    }

    struct ConfigResource {
        resource_name: String;
        resource_type: i8 = 16, in 1..;
    }
}
