//! `mainstem group`: lists, describes and deletes groups, and resets their offsets.

use std::collections::BTreeMap;

use mainstem_kafka::api::delete_groups::DeleteGroupsRequest;
use mainstem_kafka::api::describe_groups::{DescribeGroupsRequest, DescribedGroup};
use mainstem_kafka::api::list_groups::ListGroupsRequest;
use mainstem_kafka::api::offset_commit::OffsetCommitRequest;

use super::assignment::assigned_partitions;
use super::cluster::{Cluster, Partition};
use super::errors::{FirstFailure, check};
use super::member::{commit_request, stored_offsets};
use crate::cli::{GroupArgs, GroupCommand, Position, ResetOffsetsArgs};
use crate::tool::failure::Failure;
use crate::tool::table::{Table, print};

/// Cell of an unknown value.
const NONE: &str = "-";

/// Runs the subcommand.
///
/// # Errors
/// If the broker does not answer or returns an error.
pub(crate) fn run(args: &GroupArgs) -> Result<(), Failure> {
    let mut cluster = Cluster::connect(&args.kafka)?;
    match &args.command {
        GroupCommand::List => list(&mut cluster),
        GroupCommand::Describe { groups } => describe(&mut cluster, groups),
        GroupCommand::Delete { groups } => delete(&mut cluster, groups, args.kafka.quiet),
        GroupCommand::ResetOffsets(reset_args) => reset_offsets(&mut cluster, reset_args),
    }
}

fn list(cluster: &mut Cluster) -> Result<(), Failure> {
    // Each broker lists only the groups it coordinates.
    let mut groups = Vec::new();
    for node in cluster.nodes()? {
        let response = cluster.node(node)?.call(&ListGroupsRequest::default())?;
        check("groups", response.error_code, None)?;
        groups.extend(response.groups);
    }
    groups.sort_by(|one, other| one.group_id.cmp(&other.group_id));
    let mut table = Table::new(&["GROUP", "STATE", "TYPE", "PROTOCOL"]);
    for group in groups {
        table.push(vec![
            group.group_id,
            or_none(group.group_state),
            or_none(group.group_type),
            or_none(group.protocol_type),
        ]);
    }
    table.print()
}

fn describe(cluster: &mut Cluster, groups: &[String]) -> Result<(), Failure> {
    for (index, name) in groups.iter().enumerate() {
        if index > 0 {
            print("\n")?;
        }
        let coordinator = cluster.coordinator(name)?;
        let group = described(cluster, coordinator, name)?;
        print(&format!(
            "group {name}\nstate {}\nassignor {}\nmembers {}\n",
            group.group_state,
            or_none(group.protocol_data.clone()),
            group.members.len()
        ))?;
        offsets_table(cluster, coordinator, &group)?.print()?;
    }
    Ok(())
}

fn described(cluster: &mut Cluster, coordinator: i32, name: &str) -> Result<DescribedGroup, Failure> {
    let request = DescribeGroupsRequest { groups: vec![name.into()], ..DescribeGroupsRequest::default() };
    let response = cluster.node(coordinator)?.call(&request)?;
    let group = response.groups.into_iter().next().unwrap_or_default();
    check(&format!("group {name}"), group.error_code, group.error_message.as_deref())?;
    Ok(group)
}

/// Offsets and lag of every partition with a committed offset or an assigned member.
fn offsets_table(cluster: &mut Cluster, coordinator: i32, group: &DescribedGroup) -> Result<Table, Failure> {
    let stored = stored_offsets(cluster, coordinator, &group.group_id, None)?;
    let mut owners: BTreeMap<Partition, usize> = BTreeMap::new();
    for (index, member) in group.members.iter().enumerate() {
        // Groups other than consumer groups have assignments in other formats.
        for partition in assigned_partitions(&member.member_assignment).unwrap_or_default() {
            owners.insert(partition, index);
        }
    }
    let mut partitions: Vec<Partition> = stored.keys().chain(owners.keys()).cloned().collect();
    partitions.sort_unstable();
    partitions.dedup();
    let ends = ends(cluster, &partitions);
    let mut table = Table::new(&["TOPIC", "PARTITION", "OFFSET", "END", "LAG", "MEMBER", "CLIENT", "HOST"]);
    for partition in partitions {
        let (offset, end) = (stored.get(&partition).copied(), ends.get(&partition).copied());
        let lag = offset.zip(end).map(|(offset, end)| (end - offset).max(0));
        let number = |value: Option<i64>| value.map_or(NONE.to_owned(), |value| value.to_string());
        let member = owners.get(&partition).map(|index| &group.members[*index]);
        let of_member = |text: Option<&String>| or_none(text.cloned().unwrap_or_default());
        table.push(vec![
            partition.0.clone(),
            partition.1.to_string(),
            number(offset),
            number(end),
            number(lag),
            of_member(member.map(|member| &member.member_id)),
            of_member(member.map(|member| &member.client_id)),
            of_member(member.map(|member| &member.client_host)),
        ]);
    }
    Ok(table)
}

/// End offsets of the partitions that still exist.
fn ends(cluster: &mut Cluster, partitions: &[Partition]) -> BTreeMap<Partition, i64> {
    let mut ends = BTreeMap::new();
    for of_topic in partitions.chunk_by(|one, other| one.0 == other.0) {
        if cluster.topic(&of_topic[0].0).is_ok()
            && let Ok(found) = cluster.offsets(of_topic, Position::End)
        {
            ends.extend(found);
        }
    }
    ends
}

fn delete(cluster: &mut Cluster, groups: &[String], quiet: bool) -> Result<(), Failure> {
    let mut first_failure = FirstFailure::new("group", quiet);
    for name in groups {
        let coordinator = cluster.coordinator(name)?;
        let request = DeleteGroupsRequest { groups_names: vec![name.clone()] };
        for result in cluster.node(coordinator)?.call(&request)?.results {
            first_failure.record(check(&format!("group {}", result.group_id), result.error_code, None));
        }
    }
    first_failure.finish()
}

fn reset_offsets(cluster: &mut Cluster, args: &ResetOffsetsArgs) -> Result<(), Failure> {
    let coordinator = cluster.coordinator(&args.group)?;
    let stored = stored_offsets(cluster, coordinator, &args.group, None)?;
    let partitions = selected_partitions(cluster, args, &stored)?;
    let offsets = targets(cluster, args, &partitions, &stored)?;
    if !args.dry_run {
        commit(cluster, coordinator, &args.group, &offsets)?;
    }
    let mut table = Table::new(&["TOPIC", "PARTITION", "OLD", "NEW"]);
    for (partition, offset) in offsets {
        let old = stored.get(&partition).map_or(NONE.to_owned(), ToString::to_string);
        table.push(vec![partition.0, partition.1.to_string(), old, offset.to_string()]);
    }
    table.print()
}

/// The partitions whose offsets to set.
fn selected_partitions(
    cluster: &mut Cluster,
    args: &ResetOffsetsArgs,
    stored: &BTreeMap<Partition, i64>,
) -> Result<Vec<Partition>, Failure> {
    let mut partitions = Vec::new();
    for (name, indexes) in &args.topic {
        let topic = cluster.topic(name)?;
        if let Some(missing) = indexes.iter().find(|index| !topic.partitions.contains_key(*index)) {
            return Err(Failure::new(format!("topic {name} has no partition {missing}")));
        }
        let is_selected = |index: &&i32| indexes.is_empty() || indexes.contains(*index);
        partitions.extend(topic.partitions.keys().filter(is_selected).map(|index| (name.clone(), *index)));
    }
    if args.all_topics {
        partitions.extend(stored.keys().cloned());
        for of_topic in partitions.chunk_by(|one, other| one.0 == other.0) {
            cluster.topic(&of_topic[0].0)?;
        }
    }
    Ok(partitions)
}

/// The new offset of each partition, clamped to the range of its log.
fn targets(
    cluster: &mut Cluster,
    args: &ResetOffsetsArgs,
    partitions: &[Partition],
    stored: &BTreeMap<Partition, i64>,
) -> Result<BTreeMap<Partition, i64>, Failure> {
    let begin = cluster.offsets(partitions, Position::Beginning)?;
    let end = cluster.offsets(partitions, Position::End)?;
    let mut targets = match (args.to, args.shift_by) {
        (Some(Position::Stored), _) => return Err(Failure::new("--to stored has no effect")),
        (Some(position), _) => cluster.offsets(partitions, position)?,
        (None, shift_by) => {
            let shifted = |(partition, offset): (&Partition, &i64)| {
                (partition.clone(), offset.saturating_add(shift_by.unwrap_or_default()))
            };
            stored.iter().filter(|(partition, _)| partitions.contains(partition)).map(shifted).collect()
        }
    };
    for (partition, offset) in &mut targets {
        *offset = (*offset).clamp(begin[partition], end[partition]);
    }
    Ok(targets)
}

fn commit(
    cluster: &mut Cluster,
    coordinator: i32,
    group: &str,
    offsets: &BTreeMap<Partition, i64>,
) -> Result<(), Failure> {
    if offsets.is_empty() {
        return Ok(());
    }
    // Without a member id. The broker rejects this while the group has members.
    let request = OffsetCommitRequest { group_id: group.into(), ..commit_request(offsets) };
    for topic in cluster.node(coordinator)?.call(&request)?.topics {
        for partition in topic.partitions {
            let context = format!("group {group}: {} [{}]", topic.name, partition.partition_index);
            check(&context, partition.error_code, None)?;
        }
    }
    Ok(())
}

fn or_none(text: String) -> String {
    if text.is_empty() { NONE.to_owned() } else { text }
}
