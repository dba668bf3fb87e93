//! `ApiVersions` (key 18): says which APIs in which versions, and which features, the broker has (KIP-35,
//! KIP-584).

request!(ApiVersionsRequest => ApiVersionsResponse, key 18, versions 0..=4, flexible 3..);

message! {
    pub struct ApiVersionsRequest {
        client_software_name: String, in 3..;
        client_software_version: String, in 3..;
    }
}

message! {
    pub struct ApiVersionsResponse {
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
}

message! {
    pub struct ApiVersion {
        api_key: i16;
        min_version: i16;
        max_version: i16;
    }
}

message! {
    pub struct SupportedFeatureKey {
        name: String;
        min_version: i16;
        max_version: i16;
    }
}

message! {
    pub struct FinalizedFeatureKey {
        name: String;
        max_version_level: i16;
        min_version_level: i16;
    }
}
