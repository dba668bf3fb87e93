//! `mainstem bench kafka`.

use crate::support::{Broker, Ended, mainstem};
use serde_json::Value;
use std::net::TcpListener;

/// Flags of a short run.
const SHORT: [&str; 5] = ["--duration", "0.3", "--warmup", "0.1", "--json"];

fn run(broker: &Broker, args: &[&str]) -> Ended {
    let port = broker.kafka_port().to_string();
    mainstem(&[&["bench", "kafka"], args, &["--port", &port], &SHORT].concat(), b"")
}

fn report(broker: &Broker, args: &[&str]) -> Value {
    serde_json::from_str(run(broker, args).succeeds().text()).unwrap()
}

#[test]
fn acknowledged_records_are_in_the_topic_with_every_codec() {
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
fn consume_gets_all_records_in_open_and_closed_loop() {
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
fn fetch_rereads_a_topic_and_idle_reports_cost() {
    let broker = Broker::start(&[]);
    let pid = broker.pid().to_string();
    let filled = report(&broker, &["fetch", "--topic", "filled", "--fill", "2", "--partitions", "3"]);
    let again = report(&broker, &["fetch", "--topic", "filled", "--fill", "0", "--broker-pid", &pid]);
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
    let refused = run(&broker, &["idle", "--topic", "filled"]).fails_with(1);
    assert!(refused.errors().contains("the topic is not empty"), "{}", refused.errors());
}

#[test]
fn rejected_batches_and_unreachable_brokers_are_failures() {
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
