//! Runs the binary under test as a broker and as a tool.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest wait in these tests.
const TEST_TIMEOUT: Duration = Duration::from_mins(1);

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mainstem"));
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A broker on free ports, with its own data directory. Dropping it kills the process and removes the data.
pub(crate) struct Broker {
    child: Child,
    port: u16,
    /// Address of the Kafka listener, `host:port`.
    kafka: String,
    /// Address of the HTTP API, `host:port`.
    http: String,
    dir: PathBuf,
}

impl Broker {
    /// Starts a broker with `args` and waits until it accepts connections.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_with(&[], args)
    }

    /// The same, with environment variables.
    pub(crate) fn start_with(environment: &[(&str, &str)], args: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("mainstem-tools-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Self::open(dir, environment, args)
    }

    /// Kills the broker and starts it again with its data and without other arguments. Its ports may change.
    pub(crate) fn restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        // The new broker owns the directory before the old value is dropped.
        *self = Self::open(std::mem::take(&mut self.dir), &[], &[]);
    }

    /// Starts a broker on the data in `dir`/data.
    pub(crate) fn start_on(dir: PathBuf) -> Self {
        Self::open(dir, &[], &[])
    }

    fn open(dir: PathBuf, environment: &[(&str, &str)], args: &[&str]) -> Self {
        let data = dir.join("data");
        let any = "127.0.0.1:0";
        let own = ["--listen", any, "--kafka-listen", any, "--http-listen", any, "--data"];
        let own = [&own[..], &[data.to_str().unwrap()]].concat();
        let mut command = command(&[&own, args].concat());
        let mut child = command.envs(environment.iter().copied()).stderr(Stdio::inherit()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        // Listeners of the configuration have lines of their own in between.
        let mut address = |protocol: &str| {
            let prefix = format!("{protocol} listening on ");
            loop {
                let mut line = String::new();
                assert_ne!(stdout.read_line(&mut line).unwrap(), 0, "the broker ended");
                if let Some(address) = line.trim().strip_prefix(&prefix) {
                    return address.to_owned();
                }
            }
        };
        let port = address("mqtt").rsplit_once(':').unwrap().1.parse().unwrap();
        let kafka = address("kafka");
        let http = address("http");
        Self { child, port, kafka, http, dir }
    }

    /// Stops the broker in order. The value that is returned removes its data when it is dropped.
    pub(crate) fn stop(mut self) -> Self {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
        self
    }

    /// Port of the MQTT listener on 127.0.0.1.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Port of the Kafka listener on 127.0.0.1.
    pub(crate) fn kafka_port(&self) -> u16 {
        self.kafka.rsplit_once(':').unwrap().1.parse().unwrap()
    }

    /// Address of the HTTP API, `host:port`.
    pub(crate) fn http(&self) -> &str {
        &self.http
    }

    /// Runs `mainstem queue` to completion.
    pub(crate) fn queue(&self, args: &[&str]) -> Ended {
        self.queue_with_input(args, b"")
    }

    /// Runs `mainstem binding` to completion.
    pub(crate) fn binding(&self, args: &[&str]) -> Ended {
        mainstem(&[&["binding", "--http", &self.http], args].concat(), b"")
    }

    /// Runs `mainstem queue` to completion, with `input` on standard input.
    pub(crate) fn queue_with_input(&self, args: &[&str], input: &[u8]) -> Ended {
        mainstem(&[&["queue", "--http", &self.http], args].concat(), input)
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A directory for files of the test.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Runs an MQTT tool to completion.
    pub(crate) fn run(&self, tool: &str, args: &[&str]) -> Ended {
        self.run_with_input(tool, args, b"")
    }

    /// The same, with `input` on standard input.
    pub(crate) fn run_with_input(&self, tool: &str, args: &[&str], input: &[u8]) -> Ended {
        let port = self.port.to_string();
        mainstem(&[&[tool, "-p", &port], args].concat(), input)
    }

    /// Runs a Kafka tool to completion.
    pub(crate) fn kafka(&self, tool: &str, args: &[&str]) -> Ended {
        self.kafka_with_input(tool, args, b"")
    }

    /// The same, with `input` on standard input.
    pub(crate) fn kafka_with_input(&self, tool: &str, args: &[&str], input: &[u8]) -> Ended {
        mainstem(&[&[tool, "-b", &self.kafka], args].concat(), input)
    }

    /// Starts a Kafka tool.
    pub(crate) fn start_kafka(&self, tool: &str, args: &[&str]) -> Run {
        Run::start(&[&[tool, "-b", &self.kafka], args].concat(), b"")
    }

    /// Runs a Kafka tool repeatedly until its output satisfies the condition.
    pub(crate) fn wait_until(&self, args: &[&str], mut satisfies: impl FnMut(&str) -> bool) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let ended = self.kafka(args[0], &args[1..]);
            if satisfies(ended.text()) {
                return;
            }
            assert!(Instant::now() < deadline, "{}: {}", ended.args, ended.text());
        }
    }

    /// Starts `mainstem sub` and waits for SUBACK.
    pub(crate) fn sub(&self, args: &[&str]) -> Run {
        let port = self.port.to_string();
        let mut run = Run::start(&[&["sub", "-d", "-p", &port], args].concat(), b"");
        run.wait_for_error_line("received SUBACK");
        run
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        std::fs::remove_dir_all(&self.dir).ok();
    }
}

/// Runs the binary to completion.
pub(crate) fn mainstem(args: &[&str], input: &[u8]) -> Ended {
    Run::start(args, input).finish()
}

/// A running tool.
pub(crate) struct Run {
    child: Child,
    args: String,
    stdout: Option<JoinHandle<Vec<u8>>>,
    error_lines: Receiver<String>,
    errors: String,
}

impl Run {
    /// Starts the binary with `input` as its standard input.
    pub(crate) fn start(args: &[&str], input: &[u8]) -> Self {
        Self::of(&mut command(args), args, input)
    }

    /// Starts the binary in a directory, with environment variables.
    pub(crate) fn start_in(directory: &Path, environment: &[(&str, &str)], args: &[&str]) -> Self {
        Self::of(command(args).current_dir(directory).envs(environment.iter().copied()), args, b"")
    }

    fn of(command: &mut Command, args: &[&str], input: &[u8]) -> Self {
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        // A tool that exits early does not read all input.
        std::thread::spawn(move || stdin.write_all(&input).ok());
        let mut stdout = child.stdout.take().unwrap();
        let stdout = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            stdout.read_to_end(&mut bytes).unwrap();
            bytes
        });
        let error_lines = lines(child.stderr.take().unwrap());
        Self { child, args: args.join(" "), stdout: Some(stdout), error_lines, errors: String::new() }
    }

    /// Waits until a line of standard error contains `text`.
    pub(crate) fn wait_for_error_line(&mut self, text: &str) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.error_lines.recv_timeout(left) {
                Ok(line) => {
                    self.errors.push_str(&line);
                    if line.contains(text) {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("{}: no {text:?} on stderr, but: {}", self.args, self.errors);
                }
            }
        }
    }

    /// Kills the process with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Sends SIGINT.
    pub(crate) fn interrupt(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    }

    /// Waits until the process exits.
    pub(crate) fn finish(mut self) -> Ended {
        // Its standard error closes when the process exits.
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            match self.error_lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.errors.push_str(&line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    self.child.kill().ok();
                    panic!("{} did not end; stderr: {}", self.args, self.errors);
                }
            }
        }
        let status = self.child.wait().unwrap();
        let stdout = self.stdout.take().expect("taken here only").join().unwrap();
        Ended {
            args: std::mem::take(&mut self.args),
            status,
            stdout,
            errors: std::mem::take(&mut self.errors),
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn lines(stderr: ChildStderr) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stderr);
        let mut line = String::new();
        while reader.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
            if sender.send(std::mem::take(&mut line)).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Result of a finished run.
pub(crate) struct Ended {
    args: String,
    status: ExitStatus,
    /// Standard output.
    pub(crate) stdout: Vec<u8>,
    errors: String,
}

impl Ended {
    /// Asserts exit status 0.
    pub(crate) fn succeeds(self) -> Self {
        self.fails_with(0)
    }

    /// Asserts this exit status.
    pub(crate) fn fails_with(self, status: i32) -> Self {
        assert_eq!(self.status.code(), Some(status), "{}: {}", self.args, self.errors);
        self
    }

    /// Asserts exactly this output.
    pub(crate) fn prints(self, expected: &str) -> Self {
        assert_eq!(self.text(), expected, "{}: {}", self.args, self.errors);
        self
    }

    /// Standard output as text.
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("UTF-8 on stdout")
    }

    /// Exit status; `None` if a signal ended it.
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Standard error.
    pub(crate) fn errors(&self) -> &str {
        &self.errors
    }
}
