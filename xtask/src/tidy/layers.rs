//! Layering: which crate may import which, and which outside crates a pure crate may use.
//!
//! The table below is the one source: dependencies in the manifests are checked against it, and the crate table in
//! ARCHITECTURE.md is generated from it (`cargo xtask architecture`).

use super::Violation;
use crate::repo::{File, Repo};
use toml::{Table, Value};

/// One crate. Tests may use anything, so dev-dependencies are not checked.
struct Layer {
    /// Name of the package, without the `mainstem-` that most have.
    name: &'static str,
    /// Height in the stack, as ARCHITECTURE.md shows it.
    tier: &'static str,
    /// What the crate contains, for ARCHITECTURE.md.
    contents: &'static str,
    /// Crates of the workspace it may import.
    imports: &'static [&'static str],
    /// For crates without IO and clock, which also compile for wasm32: the outside crates it may import.
    pure: Option<&'static [&'static str]>,
}

/// Stands for every crate of the workspace.
const ANY: &[&str] = &["*"];

/// The crates, lowest first.
const LAYERS: &[Layer] = &[
    Layer {
        name: "topic",
        tier: "0 pure",
        contents: "topic names, topic filters, the subscription index, the match cache",
        imports: &[],
        pure: Some(&["foldhash", "hashbrown"]),
    },
    Layer {
        name: "mqtt",
        tier: "0 pure",
        contents: "MQTT packets to and from bytes, delivery state of a session, topic aliases",
        imports: &["topic"],
        pure: Some(&[]),
    },
    Layer {
        name: "log",
        tier: "0 pure",
        contents: "the interface of the durable log: record batches, `Store`, a store in memory, the contract suite",
        imports: &[],
        pure: Some(&["crc32c"]),
    },
    Layer {
        name: "kafka",
        tier: "0 pure",
        contents: "the Kafka protocol: frames, the messages of every API in all versions",
        imports: &[],
        pure: Some(&[]),
    },
    Layer {
        name: "coordinator",
        tier: "0 pure",
        contents: "state machines: consumer groups, producers of a partition, transactions",
        imports: &[],
        pure: Some(&["regex"]),
    },
    Layer {
        name: "queue-core",
        tier: "0 pure",
        contents: "the work queue: its state machine, its events on the log, its requests",
        imports: &["log"],
        pure: Some(&["foldhash", "hashbrown", "log"]),
    },
    Layer {
        name: "metrics",
        tier: "0 pure",
        contents: "descriptions of metrics, and the text format in which Prometheus reads them",
        imports: &[],
        pure: Some(&[]),
    },
    Layer {
        name: "detect",
        tier: "0 pure",
        contents: "protocol detection: what a peer speaks, from its first bytes, for the log",
        imports: &[],
        pure: Some(&[]),
    },
    Layer {
        name: "backup",
        tier: "1",
        contents: "a repository of backups in a directory or an object store",
        imports: &[],
        pure: None,
    },
    Layer {
        name: "quota",
        tier: "0 pure",
        contents: "quotas of users, client ids and addresses: precedence, token buckets",
        imports: &[],
        pure: Some(&[]),
    },
    Layer {
        name: "security",
        tier: "0 pure",
        contents: "users, password verifiers, API keys, access rules and their evaluation, quotas, bans",
        imports: &["quota", "topic"],
        pure: Some(&[
            "argon2",
            "base64",
            "hmac",
            "pbkdf2",
            "regex-lite",
            "serde",
            "serde_json",
            "sha2",
            "subtle",
        ]),
    },
    Layer {
        name: "sasl",
        tier: "1",
        contents: "the server side of SASL mechanisms: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER",
        imports: &["security"],
        pure: Some(&["base64", "zeroize"]),
    },
    Layer {
        name: "compress",
        tier: "1",
        contents: "compression codecs of record batches, bounded",
        imports: &["log"],
        pure: None,
    },
    Layer {
        name: "bus",
        tier: "1",
        contents: "topics inside one process: `mainstem-bus`",
        imports: &["topic"],
        pure: None,
    },
    Layer {
        name: "disk",
        tier: "1",
        contents: "the segment log: a store in files with group commit and recovery, the file system interface",
        imports: &["log"],
        pure: None,
    },
    Layer {
        name: "runtime",
        tier: "1",
        contents: "shards: event loop, sockets, mailboxes, timers, output buffers",
        imports: &["quota"],
        pure: None,
    },
    Layer {
        name: "tls",
        tier: "2",
        contents: "TLS of listeners: certificates that reload, client certificates, the layer of a connection",
        imports: &["runtime"],
        pure: None,
    },
    Layer {
        name: "websocket",
        tier: "2",
        contents: "WebSocket of listeners: the upgrade of a connection, frames, the layer of a connection",
        imports: &["runtime", "quota"],
        pure: None,
    },
    Layer {
        name: "queue",
        tier: "2",
        contents: "work queues in a directory of one program, without a broker: `mainstem-queue`",
        imports: &["queue-core", "compress", "disk", "log"],
        pure: None,
    },
    Layer {
        name: "partition",
        tier: "2",
        contents: "topics and partitions: catalogue, validation of batches, producer state, watermarks, markers",
        imports: &["coordinator", "compress", "log"],
        pure: None,
    },
    Layer {
        name: "auth",
        tier: "3",
        contents: "users and rules at run time: their log, log-ins by password, API key, certificate and token, the audit log",
        imports: &["security", "quota", "partition", "log"],
        pure: None,
    },
    Layer {
        name: "mqtt-server",
        tier: "3",
        contents: "MQTT: sessions, routing, delivery, retained messages, shared subscriptions, the session journal",
        imports: &["topic", "mqtt", "metrics", "queue-core", "log", "runtime", "sasl", "security", "quota"],
        pure: None,
    },
    Layer {
        name: "queue-server",
        tier: "3",
        contents: "the work queues of a shard, on its partitions; a client for other threads",
        imports: &["partition", "queue-core", "compress", "log"],
        pure: None,
    },
    Layer {
        name: "kafka-server",
        tier: "4",
        contents: "Kafka: connections, request handlers, coordinators; administration of topics and work queues",
        imports: &[
            "kafka",
            "metrics",
            "coordinator",
            "partition",
            "queue-core",
            "queue-server",
            "compress",
            "log",
            "runtime",
            "sasl",
            "security",
            "quota",
        ],
        pure: None,
    },
    Layer {
        name: "admin",
        tier: "4",
        contents: "the HTTP API: work queues, bindings, health, metrics",
        imports: &["detect", "metrics", "queue-core", "log", "security", "quota"],
        pure: None,
    },
    Layer {
        name: "node",
        tier: "5",
        contents: "what a shard runs: the protocol servers as one service, one commit per turn, bindings",
        imports: &["detect", "mqtt", "mqtt-server", "kafka-server", "queue-core", "log", "runtime"],
        pure: None,
    },
    Layer {
        name: "mainstem",
        tier: "6",
        contents: "the binary: command line, configuration, start, drain; client tools for MQTT, Kafka and HTTP",
        imports: ANY,
        pure: None,
    },
    Layer {
        name: "bench",
        tier: "test",
        contents: "the load generator behind `mainstem bench`",
        imports: ANY,
        pure: None,
    },
    Layer {
        name: "sim",
        tier: "test",
        contents: "the simulator: whole brokers with clients, network and disk, from one seed",
        imports: ANY,
        pure: None,
    },
    Layer {
        name: "conformance",
        tier: "test",
        contents: "a raw MQTT client, and tests that talk to the broker over TCP",
        imports: ANY,
        pure: None,
    },
    Layer { name: "bench-bus", tier: "test", contents: "", imports: &["bus", "topic"], pure: None },
    Layer { name: "bus-python", tier: "test", contents: "", imports: &["bus"], pure: None },
    Layer { name: "example-in-process-bus", tier: "test", contents: "", imports: &["bus"], pure: None },
    Layer { name: "mainstem-fuzz", tier: "test", contents: "", imports: ANY, pure: None },
    Layer {
        name: "xtask",
        tier: "test",
        contents: "",
        imports: &["conformance", "compress", "log"],
        pure: None,
    },
];

/// The crates that may contain `unsafe`, and therefore set their own lints.
pub(super) const UNSAFE_CRATES: [&str; 2] = ["runtime", "disk"];

/// The crate table of ARCHITECTURE.md.
pub(crate) fn table() -> String {
    let mut rows = vec!["| tier | crate | contents | imports |\n|---|---|---|---|\n".to_owned()];
    for Layer { name, tier, contents, imports, .. } in
        LAYERS.iter().filter(|layer| !layer.contents.is_empty())
    {
        let imports = match *imports {
            [] => "–".to_owned(),
            ANY => "everything".to_owned(),
            imports => imports.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
        };
        let root = if *name == "mainstem" { "main.rs" } else { "lib.rs" };
        rows.push(format!("| {tier} | [{name}](crates/{name}/src/{root}) | {contents} | {imports} |\n"));
    }
    rows.concat()
}

/// Full names of the pure packages in the repository.
pub(crate) fn pure_packages(repo: &Repo) -> Vec<String> {
    let manifests = repo.files.iter().filter_map(Manifest::read);
    let pure = |manifest: &Manifest| layer_of(&manifest.name).is_some_and(|layer| layer.pure.is_some());
    manifests.filter(pure).map(|manifest| manifest.name).collect()
}

fn layer_of(package: &str) -> Option<&'static Layer> {
    let short = short_name(package);
    LAYERS.iter().find(|layer| layer.name == package || layer.name == short)
}

fn short_name(package: &str) -> &str {
    package.strip_prefix("mainstem-").unwrap_or(package)
}

struct Manifest<'a> {
    file: &'a File,
    name: String,
    table: Table,
}

impl<'a> Manifest<'a> {
    /// `None` if the file is not the manifest of a package.
    fn read(file: &'a File) -> Option<Self> {
        if !file.path.ends_with("Cargo.toml") {
            return None;
        }
        let table: Table = file.text.parse().ok()?;
        let name = table.get("package")?.get("name")?.as_str()?.to_owned();
        Some(Self { file, name, table })
    }

    /// Packages needed to build this one, on any target.
    fn dependencies(&self) -> Vec<String> {
        let mut names = Vec::new();
        let mut collect = |table: Option<&Value>| {
            for (key, value) in table.and_then(Value::as_table).into_iter().flatten() {
                // `key = { package = "name" }` renames the package.
                names.push(value.get("package").and_then(Value::as_str).unwrap_or(key).to_owned());
            }
        };
        for kind in ["dependencies", "build-dependencies"] {
            collect(self.table.get(kind));
            for (_, target) in self.table.get("target").and_then(Value::as_table).into_iter().flatten() {
                collect(target.get(kind));
            }
        }
        names
    }

    fn line_of(&self, dependency: &str) -> usize {
        self.file.lines().find(|(_, line)| line.starts_with(dependency)).map_or(0, |(number, _)| number)
    }
}

pub(super) fn check(repo: &Repo) -> Vec<Violation> {
    let manifests: Vec<Manifest> = repo.files.iter().filter_map(Manifest::read).collect();
    let ours: Vec<&str> = manifests.iter().map(|manifest| manifest.name.as_str()).collect();
    manifests.iter().flat_map(|manifest| check_manifest(manifest, &ours)).collect()
}

fn check_manifest(manifest: &Manifest, ours: &[&str]) -> Vec<Violation> {
    let path = &manifest.file.path;
    let mut violations = Vec::new();
    let Some(layer) = layer_of(&manifest.name) else {
        let what = format!("`{}` is in no layer: add it to xtask/src/tidy/layers.rs", manifest.name);
        return vec![Violation::error(path, 0, what)];
    };
    for dependency in manifest.dependencies() {
        let refused = if ours.contains(&dependency.as_str()) {
            layer.imports != ANY && !layer.imports.contains(&short_name(&dependency))
        } else {
            layer.pure.is_some_and(|outside| !outside.contains(&dependency.as_str()))
        };
        if refused {
            let what = format!("`{}` must not depend on `{dependency}` (ARCHITECTURE.md)", layer.name);
            violations.push(Violation::error(path, manifest.line_of(&dependency), what));
        }
    }
    let inherits =
        manifest.table.get("lints").and_then(|lints| lints.get("workspace")) == Some(&Value::Boolean(true));
    let outside_workspace = manifest.table.contains_key("workspace");
    if !inherits && !outside_workspace && !UNSAFE_CRATES.contains(&layer.name) {
        violations.push(Violation::error(path, 0, "`[lints]` with `workspace = true` is missing"));
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::violations_in;

    const LINTS: &str = "\n[lints]\nworkspace = true\n";

    fn manifest(name: &str, dependencies: &str) -> String {
        format!("[package]\nname = \"{name}\"\n{dependencies}{LINTS}")
    }

    #[test]
    fn imports_are_limited_to_the_table() {
        let topic = manifest("mainstem-topic", "[dependencies]\nhashbrown = \"1\"");
        let mqtt = manifest("mainstem-mqtt", "[dependencies]\nmainstem-topic.workspace = true");
        let files = [("crates/topic/Cargo.toml", topic.as_str()), ("crates/mqtt/Cargo.toml", &mqtt)];
        assert!(violations_in(check, &files).is_empty());

        let upwards = manifest("mainstem-topic", "[dependencies]\nmainstem-mqtt = {}");
        let files = [("crates/topic/Cargo.toml", upwards.as_str()), ("crates/mqtt/Cargo.toml", &mqtt)];
        assert_eq!(violations_in(check, &files), ["crates/topic/Cargo.toml:4"]);
    }

    #[test]
    fn pure_crates_use_listed_crates_only_except_in_tests() {
        let mio = manifest("mainstem-topic", "[target.'cfg(unix)'.dependencies]\nmio = \"1\"");
        assert_eq!(violations_in(check, &[("crates/topic/Cargo.toml", &mio)]), ["crates/topic/Cargo.toml:4"]);
        let dev = manifest("mainstem-topic", "[dev-dependencies]\nmio = \"1\"");
        assert!(violations_in(check, &[("crates/topic/Cargo.toml", &dev)]).is_empty());
    }

    #[test]
    fn sees_renamed_dependencies() {
        let renamed = manifest("mainstem-mqtt", "[dependencies]\nrt = { package = \"mio\" }");
        assert_eq!(violations_in(check, &[("crates/mqtt/Cargo.toml", &renamed)]).len(), 1);
    }

    #[test]
    fn every_crate_has_a_layer_and_inherits_lints() {
        let stranger = manifest("mainstem-stranger", "");
        assert_eq!(
            violations_in(check, &[("crates/stranger/Cargo.toml", &stranger)]),
            ["crates/stranger/Cargo.toml:0"]
        );
        let unlinted = [("crates/mqtt/Cargo.toml", "[package]\nname = \"mainstem-mqtt\"\n")];
        assert_eq!(violations_in(check, &unlinted), ["crates/mqtt/Cargo.toml:0"]);
        let runtime = [("crates/runtime/Cargo.toml", "[package]\nname = \"mainstem-runtime\"\n")];
        assert!(violations_in(check, &runtime).is_empty());
    }

    #[test]
    fn pure_packages_come_from_the_table() {
        let topic = manifest("mainstem-topic", "");
        let broker = manifest("mainstem-mqtt-server", "");
        let repo =
            Repo::planted(&[("crates/topic/Cargo.toml", &topic), ("crates/mqtt-server/Cargo.toml", &broker)]);
        assert_eq!(pure_packages(&repo), ["mainstem-topic"]);
    }
}
