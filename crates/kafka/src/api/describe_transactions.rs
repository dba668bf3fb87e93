//! `DescribeTransactions`: reports the state of transactions (KIP-664).

api! {
    DescribeTransactions, key 65, versions 0..=0, flexible 0..;

    request DescribeTransactionsRequest {
        transactional_ids: Vec<String>;
    }

    response DescribeTransactionsResponse {
        throttle_time_ms: i32;
        transaction_states: Vec<TransactionState>;
    }

    struct TransactionState {
        error_code: i16;
        transactional_id: String;
        transaction_state: String;
        transaction_timeout_ms: i32;
        transaction_start_time_ms: i64;
        producer_id: i64;
        producer_epoch: i16;
        topics: Vec<TopicData>;
    }

    struct TopicData {
        topic: String;
        partitions: Vec<i32>;
    }
}
