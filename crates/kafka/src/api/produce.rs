//! `Produce` (key 0): appends record batches to partitions. Versions below 3 carried the message formats that
//! are no more.

mod borrowed;

use crate::Uuid;

pub use borrowed::{PartitionRef, ProduceRequestRef, TopicRef};

request!(ProduceRequest => ProduceResponse, key 0, versions 3..=13, flexible 9..);

message! {
    pub struct ProduceRequest {
        transactional_id: Option<String>;
        acks: i16;
        timeout_ms: i32;
        topic_data: Vec<TopicProduceData>;
    }
}

message! {
    pub struct TopicProduceData {
        name: String, in ..=12;
        topic_id: Uuid, in 13..;
        partition_data: Vec<PartitionProduceData>;
    }
}

message! {
    pub struct PartitionProduceData {
        index: i32;
        records: Option<Vec<u8>>;
    }
}

message! {
    pub struct ProduceResponse {
        responses: Vec<TopicProduceResponse>;
        throttle_time_ms: i32;
    }
    tagged {
        0 => node_endpoints: Vec<NodeEndpoint>, in 10..;
    }
}

message! {
    pub struct TopicProduceResponse {
        name: String, in ..=12;
        topic_id: Uuid, in 13..;
        partition_responses: Vec<PartitionProduceResponse>;
    }
}

message! {
    pub struct PartitionProduceResponse {
        index: i32;
        error_code: i16;
        base_offset: i64;
        log_append_time_ms: i64 = -1;
        log_start_offset: i64 = -1, in 5..;
        record_errors: Vec<BatchIndexAndErrorMessage>, in 8..;
        error_message: Option<String>, in 8..;
    }
    tagged {
        0 => current_leader: LeaderIdAndEpoch, in 10..;
    }
}

message! {
    pub struct BatchIndexAndErrorMessage {
        batch_index: i32;
        batch_index_error_message: Option<String>;
    }
}

message! {
    pub struct LeaderIdAndEpoch {
        leader_id: i32 = -1;
        leader_epoch: i32 = -1;
    }
}

message! {
    pub struct NodeEndpoint {
        node_id: i32;
        host: String;
        port: i32;
        rack: Option<String>;
    }
}
