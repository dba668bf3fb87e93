//! Names of hosts on the outside network: nothing here fetches from one, and no page sends its reader to one.

use super::Fault;
use super::lexer::split;
use crate::repo::{File, Repo, numbered};

/// Files, by their names, that hold such names for reasons of their own: a licence's text, what cargo writes, and the
/// modules of a Go program, whose names begin with hosts.
const EXEMPT_FILES: [&str; 4] = ["LICENSE", "Cargo.lock", "go.mod", "go.sum"];

/// Hosts that may be named: this machine, and those set aside for examples.
const ALLOWED_HOSTS: [&str; 8] =
    ["localhost", "127.0.0.1", "0.0.0.0", "[::1]", "example.com", "example.org", "example.net", "example"];

/// Endings that mark a word as a host even without a scheme. Endings that are also names of files or fields are not
/// among them.
const ENDINGS: [&str; 5] = [".com", ".org", ".net", ".io", ".edu"];

pub(super) fn check(repo: &Repo) -> Vec<Fault> {
    let mut faults = Vec::new();
    for file in repo.files.iter().filter(|file| !is_exempt(file)) {
        for (number, host) in hosts(file) {
            faults.push(Fault::error(
                &file.path,
                number,
                format!("`{host}` is a host on the outside network"),
            ));
        }
    }
    faults
}

fn is_exempt(file: &File) -> bool {
    let name = file.path.rsplit('/').next().unwrap_or("");
    EXEMPT_FILES.contains(&name)
}

fn hosts(file: &File) -> Vec<(usize, String)> {
    // In Rust code a dot is a field; only comments and literals can name a host.
    let prose = if file.is("rs") { Some(split(&file.text).prose) } else { None };
    let mut found = Vec::new();
    for (number, line) in numbered(prose.as_deref().unwrap_or(&file.text)) {
        let after_scheme = line.match_indices("://").map(|(at, _)| host_at(&line[at + 3..]));
        // In Go, such a word is the name of a module.
        let bare =
            line.split(|character| !is_host(character)).filter(|word| has_ending(word) && !file.is("go"));
        let mut hosts: Vec<&str> = after_scheme.chain(bare).filter(|host| !is_allowed(host)).collect();
        hosts.dedup();
        found.extend(hosts.into_iter().map(|host| (number, host.to_owned())));
    }
    found
}

fn is_host(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '.' | '-')
}

/// The host that a URL's rest begins with, without user and port.
fn host_at(rest: &str) -> &str {
    let authority = rest
        .split(|character: char| !is_host(character) && !"@:[]_".contains(character))
        .next()
        .unwrap_or("");
    let host = authority.rsplit('@').next().unwrap_or("");
    match host.find(']') {
        Some(close) => &host[..=close],
        None => host.split(':').next().unwrap_or(""),
    }
}

fn has_ending(word: &str) -> bool {
    let word = word.trim_end_matches('.');
    ENDINGS.iter().any(|ending| {
        word.strip_suffix(ending).is_some_and(|name| !name.is_empty() && !name.starts_with('.'))
    })
}

fn is_allowed(host: &str) -> bool {
    let host = host.trim_end_matches('.');
    // A URL without a host is a template such as `mqtt://{address}`, or a word about URLs.
    let is_template =
        host.trim_matches(['[', ']']).is_empty() || (!host.contains('.') && !host.starts_with('['));
    let is_set_aside =
        |allowed: &str| host == allowed || host.strip_suffix(allowed).is_some_and(|rest| rest.ends_with('.'));
    is_template || host.starts_with("127.") || ALLOWED_HOSTS.iter().any(|allowed| is_set_aside(allowed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::faults_in;

    // Put together here, so that this file does not name them.
    fn outside(text: &str) -> String {
        text.replace("HOST", &["broker", "outside", "com"].join("."))
    }

    #[test]
    fn a_host_of_the_outside_is_a_fault_with_and_without_scheme() {
        for text in
            ["see https://HOST/x", "mqtt://user:secret@HOST:1883", "connect to HOST.", "host = \"HOST\""]
        {
            assert_eq!(faults_in(check, &[("a.md", &outside(text))]), ["a.md:1"], "{text}");
        }
        let numeric = ["http:/", "93.184.216.34", ""].join("/");
        assert_eq!(faults_in(check, &[("a.toml", &numeric)]), ["a.toml:1"]);
    }

    #[test]
    fn hosts_of_this_machine_and_of_examples_pass() {
        let text = "http://127.0.0.1:80/ tcp://localhost mqtt://[::1]:1883 ws://a.example.com mqtt://{address} ws://[{ip}]:1/ x.io.y";
        assert!(faults_in(check, &[("a.md", text)]).is_empty());
    }

    #[test]
    fn rust_fields_are_no_hosts_and_rust_comments_may_name_one() {
        let fields = ["let a = self", "io; let b = a", "net;"].join(".");
        assert!(faults_in(check, &[("a.rs", &fields)]).is_empty());
        assert_eq!(faults_in(check, &[("a.rs", &outside("// ask HOST\n"))]), ["a.rs:1"]);
    }

    #[test]
    fn the_modules_of_a_go_program_are_no_hosts() {
        assert!(faults_in(check, &[("a.go", &outside("import \"HOST/module\""))]).is_empty());
        assert_eq!(faults_in(check, &[("a.go", &outside("// see https://HOST/"))]), ["a.go:1"]);
    }

    #[test]
    fn the_licence_and_the_lock_file_are_exempt() {
        let text = outside("https://HOST/");
        assert!(
            faults_in(check, &[("LICENSE", &text), ("Cargo.lock", &text), ("fuzz/Cargo.lock", &text)])
                .is_empty()
        );
    }
}
