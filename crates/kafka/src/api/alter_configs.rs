//! `AlterConfigs`: replaces the configuration of topics and brokers.

api! {
    AlterConfigs, key 33, versions 0..=2, flexible 2..;

    request AlterConfigsRequest {
        resources: Vec<AlterConfigsResource>;
        validate_only: bool;
    }

    struct AlterConfigsResource {
        resource_type: i8;
        resource_name: String;
        configs: Vec<AlterableConfig>;
    }

    struct AlterableConfig {
        name: String;
        value: Option<String>;
    }

    response AlterConfigsResponse {
        throttle_time_ms: i32;
        responses: Vec<AlterConfigsResourceResponse>;
    }

    struct AlterConfigsResourceResponse {
        error_code: i16;
        error_message: Option<String>;
        resource_type: i8;
        resource_name: String;
    }
}
