//! `AddOffsetsToTxn` (key 25): enters the offsets of a consumer group into a transaction (KIP-98).

request!(AddOffsetsToTxnRequest => AddOffsetsToTxnResponse, key 25, versions 0..=4, flexible 3..);

message! {
    pub struct AddOffsetsToTxnRequest {
        transactional_id: String;
        producer_id: i64;
        producer_epoch: i16;
        group_id: String;
    }
}

message! {
    pub struct AddOffsetsToTxnResponse {
        throttle_time_ms: i32;
        error_code: i16;
    }
}
