//! `DeleteRecords`: deletes the records of partitions before given offsets (KIP-107).

api! {
    DeleteRecords, key 21, versions 0..=2, flexible 2..;

    request DeleteRecordsRequest {
        topics: Vec<DeleteRecordsTopic>;
        timeout_ms: i32;
    }

    struct DeleteRecordsTopic {
        name: String;
        partitions: Vec<DeleteRecordsPartition>;
    }

    struct DeleteRecordsPartition {
        partition_index: i32;
        offset: i64;
    }

    response DeleteRecordsResponse {
        throttle_time_ms: i32;
        topics: Vec<DeleteRecordsTopicResult>;
    }

    struct DeleteRecordsTopicResult {
        name: String;
        partitions: Vec<DeleteRecordsPartitionResult>;
    }

    struct DeleteRecordsPartitionResult {
        partition_index: i32;
        low_watermark: i64;
        error_code: i16;
    }
}
