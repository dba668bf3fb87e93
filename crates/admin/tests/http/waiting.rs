//! Clients that wait for messages, and clients that disconnect while they wait.

use std::time::Duration;

use mainstem_admin::Settings;
use mainstem_queue_core::{Disposition, Request};
use serde_json::json;

use crate::client::{Connection, TestServer};

fn is_receive(request: &Request) -> bool {
    matches!(request, Request::Receive { .. })
}

fn is_leave(request: &Request) -> bool {
    matches!(request, Request::Leave { .. })
}

fn is_stop_waiting(request: &Request) -> bool {
    matches!(request, Request::StopWaiting { .. })
}

fn is_release(request: &Request) -> bool {
    matches!(request, Request::Settle { settlements, .. } if settlements[0].disposition == Disposition::Release)
}

fn wait(server: &TestServer, query: &str) -> Connection {
    let mut connection = server.connect();
    connection.send("POST", &format!("/v1/queues/q/receive?wait_ms=60000&{query}"), "", b"");
    connection
}

fn consumer(request: &Request) -> u64 {
    match request {
        Request::Receive { consumer, .. }
        | Request::Leave { consumer, .. }
        | Request::StopWaiting { consumer, .. } => *consumer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn waiting_clients_get_messages_as_they_arrive() {
    let server = TestServer::start();
    let mut first = wait(&server, "");
    server.fake.wait_for(is_receive);
    let mut second = wait(&server, "");
    let requests = server.fake.wait_for_several(2, is_receive);
    assert_ne!(consumer(&requests[0]), consumer(&requests[1]), "each consumer has its own id");
    server.fake.put(&[b"a", b"b"]);
    assert_eq!(first.response().expect_status(200).json()["messages"][0]["body"], "a");
    assert_eq!(second.response().expect_status(200).json()["messages"][0]["body"], "b");
    // Both connections can be used again.
    first.request("POST", "/v1/queues/q/ack", r#"{ "receipts": ["0-1-0000002a"] }"#).expect_status(200);
    second.request("POST", "/v1/queues/q/ack", r#"{ "receipts": ["1-1-0000002a"] }"#).expect_status(200);
}

#[test]
fn a_disconnected_client_no_longer_waits() {
    let server = TestServer::start();
    let client = wait(&server, "");
    let received = server.fake.wait_for(is_receive);
    drop(client);
    let left = server.fake.wait_for(is_leave);
    assert_eq!(consumer(&received), consumer(&left));
    server.fake.put(&[b"a"]);
    let response = server.request("POST", "/v1/queues/q/receive", "").expect_status(200).json();
    assert_eq!(response["messages"][0]["delivery_count"], 1, "the disconnected client got no lease");
}

#[test]
fn releases_messages_that_cannot_be_sent() {
    let settings = Settings { body_bytes_max: 1 << 30, ..Settings::default() };
    let server = TestServer::start_with(settings);
    // More than the socket buffers hold for a client that does not read.
    let large = vec![b'x'; 24 << 20];
    server.fake.put(&[&large]);
    let client = wait(&server, "");
    server.fake.wait_for(is_receive);
    drop(client);
    server.fake.wait_for(is_release);
    let response = server.request("POST", "/v1/queues/q/receive?wait_ms=60000", "").expect_status(200).json();
    assert_eq!(response["messages"][0]["delivery_count"], 2);
    server.request("POST", "/v1/queues/q/ack", r#"{ "receipts": ["0-2-0000002a"] }"#).expect_status(200);
}

#[test]
fn releases_messages_of_a_client_that_does_not_read() {
    let request_timeout = Duration::from_secs(1);
    let server =
        TestServer::start_with(Settings { body_bytes_max: 1 << 30, request_timeout, ..Settings::default() });
    server.fake.put(&[&vec![b'x'; 24 << 20]]);
    let client = wait(&server, "");
    server.fake.wait_for(is_release);
    drop(client);
}

#[test]
fn waiting_for_messages_does_not_time_out() {
    let (request_timeout, idle_timeout) = (Duration::from_secs(1), Duration::from_secs(1));
    let server = TestServer::start_with(Settings { request_timeout, idle_timeout, ..Settings::default() });
    let mut client = wait(&server, "");
    server.fake.wait_for(is_receive);
    let mut idle = server.connect();
    idle.request("GET", "/v1/health/live", "").expect_status(200);
    assert!(idle.try_response().is_none(), "idle connections are closed after the timeout");
    server.fake.put(&[b"a"]);
    assert_eq!(client.response().expect_status(200).json()["messages"][0]["body"], "a");
}

#[test]
fn received_messages_are_not_released_on_disconnect() {
    let server = TestServer::start();
    server.fake.put(&[b"a"]);
    let mut client = wait(&server, "");
    client.response().expect_status(200);
    drop(client);
    server.request("POST", "/v1/queues/q/ack", r#"{ "receipts": ["0-1-0000002a"] }"#).expect_status(200);
}

#[test]
fn a_named_consumer_has_one_id_and_one_request() {
    let server = TestServer::start();
    let mut older = wait(&server, "consumer=worker");
    server.fake.wait_for(is_receive);
    let mut newer = wait(&server, "consumer=worker");
    assert_eq!(older.response().expect_status(200).json(), json!({ "messages": [] }));
    let requests = server.fake.wait_for_several(2, is_receive);
    assert_eq!(consumer(&requests[0]), consumer(&requests[1]));
    drop(older);
    assert_eq!(
        server.fake.count(is_leave) + server.fake.count(is_stop_waiting),
        0,
        "the newer request goes on"
    );
    let mut other = wait(&server, "consumer=other");
    let requests = server.fake.wait_for_several(3, is_receive);
    assert_ne!(consumer(&requests[0]), consumer(&requests[2]));
    server.fake.put(&[b"a", b"b"]);
    assert_eq!(newer.response().expect_status(200).json()["messages"][0]["body"], "a");
    assert_eq!(other.response().expect_status(200).json()["messages"][0]["body"], "b");
}

#[test]
fn a_named_consumer_survives_its_connection() {
    let server = TestServer::start();
    let client = wait(&server, "consumer=worker");
    let received = server.fake.wait_for(is_receive);
    drop(client);
    let ended = server.fake.wait_for(is_stop_waiting);
    assert_eq!(consumer(&received), consumer(&ended));
    assert_eq!(server.fake.count(is_leave), 0, "only unnamed consumers leave");
}

#[test]
fn draining_ends_waiting_requests() {
    let mut server = TestServer::start();
    let mut client = wait(&server, "");
    server.fake.wait_for(is_receive);
    server.drain();
    assert_eq!(client.response().expect_status(200).json(), json!({ "messages": [] }));
    // Later requests do not wait.
    client.send("POST", "/v1/queues/q/receive?wait_ms=60000", "", b"");
    assert_eq!(client.response().expect_status(200).json(), json!({ "messages": [] }));
    server.end();
    assert!(client.try_response().is_none());
}
