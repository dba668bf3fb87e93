//! Host names on the public network: nothing in the repository fetches from one or links to one.

use super::Violation;
use super::lexer::split;
use crate::repo::{File, Repo, numbered};

/// Files, by name, that contain host names legitimately: the license text, lock files, and Go modules, whose names
/// begin with a host.
const EXEMPT_FILES: [&str; 4] = ["LICENSE", "Cargo.lock", "go.mod", "go.sum"];

/// Hosts that may be named: the local machine, and those reserved for examples (RFC 2606).
const ALLOWED_HOSTS: [&str; 8] =
    ["localhost", "127.0.0.1", "0.0.0.0", "[::1]", "example.com", "example.org", "example.net", "example"];

/// Endings that mark a word as a host even without a scheme. Endings that are also file extensions or field names are
/// left out.
const ENDINGS: [&str; 5] = [".com", ".org", ".net", ".io", ".edu"];

pub(super) fn check(repo: &Repo) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in repo.files.iter().filter(|file| !is_exempt(file)) {
        for (number, host) in hosts(file) {
            violations.push(Violation::error(
                &file.path,
                number,
                format!("`{host}` is a host on the public network"),
            ));
        }
    }
    violations
}

fn is_exempt(file: &File) -> bool {
    let name = file.path.rsplit('/').next().unwrap_or("");
    EXEMPT_FILES.contains(&name)
}

fn hosts(file: &File) -> Vec<(usize, String)> {
    // In Rust code a dot is a field access; only comments and literals can name a host.
    let prose = if file.is("rs") { Some(split(&file.text).prose) } else { None };
    let mut found = Vec::new();
    for (number, line) in numbered(prose.as_deref().unwrap_or(&file.text)) {
        let after_scheme = line.match_indices("://").map(|(at, _)| host_at(&line[at + 3..]));
        // In Go, such a word is a module name.
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

/// The host at the beginning of a URL without its scheme, without user and port.
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
    // A URL without a host is a template such as `mqtt://{address}`, or a mention of URLs.
    let is_template =
        host.trim_matches(['[', ']']).is_empty() || (!host.contains('.') && !host.starts_with('['));
    let is_reserved =
        |allowed: &str| host == allowed || host.strip_suffix(allowed).is_some_and(|rest| rest.ends_with('.'));
    is_template || host.starts_with("127.") || ALLOWED_HOSTS.iter().any(|allowed| is_reserved(allowed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::violations_in;

    // Assembled here, so that this file does not contain them.
    fn public(text: &str) -> String {
        text.replace("HOST", &["broker", "outside", "com"].join("."))
    }

    #[test]
    fn public_hosts_are_rejected_with_and_without_scheme() {
        for text in
            ["see https://HOST/x", "mqtt://user:secret@HOST:1883", "connect to HOST.", "host = \"HOST\""]
        {
            assert_eq!(violations_in(check, &[("a.md", &public(text))]), ["a.md:1"], "{text}");
        }
        let numeric = ["http:/", "93.184.216.34", ""].join("/");
        assert_eq!(violations_in(check, &[("a.toml", &numeric)]), ["a.toml:1"]);
    }

    #[test]
    fn local_and_example_hosts_pass() {
        let text = "http://127.0.0.1:80/ tcp://localhost mqtt://[::1]:1883 ws://a.example.com mqtt://{address} ws://[{ip}]:1/ x.io.y";
        assert!(violations_in(check, &[("a.md", text)]).is_empty());
    }

    #[test]
    fn rust_fields_are_not_hosts_but_comments_are_checked() {
        let fields = ["let a = self", "io; let b = a", "net;"].join(".");
        assert!(violations_in(check, &[("a.rs", &fields)]).is_empty());
        assert_eq!(violations_in(check, &[("a.rs", &public("// ask HOST\n"))]), ["a.rs:1"]);
    }

    #[test]
    fn go_modules_are_not_hosts() {
        assert!(violations_in(check, &[("a.go", &public("import \"HOST/module\""))]).is_empty());
        assert_eq!(violations_in(check, &[("a.go", &public("// see https://HOST/"))]), ["a.go:1"]);
    }

    #[test]
    fn license_and_lock_files_are_exempt() {
        let text = public("https://HOST/");
        assert!(
            violations_in(check, &[("LICENSE", &text), ("Cargo.lock", &text), ("fuzz/Cargo.lock", &text)])
                .is_empty()
        );
    }
}
