//! Texts of the configuration with `${user}` and `${dn}` in them.
//!
//! A text is taken apart once, at start. What a client says is put in afterwards, and no part of it is ever parsed.

use std::borrow::Cow;

/// What is put in.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Values<'a> {
    /// The name that the client says.
    pub(crate) user: &'a str,
    /// The distinguished name of its entry.
    pub(crate) dn: &'a str,
}

/// A part of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Literal(Vec<u8>),
    User,
    Dn,
}

/// A text with places for values.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Template(pub(crate) Vec<Part>);

impl Template {
    /// Takes a text apart.
    ///
    /// # Errors
    /// It has another name after `${`.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, String> {
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some(at) = rest.windows(2).position(|two| two == b"${") {
            let (literal, place) = rest.split_at(at);
            if !literal.is_empty() {
                parts.push(Part::Literal(literal.to_vec()));
            }
            let known = [(&b"${user}"[..], Part::User), (b"${dn}", Part::Dn)];
            let found = known.into_iter().find_map(|(name, part)| Some((place.strip_prefix(name)?, part)));
            let (after, part) = found.ok_or("expected ${user} or ${dn} after a dollar sign and a brace")?;
            parts.push(part);
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Literal(rest.to_vec()));
        }
        Ok(Self(parts))
    }

    pub(crate) fn uses(&self, part: &Part) -> bool {
        self.0.contains(part)
    }

    /// The text, with values as they are.
    pub(crate) fn fill(&self, values: &Values<'_>) -> Vec<u8> {
        self.fill_with(|part| match part {
            Part::User => values.user.into(),
            _ => values.dn.into(),
        })
    }

    /// A distinguished name, with the user escaped.
    pub(crate) fn fill_dn(&self, user: &str) -> Vec<u8> {
        self.fill_with(|_| escape_dn_value(user))
    }

    fn fill_with<'a>(&'a self, value: impl Fn(&Part) -> Cow<'a, str>) -> Vec<u8> {
        let bytes = |part: &'a Part| match part {
            Part::Literal(bytes) => Cow::Borrowed(&**bytes),
            part => Cow::Owned(value(part).into_owned().into_bytes()),
        };
        self.0.iter().map(bytes).collect::<Vec<_>>().concat()
    }
}

/// A value of a distinguished name, escaped (RFC 4514, section 2.4).
pub(crate) fn escape_dn_value(value: &str) -> Cow<'_, str> {
    let last = value.chars().count().saturating_sub(1);
    let mut escaped = String::with_capacity(value.len());
    for (at, char) in value.chars().enumerate() {
        let is_at_end = at == 0 || at == last;
        match char {
            '\0' => escaped.push_str("\\00"),
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' | '=' => escaped.extend(['\\', char]),
            ' ' if is_at_end => escaped.push_str("\\ "),
            '#' if at == 0 => escaped.push_str("\\#"),
            _ => escaped.push(char),
        }
    }
    if escaped == value { Cow::Borrowed(value) } else { Cow::Owned(escaped) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_distinguished_names_are_escaped() {
        // RFC 4514, section 2.4: each of these would end the value or change what it means.
        for (value, escaped) in [
            ("alice", "alice"),
            ("James \"Jim\" Smith, III", "James \\\"Jim\\\" Smith\\, III"),
            ("a+b=c", "a\\+b\\=c"),
            ("a\\2Cb", "a\\\\2Cb"),
            ("#1", "\\#1"),
            ("a#", "a#"),
            (" a b ", "\\ a b\\ "),
            (" ", "\\ "),
            ("<;>", "\\<\\;\\>"),
            ("nul\0", "nul\\00"),
            ("Lučić", "Lučić"),
            ("", ""),
        ] {
            assert_eq!(escape_dn_value(value), escaped, "{value:?}");
        }
    }

    #[test]
    fn a_name_is_put_in_and_never_parsed() {
        let template = Template::parse(b"uid=${user},ou=people").unwrap();
        let filled = template.fill_dn("eve,ou=admins+cn=${dn}");
        assert_eq!(filled, b"uid=eve\\,ou\\=admins\\+cn\\=${dn},ou=people");
        let twice = Template::parse(b"${user}-${dn}${user}$").unwrap();
        assert_eq!(twice.fill(&Values { user: "${dn}", dn: "d" }), b"${dn}-d${dn}$");
        assert!(Template::parse(b"uid=${name}").is_err());
        assert!(Template::parse(b"uid=${user").is_err());
        assert!(!Template::parse(b"uid=user").unwrap().uses(&Part::User));
    }
}
