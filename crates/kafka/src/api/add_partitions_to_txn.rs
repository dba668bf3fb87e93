//! `AddPartitionsToTxn` (key 24): enters partitions into a transaction (KIP-98); in batches since version 4
//! (KIP-890).

request!(AddPartitionsToTxnRequest => AddPartitionsToTxnResponse, key 24, versions 0..=5, flexible 3..);

message! {
    pub struct AddPartitionsToTxnRequest {
        transactions: Vec<AddPartitionsToTxnTransaction>, in 4..;
        v3_and_below_transactional_id: String, in ..=3;
        v3_and_below_producer_id: i64, in ..=3;
        v3_and_below_producer_epoch: i16, in ..=3;
        v3_and_below_topics: Vec<AddPartitionsToTxnTopic>, in ..=3;
    }
}

message! {
    pub struct AddPartitionsToTxnTransaction {
        transactional_id: String;
        producer_id: i64;
        producer_epoch: i16;
        verify_only: bool;
        topics: Vec<AddPartitionsToTxnTopic>;
    }
}

message! {
    pub struct AddPartitionsToTxnTopic {
        name: String;
        partitions: Vec<i32>;
    }
}

message! {
    pub struct AddPartitionsToTxnResponse {
        throttle_time_ms: i32;
        error_code: i16, in 4..;
        results_by_transaction: Vec<AddPartitionsToTxnResult>, in 4..;
        results_by_topic_v3_and_below: Vec<AddPartitionsToTxnTopicResult>, in ..=3;
    }
}

message! {
    pub struct AddPartitionsToTxnResult {
        transactional_id: String;
        topic_results: Vec<AddPartitionsToTxnTopicResult>;
    }
}

message! {
    pub struct AddPartitionsToTxnTopicResult {
        name: String;
        results_by_partition: Vec<AddPartitionsToTxnPartitionResult>;
    }
}

message! {
    pub struct AddPartitionsToTxnPartitionResult {
        partition_index: i32;
        partition_error_code: i16;
    }
}
