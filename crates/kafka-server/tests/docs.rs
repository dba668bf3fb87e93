//! Documentation that repeats the declarations of APIs: `docs/kafka.md` and the heads of the handler files.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use mainstem_kafka_server::{SERVED, ServedApi};

fn crate_path(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(crate_path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The table of served APIs in the format of `docs/kafka.md`.
fn table() -> String {
    let mut table = String::from("| key | API | versions | |\n|---|---|---|---|\n");
    for ServedApi { api, note, .. } in SERVED {
        let (key, name, from, to) = (api.key, api.name, api.announced_from, api.versions.end());
        writeln!(table, "| {key} | {name} | {from} to {to} | {note} |").expect("writing to memory");
    }
    table
}

/// `MAINSTEM_WRITE_DOCS=1` writes the table instead.
#[test]
fn the_page_lists_the_served_apis() {
    const PAGE: &str = "../../docs/kafka.md";
    let page = read(PAGE);
    let begin = page.find("| key | API |").expect("a table of APIs");
    let end = begin + page[begin..].find("\n\n").expect("text after the table") + 1;
    if std::env::var_os("MAINSTEM_WRITE_DOCS").is_some() {
        let page = [&page[..begin], &table(), &page[end..]].concat();
        return std::fs::write(crate_path(PAGE), page).expect("writing the page");
    }
    assert_eq!(&page[begin..end], table(), "MAINSTEM_WRITE_DOCS=1 writes the table");
}

/// The module of an API: `ListOffsets` is in `list_offsets.rs`.
fn module(name: &str) -> String {
    let mut module = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !module.is_empty() {
            module.push('_');
        }
        module.push(letter.to_ascii_lowercase());
    }
    module
}

#[test]
fn handler_files_open_with_name_and_versions() {
    for ServedApi { api, .. } in SERVED {
        let versions = match (api.versions.start(), api.versions.end()) {
            (from, to) if from == to => format!("version {from}"),
            (from, to) => format!("versions {from} to {to}"),
        };
        let path = format!("src/handlers/{}.rs", module(api.name));
        let head = format!("//! `{}`, {versions}: ", api.name);
        assert!(read(&path).starts_with(&head), "{path} should begin with {head:?}");
    }
}
