//! Attacks over the HTTP API and its work queues.

use super::super::attacker::{Attacker, Link};
use serde_json::{Value, json};
use std::io;
use std::time::Duration;

/// Connections with a request that waits: nearly the default of `http.max_connections`.
const LONG_POLLS: usize = 250;
/// How long such a request waits.
const LONG_POLL: Duration = Duration::from_secs(1);
/// Connections with a slow body.
const SLOW_BODIES: usize = 100;
/// Just below the default of `http.max_body_bytes`.
const BODY_BYTES: usize = (8 << 20) - 1024;
/// Requests per connection of the request loops.
const LOOP_REQUESTS: usize = 1_000;
/// Messages that are received and refused in a loop: the most that one request takes.
const NACKED: usize = 1_000;
/// Longest head of a response.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Time between two snapshots.
const SNAPSHOT_INTERVAL: Duration = Duration::from_millis(50);
const DRIP: Duration = Duration::from_millis(100);

/// Sends a request and returns the body of the response; `Null` if there is none.
fn request(link: &mut Link<'_>, method: &str, path: &str, body: &[u8]) -> io::Result<Value> {
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n"
    );
    link.send_unread(&[head.as_bytes(), body].concat())?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > HEAD_BYTES_MAX {
            return Err(io::Error::other("a response without end"));
        }
        head.extend(link.read_exact(1)?);
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    let body = link.read_exact(length.unwrap_or(0))?;
    Ok(serde_json::from_slice(&body).unwrap_or(Value::Null))
}

/// Requests that wait for messages of an empty queue, on all connections of the HTTP listener.
pub(in super::super) fn long_polls(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let mut link = attacker.open()?;
    request(&mut link, "PUT", "/v1/queues/polled", b"{}")?;
    let head = "POST /v1/queues/polled/receive?wait_ms=1000 HTTP/1.1\r\nHost: localhost\r\n\
                Content-Length: 0\r\n\r\n";
    let mut links = Vec::new();
    for _ in 0..LONG_POLLS {
        links.push(attacker.open()?);
    }
    while !attacker.is_over() {
        for link in &mut links {
            link.send(head.as_bytes())?;
        }
        attacker.pause(LONG_POLL);
    }
    Ok(())
}

/// Requests whose bodies arrive byte by byte.
pub(in super::super) fn slow_bodies(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let head = "POST /v1/queues/slow/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n\
                Content-Length: 1000000\r\n\r\n";
    let mut links = Vec::new();
    for _ in 0..SLOW_BODIES {
        let mut link = attacker.open()?;
        link.send(head.as_bytes())?;
        links.push(link);
    }
    while !attacker.is_over() {
        for link in &mut links {
            link.send(b"x")?;
        }
        attacker.pause(DRIP);
    }
    Ok(())
}

/// JSON of 8 MiB that is nothing but opening brackets, and a list of millions of empty messages.
pub(in super::super) fn deep_json(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let mut link = attacker.open()?;
    request(&mut link, "POST", "/v1/queues/deep/messages", "[".repeat(BODY_BYTES).as_bytes())?;
    let wide = format!("{{\"messages\":[{}{{}}]}}", "{},".repeat(BODY_BYTES / 3 - 16));
    let mut link = attacker.open()?;
    request(&mut link, "POST", "/v1/queues/deep/messages", wide.as_bytes()).map(drop)
}

/// Receives from an empty queue without waiting, without end.
pub(in super::super) fn receive_loop(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let mut link = attacker.open()?;
    request(&mut link, "PUT", "/v1/queues/empty", b"{}")?;
    for _ in 0..LOOP_REQUESTS {
        request(&mut link, "POST", "/v1/queues/empty/receive?wait_ms=0", b"")?;
    }
    Ok(())
}

/// Receives messages and refuses them at once, without end.
pub(in super::super) fn nack_storm(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let queue = format!("/v1/queues/nacked-{}", attacker.number);
    let mut link = attacker.open()?;
    request(&mut link, "PUT", &queue, br#"{"max_deliveries": 0, "backoff_ms": 0, "backoff_max_ms": 0}"#)?;
    if attacker.round == 0 {
        let messages: Vec<Value> = (0..NACKED).map(|_| json!({"body": "x"})).collect();
        let messages = json!({"messages": messages}).to_string();
        request(&mut link, "POST", &format!("{queue}/messages"), messages.as_bytes())?;
    }
    for _ in 0..LOOP_REQUESTS {
        let path = format!("{queue}/receive?max={NACKED}&wait_ms=1000");
        let received = request(&mut link, "POST", &path, b"")?;
        let messages = received["messages"].as_array().cloned().unwrap_or_default();
        let receipts: Vec<&Value> = messages.iter().map(|message| &message["receipt"]).collect();
        let nack = json!({"receipts": receipts, "delay_ms": 0}).to_string();
        request(&mut link, "POST", &format!("{queue}/nack"), nack.as_bytes())?;
    }
    Ok(())
}

/// Takes and removes snapshots of the data directory: each time, all shards meet.
pub(in super::super) fn snapshots(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let mut link = attacker.open()?;
    for _ in 0..LOOP_REQUESTS {
        let snapshot = request(&mut link, "POST", "/v1/snapshots", b"")?;
        let id = snapshot["id"].as_str().ok_or_else(|| io::Error::other(snapshot.to_string()))?;
        request(&mut link, "DELETE", &format!("/v1/snapshots/{id}"), b"")?;
        attacker.pause(SNAPSHOT_INTERVAL);
    }
    Ok(())
}
