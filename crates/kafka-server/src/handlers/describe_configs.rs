//! `DescribeConfigs`, versions 1 to 4: returns the configuration of topics and of the broker.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::describe_configs::{
    DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResourceResult, DescribeConfigsResponse,
    DescribeConfigsResult, DescribeConfigsSynonym,
};
use mainstem_runtime::Io;
use mainstem_security::Action;

use super::create_topics::invalid_request;
use crate::append_error::AppendError;
use crate::broker_config::Facts;
use crate::catalogue::name_error;
use crate::config_entries::{Entry, Synonym, of_broker, of_loggers, of_topic};
use crate::group_config::of_group;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};

/// Resources that have a configuration (Kafka's `ConfigResource.Type`).
pub(crate) const TOPIC: i8 = 2;
pub(crate) const BROKER: i8 = 4;
pub(crate) const BROKER_LOGGER: i8 = 8;
/// Client metrics subscriptions (KIP-714). There are none.
pub(crate) const CLIENT_METRICS: i8 = 16;
/// Consumer groups (KIP-848).
pub(crate) const GROUP: i8 = 32;

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: DescribeConfigsRequest,
) {
    let Some(request) = shard.divide(io, &call, request) else { return };
    let result = |resource: &DescribeConfigsResource| {
        let (refused, entries) = match entries(shard, &call, resource) {
            Ok(entries) => (ErrorCode::None.into(), entries),
            Err(refused) => (refused, Vec::new()),
        };
        let AppendError { code, message, .. } = refused;
        let is_requested = |entry: &Entry| match &resource.configuration_keys {
            None => true,
            Some(keys) => keys.iter().any(|key| key == entry.name),
        };
        let configs = entries.into_iter().filter(is_requested).map(|entry| config(entry, &request));
        DescribeConfigsResult {
            error_code: code as i16,
            error_message: message,
            resource_type: resource.resource_type,
            resource_name: resource.resource_name.clone(),
            configs: configs.collect(),
        }
    };
    let results = request.resources.iter().map(result).collect();
    let response = DescribeConfigsResponse { results, ..DescribeConfigsResponse::default() };
    shard.reply::<DescribeConfigsRequest>(io, &call, &response);
}

fn entries(
    shard: &Shard,
    call: &RequestContext,
    resource: &DescribeConfigsResource,
) -> Result<Vec<Entry>, AppendError> {
    let name = resource.resource_name.as_str();
    let config = &shard.env.shared().config;
    match resource.resource_type {
        TOPIC => call.check_topic(Action::DescribeConfigs, name)?,
        GROUP => call.check_group(Action::DescribeConfigs, name)?,
        _ => call.check_cluster(Action::DescribeConfigs)?,
    }
    match resource.resource_type {
        TOPIC => {
            if let Some(error) = name_error(name) {
                return Err(AppendError::new(ErrorCode::InvalidTopicException, error));
            }
            let topic = shard.env.catalogue().topic(name).ok_or(ErrorCode::UnknownTopicOrPartition)?;
            Ok(of_topic(&topic.config, config))
        }
        // The cluster-wide defaults, which cannot be set.
        BROKER if name.is_empty() => Ok(Vec::new()),
        BROKER => {
            is_this_node(shard, name, " or empty string")?;
            let (host, port) = shard.env.shared().advertised(call.listener);
            let advertised = format!("{host}:{port}");
            Ok(of_broker(&Facts { config, advertised, shards: shard.env.shared().shards }))
        }
        BROKER_LOGGER if name.is_empty() => Err(invalid_request("Broker id must not be empty")),
        BROKER_LOGGER => {
            is_this_node(shard, name, "")?;
            Ok(of_loggers())
        }
        CLIENT_METRICS if name.is_empty() => {
            Err(invalid_request("Client metrics subscription name must not be empty"))
        }
        GROUP if name.is_empty() => Err(invalid_request("Group name must not be empty")),
        CLIENT_METRICS => Ok(Vec::new()),
        GROUP => {
            let Some(controller) = &shard.controller else { return Err(ErrorCode::NotController.into()) };
            Ok(of_group(controller.groups.configuration(name), config))
        }
        other => Err(invalid_request(&format!("Unsupported resource type: {other}"))),
    }
}

/// Checks that a resource names this node; `alternative` describes the other valid names.
///
/// # Errors
/// It names another node.
pub(crate) fn is_this_node(shard: &Shard, name: &str, alternative: &str) -> Result<(), AppendError> {
    let Ok(id) = name.parse::<i32>() else {
        return Err(invalid_request(&format!("Broker id must be an integer, but it is: {name}")));
    };
    let node = shard.env.shared().config.node_id;
    if id == node {
        return Ok(());
    }
    Err(invalid_request(&format!("Unexpected broker id, expected {node}{alternative}, but received {name}")))
}

fn config(entry: Entry, request: &DescribeConfigsRequest) -> DescribeConfigsResourceResult {
    let synonym = |Synonym { name, value, source }: Synonym| DescribeConfigsSynonym {
        name: name.into(),
        value: Some(value),
        source: source as i8,
    };
    let synonyms = if request.include_synonyms { entry.synonyms } else { Vec::new() };
    DescribeConfigsResourceResult {
        name: entry.name.into(),
        value: Some(entry.value),
        read_only: entry.is_read_only,
        config_source: entry.source as i8,
        is_sensitive: false,
        synonyms: synonyms.into_iter().map(synonym).collect(),
        config_type: entry.config_type as i8,
        documentation: request.include_documentation.then(|| entry.doc.into()),
    }
}
