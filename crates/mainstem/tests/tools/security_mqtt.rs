//! Users and rules of MQTT clients.

use crate::support::{Broker, Ended, mainstem};

const ADMIN: [&str; 4] = ["--username", "admin", "--password", "secret"];

fn admin(broker: &Broker, tool: &str, args: &[&str], input: &str) -> Ended {
    mainstem(&[&[tool, "-b", broker.http()], args, &ADMIN].concat(), input.as_bytes()).succeeds()
}

/// A broker with the users admin, alice, bob.
fn broker() -> Broker {
    let broker = Broker::start(&["--set", "security.super_users=[\"admin\"]"]);
    mainstem(&["user", "-b", broker.http(), "add", "admin"], b"secret").succeeds();
    for name in ["alice", "bob"] {
        admin(&broker, "user", &["add", name], name);
    }
    broker
}

fn publish(broker: &Broker, user: &str, version: &str, topic: &str) -> Ended {
    broker.run("pub", &["-V", version, "-u", user, "-P", user, "-t", topic, "-m", "x", "-q", "1"])
}

#[test]
fn a_connection_needs_the_password_of_a_user() {
    let broker = broker();
    for version in ["5", "311"] {
        publish(&broker, "alice", version, "a").succeeds();
        let connect = |args: &[&str]| {
            let run = broker.run("pub", &[&["-V", version, "-t", "a", "-n"], args].concat());
            (run.code(), run.errors().to_owned())
        };
        let wrong = connect(&["-u", "alice", "-P", "bob"]);
        let unknown = connect(&["-u", "carol", "-P", "bob"]);
        assert!(wrong.0 != Some(0), "{wrong:?}");
        // Nothing tells whether the user exists.
        assert_eq!(wrong, unknown);
        assert_ne!(connect(&["-u", "alice"]).0, Some(0));
        assert_ne!(connect(&[]).0, Some(0));
        publish(&broker, "alice", version, "a").succeeds();
    }
}

#[test]
fn failed_log_ins_are_limited() {
    let broker = broker();
    for _ in 0..20 {
        let run = broker.run("pub", &["-u", "carol", "-P", "x", "-t", "a", "-n"]);
        assert!(run.errors().contains("bad user name or password"), "{}", run.errors());
    }
    let run = broker.run("pub", &["-u", "bob", "-P", "x", "-t", "a", "-n"]);
    assert!(run.errors().contains("busy"), "{}", run.errors());
}

#[test]
fn rules_decide_what_is_published_and_received() {
    let broker = broker();
    publish(&broker, "alice", "5", "anything").succeeds();
    admin(
        &broker,
        "acl",
        &["add", "--user", "alice", "--allow", "publish,subscribe", "mqtt:plant/${user}/#"],
        "",
    );
    admin(&broker, "acl", &["add", "--user", "bob", "--allow", "subscribe", "mqtt:plant/#"], "");
    admin(&broker, "acl", &["add", "--user", "bob", "--deny", "subscribe", "mqtt:plant/+/secret"], "");
    admin(&broker, "acl", &["add", "--user", "bob", "--allow", "publish", "mqtt:#"], "");
    publish(&broker, "alice", "5", "plant/alice/temp").succeeds();
    let refused = publish(&broker, "alice", "5", "plant/bob/temp");
    assert!(refused.errors().contains("not authorized"), "{}", refused.errors());
    // A client of 3.1.1 cannot be told, and its message goes nowhere.
    let subscriber = broker.sub(&["-u", "bob", "-P", "bob", "-t", "#", "-C", "2", "-F", "%t"]);
    publish(&broker, "alice", "311", "plant/bob/temp").succeeds();
    publish(&broker, "bob", "5", "office/temp").succeeds();
    publish(&broker, "bob", "5", "plant/7/secret").succeeds();
    publish(&broker, "bob", "5", "plant/7/temp").succeeds();
    publish(&broker, "alice", "5", "plant/alice/temp").succeeds();
    subscriber.finish().succeeds().prints("plant/7/temp\nplant/alice/temp\n");
    for filter in ["plant/bob/#", "office/#", "plant/+/temp", "$share/g/plant/#"] {
        let args = ["-u", "alice", "-P", "alice", "-t", filter, "-C", "1", "-W", "1"];
        let run = broker.run("sub", &args);
        let is_narrowed = filter == "plant/+/temp";
        assert_eq!(run.errors().contains("not authorized"), !is_narrowed, "{filter}: {}", run.errors());
    }
}

#[test]
fn a_will_and_retained_messages_are_subject_to_the_rules() {
    let broker = broker();
    broker
        .run("pub", &["-u", "admin", "-P", "secret", "-t", "secret/a", "-m", "x", "-r", "-q", "1"])
        .succeeds();
    broker
        .run("pub", &["-u", "admin", "-P", "secret", "-t", "open/a", "-m", "x", "-r", "-q", "1"])
        .succeeds();
    admin(&broker, "acl", &["add", "--everyone", "--allow", "publish,subscribe", "mqtt:open/#"], "");
    let will = ["-u", "alice", "-P", "alice", "-t", "open/b", "-n", "--will-topic", "secret/will"];
    let run = broker.run("pub", &will);
    assert!(run.errors().contains("not authorized"), "{}", run.errors());
    broker
        .run("sub", &["-u", "alice", "-P", "alice", "-t", "#", "-C", "1", "-F", "%t"])
        .succeeds()
        .prints("open/a\n");
}

#[test]
fn a_session_belongs_to_its_user_also_after_a_restart() {
    let mut broker = broker();
    let session = |user: &str, id: &str| {
        ["-V", "5", "-u", user, "-P", user, "-i", id, "-x", "3600", "-t", "a", "-E"].map(str::to_owned)
    };
    let connect = |broker: &Broker, user: &str, id: &str| {
        let args = session(user, id);
        broker.run("sub", &args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    connect(&broker, "alice", "dashboard").succeeds();
    let refused = connect(&broker, "bob", "dashboard");
    assert!(refused.errors().contains("not authorized"), "{}", refused.errors());
    broker.restart();
    let refused = connect(&broker, "bob", "dashboard");
    assert!(refused.errors().contains("not authorized"), "{}", refused.errors());
    connect(&broker, "alice", "dashboard").succeeds();
}

#[test]
fn a_change_of_users_or_rules_reaches_connected_clients() {
    let broker = broker();
    let subscriber = broker.sub(&["-u", "bob", "-P", "bob", "-t", "a/#", "-C", "2", "-F", "%t", "-q", "1"]);
    publish(&broker, "alice", "5", "a/1").succeeds();
    // The first rule ends the connections of clients that no rule allows anything.
    admin(&broker, "acl", &["add", "--user", "bob", "--allow", "subscribe", "mqtt:a/open"], "");
    admin(&broker, "acl", &["add", "--user", "alice", "--allow", "publish", "mqtt:#"], "");
    publish(&broker, "alice", "5", "a/secret").succeeds();
    publish(&broker, "alice", "5", "a/open").succeeds();
    subscriber.finish().succeeds().prints("a/1\na/open\n");
    let subscriber = broker.sub(&["-V", "5", "-u", "bob", "-P", "bob", "-t", "a/open", "-C", "1"]);
    admin(&broker, "user", &["disable", "bob"], "");
    let ended = subscriber.finish();
    assert!(ended.errors().contains("not authorized"), "{}", ended.errors());
}
