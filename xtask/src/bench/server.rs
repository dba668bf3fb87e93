//! One running broker: started on a port of its own, waited for, stopped by its process id.

use super::at;
use crate::Outcome;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Longest time until it accepts connections.
const START_TIMEOUT: Duration = Duration::from_mins(2);
/// Longest time from SIGTERM to its end.
const STOP_TIMEOUT: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(5);
/// Ports are taken from here up to [`PORT_MAX`], below those that the kernel gives to clients: a client's port may
/// linger after its connection, and not every broker can bind it then.
const PORT_MIN: u16 = 10_000;
const PORT_MAX: u16 = 30_000;
/// Steps between two candidates: coprime to the number of ports, and far enough that neighbours in time do not meet.
const PORT_STEP: u16 = 7;

/// How a broker ends that is to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By SIGKILL.
    Kill,
    /// By SIGTERM.
    Term,
}

/// A broker that accepts connections on 127.0.0.1. It is killed if it is dropped while it runs.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    /// What it wrote to stderr.
    pub(crate) log: PathBuf,
}

impl Server {
    /// Starts what `command` makes of a port, its stderr going to the file `log`. Tries another port if it ends at
    /// once, since the first may have been taken in between.
    ///
    /// # Errors
    /// If it cannot be started, ends, or accepts no connection in time.
    pub(crate) fn start(log: &Path, command: impl Fn(u16) -> Outcome<Command>) -> Outcome<Self> {
        let mut outcome = Err(String::new());
        for _ in 0..3 {
            outcome = Self::start_on(fresh_port()?, log, &command);
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    /// Starts what `command` makes of this port, its stderr going to the file `log`.
    ///
    /// # Errors
    /// If it cannot be started, ends, or accepts no connection in time.
    pub(crate) fn start_on(
        port: u16,
        log: &Path,
        command: &impl Fn(u16) -> Outcome<Command>,
    ) -> Outcome<Self> {
        let stderr = File::create(log).map_err(|error| at(log, &error))?;
        let mut command = command(port)?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        let child = command.spawn().map_err(|error| format!("cannot start {command:?}: {error}"))?;
        Self { child, port, log: log.to_owned() }.ready()
    }

    fn ready(mut self) -> Outcome<Self> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if let Some(status) = self.exited()? {
                return Err(format!("it ended at once: {status}; it said: {}", self.last_words()));
            }
            if TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], self.port))).is_ok() {
                return Ok(self);
            }
            if Instant::now() > deadline {
                return Err(format!("it accepts no connection; it said: {}", self.last_words()));
            }
            thread::sleep(POLL);
        }
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// If the system does not say.
    pub(crate) fn exited(&mut self) -> Outcome<Option<ExitStatus>> {
        self.child.try_wait().map_err(|error| format!("cannot ask for process {}: {error}", self.pid()))
    }

    /// Asks it to end and waits until it has. How it ended is not an error.
    ///
    /// # Errors
    /// If it had ended before, or does not end; then it is killed.
    pub(crate) fn stop(mut self) -> Outcome<ExitStatus> {
        if let Some(status) = self.exited()? {
            return Err(format!("it ended during the run: {status}; it said: {}", self.last_words()));
        }
        terminate(&self.child)?;
        let deadline = Instant::now() + STOP_TIMEOUT;
        loop {
            if let Some(status) = self.exited()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                return Err("it does not end on SIGTERM".to_owned());
            }
            thread::sleep(POLL);
        }
    }

    /// Kills it, as SIGKILL does.
    ///
    /// # Errors
    /// If it had ended before.
    pub(crate) fn kill(mut self) -> Outcome {
        if let Some(status) = self.exited()? {
            return Err(format!("it ended during the run: {status}; it said: {}", self.last_words()));
        }
        let killed = self.child.kill().and_then(|()| self.child.wait());
        killed.map(drop).map_err(|error| format!("process {} could not be killed: {error}", self.pid()))
    }

    /// Ends it either way. How it ended is not an error.
    ///
    /// # Errors
    /// If it had ended before, or does not end.
    pub(crate) fn end(self, end: End) -> Outcome {
        match end {
            End::Kill => self.kill(),
            End::Term => self.stop().map(drop),
        }
    }

    /// Its resident memory, in MiB.
    ///
    /// # Errors
    /// If it has ended.
    pub(crate) fn resident_mib(&self) -> Outcome<f64> {
        let status = PathBuf::from(format!("/proc/{}/status", self.pid()));
        let text = std::fs::read_to_string(&status).map_err(|error| at(&status, &error))?;
        let kib = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = kib.and_then(|value| value.split_whitespace().next()?.parse::<f64>().ok());
        kib.map(|kib| kib / 1024.0).ok_or_else(|| format!("{}: no VmRSS", status.display()))
    }

    fn last_words(&self) -> String {
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        said.trim_end().lines().last().unwrap_or("nothing").to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let ended = self.child.try_wait().is_ok_and(|status| status.is_some());
        if !ended && let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            eprintln!("process {} could not be killed: {error}", self.pid());
        }
    }
}

/// Sends SIGTERM to a child that has not been waited for.
///
/// # Errors
/// If the system refuses.
pub(crate) fn terminate(child: &Child) -> Outcome {
    kill_process(Pid::from_child(child), Signal::TERM)
        .map_err(|error| format!("cannot end process {}: {error}", child.id()))
}

/// Raises the limit of open files as far as it goes, for this process and all it starts.
///
/// # Errors
/// If the system refuses.
pub(crate) fn raise_file_limit() -> Outcome {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .map_err(|error| format!("cannot raise the limit of open files: {error}"))
}

/// A port that is free now and was not given out before in this run.
fn fresh_port() -> Outcome<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let span = PORT_MAX - PORT_MIN;
    // Each run begins elsewhere, because ports of the run before may linger.
    let start = std::process::id().wrapping_mul(37);
    for _ in 0..span {
        let step = u32::from(NEXT.fetch_add(1, Ordering::Relaxed)) * u32::from(PORT_STEP);
        let offset = start.wrapping_add(step) % u32::from(span);
        let port = PORT_MIN + u16::try_from(offset).map_err(|error| error.to_string())?;
        if TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], port))).is_ok() {
            return Ok(port);
        }
    }
    Err(format!("no port between {PORT_MIN} and {PORT_MAX} is free"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_out_twice() {
        let mut ports: Vec<u16> = (0..100).map(|_| fresh_port().unwrap()).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 100);
    }

    #[test]
    fn a_server_that_ends_at_once_is_an_error_with_its_last_words() {
        let log = std::env::temp_dir().join(format!("xtask-server-{}", std::process::id()));
        let command = |_| {
            let mut command = Command::new("sh");
            command.args(["-c", "echo no room >&2; exit 3"]);
            Ok(command)
        };
        let error = Server::start(&log, command).unwrap_err();
        assert!(error.contains("no room") && error.contains('3'), "{error}");
        std::fs::remove_file(&log).unwrap();
    }
}
