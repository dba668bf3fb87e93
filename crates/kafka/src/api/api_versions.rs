//! `ApiVersions`: reports the API versions and features of the broker (KIP-35, KIP-584).

api! {
    ApiVersions, key 18, versions 0..=4, flexible 3..;

    request ApiVersionsRequest {
        client_software_name: String, in 3..;
        client_software_version: String, in 3..;
    }

    response ApiVersionsResponse {
        error_code: i16;
        api_keys: Vec<ApiVersion>;
        throttle_time_ms: i32, in 1..;
    }
    tagged {
        0 => supported_features: Vec<SupportedFeatureKey>, in 3..;
        1 => finalized_features_epoch: i64 = -1, in 3..;
        2 => finalized_features: Vec<FinalizedFeatureKey>, in 3..;
        3 => zk_migration_ready: bool, in 3..;
    }

    struct ApiVersion {
        api_key: i16;
        min_version: i16;
        max_version: i16;
    }

    struct SupportedFeatureKey {
        name: String;
        min_version: i16;
        max_version: i16;
    }

    struct FinalizedFeatureKey {
        name: String;
        max_version_level: i16;
        min_version_level: i16;
    }
}
