//! The brokers that are attacked: Mainstem, or a peer, each in a process of its own with its own data.

use super::attacker::{Protocol, Target};
use super::innocents::Innocent;
use crate::Outcome;
use crate::bench::at;
use crate::bench::brokers::{self, Broker, Category};
use crate::bench::server::Server;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Peers that speak MQTT or Kafka and that `cargo xtask bench` can start.
const PEERS: [&str; 3] = ["mosquitto", "flashmq", "kafka"];

/// A kind of broker.
pub(super) enum Subject {
    /// The binary.
    Mainstem(PathBuf),
    Peer(Broker),
}

/// A running broker.
pub(super) struct Running {
    pub(super) server: Server,
    pub(super) target: Target,
    /// File with its log.
    pub(super) log: PathBuf,
}

impl Subject {
    /// The available peers.
    ///
    /// # Errors
    /// If an environment variable names a binary that does not exist.
    pub(super) fn peers(root: &Path, mainstem: &Path, scratch: &Path) -> Outcome<Vec<Self>> {
        let found = brokers::find(root, mainstem, scratch, &PEERS, &[])?;
        let peers = found.into_iter().filter(|broker| PEERS.contains(&broker.name));
        Ok(peers.map(Self::Peer).collect())
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Mainstem(_) => "mainstem",
            Self::Peer(broker) => broker.name,
        }
    }

    /// The innocent clients that it can serve.
    pub(super) fn innocents(&self) -> &'static [Innocent] {
        match self {
            Self::Mainstem(_) => &Innocent::ALL,
            Self::Peer(broker) if broker.name == "kafka" => &[Innocent::Kafka],
            Self::Peer(_) => &[Innocent::Mqtt],
        }
    }

    /// Whether it speaks the protocol of an attack.
    pub(super) fn speaks(&self, protocol: Protocol) -> bool {
        match self {
            Self::Mainstem(_) => true,
            Self::Peer(broker) if broker.name == "kafka" => protocol == Protocol::Kafka,
            Self::Peer(_) => protocol == Protocol::Mqtt,
        }
    }

    /// Starts it with its defaults and an empty data directory in `directory`, which is created.
    ///
    /// # Errors
    /// If it does not start.
    pub(super) fn start(&self, root: &Path, directory: &Path) -> Outcome<Running> {
        fs::create_dir_all(directory).map_err(|error| at(directory, &error))?;
        match self {
            Self::Mainstem(binary) => start_mainstem(binary, directory),
            Self::Peer(broker) => {
                let is_kafka = broker.name == "kafka";
                let category = if is_kafka { Category::Kafka } else { Category::Memory };
                let (server, _) = broker.start(root, directory, category)?;
                let target = if is_kafka {
                    Target { kafka: server.port, ..Target::default() }
                } else {
                    Target { mqtt: server.port, ..Target::default() }
                };
                let log = server.log.clone();
                Ok(Running { server, target, log })
            }
        }
    }
}

/// Listens on three consecutive ports; ports are handed out with gaps.
fn start_mainstem(binary: &Path, directory: &Path) -> Outcome<Running> {
    let log = directory.join("broker.log");
    let address = |port: u16| format!("127.0.0.1:{port}");
    let server = Server::start(&log, |port| {
        let mut command = Command::new(binary);
        command.args(["--listen", &address(port), "--kafka-listen", &address(port + 1)]);
        command.args(["--http-listen", &address(port + 2), "--data"]).arg(directory.join("data"));
        Ok(command)
    })?;
    let target = Target { mqtt: server.port, kafka: server.port + 1, http: server.port + 2 };
    Ok(Running { server, target, log })
}
