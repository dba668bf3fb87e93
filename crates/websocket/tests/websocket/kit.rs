//! A connection in memory, and what its two sides say.

use mainstem_runtime::{StreamState, TransportLayer};
use mainstem_websocket::{Acceptor, AllowedOrigin, Settings};

/// The key of the request, which is the example of RFC 6455.
pub(crate) const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
pub(crate) const MASK: [u8; 4] = [0x37, 0xFA, 0x21, 0x3D];

pub(crate) const CONTINUATION: u8 = 0;
pub(crate) const TEXT: u8 = 1;
pub(crate) const BINARY: u8 = 2;
pub(crate) const CLOSE: u8 = 8;
pub(crate) const PING: u8 = 9;
pub(crate) const PONG: u8 = 10;
pub(crate) const FIN: u8 = 0x80;

/// Fields of a request that is accepted.
pub(crate) fn fields() -> Vec<(&'static str, &'static str)> {
    vec![
        ("Host", "localhost:8083"),
        ("Upgrade", "websocket"),
        ("Connection", "keep-alive, Upgrade"),
        ("Sec-WebSocket-Key", KEY),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Protocol", "mqtt"),
    ]
}

pub(crate) fn request(line: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let fields = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
    format!("{line}\r\n{}\r\n", fields.collect::<Vec<_>>().concat()).into_bytes()
}

pub(crate) fn acceptor(allowed_origins: &[&str]) -> std::sync::Arc<Acceptor> {
    let origin = |origin: &&str| AllowedOrigin::parse(origin).unwrap();
    let settings = Settings {
        path: "/mqtt".into(),
        subprotocols: vec!["mqtt".into(), "mqttv3.1".into()],
        allowed_origins: allowed_origins.iter().map(origin).collect(),
    };
    Acceptor::new("test", settings)
}

/// A masked frame. `first` is its first byte: opcode and bits.
pub(crate) fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    match payload.len() {
        len @ 0..126 => bytes.push(0x80 | len as u8),
        len @ 126..0x1_0000 => {
            bytes.push(0x80 | 0x7E);
            bytes.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            bytes.push(0x80 | 0x7F);
            bytes.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(&MASK);
    bytes.extend(payload.iter().zip(MASK.iter().cycle()).map(|(byte, key)| byte ^ key));
    bytes
}

/// A frame without a mask, of fewer than 126 bytes: from the server, or wrong.
pub(crate) fn unmasked(first: u8, payload: &[u8]) -> Vec<u8> {
    [&[first, payload.len() as u8], payload].concat()
}

/// The close frame of the server.
pub(crate) fn close(code: u16) -> Vec<u8> {
    unmasked(FIN | CLOSE, &code.to_be_bytes())
}

/// The layer of a connection, and what has passed it.
pub(crate) struct Connection {
    pub(crate) layer: Box<dyn TransportLayer>,
    pub(crate) input: Vec<u8>,
    pub(crate) sent: Vec<u8>,
    /// Whether the layer lets the stream of the peer continue.
    pub(crate) is_open: bool,
}

impl Connection {
    pub(crate) fn new(allowed_origins: &[&str]) -> Self {
        let layer = acceptor(allowed_origins).layer();
        Self { layer, input: Vec::new(), sent: Vec::new(), is_open: true }
    }

    /// A connection that is upgraded.
    pub(crate) fn open() -> Self {
        let mut connection = Self::new(&[]);
        connection.receive(&request("GET /mqtt HTTP/1.1", &fields()));
        assert!(connection.take_sent().starts_with(b"HTTP/1.1 101 "));
        connection
    }

    /// What the socket received; ends the stream as the driver does when the layer says so.
    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        assert!(self.is_open, "the connection has ended");
        if !matches!(self.layer.receive(bytes, &mut self.input, &mut self.sent), Ok(StreamState::Open)) {
            self.is_open = false;
            self.layer.close(&mut self.sent);
        }
    }

    pub(crate) fn take_sent(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.sent)
    }

    pub(crate) fn take_input(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.input)
    }
}
