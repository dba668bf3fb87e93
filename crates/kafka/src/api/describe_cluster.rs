//! `DescribeCluster`: lists the brokers of the cluster (KIP-700).

api! {
    DescribeCluster, key 60, versions 0..=2, flexible 0..;

    request DescribeClusterRequest {
        include_cluster_authorized_operations: bool;
        endpoint_type: i8 = 1, in 1..;
        include_fenced_brokers: bool, in 2..;
    }

    response DescribeClusterResponse {
        throttle_time_ms: i32;
        error_code: i16;
        error_message: Option<String>;
        endpoint_type: i8 = 1, in 1..;
        cluster_id: String;
        controller_id: i32 = -1;
        brokers: Vec<DescribeClusterBroker>;
        cluster_authorized_operations: i32 = i32::MIN;
    }

    struct DescribeClusterBroker {
        broker_id: i32;
        host: String;
        port: i32;
        rack: Option<String>;
        is_fenced: bool, in 2..;
    }
}
