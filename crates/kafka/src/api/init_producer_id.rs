//! `InitProducerId` (key 22): gives a producer its id and epoch (KIP-98).

request!(InitProducerIdRequest => InitProducerIdResponse, key 22, versions 0..=5, flexible 2..);

message! {
    pub struct InitProducerIdRequest {
        transactional_id: Option<String>;
        transaction_timeout_ms: i32;
        producer_id: i64 = -1, in 3..;
        producer_epoch: i16 = -1, in 3..;
    }
}

message! {
    pub struct InitProducerIdResponse {
        throttle_time_ms: i32;
        error_code: i16;
        producer_id: i64 = -1;
        producer_epoch: i16;
    }
}
