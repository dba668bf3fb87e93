//! Decodes arbitrary bytes as a request or response of any Kafka API: decoding never panics, and a decoded message
//! encodes to bytes that decode to the same message and are not longer.
//!
//! Input: a byte, even for a request and odd for a response; then a request header and the body.

#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstem_kafka::api::Visitor;
use mainstem_kafka::api::fetch::{FetchRequest, FetchResponse, FetchResponseWriter};
use mainstem_kafka::api::produce::{ProduceRequest, ProduceRequestRef};
use mainstem_kafka::{Message, Reader, Request, RequestHeader, api};

fuzz_target!(|input: &[u8]| {
    let Some((&direction, frame)) = input.split_first() else { return };
    let Ok((header, body)) = RequestHeader::parse(frame) else { return };
    let mut put = Vec::new();
    header.put(&mut put);
    assert!(put.len() <= frame.len() - body.len(), "the canonical header is never longer");
    assert_eq!(RequestHeader::parse(&put), Ok((header.clone(), [].as_slice())));
    api::visit(&mut Frame { header, body, asks: direction % 2 == 0 });
});

struct Frame<'a> {
    header: RequestHeader,
    body: &'a [u8],
    asks: bool,
}

impl Visitor for Frame<'_> {
    fn visit<R: Request>(&mut self) {
        let version = self.header.api_version;
        if R::KEY != self.header.api_key || !R::VERSIONS.contains(&version) {
            return;
        }
        if self.asks {
            check::<R>(self.body, version);
        } else {
            check::<R::Response>(self.body, version);
        }
        match (R::KEY, self.asks) {
            (ProduceRequest::KEY, true) => check_borrowed(self.body, version),
            (FetchRequest::KEY, false) => check_in_pieces(self.body, version),
            _ => {}
        }
    }
}

fn encoded<M: Message>(message: &M, version: i16) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes, version);
    bytes
}

/// Compares bytes, because NaN is not equal to itself.
fn check<M: Message>(body: &[u8], version: i16) {
    let mut reader = Reader::new(body);
    let Ok(message) = M::decode(&mut reader, version) else { return };
    let again = encoded(&message, version);
    assert!(again.len() <= body.len() - reader.remaining(), "the canonical form is never longer");
    let mut reader = Reader::new(&again);
    let once_more = M::decode(&mut reader, version).expect("what decodes can be encoded");
    assert!(reader.is_empty(), "{message:?}");
    assert_eq!(encoded(&once_more, version), again);
}

/// Both decoders of Produce requests return the same, except for unknown tagged fields.
fn check_borrowed(body: &[u8], version: i16) {
    let owned = ProduceRequest::decode(&mut Reader::new(body), version);
    let borrowed = ProduceRequestRef::decode(&mut Reader::new(body), version);
    assert_eq!(owned.is_ok(), borrowed.is_ok());
    let (Ok(owned), Ok(borrowed)) = (owned, borrowed) else { return };
    let records = owned.topic_data.iter().flat_map(|topic| &topic.partition_data);
    let borrowed = borrowed.topics.iter().flat_map(|topic| &topic.partitions);
    assert!(
        records
            .map(|one| (one.index, one.records.as_deref()))
            .eq(borrowed.map(|one| (one.index, one.records)))
    );
}

/// A response written in parts equals one written at once, if it names no brokers and has no null records.
fn check_in_pieces(body: &[u8], version: i16) {
    let Ok(mut response) = FetchResponse::decode(&mut Reader::new(body), version) else { return };
    response.node_endpoints.clear();
    let FetchResponse { throttle_time_ms, error_code, session_id, .. } = response;
    let topics = response.responses.len();
    let mut out = Vec::new();
    let mut writer =
        FetchResponseWriter::begin(&mut out, version, throttle_time_ms, error_code, session_id, topics);
    for topic in &mut response.responses {
        writer.topic(&mut out, &topic.topic, topic.topic_id, topic.partitions.len());
        for partition in &mut topic.partitions {
            let records = partition.records.get_or_insert_default().clone();
            writer.partition(&mut out, partition);
            writer.records_from(&mut out, |out| out.extend_from_slice(&records));
        }
    }
    writer.finish(&mut out);
    assert_eq!(out, encoded(&response, version));
}
