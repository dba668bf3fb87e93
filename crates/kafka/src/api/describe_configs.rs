//! `DescribeConfigs`: reports the configuration of topics and brokers.

api! {
    DescribeConfigs, key 32, versions 1..=4, flexible 4..;

    request DescribeConfigsRequest {
        resources: Vec<DescribeConfigsResource>;
        include_synonyms: bool;
        include_documentation: bool, in 3..;
    }

    struct DescribeConfigsResource {
        resource_type: i8;
        resource_name: String;
        configuration_keys: Option<Vec<String>>;
    }

    response DescribeConfigsResponse {
        throttle_time_ms: i32;
        results: Vec<DescribeConfigsResult>;
    }

    struct DescribeConfigsResult {
        error_code: i16;
        error_message: Option<String>;
        resource_type: i8;
        resource_name: String;
        configs: Vec<DescribeConfigsResourceResult>;
    }

    struct DescribeConfigsResourceResult {
        name: String;
        value: Option<String>;
        read_only: bool;
        config_source: i8 = -1;
        is_sensitive: bool;
        synonyms: Vec<DescribeConfigsSynonym>;
        config_type: i8, in 3..;
        documentation: Option<String>, in 3..;
    }

    struct DescribeConfigsSynonym {
        name: String;
        value: Option<String>;
        source: i8;
    }
}
