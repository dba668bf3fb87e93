//! The broker as a process: started with a data directory of its own, killed with the value or with the test.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use std::{env, fs, process};

use crate::DEADLINE;

/// A running broker.
#[derive(Debug)]
pub struct Broker {
    addr: SocketAddr,
    own: Option<Process>,
}

/// Where a broker listens.
#[derive(Clone, Copy, Debug)]
struct Addresses {
    mqtt: SocketAddr,
    kafka: SocketAddr,
    http: SocketAddr,
}

#[derive(Debug)]
struct Process {
    broker: Child,
    /// Kills the broker and removes its data when the test's process ends, however it ends.
    guardian: Child,
    dir: PathBuf,
    settings: Vec<String>,
    open_files_max: Option<u32>,
    addresses: Addresses,
}

/// How a broker ends that is to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By SIGKILL: nothing is written that was not written before.
    Kill,
    /// By SIGTERM: it drains, and must end with status 0.
    Term,
}

/// Shards that a broker has if nothing else is said: two clients of a test may meet on two of them.
const SHARDS: u32 = 2;
/// The configuration file, in the broker's directory, if it has one.
const CONFIG: &str = "mainstem.toml";

impl Broker {
    /// The broker that all tests of one file share: default configuration, two shards.
    ///
    /// With `MAINSTEM_BROKER` set it is the one that runs at that address.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Broker> = OnceLock::new();
        SHARED.get_or_init(|| match env::var("MAINSTEM_BROKER") {
            Ok(addr) => Self {
                addr: addr
                    .to_socket_addrs()
                    .ok()
                    .and_then(|mut a| a.next())
                    .expect("MAINSTEM_BROKER=HOST:PORT"),
                own: None,
            },
            Err(_) => Self::with(&[]),
        })
    }

    /// A broker of its own with `settings`, each `section.key=value`; it dies with the value.
    pub fn with(settings: &[&str]) -> Self {
        let dir = env::temp_dir().join(unique("mainstem-conformance"));
        fs::create_dir_all(&dir).expect("a temporary directory");
        Self::start_in(dir, settings, None)
    }

    /// As [`Broker::with`], with this limit of open files.
    pub fn with_open_files(max: u32, settings: &[&str]) -> Self {
        let dir = env::temp_dir().join(unique("mainstem-conformance"));
        fs::create_dir_all(&dir).expect("a temporary directory");
        Self::start_in(dir, settings, Some(max))
    }

    /// A broker of its own with this configuration file; it dies with the value.
    pub fn configured(config: &str) -> Self {
        let dir = env::temp_dir().join(unique("mainstem-conformance"));
        fs::create_dir_all(&dir).expect("a temporary directory");
        fs::write(dir.join(CONFIG), config).expect("a file");
        Self::start_in(dir, &[], None)
    }

    fn start_in(dir: PathBuf, settings: &[&str], open_files_max: Option<u32>) -> Self {
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let process = Process::start(dir, settings, SHARDS, open_files_max);
        Self { addr: process.addresses.mqtt, own: Some(process) }
    }

    /// Ends it, and starts it again with the data that it left. It listens elsewhere then.
    pub fn restart(&mut self, end: End) {
        self.restart_with(end, SHARDS);
    }

    /// As [`Broker::restart`], with another number of shards.
    pub fn restart_with(&mut self, end: End, shards: u32) {
        self.end(end);
        self.start(shards);
    }

    /// Ends it, to be started again with [`Broker::start`].
    pub fn end(&mut self, end: End) {
        if end == End::Term {
            self.terminate();
            assert!(self.wait().success(), "the broker ends well on SIGTERM");
        }
        let process = self.own.as_mut().expect("a broker that this process started");
        for child in [&mut process.guardian, &mut process.broker] {
            child.kill().ok();
            child.wait().expect("our child");
        }
    }

    /// Starts it with the data that it left.
    pub fn start(&mut self, shards: u32) {
        let own = self.own.take().expect("a broker that this process started");
        let Process { dir, settings, open_files_max, .. } = own;
        let process = Process::start(dir, settings, shards, open_files_max);
        (self.addr, self.own) = (process.addresses.mqtt, Some(process));
    }

    /// Where it listens for MQTT.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Where it listens for Kafka. Panics for a broker that this process did not start.
    pub fn kafka_addr(&self) -> SocketAddr {
        self.own.as_ref().expect("a broker that this process started").addresses.kafka
    }

    /// Where it listens for HTTP. Panics for a broker that this process did not start.
    pub fn http_addr(&self) -> SocketAddr {
        self.own.as_ref().expect("a broker that this process started").addresses.http
    }

    /// Resident memory in KiB; `None` for a broker that this process did not start.
    pub fn resident_kib(&self) -> Option<u64> {
        let process = self.own.as_ref()?;
        let status = fs::read_to_string(format!("/proc/{}/status", process.broker.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim().trim_end_matches("kB").trim().parse().ok()
    }

    /// What the broker logged so far; empty for a broker that this process did not start.
    pub fn log(&self) -> String {
        let read = |process: &Process| fs::read_to_string(process.dir.join("log")).unwrap_or_default();
        self.own.as_ref().map(read).unwrap_or_default()
    }

    /// Sends SIGTERM, without waiting for the end.
    pub fn terminate(&self) {
        let process = self.own.as_ref().expect("a broker that this process started");
        let pid = i32::try_from(process.broker.id()).ok().and_then(rustix::process::Pid::from_raw);
        rustix::process::kill_process(pid.expect("a process id"), rustix::process::Signal::TERM)
            .expect("the broker runs");
    }

    /// Waits for the broker to end by itself.
    pub fn wait(&mut self) -> ExitStatus {
        let process = self.own.as_mut().expect("a broker that this process started");
        let start = Instant::now();
        loop {
            if let Some(status) = process.broker.try_wait().expect("the broker is our child") {
                return status;
            }
            assert!(start.elapsed() < DEADLINE, "the broker did not end within {DEADLINE:?}");
            std::thread::yield_now();
        }
    }
}

impl Process {
    fn start(dir: PathBuf, settings: Vec<String>, shards: u32, open_files_max: Option<u32>) -> Self {
        let log = fs::File::options().create(true).append(true).open(dir.join("log")).expect("a log file");
        let mut command = match open_files_max {
            None => Command::new(binary()),
            Some(max) => limited(max),
        };
        command.args([
            "--listen",
            "127.0.0.1:0",
            "--kafka-listen",
            "127.0.0.1:0",
            "--http-listen",
            "127.0.0.1:0",
            "--shards",
            &shards.to_string(),
            "--data",
        ]);
        command.arg(dir.join("data")).args(["--set", "runtime.first_shard_connections=0"]);
        let config = dir.join(CONFIG);
        if config.exists() {
            command.arg("--config").arg(config);
        }
        for setting in &settings {
            command.args(["--set", setting]);
        }
        let mut broker = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|e| panic!("{}: {e}", binary().display()));
        let guardian = guard(broker.id(), &dir);
        let mut stdout = BufReader::new(broker.stdout.take().expect("stdout is piped"));
        let addresses = listening(&mut stdout).unwrap_or_else(|| {
            let log = fs::read_to_string(dir.join("log")).unwrap_or_default();
            panic!("the broker did not say that it listens; its log:\n{log}")
        });
        Self { broker, guardian, dir, settings, open_files_max, addresses }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let Some(process) = &mut self.own else { return };
        // Either may have ended already; there is nothing else to do about it here.
        for child in [&mut process.guardian, &mut process.broker] {
            child.kill().ok();
            child.wait().ok();
        }
        fs::remove_dir_all(&process.dir).ok();
    }
}

/// `name` with a suffix that no other test uses: for topics and client identifiers.
pub fn unique(name: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{name}-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The shared broker is a static, which is never dropped, so a shell reads from a pipe that only this
/// process holds open; it ends with the process.
fn guard(broker: u32, dir: &Path) -> Child {
    Command::new("sh")
        .args(["-c", "read _; kill -9 \"$1\" 2>&-; rm -rf \"$2\"", "guardian"])
        .arg(broker.to_string())
        .arg(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a shell")
}

fn listening(stdout: &mut impl BufRead) -> Option<Addresses> {
    let mut address = |protocol: &str| {
        let mut line = String::new();
        stdout.read_line(&mut line).ok()?;
        line.trim().strip_prefix(protocol)?.strip_prefix(" listening on ")?.parse().ok()
    };
    Some(Addresses { mqtt: address("mqtt")?, kafka: address("kafka")?, http: address("http")? })
}

/// The broker with this limit of open files.
fn limited(open_files_max: u32) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n \"$0\" && exec \"$@\""]).arg(open_files_max.to_string()).arg(binary());
    command
}

fn binary() -> PathBuf {
    if let Some(path) = env::var_os("MAINSTEM_BIN") {
        return path.into();
    }
    // target/<profile>/deps/<test> stands beside target/<profile>/mainstem.
    let test = env::current_exe().expect("the path of the test");
    let profile = test.ancestors().nth(2).expect("target/<profile>/deps/<test>");
    profile.join("mainstem")
}
