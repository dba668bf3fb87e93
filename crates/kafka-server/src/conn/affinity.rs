//! Connection affinity: a connection moves to the shard that owns its partitions.
//!
//! The kernel assigns a connection to any shard. If another shard owns the partitions, each request costs messages
//! between the two. Most clients use few partitions, so moving the connection avoids these messages.
//!
//! A connection moves at most once, with its first Produce or Fetch. It moves if one other shard owns more than half of
//! the requested partitions. All earlier requests must be answered, because their responses belong to the old shard.

use std::sync::Arc;

use mainstem_kafka::api::fetch::FetchRequest;
use mainstem_kafka::api::produce::ProduceRequestRef;
use mainstem_kafka::{Message, Reader, RequestHeader, Uuid};
use mainstem_partition::TopicId;
use mainstem_runtime::{ConnId, Io};

use super::Connections;
use crate::environment::Environment;
use crate::log_in::Session;

const PRODUCE: i16 = 0;
const FETCH: i16 = 1;

/// Where a connection moves, and its log-in.
#[derive(Debug)]
pub(crate) struct HandOver {
    pub(crate) shard: usize,
    pub(crate) session: Option<Arc<Session>>,
}

impl Connections {
    /// Where a connection moves, with this frame: to another shard that owns most of its partitions, if there is one.
    pub(crate) fn hand_over<M>(
        &mut self,
        env: &mut Environment,
        io: &mut Io<'_, M>,
        id: ConnId,
        frame: &[u8],
    ) -> Option<HandOver> {
        let key = frame.first_chunk().map(|key| i16::from_be_bytes(*key));
        let has_others = env.shared().shards > 1 && env.shared().config.follows_partitions;
        if !matches!(key, Some(PRODUCE | FETCH)) || !has_others {
            return None;
        }
        let conn = self.get_mut(id).filter(|conn| conn.log_in.is_complete())?;
        conn.is_settled = true;
        let session = conn.log_in.session().cloned();
        if !conn.may_begin(false) || io.has_output(id) {
            return None;
        }
        let shard = preferred_shard(env, frame).filter(|shard| *shard != env.me())?;
        Some(HandOver { shard, session })
    }
}

/// The shard that owns more than half of the partitions of a Produce or Fetch.
fn preferred_shard(env: &mut Environment, frame: &[u8]) -> Option<usize> {
    env.refresh();
    let (header, body) = RequestHeader::parse(frame).ok()?;
    let mut counts = vec![0_usize; env.shared().shards];
    let mut total = 0;
    let mut count = |name: &str, topic: Uuid, index: i32| {
        let topic = match topic {
            Uuid::ZERO => env.catalogue().topic(name),
            topic => env.catalogue().topic_by_id(TopicId(topic.0)),
        };
        if let Some(store_id) = topic.and_then(|topic| topic.store_id(index)) {
            counts[env.shared().owner(store_id)] += 1;
            total += 1;
        }
    };
    let mut reader = Reader::new(body);
    if header.api_key == PRODUCE {
        let request = ProduceRequestRef::decode(&mut reader, header.api_version).ok()?;
        for topic in &request.topics {
            topic.partitions.iter().for_each(|part| count(topic.name, topic.topic_id, part.index));
        }
    } else {
        let request = FetchRequest::decode(&mut reader, header.api_version).ok()?;
        for topic in &request.topics {
            topic.partitions.iter().for_each(|part| count(&topic.topic, topic.topic_id, part.partition));
        }
    }
    (0..counts.len()).find(|shard| counts[*shard] * 2 > total)
}
