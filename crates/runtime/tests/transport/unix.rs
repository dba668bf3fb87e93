//! Listeners on Unix sockets serve connections as others do.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use mainstem_runtime::{ListenerAddress, ListenerConfig, ListenerTransport, UnixSocket};

use crate::masked::{HELLO, Kind, WELCOME, record, take_record};
use crate::service::pattern;
use crate::sockets::{PROTOCOL, Server, listener, masked};

fn on_unix(name: &str, transport: ListenerTransport) -> (ListenerConfig, PathBuf) {
    let path = std::env::temp_dir().join(format!("mainstem-{name}-{}", std::process::id()));
    let address = ListenerAddress::Unix(UnixSocket { path: path.clone(), mode: 0o600, group: None });
    (ListenerConfig { address, ..listener(name, PROTOCOL, transport) }, path)
}

#[test]
fn commands_move_send_files_and_close() {
    const LEN: usize = 1_000_000;
    let (config, path) = on_unix("plain", ListenerTransport::Plain);
    let server = Server::start(vec![config]);
    let mut client = UnixStream::connect(&path).unwrap();
    client.write_all(format!("move 1\npeer\nshared {LEN}\nfile {LEN}\nquit\n").as_bytes()).unwrap();
    let mut received = Vec::new();
    client.read_to_end(&mut received).unwrap();
    let bytes: Vec<u8> = (0..LEN).map(pattern).collect();
    assert!(received == [b"at 1\nnobody \n", &bytes[..], &bytes, b"bye\n"].concat());
    server.end();
    assert!(!path.exists());
}

#[test]
fn layers_work_on_them() {
    let (config, path) = on_unix("layered", masked());
    let server = Server::start(vec![config]);
    let mut client = UnixStream::connect(&path).unwrap();
    client.write_all(&[HELLO, &record(Kind::Data, b"echo on\nquit\n")].concat()).unwrap();
    let mut received = Vec::new();
    client.read_to_end(&mut received).unwrap();
    let mut records = received.strip_prefix(WELCOME).unwrap().to_vec();
    assert_eq!(take_record(&mut records), Some((Kind::Data as u8, b"on\nbye\n".to_vec())));
    server.end();
}
