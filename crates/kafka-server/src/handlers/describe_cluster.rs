//! `DescribeCluster`, versions 0 to 2: returns the cluster id and the only broker.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::describe_cluster::{
    DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse,
};
use mainstem_runtime::Io;
use mainstem_security::ResourceKind;

use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

/// Endpoint type of brokers. Endpoint type 2, controllers, is not served separately.
const BROKERS: i8 = 1;

/// Operations that are authorized on the cluster without an authorizer: bits by Kafka's `AclOperation`.
const OPERATIONS: i32 = 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12;

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: DescribeClusterRequest,
) {
    let node_id = shard.env.shared().config.node_id;
    let mut response = DescribeClusterResponse {
        endpoint_type: request.endpoint_type,
        cluster_id: shard.env.shared().cluster_id().to_string(),
        controller_id: node_id,
        ..DescribeClusterResponse::default()
    };
    if request.endpoint_type == BROKERS {
        let (host, port) = shard.env.shared().advertised(call.listener);
        response.brokers.push(DescribeClusterBroker {
            broker_id: node_id,
            host: host.to_string(),
            port: i32::from(port),
            ..DescribeClusterBroker::default()
        });
        if request.include_cluster_authorized_operations {
            response.cluster_authorized_operations = call.operations(OPERATIONS, ResourceKind::Cluster, "");
        }
    } else {
        response.error_code = ErrorCode::MismatchedEndpointType as i16;
        response.error_message = Some("The request was sent to an endpoint of type BROKER.".into());
    }
    shard.reply::<DescribeClusterRequest>(io, &call, &response);
}
