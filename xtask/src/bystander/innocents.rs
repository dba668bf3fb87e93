//! The innocent clients: `mainstem bench` at a low rate, on a schedule, each in a process of its own.
//!
//! Latency counts from the scheduled time of a message to its receipt, so a stalled broker cannot hide its stall.

use super::attacker::Target;
use crate::Outcome;
use crate::bench::at;
use crate::bench::server::terminate;
use serde_json::Value;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Messages per second of each pair.
pub(super) const RATE: u32 = 1_000;
/// Load before the measured part, in seconds; the attack begins during it.
pub(super) const WARMUP_S: u32 = 3;
/// Longest wait for messages after the load, in seconds. Later ones are lost.
const DRAIN_S: u32 = 30;

/// One pair of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Innocent {
    /// A publisher and a subscriber at QoS 1.
    Mqtt,
    /// A producer with `acks=all`, and a consumer.
    Kafka,
    /// A sender to a work queue, and a worker.
    Queue,
}

/// What a pair measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Measured {
    pub(super) samples: u64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) max_ms: f64,
    /// Messages that were lost, refused or not sent.
    pub(super) lost: u64,
}

impl Innocent {
    pub(super) const ALL: [Self; 3] = [Self::Mqtt, Self::Kafka, Self::Queue];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mqtt => "mqtt",
            Self::Kafka => "kafka",
            Self::Queue => "queue",
        }
    }

    /// Starts the pair for `seconds` of measuring.
    ///
    /// # Errors
    /// If the process cannot be started.
    pub(super) fn start(self, generator: &Path, target: Target, seconds: u32) -> Outcome<Pair> {
        let mut command = Command::new(generator);
        let rate = RATE.to_string();
        match self {
            Self::Mqtt => {
                command.args(["bench", "mqtt", "--scenario", "pairs", "--publishers", "1", "--qos", "1"]);
                command.args(["--rate", &rate, "--port", &target.mqtt.to_string()]);
            }
            Self::Kafka => {
                command.args(["bench", "kafka", "produce", "--records", "1", "--acks", "all", "--consume"]);
                command.args(["--rate", &rate, "--port", &target.kafka.to_string()]);
            }
            Self::Queue => {
                command.args(["bench", "queue", "flow", "--rate", &rate]);
                command.args(["--port", &target.mqtt.to_string()]);
                command.args(["--http", &format!("127.0.0.1:{}", target.http)]);
            }
        }
        let (seconds, warmup, drain) = (seconds.to_string(), WARMUP_S.to_string(), DRAIN_S.to_string());
        command.args(["--json", "--duration", &seconds, "--warmup", &warmup, "--drain", &drain]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|error| at(generator, &error))?;
        Ok(Pair { innocent: self, child: Some(child) })
    }

    /// The numbers of a report.
    fn measured(self, report: &Value) -> Measured {
        let (latency, lost) = match self {
            Self::Mqtt => {
                let traffic = &report["traffic"];
                (
                    &traffic["latency"],
                    sum(traffic, &["lost", "refused", "unsent", "duplicates", "out_of_order"]),
                )
            }
            Self::Kafka => {
                let lost = ["refused", "unanswered", "missing", "not_delivered"];
                (&report["delivery"], sum(&report["produce"], &lost) + sum(report, &["gaps"]))
            }
            Self::Queue => {
                let enqueued = sum(&report["enqueue"], &["refused", "unanswered", "unsent"]);
                (&report["delivery"], enqueued + sum(&report["consume"], &["lost"]))
            }
        };
        let ms = |name: &str| latency[name].as_f64().unwrap_or(0.0) / 1e3;
        Measured {
            samples: latency["samples"].as_u64().unwrap_or(0),
            p50_ms: ms("p50_us"),
            p99_ms: ms("p99_us"),
            max_ms: ms("max_us"),
            lost,
        }
    }
}

fn sum(part: &Value, names: &[&str]) -> u64 {
    names.iter().filter_map(|name| part[name].as_u64()).sum()
}

/// A running pair. Dropping it kills the process.
pub(super) struct Pair {
    pub(super) innocent: Innocent,
    child: Option<Child>,
}

impl Pair {
    /// Whether the process has exited.
    pub(super) fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// The result, after the process has exited.
    ///
    /// # Errors
    /// If it did not measure anything, with its error message: a connection broke, or the broker did not respond.
    pub(super) fn finish(mut self) -> Outcome<Measured> {
        let child = self.child.take().ok_or("the pair was stopped")?;
        let output = child.wait_with_output().map_err(|error| error.to_string())?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let error = stderr.trim_end().lines().last().unwrap_or("no error message");
        // A run with losses prints its report as well.
        match serde_json::from_slice::<Value>(&output.stdout) {
            Ok(report) => {
                let measured = self.innocent.measured(&report);
                if output.status.success() || measured.lost > 0 {
                    Ok(measured)
                } else {
                    Err(error.to_owned())
                }
            }
            Err(_) => Err(error.to_owned()),
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take()
            && let Err(error) =
                terminate(&child).and_then(|()| child.wait().map(drop).map_err(|e| e.to_string()))
        {
            eprintln!("cannot stop an innocent client: {error}");
        }
    }
}

/// Longest time from the end of the measured part to the exit of all pairs.
pub(super) fn end_timeout() -> Duration {
    // The Kafka generator queries the topic once more, and waits at most the drain time for it.
    Duration::from_secs((3 * DRAIN_S).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reads_the_reports_of_the_generators() {
        let latency =
            json!({"samples": 7, "p50_us": 500.0, "p99_us": 1000.0, "p999_us": 1.0, "max_us": 2000.0});
        let expected = Measured { samples: 7, p50_ms: 0.5, p99_ms: 1.0, max_ms: 2.0, lost: 0 };
        let mqtt = json!({"traffic": {"latency": latency, "lost": 0, "unsent": 2, "refused": 1}});
        assert_eq!(Innocent::Mqtt.measured(&mqtt), Measured { lost: 3, ..expected });
        let kafka = json!({"delivery": latency, "gaps": 0, "produce": {"missing": 1, "not_delivered": null}});
        assert_eq!(Innocent::Kafka.measured(&kafka), Measured { lost: 1, ..expected });
        let queue = json!({"delivery": latency, "enqueue": {"refused": 0}, "consume": {"lost": null}});
        assert_eq!(Innocent::Queue.measured(&queue), expected);
    }

    #[test]
    fn a_report_without_latency_has_no_samples() {
        assert_eq!(Innocent::Kafka.measured(&json!({"delivery": null})), Measured::default());
    }
}
