//! Random messages of every API in every version: round trips, comparison with another codec, truncation, corruption.
//!
//! A round trip alone does not find an error that both directions share, so the `kafka-protocol` crate decodes and
//! encodes the same bytes as a reference. Truncated and corrupted messages must give an error or a message, within a
//! bound of memory.

use allocation_counter::measure;
use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey, RequestKind, ResponseKind};

use crate::api;
use crate::api::fetch::{FetchRequest, FetchResponse, FetchResponseWriter};
use crate::api::produce::{ProduceRequest, ProduceRequestRef, has_more_partitions};
use crate::decoder::Decoder;
use crate::message::{Message, Request};
use crate::reader::{DecodeError, Reader};
use crate::sample::{Random, Sample, SampleVisitor};
use crate::uuid::Uuid;
use crate::wire::Form;

fn encoded<M: Message>(message: &M, version: i16) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes, version);
    bytes
}

/// Decodes all of `bytes`.
fn decoded<M: Message>(bytes: &[u8], version: i16) -> Result<M, DecodeError> {
    let mut reader = Reader::new(bytes);
    let message = M::decode(&mut reader, version)?;
    assert!(reader.is_empty(), "{message:?} leaves {:?}", reader.rest());
    Ok(message)
}

/// A check of random messages.
trait Check {
    /// Messages per API, direction and version.
    const ROUNDS: u64;

    fn check<M: Message>(&mut self, api: MessageId, message: &M, random: &mut Random);
}

/// Identifies the message type and version.
#[derive(Clone, Copy, Debug)]
struct MessageId {
    key: i16,
    version: i16,
    is_request: bool,
}

struct CheckAll<C>(C);

impl<C: Check> SampleVisitor for CheckAll<C> {
    fn visit<R: Request<Response: Sample> + Sample>(&mut self) {
        for version in R::VERSIONS {
            let form = Form::of(version, R::FLEXIBLE_FROM);
            for seed in 0..C::ROUNDS {
                let mut random = Random(seed);
                let request = R::sample(&mut random, form);
                self.0.check(MessageId { key: R::KEY, version, is_request: true }, &request, &mut random);
                let response = R::Response::sample(&mut random, form);
                self.0.check(MessageId { key: R::KEY, version, is_request: false }, &response, &mut random);
            }
        }
    }
}

fn check_all<C: Check>(check: C) -> C {
    let mut all = CheckAll(check);
    api::visit_samples(&mut all);
    all.0
}

#[test]
fn messages_round_trip() {
    struct RoundTrip;
    impl Check for RoundTrip {
        const ROUNDS: u64 = 60;

        fn check<M: Message>(&mut self, api: MessageId, message: &M, _: &mut Random) {
            let bytes = encoded(message, api.version);
            assert_eq!(decoded(&bytes, api.version).as_ref(), Ok(message), "{api:?}");
        }
    }
    check_all(RoundTrip);
}

/// Decodes the message at the front of `bytes` in steps of so many elements.
fn decoded_in_steps<M: Message>(bytes: &[u8], version: i16, elements: usize) -> Result<M, DecodeError> {
    let mut decoder = Decoder::new(version);
    loop {
        if let Some(message) = decoder.step(bytes, elements)? {
            return Ok(message);
        }
    }
}

#[test]
fn decoding_in_steps_gives_the_same_messages_and_errors() {
    struct Steps;
    impl Check for Steps {
        const ROUNDS: u64 = 20;

        fn check<M: Message>(&mut self, api: MessageId, message: &M, random: &mut Random) {
            let bytes = encoded(message, api.version);
            for elements in [1, 2, 7] {
                let decoded = decoded_in_steps::<M>(&bytes, api.version, elements);
                assert_eq!(decoded.as_ref(), Ok(message), "{api:?} in steps of {elements}");
            }
            let mut corrupted = bytes;
            if corrupted.is_empty() {
                return;
            }
            let at = random.below(corrupted.len());
            corrupted[at] = if random.below(2) == 0 { 0xFF } else { random.next() as u8 };
            let whole = M::decode(&mut Reader::new(&corrupted), api.version);
            let in_steps = decoded_in_steps::<M>(&corrupted, api.version, 1);
            assert_eq!(format!("{in_steps:?}"), format!("{whole:?}"), "{api:?}: {corrupted:?}");
        }
    }
    check_all(Steps);
}

/// API keys and versions that the other codec does not support.
const UNSUPPORTED_BY_REFERENCE: [(i16, i16); 5] = [(2, 11), (8, 10), (9, 10), (27, 2), (35, 5)];

#[test]
fn encoding_matches_the_reference_codec() {
    struct Reference {
        messages: usize,
    }
    impl Check for Reference {
        const ROUNDS: u64 = 30;

        fn check<M: Message>(&mut self, api: MessageId, message: &M, _: &mut Random) {
            if UNSUPPORTED_BY_REFERENCE.contains(&(api.key, api.version)) {
                return;
            }
            let bytes = encoded(message, api.version);
            assert_eq!(reference_round_trip(api, &bytes), bytes, "{api:?} {message:?}");
            self.messages += 1;
        }
    }
    assert!(check_all(Reference { messages: 0 }).messages > 10_000);
}

/// Decodes and encodes `bytes` with the other codec.
fn reference_round_trip(api: MessageId, bytes: &[u8]) -> Vec<u8> {
    let key = ApiKey::try_from(api.key).expect("a key that the other codec supports");
    let mut body = Bytes::copy_from_slice(bytes);
    let mut out = BytesMut::new();
    let outcome = if api.is_request {
        RequestKind::decode(key, &mut body, api.version).and_then(|kind| kind.encode(&mut out, api.version))
    } else {
        ResponseKind::decode(key, &mut body, api.version).and_then(|kind| kind.encode(&mut out, api.version))
    };
    outcome.unwrap_or_else(|error| panic!("{api:?}: {error:#} in {bytes:?}"));
    assert!(body.is_empty(), "{api:?}: the other codec leaves {body:?}");
    out.to_vec()
}

#[test]
fn rejects_truncated_messages() {
    struct Truncated;
    impl Check for Truncated {
        const ROUNDS: u64 = 4;

        fn check<M: Message>(&mut self, api: MessageId, message: &M, _: &mut Random) {
            let bytes = encoded(message, api.version);
            for end in 0..bytes.len() {
                let refused = decoded::<M>(&bytes[..end], api.version);
                assert!(refused.is_err(), "{api:?} {message:?} truncated to {end} of {}", bytes.len());
            }
        }
    }
    check_all(Truncated);
}

#[test]
fn corrupted_messages_take_memory_in_proportion() {
    struct Corrupted;
    impl Check for Corrupted {
        const ROUNDS: u64 = 20;

        fn check<M: Message>(&mut self, api: MessageId, message: &M, random: &mut Random) {
            let mut bytes = encoded(message, api.version);
            if bytes.is_empty() {
                return;
            }
            for _ in 0..=random.below(3) {
                let at = random.below(bytes.len());
                bytes[at] = if random.below(2) == 0 { 0xFF } else { random.next() as u8 };
            }
            let mut outcome = Err(DecodeError::Truncated);
            let memory = measure(|| outcome = M::decode(&mut Reader::new(&bytes), api.version)).bytes_max;
            // The largest struct for one byte each, doubled for growing vectors.
            assert!(memory <= 600 * bytes.len() as u64, "{api:?}: {memory} bytes for {}", bytes.len());
            if let Ok(read) = outcome {
                let again = encoded(&read, api.version);
                let reread: M = decoded(&again, api.version).expect("what was decoded can be encoded");
                assert_eq!(encoded(&reread, api.version), again, "{api:?}");
            }
        }
    }
    check_all(Corrupted);
}

#[test]
fn claimed_lengths_allocate_nothing() {
    // 2^31 - 1 topics, followed by nothing.
    let plain = b"\xFF\xFF\0\x01\0\0\0\x0A\x7F\xFF\xFF\xFF";
    let compact = b"\0\0\x01\0\0\0\x0A\xFF\xFF\xFF\xFF\x0F";
    for (bytes, version) in [(plain.as_slice(), 8), (compact, 9)] {
        let mut outcome = Ok(());
        let memory = measure(|| {
            outcome = decoded::<ProduceRequest>(bytes, version).map(drop);
        });
        assert_eq!((outcome, memory.count_total), (Err(DecodeError::Truncated), 0), "version {version}");
        let memory = measure(|| {
            outcome = ProduceRequestRef::decode(&mut Reader::new(bytes), version).map(drop);
        });
        assert_eq!((outcome, memory.count_total), (Err(DecodeError::Truncated), 0), "version {version}");
    }
}

#[test]
fn rejects_arrays_over_the_memory_budget() {
    use crate::api::metadata::{MetadataRequest, MetadataRequestTopic};
    let topics =
        |count| Some(vec![MetadataRequestTopic { name: Some(String::new()), ..Default::default() }; count]);
    let within_limit = MetadataRequest { topics: topics(10_000), ..MetadataRequest::default() };
    assert_eq!(decoded(&encoded(&within_limit, 9), 9), Ok(within_limit));
    let bytes = encoded(&MetadataRequest { topics: topics(2_000_000), ..MetadataRequest::default() }, 9);
    let mut outcome = Ok(());
    let memory = measure(|| outcome = decoded::<MetadataRequest>(&bytes, 9).map(drop));
    assert!(matches!(outcome, Err(DecodeError::Malformed(_))), "{outcome:?}");
    assert_eq!(memory.count_total, 0);
}

#[test]
fn arrays_in_tagged_fields_count_towards_the_budget() {
    use crate::api::api_versions::{ApiVersionsResponse, SupportedFeatureKey};
    let supported_features = vec![SupportedFeatureKey::default(); 1_200_000];
    let response = ApiVersionsResponse { supported_features, ..ApiVersionsResponse::default() };
    let mut bytes = encoded(&response, 3);
    assert_eq!(decoded(&bytes, 3), Ok(response));
    // Repeats the field: error, keys and throttle time come before the number of tags.
    let tags = 2 + 1 + 4;
    assert_eq!(bytes[tags], 1);
    bytes[tags] = 2;
    bytes.extend_from_within(tags + 1..);
    let refused = decoded::<ApiVersionsResponse>(&bytes, 3);
    assert_eq!(refused, Err(DecodeError::Malformed("the arrays of the message exceed 64 MiB in memory")));
}

#[test]
fn null_is_rejected_where_not_allowed_and_encoded_as_empty() {
    use crate::api::metadata::MetadataRequest;
    let all = MetadataRequest { topics: None, ..MetadataRequest::default() };
    assert_eq!(encoded(&all, 1), [0xFF; 4]);
    assert_eq!(encoded(&all, 0), [0; 4]);
    assert_eq!(decoded(&[0xFF; 4], 1), Ok(all));
    let refused = decoded::<MetadataRequest>(&[0xFF; 4], 0);
    assert!(matches!(refused, Err(DecodeError::Malformed(_))), "{refused:?}");
}

#[test]
fn nullable_struct_is_preceded_by_a_byte() {
    use crate::api::consumer_group_heartbeat::{Assignment, ConsumerGroupHeartbeatResponse, TopicPartitions};
    let response = |assignment| ConsumerGroupHeartbeatResponse {
        throttle_time_ms: 5,
        member_id: Some("m".into()),
        member_epoch: 3,
        heartbeat_interval_ms: 5_000,
        assignment,
        ..Default::default()
    };
    let fields = b"\0\0\0\x05\0\0\0\x02m\0\0\0\x03\0\0\x13\x88".as_slice();
    let with_assignment = |assignment: &[u8]| [fields, assignment, b"\0"].concat();
    let topic = TopicPartitions { topic_id: Uuid(*b"0123456789abcdef"), partitions: vec![7, 8] };
    let topics = Assignment { topic_partitions: vec![topic] };
    for (case, bytes, assignment) in [
        ("null", b"\xFF".as_slice(), None),
        ("no topics", b"\x01\x01\0", Some(Assignment::default())),
        ("one topic", b"\x01\x020123456789abcdef\x03\0\0\0\x07\0\0\0\x08\0\0", Some(topics)),
    ] {
        for version in [0, 1] {
            let response = response(assignment.clone());
            assert_eq!(encoded(&response, version), with_assignment(bytes), "{case}");
            assert_eq!(decoded(&with_assignment(bytes), version), Ok(response), "{case}");
        }
    }
    // Like Kafka, the decoder accepts any negative byte as null and any other as present.
    assert_eq!(decoded(&with_assignment(b"\x80"), 0), Ok(response(None)));
    let with_unknown_tag = with_assignment(b"\0\x01\x01!\x03abc");
    assert_eq!(decoded(&with_unknown_tag, 0), Ok(response(Some(Assignment::default()))));
    let truncated = decoded::<ConsumerGroupHeartbeatResponse>(&[fields, b"\x01"].concat(), 0);
    assert_eq!(truncated, Err(DecodeError::Truncated));
    let claims_too_many = with_assignment(b"\x01\xFF\xFF\xFF\xFF\x0F");
    let mut outcome = Ok(());
    let memory = measure(|| {
        outcome = decoded::<ConsumerGroupHeartbeatResponse>(&claims_too_many, 0).map(drop);
    });
    assert_eq!(outcome, Err(DecodeError::Truncated));
    // The member id.
    assert_eq!(memory.bytes_total, 1);
}

#[test]
fn unknown_tagged_fields_are_skipped() {
    use crate::api::heartbeat::HeartbeatResponse;
    let bytes = b"\0\0\0\x05\0\x1B\x02\x00\x01!\x63\x03abc";
    let expected = HeartbeatResponse { throttle_time_ms: 5, error_code: 27 };
    assert_eq!(decoded(bytes, 4), Ok(expected));
}

#[test]
fn long_string_is_truncated_at_a_character() {
    use crate::api::heartbeat::HeartbeatRequest;
    let request = HeartbeatRequest { group_id: "é".repeat(20_000), ..HeartbeatRequest::default() };
    for version in [3, 4] {
        let read: HeartbeatRequest = decoded(&encoded(&request, version), version).unwrap();
        assert_eq!(read.group_id, "é".repeat(16_383), "version {version}");
    }
    // The compact length of 32,768 bytes.
    let too_long = [vec![0x81, 0x80, 0x02], vec![b'x'; 32_768]].concat();
    assert!(matches!(decoded::<HeartbeatRequest>(&too_long, 4), Err(DecodeError::Malformed(_))));
}

#[test]
fn borrowed_produce_request_matches_the_owned_one() {
    for version in ProduceRequest::VERSIONS {
        for seed in 0..100 {
            let form = Form::of(version, ProduceRequest::FLEXIBLE_FROM);
            let request = ProduceRequest::sample(&mut Random(seed), form);
            let bytes = encoded(&request, version);
            let mut reader = Reader::new(&bytes);
            let borrowed = ProduceRequestRef::decode(&mut reader, version).unwrap();
            assert!(reader.is_empty());
            assert_eq!(ProduceRequestRef::from(&request), borrowed);
            let items: usize = request.topic_data.iter().map(|topic| 1 + topic.partition_data.len()).sum();
            assert_eq!(has_more_partitions(&bytes, version, items), Ok(false));
            assert_eq!(has_more_partitions(&bytes, version, items.saturating_sub(1)), Ok(items > 0));
            assert_eq!(borrowed.transactional_id, request.transactional_id.as_deref());
            assert_eq!((borrowed.acks, borrowed.timeout_ms), (request.acks, request.timeout_ms));
            assert_eq!(borrowed.topics.len(), request.topic_data.len());
            for (borrowed, owned) in borrowed.topics.iter().zip(&request.topic_data) {
                assert_eq!((borrowed.name, borrowed.topic_id), (owned.name.as_str(), owned.topic_id));
                let borrowed: Vec<_> =
                    borrowed.partitions.iter().map(|one| (one.index, one.records)).collect();
                let owned = owned.partition_data.iter().map(|one| (one.index, one.records.as_deref()));
                assert_eq!(borrowed, owned.collect::<Vec<_>>());
            }
            for end in 0..bytes.len() {
                ProduceRequestRef::decode(&mut Reader::new(&bytes[..end]), version).expect_err("truncated");
            }
        }
    }
}

#[test]
fn fetch_response_writer_matches_the_message_codec() {
    for version in FetchRequest::VERSIONS {
        for seed in 0..100 {
            let form = Form::of(version, FetchRequest::FLEXIBLE_FROM);
            let mut random = Random(seed);
            let mut response = FetchResponse::sample(&mut random, form);
            response.node_endpoints = Vec::new();
            for partition in response.responses.iter_mut().flat_map(|topic| &mut topic.partitions) {
                let long = [0, 1, 126, 127, 16_382, 16_383, 2_097_150, 2_097_151][random.below(8)];
                partition.records =
                    Some(vec![7; if random.below(20) == 0 { long } else { random.below(200) }]);
            }
            assert_eq!(
                written_in_pieces(&response, version, &mut random),
                encoded(&response, version),
                "{version}"
            );
        }
    }
}

fn written_in_pieces(response: &FetchResponse, version: i16, random: &mut Random) -> Vec<u8> {
    let mut out = Vec::new();
    let FetchResponse { throttle_time_ms, error_code, session_id, responses, .. } = response;
    let mut writer = FetchResponseWriter::begin(
        &mut out,
        version,
        *throttle_time_ms,
        *error_code,
        *session_id,
        responses.len(),
    );
    for topic in responses {
        writer.topic(&mut out, &topic.topic, topic.topic_id, topic.partitions.len());
        for partition in &topic.partitions {
            writer.partition(&mut out, partition);
            let records = partition.records.as_deref().unwrap();
            match random.below(3) {
                0 => writer.records(&mut out, records),
                1 => writer.records_from(&mut out, |out| out.extend_from_slice(records)),
                _ => {
                    writer.begin_records(&mut out, records.len());
                    out.extend_from_slice(records);
                    writer.end_records(&mut out);
                }
            }
        }
    }
    writer.finish(&mut out);
    out
}
