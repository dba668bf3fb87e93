//! Strict validation of a request head, before hyper parses it.
//!
//! hyper accepts heads that another HTTP implementation in front of it may read differently, for example a
//! `content-length` beside a `transfer-encoding`, or a transfer coding that it ignores. Where two implementations
//! disagree about the end of a request, a client can smuggle a second one past the first (RFC 9112, 11.2). This check
//! therefore rejects everything that RFC 9112 lets a server reject, with a problem as the response.

use std::str::FromStr;

use axum::http::Uri;
use axum::http::uri::Authority;

use crate::problem::Problem;

/// Largest head of a request, in bytes.
pub(crate) const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of headers of a request.
pub(crate) const HEADERS_MAX: usize = 100;

/// Where the body of a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// After this many bytes.
    Length(u64),
    /// After the last chunk and its trailers.
    Chunked,
}

/// Headers that decide where the request ends and which server it is for.
#[derive(Default)]
struct Singletons<'a> {
    host: Option<&'a [u8]>,
    content_length: Option<&'a [u8]>,
    transfer_encoding: Option<&'a [u8]>,
}

/// Checks a complete head, which ends with an empty line and whose lines all end with CRLF.
pub(crate) fn check_head(head: &[u8]) -> Result<Framing, Problem> {
    check_version(head)?;
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Complete(len)) if len == head.len() => {}
        Ok(_) => return Err(Problem::malformed("the request head is incomplete")),
        Err(httparse::Error::TooManyHeaders) => return Err(Problem::too_many_headers(HEADERS_MAX)),
        Err(error) => return Err(Problem::malformed(format!("the request head: {error}"))),
    }
    let is_1_0 = request.version == Some(0);
    let target = request.path.unwrap_or_default();
    if request.method == Some("CONNECT") {
        return Err(Problem::method());
    }
    let uri = Uri::from_str(target);
    let uri = uri.map_err(|error| Problem::malformed(format!("the request target: {error}")))?;
    if uri.scheme().is_none() && !target.starts_with('/') && target != "*" {
        return Err(Problem::malformed("the request target must be a path"));
    }
    let singletons = singletons(request.headers)?;
    check_host(singletons.host, is_1_0)?;
    framing(&singletons, is_1_0)
}

/// Rejects other versions than HTTP/1.0 and HTTP/1.1, such as the preface of HTTP/2.
fn check_version(head: &[u8]) -> Result<(), Problem> {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let version = line.rsplit(|byte| *byte == b' ').next().unwrap_or_default();
    let is_other = version.starts_with(b"HTTP/") && !matches!(version, b"HTTP/1.0" | b"HTTP/1.1");
    if is_other { Err(Problem::version()) } else { Ok(()) }
}

fn singletons<'a>(headers: &[httparse::Header<'a>]) -> Result<Singletons<'a>, Problem> {
    let mut found = Singletons::default();
    for header in headers {
        let slot = match header.name {
            name if name.eq_ignore_ascii_case("host") => &mut found.host,
            name if name.eq_ignore_ascii_case("content-length") => &mut found.content_length,
            name if name.eq_ignore_ascii_case("transfer-encoding") => &mut found.transfer_encoding,
            _ => continue,
        };
        if slot.replace(header.value).is_some() {
            return Err(Problem::malformed(format!("the header {} occurs twice", header.name)));
        }
    }
    Ok(found)
}

/// RFC 9112, 3.2: HTTP/1.1 requires exactly one `Host` header, with a valid value.
fn check_host(host: Option<&[u8]>, is_1_0: bool) -> Result<(), Problem> {
    let Some(host) = host else {
        return if is_1_0 { Ok(()) } else { Err(Problem::malformed("the header Host is missing")) };
    };
    let authority = std::str::from_utf8(host).ok().and_then(|host| Authority::from_str(host).ok());
    match authority {
        Some(authority) if !authority.as_str().contains('@') => Ok(()),
        _ => Err(Problem::malformed("the header Host is invalid")),
    }
}

fn framing(singletons: &Singletons<'_>, is_1_0: bool) -> Result<Framing, Problem> {
    match (singletons.content_length, singletons.transfer_encoding) {
        (None, None) => Ok(Framing::Length(0)),
        (Some(_), Some(_)) => {
            Err(Problem::malformed("the headers Content-Length and Transfer-Encoding exclude each other"))
        }
        (Some(length), None) => {
            let digits = length.iter().all(u8::is_ascii_digit);
            let length =
                std::str::from_utf8(length).ok().filter(|_| digits).and_then(|text| text.parse().ok());
            length
                .map(Framing::Length)
                .ok_or_else(|| Problem::malformed("the header Content-Length is invalid"))
        }
        (None, Some(_)) if is_1_0 => Err(Problem::malformed("HTTP/1.0 has no Transfer-Encoding")),
        (None, Some(coding)) if coding.eq_ignore_ascii_case(b"chunked") => Ok(Framing::Chunked),
        (None, Some(_)) => Err(Problem::transfer_encoding()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(head: &str) -> Result<Framing, u16> {
        check_head(head.as_bytes()).map_err(|problem| problem.status().as_u16())
    }

    #[test]
    fn accepts_unambiguous_heads() {
        for (head, framing) in [
            ("GET / HTTP/1.1\r\nhost: a\r\n\r\n", Framing::Length(0)),
            ("GET / HTTP/1.0\r\n\r\n", Framing::Length(0)),
            ("OPTIONS * HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", Framing::Length(0)),
            ("GET http://a:1/x?y HTTP/1.1\r\nHost:a:1\r\n\r\n", Framing::Length(0)),
            ("POST / HTTP/1.1\r\nhost: a\r\nContent-Length: 007 \r\n\r\n", Framing::Length(7)),
            ("POST / HTTP/1.1\r\nhost: a\r\nTransfer-Encoding: Chunked\r\n\r\n", Framing::Chunked),
        ] {
            assert_eq!(check(head), Ok(framing), "{head:?}");
        }
    }

    #[test]
    fn rejects_ambiguous_and_malformed_heads() {
        let with = |headers: &str| format!("POST / HTTP/1.1\r\nhost: a\r\n{headers}\r\n\r\n");
        for (headers, status) in [
            ("Host: a", 400),
            ("Content-Length: 1\r\nContent-Length: 1", 400),
            ("Content-Length: 1\r\nTransfer-Encoding: chunked", 400),
            ("Transfer-Encoding: chunked\r\nContent-Length: 1", 400),
            ("Content-Length: 1, 1", 400),
            ("Content-Length: +1", 400),
            ("Content-Length: -1", 400),
            ("Content-Length:", 400),
            ("Content-Length: 0x1", 400),
            ("Content-Length: 18446744073709551616", 400),
            ("Transfer-Encoding: gzip, chunked", 501),
            ("Transfer-Encoding: chunked, chunked", 501),
            ("Transfer-Encoding: identity", 501),
            ("Transfer-Encoding: xchunked", 501),
            ("Transfer-Encoding:", 501),
            ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", 400),
            ("Transfer-Encoding : chunked", 400),
            (" Transfer-Encoding: chunked", 400),
            ("a: b\r\n folded", 400),
            ("a: \0", 400),
            ("a\0: b", 400),
            ("no colon", 400),
        ] {
            assert_eq!(check(&with(headers)), Err(status), "{headers:?}");
        }
        for (head, status) in [
            ("GET / HTTP/1.1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nhost: a@b\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nhost: a b\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nhost:\r\n\r\n", 400),
            ("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
            ("GET /a b HTTP/1.1\r\nhost: a\r\n\r\n", 400),
            ("GET  / HTTP/1.1\r\nhost: a\r\n\r\n", 400),
            ("GET /\u{7f} HTTP/1.1\r\nhost: a\r\n\r\n", 400),
            ("GET x HTTP/1.1\r\nhost: a\r\n\r\n", 400),
            ("G(T / HTTP/1.1\r\nhost: a\r\n\r\n", 400),
            ("\u{16}\u{3}\u{1}\r\n\r\n", 400),
            ("GET /\r\n\r\n", 400),
            ("PRI * HTTP/2.0\r\n\r\n", 505),
            ("GET / HTTP/1.2\r\nhost: a\r\n\r\n", 505),
            ("CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n", 405),
        ] {
            assert_eq!(check(head), Err(status), "{head:?}");
        }
        assert_eq!(check(&with(&"a: b\r\n".repeat(HEADERS_MAX))), Err(431));
    }
}
