//! What the tests share.
#![allow(dead_code, reason = "no test uses all of it")]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mainstem_queue::{Config, Delivery, Durability, Queue, Queues, Settings};

/// Time for which a test waits for what must come.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// A directory that goes with its test.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("queues-{}-{number}", std::process::id());
        Self(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name))
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    pub(crate) fn open(&self) -> Queues {
        Queues::open(&self.0).unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}

pub(crate) fn set(config: Config) -> Settings {
    Settings { config, durability: Durability::Os }
}

pub(crate) fn take(queue: &Queue, max: usize) -> Vec<Delivery> {
    queue.receive(max, Duration::ZERO).unwrap()
}

/// The next message, which must come.
pub(crate) fn take_one(queue: &Queue) -> Delivery {
    queue.receive(1, DEADLINE).unwrap().pop().expect("a message")
}

pub(crate) fn text(delivery: &Delivery) -> &str {
    str::from_utf8(delivery.value()).unwrap()
}

pub(crate) fn texts(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(|delivery| text(delivery).to_owned()).collect()
}

/// Whether something becomes so in time.
pub(crate) fn becomes(mut is_so: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + DEADLINE;
    while !is_so() {
        if Instant::now() > until {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// This test once more, in a process of its own that finds `value` in the environment variable `name`.
pub(crate) fn again(test: &str, name: &str, value: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(name, value)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}
