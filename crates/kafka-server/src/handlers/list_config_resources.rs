//! `ListConfigResources`, versions 0 to 1: lists the resources that have a configuration (KIP-1142).

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::list_config_resources::{
    ConfigResource, ListConfigResourcesRequest, ListConfigResourcesResponse,
};
use mainstem_runtime::Io;
use mainstem_security::Action;

use super::describe_configs::{BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC};
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: ListConfigResourcesRequest,
) {
    if let Err(code) = call.check_cluster(Action::DescribeConfigs) {
        let response =
            ListConfigResourcesResponse { error_code: code as i16, ..ListConfigResourcesResponse::default() };
        return shard.reply::<ListConfigResourcesRequest>(io, &call, &response);
    }
    let all = [GROUP, CLIENT_METRICS, BROKER_LOGGER, BROKER, TOPIC];
    // Version 0 lists client metrics subscriptions only.
    let requested = match request.resource_types {
        _ if call.version == 0 => vec![CLIENT_METRICS],
        types if types.is_empty() => all.to_vec(),
        types => types,
    };
    let mut response = ListConfigResourcesResponse::default();
    if requested.iter().all(|resource_type| all.contains(resource_type)) {
        let kinds = all.into_iter().filter(|resource_type| requested.contains(resource_type));
        response.config_resources = kinds.flat_map(|resource_type| resources(shard, resource_type)).collect();
    } else {
        response.error_code = ErrorCode::UnsupportedVersion as i16;
    }
    shard.reply::<ListConfigResourcesRequest>(io, &call, &response);
}

fn resources(shard: &Shard, resource_type: i8) -> Vec<ConfigResource> {
    let named = |resource_name: String| ConfigResource { resource_name, resource_type };
    match resource_type {
        BROKER | BROKER_LOGGER => vec![named(shard.env.shared().config.node_id.to_string())],
        GROUP => {
            let configured = shard.controller.iter().flat_map(|controller| controller.groups.configured());
            configured.map(|group_id| named(group_id.to_string())).collect()
        }
        TOPIC => shard.env.catalogue().by_name.keys().map(|name| named(name.to_string())).collect(),
        _ => Vec::new(),
    }
}
