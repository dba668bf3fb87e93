//! The seam without sockets: what a layer says and hears, turn by turn.

use std::sync::Arc;

use mainstem_runtime::{Clock, ConnId, Detached, Io, ProtocolTag};

use crate::masked::{HELLO, Kind, Masked, WELCOME, record, take_record};
use crate::service::{Commands, Event, Events, GREET, pattern};

const PROTOCOL: ProtocolTag = ProtocolTag(3);

/// Two shards and one connection.
struct World {
    shards: Vec<(Detached<()>, Commands)>,
    events: Arc<Events>,
    shard: usize,
    conn: ConnId,
}

impl World {
    fn new(protocol: ProtocolTag, layer: Masked) -> Self {
        let events = Arc::new(Events::default());
        let detached = Io::detached(2, 1).into_iter();
        let mut shards: Vec<_> = detached.map(|detached| (detached, Commands::new(&events))).collect();
        let (detached, service) = &mut shards[0];
        let conn = detached.connect_through(service, protocol, Box::new(layer));
        Self { shards, events, shard: 0, conn }
    }

    /// A connection that has completed its handshake.
    fn open() -> Self {
        let mut world = Self::new(PROTOCOL, Masked::default());
        assert_eq!(world.exchange(HELLO), WELCOME);
        world
    }

    /// Feeds bytes of the socket and runs a turn. Returns what is sent.
    fn exchange(&mut self, bytes: &[u8]) -> Vec<u8> {
        let (detached, service) = &mut self.shards[self.shard];
        detached.feed(service, self.conn, bytes);
        for _ in 0..detached.held_count() {
            detached.offer_held(service);
        }
        self.turn()
    }

    fn turn(&mut self) -> Vec<u8> {
        let (detached, service) = &mut self.shards[self.shard];
        let sent = detached.turn(service, Clock::default());
        assert!(sent.iter().all(|(conn, _)| *conn == self.conn));
        let departures = detached.departures();
        for departure in departures {
            self.shard = departure.to;
            let (detached, service) = &mut self.shards[departure.to];
            self.conn = detached.adopt(service, departure);
        }
        sent.into_iter().flat_map(|(_, bytes)| bytes).collect()
    }

    /// Feeds a data record and runs turns until nothing is left to do. Returns the records sent.
    fn command(&mut self, text: &str) -> Vec<(u8, Vec<u8>)> {
        let mut sent = self.exchange(&record(Kind::Data, text.as_bytes()));
        sent.extend(self.settle());
        records(sent)
    }

    fn settle(&mut self) -> Vec<u8> {
        (0..4).flat_map(|_| self.turn()).collect()
    }

    fn is_known(&self) -> bool {
        self.shards[self.shard].0.is_known(self.conn)
    }

    fn closed(&self) -> usize {
        self.events.seen().iter().filter(|event| matches!(event, Event::Closed { .. })).count()
    }
}

fn records(mut bytes: Vec<u8>) -> Vec<(u8, Vec<u8>)> {
    let mut records = Vec::new();
    while let Some(record) = take_record(&mut bytes) {
        records.push(record);
    }
    assert_eq!(bytes, [], "half a record was sent");
    records
}

fn data(text: &str) -> (u8, Vec<u8>) {
    (Kind::Data as u8, text.as_bytes().to_vec())
}

fn end() -> (u8, Vec<u8>) {
    (Kind::End as u8, Vec::new())
}

#[test]
fn input_may_be_cut_anywhere() {
    let mut world = World::new(PROTOCOL, Masked::default());
    let mut sent = Vec::new();
    let commands = record(Kind::Data, b"echo one\necho t");
    for byte in [HELLO, &commands, &record(Kind::Data, b"wo\n")].concat() {
        sent.extend(world.exchange(&[byte]));
    }
    assert!(sent.starts_with(WELCOME));
    assert_eq!(records(sent.split_off(WELCOME.len())), [data("one\n"), data("two\n")]);
}

#[test]
fn output_waits_for_the_handshake() {
    let mut world = World::new(GREET, Masked::default());
    assert_eq!(world.turn(), []);
    assert_eq!(world.exchange(&HELLO[..2]), []);
    let sent = world.exchange(&HELLO[2..]);
    assert!(sent.starts_with(WELCOME));
    assert_eq!(records(sent[WELCOME.len()..].to_vec()), [data("greetings\n")]);
}

#[test]
fn a_layer_answers_without_the_service() {
    let mut world = World::open();
    assert_eq!(records(world.exchange(&record(Kind::Ping, b"42"))), [(Kind::Pong as u8, b"42".to_vec())]);
    assert_eq!(world.command("echo on\n"), [data("on\n")]);
}

#[test]
fn a_close_sends_the_output_and_then_the_end_of_the_stream() {
    let mut world = World::open();
    assert_eq!(world.command("quit\n"), [data("bye\n"), end()]);
    assert!(!world.is_known());
    assert_eq!(world.closed(), 0);
}

#[test]
fn a_close_before_the_handshake_ends_the_connection() {
    let mut world = World::new(GREET, Masked::default());
    let (detached, _) = &mut world.shards[0];
    detached.io().close(world.conn);
    assert_eq!(world.turn(), []);
    assert!(!world.is_known());
}

#[test]
fn a_stream_that_the_peer_ends_is_answered_before_it_closes() {
    let mut world = World::open();
    let mut sent = world.exchange(&[record(Kind::Data, b"echo last\nhalf"), record(Kind::End, b"")].concat());
    sent.extend(world.settle());
    assert_eq!(records(sent), [data("last\n"), end()]);
    assert!(!world.is_known());
    assert_eq!(world.closed(), 1);
}

#[test]
fn a_broken_peer_gets_an_alert_and_is_closed() {
    for (handshake, bytes) in [(true, b"X\0\0".as_slice()), (false, b"GET / HTTP/1.1")] {
        let mut world = if handshake { World::open() } else { World::new(PROTOCOL, Masked::default()) };
        let mut sent = world.exchange(bytes);
        sent.extend(world.settle());
        let sent = records(sent);
        assert_eq!(sent[0].0, Kind::Alert as u8);
        assert_eq!(sent[1..], if handshake { vec![end()] } else { vec![] });
        assert!(!world.is_known());
        assert_eq!(world.closed(), 1);
    }
}

#[test]
fn held_input_is_offered_before_the_end_of_the_stream() {
    let mut world = World::open();
    world.shards[0].1.takes_held = false;
    let input = [record(Kind::Data, b"wait\necho held\n"), record(Kind::End, b"")].concat();
    assert_eq!(world.exchange(&input), []);
    assert_eq!(world.settle(), []);
    assert_eq!(world.closed(), 0);
    world.shards[0].1.takes_held = true;
    let mut sent = world.exchange(b"");
    sent.extend(world.settle());
    assert_eq!(records(sent), [data("held\n"), end()]);
    assert_eq!(world.closed(), 1);
}

#[test]
fn a_connection_moves_in_the_middle_of_its_handshake() {
    let mut world = World::new(PROTOCOL, Masked::default());
    assert_eq!(world.exchange(&HELLO[..3]), []);
    world.shards[0].0.io().hand_over(world.conn, 1);
    assert_eq!(world.turn(), []);
    assert_eq!(world.shard, 1);
    assert_eq!(world.exchange(&HELLO[3..]), WELCOME);
    assert_eq!(world.command("move 1\n"), [data("at 1\n")]);
    let accepted = |shard| Event::Accepted { shard, protocol: PROTOCOL };
    assert_eq!(world.events.seen(), [accepted(0), accepted(1)]);
}

#[test]
fn a_connection_moves_with_unread_input_and_half_a_record() {
    let mut world = World::open();
    let rest = record(Kind::Data, b"echo two\n");
    let mut sent = world.exchange(&[&record(Kind::Data, b"move 1\necho one\n"), &rest[..5]].concat());
    assert_eq!(world.shard, 1);
    sent.extend(world.exchange(&rest[5..]));
    assert_eq!(records(sent), [data("at 1\none\ntwo\n")]);
}

#[test]
fn an_answer_of_the_layer_and_the_end_of_the_stream_move_along() {
    let mut world = World::open();
    let (detached, service) = &mut world.shards[0];
    detached.feed(service, world.conn, &record(Kind::Data, b"move 1\n"));
    detached.feed(service, world.conn, &[record(Kind::Ping, b"7"), record(Kind::End, b"")].concat());
    let sent = world.settle();
    assert_eq!(world.shard, 1);
    assert_eq!(records(sent), [(Kind::Pong as u8, b"7".to_vec()), data("at 1\n"), end()]);
    assert_eq!(world.events.seen().last(), Some(&Event::Closed { shard: 1 }));
}

#[test]
fn a_peer_that_asks_and_does_not_read_is_closed() {
    let mut world = World::open();
    world.shards[0].0.stall(world.conn);
    let ping = record(Kind::Ping, &[7; 1000]);
    let count = (0..1000).take_while(|_| world.exchange(&ping).is_empty() && world.closed() == 0).count();
    assert!((250..300).contains(&count), "{count}");
}

#[test]
fn shared_payloads_and_files_are_encoded_in_their_order() {
    let mut world = World::open();
    let sent = world.command("echo a\nshared 100000\necho b\nfile 3000000\nshared 0\necho c\n");
    let sent: Vec<u8> = sent.into_iter().flat_map(|(_, payload)| payload).collect();
    let bytes = |len| (0..len).map(pattern).collect::<Vec<u8>>();
    assert!(sent == [b"a\n", &bytes(100_000)[..], b"b\n", &bytes(3_000_000), b"c\n"].concat());
}

#[test]
fn a_layer_may_pass_output_as_it_is() {
    let mut world = World::new(GREET, Masked::passing_output());
    assert_eq!(world.turn(), []);
    assert_eq!(world.exchange(HELLO), [WELCOME, b"greetings\n"].concat());
    assert_eq!(world.exchange(&record(Kind::Data, b"echo on\nquit\n")), b"on\nbye\n");
    assert!(!world.is_known());
}
