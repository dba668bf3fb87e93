//! Rules that make the name of a user of the name in a certificate: those of Kafka's
//! `ssl.principal.mapping.rules` (KIP-371).
//!
//! ```text
//! RULE:^CN=(.*?),OU=Press.*$/$1/L, RULE:^CN=([^,]+).*$/device-$1/, DEFAULT
//! ```
//!
//! The first rule whose pattern matches the whole text decides. Every match of the pattern in the text is replaced, as
//! `String.replaceAll` of Java does. Patterns take time linear in the text, so they have neither backreferences nor
//! lookaround.

use std::fmt;
use std::str::FromStr;

use regex_lite::{Captures, Regex};

use crate::error::SecurityError;

/// Longest text of all rules, bytes.
const RULES_BYTES_MAX: usize = 16 * 1024;

/// Rules, in their order.
#[derive(Clone)]
pub struct NameRules {
    text: String,
    rules: Vec<NameRule>,
}

#[derive(Clone)]
enum NameRule {
    /// Takes the text as it is.
    Default,
    Replace(Box<Replace>),
}

#[derive(Clone)]
struct Replace {
    /// Matches the whole text.
    whole: Regex,
    pattern: Regex,
    replacement: Vec<Part>,
    case: Case,
}

/// A part of a replacement.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Group(usize),
    Name(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    AsIs,
    Lower,
    Upper,
}

impl fmt::Debug for NameRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NameRules").field(&self.text).finish()
    }
}

impl PartialEq for NameRules {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl NameRules {
    /// The name that the first matching rule makes of a text; `None` if no rule matches.
    pub fn apply(&self, text: &str) -> Option<String> {
        self.rules.iter().find_map(|rule| match rule {
            NameRule::Default => Some(text.to_owned()),
            NameRule::Replace(replace) => replace.apply(text),
        })
    }
}

impl FromStr for NameRules {
    type Err = SecurityError;

    fn from_str(text: &str) -> Result<Self, SecurityError> {
        if text.len() > RULES_BYTES_MAX {
            return Err(invalid(format!("the rules are longer than {RULES_BYTES_MAX} bytes")));
        }
        let mut rules = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let (rule, behind) = take_rule(rest)?;
            rules.extend(rule);
            let next = behind.trim_start();
            let is_parted = next.is_empty()
                || next.starts_with(',')
                || behind[..behind.len() - next.len()].contains('\n');
            if !is_parted {
                return Err(invalid(format!("`{next}` is neither a rule nor the end")));
            }
            rest = next.strip_prefix(',').unwrap_or(next).trim_start();
        }
        Ok(Self { text: text.to_owned(), rules })
    }
}

fn invalid(what: String) -> SecurityError {
    SecurityError::Rule(what)
}

/// Takes a rule, or nothing in front of a comma, and returns what follows.
fn take_rule(text: &str) -> Result<(Option<NameRule>, &str), SecurityError> {
    if text.starts_with(',') {
        return Ok((None, text));
    }
    if let Some(behind) = text.strip_prefix("DEFAULT") {
        return Ok((Some(NameRule::Default), behind));
    }
    let malformed = || {
        invalid(format!(
            "`{text}` does not begin with DEFAULT or RULE:PATTERN/REPLACEMENT/, with L or U or nothing behind"
        ))
    };
    let rule = text.strip_prefix("RULE:").ok_or_else(malformed)?;
    let (pattern, rule) = take_part(rule).ok_or_else(malformed)?;
    let (replacement, behind) = take_part(rule).ok_or_else(malformed)?;
    let (case, behind) = match behind.chars().next() {
        Some('L') => (Case::Lower, &behind[1..]),
        Some('U') => (Case::Upper, &behind[1..]),
        _ => (Case::AsIs, behind),
    };
    let compile = |pattern: &str| {
        Regex::new(pattern).map_err(|error| invalid(format!("the pattern `{pattern}`: {error}")))
    };
    let regex = compile(pattern)?;
    let whole = compile(&format!(r"\A(?:{pattern})\z"))?;
    let replacement = parse_replacement(replacement, &regex)?;
    Ok((Some(NameRule::Replace(Box::new(Replace { whole, pattern: regex, replacement, case }))), behind))
}

/// Takes a part up to a slash that has no backslash in front.
fn take_part(text: &str) -> Option<(&str, &str)> {
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            '/' if !is_escaped => return Some((&text[..at], &text[at + 1..])),
            '\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    None
}

/// Parses a replacement of Java's `Matcher`. As in Kafka, a group that a pattern with groups does not have is plain
/// text.
fn parse_replacement(text: &str, pattern: &Regex) -> Result<Vec<Part>, SecurityError> {
    let error = |what: &str| invalid(format!("the replacement `{text}` {what}"));
    let groups = pattern.captures_len() - 1;
    let mut parts = Vec::new();
    let mut plain = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        let part = match c {
            '\\' => {
                let escaped = rest.chars().next().ok_or_else(|| error("ends with a backslash"))?;
                rest = &rest[escaped.len_utf8()..];
                plain.push(escaped);
                continue;
            }
            '$' if rest.starts_with('{') => {
                let (name, behind) = rest[1..].split_once('}').ok_or_else(|| error("has no } behind ${"))?;
                if !pattern.capture_names().flatten().any(|known| known == name) {
                    return Err(error(&format!("has a group {name:?}, which the pattern has not")));
                }
                rest = behind;
                Part::Name(name.to_owned())
            }
            '$' => match take_group(rest, groups) {
                Some((group, behind)) => {
                    rest = behind;
                    Part::Group(group)
                }
                None if groups > 0 && rest.starts_with(|c: char| c.is_ascii_digit()) => {
                    plain.push('$');
                    continue;
                }
                None => return Err(error("has a $ that is followed by no group of the pattern: write \\$")),
            },
            c => {
                plain.push(c);
                continue;
            }
        };
        if !plain.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut plain)));
        }
        parts.push(part);
    }
    if !plain.is_empty() {
        parts.push(Part::Text(plain));
    }
    Ok(parts)
}

/// Takes the number of a group: as many digits as there are groups for.
fn take_group(text: &str, groups: usize) -> Option<(usize, &str)> {
    let mut found = None;
    let mut number = 0_usize;
    for (at, digit) in text.char_indices().map_while(|(at, c)| Some((at, c.to_digit(10)?))) {
        number = number.saturating_mul(10).saturating_add(digit as usize);
        if number > groups {
            break;
        }
        found = Some((number, &text[at + 1..]));
    }
    found
}

impl Replace {
    fn apply(&self, text: &str) -> Option<String> {
        if !self.whole.is_match(text) {
            return None;
        }
        let mut name = String::new();
        // Where the next match may begin, and up to where the text is copied. As in Java, and unlike `replace_all`, a
        // match may be empty at the end of the one before.
        let (mut from, mut copied) = (0, 0);
        while let Some(found) = self.pattern.captures_at(text, from) {
            let range = found.get(0)?.range();
            name.push_str(&text[copied..range.start]);
            self.expand(&found, &mut name);
            copied = range.end;
            from = range.end;
            if range.is_empty() {
                let Some(c) = text[from..].chars().next() else { break };
                from += c.len_utf8();
            }
        }
        name.push_str(&text[copied..]);
        Some(match self.case {
            Case::AsIs => name,
            Case::Lower => name.to_lowercase(),
            Case::Upper => name.to_uppercase(),
        })
    }

    fn expand(&self, found: &Captures<'_>, name: &mut String) {
        for part in &self.replacement {
            match part {
                Part::Text(text) => name.push_str(text),
                Part::Group(group) => name.push_str(found.get(*group).map_or("", |group| group.as_str())),
                Part::Name(group) => name.push_str(found.name(group).map_or("", |group| group.as_str())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn apply(rules: &str, text: &str) -> Option<String> {
        rules.parse::<NameRules>().unwrap().apply(text)
    }

    /// The examples of KIP-371, and those of the tests of Kafka's `SslPrincipalMapper`.
    #[test]
    fn rules_mean_what_they_mean_in_kafka() {
        let kip = "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, \
                   RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, DEFAULT";
        for (dn, name) in [
            ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "Duke"),
            ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
            ("cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
            ("CN=duke", "DUKE"),
            ("C=US", "C=US"),
        ] {
            assert_eq!(apply(kip, dn).as_deref(), Some(name), "{dn}");
        }
        for (rules, dn, name) in [
            ("RULE:^CN=(.*?),.*$/$1@$2/", "CN=a,C=US", Some("a@$2")),
            (
                "RULE:^CN=((\\\\, *|\\w)+)(,.*|$)/$1/, DEFAULT",
                "CN=Tkac\\, Adam,OU=ITZ,DC=geodis,DC=cz",
                Some("Tkac\\, Adam"),
            ),
            ("RULE:^CN=((\\\\, *|\\w)+)(,.*|$)/$1/", "CN=Adam,C=cz", Some("Adam")),
            ("RULE:^CN=(.*?)$/a\\/$1\\$/", "CN=x", Some("a/x$")),
            ("RULE:^CN=(?<who>.*)$/${who}!/U", "CN=x", Some("X!")),
            ("RULE:CN=(.)(.)(.)(.)(.)(.)(.)(.)(.)(.)(.)/$11$12/", "CN=abcdefghijk", Some("ka2")),
            ("RULE:^CN=.*$/x/", "OU=x", None),
            ("RULE:CN=a/x/", "CN=ab", None),
            ("RULE:.*/x/", "ab", Some("xx")),
            ("RULE:[a-z]+/x/,,\n DEFAULT", "AB", Some("AB")),
            ("DEFAULT\nRULE:^CN=(.*)$/$1/", "CN=x", Some("CN=x")),
            ("", "CN=x", None),
        ] {
            assert_eq!(apply(rules, dn).as_deref(), name, "{rules} {dn}");
        }
    }

    #[test]
    fn what_kafka_refuses_is_refused() {
        for rules in [
            "default",
            "DEFAULT/L",
            "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
            "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/",
            "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/LU",
            "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/U/L",
            "RULE:^CN=(.*?),OU=ServiceUsers.*$/L",
            "RULE:^CN=(.*?$/$1/",
            "RULE:^CN=x$/$1/",
            "RULE:^CN=(x)$/$/",
            "RULE:^CN=(x)$/${y}/",
            "RULE:a)|(b/x/",
            "DEFAULT DEFAULT",
        ] {
            assert!(rules.parse::<NameRules>().is_err(), "{rules}");
        }
        assert!("x".repeat(RULES_BYTES_MAX + 1).parse::<NameRules>().is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_and_any_name_mapped(rules in ".{0,60}", pattern in "[a-z.*$()|,]{0,8}", name in ".{0,30}") {
            if let Ok(rules) = rules.parse::<NameRules>() {
                rules.apply(&name);
            }
            if let Ok(rules) = format!("RULE:{pattern}/$0/,DEFAULT").parse::<NameRules>() {
                prop_assert_eq!(rules.apply(&name), Some(name));
            }
        }
    }
}
