//! `mainstem config`, and environment variables that set keys.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::support::{Broker, Ended, Run, mainstem};

/// A file in a directory that is removed with it.
struct ConfigFile(PathBuf);

impl ConfigFile {
    fn new(name: &str, text: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("mainstem-config-tool-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("m.toml"), text).unwrap();
        Self(dir)
    }

    /// Runs `mainstem config` with the file, in its directory.
    fn run(&self, args: &[&str], environment: &[(&str, &str)]) -> Ended {
        Run::start_in(&self.0, environment, &[&["config"], args, &["m.toml"]].concat()).finish()
    }
}

impl Drop for ConfigFile {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

const INVALID: &str = "[mqtt]\nmax_quued = 3\nmaximum_qos = 3\nqueue_qos0 = 1\n";

#[test]
fn check_reports_all_errors_at_once() {
    let file = ConfigFile::new("check", INVALID);
    let environment = [("MAINSTEM_KAFKA__NODE_ID", "one")];
    let errors = file.run(&["check"], &environment).fails_with(1).prints("").errors().to_owned();
    let expected = "\
m.toml:2:1: unknown key `max_quued` (docs/configuration.md lists all keys)
  |
2 | max_quued = 3
  | ^^^^^^^^^
m.toml:3:1: mqtt.maximum_qos: 3 is not within 0 to 2
  |
3 | maximum_qos = 3
  | ^^^^^^^^^^^
m.toml:4:14: invalid type: integer `1`, expected true or false
  |
4 | queue_qos0 = 1
  |              ^
environment variable MAINSTEM_KAFKA__NODE_ID: invalid type: string \"one\", expected a number
";
    assert_eq!(errors, expected);
    let json: Value =
        serde_json::from_str(file.run(&["check", "--json"], &environment).fails_with(1).text()).unwrap();
    let found = json["errors"].as_array().unwrap();
    assert_eq!((found.len(), &found[1]["line"], &found[1]["column"]), (4, &3.into(), &1.into()));
    assert_eq!(found[3]["variable"], "MAINSTEM_KAFKA__NODE_ID");
}

#[test]
fn check_reads_the_files_that_a_configuration_names() {
    let text = "[[listener]]\nname = \"s\"\nprotocol = \"mqtt\"\nlisten = \"127.0.0.1:0\"\n\
                tls = { certificate = \"none.pem\", key = \"none.pem\" }\n";
    let file = ConfigFile::new("files", text);
    let errors = file.run(&["check"], &[]).fails_with(1).errors().to_owned();
    assert!(errors.contains("listener \"s\"") && errors.contains("none.pem"), "{errors}");
    ConfigFile::new("valid", "[mqtt]\nlisten = \"127.0.0.1:0\"\n")
        .run(&["check"], &[])
        .succeeds()
        .prints("no errors\n");
}

#[test]
fn show_prints_toml_with_the_origin_of_each_value_and_no_secrets() {
    let text = "[mqtt]\nmax_queued_bytes = \"1KiB\"\n[jwt]\nsecret = \"from the file, with 32 bytes or more\"\n\
                [[listener]]\nname = \"a\"\nprotocol = \"mqtt\"\nlisten = \"127.0.0.1:0\"\n";
    let file = ConfigFile::new("show", text);
    let environment = [
        ("MAINSTEM_LOG_IN_HOOK__AUTHORIZATION", "Bearer hush"),
        ("MAINSTEM_LISTENER__0__MAX_CONNECTIONS", "9"),
    ];
    let shown = file.run(&["show", "--set", "kafka.partitions=3"], &environment).succeeds();
    shown.prints(
        "[mqtt]\nmax_queued_bytes = 1024 # m.toml:2\n\n[kafka]\npartitions = 3 # --set kafka.partitions\n\n\
         [jwt]\nsecret = \"(hidden)\" # m.toml:4\n\n\
         [log_in_hook]\nauthorization = \"(hidden)\" # MAINSTEM_LOG_IN_HOOK__AUTHORIZATION\n\n\
         [[listener]]\nlisten = \"127.0.0.1:0\" # m.toml:8\n\
         max_connections = 9 # MAINSTEM_LISTENER__0__MAX_CONNECTIONS\nname = \"a\" # m.toml:6\nprotocol = \"mqtt\" # m.toml:7\n",
    );
    for args in
        [&["show", "--effective"][..], &["show", "--effective", "--json"], &["diff"], &["diff", "--json"]]
    {
        let ended = file.run(args, &environment).succeeds();
        assert!(
            !ended.text().contains("hush") && !ended.text().contains("from the file"),
            "{}",
            ended.text()
        );
        assert!(ended.text().contains("1024"), "{}", ended.text());
    }
}

#[test]
fn what_show_prints_is_a_configuration_with_the_same_values() {
    let effective = mainstem(&["config", "show", "--effective"], b"").succeeds();
    assert!(effective.text().lines().filter(|line| line.ends_with("# default")).count() > 100);
    let file = ConfigFile::new("again", effective.text());
    file.run(&["diff"], &[]).succeeds().prints("");
}

#[test]
fn diff_compares_with_defaults_or_another_file() {
    let file = ConfigFile::new("diff", "[mqtt]\nmax_sessions = 1000000\nqueue_overflow = \"drop-oldest\"\n");
    file.run(&["diff"], &[]).succeeds().prints(
        "-mqtt.queue_overflow = \"drop-newest\"\n+mqtt.queue_overflow = \"drop-oldest\" # m.toml:3\n",
    );
    fs::write(
        file.0.join("old.toml"),
        "[mqtt]\nqueue_overflow = \"drop-oldest\"\n[queues]\nauto_create = false\n",
    )
    .unwrap();
    file.run(&["diff", "--against", "old.toml"], &[])
        .succeeds()
        .prints("-queues.auto_create = false\n+queues.auto_create = true\n");
}

#[test]
fn the_broker_takes_keys_from_the_environment() {
    let broker = Broker::start_with(&[("MAINSTEM_MQTT__MAX_PACKET_SIZE_BYTES", "1KiB")], &[]);
    broker.run("pub", &["-t", "a", "-q", "1", "-m", "short"]).succeeds();
    let long = "x".repeat(2000);
    assert_ne!(broker.run("pub", &["-t", "a", "-q", "1", "-m", &long]).code(), Some(0));
    let failed =
        Run::start_in(&std::env::temp_dir(), &[("MAINSTEM_MQTT__MAX_SESIONS", "1")], &["serve"]).finish();
    let errors = failed.fails_with(1).errors().to_owned();
    assert!(errors.contains("environment variable MAINSTEM_MQTT__MAX_SESIONS: unknown key"), "{errors}");
}
