//! Connections: malformed frames, unsupported requests, response order, long polls and limits.

mod kit;

use kit::{Broker, batch, fetch_request, frame, produce_request, values};
use mainstem_kafka::api::Visitor;
use mainstem_kafka::api::api_versions::ApiVersionsRequest;
use mainstem_kafka::api::delete_topics::DeleteTopicsRequest;
use mainstem_kafka::api::fetch::{FetchPartition, FetchRequest, FetchResponse};
use mainstem_kafka::api::list_offsets::{ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic};
use mainstem_kafka::api::metadata::{MetadataRequest, MetadataRequestTopic};
use mainstem_kafka::api::produce::ProduceRequest;
use mainstem_kafka::{ErrorCode, Request};
use mainstem_kafka_server::{Config, SERVED};

fn code(code: i16) -> ErrorCode {
    ErrorCode::from_code(code).expect("a known error code")
}

/// Sends each request in each of its versions, with default fields.
struct AllVersions {
    broker: Broker,
    count: usize,
}

impl Visitor for AllVersions {
    fn visit<R: Request>(&mut self) {
        // The default of `acks` is 0, which gets no response.
        if R::KEY == ProduceRequest::KEY {
            return;
        }
        for version in R::VERSIONS {
            for shard in 0..2 {
                let client = self.broker.connect(shard);
                self.broker.send(client, version, &R::default());
                self.broker.pass(1_000);
                assert!(self.broker.is_open(client), "{} of version {version}", R::KEY);
                let frame = self.broker.take::<R>(client, version);
                assert!(frame.is_some(), "{} of version {version}", R::KEY);
                self.broker.hang_up(client);
                self.count += 1;
            }
        }
    }
}

#[test]
fn every_announced_api_is_served_in_every_version() {
    let mut visitor = AllVersions { broker: Broker::new(2), count: 0 };
    mainstem_kafka::api::visit(&mut visitor);
    assert!(visitor.count > 200);
}

#[test]
fn an_unsupported_request_gets_error_35_and_the_connection_stays_open() {
    let mut broker = Broker::new(2);
    let client = broker.connect(1);
    let request = |key: i16, version: i16| {
        let mut frame = vec![0, 0, 0, 11];
        frame.extend_from_slice(&key.to_be_bytes());
        frame.extend_from_slice(&version.to_be_bytes());
        // Correlation id, no client id, no tagged fields.
        frame.extend_from_slice(&[0, 0, 0, 7, 0xff, 0xff, 0]);
        frame
    };
    for (key, version) in [(4, 0), (999, 3), (-1, 0), (3, 99), (3, -1), (1, 3)] {
        broker.send_bytes(client, &request(key, version));
        broker.run();
        let frame = broker.take_frame(client).expect("a response");
        assert_eq!(frame, [0, 0, 0, 7, 0, 35], "{key} of version {version}");
    }
    // ApiVersions in an unknown version returns the list of APIs (KIP-511).
    broker.send_bytes(client, &request(18, 99));
    broker.run();
    let response = broker.take::<ApiVersionsRequest>(client, 0).expect("a response");
    assert_eq!(code(response.error_code), ErrorCode::UnsupportedVersion);
    assert_eq!(response.api_keys.len(), SERVED.len());
    assert!(broker.is_open(client));
}

#[test]
fn a_malformed_frame_closes_only_its_own_connection() {
    let mut broker = Broker::new(2);
    let bystander = broker.connect(1);
    let metadata = |body: &[u8]| {
        let mut frame = vec![0, 0, 0, 10 + body.len() as u8, 0, 3, 0, 8, 0, 0, 0, 1, 0xff, 0xff];
        frame.extend_from_slice(body);
        frame
    };
    let coordinated = |body: &[u8]| {
        let mut frame = vec![0, 0, 0, 10 + body.len() as u8, 0, 19, 0, 4, 0, 0, 0, 1, 0xff, 0xff];
        frame.extend_from_slice(body);
        frame
    };
    let too_long = Config::default().request_bytes_max + 1;
    for (what, bytes) in [
        ("a frame of 2 GiB", vec![0x7f, 0xff, 0xff, 0xff]),
        ("a frame of a length below 0", vec![0xff, 0xff, 0xff, 0xff]),
        ("a frame that is one byte too long", too_long.to_be_bytes().to_vec()),
        ("a frame without a header", vec![0, 0, 0, 2, 0, 3]),
        ("an empty frame", vec![0, 0, 0, 0]),
        ("a truncated array", metadata(&[0x7f, 0xff, 0xff, 0xff])),
        ("a truncated string", metadata(&[0, 0, 0, 1, 0x7f, 0xff])),
        ("a string that is not UTF-8", metadata(&[0, 0, 0, 1, 0, 1, 0xff, 0, 0, 0])),
        ("a truncated body, decoded on another shard", coordinated(&[0, 0, 0, 9])),
    ] {
        let client = broker.connect(1);
        broker.send_bytes(client, &bytes);
        broker.run();
        assert!(!broker.is_open(client), "{what}");
        assert_eq!(broker.take_frame(client), None, "{what}");
    }
    assert!(broker.is_open(bystander));
    assert!(broker.metadata(bystander, None).topics.is_empty());
}

#[test]
fn requests_may_arrive_in_pieces_or_many_at_once() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 3);
    let client = broker.connect(1);
    let request = MetadataRequest { topics: None, ..MetadataRequest::default() };
    let stream: Vec<u8> = (1..=20).flat_map(|id| frame(id, 12, &request)).collect();
    for piece in [1, 7, stream.len()] {
        for bytes in stream.chunks(piece) {
            broker.send_bytes(client, bytes);
        }
        broker.run();
        for id in 1..=20_u8 {
            let frame = broker.take_frame(client).expect("a response");
            assert_eq!(frame[..4], [0, 0, 0, id]);
        }
        assert_eq!(broker.take_frame(client), None);
    }
}

#[test]
fn pipelined_batches_keep_their_order() {
    let mut broker = Broker::new(3);
    broker.create_topic("t", 3);
    let client = broker.connect(1);
    let unix_ms = broker.unix_ms();
    let mut ids = Vec::new();
    for number in 0..60 {
        let records = batch(unix_ms, &[&number.to_string()]);
        ids.push(broker.send(client, 9, &produce_request("t", number % 3, records)));
    }
    let metadata = broker.send(client, 12, &MetadataRequest::default());
    broker.run();
    for id in ids {
        let frame = broker.take_frame(client).expect("a response");
        assert_eq!(frame[..4], id.to_be_bytes());
    }
    assert_eq!(broker.take_frame(client).expect("a response")[..4], metadata.to_be_bytes());
    for index in 0..3 {
        let expected: Vec<String> = (0..20).map(|step| (index + 3 * step).to_string()).collect();
        assert_eq!(broker.fetch(client, "t", index, 0).1, expected);
    }
}

/// Requests already received move with the connection and keep their order.
#[test]
fn a_connection_moves_to_its_partitions_once() {
    let config = Config { follows_partitions: true, ..Config::default() };
    let mut broker = Broker::with(3, config);
    for (index, topic) in (0..).zip(["t", "u", "v"]) {
        broker.create_topic(topic, 3);
        let client = broker.connect(0);
        broker.metadata(client, None);
        assert_eq!(broker.shard_of(client), 0);
        let records = batch(broker.unix_ms(), &["a"]);
        let mut ids = Vec::new();
        for _ in 0..5 {
            ids.push(broker.send(client, 9, &produce_request(topic, index, records.clone())));
            ids.push(broker.send(client, 12, &MetadataRequest::default()));
        }
        broker.run();
        for id in ids {
            assert_eq!(broker.take_frame(client).expect("a response")[..4], id.to_be_bytes());
        }
        let moved_to = broker.shard_of(client);
        assert_eq!(broker.fetch(client, topic, index, 0).1.len(), 5);
        let other = (index + 1) % 3;
        assert_eq!(broker.produce(client, topic, other, &["b"]).error_code, 0);
        assert_eq!(broker.shard_of(client), moved_to);
        assert_eq!(broker.fetch(client, topic, other, 0).1.last().map(String::as_str), Some("b"));
    }
}

#[test]
fn nothing_is_acknowledged_or_fetched_before_it_is_durable() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 2);
    let producers = [broker.connect(0), broker.connect(1)];
    let reader = broker.connect(0);
    for index in 0..2 {
        assert_eq!(broker.produce(producers[0], "t", index, &["first"]).error_code, 0);
    }
    broker.set_stuck(true);
    let records = batch(broker.unix_ms(), &["second"]);
    for (client, index) in producers.into_iter().zip(0..) {
        broker.send(client, 9, &produce_request("t", index, records.clone()));
    }
    broker.run();
    for (client, index) in producers.into_iter().zip(0..) {
        assert!(broker.take::<ProduceRequest>(client, 9).is_none());
        let (response, values) = broker.fetch(reader, "t", index, 0);
        assert_eq!(values, ["first"]);
        assert_eq!(response.responses[0].partitions[0].high_watermark, 1);
    }
    broker.set_stuck(false);
    broker.run();
    for (client, index) in producers.into_iter().zip(0..) {
        let response = broker.take::<ProduceRequest>(client, 9).expect("a response");
        assert_eq!(response.responses[0].partition_responses[0].base_offset, 1);
        assert_eq!(broker.fetch(reader, "t", index, 0).1, ["first", "second"]);
    }
}

#[test]
fn acks_0_gets_no_response_and_an_error_closes_the_connection() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 1);
    let client = broker.connect(1);
    let records = batch(broker.unix_ms(), &["a"]);
    let silent = |topic: &str| ProduceRequest { acks: 0, ..produce_request(topic, 0, records.clone()) };
    broker.send(client, 9, &silent("t"));
    assert_eq!(broker.fetch(client, "t", 0, 0).1, ["a"]);
    broker.send(client, 9, &silent("x"));
    broker.run();
    assert!(!broker.is_open(client));
}

#[test]
fn a_fetch_waits_for_the_first_record_from_any_shard() {
    let mut broker = Broker::new(3);
    broker.create_topic("t", 3);
    let producer = broker.connect(2);
    for (shard, offset) in (0..3).zip(0..) {
        for index in 0..3 {
            let reader = broker.connect(shard);
            broker.send(reader, 12, &fetch_request("t", index, offset, 10_000));
            broker.pass(5_000);
            assert!(broker.take::<FetchRequest>(reader, 12).is_none());
            assert_eq!(broker.produce(producer, "t", index, &["a"]).error_code, 0);
            let response = broker.take::<FetchRequest>(reader, 12).expect("a response");
            assert_eq!(values(&response), ["a"]);
        }
    }
}

#[test]
fn an_empty_fetch_is_answered_after_max_wait_ms() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 2);
    for index in 0..2 {
        let reader = broker.connect(0);
        broker.send(reader, 12, &fetch_request("t", index, 0, 3_000));
        broker.pass(2_500);
        assert!(broker.take::<FetchRequest>(reader, 12).is_none());
        broker.pass(1_000);
        let response = broker.take::<FetchRequest>(reader, 12).expect("a response");
        assert_eq!(code(response.responses[0].partitions[0].error_code), ErrorCode::None);
        assert!(values(&response).is_empty());
    }
}

#[test]
fn a_fetch_waits_for_min_bytes() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 2);
    let producer = broker.connect(0);
    for index in 0..2 {
        let reader = broker.connect(1);
        let request = FetchRequest { min_bytes: 150, ..fetch_request("t", index, 0, 10_000) };
        broker.send(reader, 12, &request);
        assert_eq!(broker.produce(producer, "t", index, &["a"]).error_code, 0);
        assert!(broker.take::<FetchRequest>(reader, 12).is_none(), "one batch is smaller");
        assert_eq!(broker.produce(producer, "t", index, &[&"b".repeat(100)]).error_code, 0);
        let response = broker.take::<FetchRequest>(reader, 12).expect("a response");
        assert_eq!(values(&response).len(), 2);
    }
}

/// Whole batches may add up to fewer bytes than `min_bytes`.
#[test]
fn a_full_fetch_response_does_not_wait_for_min_bytes() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 2);
    let producer = broker.connect(0);
    for index in 0..2 {
        let reader = broker.connect(1);
        let mut request = FetchRequest { min_bytes: 1000, ..fetch_request("t", index, 0, 10_000) };
        request.topics[0].partitions[0].partition_max_bytes = 1000;
        for _ in 0..2 {
            assert_eq!(broker.produce(producer, "t", index, &[&"a".repeat(400)]).error_code, 0);
        }
        broker.send(reader, 12, &request);
        assert!(broker.take::<FetchRequest>(reader, 12).is_none(), "fewer bytes than min_bytes");
        assert_eq!(broker.produce(producer, "t", index, &[&"b".repeat(400)]).error_code, 0);
        let response = broker.take::<FetchRequest>(reader, 12).expect("a response");
        assert_eq!(values(&response).len(), 2, "the third does not fit");
    }
}

/// A shard may report a record while others have not answered yet.
#[test]
fn a_fetch_over_many_shards_misses_no_record() {
    let mut broker = Broker::new(4);
    broker.create_topic("t", 8);
    let producers: Vec<_> = (0..4).map(|shard| broker.connect(shard)).collect();
    let reader = broker.connect(0);
    let mut offsets = [0; 8];
    for (round, index) in (0..200_usize).zip((0..8).cycle()) {
        let mut request = fetch_request("t", 0, 0, 10_000);
        let first = request.topics[0].partitions[0].clone();
        request.topics[0].partitions = (0..)
            .zip(offsets)
            .map(|(partition, fetch_offset)| FetchPartition { partition, fetch_offset, ..first.clone() })
            .collect();
        broker.send(reader, 12, &request);
        // The record arrives at a different stage of the fetch in each round.
        broker.turn(round % 5);
        let records = batch(broker.unix_ms(), &["a"]);
        broker.send(producers[round % 4], 9, &produce_request("t", index, records));
        broker.run();
        let response = broker.take::<FetchRequest>(reader, 12).expect("a response");
        assert_eq!(values(&response), ["a"]);
        offsets[round % 8] += 1;
    }
}

#[test]
fn deleting_a_topic_answers_waiting_clients() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 2);
    let readers = [broker.connect(0), broker.connect(1)];
    let producers = [broker.connect(0), broker.connect(1)];
    for (reader, index) in readers.into_iter().zip(0..) {
        broker.send(reader, 12, &fetch_request("t", index, 0, 300_000));
    }
    broker.run();
    let admin = broker.connect(0);
    let topic_names = vec!["t".to_owned()];
    broker.send(admin, 3, &DeleteTopicsRequest { topic_names, ..DeleteTopicsRequest::default() });
    broker.set_stuck(true);
    let records = batch(broker.unix_ms(), &["a"]);
    for (producer, index) in producers.into_iter().zip(0..) {
        broker.send(producer, 9, &produce_request("t", index, records.clone()));
    }
    broker.run();
    broker.set_stuck(false);
    broker.run();
    assert_eq!(broker.take::<DeleteTopicsRequest>(admin, 3).expect("a response").responses[0].error_code, 0);
    for reader in readers {
        let response = broker.take::<FetchRequest>(reader, 12).expect("a response");
        let error = code(response.responses[0].partitions[0].error_code);
        assert!(error == ErrorCode::UnknownTopicOrPartition || !values(&response).is_empty(), "{error}");
    }
    for producer in producers {
        let response = broker.take::<ProduceRequest>(producer, 9).expect("a response");
        let error = code(response.responses[0].partition_responses[0].error_code);
        assert!(matches!(error, ErrorCode::None | ErrorCode::UnknownTopicOrPartition), "{error}");
    }
}

#[test]
fn a_fetch_session_returns_only_changes() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 4);
    let client = broker.connect(0);
    let mut request = fetch_request("t", 0, 0, 0);
    let first = request.topics[0].partitions[0].clone();
    request.topics[0].partitions =
        (0..4).map(|partition| FetchPartition { partition, ..first.clone() }).collect();
    request.session_epoch = 0;
    let response = broker.ask(client, 12, &request);
    let session_id = response.session_id;
    assert_ne!(session_id, 0);
    assert_eq!(response.responses[0].partitions.len(), 4);
    let next = FetchRequest { session_id, session_epoch: 1, topics: Vec::new(), ..request.clone() };
    assert!(broker.ask(client, 12, &next).responses.is_empty());
    assert_eq!(broker.produce(client, "t", 3, &["a"]).error_code, 0);
    let next = FetchRequest { session_epoch: 2, ..next };
    let response = broker.ask(client, 12, &next);
    assert_eq!(response.responses[0].partitions.len(), 1);
    assert_eq!(values(&response), ["a"]);
    let wrong = FetchRequest { session_epoch: 7, ..next.clone() };
    assert_eq!(code(broker.ask(client, 12, &wrong).error_code), ErrorCode::InvalidFetchSessionEpoch);
    let stranger = broker.connect(0);
    let stolen = FetchRequest { session_epoch: 3, ..next };
    assert_eq!(code(broker.ask(stranger, 12, &stolen).error_code), ErrorCode::FetchSessionIdNotFound);
}

#[test]
fn invalid_batches_are_rejected_and_leave_no_trace() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 2);
    let client = broker.connect(0);
    let good = batch(broker.unix_ms(), &["a", "b"]);
    let changed = |at: usize, to: u8| {
        let mut bytes = good.clone();
        bytes[at] = to;
        bytes
    };
    let two: Vec<u8> = good.iter().chain(&good).copied().collect();
    for (what, records, expected) in [
        ("a wrong checksum", changed(18, !good[18]), ErrorCode::CorruptMessage),
        ("half a batch", good[..good.len() - 3].to_vec(), ErrorCode::CorruptMessage),
        ("an old format", changed(16, 1), ErrorCode::InvalidRecord),
        ("two batches", two, ErrorCode::InvalidRecord),
        ("nothing", Vec::new(), ErrorCode::InvalidRecord),
        ("more records than there are", changed(60, 9), ErrorCode::InvalidRecord),
        ("a control batch", changed(22, 0x20), ErrorCode::InvalidRecord),
        (
            "a control batch in a transaction",
            changed(22, 0x30),
            ErrorCode::TransactionalIdAuthorizationFailed,
        ),
        ("a batch in the future", batch(broker.unix_ms() + 7_200_000, &["a"]), ErrorCode::InvalidTimestamp),
        ("a large batch", batch(broker.unix_ms(), &[&"a".repeat(1_100_000)]), ErrorCode::MessageTooLarge),
    ] {
        for index in 0..2 {
            let request = produce_request("t", index, records.clone());
            let response = broker.ask(client, 9, &request);
            let error = code(response.responses[0].partition_responses[0].error_code);
            assert_eq!(error, expected, "{what}");
        }
    }
    for index in 0..2 {
        assert_eq!(broker.produce(client, "t", index, &["c"]).base_offset, 0);
    }
}

#[test]
fn offsets_are_found_by_time() {
    let mut broker = Broker::new(2);
    broker.create_topic("t", 2);
    let client = broker.connect(1);
    let unix_ms = broker.unix_ms();
    for index in 0..2 {
        for (step, value) in (0..).zip(["a", "b", "c"]) {
            let records = batch(unix_ms + 10 * step, &[value]);
            broker.ask(client, 9, &produce_request("t", index, records));
        }
        for (timestamp, offset) in [
            (-1, 3),
            (-2, 0),
            (-3, 2),
            (-4, 0),
            (unix_ms, 0),
            (unix_ms + 1, 1),
            (unix_ms + 20, 2),
            (unix_ms + 21, -1),
        ] {
            let partition =
                ListOffsetsPartition { partition_index: index, timestamp, ..ListOffsetsPartition::default() };
            let topics = vec![ListOffsetsTopic { name: "t".into(), partitions: vec![partition] }];
            let request = ListOffsetsRequest { topics, replica_id: -1, ..ListOffsetsRequest::default() };
            let response = broker.ask(client, 8, &request);
            assert_eq!(response.topics[0].partitions[0].offset, offset, "at {timestamp}");
        }
    }
}

/// The broker stops reading from a client that does not read its responses. No response is lost.
#[test]
fn unread_responses_are_bounded() {
    let mut broker = Broker::new(2);
    let client = broker.connect(1);
    broker.stall(client);
    let unknown = |number| MetadataRequestTopic {
        name: Some(format!("unknown-{number}")),
        ..MetadataRequestTopic::default()
    };
    let request =
        MetadataRequest { topics: Some((0..1_000).map(unknown).collect()), ..MetadataRequest::default() };
    let count = 100;
    let (mut last, mut refused) = (0, 0);
    for _ in 0..count {
        last = broker.send(client, 12, &request);
        broker.turn(2);
        refused += usize::from(broker.unconsumed(client) > 0);
    }
    assert!(refused > count / 4, "{refused} requests wait outside");
    broker.resume(client);
    broker.run();
    let mut ids_received = Vec::new();
    while let Some(frame) = broker.take_frame(client) {
        assert!(frame.len() > 10_000);
        ids_received.push(i32::from_be_bytes(*frame.first_chunk().expect("an id")));
    }
    assert_eq!(ids_received.len(), count);
    assert!(ids_received.is_sorted() && ids_received.last() == Some(&last));
}

/// KIP-74: the first batch is returned whatever its size; all others respect the limit, on every shard.
#[test]
fn a_fetch_over_several_shards_respects_max_bytes() {
    let mut broker = Broker::new(2);
    broker.create_topic("wide", 4);
    let client = broker.connect(0);
    let large = "x".repeat(900);
    for index in 0..4 {
        assert_eq!(broker.produce(client, "wide", index, &[&large]).error_code, 0);
    }
    let mut offsets = [0; 4];
    for left in (1..=4).rev() {
        let mut request = fetch_request("wide", 0, offsets[0], 0);
        let partition = |(partition, fetch_offset): (i32, i64)| FetchPartition {
            partition,
            fetch_offset,
            ..request.topics[0].partitions[0].clone()
        };
        request.topics[0].partitions = (0..).zip(offsets).map(partition).collect();
        request.max_bytes = 1_000;
        let response: FetchResponse = broker.ask(client, 12, &request);
        assert_eq!(values(&response).len(), 1, "{left} records are left");
        for (partition, offset) in response.responses[0].partitions.iter().zip(&mut offsets) {
            let has_records = partition.records.as_ref().is_some_and(|records| !records.is_empty());
            *offset += i64::from(has_records);
        }
    }
    assert_eq!(offsets, [1; 4]);
}
