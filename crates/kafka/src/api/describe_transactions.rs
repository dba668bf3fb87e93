//! `DescribeTransactions` (key 65): shows the state of transactions (KIP-664).

request!(DescribeTransactionsRequest => DescribeTransactionsResponse, key 65, versions 0..=0, flexible 0..);

message! {
    pub struct DescribeTransactionsRequest {
        transactional_ids: Vec<String>;
    }
}

message! {
    pub struct DescribeTransactionsResponse {
        throttle_time_ms: i32;
        transaction_states: Vec<TransactionState>;
    }
}

message! {
    pub struct TransactionState {
        error_code: i16;
        transactional_id: String;
        transaction_state: String;
        transaction_timeout_ms: i32;
        transaction_start_time_ms: i64;
        producer_id: i64;
        producer_epoch: i16;
        topics: Vec<TopicData>;
    }
}

message! {
    pub struct TopicData {
        topic: String;
        partitions: Vec<i32>;
    }
}
