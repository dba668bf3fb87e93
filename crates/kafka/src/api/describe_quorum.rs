//! `DescribeQuorum`: reports the replicas of the metadata log (KIP-595, KIP-836).

use crate::Uuid;

api! {
    DescribeQuorum, key 55, versions 0..=2, flexible 0..;

    request DescribeQuorumRequest {
        topics: Vec<RequestTopicData>;
    }

    struct RequestTopicData {
        topic_name: String;
        partitions: Vec<RequestPartitionData>;
    }

    struct RequestPartitionData {
        partition_index: i32;
    }

    response DescribeQuorumResponse {
        error_code: i16;
        error_message: Option<String>, in 2..;
        topics: Vec<ResponseTopicData>;
        nodes: Vec<Node>, in 2..;
    }

    struct ResponseTopicData {
        topic_name: String;
        partitions: Vec<ResponsePartitionData>;
    }

    struct ResponsePartitionData {
        partition_index: i32;
        error_code: i16;
        error_message: Option<String>, in 2..;
        leader_id: i32;
        leader_epoch: i32;
        high_watermark: i64;
        current_voters: Vec<ReplicaState>;
        observers: Vec<ReplicaState>;
    }

    struct ReplicaState {
        replica_id: i32;
        replica_directory_id: Uuid, in 2..;
        log_end_offset: i64;
        last_fetch_timestamp: i64 = -1, in 1..;
        last_caught_up_timestamp: i64 = -1, in 1..;
    }

    struct Node {
        node_id: i32;
        listeners: Vec<Listener>;
    }

    struct Listener {
        name: String;
        host: String;
        port: u16;
    }
}
