//! Requests that are rejected before they reach a queue.

use mainstem_admin::Settings;

use crate::client::TestServer;

const MESSAGES: &str = "/v1/queues/q/messages";

#[test]
fn distinguishes_unknown_paths_methods_and_media_types() {
    let server = TestServer::start();
    server.request("GET", "/", "").problem(404, "no-route");
    server.request("GET", "/v1/queues/q/nothing", "").problem(404, "no-route");
    let refused = server.request("PUT", MESSAGES, "{}");
    assert_eq!(refused.header("allow"), Some("POST"));
    refused.problem(405, "method");
    server.request("GET", "/v1/queues/%FF", "").problem(400, "malformed");
    let mut connection = server.connect();
    connection.send("POST", "/v1/queues/q/ack", "content-type: text/plain\r\n", b"{}");
    connection.response().problem(415, "media-type");
}

#[test]
fn rejects_requests_from_web_pages() {
    let server = TestServer::start();
    let mut connection = server.connect();
    for method in ["POST", "OPTIONS"] {
        connection.send(method, MESSAGES, "origin: https://example.com\r\n", b"");
        connection.response().problem(403, "cross-site");
    }
    assert!(server.request("GET", "/v1/queues/q", "").expect_status(200).json()["messages"] == 0);
}

#[test]
fn rejects_bodies_above_the_limit() {
    let server = TestServer::start_with(Settings { body_bytes_max: 1000, ..Settings::default() });
    let mut connection = server.connect();
    connection.send("POST", MESSAGES, "", &[b'x'; 1000]);
    connection.response().expect_status(201);
    connection.send("POST", MESSAGES, "", &[b'x'; 1001]);
    connection.response().problem(413, "too-large");
    let mut connection = server.connect();
    connection.send("POST", MESSAGES, "transfer-encoding: chunked\r\n", b"");
    connection.send_raw(format!("3e8\r\n{}\r\n1\r\nx\r\n", "x".repeat(1000)).as_bytes());
    connection.response().problem(413, "too-large");
    // A client that sends `Expect: 100-continue` gets the response before it sends the body.
    let mut connection = server.connect();
    let headers = "content-length: 1001\r\nexpect: 100-continue\r\n";
    connection.send("POST", MESSAGES, headers, b"");
    connection.response().problem(413, "too-large");
}
