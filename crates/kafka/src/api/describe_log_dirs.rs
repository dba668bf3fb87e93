//! `DescribeLogDirs`: reports the size of each partition per log directory.

api! {
    DescribeLogDirs, key 35, versions 1..=5, flexible 2..;

    request DescribeLogDirsRequest {
        topics: Option<Vec<DescribableLogDirTopic>>;
    }

    struct DescribableLogDirTopic {
        topic: String;
        partitions: Vec<i32>;
    }

    response DescribeLogDirsResponse {
        throttle_time_ms: i32;
        error_code: i16, in 3..;
        results: Vec<DescribeLogDirsResult>;
    }

    struct DescribeLogDirsResult {
        error_code: i16;
        log_dir: String;
        topics: Vec<DescribeLogDirsTopic>;
        total_bytes: i64 = -1, in 4..;
        usable_bytes: i64 = -1, in 4..;
        is_cordoned: bool, in 5..;
    }

    struct DescribeLogDirsTopic {
        name: String;
        partitions: Vec<DescribeLogDirsPartition>;
    }

    struct DescribeLogDirsPartition {
        partition_index: i32;
        partition_size: i64;
        offset_lag: i64;
        is_future_key: bool;
    }
}
