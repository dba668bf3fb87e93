//! `EndTxn`: commits or aborts a transaction (KIP-98, KIP-890).

api! {
    EndTxn, key 26, versions 0..=5, flexible 3..;

    request EndTxnRequest {
        transactional_id: String;
        producer_id: i64;
        producer_epoch: i16;
        committed: bool;
    }

    response EndTxnResponse {
        throttle_time_ms: i32;
        error_code: i16;
        producer_id: i64 = -1, in 5..;
        producer_epoch: i16 = -1, in 5..;
    }
}
