//! Records that go to other doors, whatever producers have put into their batches.

mod kit;

use kit::{Broker, batch, produce_request};
use mainstem_compress::{Compression, compress};
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::produce::ProduceRequest;
use mainstem_log::{Batch, BatchBuilder, HEADER_BYTES, Header, put_headers, repack};
use mainstem_stream::{Config, Outgoing, Source};

const TOPIC: &str = "commands";
/// More than go out at once.
const MANY: usize = 100_000;
/// As many go out at once at most.
const AT_ONCE: usize = 16 * 1024;

fn broker(shards: usize) -> Broker {
    let source = Source { name: "out".into(), topic: TOPIC.into(), from_start: true };
    let mut broker = Broker::with(shards, Config { sources: vec![source], ..Config::default() });
    broker.make_topic(TOPIC, 1);
    broker
}

fn produce(broker: &mut Broker, records: Vec<u8>) {
    let client = broker.connect(0);
    let response = broker.ask::<ProduceRequest>(client, 9, &produce_request(TOPIC, 0, records));
    assert_eq!(response.responses[0].partition_responses[0].error_code, ErrorCode::None as i16);
}

/// A batch with these bytes in place of its compressed records.
fn packed(plain: &[u8], compressed: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    repack(&Batch::parse(plain).unwrap().header, Compression::Zstd, compressed, &mut packed);
    packed
}

fn outgoing(broker: &mut Broker) -> Vec<Vec<Outgoing>> {
    std::iter::from_fn(|| broker.take_outgoing()).collect()
}

fn text(record: &Outgoing) -> &str {
    std::str::from_utf8(record.value.as_deref().unwrap()).unwrap()
}

#[test]
fn a_batch_of_very_many_records_goes_out_a_part_at_a_time_and_in_order() {
    let mut broker = broker(2);
    let mut builder = BatchBuilder::default();
    for number in 0..MANY {
        builder.push(broker.unix_ms(), None, Some(number.to_string().as_bytes()));
    }
    let plain = builder.finish().to_vec();
    let compressed = compress(Compression::Zstd, None, &plain[HEADER_BYTES..]).unwrap();
    produce(&mut broker, packed(&plain, &compressed));
    let behind = batch(broker.unix_ms(), &["behind"]);
    produce(&mut broker, behind);
    let parts = outgoing(&mut broker);
    assert!(parts.iter().all(|part| part.len() <= AT_ONCE + 1));
    let all: Vec<&Outgoing> = parts.iter().flatten().collect();
    assert_eq!(all.len(), MANY + 1);
    for (number, record) in all[..MANY].iter().enumerate() {
        assert_eq!((record.offset as usize, text(record)), (number, number.to_string().as_str()));
    }
    assert_eq!(text(all[MANY]), "behind");
}

#[test]
fn a_batch_that_cannot_be_read_holds_nothing_up() {
    let mut broker = broker(1);
    let plain = batch(broker.unix_ms(), &["never seen"]);
    // Not of the codec; of the codec, and no records; and more than anybody wants to decompress.
    let bomb = vec![0; 65 * 1024 * 1024];
    for compressed in [
        b"not compressed".to_vec(),
        compress(Compression::Zstd, None, b"\x7F no record").unwrap(),
        compress(Compression::Zstd, None, &bomb).unwrap(),
    ] {
        produce(&mut broker, packed(&plain, &compressed));
    }
    let behind = batch(broker.unix_ms(), &["behind"]);
    produce(&mut broker, behind);
    let parts = outgoing(&mut broker);
    let all: Vec<&str> = parts.iter().flatten().map(text).collect();
    assert_eq!(all, ["behind"]);
}

/// `count` records with so many headers each, compressed to almost nothing.
fn headed(broker: &Broker, count: usize, headers: usize) -> Vec<u8> {
    let mut encoded = Vec::new();
    put_headers((0..headers).map(|_| Header { key: "", value: None }), &mut encoded);
    let mut builder = BatchBuilder::default();
    for _ in 0..count {
        builder.push_with_headers(broker.unix_ms(), None, Some(b"value"), &encoded);
    }
    let plain = builder.finish().to_vec();
    packed(&plain, &compress(Compression::Zstd, None, &plain[HEADER_BYTES..]).unwrap())
}

/// A header takes two bytes on the log, which compress well, and many times that in memory.
#[test]
fn headers_count_for_what_goes_out_at_once() {
    let mut broker = broker(1);
    let (count, headers) = (200, 10_000);
    let records = headed(&broker, count, headers);
    assert!(records.len() < 100_000);
    produce(&mut broker, records);
    let parts = outgoing(&mut broker);
    assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), count);
    let most = 8 * 1024 * 1024 / (headers * size_of::<(String, Option<Vec<u8>>)>()) + 1;
    assert!(parts.iter().all(|part| part.len() <= most));
}

#[test]
fn a_record_of_more_headers_than_anybody_needs_is_left_out() {
    let mut broker = broker(1);
    for headers in [64 * 1024 + 1, 64 * 1024] {
        let records = headed(&broker, 1, headers);
        produce(&mut broker, records);
    }
    let parts = outgoing(&mut broker);
    let all: Vec<u64> = parts.iter().flatten().map(|record| record.offset).collect();
    assert_eq!(all, [1]);
}

/// While one batch goes out in parts, another must not be decompressed beside it that is as large.
#[test]
fn two_large_batches_go_out_one_after_the_other() {
    let sources =
        ["a", "b"].map(|topic| Source { name: topic.into(), topic: topic.into(), from_start: true });
    let mut broker = Broker::with(1, Config { sources: sources.to_vec(), ..Config::default() });
    let large = "x".repeat(1024 * 1024);
    for topic in ["a", "b"] {
        broker.make_topic(topic, 1);
        let plain = batch(broker.unix_ms(), &[large.as_str(); 20]);
        let records = packed(&plain, &compress(Compression::Zstd, None, &plain[HEADER_BYTES..]).unwrap());
        let client = broker.connect(0);
        let response = broker.ask::<ProduceRequest>(client, 9, &produce_request(topic, 0, records));
        assert_eq!(response.responses[0].partition_responses[0].error_code, ErrorCode::None as i16);
    }
    let parts = outgoing(&mut broker);
    assert!(parts.iter().all(|part| part.len() <= 8), "no more than 8 MiB at once");
    let order: Vec<usize> = parts.iter().flatten().map(|record| record.source).collect();
    assert_eq!((order.len(), order.is_sorted() || order.iter().rev().is_sorted()), (40, true), "{order:?}");
}
