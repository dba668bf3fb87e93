//! Dead files: Rust sources that no target of their package reaches through `mod`.

use super::Violation;
use super::lexer::split;
use crate::repo::{File, Repo, directory, join};
use std::collections::BTreeSet;
use toml::{Table, Value};

pub(super) fn check(repo: &Repo) -> Vec<Violation> {
    let mut reached = BTreeSet::new();
    for file in repo.files.iter().filter(|file| file.path.ends_with("Cargo.toml")) {
        for root in roots(repo, file) {
            reach(repo, &root, &module_directory(&root, true), &mut reached);
        }
    }
    repo.with_extension("rs")
        .filter(|file| !reached.contains(&file.path))
        .map(|file| Violation::error(&file.path, 0, "dead file: no `mod` declaration of a target reaches it"))
        .collect()
}

/// Root sources of a package's targets: those cargo discovers and those the manifest names.
fn roots(repo: &Repo, manifest: &File) -> Vec<String> {
    let package = directory(&manifest.path);
    let inside = |path: &str| join(package, path);
    let mut roots: Vec<String> =
        ["src/lib.rs", "src/main.rs", "build.rs"].into_iter().filter_map(inside).collect();
    for file in repo.with_extension("rs") {
        let Some(relative) = file.path.strip_prefix(package) else { continue };
        let parts: Vec<&str> = relative.trim_start_matches('/').split('/').collect();
        if let ["src", "bin", _] | ["src", "bin", _, "main.rs"] = parts[..] {
            roots.push(file.path.clone());
        }
        if let ["tests" | "examples" | "benches", _] | ["tests" | "examples" | "benches", _, "main.rs"] =
            parts[..]
        {
            roots.push(file.path.clone());
        }
    }
    let table: Table = manifest.text.parse().unwrap_or_default();
    let path_of = |target: &Value| target.get("path").and_then(Value::as_str).and_then(inside);
    roots.extend(table.get("lib").and_then(path_of));
    for kind in ["bin", "test", "example", "bench"] {
        let targets = table.get(kind).and_then(Value::as_array).into_iter().flatten();
        roots.extend(targets.filter_map(path_of));
    }
    roots
}

/// Directory of the modules that a file declares.
fn module_directory(path: &str, is_root: bool) -> String {
    let stem = path.strip_suffix(".rs").unwrap_or(path);
    if is_root || stem.ends_with("/mod") { directory(path).to_owned() } else { stem.to_owned() }
}

fn reach(repo: &Repo, path: &str, modules: &str, reached: &mut BTreeSet<String>) {
    let Some(file) = repo.file(path) else { return };
    if !reached.insert(path.to_owned()) {
        return;
    }
    for declared in declarations(&file.text) {
        let found: Vec<String> = match declared {
            Declared::Module(name) => {
                let plain = join(modules, &format!("{name}.rs"));
                let nested = join(modules, &format!("{name}/mod.rs"));
                plain.into_iter().chain(nested).collect()
            }
            Declared::Path(relative) => join(directory(path), &relative).into_iter().collect(),
        };
        for found in found {
            let modules = module_directory(&found, false);
            reach(repo, &found, &modules, reached);
        }
    }
}

enum Declared {
    /// `mod name;`, or `mod outer { mod name; }` as `outer/name`.
    Module(String),
    /// `#[path = "…"] mod name;` or `include!("…")`, from the declaring file's directory.
    Path(String),
}

fn declarations(source: &str) -> Vec<Declared> {
    let code = split(source).code;
    let mut found = Vec::new();
    // Each entry is the name of an open inline module, or none for any other brace.
    let mut open: Vec<Option<&str>> = Vec::new();
    let mut start = 0;
    for (end, mark) in code.match_indices([';', '{', '}']) {
        let statement = &code[start..end];
        let module = declared_module(statement);
        match mark {
            "{" => open.push(module),
            "}" => drop(open.pop()),
            _ => {
                let literal = || literal_in(&source[start..end]);
                if statement.contains("#[path") || statement.contains("include!") {
                    found.extend(literal().map(Declared::Path));
                } else if let Some(name) = module {
                    let path: Vec<&str> = open.iter().flatten().copied().chain([name]).collect();
                    found.push(Declared::Module(path.join("/")));
                }
            }
        }
        start = end + 1;
    }
    found
}

/// The name in `… mod name`, if the statement ends like that.
fn declared_module(statement: &str) -> Option<&str> {
    let mut words = statement.split_whitespace().rev();
    let name = words.next()?;
    (words.next()? == "mod").then_some(name.strip_prefix("r#").unwrap_or(name))
}

fn literal_in(source: &str) -> Option<String> {
    source.split('"').nth(1).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::violations_in;

    const MANIFEST: (&str, &str) = ("crates/a/Cargo.toml", "[package]\nname = \"a\"\n");

    #[test]
    fn unreached_sources_are_dead() {
        let files = [
            MANIFEST,
            ("crates/a/src/lib.rs", "mod b;\npub(crate) mod c;\n// mod dead;\nmod d { mod e; }\n"),
            ("crates/a/src/b.rs", "mod inner;\n"),
            ("crates/a/src/b/inner.rs", ""),
            ("crates/a/src/c/mod.rs", "mod inner;\n"),
            ("crates/a/src/c/inner.rs", ""),
            ("crates/a/src/d/e.rs", ""),
            ("crates/a/src/dead.rs", ""),
            ("crates/a/src/b/dead.rs", ""),
        ];
        assert_eq!(violations_in(check, &files), ["crates/a/src/b/dead.rs:0", "crates/a/src/dead.rs:0"]);
    }

    #[test]
    fn every_target_is_a_root() {
        let files = [
            MANIFEST,
            ("crates/a/src/main.rs", ""),
            ("crates/a/src/bin/tool.rs", ""),
            ("crates/a/tests/t.rs", "mod common;\n"),
            ("crates/a/tests/common/mod.rs", ""),
            ("crates/a/examples/e/main.rs", ""),
            ("fuzz/Cargo.toml", "[package]\nname = \"f\"\n[[bin]]\npath = \"fuzz_targets/x.rs\"\n"),
            ("fuzz/fuzz_targets/x.rs", ""),
            ("fuzz/fuzz_targets/y.rs", ""),
        ];
        assert_eq!(violations_in(check, &files), ["fuzz/fuzz_targets/y.rs:0"]);
    }

    #[test]
    fn follows_path_attributes_and_includes() {
        let files = [
            MANIFEST,
            ("crates/a/src/lib.rs", "#[path = \"odd/name.rs\"]\nmod name;\ninclude!(\"table.rs\");\n"),
            ("crates/a/src/odd/name.rs", ""),
            ("crates/a/src/table.rs", ""),
            ("stray.rs", ""),
        ];
        assert_eq!(violations_in(check, &files), ["stray.rs:0"]);
    }
}
