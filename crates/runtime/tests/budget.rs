//! The work budget of a turn: what one connection may do while others wait, counted in units.

use mainstem_runtime::{Clock, ConnId, Detached, Io, ProtocolTag, Received, Service, TURN_UNITS};

/// Handles each input byte, and each message from another shard, as work of that many hundred units, as long as its
/// share lasts.
#[derive(Default)]
struct Worker {
    /// Bytes handled, by connection slot.
    handled: Vec<usize>,
    mails: Vec<u8>,
    timers: usize,
}

impl Service for Worker {
    type Mail = u8;

    fn accepted(&mut self, _io: &mut Io<'_, u8>, conn: ConnId, _protocol: ProtocolTag) {
        self.handled.resize(self.handled.len().max(conn.slot() + 1), 0);
    }

    fn received(&mut self, io: &mut Io<'_, u8>, conn: ConnId, bytes: &[u8]) -> Received {
        let mut consumed = 0;
        for byte in bytes {
            if consumed > 0 && io.is_exhausted() {
                return Received { consumed, hold: true, ..Received::default() };
            }
            io.charge(u32::from(*byte) * 100);
            consumed += 1;
            self.handled[conn.slot()] += 1;
        }
        Received { consumed, ..Received::default() }
    }

    fn mail(&mut self, io: &mut Io<'_, u8>, _from: usize, mail: u8) {
        io.charge(u32::from(mail) * 100);
        self.mails.push(mail);
    }

    fn timer(&mut self, io: &mut Io<'_, u8>, _token: u64) {
        io.charge(100);
        self.timers += 1;
    }

    fn drain(&mut self, _io: &mut Io<'_, u8>) {}
}

/// Offers held input as a driver does, ends the turn and begins the next. Returns the units of the turn.
fn turn(shard: &mut Detached<u8>, service: &mut Worker) -> u64 {
    for _ in 0..shard.held_count() {
        if shard.offer_held(service).is_none() {
            break;
        }
    }
    let charged = shard.io().charged();
    shard.turn(service, Clock::default());
    charged
}

#[test]
fn a_busy_connection_fills_turns_and_leaves_room_for_others() {
    let mut shard = Io::detached(1, 1).remove(0);
    let mut service = Worker::default();
    let busy = shard.connect(&mut service);
    let light = shard.connect(&mut service);
    shard.feed(&mut service, busy, &[10; 1000]);
    assert!(shard.is_held(busy));
    let most = u64::from(TURN_UNITS) + 1_000;
    let mut turns = 0;
    while service.handled[busy.slot()] < 1000 {
        let charged = turn(&mut shard, &mut service);
        assert!((1..=most).contains(&charged), "{charged} units in a turn");
        let before = service.handled[light.slot()];
        shard.feed(&mut service, light, &[1]);
        assert_eq!(service.handled[light.slot()], before + 1, "a light connection is served at once");
        turns += 1;
    }
    let needed = 1_000_000 / u64::from(TURN_UNITS);
    assert!(turns <= 2 * needed, "alone, a connection may use nearly the whole turn: {turns} turns");
}

#[test]
fn busy_connections_share_by_work_and_not_by_packets() {
    let mut shard = Io::detached(1, 1).remove(0);
    let mut service = Worker::default();
    let conns: Vec<_> = (0..4).map(|_| shard.connect(&mut service)).collect();
    // One of them causes sixty times the work per byte: each of its bytes is more than a share.
    for (index, conn) in conns.iter().enumerate() {
        let byte = if index == 0 { 240 } else { 4 };
        shard.feed(&mut service, *conn, &vec![byte; 100_000]);
    }
    for _ in 0..400 {
        turn(&mut shard, &mut service);
    }
    let work = |index: usize| service.handled[conns[index].slot()] * if index == 0 { 240 } else { 4 };
    for index in 1..4 {
        let percent = 100 * work(0) / work(index);
        assert!((80..125).contains(&percent), "work of the heavy connection: {percent} % of that of {index}");
    }
}

#[test]
fn mail_beyond_a_turn_waits_in_order_and_input_goes_on() {
    let mut shards = Io::detached(2, 1);
    let mut services = [Worker::default(), Worker::default()];
    let conn = shards[1].connect(&mut services[1]);
    let sent: Vec<u8> = (0..200).collect();
    for mail in &sent {
        shards[0].io().send(1, *mail);
    }
    shards[0].turn(&mut services[0], Clock::default());
    let mut turns = 0;
    shards[1].turn(&mut services[1], Clock::default());
    while shards[1].wants_turn() {
        assert!(shards[1].io().has_pending_mail());
        shards[1].feed(&mut services[1], conn, &[1]);
        let charged = turn(&mut shards[1], &mut services[1]);
        assert!(charged <= u64::from(TURN_UNITS) + 20_000, "{charged} units in a turn");
        turns += 1;
        assert_eq!(services[1].handled[conn.slot()], turns, "input is not delayed by mail");
    }
    assert!(turns > 10);
    assert_eq!(services[1].mails, sent);
    assert!(!shards[1].io().has_pending_mail());
}

#[test]
fn timers_that_are_due_at_once_are_spread_over_turns() {
    let mut shard: Detached<u8> = Io::detached(1, 1).remove(0);
    let mut service = Worker::default();
    for token in 0..1000 {
        shard.io().set_timer(100, token);
    }
    let clock = Clock { now_ms: 200, unix_ms: 0 };
    shard.turn(&mut service, clock);
    let first = service.timers;
    assert!(0 < first && first < 50, "{first} timers of 100 units in one turn");
    while shard.wants_turn() {
        shard.turn(&mut service, clock);
    }
    assert_eq!(service.timers, 1000);
}
