//! A door with a fake behind it, and connections to it that send what they are told.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use mainstem_admin::{Bound, Broker, Control, Settings};
use serde_json::Value;

use crate::fake::{Fake, PATIENCE};

/// A door, and the broker behind it.
pub(crate) struct Door {
    pub(crate) fake: Arc<Fake>,
    control: Option<Control>,
}

impl Door {
    pub(crate) fn open() -> Self {
        Self::open_with(Settings::default())
    }

    pub(crate) fn open_with(settings: Settings) -> Self {
        let fake = Fake::new();
        let broker: Arc<dyn Broker> = Arc::<Fake>::clone(&fake);
        let bound = Bound::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        Self { fake, control: Some(bound.start(settings, broker).unwrap()) }
    }

    fn control(&self) -> &Control {
        self.control.as_ref().expect("it is open")
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.control().address()
    }

    pub(crate) fn drain(&self) {
        self.control().drainer()();
    }

    pub(crate) fn end(&mut self) {
        self.control.take().expect("it is open").end();
    }

    pub(crate) fn connect(&self) -> Connection {
        let stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Connection(BufReader::new(stream))
    }

    /// One request on a connection of its own, with a body in JSON unless it is empty.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        self.connect().ask(method, path, body)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if let Some(control) = self.control.take() {
            control.end();
        }
    }
}

pub(crate) struct Connection(BufReader<TcpStream>);

impl Connection {
    pub(crate) fn ask(&mut self, method: &str, path: &str, body: &str) -> Answer {
        let headers = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
        self.send(method, path, headers, body.as_bytes());
        self.answer()
    }

    /// Sends a request; each of the `headers` ends its line.
    pub(crate) fn send(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: door\r\n{headers}");
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

    /// The next answer.
    pub(crate) fn answer(&mut self) -> Answer {
        self.try_answer().expect("an answer")
    }

    /// The next answer; nothing if the connection is closed in place of it.
    pub(crate) fn try_answer(&mut self) -> Option<Answer> {
        let line = self.line().filter(|line| !line.is_empty())?;
        let status = line.split(' ').nth(1).unwrap().parse().unwrap();
        let mut headers = Vec::new();
        while let Some(line) = self.line().filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(": ").unwrap();
            headers.push((name.to_lowercase(), value.to_owned()));
        }
        let mut answer = Answer { status, headers, body: Vec::new() };
        let len = answer.header("content-length").map_or(0, |len| len.parse().unwrap());
        answer.body = vec![0; len];
        self.0.read_exact(&mut answer.body).unwrap();
        Some(answer)
    }

    /// What is answered to a question for life; nothing if the connection is closed in place of it.
    pub(crate) fn try_answer_to_live(&mut self) -> Option<u16> {
        // It may be closed already.
        self.0.get_mut().write_all(b"GET /v1/health/live HTTP/1.1\r\nhost: door\r\n\r\n").ok();
        self.try_answer().map(|answer| answer.status)
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
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Demands this status.
    pub(crate) fn is(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        self
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// Demands a problem of this status and kind, and gives its detail.
    pub(crate) fn problem(self, status: u16, kind: &str) -> String {
        let answer = self.is(status);
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        let problem = answer.json();
        assert_eq!(problem["type"], format!("urn:mainstem:problem:{kind}"), "{problem}");
        assert_eq!(problem["status"], status);
        problem["detail"].as_str().unwrap().to_owned()
    }
}
