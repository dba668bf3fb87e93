//! Memory for requests that have not arrived completely: how many may be collected at once, who waits, and that others
//! go on.

mod kit;

use kit::{Broker, Client};
use mainstem_kafka::api::metadata::MetadataRequest;
use mainstem_kafka_server::Config;

const MIB: usize = 1024 * 1024;
const MIB_I64: i64 = 1024 * 1024;
const REQUEST_BYTES: usize = 4 * MIB;
/// What a socket brings at once.
const READ_BYTES: usize = 128 * 1024;

/// A client that sends requests of 4 MiB, as far as its socket is read.
struct Sender {
    client: Client,
    /// Bytes that were sent of the request.
    sent: usize,
}

impl Sender {
    /// Sends until `most` bytes of a request are sent, or the broker does not read any more.
    fn send(&mut self, broker: &mut Broker, most: usize) {
        while self.sent < most && broker.is_open(self.client) && !broker.is_held(self.client) {
            let mut bytes = vec![0; READ_BYTES.min(most - self.sent)];
            if self.sent == 0 {
                bytes[..4].copy_from_slice(&(REQUEST_BYTES as u32 - 4).to_be_bytes());
                // ApiVersions, whatever its version: the response is an error.
                bytes[4..8].copy_from_slice(&[0, 18, 0, 99]);
            }
            broker.send_bytes(self.client, &bytes);
            self.sent += bytes.len();
        }
    }

    fn is_reading(&self, broker: &mut Broker) -> bool {
        broker.is_open(self.client) && !broker.is_held(self.client)
    }
}

fn senders(broker: &mut Broker, count: usize) -> Vec<Sender> {
    // On one shard: time stands still, and a shard sees the memory of others only as it passes.
    (0..count).map(|_| Sender { client: broker.connect(0), sent: 0 }).collect()
}

fn start(config: Config, memory_max: usize) -> Broker {
    let mut broker = Broker::with(2, config);
    broker.memory_max = memory_max as u64;
    broker.restart(2);
    broker
}

#[track_caller]
fn assert_serves(broker: &mut Broker) {
    for shard in 0..2 {
        let client = broker.connect(shard);
        broker.send(client, 12, &MetadataRequest::default());
        broker.turn(20);
        let response = broker.take::<MetadataRequest>(client, 12).expect("a response");
        assert_eq!(response.brokers.len(), 1);
    }
}

/// Twenty connections with unfinished requests of 4 MiB.
#[track_caller]
fn check_bounds(config: Config, memory_max: usize, bytes_max: usize) {
    let mut broker = start(config, memory_max);
    let mut senders = senders(&mut broker, 20);
    let mut used_max = 0;
    for most in [MIB, 2 * MIB, REQUEST_BYTES - 1] {
        for sender in &mut senders {
            sender.send(&mut broker, most);
            broker.turn(1);
            used_max = used_max.max(broker.used() as usize);
        }
    }
    let reading = senders.iter().filter(|sender| sender.is_reading(&mut broker)).count();
    assert_eq!(reading, bytes_max / REQUEST_BYTES, "connections that are read");
    let held_bytes = 20 * READ_BYTES;
    assert!(used_max <= bytes_max + held_bytes + 2 * MIB, "{used_max} bytes");
    assert_serves(&mut broker);

    // As requests are completed, others are collected; each client has its response in the end.
    for _ in 0..20 {
        for sender in &mut senders {
            sender.send(&mut broker, REQUEST_BYTES);
            broker.turn(2);
        }
    }
    broker.run();
    for sender in &senders {
        assert_eq!(sender.sent, REQUEST_BYTES);
        assert!(broker.take_frame(sender.client).is_some(), "a response");
    }
    broker.turn(2);
    assert_eq!(broker.used_by("requests"), 0);
}

#[test]
fn unfinished_requests_are_limited_by_their_key() {
    let config = Config { queued_request_bytes_max: 10 * MIB_I64, ..Config::default() };
    check_bounds(config, usize::MAX >> 1, 10 * MIB);
}

#[test]
fn unfinished_requests_are_limited_by_the_memory_budget() {
    // 95 % of it, less what the broker uses anyway.
    check_bounds(Config::default(), 14 * MIB, 13 * MIB);
}

/// Those that announce a request and do not send it keep the room of others for a minute.
#[test]
fn unfinished_requests_end_while_others_wait() {
    let config = Config { queued_request_bytes_max: 10 * MIB_I64, ..Config::default() };
    let mut broker = start(config, usize::MAX >> 1);
    let mut idle = senders(&mut broker, 2);
    for sender in &mut idle {
        sender.send(&mut broker, READ_BYTES);
    }
    broker.pass(300_000);
    assert!(idle.iter().all(|sender| sender.is_reading(&mut broker)), "nobody waits");
    let mut waiting = Sender { client: broker.connect(0), sent: 0 };
    waiting.send(&mut broker, REQUEST_BYTES);
    assert!(broker.is_held(waiting.client));
    broker.pass(3_000);
    assert!(idle.iter().all(|sender| !broker.is_open(sender.client)), "they have had their time");
    waiting.send(&mut broker, REQUEST_BYTES);
    broker.run();
    assert_eq!(waiting.sent, REQUEST_BYTES);
    assert!(broker.take_frame(waiting.client).is_some(), "a response");
    assert_eq!(broker.used_by("requests"), 0);
}

/// Connections that end give back what they have reserved.
#[test]
fn a_lost_connection_gives_its_room_back() {
    let config = Config { queued_request_bytes_max: 10 * MIB_I64, ..Config::default() };
    let mut broker = start(config, usize::MAX >> 1);
    for _ in 0..5 {
        let mut senders = senders(&mut broker, 2);
        for sender in &mut senders {
            sender.send(&mut broker, MIB);
            assert!(sender.is_reading(&mut broker), "there is room");
        }
        broker.turn(1);
        assert_eq!(broker.used_by("requests") as usize, 2 * (REQUEST_BYTES - MIB));
        for sender in &senders {
            broker.hang_up(sender.client);
        }
        broker.turn(1);
        assert_eq!(broker.used_by("requests"), 0);
    }
}
