//! Sending, receiving and settling messages.

use mainstem_queue_core::{Disposition, Request};
use serde_json::{Value, json};

use crate::client::TestServer;
use crate::fake::ARRIVED_MS;

const MESSAGES: &str = "/v1/queues/q/messages";

fn receive(server: &TestServer, query: &str) -> Vec<Value> {
    let response =
        server.request("POST", &format!("/v1/queues/q/receive?{query}"), "").expect_status(200).json();
    response["messages"].as_array().unwrap().clone()
}

#[test]
fn receives_what_was_sent() {
    let server = TestServer::start();
    let batch = json!({ "messages": [
        { "body": "one", "key": "k", "headers": { "trace": "7" }, "priority": 3 },
        { "body_base64": "/wA=" },
    ]});
    let sent = server.request("POST", MESSAGES, &batch.to_string()).expect_status(201).json();
    assert_eq!(sent, json!({ "results": [{ "offset": 0 }, { "offset": 1 }] }));
    let got = receive(&server, "max=10");
    let first = json!({
        "receipt": "0-1-0000002a", "offset": 0, "delivery_count": 1, "enqueued_at": ARRIVED_MS,
        "first_delivered_at": ARRIVED_MS + 1, "lease_until": ARRIVED_MS + 30_000,
        "key": "k", "headers": { "trace": "7", "priority": "3" }, "body": "one",
    });
    assert_eq!(got[0], first);
    assert_eq!((got.len(), &got[1]["body_base64"]), (2, &json!("/wA=")));
    assert!(receive(&server, "").is_empty());
}

#[test]
fn a_body_that_is_not_json_is_one_message() {
    let server = TestServer::start();
    let mut connection = server.connect();
    let path = format!("{MESSAGES}?key=a%20b&priority=9&ttl_ms=5&dedup_id=x&header=a%3D1&header=a%3D2");
    connection.send("POST", &path, "content-type: image/png\r\n", b"{\"messages\": \xFF");
    connection.response().expect_status(201);
    connection.send("POST", MESSAGES, "", b"");
    connection.response().expect_status(201);
    let got = receive(&server, "max=2");
    assert_eq!(got[0]["body_base64"], "eyJtZXNzYWdlcyI6IP8=");
    assert_eq!(got[0]["key"], "a b");
    let headers = json!({ "a": ["1", "2"], "priority": "9", "ttl-ms": "5", "dedup-id": "x" });
    assert_eq!(got[0]["headers"], headers);
    assert_eq!(got[1]["body"], "");
    for query in ["priority=10", "header=a"] {
        connection.send("POST", &format!("{MESSAGES}?{query}"), "", b"x");
        connection.response().problem(422, "invalid");
    }
    for query in ["prio=1", "priority=high", "priority=1&priority=1", "dedup_id=a&dedup_id=b"] {
        connection.send("POST", &format!("{MESSAGES}?{query}"), "", b"x");
        connection.response().problem(400, "malformed");
    }
}

#[test]
fn the_query_sets_what_the_messages_of_a_batch_do_not() {
    let server = TestServer::start();
    let batch =
        r#"{ "messages": [{ "body": "a" }, { "body": "b", "priority": 2, "headers": { "h": "own" } }] }"#;
    let path = format!("{MESSAGES}?key=k&priority=9&header=h%3D1");
    server.request("POST", &path, batch).expect_status(201);
    let got = receive(&server, "max=2");
    assert_eq!((&got[0]["key"], &got[1]["key"]), (&json!("k"), &json!("k")));
    assert_eq!(got[0]["headers"], json!({ "h": "1", "priority": "9" }));
    assert_eq!(got[1]["headers"], json!({ "h": "own", "priority": "2" }));
    let one = r#"{ "messages": [{ "body": "a" }] }"#;
    let path = format!("{MESSAGES}?dedup_id=d");
    server.request("POST", &path, one).expect_status(201);
    assert!(server.request("POST", &path, batch).problem(422, "invalid").contains("dedup_id"));
}

#[test]
fn each_message_of_a_batch_has_a_result() {
    let server = TestServer::start();
    let messages = |bodies: &[&str]| {
        let messages: Vec<Value> = bodies.iter().map(|body| json!({ "body": body })).collect();
        json!({ "messages": messages }).to_string()
    };
    let some = server.request("POST", MESSAGES, &messages(&["a", "one too many"])).expect_status(207).json();
    assert_eq!(some["results"][0], json!({ "offset": 0 }));
    assert_eq!(some["results"][1]["problem"]["type"], "urn:mainstem:problem:full");
    let none = server.request("POST", MESSAGES, &messages(&["one too many", "one too many"]));
    assert_eq!(none.header("retry-after"), Some("1"));
    assert_eq!(none.json()["results"].as_array().unwrap().len(), 2);
    none.problem(429, "full");
    server.request("POST", MESSAGES, &messages(&["one too many"])).problem(429, "full");
    let detail =
        server.request("POST", MESSAGES, &json!({ "messages": [{}, { "priority": 10 }] }).to_string());
    assert!(detail.problem(422, "invalid").starts_with("messages[1]: "));
    server.request("POST", MESSAGES, &messages(&["x"; 1001])).problem(422, "invalid");
    server.request("POST", MESSAGES, &messages(&["x"; 1000])).expect_status(201);
    server.request("POST", MESSAGES, r#"{ "messages": [] }"#).problem(422, "invalid");
    server.request("POST", "/v1/queues/none/messages", &messages(&["x"])).problem(404, "unknown-queue");
}

#[test]
fn settles_messages_by_receipt() {
    let server = TestServer::start();
    server.fake.put(&[b"a", b"b", b"c", b"d"]);
    assert_eq!(receive(&server, "max=4").len(), 4);
    let settle =
        |what: &str, body: Value| server.request("POST", &format!("/v1/queues/q/{what}"), &body.to_string());
    let acked = settle("ack", json!({ "receipts": ["0-1-0000002a", "1-2-0000002a", "9-1-0000002a"] }))
        .expect_status(200)
        .json();
    let outcomes: Vec<&Value> =
        acked["results"].as_array().unwrap().iter().map(|result| &result["outcome"]).collect();
    assert_eq!(outcomes, ["ok", "stale", "stale"]);
    settle("ack", json!({ "receipts": ["0-1-0000002a"] })).problem(409, "stale");
    settle("nack", json!({ "receipts": ["1-1-0000002a"], "delay_ms": 0 })).expect_status(200);
    settle("extend", json!({ "receipts": ["2-1-0000002a"], "lease_ms": 60_000 })).expect_status(200);
    settle("reject?group=default", json!({ "receipts": ["3-1-0000002a"] })).expect_status(200);
    assert_eq!(receive(&server, "")[0]["receipt"], "1-2-0000002a");
    let is_extended = |request: &Request| match request {
        Request::Settle { settlements, .. } => settlements[0].disposition == Disposition::Extend(60_000),
        _ => false,
    };
    server.fake.wait_for(is_extended);
    for (what, body) in [
        ("ack", json!({ "receipts": ["1"] })),
        ("ack", json!({ "receipts": ["1-99999999999"] })),
        ("ack", json!({ "receipts": [] })),
        ("ack", json!({ "receipts": ["1-1-0000002a"], "delay_ms": 1 })),
        ("extend", json!({ "receipts": ["1-1-0000002a"] })),
        ("extend", json!({ "receipts": ["1-1-0000002a"], "lease_ms": 0 })),
        ("ack", json!({})),
    ] {
        settle(what, body).problem(422, "invalid");
    }
}

#[test]
fn rejects_receive_parameters_out_of_range() {
    let server = TestServer::start();
    for query in ["max=0", "max=1001", "wait_ms=60001", "lease_ms=0", "consumer="] {
        server.request("POST", &format!("/v1/queues/q/receive?{query}"), "").problem(422, "invalid");
    }
    server.request("POST", "/v1/queues/q/receive?max=x", "").problem(400, "malformed");
    server.request("POST", "/v1/queues/q/receive?least=1", "").problem(400, "malformed");
    server.request("POST", "/v1/queues/none/receive", "").problem(404, "unknown-queue");
}
