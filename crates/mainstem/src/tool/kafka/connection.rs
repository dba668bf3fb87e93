//! One connection to a Kafka broker: one request at a time, each in the newest version that both sides know.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use mainstem_kafka::api::api_versions::{ApiVersionsRequest, ApiVersionsResponse};
use mainstem_kafka::{DecodeError, ErrorCode, Message, Reader, Request, RequestHeader, frame, header};

use crate::tool::failure::{Failure, io_words};

/// The name that brokers show for this client.
pub(super) const CLIENT_ID: &str = "mainstem";

/// Longest answer that is read. The largest are those of fetches, which the requests bound.
const FRAME_BYTES_MAX: usize = 256 * 1024 * 1024;

/// The newest versions that name topics and groups by name, and one group at a time: what is after them asks for
/// topic ids (KIP-516, KIP-848) or takes lists, which these tools have no use for.
const NEWEST: [(i16, i16); 6] = [(0, 12), (1, 12), (8, 9), (9, 7), (10, 3), (20, 5)];

/// A connection and what its broker can.
pub(super) struct Connection {
    stream: TcpStream,
    /// For error messages.
    address: String,
    /// Lowest and highest version of each API that the broker knows.
    versions: HashMap<i16, (i16, i16)>,
    last_correlation_id: i32,
    patience: Duration,
    broken: bool,
}

impl Connection {
    /// Connects to `host:port` and asks what the broker can.
    ///
    /// # Errors
    /// If nobody answers there in Kafka's protocol within `patience`.
    pub(super) fn open(address: &str, patience: Duration) -> Result<Self, Failure> {
        let stream = connect(address, patience)
            .and_then(|stream| {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))?;
                Ok(stream)
            })
            .map_err(|error| Failure::lost(format!("{address}: {}", io_words(&error))))?;
        let mut connection = Self {
            stream,
            address: address.into(),
            versions: HashMap::new(),
            last_correlation_id: 0,
            patience,
            broken: false,
        };
        connection.learn_versions()?;
        Ok(connection)
    }

    /// Whether it has failed and is of no more use.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// If the broker does not know the API, or the connection fails.
    pub(super) fn call<R: Request>(&mut self, request: &R) -> Result<R::Response, Failure> {
        self.call_slow(request, Duration::ZERO)
    }

    /// The same for a request that the broker may take `longer` to answer.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(super) fn call_slow<R: Request>(
        &mut self,
        request: &R,
        longer: Duration,
    ) -> Result<R::Response, Failure> {
        let version = self.version::<R>()?;
        let outcome = self.stream.set_read_timeout(Some(self.patience + longer)).and_then(|()| {
            let correlation_id = self.write(request, version)?;
            self.read::<R>(correlation_id, version)
        });
        self.told(outcome)
    }

    /// Sends what is not answered.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(super) fn send<R: Request>(&mut self, request: &R) -> Result<(), Failure> {
        let version = self.version::<R>()?;
        let outcome = self.write(request, version).map(|_| ());
        self.told(outcome)
    }

    fn told<T>(&mut self, outcome: io::Result<T>) -> Result<T, Failure> {
        outcome.map_err(|error| {
            self.broken = true;
            let words = match error.kind() {
                io::ErrorKind::WouldBlock => "no answer in time".into(),
                io::ErrorKind::UnexpectedEof => "the broker has closed the connection".into(),
                _ => io_words(&error),
            };
            let text = format!("{}: {words}", self.address);
            if error.kind() == io::ErrorKind::InvalidData { Failure::new(text) } else { Failure::lost(text) }
        })
    }

    fn version<R: Request>(&self) -> Result<i16, Failure> {
        let newest =
            NEWEST.iter().find(|(key, _)| *key == R::KEY).map_or(*R::VERSIONS.end(), |(_, newest)| *newest);
        let (lowest, highest) = self.versions.get(&R::KEY).copied().unwrap_or((0, -1));
        let version = highest.min(newest);
        if version < lowest.max(*R::VERSIONS.start()) {
            let key = R::KEY;
            return Err(Failure::new(format!(
                "{}: the broker knows no usable version of API {key}",
                self.address
            )));
        }
        Ok(version)
    }

    /// Asks in the newest version, and once more in the oldest if the broker does not know that (KIP-511).
    fn learn_versions(&mut self) -> Result<(), Failure> {
        let request = ApiVersionsRequest {
            client_software_name: CLIENT_ID.into(),
            client_software_version: env!("CARGO_PKG_VERSION").into(),
        };
        let newest = *ApiVersionsRequest::VERSIONS.end();
        let outcome = self.ask_versions(&request, newest).and_then(|answer| match answer {
            Some(answer) => Ok(Some(answer)),
            None => self.ask_versions(&request, 0),
        });
        let answer = self.told(outcome)?;
        let answer = answer.filter(|answer| answer.error_code == 0);
        let answer =
            answer.ok_or_else(|| Failure::new(format!("{}: it does not tell what it can", self.address)))?;
        let range = |api: &mainstem_kafka::api::api_versions::ApiVersion| (api.min_version, api.max_version);
        self.versions = answer.api_keys.iter().map(|api| (api.api_key, range(api))).collect();
        Ok(())
    }

    /// `None` if the broker does not know the version.
    fn ask_versions(
        &mut self,
        request: &ApiVersionsRequest,
        version: i16,
    ) -> io::Result<Option<ApiVersionsResponse>> {
        let correlation_id = self.write(request, version)?;
        let frame = self.read_frame()?;
        let body = body::<ApiVersionsRequest>(&frame, correlation_id, version)?;
        // The error comes first in all versions, and this one in the form of the oldest.
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
        let begun = frame::begin(&mut bytes);
        header.put(&mut bytes);
        request.encode(&mut bytes, version);
        frame::end(&mut bytes, begun, 0);
        self.stream.write_all(&bytes)?;
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
        let whole = frame::len(&length, FRAME_BYTES_MAX).map_err(malformed)?;
        let len = whole.expect("the length is there") - frame::LENGTH_BYTES;
        let mut bytes = Vec::new();
        // Read as it comes, whatever it claims.
        (&self.stream).take(len as u64).read_to_end(&mut bytes)?;
        if bytes.len() < len { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(bytes) }
    }
}

fn body<R: Request>(frame: &[u8], correlation_id: i32, version: i16) -> io::Result<&[u8]> {
    let (answered, body) = header::parse_response_header(frame, R::KEY, version).map_err(malformed)?;
    if answered == correlation_id { Ok(body) } else { Err(malformed("it answers another request")) }
}

fn malformed(error: impl Into<Broken>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.into().0)
}

/// What is wrong with an answer.
struct Broken(String);

impl From<DecodeError> for Broken {
    fn from(error: DecodeError) -> Self {
        Self(format!("a malformed answer: {error}"))
    }
}

impl From<&str> for Broken {
    fn from(text: &str) -> Self {
        Self(format!("a malformed answer: {text}"))
    }
}

/// Tries all addresses that the name has.
fn connect(address: &str, patience: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for resolved in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&resolved, patience.max(Duration::from_millis(1))) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
