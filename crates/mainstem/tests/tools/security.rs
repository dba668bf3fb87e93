//! `mainstem user` and `mainstem acl`: users and rules over HTTP, and in a data directory that no broker uses.

use serde_json::Value;

use crate::support::{Broker, Ended, mainstem};

const ADMIN: [&str; 4] = ["--username", "admin", "--password", "secret"];

fn user(broker: &Broker, args: &[&str], input: &str) -> Ended {
    mainstem(&[&["user", "-b", broker.http()], args].concat(), input.as_bytes())
}

fn acl(broker: &Broker, args: &[&str]) -> Ended {
    mainstem(&[&["acl", "-b", broker.http()], args, &ADMIN].concat(), b"")
}

fn with_admin<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [args, &ADMIN].concat()
}

fn list(broker: &Broker) -> Vec<String> {
    let printed = user(broker, &with_admin(&["list", "-J"]), "").succeeds();
    let name = |line: &str| serde_json::from_str::<Value>(line).unwrap()["name"].as_str().unwrap().to_owned();
    printed.text().lines().map(name).collect()
}

#[test]
fn from_the_first_user_on_the_api_needs_one() {
    let mut broker = Broker::start(&[]);
    broker.queue(&["list"]).succeeds();
    user(&broker, &["add", "admin"], "secret\n").succeeds();
    let refused = broker.queue(&["list"]).fails_with(1);
    assert!(refused.errors().contains("basic authentication"), "{}", refused.errors());
    broker.queue(&["list", "--username", "admin", "--password", "wrong"]).fails_with(1);
    broker.queue(&["list", "--username", "nobody", "--password", "secret"]).fails_with(1);
    broker.queue(&["list", "--username", "admin", "--password", "secret"]).succeeds();
    user(&broker, &with_admin(&["add", "bob", "--new-password", "b", "--role", "ops"]), "").succeeds();
    user(&broker, &with_admin(&["add", "bob", "--new-password", "c"]), "").fails_with(1);
    // Users are on disk when the command returns.
    broker.restart();
    assert_eq!(list(&broker), ["admin", "bob"]);
    user(&broker, &with_admin(&["passwd", "bob"]), "other").succeeds();
    broker.queue(&["list", "--username", "bob", "--password", "b"]).fails_with(1);
    broker.queue(&["list", "--username", "bob", "--password", "other"]).succeeds();
    user(&broker, &with_admin(&["disable", "bob"]), "").succeeds();
    broker.queue(&["list", "--username", "bob", "--password", "other"]).fails_with(1);
    user(&broker, &with_admin(&["enable", "bob"]), "").succeeds();
    user(&broker, &with_admin(&["delete", "bob"]), "").succeeds();
    broker.queue(&["list", "--username", "bob", "--password", "other"]).fails_with(1);
    assert_eq!(list(&broker), ["admin"]);
}

#[test]
fn rules_decide_what_a_user_may_do() {
    let broker = Broker::start(&["--set", "security.super_users=[\"admin\"]"]);
    user(&broker, &["add", "admin"], "secret\n").succeeds();
    user(&broker, &with_admin(&["add", "alice", "--role", "ops"]), "pw\n").succeeds();
    let as_alice = ["--username", "alice", "--password", "pw"];
    let send = |queue| broker.queue(&[&["send", queue, "x"][..], &as_alice].concat());
    broker.queue(&[&["create", "jobs"][..], &as_alice].concat()).succeeds();
    acl(&broker, &["add", "--user", "alice", "--allow", "send,receive", "queue:jobs"]).succeeds();
    acl(&broker, &["add", "--role", "ops", "--deny", "receive", "queue:jobs"]).succeeds();
    send("jobs").succeeds();
    send("other").fails_with(1);
    broker.queue(&[&["receive", "jobs", "-c", "1"][..], &as_alice].concat()).fails_with(1);
    user(&broker, &["list", "--username", "alice", "--password", "pw"], "").fails_with(1);
    acl(&broker, &["explain", "alice", "send", "queue:jobs"])
        .succeeds()
        .prints("allowed: a rule decides (1: allow user:alice send queue:jobs)\n");
    acl(&broker, &["explain", "alice", "receive", "queue:jobs"])
        .succeeds()
        .prints("denied: a rule decides (3: deny role:ops receive queue:jobs)\n");
    acl(&broker, &["explain", "alice", "send", "queue:other"])
        .succeeds()
        .prints("denied: no rule allows it\n");
    acl(&broker, &["explain", "admin", "send", "queue:other"])
        .succeeds()
        .prints("allowed: the user is in security.super_users\n");
    acl(&broker, &["delete", "3"]).succeeds();
    acl(&broker, &["delete", "3"]).fails_with(1);
    broker.queue(&[&["receive", "jobs", "-c", "1"][..], &as_alice].concat()).succeeds();
    let listed = acl(&broker, &["list", "-J"]).succeeds();
    assert_eq!(listed.text().lines().count(), 2, "{}", listed.text());
    for invalid in [
        ["add", "--user", "alice", "--allow", "fly", "queue:jobs"],
        ["add", "--user", "alice", "--allow", "send", "mqtt:a/#"],
        ["add", "--user", "alice", "--allow", "publish", "mqtt:a/#/b"],
        ["add", "--user", "alice", "--allow", "publish", "mqtt:${name}/b"],
    ] {
        acl(&broker, &invalid).fails_with(1);
    }
}

#[test]
fn a_user_is_added_to_a_directory_that_no_broker_uses() {
    let broker = Broker::start(&[]);
    let data = broker.dir().join("data");
    let add = |dir: &std::path::Path, name| {
        mainstem(&["user", "add", name, "--data", dir.to_str().unwrap()], b"secret\n")
    };
    let refused = add(&data, "admin").fails_with(1);
    assert!(refused.errors().contains("another process is using it"), "{}", refused.errors());
    let other = broker.dir().join("other");
    add(&other, "admin").succeeds();
    add(&other, "admin").fails_with(1);
    std::fs::create_dir_all(other.join("log")).unwrap();
    let verified = mainstem(&["verify", "--data", other.to_str().unwrap()], b"").succeeds();
    assert!(verified.text().contains("security: 1 logs"), "{}", verified.text());
}
