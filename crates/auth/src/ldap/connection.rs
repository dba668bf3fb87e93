//! A connection to a directory: opening it, with TLS or without, and one operation after the other.
//!
//! The connection ends at a deadline, whatever the server sends and however slowly. A response is read byte by byte up
//! to its end, so that nothing that came before a handshake is taken for what came after it.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::ber::{self, SEQUENCE};
use super::message::{self, Entry, Outcome, Response, Scope, Search};
use crate::authorities::read_authorities;

/// Largest response, bytes.
const RESPONSE_BYTES_MAX: usize = 1024 * 1024;
/// References to other servers that a search may return.
const REFERENCES_MAX: usize = 1_000;

/// Where a directory is.
#[derive(Debug)]
pub(crate) struct Server {
    host: String,
    port: u16,
    security: Security,
}

#[derive(Debug)]
enum Security {
    Plain,
    StartTls(Arc<ClientConfig>, ServerName<'static>),
    Tls(Arc<ClientConfig>, ServerName<'static>),
}

/// What a search has found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) entries: Vec<Entry>,
    /// Whether these are all.
    pub(crate) is_complete: bool,
}

/// A connection.
pub(crate) struct Connection {
    stream: Box<dyn Stream>,
    deadline: Instant,
    /// Number of the last request.
    id: u32,
}

trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

/// A socket that is used until a deadline.
struct DeadlineStream {
    socket: TcpStream,
    deadline: Instant,
}

impl Server {
    /// # Errors
    /// A message for the user: the URL is invalid or not safe, or the file of authorities is invalid.
    pub(crate) fn new(url: &str, start_tls: bool, ca_file: Option<&Path>) -> Result<Self, String> {
        let (is_tls, rest) = match (url.strip_prefix("ldaps://"), url.strip_prefix("ldap://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return Err("expected ldaps://HOST:PORT or ldap://HOST:PORT".into()),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = split_port(authority, if is_tls { 636 } else { 389 })
            .ok_or("expected a host, or a host and a port, after the scheme and nothing else")?;
        if is_tls && start_tls {
            return Err("ldaps:// begins with TLS: start_tls is for ldap://".into());
        }
        let is_here = matches!(host, "localhost" | "127.0.0.1" | "::1");
        if !is_tls && !start_tls && !is_here {
            return Err(
                "passwords go over it: expected ldaps://, ldap:// with start_tls, or ldap:// on this machine"
                    .into(),
            );
        }
        let tls = || {
            let name = ServerName::try_from(host.to_owned()).map_err(|error| format!("{host}: {error}"))?;
            Ok::<_, String>((client_config(ca_file)?, name))
        };
        let security = if is_tls {
            let (config, name) = tls()?;
            Security::Tls(config, name)
        } else if start_tls {
            let (config, name) = tls()?;
            Security::StartTls(config, name)
        } else {
            Security::Plain
        };
        Ok(Self { host: host.to_owned(), port, security })
    }
}

/// Host and port of an authority. `None` if it is invalid.
fn split_port(authority: &str, default: u16) -> Option<(&str, u16)> {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, after) = rest.split_once(']')?;
        host.parse::<std::net::Ipv6Addr>().ok()?;
        (host, if after.is_empty() { None } else { Some(after.strip_prefix(':')?) })
    } else {
        match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        }
    };
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':');
    let port = port.map_or(Some(default), |port| port.parse().ok())?;
    (!host.is_empty() && host.bytes().all(is_host) && port != 0).then_some((host, port))
}

fn client_config(ca_file: Option<&Path>) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(read_authorities(ca_file)?);
    if roots.is_empty() {
        return Err("ldap.ca_file: there are no authorities to trust".into());
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

/// Time until a deadline.
fn remaining(deadline: Instant) -> io::Result<Duration> {
    let remaining = deadline.saturating_duration_since(Instant::now());
    if remaining.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(remaining) }
}

impl Read for DeadlineStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(remaining(self.deadline)?))?;
        self.socket.read(buffer)
    }
}

impl Write for DeadlineStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(remaining(self.deadline)?))?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "no answer in time".into(),
        io::ErrorKind::UnexpectedEof => "it has closed the connection".into(),
        _ => error.to_string(),
    }
}

impl Connection {
    /// Opens a connection, up to the end of the TLS handshake.
    ///
    /// # Errors
    /// Why there is none. The system resolves the name, in a time of its own.
    pub(crate) fn open(server: &Server, deadline: Instant) -> Result<Self, String> {
        let socket = connect(server, deadline).map_err(|error| explain(&error))?;
        socket.set_nodelay(true).map_err(|error| error.to_string())?;
        let stream = DeadlineStream { socket, deadline };
        let secure = |stream, config: &Arc<ClientConfig>, name: &ServerName<'static>| {
            let tls = ClientConnection::new(Arc::clone(config), name.clone());
            let mut stream = StreamOwned::new(tls.map_err(|error| error.to_string())?, stream);
            while stream.conn.is_handshaking() {
                stream.conn.complete_io(&mut stream.sock).map_err(|error| explain(&error))?;
            }
            Ok::<_, String>(stream)
        };
        match &server.security {
            Security::Plain => Ok(Self { stream: Box::new(stream), deadline, id: 0 }),
            Security::Tls(config, name) => {
                Ok(Self { stream: Box::new(secure(stream, config, name)?), deadline, id: 0 })
            }
            Security::StartTls(config, name) => {
                let (mut stream, id) = (stream, 1);
                start_tls(&mut stream, id)?;
                Ok(Self { stream: Box::new(secure(stream, config, name)?), deadline, id })
            }
        }
    }

    /// Binds as an entry, with its password.
    ///
    /// # Errors
    /// There is no result. A password that is not right is one.
    pub(crate) fn bind(&mut self, dn: &[u8], password: &[u8]) -> Result<Outcome, String> {
        let id = self.next_id();
        write(&mut self.stream, &message::bind(id, dn, password))?;
        match read(&mut self.stream, id, "")? {
            Response::Bound(outcome) => Ok(outcome),
            other => Err(format!("unexpected response to a bind: {other:?}")),
        }
    }

    /// Searches, and returns `entries_max` entries at most.
    ///
    /// # Errors
    /// The search fails.
    pub(crate) fn search(&mut self, search: Search<'_>) -> Result<Found, String> {
        let id = self.next_id();
        let time_s = remaining(self.deadline).map_err(|error| explain(&error))?.as_secs() as u32 + 1;
        let search = Search { time_s, ..search };
        write(&mut self.stream, &message::search(id, &search))?;
        let (mut entries, mut references) = (Vec::new(), 0);
        loop {
            match read(&mut self.stream, id, search.attribute)? {
                Response::Found(entry) if entries.len() < search.entries_max as usize => entries.push(entry),
                Response::Elsewhere if references < REFERENCES_MAX => references += 1,
                Response::SearchDone(Outcome { code: 0, .. }) => {
                    return Ok(Found { entries, is_complete: true });
                }
                // There are more entries than were asked for, or than the server returns.
                Response::SearchDone(Outcome { code: 4 | 11, .. }) => {
                    return Ok(Found { entries, is_complete: false });
                }
                // The entry is not there, or hidden.
                Response::SearchDone(Outcome { code: 32, .. }) if search.scope == Scope::Base => {
                    return Ok(Found { entries, is_complete: true });
                }
                Response::SearchDone(outcome) => {
                    let base = String::from_utf8_lossy(search.base);
                    return Err(format!("search below {base:?}: {outcome}"));
                }
                _ => return Err("unexpected response to a search".into()),
            }
        }
    }

    fn next_id(&mut self) -> u32 {
        self.id += 1;
        self.id
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let id = self.next_id();
        // The result is known, whether the server hears of the end or not.
        drop(self.stream.write_all(&message::unbind(id)).and_then(|()| self.stream.flush()));
    }
}

/// Connects to the first address that answers.
fn connect(server: &Server, deadline: Instant) -> io::Result<TcpStream> {
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in (&*server.host, server.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, remaining(deadline)?) {
            Ok(socket) => return Ok(socket),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Asks for TLS (RFC 4511, section 4.14).
fn start_tls(stream: &mut DeadlineStream, id: u32) -> Result<(), String> {
    write(stream, &message::start_tls(id))?;
    match read(stream, id, "")? {
        Response::Extended(outcome) if outcome.is_success() => Ok(()),
        Response::Extended(outcome) => Err(format!("StartTLS: {outcome}")),
        other => Err(format!("unexpected response to StartTLS: {other:?}")),
    }
}

fn write(stream: &mut impl Write, request: &[u8]) -> Result<(), String> {
    stream.write_all(request).and_then(|()| stream.flush()).map_err(|error| explain(&error))
}

/// Reads the response to a request, and not one byte more.
fn read(stream: &mut impl Read, id: u32, attribute: &str) -> Result<Response, String> {
    let mut head = [0; 2];
    stream.read_exact(&mut head).map_err(|error| explain(&error))?;
    let more =
        ber::length_bytes(head[1]).filter(|_| head[0] == SEQUENCE).ok_or("this is no answer of LDAP")?;
    let mut digits = [0; 4];
    stream.read_exact(&mut digits[..more]).map_err(|error| explain(&error))?;
    let length = ber::length(head[1], &digits[..more]);
    if length > RESPONSE_BYTES_MAX {
        return Err(format!("an answer of {length} bytes is above {RESPONSE_BYTES_MAX}"));
    }
    let mut content = Vec::new();
    let count =
        Read::take(&mut *stream, length as u64).read_to_end(&mut content).map_err(|error| explain(&error))?;
    if count < length {
        return Err(explain(&io::ErrorKind::UnexpectedEof.into()));
    }
    let (number, response) = message::decode(&content, attribute).ok_or("an answer is malformed")?;
    match response {
        // A notice of disconnection (RFC 4511, section 4.4.1).
        Response::Extended(outcome) if number == 0 => Err(format!("it disconnects: {outcome}")),
        response if number == id => Ok(response),
        _ => Err("an answer belongs to no request".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_go_over_tls_or_stay_on_this_machine() {
        for (url, start_tls, expected) in [
            ("ldap://localhost", false, true),
            ("ldap://127.0.0.1:3389/", false, true),
            ("ldap://[::1]:389", false, true),
            ("ldap://ldap.example.com", true, true),
            ("ldaps://ldap.example.com:636", false, true),
            ("ldaps://localhost", true, false),
            ("ldap://ldap.example.com", false, false),
            ("ldap://localhost.example.com", false, false),
            ("ldap://127.0.0.1@example.com", false, false),
            ("ldaps://user:secret@example.com", false, false),
            ("ldaps://example.com/dc=x", false, false),
            ("ldaps://example.com:0", false, false),
            ("ldaps://example.com:70000", false, false),
            ("ldaps://[::1", false, false),
            ("ldaps://", false, false),
            ("ldapi:///", false, false),
            ("https://example.com", false, false),
            ("", false, false),
        ] {
            // This machine may have no authorities of its own.
            let result = Server::new(url, start_tls, None);
            let is_accepted = result.as_ref().map_or_else(|error| error.contains("ldap.ca_file"), |_| true);
            assert_eq!(is_accepted, expected, "{url}: {result:?}");
        }
    }
}
