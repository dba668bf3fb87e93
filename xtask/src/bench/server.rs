//! One running broker process: started on a free port, awaited, stopped by its process id.

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

/// Timeout until the broker accepts connections.
const START_TIMEOUT: Duration = Duration::from_mins(2);
/// Timeout from SIGTERM to exit.
const STOP_TIMEOUT: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(5);
/// Ports range from here to [`PORT_MAX`], below the kernel's ephemeral ports: an ephemeral port may linger in
/// `TIME_WAIT`, and not every broker can bind it then.
const PORT_MIN: u16 = 10_000;
const PORT_MAX: u16 = 30_000;
/// Step between candidate ports: coprime to the number of ports, and large enough for brokers with several ports.
const PORT_STEP: u16 = 7;

/// How a broker is stopped before a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By SIGKILL.
    Kill,
    /// By SIGTERM.
    Term,
}

/// A broker that accepts connections on 127.0.0.1. Dropping it kills the process.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    /// File with its stderr.
    pub(crate) log: PathBuf,
}

impl Server {
    /// Starts `command` on a free port, with its stderr in the file `log`. Retries on another port, because the first
    /// may be taken by then.
    ///
    /// # Errors
    /// If it cannot be started, exits, or accepts no connection in time.
    pub(crate) fn start(log: &Path, command: impl Fn(u16) -> Outcome<Command>) -> Outcome<Self> {
        let mut outcome = Err(String::new());
        for _ in 0..3 {
            outcome = Self::start_on(free_port()?, log, &command);
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    /// Starts `command` on this port, with its stderr in the file `log`.
    ///
    /// # Errors
    /// If it cannot be started, exits, or accepts no connection in time.
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
                return Err(format!(
                    "the broker exited at startup: {status}; last log line: {}",
                    self.last_log_line()
                ));
            }
            if TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], self.port))).is_ok() {
                return Ok(self);
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "the broker accepts no connection; last log line: {}",
                    self.last_log_line()
                ));
            }
            thread::sleep(POLL);
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Exit status, if the process has exited.
    ///
    /// # Errors
    /// If the system call fails.
    pub(crate) fn exited(&mut self) -> Outcome<Option<ExitStatus>> {
        self.child.try_wait().map_err(|error| format!("cannot query process {}: {error}", self.pid()))
    }

    /// Sends SIGTERM and waits for the exit. Any exit status is accepted.
    ///
    /// # Errors
    /// If it had exited before, or does not exit; then it is killed.
    pub(crate) fn stop(mut self) -> Outcome<ExitStatus> {
        if let Some(status) = self.exited()? {
            return Err(format!(
                "the broker exited during the run: {status}; last log line: {}",
                self.last_log_line()
            ));
        }
        terminate(&self.child)?;
        let deadline = Instant::now() + STOP_TIMEOUT;
        loop {
            if let Some(status) = self.exited()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                return Err("the broker does not exit on SIGTERM".to_owned());
            }
            thread::sleep(POLL);
        }
    }

    /// Sends SIGKILL and waits for the exit.
    ///
    /// # Errors
    /// If it had exited before.
    pub(crate) fn kill(mut self) -> Outcome {
        if let Some(status) = self.exited()? {
            return Err(format!(
                "the broker exited during the run: {status}; last log line: {}",
                self.last_log_line()
            ));
        }
        let killed = self.child.kill().and_then(|()| self.child.wait());
        killed.map(drop).map_err(|error| format!("cannot kill process {}: {error}", self.pid()))
    }

    /// Stops or kills the broker.
    ///
    /// # Errors
    /// If it had exited before, or does not exit.
    pub(crate) fn end(self, end: End) -> Outcome {
        match end {
            End::Kill => self.kill(),
            End::Term => self.stop().map(drop),
        }
    }

    /// Resident memory, in MiB.
    ///
    /// # Errors
    /// If the process has exited.
    pub(crate) fn resident_mib(&self) -> Outcome<f64> {
        let status = PathBuf::from(format!("/proc/{}/status", self.pid()));
        let text = std::fs::read_to_string(&status).map_err(|error| at(&status, &error))?;
        let kib = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = kib.and_then(|value| value.split_whitespace().next()?.parse::<f64>().ok());
        kib.map(|kib| kib / 1024.0).ok_or_else(|| format!("{}: no VmRSS", status.display()))
    }

    fn last_log_line(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        log.trim_end().lines().last().unwrap_or("nothing").to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let ended = self.child.try_wait().is_ok_and(|status| status.is_some());
        if !ended && let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            eprintln!("cannot kill process {}: {error}", self.pid());
        }
    }
}

/// Sends SIGTERM to a child that was not reaped yet.
///
/// # Errors
/// If the system call fails.
pub(crate) fn terminate(child: &Child) -> Outcome {
    kill_process(Pid::from_child(child), Signal::TERM)
        .map_err(|error| format!("cannot terminate process {}: {error}", child.id()))
}

/// Raises the limit of open files to its maximum, for this process and its children.
///
/// # Errors
/// If the system call fails.
pub(crate) fn raise_file_limit() -> Outcome {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .map_err(|error| format!("cannot raise the limit of open files: {error}"))
}

/// A port that is free now and was not returned before in this run.
fn free_port() -> Outcome<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let span = PORT_MAX - PORT_MIN;
    // Each run starts at another offset, because ports of the previous run may linger.
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
    fn returns_no_port_twice() {
        let mut ports: Vec<u16> = (0..100).map(|_| free_port().unwrap()).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 100);
    }

    #[test]
    fn early_exit_is_an_error_with_the_last_log_line() {
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
