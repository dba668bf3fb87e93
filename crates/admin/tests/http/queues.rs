//! Queues and their groups: made, shown, changed, emptied, removed; health.

use mainstem_queue::{ReplayFrom, Request};
use serde_json::json;

use crate::client::Door;

#[test]
fn a_queue_is_made_once_shown_changed_and_removed() {
    let door = Door::open();
    let settings = r#"{ "lease_ms": 500, "fifo": false, "overflow": "drop-oldest" }"#;
    let made = door.ask("PUT", "/v1/queues/jobs", settings).is(201).json();
    assert_eq!(made["settings"], json!({ "fifo": false, "lease_ms": 500, "overflow": "drop-oldest" }));
    door.ask("PUT", "/v1/queues/jobs", settings).is(200);
    door.ask("PUT", "/v1/queues/jobs", "").problem(409, "exists");
    let shown = door.ask("GET", "/v1/queues/jobs", "").is(200).json();
    assert_eq!((&shown["name"], &shown["messages"]), (&json!("jobs"), &json!(0)));
    assert_eq!(shown["groups"][0]["name"], "default");
    let changed = door.ask("PATCH", "/v1/queues/jobs", r#"{ "lease-ms": "900" }"#).is(200).json();
    assert_eq!(changed["settings"], json!({ "lease_ms": 900 }));
    let list = door.ask("GET", "/v1/queues", "").is(200).json();
    assert_eq!(list, json!({ "queues": [{ "name": "jobs" }, { "name": "q" }] }));
    let list = door.ask("GET", "/v1/queues?info=true", "").is(200).json();
    assert_eq!(list["queues"][0], changed);
    let gone = door.ask("DELETE", "/v1/queues/jobs", "").is(204);
    assert!(gone.body.is_empty());
    door.ask("GET", "/v1/queues/jobs", "").problem(404, "unknown-queue");
}

#[test]
fn settings_that_there_are_not_are_refused_in_words() {
    let door = Door::open();
    let detail = door.ask("PUT", "/v1/queues/jobs", r#"{ "lease": 1 }"#).problem(422, "invalid");
    assert!(detail.contains("lease"), "{detail}");
    door.ask("PUT", "/v1/queues/jobs", r#"{ "lease_ms": [] }"#).problem(422, "invalid");
    door.ask("PUT", "/v1/queues/jobs", "[]").problem(422, "invalid");
    door.ask("PUT", "/v1/queues/jobs", "{").problem(400, "malformed");
}

#[test]
fn bindings_are_added_once_shown_and_taken_away() {
    let door = Door::open();
    let binding = r#"{ "kind": "mqtt-to-queue", "filter": "a/#", "queue": "q" }"#;
    let added = door.ask("PUT", "/v1/bindings/b", binding).is(201).json();
    assert_eq!(added, json!({ "name": "b", "kind": "mqtt-to-queue", "filter": "a/#", "queue": "q" }));
    door.ask("PUT", "/v1/bindings/b", binding).is(200);
    door.ask("PUT", "/v1/bindings/b", r#"{ "kind": "mqtt-to-topic" }"#).problem(409, "exists");
    door.ask("PUT", "/v1/bindings/c", "{}").problem(422, "invalid");
    assert_eq!(door.ask("GET", "/v1/bindings", "").is(200).json(), json!({ "bindings": [added.clone()] }));
    assert_eq!(door.ask("GET", "/v1/bindings/b", "").is(200).json(), added);
    door.ask("DELETE", "/v1/bindings/b", "").is(204);
    door.ask("DELETE", "/v1/bindings/b", "").problem(404, "unknown-binding");
    door.ask("GET", "/v1/bindings/b", "").problem(404, "unknown-binding");
}

#[test]
fn numbers_of_all_queues_are_told_as_text() {
    let door = Door::open();
    let told = door.ask("GET", "/metrics", "").is(200);
    let text = std::str::from_utf8(&told.body).unwrap();
    assert!(text.contains("\nmainstem_queue_group_ready{queue=\"q\",group=\"default\"} "), "{text}");
}

#[test]
fn a_queue_that_cannot_be_read_keeps_nobody_from_the_others() {
    let door = Door::open();
    door.fake.break_queue("broken");
    let list = door.ask("GET", "/v1/queues?info=true", "").is(200).json();
    assert_eq!(list["queues"][0]["name"], "broken");
    assert_eq!(list["queues"][0]["problem"]["type"], "urn:mainstem:problem:storage");
    assert_eq!((&list["queues"][1]["name"], &list["queues"][1]["messages"]), (&json!("q"), &json!(0)));
    let told = door.ask("GET", "/metrics", "").is(200);
    let text = std::str::from_utf8(&told.body).unwrap();
    for line in [
        "mainstem_queue_available{queue=\"broken\"} 0",
        "mainstem_queue_available{queue=\"q\"} 1",
        "mainstem_queue_messages{queue=\"q\"} 0",
    ] {
        assert!(text.lines().any(|told| told == line), "{line}: {text}");
    }
    assert!(!text.contains("mainstem_queue_messages{queue=\"broken\"}"), "{text}");
    door.ask("GET", "/v1/queues/broken", "").problem(503, "storage");
}

#[test]
fn operators_look_empty_send_back_and_replay() {
    let door = Door::open();
    door.fake.put(&[b"a", b"b", b"\xFF"]);
    let shown = door.ask("GET", "/v1/queues/q/peek?from=1&max=5", "").is(200).json();
    assert_eq!(shown["messages"][0]["body"], "b");
    assert_eq!(shown["messages"][0]["state"], "ready");
    assert_eq!(shown["messages"][1]["body_base64"], "/w==");
    door.ask("GET", "/v1/queues/q/peek?max=1001", "").problem(422, "invalid");
    assert_eq!(door.ask("POST", "/v1/queues/q/purge?group=g", "").is(200).json(), json!({ "count": 3 }));
    assert_eq!(door.ask("POST", "/v1/queues/q/redrive?max=1", "").is(200).json(), json!({ "count": 1 }));
    assert_eq!(door.ask("POST", "/v1/queues/q/redrive", "").is(200).json(), json!({ "count": 3 }));
    let replay = "/v1/queues/q/groups/a%2Fb/replay";
    door.ask("POST", replay, r#"{ "from_offset": 7 }"#).is(200);
    let asked = door.fake.wait_for(|request| matches!(request, Request::Replay { .. }));
    let Request::Replay { group, from } = asked else { unreachable!("asked for above") };
    assert_eq!((&*group, from), ("a/b", ReplayFrom::Offset(7)));
    door.ask("POST", replay, r#"{ "from_time_ms": 7 }"#).is(200);
    door.ask("POST", replay, "").problem(422, "invalid");
    door.ask("DELETE", "/v1/queues/q/groups/g", "").is(204);
    door.ask("DELETE", "/v1/queues/none/groups/g", "").problem(404, "unknown-queue");
}

#[test]
fn health_tells_life_from_readiness() {
    let mut door = Door::open();
    assert_eq!(door.ask("GET", "/v1/health/live", "").is(200).json(), json!({ "status": "live" }));
    assert_eq!(door.ask("GET", "/v1/health/ready", "").is(200).json(), json!({ "status": "ready" }));
    door.fake.fail("the disk is full");
    let failing = json!({ "status": "failing", "faults": ["the disk is full"] });
    assert_eq!(door.ask("GET", "/v1/health/ready", "").is(503).json(), failing);
    door.drain();
    assert_eq!(door.ask("GET", "/v1/health/ready", "").is(503).json(), json!({ "status": "draining" }));
    door.ask("GET", "/v1/health/live", "").is(200);
    let mut idle = door.connect();
    idle.ask("GET", "/v1/health/live", "").is(200);
    door.end();
    assert!(idle.try_answer().is_none(), "a connection that waits for nothing is closed at once");
}

#[test]
fn the_description_is_served() {
    let answer = Door::open().ask("GET", "/openapi.json", "").is(200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.json()["openapi"], "3.1.0");
}
