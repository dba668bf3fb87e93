//! Brokers whose Kafka door has a bug each.

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
use mainstem_sim::Wrap;
use mainstem_sim::kafka::Flaw;

use super::stores::{EarlyAcks, Lax, LostBatch};
use super::{encode, is_turn, publish};

/// Makes a flaw.
type Make = fn() -> Box<dyn Flaw>;

/// All flaws there are, with words of what must be found because of them.
pub(crate) const ALL: [(&str, &str, Make); 21] = [
    ("the last batch is not shown", "was acknowledged at", || Box::new(Shy)),
    ("records are acknowledged before they are synced", "and stands", || Box::new(Early)),
    ("the end goes back at a restart", "the high watermark was", || Box::new(Unsynced)),
    ("a batch is lost at recovery", "behind", || Box::new(Lossy("p-"))),
    ("what comes again is appended again", "stands twice", || Box::new(Unnumbered)),
    ("records are reordered", "out of order", || Box::new(Reordered::default())),
    ("a batch is passed over", "behind", || Box::new(Gap::default())),
    ("the high watermark goes back", "the high watermark was", || Box::new(Back::default())),
    ("two producers are given one id", "is given to", || Box::new(SameId)),
    ("a transaction is shown before its end", "was not committed yet", || Box::new(Hasty)),
    ("an aborted transaction is shown", "was aborted, and is shown", || Box::new(Candid)),
    ("a commit becomes an abort", "was committed, and is called aborted", || Box::new(Flipped(true))),
    ("an abort becomes a commit", "was aborted, and is shown", || Box::new(Flipped(false))),
    ("nobody is fenced", "of a fenced producer", || Box::new(Unfenced)),
    ("an offset of a transaction goes back", "the committed offset was", || Box::new(Forgetful(7))),
    ("an offset goes back", "asked for at last", || Box::new(Forgetful(8))),
    ("commits of former members are taken", "members: ", || Box::new(Unheard)),
    ("two members are given one partition", "is given to", || Box::new(Shared)),
    ("a deleted topic comes back", "and has", || Box::new(Undead)),
    ("a message is thrown away", "is in no topic", || Box::new(Astray::default())),
    ("a message becomes two records", "of ExactlyOnce stands at", || Box::new(Doubled::default())),
];

struct Early;

impl Flaw for Early {
    fn wrap(&self) -> Wrap {
        Arc::new(|store| Box::new(EarlyAcks::new(store)))
    }
}

struct Unsynced;

impl Flaw for Unsynced {
    fn wrap(&self) -> Wrap {
        Arc::new(|store| Box::new(Lax(store)))
    }
}

struct Lossy(&'static str);

impl Flaw for Lossy {
    fn wrap(&self) -> Wrap {
        let prefix = self.0;
        Arc::new(move |store| Box::new(LostBatch::new(store, prefix)))
    }
}

/// The request in a frame, if it is such a one.
fn request<R: Request>(bytes: &[u8]) -> Option<(RequestHeader, R)> {
    let (header, body) = RequestHeader::parse(&bytes[frame::LENGTH_BYTES..]).ok()?;
    let is_it = header.api_key == R::KEY;
    let request = is_it.then(|| R::decode(&mut Reader::new(body), header.api_version).ok())??;
    Some((header, request))
}

fn frame_of<R: Request>(header: &RequestHeader, request: &R) -> Vec<u8> {
    let mut bytes = Vec::new();
    let begun = frame::begin(&mut bytes);
    header.put(&mut bytes);
    request.encode(&mut bytes, header.api_version);
    frame::end(&mut bytes, begun, 0);
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

/// Batches come without their sequence numbers.
struct Unnumbered;

impl Flaw for Unnumbered {
    fn request(&mut self, _client: usize, frame: Vec<u8>) -> Vec<Vec<u8>> {
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

/// Some requests come behind the next.
#[derive(Default)]
struct Reordered {
    count: u64,
    held: HashMap<usize, Vec<u8>>,
}

impl Flaw for Reordered {
    fn request(&mut self, client: usize, frame: Vec<u8>) -> Vec<Vec<u8>> {
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

/// Some responses lack a batch.
#[derive(Default)]
struct Gap(u64);

impl Flaw for Gap {
    fn response(&mut self, api_key: i16, version: i16, body: &mut Vec<u8>) {
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

/// Readers are not told of the last batch.
struct Shy;

impl Flaw for Shy {
    fn response(&mut self, api_key: i16, version: i16, body: &mut Vec<u8>) {
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

/// Some responses name a high watermark that is passed.
#[derive(Default)]
struct Back(u64);

impl Flaw for Back {
    fn response(&mut self, api_key: i16, version: i16, body: &mut Vec<u8>) {
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

/// All producers have the same.
struct SameId;

impl Flaw for SameId {
    fn response(&mut self, api_key: i16, version: i16, body: &mut Vec<u8>) {
        change::<InitProducerIdRequest>(api_key, version, body, |response| response.producer_id = 7);
    }
}

/// Everybody reads all there is.
struct Hasty;

impl Flaw for Hasty {
    fn request(&mut self, _client: usize, frame: Vec<u8>) -> Vec<Vec<u8>> {
        let Some((header, request)) = request::<FetchRequest>(&frame) else { return vec![frame] };
        vec![frame_of(&header, &FetchRequest { isolation_level: 0, ..request })]
    }

    /// What is behind the last stable offset would give it away.
    fn response(&mut self, api_key: i16, version: i16, body: &mut Vec<u8>) {
        change::<FetchRequest>(api_key, version, body, |response| {
            for part in response.responses.iter_mut().flat_map(|topic| &mut topic.partitions) {
                part.last_stable_offset = part.high_watermark;
            }
        });
    }
}

/// Readers are not told of aborted transactions.
struct Candid;

impl Flaw for Candid {
    fn response(&mut self, api_key: i16, version: i16, body: &mut Vec<u8>) {
        change::<FetchRequest>(api_key, version, body, |response| {
            for part in response.responses.iter_mut().flat_map(|topic| &mut topic.partitions) {
                part.aborted_transactions = None;
            }
        });
    }
}

/// Transactions that are to end in this way end in the other.
struct Flipped(bool);

impl Flaw for Flipped {
    fn request(&mut self, _client: usize, frame: Vec<u8>) -> Vec<Vec<u8>> {
        match request::<EndTxnRequest>(&frame) {
            Some((header, request)) if request.committed == self.0 => {
                vec![frame_of(&header, &EndTxnRequest { committed: !self.0, ..request })]
            }
            _ => vec![frame],
        }
    }
}

/// Each producer has a name of its own.
struct Unfenced;

impl Unfenced {
    /// Renames the transactional id of such a request.
    fn rename<R: Request>(frame: &[u8], rename: impl FnOnce(&mut R)) -> Option<Vec<u8>> {
        let (header, mut request) = request::<R>(frame)?;
        rename(&mut request);
        Some(frame_of(&header, &request))
    }
}

impl Flaw for Unfenced {
    fn request(&mut self, client: usize, frame: Vec<u8>) -> Vec<Vec<u8>> {
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

/// Those who ask with this version find no committed offset.
struct Forgetful(i16);

impl Flaw for Forgetful {
    fn response(&mut self, api_key: i16, version: i16, body: &mut Vec<u8>) {
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

/// Whoever commits is told that all is well.
struct Unheard;

impl Flaw for Unheard {
    fn response(&mut self, api_key: i16, version: i16, body: &mut Vec<u8>) {
        change::<OffsetCommitRequest>(api_key, version, body, |response| {
            for part in response.topics.iter_mut().flat_map(|topic| &mut topic.partitions) {
                part.error_code = 0;
            }
        });
    }
}

/// All members are given the first partition.
struct Shared;

impl Flaw for Shared {
    fn response(&mut self, api_key: i16, version: i16, body: &mut Vec<u8>) {
        change::<SyncGroupRequest>(api_key, version, body, |response| {
            if response.error_code == 0 {
                response.assignment = vec![0; 4];
            }
        });
    }
}

/// Topics are said to be deleted, and are not.
struct Undead;

impl Flaw for Undead {
    fn request(&mut self, _client: usize, frame: Vec<u8>) -> Vec<Vec<u8>> {
        let Some((header, request)) = request::<DeleteTopicsRequest>(&frame) else { return vec![frame] };
        vec![frame_of(&header, &DeleteTopicsRequest { topic_names: vec!["none".to_owned()], ..request })]
    }

    fn response(&mut self, api_key: i16, version: i16, body: &mut Vec<u8>) {
        change::<DeleteTopicsRequest>(api_key, version, body, |response| {
            response.responses.iter_mut().for_each(|topic| topic.error_code = 0);
        });
    }
}

/// Some messages go to a topic that is not bound.
#[derive(Default)]
struct Astray(u64);

impl Flaw for Astray {
    fn packet(&mut self, frame: Vec<u8>) -> Vec<Vec<u8>> {
        let astray = publish(&frame)
            .filter(|(_, publish)| publish.qos > QoS::AtMostOnce && is_turn(&mut self.0, 10))
            .map(|(version, publish)| encode(version, mainstem_mqtt::Publish { topic: "lost", ..publish }));
        vec![astray.unwrap_or(frame)]
    }
}

/// Some messages come a second time.
#[derive(Default)]
struct Doubled(u64);

impl Flaw for Doubled {
    fn packet(&mut self, frame: Vec<u8>) -> Vec<Vec<u8>> {
        let again = publish(&frame)
            .filter(|(_, publish)| publish.qos == QoS::ExactlyOnce && is_turn(&mut self.0, 10))
            .map(|(version, publish)| {
                let (qos, packet_id) = (QoS::AtMostOnce, 0);
                encode(version, mainstem_mqtt::Publish { qos, packet_id, dup: false, ..publish })
            });
        std::iter::once(frame).chain(again).collect()
    }
}
