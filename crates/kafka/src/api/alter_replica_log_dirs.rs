//! `AlterReplicaLogDirs`: moves replicas between the directories of a node (KIP-113).

api! {
    AlterReplicaLogDirs, key 34, versions 1..=2, flexible 2..;

    request AlterReplicaLogDirsRequest {
        dirs: Vec<AlterReplicaLogDir>;
    }

    struct AlterReplicaLogDir {
        path: String;
        topics: Vec<AlterReplicaLogDirTopic>;
    }

    struct AlterReplicaLogDirTopic {
        name: String;
        partitions: Vec<i32>;
    }

    response AlterReplicaLogDirsResponse {
        throttle_time_ms: i32;
        results: Vec<AlterReplicaLogDirTopicResult>;
    }

    struct AlterReplicaLogDirTopicResult {
        topic_name: String;
        partitions: Vec<AlterReplicaLogDirPartitionResult>;
    }

    struct AlterReplicaLogDirPartitionResult {
        partition_index: i32;
        error_code: i16;
    }
}
