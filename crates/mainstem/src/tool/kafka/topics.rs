//! `mainstem topic`: creates, lists, describes, deletes and configures topics.

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::create_partitions::{CreatePartitionsRequest, CreatePartitionsTopic};
use mainstem_kafka::api::create_topics::{CreatableTopic, CreatableTopicConfig, CreateTopicsRequest};
use mainstem_kafka::api::delete_topics::DeleteTopicsRequest;
use mainstem_kafka::api::describe_configs::{
    DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResourceResult,
};
use mainstem_kafka::api::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};

use super::cluster::{Cluster, Partition, Topic};
use super::errors::{FirstFailure, check};
use crate::cli::{Position, TopicArgs, TopicCommand, TopicConfigArgs, TopicCreateArgs};
use crate::tool::failure::Failure;
use crate::tool::table::{Table, print};

/// Resource type of topics in `DescribeConfigs` and `IncrementalAlterConfigs`.
const TOPIC: i8 = 2;
/// Configuration source: set on the topic.
const SET_FOR_TOPIC: i8 = 1;
/// Operations of `IncrementalAlterConfigs` (KIP-339).
const SET: i8 = 0;
const DELETE: i8 = 1;

/// Runs the subcommand.
///
/// # Errors
/// If the broker does not answer or returns an error.
pub(crate) fn run(args: &TopicArgs) -> Result<(), Failure> {
    let mut cluster = Cluster::connect(&args.kafka)?;
    let quiet = args.kafka.quiet;
    match &args.command {
        TopicCommand::Create(create_args) => create(&mut cluster, create_args, quiet),
        TopicCommand::List { internal } => list(&mut cluster, *internal),
        TopicCommand::Describe { topics } => describe(&mut cluster, topics),
        TopicCommand::Delete { topics, if_exists } => delete(&mut cluster, topics, *if_exists, quiet),
        TopicCommand::Config(config_args) => config(&mut cluster, config_args),
    }
}

fn create(cluster: &mut Cluster, args: &TopicCreateArgs, quiet: bool) -> Result<(), Failure> {
    let configs: Vec<CreatableTopicConfig> = args
        .config
        .iter()
        .map(|(name, value)| CreatableTopicConfig { name: name.clone(), value: Some(value.clone()) })
        .collect();
    let topic = |name: &String| CreatableTopic {
        name: name.clone(),
        num_partitions: args.partitions.unwrap_or(-1),
        replication_factor: args.replication_factor.unwrap_or(-1),
        configs: configs.clone(),
        ..CreatableTopic::default()
    };
    let request = CreateTopicsRequest {
        topics: args.topics.iter().map(topic).collect(),
        timeout_ms: timeout_ms(cluster),
        ..CreateTopicsRequest::default()
    };
    let mut first_failure = FirstFailure::new("topic", quiet);
    for topic in cluster.bootstrap()?.call(&request)?.topics {
        let exists = topic.error_code == ErrorCode::TopicAlreadyExists.code();
        if !(exists && args.if_not_exists) {
            let context = format!("topic {}", topic.name);
            first_failure.record(check(&context, topic.error_code, topic.error_message.as_deref()));
        }
    }
    first_failure.finish()
}

fn list(cluster: &mut Cluster, internal: bool) -> Result<(), Failure> {
    let topics = cluster.all_topics()?;
    let shown = topics.into_iter().filter(|topic| internal || !topic.internal);
    let mut lines: Vec<String> = shown.map(|topic| topic.name + "\n").collect();
    lines.sort_unstable();
    print(&lines.concat())
}

fn describe(cluster: &mut Cluster, names: &[String]) -> Result<(), Failure> {
    let mut topics = if names.is_empty() {
        cluster.all_topics()?
    } else {
        names.iter().map(|name| cluster.topic(name)).collect::<Result<_, _>>()?
    };
    topics.sort_by(|one, other| one.name.cmp(&other.name));
    for (index, topic) in topics.iter().enumerate() {
        if index > 0 {
            print("\n")?;
        }
        describe_one(cluster, topic)?;
    }
    Ok(())
}

fn describe_one(cluster: &mut Cluster, topic: &Topic) -> Result<(), Failure> {
    let configs = configs(cluster, &topic.name)?;
    let mut text = format!("topic {}\nid {}\n", topic.name, topic.id);
    for config in configs.iter().filter(|config| config.config_source == SET_FOR_TOPIC) {
        text.push_str(&line(config));
    }
    print(&text)?;
    let partitions: Vec<Partition> =
        topic.partitions.keys().map(|index| (topic.name.clone(), *index)).collect();
    let begin = cluster.offsets(&partitions, Position::Beginning)?;
    let end = cluster.offsets(&partitions, Position::End)?;
    let mut table = Table::new(&["PARTITION", "LEADER", "BEGINNING", "END"]);
    for (index, leader) in &topic.partitions {
        let partition = (topic.name.clone(), *index);
        table.push(vec![
            index.to_string(),
            leader.to_string(),
            begin[&partition].to_string(),
            end[&partition].to_string(),
        ]);
    }
    table.print()
}

fn delete(cluster: &mut Cluster, names: &[String], if_exists: bool, quiet: bool) -> Result<(), Failure> {
    let mut first_failure = FirstFailure::new("topic", quiet);
    let mut topic_names = Vec::new();
    for name in names {
        if is_queue(cluster, name) {
            let what =
                format!("topic {name}: it is a work queue; delete it with 'mainstem queue delete {name}'");
            first_failure.record(Err(Failure::new(what)));
        } else {
            topic_names.push(name.clone());
        }
    }
    if topic_names.is_empty() {
        return first_failure.finish();
    }
    let timeout_ms = timeout_ms(cluster);
    let request = DeleteTopicsRequest { topic_names, timeout_ms, ..DeleteTopicsRequest::default() };
    for topic in cluster.bootstrap()?.call(&request)?.responses {
        let is_missing = topic.error_code == ErrorCode::UnknownTopicOrPartition.code();
        if !(is_missing && if_exists) {
            let context = format!("topic {}", topic.name.unwrap_or_default());
            first_failure.record(check(&context, topic.error_code, topic.error_message.as_deref()));
        }
    }
    first_failure.finish()
}

/// Whether a topic stores a work queue. A topic that does not exist is none.
fn is_queue(cluster: &mut Cluster, topic: &str) -> bool {
    let configs = configs(cluster, topic).unwrap_or_default();
    configs.iter().any(|config| config.name == "queue.enabled" && config.value.as_deref() == Some("true"))
}

fn config(cluster: &mut Cluster, args: &TopicConfigArgs) -> Result<(), Failure> {
    if let Some(count) = args.partitions {
        let topic =
            CreatePartitionsTopic { name: args.topic.clone(), count, ..CreatePartitionsTopic::default() };
        let timeout_ms = timeout_ms(cluster);
        let request = CreatePartitionsRequest { topics: vec![topic], timeout_ms, ..Default::default() };
        for result in cluster.bootstrap()?.call(&request)?.results {
            check(&format!("topic {}", result.name), result.error_code, result.error_message.as_deref())?;
        }
    }
    let set = args.set.iter().map(|(name, value)| change(name, SET, Some(value)));
    let changes: Vec<AlterableConfig> =
        set.chain(args.unset.iter().map(|name| change(name, DELETE, None))).collect();
    if !changes.is_empty() {
        alter(cluster, &args.topic, changes)?;
    } else if args.partitions.is_none() {
        let configs = configs(cluster, &args.topic)?;
        let shown = configs.iter().filter(|config| args.all || config.config_source == SET_FOR_TOPIC);
        print(&shown.map(line).collect::<String>())?;
    }
    Ok(())
}

fn change(name: &str, config_operation: i8, value: Option<&String>) -> AlterableConfig {
    AlterableConfig { name: name.into(), config_operation, value: value.cloned() }
}

fn alter(cluster: &mut Cluster, topic: &str, configs: Vec<AlterableConfig>) -> Result<(), Failure> {
    let resource = AlterConfigsResource { resource_type: TOPIC, resource_name: topic.into(), configs };
    let request = IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
    for response in cluster.bootstrap()?.call(&request)?.responses {
        let context = format!("topic {}", response.resource_name);
        check(&context, response.error_code, response.error_message.as_deref())?;
    }
    Ok(())
}

/// The configuration of a topic, sorted by key.
fn configs(cluster: &mut Cluster, topic: &str) -> Result<Vec<DescribeConfigsResourceResult>, Failure> {
    let resource = DescribeConfigsResource {
        resource_type: TOPIC,
        resource_name: topic.into(),
        configuration_keys: None,
    };
    let request = DescribeConfigsRequest { resources: vec![resource], ..DescribeConfigsRequest::default() };
    let mut configs = Vec::new();
    for result in cluster.bootstrap()?.call(&request)?.results {
        check(&format!("topic {topic}"), result.error_code, result.error_message.as_deref())?;
        configs.extend(result.configs);
    }
    configs.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(configs)
}

fn line(config: &DescribeConfigsResourceResult) -> String {
    format!("{}={}\n", config.name, config.value.as_deref().unwrap_or_default())
}

/// Timeout of requests that change topics.
fn timeout_ms(cluster: &Cluster) -> i32 {
    i32::try_from(cluster.timeout().as_millis()).unwrap_or(i32::MAX)
}
