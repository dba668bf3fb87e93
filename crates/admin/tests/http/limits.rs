//! Requests that are rejected before they reach a queue.

use mainstem_admin::Settings;

use crate::client::{Response, TestServer};

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

/// A client that learned of it only when it sends its next request would not know whether that was handled.
#[test]
fn a_response_before_the_body_says_that_the_connection_closes() {
    let server = TestServer::start();
    let mut connection = server.connect();
    connection.send_raw(
        b"PUT /v1/queues/q HTTP/1.1\r\nhost: localhost\r\norigin: http://a\r\ncontent-length: 2\r\n\r\n",
    );
    let refused = connection.response();
    assert_eq!(refused.header("connection"), Some("close"));
    refused.problem(403, "cross-site");
    // Without a body, the connection stays.
    let mut connection = server.connect();
    for _ in 0..2 {
        connection.send("PUT", "/v1/queues/q", "origin: http://a\r\n", b"");
        let refused = connection.response();
        assert_eq!(refused.header("connection"), None);
        refused.problem(403, "cross-site");
    }
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

#[test]
fn parameters_are_in_the_query_and_in_the_body() {
    let server = TestServer::start();
    server.fake.put(&[b"a", b"b", b"c"]);
    let receive = "/v1/queues/q/receive";
    let messages =
        |body: &str| server.request("POST", receive, body).expect_status(200).json()["messages"].clone();
    assert_eq!(messages(r#"{ "max": 2 }"#).as_array().unwrap().len(), 2);
    assert_eq!(messages("").as_array().unwrap().len(), 1);
    server.request("POST", receive, r#"{ "max": 0 }"#).problem(422, "invalid");
    server.request("POST", receive, r#"{ "most": 1 }"#).problem(422, "invalid");
    server.request("POST", receive, "{").problem(400, "malformed");
    server.request("POST", receive, r#"{ "max": "1" }"#).problem(422, "invalid");
    // The query comes first.
    server.fake.put(&[b"d", b"e", b"f"]);
    let both = |query: &str, body: &str| server.request("POST", &format!("{receive}?{query}"), body);
    let count = |response: Response| response.expect_status(200).json()["messages"].as_array().unwrap().len();
    assert_eq!(count(both("max=1", r#"{ "max": 2 }"#)), 1);
    assert_eq!(count(both("wait_ms=0", r#"{ "max": 2 }"#)), 2);
    both("max=0", r#"{ "max": 1 }"#).problem(422, "invalid");
    both("max=1", r#"{ "max": 0 }"#).problem(422, "invalid");
    both("max=1", r#"{ "consumer": null }"#).problem(422, "invalid");
    both("group=a", r#"{ "group": "a/b" }"#).problem(422, "invalid");
    both("most=1", r#"{ "max": 1 }"#).problem(400, "malformed");
    let mut connection = server.connect();
    connection.send("POST", "/v1/queues/q/purge", "content-type: text/plain\r\n", b"group=g");
    connection.response().problem(415, "media-type");
    for method in ["GET", "DELETE"] {
        server.request(method, "/v1/queues/q", "{}").problem(422, "invalid");
        server.request(method, receive, "{}").problem(405, "method");
    }
}

#[test]
fn rejects_arrays_in_place_of_objects() {
    let server = TestServer::start();
    for (path, body) in [
        (MESSAGES, r#"[[{ "body": "a" }]]"#),
        (MESSAGES, r#"{ "messages": [["a"]] }"#),
        ("/v1/queues/q/ack", r#"[["0-1-0000002a"]]"#),
        ("/v1/queues/q/receive", "[]"),
    ] {
        assert!(server.request("POST", path, body).problem(422, "invalid").contains("an object"), "{body}");
    }
}

#[test]
fn rejects_deeply_nested_json() {
    let server = TestServer::start();
    let deep = "[".repeat(100_000);
    let message = format!(r#"{{ "messages": [{{ "headers": {{ "a": {deep}"#);
    server.request("POST", MESSAGES, &message).problem(400, "malformed");
    server.request("PATCH", "/v1/queues/q", &format!(r#"{{ "a": {deep}"#)).problem(400, "malformed");
    server.request("PUT", "/v1/bindings/b", &"{\"kind\":".repeat(100_000)).problem(400, "malformed");
}

#[test]
fn rejects_names_of_other_servers() {
    let allowed_hosts = vec!["mainstem.example.com".to_owned()];
    let server = TestServer::start_with(Settings { allowed_hosts, ..Settings::default() });
    let live = |target: &str, host: &str| {
        let mut connection = server.connect();
        connection.send_raw(format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n\r\n").as_bytes());
        connection.response()
    };
    for host in ["127.0.0.1", "localhost:8080", "[::1]:1", "MAINSTEM.example.com:80"] {
        live("/v1/health/live", host).expect_status(200);
    }
    assert!(
        live("/v1/health/live", "evil.example.com:8080").problem(421, "host").contains("http.allowed_hosts")
    );
    live("http://evil.example.com/v1/health/live", "localhost").problem(421, "host");
    live("http://localhost/v1/health/live", "localhost").expect_status(200);
}

#[test]
fn rejects_malformed_heads_with_a_problem() {
    let server = TestServer::start();
    let long = "x".repeat(70_000);
    for (head, status, kind) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400, "malformed"),
        ("GET / HTTP/1.1\r\nhost: a\r\nhost: localhost\r\n\r\n".to_owned(), 400, "malformed"),
        ("GET / HTTP/1.1\nhost: localhost\n\n".to_owned(), 400, "malformed"),
        ("nonsense\r\n\r\n".to_owned(), 400, "malformed"),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\nx".to_owned(),
            400,
            "malformed",
        ),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n"
                .to_owned(),
            400,
            "malformed",
        ),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n".to_owned(),
            501,
            "transfer-encoding",
        ),
        (format!("GET /{long} HTTP/1.1\r\nhost: a\r\n\r\n"), 414, "head-too-large"),
        (format!("GET / HTTP/1.1\r\nhost: a\r\nx: {long}\r\n\r\n"), 431, "head-too-large"),
        (format!("GET / HTTP/1.1\r\nhost: a\r\n{}\r\n", "x: y\r\n".repeat(100)), 431, "head-too-large"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), 505, "version"),
        ("CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(), 405, "method"),
    ] {
        let mut connection = server.connect();
        // A valid request first: its response must not be lost. What follows must not be served.
        connection.send_raw(b"GET /v1/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n");
        connection.send_raw(head.as_bytes());
        connection.send_raw(b"GET /v1/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n");
        connection.response().expect_status(200);
        let refused = connection.response();
        assert_eq!(refused.header("connection"), Some("close"), "{head:.60}");
        refused.problem(status, kind);
        assert!(connection.try_response().is_none(), "{head:.60}");
    }
}

#[test]
fn a_malformed_head_does_not_end_the_request_before_it() {
    let server = TestServer::start();
    let mut connection = server.connect();
    connection.send("POST", "/v1/queues/q/receive?wait_ms=20000", "", b"");
    server.fake.wait_for(|request| matches!(request, mainstem_queue_core::Request::Receive { .. }));
    connection.send_raw(b"GET / HTTP/1.1\r\n\r\n");
    server.fake.put(&[b"a"]);
    assert_eq!(connection.response().expect_status(200).json()["messages"][0]["body"], "a");
    connection.response().problem(400, "malformed");
}

#[test]
fn a_malformed_chunk_ends_the_request() {
    let server = TestServer::start();
    for chunks in ["5\r\nhello\r\nx\r\n", "5\nhello\n0\n\n", "0\r\na\n\r\n"] {
        let mut connection = server.connect();
        connection.send("POST", MESSAGES, "transfer-encoding: chunked\r\n", b"");
        connection.send_raw(chunks.as_bytes());
        connection.send_raw(b"GET /v1/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n");
        connection.response().problem(400, "malformed");
        assert!(connection.try_response().is_none(), "{chunks:?}");
    }
}
