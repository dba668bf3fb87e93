//! Connections with real sockets that always have input, beside one that rarely has.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
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

    fn mail(&mut self, _io: &mut Io<'_, ()>, _from: usize, (): ()) {}

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
        flush_delay_us: 0,
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

/// Answers pings. Handles anything else one byte at a time, for ever, until its peer has closed.
#[derive(Default)]
struct Slices {
    seen: Arc<Seen>,
    /// The connection that was answered last.
    answered: Option<ConnId>,
    /// Connections with a byte that was not the first.
    offered: Vec<ConnId>,
}

#[derive(Default)]
struct Seen {
    offers: AtomicUsize,
    /// Held input that was offered before a response from the same turn had left.
    early_offers: AtomicUsize,
    has_closed: AtomicBool,
}

impl Service for Slices {
    type Mail = ();

    fn received(&mut self, io: &mut Io<'_, ()>, conn: ConnId, bytes: &[u8]) -> Received {
        if bytes[0] == PING {
            io.output(conn).expect("an open connection").buffer().extend_from_slice(bytes);
            self.answered = Some(conn);
            return Received { consumed: bytes.len(), ..Received::default() };
        }
        if self.offered.contains(&conn) {
            self.seen.offers.fetch_add(1, Ordering::Relaxed);
            if self.answered.is_some_and(|answered| io.has_output(answered)) {
                self.seen.early_offers.fetch_add(1, Ordering::Relaxed);
            }
        } else {
            self.offered.push(conn);
        }
        if io.peer_has_closed(conn) {
            self.seen.has_closed.store(true, Ordering::Relaxed);
            return Received { consumed: bytes.len(), ..Received::default() };
        }
        io.charge(TURN_UNITS);
        Received { consumed: 0, hold: true, ..Received::default() }
    }

    fn mail(&mut self, _io: &mut Io<'_, ()>, _from: usize, (): ()) {}

    fn drain(&mut self, _io: &mut Io<'_, ()>) {}
}

/// Waits for a condition that the shard brings about.
fn wait_for(what: &str, is_met: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !is_met() {
        assert!(Instant::now() < until, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn responses_leave_before_held_input_and_what_a_peer_has_left_behind_is_known() {
    let seen = Arc::new(Seen::default());
    let service = |_, _| Slices { seen: Arc::clone(&seen), ..Slices::default() };
    let handle = start(&options(), service).unwrap();
    let ListenerAddress::Tcp(address) = handle.listeners()[0].address.clone() else { panic!("TCP") };
    let mut heavy = TcpStream::connect(address).unwrap();
    heavy.write_all(b"x").unwrap();
    let offers = || seen.offers.load(Ordering::Relaxed);
    wait_for("held input is offered again and again", || offers() > 100);
    let mut light = TcpStream::connect(address).unwrap();
    light.set_nodelay(true).unwrap();
    for _ in 0..PINGS {
        let before = offers();
        light.write_all(&[PING]).unwrap();
        light.read_exact(&mut [0]).unwrap();
        wait_for("the heavy connection goes on", || offers() > before);
    }
    assert_eq!(seen.early_offers.load(Ordering::Relaxed), 0);
    assert!(!seen.has_closed.load(Ordering::Relaxed));
    drop(heavy);
    wait_for("the service learns that the peer has closed", || seen.has_closed.load(Ordering::Relaxed));
    drop(light);
    (handle.drainer())();
    handle.join().unwrap();
}

/// Addresses of the clients of [`Shares`].
const CLIENTS: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3)];

/// Does work for all connections, for ever, as far as their shares go. Counts it by the address of the client.
#[derive(Default)]
struct Shares {
    units: Arc<[AtomicU64; 2]>,
    /// Index into [`CLIENTS`], by connection slot.
    clients: Vec<usize>,
}

impl Service for Shares {
    type Mail = ();

    fn accepted(&mut self, io: &mut Io<'_, ()>, conn: ConnId, _protocol: ProtocolTag) {
        let client = CLIENTS.iter().position(|known| io.peer() == Some(IpAddr::V4(*known)));
        self.clients.resize(self.clients.len().max(conn.slot() + 1), 0);
        self.clients[conn.slot()] = client.expect("a known address");
    }

    fn received(&mut self, io: &mut Io<'_, ()>, conn: ConnId, bytes: &[u8]) -> Received {
        if io.peer_has_closed(conn) {
            return Received { consumed: bytes.len(), ..Received::default() };
        }
        while !io.is_exhausted() {
            io.charge(50);
            self.units[self.clients[conn.slot()]].fetch_add(50, Ordering::Relaxed);
        }
        Received { consumed: 0, hold: true, ..Received::default() }
    }

    fn mail(&mut self, _io: &mut Io<'_, ()>, _from: usize, (): ()) {}

    fn drain(&mut self, _io: &mut Io<'_, ()>) {}
}

/// Connects from another address of this machine.
#[cfg(target_os = "linux")]
fn connect_from(client: Ipv4Addr, server: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddrV4::new(client, 0)).unwrap();
    connect(&socket, &server).unwrap();
    socket.into()
}

#[cfg(target_os = "linux")]
#[test]
fn a_client_with_many_connections_gets_no_more_than_one_with_a_single_connection() {
    let units = Arc::<[AtomicU64; 2]>::default();
    let service = |_, _| Shares { units: Arc::clone(&units), ..Shares::default() };
    let handle = start(&options(), service).unwrap();
    let ListenerAddress::Tcp(address) = handle.listeners()[0].address.clone() else { panic!("TCP") };
    let mut sockets: Vec<_> = (0..40).map(|_| connect_from(CLIENTS[0], address)).collect();
    sockets.push(connect_from(CLIENTS[1], address));
    for socket in &mut sockets {
        socket.write_all(b"x").unwrap();
    }
    let done = || [0, 1].map(|client| units[client].load(Ordering::Relaxed));
    wait_for("both work", || done().iter().all(|units| *units > 0));
    let before = done();
    let enough = 500 * u64::from(TURN_UNITS);
    wait_for("work is done", || done().iter().sum::<u64>() > before.iter().sum::<u64>() + enough);
    let after = done();
    let [many, single] = [0, 1].map(|client| after[client] - before[client]);
    assert!((50..150).contains(&(100 * single / many)), "{many} units for 40 connections, {single} for one");
    drop(sockets);
    (handle.drainer())();
    handle.join().unwrap();
}

/// Holds all input, and takes none of it before a timer.
#[derive(Default)]
struct Refusing {
    turns: Arc<AtomicUsize>,
    has_waited: Arc<AtomicBool>,
}

impl Service for Refusing {
    type Mail = ();

    fn received(&mut self, io: &mut Io<'_, ()>, _conn: ConnId, bytes: &[u8]) -> Received {
        if self.has_waited.load(Ordering::Relaxed) {
            return Received { consumed: bytes.len(), ..Received::default() };
        }
        io.set_timer(io.clock.now_ms + 200, 0);
        Received { consumed: 0, hold: true, ..Received::default() }
    }

    fn mail(&mut self, _io: &mut Io<'_, ()>, _from: usize, (): ()) {}

    fn timer(&mut self, _io: &mut Io<'_, ()>, _token: u64) {
        self.has_waited.store(true, Ordering::Relaxed);
    }

    fn turn_begins(&mut self, _io: &mut Io<'_, ()>) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    fn takes_held(&mut self, _io: &mut Io<'_, ()>) -> bool {
        self.has_waited.load(Ordering::Relaxed)
    }

    fn drain(&mut self, _io: &mut Io<'_, ()>) {}
}

#[test]
fn a_shard_that_takes_no_held_input_sleeps() {
    let (turns, has_waited) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let service = |_, _| Refusing { turns: Arc::clone(&turns), has_waited: Arc::clone(&has_waited) };
    let handle = start(&options(), service).unwrap();
    let ListenerAddress::Tcp(address) = handle.listeners()[0].address.clone() else { panic!("TCP") };
    let mut held = TcpStream::connect(address).unwrap();
    held.write_all(b"x").unwrap();
    wait_for("the timer", || has_waited.load(Ordering::Relaxed));
    // One in 10 ms and some at the beginning; without sleep there are thousands.
    let turns = turns.load(Ordering::Relaxed);
    assert!(turns < 60, "{turns} turns");
    (handle.drainer())();
    handle.join().unwrap();
}
