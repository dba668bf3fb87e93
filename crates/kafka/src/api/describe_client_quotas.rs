//! `DescribeClientQuotas`: lists quotas (KIP-546).

api! {
    DescribeClientQuotas, key 48, versions 0..=1, flexible 1..;

    request DescribeClientQuotasRequest {
        components: Vec<ComponentData>;
        strict: bool;
    }

    struct ComponentData {
        entity_type: String;
        match_type: i8;
        match_: Option<String>;
    }

    response DescribeClientQuotasResponse {
        throttle_time_ms: i32;
        error_code: i16;
        error_message: Option<String>;
        entries: Option<Vec<EntryData>>;
    }

    struct EntryData {
        entity: Vec<EntityData>;
        values: Vec<ValueData>;
    }

    struct EntityData {
        entity_type: String;
        entity_name: Option<String>;
    }

    struct ValueData {
        key: String;
        value: f64;
    }
}
