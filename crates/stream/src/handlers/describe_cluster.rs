//! `DescribeCluster`, versions 0 to 2: the one node there is. Runs here.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::describe_cluster::{
    DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse,
};
use mainstem_runtime::Io;

use crate::mail::{Call, Mail};
use crate::shard::Shard;

/// The endpoints that clients connect to; the others are controllers, which nobody here is apart from the broker.
const BROKERS: i8 = 1;

/// What everybody may do with the cluster, as long as there is no authorisation: bits by Kafka's `AclOperation`.
const OPERATIONS: i32 = 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12;

pub(crate) fn handle(shard: &mut Shard, io: &mut Io<'_, Mail>, call: Call, request: DescribeClusterRequest) {
    let node_id = shard.shared.config.node_id;
    let mut response = DescribeClusterResponse {
        endpoint_type: request.endpoint_type,
        cluster_id: shard.shared.cluster_id().to_string(),
        controller_id: node_id,
        ..DescribeClusterResponse::default()
    };
    if request.endpoint_type == BROKERS {
        let (host, port) = shard.shared.advertised();
        response.brokers.push(DescribeClusterBroker {
            broker_id: node_id,
            host: host.to_string(),
            port: i32::from(port),
            ..DescribeClusterBroker::default()
        });
        if request.include_cluster_authorized_operations {
            response.cluster_authorized_operations = OPERATIONS;
        }
    } else {
        response.error_code = ErrorCode::MismatchedEndpointType as i16;
        response.error_message = Some("The request was sent to an endpoint of type BROKER.".into());
    }
    shard.reply::<DescribeClusterRequest>(io, &call, &response);
}
