//! Fetch sessions (KIP-227): a consumer names its partitions once, then only what changes, and hears only of those
//! that have something. A session lives with its connection.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;
use mainstem_kafka::api::fetch::{FetchPartition, FetchRequest};
use mainstem_kafka::{ErrorCode, Uuid};
use mainstem_runtime::ConnId;

use crate::partition::Reach;
use crate::work::FetchPart;

/// Partitions of one session, at most; who asks for more gets no session.
const PARTITIONS_MAX: usize = 50_000;
/// From this version of Fetch on, topics have identifiers instead of names.
const TOPIC_IDS: i16 = 13;
/// Epochs that mean something else than the next of a session.
const FINAL_EPOCH: i32 = -1;
const INITIAL_EPOCH: i32 = 0;

/// A partition as its consumer names it: by the topic's identifier, or by its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PartKey {
    pub(crate) topic_id: Uuid,
    pub(crate) topic: Arc<str>,
    pub(crate) index: i32,
}

/// What a consumer wants of a partition.
#[derive(Clone, Debug)]
pub(crate) struct Want {
    pub(crate) offset: i64,
    pub(crate) bytes_max: usize,
    /// The leader epoch that it has heard of, -1 for none.
    pub(crate) current_leader_epoch: i32,
    /// That of what it has read last, -1 if it does not say.
    pub(crate) last_fetched_epoch: i32,
    /// What the identifier of its topic has named since the session began.
    pub(crate) name: Option<Arc<str>>,
    /// What it was told last.
    pub(crate) told: Option<Reach>,
}

#[derive(Debug)]
struct Session {
    conn: ConnId,
    epoch: i32,
    /// Its requests name topics by identifiers, or none does.
    has_ids: bool,
    parts: BTreeMap<PartKey, Want>,
    /// Where the next response begins, so that each partition has its turn.
    first: Option<PartKey>,
}

/// The sessions of a shard.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    sessions: HashMap<i32, Session, foldhash::fast::RandomState>,
    last: i32,
}

/// What a request comes down to.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) parts: Vec<(PartKey, Want)>,
    /// The session that the response names; 0 for none.
    pub(crate) session_id: i32,
    /// Only partitions that have something are answered.
    pub(crate) is_incremental: bool,
}

fn wants(request: &FetchRequest) -> impl Iterator<Item = (PartKey, Want)> {
    request.topics.iter().flat_map(|topic| {
        let name: Arc<str> = topic.topic.as_str().into();
        topic.partitions.iter().map(move |part| {
            let key = PartKey { topic_id: topic.topic_id, topic: Arc::clone(&name), index: part.partition };
            let bytes_max = part.partition_max_bytes.max(0).unsigned_abs() as usize;
            let FetchPartition { fetch_offset: offset, current_leader_epoch, last_fetched_epoch, .. } = *part;
            let want =
                Want { offset, bytes_max, current_leader_epoch, last_fetched_epoch, name: None, told: None };
            (key, want)
        })
    })
}

impl Sessions {
    /// What is to be fetched for a request of a version. The session of a connection that makes another one ends;
    /// `mine` is the one it has.
    ///
    /// # Errors
    /// There is no such session, the request is not its next, or names topics in another way.
    pub(crate) fn plan(
        &mut self,
        conn: ConnId,
        mine: &mut i32,
        version: i16,
        request: &FetchRequest,
    ) -> Result<Plan, ErrorCode> {
        let has_ids = version >= TOPIC_IDS;
        let (id, epoch) = (request.session_id, request.session_epoch);
        if epoch == FINAL_EPOCH || epoch == INITIAL_EPOCH {
            self.remove(std::mem::take(mine));
            let parts: Vec<_> = wants(request).collect();
            let mut session_id = 0;
            if epoch == INITIAL_EPOCH && parts.len() <= PARTITIONS_MAX {
                session_id = self.next_id();
                let parts = parts.iter().cloned().collect();
                self.sessions.insert(session_id, Session { conn, epoch: 1, has_ids, parts, first: None });
                *mine = session_id;
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
        for (key, want) in wants(request) {
            let known = session.parts.get(&key);
            let (told, name) = known.map(|known| (known.told, known.name.clone())).unwrap_or_default();
            session.parts.insert(key, Want { name, told, ..want });
        }
        if session.parts.len() > PARTITIONS_MAX {
            self.remove(std::mem::take(mine));
            return Err(ErrorCode::FetchSessionIdNotFound);
        }
        let parts = match &session.first {
            None => session.parts.iter().map(|(key, want)| (key.clone(), want.clone())).collect(),
            Some(first) => {
                let behind = session.parts.range(first..);
                let before = session.parts.range(..first);
                behind.chain(before).map(|(key, want)| (key.clone(), want.clone())).collect()
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

    /// Takes note of what a consumer has been told.
    pub(crate) fn told(&mut self, id: i32, key: &PartKey, reach: Option<Reach>) {
        if let Some(want) = self.sessions.get_mut(&id).and_then(|session| session.parts.get_mut(key)) {
            want.told = reach;
        }
    }

    /// Takes note of what the identifier of a partition's topic names.
    pub(crate) fn named(&mut self, id: i32, key: &PartKey, name: &Arc<str>) {
        if let Some(want) = self.sessions.get_mut(&id).and_then(|session| session.parts.get_mut(key)) {
            want.name = Some(Arc::clone(name));
        }
    }

    /// The next response of a session begins with this partition.
    pub(crate) fn begin_with(&mut self, id: i32, key: PartKey) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.first = Some(key);
        }
    }

    pub(crate) fn remove(&mut self, id: i32) {
        self.sessions.remove(&id);
    }
}

impl Want {
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
    fn a_session_remembers_what_was_asked_for() {
        let (conn, mut mine) = (ConnId::from_parts(0, 1), 0);
        let mut sessions = Sessions::default();
        let plan = sessions.plan(conn, &mut mine, 12, &request(0, 0, &[0, 1, 2], &[])).unwrap();
        assert!(!plan.is_incremental && plan.session_id == mine && mine != 0);
        let next = request(mine, 1, &[5], &[1]);
        let plan = sessions.plan(conn, &mut mine, 12, &next).unwrap();
        assert!(plan.is_incremental);
        assert_eq!(indexes(&plan), [0, 2, 5]);
        sessions.begin_with(mine, plan.parts[1].0.clone());
        let next = request(mine, 2, &[], &[]);
        let plan = sessions.plan(conn, &mut mine, 12, &next).unwrap();
        assert_eq!(indexes(&plan), [2, 5, 0]);
    }

    #[test]
    fn another_epoch_or_connection_is_refused() {
        let (conn, mut mine) = (ConnId::from_parts(0, 1), 0);
        let mut sessions = Sessions::default();
        sessions.plan(conn, &mut mine, 12, &request(0, 0, &[0], &[])).unwrap();
        let id = mine;
        let mut ask = |conn, epoch| sessions.plan(conn, &mut id.clone(), 12, &request(id, epoch, &[], &[]));
        assert_eq!(ask(conn, 7).unwrap_err(), ErrorCode::InvalidFetchSessionEpoch);
        let other = ConnId::from_parts(1, 1);
        assert_eq!(ask(other, 1).unwrap_err(), ErrorCode::FetchSessionIdNotFound);
        assert!(ask(conn, 1).is_ok());
        let with_ids = sessions.plan(conn, &mut mine, 13, &request(id, 2, &[], &[]));
        assert_eq!(with_ids.unwrap_err(), ErrorCode::FetchSessionTopicIdError);
    }
}
