//! The brokers that are measured: where their binaries are, and how each is started.
//!
//! Mainstem runs with its defaults. The peers' configurations lie in `bench/` and say what they change: limits are
//! raised so that none drops anything because of a setting; nothing is logged. Where what is kept on disk is measured,
//! those take part that keep something, and Mainstem once more with each weaker durability.

use super::{Server, at, machine, ready};
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
}

impl Ground {
    /// The peers that take part.
    pub(super) fn peers(self) -> &'static [&'static str] {
        match self {
            Self::Memory => &IN_MEMORY,
            Self::Disk => &ON_DISK,
            Self::Kafka => &KAFKA,
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
}

/// Mainstem and those of its `peers` that are there: all, or the named ones.
///
/// # Errors
/// If a named peer is missing.
pub(super) fn find(
    root: &Path,
    mainstem: &Path,
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
            Some(binary) => brokers.push(Broker::new(peer, binary)),
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
        "nats" => "NATS has to name the binary nats-server, or it is on PATH",
        "kafka" => {
            "`make bench-peers` installs it, or KAFKA names the directory with its jars; and Java is needed"
        }
        _ => "MOCHI has to name a program that runs it on the port it gets as its argument",
    }
}

/// The binary that the environment names, or one on PATH, or one that `make bench-peers` installed.
fn binary_of(root: &Path, peer: &str) -> Outcome<Option<PathBuf>> {
    if let Some(named) = env::var_os(peer.to_uppercase()) {
        let path = fs::canonicalize(&named).map_err(|error| at(Path::new(&named), &error))?;
        return Ok(Some(path));
    }
    let file = match peer {
        "flashmq" | "mochi" => return Ok(None),
        "kafka" => return Ok(Some(root.join(KAFKA_JARS)).filter(|jars| jars.is_dir())),
        "nats" => "nats-server",
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

/// Installs the peers that a package registry has and that are not here yet, into `target/peers`.
///
/// # Errors
/// If one cannot be installed.
pub(crate) fn install(root: &Path) -> Outcome {
    // Not with the versions it locks: one of them is refused by compilers of today.
    let rumqttd = ["install", "rumqttd", "--quiet", "--root", "target/peers"];
    install_one(root, "rumqttd", "cargo", &rumqttd)?;
    let jars = format!("-DoutputDirectory={}", root.join(KAFKA_JARS).display());
    let kafka = ["-q", "-f", "bench/kafka/pom.xml", "dependency:copy-dependencies", &jars];
    install_one(root, "kafka", "mvn", &kafka)
}

fn install_one(root: &Path, peer: &str, program: &str, arguments: &[&str]) -> Outcome {
    if let Some(present) = binary_of(root, peer)? {
        println!("{peer} is here: {}", present.display());
        return Ok(());
    }
    println!("installing {peer} into target/peers (once)");
    run_command(root, program, arguments, &[])
}

impl Broker {
    fn new(name: &'static str, binary: PathBuf) -> Self {
        let version = version(name, &binary);
        Self { name, version, binary }
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
            ("mochi", _) => command.arg(port.to_string()),
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
                command.args(["--data", "data"])
            }
            (mainstem, _) => {
                if let Some(durability) = mainstem.strip_prefix("mainstem-") {
                    command.args(["--set", &format!("mqtt.durability={durability}")]);
                }
                command.args(["--kafka-listen", "127.0.0.1:0"]);
                command.args(["--listen", &format!("127.0.0.1:{port}"), "--data", "data"])
            }
        };
        Ok(command)
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
    let flag = match name {
        "mosquitto" => Some("-h"),
        "mochi" => None,
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
