//! Search filters: from their text (RFC 4515) to the bytes of a request (RFC 4511, section 4.5.1).
//!
//! The text of the configuration is parsed before a name is put in, so that no name can change what it says.

use super::ber::{OCTET_STRING, SEQUENCE, constructed, element};
use super::template::{Part, Template, Values};

/// Nesting of filters.
const DEPTH_MAX: usize = 16;

/// A filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Filter {
    And(Vec<Filter>),
    Or(Vec<Filter>),
    Not(Box<Filter>),
    /// Equality, greater or equal, less or equal, or approximately, by the tag of its element.
    Compare {
        tag: u8,
        attribute: String,
        value: Template,
    },
    Present(String),
    Substrings {
        attribute: String,
        parts: Vec<(u8, Template)>,
    },
    /// An extensible match.
    Extensible {
        attribute: String,
        rule: String,
        value: Template,
        with_dn: bool,
    },
}

const AND: u8 = 0xA0;
const OR: u8 = 0xA1;
const NOT: u8 = 0xA2;
const EQUALITY: u8 = 0xA3;
const SUBSTRINGS: u8 = 0xA4;
const GREATER_OR_EQUAL: u8 = 0xA5;
const LESS_OR_EQUAL: u8 = 0xA6;
const PRESENT: u8 = 0x87;
const APPROXIMATE: u8 = 0xA8;
const EXTENSIBLE: u8 = 0xA9;
/// Parts of a substring filter.
const INITIAL: u8 = 0x80;
const ANY: u8 = 0x81;
const FINAL: u8 = 0x82;

impl Filter {
    /// Parses a filter, with or without parentheses around it.
    ///
    /// # Errors
    /// A message for the user: it is no filter.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if !text.starts_with('(') {
            return item(text);
        }
        let mut rest = text;
        let filter = component(&mut rest, DEPTH_MAX)?;
        if rest.is_empty() {
            Ok(filter)
        } else {
            Err(format!("expected nothing after the filter, not {rest:?}"))
        }
    }

    /// Whether a value of this kind is put in.
    pub(crate) fn uses(&self, part: &Part) -> bool {
        match self {
            Self::And(all) | Self::Or(all) => all.iter().any(|filter| filter.uses(part)),
            Self::Not(filter) => filter.uses(part),
            Self::Compare { value, .. } | Self::Extensible { value, .. } => value.uses(part),
            Self::Present(_) => false,
            Self::Substrings { parts, .. } => parts.iter().any(|(_, value)| value.uses(part)),
        }
    }

    /// The bytes, with the values put in.
    pub(crate) fn encode(&self, values: &Values<'_>) -> Vec<u8> {
        let all = |filters: &[Self]| filters.iter().map(|filter| filter.encode(values)).collect::<Vec<_>>();
        let text = |text: &str| element(OCTET_STRING, text.as_bytes());
        match self {
            Self::And(filters) => constructed(AND, &all(filters)),
            Self::Or(filters) => constructed(OR, &all(filters)),
            Self::Not(filter) => constructed(NOT, &[filter.encode(values)]),
            Self::Compare { tag, attribute, value } => {
                let value = element(OCTET_STRING, &value.fill(values));
                constructed(*tag, &[text(attribute), value])
            }
            Self::Present(attribute) => element(PRESENT, attribute.as_bytes()),
            Self::Substrings { attribute, parts } => {
                let parts: Vec<_> =
                    parts.iter().map(|(tag, part)| element(*tag, &part.fill(values))).collect();
                constructed(SUBSTRINGS, &[text(attribute), constructed(SEQUENCE, &parts)])
            }
            Self::Extensible { attribute, rule, value, with_dn } => {
                // MatchingRuleAssertion: [1] rule, [2] attribute, [3] value, [4] whether the name's attributes count.
                let mut parts = Vec::new();
                if !rule.is_empty() {
                    parts.push(element(0x81, rule.as_bytes()));
                }
                if !attribute.is_empty() {
                    parts.push(element(0x82, attribute.as_bytes()));
                }
                parts.push(element(0x83, &value.fill(values)));
                if *with_dn {
                    parts.push(element(0x84, &[0xFF]));
                }
                constructed(EXTENSIBLE, &parts)
            }
        }
    }
}

/// A filter in parentheses, at the start of `rest`.
fn component(rest: &mut &str, depth: usize) -> Result<Filter, String> {
    let inner = rest.strip_prefix('(').ok_or_else(|| format!("expected '(' before {rest:?}"))?;
    let depth = depth.checked_sub(1).ok_or("is nested too deeply")?;
    let (filter, after) = if let Some(kind @ (b'&' | b'|' | b'!')) = inner.as_bytes().first() {
        let (mut after, mut all) = (&inner[1..], Vec::new());
        while after.starts_with('(') {
            all.push(component(&mut after, depth)?);
        }
        let filter = match (kind, all.len()) {
            (b'&', 1..) => Filter::And(all),
            (b'|', 1..) => Filter::Or(all),
            (b'!', 1) => Filter::Not(Box::new(all.remove(0))),
            _ => return Err(format!("expected a filter after '{}'", char::from(*kind))),
        };
        (filter, after)
    } else {
        let end = inner.find([')', '(']).unwrap_or(inner.len());
        (item(&inner[..end])?, &inner[end..])
    };
    *rest = after.strip_prefix(')').ok_or_else(|| format!("expected ')' before {after:?}"))?;
    Ok(filter)
}

/// A filter of one attribute, without parentheses.
fn item(text: &str) -> Result<Filter, String> {
    let (left, right) = text.split_once('=').ok_or_else(|| format!("expected '=' in {text:?}"))?;
    for (sign, tag) in [('>', GREATER_OR_EQUAL), ('<', LESS_OR_EQUAL), ('~', APPROXIMATE)] {
        if let Some(attribute) = left.strip_suffix(sign) {
            return Ok(Filter::Compare { tag, attribute: description(attribute)?, value: value(right)? });
        }
    }
    if let Some(left) = left.strip_suffix(':') {
        return extensible(left, right);
    }
    let attribute = description(left)?;
    if right == "*" {
        return Ok(Filter::Present(attribute));
    }
    let pieces: Vec<&str> = right.split('*').collect();
    if let [whole] = pieces[..] {
        return Ok(Filter::Compare { tag: EQUALITY, attribute, value: value(whole)? });
    }
    let last = pieces.len() - 1;
    let mut parts = Vec::new();
    for (at, piece) in pieces.into_iter().enumerate() {
        let is_inside = at > 0 && at < last;
        if piece.is_empty() && is_inside {
            return Err(format!("expected a value between two '*' of {text:?}"));
        }
        let tag = if is_inside {
            ANY
        } else if at == 0 {
            INITIAL
        } else {
            FINAL
        };
        if !piece.is_empty() {
            parts.push((tag, value(piece)?));
        }
    }
    Ok(Filter::Substrings { attribute, parts })
}

/// `attribute:dn:rule:=value`, all of which but the value may be missing.
fn extensible(left: &str, right: &str) -> Result<Filter, String> {
    let mut parts = left.split(':');
    let attribute = parts.next().unwrap_or_default();
    let attribute = if attribute.is_empty() { String::new() } else { description(attribute)? };
    let (mut rule, mut with_dn) = (String::new(), false);
    for part in parts {
        if part == "dn" && !with_dn && rule.is_empty() {
            with_dn = true;
        } else if rule.is_empty() {
            rule = description(part)?;
        } else {
            return Err(format!("expected one matching rule in {left:?}"));
        }
    }
    if attribute.is_empty() && rule.is_empty() {
        return Err("expected an attribute or a matching rule before ':='".into());
    }
    Ok(Filter::Extensible { attribute, rule, value: value(right)?, with_dn })
}

/// The description of an attribute, or the name of a matching rule.
pub(crate) fn description(text: &str) -> Result<String, String> {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b';');
    let is_description =
        text.starts_with(|first: char| first.is_ascii_alphanumeric()) && text.bytes().all(is_valid);
    if is_description {
        Ok(text.to_owned())
    } else {
        Err(format!("expected the name of an attribute, not {text:?}"))
    }
}

/// The value of an assertion, whose `\XX` are bytes.
fn value(text: &str) -> Result<Template, String> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((byte, after)) = rest.split_first() {
        if *byte != b'\\' {
            bytes.push(*byte);
            rest = after;
            continue;
        }
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let digits = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or_else(|| format!("expected two hexadecimal digits after '\\' in {text:?}"))?);
        rest = &after[2..];
    }
    Template::parse(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(text: &str, user: &str) -> Vec<u8> {
        Filter::parse(text).unwrap().encode(&Values { user, dn: "uid=x" })
    }

    #[test]
    fn filters_of_the_standard() {
        // RFC 4515, section 4, as bytes of RFC 4511, section 4.5.1.
        for (text, bytes) in [
            ("(cn=Babs Jensen)", &b"\xA3\x11\x04\x02cn\x04\x0BBabs Jensen"[..]),
            ("cn=x", b"\xA3\x07\x04\x02cn\x04\x01x"),
            ("(!(cn=Tim))", b"\xA2\x0B\xA3\x09\x04\x02cn\x04\x03Tim"),
            (
                "(&(a=1)(|(b=*)(c>=2)))",
                b"\xA0\x15\xA3\x06\x04\x01a\x04\x011\xA1\x0B\x87\x01b\xA5\x06\x04\x01c\x04\x012",
            ),
            ("(o=univ*of*mich*)", b"\xA4\x15\x04\x01o\x30\x10\x80\x04univ\x81\x02of\x81\x04mich"),
            ("(o=*a)", b"\xA4\x08\x04\x01o\x30\x03\x82\x01a"),
            ("(seeAlso=)", b"\xA3\x0B\x04\x07seeAlso\x04\x00"),
            ("(n<=9)", b"\xA6\x06\x04\x01n\x04\x019"),
            ("(n~=9)", b"\xA8\x06\x04\x01n\x04\x019"),
            ("(cn:1.2.3:=F)", b"\xA9\x0E\x81\x051.2.3\x82\x02cn\x83\x01F"),
            ("(sn:dn:2.4:=B)", b"\xA9\x0F\x81\x032.4\x82\x02sn\x83\x01B\x84\x01\xFF"),
            ("(:dn:2.4:=B)", b"\xA9\x0B\x81\x032.4\x83\x01B\x84\x01\xFF"),
            ("(o=Parens \\28b\\29 \\2a \\00)", b"\xA3\x13\x04\x01o\x04\x0EParens (b) * \0"),
        ] {
            assert_eq!(encode(text, ""), bytes, "{text}");
        }
    }

    #[test]
    fn no_name_changes_what_a_filter_says() {
        for name in ["*", "a)(uid=*", "\\2a", "x*", "${dn}", "", "a\0b", ")(|(a=*"] {
            let expected = [element(OCTET_STRING, b"uid"), element(OCTET_STRING, name.as_bytes())];
            assert_eq!(encode("(uid=${user})", name), constructed(EQUALITY, &expected), "{name:?}");
        }
        assert_eq!(encode("(member=${dn})", "*"), encode("(member=uid=x)", ""));
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        let deep = format!("{}(a=1){}", "(!".repeat(DEPTH_MAX), ")".repeat(DEPTH_MAX));
        for text in [
            "",
            "()",
            "(",
            "(a=1",
            "(a=1))",
            "(a)",
            "(&)",
            "(!(a=1)(b=2))",
            "(&a=1)",
            "(=1)",
            "(a b=1)",
            "(a=**b)",
            "(a=\\2)",
            "(a=\\zz)",
            "(a=\\+1)",
            "(:=1)",
            "(a:b:c:=1)",
            "(a=${nobody})",
            "(a=1)(b=2)",
            "(a=(b))",
            &deep,
        ] {
            assert!(Filter::parse(text).is_err(), "{text}");
        }
    }
}
