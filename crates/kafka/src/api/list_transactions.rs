//! `ListTransactions`: lists transactions (KIP-664).

api! {
    ListTransactions, key 66, versions 0..=2, flexible 0..;

    request ListTransactionsRequest {
        state_filters: Vec<String>;
        producer_id_filters: Vec<i64>;
        duration_filter: i64 = -1, in 1..;
        transactional_id_pattern: Option<String>, in 2..;
    }

    response ListTransactionsResponse {
        throttle_time_ms: i32;
        error_code: i16;
        unknown_state_filters: Vec<String>;
        transaction_states: Vec<TransactionState>;
    }

    struct TransactionState {
        transactional_id: String;
        producer_id: i64;
        transaction_state: String;
    }
}
