//! Import cycles among the files of a crate.
//!
//! A file that imports another, which imports the first, cannot be understood or changed without it. Paths that begin
//! with `crate::` count; a module and the modules inside it may name each other with `super` and `self`.

use super::Violation;
use super::functions::{is_production, production_code};
use crate::repo::{File, Repo};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn check(repo: &Repo) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (_, files) in by_crate(production(repo)) {
        for cycle in cycles(&imports(&files)) {
            let paths: Vec<&str> = cycle.iter().map(|file| &*files[*file].path).collect();
            let what = format!("an import cycle of {} files: {}", cycle.len(), paths.join(", "));
            violations.push(Violation::error(paths[0], 0, what));
        }
    }
    violations
}

/// Sources of the crates, without their tests.
fn production(repo: &Repo) -> impl Iterator<Item = &File> {
    repo.with_extension("rs").filter(|file| is_production(&file.path))
}

/// Source files by crate.
pub(crate) fn by_crate<'a>(files: impl Iterator<Item = &'a File>) -> BTreeMap<&'a str, Vec<&'a File>> {
    let mut crates: BTreeMap<&str, Vec<&File>> = BTreeMap::new();
    for file in files {
        if let Some((name, _)) = place(&file.path) {
            crates.entry(name).or_default().push(file);
        }
    }
    crates
}

/// The crate of a source file, and its path inside `src`.
pub(crate) fn place(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix("crates/")?.split_once("/src/")
}

/// For each file of a crate, the files whose modules it names by a path that begins with `crate::`.
pub(crate) fn imports(files: &[&File]) -> Vec<BTreeSet<usize>> {
    let modules: BTreeMap<String, usize> = files
        .iter()
        .enumerate()
        .filter_map(|(index, file)| Some((module(place(&file.path)?.1), index)))
        .collect();
    files
        .iter()
        .enumerate()
        .map(|(own, file)| {
            let code: String = production_code(file).split_whitespace().collect();
            let paths =
                code.match_indices("crate::").flat_map(|(at, start)| paths(&code[at + start.len()..]));
            let targets = paths.filter_map(|path| resolve(&modules, &path));
            targets.filter(|target| *target != own).collect()
        })
        .collect()
}

/// The module path of a file: `a/b.rs` and `a/b/mod.rs` are `a::b`; the crate's root is empty.
fn module(inside: &str) -> String {
    let stem = inside.trim_end_matches(".rs").trim_end_matches("/mod");
    if matches!(stem, "lib" | "main") { String::new() } else { stem.replace('/', "::") }
}

/// The paths that follow `crate::`: one, or one for each entry of a brace list.
fn paths(rest: &str) -> Vec<String> {
    let is_path = |character: char| character.is_alphanumeric() || matches!(character, '_' | ':');
    let head: String = rest.chars().take_while(|character| is_path(*character)).collect();
    let tail = &rest[head.len()..];
    let Some(list) = tail.strip_prefix('{').filter(|_| head.is_empty() || head.ends_with("::")) else {
        return vec![head];
    };
    let list = list.split(['{', '}']).next().unwrap_or("");
    list.split(',').map(|entry| format!("{head}{entry}")).collect()
}

/// The file of the longest prefix of a path that is a module.
fn resolve(modules: &BTreeMap<String, usize>, path: &str) -> Option<usize> {
    let mut path = path;
    loop {
        if let Some(found) = modules.get(path).filter(|_| !path.is_empty()) {
            return Some(*found);
        }
        path = path.rsplit_once("::")?.0;
    }
}

/// Groups of files that reach each other, each of at least two files (strongly connected components).
pub(crate) fn cycles(imports: &[BTreeSet<usize>]) -> Vec<Vec<usize>> {
    let reach: Vec<BTreeSet<usize>> = (0..imports.len()).map(|start| reachable(imports, start)).collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for start in 0..imports.len() {
        if seen.contains(&start) {
            continue;
        }
        let group: Vec<usize> =
            reach[start].iter().copied().filter(|other| reach[*other].contains(&start)).collect();
        seen.extend(group.iter().copied());
        if group.len() > 1 {
            found.push(group);
        }
    }
    found
}

fn reachable(imports: &[BTreeSet<usize>], start: usize) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut open: Vec<usize> = imports[start].iter().copied().collect();
    while let Some(next) = open.pop() {
        if found.insert(next) {
            open.extend(imports[next].iter().copied());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, text: &str) -> File {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn finds_cycles_through_imports_and_inline_paths() {
        let files = [
            file("crates/x/src/lib.rs", "mod a;\nmod b;\nmod c;\n"),
            file("crates/x/src/a.rs", "use crate::{\n    b::B,\n    c::C,\n};\n"),
            file("crates/x/src/b.rs", "fn f() { crate::a::inner::g(); }\n"),
            file("crates/x/src/a/inner.rs", "use crate::a::A;\n"),
            file("crates/x/src/c.rs", "use crate::Root;\n"),
        ];
        let files: Vec<&File> = files.iter().collect();
        // a -> b -> a::inner -> a.
        assert_eq!(cycles(&imports(&files)), [vec![1, 2, 3]]);
    }

    #[test]
    fn a_cycle_is_an_error_and_names_its_files() {
        let cyclic = vec![
            file("crates/x/src/a.rs", "use crate::b::B;\n"),
            file("crates/x/src/b.rs", "use crate::a::A;\n"),
            file("crates/y/src/a.rs", "use crate::b::B;\n"),
            file("crates/y/src/b.rs", "struct B;\n"),
        ];
        let violations = check(&Repo { files: cyclic });
        assert_eq!(violations.len(), 1);
        assert!(violations[0].what.ends_with("crates/x/src/a.rs, crates/x/src/b.rs"), "{}", violations[0]);
    }
}
