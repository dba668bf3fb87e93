//! The MQTT tools.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use crate::support::{Broker, Run, mainstem};
use serde_json::Value;

/// Large queue limits. Publishers are acknowledged before subscribers receive the message, so queues grow on a slow
/// machine; in tests that count every message, they must not overflow.
const DEEP_QUEUES: [&str; 4] =
    ["--set", "mqtt.max_queued_messages=1000000", "--set", "mqtt.max_queued_bytes=1000000000"];
/// Every protocol version, as `-V` takes it.
const VERSIONS: [&str; 3] = ["5", "311", "31"];

#[test]
fn delivers_every_qos_in_every_version() {
    let broker = Broker::start(&[]);
    for version in VERSIONS {
        for qos in ["0", "1", "2"] {
            let topic = format!("t/{version}/{qos}");
            let sub = broker.sub(&["-V", version, "-q", qos, "-t", &topic, "-C", "1", "-F", "%t %q %p"]);
            broker.run("pub", &["-V", version, "-q", qos, "-t", &topic, "-m", "hello"]).succeeds();
            sub.finish().succeeds().prints(&format!("{topic} {qos} hello\n"));
        }
    }
}

#[test]
fn lines_of_standard_input_keep_their_order() {
    let broker = Broker::start(&DEEP_QUEUES);
    let lines = (0..2_000).map(|i| format!("line {i}")).collect::<Vec<_>>().join("\n") + "\n";
    for qos in ["0", "1", "2"] {
        let sub = broker.sub(&["-q", qos, "-t", "lines", "-C", "2000"]);
        broker.run_with_input("pub", &["-q", qos, "-t", "lines", "-l"], lines.as_bytes()).succeeds();
        sub.finish().succeeds().prints(&lines);
    }
}

#[test]
fn reads_payloads_from_files_and_standard_input() {
    let broker = Broker::start(&[]);
    let bytes: Vec<u8> = (0..=255).cycle().take(200_000).collect();
    let file = broker.dir().join("payload");
    std::fs::write(&file, &bytes).unwrap();
    let sub = broker.sub(&["-q", "1", "-t", "big", "-C", "2", "-N"]);
    broker.run("pub", &["-q", "1", "-t", "big", "-f", file.to_str().unwrap()]).succeeds();
    broker.run_with_input("pub", &["-q", "1", "-t", "big", "-s"], &bytes).succeeds();
    let ended = sub.finish().succeeds();
    assert_eq!(ended.stdout, [bytes.as_slice(), &bytes].concat());
}

#[test]
fn repeats_messages() {
    let broker = Broker::start(&[]);
    let sub = broker.sub(&["-q", "2", "-t", "again", "-C", "5"]);
    broker
        .run("pub", &["-q", "2", "-t", "again", "-m", "x", "--repeat", "5", "--repeat-delay", "0.01"])
        .succeeds();
    sub.finish().succeeds().prints("x\nx\nx\nx\nx\n");
}

#[test]
fn stores_shows_and_removes_retained_messages() {
    let broker = Broker::start(&[]);
    for topic in ["r/1", "r/2", "r/keep"] {
        broker.run("pub", &["-t", topic, "-m", topic, "-r", "-q", "1"]).succeeds();
    }
    broker.run("sub", &["-t", "r/1", "-C", "1", "-F", "%r %p"]).succeeds().prints("1 r/1\n");
    broker.run("sub", &["-t", "r/1", "-R", "-W", "0.2"]).fails_with(27).prints("");

    broker.run("pub", &["-t", "r/1", "-n", "-r", "-q", "1"]).succeeds();
    broker.run("sub", &["-t", "r/1", "-W", "0.2"]).fails_with(27).prints("");

    let removing = ["-t", "r/#", "-T", "r/keep", "--remove-retained", "-W", "0.3", "-F", "%r %p"];
    let removed = broker.run("sub", &removing).fails_with(27);
    assert!(removed.text().starts_with("1 r/2\n"), "{}", removed.text());
    broker.run("sub", &["-t", "r/#", "-C", "1"]).succeeds().prints("r/keep\n");
    broker.run("sub", &["-t", "r/2", "-W", "0.2"]).fails_with(27).prints("");
}

#[test]
fn properties_travel_from_pub_to_sub() {
    let broker = Broker::start(&[]);
    let sub = broker.sub(&["-t", "props", "-C", "1", "--json", "--subscription-id", "77"]);
    let published = [
        "-t",
        "props",
        "-m",
        "{\"a\":1}",
        "--content-type",
        "application/json",
        "--response-topic",
        "re",
        "--correlation-data",
        "17",
        "--message-expiry",
        "100",
        "--payload-format",
        "1",
        "--user-property",
        "k=1",
        "-D",
        "publish",
        "user-property",
        "k",
        "2",
    ];
    broker.run("pub", &published).succeeds();
    let ended = sub.finish().succeeds();
    let message: Value = serde_json::from_str(ended.text()).unwrap();
    assert_eq!((&message["topic"], &message["payload"]), (&"props".into(), &"{\"a\":1}".into()));
    let properties = &message["properties"];
    assert_eq!(properties["content-type"], "application/json");
    assert_eq!(properties["response-topic"], "re");
    assert_eq!(properties["correlation-data"], "17");
    assert_eq!(properties["payload-format-indicator"], 1);
    assert_eq!(properties["subscription-identifiers"], serde_json::json!([77]));
    assert_eq!(properties["user-properties"], serde_json::json!([["k", "2"], ["k", "1"]]));
    assert!(properties["message-expiry-interval"].as_u64().is_some_and(|left| (90..=100).contains(&left)));
}

#[test]
fn topic_aliases_stand_for_the_topic() {
    let broker = Broker::start(&[]);
    let sub = broker.sub(&["-t", "alias/#", "-C", "3", "-v", "-D", "connect", "topic-alias-maximum", "5"]);
    broker.run("pub", &["-t", "alias/x", "-m", "y", "--topic-alias", "3", "--repeat", "3"]).succeeds();
    sub.finish().succeeds().prints("alias/x y\nalias/x y\nalias/x y\n");

    let too_high = broker.run("pub", &["-t", "a", "-n", "--topic-alias", "65535"]).fails_with(1);
    assert!(too_high.errors().contains("topic aliases up to 16"), "{}", too_high.errors());
}

#[test]
fn applies_subscription_options() {
    let broker = Broker::start(&[]);
    broker.run("pub", &["-t", "o", "-m", "old", "-r", "-q", "1"]).succeeds();
    let sub =
        broker.sub(&["-t", "o", "-C", "1", "--retain-handling", "2", "--retain-as-published", "-F", "%r %p"]);
    broker.run("pub", &["-t", "o", "-m", "new", "-r"]).succeeds();
    sub.finish().succeeds().prints("1 new\n");

    let both = broker.sub(&["-t", "$share/g/shared", "-t", "done", "-C", "1"]);
    broker.run("pub", &["-t", "shared", "-m", "for the group"]).succeeds();
    both.finish().succeeds().prints("for the group\n");
}

#[test]
fn a_persistent_session_queues_messages() {
    let broker = Broker::start(&[]);
    for version in ["5", "311"] {
        let mine = ["-V", version, "-i", "subscriber", "-c", "-q", "2", "-t", "kept"];
        broker.run("sub", &[&mine[..], &["-E"]].concat()).succeeds().prints("");
        for i in 0..3 {
            broker.run("pub", &["-t", "kept", "-q", "2", "-m", &i.to_string()]).succeeds();
        }
        broker.run("sub", &[&mine[..], &["-C", "3"]].concat()).succeeds().prints("0\n1\n2\n");
        broker.run("sub", &["-V", version, "-i", "subscriber", "-c", "-U", "kept", "-E"]).succeeds();
        broker.run("pub", &["-t", "kept", "-q", "1", "-m", "lost"]).succeeds();
        let rest = broker.run("sub", &["-V", version, "-i", "subscriber", "-c", "-t", "other", "-W", "0.2"]);
        rest.fails_with(27).prints("");
        broker.run("sub", &["-V", version, "-i", "subscriber", "-t", "x", "-E"]).succeeds();
    }
}

#[test]
fn the_will_of_a_killed_client_is_published() {
    let broker = Broker::start(&[]);
    let watcher = broker.sub(&["-t", "will", "-C", "1", "-q", "1", "-F", "%q %p %C"]);
    let mut doomed = broker.sub(&[
        "-t",
        "x",
        "--will-topic",
        "will",
        "--will-payload",
        "gone",
        "--will-qos",
        "1",
        "-D",
        "will",
        "content-type",
        "text/plain",
    ]);
    doomed.kill();
    watcher.finish().succeeds().prints("1 gone text/plain\n");
}

#[test]
fn an_interrupt_ends_sub_without_its_will() {
    let broker = Broker::start(&[]);
    let watcher = broker.sub(&["-t", "will", "-C", "1"]);
    let polite = broker.sub(&["-t", "x", "--will-topic", "will", "--will-payload", "no"]);
    polite.interrupt();
    polite.finish().succeeds().prints("");
    broker.run("pub", &["-t", "will", "-m", "first"]).succeeds();
    watcher.finish().succeeds().prints("first\n");
}

#[test]
fn names_an_unreachable_broker() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for tool in [&["pub", "-t", "a", "-m", "x"][..], &["sub", "-t", "a"], &["bench", "mqtt"]] {
        let port_flag = if tool[0] == "bench" { "--port" } else { "-p" };
        let ended = mainstem(&[tool, &[port_flag, &port.to_string()]].concat(), b"").fails_with(1);
        let expected = format!("cannot connect to 127.0.0.1:{port}: connection refused");
        assert!(ended.errors().contains(&expected), "{}", ended.errors());
    }
    let quiet = mainstem(&["pub", "-t", "a", "-n", "--quiet", "-p", &port.to_string()], b"").fails_with(1);
    assert_eq!(quiet.errors(), "");
}

#[test]
fn prints_the_reason_of_a_refusal() {
    let broker = Broker::start(&["--set", "mqtt.allow_empty_client_id=false", "--set", "mqtt.maximum_qos=1"]);
    let nameless = broker.run("pub", &["-t", "a", "-m", "x"]).fails_with(0x85);
    assert!(nameless.errors().contains("client identifier not valid (0x85)"), "{}", nameless.errors());
    let too_high = broker.run("pub", &["-i", "me", "-t", "a", "-m", "x", "-q", "2"]).fails_with(1);
    assert!(too_high.errors().contains("QoS 1 at most"), "{}", too_high.errors());
}

#[test]
fn a_refused_publish_becomes_the_exit_status() {
    let scripted = ScriptedBroker::start(vec![vec![
        (Some(0x10), vec![0x20, 3, 0, 0, 0]),
        (Some(0x30), vec![0x40, 4, 0, 1, 0x97, 0]),
        (Some(0xE0), Vec::new()),
    ]]);
    let ended =
        mainstem(&["pub", "-p", &scripted.port, "-t", "a", "-m", "x", "-q", "1"], b"").fails_with(0x97);
    assert!(ended.errors().contains("refused: quota exceeded (0x97)"), "{}", ended.errors());
    scripted.finish();
}

#[test]
fn sub_reconnects_only_with_the_flag() {
    let accept = (Some(0x10), vec![0x20, 3, 0, 0, 0]);
    let granted = (Some(0x80), vec![0x90, 4, 0, 1, 0, 0]);
    let message = (None, vec![0x30, 6, 0, 1, b'a', 0, b'h', b'i']);

    let scripted = ScriptedBroker::start(vec![vec![accept.clone(), granted.clone()]]);
    let ended = mainstem(&["sub", "-p", &scripted.port, "-t", "a", "-C", "1"], b"").fails_with(1);
    assert!(ended.errors().contains("closed the connection"), "{}", ended.errors());
    scripted.finish();

    let disconnect = (Some(0xE0), Vec::new());
    let scripted = ScriptedBroker::start(vec![
        vec![accept.clone(), granted.clone()],
        vec![accept, granted, message, disconnect],
    ]);
    let args = ["sub", "-p", &scripted.port, "-t", "a", "-C", "1", "--reconnect"];
    let ended = mainstem(&args, b"").succeeds().prints("hi\n");
    assert!(ended.errors().contains("reconnecting"), "{}", ended.errors());
    scripted.finish();
}

#[test]
fn bench_scenarios_deliver_everything() {
    let broker = Broker::start(&DEEP_QUEUES);
    let scenarios: [&[&str]; 5] = [
        &["--scenario", "fan-out", "--publishers", "2", "--subscribers", "20", "--topics", "3"],
        &["--scenario", "fan-in", "--publishers", "10", "--subscribers", "3"],
        &["--scenario", "fan-in", "--publishers", "4", "--subscribers", "2", "--overlap"],
        &["--scenario", "pairs", "--publishers", "8"],
        &["--scenario", "shared", "--publishers", "2", "--subscribers", "5"],
    ];
    for scenario in scenarios {
        for qos in ["0", "1", "2"] {
            for load in [["--rate", "500"], ["--window", "4"]] {
                let threads = if load[0] == "--window" { "2" } else { "1" };
                let args = [scenario, &load, &["--qos", qos, "--threads", threads]].concat();
                let traffic = bench(&broker, &args)["traffic"].take();
                check_complete(&traffic, &args);
            }
        }
    }
}

#[test]
fn bench_speaks_both_versions_and_large_payloads() {
    let broker = Broker::start(&DEEP_QUEUES);
    for version in ["4", "5"] {
        for payload in ["16", "300000"] {
            let args = [
                "--version",
                version,
                "--payload",
                payload,
                "--qos",
                "1",
                "--window",
                "2",
                "--subscribers",
                "3",
            ];
            let traffic = bench(&broker, &args)["traffic"].take();
            check_complete(&traffic, &args);
        }
    }
}

#[test]
fn bench_measures_idle_connections_and_retained_messages() {
    let broker = Broker::start(&[]);
    let pid = broker.pid().to_string();
    let report = bench(&broker, &["--idle", "200", "--broker-pid", &pid]);
    assert_eq!(report["idle"]["connections"], 200);
    assert!(report["idle"]["connections_per_s"].as_f64().unwrap() > 0.0);
    assert!(report["idle"]["rss_kib_per_connection"].is_number());
    assert!(report["traffic"].is_null());

    for qos in ["0", "1", "2"] {
        let report = bench(&broker, &["--retained", "500", "--publishers", "3", "--qos", qos]);
        let retained = &report["retained"];
        assert_eq!(
            (&retained["messages"], &retained["lost"], &retained["duplicates"]),
            (&500.into(), &0.into(), &0.into())
        );
    }
}

#[test]
fn bench_reads_the_cost_of_the_broker() {
    let broker = Broker::start(&[]);
    let pid = broker.pid().to_string();
    let report = bench(&broker, &["--window", "50", "--subscribers", "10", "--broker-pid", &pid]);
    let cost = &report["traffic"]["broker"];
    assert!(cost["cpu_user_s"].as_f64().unwrap() + cost["cpu_system_s"].as_f64().unwrap() > 0.0, "{report}");
    assert!(cost["rss_peak_mib"].as_f64().unwrap() > 1.0);
}

#[test]
fn bench_reports_a_lost_broker() {
    let broker = Broker::start(&[]);
    let port = broker.port().to_string();
    let mut running = Run::start(
        &[
            "bench",
            "mqtt",
            "--port",
            &port,
            "--rate",
            "100",
            "--duration",
            "30",
            "--drain",
            "0",
            "--progress",
        ],
        b"",
    );
    running.wait_for_error_line("measuring");
    drop(broker);
    running.wait_for_error_line("0 delivered/s");
    running.kill();
}

/// Runs a short benchmark and returns its JSON report.
fn bench(broker: &Broker, args: &[&str]) -> Value {
    let port = broker.port().to_string();
    let short =
        ["bench", "mqtt", "--port", &port, "--duration", "0.2", "--warmup", "0.1", "--drain", "30", "--json"];
    let ended = mainstem(&[&short, args].concat(), b"").succeeds();
    assert_eq!(ended.text().lines().count(), 1, "one line of JSON");
    serde_json::from_str(ended.text()).unwrap()
}

fn check_complete(traffic: &Value, args: &[&str]) {
    let count = |name: &str| traffic[name].as_u64().unwrap_or_else(|| panic!("{name} in {traffic}"));
    assert!(count("published") > 0, "{args:?}: {traffic}");
    assert_eq!(count("delivered"), count("expected"), "{args:?}: {traffic}");
    for nothing in ["lost", "duplicates", "out_of_order", "foreign", "refused", "written_off"] {
        assert_eq!(count(nothing), 0, "{nothing}, {args:?}: {traffic}");
    }
    assert!(traffic["latency"]["p50_us"].as_f64().unwrap() > 0.0, "{args:?}: {traffic}");
}

/// One step of a script: the type of packet to wait for, if any, and the bytes to send then.
type Step = (Option<u8>, Vec<u8>);

/// A fake broker that follows a script, for behavior that a real broker does not show on demand.
struct ScriptedBroker {
    port: String,
    thread: std::thread::JoinHandle<()>,
}

impl ScriptedBroker {
    /// One script per connection, in order.
    fn start(scripts: Vec<Vec<Step>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let thread = std::thread::spawn(move || {
            for script in scripts {
                let (mut stream, _) = listener.accept().unwrap();
                stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                for (expected, answer) in script {
                    if let Some(expected) = expected {
                        let mut header = [0; 2];
                        stream.read_exact(&mut header).unwrap();
                        assert_eq!(header[0] & 0xF0, expected);
                        stream.read_exact(&mut vec![0; header[1].into()]).unwrap();
                    }
                    stream.write_all(&answer).unwrap();
                }
            }
        });
        Self { port, thread }
    }

    fn finish(self) {
        self.thread.join().expect("the script was followed");
    }
}
