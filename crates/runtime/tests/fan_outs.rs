//! Fan-outs to many connections with real sockets: their output is delayed and flushed in slices, and must arrive whole
//! and in order, beside responses and up to the end of the shard.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use mainstem_runtime::{
    Admission, AdmissionLimits, ConnId, Io, ListenerAddress, ListenerConfig, ListenerQuota,
    ListenerTransport, MemoryBudget, Options, Pinning, ProtocolTag, Received, Service, start,
};

const SUBSCRIBERS: usize = 100;
const MESSAGES: usize = 5_000;
/// Messages that the publisher sends at once.
const BURST: usize = 7;
const SUBSCRIBE: u8 = b'+';
const PING: u8 = b'?';
const PONG: u8 = b'!';
const LETTERS: usize = 26;

/// Sends each letter that it gets to all subscribers, and answers pings.
#[derive(Default)]
struct Letters {
    subscribers: Vec<ConnId>,
    all: Vec<ConnId>,
}

impl Service for Letters {
    type Mail = ();

    fn accepted(&mut self, _io: &mut Io<'_, ()>, conn: ConnId, _protocol: ProtocolTag) {
        self.all.push(conn);
    }

    fn received(&mut self, io: &mut Io<'_, ()>, conn: ConnId, bytes: &[u8]) -> Received {
        for byte in bytes {
            match *byte {
                SUBSCRIBE => self.subscribers.push(conn),
                PING => io.output(conn).expect("an open connection").buffer().push(PONG),
                letter => {
                    for subscriber in &self.subscribers {
                        let output = io.fan_out_output_if_room(*subscriber).expect("room for a letter");
                        output.buffer().push(letter);
                    }
                    io.note_fan_out(1, 1);
                }
            }
        }
        Received { consumed: bytes.len(), ..Received::default() }
    }

    fn closed(&mut self, _io: &mut Io<'_, ()>, conn: ConnId) {
        self.all.retain(|known| *known != conn);
        self.subscribers.retain(|known| *known != conn);
    }

    fn mail(&mut self, _io: &mut Io<'_, ()>, _from: usize, (): ()) {}

    fn drain(&mut self, io: &mut Io<'_, ()>) {
        for conn in self.all.drain(..) {
            io.close(conn);
        }
    }
}

fn options(flush_delay_us: u32) -> Options {
    let listener = ListenerConfig {
        name: "plain".into(),
        address: ListenerAddress::Tcp("127.0.0.1:0".parse().unwrap()),
        protocol: ProtocolTag(0),
        transport: ListenerTransport::Plain,
        send_buffer_bytes: 0,
        quota: ListenerQuota::new("plain", 1_000, "max"),
        proxies: None,
    };
    Options {
        shards: 1,
        pin: Pinning::Never,
        listeners: vec![listener],
        coalesce_us: 0,
        flush_delay_us,
        first_shard_connections: 1_000,
        admission: Admission::new(AdmissionLimits { connections_max: 1_000, ..AdmissionLimits::default() }),
        handshakes_max: 100,
        handshake_timeout: Duration::from_secs(10),
        seed: 1,
        memory: MemoryBudget::unlimited(1),
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_nodelay(true).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket
}

/// Sends a ping and reads up to its answer. Returns the letters before it.
fn ping(socket: &mut TcpStream) -> Vec<u8> {
    socket.write_all(&[PING]).unwrap();
    let mut letters = Vec::new();
    let mut byte = [0];
    loop {
        socket.read_exact(&mut byte).unwrap();
        match byte[0] {
            PONG => return letters,
            letter => letters.push(letter),
        }
    }
}

fn letter(number: usize) -> u8 {
    b'a' + (number % LETTERS) as u8
}

/// Publishes to many subscribers, one of which pings all the time, and drains the shard while output waits.
fn run(flush_delay_us: u32) {
    let handle = start(&options(flush_delay_us), |_, _| Letters::default()).unwrap();
    let ListenerAddress::Tcp(address) = handle.listeners()[0].address.clone() else { panic!("TCP") };
    let mut subscribers: Vec<TcpStream> = (0..SUBSCRIBERS).map(|_| connect(address)).collect();
    for subscriber in &mut subscribers {
        subscriber.write_all(&[SUBSCRIBE]).unwrap();
        assert!(ping(subscriber).is_empty());
    }
    let mut publisher = connect(address);
    let mut busy = subscribers.pop().unwrap();
    let mut received = Vec::new();
    for burst in 0..MESSAGES / BURST {
        let letters: Vec<u8> = (0..BURST).map(|index| letter(burst * BURST + index)).collect();
        publisher.write_all(&letters).unwrap();
        received.extend(ping(&mut busy));
    }
    // All messages are in the outputs then, and some wait there.
    assert!(ping(&mut publisher).is_empty());
    (handle.drainer())();
    let expected: Vec<u8> = (0..MESSAGES / BURST * BURST).map(letter).collect();
    busy.read_to_end(&mut received).unwrap();
    assert!(received == expected, "a connection with responses between loses or reorders messages");
    for mut subscriber in subscribers {
        let mut received = Vec::new();
        subscriber.read_to_end(&mut received).unwrap();
        assert!(
            received == expected,
            "{} of {} messages, or in another order",
            received.len(),
            expected.len()
        );
    }
    drop(publisher);
    handle.join().unwrap();
}

#[test]
fn output_that_waits_arrives_whole_and_in_order() {
    run(20_000);
}

/// Longer than the test: output leaves because it is enough, because no more comes, or because the shard ends.
#[test]
fn output_that_may_wait_for_long_arrives_whole_and_in_order() {
    run(1_000_000);
}

#[test]
fn output_that_does_not_wait_arrives_whole_and_in_order() {
    run(0);
}
