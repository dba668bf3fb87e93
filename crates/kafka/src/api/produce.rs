//! `Produce`: appends record batches to partitions.
//!
//! Versions below 3 used message formats that no longer exist. Brokers still announce version 0 (KIP-896), because
//! librdkafka infers other broker features from the lowest version.

mod borrowed;

use crate::Uuid;

pub use borrowed::{PartitionRef, ProduceRequestRef, TopicRef, has_more_partitions};

api! {
    Produce, key 0, versions 3..=13, flexible 9.., announced 0..;

    request ProduceRequest {
        transactional_id: Option<String>;
        acks: i16;
        timeout_ms: i32;
        topic_data: Vec<TopicProduceData>;
    }

    struct TopicProduceData {
        name: String, in ..=12;
        topic_id: Uuid, in 13..;
        partition_data: Vec<PartitionProduceData>;
    }

    struct PartitionProduceData {
        index: i32;
        records: Option<Vec<u8>>;
    }

    response ProduceResponse {
        responses: Vec<TopicProduceResponse>;
        throttle_time_ms: i32;
    }
    tagged {
        0 => node_endpoints: Vec<NodeEndpoint>, in 10..;
    }

    struct TopicProduceResponse {
        name: String, in ..=12;
        topic_id: Uuid, in 13..;
        partition_responses: Vec<PartitionProduceResponse>;
    }

    struct PartitionProduceResponse {
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

    struct BatchIndexAndErrorMessage {
        batch_index: i32;
        batch_index_error_message: Option<String>;
    }

    struct LeaderIdAndEpoch {
        leader_id: i32 = -1;
        leader_epoch: i32 = -1;
    }

    struct NodeEndpoint {
        node_id: i32;
        host: String;
        port: i32;
        rack: Option<String>;
    }
}
