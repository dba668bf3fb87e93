//! The Kafka tools log in to a broker with users.

use crate::support::{Broker, Ended, mainstem};

/// A broker with the users `admin`, who may do everything, and `alice`, who may produce to `orders`.
fn broker(mechanisms: &str) -> Broker {
    let sasl = format!("kafka.sasl={mechanisms}");
    let settings = [
        "--set",
        &sasl,
        "--set",
        "security.super_users=[\"admin\"]",
        "--set",
        "kafka.failed_authentication_delay_ms=1",
    ];
    let broker = Broker::start(&settings);
    let user = |args: &[&str], input: &str| {
        mainstem(&[&["user", "-b", broker.http()], args].concat(), input.as_bytes()).succeeds();
    };
    user(&["add", "admin"], "secret");
    user(&["add", "alice", "--username", "admin", "--password", "secret"], "pw");
    let rule = ["acl", "-b", broker.http(), "add", "--user", "alice", "--allow", "produce", "topic:orders"];
    mainstem(&[&rule[..], &["--username", "admin", "--password", "secret"]].concat(), b"").succeeds();
    broker
}

fn run(broker: &Broker, (user, password): (&str, &str), tool: &str, args: &[&str]) -> Ended {
    broker.kafka(tool, &[args, &["--username", user, "--password", password]].concat())
}

const ADMIN: (&str, &str) = ("admin", "secret");
const ALICE: (&str, &str) = ("alice", "pw");

#[test]
fn every_kafka_tool_logs_in() {
    let broker = broker("[\"SCRAM-SHA-256\", \"SCRAM-SHA-512\"]");
    run(&broker, ADMIN, "topic", &["create", "orders"]).succeeds();
    run(&broker, ALICE, "produce", &["-t", "orders", "-m", "one"]).succeeds();
    run(&broker, ADMIN, "consume", &["-t", "orders", "-e"]).succeeds().prints("one\n");
    run(&broker, ADMIN, "consume", &["-t", "orders", "-c", "1", "-G", "team", "-o", "earliest"])
        .succeeds()
        .prints("one\n");
    assert!(run(&broker, ADMIN, "group", &["list"]).succeeds().text().contains("team"));
    let denied = run(&broker, ALICE, "consume", &["-t", "orders", "-e"]).fails_with(1);
    assert!(denied.errors().contains("TOPIC_AUTHORIZATION_FAILED"), "{}", denied.errors());
    for wrong in [("alice", "wrong"), ("nobody", "pw")] {
        let refused = run(&broker, wrong, "topic", &["list"]).fails_with(1);
        assert!(refused.errors().contains("SASL_AUTHENTICATION_FAILED"), "{}", refused.errors());
    }
    broker.kafka("topic", &["list", "--request-timeout", "1"]).fails_with(1);
    let without = broker.kafka("topic", &["list", "--username", "alice"]).fails_with(1);
    assert!(without.errors().contains("MAINSTEM_PASSWORD"), "{}", without.errors());
}

#[test]
fn the_mechanism_is_the_strongest_that_is_offered_or_the_one_that_is_named() {
    let strong = broker("[\"PLAIN\", \"SCRAM-SHA-256\"]");
    run(&strong, ADMIN, "topic", &["list"]).succeeds();
    for mechanism in ["PLAIN", "scram-sha-256"] {
        run(&strong, ADMIN, "topic", &["list", "--mechanism", mechanism]).succeeds();
    }
    let missing = run(&strong, ADMIN, "topic", &["list", "--mechanism", "SCRAM-SHA-512"]).fails_with(1);
    assert!(missing.errors().contains("PLAIN, SCRAM-SHA-256"), "{}", missing.errors());
    // Whoever offers nothing but PLAIN on a connection that others can read does not get the password.
    let plain = broker("[\"PLAIN\"]");
    let refused = run(&plain, ADMIN, "topic", &["list"]).fails_with(1);
    assert!(refused.errors().contains("--mechanism PLAIN"), "{}", refused.errors());
    run(&plain, ADMIN, "topic", &["list", "--mechanism", "PLAIN"]).succeeds();
}

#[test]
fn a_listener_without_log_ins_refuses_one() {
    let broker = Broker::start(&[]);
    let refused = run(&broker, ADMIN, "topic", &["list"]).fails_with(1);
    assert!(refused.errors().contains("ILLEGAL_SASL_STATE"), "{}", refused.errors());
}
