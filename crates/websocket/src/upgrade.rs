//! The upgrade (RFC 6455, section 4.2): a request of HTTP/1.1 opens the connection.
//!
//! The request is the first thing that a stranger sends, so its head is bounded and parsed once it is complete. Whoever
//! is refused gets an HTTP response that says what to change, since a browser shows nothing else; only `Origin` tells
//! pages of others apart, which a browser's user cannot forge.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use httparse::{EMPTY_HEADER, Header, Request, Status};
use sha1::{Digest, Sha1};

use crate::origin::is_allowed;
use crate::settings::Settings;

/// Longest request head, bytes.
pub(crate) const HEAD_BYTES_MAX: usize = 8 * 1024;
/// Maximum number of header fields.
const FIELDS_MAX: usize = 64;
const VERSION: &str = "13";
/// RFC 6455, section 1.3.
const KEY_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Longest subprotocol or origin that a log line repeats, characters.
const QUOTED_MAX: usize = 100;

/// Why a request does not open a connection. Sent as an HTTP response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    status: &'static str,
    /// Header fields of the response, each with its line end.
    fields: String,
    pub(crate) reason: String,
    /// The operator can change it: log it.
    pub(crate) is_policy: bool,
}

impl Rejection {
    fn new(status: &'static str, reason: impl Into<String>) -> Self {
        Self { status, fields: String::new(), reason: reason.into(), is_policy: false }
    }

    fn with_field(mut self, name: &str, value: &str) -> Self {
        self.fields = format!("{name}: {value}\r\n");
        self
    }

    /// Appends the response.
    pub(crate) fn write(&self, to: &mut Vec<u8>) {
        let Self { status, fields, reason, .. } = self;
        let length = reason.len() + 1;
        let response = format!(
            "HTTP/1.1 {status}\r\n{fields}Content-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{reason}\n"
        );
        to.extend_from_slice(response.as_bytes());
    }
}

/// Progress of a request head.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Head {
    /// Bytes are missing.
    Incomplete,
    /// Length of the whole head.
    Complete(usize),
}

/// Looks for the end of the head, whose first `known` bytes do not contain it.
///
/// # Errors
/// The bytes cannot become a valid request.
pub(crate) fn find_head_end(bytes: &[u8], known: usize) -> Result<Head, Rejection> {
    // Other protocols are refused at their first byte, instead of when the head is too large.
    if !bytes.iter().take(3).all(u8::is_ascii_uppercase) {
        return Err(Rejection::new("400 Bad Request", "this is a listener for WebSocket"));
    }
    let from = known.saturating_sub(3);
    let end = bytes[from..].windows(4).position(|window| window == b"\r\n\r\n").map(|at| from + at + 4);
    match end {
        Some(end) if end <= HEAD_BYTES_MAX => Ok(Head::Complete(end)),
        None if bytes.len() < HEAD_BYTES_MAX => Ok(Head::Incomplete),
        _ => {
            let reason = format!("the request head has more than {HEAD_BYTES_MAX} bytes");
            Err(Rejection::new("431 Request Header Fields Too Large", reason))
        }
    }
}

/// Checks a whole request head, and returns the response that opens the connection.
///
/// # Errors
/// The request is invalid or not allowed.
pub(crate) fn accept(head: &[u8], settings: &Settings) -> Result<Vec<u8>, Rejection> {
    let mut storage = [EMPTY_HEADER; FIELDS_MAX];
    let mut request = Request::new(&mut storage);
    match request.parse(head) {
        Ok(Status::Complete(_)) => {}
        Ok(Status::Partial) => {
            return Err(Rejection::new("400 Bad Request", "the request head is malformed"));
        }
        Err(httparse::Error::TooManyHeaders) => {
            let reason = format!("the request has more than {FIELDS_MAX} header fields");
            return Err(Rejection::new("431 Request Header Fields Too Large", reason));
        }
        Err(error) => return Err(Rejection::new("400 Bad Request", format!("the request head: {error}"))),
    }
    check_request_line(&request, settings)?;
    let fields = Fields(request.headers);
    if fields.contains("Content-Length") || fields.contains("Transfer-Encoding") {
        return Err(Rejection::new("400 Bad Request", "the request must not have a body"));
    }
    if !fields.has_token("Upgrade", "websocket") || !fields.has_token("Connection", "upgrade") {
        let reason = "this is a listener for WebSocket: the request must ask for an upgrade";
        return Err(Rejection::new("426 Upgrade Required", reason)
            .with_field("Upgrade", "websocket\r\nConnection: Upgrade"));
    }
    if fields.one("Sec-WebSocket-Version")? != Some(VERSION) {
        return Err(Rejection::new("426 Upgrade Required", "the version of WebSocket must be 13")
            .with_field("Sec-WebSocket-Version", VERSION));
    }
    let host = fields.one("Host")?.ok_or_else(|| Rejection::new("400 Bad Request", "there is no Host"))?;
    check_origin(&fields, host, settings)?;
    let subprotocol = select_subprotocol(&fields, settings)?;
    let key = fields.one("Sec-WebSocket-Key")?.filter(|key| is_key(key));
    let key =
        key.ok_or_else(|| Rejection::new("400 Bad Request", "Sec-WebSocket-Key must be 16 bytes in base64"))?;
    let accept = accept_of(key);
    Ok(format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {subprotocol}\r\n\r\n"
    )
    .into_bytes())
}

fn check_request_line(request: &Request<'_, '_>, settings: &Settings) -> Result<(), Rejection> {
    if request.version != Some(1) {
        return Err(Rejection::new("505 HTTP Version Not Supported", "the version of HTTP must be 1.1"));
    }
    if request.method != Some("GET") {
        return Err(
            Rejection::new("405 Method Not Allowed", "the method must be GET").with_field("Allow", "GET")
        );
    }
    let target = request.path.unwrap_or_default();
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    if path != settings.path {
        return Err(Rejection::new(
            "404 Not Found",
            format!("the path of this listener is {}", settings.path),
        ));
    }
    Ok(())
}

fn check_origin(fields: &Fields<'_>, host: &str, settings: &Settings) -> Result<(), Rejection> {
    match fields.one("Origin")? {
        Some(origin) if !is_allowed(origin, host, &settings.allowed_origins) => {
            let origin: String = origin.chars().take(QUOTED_MAX).collect();
            let reason = format!(
                "pages of the origin {origin:?} may not connect; websocket.allowed_origins lists those that may"
            );
            Err(Rejection { is_policy: true, ..Rejection::new("403 Forbidden", reason) })
        }
        _ => Ok(()),
    }
}

/// MQTT 5, section 6: the client offers subprotocols, and the server selects one that it supports.
fn select_subprotocol<'a>(fields: &Fields<'_>, settings: &'a Settings) -> Result<&'a str, Rejection> {
    let offers = |name: &&String| fields.tokens("Sec-WebSocket-Protocol").any(|token| token == name.as_str());
    settings.subprotocols.iter().find(offers).map(String::as_str).ok_or_else(|| {
        let known = settings.subprotocols.join(" or ");
        Rejection::new(
            "400 Bad Request",
            format!("Sec-WebSocket-Protocol must offer the subprotocol {known}"),
        )
    })
}

fn is_key(key: &str) -> bool {
    STANDARD.decode(key).is_ok_and(|bytes| bytes.len() == 16)
}

fn accept_of(key: &str) -> String {
    STANDARD.encode(Sha1::new().chain_update(key).chain_update(KEY_SUFFIX).finalize())
}

/// Header fields of a request.
struct Fields<'a>(&'a [Header<'a>]);

impl<'a> Fields<'a> {
    fn values(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.0.iter().filter(move |field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
    }

    fn contains(&self, name: &str) -> bool {
        self.values(name).next().is_some()
    }

    /// The value of a field that must not be repeated. `None` if it is missing.
    fn one(&self, name: &str) -> Result<Option<&'a str>, Rejection> {
        let mut values = self.values(name);
        let value = values.next();
        if values.next().is_some() {
            return Err(Rejection::new("400 Bad Request", format!("the request has several fields {name}")));
        }
        let text = value.map(std::str::from_utf8).transpose();
        let text =
            text.map_err(|_| Rejection::new("400 Bad Request", format!("the field {name} is not UTF-8")))?;
        Ok(text.map(str::trim_ascii))
    }

    /// The elements of a field that is a list.
    fn tokens(&self, name: &str) -> impl Iterator<Item = &'a str> {
        let values = self.values(name).filter_map(|value| std::str::from_utf8(value).ok());
        values.flat_map(|value| value.split(',').map(str::trim_ascii))
    }

    fn has_token(&self, name: &str, token: &str) -> bool {
        self.tokens(name).any(|found| found.eq_ignore_ascii_case(token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_response_has_the_key_of_the_specification() {
        assert_eq!(accept_of("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn the_end_of_the_head_is_found_wherever_it_is_cut() {
        let head = b"GET / HTTP/1.1\r\nHost: a\r\n\r\nrest";
        for known in 0..head.len() - 4 {
            assert_eq!(find_head_end(&head[..known], known.saturating_sub(1)), Ok(Head::Incomplete));
            assert_eq!(find_head_end(head, known), Ok(Head::Complete(head.len() - 4)));
        }
    }

    #[test]
    fn a_head_is_bounded_and_other_protocols_are_refused_at_once() {
        let mut head = b"GET /".to_vec();
        head.resize(HEAD_BYTES_MAX - 1, b'a');
        assert_eq!(find_head_end(&head, 0), Ok(Head::Incomplete));
        head.push(b'a');
        assert!(find_head_end(&head, 0).unwrap_err().status.starts_with("431"));
        for bytes in [b"\x10".as_slice(), b"\x16\x03", b"\r\n\r\n", b"get", b"G:"] {
            assert!(find_head_end(bytes, 0).unwrap_err().status.starts_with("400"), "{bytes:?}");
        }
    }
}
