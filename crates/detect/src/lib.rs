//! Protocol detection: what a peer speaks, from its first bytes.
//!
//! A client on the wrong port gets no response that it understands, and the broker sees garbage. One log line that
//! names the protocol of the client saves its operator the search.
//!
//! # What this crate must never know
//! Connections, and what is done with the result. Nothing but log lines may depend on it, since it guesses.
//!
//! # Entry points
//! [`detect`].

use std::fmt;

/// Bytes that are enough to detect every protocol.
pub const ENOUGH_BYTES: usize = 16;

/// Protocol of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerProtocol {
    /// A CONNECT of MQTT 3.1, 3.1.1 or 5.
    Mqtt,
    /// A request of the Kafka protocol.
    Kafka,
    /// A request of HTTP/1.x, possibly one that asks for a WebSocket.
    Http,
    /// The preface of HTTP/2.
    Http2,
    /// A TLS handshake.
    Tls,
    /// A header of the PROXY protocol, version 1 or 2.
    Proxy,
    /// The header of AMQP.
    Amqp,
    /// The identification of SSH.
    Ssh,
}

impl fmt::Display for PeerProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mqtt => "MQTT",
            Self::Kafka => "the Kafka protocol",
            Self::Http => "HTTP",
            Self::Http2 => "HTTP/2",
            Self::Tls => "TLS",
            Self::Proxy => "the PROXY protocol",
            Self::Amqp => "AMQP",
            Self::Ssh => "SSH",
        })
    }
}

/// Detects the protocol of a peer from its first bytes. `None` if they are too few or belong to none that is known.
pub fn detect(first: &[u8]) -> Option<PeerProtocol> {
    const PROXY_2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
    const HTTP_METHODS: [&[u8]; 9] =
        [b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"CONNECT ", b"TRACE "];
    if first.starts_with(b"PRI * HTTP/2") {
        return Some(PeerProtocol::Http2);
    }
    if HTTP_METHODS.iter().any(|method| first.starts_with(method)) {
        return Some(PeerProtocol::Http);
    }
    if first.starts_with(b"PROXY ") || first.starts_with(PROXY_2) {
        return Some(PeerProtocol::Proxy);
    }
    if first.starts_with(b"AMQP") {
        return Some(PeerProtocol::Amqp);
    }
    if first.starts_with(b"SSH-") {
        return Some(PeerProtocol::Ssh);
    }
    // A record of type handshake, of version 3.x, that contains a ClientHello.
    if let [0x16, 3, 0..=4, _, _, 1, ..] = first {
        return Some(PeerProtocol::Tls);
    }
    if is_mqtt(first) {
        return Some(PeerProtocol::Mqtt);
    }
    is_kafka(first).then_some(PeerProtocol::Kafka)
}

/// Whether it is a CONNECT: type 1, Remaining Length, protocol name.
fn is_mqtt(first: &[u8]) -> bool {
    let Some((0x10, rest)) = first.split_first() else { return false };
    let length_bytes = 1 + rest.iter().take(3).take_while(|byte| **byte & 0x80 != 0).count();
    let name = rest.get(length_bytes..).unwrap_or_default();
    name.starts_with(b"\0\x04MQTT") || name.starts_with(b"\0\x06MQIs")
}

/// Whether it is a request: size, API key, API version, correlation id, length of the client id.
fn is_kafka(first: &[u8]) -> bool {
    const SIZE_MAX: i32 = 1 << 30;
    const API_KEY_MAX: i16 = 120;
    const API_VERSION_MAX: i16 = 40;
    let Some(header) = first.first_chunk::<14>() else { return false };
    let size = i32::from_be_bytes([header[0], header[1], header[2], header[3]]);
    let short = |at: usize| i16::from_be_bytes([header[at], header[at + 1]]);
    (10..SIZE_MAX).contains(&size)
        && (0..=API_KEY_MAX).contains(&short(4))
        && (0..=API_VERSION_MAX).contains(&short(6))
        && (-1..1024).contains(&short(12))
        && i32::from(short(12)) <= size - 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_protocol_is_detected_and_enough_bytes_are_enough() {
        let cases: [(&[u8], PeerProtocol); 12] = [
            (b"\x10\x10\0\x04MQTT\x05\x02\0\x3c\0\0\x03abc", PeerProtocol::Mqtt),
            (b"\x10\xff\xff\x7f\0\x06MQIsdp\x03\x02", PeerProtocol::Mqtt),
            (b"\0\0\0\x20\0\x12\0\x04\0\0\0\x01\0\x07rdkafka", PeerProtocol::Kafka),
            (b"\0\0\0\x20\0\x03\0\x0c\0\0\0\x01\xff\xff\0\0", PeerProtocol::Kafka),
            (b"GET /metrics HTTP/1.1\r\n", PeerProtocol::Http),
            (b"OPTIONS * HTTP/1.1\r\n", PeerProtocol::Http),
            (b"PRI * HTTP/2.0\r\n\r\n", PeerProtocol::Http2),
            (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", PeerProtocol::Tls),
            (b"PROXY TCP4 10.0.0.1", PeerProtocol::Proxy),
            (b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c", PeerProtocol::Proxy),
            (b"AMQP\0\0\x09\x01", PeerProtocol::Amqp),
            (b"SSH-2.0-OpenSSH_9.6\r\n", PeerProtocol::Ssh),
        ];
        for (bytes, protocol) in cases {
            assert_eq!(detect(bytes), Some(protocol));
            assert_eq!(detect(&bytes[..bytes.len().min(ENOUGH_BYTES)]), Some(protocol), "{protocol}");
        }
    }

    #[test]
    fn anything_else_is_not_detected() {
        let others: [&[u8]; 6] = [
            b"",
            b"\x10",
            b"\x30\x05\0\x01a",
            b"GETAWAY",
            &[0; 16],
            b"\xff\xff\xff\xff\0\x12\0\x04\0\0\0\x01\0\0",
        ];
        for bytes in others {
            assert_eq!(detect(bytes), None, "{bytes:?}");
        }
    }
}
