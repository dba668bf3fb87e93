//! `DescribeClientQuotas` (key 48): shows quotas (KIP-546).

request!(DescribeClientQuotasRequest => DescribeClientQuotasResponse, key 48, versions 0..=1, flexible 1..);

message! {
    pub struct DescribeClientQuotasRequest {
        components: Vec<ComponentData>;
        strict: bool;
    }
}

message! {
    pub struct ComponentData {
        entity_type: String;
        match_type: i8;
        match_: Option<String>;
    }
}

message! {
    pub struct DescribeClientQuotasResponse {
        throttle_time_ms: i32;
        error_code: i16;
        error_message: Option<String>;
        entries: Option<Vec<EntryData>>;
    }
}

message! {
    pub struct EntryData {
        entity: Vec<EntityData>;
        values: Vec<ValueData>;
    }
}

message! {
    pub struct EntityData {
        entity_type: String;
        entity_name: Option<String>;
    }
}

message! {
    pub struct ValueData {
        key: String;
        value: f64;
    }
}
