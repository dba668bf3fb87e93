//! A connection moves to its partitions: most producers and consumers of few partitions then cause no mail.
//!
//! It moves once at most, with its first Produce or Fetch, if all that went before has been answered and most of
//! what it asks for is on one other shard.

use mainstem_kafka::api::fetch::FetchRequest;
use mainstem_kafka::api::produce::ProduceRequestRef;
use mainstem_kafka::{Message, Reader, RequestHeader, Uuid};
use mainstem_runtime::{ConnId, Io};

use crate::mail::Mail;
use crate::shard::Shard;

const PRODUCE: i16 = 0;
const FETCH: i16 = 1;

impl Shard {
    /// Hands a connection over, with this frame, if it is better off elsewhere.
    pub(crate) fn follows(&mut self, io: &mut Io<'_, Mail>, id: ConnId, frame: &[u8]) -> bool {
        let key = frame.first_chunk().map(|key| i16::from_be_bytes(*key));
        if !matches!(key, Some(PRODUCE | FETCH)) || !self.shared.config.follows_partitions {
            return false;
        }
        let Some(conn) = self.conn_mut(id) else { return false };
        conn.is_settled = true;
        let is_idle = conn.may_begin(false) && !io.has_output(id);
        let Some(shard) = self.place_for(frame).filter(|shard| is_idle && *shard != self.me) else {
            return false;
        };
        self.leave(io, id);
        io.hand_over(id, shard);
        true
    }

    /// The shard that has more than half of the partitions of a Produce or Fetch; nothing if none has.
    fn place_for(&mut self, frame: &[u8]) -> Option<usize> {
        self.shared.refresh(&mut self.catalogue);
        let (header, body) = RequestHeader::parse(frame).ok()?;
        let mut counts = vec![0_usize; self.shared.shards];
        let mut all = 0;
        let mut count = |name: &str, topic: Uuid, index: i32| {
            let topic = match topic {
                Uuid::ZERO => self.catalogue.topic(name),
                topic => self.catalogue.topic_by_id(topic),
            };
            if let Some(home) = topic.and_then(|topic| topic.home(index)) {
                counts[self.shared.owner(home)] += 1;
                all += 1;
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
        (0..counts.len()).find(|shard| counts[*shard] * 2 > all)
    }
}
