//! Complete runs against an in-process server that speaks a subset of NATS, with one planted bug per test.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::{QueueOptions, QueueProtocol, QueueReport, QueueWork, run_queue};
use crate::error::BenchError;

/// Number of messages that fill a queue.
const MESSAGES: u32 = 1_000;

/// A planted bug of the server, which occurs once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// Acknowledges a publish without storing it.
    DropsAcknowledged,
    /// Refuses a publish with an error.
    RefusesPublish,
    /// Neither stores a publish nor responds to it.
    IgnoresPublish,
    /// Delivers a message twice.
    DuplicatesDelivery,
    /// Drops a stored message.
    LosesMessage,
    /// Keeps a message despite its acknowledgement.
    KeepsAcknowledged,
    /// Delivers a message that was never published.
    DeliversForeign,
}

/// Queue state shared by the connections.
#[derive(Debug)]
struct Queue {
    bug: Bug,
    ready: VecDeque<Vec<u8>>,
    /// Number of messages that are ready or unacknowledged.
    depth: u64,
}

impl Queue {
    /// Whether the bug occurs now; it occurs only once.
    fn trigger(&mut self, bug: Bug) -> bool {
        let now = self.bug == bug;
        if now {
            self.bug = Bug::None;
        }
        now
    }

    /// Response to a message on a subject.
    fn handle_publish(&mut self, subject: &str, reply: &str, payload: &[u8]) -> Vec<u8> {
        let response = |body: &str| message(reply, None, body.as_bytes());
        if subject.contains("STREAM.INFO") {
            return response(&format!("{{\"state\":{{\"messages\":{}}}}}", self.depth));
        }
        if subject.contains("MSG.NEXT") {
            let request: serde_json::Value = serde_json::from_slice(payload).unwrap();
            return self.deliver(request["batch"].as_u64().unwrap());
        }
        if subject == "ignored" {
            return Vec::new();
        }
        if subject.starts_with("$JS.API") {
            return response("{}");
        }
        if subject.starts_with("$JS.ACK") {
            if !self.trigger(Bug::KeepsAcknowledged) {
                self.depth = self.depth.saturating_sub(1);
            }
            return Vec::new();
        }
        if self.trigger(Bug::IgnoresPublish) {
            return Vec::new();
        }
        if self.trigger(Bug::RefusesPublish) {
            return response("{\"error\":{\"description\":\"no room\"}}");
        }
        if !self.trigger(Bug::DropsAcknowledged) {
            self.ready.push_back(payload.to_vec());
            self.depth += 1;
        }
        response("{\"stream\":\"q\",\"seq\":1}")
    }

    fn deliver(&mut self, batch: u64) -> Vec<u8> {
        let mut output = Vec::new();
        for payload in self.ready.drain(..self.ready.len().min(batch as usize)).collect::<Vec<_>>() {
            if self.trigger(Bug::LosesMessage) {
                self.depth -= 1;
                continue;
            }
            if self.trigger(Bug::DuplicatesDelivery) {
                // One acknowledgement settles both deliveries.
                output.extend(message("q", Some("ignored"), &payload));
            }
            if self.trigger(Bug::DeliversForeign) {
                output.extend(message("q", Some("ignored"), &vec![0xFF; payload.len()]));
            }
            output.extend(message("q", Some("$JS.ACK.1"), &payload));
        }
        output
    }
}

fn message(subject: &str, reply: Option<&str>, payload: &[u8]) -> Vec<u8> {
    let reply = reply.map(|reply| format!("{reply} ")).unwrap_or_default();
    let head = format!("MSG {subject} 1 {reply}{}\r\n", payload.len());
    [head.as_bytes(), payload, b"\r\n"].concat()
}

/// Serves connections until the test process ends. Returns the port.
fn serve(bug: Bug) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let queue = Arc::new(Mutex::new(Queue { bug, ready: VecDeque::new(), depth: 0 }));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let queue = Arc::clone(&queue);
            thread::spawn(move || serve_client(&stream.unwrap(), &queue));
        }
    });
    port
}

/// Serves one client until it disconnects.
fn serve_client(mut stream: &TcpStream, queue: &Mutex<Queue>) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let output = match words[..] {
            ["PING"] => b"PONG\r\n".to_vec(),
            ["PUB", subject, ref reply @ .., length] => {
                let mut payload = vec![0; length.parse::<usize>().unwrap() + 2];
                reader.read_exact(&mut payload).unwrap();
                payload.truncate(payload.len() - 2);
                let reply = reply.first().unwrap_or(&"");
                queue.lock().unwrap().handle_publish(subject, reply, &payload)
            }
            _ => continue,
        };
        if stream.write_all(&output).is_err() {
            return;
        }
    }
}

fn run(bug: Bug, work: QueueWork) -> Result<QueueReport, BenchError> {
    // Runs that end by themselves get a limit that is long enough for a busy machine.
    let seconds = match (work, bug) {
        (QueueWork::Enqueue { .. }, _) => 0.3,
        (_, Bug::LosesMessage) => 2.0,
        _ => 20.0,
    };
    run_queue(&QueueOptions {
        host: "127.0.0.1".into(),
        port: serve(bug),
        protocol: QueueProtocol::Nats,
        queue: None,
        publishers: 2,
        consumers: 2,
        in_flight: 20,
        prefetch: 10,
        payload_bytes: 50,
        work,
        duration: Duration::from_secs_f64(seconds),
        warmup: Duration::ZERO,
        drain: Duration::from_secs(1),
        broker_pid: None,
    })
}

fn consume(bug: Bug) -> QueueReport {
    run(bug, QueueWork::Consume { messages: MESSAGES, fill_max: Duration::from_secs(20) }).unwrap()
}

fn enqueue(bug: Bug) -> QueueReport {
    run(bug, QueueWork::Enqueue { rate: None }).unwrap()
}

#[test]
fn fills_and_empties_a_correct_queue() {
    let report = consume(Bug::None);
    let consume = report.consume.unwrap();
    assert_eq!((consume.filled, consume.messages), (Some(MESSAGES.into()), MESSAGES.into()));
    assert_eq!((consume.lost, consume.repeated, consume.unsettled), (Some(0), 0, Some(0)));
    assert_eq!(report.foreign, 0);
}

#[test]
fn finds_acknowledged_messages_in_the_queue() {
    let enqueue = enqueue(Bug::None).enqueue.unwrap();
    assert!(enqueue.messages > 0 && enqueue.latency.p50_us > 0.0);
    assert_eq!((enqueue.missing, enqueue.refused, enqueue.unanswered), (Some(0), 0, 0));
}

#[test]
fn reports_an_acknowledged_message_that_is_not_stored() {
    assert_eq!(enqueue(Bug::DropsAcknowledged).enqueue.unwrap().missing, Some(1));
    let work = QueueWork::Consume { messages: MESSAGES, fill_max: Duration::from_secs(20) };
    let error = run(Bug::DropsAcknowledged, work).unwrap_err().to_string();
    assert!(error.contains("only 999 of 1000 acknowledged messages are in the queue"), "{error}");
}

#[test]
fn reports_refused_and_unanswered_messages() {
    let refused = enqueue(Bug::RefusesPublish).enqueue.unwrap();
    assert_eq!((refused.refused, refused.missing), (1, Some(0)));
    assert!(refused.first_refusal.unwrap().contains("no room"));
    assert_eq!(enqueue(Bug::IgnoresPublish).enqueue.unwrap().unanswered, 1);
}

#[test]
fn reports_duplicate_and_foreign_deliveries() {
    let report = consume(Bug::DuplicatesDelivery);
    let consumed = report.consume.unwrap();
    assert_eq!((consumed.messages, consumed.repeated), (MESSAGES.into(), 1));
    assert_eq!(consume(Bug::DeliversForeign).foreign, 1);
}

#[test]
fn reports_a_lost_message() {
    let consumed = consume(Bug::LosesMessage).consume.unwrap();
    assert_eq!((consumed.messages, consumed.lost), (u64::from(MESSAGES) - 1, Some(1)));
}

#[test]
fn reports_a_message_that_stays_after_acknowledgement() {
    let consumed = consume(Bug::KeepsAcknowledged).consume.unwrap();
    assert_eq!((consumed.messages, consumed.unsettled), (MESSAGES.into(), Some(1)));
}
