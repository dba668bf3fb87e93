//! Bugs of brokers with Kafka clients.

use std::collections::HashMap;
use std::sync::Arc;

use mainstem_kafka::api::add_offsets_to_txn::AddOffsetsToTxnRequest;
use mainstem_kafka::api::add_partitions_to_txn::AddPartitionsToTxnRequest;
use mainstem_kafka::api::delete_topics::DeleteTopicsRequest;
use mainstem_kafka::api::end_txn::EndTxnRequest;
use mainstem_kafka::api::fetch::FetchRequest;
use mainstem_kafka::api::init_producer_id::InitProducerIdRequest;
use mainstem_kafka::api::offset_commit::OffsetCommitRequest;
use mainstem_kafka::api::offset_fetch::OffsetFetchRequest;
use mainstem_kafka::api::produce::ProduceRequest;
use mainstem_kafka::api::sync_group::SyncGroupRequest;
use mainstem_kafka::api::txn_offset_commit::TxnOffsetCommitRequest;
use mainstem_kafka::{Message, Reader, Request, RequestHeader, frame};
use mainstem_log::{Batch, BatchBuilder, batches};
use mainstem_mqtt::QoS;
use mainstem_sim::{FaultInjector, WrapStore};

use super::mqtt::{encode, publish};
use super::stores::{EarlyAcks, Lax, LostBatch};
use super::{Bug, is_turn};

pub(crate) const BUGS: [Bug; 21] = [
    Bug::new("fetches omit the last batch", "was acknowledged at", 2090, || Box::new(LastBatchOmitted)),
    Bug::new("records are acknowledged before they are synced", "and stands", 2099, || Box::new(EarlyAck)),
    Bug::new("nothing is synced", "the high watermark was", 2101, || Box::new(Unsynced)),
    Bug::new("a batch is lost at recovery", "behind", 2080, || Box::new(BatchLost("p-"))),
    Bug::new("repeated batches are appended again", "stands twice", 2080, || Box::new(Unnumbered)),
    Bug::new("records are reordered", "out of order", 2087, || Box::new(Reordered::default())),
    Bug::new("fetches skip a batch", "behind", 2080, || Box::new(BatchSkipped::default())),
    Bug::new("the high watermark goes back", "the high watermark was", 2080, || {
        Box::new(WatermarkGoesBack::default())
    }),
    Bug::new("two producers have one id", "is given to", 2081, || Box::new(SharedProducerId)),
    Bug::new("open transactions are visible", "was not committed yet", 2086, || Box::new(OpenTxnsVisible)),
    Bug::new("aborted transactions are visible", "was aborted, and is shown", 2082, || {
        Box::new(AbortedTxnsVisible)
    }),
    Bug::new("a commit becomes an abort", "was committed, and is called aborted", 2096, || {
        Box::new(OutcomeFlipped(true))
    }),
    Bug::new("an abort becomes a commit", "was aborted, and is shown", 2082, || {
        Box::new(OutcomeFlipped(false))
    }),
    Bug::new("no producer is fenced", "of a fenced producer", 2082, || Box::new(Unfenced)),
    Bug::new("the offset of a transaction goes back", "the committed offset was", 2104, || {
        Box::new(OffsetForgotten(7))
    }),
    Bug::new("a committed offset goes back", "asked for at last", 2084, || Box::new(OffsetForgotten(8))),
    Bug::new("commits of former members succeed", "members: ", 2084, || Box::new(CommitsSucceed)),
    Bug::new("two members have one partition", "is given to", 2080, || Box::new(SharedPartition)),
    Bug::new("topics are not deleted", "and has", 2087, || Box::new(TopicsNotDeleted)),
    Bug::new("messages of a binding are dropped", "is in no topic", 2080, || {
        Box::new(MessagesDropped::default())
    }),
    Bug::new("messages of a binding are duplicated", "of ExactlyOnce stands at", 2080, || {
        Box::new(MessagesDuplicated::default())
    }),
];

struct EarlyAck;

impl FaultInjector for EarlyAck {
    fn wrap(&self) -> WrapStore {
        Arc::new(|store| Box::new(EarlyAcks::new(store)))
    }
}

struct Unsynced;

impl FaultInjector for Unsynced {
    fn wrap(&self) -> WrapStore {
        Arc::new(|store| Box::new(Lax(store)))
    }
}

struct BatchLost(&'static str);

impl FaultInjector for BatchLost {
    fn wrap(&self) -> WrapStore {
        let prefix = self.0;
        Arc::new(move |store| Box::new(LostBatch::new(store, prefix)))
    }
}

/// Decodes a frame, if it is such a request.
fn request<R: Request>(bytes: &[u8]) -> Option<(RequestHeader, R)> {
    let (header, body) = RequestHeader::parse(&bytes[frame::LENGTH_BYTES..]).ok()?;
    let is_it = header.api_key == R::KEY;
    let request = is_it.then(|| R::decode(&mut Reader::new(body), header.api_version).ok())??;
    Some((header, request))
}

fn frame_of<R: Request>(header: &RequestHeader, request: &R) -> Vec<u8> {
    let mut bytes = Vec::new();
    let begun = frame::begin_frame(&mut bytes);
    header.put(&mut bytes);
    request.encode(&mut bytes, header.api_version);
    frame::end_frame(&mut bytes, begun, 0);
    bytes
}

/// Changes the response to such a request.
fn change<R: Request>(api_key: i16, version: i16, body: &mut Vec<u8>, change: impl FnOnce(&mut R::Response)) {
    if api_key != R::KEY {
        return;
    }
    let mut response = R::Response::decode(&mut Reader::new(body), version).expect("a response");
    change(&mut response);
    body.clear();
    response.encode(body, version);
}

/// Batches lose their producer ids and sequence numbers.
struct Unnumbered;

impl FaultInjector for Unnumbered {
    fn kafka_request(&mut self, _client: usize, frame: Vec<u8>) -> Vec<Vec<u8>> {
        let Some((header, mut request)) = request::<ProduceRequest>(&frame) else { return vec![frame] };
        let parts = request.topic_data.iter_mut().flat_map(|topic| &mut topic.partition_data);
        for bytes in parts.filter_map(|part| part.records.as_mut()) {
            let mut builder = BatchBuilder::default();
            for record in Batch::parse(bytes).expect("a batch").records() {
                let record = record.expect("a record");
                builder.push(record.timestamp_ms, record.key, record.value);
            }
            *bytes = builder.finish().to_vec();
        }
        vec![frame_of(&header, &request)]
    }
}

/// Some requests arrive after the next.
#[derive(Default)]
struct Reordered {
    count: u64,
    held: HashMap<usize, Vec<u8>>,
}

impl FaultInjector for Reordered {
    fn kafka_request(&mut self, client: usize, frame: Vec<u8>) -> Vec<Vec<u8>> {
        let is_blind = request::<ProduceRequest>(&frame).is_some_and(|(_, request)| request.acks == 0);
        if let Some(held) = self.held.remove(&client) {
            return vec![frame, held];
        }
        if is_blind && is_turn(&mut self.count, 5) {
            self.held.insert(client, frame);
            return Vec::new();
        }
        vec![frame]
    }
}

/// Some fetches skip a batch.
#[derive(Default)]
struct BatchSkipped(u64);

impl FaultInjector for BatchSkipped {
    fn kafka_response(&mut self, api_key: i16, version: i16, body: &mut Vec<u8>) {
        change::<FetchRequest>(api_key, version, body, |response| {
            let parts = response.responses.iter_mut().flat_map(|topic| &mut topic.partitions);
            for records in parts.filter_map(|part| part.records.as_mut()) {
                if batches(records).count() > 2 && is_turn(&mut self.0, 3) {
                    let mut all = batches(records).map(|batch| batch.header.total_bytes);
                    let (first, second) = (all.next().unwrap_or(0), all.next().unwrap_or(0));
                    drop(all);
                    records.drain(first..first + second);
                }
            }
        });
    }
}

/// Fetches omit the last batch.
struct LastBatchOmitted;

impl FaultInjector for LastBatchOmitted {
    fn kafka_response(&mut self, api_key: i16, version: i16, body: &mut Vec<u8>) {
        change::<FetchRequest>(api_key, version, body, |response| {
            for part in response.responses.iter_mut().flat_map(|topic| &mut topic.partitions) {
                let records = part.records.get_or_insert_default();
                let Some(last) = batches(records).last().map(|batch| batch.header) else { continue };
                if last.end_offset().cast_signed() == part.high_watermark {
                    records.truncate(records.len() - last.total_bytes);
                    part.high_watermark = last.base_offset.cast_signed();
                    part.last_stable_offset = part.last_stable_offset.min(part.high_watermark);
                }
            }
        });
    }
}

/// Some fetches have a high watermark that is too low.
#[derive(Default)]
struct WatermarkGoesBack(u64);

impl FaultInjector for WatermarkGoesBack {
    fn kafka_response(&mut self, api_key: i16, version: i16, body: &mut Vec<u8>) {
        change::<FetchRequest>(api_key, version, body, |response| {
            let parts = response.responses.iter_mut().flat_map(|topic| &mut topic.partitions);
            for part in parts.filter(|part| part.high_watermark > 0) {
                if is_turn(&mut self.0, 7) {
                    part.high_watermark -= 1;
                }
            }
        });
    }
}

struct SharedProducerId;

impl FaultInjector for SharedProducerId {
    fn kafka_response(&mut self, api_key: i16, version: i16, body: &mut Vec<u8>) {
        change::<InitProducerIdRequest>(api_key, version, body, |response| response.producer_id = 7);
    }
}

/// Consumers of committed records read everything.
struct OpenTxnsVisible;

impl FaultInjector for OpenTxnsVisible {
    fn kafka_request(&mut self, _client: usize, frame: Vec<u8>) -> Vec<Vec<u8>> {
        let Some((header, request)) = request::<FetchRequest>(&frame) else { return vec![frame] };
        vec![frame_of(&header, &FetchRequest { isolation_level: 0, ..request })]
    }

    /// Records after the last stable offset would reveal it.
    fn kafka_response(&mut self, api_key: i16, version: i16, body: &mut Vec<u8>) {
        change::<FetchRequest>(api_key, version, body, |response| {
            for part in response.responses.iter_mut().flat_map(|topic| &mut topic.partitions) {
                part.last_stable_offset = part.high_watermark;
            }
        });
    }
}

/// Fetches do not name aborted transactions.
struct AbortedTxnsVisible;

impl FaultInjector for AbortedTxnsVisible {
    fn kafka_response(&mut self, api_key: i16, version: i16, body: &mut Vec<u8>) {
        change::<FetchRequest>(api_key, version, body, |response| {
            for part in response.responses.iter_mut().flat_map(|topic| &mut topic.partitions) {
                part.aborted_transactions = None;
            }
        });
    }
}

/// Transactions that are to end in this way end in the other.
struct OutcomeFlipped(bool);

impl FaultInjector for OutcomeFlipped {
    fn kafka_request(&mut self, _client: usize, frame: Vec<u8>) -> Vec<Vec<u8>> {
        match request::<EndTxnRequest>(&frame) {
            Some((header, request)) if request.committed == self.0 => {
                vec![frame_of(&header, &EndTxnRequest { committed: !self.0, ..request })]
            }
            _ => vec![frame],
        }
    }
}

/// Each client has a transactional id of its own.
struct Unfenced;

impl Unfenced {
    /// Renames the transactional id of such a request.
    fn rename<R: Request>(frame: &[u8], rename: impl FnOnce(&mut R)) -> Option<Vec<u8>> {
        let (header, mut request) = request::<R>(frame)?;
        rename(&mut request);
        Some(frame_of(&header, &request))
    }
}

impl FaultInjector for Unfenced {
    fn kafka_request(&mut self, client: usize, frame: Vec<u8>) -> Vec<Vec<u8>> {
        let name = format!("client {client}");
        let of = |id: &mut Option<String>| *id = id.is_some().then(|| name.clone());
        let renamed =
            Self::rename::<InitProducerIdRequest>(&frame, |request| of(&mut request.transactional_id))
                .or_else(|| {
                    Self::rename::<ProduceRequest>(&frame, |request| of(&mut request.transactional_id))
                })
                .or_else(|| {
                    Self::rename::<AddPartitionsToTxnRequest>(&frame, |request| {
                        request.v3_and_below_transactional_id.clone_from(&name);
                    })
                })
                .or_else(|| {
                    Self::rename::<AddOffsetsToTxnRequest>(&frame, |request| {
                        request.transactional_id.clone_from(&name);
                    })
                })
                .or_else(|| {
                    Self::rename::<TxnOffsetCommitRequest>(&frame, |request| {
                        request.transactional_id.clone_from(&name);
                    })
                })
                .or_else(|| {
                    Self::rename::<EndTxnRequest>(&frame, |request| {
                        request.transactional_id.clone_from(&name);
                    })
                });
        vec![renamed.unwrap_or(frame)]
    }
}

/// Requests of this version find no committed offset.
struct OffsetForgotten(i16);

impl FaultInjector for OffsetForgotten {
    fn kafka_response(&mut self, api_key: i16, version: i16, body: &mut Vec<u8>) {
        if version != self.0 {
            return;
        }
        change::<OffsetFetchRequest>(api_key, version, body, |response| {
            for part in response.topics.iter_mut().flat_map(|topic| &mut topic.partitions) {
                part.committed_offset = -1;
            }
            for topic in response.groups.iter_mut().flat_map(|group| &mut group.topics) {
                topic.partitions.iter_mut().for_each(|part| part.committed_offset = -1);
            }
        });
    }
}

/// Every commit succeeds, as far as the client can see.
struct CommitsSucceed;

impl FaultInjector for CommitsSucceed {
    fn kafka_response(&mut self, api_key: i16, version: i16, body: &mut Vec<u8>) {
        change::<OffsetCommitRequest>(api_key, version, body, |response| {
            for part in response.topics.iter_mut().flat_map(|topic| &mut topic.partitions) {
                part.error_code = 0;
            }
        });
    }
}

/// Every member is assigned the first partition.
struct SharedPartition;

impl FaultInjector for SharedPartition {
    fn kafka_response(&mut self, api_key: i16, version: i16, body: &mut Vec<u8>) {
        change::<SyncGroupRequest>(api_key, version, body, |response| {
            if response.error_code == 0 {
                response.assignment = vec![0; 4];
            }
        });
    }
}

/// Deletions succeed without an effect.
struct TopicsNotDeleted;

impl FaultInjector for TopicsNotDeleted {
    fn kafka_request(&mut self, _client: usize, frame: Vec<u8>) -> Vec<Vec<u8>> {
        let Some((header, request)) = request::<DeleteTopicsRequest>(&frame) else { return vec![frame] };
        vec![frame_of(&header, &DeleteTopicsRequest { topic_names: vec!["none".to_owned()], ..request })]
    }

    fn kafka_response(&mut self, api_key: i16, version: i16, body: &mut Vec<u8>) {
        change::<DeleteTopicsRequest>(api_key, version, body, |response| {
            response.responses.iter_mut().for_each(|topic| topic.error_code = 0);
        });
    }
}

/// Some messages go to a topic without a binding.
#[derive(Default)]
struct MessagesDropped(u64);

impl FaultInjector for MessagesDropped {
    fn to_broker(&mut self, _client: usize, frame: Vec<u8>) -> Vec<Vec<u8>> {
        let astray = publish(&frame)
            .filter(|(_, publish)| publish.qos > QoS::AtMostOnce && is_turn(&mut self.0, 10))
            .map(|(version, publish)| encode(version, mainstem_mqtt::Publish { topic: "lost", ..publish }));
        vec![astray.unwrap_or(frame)]
    }
}

/// Some messages arrive twice.
#[derive(Default)]
struct MessagesDuplicated(u64);

impl FaultInjector for MessagesDuplicated {
    fn to_broker(&mut self, _client: usize, frame: Vec<u8>) -> Vec<Vec<u8>> {
        let again = publish(&frame)
            .filter(|(_, publish)| publish.qos == QoS::ExactlyOnce && is_turn(&mut self.0, 10))
            .map(|(version, publish)| {
                let (qos, packet_id) = (QoS::AtMostOnce, 0);
                encode(version, mainstem_mqtt::Publish { qos, packet_id, dup: false, ..publish })
            });
        std::iter::once(frame).chain(again).collect()
    }
}
