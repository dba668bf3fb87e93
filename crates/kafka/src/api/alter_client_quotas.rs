//! `AlterClientQuotas`: sets and removes quotas (KIP-546).

api! {
    AlterClientQuotas, key 49, versions 0..=1, flexible 1..;

    request AlterClientQuotasRequest {
        entries: Vec<AlterEntry>;
        validate_only: bool;
    }

    struct AlterEntry {
        entity: Vec<AlterEntity>;
        ops: Vec<AlterOp>;
    }

    struct AlterEntity {
        entity_type: String;
        entity_name: Option<String>;
    }

    struct AlterOp {
        key: String;
        value: f64;
        remove: bool;
    }

    response AlterClientQuotasResponse {
        throttle_time_ms: i32;
        entries: Vec<AlterEntryResult>;
    }

    struct AlterEntryResult {
        error_code: i16;
        error_message: Option<String>;
        entity: Vec<AlteredEntity>;
    }

    struct AlteredEntity {
        entity_type: String;
        entity_name: Option<String>;
    }
}
