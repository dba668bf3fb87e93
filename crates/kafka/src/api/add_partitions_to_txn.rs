//! `AddPartitionsToTxn`: adds partitions to a transaction (KIP-98); batched since version 4 (KIP-890).

api! {
    AddPartitionsToTxn, key 24, versions 0..=5, flexible 3..;

    request AddPartitionsToTxnRequest {
        transactions: Vec<AddPartitionsToTxnTransaction>, in 4..;
        v3_and_below_transactional_id: String, in ..=3;
        v3_and_below_producer_id: i64, in ..=3;
        v3_and_below_producer_epoch: i16, in ..=3;
        v3_and_below_topics: Vec<AddPartitionsToTxnTopic>, in ..=3;
    }

    struct AddPartitionsToTxnTransaction {
        transactional_id: String;
        producer_id: i64;
        producer_epoch: i16;
        verify_only: bool;
        topics: Vec<AddPartitionsToTxnTopic>;
    }

    struct AddPartitionsToTxnTopic {
        name: String;
        partitions: Vec<i32>;
    }

    response AddPartitionsToTxnResponse {
        throttle_time_ms: i32;
        error_code: i16, in 4..;
        results_by_transaction: Vec<AddPartitionsToTxnResult>, in 4..;
        results_by_topic_v3_and_below: Vec<AddPartitionsToTxnTopicResult>, in ..=3;
    }

    struct AddPartitionsToTxnResult {
        transactional_id: String;
        topic_results: Vec<AddPartitionsToTxnTopicResult>;
    }

    struct AddPartitionsToTxnTopicResult {
        name: String;
        results_by_partition: Vec<AddPartitionsToTxnPartitionResult>;
    }

    struct AddPartitionsToTxnPartitionResult {
        partition_index: i32;
        partition_error_code: i16;
    }
}
