//! File maps: the table under `# Files` in a crate's `lib.rs` names every file of its `src`, and nothing else.
//!
//! A reader finds the file for a job in that table, so a missing or a stale row is an error. The first column of a row
//! holds the names, in backticks: `name.rs` for a file (with or without a folder of the same name), `name/` for a
//! folder with a `mod.rs`.

use std::collections::BTreeSet;

use super::Violation;
use crate::repo::{File, Repo};

/// A crate with fewer modules than this needs no map.
const MODULES_MIN: usize = 3;

pub(super) fn check(repo: &Repo) -> Vec<Violation> {
    let is_root = |file: &&File| file.path.starts_with("crates/") && file.path.ends_with("/src/lib.rs");
    repo.files.iter().filter(is_root).flat_map(|root| check_crate(repo, root)).collect()
}

fn check_crate(repo: &Repo, root: &File) -> Vec<Violation> {
    let modules = modules(repo, root);
    let Some((line, mapped)) = map(root) else {
        let is_small = modules.len() < MODULES_MIN;
        let what = "a `# Files` table in the crate's documentation is missing";
        return if is_small { Vec::new() } else { vec![Violation::error(&root.path, 1, what)] };
    };
    let missing = modules.difference(&mapped).map(|name| format!("`{name}` is missing from the file map"));
    let stale = mapped.difference(&modules).map(|name| format!("the file map names `{name}`: no such file"));
    missing.chain(stale).map(|what| Violation::error(&root.path, line, what)).collect()
}

/// Names of the files and folders beside the crate's root, as the map has them.
fn modules(repo: &Repo, root: &File) -> BTreeSet<String> {
    let source = root.path.trim_end_matches("lib.rs");
    let mut found = BTreeSet::new();
    for file in repo.with_extension("rs") {
        let Some(relative) = file.path.strip_prefix(source) else { continue };
        let name = match relative.split_once('/') {
            None if matches!(relative, "lib.rs" | "main.rs" | "tests.rs") => continue,
            None => relative.to_owned(),
            Some((folder, "mod.rs")) => format!("{folder}/"),
            Some(_) => continue,
        };
        found.insert(name);
    }
    found
}

/// The names in the first column of the table under `# Files`, and the heading's line. `None` without that heading.
fn map(root: &File) -> Option<(usize, BTreeSet<String>)> {
    let mut docs = root.lines().take_while(|(_, line)| line.starts_with("//!"));
    let (heading, _) = docs.find(|(_, line)| line.trim_end() == "//! # Files")?;
    let rows = docs
        .map(|(_, line)| line.trim_start_matches("//!").trim())
        .take_while(|line| !line.starts_with("# "))
        .filter_map(|line| line.strip_prefix('|')?.split('|').next());
    // Every second piece between backticks is a name.
    let names = rows.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    // A file and its folder may both stand in a row: the file is the module.
    let names: BTreeSet<String> = names.map(str::to_owned).collect();
    let has_file =
        |name: &str| name.strip_suffix('/').is_some_and(|stem| names.contains(&format!("{stem}.rs")));
    Some((heading, names.iter().filter(|name| !has_file(name)).cloned().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::violations_in;

    const ROOT: &str = "//! A.\n//!\n//! # Files\n//! | file | contents |\n//! |---|---|\n\
                        //! | `a.rs`, `a/` | a |\n//! | `b/` | b |\n//! | `c.rs` | what `z.rs` was |\n\nmod a;\n";

    #[test]
    fn map_names_every_file_and_no_other() {
        let files = [
            ("crates/x/src/a.rs", ""),
            ("crates/x/src/a/inner.rs", ""),
            ("crates/x/src/b/mod.rs", ""),
            ("crates/x/src/c.rs", ""),
            ("crates/x/src/lib.rs", ROOT),
        ];
        assert!(violations_in(check, &files).is_empty());
        assert_eq!(violations_in(check, &files[1..]), ["crates/x/src/lib.rs:3"], "a stale row");
        let more = [&files[..], &[("crates/x/src/d.rs", "")]].concat();
        assert_eq!(violations_in(check, &more), ["crates/x/src/lib.rs:3"], "a missing row");
    }

    #[test]
    fn only_a_small_crate_needs_no_map() {
        let files = [
            ("crates/x/src/a.rs", ""),
            ("crates/x/src/b.rs", ""),
            ("crates/x/src/c.rs", ""),
            ("crates/x/src/lib.rs", "//! A.\n"),
        ];
        assert_eq!(violations_in(check, &files), ["crates/x/src/lib.rs:1"]);
        assert!(violations_in(check, &files[1..]).is_empty());
    }
}
