//! The layer against clients of rustls: handshakes, data in both directions, ends, and violations.

use crate::kit::{Authority, Folder, Pair, client, client_config, settings};
use mainstem_runtime::StreamState;
use mainstem_tls::{Acceptor, MinVersion, Settings};
use rustls::SupportedProtocolVersion;
use rustls::version::{TLS12, TLS13};

const BOTH: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];

fn pair(
    versions: &[&'static SupportedProtocolVersion],
    adapt: impl FnOnce(&mut Settings),
    alpn: &[&str],
) -> Pair {
    let (folder, authority) = (Folder::new(), Authority::new("authority"));
    let mut settings = settings(&folder, &authority);
    adapt(&mut settings);
    let acceptor = Acceptor::load(settings).unwrap();
    let config = client_config(&authority, versions, None, alpn);
    Pair::new(client(&config, "localhost"), acceptor.layer())
}

#[test]
fn carries_data_in_both_directions_for_any_split() {
    let data: Vec<u8> = (0..100_000_u32).map(|at| (at % 251) as u8).collect();
    for version in [&TLS12, &TLS13] {
        for step in [1, 7, 1000, usize::MAX] {
            let mut pair = pair(&[version], |_| {}, &[]);
            pair.step = step;
            pair.exchange().unwrap();
            assert_eq!(pair.client.protocol_version(), Some(version.version));
            pair.client_writes(&data).unwrap();
            assert_eq!(pair.input, data);
            assert_eq!(pair.service_writes(&data), data);
        }
    }
}

#[test]
fn output_waits_for_the_handshake() {
    let mut pair = pair(BOTH, |_| {}, &[]);
    assert_eq!(pair.layer.send(b"too early", &mut pair.to_client), 0);
    assert!(pair.to_client.is_empty());
    pair.exchange().unwrap();
    assert_eq!(pair.service_writes(b"in time"), b"in time");
}

#[test]
fn both_sides_end_their_streams() {
    for version in [&TLS12, &TLS13] {
        let mut pair = pair(&[version], |_| {}, &[]);
        pair.exchange().unwrap();
        pair.client_writes(b"last words").unwrap();
        pair.client.send_close_notify();
        pair.exchange().unwrap();
        assert_eq!(pair.state, StreamState::Ended);
        assert_eq!(pair.input, b"last words");
        pair.layer.close(&mut pair.to_client);
        assert!(!pair.to_client.is_empty(), "close_notify");
        pair.exchange().unwrap();
        let end = std::io::Read::read(&mut pair.client.reader(), &mut [0; 1]);
        assert_eq!(end.unwrap(), 0, "a clean end, not a truncation");
    }
}

#[test]
fn violations_get_an_alert_and_end_the_connection() {
    // HTTP, MQTT, a record of a wrong version, and one that is too long.
    let garbage: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x10\x10\0\x04MQTT\x05\x02\0\0\0\0\x03abc",
        b"\x16\x09\x09\0\x01\0",
        b"\x16\x03\x01\xff\xff",
    ];
    for bytes in garbage {
        let mut pair = pair(BOTH, |_| {}, &[]);
        let received = pair.layer.receive(bytes, &mut pair.input, &mut pair.to_client);
        assert!(received.is_err(), "{bytes:?}");
        assert!(pair.input.is_empty());
        assert_eq!(pair.to_client.first(), Some(&0x15), "an alert for {bytes:?}");
        // Nothing more is accepted or sent.
        let alert = pair.to_client.clone();
        assert!(pair.layer.receive(b"more", &mut pair.input, &mut pair.to_client).is_err());
        assert_eq!(pair.layer.send(b"output", &mut pair.to_client), 0);
        pair.layer.close(&mut pair.to_client);
        assert_eq!(pair.to_client, alert);
    }
}

#[test]
fn corrupt_records_get_an_alert() {
    let mut pair = pair(BOTH, |_| {}, &[]);
    pair.exchange().unwrap();
    let record = b"\x17\x03\x03\0\x20aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    assert!(pair.layer.receive(record, &mut pair.input, &mut pair.to_client).is_err());
    assert!(pair.input.is_empty());
    assert!(!pair.to_client.is_empty());
}

#[test]
fn the_lowest_version_is_enforced() {
    let mut old = pair(&[&TLS12], |settings| settings.min_version = MinVersion::Tls13, &[]);
    let error = old.exchange().unwrap_err();
    assert!(error.contains("ProtocolVersion"), "{error}");
    pair(&[&TLS13], |settings| settings.min_version = MinVersion::Tls13, &[]).exchange().unwrap();
}

#[test]
fn alpn_is_optional_for_clients_but_must_match() {
    let mqtt = |settings: &mut Settings| settings.alpn = vec!["mqtt".into()];
    let mut named = pair(BOTH, mqtt, &["h2", "mqtt"]);
    named.exchange().unwrap();
    assert_eq!(named.client.alpn_protocol(), Some(&b"mqtt"[..]));
    pair(BOTH, mqtt, &[]).exchange().unwrap();
    let error = pair(BOTH, mqtt, &["h2"]).exchange().unwrap_err();
    assert!(error.contains("NoApplicationProtocol"), "{error}");
}

#[test]
fn sessions_resume_by_ticket() {
    let (folder, authority) = (Folder::new(), Authority::new("authority"));
    let acceptor = Acceptor::load(settings(&folder, &authority)).unwrap();
    for version in [&TLS12, &TLS13] {
        let config = client_config(&authority, &[version], None, &[]);
        let mut pair = Pair::new(client(&config, "localhost"), acceptor.layer());
        pair.exchange().unwrap();
        assert_eq!(pair.client.handshake_kind(), Some(rustls::HandshakeKind::Full));
        let mut again = Pair::new(client(&config, "localhost"), acceptor.layer());
        again.exchange().unwrap();
        assert_eq!(again.client.handshake_kind(), Some(rustls::HandshakeKind::Resumed));
        again.client_writes(b"resumed").unwrap();
        assert_eq!(again.input, b"resumed");
    }
}
