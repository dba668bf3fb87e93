//! A server in front of a fake broker, and raw connections to it.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use mainstem_admin::{Bound, Broker, HttpServer, Settings, start};
use serde_json::Value;

use crate::fake::{Fake, TEST_TIMEOUT};

/// A server and its fake broker.
pub(crate) struct TestServer {
    pub(crate) fake: Arc<Fake>,
    control: Option<HttpServer>,
}

impl TestServer {
    pub(crate) fn start() -> Self {
        Self::start_with(Settings::default())
    }

    pub(crate) fn start_with(settings: Settings) -> Self {
        let fake = Fake::new();
        let broker: Arc<dyn Broker> = Arc::<Fake>::clone(&fake);
        let bound = Bound::bind("http", "127.0.0.1:0".parse().unwrap(), None).unwrap();
        Self { fake, control: Some(start(vec![bound], settings, broker).unwrap()) }
    }

    fn control(&self) -> &HttpServer {
        self.control.as_ref().expect("the server is running")
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.control().addresses()[0].1
    }

    pub(crate) fn drain(&self) {
        self.control().drainer()();
    }

    pub(crate) fn end(&mut self) {
        self.control.take().expect("the server is running").end();
    }

    pub(crate) fn connect(&self) -> Connection {
        let stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        Connection(BufReader::new(stream))
    }

    /// Sends one request on a new connection. A body that is not empty is JSON.
    pub(crate) fn request(&self, method: &str, path: &str, body: &str) -> Response {
        self.connect().request(method, path, body)
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if let Some(control) = self.control.take() {
            control.end();
        }
    }
}

pub(crate) struct Connection(BufReader<TcpStream>);

impl Connection {
    pub(crate) fn request(&mut self, method: &str, path: &str, body: &str) -> Response {
        let headers = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
        self.send(method, path, headers, body.as_bytes());
        self.response()
    }

    /// Sends a request. Each line of `headers` ends with CRLF.
    pub(crate) fn send(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{headers}");
        if !body.is_empty() {
            write!(head, "content-length: {}\r\n", body.len()).unwrap();
        }
        head.push_str("\r\n");
        self.send_raw(head.as_bytes());
        self.send_raw(body);
    }

    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    /// The next response.
    pub(crate) fn response(&mut self) -> Response {
        self.try_response().expect("a response")
    }

    /// The next response. `None` if the server closes the connection instead.
    pub(crate) fn try_response(&mut self) -> Option<Response> {
        let line = self.line().filter(|line| !line.is_empty())?;
        let status = line.split(' ').nth(1).unwrap().parse().unwrap();
        let mut headers = Vec::new();
        while let Some(line) = self.line().filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(": ").unwrap();
            headers.push((name.to_lowercase(), value.to_owned()));
        }
        let mut response = Response { status, headers, body: Vec::new() };
        let len = response.header("content-length").map_or(0, |len| len.parse().unwrap());
        response.body = vec![0; len];
        self.0.read_exact(&mut response.body).unwrap();
        Some(response)
    }

    /// The status of a liveness check. `None` if the server closes the connection instead.
    pub(crate) fn try_live(&mut self) -> Option<u16> {
        // The connection may be closed already.
        self.0.get_mut().write_all(b"GET /v1/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n").ok();
        self.try_response().map(|response| response.status)
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.0.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(line.trim_end().to_owned()),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("{error}"),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Asserts this status.
    pub(crate) fn expect_status(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        self
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// Asserts a problem of this status and kind, and returns its detail.
    pub(crate) fn problem(self, status: u16, kind: &str) -> String {
        let response = self.expect_status(status);
        assert_eq!(response.header("content-type"), Some("application/problem+json"));
        let problem = response.json();
        assert_eq!(problem["type"], format!("urn:mainstem:problem:{kind}"), "{problem}");
        assert_eq!(problem["status"], status);
        problem["detail"].as_str().unwrap().to_owned()
    }
}
