//! `mainstem binding`: adding and removing bindings at run time, and restarts.

use serde_json::Value;

use crate::support::{Broker, mainstem};

fn list(broker: &Broker) -> Vec<Value> {
    let printed = broker.binding(&["list", "-J"]).succeeds();
    printed.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_binding_is_active_from_add_until_remove() {
    let broker = Broker::start(&[]);
    broker.binding(&["add", "alarms", "--from-mqtt", "plant/+/alarm", "--to-queue", "alarms"]).succeeds();
    broker.binding(&["add", "all", "--from-mqtt", "plant/#", "--to-topic", "telemetry"]).succeeds();
    broker.run("pub", &["-t", "plant/7/alarm", "-m", "hot", "-q", "1"]).succeeds();
    broker.queue(&["receive", "alarms", "-c", "1", "-f", "%h %s\\n"]).succeeds();
    broker.kafka("consume", &["-t", "telemetry", "-c", "1", "-f", "%s\\n"]).succeeds().prints("hot\n");
    broker.binding(&["remove", "alarms"]).succeeds();
    broker.run("pub", &["-t", "plant/7/alarm", "-m", "again", "-q", "1"]).succeeds();
    broker.queue(&["receive", "alarms", "-c", "1", "-W", "0"]).fails_with(27);
    broker.kafka("consume", &["-t", "telemetry", "-c", "2", "-f", "%s\\n"]).succeeds().prints("hot\nagain\n");
    broker.binding(&["remove", "alarms"]).fails_with(1);
}

#[test]
fn publishes_records_of_a_bound_topic() {
    let broker = Broker::start(&[]);
    broker
        .binding(&["add", "out", "--from-topic", "commands", "--to-mqtt", "plant/{key}/set", "-r"])
        .succeeds();
    let subscriber = broker.sub(&["-t", "plant/+/set", "-C", "1", "-F", "%t %p"]);
    broker.kafka("produce", &["-t", "commands", "-k", "7", "-m", "open"]).succeeds();
    subscriber.finish().succeeds().prints("plant/7/set open\n");
}

#[test]
fn added_bindings_survive_a_restart() {
    let mut broker = Broker::start(&[]);
    broker.binding(&["add", "jobs", "--from-mqtt", "work/#", "--to-queue", "jobs", "-k", "topic"]).succeeds();
    broker.restart();
    let listed = list(&broker);
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0]["name"], &listed[0]["key"]), (&Value::from("jobs"), &Value::from("topic")));
    assert_eq!(listed[0]["origin"], "operations");
    broker.run("pub", &["-t", "work/a", "-m", "x", "-q", "1"]).succeeds();
    broker.queue(&["receive", "jobs", "-c", "1", "-f", "%k %s\\n"]).succeeds().prints("work/a x\n");
}

#[test]
fn rejects_invalid_bindings() {
    let broker = Broker::start(&[]);
    let refused = |args: &[&str], text: &str| {
        let run = broker.binding(args).fails_with(1);
        assert!(run.errors().contains(text), "{}", run.errors());
    };
    refused(&["add", "b", "--from-mqtt", "a/#/b", "--to-queue", "q"], "filter");
    refused(&["add", "b", "--from-mqtt", "a", "--to-queue", "q/r"], "queue");
    refused(&["add", "b c", "--from-mqtt", "a", "--to-queue", "q"], "name");
    refused(&["add", "b", "--from-mqtt", "$share/g/a", "--to-queue", "q"], "share");
    refused(&["add", "b", "--from-mqtt", "$queue/a", "--to-topic", "t"], "$queue/NAME");
    refused(&["add", "b", "--from-mqtt", "$SYS/#", "--to-topic", "t"], "the broker itself");
    refused(
        &["add", "b", "--from-mqtt", "a/#", "--to-topic", "t", "-k", "level:9999"],
        "mqtt.max_topic_levels",
    );
    refused(&["add", "b", "--from-topic", "t", "--to-mqtt", "$SYS/{key}"], "$SYS");
    broker.binding(&["add", "in", "--from-mqtt", "a/#", "--to-topic", "t"]).succeeds();
    broker.binding(&["add", "in", "--from-mqtt", "a/#", "--to-topic", "t"]).succeeds();
    refused(&["add", "in", "--from-mqtt", "b/#", "--to-topic", "t"], "other settings");
    refused(&["add", "out", "--from-topic", "t", "--to-mqtt", "a/{key}"], "loop");
    mainstem(&["binding", "add", "b", "--from-mqtt", "a"], b"").fails_with(2);
}
