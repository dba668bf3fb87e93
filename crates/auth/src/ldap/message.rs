//! Messages of LDAP (RFC 4511, section 4): the requests that a log-in needs, and the responses to them.

use super::ber::{
    BOOLEAN, ENUMERATED, Elements, INTEGER, OCTET_STRING, SEQUENCE, constructed, element, integer,
};

const BIND_REQUEST: u8 = 0x60;
const BIND_RESPONSE: u8 = 0x61;
const UNBIND_REQUEST: u8 = 0x42;
const SEARCH_REQUEST: u8 = 0x63;
const SEARCH_ENTRY: u8 = 0x64;
const SEARCH_DONE: u8 = 0x65;
const SEARCH_REFERENCE: u8 = 0x73;
const EXTENDED_REQUEST: u8 = 0x77;
const EXTENDED_RESPONSE: u8 = 0x78;
const SET: u8 = 0x31;
/// Name of the operation `StartTLS` (RFC 4511, section 4.14).
const START_TLS: &[u8] = b"1.3.6.1.4.1.1466.20037";
/// Characters of a diagnostic message that are shown.
const DIAGNOSTIC_CHARS: usize = 200;

/// How far below its base a search goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The base itself.
    Base = 0,
    /// Its children.
    OneLevel = 1,
    /// The base and everything below it.
    Subtree = 2,
}

/// A search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search<'a> {
    pub(crate) base: &'a [u8],
    pub(crate) scope: Scope,
    /// An encoded filter.
    pub(crate) filter: &'a [u8],
    /// The one attribute that is returned.
    pub(crate) attribute: &'a str,
    pub(crate) entries_max: u32,
    pub(crate) time_s: u32,
}

/// An entry that a search has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) dn: String,
    /// Values of the attribute of the search.
    pub(crate) values: Vec<Vec<u8>>,
}

/// The end of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// A result code (RFC 4511, appendix A).
    pub(crate) code: u32,
    /// What the server says about it, for the log.
    pub(crate) diagnostic: String,
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Response {
    Bound(Outcome),
    Extended(Outcome),
    Found(Entry),
    /// Entries that are on another server.
    Elsewhere,
    SearchDone(Outcome),
}

fn message(id: u32, operation: Vec<u8>) -> Vec<u8> {
    constructed(SEQUENCE, &[integer(INTEGER, id), operation])
}

/// A simple bind.
pub(crate) fn bind(id: u32, dn: &[u8], password: &[u8]) -> Vec<u8> {
    let parts = [integer(INTEGER, 3), element(OCTET_STRING, dn), element(0x80, password)];
    message(id, constructed(BIND_REQUEST, &parts))
}

pub(crate) fn unbind(id: u32) -> Vec<u8> {
    message(id, element(UNBIND_REQUEST, b""))
}

pub(crate) fn start_tls(id: u32) -> Vec<u8> {
    message(id, constructed(EXTENDED_REQUEST, &[element(0x80, START_TLS)]))
}

/// A search that does not follow aliases.
pub(crate) fn search(id: u32, search: &Search<'_>) -> Vec<u8> {
    let parts = [
        element(OCTET_STRING, search.base),
        integer(ENUMERATED, search.scope as u32),
        integer(ENUMERATED, 0),
        integer(INTEGER, search.entries_max),
        integer(INTEGER, search.time_s),
        element(BOOLEAN, &[0]),
        search.filter.to_vec(),
        constructed(SEQUENCE, &[element(OCTET_STRING, search.attribute.as_bytes())]),
    ];
    message(id, constructed(SEARCH_REQUEST, &parts))
}

/// Reads a response: the number of its request, which is 0 if it answers none, and what it says. `attribute` is that of
/// the search. `None` if it is malformed.
pub(crate) fn decode(content: &[u8], attribute: &str) -> Option<(u32, Response)> {
    let mut parts = Elements(content);
    let id = parts.number(INTEGER)?;
    let (tag, content) = parts.next()?;
    let response = match tag {
        BIND_RESPONSE => Response::Bound(outcome(content)?),
        EXTENDED_RESPONSE => Response::Extended(outcome(content)?),
        SEARCH_DONE => Response::SearchDone(outcome(content)?),
        SEARCH_ENTRY => Response::Found(entry(content, attribute)?),
        SEARCH_REFERENCE => Response::Elsewhere,
        _ => return None,
    };
    Some((id, response))
}

fn outcome(content: &[u8]) -> Option<Outcome> {
    let mut parts = Elements(content);
    let code = parts.number(ENUMERATED)?;
    parts.expect(OCTET_STRING)?;
    let diagnostic = String::from_utf8_lossy(parts.expect(OCTET_STRING)?);
    let diagnostic = diagnostic.chars().take(DIAGNOSTIC_CHARS).flat_map(char::escape_debug).collect();
    Some(Outcome { code, diagnostic })
}

fn entry(content: &[u8], attribute: &str) -> Option<Entry> {
    let mut parts = Elements(content);
    let dn = std::str::from_utf8(parts.expect(OCTET_STRING)?).ok()?.to_owned();
    let (mut attributes, mut values) = (Elements(parts.expect(SEQUENCE)?), Vec::new());
    while !attributes.is_empty() {
        let mut parts = Elements(attributes.expect(SEQUENCE)?);
        let name = parts.expect(OCTET_STRING)?;
        let mut found = Elements(parts.expect(SET)?);
        while !found.is_empty() {
            let value = found.expect(OCTET_STRING)?;
            if name.eq_ignore_ascii_case(attribute.as_bytes()) {
                values.push(value.to_vec());
            }
        }
    }
    Some(Entry { dn, values })
}

impl Outcome {
    /// Whether the operation has succeeded.
    pub(crate) fn is_success(&self) -> bool {
        self.code == 0
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "result {}", self.code)?;
        let name = match self.code {
            1 => "operationsError",
            2 => "protocolError",
            3 => "timeLimitExceeded",
            4 => "sizeLimitExceeded",
            8 => "strongerAuthRequired",
            10 => "referral",
            11 => "adminLimitExceeded",
            13 => "confidentialityRequired",
            32 => "noSuchObject",
            34 => "invalidDNSyntax",
            48 => "inappropriateAuthentication",
            49 => "invalidCredentials",
            50 => "insufficientAccessRights",
            51 => "busy",
            52 => "unavailable",
            53 => "unwillingToPerform",
            80 => "other",
            _ => "",
        };
        if !name.is_empty() {
            write!(f, " ({name})")?;
        }
        if self.diagnostic.is_empty() { Ok(()) } else { write!(f, ": {}", self.diagnostic) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode_whole(bytes: &[u8]) -> Option<(u32, Response)> {
        decode(Elements(bytes).expect(SEQUENCE)?, "cn")
    }

    #[test]
    fn requests_as_bytes() {
        // RFC 4511, sections 4.2, 4.3, 4.5.1 and 4.14.
        assert_eq!(
            bind(1, b"cn=a", b"pw"),
            b"\x30\x12\x02\x01\x01\x60\x0D\x02\x01\x03\x04\x04cn=a\x80\x02pw"
        );
        assert_eq!(unbind(2), b"\x30\x05\x02\x01\x02\x42\x00");
        assert_eq!(start_tls(1), b"\x30\x1D\x02\x01\x01\x77\x18\x80\x161.3.6.1.4.1.1466.20037");
        let request = Search {
            base: b"o=x",
            scope: Scope::Subtree,
            filter: b"\x87\x02cn",
            attribute: "cn",
            entries_max: 2,
            time_s: 5,
        };
        let expected =
            b"\x30\x23\x02\x01\x03\x63\x1E\x04\x03o=x\x0A\x01\x02\x0A\x01\x00\x02\x01\x02\x02\x01\x05\
            \x01\x01\x00\x87\x02cn\x30\x04\x04\x02cn";
        assert_eq!(search(3, &request), expected);
    }

    #[test]
    fn responses_from_bytes() {
        let outcome = |code, diagnostic: &str| Outcome { code, diagnostic: diagnostic.into() };
        for (bytes, expected) in [
            (
                &b"\x30\x0C\x02\x01\x01\x61\x07\x0A\x01\x00\x04\x00\x04\x00"[..],
                (1, Response::Bound(outcome(0, ""))),
            ),
            (
                b"\x30\x0F\x02\x01\x01\x61\x0A\x0A\x01\x31\x04\x00\x04\x03no\n",
                (1, Response::Bound(outcome(49, "no\\n"))),
            ),
            (
                b"\x30\x0C\x02\x01\x00\x78\x07\x0A\x01\x34\x04\x00\x04\x00",
                (0, Response::Extended(outcome(52, ""))),
            ),
            (
                b"\x30\x0C\x02\x01\x05\x65\x07\x0A\x01\x04\x04\x00\x04\x00",
                (5, Response::SearchDone(outcome(4, ""))),
            ),
            (b"\x30\x08\x02\x01\x05\x73\x03\x04\x01x", (5, Response::Elsewhere)),
            (
                b"\x30\x24\x02\x01\x05\x64\x1F\x04\x03o=x\x30\x18\x30\x0A\x04\x02CN\x31\x04\x04\x00\x04\x00\
                \x30\x0A\x04\x02sn\x31\x04\x04\x02yy",
                (5, Response::Found(Entry { dn: "o=x".into(), values: vec![vec![], vec![]] })),
            ),
        ] {
            assert_eq!(decode_whole(bytes), Some(expected), "{bytes:x?}");
        }
        for bytes in [
            &b"\x30\x00"[..],
            b"\x30\x03\x02\x01\x01",
            b"\x30\x0A\x02\x01\x01\x61\x05\x0A\x01\x00\x04\x00",
            b"\x30\x0C\x02\x01\x01\x62\x07\x0A\x01\x00\x04\x00\x04\x00",
            b"\x30\x0B\x02\x01\x05\x64\x06\x04\x02\xFF\xFE\x30\x00",
        ] {
            assert_eq!(decode_whole(bytes), None, "{bytes:x?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(content: Vec<u8>, tag in 0x60u8..0x7F) {
            let bytes = [integer(INTEGER, 1), element(tag, &content)].concat();
            if let Some((id, _)) = decode(&bytes, "cn") {
                prop_assert_eq!(id, 1);
            }
        }
    }
}
