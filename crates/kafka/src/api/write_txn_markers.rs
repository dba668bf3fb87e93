//! `WriteTxnMarkers` (key 27): has markers of transactions that ended written into partitions (KIP-98).

request!(WriteTxnMarkersRequest => WriteTxnMarkersResponse, key 27, versions 1..=2, flexible 1..);

message! {
    pub struct WriteTxnMarkersRequest {
        markers: Vec<WritableTxnMarker>;
    }
}

message! {
    pub struct WritableTxnMarker {
        producer_id: i64;
        producer_epoch: i16;
        transaction_result: bool;
        topics: Vec<WritableTxnMarkerTopic>;
        coordinator_epoch: i32;
        transaction_version: i8, in 2..;
    }
}

message! {
    pub struct WritableTxnMarkerTopic {
        name: String;
        partition_indexes: Vec<i32>;
    }
}

message! {
    pub struct WriteTxnMarkersResponse {
        markers: Vec<WritableTxnMarkerResult>;
    }
}

message! {
    pub struct WritableTxnMarkerResult {
        producer_id: i64;
        topics: Vec<WritableTxnMarkerTopicResult>;
    }
}

message! {
    pub struct WritableTxnMarkerTopicResult {
        name: String;
        partitions: Vec<WritableTxnMarkerPartitionResult>;
    }
}

message! {
    pub struct WritableTxnMarkerPartitionResult {
        partition_index: i32;
        error_code: i16;
    }
}
