//! `InitProducerId`: assigns a producer id and epoch (KIP-98).

api! {
    InitProducerId, key 22, versions 0..=5, flexible 2..;

    request InitProducerIdRequest {
        transactional_id: Option<String>;
        transaction_timeout_ms: i32;
        producer_id: i64 = -1, in 3..;
        producer_epoch: i16 = -1, in 3..;
    }

    response InitProducerIdResponse {
        throttle_time_ms: i32;
        error_code: i16;
        producer_id: i64 = -1;
        producer_epoch: i16;
    }
}
