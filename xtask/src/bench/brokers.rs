//! The measured brokers: where their binaries are, and how each is started.
//!
//! Mainstem runs with its defaults. The configurations of the peers are in `bench/`, with comments on each change:
//! limits are raised so that no broker drops messages because of a setting, and logging is off. Rows about persistence
//! include only peers that persist messages, and Mainstem again with each weaker durability.

use super::{Server, at, machine, rabbit, ready};
use crate::Outcome;
use crate::ci::run_command;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Peers of in-memory rows, in the order of the runs.
pub(super) const IN_MEMORY: [&str; 4] = ["flashmq", "rumqttd", "mosquitto", "mochi"];
/// Peers of the rows over TLS.
const TLS: [&str; 2] = ["flashmq", "mosquitto"];
/// Peers that persist all or some messages.
pub(super) const ON_DISK: [&str; 4] = ["mainstem-os", "mainstem-none", "mosquitto", "nats"];
/// All MQTT peers.
pub(super) const PEERS: [&str; 7] =
    ["flashmq", "rumqttd", "mosquitto", "mochi", "mainstem-os", "mainstem-none", "nats"];
/// Peers of the Kafka rows.
pub(super) const KAFKA: [&str; 2] = ["mainstem-os", "kafka"];

/// Peers of the queue rows. Most servers appear with two durability policies.
pub(super) const QUEUE: [&str; 6] =
    ["mainstem-os", "rabbit-quorum", "rabbit-classic", "jetstream", "jetstream-sync", "fluxmq"];

/// Kafka cluster id: 16 bytes in base64.
const KAFKA_CLUSTER: &str = "bWFpbnN0ZW0tYmVuY2gtMA";

/// Category of a row; determines the peers and their configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Category {
    /// Routing; the peers persist nothing.
    Memory,
    /// The same over TLS.
    Tls,
    /// Persistence; the peers persist as much as they can.
    Disk,
    /// The Kafka protocol.
    Kafka,
    /// Work queues.
    Queue,
}

impl Category {
    /// Peers of this category.
    pub(super) fn peers(self) -> &'static [&'static str] {
        match self {
            Self::Memory => &IN_MEMORY,
            Self::Tls => &TLS,
            Self::Disk => &ON_DISK,
            Self::Kafka => &KAFKA,
            Self::Queue => &QUEUE,
        }
    }
}

/// An available broker.
#[derive(Debug)]
pub(crate) struct Broker {
    pub(crate) name: &'static str,
    /// Version that the binary reports.
    pub(super) version: String,
    binary: PathBuf,
    /// Mainstem, which makes the certificates for all.
    mainstem: PathBuf,
    /// Erlang's port mapper daemon, which RabbitMQ needs.
    epmd: Option<Server>,
}

/// Finds Mainstem and its available peers, or the `named` ones.
///
/// # Errors
/// If a named peer is not available.
pub(crate) fn find(
    root: &Path,
    mainstem: &Path,
    scratch: &Path,
    peers: &[&'static str],
    named: &[String],
) -> Outcome<Vec<Broker>> {
    let mut brokers = vec![Broker::new("mainstem", mainstem.to_owned(), mainstem)];
    for &peer in peers {
        let is_named = named.iter().any(|name| name == peer);
        if !named.is_empty() && !is_named {
            continue;
        }
        let found =
            if peer.starts_with("mainstem-") { Some(mainstem.to_owned()) } else { binary_of(root, peer)? };
        match found {
            Some(binary) => {
                let mut broker = Broker::new(peer, binary, mainstem);
                if is_rabbit(peer) {
                    broker.epmd = Some(rabbit::start_epmd(scratch, peer)?);
                }
                brokers.push(broker);
            }
            None if is_named => return Err(format!("{peer} is not available: {}", install_hint(peer))),
            None => {}
        }
    }
    Ok(brokers)
}

/// How to make a peer available.
pub(super) fn install_hint(peer: &str) -> &'static str {
    match peer {
        "flashmq" => "set FLASHMQ to the path of its binary",
        "rumqttd" => "run `make bench-peers`, or set RUMQTTD to the path of its binary",
        "mosquitto" => "install the package mosquitto",
        "nats" | "jetstream" | "jetstream-sync" => {
            "run `make bench-peers`, or set NATS to the path of nats-server, or put nats-server on PATH"
        }
        "rabbit-quorum" | "rabbit-classic" => {
            "install the package rabbitmq-server, or set RABBITMQ to the path of the script of that name"
        }
        "fluxmq" => "set FLUXMQ to a program that runs it with AMQP 0-9-1 on the port given as argument",
        "kafka" => "run `make bench-peers`, or set KAFKA to the directory with its jars; requires Java",
        _ => "set MOCHI to a program that runs it on the port given as argument",
    }
}

/// The binary from the environment variable, or on PATH, or installed by `make bench-peers`.
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
    // Debian installs servers outside the default PATH of users.
    directories.extend([PathBuf::from("/usr/sbin"), root.join("target/peers/bin")]);
    Ok(directories.into_iter().map(|directory| directory.join(file)).find(|path| path.is_file()))
}

/// Default directory of Apache Kafka's jars.
const KAFKA_JARS: &str = "target/peers/kafka";

/// Installs missing peers from package registries into `target/peers`, and RabbitMQ by apt-get where packages may not
/// start services.
///
/// # Errors
/// If a peer cannot be installed. The others are installed anyway.
pub(crate) fn install(root: &Path) -> Outcome {
    // Without --locked: one of the locked dependencies does not build with current compilers.
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
            println!("rabbitmq is not installed: {}", install_hint("rabbit-quorum"));
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
        println!("{peer} is installed: {}", present.display());
        return Ok(());
    }
    println!("installing {peer} (once)");
    run_command(root, program, arguments, environment)
}

impl Broker {
    fn new(name: &'static str, binary: PathBuf, mainstem: &Path) -> Self {
        let version = version(name, &binary);
        Self { name, version, binary, mainstem: mainstem.to_owned(), epmd: None }
    }

    /// Starts the broker with an empty data directory under `scratch`. Returns it and the time until it was ready.
    ///
    /// # Errors
    /// If it does not start.
    pub(crate) fn start(
        &self,
        root: &Path,
        scratch: &Path,
        category: Category,
    ) -> Outcome<(Server, Duration)> {
        let directory = self.directory(scratch);
        if directory.exists() {
            fs::remove_dir_all(&directory).map_err(|error| at(&directory, &error))?;
        }
        fs::create_dir(&directory).map_err(|error| at(&directory, &error))?;
        if self.name == "kafka" {
            self.format(root, &directory)?;
        }
        if category == Category::Tls {
            make_certificates(&self.mainstem, &directory)?;
        }
        let began = Instant::now();
        let command = |port| self.command(root, &directory, port, category);
        Self::ready(Server::start(&directory.join("stderr"), command)?, category, began)
    }

    /// Waits until the broker is ready. Returns it and the time since `began`.
    fn ready(mut server: Server, category: Category, began: Instant) -> Outcome<(Server, Duration)> {
        if category == Category::Kafka {
            ready::await_metadata(&mut server)?;
        }
        Ok((server, began.elapsed()))
    }

    /// Starts the broker again on the same port and files. Returns it and the time until it was ready.
    ///
    /// # Errors
    /// If it does not start.
    pub(super) fn restart(
        &self,
        root: &Path,
        scratch: &Path,
        category: Category,
        port: u16,
    ) -> Outcome<(Server, Duration)> {
        let directory = self.directory(scratch);
        let began = Instant::now();
        let command = |port| self.command(root, &directory, port, category);
        Self::ready(Server::start_on(port, &directory.join("stderr"), &command)?, category, began)
    }

    /// Load that warms up a just-in-time compiler before the measurement. Its rate is moderate, so that the page cache
    /// stays empty.
    pub(super) fn warm_up_load(&self) -> Option<&'static [&'static str]> {
        const WARM_UP: [&str; 10] = [
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
        (self.name == "kafka").then_some(&WARM_UP)
    }

    pub(super) fn directory(&self, scratch: &Path) -> PathBuf {
        scratch.join(format!("{}.files", self.name))
    }

    fn command(&self, root: &Path, directory: &Path, port: u16, category: Category) -> Outcome<Command> {
        let mut command = Command::new(&self.binary);
        command.current_dir(directory);
        let configured = |file: &str| configure(root, directory, file, port);
        match (self.name, category) {
            ("flashmq", Category::Tls) => command.arg("--config-file").arg(configured("flashmq-tls.conf")?),
            ("mosquitto", Category::Tls) => command.arg("-c").arg(configured("mosquitto-tls.conf")?),
            ("flashmq", _) => command.arg("--config-file").arg(configured("flashmq.conf")?),
            ("rumqttd", _) => command.arg("--quiet").arg("--config").arg(configured("rumqttd.toml")?),
            ("mosquitto", Category::Memory) => command.arg("-c").arg(configured("mosquitto.conf")?),
            ("mosquitto", Category::Disk) => command.arg("-c").arg(configured("mosquitto-durable.conf")?),
            ("nats", _) => command.arg("--config").arg(configured("nats.conf")?),
            ("mochi" | "fluxmq", _) => command.arg(port.to_string()),
            ("jetstream", _) => command.arg("--config").arg(configured("jetstream.conf")?),
            ("jetstream-sync", _) => command.arg("--config").arg(configured("jetstream-sync.conf")?),
            (rabbit, _) if is_rabbit(rabbit) => {
                let configuration = configured("rabbitmq.conf")?;
                command = rabbit::command(&self.binary, directory, &configuration, port, self.epmd.as_ref());
                command.current_dir(directory)
            }
            ("kafka", _) => {
                command = self.java(directory);
                // JVM options of Kafka's own scripts.
                let start = ["-Xmx1g", "-Xms1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "kafka.Kafka"];
                command.args(start).arg(configured("kafka/server.properties")?)
            }
            (mainstem, Category::Kafka) => {
                if let Some(durability) = mainstem.strip_prefix("mainstem-") {
                    command.args(["--set", &format!("kafka.durability={durability}")]);
                }
                command.args(["--kafka-listen", &format!("127.0.0.1:{port}"), "--listen", "127.0.0.1:0"]);
                command.args(["--http-listen", "127.0.0.1:0", "--data", "data"])
            }
            (_, Category::Tls) => {
                command.args(["--kafka-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]);
                command.args(["--listen", "127.0.0.1:0", "--data", "data", "--config"]);
                command.arg(configured("mainstem-tls.toml")?)
            }
            (_, Category::Queue) => {
                // Limits that the rows stay below. Durability is a setting of each queue.
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

    /// Options of the generator for this server: TLS, and the protocol of a queue server.
    pub(super) fn protocol_arguments(&self, category: Category, scratch: &Path, port: u16) -> Vec<String> {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        if category == Category::Tls {
            return words(&["--cafile", &self.directory(scratch).join("ca.crt").display().to_string()]);
        }
        if category != Category::Queue {
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

    /// A Java command with the jars in the directory `binary` on its class path.
    fn java(&self, directory: &Path) -> Command {
        let mut command = Command::new("java");
        command.current_dir(directory).env("CLASSPATH", self.binary.join("*"));
        command
    }

    /// Formats the storage of a new Apache Kafka node.
    fn format(&self, root: &Path, directory: &Path) -> Outcome {
        // The tool ignores the ports.
        let configuration = configure(root, directory, "kafka/server.properties", 9092)?;
        let mut command = self.java(directory);
        command.args(["kafka.tools.StorageTool", "format", "--cluster-id", KAFKA_CLUSTER, "--config"]);
        let output = command.arg(configuration).stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("cannot start java: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("cannot format its storage: {}", String::from_utf8_lossy(&output.stderr).trim_end()))
    }
}

/// Makes an authority and a certificate for 127.0.0.1.
fn make_certificates(mainstem: &Path, directory: &Path) -> Outcome {
    let mut command = Command::new(mainstem);
    command.arg("cert").arg(directory).args(["--host", "127.0.0.1"]).stdin(Stdio::null());
    let output = command.output().map_err(|error| at(mainstem, &error))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("cannot make certificates: {}", String::from_utf8_lossy(&output.stderr).trim_end()))
}

fn is_rabbit(peer: &str) -> bool {
    matches!(peer, "rabbit-quorum" | "rabbit-classic")
}

/// HTTP address of Mainstem, one port above `port`; ports are handed out with gaps.
fn http_address(port: u16) -> String {
    format!("127.0.0.1:{}", port + 1)
}

/// Fills in a configuration template from `bench/`. Returns the path of the result.
fn configure(root: &Path, directory: &Path, file: &str, port: u16) -> Outcome<PathBuf> {
    let template = root.join("bench").join(file);
    let text = fs::read_to_string(&template).map_err(|error| at(&template, &error))?;
    let values = [
        ("@PORT@", u32::from(port)),
        ("@NEXT_PORT@", u32::from(port) + 1),
        ("@CORES@", machine::cores() as u32),
    ];
    let text = values.iter().fold(text, |text, (name, value)| text.replace(name, &value.to_string()));
    let text = text.replace("@DIRECTORY@", &directory.display().to_string());
    let path = directory.join(template.file_name().unwrap_or_default());
    fs::write(&path, text).map_err(|error| at(&path, &error))?;
    Ok(path)
}

/// First line of the version output of a binary; its path if there is none.
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
    let first_line = |flag| {
        let mut command = Command::new(binary);
        let output = command.arg(flag).stdin(Stdio::null()).output().ok()?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        stdout.lines().find(|line| line.contains('.')).map(|line| line.trim().to_owned())
    };
    flag.and_then(first_line).unwrap_or_else(|| binary.display().to_string())
}

/// Version from the name of Apache Kafka's broker jar, such as `kafka_2.13-4.3.1.jar`.
fn kafka_version(jars: &Path) -> Option<String> {
    let mut names =
        fs::read_dir(jars).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.find_map(|name| Some(name.strip_prefix("kafka_")?.strip_suffix(".jar")?.to_owned()))
}
