//! `DeleteRecords` (key 21): deletes the records of partitions up to given offsets (KIP-107).

request!(DeleteRecordsRequest => DeleteRecordsResponse, key 21, versions 0..=2, flexible 2..);

message! {
    pub struct DeleteRecordsRequest {
        topics: Vec<DeleteRecordsTopic>;
        timeout_ms: i32;
    }
}

message! {
    pub struct DeleteRecordsTopic {
        name: String;
        partitions: Vec<DeleteRecordsPartition>;
    }
}

message! {
    pub struct DeleteRecordsPartition {
        partition_index: i32;
        offset: i64;
    }
}

message! {
    pub struct DeleteRecordsResponse {
        throttle_time_ms: i32;
        topics: Vec<DeleteRecordsTopicResult>;
    }
}

message! {
    pub struct DeleteRecordsTopicResult {
        name: String;
        partitions: Vec<DeleteRecordsPartitionResult>;
    }
}

message! {
    pub struct DeleteRecordsPartitionResult {
        partition_index: i32;
        low_watermark: i64;
        error_code: i16;
    }
}
