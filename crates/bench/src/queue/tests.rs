//! Whole runs against a server in this process that speaks just enough NATS, and does one thing wrong.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::{QueueOptions, QueueProtocol, QueueReport, QueueWork, run_queue};
use crate::error::BenchError;

/// Messages that a queue is filled with.
const MESSAGES: u32 = 1_000;

/// What the server does wrong, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    /// A publish is acknowledged and not kept.
    Forgets,
    /// A publish gets an error for an answer.
    Refuses,
    /// A publish is not answered, nor kept.
    KeepsSilent,
    /// A message is delivered twice.
    Repeats,
    /// A message is neither delivered nor kept.
    Loses,
    /// A message stays though it was acknowledged.
    KeepsSettled,
    /// A message that nobody sent is delivered.
    Invents,
}

/// What the connections of a server share.
#[derive(Debug)]
struct Queue {
    wrong: Wrong,
    waiting: VecDeque<Vec<u8>>,
    /// Messages that are waiting, or delivered and not acknowledged.
    depth: u64,
}

impl Queue {
    /// Whether it is now that it goes wrong.
    fn does(&mut self, wrong: Wrong) -> bool {
        let now = self.wrong == wrong;
        if now {
            self.wrong = Wrong::Nothing;
        }
        now
    }

    /// What is said upon a message to a subject.
    fn published(&mut self, subject: &str, reply: &str, payload: &[u8]) -> Vec<u8> {
        let answer = |body: &str| message(reply, None, body.as_bytes());
        if subject.contains("STREAM.INFO") {
            return answer(&format!("{{\"state\":{{\"messages\":{}}}}}", self.depth));
        }
        if subject.contains("MSG.NEXT") {
            let request: serde_json::Value = serde_json::from_slice(payload).unwrap();
            return self.delivered(request["batch"].as_u64().unwrap());
        }
        if subject == "ignored" {
            return Vec::new();
        }
        if subject.starts_with("$JS.API") {
            return answer("{}");
        }
        if subject.starts_with("$JS.ACK") {
            if !self.does(Wrong::KeepsSettled) {
                self.depth = self.depth.saturating_sub(1);
            }
            return Vec::new();
        }
        if self.does(Wrong::KeepsSilent) {
            return Vec::new();
        }
        if self.does(Wrong::Refuses) {
            return answer("{\"error\":{\"description\":\"no room\"}}");
        }
        if !self.does(Wrong::Forgets) {
            self.waiting.push_back(payload.to_vec());
            self.depth += 1;
        }
        answer("{\"stream\":\"q\",\"seq\":1}")
    }

    fn delivered(&mut self, batch: u64) -> Vec<u8> {
        let mut said = Vec::new();
        for payload in self.waiting.drain(..self.waiting.len().min(batch as usize)).collect::<Vec<_>>() {
            if self.does(Wrong::Loses) {
                self.depth -= 1;
                continue;
            }
            if self.does(Wrong::Repeats) {
                // The acknowledgement of the first is that of both.
                said.extend(message("q", Some("ignored"), &payload));
            }
            if self.does(Wrong::Invents) {
                said.extend(message("q", Some("ignored"), &vec![0xFF; payload.len()]));
            }
            said.extend(message("q", Some("$JS.ACK.1"), &payload));
        }
        said
    }
}

fn message(subject: &str, reply: Option<&str>, payload: &[u8]) -> Vec<u8> {
    let reply = reply.map(|reply| format!("{reply} ")).unwrap_or_default();
    let head = format!("MSG {subject} 1 {reply}{}\r\n", payload.len());
    [head.as_bytes(), payload, b"\r\n"].concat()
}

/// Serves connections for as long as the test lasts. The port.
fn serve(wrong: Wrong) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let queue = Arc::new(Mutex::new(Queue { wrong, waiting: VecDeque::new(), depth: 0 }));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let queue = Arc::clone(&queue);
            thread::spawn(move || talk(&stream.unwrap(), &queue));
        }
    });
    port
}

/// Answers one client until it is gone.
fn talk(mut stream: &TcpStream, queue: &Mutex<Queue>) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let said = match words[..] {
            ["PING"] => b"PONG\r\n".to_vec(),
            ["PUB", subject, ref reply @ .., length] => {
                let mut payload = vec![0; length.parse::<usize>().unwrap() + 2];
                reader.read_exact(&mut payload).unwrap();
                payload.truncate(payload.len() - 2);
                let reply = reply.first().unwrap_or(&"");
                queue.lock().unwrap().published(subject, reply, &payload)
            }
            _ => continue,
        };
        if stream.write_all(&said).is_err() {
            return;
        }
    }
}

fn run(wrong: Wrong, work: QueueWork) -> Result<QueueReport, BenchError> {
    // An end is waited for, where there is one, for as long as a busy machine may take.
    let seconds = match (work, wrong) {
        (QueueWork::Enqueue { .. }, _) => 0.3,
        (_, Wrong::Loses) => 2.0,
        _ => 20.0,
    };
    run_queue(&QueueOptions {
        host: "127.0.0.1".into(),
        port: serve(wrong),
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

fn consume(wrong: Wrong) -> QueueReport {
    run(wrong, QueueWork::Consume { messages: MESSAGES, fill_max: Duration::from_secs(20) }).unwrap()
}

fn enqueue(wrong: Wrong) -> QueueReport {
    run(wrong, QueueWork::Enqueue { rate: None }).unwrap()
}

#[test]
fn a_queue_that_does_nothing_wrong_is_filled_and_emptied() {
    let report = consume(Wrong::Nothing);
    let consume = report.consume.unwrap();
    assert_eq!((consume.filled, consume.messages), (Some(MESSAGES.into()), MESSAGES.into()));
    assert_eq!((consume.lost, consume.repeated, consume.unsettled), (Some(0), 0, Some(0)));
    assert_eq!(report.foreign, 0);
}

#[test]
fn acknowledged_messages_are_in_the_queue() {
    let enqueue = enqueue(Wrong::Nothing).enqueue.unwrap();
    assert!(enqueue.messages > 0 && enqueue.latency.p50_us > 0.0);
    assert_eq!((enqueue.missing, enqueue.refused, enqueue.unanswered), (Some(0), 0, 0));
}

#[test]
fn a_message_that_is_acknowledged_and_not_kept_is_missing() {
    assert_eq!(enqueue(Wrong::Forgets).enqueue.unwrap().missing, Some(1));
    let work = QueueWork::Consume { messages: MESSAGES, fill_max: Duration::from_secs(20) };
    let error = run(Wrong::Forgets, work).unwrap_err().to_string();
    assert!(error.contains("of 1000 messages acknowledged 999 are in the queue"), "{error}");
}

#[test]
fn refusals_and_silence_are_told() {
    let refused = enqueue(Wrong::Refuses).enqueue.unwrap();
    assert_eq!((refused.refused, refused.missing), (1, Some(0)));
    assert!(refused.first_refusal.unwrap().contains("no room"));
    assert_eq!(enqueue(Wrong::KeepsSilent).enqueue.unwrap().unanswered, 1);
}

#[test]
fn what_comes_twice_or_from_nobody_is_told() {
    let report = consume(Wrong::Repeats);
    let consumed = report.consume.unwrap();
    assert_eq!((consumed.messages, consumed.repeated), (MESSAGES.into(), 1));
    assert_eq!(consume(Wrong::Invents).foreign, 1);
}

#[test]
fn a_message_that_never_comes_is_lost() {
    let consumed = consume(Wrong::Loses).consume.unwrap();
    assert_eq!((consumed.messages, consumed.lost), (u64::from(MESSAGES) - 1, Some(1)));
}

#[test]
fn a_message_that_stays_is_not_settled() {
    let consumed = consume(Wrong::KeepsSettled).consume.unwrap();
    assert_eq!((consumed.messages, consumed.unsettled), (MESSAGES.into(), Some(1)));
}
