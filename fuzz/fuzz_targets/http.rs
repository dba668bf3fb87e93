//! Requests to the HTTP API, well-formed and not, over real sockets, with a broker that answers at once.
//!
//! The server never panics. Each response has a status that the API documents, and its JSON is valid; an error is
//! `application/problem+json`.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use mainstem_admin::{
    Bound, Broker, ConnectionPermit, HttpServer, MemoryUsage, ReplyCallback, Settings, TurnDurations,
};
use mainstem_queue_core::{ItemResult, QueueError, Redriven, Reply, Request};
use serde_json::{Map, Value};
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Requests of one input.
const REQUESTS_MAX: usize = 8;
const METHODS: [&str; 8] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "BREW"];
const SEGMENTS: [&str; 24] = [
    "v1",
    "queues",
    "q",
    "messages",
    "receive",
    "ack",
    "nack",
    "reject",
    "extend",
    "peek",
    "purge",
    "redrive",
    "groups",
    "default",
    "replay",
    "bindings",
    "b",
    "metrics",
    "health",
    "live",
    "ready",
    "openapi.json",
    "..",
    "%2e%00",
];
const KEYS: [&str; 28] = [
    "messages",
    "receipts",
    "body",
    "body_base64",
    "key",
    "key_base64",
    "headers",
    "priority",
    "delay_ms",
    "ttl_ms",
    "dedup_id",
    "deliver_at",
    "lease_ms",
    "max",
    "wait_ms",
    "group",
    "from",
    "from_offset",
    "from_time_ms",
    "kind",
    "filter",
    "topic",
    "queue",
    "publish",
    "qos",
    "max_deliveries",
    "info",
    "consumer",
];
const TYPES: [&str; 4] =
    ["application/json", "text/plain", "application/json; charset=utf-8", "multipart/form-data"];
const STATUSES: [u16; 22] = [
    100, 200, 201, 204, 207, 400, 403, 404, 405, 408, 409, 411, 413, 414, 415, 421, 422, 429, 431, 501, 503,
    505,
];
/// The last request of an input that has only whole requests; the server closes the connection after it.
const LAST: &[u8] = b"GET /v1/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
/// Longest time without a byte from the server.
const READ_MAX: Duration = Duration::from_secs(20);

#[derive(Arbitrary, Debug)]
enum Input {
    /// Whatever comes.
    Raw(Vec<u8>),
    Requests(Vec<Call>),
}

#[derive(Arbitrary, Debug)]
struct Call {
    method: u8,
    path: Vec<u8>,
    query: Vec<(u8, Scalar)>,
    content_type: Option<u8>,
    origin: bool,
    body: Body,
    chunked: bool,
}

#[derive(Arbitrary, Debug)]
enum Body {
    Json(Json),
    Bytes(Vec<u8>),
    /// A length without as many bytes.
    Short(u16),
}

#[derive(Arbitrary, Debug)]
enum Json {
    Scalar(Scalar),
    List(Vec<Json>),
    Object(Vec<(u8, Json)>),
}

#[derive(Arbitrary, Debug)]
enum Scalar {
    Null,
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    Receipt(u8, u8, u8),
}

fuzz_target!(|input: Input| {
    let (mut bytes, is_whole) = match &input {
        Input::Raw(bytes) => (bytes.clone(), false),
        Input::Requests(calls) => {
            let calls = &calls[..calls.len().min(REQUESTS_MAX)];
            let is_whole = calls.iter().all(|call| !matches!(call.body, Body::Short(_)));
            (calls.iter().flat_map(Call::bytes).collect(), is_whole)
        }
    };
    let mut stream = TcpStream::connect(address()).expect("the server accepts");
    stream.set_read_timeout(Some(READ_MAX)).expect("a timeout");
    if is_whole {
        bytes.extend(LAST);
    }
    // The server may close the connection before it has read everything.
    let is_sent = stream.write_all(&bytes).is_ok() && (is_whole || stream.shutdown(Shutdown::Write).is_ok());
    let mut received = Vec::new();
    match stream.read_to_end(&mut received) {
        Ok(_) => check(&received),
        Err(error) => {
            let is_reset = error.kind() == std::io::ErrorKind::ConnectionReset;
            assert!(!is_sent || is_reset, "the server leaves a connection open: {error}");
        }
    }
});

/// Checks all complete responses.
fn check(mut received: &[u8]) {
    while let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n") {
        let head = std::str::from_utf8(&received[..end]).expect("a head in ASCII").to_ascii_lowercase();
        let status: u16 = head.split(' ').nth(1).and_then(|text| text.parse().ok()).expect("a status");
        assert!(STATUSES.contains(&status), "status {status}: {head}");
        let field = |name: &str| {
            head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
        };
        let length = field("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
        let rest = &received[end + 4..];
        // The response to HEAD has a length and no body; what follows cannot be told from it.
        if rest.len() < length {
            return;
        }
        let body = &rest[..length];
        let is_json = field("content-type").is_some_and(|kind| kind.contains("json"));
        if body.starts_with(b"HTTP/1.1 ") {
            received = rest;
            continue;
        }
        if is_json && length > 0 {
            serde_json::from_slice::<Value>(body).expect("valid JSON");
        }
        received = &rest[length..];
    }
}

/// Address of the server, which starts with the first input and runs until the process ends.
fn address() -> SocketAddr {
    static SERVER: OnceLock<(SocketAddr, HttpServer)> = OnceLock::new();
    let start = || {
        let bound = Bound::bind("http", SocketAddr::from(([127, 0, 0, 1], 0)), None).expect("a free port");
        let (_, address) = bound.name_and_address().expect("an address");
        let settings = Settings {
            body_bytes_max: 64 * 1024,
            request_timeout: Duration::from_millis(100),
            idle_timeout: Duration::from_millis(100),
            ..Settings::default()
        };
        let server = mainstem_admin::start(vec![bound], settings, Arc::new(Answering)).expect("a thread");
        (address, server)
    };
    SERVER.get_or_init(start).0
}

/// A broker that answers at once, and knows the queue `q` only.
struct Answering;

impl Broker for Answering {
    fn admit(&self, _: IpAddr) -> Option<ConnectionPermit> {
        Some(Box::new(()))
    }

    fn submit(&self, queue: &str, request: Request, reply: ReplyCallback) {
        if queue != "q" && !matches!(request, Request::Create { .. }) {
            return reply(Reply::Refused(QueueError::UnknownQueue));
        }
        reply(match request {
            Request::Send(messages) => Reply::Sent((0..messages.len() as u64).map(Ok).collect()),
            Request::Receive { .. } => Reply::Received(Vec::new()),
            Request::Settle { settlements, .. } => {
                let outcome = |index| if index % 2 == 0 { Ok(()) } else { Err(QueueError::Stale) };
                Reply::Settled((0..settlements.len()).map(outcome).collect::<Vec<ItemResult<()>>>())
            }
            Request::Peek { .. } => Reply::Peeked(Vec::new()),
            Request::Info => Reply::Refused(QueueError::Storage),
            Request::Purge { .. } | Request::Replay { .. } => Reply::Count(7),
            Request::Redrive { .. } => Reply::Redriven(Redriven { moved: 7, skipped: 0 }),
            _ => Reply::Done,
        });
    }

    fn queues(&self) -> Vec<Arc<str>> {
        vec!["q".into()]
    }

    fn is_topic(&self, _: &str) -> bool {
        false
    }

    fn bindings(&self) -> Vec<Map<String, Value>> {
        Vec::new()
    }

    fn add_binding(&self, _: &str, _: Map<String, Value>, reply: ReplyCallback) {
        reply(Reply::Done);
    }

    fn remove_binding(&self, _: &str, reply: ReplyCallback) {
        reply(Reply::Done);
    }

    fn memory(&self) -> MemoryUsage {
        MemoryUsage::default()
    }

    fn turn_durations(&self) -> TurnDurations {
        TurnDurations::default()
    }

    fn errors(&self) -> Vec<String> {
        Vec::new()
    }
}

impl Call {
    fn bytes(&self) -> Vec<u8> {
        let method = METHODS[usize::from(self.method) % METHODS.len()];
        let segment = |byte: &u8| SEGMENTS[usize::from(*byte) % SEGMENTS.len()];
        let path: String = self.path.iter().take(8).map(|byte| format!("/{}", segment(byte))).collect();
        let query: Vec<String> = self
            .query
            .iter()
            .take(8)
            .map(|(key, value)| format!("{}={}", key_of(*key), value.in_query()))
            .collect();
        let mut head = format!("{method} {path}/?{} HTTP/1.1\r\nHost: localhost\r\n", query.join("&"));
        // Half of the paths end without a slash, as the routes do.
        if self.path.len() % 2 == 0 {
            head = head.replacen("/?", "?", 1);
        }
        if let Some(kind) = self.content_type {
            head += &format!("Content-Type: {}\r\n", TYPES[usize::from(kind) % TYPES.len()]);
        }
        if self.origin {
            head += "Origin: http://example.com\r\n";
        }
        let (length, body) = match &self.body {
            Body::Json(json) => {
                let body = json.value(8).to_string().into_bytes();
                (body.len(), body)
            }
            Body::Bytes(bytes) => (bytes.len(), bytes.clone()),
            Body::Short(length) => (usize::from(*length), Vec::new()),
        };
        let body = if self.chunked {
            head += "Transfer-Encoding: chunked\r\n\r\n";
            [format!("{length:x}\r\n").as_bytes(), &body, b"\r\n0\r\n\r\n"].concat()
        } else {
            head += &format!("Content-Length: {length}\r\n\r\n");
            body
        };
        [head.as_bytes(), &body].concat()
    }
}

impl Json {
    fn value(&self, depth: u32) -> Value {
        match self {
            Self::Scalar(scalar) => scalar.value(),
            _ if depth == 0 => Value::Null,
            Self::List(list) => list.iter().map(|json| json.value(depth - 1)).collect(),
            Self::Object(fields) => {
                let field = |(key, json): &(u8, Self)| (key_of(*key).to_owned(), json.value(depth - 1));
                Value::Object(fields.iter().map(field).collect())
            }
        }
    }
}

impl Scalar {
    fn value(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => (*value).into(),
            Self::Integer(value) => (*value).into(),
            Self::Float(value) => (*value).into(),
            Self::Text(text) => text.as_str().into(),
            Self::Receipt(offset, count, incarnation) => format!("{offset}-{count}-{incarnation:08x}").into(),
        }
    }

    /// Without bytes that end a request line.
    fn in_query(&self) -> String {
        let text = self.value().to_string();
        text.trim_matches('"').bytes().filter(u8::is_ascii_graphic).map(char::from).collect()
    }
}

fn key_of(number: u8) -> &'static str {
    KEYS[usize::from(number) % KEYS.len()]
}
