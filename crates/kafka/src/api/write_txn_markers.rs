//! `WriteTxnMarkers`: writes transaction markers to partitions (KIP-98).

api! {
    WriteTxnMarkers, key 27, versions 1..=2, flexible 1..;

    request WriteTxnMarkersRequest {
        markers: Vec<WritableTxnMarker>;
    }

    struct WritableTxnMarker {
        producer_id: i64;
        producer_epoch: i16;
        transaction_result: bool;
        topics: Vec<WritableTxnMarkerTopic>;
        coordinator_epoch: i32;
        transaction_version: i8, in 2..;
    }

    struct WritableTxnMarkerTopic {
        name: String;
        partition_indexes: Vec<i32>;
    }

    response WriteTxnMarkersResponse {
        markers: Vec<WritableTxnMarkerResult>;
    }

    struct WritableTxnMarkerResult {
        producer_id: i64;
        topics: Vec<WritableTxnMarkerTopicResult>;
    }

    struct WritableTxnMarkerTopicResult {
        name: String;
        partitions: Vec<WritableTxnMarkerPartitionResult>;
    }

    struct WritableTxnMarkerPartitionResult {
        partition_index: i32;
        error_code: i16;
    }
}
