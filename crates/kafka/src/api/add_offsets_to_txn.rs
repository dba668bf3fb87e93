//! `AddOffsetsToTxn`: adds the offsets of a consumer group to a transaction (KIP-98).

api! {
    AddOffsetsToTxn, key 25, versions 0..=4, flexible 3..;

    request AddOffsetsToTxnRequest {
        transactional_id: String;
        producer_id: i64;
        producer_epoch: i16;
        group_id: String;
    }

    response AddOffsetsToTxnResponse {
        throttle_time_ms: i32;
        error_code: i16;
    }
}
