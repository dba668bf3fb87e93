//! The broker's process, from one life to the next.

use super::lazyfs::Lazy;
use crate::Outcome;
use crate::bench::server::{End, Server};
use crate::bench::{at, bytes_below};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Which broker is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Mainstem,
    /// It saves what it has when it is asked to end, and never before: it passes with SIGTERM, and only then.
    Mosquitto,
}

/// A broker that comes back on the same port, with the same data.
pub(super) struct Life {
    kind: Kind,
    binary: PathBuf,
    scratch: PathBuf,
    /// Between two lives the data is thrown away: a fault that must be found.
    is_forgetful: bool,
    durability: Option<String>,
    number: u32,
    server: Option<Server>,
    /// Where its data is, if that loses power with it. It is unmounted after the broker has ended.
    lazy: Option<Lazy>,
    pub(super) port: u16,
}

/// What a broker's lives are like.
pub(super) struct Conditions<'a> {
    pub(super) kind: Kind,
    /// Between two lives the data is thrown away.
    pub(super) is_forgetful: bool,
    /// What mainstem is set to, other than by default.
    pub(super) durability: Option<&'a str>,
    /// The program that mounts LazyFS: what is not synced is lost at the end of each life.
    pub(super) lazyfs: Option<&'a Path>,
}

impl Life {
    /// Its first life.
    ///
    /// # Errors
    /// If it does not start, or what its data is to be on cannot be mounted.
    pub(super) fn begin(conditions: &Conditions, binary: PathBuf, scratch: PathBuf) -> Outcome<Self> {
        let &Conditions { kind, is_forgetful, durability, lazyfs } = conditions;
        let durability = durability.map(str::to_owned);
        let lazy = lazyfs.map(|program| Lazy::mount(program, &scratch)).transpose()?;
        let (number, server, port) = (1, None, 0);
        let mut life = Self { kind, binary, scratch, is_forgetful, durability, number, server, lazy, port };
        let server = Server::start(&life.log(), |port| life.command(port, 2))?;
        life.port = server.port;
        life.server = Some(server);
        Ok(life)
    }

    /// What it logs in this life.
    fn log(&self) -> PathBuf {
        self.scratch.join(format!("life-{}.log", self.number))
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

    /// Ends this life, and loses what was not synced if power is lost with it.
    ///
    /// # Errors
    /// If it had ended before, ends badly, or has logged a panic.
    pub(super) fn end(&mut self, end: End) -> Outcome {
        let server = self.server.take().ok_or("the broker does not run")?;
        match end {
            End::Kill => server.kill()?,
            End::Term => {
                let status = server.stop()?;
                if !status.success() {
                    return Err(format!("on SIGTERM it ended with {status}"));
                }
            }
        }
        if let Some(lazy) = &mut self.lazy {
            lazy.forget()?;
        }
        let log = self.log();
        let said = fs::read_to_string(&log).map_err(|error| at(&log, &error))?;
        match said.lines().find(|line| line.contains("panicked")) {
            Some(line) => Err(format!("{}: {line}", log.display())),
            None => Ok(()),
        }
    }

    /// Its next life, on so many shards. How long it took to accept connections.
    ///
    /// # Errors
    /// If it does not start.
    pub(super) fn resume(&mut self, shards: u64) -> Outcome<Duration> {
        if self.is_forgetful {
            fs::remove_dir_all(self.data()).map_err(|error| at(&self.data(), &error))?;
        }
        self.forget_logs();
        self.number += 1;
        let began = Instant::now();
        let server = Server::start_on(self.port, &self.log(), &|port| self.command(port, shards))?;
        self.server = Some(server);
        Ok(began.elapsed())
    }

    /// Of a long run only the last logs are kept.
    fn forget_logs(&self) {
        const KEPT: u32 = 20;
        if let Some(old) = self.number.checked_sub(KEPT) {
            // It may be gone already, which is what is wanted.
            fs::remove_file(self.scratch.join(format!("life-{old}.log"))).ok();
        }
    }

    /// Bytes in its data directory.
    pub(super) fn data_bytes(&self) -> u64 {
        bytes_below(&self.data())
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
