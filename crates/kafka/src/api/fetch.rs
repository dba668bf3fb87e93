//! `Fetch`: reads record batches from partitions; fetch sessions (KIP-227), topic ids (KIP-516).

mod writer;

use crate::Uuid;

pub use writer::FetchResponseWriter;

api! {
    Fetch, key 1, versions 4..=18, flexible 12..;

    request FetchRequest {
        replica_id: i32 = -1, in ..=14;
        max_wait_ms: i32;
        min_bytes: i32;
        max_bytes: i32 = i32::MAX;
        isolation_level: i8;
        session_id: i32, in 7..;
        session_epoch: i32 = -1, in 7..;
        topics: Vec<FetchTopic>;
        forgotten_topics_data: Vec<ForgottenTopic>, in 7..;
        rack_id: String, in 11..;
    }
    tagged {
        0 => cluster_id: Option<String>, in 12..;
        1 => replica_state: ReplicaState, in 15..;
    }

    struct ReplicaState {
        replica_id: i32 = -1;
        replica_epoch: i64 = -1;
    }

    struct FetchTopic {
        topic: String, in ..=12;
        topic_id: Uuid, in 13..;
        partitions: Vec<FetchPartition>;
    }

    struct FetchPartition {
        partition: i32;
        current_leader_epoch: i32 = -1, in 9..;
        fetch_offset: i64;
        last_fetched_epoch: i32 = -1, in 12..;
        log_start_offset: i64 = -1, in 5..;
        partition_max_bytes: i32;
    }
    tagged {
        0 => replica_directory_id: Uuid, in 17..;
        1 => high_watermark: i64 = i64::MAX, in 18..;
    }

    struct ForgottenTopic {
        topic: String, in ..=12;
        topic_id: Uuid, in 13..;
        partitions: Vec<i32>;
    }

    response FetchResponse {
        throttle_time_ms: i32;
        error_code: i16, in 7..;
        session_id: i32, in 7..;
        responses: Vec<FetchableTopicResponse>;
    }
    tagged {
        0 => node_endpoints: Vec<NodeEndpoint>, in 16..;
    }

    struct FetchableTopicResponse {
        topic: String, in ..=12;
        topic_id: Uuid, in 13..;
        partitions: Vec<PartitionData>;
    }

    struct PartitionData {
        partition_index: i32;
        error_code: i16;
        high_watermark: i64;
        last_stable_offset: i64 = -1;
        log_start_offset: i64 = -1, in 5..;
        aborted_transactions: Option<Vec<AbortedTransaction>>;
        preferred_read_replica: i32 = -1, in 11..;
        records: Option<Vec<u8>>;
    }
    tagged {
        0 => diverging_epoch: EpochEndOffset, in 12..;
        1 => current_leader: LeaderIdAndEpoch, in 12..;
        2 => snapshot_id: SnapshotId, in 12..;
    }

    struct EpochEndOffset {
        epoch: i32 = -1;
        end_offset: i64 = -1;
    }

    struct LeaderIdAndEpoch {
        leader_id: i32 = -1;
        leader_epoch: i32 = -1;
    }

    struct SnapshotId {
        end_offset: i64 = -1;
        epoch: i32 = -1;
    }

    struct AbortedTransaction {
        producer_id: i64;
        first_offset: i64;
    }

    struct NodeEndpoint {
        node_id: i32;
        host: String;
        port: i32;
        rack: Option<String>;
    }
}
