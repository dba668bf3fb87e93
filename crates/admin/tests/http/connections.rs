//! Connections that are idle, slow, or too many.

use std::time::Duration;

use mainstem_admin::{RESERVED_CONNECTIONS, Settings};
use mainstem_queue_core::Request;

use crate::client::{Connection, TestServer};

const MAX: usize = 8;
/// More than all connections together.
const MANY: usize = MAX + RESERVED_CONNECTIONS + 50;
const SHORT: Duration = Duration::from_millis(300);
const MONITORING: [&str; 3] = ["/metrics", "/v1/health/live", "/v1/health/ready"];

fn start() -> TestServer {
    TestServer::start_with(Settings { connections_max: MAX, ..Settings::default() })
}

/// Occupies all regular connections with requests.
fn occupy(server: &TestServer) -> Vec<Connection> {
    let waiting = std::iter::repeat_with(|| {
        let mut connection = server.connect();
        connection.send("POST", "/v1/queues/q/receive?wait_ms=60000", "", b"");
        connection
    });
    let waiting = waiting.take(MAX).collect();
    server.fake.wait_for_several(MAX, |request| matches!(request, Request::Receive { .. }));
    waiting
}

#[test]
fn idle_connections_keep_nobody_out() {
    let server = start();
    let mut idle = Vec::new();
    for number in 0..MANY {
        let mut connection = server.connect();
        match number % 3 {
            0 => {}
            1 => connection.send_raw(b"GET /v1/health/live HTTP/1.1\r\nhost: loc"),
            _ => drop(connection.request("GET", "/v1/health/live", "").expect_status(200)),
        }
        idle.push(connection);
        server.request("GET", "/v1/queues/q", "").expect_status(200);
    }
    let mut oldest = idle.remove(0);
    assert!(oldest.try_response().is_none(), "it was closed to make room");
}

#[test]
fn a_new_connection_closes_the_longest_idle_one() {
    let server = start();
    let mut connections: Vec<_> = std::iter::repeat_with(|| server.connect()).take(MAX).collect();
    for connection in &mut connections {
        connection.request("GET", "/v1/health/live", "").expect_status(200);
    }
    connections[0].request("GET", "/v1/health/live", "").expect_status(200);
    server.request("GET", "/v1/health/live", "").expect_status(200);
    assert!(connections[1].try_response().is_none());
    connections.remove(1);
    for connection in &mut connections {
        connection.request("GET", "/v1/health/live", "").expect_status(200);
    }
}

#[test]
fn requests_under_way_are_never_closed() {
    let server = start();
    let mut waiting = occupy(&server);
    for _ in 0..3 {
        let mut refused = server.connect();
        // The response arrives although the body is not read.
        refused.send("POST", "/v1/queues/q/messages", "", &vec![b'x'; 100_000]);
        let response = refused.response();
        assert_eq!(response.header("retry-after"), Some("1"));
        response.problem(503, "connections");
        assert!(refused.try_response().is_none());
    }
    server.fake.put(&[b"a".as_slice(); MAX]);
    for connection in &mut waiting {
        connection.response().expect_status(200);
        connection.request("GET", "/v1/queues/q", "").expect_status(200);
    }
}

#[test]
fn health_and_metrics_have_reserved_connections() {
    let server = start();
    let _waiting = occupy(&server);
    // Idle connections do not occupy the reserved ones either.
    let _idle: Vec<_> = std::iter::repeat_with(|| server.connect()).take(MANY).collect();
    for path in MONITORING {
        let mut connection = server.connect();
        connection.request("GET", path, "").expect_status(200);
        assert!(connection.try_response().is_none(), "a reserved connection answers one request");
    }
    server.request("GET", "/v1/queues", "").problem(503, "connections");
    server.request("POST", "/metrics", "").problem(503, "connections");
}

#[test]
fn an_address_has_a_limit() {
    let server = start();
    server.fake.limit_address(2);
    let mut first = server.connect();
    first.request("GET", "/v1/queues/q", "").expect_status(200);
    let second = server.connect();
    assert_eq!(server.connect().try_live(), None, "it is closed at once");
    drop(second);
    // The place is free once the server has noticed the disconnect.
    while server.connect().try_live() != Some(200) {}
    first.request("GET", "/v1/queues/q", "").expect_status(200);
}

#[test]
fn a_head_or_body_that_does_not_arrive_ends_the_connection() {
    let server = TestServer::start_with(Settings { request_timeout: SHORT, ..Settings::default() });
    let mut silent = server.connect();
    assert!(silent.try_response().is_none());
    let mut connection = server.connect();
    connection.request("GET", "/v1/health/live", "").expect_status(200);
    connection.send_raw(b"GET / HT");
    connection.response().problem(408, "too-slow");
    assert!(connection.try_response().is_none());
    let mut connection = server.connect();
    connection.send("POST", "/v1/queues/q/messages", "content-length: 5\r\n", b"");
    connection.send_raw(b"abc");
    connection.response().problem(408, "too-slow");
}

#[test]
fn a_connection_that_is_idle_for_too_long_is_closed() {
    let server = TestServer::start_with(Settings { idle_timeout: SHORT, ..Settings::default() });
    let mut connection = server.connect();
    connection.request("GET", "/v1/health/live", "").expect_status(200);
    assert!(connection.try_response().is_none());
}
