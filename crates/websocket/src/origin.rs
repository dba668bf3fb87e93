//! Which web pages may connect.
//!
//! Browsers let any page open a WebSocket to any server, also one that only the browser's machine or network reaches,
//! and send the page's origin along. Programs other than browsers usually send none, and are not the subject here.
//!
//! By default, a page may connect to the host that served it, if that is an address or `localhost`. A host name is not
//! enough: its owner can point it at this server's address (DNS rebinding).

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// An origin whose pages may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedOrigin {
    /// Pages of every origin.
    Any,
    /// `scheme://host[:port]`, in lower case.
    Exactly(String),
}

/// The text is not an origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidOrigin(String);

impl fmt::Display for InvalidOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is neither \"*\" nor an origin such as \"https://example.com:8080\"", self.0)
    }
}

impl std::error::Error for InvalidOrigin {}

impl AllowedOrigin {
    /// Parses `*`, or an origin: scheme and host, and the port if it is not the default of the scheme.
    ///
    /// # Errors
    /// The text is neither.
    pub fn parse(text: &str) -> Result<Self, InvalidOrigin> {
        if text == "*" {
            return Ok(Self::Any);
        }
        let is_origin = host_of_origin(text).is_some_and(|host| !host.is_empty());
        if !is_origin || text.bytes().any(|byte| byte.is_ascii_whitespace() || byte.is_ascii_control()) {
            return Err(InvalidOrigin(text.into()));
        }
        Ok(Self::Exactly(text.to_ascii_lowercase()))
    }
}

/// Whether a page of `origin` may connect to `host`, which is the header of that name.
pub(crate) fn is_allowed(origin: &str, host: &str, allowed: &[AllowedOrigin]) -> bool {
    let is_listed = |listed: &AllowedOrigin| match listed {
        AllowedOrigin::Any => true,
        AllowedOrigin::Exactly(listed) => origin.eq_ignore_ascii_case(listed),
    };
    allowed.iter().any(is_listed) || host_of_origin(origin).is_some_and(|page| is_same(page, host_of(host)))
}

/// Whether the host of a page is that of the server, and cannot be anything else.
fn is_same(page: &str, server: &str) -> bool {
    let is_address = server.parse::<IpAddr>().is_ok()
        || server.strip_prefix('[').and_then(|host| host.strip_suffix(']')).is_some_and(is_ipv6);
    page.eq_ignore_ascii_case(server) && (is_address || server.eq_ignore_ascii_case("localhost"))
}

fn is_ipv6(text: &str) -> bool {
    text.parse::<Ipv6Addr>().is_ok()
}

/// The host in `scheme://host[:port]`. `None` for anything else, such as `null`.
fn host_of_origin(origin: &str) -> Option<&str> {
    let (scheme, rest) = origin.split_once("://")?;
    let is_scheme = scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    (is_scheme && !scheme.is_empty() && !rest.contains(['/', '?', '#', '@'])).then(|| host_of(rest))
}

/// The host in `host[:port]`. IPv6 addresses keep their brackets.
fn host_of(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_default_a_page_reaches_its_own_address_only() {
        for (origin, host, expected) in [
            ("http://localhost:3000", "localhost:8083", true),
            ("https://LOCALHOST", "localhost", true),
            ("http://0.0.0.0", "0.0.0.0:8083", true),
            ("http://[::1]:80", "[::1]:8083", true),
            ("http://0.0.0.0", "0.0.0.1:8083", false),
            ("http://[::1]", "[::2]", false),
            ("http://evil.example", "localhost:8083", false),
            // The name may have been pointed here.
            ("http://evil.example:8083", "evil.example:8083", false),
            ("http://localhost.evil.example", "localhost:8083", false),
            ("http://localhost@evil.example", "localhost", false),
            ("null", "null", false),
            ("", "", false),
            ("://", "", false),
            ("http://", "", false),
        ] {
            assert_eq!(is_allowed(origin, host, &[]), expected, "{origin} to {host}");
        }
    }

    #[test]
    fn listed_origins_are_compared_as_a_whole() {
        let allowed = [AllowedOrigin::parse("https://App.example.com:8443").unwrap()];
        assert!(is_allowed("https://APP.example.com:8443", "broker", &allowed));
        for origin in
            ["http://app.example.com:8443", "https://app.example.com", "https://x.app.example.com:8443"]
        {
            assert!(!is_allowed(origin, "broker", &allowed), "{origin}");
        }
        assert!(is_allowed("null", "broker", &[AllowedOrigin::Any]));
    }

    #[test]
    fn what_is_no_origin_is_an_error_of_the_configuration() {
        assert_eq!(AllowedOrigin::parse("*"), Ok(AllowedOrigin::Any));
        for text in [
            "",
            "example.com",
            "https://",
            "https://example.com/",
            "https://a example.com",
            "https://*/",
            "null",
        ] {
            assert!(AllowedOrigin::parse(text).is_err(), "{text}");
        }
    }
}
