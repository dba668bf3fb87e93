//! `mainstem queue`, and the broker's HTTP API.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::support::{Broker, Run, mainstem};

/// Longest wait for a message in these tests, in seconds.
const LONG: &str = "20";

/// Sends one request to the HTTP API. Returns status and body.
fn request(broker: &Broker, method: &str, path: &str, body: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(broker.http()).unwrap();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    let kind = format!("content-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{kind}{body}").as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let status = response.split(' ').nth(1).unwrap().parse().unwrap();
    let body = response.split_once("\r\n\r\n").unwrap().1;
    (status, if body.is_empty() { Value::Null } else { serde_json::from_str(body).unwrap() })
}

fn info(broker: &Broker, queue: &str) -> Value {
    let printed = broker.queue(&["info", queue, "-J"]).succeeds();
    serde_json::from_str(printed.text()).unwrap()
}

#[test]
fn creates_fills_reads_and_deletes_a_queue() {
    let broker = Broker::start(&[]);
    broker.queue(&["create", "jobs", "--set", "lease_ms=60000", "--set", "fifo=false"]).succeeds();
    broker.queue(&["create", "jobs", "--set", "fifo=false", "--set", "lease_ms=60000"]).succeeds();
    let refused = broker.queue(&["create", "jobs", "--set", "lease_ms=1000"]).fails_with(1);
    assert!(refused.errors().contains("queue jobs: "), "{}", refused.errors());
    broker.queue(&["configure", "jobs", "--set", "max_deliveries=7"]).succeeds();
    let settings = &info(&broker, "jobs")["settings"];
    assert_eq!((&settings["lease_ms"], &settings["max_deliveries"]), (&json!(60_000), &json!(7)));
    assert_eq!(settings["fifo"], false);

    broker.queue_with_input(&["send", "jobs", "-v"], b"one\n\ntwo\n\xFF\n").succeeds().prints("0\n1\n2\n");
    broker.queue(&["send", "jobs", "first", "--priority", "9", "-k", "k", "-H", "a=1"]).succeeds();
    broker
        .queue(&["peek", "jobs", "--from", "1", "-m", "2", "-f", "%o %x %S\\n"])
        .prints("1 ready 3\n2 ready 1\n");
    let list = broker.queue(&["list"]).succeeds();
    let row: Vec<&str> = list.text().lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!((row[0], row[1], row[5]), ("jobs", "4", "4"));

    let format = ["-f", "%o %c %k %h %s\\n"];
    let first = broker.queue(&[&["receive", "jobs", "-c", "1"], &format[..]].concat()).succeeds();
    first.prints("3 1 k a=1,priority=9 first\n");
    let rest = broker.queue(&["receive", "jobs", "-W", "0"]).succeeds();
    assert_eq!(rest.stdout, b"one\ntwo\n\xFF\n");
    assert_eq!(info(&broker, "jobs")["messages"], 0);
    broker.queue(&["receive", "jobs", "-c", "1", "-W", "0"]).fails_with(27).prints("");

    broker.queue(&["send", "jobs", "x"]).succeeds();
    broker.queue(&["purge", "jobs"]).succeeds().prints("1\n");
    broker.queue(&["replay", "jobs", "--from-offset", "0", "--group", "none"]).fails_with(1);
    broker.queue(&["delete", "jobs"]).succeeds();
    let gone = broker.queue(&["info", "jobs"]).fails_with(1);
    assert!(gone.errors().contains("queue jobs: there is no such queue"), "{}", gone.errors());
}

#[test]
fn receive_waits_and_unacknowledged_messages_are_redelivered() {
    let broker = Broker::start(&[]);
    broker.queue(&["create", "jobs"]).succeeds();
    let worker = Run::start(&["queue", "--http", broker.http(), "receive", "jobs", "-c", "2"], b"");
    broker.queue(&["send", "jobs", "one"]).succeeds();
    broker.queue(&["send", "jobs", "two"]).succeeds();
    worker.finish().succeeds().prints("one\ntwo\n");
    // Without an acknowledgement, the message is redelivered when its lease ends.
    broker.queue(&["configure", "jobs", "--set", "lease_ms=200"]).succeeds();
    broker.queue(&["send", "jobs", "three"]).succeeds();
    broker.queue(&["receive", "jobs", "-c", "1", "--no-ack", "-f", "%c"]).succeeds().prints("1");
    broker.queue(&["receive", "jobs", "-c", "1", "-W", LONG, "-f", "%c"]).succeeds().prints("2");
}

#[test]
fn a_worker_that_is_killed_takes_nothing_with_it() {
    let broker = Broker::start(&[]);
    broker.queue(&["create", "jobs"]).succeeds();
    let mut worker = Run::start(&["queue", "--http", broker.http(), "receive", "jobs"], b"");
    let wait_for = |waiting: u64| while info(&broker, "jobs")["groups"][0]["waiting"] != waiting {};
    wait_for(1);
    worker.kill();
    wait_for(0);
    broker.queue(&["send", "jobs", "one"]).succeeds();
    broker.queue(&["receive", "jobs", "-c", "1", "-f", "%c"]).succeeds().prints("1");
}

#[test]
fn a_rejected_message_is_dead_lettered_and_redriven() {
    let broker = Broker::start(&[]);
    broker.queue(&["create", "jobs"]).succeeds();
    broker.queue(&["send", "jobs", "bad"]).succeeds();
    let (status, taken) = request(&broker, "POST", "/v1/queues/jobs/receive?wait_ms=20000", "");
    assert_eq!((status, &taken["messages"][0]["body"]), (200, &json!("bad")));
    let receipts = json!({ "receipts": [taken["messages"][0]["receipt"]] }).to_string();
    assert_eq!(request(&broker, "POST", "/v1/queues/jobs/reject", &receipts).0, 200);
    let (status, problem) = request(&broker, "POST", "/v1/queues/jobs/ack", &receipts);
    assert_eq!((status, &problem["type"]), (409, &json!("urn:mainstem:problem:stale")));
    let dead =
        broker.queue(&["receive", "jobs.dead", "-c", "1", "-W", LONG, "-J", "--no-ack", "--lease", "0.01"]);
    let dead: Value = serde_json::from_str(dead.succeeds().text()).unwrap();
    assert_eq!(dead["headers"]["dead-letter-reason"], "rejected");
    assert_eq!(dead["headers"]["dead-letter-queue"], "jobs");
    // It can be redriven once its lease has ended.
    while broker.queue(&["redrive", "jobs.dead"]).succeeds().text() == "0\n" {}
    broker.queue(&["receive", "jobs", "-c", "1", "-W", LONG]).succeeds().prints("bad\n");
}

#[test]
fn configuration_declares_queues_and_bindings() {
    let dir = std::env::temp_dir().join(format!("mainstem-queue-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("mainstem.toml");
    let declared = "
        [queues]
        auto_create = false
        [[queue]]
        name = \"jobs\"
        lease_ms = 7000
        durability = \"os\"
        [[mqtt_to_queue]]
        name = \"camera\"
        filter = \"camera/+/image\"
        queue = \"jobs\"
        key = \"level:2\"
    ";
    std::fs::write(&path, declared).unwrap();
    let broker = Broker::start(&["--config", path.to_str().unwrap()]);
    let settings = &info(&broker, "jobs")["settings"];
    assert_eq!((&settings["lease_ms"], &settings["durability"]), (&json!(7000), &json!("os")));
    broker.run("pub", &["-t", "camera/7/image", "-m", "cat", "-q", "1"]).succeeds();
    broker.queue(&["receive", "jobs", "-c", "1", "-W", LONG, "-f", "%k %s"]).succeeds().prints("7 cat");
    broker.queue(&["send", "others", "x"]).fails_with(1);
    std::fs::write(&path, "[[queue]]\nname = \"jobs\"\nlease = 7\n").unwrap();
    let refused = mainstem(&["--config", path.to_str().unwrap()], b"").fails_with(1);
    assert!(refused.errors().contains("queue \"jobs\""), "{}", refused.errors());
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_running_broker_is_ready() {
    let broker = Broker::start(&[]);
    assert_eq!(request(&broker, "GET", "/v1/health/live", ""), (200, json!({ "status": "live" })));
    assert_eq!(request(&broker, "GET", "/v1/health/ready", ""), (200, json!({ "status": "ready" })));
    assert_eq!(request(&broker, "GET", "/openapi.json", "").1["openapi"], "3.1.0");
    // A second broker cannot bind the same address.
    let other = broker.dir().join("other");
    let any = "127.0.0.1:0";
    let flags = ["--listen", any, "--kafka-listen", any, "--data", other.to_str().unwrap()];
    let refused = mainstem(&[&flags[..], &["--http-listen", broker.http()]].concat(), b"").fails_with(1);
    assert!(refused.errors().contains("http.listen: 127.0.0.1:"), "{}", refused.errors());
}

#[test]
fn shutdown_ends_waiting_requests() {
    let broker = Broker::start(&[]);
    broker.queue(&["create", "jobs"]).succeeds();
    let mut client = TcpStream::connect(broker.http()).unwrap();
    let request = "POST /v1/queues/jobs/receive?wait_ms=60000 HTTP/1.1\r\nhost: localhost\r\n\r\n";
    client.write_all(request.as_bytes()).unwrap();
    while info(&broker, "jobs")["groups"][0]["waiting"] != 1 {}
    let pid = rustix::process::Pid::from_raw(i32::try_from(broker.pid()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let mut response = String::new();
    client.read_to_string(&mut response).unwrap();
    assert!(response.ends_with("{\"messages\":[]}"), "{response}");
}

#[test]
fn topic_delete_leaves_queues_alone() {
    let broker = Broker::start(&[]);
    broker.queue(&["create", "jobs"]).succeeds();
    broker.kafka("topic", &["create", "plain"]).succeeds();
    let refused = broker.kafka("topic", &["delete", "jobs", "plain"]).fails_with(1);
    assert!(refused.errors().contains("mainstem queue delete jobs"), "{}", refused.errors());
    broker.queue(&["list"]).succeeds();
    broker.queue(&["info", "jobs"]).succeeds();
    assert!(!broker.kafka("topic", &["list"]).succeeds().text().contains("plain"));
    broker.queue(&["delete", "jobs"]).succeeds();
    broker.queue(&["info", "jobs"]).fails_with(1);
}

#[test]
fn sub_receives_from_a_queue_without_flags() {
    let broker = Broker::start(&[]);
    broker.queue(&["create", "jobs"]).succeeds();
    for payload in ["one", "two"] {
        broker.queue(&["send", "jobs", payload]).succeeds();
    }
    broker.run("sub", &["-t", "$queue/jobs", "-C", "1"]).succeeds().prints("one\n");
    broker.run("sub", &["-t", "$share/default/$queue/jobs", "-C", "1"]).succeeds().prints("two\n");
    let refused = broker.run("sub", &["-t", "$queue/jobs", "-q", "0"]).fails_with(1);
    assert!(refused.errors().contains("-q 1"), "{}", refused.errors());
}

#[test]
fn a_redrive_reports_what_consumers_hold() {
    let broker = Broker::start(&[]);
    for queue in ["jobs", "jobs.dead"] {
        broker.queue(&["create", queue]).succeeds();
    }
    broker.queue(&["send", "jobs", "bad"]).succeeds();
    let (_, taken) = request(&broker, "POST", "/v1/queues/jobs/receive?wait_ms=20000", "");
    let receipts = json!({ "receipts": [taken["messages"][0]["receipt"]] }).to_string();
    assert_eq!(request(&broker, "POST", "/v1/queues/jobs/reject", &receipts).0, 200);
    let (_, held) = request(&broker, "POST", "/v1/queues/jobs.dead/receive?wait_ms=20000", "");
    let redriven = broker.queue(&["redrive", "jobs.dead"]).succeeds().prints("0\n");
    assert!(redriven.errors().contains("1 dead letters stay"), "{}", redriven.errors());
    let nack = json!({ "receipts": [held["messages"][0]["receipt"]], "delay_ms": 3_600_000 }).to_string();
    assert_eq!(request(&broker, "POST", "/v1/queues/jobs.dead/nack", &nack).0, 200);
    broker.queue(&["redrive", "jobs.dead"]).succeeds().prints("1\n");
    broker.queue(&["receive", "jobs", "-c", "1", "-W", LONG]).succeeds().prints("bad\n");
}
