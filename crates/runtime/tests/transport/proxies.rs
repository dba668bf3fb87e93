//! Connections of proxies: the header names the client, and only proxies may send one.

use mainstem_runtime::{ListenerConfig, ListenerTransport, TrustedProxies};

use crate::masked::{HELLO, Kind, Masked, WELCOME, record};
use crate::sockets::{Client, PROTOCOL, Server, is_served, listener, masked};

/// A server behind proxies of 127.0.0.1, or of no address.
fn server(is_trusted: bool, transport: ListenerTransport) -> Server {
    let proxies = Some(TrustedProxies::new(move |peer| is_trusted && peer.is_loopback()));
    Server::start(vec![ListenerConfig { proxies, ..listener("proxied", PROTOCOL, transport) }])
}

const HEADER: &[u8] = b"PROXY TCP4 192.0.2.1 192.0.2.9 4000 1883\r\n";

/// A header of version 2, with a verified certificate of `press-7`.
fn binary_header() -> Vec<u8> {
    let ssl = b"\x20\0\x0F\x03\0\0\0\0\x22\0\x07press-7";
    let addresses = [192, 0, 2, 1, 192, 0, 2, 9, 0, 1, 0, 2];
    let len = (addresses.len() + ssl.len()) as u16;
    [b"\r\n\r\n\0\r\nQUIT\n\x21\x11".as_slice(), &len.to_be_bytes(), &addresses, ssl].concat()
}

#[test]
fn the_client_is_who_the_header_says_wherever_it_is_cut() {
    let server = server(true, ListenerTransport::Plain);
    for (header, expected) in [
        (HEADER.to_vec(), "192.0.2.1 \n"),
        (b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1 \n"),
        (binary_header(), "192.0.2.1 press-7\n"),
    ] {
        let mut whole = Client::connect(server.address("proxied"));
        whole.send(&[&header, b"move 1\npeer\n".as_slice()].concat());
        let told = format!("at 1\n{expected}").into_bytes();
        assert_eq!(whole.take(told.len()), told);
        let mut cut = Client::connect(server.address("proxied"));
        for byte in header {
            cut.send(&[byte]);
        }
        cut.send(b"peer\n");
        assert_eq!(cut.take(expected.len()), expected.as_bytes());
    }
    server.end();
}

#[test]
fn the_header_precedes_the_handshake_of_a_layer() {
    let server = server(true, masked());
    let mut client = Client::connect(server.address("proxied"));
    client.send(&[HEADER, HELLO, &record(Kind::Data, b"peer\n")].concat());
    assert_eq!(client.take(WELCOME.len()), WELCOME);
    client.expect(b"192.0.2.1 \n");
    drop(client);
    server.end();
}

#[test]
fn a_peer_that_is_no_proxy_is_refused_with_and_without_a_header() {
    let server = server(false, ListenerTransport::Plain);
    for sent in [HEADER, b"peer\n"] {
        let mut client = Client::connect(server.address("proxied"));
        // It may be closed already.
        std::io::Write::write_all(&mut client.socket, sent).ok();
        assert!(!is_served(&mut client));
    }
    server.end();
}

#[test]
fn without_a_valid_header_in_time_a_proxy_is_refused() {
    let server = server(true, ListenerTransport::Plain);
    for sent in [b"peer\n".as_slice(), b"PROXY TCP4 nobody\r\n", b"PROXY TCP4 192.0.2.1 ", b""] {
        let mut client = Client::connect(server.address("proxied"));
        client.send(sent);
        let mut rest = Vec::new();
        // Unread input makes it a reset.
        std::io::Read::read_to_end(&mut client.socket, &mut rest).ok();
        assert_eq!(rest, b"");
    }
    server.end();
}

#[test]
fn a_second_header_is_input() {
    let layer = || ListenerTransport::Layered(std::sync::Arc::new(|| Box::new(Masked::default())));
    let server = server(true, layer());
    let mut client = Client::connect(server.address("proxied"));
    client.send(&[HEADER, HEADER].concat());
    assert_eq!(client.record().0, Kind::Alert as u8);
    server.end();
}
