//! The brokers of a cluster, who of them leads which partition, and where logs begin and end.

use std::collections::BTreeMap;
use std::time::Duration;

use mainstem_kafka::Uuid;
use mainstem_kafka::api::find_coordinator::FindCoordinatorRequest;
use mainstem_kafka::api::list_offsets::{ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic};
use mainstem_kafka::api::metadata::{MetadataRequest, MetadataRequestTopic, MetadataResponseTopic};

use super::connection::Connection;
use super::errors::{check, persist};
use crate::cli::{KafkaArgs, Position};
use crate::tool::failure::Failure;

/// `timestamp` that asks for the end of a log.
const LATEST: i64 = -1;
/// `timestamp` that asks for its beginning.
const EARLIEST: i64 = -2;

/// A partition of a topic.
pub(super) type Partition = (String, i32);

/// What a topic consists of.
#[derive(Debug)]
pub(super) struct Topic {
    pub(super) name: String,
    pub(super) id: Uuid,
    pub(super) internal: bool,
    /// Partition to the number of its leader, -1 if it has none.
    pub(super) partitions: BTreeMap<i32, i32>,
}

/// Connections to the brokers of a cluster, made when they are needed.
pub(super) struct Cluster {
    addresses: Vec<String>,
    patience: Duration,
    first: Connection,
    /// Where brokers say that they are.
    nodes: BTreeMap<i32, String>,
    connections: BTreeMap<i32, Connection>,
    /// As of the last metadata.
    leaders: BTreeMap<Partition, i32>,
}

impl Topic {
    /// Number of partitions.
    pub(super) fn partition_count(&self) -> u32 {
        self.partitions.len() as u32
    }
}

impl Cluster {
    /// Connects to the first broker that answers.
    ///
    /// # Errors
    /// If none does.
    pub(super) fn connect(args: &KafkaArgs) -> Result<Self, Failure> {
        let addresses: Vec<String> = args.kafka.split(',').map(|address| address.trim().to_owned()).collect();
        Ok(Self {
            first: connect_any(&addresses, args.patience)?,
            addresses,
            patience: args.patience,
            nodes: BTreeMap::new(),
            connections: BTreeMap::new(),
            leaders: BTreeMap::new(),
        })
    }

    /// How long to wait for what may pass.
    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    /// A connection to some broker.
    ///
    /// # Errors
    /// If none answers.
    pub(super) fn any(&mut self) -> Result<&mut Connection, Failure> {
        if self.first.is_broken() {
            self.first = connect_any(&self.addresses, self.patience)?;
        }
        Ok(&mut self.first)
    }

    /// A connection to this broker.
    ///
    /// # Errors
    /// If it is unknown, or does not answer.
    pub(super) fn node(&mut self, node: i32) -> Result<&mut Connection, Failure> {
        if self.connections.get(&node).is_none_or(Connection::is_broken) {
            let address =
                self.nodes.get(&node).ok_or_else(|| Failure::lost(format!("broker {node} is unknown")))?;
            let connection = Connection::open(address, self.patience)?;
            self.connections.insert(node, connection);
        }
        Ok(self.connections.get_mut(&node).expect("made above"))
    }

    /// The numbers of all brokers.
    ///
    /// # Errors
    /// If none answers.
    pub(super) fn nodes(&mut self) -> Result<Vec<i32>, Failure> {
        self.metadata(&MetadataRequest { topics: Some(Vec::new()), ..MetadataRequest::default() })?;
        Ok(self.nodes.keys().copied().collect())
    }

    /// The leader of a partition, as of the last metadata.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn leader(&self, partition: &Partition) -> Result<i32, Failure> {
        let leader = self.leaders.get(partition).copied().filter(|leader| *leader >= 0);
        leader.ok_or_else(|| Failure::lost(format!("{} [{}] has no leader", partition.0, partition.1)))
    }

    /// All topics.
    ///
    /// # Errors
    /// If the broker does not answer.
    pub(super) fn all_topics(&mut self) -> Result<Vec<Topic>, Failure> {
        let (topics, _) = self.metadata(&MetadataRequest { topics: None, ..MetadataRequest::default() })?;
        topics.into_iter().map(|topic| self.learn(topic)).collect()
    }

    /// A topic that is there.
    ///
    /// # Errors
    /// If it is not, or the broker does not answer.
    pub(super) fn topic(&mut self, name: &str) -> Result<Topic, Failure> {
        self.ask_topic(name, false)
    }

    /// A topic; one that is not there is made if the broker does that, which is waited for.
    ///
    /// # Errors
    /// As [`Self::topic`].
    pub(super) fn topic_made(&mut self, name: &str) -> Result<Topic, Failure> {
        let patience = self.patience;
        persist(patience, || {
            let topic = self.ask_topic(name, true)?;
            match topic.partitions.iter().find(|(_, leader)| **leader < 0) {
                Some((partition, _)) => Err(Failure::lost(format!("{name} [{partition}] has no leader"))),
                None => Ok(topic),
            }
        })
    }

    fn ask_topic(&mut self, name: &str, allow_auto_topic_creation: bool) -> Result<Topic, Failure> {
        let asked = MetadataRequestTopic { name: Some(name.into()), ..MetadataRequestTopic::default() };
        let request = MetadataRequest {
            topics: Some(vec![asked]),
            allow_auto_topic_creation,
            ..MetadataRequest::default()
        };
        let (mut topics, address) = self.metadata(&request)?;
        let topic =
            topics.pop().ok_or_else(|| Failure::new(format!("{address}: no answer about topic {name}")))?;
        self.learn(topic)
    }

    /// Also learns where brokers are.
    fn metadata(
        &mut self,
        request: &MetadataRequest,
    ) -> Result<(Vec<MetadataResponseTopic>, String), Failure> {
        let answer = self.any()?.call(request)?;
        check("metadata", answer.error_code, None)?;
        for broker in answer.brokers {
            self.nodes.insert(broker.node_id, address(&broker.host, broker.port));
        }
        Ok((answer.topics, self.addresses.join(",")))
    }

    fn learn(&mut self, topic: MetadataResponseTopic) -> Result<Topic, Failure> {
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

    /// The broker that coordinates a group.
    ///
    /// # Errors
    /// If there is none in good time.
    pub(super) fn coordinator(&mut self, group: &str) -> Result<i32, Failure> {
        let patience = self.patience;
        let request = FindCoordinatorRequest { key: group.into(), ..FindCoordinatorRequest::default() };
        persist(patience, || {
            let answer = self.any()?.call(&request)?;
            check(&format!("coordinator of {group}"), answer.error_code, answer.error_message.as_deref())?;
            self.nodes.insert(answer.node_id, address(&answer.host, answer.port));
            Ok(answer.node_id)
        })
    }

    /// Where `position` is in each of the partitions, whose topics have been asked for before. For
    /// [`Position::Stored`] that is the beginning.
    ///
    /// # Errors
    /// If a leader does not answer, or refuses.
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
                // Where all is older, the next record is the first that is not.
                let later: Vec<Partition> = offsets
                    .iter()
                    .filter(|(_, offset)| **offset < 0)
                    .map(|(partition, _)| partition.clone())
                    .collect();
                offsets.extend(self.list_offsets(&later, LATEST)?);
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
            let asked =
                ListOffsetsPartition { partition_index: partition.1, timestamp, ..Default::default() };
            let topics = by_leader.entry(self.leader(partition)?).or_default();
            topics.entry(&partition.0).or_default().push(asked);
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
            Some((topic, index)) => Err(Failure::new(format!("offsets of {topic} [{index}]: no answer"))),
            None => Ok(offsets),
        }
    }
}

fn connect_any(addresses: &[String], patience: Duration) -> Result<Connection, Failure> {
    let mut last = Failure::new("no broker is named");
    for address in addresses {
        match Connection::open(address, patience) {
            Ok(connection) => return Ok(connection),
            Err(failure) => last = failure,
        }
    }
    Err(last)
}

fn address(host: &str, port: i32) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}
