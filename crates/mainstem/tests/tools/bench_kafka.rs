//! `mainstem bench kafka`.

use crate::support::{Broker, Ended, mainstem};
use serde_json::Value;
use std::net::TcpListener;

/// Long enough for every kind of load to show itself.
const SHORT: [&str; 5] = ["--duration", "0.3", "--warmup", "0.1", "--json"];

fn run(broker: &Broker, args: &[&str]) -> Ended {
    let port = broker.kafka_port().to_string();
    mainstem(&[&["bench", "kafka"], args, &["--port", &port], &SHORT].concat(), b"")
}

fn report(broker: &Broker, args: &[&str]) -> Value {
    serde_json::from_str(run(broker, args).succeeds().text()).unwrap()
}

#[test]
fn what_is_acknowledged_is_in_the_topic_under_every_codec() {
    let broker = Broker::start(&["--set", "kafka.durability=os"]);
    for acks in ["0", "1", "all"] {
        for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
            let batch = ["--records", "20", "--compression", codec];
            let spread = ["--connections", "2", "--partitions", "5"];
            let report = report(&broker, &[&["produce", "--acks", acks][..], &batch, &spread].concat());
            assert!(report["records_per_s"].as_f64().unwrap() > 0.0, "{report}");
            let produce = &report["produce"];
            let wrong = [&produce["refused"], &produce["unanswered"], &produce["missing"], &report["gaps"]];
            assert_eq!(wrong, [0, 0, 0, 0], "{report}");
        }
    }
}

#[test]
fn a_consumer_gets_everything_on_schedule_and_in_a_closed_loop() {
    let broker = Broker::start(&[]);
    for load in [["--rate", "200"], ["--window", "2"]] {
        let args = [&["produce", "--consume", "--records", "3", "--partitions", "2"][..], &load].concat();
        let report = report(&broker, &args);
        assert_eq!(report["produce"]["not_delivered"], 0, "{report}");
        let (stored, seen) = (&report["produce"]["latency"], &report["delivery"]);
        for latency in [stored, seen] {
            assert!(latency["p50_us"].as_f64().unwrap() > 0.0, "{report}");
        }
    }
}

#[test]
fn a_topic_is_read_again_and_again_and_a_waiting_consumer_costs_a_number() {
    let broker = Broker::start(&[]);
    let pid = broker.pid().to_string();
    let filled = report(&broker, &["fetch", "--topic", "kept", "--fill", "2", "--partitions", "3"]);
    let again = report(&broker, &["fetch", "--topic", "kept", "--fill", "0", "--broker-pid", &pid]);
    let there = &filled["fetch"]["records_there"];
    assert!(there.as_u64().unwrap() >= (2 << 20) / 120, "{filled}");
    assert_eq!((&again["fetch"]["records_there"], &again["partitions"]), (there, &3.into()));
    for report in [&filled, &again] {
        assert!(report["fetch"]["passes"].as_f64().unwrap() > 0.0, "{report}");
        assert_eq!(report["gaps"], 0);
    }
    assert!(again["cost"]["rss_peak_mib"].as_f64().unwrap() > 1.0, "{again}");

    let idle = report(&broker, &["idle", "--connections", "10", "--broker-pid", &pid]);
    assert!(idle["cost"]["cpu_percent"].is_number() && idle["records_per_s"] == 0.0, "{idle}");
    let refused = run(&broker, &["idle", "--topic", "kept"]).fails_with(1);
    assert!(refused.errors().contains("the topic is not empty"), "{}", refused.errors());
}

#[test]
fn batches_that_are_refused_and_brokers_that_are_not_there_are_failures() {
    let broker = Broker::start(&[]);
    broker.kafka("topic", &["create", "small", "-c", "max.message.bytes=100"]).succeeds();
    let refused = run(&broker, &["produce", "--topic", "small"]).fails_with(1);
    // MESSAGE_TOO_LARGE.
    assert!(refused.errors().contains("refused: error 10"), "{}", refused.errors());

    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let ended = mainstem(&["bench", "kafka", "produce", "--port", &port], b"").fails_with(1);
    let expected = format!("cannot connect to 127.0.0.1:{port}: connection refused");
    assert!(ended.errors().contains(&expected), "{}", ended.errors());
}
