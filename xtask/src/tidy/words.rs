//! Retired words: names and phrases that the project has replaced by the field's own terms.
//!
//! Kafka, MQTT, RabbitMQ and the Rust standard library have words for nearly everything here, and a reader who knows
//! those must be able to guess a name. The words below were once used instead. An identifier must not contain one as
//! a part (`lender`, `SharedLender`, `lender_of`); prose must not contain one at all, where it has no plain use.

use super::Violation;
use super::lexer::{Split, split};
use crate::repo::{File, Repo, numbered};

/// Parts of identifiers that are retired, and the term to use.
const IDENTIFIER_PARTS: [(&str, &str); 34] = [
    ("chore", "background operation"),
    ("chores", "background operations"),
    ("depart", "transfer"),
    ("departed", "transferred"),
    ("departing", "transferring"),
    ("desk", "client"),
    ("dice", "rng"),
    ("door", "listener or protocol"),
    ("doors", "listeners or protocols"),
    ("doubtful", "unconfirmed"),
    ("errand", "request"),
    ("errands", "requests"),
    ("flaw", "planted bug or fault injector"),
    ("flaws", "planted bugs"),
    ("keeper", "durable queue"),
    ("ledger", "oracle"),
    ("lender", "shared store"),
    ("lent", "store handle"),
    ("manieth", "count"),
    ("parcel", "delivery"),
    ("parcels", "deliveries"),
    ("patience", "timeout"),
    ("sank", "sink result"),
    ("sunk", "sink message"),
    ("tend", "maintain"),
    ("tending", "maintenance"),
    ("unmade", "uncreated"),
    ("verdict", "disposition"),
    ("verdicts", "dispositions"),
    ("vouch", "verify"),
    ("vouched", "verified"),
    ("whom", "requester"),
    ("wish", "request"),
    ("wishes", "requests"),
];

/// Words and phrases that prose must not contain, and what to write instead.
const PHRASES: [(&str, &str); 26] = [
    ("chore", "background operation"),
    ("chores", "background operations"),
    ("cut short", "partial or interrupted"),
    ("desk", "client"),
    ("dice", "random number generator"),
    ("door", "listener or protocol"),
    ("doors", "listeners or protocols"),
    ("errand", "request"),
    ("errands", "requests"),
    ("how manieth", "number or count"),
    ("ledger", "oracle"),
    ("lender", "shared store"),
    ("keeper", "durable queue"),
    ("parcel", "delivery"),
    ("parcels", "deliveries"),
    ("such as it is", "a plain statement"),
    ("of which there is", "a plain statement"),
    ("there is none that", "a plain statement"),
    ("is told of", "a plain statement"),
    ("sunk", "handed to a sink"),
    ("unmade", "uncreated"),
    ("verdict", "disposition or result"),
    ("verdicts", "dispositions or results"),
    ("vouch", "verify"),
    ("vouched", "verified"),
    ("whom", "a plain statement"),
];

/// This file names the words.
const EXEMPT: &str = "xtask/src/tidy/words.rs";

pub(super) fn check(repo: &Repo) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in repo.files.iter().filter(|file| file.path != EXEMPT) {
        if file.is("rs") {
            let Split { code, prose } = split(&file.text);
            check_identifiers(file, &code, &mut violations);
            check_prose(file, &comments(&prose), &mut violations);
        } else if file.is("md") || file.is("py") || file.is("toml") {
            check_prose(file, &file.text, &mut violations);
        }
    }
    violations
}

/// The comments of a source, without its literals.
fn comments(prose: &str) -> String {
    let comment = |line: &str| line.find("//").map_or(String::new(), |at| line[at..].to_owned());
    prose.split('\n').map(comment).collect::<Vec<_>>().join("\n")
}

fn check_identifiers(file: &File, code: &str, violations: &mut Vec<Violation>) {
    for (number, line) in numbered(code) {
        let words = line.split(|character: char| !(character.is_alphanumeric() || character == '_'));
        for word in words.filter(|word| !word.is_empty()) {
            let parts = parts(word);
            let retired = IDENTIFIER_PARTS.iter().find(|(part, _)| parts.iter().any(|known| known == part));
            if let Some((part, term)) = retired {
                let what = format!("`{word}`: the word `{part}` is retired; the term is {term}");
                violations.push(Violation::error(&file.path, number, what));
            }
        }
    }
}

/// The words an identifier consists of, in lower case.
fn parts(identifier: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut was_upper = true;
    for character in identifier.chars() {
        let is_upper = character.is_uppercase();
        if character == '_' || (is_upper && !was_upper) {
            parts.push(String::new());
        }
        was_upper = is_upper || character == '_';
        if character != '_' {
            parts.last_mut().expect("it begins with one").extend(character.to_lowercase());
        }
    }
    parts
}

fn check_prose(file: &File, text: &str, violations: &mut Vec<Violation>) {
    for (number, line) in numbered(text) {
        let line = normalized(line);
        for (phrase, instead) in PHRASES {
            if line.contains(&format!(" {phrase} ")) {
                let what = format!("\"{phrase}\" is retired; write {instead}");
                violations.push(Violation::error(&file.path, number, what));
            }
        }
    }
}

/// A line in lower case with one space around each word and no punctuation.
fn normalized(line: &str) -> String {
    let letters = line.chars().map(|character| match character {
        character if character.is_alphanumeric() => character.to_ascii_lowercase(),
        '\'' | '_' | '-' => character,
        _ => ' ',
    });
    let plain: String = letters.collect();
    format!(" {} ", plain.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::violations_in;

    #[test]
    fn finds_retired_parts_of_identifiers() {
        for code in ["struct Lender;", "let shared_lender = 1;", "fn f(x: StoreLender) {}", "DOOR_COUNT"] {
            assert_eq!(violations_in(check, &[("a.rs", code)]), ["a.rs:1"], "{code}");
        }
        for code in ["let indoors = 1;", "let attend = 2;", "fn calendar() {}", "let tendency = 3;"] {
            assert!(violations_in(check, &[("a.rs", code)]).is_empty(), "{code}");
        }
    }

    #[test]
    fn finds_retired_words_in_comments_and_pages() {
        assert_eq!(violations_in(check, &[("a.rs", "// The Doors, all of them.\n")]), ["a.rs:1"]);
        assert_eq!(violations_in(check, &[("a.md", "the how\nhow manieth\n")]), ["a.md:2"]);
        assert!(violations_in(check, &[("a.rs", "let a = \"a door\";\n")]).is_empty());
        assert!(violations_in(check, &[("a.md", "an outdoor lamp\n")]).is_empty());
    }
}
