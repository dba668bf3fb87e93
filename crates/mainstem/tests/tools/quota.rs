//! `mainstem quota` and `mainstem ban`, and what they do to clients.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Broker, Ended, mainstem};

fn tool(broker: &Broker, tool: &str, args: &[&str]) -> Ended {
    mainstem(&[&[tool, "-b", broker.http()], args].concat(), b"")
}

fn set(broker: &Broker, args: &[&str]) {
    tool(broker, "quota", &[&["set"], args].concat()).succeeds();
}

fn list(broker: &Broker, of: &str) -> Vec<Value> {
    let printed = tool(broker, of, &["list", "-J"]).succeeds();
    printed.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Publishes so many messages over one connection.
fn publish(broker: &Broker, id: &str, version: &str, count: usize) -> (Ended, Duration) {
    let began = Instant::now();
    let args = ["-V", version, "-i", id, "-t", "a", "-q", "1", "-l"];
    (broker.run_with_input("pub", &args, "x\n".repeat(count).as_bytes()), began.elapsed())
}

#[test]
fn quotas_are_set_listed_and_deleted_and_survive_a_restart() {
    let mut broker = Broker::start(&[]);
    set(&broker, &["--user", "alice", "publish_rate=100", "producer_byte_rate=1048576"]);
    set(&broker, &["--user", "alice", "--default-client-id", "publish_rate=0.5"]);
    set(&broker, &["--default-user", "http_request_rate=1000"]);
    set(&broker, &["--ip", "192.0.2.1", "connection_creation_rate=5"]);
    for args in [
        &["--user", "alice", "flying_rate=1"][..],
        &["--user", "alice", "publish_rate=0"],
        &["--user", "alice", "publish_rate=x"],
        &["--user", "alice", "publish_byte_rate=0.5"],
        &["--user", "alice", "connection_creation_rate=5"],
        &["--default-ip", "publish_rate=5"],
    ] {
        tool(&broker, "quota", &[&["set"], args].concat()).fails_with(1);
    }
    broker.restart();
    assert_eq!(list(&broker, "quota").len(), 4);
    let table = tool(&broker, "quota", &["list"]).succeeds();
    let line = "alice      <default>             publish_rate=0.5";
    assert!(table.text().lines().any(|printed| printed.trim_end() == line), "{}", table.text());
    tool(&broker, "quota", &["delete", "--user", "alice", "publish_rate"]).succeeds();
    let quotas = list(&broker, "quota");
    let alice = quotas.iter().find(|entity| entity["user"] == "alice" && entity.get("client_id").is_none());
    assert_eq!(alice.unwrap()["quotas"], serde_json::json!({ "producer_byte_rate": 1_048_576.0 }));
    tool(&broker, "quota", &["delete", "--user", "alice"]).succeeds();
    tool(&broker, "quota", &["delete", "--user", "alice"]).fails_with(1);
    assert_eq!(list(&broker, "quota").len(), 3);
}

/// Of 30 messages, 10 are the burst, and the others take two seconds.
#[test]
fn a_publisher_waits_for_its_quota() {
    let broker = Broker::start(&[]);
    set(&broker, &["--client-id", "fast", "publish_rate=10"]);
    for version in ["5", "311"] {
        let (ended, took) = publish(&broker, "fast", version, 30);
        ended.succeeds();
        // The second run finds the bucket as the first one has left it.
        assert!(took >= Duration::from_millis(1_800), "{took:?}");
    }
    let (ended, took) = publish(&broker, "other", "5", 500);
    ended.succeeds();
    assert!(took < Duration::from_secs(10), "{took:?}");
    set(&broker, &["--default-user", "publish_byte_rate=100"]);
    // Topic and payload have 2 bytes; 200 messages are 400 bytes, of which 100 are the burst.
    let (ended, took) = publish(&broker, "other", "5", 200);
    ended.succeeds();
    assert!(took >= Duration::from_millis(2_500), "{took:?}");
}

#[test]
fn a_policy_refuses_or_disconnects_instead() {
    let refusing = Broker::start(&["--set", "mqtt.quota_policy=\"refuse\""]);
    set(&refusing, &["--default-client-id", "publish_rate=5"]);
    let (ended, _) = publish(&refusing, "fast", "5", 100);
    assert!(ended.errors().contains("quota exceeded"), "{}", ended.errors());
    let disconnecting = Broker::start(&["--set", "mqtt.quota_policy=\"disconnect\""]);
    set(&disconnecting, &["--default-client-id", "publish_rate=5"]);
    let (ended, _) = publish(&disconnecting, "fast", "5", 100);
    assert!(ended.errors().contains("rate too high"), "{}", ended.errors());
}

#[test]
fn http_requests_beyond_the_quota_get_429() {
    let broker = Broker::start(&[]);
    set(&broker, &["--user", "ANONYMOUS", "http_request_rate=3"]);
    let refused = (0..100).map(|_| broker.queue(&["list"])).find(|ended| ended.code() != Some(0));
    let refused = refused.expect("one of a hundred");
    assert!(refused.errors().contains("http_request_rate"), "{}", refused.errors());
}

#[test]
fn an_address_connects_as_often_as_its_quota_allows() {
    let broker = Broker::start(&[]);
    set(&broker, &["--ip", "127.0.0.1", "connection_creation_rate=2"]);
    let is_refused = (0..100).any(|_| broker.run("pub", &["-t", "a", "-n"]).code() != Some(0));
    assert!(is_refused);
}

#[test]
fn banned_clients_are_disconnected_and_refused_until_the_ban_is_deleted() {
    let mut broker = Broker::start(&[]);
    let subscriber = broker.sub(&["-V", "5", "-i", "press-7", "-t", "a", "-C", "1"]);
    let ban = ["add", "--client-id", "press-7", "--reason", "sends nonsense"];
    tool(&broker, "ban", &ban).succeeds();
    let ended = subscriber.finish();
    assert!(ended.errors().contains("administrative action"), "{}", ended.errors());
    for args in [
        &["add", "--network", "192.0.2.0/33"][..],
        &["add", "--user", ""],
        &["delete", "--client-id", "press-8"],
    ] {
        tool(&broker, "ban", args).fails_with(1);
    }
    broker.restart();
    let connect = |broker: &Broker, version: &str| {
        let ended = broker.run("pub", &["-V", version, "-i", "press-7", "-t", "a", "-n"]);
        (ended.code(), ended.errors().to_owned())
    };
    let (code, errors) = connect(&broker, "5");
    assert!(code != Some(0) && errors.contains("banned"), "{errors}");
    assert_ne!(connect(&broker, "311").0, Some(0));
    broker.run("pub", &["-i", "press-8", "-t", "a", "-n"]).succeeds();
    let bans = list(&broker, "ban");
    assert_eq!((bans.len(), &bans[0]["reason"]), (1, &Value::from("sends nonsense")));
    tool(&broker, "ban", &["delete", "--client-id", "press-7"]).succeeds();
    assert_eq!(connect(&broker, "5").0, Some(0));
    // A ban that has ended is none.
    tool(&broker, "ban", &["add", "--client-id", "press-7", "--duration", "0"]).succeeds();
    assert_eq!(connect(&broker, "5").0, Some(0));
    assert_eq!(list(&broker, "ban"), Vec::<Value>::new());
}

#[test]
fn a_client_that_connects_too_often_is_banned_for_a_while() {
    let broker = Broker::start(&["--set", "mqtt.flapping_max_connects=3"]);
    let connect = || broker.run("pub", &["-V", "5", "-i", "flapper", "-t", "a", "-n"]);
    for _ in 0..3 {
        connect().succeeds();
    }
    let refused = connect();
    assert!(refused.errors().contains("banned"), "{}", refused.errors());
    broker.run("pub", &["-i", "other", "-t", "a", "-n"]).succeeds();
    let bans = list(&broker, "ban");
    assert_eq!((bans.len(), &bans[0]["client_id"]), (1, &Value::from("flapper")));
    assert!(connect().errors().contains("banned"));
}
