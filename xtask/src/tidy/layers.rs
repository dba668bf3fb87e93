//! Layering: which crate may import which, and what a pure crate may bring in from outside.

use super::Fault;
use crate::repo::{File, Repo};
use toml::{Table, Value};

/// What a crate may depend on in its code. Tests may use anything, so dev-dependencies are not looked at.
struct Layer {
    /// The package's name, without the `mainstem-` that most have.
    name: &'static str,
    /// The crates of ours it may import.
    imports: &'static [&'static str],
    /// For crates without IO and clock, which also compile for wasm32: the crates from outside they may import.
    pure: Option<&'static [&'static str]>,
}

const fn pure(
    name: &'static str,
    imports: &'static [&'static str],
    outside: &'static [&'static str],
) -> Layer {
    Layer { name, imports, pure: Some(outside) }
}

const fn layer(name: &'static str, imports: &'static [&'static str]) -> Layer {
    Layer { name, imports, pure: None }
}

/// The table of the workspace in ARCHITECTURE.md, lowest first.
const LAYERS: [Layer; 23] = [
    pure("topic", &[], &["foldhash", "hashbrown"]),
    pure("mqtt", &["topic"], &[]),
    pure("log", &[], &["crc32c"]),
    pure("kafka", &["log"], &[]),
    pure("coordinator", &[], &[]),
    pure("queue", &["log"], &["foldhash", "hashbrown", "log"]),
    layer("bus", &["topic"]),
    layer("disk", &["log"]),
    layer("compress", &["log"]),
    layer("runtime", &[]),
    layer("queues", &["queue", "compress", "disk", "log"]),
    layer("broker", &["topic", "mqtt", "log", "runtime"]),
    layer("stream", &["kafka", "coordinator", "queue", "compress", "log", "runtime"]),
    layer("doors", &["mqtt", "broker", "stream", "queue", "log", "runtime"]),
    layer("admin", &["queue", "log"]),
    layer("bench", ANY),
    layer("bench-bus", &["bus", "topic"]),
    layer("bus-python", &["bus"]),
    layer("sim", ANY),
    layer("conformance", ANY),
    layer("mainstem", ANY),
    layer("mainstem-fuzz", ANY),
    layer("xtask", &["conformance"]),
];

/// Stands for every crate of ours.
const ANY: &[&str] = &["*"];

/// The crates that `unsafe` is allowed in, and that therefore set their own lints.
pub(super) const UNSAFE_CRATES: [&str; 2] = ["runtime", "disk"];

/// The pure packages that exist, by their full names.
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
    /// `None` if the file is no manifest, or one without a package.
    fn read(file: &'a File) -> Option<Self> {
        if !file.path.ends_with("Cargo.toml") {
            return None;
        }
        let table: Table = file.text.parse().ok()?;
        let name = table.get("package")?.get("name")?.as_str()?.to_owned();
        Some(Self { file, name, table })
    }

    /// The packages this one needs to be built, whatever the target.
    fn dependencies(&self) -> Vec<String> {
        let mut names = Vec::new();
        let mut collect = |table: Option<&Value>| {
            for (key, value) in table.and_then(Value::as_table).into_iter().flatten() {
                // `key = { package = "name" }` renames.
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

pub(super) fn check(repo: &Repo) -> Vec<Fault> {
    let manifests: Vec<Manifest> = repo.files.iter().filter_map(Manifest::read).collect();
    let ours: Vec<&str> = manifests.iter().map(|manifest| manifest.name.as_str()).collect();
    manifests.iter().flat_map(|manifest| check_manifest(manifest, &ours)).collect()
}

fn check_manifest(manifest: &Manifest, ours: &[&str]) -> Vec<Fault> {
    let path = &manifest.file.path;
    let mut faults = Vec::new();
    let Some(layer) = layer_of(&manifest.name) else {
        let what = format!(
            "`{}` is in no layer: add it to xtask/src/tidy/layers.rs and ARCHITECTURE.md",
            manifest.name
        );
        return vec![Fault::error(path, 0, what)];
    };
    for dependency in manifest.dependencies() {
        let refused = if ours.contains(&dependency.as_str()) {
            layer.imports != ANY && !layer.imports.contains(&short_name(&dependency))
        } else {
            layer.pure.is_some_and(|outside| !outside.contains(&dependency.as_str()))
        };
        if refused {
            let what = format!("`{}` must not depend on `{dependency}` (ARCHITECTURE.md)", layer.name);
            faults.push(Fault::error(path, manifest.line_of(&dependency), what));
        }
    }
    let inherits =
        manifest.table.get("lints").and_then(|lints| lints.get("workspace")) == Some(&Value::Boolean(true));
    let outside_workspace = manifest.table.contains_key("workspace");
    if !inherits && !outside_workspace && !UNSAFE_CRATES.contains(&layer.name) {
        faults.push(Fault::error(
            path,
            0,
            "the workspace's lints are missing: `[lints]` with `workspace = true`",
        ));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::faults_in;

    const LINTS: &str = "\n[lints]\nworkspace = true\n";

    fn manifest(name: &str, dependencies: &str) -> String {
        format!("[package]\nname = \"{name}\"\n{dependencies}{LINTS}")
    }

    #[test]
    fn a_layer_may_import_only_what_the_table_says() {
        let topic = manifest("mainstem-topic", "[dependencies]\nhashbrown = \"1\"");
        let mqtt = manifest("mainstem-mqtt", "[dependencies]\nmainstem-topic.workspace = true");
        let files = [("crates/topic/Cargo.toml", topic.as_str()), ("crates/mqtt/Cargo.toml", &mqtt)];
        assert!(faults_in(check, &files).is_empty());

        let upwards = manifest("mainstem-topic", "[dependencies]\nmainstem-mqtt = {}");
        let files = [("crates/topic/Cargo.toml", upwards.as_str()), ("crates/mqtt/Cargo.toml", &mqtt)];
        assert_eq!(faults_in(check, &files), ["crates/topic/Cargo.toml:4"]);
    }

    #[test]
    fn a_pure_crate_brings_in_nothing_unlisted_and_tests_may() {
        let mio = manifest("mainstem-topic", "[target.'cfg(unix)'.dependencies]\nmio = \"1\"");
        assert_eq!(faults_in(check, &[("crates/topic/Cargo.toml", &mio)]), ["crates/topic/Cargo.toml:4"]);
        let dev = manifest("mainstem-topic", "[dev-dependencies]\nmio = \"1\"");
        assert!(faults_in(check, &[("crates/topic/Cargo.toml", &dev)]).is_empty());
    }

    #[test]
    fn a_renamed_dependency_is_still_seen() {
        let renamed = manifest("mainstem-mqtt", "[dependencies]\nrt = { package = \"mio\" }");
        assert_eq!(faults_in(check, &[("crates/mqtt/Cargo.toml", &renamed)]).len(), 1);
    }

    #[test]
    fn a_crate_without_layer_or_lints_is_a_fault() {
        let stranger = manifest("mainstem-stranger", "");
        assert_eq!(
            faults_in(check, &[("crates/stranger/Cargo.toml", &stranger)]),
            ["crates/stranger/Cargo.toml:0"]
        );
        let unlinted = [("crates/mqtt/Cargo.toml", "[package]\nname = \"mainstem-mqtt\"\n")];
        assert_eq!(faults_in(check, &unlinted), ["crates/mqtt/Cargo.toml:0"]);
        let runtime = [("crates/runtime/Cargo.toml", "[package]\nname = \"mainstem-runtime\"\n")];
        assert!(faults_in(check, &runtime).is_empty());
    }

    #[test]
    fn pure_packages_are_those_of_the_table() {
        let topic = manifest("mainstem-topic", "");
        let broker = manifest("mainstem-broker", "");
        let repo =
            Repo::planted(&[("crates/topic/Cargo.toml", &topic), ("crates/broker/Cargo.toml", &broker)]);
        assert_eq!(pure_packages(&repo), ["mainstem-topic"]);
    }
}
