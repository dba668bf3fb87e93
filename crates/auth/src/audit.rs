//! The audit log: one line of JSON per log-in, failure, denial and administrative change.
//!
//! A thread writes it, so that a slow disk stalls nobody. If more lines wait than fit, they are counted, and the next
//! line says how many are missing.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

/// Longest name in the audit log, bytes.
const AUDITED_BYTES_MAX: usize = 255;
/// Lines that wait for the disk.
const WAITING_MAX: usize = 8192;
/// Refusals per interval that are written; the others are counted in the next line.
const SAMPLES_MAX: u32 = 100;
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// The audit log.
#[derive(Debug)]
pub(crate) struct Audit {
    lines: Option<SyncSender<String>>,
    missing: AtomicU64,
    samples: Mutex<Samples>,
    thread: Option<JoinHandle<()>>,
}

/// Refusals of the current interval.
#[derive(Debug)]
struct Samples {
    since: Instant,
    count: u32,
    skipped: u64,
}

impl Audit {
    /// Opens the file and appends to it.
    ///
    /// # Errors
    /// The file cannot be opened, or no thread started.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.create(true).append(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(path)?;
        let (lines, receiver) = sync_channel(WAITING_MAX);
        let name = path.display().to_string();
        let write = move || write_lines(&file, &name, &receiver);
        let thread = std::thread::Builder::new().name("audit".into()).spawn(write)?;
        let samples = Samples { since: Instant::now(), count: 0, skipped: 0 };
        Ok(Self {
            lines: Some(lines),
            missing: AtomicU64::new(0),
            samples: Mutex::new(samples),
            thread: Some(thread),
        })
    }

    /// Adds a line: the time, the event, and its fields.
    pub(crate) fn add(&self, event: &str, fields: Map<String, Value>) {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut line = Map::new();
        line.insert("time_ms".into(), (unix.as_millis() as u64).into());
        line.insert("event".into(), event.into());
        line.extend(fields);
        let missing = self.missing.swap(0, Ordering::Relaxed);
        if missing > 0 {
            line.insert("missing".into(), missing.into());
        }
        let text = format!("{}\n", Value::Object(line));
        if self.lines.as_ref().is_some_and(|lines| lines.try_send(text).is_err()) {
            self.missing.fetch_add(missing + 1, Ordering::Relaxed);
        }
    }

    /// Adds a refusal that a stranger can cause, unless there were too many within a second.
    pub(crate) fn add_sampled(&self, event: &str, fields: impl FnOnce() -> Map<String, Value>) {
        let skipped = {
            let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
            if samples.since.elapsed() >= SAMPLE_INTERVAL {
                samples.since = Instant::now();
                samples.count = 0;
            }
            if samples.count >= SAMPLES_MAX {
                samples.skipped += 1;
                return;
            }
            samples.count += 1;
            std::mem::take(&mut samples.skipped)
        };
        let mut fields = fields();
        if skipped > 0 {
            fields.insert("skipped".into(), skipped.into());
        }
        self.add(event, fields);
    }
}

/// Writes what waits.
impl Drop for Audit {
    fn drop(&mut self) {
        self.lines = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread of the audit log panicked");
        }
    }
}

fn write_lines(file: &File, name: &str, lines: &Receiver<String>) {
    let mut has_failed = false;
    while let Ok(line) = lines.recv() {
        let mut out = BufWriter::new(file);
        let mut written = out.write_all(line.as_bytes());
        for line in lines.try_iter() {
            written = written.and_then(|()| out.write_all(line.as_bytes()));
        }
        match written.and_then(|()| out.flush()) {
            Ok(()) => has_failed = false,
            Err(error) if !has_failed => {
                has_failed = true;
                log::error!("audit log {name}: {error}; lines are lost (security.audit_log)");
            }
            Err(_) => {}
        }
    }
}

/// The beginning of a text that a stranger may have chosen.
pub(crate) fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(AUDITED_BYTES_MAX)]
}
