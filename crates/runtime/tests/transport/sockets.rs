//! The seam with real sockets and threads.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use mainstem_runtime::{
    Admission, AdmissionLimits, Handle, ListenerAddress, ListenerConfig, ListenerQuota, ListenerTransport,
    MemoryBudget, Options, ProtocolTag, start,
};

use crate::masked::{HELLO, Kind, Masked, WELCOME, record, take_record};
use crate::service::{Commands, Event, Events, GREET, MOVE_EARLY, pattern};

pub(crate) const PROTOCOL: ProtocolTag = ProtocolTag(3);
/// Connections of one listener, and of all.
pub(crate) const LISTENER_MAX: usize = 3;
const PROCESS_MAX: usize = 5;
/// Handshakes of a shard.
const HANDSHAKES_MAX: usize = 2;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) fn listener(name: &str, protocol: ProtocolTag, transport: ListenerTransport) -> ListenerConfig {
    let address = ListenerAddress::Tcp("127.0.0.1:0".parse().unwrap());
    let quota = ListenerQuota::new(name, LISTENER_MAX, "max");
    // Small, so that output blocks in the middle.
    let send_buffer_bytes = 16 * 1024;
    ListenerConfig {
        name: name.into(),
        address,
        protocol,
        transport,
        send_buffer_bytes,
        quota,
        proxies: None,
    }
}

pub(crate) fn masked() -> ListenerTransport {
    ListenerTransport::Layered(Arc::new(|| Box::new(Masked::default())))
}

fn options(listeners: Vec<ListenerConfig>) -> Options {
    Options {
        shards: 2,
        pin: mainstem_runtime::Pinning::Never,
        listeners,
        coalesce_us: 0,
        flush_delay_us: 0,
        // Every connection begins on the first shard.
        first_shard_connections: 1000,
        admission: Admission::new(AdmissionLimits {
            connections_max: PROCESS_MAX,
            ..AdmissionLimits::default()
        }),
        handshakes_max: 2 * HANDSHAKES_MAX,
        handshake_timeout: HANDSHAKE_TIMEOUT,
        seed: 1,
        memory: MemoryBudget::unlimited(2),
    }
}

pub(crate) struct Server {
    handle: Handle,
    events: Arc<Events>,
}

impl Server {
    pub(crate) fn start(listeners: Vec<ListenerConfig>) -> Self {
        let events = Arc::new(Events::default());
        let handle = start(&options(listeners), |_, _| Commands::new(&events)).unwrap();
        Self { handle, events }
    }

    fn masked(protocol: ProtocolTag) -> Self {
        Self::start(vec![listener("masked", protocol, masked())])
    }

    pub(crate) fn address(&self, name: &str) -> SocketAddr {
        match self.handle.listeners().iter().find(|listener| listener.name == name).unwrap().address {
            ListenerAddress::Tcp(address) => address,
            ListenerAddress::Unix(_) => panic!("{name} listens on a Unix socket"),
        }
    }

    pub(crate) fn drain(&self) {
        (self.handle.drainer())();
    }

    pub(crate) fn end(self) {
        self.drain();
        self.handle.join().unwrap();
    }
}

/// A client, and what it has received and not looked at.
pub(crate) struct Client {
    pub(crate) socket: TcpStream,
    unread: Vec<u8>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Self { socket, unread: Vec::new() }
    }

    /// A connection to a masked listener that has completed its handshake.
    fn open(server: &Server) -> Self {
        let mut client = Self::connect(server.address("masked"));
        client.send(HELLO);
        assert_eq!(client.take(WELCOME.len()), WELCOME);
        client
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    fn command(&mut self, text: &str) {
        self.send(&record(Kind::Data, text.as_bytes()));
    }

    pub(crate) fn receive(&mut self) -> usize {
        let mut bytes = [0; 5000];
        let count = self.socket.read(&mut bytes).unwrap();
        self.unread.extend_from_slice(&bytes[..count]);
        count
    }

    pub(crate) fn take(&mut self, len: usize) -> Vec<u8> {
        while self.unread.len() < len {
            assert_ne!(self.receive(), 0, "the server has closed");
        }
        self.unread.drain(..len).collect()
    }

    pub(crate) fn record(&mut self) -> (u8, Vec<u8>) {
        loop {
            if let Some(record) = take_record(&mut self.unread) {
                return record;
            }
            assert_ne!(self.receive(), 0, "the server has closed");
        }
    }

    /// The payloads of data records, up to `len` bytes.
    #[track_caller]
    pub(crate) fn expect(&mut self, expected: &[u8]) {
        let mut bytes = Vec::new();
        while bytes.len() < expected.len() {
            let (kind, payload) = self.record();
            assert_eq!(kind, Kind::Data as u8, "after {} bytes", bytes.len());
            bytes.extend(payload);
        }
        assert!(bytes == expected, "{} bytes, which differ", bytes.len());
    }

    #[track_caller]
    fn expect_end(mut self) {
        assert_eq!(self.record(), (Kind::End as u8, Vec::new()));
        self.expect_eof();
    }

    #[track_caller]
    pub(crate) fn expect_eof(mut self) {
        assert_eq!(self.receive(), 0);
        assert_eq!(self.unread, []);
    }
}

#[test]
fn input_may_come_in_pieces() {
    let server = Server::masked(GREET);
    let mut client = Client::connect(server.address("masked"));
    for byte in [HELLO, &record(Kind::Data, b"echo one\n")].concat() {
        client.send(&[byte]);
    }
    assert_eq!(client.take(WELCOME.len()), WELCOME);
    client.expect(b"greetings\none\n");
    client.send(&record(Kind::Ping, b"x"));
    assert_eq!(client.record(), (Kind::Pong as u8, b"x".to_vec()));
    server.drain();
    client.expect_end();
    server.end();
}

#[test]
fn output_goes_on_after_the_socket_has_blocked() {
    const LEN: usize = 1_500_000;
    let server = Server::masked(PROTOCOL);
    let mut client = Client::open(&server);
    client.command(&format!("echo a\nshared {LEN}\necho b\nfile {LEN}\necho c\n"));
    let bytes: Vec<u8> = (0..LEN).map(pattern).collect();
    client.expect(b"a\n");
    // The server is stuck in the first payload by now, or soon; what comes next is answered below it, in order.
    client.send(&record(Kind::Ping, b"y"));
    let mut got = Vec::new();
    let mut pongs = 0;
    while got.len() < 2 * LEN + 4 {
        match client.record() {
            (kind, payload) if kind == Kind::Data as u8 => got.extend(payload),
            (kind, payload) => {
                assert_eq!((kind, payload), (Kind::Pong as u8, b"y".to_vec()));
                pongs += 1;
            }
        }
    }
    assert!(got == [&bytes[..], b"b\n", &bytes, b"c\n"].concat());
    assert_eq!(pongs, 1);
    drop(client);
    server.end();
}

#[test]
fn a_close_by_the_service_sends_all_output_and_the_end_of_the_stream() {
    const LEN: usize = 1_000_000;
    let server = Server::masked(PROTOCOL);
    let mut client = Client::open(&server);
    client.command(&format!("shared {LEN}\nquit\n"));
    client.expect(&(0..LEN).map(pattern).collect::<Vec<u8>>());
    client.expect(b"bye\n");
    client.expect_end();
    server.end();
}

#[test]
fn a_stream_that_the_peer_ends_is_answered_before_it_closes() {
    let server = Server::masked(PROTOCOL);
    let mut client = Client::open(&server);
    client.send(&[record(Kind::Data, b"echo last\n"), record(Kind::End, b"")].concat());
    client.expect(b"last\n");
    client.expect_end();
    server.events.wait_for(Event::Closed { shard: 0 });
    server.end();
}

#[test]
fn a_socket_that_closes_in_the_handshake_ends_the_connection() {
    let server = Server::masked(PROTOCOL);
    let mut client = Client::connect(server.address("masked"));
    client.send(&HELLO[..2]);
    drop(client);
    server.events.wait_for(Event::Closed { shard: 0 });
    server.end();
}

#[test]
fn a_broken_handshake_gets_an_alert() {
    let server = Server::masked(PROTOCOL);
    let mut client = Client::connect(server.address("masked"));
    client.send(b"GET / HTTP/1.1");
    assert_eq!(client.record().0, Kind::Alert as u8);
    client.expect_eof();
    server.events.wait_for(Event::Closed { shard: 0 });
    server.end();
}

#[test]
fn a_connection_moves_in_the_middle_of_its_handshake() {
    let server = Server::masked(MOVE_EARLY);
    let mut client = Client::connect(server.address("masked"));
    client.send(&HELLO[..3]);
    server.events.wait_for(Event::Accepted { shard: 1, protocol: MOVE_EARLY });
    client.send(&HELLO[3..]);
    assert_eq!(client.take(WELCOME.len()), WELCOME);
    client.command("move 1\n");
    client.expect(b"at 1\n");
    server.drain();
    client.expect_end();
    server.end();
}

#[test]
fn a_connection_moves_with_unread_input_and_half_a_record() {
    let server = Server::masked(PROTOCOL);
    let mut client = Client::open(&server);
    let rest = record(Kind::Data, b"wait\necho three\nquit\n");
    let first = record(Kind::Data, b"echo one\n");
    let moves = record(Kind::Data, b"move 1\necho two\n");
    client.send(&first);
    client.expect(b"one\n");
    client.send(&[&moves, &rest[..6]].concat());
    server.events.wait_for(Event::Accepted { shard: 1, protocol: PROTOCOL });
    client.send(&rest[6..]);
    client.expect(b"at 1\ntwo\n");
    client.expect(b"three\nbye\n");
    client.expect_end();
    server.end();
}

#[test]
fn listeners_are_found_by_name_and_may_share_a_protocol() {
    let server = Server::start(vec![
        listener("masked", PROTOCOL, masked()),
        listener("plain", PROTOCOL, ListenerTransport::Plain),
        listener("greeting", GREET, ListenerTransport::Plain),
    ]);
    let mut masked = Client::open(&server);
    masked.command("echo masked\n");
    masked.expect(b"masked\n");
    let mut plain = Client::connect(server.address("plain"));
    plain.send(b"move 1\necho plain\nquit\n");
    assert_eq!(plain.take(15), b"at 1\nplain\nbye\n");
    plain.expect_eof();
    let mut greeting = Client::connect(server.address("greeting"));
    assert_eq!(greeting.take(10), b"greetings\n");
    drop(masked);
    server.drain();
    greeting.expect_eof();
    server.end();
}

#[test]
fn two_listeners_of_one_name_are_refused() {
    let plain = || listener("plain", PROTOCOL, ListenerTransport::Plain);
    let events = Arc::new(Events::default());
    let outcome: io::Result<Handle> = start(&options(vec![plain(), plain()]), |_, _| Commands::new(&events));
    let Err(error) = outcome else { panic!("they were accepted") };
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

/// Whether the server serves a connection; otherwise it has closed it, possibly with a reset.
pub(crate) fn is_served(client: &mut Client) -> bool {
    let sent = client.socket.write_all(b"echo hi\n");
    let mut bytes = [0; 3];
    sent.is_ok() && client.socket.read_exact(&mut bytes).is_ok() && bytes == *b"hi\n"
}

#[test]
fn connections_beyond_a_limit_are_closed_and_make_room_when_they_end() {
    let server = Server::start(vec![
        listener("one", PROTOCOL, ListenerTransport::Plain),
        listener("two", PROTOCOL, ListenerTransport::Plain),
    ]);
    let connect = |name: &str| Client::connect(server.address(name));
    let mut one: Vec<Client> = (0..LISTENER_MAX).map(|_| connect("one")).collect();
    assert!(one.iter_mut().all(is_served));
    assert!(!is_served(&mut connect("one")), "the listener is full");
    // One that has moved to another shard still counts.
    one[0].send(b"move 1\n");
    assert_eq!(one[0].take(5), b"at 1\n");
    assert!(!is_served(&mut connect("one")), "the listener is full");
    let mut two: Vec<Client> = (LISTENER_MAX..PROCESS_MAX).map(|_| connect("two")).collect();
    assert!(two.iter_mut().all(is_served));
    assert!(!is_served(&mut connect("two")), "the process is full");
    drop(one);
    while !is_served(&mut connect("one")) {}
    drop(two);
    server.end();
}

#[test]
fn a_closed_connection_is_read_up_to_its_share_and_no_further() {
    let server = Server::start(vec![listener("plain", PROTOCOL, ListenerTransport::Plain)]);
    let mut flood = Client::connect(server.address("plain"));
    flood.send(b"quit\n");
    assert_eq!(flood.take(4), b"bye\n");
    // Fills what the share of a lingering connection and the kernel's buffers take.
    flood.socket.set_nonblocking(true).unwrap();
    let chunk = vec![7; 64 * 1024];
    let mut sent = 0;
    let mut blocked = 0;
    while blocked < 10 {
        match flood.socket.write(&chunk) {
            Ok(count) => {
                sent += count;
                blocked = 0;
            }
            // The rest of the buffers fills while the other connection is served.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let mut other = Client::connect(server.address("plain"));
                assert!(is_served(&mut other));
                blocked += 1;
            }
            // The deadline has passed.
            Err(_) => break,
        }
        assert!(sent < 64 << 20, "the server still reads");
    }
    drop(flood);
    server.end();
}

#[test]
fn handshakes_end_when_they_take_too_long() {
    let server = Server::masked(PROTOCOL);
    let mut other = Client::open(&server);
    let mut slow = Client::connect(server.address("masked"));
    slow.send(&HELLO[..2]);
    slow.expect_eof();
    server.events.wait_for(Event::Closed { shard: 0 });
    other.command("echo on\n");
    other.expect(b"on\n");
    drop(other);
    server.end();
}

#[test]
fn beyond_the_maximum_the_oldest_handshake_ends() {
    let server = Server::start(vec![ListenerConfig {
        quota: ListenerQuota::new("masked", 100, "max"),
        ..listener("masked", PROTOCOL, masked())
    }]);
    let connect = || Client::connect(server.address("masked"));
    let mut clients: Vec<Client> = (0..=HANDSHAKES_MAX).map(|_| connect()).collect();
    let oldest = clients.remove(0);
    oldest.expect_eof();
    // The others complete theirs, and do not count any more.
    for client in &mut clients {
        client.send(HELLO);
        assert_eq!(client.take(WELCOME.len()), WELCOME);
    }
    let mut next = connect();
    next.send(HELLO);
    assert_eq!(next.take(WELCOME.len()), WELCOME);
    for client in &mut clients {
        client.command("echo on\n");
        client.expect(b"on\n");
    }
    drop((clients, next));
    server.end();
}
