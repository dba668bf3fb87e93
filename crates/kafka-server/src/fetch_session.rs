//! Fetch sessions (KIP-227): a consumer lists its partitions once, then only changes.
//!
//! A consumer of many partitions would otherwise send and receive all of them with each fetch, although few have new
//! records. The broker caches the partitions of the session, and a response lists only those that have changed. Both
//! sides count the requests (the epoch), so that a lost request cannot make their lists differ. A session ends with its
//! connection, and a connection has at most one, which bounds the memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;
use mainstem_kafka::api::fetch::{FetchPartition, FetchRequest};
use mainstem_kafka::{ErrorCode, Uuid};
use mainstem_partition::Watermarks;
use mainstem_runtime::ConnId;

use crate::partition_message::FetchPart;

/// Most partitions of one session. A fetch of more gets no session.
const PARTITIONS_MAX: usize = 50_000;
/// First version of Fetch that names topics by identifier.
const TOPIC_IDS: i16 = 13;
/// Epochs with a special meaning.
const FINAL_EPOCH: i32 = -1;
const INITIAL_EPOCH: i32 = 0;

/// A partition as the consumer names it: by topic identifier or by topic name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PartKey {
    pub(crate) topic_id: Uuid,
    pub(crate) topic: Arc<str>,
    pub(crate) index: i32,
}

impl PartKey {
    pub(crate) fn is_same_topic(&self, other: &Self) -> bool {
        self.topic_id == other.topic_id && self.topic == other.topic
    }
}

/// A partition of a fetch, as Kafka's `CachedPartition`: what the consumer requested, and what the session knows.
#[derive(Clone, Debug)]
pub(crate) struct CachedPartition {
    pub(crate) offset: i64,
    pub(crate) bytes_max: usize,
    /// The leader epoch that the consumer knows; -1 for none.
    pub(crate) current_leader_epoch: i32,
    /// The leader epoch of the last record it has read; -1 if unknown.
    pub(crate) last_fetched_epoch: i32,
    /// The topic name that the identifier resolved to in this session.
    pub(crate) name: Option<Arc<str>>,
    /// The watermarks in the last response of the session.
    pub(crate) last_sent: Option<Watermarks>,
}

#[derive(Debug)]
struct Session {
    conn: ConnId,
    epoch: i32,
    /// Whether the session names topics by identifier.
    has_ids: bool,
    parts: BTreeMap<PartKey, CachedPartition>,
    /// The partition that the next response begins with, so that none starves.
    first: Option<PartKey>,
}

/// The sessions of a shard.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    sessions: HashMap<i32, Session, foldhash::fast::RandomState>,
    last: i32,
}

/// What a request resolves to.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) parts: Vec<(PartKey, CachedPartition)>,
    /// The session identifier in the response; 0 for none.
    pub(crate) session_id: i32,
    /// The response lists only partitions that have changed.
    pub(crate) is_incremental: bool,
}

fn requested_partitions(request: &FetchRequest) -> impl Iterator<Item = (PartKey, CachedPartition)> {
    request.topics.iter().flat_map(|topic| {
        let name: Arc<str> = topic.topic.as_str().into();
        topic.partitions.iter().map(move |part| {
            let key = PartKey { topic_id: topic.topic_id, topic: Arc::clone(&name), index: part.partition };
            let bytes_max = part.partition_max_bytes.max(0).unsigned_abs() as usize;
            let FetchPartition { fetch_offset: offset, current_leader_epoch, last_fetched_epoch, .. } = *part;
            let cached = CachedPartition {
                offset,
                bytes_max,
                current_leader_epoch,
                last_fetched_epoch,
                name: None,
                last_sent: None,
            };
            (key, cached)
        })
    })
}

impl Sessions {
    /// Resolves a request. A connection has one session, whose identifier is in `conn_session`: a new session ends it.
    ///
    /// # Errors
    /// The session does not exist, the epoch is not the next one, or the request does not name topics as the session
    /// does.
    pub(crate) fn resolve(
        &mut self,
        conn: ConnId,
        conn_session: &mut i32,
        version: i16,
        request: &FetchRequest,
    ) -> Result<Plan, ErrorCode> {
        let has_ids = version >= TOPIC_IDS;
        let (id, epoch) = (request.session_id, request.session_epoch);
        if epoch == FINAL_EPOCH || epoch == INITIAL_EPOCH {
            self.remove(std::mem::take(conn_session));
            let parts: Vec<_> = requested_partitions(request).collect();
            let mut session_id = 0;
            if epoch == INITIAL_EPOCH && parts.len() <= PARTITIONS_MAX {
                session_id = self.next_id();
                let parts = parts.iter().cloned().collect();
                self.sessions.insert(session_id, Session { conn, epoch: 1, has_ids, parts, first: None });
                *conn_session = session_id;
            }
            return Ok(Plan { parts, session_id, is_incremental: false });
        }
        let session = self.sessions.get_mut(&id).filter(|session| session.conn == conn);
        let session = session.ok_or(ErrorCode::FetchSessionIdNotFound)?;
        if epoch != session.epoch {
            return Err(ErrorCode::InvalidFetchSessionEpoch);
        }
        if has_ids != session.has_ids {
            return Err(ErrorCode::FetchSessionTopicIdError);
        }
        session.epoch = if epoch == i32::MAX { 1 } else { epoch + 1 };
        for topic in &request.forgotten_topics_data {
            for index in &topic.partitions {
                let topic_name = topic.topic.as_str().into();
                session.parts.remove(&PartKey { topic_id: topic.topic_id, topic: topic_name, index: *index });
            }
        }
        for (key, cached) in requested_partitions(request) {
            let earlier = session.parts.get(&key);
            let (last_sent, name) =
                earlier.map(|earlier| (earlier.last_sent, earlier.name.clone())).unwrap_or_default();
            session.parts.insert(key, CachedPartition { name, last_sent, ..cached });
        }
        if session.parts.len() > PARTITIONS_MAX {
            self.remove(std::mem::take(conn_session));
            return Err(ErrorCode::FetchSessionIdNotFound);
        }
        let parts = match &session.first {
            None => session.parts.iter().map(|(key, cached)| (key.clone(), cached.clone())).collect(),
            Some(first) => {
                let from_first = session.parts.range(first..);
                let before_first = session.parts.range(..first);
                from_first.chain(before_first).map(|(key, cached)| (key.clone(), cached.clone())).collect()
            }
        };
        Ok(Plan { parts, session_id: id, is_incremental: true })
    }

    fn next_id(&mut self) -> i32 {
        loop {
            self.last = self.last.checked_add(1).unwrap_or(1);
            if !self.sessions.contains_key(&self.last) {
                return self.last;
            }
        }
    }

    /// Records the watermarks that a response contains.
    pub(crate) fn set_last_sent(&mut self, id: i32, key: &PartKey, watermarks: Option<Watermarks>) {
        if let Some(cached) = self.sessions.get_mut(&id).and_then(|session| session.parts.get_mut(key)) {
            cached.last_sent = watermarks;
        }
    }

    /// Records the name of a partition's topic.
    pub(crate) fn set_name(&mut self, id: i32, key: &PartKey, name: &Arc<str>) {
        if let Some(cached) = self.sessions.get_mut(&id).and_then(|session| session.parts.get_mut(key)) {
            cached.name = Some(Arc::clone(name));
        }
    }

    /// Sets the partition that the next response of a session begins with.
    pub(crate) fn set_first(&mut self, id: i32, key: PartKey) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.first = Some(key);
        }
    }

    pub(crate) fn remove(&mut self, id: i32) {
        self.sessions.remove(&id);
    }
}

impl CachedPartition {
    pub(crate) fn part(&self, part: u32, id: crate::catalogue::PartitionId) -> FetchPart {
        FetchPart { part, id, offset: self.offset, bytes_max: self.bytes_max }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstem_kafka::api::fetch::{FetchTopic, ForgottenTopic};

    fn request(id: i32, epoch: i32, indexes: &[i32], forgotten: &[i32]) -> FetchRequest {
        let part = |index: &i32| FetchPartition { partition: *index, ..FetchPartition::default() };
        let partitions = indexes.iter().map(part).collect();
        let topic = "t".to_owned();
        let forgotten_topics_data = vec![ForgottenTopic {
            topic: topic.clone(),
            partitions: forgotten.to_vec(),
            ..Default::default()
        }];
        FetchRequest {
            session_id: id,
            session_epoch: epoch,
            topics: vec![FetchTopic { topic, partitions, ..FetchTopic::default() }],
            forgotten_topics_data,
            ..FetchRequest::default()
        }
    }

    fn indexes(plan: &Plan) -> Vec<i32> {
        plan.parts.iter().map(|(key, _)| key.index).collect()
    }

    #[test]
    fn session_applies_changes_and_rotates_partitions() {
        let (conn, mut conn_session) = (ConnId::from_parts(0, 1), 0);
        let mut sessions = Sessions::default();
        let plan = sessions.resolve(conn, &mut conn_session, 12, &request(0, 0, &[0, 1, 2], &[])).unwrap();
        assert!(!plan.is_incremental && plan.session_id == conn_session && conn_session != 0);
        let next = request(conn_session, 1, &[5], &[1]);
        let plan = sessions.resolve(conn, &mut conn_session, 12, &next).unwrap();
        assert!(plan.is_incremental);
        assert_eq!(indexes(&plan), [0, 2, 5]);
        sessions.set_first(conn_session, plan.parts[1].0.clone());
        let next = request(conn_session, 2, &[], &[]);
        let plan = sessions.resolve(conn, &mut conn_session, 12, &next).unwrap();
        assert_eq!(indexes(&plan), [2, 5, 0]);
    }

    #[test]
    fn wrong_epoch_connection_or_topic_form_is_rejected() {
        let (conn, mut conn_session) = (ConnId::from_parts(0, 1), 0);
        let mut sessions = Sessions::default();
        sessions.resolve(conn, &mut conn_session, 12, &request(0, 0, &[0], &[])).unwrap();
        let id = conn_session;
        let mut resolve =
            |conn, epoch| sessions.resolve(conn, &mut id.clone(), 12, &request(id, epoch, &[], &[]));
        assert_eq!(resolve(conn, 7).unwrap_err(), ErrorCode::InvalidFetchSessionEpoch);
        let other = ConnId::from_parts(1, 1);
        assert_eq!(resolve(other, 1).unwrap_err(), ErrorCode::FetchSessionIdNotFound);
        assert!(resolve(conn, 1).is_ok());
        let with_ids = sessions.resolve(conn, &mut conn_session, 13, &request(id, 2, &[], &[]));
        assert_eq!(with_ids.unwrap_err(), ErrorCode::FetchSessionTopicIdError);
    }
}
