//! Requests that open a connection, and requests that are refused.

use crate::kit::{BINARY, Connection, FIN, fields, frame, request};

const LINE: &str = "GET /mqtt HTTP/1.1";

/// The fields of an accepted request, with other values for some of them. `None` leaves a field out.
fn with(changes: &[(&'static str, Option<&'static str>)]) -> Vec<(&'static str, &'static str)> {
    let mut fields = fields();
    for (name, value) in changes {
        fields.retain(|(known, _)| known != name);
        fields.extend(value.map(|value| (*name, value)));
    }
    fields
}

/// The response to a request, and whether the connection is open behind it.
fn response(origins: &[&str], bytes: &[u8]) -> (String, bool) {
    let mut connection = Connection::new(origins);
    connection.receive(bytes);
    (String::from_utf8(connection.take_sent()).unwrap(), connection.is_open)
}

fn assert_refused(origins: &[&str], bytes: &[u8], status: &str) -> String {
    let (response, is_open) = response(origins, bytes);
    let request = String::from_utf8_lossy(bytes);
    assert!(!is_open && response.starts_with(&format!("HTTP/1.1 {status} ")), "{request}\n{response}");
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("\r\nConnection: close"), "{response}");
    assert!(head.contains(&format!("\r\nContent-Length: {}", body.len())), "{response}");
    response
}

#[test]
fn the_response_of_an_accepted_request() {
    let (response, is_open) = response(&[], &request(LINE, &fields()));
    assert!(is_open);
    assert_eq!(
        response,
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
    );
}

#[test]
fn a_request_may_be_cut_anywhere_and_frames_may_follow_it_at_once() {
    let bytes = [request(LINE, &fields()), frame(FIN | BINARY, b"packet")].concat();
    for cut in 0..bytes.len() {
        let mut connection = Connection::new(&[]);
        connection.receive(&bytes[..cut]);
        connection.receive(&bytes[cut..]);
        assert_eq!(connection.take_input(), b"packet", "cut at {cut}");
    }
}

/// [MQTT5-6.0.0-4], [MQTT3-6.0.0-4]
#[test]
fn a_subprotocol_is_selected() {
    for (offered, selected) in [
        ("mqtt", Some("mqtt")),
        ("mqttv3.1", Some("mqttv3.1")),
        ("mqttv3.1, mqtt", Some("mqtt")),
        ("chat,\tmqttv3.1", Some("mqttv3.1")),
        ("MQTT", None),
        ("mqttv5", None),
        ("", None),
    ] {
        let bytes = request(LINE, &with(&[("Sec-WebSocket-Protocol", Some(offered))]));
        match selected {
            Some(name) => {
                let (response, is_open) = response(&[], &bytes);
                assert!(is_open && response.contains(&format!("\r\nSec-WebSocket-Protocol: {name}\r\n")));
            }
            None => drop(assert_refused(&[], &bytes, "400")),
        }
    }
    let two = [fields(), vec![("sec-websocket-protocol", "mqttv3.1")]].concat();
    assert!(response(&[], &request(LINE, &two)).1, "the list may have several fields");
    let none = request(LINE, &with(&[("Sec-WebSocket-Protocol", None)]));
    assert!(assert_refused(&[], &none, "400").contains("must offer the subprotocol mqtt or mqttv3.1"));
}

#[test]
fn other_requests_are_refused_with_a_status() {
    for (line, status) in [
        ("GET / HTTP/1.1", "404"),
        ("GET /mqtt/ HTTP/1.1", "404"),
        ("GET /mqttx HTTP/1.1", "404"),
        ("GET http://localhost/mqtt HTTP/1.1", "404"),
        ("POST /mqtt HTTP/1.1", "405"),
        ("OPTIONS * HTTP/1.1", "405"),
        ("GET /mqtt HTTP/1.0", "505"),
        ("GET /mqtt", "400"),
        ("GET", "400"),
        ("PRI * HTTP/2.0", "400"),
    ] {
        assert_refused(&[], &request(line, &fields()), status);
    }
    assert!(response(&[], &request("GET /mqtt?token=a/b HTTP/1.1", &fields())).1, "a query is ignored");
}

#[test]
fn invalid_fields_are_refused_with_a_status() {
    for (name, value, status) in [
        ("Host", None, "400"),
        ("Upgrade", None, "426"),
        ("Upgrade", Some("h2c"), "426"),
        ("Connection", None, "426"),
        ("Connection", Some("keep-alive"), "426"),
        ("Sec-WebSocket-Version", None, "426"),
        ("Sec-WebSocket-Version", Some("8"), "426"),
        ("Sec-WebSocket-Version", Some("13, 8"), "426"),
        ("Sec-WebSocket-Key", None, "400"),
        ("Sec-WebSocket-Key", Some("dGhl"), "400"),
        ("Sec-WebSocket-Key", Some("not base64, but as long."), "400"),
        ("Content-Length", Some("5"), "400"),
        ("Transfer-Encoding", Some("chunked"), "400"),
        ("Bad Name", Some("x"), "400"),
    ] {
        assert_refused(&[], &request(LINE, &with(&[(name, value)])), status);
    }
    for name in ["Host", "Sec-WebSocket-Key", "Sec-WebSocket-Version", "Origin"] {
        let twice = [fields(), vec![(name, "http://localhost"), (name, "http://localhost")]].concat();
        assert_refused(&[], &request(LINE, &twice), "400");
    }
}

#[test]
fn versions_other_than_13_are_told_which_one_is_supported() {
    let bytes = request(LINE, &with(&[("Sec-WebSocket-Version", Some("7"))]));
    assert!(assert_refused(&[], &bytes, "426").contains("\r\nSec-WebSocket-Version: 13\r\n"));
}

#[test]
fn extensions_are_not_negotiated() {
    let bytes = request(
        LINE,
        &with(&[("Sec-WebSocket-Extensions", Some("permessage-deflate; client_max_window_bits"))]),
    );
    let (response, is_open) = response(&[], &bytes);
    assert!(is_open && !response.contains("Extensions"), "{response}");
}

#[test]
fn pages_of_other_origins_are_refused_unless_they_are_listed() {
    let with_origin = |origin| request(LINE, &with(&[("Origin", Some(origin))]));
    for origin in ["http://localhost", "https://localhost:9999"] {
        assert!(response(&[], &with_origin(origin)).1);
    }
    let listed = "https://plant.example.com";
    for origin in [listed, "http://evil.example", "null", "", "http://0.0.0.0"] {
        let refusal = assert_refused(&[], &with_origin(origin), "403");
        assert!(refusal.contains("websocket.allowed_origins"), "{refusal}");
    }
    assert!(response(&[listed], &with_origin(listed)).1);
    assert_refused(&[listed], &with_origin("http://plant.example.com"), "403");
    assert!(response(&["*"], &with_origin("null")).1);
}

#[test]
fn a_head_without_end_is_refused_when_it_is_too_large() {
    let mut connection = Connection::new(&[]);
    connection.receive(b"GET /mqtt HTTP/1.1\r\nX: ");
    let mut received = 0;
    while connection.is_open {
        connection.receive(&[b'a'; 100]);
        received += 100;
    }
    assert!((8000..8400).contains(&received), "{received}");
    assert!(connection.take_sent().starts_with(b"HTTP/1.1 431 "));
    let many: Vec<_> = fields().into_iter().chain((0..60).map(|_| ("X", "y"))).collect();
    assert_refused(&[], &request(LINE, &many), "431");
}

#[test]
fn other_protocols_are_refused_at_their_first_bytes() {
    let connect = b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00".as_slice();
    for bytes in [connect, b"\x16\x03\x01", b"\0\0\0\x10", b"get / http/1.1", b"\r\n"] {
        assert_refused(&[], bytes, "400");
    }
}
