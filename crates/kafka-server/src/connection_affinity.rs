//! Connection affinity: a connection moves to the shard that owns its partitions.
//!
//! The kernel assigns a connection to any shard. If another shard owns the partitions, each request costs messages
//! between the two. Most clients use few partitions, so moving the connection avoids these messages.
//!
//! A connection moves at most once, with its first Produce or Fetch. It moves if one other shard owns more than half of
//! the requested partitions. All earlier requests must be answered, because their responses belong to the old shard.

use mainstem_kafka::api::fetch::FetchRequest;
use mainstem_kafka::api::produce::ProduceRequestRef;
use mainstem_kafka::{Message, Reader, RequestHeader, Uuid};
use mainstem_partition::TopicId;
use mainstem_runtime::{ConnId, Io};

use crate::environment::Environment;
use crate::shard::Shard;
use crate::shard_message::Mail;

const PRODUCE: i16 = 0;
const FETCH: i16 = 1;

impl Shard {
    /// Hands a connection over, with this frame, if another shard owns most of its partitions.
    pub(crate) fn hand_over_if_remote(&mut self, io: &mut Io<'_, Mail>, id: ConnId, frame: &[u8]) -> bool {
        let key = frame.first_chunk().map(|key| i16::from_be_bytes(*key));
        if !matches!(key, Some(PRODUCE | FETCH)) || !self.env.shared().config.follows_partitions {
            return false;
        }
        let Some(conn) = self.conns.get_mut(id).filter(|conn| conn.log_in.is_complete()) else {
            return false;
        };
        conn.is_settled = true;
        let session = conn.log_in.session().cloned();
        let is_idle = conn.may_begin(false) && !io.has_output(id);
        let Some(shard) = self.env.preferred_shard(frame).filter(|shard| is_idle && *shard != self.env.me())
        else {
            return false;
        };
        self.remove_connection(io, id);
        match session {
            Some(session) => io.hand_over_with(id, shard, Box::new(session)),
            None => io.hand_over(id, shard),
        }
        true
    }
}

impl Environment {
    /// The shard that owns more than half of the partitions of a Produce or Fetch.
    fn preferred_shard(&mut self, frame: &[u8]) -> Option<usize> {
        self.refresh();
        let (header, body) = RequestHeader::parse(frame).ok()?;
        let mut counts = vec![0_usize; self.shared().shards];
        let mut total = 0;
        let mut count = |name: &str, topic: Uuid, index: i32| {
            let topic = match topic {
                Uuid::ZERO => self.catalogue().topic(name),
                topic => self.catalogue().topic_by_id(TopicId(topic.0)),
            };
            if let Some(store_id) = topic.and_then(|topic| topic.store_id(index)) {
                counts[self.shared().owner(store_id)] += 1;
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
}
