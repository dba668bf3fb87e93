//! `UpdateFeatures` (key 57): finalizes versions of features (KIP-584).

request!(UpdateFeaturesRequest => UpdateFeaturesResponse, key 57, versions 0..=2, flexible 0..);

message! {
    pub struct UpdateFeaturesRequest {
        timeout_ms: i32 = 60_000;
        feature_updates: Vec<FeatureUpdateKey>;
        validate_only: bool, in 1..;
    }
}

message! {
    pub struct FeatureUpdateKey {
        feature: String;
        max_version_level: i16;
        allow_downgrade: bool, in ..=0;
        upgrade_type: i8 = 1, in 1..;
    }
}

message! {
    pub struct UpdateFeaturesResponse {
        throttle_time_ms: i32;
        error_code: i16;
        error_message: Option<String>;
        results: Vec<UpdatableFeatureResult>, in ..=1;
    }
}

message! {
    pub struct UpdatableFeatureResult {
        feature: String;
        error_code: i16;
        error_message: Option<String>;
    }
}
