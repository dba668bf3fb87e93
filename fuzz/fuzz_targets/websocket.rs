//! Bytes of a WebSocket client, in an upgraded connection or before: the layer never panics, and what the service
//! receives does not depend on how the bytes are cut.
//!
//! Input: a byte, even for an upgraded connection; a byte with the size of the pieces; then the bytes.

#![no_main]

use std::sync::{Arc, OnceLock};

use libfuzzer_sys::fuzz_target;
use mainstem_runtime::StreamState;
use mainstem_websocket::{Acceptor, Settings};

const REQUEST: &[u8] = b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n";

fuzz_target!(|input: &[u8]| {
    let [mode, size, bytes @ ..] = input else { return };
    let is_upgraded = mode % 2 == 0;
    let whole = run(is_upgraded, bytes, bytes.len().max(1));
    assert_eq!(whole, run(is_upgraded, bytes, usize::from(*size).max(1)));
});

/// What has passed a layer.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    input: Vec<u8>,
    has_ended: bool,
    /// What it sends last: a close frame or an HTTP response. Pongs depend on how the bytes are cut.
    last: Vec<u8>,
}

fn run(is_upgraded: bool, bytes: &[u8], size: usize) -> Outcome {
    let mut layer = acceptor().layer();
    let (mut input, mut sent) = (Vec::new(), Vec::new());
    let mut has_ended = false;
    if is_upgraded {
        layer.receive(REQUEST, &mut input, &mut sent).expect("a valid request");
        sent.clear();
    }
    for piece in bytes.chunks(size) {
        let before = sent.len();
        let state = layer.receive(piece, &mut input, &mut sent);
        layer.take_charge();
        has_ended = !matches!(state, Ok(StreamState::Open));
        if has_ended {
            // A response before the upgrade is followed by nothing; pongs are followed by a close frame.
            if is_upgraded || sent.starts_with(b"HTTP/1.1 101 ") {
                sent.clear();
            } else {
                assert!(before == 0 && sent.starts_with(b"HTTP/1.1 "));
            }
            layer.close(&mut sent);
            assert!(!sent.is_empty(), "nothing says why");
            break;
        }
    }
    if !has_ended {
        sent.clear();
        layer.close(&mut sent);
    }
    assert!(input.len() <= bytes.len());
    assert_eq!(layer.send(b"late", &mut Vec::new()), 0);
    Outcome { input, has_ended, last: sent }
}

fn acceptor() -> Arc<Acceptor> {
    static ACCEPTOR: OnceLock<Arc<Acceptor>> = OnceLock::new();
    let make = || {
        let subprotocols = vec!["mqtt".into(), "mqttv3.1".into()];
        Acceptor::new("fuzz", Settings { path: "/mqtt".into(), subprotocols, allowed_origins: Vec::new() })
    };
    Arc::clone(ACCEPTOR.get_or_init(make))
}
