//! One connection to a Kafka broker: one request at a time, each in the newest version that both sides support.
//!
//! A broker may end the session of a user who does not log in again in time (KIP-368), so the next request after most
//! of that time does so first.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::rc::Rc;
use std::time::{Duration, Instant};

use mainstem_kafka::api::api_versions::{ApiVersionsRequest, ApiVersionsResponse};
use mainstem_kafka::api::sasl_authenticate::SaslAuthenticateRequest;
use mainstem_kafka::api::sasl_handshake::SaslHandshakeRequest;
use mainstem_kafka::{DecodeError, ErrorCode, Message, Reader, Request, RequestHeader, frame, header};

use mainstem_sasl::Mechanism;

use super::errors::check;
use super::log_in::Credentials;
use crate::cli::HostPort;
use crate::tool::failure::{Failure, io_message};
use crate::tool::tls::{Stream, Tls};

/// Client id in request headers.
pub(super) const CLIENT_ID: &str = "mainstem";

/// Largest response, in bytes. Fetch responses are the largest; their requests limit them.
const FRAME_BYTES_MAX: usize = 256 * 1024 * 1024;

/// Newest version to use of some APIs, by API key. Later versions require topic ids (KIP-516, KIP-848) or take lists of
/// groups, which these tools do not need.
const VERSION_LIMITS: [(i16, i16); 6] = [(0, 12), (1, 12), (8, 9), (9, 7), (10, 3), (20, 5)];

/// How to reach a broker.
pub(super) struct Access {
    /// Longest wait for a response.
    pub(super) timeout: Duration,
    /// `None` without TLS.
    pub(super) tls: Option<Tls>,
    /// `None` without a log-in.
    pub(super) credentials: Option<Credentials>,
}

/// A connection and the API versions of its broker.
pub(super) struct Connection {
    stream: Stream,
    /// For error messages.
    address: String,
    /// Lowest and highest version of each API that the broker supports, by API key.
    versions: HashMap<i16, (i16, i16)>,
    last_correlation_id: i32,
    access: Rc<Access>,
    /// The mechanism of the log-in, if there was one.
    mechanism: Option<Mechanism>,
    /// When to log in again.
    renewal: Option<Instant>,
    broken: bool,
}

impl Connection {
    /// Connects to `host:port`, with TLS if there is a configuration of it, requests the broker's API versions, and
    /// logs in if there are credentials.
    ///
    /// # Errors
    /// If no Kafka broker answers in time, or it refuses the user.
    pub(super) fn open(address: &str, access: &Rc<Access>) -> Result<Self, Failure> {
        let mut connection = Self::connect(address, access)?;
        let Some(credentials) = &access.credentials else { return Ok(connection) };
        let first = credentials.first_choice();
        if let Some(offered) = connection.log_in(credentials, first)? {
            // The broker has closed the connection, as Kafka does.
            let chosen = credentials.choose(&offered, access.tls.is_some())?;
            connection = Self::connect(address, access)?;
            if connection.log_in(credentials, chosen)?.is_some() {
                return Err(Failure::new(format!("{address}: the broker does not accept {}", chosen.name())));
            }
        }
        Ok(connection)
    }

    fn connect(address: &str, access: &Rc<Access>) -> Result<Self, Failure> {
        let (timeout, tls) = (access.timeout, access.tls.as_ref());
        let stream = connect(address, timeout)
            .and_then(|stream| {
                stream.set_nodelay(true)?;
                let stream = match tls {
                    None => Stream::Plain(stream),
                    Some(tls) => tls.connect(stream, &host_of(address), Instant::now() + timeout)?,
                };
                stream.socket().set_read_timeout(Some(timeout))?;
                stream.socket().set_write_timeout(Some(timeout))?;
                Ok(stream)
            })
            .map_err(|error| Failure::transient(format!("{address}: {}", io_message(&error))))?;
        let mut connection = Self {
            stream,
            address: address.into(),
            versions: HashMap::new(),
            last_correlation_id: 0,
            access: Rc::clone(access),
            mechanism: None,
            renewal: None,
            broken: false,
        };
        connection.negotiate_versions()?;
        Ok(connection)
    }

    /// Logs in. Returns the mechanisms that the broker offers if this is none of them.
    fn log_in(
        &mut self,
        credentials: &Credentials,
        mechanism: Mechanism,
    ) -> Result<Option<Vec<String>>, Failure> {
        let context = format!("{}: user {:?}", self.address, credentials.user);
        let handshake = SaslHandshakeRequest { mechanism: mechanism.name().into() };
        let response = self.exchange(&handshake, Duration::ZERO)?;
        if response.error_code == ErrorCode::UnsupportedSaslMechanism.code() {
            return Ok(Some(response.mechanisms));
        }
        if response.error_code == ErrorCode::IllegalSaslState.code() && !credentials.is_required {
            // The listener has no log-ins.
            return Ok(None);
        }
        check(&context, response.error_code, None)?;
        let lifetime_ms = match mechanism.scram_algorithm() {
            None => self.authenticate(&context, credentials.plain())?.1,
            Some(algorithm) => {
                let scram = credentials.scram(algorithm)?;
                let (challenge, _) = self.authenticate(&context, scram.first().into_bytes())?;
                let proof = scram.last(&challenge).map_err(|failure| failure.with_prefix(&context))?;
                let (answer, lifetime_ms) = self.authenticate(&context, proof.message.into_bytes())?;
                if answer != proof.expected_answer.as_bytes() {
                    return Err(Failure::new(format!("{context}: the broker does not know the user's keys")));
                }
                lifetime_ms
            }
        };
        self.mechanism = Some(mechanism);
        let lifetime = u64::try_from(lifetime_ms).ok().filter(|ms| *ms > 0).map(Duration::from_millis);
        // As clients of Kafka, which renew after 85 to 95 %.
        self.renewal = lifetime.and_then(|lifetime| Instant::now().checked_add(lifetime.mul_f64(0.85)));
        Ok(None)
    }

    /// Sends a token. Returns the broker's token, and how long the session lasts, ms; 0 without an end.
    fn authenticate(&mut self, context: &str, token: Vec<u8>) -> Result<(Vec<u8>, i64), Failure> {
        let request = SaslAuthenticateRequest { auth_bytes: token };
        let response = self.exchange(&request, Duration::ZERO)?;
        check(context, response.error_code, response.error_message.as_deref())?;
        Ok((response.auth_bytes, response.session_lifetime_ms))
    }

    /// Logs in again if the session ends soon.
    fn renew_session(&mut self) -> Result<(), Failure> {
        if self.renewal.is_none_or(|at| Instant::now() < at) {
            return Ok(());
        }
        let access = Rc::clone(&self.access);
        let (Some(credentials), Some(mechanism)) = (&access.credentials, self.mechanism) else {
            return Ok(());
        };
        self.log_in(credentials, mechanism).map(drop).inspect_err(|_| self.broken = true)
    }

    /// Whether the connection has failed and cannot be used any more.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Sends a request and waits for the response.
    ///
    /// # Errors
    /// If the broker does not support the API, or the connection fails.
    pub(super) fn call<R: Request>(&mut self, request: &R) -> Result<R::Response, Failure> {
        self.call_with_wait(request, Duration::ZERO)
    }

    /// Sends a request that the broker may hold for `wait` before it responds.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(super) fn call_with_wait<R: Request>(
        &mut self,
        request: &R,
        wait: Duration,
    ) -> Result<R::Response, Failure> {
        self.renew_session()?;
        self.exchange(request, wait)
    }

    fn exchange<R: Request>(&mut self, request: &R, wait: Duration) -> Result<R::Response, Failure> {
        let version = self.version::<R>()?;
        let outcome =
            self.stream.socket().set_read_timeout(Some(self.access.timeout + wait)).and_then(|()| {
                let correlation_id = self.write(request, version)?;
                self.read::<R>(correlation_id, version)
            });
        self.check_outcome(outcome)
    }

    /// Sends a request that has no response.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(super) fn send<R: Request>(&mut self, request: &R) -> Result<(), Failure> {
        self.renew_session()?;
        let version = self.version::<R>()?;
        let outcome = self.write(request, version).map(|_| ());
        self.check_outcome(outcome)
    }

    fn check_outcome<T>(&mut self, outcome: io::Result<T>) -> Result<T, Failure> {
        outcome.map_err(|error| {
            self.broken = true;
            let words = match error.kind() {
                io::ErrorKind::WouldBlock => "no response in time".into(),
                io::ErrorKind::UnexpectedEof => "the broker closed the connection".into(),
                _ => io_message(&error),
            };
            let text = format!("{}: {words}", self.address);
            if error.kind() == io::ErrorKind::InvalidData {
                Failure::new(text)
            } else {
                Failure::transient(text)
            }
        })
    }

    fn version<R: Request>(&self) -> Result<i16, Failure> {
        let newest = VERSION_LIMITS
            .iter()
            .find(|(key, _)| *key == R::KEY)
            .map_or(*R::VERSIONS.end(), |(_, newest)| *newest);
        let (lowest, highest) = self.versions.get(&R::KEY).copied().unwrap_or((0, -1));
        let version = highest.min(newest);
        if version < lowest.max(*R::VERSIONS.start()) {
            let key = R::KEY;
            return Err(Failure::new(format!(
                "{}: the broker supports no usable version of API {key}",
                self.address
            )));
        }
        Ok(version)
    }

    /// Requests API versions in the newest version, and again in the oldest if the broker does not support that
    /// (KIP-511).
    fn negotiate_versions(&mut self) -> Result<(), Failure> {
        let request = ApiVersionsRequest {
            client_software_name: CLIENT_ID.into(),
            client_software_version: env!("CARGO_PKG_VERSION").into(),
        };
        let newest = *ApiVersionsRequest::VERSIONS.end();
        let outcome = self.request_versions(&request, newest).and_then(|response| match response {
            Some(response) => Ok(Some(response)),
            None => self.request_versions(&request, 0),
        });
        let response = self.check_outcome(outcome)?;
        let response = response.filter(|response| response.error_code == 0);
        let response = response
            .ok_or_else(|| Failure::new(format!("{}: the broker returned no API versions", self.address)))?;
        let range = |api: &mainstem_kafka::api::api_versions::ApiVersion| (api.min_version, api.max_version);
        self.versions = response.api_keys.iter().map(|api| (api.api_key, range(api))).collect();
        Ok(())
    }

    /// Returns `None` if the broker does not support `version`.
    fn request_versions(
        &mut self,
        request: &ApiVersionsRequest,
        version: i16,
    ) -> io::Result<Option<ApiVersionsResponse>> {
        let correlation_id = self.write(request, version)?;
        let frame = self.read_frame()?;
        let body = body::<ApiVersionsRequest>(&frame, correlation_id, version)?;
        // All versions begin with the error code, and this error is always encoded in version 0.
        if body.starts_with(&ErrorCode::UnsupportedVersion.code().to_be_bytes()) {
            return Ok(None);
        }
        ApiVersionsResponse::decode(&mut Reader::new(body), version).map(Some).map_err(malformed)
    }

    /// Returns the correlation id.
    fn write<R: Request>(&mut self, request: &R, version: i16) -> io::Result<i32> {
        self.last_correlation_id = self.last_correlation_id.wrapping_add(1);
        let header = RequestHeader {
            api_key: R::KEY,
            api_version: version,
            correlation_id: self.last_correlation_id,
            client_id: Some(CLIENT_ID.into()),
        };
        let mut bytes = Vec::new();
        let begun = frame::begin_frame(&mut bytes);
        header.put(&mut bytes);
        request.encode(&mut bytes, version);
        frame::end_frame(&mut bytes, begun, 0);
        self.stream.write_all(&bytes)?;
        self.stream.flush()?;
        Ok(self.last_correlation_id)
    }

    fn read<R: Request>(&mut self, correlation_id: i32, version: i16) -> io::Result<R::Response> {
        let frame = self.read_frame()?;
        let body = body::<R>(&frame, correlation_id, version)?;
        R::Response::decode(&mut Reader::new(body), version).map_err(malformed)
    }

    fn read_frame(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; frame::LENGTH_BYTES];
        self.stream.read_exact(&mut length)?;
        let whole = frame::frame_len(&length, FRAME_BYTES_MAX).map_err(malformed)?;
        let len = whole.expect("the length was read") - frame::LENGTH_BYTES;
        let mut bytes = Vec::new();
        // Allocates as bytes arrive; the length is not trusted.
        (&mut self.stream).take(len as u64).read_to_end(&mut bytes)?;
        if bytes.len() < len { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(bytes) }
    }
}

/// The host of `host:port`, without the brackets of an IPv6 address.
fn host_of(address: &str) -> String {
    address.parse().map_or_else(|_| address.to_owned(), |HostPort { host, .. }| host)
}

fn body<R: Request>(frame: &[u8], correlation_id: i32, version: i16) -> io::Result<&[u8]> {
    let (received_id, body) = header::parse_response_header(frame, R::KEY, version).map_err(malformed)?;
    if received_id == correlation_id { Ok(body) } else { Err(malformed("unexpected correlation id")) }
}

fn malformed(error: impl Into<MalformedResponse>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.into().0)
}

/// Why a response cannot be decoded.
struct MalformedResponse(String);

impl From<DecodeError> for MalformedResponse {
    fn from(error: DecodeError) -> Self {
        Self(format!("malformed response: {error}"))
    }
}

impl From<&str> for MalformedResponse {
    fn from(text: &str) -> Self {
        Self(format!("malformed response: {text}"))
    }
}

/// Tries all addresses of the host name.
fn connect(address: &str, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    for resolved in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&resolved, timeout.max(Duration::from_millis(1))) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
