//! Managing queues, groups and bindings; metrics and health.

use mainstem_queue_core::{ReplayFrom, Request};
use serde_json::json;

use crate::client::TestServer;

#[test]
fn creates_shows_configures_and_deletes_a_queue() {
    let server = TestServer::start();
    let settings = r#"{ "lease_ms": 500, "fifo": false, "overflow": "drop-oldest" }"#;
    let created = server.request("PUT", "/v1/queues/jobs", settings).expect_status(201).json();
    assert_eq!(created["settings"], json!({ "fifo": false, "lease_ms": 500, "overflow": "drop-oldest" }));
    server.request("PUT", "/v1/queues/jobs", settings).expect_status(200);
    server.request("PUT", "/v1/queues/jobs", "").problem(409, "exists");
    let shown = server.request("GET", "/v1/queues/jobs", "").expect_status(200).json();
    assert_eq!((&shown["name"], &shown["messages"]), (&json!("jobs"), &json!(0)));
    assert_eq!(shown["groups"][0]["name"], "default");
    let changed =
        server.request("PATCH", "/v1/queues/jobs", r#"{ "lease-ms": 900 }"#).expect_status(200).json();
    assert_eq!(changed["settings"], json!({ "lease_ms": 900 }));
    let list = server.request("GET", "/v1/queues", "").expect_status(200).json();
    assert_eq!(list, json!({ "queues": [{ "name": "jobs" }, { "name": "q" }] }));
    let list = server.request("GET", "/v1/queues?info=true", "").expect_status(200).json();
    assert_eq!(list["queues"][0], changed);
    let gone = server.request("DELETE", "/v1/queues/jobs", "").expect_status(204);
    assert!(gone.body.is_empty());
    server.request("GET", "/v1/queues/jobs", "").problem(404, "unknown-queue");
}

#[test]
fn rejects_invalid_settings() {
    let server = TestServer::start();
    let detail = server.request("PUT", "/v1/queues/jobs", r#"{ "lease": 1 }"#).problem(422, "invalid");
    assert!(detail.contains("lease"), "{detail}");
    for lease_ms in ["[]", "null", "\"900\""] {
        let settings = format!(r#"{{ "lease_ms": {lease_ms} }}"#);
        server.request("PUT", "/v1/queues/jobs", &settings).problem(422, "invalid");
    }
    server.request("PUT", "/v1/queues/jobs", "[]").problem(422, "invalid");
    server.request("PUT", "/v1/queues/jobs", "{").problem(400, "malformed");
}

#[test]
fn adds_shows_and_removes_bindings() {
    let server = TestServer::start();
    let binding = r#"{ "kind": "mqtt-to-queue", "filter": "a/#", "queue": "q" }"#;
    let added = server.request("PUT", "/v1/bindings/b", binding).expect_status(201).json();
    assert_eq!(added, json!({ "name": "b", "kind": "mqtt-to-queue", "filter": "a/#", "queue": "q" }));
    server.request("PUT", "/v1/bindings/b", binding).expect_status(200);
    server.request("PUT", "/v1/bindings/b", r#"{ "kind": "mqtt-to-topic" }"#).problem(409, "exists");
    server.request("PUT", "/v1/bindings/c", "{}").problem(422, "invalid");
    let null = r#"{ "kind": "mqtt-to-topic", "durability": null }"#;
    assert!(server.request("PUT", "/v1/bindings/c", null).problem(422, "invalid").contains("durability"));
    assert_eq!(
        server.request("GET", "/v1/bindings", "").expect_status(200).json(),
        json!({ "bindings": [added.clone()] })
    );
    assert_eq!(server.request("GET", "/v1/bindings/b", "").expect_status(200).json(), added);
    server.request("DELETE", "/v1/bindings/b", "").expect_status(204);
    server.request("DELETE", "/v1/bindings/b", "").problem(404, "unknown-binding");
    server.request("GET", "/v1/bindings/b", "").problem(404, "unknown-binding");
}

#[test]
fn metrics_cover_all_queues() {
    let server = TestServer::start();
    let metrics = server.request("GET", "/metrics", "").expect_status(200);
    let text = std::str::from_utf8(&metrics.body).unwrap();
    assert!(text.contains("\nmainstem_queue_group_ready{queue=\"q\",group=\"default\"} "), "{text}");
    let turns = "\nmainstem_turn_duration_seconds_bucket{shard=\"0\",phase=\"total\",le=\"+Inf\"} 4\n";
    assert!(text.contains(turns), "{text}");
}

#[test]
fn an_unreadable_queue_does_not_hide_the_others() {
    let server = TestServer::start();
    server.fake.break_queue("broken");
    let list = server.request("GET", "/v1/queues?info=true", "").expect_status(200).json();
    assert_eq!(list["queues"][0]["name"], "broken");
    assert_eq!(list["queues"][0]["problem"]["type"], "urn:mainstem:problem:storage");
    assert_eq!((&list["queues"][1]["name"], &list["queues"][1]["messages"]), (&json!("q"), &json!(0)));
    let metrics = server.request("GET", "/metrics", "").expect_status(200);
    let text = std::str::from_utf8(&metrics.body).unwrap();
    for line in [
        "mainstem_queue_available{queue=\"broken\"} 0",
        "mainstem_queue_available{queue=\"q\"} 1",
        "mainstem_queue_messages{queue=\"q\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    assert!(!text.contains("mainstem_queue_messages{queue=\"broken\"}"), "{text}");
    server.request("GET", "/v1/queues/broken", "").problem(503, "storage");
}

#[test]
fn peeks_purges_redrives_and_replays() {
    let server = TestServer::start();
    server.fake.put(&[b"a", b"b", b"\xFF"]);
    let shown = server.request("GET", "/v1/queues/q/peek?from=1&max=5", "").expect_status(200).json();
    assert_eq!(shown["messages"][0]["body"], "b");
    assert_eq!(shown["messages"][0]["state"], "ready");
    assert_eq!(shown["messages"][1]["body_base64"], "/w==");
    server.request("GET", "/v1/queues/q/peek?max=1001", "").problem(422, "invalid");
    assert_eq!(
        server.request("POST", "/v1/queues/q/purge?group=g", "").expect_status(200).json(),
        json!({ "count": 3 })
    );
    assert_eq!(
        server.request("POST", "/v1/queues/q/redrive", r#"{ "max": 1 }"#).expect_status(200).json(),
        json!({ "count": 1, "skipped": 2 })
    );
    assert_eq!(
        server.request("POST", "/v1/queues/q/redrive", "").expect_status(200).json(),
        json!({ "count": 3, "skipped": 2 })
    );
    let replay = "/v1/queues/q/groups/a%2Fb/replay";
    server.request("POST", replay, r#"{ "from_offset": 7 }"#).expect_status(200);
    let replayed = server.fake.wait_for(|request| matches!(request, Request::Replay { .. }));
    let Request::Replay { group, from } = replayed else { unreachable!("matched above") };
    assert_eq!((&*group, from), ("a/b", ReplayFrom::Offset(7)));
    server.request("POST", replay, r#"{ "from_time_ms": 7 }"#).expect_status(200);
    server.request("POST", replay, "").problem(422, "invalid");
    server.request("DELETE", "/v1/queues/q/groups/g", "").expect_status(204);
    server.request("DELETE", "/v1/queues/none/groups/g", "").problem(404, "unknown-queue");
}

#[test]
fn distinguishes_liveness_from_readiness() {
    let mut server = TestServer::start();
    assert_eq!(
        server.request("GET", "/v1/health/live", "").expect_status(200).json(),
        json!({ "status": "live" })
    );
    assert_eq!(
        server.request("GET", "/v1/health/ready", "").expect_status(200).json(),
        json!({ "status": "ready" })
    );
    server.fake.fail("the disk is full");
    let failing = json!({ "status": "failing", "errors": ["the disk is full"] });
    assert_eq!(server.request("GET", "/v1/health/ready", "").expect_status(503).json(), failing);
    server.drain();
    assert_eq!(
        server.request("GET", "/v1/health/ready", "").expect_status(503).json(),
        json!({ "status": "draining" })
    );
    server.request("GET", "/v1/health/live", "").expect_status(200);
    let mut idle = server.connect();
    idle.request("GET", "/v1/health/live", "").expect_status(200);
    server.end();
    assert!(idle.try_response().is_none(), "idle connections are closed at once");
}

#[test]
fn serves_the_openapi_description() {
    let response = TestServer::start().request("GET", "/openapi.json", "").expect_status(200);
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert_eq!(response.json()["openapi"], "3.1.0");
}
