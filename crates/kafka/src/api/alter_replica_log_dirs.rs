//! `AlterReplicaLogDirs` (key 34): moves replicas between the directories of a node (KIP-113).

request!(AlterReplicaLogDirsRequest => AlterReplicaLogDirsResponse, key 34, versions 1..=2, flexible 2..);

message! {
    pub struct AlterReplicaLogDirsRequest {
        dirs: Vec<AlterReplicaLogDir>;
    }
}

message! {
    pub struct AlterReplicaLogDir {
        path: String;
        topics: Vec<AlterReplicaLogDirTopic>;
    }
}

message! {
    pub struct AlterReplicaLogDirTopic {
        name: String;
        partitions: Vec<i32>;
    }
}

message! {
    pub struct AlterReplicaLogDirsResponse {
        throttle_time_ms: i32;
        results: Vec<AlterReplicaLogDirTopicResult>;
    }
}

message! {
    pub struct AlterReplicaLogDirTopicResult {
        topic_name: String;
        partitions: Vec<AlterReplicaLogDirPartitionResult>;
    }
}

message! {
    pub struct AlterReplicaLogDirPartitionResult {
        partition_index: i32;
        error_code: i16;
    }
}
