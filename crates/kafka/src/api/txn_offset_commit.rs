//! `TxnOffsetCommit`: commits the offsets of a consumer group as part of a transaction (KIP-98,
//! KIP-447).

api! {
    TxnOffsetCommit, key 28, versions 0..=5, flexible 3..;

    request TxnOffsetCommitRequest {
        transactional_id: String;
        group_id: String;
        producer_id: i64;
        producer_epoch: i16;
        generation_id: i32 = -1, in 3..;
        member_id: String, in 3..;
        group_instance_id: Option<String>, in 3..;
        topics: Vec<TxnOffsetCommitRequestTopic>;
    }

    struct TxnOffsetCommitRequestTopic {
        name: String;
        partitions: Vec<TxnOffsetCommitRequestPartition>;
    }

    struct TxnOffsetCommitRequestPartition {
        partition_index: i32;
        committed_offset: i64;
        committed_leader_epoch: i32 = -1, in 2..;
        committed_metadata: Option<String>;
    }

    response TxnOffsetCommitResponse {
        throttle_time_ms: i32;
        topics: Vec<TxnOffsetCommitResponseTopic>;
    }

    struct TxnOffsetCommitResponseTopic {
        name: String;
        partitions: Vec<TxnOffsetCommitResponsePartition>;
    }

    struct TxnOffsetCommitResponsePartition {
        partition_index: i32;
        error_code: i16;
    }
}
