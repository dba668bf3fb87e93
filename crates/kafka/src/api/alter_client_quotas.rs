//! `AlterClientQuotas` (key 49): changes quotas (KIP-546).

request!(AlterClientQuotasRequest => AlterClientQuotasResponse, key 49, versions 0..=1, flexible 1..);

message! {
    pub struct AlterClientQuotasRequest {
        entries: Vec<RequestEntryData>;
        validate_only: bool;
    }
}

message! {
    pub struct RequestEntryData {
        entity: Vec<EntityData>;
        ops: Vec<OpData>;
    }
}

message! {
    pub struct EntityData {
        entity_type: String;
        entity_name: Option<String>;
    }
}

message! {
    pub struct OpData {
        key: String;
        value: f64;
        remove: bool;
    }
}

message! {
    pub struct AlterClientQuotasResponse {
        throttle_time_ms: i32;
        entries: Vec<ResponseEntryData>;
    }
}

message! {
    pub struct ResponseEntryData {
        error_code: i16;
        error_message: Option<String>;
        entity: Vec<EntityData>;
    }
}
