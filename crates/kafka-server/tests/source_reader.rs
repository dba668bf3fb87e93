//! The reader of bound topics: batches of any shape become records for other protocols.

mod kit;

use kit::{Broker, batch, produce_request};
use mainstem_compress::{Compression, compress};
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::produce::ProduceRequest;
use mainstem_kafka_server::{Config, Source, SourceRecord};
use mainstem_log::{Batch, BatchBuilder, HEADER_BYTES, Header, put_headers, repack};

const TOPIC: &str = "commands";
/// More records than one read returns.
const RECORDS: usize = 100_000;
/// Most records that one read returns.
const AT_ONCE: usize = 1024;

fn broker(shards: usize) -> Broker {
    broker_with(shards, Config::default())
}

fn broker_with(shards: usize, config: Config) -> Broker {
    let source = Source { name: "out".into(), topic: TOPIC.into(), from_start: true };
    let mut broker = Broker::with(shards, Config { sources: vec![source], ..config });
    broker.create_topic(TOPIC, 1);
    broker
}

fn produce(broker: &mut Broker, records: Vec<u8>) {
    let client = broker.connect(0);
    let response = broker.ask::<ProduceRequest>(client, 9, &produce_request(TOPIC, 0, records));
    assert_eq!(response.responses[0].partition_responses[0].error_code, ErrorCode::None as i16);
}

/// The batch `plain` with these bytes as its compressed records.
fn batch_with_payload(plain: &[u8], compressed: &[u8]) -> Vec<u8> {
    let mut batch_with_payload = Vec::new();
    repack(&Batch::parse(plain).unwrap().header, Compression::Zstd, compressed, &mut batch_with_payload);
    batch_with_payload
}

fn outgoing(broker: &mut Broker) -> Vec<Vec<SourceRecord>> {
    std::iter::from_fn(|| broker.take_outgoing()).collect()
}

fn text(record: &SourceRecord) -> &str {
    std::str::from_utf8(record.value.as_deref().unwrap()).unwrap()
}

#[test]
fn a_batch_of_many_records_is_read_in_parts_and_in_order() {
    let mut broker = broker(2);
    let mut builder = BatchBuilder::default();
    for number in 0..RECORDS {
        builder.push(broker.unix_ms(), None, Some(number.to_string().as_bytes()));
    }
    let plain = builder.finish().to_vec();
    let compressed = compress(Compression::Zstd, None, &plain[HEADER_BYTES..]).unwrap();
    produce(&mut broker, batch_with_payload(&plain, &compressed));
    let behind = batch(broker.unix_ms(), &["behind"]);
    produce(&mut broker, behind);
    let parts = outgoing(&mut broker);
    assert!(parts.iter().all(|part| part.len() <= AT_ONCE + 1));
    let all: Vec<&SourceRecord> = parts.iter().flatten().collect();
    assert_eq!(all.len(), RECORDS + 1);
    for (number, record) in all[..RECORDS].iter().enumerate() {
        assert_eq!((record.offset as usize, text(record)), (number, number.to_string().as_str()));
    }
    assert_eq!(text(all[RECORDS]), "behind");
}

#[test]
fn an_unreadable_batch_is_skipped() {
    let mut broker = broker_with(1, Config { checks_compressed_records: false, ..Config::default() });
    let plain = batch(broker.unix_ms(), &["never seen"]);
    // Not compressed data; compressed data that is no record; a batch above the decompression limit.
    let bomb = vec![0; 65 * 1024 * 1024];
    for compressed in [
        b"not compressed".to_vec(),
        compress(Compression::Zstd, None, b"\x7F no record").unwrap(),
        compress(Compression::Zstd, None, &bomb).unwrap(),
    ] {
        produce(&mut broker, batch_with_payload(&plain, &compressed));
    }
    let behind = batch(broker.unix_ms(), &["behind"]);
    produce(&mut broker, behind);
    let parts = outgoing(&mut broker);
    let all: Vec<&str> = parts.iter().flatten().map(text).collect();
    assert_eq!(all, ["behind"]);
}

/// `count` records with this number of headers each, compressed to almost nothing.
fn batch_with_headers(broker: &Broker, count: usize, headers: usize) -> Vec<u8> {
    let mut encoded = Vec::new();
    put_headers((0..headers).map(|_| Header { key: "", value: None }), &mut encoded);
    let mut builder = BatchBuilder::default();
    for _ in 0..count {
        builder.push_with_headers(broker.unix_ms(), None, Some(b"value"), &encoded);
    }
    let plain = builder.finish().to_vec();
    batch_with_payload(&plain, &compress(Compression::Zstd, None, &plain[HEADER_BYTES..]).unwrap())
}

/// An empty header takes two bytes in the log, which compress well, and many times that in memory.
#[test]
fn headers_count_towards_the_memory_of_a_read() {
    let mut broker = broker(1);
    let (count, headers) = (200, 10_000);
    let records = batch_with_headers(&broker, count, headers);
    assert!(records.len() < 100_000);
    produce(&mut broker, records);
    let parts = outgoing(&mut broker);
    assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), count);
    let most = 1024 * 1024 / (headers * size_of::<(String, Option<Vec<u8>>)>()) + 1;
    assert!(parts.iter().all(|part| part.len() <= most));
}

#[test]
fn a_record_with_too_many_headers_is_skipped() {
    let mut broker = broker(1);
    for headers in [64 * 1024 + 1, 64 * 1024] {
        let records = batch_with_headers(&broker, 1, headers);
        produce(&mut broker, records);
    }
    let parts = outgoing(&mut broker);
    let all: Vec<u64> = parts.iter().flatten().map(|record| record.offset).collect();
    assert_eq!(all, [1]);
}

/// Decompressing it at once would take a core for some 50 ms.
#[test]
fn a_large_batch_is_decompressed_in_steps_while_others_are_delivered() {
    /// Most work of one call, units of 100 ns.
    const UNITS_MAX: u64 = 5_000;
    const BYTES: usize = 30 * 1024 * 1024;
    let sources =
        ["a", "b"].map(|topic| Source { name: topic.into(), topic: topic.into(), from_start: true });
    let mut broker = Broker::with(1, Config { sources: sources.to_vec(), ..Config::default() });
    let large = "x".repeat(BYTES);
    let plain = batch(broker.unix_ms(), &[large.as_str()]);
    let records =
        batch_with_payload(&plain, &compress(Compression::Zstd, None, &plain[HEADER_BYTES..]).unwrap());
    let small = batch(broker.unix_ms(), &["small"]);
    for (topic, records) in [("a", records), ("b", small)] {
        broker.create_topic(topic, 1);
        let client = broker.connect(0);
        let response = broker.ask::<ProduceRequest>(client, 9, &produce_request(topic, 0, records));
        assert_eq!(response.responses[0].partition_responses[0].error_code, ErrorCode::None as i16);
    }
    let begin = broker.charged(0);
    let (mut charged, mut order) = (begin, Vec::new());
    while let Some(part) = broker.take_outgoing() {
        let before = std::mem::replace(&mut charged, broker.charged(0));
        assert!(charged - before <= UNITS_MAX, "{} units at once", charged - before);
        order.extend(part.iter().map(|record| (record.source, record.value.as_ref().map_or(0, Vec::len))));
    }
    assert_eq!(order, [(1, 5), (0, BYTES)], "the small record does not wait for the large one");
    let least = (BYTES / 1024) as u64 * 10;
    assert!(charged - begin >= least, "{} units are less than the work", charged - begin);
}

/// While one large batch is read in parts, no other large batch is decompressed.
#[test]
fn two_large_batches_are_read_one_after_the_other() {
    let sources =
        ["a", "b"].map(|topic| Source { name: topic.into(), topic: topic.into(), from_start: true });
    let mut broker = Broker::with(1, Config { sources: sources.to_vec(), ..Config::default() });
    let large = "x".repeat(1024 * 1024);
    for topic in ["a", "b"] {
        broker.create_topic(topic, 1);
        let plain = batch(broker.unix_ms(), &[large.as_str(); 20]);
        let records =
            batch_with_payload(&plain, &compress(Compression::Zstd, None, &plain[HEADER_BYTES..]).unwrap());
        let client = broker.connect(0);
        let response = broker.ask::<ProduceRequest>(client, 9, &produce_request(topic, 0, records));
        assert_eq!(response.responses[0].partition_responses[0].error_code, ErrorCode::None as i16);
    }
    let parts = outgoing(&mut broker);
    assert!(parts.iter().all(|part| part.len() <= 1), "no more than 1 MiB at once");
    let order: Vec<usize> = parts.iter().flatten().map(|record| record.source).collect();
    assert_eq!((order.len(), order.is_sorted() || order.iter().rev().is_sorted()), (40, true), "{order:?}");
}
