//! What is refused before any queue hears of it.

use std::time::Duration;

use mainstem_admin::Settings;

use crate::client::Door;

const MESSAGES: &str = "/v1/queues/q/messages";

#[test]
fn what_is_not_there_is_told_from_what_does_not_go() {
    let door = Door::open();
    door.ask("GET", "/", "").problem(404, "no-route");
    door.ask("GET", "/v1/queues/q/nothing", "").problem(404, "no-route");
    let refused = door.ask("PUT", MESSAGES, "{}");
    assert_eq!(refused.header("allow"), Some("POST"));
    refused.problem(405, "method");
    door.ask("GET", "/v1/queues/%FF", "").problem(400, "malformed");
    let mut connection = door.connect();
    connection.send("POST", "/v1/queues/q/ack", "content-type: text/plain\r\n", b"{}");
    connection.answer().problem(415, "media-type");
}

#[test]
fn web_pages_of_others_are_refused() {
    let door = Door::open();
    let mut connection = door.connect();
    for method in ["POST", "OPTIONS"] {
        connection.send(method, MESSAGES, "origin: https://example.com\r\n", b"");
        connection.answer().problem(403, "cross-site");
    }
    assert!(door.ask("GET", "/v1/queues/q", "").is(200).json()["messages"] == 0);
}

#[test]
fn bodies_have_a_bound() {
    let door = Door::open_with(Settings { body_bytes_max: 1000, ..Settings::default() });
    let mut connection = door.connect();
    connection.send("POST", MESSAGES, "", &[b'x'; 1000]);
    connection.answer().is(201);
    connection.send("POST", MESSAGES, "", &[b'x'; 1001]);
    connection.answer().problem(413, "too-large");
    let mut connection = door.connect();
    connection.send("POST", MESSAGES, "transfer-encoding: chunked\r\n", b"");
    connection.send_raw(format!("3e8\r\n{}\r\n1\r\nx\r\n", "x".repeat(1000)).as_bytes());
    connection.answer().problem(413, "too-large");
    // Who asks first is told without being heard out.
    let mut connection = door.connect();
    let headers = "content-length: 1001\r\nexpect: 100-continue\r\n";
    connection.send("POST", MESSAGES, headers, b"");
    connection.answer().problem(413, "too-large");
}

#[test]
fn who_is_too_slow_is_not_waited_for() {
    let door = Door::open_with(Settings { patience: Duration::from_secs(1), ..Settings::default() });
    let mut connection = door.connect();
    connection.send_raw(b"GET / HT");
    assert!(connection.try_answer().is_none_or(|answer| answer.status == 408));
    let mut connection = door.connect();
    connection.send("POST", MESSAGES, "content-length: 5\r\n", b"");
    connection.send_raw(b"abc");
    connection.answer().problem(408, "too-slow");
    let mut connection = door.connect();
    connection.ask("GET", "/v1/health/live", "").is(200);
    assert!(connection.try_answer().is_none(), "a connection that nobody uses is closed");
}

#[test]
fn connections_beyond_those_allowed_are_turned_away() {
    let door = Door::open_with(Settings { connections_max: 1, ..Settings::default() });
    let mut only = door.connect();
    only.ask("GET", "/v1/health/live", "").is(200);
    let mut beyond = door.connect();
    let refused = beyond.answer();
    assert_eq!(refused.header("retry-after"), Some("1"));
    refused.problem(503, "connections");
    assert!(beyond.try_answer().is_none());
    only.ask("GET", "/v1/health/live", "").is(200);
    drop(only);
    // The room is free when the broker has seen that.
    while door.connect().try_answer_to_live() != Some(200) {}
}
