//! The audit log: one line of JSON per log-in, failure, denial and administrative change.
//!
//! A thread writes the file, so that a slow disk stalls nobody. If more lines wait than fit, they are counted, and the
//! next line says how many are missing. The same events go to a topic, if the broker has one for them: there the shards
//! append them, see [`mainstem_security::AuditEvents`]. Each of the two has all events, whatever the other lacks.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mainstem_security::{AUDIT_EVENTS_MAX, AddedEvent, Published};
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
    /// Lines for the file; `None` without one.
    lines: Option<SyncSender<String>>,
    /// Has the events for the topic; `None` without one.
    topic: Option<Arc<Published>>,
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
    /// An audit log that appends to a file, and gives `topic` the same events. `None` if it would do neither.
    ///
    /// # Errors
    /// The file cannot be opened, or no thread started.
    pub(crate) fn open(path: Option<&Path>, topic: Option<Arc<Published>>) -> io::Result<Option<Self>> {
        let (lines, thread) = path.map(open_file).transpose()?.unzip();
        if lines.is_none() && topic.is_none() {
            return Ok(None);
        }
        let samples = Samples { since: Instant::now(), count: 0, skipped: 0 };
        Ok(Some(Self { lines, topic, missing: AtomicU64::new(0), samples: Mutex::new(samples), thread }))
    }

    /// Adds a line: the time, the event, and its fields.
    pub(crate) fn add(&self, event: &str, fields: Map<String, Value>) {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut line = Map::new();
        line.insert("time_ms".into(), (unix.as_millis() as u64).into());
        line.insert("event".into(), event.into());
        line.extend(fields);
        if let Some(topic) = &self.topic {
            Self::add_to_topic(topic, &line);
        }
        if let Some(lines) = &self.lines {
            let missing = self.missing.swap(0, Ordering::Relaxed);
            let text = with_missing(line, missing) + "\n";
            if lines.try_send(text).is_err() {
                self.missing.fetch_add(missing + 1, Ordering::Relaxed);
            }
        }
    }

    /// Lets the shards append an event to the topic.
    fn add_to_topic(topic: &Published, event: &Map<String, Value>) {
        let added = topic.audit_events().add(|missing| with_missing(event.clone(), missing));
        if added == AddedEvent::FirstDropped {
            log::error!(
                "the audit topic cannot be written, and {AUDIT_EVENTS_MAX} events or 8 MiB wait for it; further \
                 events are lost and counted (security.audit_topic, mainstem_audit_topic_dropped_total)"
            );
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

/// Opens the file and starts the thread that appends lines to it.
fn open_file(path: &Path) -> io::Result<(SyncSender<String>, JoinHandle<()>)> {
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(path)?;
    let (lines, receiver) = sync_channel(WAITING_MAX);
    let name = path.display().to_string();
    let write = move || write_lines(&file, &name, &receiver);
    let thread = std::thread::Builder::new().name("audit".into()).spawn(write)?;
    Ok((lines, thread))
}

/// An event as JSON, with the number of events that are missing before it, if there are any.
fn with_missing(mut event: Map<String, Value>, missing: u64) -> String {
    if missing > 0 {
        event.insert("missing".into(), missing.into());
    }
    Value::Object(event).to_string()
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
