//! Messages sent, received, settled.

use mainstem_queue::{Request, Verdict};
use serde_json::{Value, json};

use crate::client::Door;
use crate::fake::ARRIVED_MS;

const MESSAGES: &str = "/v1/queues/q/messages";

fn receive(door: &Door, query: &str) -> Vec<Value> {
    let answer = door.ask("POST", &format!("/v1/queues/q/receive?{query}"), "").is(200).json();
    answer["messages"].as_array().unwrap().clone()
}

#[test]
fn what_is_sent_is_received() {
    let door = Door::open();
    let batch = json!({ "messages": [
        { "body": "one", "key": "k", "headers": { "trace": "7" }, "priority": 3 },
        { "body_base64": "/wA=" },
    ]});
    let sent = door.ask("POST", MESSAGES, &batch.to_string()).is(201).json();
    assert_eq!(sent, json!({ "results": [{ "offset": 0 }, { "offset": 1 }] }));
    let got = receive(&door, "max=10");
    let first = json!({
        "receipt": "0-1-0000002a", "offset": 0, "delivery_count": 1, "enqueued_at": ARRIVED_MS,
        "first_delivered_at": ARRIVED_MS + 1, "lease_until": ARRIVED_MS + 30_000,
        "key": "k", "headers": { "trace": "7", "priority": "3" }, "body": "one",
    });
    assert_eq!(got[0], first);
    assert_eq!((got.len(), &got[1]["body_base64"]), (2, &json!("/wA=")));
    assert!(receive(&door, "").is_empty());
}

#[test]
fn a_body_that_is_no_json_is_one_message_as_it_is() {
    let door = Door::open();
    let mut connection = door.connect();
    let path = format!("{MESSAGES}?key=a%20b&priority=9&ttl_ms=5&dedup_id=x&header=a%3D1&header=a%3D2");
    connection.send("POST", &path, "content-type: image/png\r\n", b"{\"messages\": \xFF");
    connection.answer().is(201);
    connection.send("POST", MESSAGES, "", b"");
    connection.answer().is(201);
    let got = receive(&door, "max=2");
    assert_eq!(got[0]["body_base64"], "eyJtZXNzYWdlcyI6IP8=");
    assert_eq!(got[0]["key"], "a b");
    let headers = json!({ "a": ["1", "2"], "priority": "9", "ttl-ms": "5", "dedup-id": "x" });
    assert_eq!(got[0]["headers"], headers);
    assert_eq!(got[1]["body"], "");
    for query in ["prio=1", "priority=high", "priority=10", "header=a", "delay_ms=1&deliver_at=2"] {
        connection.send("POST", &format!("{MESSAGES}?{query}"), "", b"x");
        connection.answer().problem(422, "invalid");
    }
}

#[test]
fn each_message_of_a_batch_has_an_answer() {
    let door = Door::open();
    let messages = |bodies: &[&str]| {
        let messages: Vec<Value> = bodies.iter().map(|body| json!({ "body": body })).collect();
        json!({ "messages": messages }).to_string()
    };
    let some = door.ask("POST", MESSAGES, &messages(&["a", "one too many"])).is(207).json();
    assert_eq!(some["results"][0], json!({ "offset": 0 }));
    assert_eq!(some["results"][1]["problem"]["type"], "urn:mainstem:problem:full");
    let none = door.ask("POST", MESSAGES, &messages(&["one too many", "one too many"]));
    assert_eq!(none.header("retry-after"), Some("1"));
    assert_eq!(none.json()["results"].as_array().unwrap().len(), 2);
    none.problem(429, "full");
    door.ask("POST", MESSAGES, &messages(&["one too many"])).problem(429, "full");
    let detail = door.ask("POST", MESSAGES, &json!({ "messages": [{}, { "priority": 10 }] }).to_string());
    assert!(detail.problem(422, "invalid").starts_with("messages[1]: "));
    door.ask("POST", MESSAGES, &messages(&["x"; 1001])).problem(422, "invalid");
    door.ask("POST", MESSAGES, &messages(&["x"; 1000])).is(201);
    door.ask("POST", MESSAGES, r#"{ "messages": [] }"#).problem(422, "invalid");
    door.ask("POST", &format!("{MESSAGES}?key=k"), &messages(&["x"])).problem(422, "invalid");
    door.ask("POST", "/v1/queues/none/messages", &messages(&["x"])).problem(404, "unknown-queue");
}

#[test]
fn messages_are_settled_by_their_receipts() {
    let door = Door::open();
    door.fake.put(&[b"a", b"b", b"c", b"d"]);
    assert_eq!(receive(&door, "max=4").len(), 4);
    let settle =
        |what: &str, body: Value| door.ask("POST", &format!("/v1/queues/q/{what}"), &body.to_string());
    let acked =
        settle("ack", json!({ "receipts": ["0-1-0000002a", "1-2-0000002a", "9-1-0000002a"] })).is(200).json();
    let outcomes: Vec<&Value> =
        acked["results"].as_array().unwrap().iter().map(|result| &result["outcome"]).collect();
    assert_eq!(outcomes, ["ok", "stale", "stale"]);
    settle("ack", json!({ "receipts": ["0-1-0000002a"] })).problem(409, "stale");
    settle("nack", json!({ "receipts": ["1-1-0000002a"], "delay_ms": 0 })).is(200);
    settle("extend", json!({ "receipts": ["2-1-0000002a"], "lease_ms": 60_000 })).is(200);
    settle("reject?group=default", json!({ "receipts": ["3-1-0000002a"] })).is(200);
    assert_eq!(receive(&door, "")[0]["receipt"], "1-2-0000002a");
    let is_extended = |request: &Request| match request {
        Request::Settle { settlements, .. } => settlements[0].verdict == Verdict::Extend(60_000),
        _ => false,
    };
    door.fake.wait_for(is_extended);
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
fn bounds_of_receive_are_kept() {
    let door = Door::open();
    for query in ["max=0", "max=1001", "wait_ms=60001", "lease_ms=0", "consumer="] {
        door.ask("POST", &format!("/v1/queues/q/receive?{query}"), "").problem(422, "invalid");
    }
    door.ask("POST", "/v1/queues/q/receive?max=x", "").problem(400, "malformed");
    door.ask("POST", "/v1/queues/q/receive?least=1", "").problem(400, "malformed");
    door.ask("POST", "/v1/queues/none/receive", "").problem(404, "unknown-queue");
}
