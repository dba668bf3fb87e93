//! `DescribeProducers` (key 61): shows the active producers of partitions (KIP-664).

request!(DescribeProducersRequest => DescribeProducersResponse, key 61, versions 0..=0, flexible 0..);

message! {
    pub struct DescribeProducersRequest {
        topics: Vec<TopicRequest>;
    }
}

message! {
    pub struct TopicRequest {
        name: String;
        partition_indexes: Vec<i32>;
    }
}

message! {
    pub struct DescribeProducersResponse {
        throttle_time_ms: i32;
        topics: Vec<TopicResponse>;
    }
}

message! {
    pub struct TopicResponse {
        name: String;
        partitions: Vec<PartitionResponse>;
    }
}

message! {
    pub struct PartitionResponse {
        partition_index: i32;
        error_code: i16;
        error_message: Option<String>;
        active_producers: Vec<ProducerState>;
    }
}

message! {
    pub struct ProducerState {
        producer_id: i64;
        producer_epoch: i32;
        last_sequence: i32 = -1;
        last_timestamp: i64 = -1;
        coordinator_epoch: i32;
        current_txn_start_offset: i64 = -1;
    }
}
