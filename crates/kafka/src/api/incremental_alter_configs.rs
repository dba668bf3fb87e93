//! `IncrementalAlterConfigs`: changes single keys of configurations (KIP-339).

api! {
    IncrementalAlterConfigs, key 44, versions 0..=1, flexible 1..;

    request IncrementalAlterConfigsRequest {
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
        config_operation: i8;
        value: Option<String>;
    }

    response IncrementalAlterConfigsResponse {
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
