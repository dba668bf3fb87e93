//! The brokers of a cluster, the leaders of partitions, and the start and end offsets of their logs.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use mainstem_kafka::Uuid;
use mainstem_kafka::api::find_coordinator::FindCoordinatorRequest;
use mainstem_kafka::api::list_offsets::{ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic};
use mainstem_kafka::api::metadata::{MetadataRequest, MetadataRequestTopic, MetadataResponseTopic};

use super::connection::{Access, Connection};
use super::errors::{check, retry};
use super::log_in::Credentials;
use crate::cli::{KafkaArgs, Position, with_default_port};
use crate::tool::failure::Failure;
use crate::tool::tls::Tls;

/// Port of a broker unless the flag names another.
const PORT: u16 = 9092;
/// `timestamp` of `ListOffsets` for the end of a log.
const LATEST: i64 = -1;
/// `timestamp` of `ListOffsets` for the start of a log.
const EARLIEST: i64 = -2;

/// Topic name and partition index.
pub(super) type Partition = (String, i32);

/// Metadata of a topic.
#[derive(Debug)]
pub(super) struct Topic {
    pub(super) name: String,
    pub(super) id: Uuid,
    pub(super) internal: bool,
    /// Leader of each partition; -1 without one.
    pub(super) partitions: BTreeMap<i32, i32>,
}

/// Connections to the brokers of a cluster, opened on demand.
pub(super) struct Cluster {
    bootstrap_addresses: Vec<String>,
    access: Rc<Access>,
    bootstrap: Connection,
    /// Advertised address of each broker.
    nodes: BTreeMap<i32, String>,
    connections: BTreeMap<i32, Connection>,
    /// From the last metadata response.
    leaders: BTreeMap<Partition, i32>,
}

impl Topic {
    pub(super) fn partition_count(&self) -> u32 {
        self.partitions.len() as u32
    }
}

impl Cluster {
    /// Connects to the first bootstrap broker that answers.
    ///
    /// # Errors
    /// If none answers.
    pub(super) fn connect(args: &KafkaArgs) -> Result<Self, Failure> {
        let addresses: Vec<String> =
            args.broker.split(',').map(|address| with_default_port(address.trim(), PORT)).collect();
        let tls = args.tls.is_set().then(|| Tls::load(&args.tls, None)).transpose()?;
        let credentials = Credentials::of(args)?;
        let access = Rc::new(Access { timeout: args.request_timeout, tls, credentials });
        Ok(Self {
            bootstrap: connect_any(&addresses, &access)?,
            access,
            bootstrap_addresses: addresses,
            nodes: BTreeMap::new(),
            connections: BTreeMap::new(),
            leaders: BTreeMap::new(),
        })
    }

    /// Longest wait for a response, and for a transient error to pass.
    pub(super) fn timeout(&self) -> Duration {
        self.access.timeout
    }

    /// A connection to a bootstrap broker.
    ///
    /// # Errors
    /// If none answers.
    pub(super) fn bootstrap(&mut self) -> Result<&mut Connection, Failure> {
        if self.bootstrap.is_broken() {
            self.bootstrap = connect_any(&self.bootstrap_addresses, &self.access)?;
        }
        Ok(&mut self.bootstrap)
    }

    /// A connection to a broker.
    ///
    /// # Errors
    /// If the broker is unknown or does not answer.
    pub(super) fn node(&mut self, node: i32) -> Result<&mut Connection, Failure> {
        if self.connections.get(&node).is_none_or(Connection::is_broken) {
            let address = self
                .nodes
                .get(&node)
                .ok_or_else(|| Failure::transient(format!("broker {node} is unknown")))?;
            let connection = Connection::open(address, &self.access)?;
            self.connections.insert(node, connection);
        }
        Ok(self.connections.get_mut(&node).expect("inserted above"))
    }

    /// Ids of all brokers.
    ///
    /// # Errors
    /// If none answers.
    pub(super) fn nodes(&mut self) -> Result<Vec<i32>, Failure> {
        self.metadata(&MetadataRequest { topics: Some(Vec::new()), ..MetadataRequest::default() })?;
        Ok(self.nodes.keys().copied().collect())
    }

    /// The leader of a partition, from the last metadata response.
    ///
    /// # Errors
    /// If the partition has no leader.
    pub(super) fn leader(&self, partition: &Partition) -> Result<i32, Failure> {
        let leader = self.leaders.get(partition).copied().filter(|leader| *leader >= 0);
        leader.ok_or_else(|| Failure::transient(format!("{} [{}] has no leader", partition.0, partition.1)))
    }

    /// All topics.
    ///
    /// # Errors
    /// If the broker does not answer.
    pub(super) fn all_topics(&mut self) -> Result<Vec<Topic>, Failure> {
        let (topics, _) = self.metadata(&MetadataRequest { topics: None, ..MetadataRequest::default() })?;
        topics.into_iter().map(|topic| self.update_leaders(topic)).collect()
    }

    /// Metadata of an existing topic.
    ///
    /// # Errors
    /// If the topic does not exist or the broker does not answer.
    pub(super) fn topic(&mut self, name: &str) -> Result<Topic, Failure> {
        self.fetch_topic(name, false)
    }

    /// Metadata of a topic. If it does not exist, the broker may create it; waits until all partitions have leaders.
    ///
    /// # Errors
    /// As [`Self::topic`].
    pub(super) fn topic_or_create(&mut self, name: &str) -> Result<Topic, Failure> {
        let timeout = self.timeout();
        retry(timeout, || {
            let topic = self.fetch_topic(name, true)?;
            match topic.partitions.iter().find(|(_, leader)| **leader < 0) {
                Some((partition, _)) => {
                    Err(Failure::transient(format!("{name} [{partition}] has no leader")))
                }
                None => Ok(topic),
            }
        })
    }

    fn fetch_topic(&mut self, name: &str, allow_auto_topic_creation: bool) -> Result<Topic, Failure> {
        let requested = MetadataRequestTopic { name: Some(name.into()), ..MetadataRequestTopic::default() };
        let request = MetadataRequest {
            topics: Some(vec![requested]),
            allow_auto_topic_creation,
            ..MetadataRequest::default()
        };
        let (mut topics, address) = self.metadata(&request)?;
        let topic = topics
            .pop()
            .ok_or_else(|| Failure::new(format!("{address}: the response lacks topic {name}")))?;
        self.update_leaders(topic)
    }

    /// Requests metadata and updates the addresses of brokers.
    fn metadata(
        &mut self,
        request: &MetadataRequest,
    ) -> Result<(Vec<MetadataResponseTopic>, String), Failure> {
        let response = self.bootstrap()?.call(request)?;
        check("metadata", response.error_code, None)?;
        for broker in response.brokers {
            self.nodes.insert(broker.node_id, address(&broker.host, broker.port));
        }
        Ok((response.topics, self.bootstrap_addresses.join(",")))
    }

    fn update_leaders(&mut self, topic: MetadataResponseTopic) -> Result<Topic, Failure> {
        let name = topic.name.unwrap_or_default();
        check(&format!("topic {name}"), topic.error_code, None)?;
        let mut partitions = BTreeMap::new();
        for partition in topic.partitions {
            let leader = if partition.error_code == 0 { partition.leader_id } else { -1 };
            self.leaders.insert((name.clone(), partition.partition_index), leader);
            partitions.insert(partition.partition_index, leader);
        }
        Ok(Topic { name, id: topic.topic_id, internal: topic.is_internal, partitions })
    }

    /// The coordinator of a group.
    ///
    /// # Errors
    /// If there is none before the timeout.
    pub(super) fn coordinator(&mut self, group: &str) -> Result<i32, Failure> {
        let timeout = self.timeout();
        let request = FindCoordinatorRequest { key: group.into(), ..FindCoordinatorRequest::default() };
        retry(timeout, || {
            let response = self.bootstrap()?.call(&request)?;
            check(
                &format!("coordinator of {group}"),
                response.error_code,
                response.error_message.as_deref(),
            )?;
            self.nodes.insert(response.node_id, address(&response.host, response.port));
            Ok(response.node_id)
        })
    }

    /// The offset of `position` in each partition. Metadata of the topics must have been requested before.
    /// [`Position::Stored`] resolves to the beginning.
    ///
    /// # Errors
    /// If a leader does not answer or returns an error.
    pub(super) fn offsets(
        &mut self,
        partitions: &[Partition],
        position: Position,
    ) -> Result<BTreeMap<Partition, i64>, Failure> {
        let timestamp = match position {
            Position::Offset(offset) => {
                return Ok(partitions.iter().map(|partition| (partition.clone(), offset)).collect());
            }
            Position::Beginning | Position::Stored => EARLIEST,
            Position::End | Position::BeforeEnd(_) => LATEST,
            Position::Time(unix_ms) => unix_ms,
        };
        let mut offsets = self.list_offsets(partitions, timestamp)?;
        match position {
            Position::BeforeEnd(records) => {
                let earliest = self.list_offsets(partitions, EARLIEST)?;
                for (partition, offset) in &mut offsets {
                    *offset = (*offset - records).max(earliest[partition]);
                }
            }
            Position::Time(_) => {
                // If all records are older, the position is the end of the log.
                let at_end: Vec<Partition> = offsets
                    .iter()
                    .filter(|(_, offset)| **offset < 0)
                    .map(|(partition, _)| partition.clone())
                    .collect();
                offsets.extend(self.list_offsets(&at_end, LATEST)?);
            }
            _ => {}
        }
        Ok(offsets)
    }

    fn list_offsets(
        &mut self,
        partitions: &[Partition],
        timestamp: i64,
    ) -> Result<BTreeMap<Partition, i64>, Failure> {
        let mut by_leader: BTreeMap<i32, BTreeMap<&str, Vec<ListOffsetsPartition>>> = BTreeMap::new();
        for partition in partitions {
            let requested =
                ListOffsetsPartition { partition_index: partition.1, timestamp, ..Default::default() };
            let topics = by_leader.entry(self.leader(partition)?).or_default();
            topics.entry(&partition.0).or_default().push(requested);
        }
        let mut offsets = BTreeMap::new();
        for (leader, topics) in by_leader {
            let topics = topics
                .into_iter()
                .map(|(name, partitions)| ListOffsetsTopic { name: name.into(), partitions })
                .collect();
            let request = ListOffsetsRequest { replica_id: -1, topics, ..ListOffsetsRequest::default() };
            for topic in self.node(leader)?.call(&request)?.topics {
                for partition in topic.partitions {
                    let index = partition.partition_index;
                    check(&format!("offsets of {} [{index}]", topic.name), partition.error_code, None)?;
                    offsets.insert((topic.name.clone(), index), partition.offset);
                }
            }
        }
        match partitions.iter().find(|partition| !offsets.contains_key(*partition)) {
            Some((topic, index)) => {
                Err(Failure::new(format!("offsets of {topic} [{index}]: missing in the response")))
            }
            None => Ok(offsets),
        }
    }
}

fn connect_any(addresses: &[String], access: &Rc<Access>) -> Result<Connection, Failure> {
    let mut last = Failure::new("no broker address");
    for address in addresses {
        match Connection::open(address, access) {
            Ok(connection) => return Ok(connection),
            Err(failure) => last = failure,
        }
    }
    Err(last)
}

fn address(host: &str, port: i32) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}
