//! `DescribeLogDirs` (key 35): shows how much of which partition lies where on disk.

request!(DescribeLogDirsRequest => DescribeLogDirsResponse, key 35, versions 1..=5, flexible 2..);

message! {
    pub struct DescribeLogDirsRequest {
        topics: Option<Vec<DescribableLogDirTopic>>;
    }
}

message! {
    pub struct DescribableLogDirTopic {
        topic: String;
        partitions: Vec<i32>;
    }
}

message! {
    pub struct DescribeLogDirsResponse {
        throttle_time_ms: i32;
        error_code: i16, in 3..;
        results: Vec<DescribeLogDirsResult>;
    }
}

message! {
    pub struct DescribeLogDirsResult {
        error_code: i16;
        log_dir: String;
        topics: Vec<DescribeLogDirsTopic>;
        total_bytes: i64 = -1, in 4..;
        usable_bytes: i64 = -1, in 4..;
        is_cordoned: bool, in 5..;
    }
}

message! {
    pub struct DescribeLogDirsTopic {
        name: String;
        partitions: Vec<DescribeLogDirsPartition>;
    }
}

message! {
    pub struct DescribeLogDirsPartition {
        partition_index: i32;
        partition_size: i64;
        offset_lag: i64;
        is_future_key: bool;
    }
}
