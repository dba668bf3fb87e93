//! The broker's process, over its restarts.

use super::lazyfs::LazyFs;
use crate::Outcome;
use crate::bench::server::{End, Server};
use crate::bench::{at, directory_bytes};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Broker to test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Mainstem,
    /// Saves its state only on exit: it passes with SIGTERM and fails with SIGKILL.
    Mosquitto,
}

/// A broker that restarts on the same port with the same data.
pub(super) struct Broker {
    kind: Kind,
    binary: PathBuf,
    scratch: PathBuf,
    /// Delete the data at each restart: a planted bug that must be detected.
    is_forgetful: bool,
    durability: Option<String>,
    number: u32,
    server: Option<Server>,
    /// File system of the data, if each stop includes a power loss. Unmounted after the broker has exited.
    lazy: Option<LazyFs>,
    pub(super) port: u16,
}

/// Conditions of all starts of the broker.
pub(super) struct Conditions<'a> {
    pub(super) kind: Kind,
    /// Delete the data at each restart.
    pub(super) is_forgetful: bool,
    /// Mainstem's durability setting; `None` for its default.
    pub(super) durability: Option<&'a str>,
    /// Program that mounts LazyFS: each stop drops unsynced data.
    pub(super) lazyfs: Option<&'a Path>,
}

impl Broker {
    /// Starts the broker for the first time.
    ///
    /// # Errors
    /// If it does not start, or LazyFS cannot be mounted.
    pub(super) fn start(conditions: &Conditions, binary: PathBuf, scratch: PathBuf) -> Outcome<Self> {
        let &Conditions { kind, is_forgetful, durability, lazyfs } = conditions;
        let durability = durability.map(str::to_owned);
        let lazy = lazyfs.map(|program| LazyFs::mount(program, &scratch)).transpose()?;
        let (number, server, port) = (1, None, 0);
        let mut broker = Self { kind, binary, scratch, is_forgetful, durability, number, server, lazy, port };
        let server = Server::start(&broker.log(), |port| broker.command(port, 2))?;
        broker.port = server.port;
        broker.server = Some(server);
        Ok(broker)
    }

    /// Log file of the current process.
    fn log(&self) -> PathBuf {
        self.scratch.join(format!("broker-{}.log", self.number))
    }

    fn data(&self) -> PathBuf {
        self.scratch.join("data")
    }

    fn command(&self, port: u16, shards: u64) -> Outcome<Command> {
        let mut command = Command::new(&self.binary);
        match self.kind {
            Kind::Mainstem => {
                command.args(["--kafka-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]);
                command.args(["--listen", &format!("127.0.0.1:{port}"), "--shards", &shards.to_string()]);
                command.arg("--data").arg(self.data());
                command.args(["--set", "runtime.first_shard_connections=0"]);
                command.args(["--set", "mqtt.max_queued_messages=100000000"]);
                command.args(["--set", "mqtt.max_queued_bytes=100000000000"]);
                if let Some(durability) = &self.durability {
                    command.args(["--set", &format!("mqtt.durability={durability}")]);
                }
            }
            Kind::Mosquitto => {
                let config = self.scratch.join("mosquitto.conf");
                let text = MOSQUITTO.replace("@PORT@", &port.to_string());
                let text = text.replace("@DATA@", &self.data().display().to_string());
                fs::write(&config, text).map_err(|error| at(&config, &error))?;
                fs::create_dir_all(self.data()).map_err(|error| at(&self.data(), &error))?;
                command.arg("-c").arg(config);
            }
        }
        Ok(command)
    }

    /// Stops the broker; with LazyFS, also drops unsynced data.
    ///
    /// # Errors
    /// If it had exited before, exits with an error, or logged a panic.
    pub(super) fn stop(&mut self, end: End) -> Outcome {
        let server = self.server.take().ok_or("the broker is not running")?;
        match end {
            End::Kill => server.kill()?,
            End::Term => {
                let status = server.stop()?;
                if !status.success() {
                    return Err(format!("on SIGTERM the broker exited with {status}"));
                }
            }
        }
        if let Some(lazy) = &mut self.lazy {
            lazy.drop_unsynced()?;
        }
        let log = self.log();
        let text = fs::read_to_string(&log).map_err(|error| at(&log, &error))?;
        match text.lines().find(|line| line.contains("panicked")) {
            Some(line) => Err(format!("{}: {line}", log.display())),
            None => Ok(()),
        }
    }

    /// Starts the broker again with `shards` shards. Returns the time until it accepted connections.
    ///
    /// # Errors
    /// If it does not start.
    pub(super) fn restart(&mut self, shards: u64) -> Outcome<Duration> {
        if self.is_forgetful {
            fs::remove_dir_all(self.data()).map_err(|error| at(&self.data(), &error))?;
        }
        self.delete_old_log();
        self.number += 1;
        let began = Instant::now();
        let server = Server::start_on(self.port, &self.log(), &|port| self.command(port, shards))?;
        self.server = Some(server);
        Ok(began.elapsed())
    }

    /// Deletes the oldest log, so that a long run retains only the most recent ones.
    fn delete_old_log(&self) {
        const RETAINED_LOGS: u32 = 20;
        if let Some(old) = self.number.checked_sub(RETAINED_LOGS) {
            // Already absent is fine.
            fs::remove_file(self.scratch.join(format!("broker-{old}.log"))).ok();
        }
    }

    /// Size of the data directory.
    pub(super) fn data_bytes(&self) -> u64 {
        directory_bytes(&self.data())
    }
}

const MOSQUITTO: &str = "\
listener @PORT@ 127.0.0.1
allow_anonymous true
user root
persistence true
persistence_location @DATA@/
autosave_interval 0
log_dest stderr
log_type error
max_inflight_messages 0
max_queued_messages 0
max_queued_bytes 0
";
