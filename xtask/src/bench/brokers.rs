//! The brokers that are measured: where their binaries are, and how each is started.
//!
//! Mainstem runs with its defaults. The peers' configurations lie in `bench/` and say what they change: limits are
//! raised so that none drops anything because of a setting; nothing is logged. Where what is kept on disk is measured,
//! those take part that keep something, and Mainstem once more with each weaker durability.

use super::{Server, at, machine, rabbit, ready};
use crate::Outcome;
use crate::ci::run_command;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The peers in memory, in the order in which they take their turns.
pub(super) const IN_MEMORY: [&str; 4] = ["flashmq", "rumqttd", "mosquitto", "mochi"];
/// The peers that keep what they were given, or part of it.
pub(super) const ON_DISK: [&str; 4] = ["mainstem-os", "mainstem-none", "mosquitto", "nats"];
/// All of them.
pub(super) const PEERS: [&str; 7] =
    ["flashmq", "rumqttd", "mosquitto", "mochi", "mainstem-os", "mainstem-none", "nats"];
/// The peers of the Kafka door.
pub(super) const KAFKA: [&str; 2] = ["mainstem-os", "kafka"];

/// The peers of work queues. Two of each: how soon a message is on the disk is what they differ in.
pub(super) const QUEUE: [&str; 6] =
    ["mainstem-os", "rabbit-quorum", "rabbit-classic", "jetstream", "jetstream-sync", "fluxmq"];

/// The identifier of a cluster of one, as Kafka writes such: 16 bytes in base64.
const KAFKA_CLUSTER: &str = "bWFpbnN0ZW0tYmVuY2gtMA";

/// What a row is about, which decides who takes part and how it is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ground {
    /// Routing: the peers persist nothing.
    Memory,
    /// Keeping: the peers persist what they can.
    Disk,
    /// The Kafka door.
    Kafka,
    /// Work queues.
    Queue,
}

impl Ground {
    /// The peers that take part.
    pub(super) fn peers(self) -> &'static [&'static str] {
        match self {
            Self::Memory => &IN_MEMORY,
            Self::Disk => &ON_DISK,
            Self::Kafka => &KAFKA,
            Self::Queue => &QUEUE,
        }
    }
}

/// A broker that is there.
#[derive(Debug)]
pub(super) struct Broker {
    pub(super) name: &'static str,
    /// What its binary says when asked.
    pub(super) version: String,
    binary: PathBuf,
    /// Another server that it needs all the time.
    names: Option<Server>,
}

/// Mainstem and those of its `peers` that are there: all, or the named ones.
///
/// # Errors
/// If a named peer is missing.
pub(super) fn find(
    root: &Path,
    mainstem: &Path,
    scratch: &Path,
    peers: &[&'static str],
    named: &[String],
) -> Outcome<Vec<Broker>> {
    let mut brokers = vec![Broker::new("mainstem", mainstem.to_owned())];
    for &peer in peers {
        let is_named = named.iter().any(|name| name == peer);
        if !named.is_empty() && !is_named {
            continue;
        }
        let found =
            if peer.starts_with("mainstem-") { Some(mainstem.to_owned()) } else { binary_of(root, peer)? };
        match found {
            Some(binary) => {
                let mut broker = Broker::new(peer, binary);
                if is_rabbit(peer) {
                    broker.names = Some(rabbit::name_server(scratch, peer)?);
                }
                brokers.push(broker);
            }
            None if is_named => return Err(format!("{peer} is not here: {}", how_to_get(peer))),
            None => {}
        }
    }
    Ok(brokers)
}

/// How to make a peer available.
pub(super) fn how_to_get(peer: &str) -> &'static str {
    match peer {
        "flashmq" => "FLASHMQ has to name its binary",
        "rumqttd" => "`make bench-peers` installs it, or RUMQTTD names its binary",
        "mosquitto" => "install the package of that name",
        "nats" | "jetstream" | "jetstream-sync" => {
            "`make bench-peers` installs it, or NATS names the binary nats-server, or it is on PATH"
        }
        "rabbit-quorum" | "rabbit-classic" => {
            "install the package rabbitmq-server, or RABBITMQ names the script of that name in its own directory"
        }
        "fluxmq" => {
            "FLUXMQ has to name a program that runs it, for AMQP 0-9-1 on the port it gets as its argument"
        }
        "kafka" => {
            "`make bench-peers` installs it, or KAFKA names the directory with its jars; and Java is needed"
        }
        _ => "MOCHI has to name a program that runs it on the port it gets as its argument",
    }
}

/// The binary that the environment names, or one on PATH, or one that `make bench-peers` installed.
fn binary_of(root: &Path, peer: &str) -> Outcome<Option<PathBuf>> {
    let variable = match peer {
        "jetstream" | "jetstream-sync" => "NATS".to_owned(),
        "rabbit-quorum" | "rabbit-classic" => "RABBITMQ".to_owned(),
        peer => peer.to_uppercase(),
    };
    if let Some(named) = env::var_os(variable) {
        let path = fs::canonicalize(&named).map_err(|error| at(Path::new(&named), &error))?;
        return Ok(Some(path));
    }
    let file = match peer {
        "flashmq" | "mochi" | "fluxmq" => return Ok(None),
        "kafka" => return Ok(Some(root.join(KAFKA_JARS)).filter(|jars| jars.is_dir())),
        "nats" | "jetstream" | "jetstream-sync" => "nats-server",
        "rabbit-quorum" | "rabbit-classic" => {
            return Ok(Some(PathBuf::from(rabbit::SCRIPT)).filter(|script| script.is_file()));
        }
        peer => peer,
    };
    let path = env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<PathBuf> = env::split_paths(&path).collect();
    // Debian puts servers where the PATH of a user does not lead.
    directories.extend([PathBuf::from("/usr/sbin"), root.join("target/peers/bin")]);
    Ok(directories.into_iter().map(|directory| directory.join(file)).find(|path| path.is_file()))
}

/// Where the jars of Apache Kafka are, unless the environment names another directory.
const KAFKA_JARS: &str = "target/peers/kafka";

/// Installs the peers that a package registry has and that are not here yet, into `target/peers`; and RabbitMQ where
/// packages may not start services.
///
/// # Errors
/// If one cannot be installed. The others are, as far as they can be.
pub(crate) fn install(root: &Path) -> Outcome {
    // Not with the versions it locks: one of them is refused by compilers of today.
    let rumqttd = ["install", "rumqttd", "--quiet", "--root", "target/peers"];
    let jars = format!("-DoutputDirectory={}", root.join(KAFKA_JARS).display());
    let kafka = ["-q", "-f", "bench/kafka/pom.xml", "dependency:copy-dependencies", &jars];
    let programs = root.join("target/peers/bin").display().to_string();
    let nats = ["-C", "bench/nats", "install", "tool"];
    let rabbit = ["install", "--yes", "--no-install-recommends", "rabbitmq-server"];
    let outcomes = [
        install_one(root, "rumqttd", "cargo", &rumqttd, &[]),
        install_one(root, "kafka", "mvn", &kafka, &[]),
        install_one(root, "nats", "go", &nats, &[("GOBIN", &programs)]),
        if rabbit::is_installable() || binary_of(root, "rabbit-quorum")?.is_some() {
            let quiet = [("DEBIAN_FRONTEND", "noninteractive")];
            install_one(root, "rabbit-quorum", "apt-get", &rabbit, &quiet)
        } else {
            println!("rabbitmq is not here: {}", how_to_get("rabbit-quorum"));
            Ok(())
        },
    ];
    let failures: Vec<String> = outcomes.into_iter().filter_map(Result::err).collect();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

fn install_one(
    root: &Path,
    peer: &str,
    program: &str,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Outcome {
    if let Some(present) = binary_of(root, peer)? {
        println!("{peer} is here: {}", present.display());
        return Ok(());
    }
    println!("installing {peer} (once)");
    run_command(root, program, arguments, environment)
}

impl Broker {
    fn new(name: &'static str, binary: PathBuf) -> Self {
        let version = version(name, &binary);
        Self { name, version, binary, names: None }
    }

    /// Starts it with files of its own below `scratch`. How long it took until it could be used.
    ///
    /// # Errors
    /// If it does not start.
    pub(super) fn start(&self, root: &Path, scratch: &Path, ground: Ground) -> Outcome<(Server, Duration)> {
        let directory = self.directory(scratch);
        if directory.exists() {
            fs::remove_dir_all(&directory).map_err(|error| at(&directory, &error))?;
        }
        fs::create_dir(&directory).map_err(|error| at(&directory, &error))?;
        if self.name == "kafka" {
            self.format(root, &directory)?;
        }
        let began = Instant::now();
        let command = |port| self.command(root, &directory, port, ground);
        Self::ready(Server::start(&directory.join("stderr"), command)?, ground, began)
    }

    /// Waits until it can be used, and counts from when it began.
    fn ready(mut server: Server, ground: Ground, began: Instant) -> Outcome<(Server, Duration)> {
        if ground == Ground::Kafka {
            ready::await_metadata(&mut server)?;
        }
        Ok((server, began.elapsed()))
    }

    /// Starts it again, on the port and the files that it had. How long it took until it could be used.
    ///
    /// # Errors
    /// If it does not start.
    pub(super) fn start_again(
        &self,
        root: &Path,
        scratch: &Path,
        ground: Ground,
        port: u16,
    ) -> Outcome<(Server, Duration)> {
        let directory = self.directory(scratch);
        let began = Instant::now();
        let command = |port| self.command(root, &directory, port, ground);
        Self::ready(Server::start_on(port, &directory.join("stderr"), &command)?, ground, began)
    }

    /// What it is given to do before it is measured, if it compiles itself while it runs: at a moderate rate, so that
    /// the page cache stays empty.
    pub(super) fn exercise(&self) -> Option<&'static [&'static str]> {
        const EXERCISE: [&str; 10] = [
            "produce",
            "--records",
            "20",
            "--rate",
            "2000",
            "--consume",
            "--warmup",
            "0",
            "--duration",
            "15",
        ];
        (self.name == "kafka").then_some(&EXERCISE)
    }

    /// Where its files are.
    pub(super) fn directory(&self, scratch: &Path) -> PathBuf {
        scratch.join(format!("{}.files", self.name))
    }

    fn command(&self, root: &Path, directory: &Path, port: u16, ground: Ground) -> Outcome<Command> {
        let mut command = Command::new(&self.binary);
        command.current_dir(directory);
        let configured = |file: &str| configure(root, directory, file, port);
        match (self.name, ground) {
            ("flashmq", _) => command.arg("--config-file").arg(configured("flashmq.conf")?),
            ("rumqttd", _) => command.arg("--quiet").arg("--config").arg(configured("rumqttd.toml")?),
            ("mosquitto", Ground::Memory) => command.arg("-c").arg(configured("mosquitto.conf")?),
            ("mosquitto", Ground::Disk) => command.arg("-c").arg(configured("mosquitto-durable.conf")?),
            ("nats", _) => command.arg("--config").arg(configured("nats.conf")?),
            ("mochi" | "fluxmq", _) => command.arg(port.to_string()),
            ("jetstream", _) => command.arg("--config").arg(configured("jetstream.conf")?),
            ("jetstream-sync", _) => command.arg("--config").arg(configured("jetstream-sync.conf")?),
            (rabbit, _) if is_rabbit(rabbit) => {
                let configuration = configured("rabbitmq.conf")?;
                command = rabbit::command(&self.binary, directory, &configuration, port, self.names.as_ref());
                command.current_dir(directory)
            }
            ("kafka", _) => {
                command = self.java(directory);
                // The heap of Kafka's own scripts.
                let start = ["-Xmx1g", "-Xms1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "kafka.Kafka"];
                command.args(start).arg(configured("kafka/server.properties")?)
            }
            (mainstem, Ground::Kafka) => {
                if let Some(durability) = mainstem.strip_prefix("mainstem-") {
                    command.args(["--set", &format!("kafka.durability={durability}")]);
                }
                command.args(["--kafka-listen", &format!("127.0.0.1:{port}"), "--listen", "127.0.0.1:0"]);
                command.args(["--http-listen", "127.0.0.1:0", "--data", "data"])
            }
            (_, Ground::Queue) => {
                // Limits that the rows stay below. How soon a message is on the disk is a setting of each queue.
                for limit in ["receive_maximum", "max_inflight_messages"] {
                    command.args(["--set", &format!("mqtt.{limit}=1000")]);
                }
                command.args(["--kafka-listen", "127.0.0.1:0", "--http-listen", &http_address(port)]);
                command.args(["--listen", &format!("127.0.0.1:{port}"), "--data", "data"])
            }
            (mainstem, _) => {
                if let Some(durability) = mainstem.strip_prefix("mainstem-") {
                    command.args(["--set", &format!("mqtt.durability={durability}")]);
                }
                command.args(["--kafka-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]);
                command.args(["--listen", &format!("127.0.0.1:{port}"), "--data", "data"])
            }
        };
        Ok(command)
    }

    /// What the generator has to be told of it beside the port, where servers speak different protocols.
    pub(super) fn dialect(&self, ground: Ground, port: u16) -> Vec<String> {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        if ground != Ground::Queue {
            return Vec::new();
        }
        match self.name {
            "rabbit-quorum" => words(&["--protocol", "amqp", "--queue-type", "quorum"]),
            "rabbit-classic" => words(&["--protocol", "amqp", "--queue-type", "classic"]),
            "fluxmq" => words(&["--protocol", "amqp", "--queue-type", "flux"]),
            "jetstream" | "jetstream-sync" => words(&["--protocol", "nats"]),
            mainstem => {
                let durability = mainstem.strip_prefix("mainstem-").unwrap_or("fsync");
                words(&["--protocol", "mqtt", "--durability", durability, "--http", &http_address(port)])
            }
        }
    }

    /// Java with the jars that `binary` is the directory of.
    fn java(&self, directory: &Path) -> Command {
        let mut command = Command::new("java");
        command.current_dir(directory).env("CLASSPATH", self.binary.join("*"));
        command
    }

    /// Lays out the storage of an Apache Kafka that is started for the first time.
    fn format(&self, root: &Path, directory: &Path) -> Outcome {
        // Ports are not looked at.
        let configuration = configure(root, directory, "kafka/server.properties", 9092)?;
        let mut command = self.java(directory);
        command.args(["kafka.tools.StorageTool", "format", "--cluster-id", KAFKA_CLUSTER, "--config"]);
        let output = command.arg(configuration).stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("cannot start java: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!(
            "its storage could not be formatted: {}",
            String::from_utf8_lossy(&output.stderr).trim_end()
        ))
    }
}

fn is_rabbit(peer: &str) -> bool {
    matches!(peer, "rabbit-quorum" | "rabbit-classic")
}

/// Where Mainstem on this port has its HTTP API: ports are not given out next to each other.
fn http_address(port: u16) -> String {
    format!("127.0.0.1:{}", port + 1)
}

/// Fills in a configuration of `bench/`. Where the result lies.
fn configure(root: &Path, directory: &Path, file: &str, port: u16) -> Outcome<PathBuf> {
    let template = root.join("bench").join(file);
    let text = fs::read_to_string(&template).map_err(|error| at(&template, &error))?;
    let values = [
        ("@PORT@", u32::from(port)),
        ("@NEXT_PORT@", u32::from(port) + 1),
        ("@CORES@", machine::cores() as u32),
    ];
    let text = values.iter().fold(text, |text, (name, value)| text.replace(name, &value.to_string()));
    let path = directory.join(template.file_name().unwrap_or_default());
    fs::write(&path, text).map_err(|error| at(&path, &error))?;
    Ok(path)
}

/// The first line in which a binary tells its version; its path if there is none.
fn version(name: &str, binary: &Path) -> String {
    if name == "kafka" {
        return kafka_version(binary).unwrap_or_else(|| binary.display().to_string());
    }
    if is_rabbit(name) {
        return rabbit::version(binary).unwrap_or_else(|| binary.display().to_string());
    }
    let flag = match name {
        "mosquitto" => Some("-h"),
        "mochi" | "fluxmq" => None,
        _ => Some("--version"),
    };
    let ask = |flag| {
        let mut command = Command::new(binary);
        let output = command.arg(flag).stdin(Stdio::null()).output().ok()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        said.lines().find(|line| line.contains('.')).map(|line| line.trim().to_owned())
    };
    flag.and_then(ask).unwrap_or_else(|| binary.display().to_string())
}

/// The version in the name of the jar of Apache Kafka's broker, such as `kafka_2.13-4.3.1.jar`.
fn kafka_version(jars: &Path) -> Option<String> {
    let mut names =
        fs::read_dir(jars).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.find_map(|name| Some(name.strip_prefix("kafka_")?.strip_suffix(".jar")?.to_owned()))
}
