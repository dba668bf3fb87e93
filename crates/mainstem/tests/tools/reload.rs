//! Reloads of the configuration, and the log at run time.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::{Broker, Ended, Run, mainstem};

/// Longest wait for an effect.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);
/// A line as `mosquitto_passwd` writes it, for the password "secret".
const CAROL: &str = "carol:$7$101$c2FsdHNhbHRzYWx0$Hd71hnNoKcARd6Fkl1rUE+opfs3V78ZJB2AgXXC1kaKQiWfi5S5qX7D1mY5b+bIzvyidWMnS8VA+YAsAygq9EA==\n";

/// A directory with a configuration file, which is removed with it.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("mainstem-reload-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file and returns its path.
    fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).unwrap();
        self.path(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn reload(broker: &Broker, args: &[&str]) -> Ended {
    mainstem(&[&["config", "reload", "-b", broker.http()], args].concat(), b"")
}

/// Sends a request without a user, and returns status and body of the response.
fn request(broker: &Broker, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let mut stream = TcpStream::connect(broker.http()).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let status = response.split(' ').nth(1).unwrap().parse().unwrap();
    let (_, body) = response.split_once("\r\n\r\n").unwrap();
    (status, serde_json::from_str(body).unwrap())
}

fn log_level(broker: &Broker) -> String {
    let (status, log) = request(broker, "GET", "/v1/log", &Value::Null);
    assert_eq!(status, 200, "{log}");
    log["level"].as_str().unwrap().to_owned()
}

fn make_certificates(directory: &Path, host: &str) {
    mainstem(&["cert", directory.to_str().unwrap(), "--host", host, "--force"], b"").succeeds();
}

#[test]
fn a_reload_applies_what_can_change_and_lists_what_needs_a_restart() {
    let dir = Directory::new("applies");
    let file = dir.write("m.toml", "[mqtt]\nmax_sessions = 5\n");
    let broker = Broker::start(&["--config", &file]);
    reload(&broker, &[]).succeeds().prints("nothing has changed\n");
    dir.write("m.toml", "[mqtt]\nmax_sessions = 7\n[log]\nlevel = \"warn,mainstem_disk=info\"\n");
    let restart = "needs a restart: mqtt.max_sessions = 7 (is 5)\n";
    let applied = "applied: log.level = \"warn,mainstem_disk=info\" (was \"info\")\n";
    reload(&broker, &[]).succeeds().prints(&format!("{applied}{restart}"));
    assert_eq!(log_level(&broker), "warn,mainstem_disk=info");
    // What needs a restart is reported until there is one.
    reload(&broker, &[]).succeeds().prints(restart);
    let printed = reload(&broker, &["--json"]).succeeds();
    let report: Value = serde_json::from_str(printed.text()).unwrap();
    let restart = json!([{ "key": "mqtt.max_sessions", "before": "5", "after": "7" }]);
    assert_eq!(report, json!({ "applied": [], "restart": restart, "files": [] }));
}

#[test]
fn an_invalid_configuration_changes_nothing() {
    let dir = Directory::new("invalid");
    let file = dir.write("m.toml", "");
    let broker = Broker::start(&["--config", &file]);
    dir.write("m.toml", "[log]\nlevel = \"debug\"\n[mqtt]\nmaximum_qos = 9\nmax_sesions = 1\n");
    let errors = reload(&broker, &[]).fails_with(1).errors().to_owned();
    for part in
        ["nothing has changed: ", "m.toml:4:1: mqtt.maximum_qos: 9 is not within", "m.toml:5:1: unknown key"]
    {
        assert!(errors.contains(part), "{errors}");
    }
    let passwords = dir.path("absent");
    dir.write(
        "m.toml",
        &format!("[log]\nlevel = \"debug\"\n[security]\npassword_file = {:?}\n", passwords.to_str().unwrap()),
    );
    let errors = reload(&broker, &[]).fails_with(1).errors().to_owned();
    assert!(errors.contains("security.password_file: "), "{errors}");
    assert_eq!(log_level(&broker), "info");
}

#[test]
fn sighup_reloads() {
    let dir = Directory::new("sighup");
    let file = dir.write("m.toml", "");
    let broker = Broker::start(&["--config", &file]);
    dir.write("m.toml", "[log]\nlevel = \"error\"\n");
    let pid = Pid::from_raw(i32::try_from(broker.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::HUP).unwrap();
    let deadline = Instant::now() + TEST_TIMEOUT;
    while log_level(&broker) != "error" {
        assert!(Instant::now() < deadline, "the level has not changed");
    }
}

#[test]
fn users_of_the_password_file_come_and_go_with_reloads() {
    let dir = Directory::new("users");
    let passwords = dir.write("passwords", "");
    let file = dir.write("m.toml", &format!("[security]\npassword_file = {passwords:?}\n"));
    let broker = Broker::start(&["--config", &file]);
    let publish = |password: &str| broker.run("pub", &["-t", "a", "-m", "x", "-u", "carol", "-P", password]);
    broker.run("pub", &["-t", "a", "-m", "x"]).succeeds();
    dir.write("passwords", CAROL);
    reload(&broker, &[]).succeeds().prints("read again: security.password_file\n");
    publish("secret").succeeds();
    assert_ne!(publish("other").code(), Some(0));
    assert_ne!(broker.run("pub", &["-t", "a", "-m", "x"]).code(), Some(0));
    reload(&broker, &[]).fails_with(1);
    let admin = ["--username", "carol", "--password", "secret"];
    reload(&broker, &admin).succeeds().prints("nothing has changed\n");
    dir.write("passwords", "");
    reload(&broker, &admin).succeeds().prints("read again: security.password_file\n");
    broker.run("pub", &["-t", "a", "-m", "x"]).succeeds();
}

#[test]
fn certificates_are_read_again_with_everything_else_or_not_at_all() {
    let dir = Directory::new("certificates");
    make_certificates(&dir.0, "localhost");
    let (certificate, key) = (dir.path("server.crt"), dir.path("server.key"));
    let listener = format!(
        "[[listener]]\nname = \"mqtts\"\nprotocol = \"mqtt\"\nlisten = \"127.0.0.1:0\"\n\
         tls = {{ certificate = {certificate:?}, key = {key:?} }}\n"
    );
    let file = dir.write("m.toml", &listener);
    let broker = Broker::start(&["--config", &file]);
    reload(&broker, &[]).succeeds().prints("nothing has changed\n");
    make_certificates(&dir.0, "127.0.0.1");
    reload(&broker, &[]).succeeds().prints("read again: certificates of listener \"mqtts\"\n");
    fs::write(&key, "no key").unwrap();
    dir.write("m.toml", &format!("[log]\nlevel = \"error\"\n{listener}"));
    let errors = reload(&broker, &[]).fails_with(1).errors().to_owned();
    assert!(errors.contains("listener \"mqtts\": "), "{errors}");
    assert_eq!(log_level(&broker), "info");
}

#[test]
fn the_level_of_the_log_changes_until_a_reload() {
    let broker = Broker::start(&[]);
    let set = |body: Value| request(&broker, "PATCH", "/v1/log", &body);
    let (status, problem) = set(json!({ "level": "loud" }));
    assert_eq!(status, 422, "{problem}");
    assert!(problem["detail"].as_str().unwrap().starts_with("level: \"loud\": expected off"), "{problem}");
    assert_ne!(set(json!({ "level": "info", "format": "json" })).0, 200);
    let level = "info,mainstem_mqtt_server=debug";
    assert_eq!(set(json!({ "level": level })), (200, json!({ "level": level, "format": "text" })));
    let applied = format!("applied: log.level = \"info\" (was \"{level}\")\n");
    reload(&broker, &[]).succeeds().prints(&applied);
    assert_eq!(log_level(&broker), "info");
    assert_eq!(request(&broker, "POST", "/v1/config/reload", &json!({})).0, 422);
}

#[test]
fn the_log_is_json_if_the_format_says_so() {
    let dir = Directory::new("json");
    let data = dir.path("data");
    let any = "127.0.0.1:0";
    let mut broker = Run::start(
        &[
            "serve",
            "--listen",
            any,
            "--kafka-listen",
            any,
            "--http-listen",
            any,
            "--data",
            data.to_str().unwrap(),
            "--set",
            "log.format=json",
            "--set",
            "log.level=info,mainstem::memory=off",
        ],
        b"",
    );
    broker.wait_for_error_line("shards are");
    broker.interrupt();
    let ended = broker.finish().succeeds();
    let mut messages = Vec::new();
    for line in ended.errors().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let fields: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(fields, ["level", "message", "module", "thread", "time"]);
        messages.push(line["message"].as_str().unwrap().to_owned());
    }
    assert!(messages.contains(&"ended".to_owned()), "{messages:?}");
    assert!(!messages.iter().any(|message| message.starts_with("memory budget")), "{messages:?}");
}
