//! The brokers that are measured: where their binaries are, and how each is started.
//!
//! Mainstem runs with its defaults. The peers' configurations lie in `bench/` and say what they change: limits are
//! raised so that none drops anything because of a setting; nothing is logged or persisted.

use super::{Server, at, machine};
use crate::Outcome;
use crate::ci::run_command;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The peers, in the order in which they take their turns.
pub(super) const PEERS: [&str; 4] = ["flashmq", "rumqttd", "mosquitto", "mochi"];

/// A broker that is there.
#[derive(Debug)]
pub(super) struct Broker {
    pub(super) name: &'static str,
    /// What its binary says when asked.
    pub(super) version: String,
    binary: PathBuf,
}

/// Mainstem and those of the peers that are there: all, or the named ones.
///
/// # Errors
/// If a named peer is missing.
pub(super) fn find(root: &Path, mainstem: &Path, named: &[String]) -> Outcome<Vec<Broker>> {
    let mut brokers = vec![Broker::new("mainstem", mainstem.to_owned())];
    for peer in PEERS {
        let is_named = named.iter().any(|name| name == peer);
        if !named.is_empty() && !is_named {
            continue;
        }
        match binary_of(root, peer)? {
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
        _ => "MOCHI has to name a program that runs it on the port it gets as its argument",
    }
}

/// The binary that the environment names, or one on PATH, or one that `make bench-peers` installed.
fn binary_of(root: &Path, peer: &str) -> Outcome<Option<PathBuf>> {
    if let Some(named) = env::var_os(peer.to_uppercase()) {
        let path = fs::canonicalize(&named).map_err(|error| at(Path::new(&named), &error))?;
        return Ok(Some(path));
    }
    if peer == "flashmq" || peer == "mochi" {
        return Ok(None);
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<PathBuf> = env::split_paths(&path).collect();
    // Debian puts servers where the PATH of a user does not lead.
    directories.extend([PathBuf::from("/usr/sbin"), root.join("target/peers/bin")]);
    Ok(directories.into_iter().map(|directory| directory.join(peer)).find(|path| path.is_file()))
}

/// Installs the peers that a package registry has and that are not here yet, into `target/peers`.
///
/// # Errors
/// If one cannot be installed.
pub(crate) fn install(root: &Path) -> Outcome {
    if let Some(present) = binary_of(root, "rumqttd")? {
        println!("rumqttd is here: {}", present.display());
        return Ok(());
    }
    println!("installing rumqttd into target/peers (some minutes, once)");
    // Not with the versions it locks: one of them is refused by compilers of today.
    run_command(root, "cargo", &["install", "rumqttd", "--quiet", "--root", "target/peers"], &[])
}

impl Broker {
    fn new(name: &'static str, binary: PathBuf) -> Self {
        let version = version(name, &binary);
        Self { name, version, binary }
    }

    /// Starts it with files of its own below `scratch`.
    ///
    /// # Errors
    /// If it does not start.
    pub(super) fn start(&self, root: &Path, scratch: &Path) -> Outcome<Server> {
        let directory = scratch.join(format!("{}.files", self.name));
        if directory.exists() {
            fs::remove_dir_all(&directory).map_err(|error| at(&directory, &error))?;
        }
        fs::create_dir(&directory).map_err(|error| at(&directory, &error))?;
        Server::start(&directory.join("stderr"), |port| self.command(root, &directory, port))
    }

    fn command(&self, root: &Path, directory: &Path, port: u16) -> Outcome<Command> {
        let mut command = Command::new(&self.binary);
        command.current_dir(directory);
        let configured = |file: &str| configure(root, directory, file, port);
        match self.name {
            "mainstem" => command.args(["--listen", &format!("127.0.0.1:{port}"), "--data", "data"]),
            "flashmq" => command.arg("--config-file").arg(configured("flashmq.conf")?),
            "rumqttd" => command.arg("--quiet").arg("--config").arg(configured("rumqttd.toml")?),
            "mosquitto" => command.arg("-c").arg(configured("mosquitto.conf")?),
            _ => command.arg(port.to_string()),
        };
        Ok(command)
    }
}

/// Fills in a configuration of `bench/`. Where the result lies.
fn configure(root: &Path, directory: &Path, file: &str, port: u16) -> Outcome<PathBuf> {
    let template = root.join("bench").join(file);
    let text = fs::read_to_string(&template).map_err(|error| at(&template, &error))?;
    let text = text.replace("@PORT@", &port.to_string()).replace("@CORES@", &machine::cores().to_string());
    let path = directory.join(file);
    fs::write(&path, text).map_err(|error| at(&path, &error))?;
    Ok(path)
}

/// The first line in which a binary tells its version; its path if there is none.
fn version(name: &str, binary: &Path) -> String {
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
