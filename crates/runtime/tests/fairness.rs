//! Connections with real sockets that always have input, beside one that rarely has.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mainstem_runtime::{
    Admission, AdmissionLimits, ConnId, Io, ListenerAddress, ListenerConfig, ListenerQuota,
    ListenerTransport, MemoryBudget, Options, Pinning, ProtocolTag, Received, Service, TURN_UNITS, start,
};

const FLOODS: usize = 3;
const PING: u8 = b'p';
const PINGS: usize = 20;

/// Answers pings. Anything else costs what a turn may cost.
struct Pings;

impl Service for Pings {
    type Mail = ();

    fn accepted(&mut self, _io: &mut Io<'_, ()>, _conn: ConnId, _protocol: ProtocolTag) {}

    fn received(&mut self, io: &mut Io<'_, ()>, conn: ConnId, bytes: &[u8]) -> Received {
        if bytes[0] == PING {
            io.output(conn).expect("an open connection").buffer().extend_from_slice(bytes);
        } else {
            // As long as the charge says, so that the senders fill the sockets again.
            let until = Instant::now() + Duration::from_millis(1);
            while Instant::now() < until {}
            io.charge(TURN_UNITS);
        }
        Received { consumed: bytes.len(), ..Received::default() }
    }

    fn drained(&mut self, _io: &mut Io<'_, ()>, _conn: ConnId) {}

    fn closed(&mut self, _io: &mut Io<'_, ()>, _conn: ConnId) {}

    fn mail(&mut self, _io: &mut Io<'_, ()>, _from: usize, (): ()) {}

    fn timer(&mut self, _io: &mut Io<'_, ()>, _token: u64) {}

    fn turn_begins(&mut self, _io: &mut Io<'_, ()>) {}

    fn takes_held(&mut self, _io: &mut Io<'_, ()>) -> bool {
        true
    }

    fn turn_ends(&mut self, _io: &mut Io<'_, ()>) {}

    fn drain(&mut self, _io: &mut Io<'_, ()>) {}
}

fn options() -> Options {
    let listener = ListenerConfig {
        name: "plain".into(),
        address: ListenerAddress::Tcp("127.0.0.1:0".parse().unwrap()),
        protocol: ProtocolTag(0),
        transport: ListenerTransport::Plain,
        send_buffer_bytes: 0,
        quota: ListenerQuota::new("plain", 100, "max"),
        proxies: None,
    };
    Options {
        shards: 1,
        pin: Pinning::Never,
        listeners: vec![listener],
        coalesce_us: 0,
        first_shard_connections: 1000,
        admission: Admission::new(AdmissionLimits { connections_max: 100, ..AdmissionLimits::default() }),
        handshakes_max: 100,
        handshake_timeout: Duration::from_secs(10),
        seed: 1,
        memory: MemoryBudget::unlimited(1),
    }
}

/// Sends as much as the server takes, until it is told to stop.
fn flood(address: SocketAddr, stopped: &AtomicBool) {
    let mut socket = TcpStream::connect(address).unwrap();
    let chunk = vec![b'x'; 256 * 1024];
    while !stopped.load(Ordering::Relaxed) && socket.write_all(&chunk).is_ok() {}
}

#[test]
fn connections_that_always_have_input_do_not_starve_another() {
    let handle = start(&options(), |_, _| Pings).unwrap();
    let ListenerAddress::Tcp(address) = handle.listeners()[0].address.clone() else { panic!("TCP") };
    let stopped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..FLOODS {
            scope.spawn(|| flood(address, &stopped));
        }
        let pings = scope.spawn(|| {
            let mut socket = TcpStream::connect(address).unwrap();
            socket.set_nodelay(true).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            (0..PINGS).all(|_| {
                let mut pong = [0];
                socket.write_all(&[PING]).is_ok() && socket.read_exact(&mut pong).is_ok()
            })
        });
        let are_answered = pings.join().unwrap();
        stopped.store(true, Ordering::Relaxed);
        assert!(are_answered, "a ping waits for seconds while others always have input");
    });
    (handle.drainer())();
    handle.join().unwrap();
}
