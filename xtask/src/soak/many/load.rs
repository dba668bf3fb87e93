//! The kinds of load. Each runs in its own thread, mostly through the command-line tools of `mainstem`, until the stop
//! signal, and returns a summary or an error.

use super::Stop;
use crate::Outcome;
use crate::bench::at;
use serde_json::Value;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// The broker under load.
pub(super) struct Target<'a> {
    pub(super) binary: &'a Path,
    pub(super) port: u16,
    pub(super) seconds: u32,
}

type Load = fn(&Target, &Stop) -> Outcome<String>;

/// All loads, by name.
pub(super) const LOADS: [(&str, Load); 7] = [
    ("fan-out at QoS 2", |target, _| {
        let shape = ["--scenario", "fan-out", "--publishers", "10", "--subscribers", "200", "--qos", "2"];
        traffic(target, &shape, "50")
    }),
    ("pairs at QoS 1", |target, _| {
        traffic(target, &["--scenario", "pairs", "--publishers", "50", "--qos", "1"], "1000")
    }),
    ("clean sessions", clean_sessions),
    ("persistent sessions, MQTT 5", |target, stop| persistent_sessions(target, stop, "5")),
    ("persistent sessions, MQTT 3.1.1", |target, stop| persistent_sessions(target, stop, "311")),
    ("a reader that never reads", never_read),
    ("retained messages", retained),
];

/// Connections per wave of clean sessions.
const WAVE: &str = "200";
/// Messages queued for an offline persistent session.
const QUEUED: usize = 20;
/// Retained messages per round.
const RETAINED: &str = "1000";
/// Pause between rounds, so that a load does not occupy a whole core.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum lifetime of a connection that is never read.
const UNREAD_MAX: Duration = Duration::from_secs(30);

impl Target<'_> {
    /// Runs a command-line tool of `mainstem`.
    ///
    /// # Errors
    /// If it fails, with the last line of its error output.
    fn tool(&self, arguments: &[&str]) -> Outcome<Output> {
        let mut command = Command::new(self.binary);
        command.args(arguments).args(["--port", &self.port.to_string()]).stdin(Stdio::null());
        let output = command.output().map_err(|error| at(self.binary, &error))?;
        if output.status.success() {
            return Ok(output);
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        let last = stderr.trim_end().lines().last().unwrap_or("no error message");
        Err(format!("`{}`: {}: {last}", arguments.join(" "), output.status))
    }

    /// Runs `mainstem bench mqtt` and returns its report.
    fn bench(&self, arguments: &[&str]) -> Outcome<Value> {
        let output = self.tool(&[&["bench", "mqtt", "--json"], arguments].concat())?;
        serde_json::from_slice(&output.stdout).map_err(|error| format!("cannot parse the report: {error}"))
    }
}

/// Open-loop traffic for the whole time.
fn traffic(target: &Target, shape: &[&str], rate: &str) -> Outcome<String> {
    let seconds = target.seconds.to_string();
    let pace = ["--rate", rate, "--warmup", "0", "--duration", &seconds, "--drain", "30"];
    let report = target.bench(&[shape, &pace].concat())?;
    let delivered = verify_deliveries(&report["traffic"])?;
    let p99_ms = report["traffic"]["latency"]["p99_us"].as_f64().unwrap_or(0.0) / 1e3;
    Ok(format!("{delivered} deliveries, p99 {p99_ms:.1} ms"))
}

/// Number of deliveries in a report.
///
/// # Errors
/// If a message was lost, duplicated, reordered or refused, or if none arrived.
fn verify_deliveries(part: &Value) -> Outcome<u64> {
    let count = |name: &str| part[name].as_u64();
    let counters = ["lost", "duplicates", "out_of_order", "foreign", "refused"];
    let counters = counters.map(|name| (name, count(name).unwrap_or(0)));
    if let Some((name, number)) = counters.iter().find(|(_, number)| *number > 0) {
        return Err(format!("{number} {name}"));
    }
    let arrived = count("delivered").or_else(|| count("messages"));
    arrived.filter(|arrived| *arrived > 0).ok_or_else(|| "nothing arrived".to_owned())
}

/// Waves of short connections.
fn clean_sessions(target: &Target, stop: &Stop) -> Outcome<String> {
    let mut waves = 0_u32;
    while !stop.wait(PAUSE) {
        target.bench(&["--idle", WAVE, "--duration", "0.1"])?;
        waves += 1;
    }
    Ok(format!("{waves} waves of {WAVE} connections"))
}

/// Creates a session, publishes while it is offline, resumes it, checks that messages arrive in order, and ends it.
fn persistent_sessions(target: &Target, stop: &Stop, version: &str) -> Outcome<String> {
    let (id, topic) = (format!("soak-{version}"), format!("soak/{version}"));
    let session = ["-i", &id, "-t", &topic, "-q", "1", "-V", version];
    let count = QUEUED.to_string();
    let mut cycles = 0_usize;
    while !stop.wait(PAUSE) {
        target.tool(&[["sub", "-c", "-E"].as_slice(), &session].concat())?;
        let expected: Vec<String> = (0..QUEUED).map(|number| format!("{cycles}-{number}")).collect();
        for message in &expected {
            target.tool(&["pub", "-t", &topic, "-q", "1", "-V", version, "-m", message])?;
        }
        let back = ["sub", "-c", "-C", &count, "-W", "30"];
        let output = target.tool(&[back.as_slice(), &session].concat())?;
        let got = String::from_utf8_lossy(&output.stdout).into_owned();
        if !got.lines().eq(expected.iter().map(String::as_str)) {
            return Err(format!("cycle {cycles}: expected {QUEUED} messages in order, got {got:?}"));
        }
        // A clean start without an expiry ends the session with the connection.
        target.tool(&[["sub", "-E"].as_slice(), &session].concat())?;
        cycles += 1;
    }
    Ok(format!("{cycles} sessions, {} messages", cycles * QUEUED))
}

/// Subscribes to all topics and never reads. The broker may drop its messages, but other clients must not be affected.
fn never_read(target: &Target, stop: &Stop) -> Outcome<String> {
    let time = (Duration::from_secs(target.seconds.into()) / 8).min(UNREAD_MAX);
    let mut connections = 0_u32;
    loop {
        let cannot = |error: std::io::Error| format!("cannot subscribe: {error}");
        let mut stream = TcpStream::connect(("127.0.0.1", target.port)).map_err(cannot)?;
        stream.write_all(CONNECT_AND_SUBSCRIBE).map_err(cannot)?;
        connections += 1;
        if stop.wait(time) {
            return Ok(format!("{connections} connections"));
        }
    }
}

/// CONNECT as `unread` (3.1.1, clean session, no keep alive) and SUBSCRIBE to `#` at QoS 1.
const CONNECT_AND_SUBSCRIBE: &[u8] =
    b"\x10\x12\x00\x04MQTT\x04\x02\x00\x00\x00\x06unread\x82\x06\x00\x01\x00\x01#\x01";

/// Stores, fetches and clears retained messages.
fn retained(target: &Target, stop: &Stop) -> Outcome<String> {
    let mut rounds = 0_u32;
    while !stop.wait(PAUSE) {
        let report = target.bench(&["--retained", RETAINED, "--qos", "1"])?;
        verify_deliveries(&report["retained"])?;
        // Without --no-local, its own clearing messages would count.
        let clear = ["sub", "-t", "ret/#", "-q", "1", "--remove-retained", "--no-local", "-C", RETAINED];
        target.tool(&[clear.as_slice(), &["-W", "30"]].concat())?;
        rounds += 1;
    }
    Ok(format!("{rounds} rounds of {RETAINED} messages"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn accepts_reports_with_each_message_delivered_once() {
        assert_eq!(verify_deliveries(&json!({"delivered": 7, "lost": 0})), Ok(7));
        assert_eq!(verify_deliveries(&json!({"messages": 9})), Ok(9));
        assert!(verify_deliveries(&json!({"delivered": 7, "lost": 1})).unwrap_err().contains("lost"));
        assert!(verify_deliveries(&json!({"delivered": 7, "out_of_order": 2})).is_err());
        assert!(verify_deliveries(&json!({"delivered": 0})).is_err());
        assert!(verify_deliveries(&Value::Null).is_err());
    }

    #[test]
    fn encoded_packets_have_correct_lengths() {
        let connect = usize::from(CONNECT_AND_SUBSCRIBE[1]) + 2;
        let subscribe = &CONNECT_AND_SUBSCRIBE[connect..];
        assert_eq!((subscribe[0], usize::from(subscribe[1]) + 2), (0x82, subscribe.len()));
    }
}
