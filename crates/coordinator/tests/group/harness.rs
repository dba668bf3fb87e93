//! Test harness: groups with a clock, a log, and replies by caller.

use std::collections::BTreeMap;

use mainstem_coordinator::group::{
    CommittedOffset, Effect, GroupOffsetFetch, Groups, Heartbeat, JoinGroup, JoinResponse, JoinResult,
    LeaveGroup, LeaveResult, LeavingMember, OffsetCommit, OffsetFetch, OffsetToCommit, Response, Settings,
    SyncGroup, SyncResult, TopicRequest, TransactionEnd, TxnOffsetCommit, WriteId,
};
use mainstem_coordinator::{Caller, Error, Record};

use crate::consumer::TopicTable;

pub(crate) const GROUP: &str = "group";
pub(crate) const TOPIC: &str = "topic";
pub(crate) const SESSION_MS: u64 = 10_000;
pub(crate) const REBALANCE_MS: u64 = 60_000;

pub(crate) struct Harness {
    pub(crate) groups: Groups,
    pub(crate) now_ms: u64,
    callers: u64,
    answers: BTreeMap<Caller, Response>,
    pub(crate) log: Vec<Record>,
    /// Writes are rejected.
    pub(crate) log_rejects_writes: bool,
    /// Rejected writes, oldest first; the groups have not been told yet.
    pub(crate) rejected: Vec<WriteId>,
    settings: Settings,
    /// What members of the classic protocol may subscribe to.
    pub(crate) topics: TopicTable,
}

impl Default for Harness {
    fn default() -> Self {
        Self::new(Settings::default())
    }
}

impl Harness {
    pub(crate) fn new(settings: Settings) -> Self {
        let mut harness = Self {
            groups: Groups::new(settings.clone()),
            now_ms: 1_000_000,
            callers: 0,
            answers: BTreeMap::new(),
            log: Vec::new(),
            log_rejects_writes: false,
            rejected: Vec::new(),
            settings,
            topics: TopicTable::default(),
        };
        harness.groups.finish_restore(harness.now_ms);
        harness
    }

    /// Restarts from the log; pending requests are lost.
    pub(crate) fn restart(&mut self) {
        self.restart_from(&self.log.clone());
    }

    /// Restarts from a compacted log, which only has the last record of each key.
    pub(crate) fn restart_compacted(&mut self) {
        let mut compacted: Vec<Record> = Vec::new();
        for (at, record) in self.log.iter().enumerate() {
            if self.log[at + 1..].iter().all(|later| later.key != record.key) && record.value.is_some() {
                compacted.push(record.clone());
            }
        }
        self.restart_from(&compacted);
    }

    fn restart_from(&mut self, log: &[Record]) {
        self.groups = Groups::new(self.settings.clone());
        for record in log {
            self.groups.restore(record).expect("a record of ours");
        }
        self.groups.finish_restore(self.now_ms);
        self.groups.resolve_topics(&self.topics);
        self.answers.clear();
    }

    pub(crate) fn caller(&mut self) -> Caller {
        self.callers += 1;
        Caller(self.callers)
    }

    /// Performs all effects: appends records to the log and stores replies by caller.
    pub(crate) fn settle(&mut self) {
        while let Some(effect) = self.groups.poll() {
            match effect {
                Effect::Persist { keep, records } => {
                    assert!(!records.is_empty(), "an empty write");
                    if self.log_rejects_writes {
                        self.rejected.push(keep);
                    } else {
                        self.log.extend(records);
                        self.groups.write_succeeded(keep);
                    }
                }
                Effect::Reply { caller, answer } | Effect::ReplyWhenDurable { caller, answer } => {
                    let twice = self.answers.insert(caller, answer);
                    assert_eq!(twice, None, "{caller:?} was answered twice");
                }
            }
        }
    }

    /// Reports all rejected writes, newest first.
    pub(crate) fn fail_rejected_writes(&mut self) {
        self.settle();
        while let Some(keep) = self.rejected.pop() {
            self.groups.write_failed(keep);
        }
    }

    pub(crate) fn answer(&mut self, caller: Caller) -> Option<Response> {
        self.settle();
        self.answers.remove(&caller)
    }

    /// Advances the clock, with all timers on the way.
    pub(crate) fn wait(&mut self, ms: u64) {
        let end_ms = self.now_ms + ms;
        while let Some(next_ms) = self.groups.next_deadline_ms().filter(|next_ms| *next_ms <= end_ms) {
            self.now_ms = self.now_ms.max(next_ms);
            self.groups.tick(self.now_ms);
            let next_ms = self.groups.next_deadline_ms();
            assert!(next_ms.is_none_or(|next_ms| next_ms > self.now_ms), "a timer remains expired");
        }
        self.now_ms = end_ms;
        self.settle();
    }

    pub(crate) fn join(&mut self, spec: &MemberSpec<'_>) -> Caller {
        let caller = self.caller();
        let request = JoinGroup {
            group_id: GROUP,
            member_id: spec.id,
            instance_id: spec.instance_id,
            client_id: "client",
            client_host: "/127.0.0.1",
            session_timeout_ms: i32::try_from(spec.session_ms).unwrap(),
            rebalance_timeout_ms: i32::try_from(spec.rebalance_ms).unwrap(),
            protocol_type: spec.protocol_type,
            protocols: spec.protocols.iter().map(|(name, metadata)| (*name, metadata.as_bytes())).collect(),
            needs_member_id: spec.needs_member_id,
            can_skip_assignment: spec.can_skip_assignment,
            random: u128::from(self.callers),
        };
        self.groups.handle_join(self.now_ms, &request, &self.topics, caller);
        caller
    }

    pub(crate) fn joined(&mut self, caller: Caller) -> Option<JoinResponse> {
        match self.answer(caller)? {
            Response::Join(answer) => Some(answer),
            other => panic!("{other:?} is no answer to JoinGroup"),
        }
    }

    /// Joins; the reply must come at once.
    pub(crate) fn join_now(&mut self, spec: &MemberSpec<'_>) -> (String, Result<JoinResult, Error>) {
        let caller = self.join(spec);
        let answer = self.joined(caller).expect("an answer at once");
        (answer.member_id, answer.outcome)
    }

    pub(crate) fn sync_as(
        &mut self,
        spec: &MemberSpec<'_>,
        generation: i32,
        assignments: &[(&str, &str)],
    ) -> Caller {
        let caller = self.caller();
        let request = SyncGroup {
            group_id: GROUP,
            member_id: spec.id,
            instance_id: spec.instance_id,
            generation,
            protocol_type: Some(spec.protocol_type),
            protocol: Some(spec.protocols[0].0),
            assignments: assignments.iter().map(|(id, bytes)| (*id, bytes.as_bytes())).collect(),
        };
        self.groups.handle_sync(self.now_ms, &request, caller);
        caller
    }

    pub(crate) fn sync(&mut self, id: &str, generation: i32, assignments: &[(&str, &str)]) -> Caller {
        self.sync_as(&member(id), generation, assignments)
    }

    pub(crate) fn synced(&mut self, caller: Caller) -> Option<Result<SyncResult, Error>> {
        match self.answer(caller)? {
            Response::Sync(answer) => Some(answer),
            other => panic!("{other:?} is no answer to SyncGroup"),
        }
    }

    /// The assignment in the SyncGroup response.
    pub(crate) fn assignment(&mut self, caller: Caller) -> Option<String> {
        let synced = self.synced(caller)?.expect("an assignment");
        Some(String::from_utf8(synced.assignment).unwrap())
    }

    pub(crate) fn heartbeat_as(&mut self, spec: &MemberSpec<'_>, generation: i32) -> Result<(), Error> {
        let request =
            Heartbeat { group_id: GROUP, member_id: spec.id, instance_id: spec.instance_id, generation };
        self.groups.handle_heartbeat(self.now_ms, &request)
    }

    pub(crate) fn heartbeat(&mut self, id: &str, generation: i32) -> Result<(), Error> {
        self.heartbeat_as(&member(id), generation)
    }

    pub(crate) fn leave(&mut self, members: &[(&str, Option<&str>)]) -> Vec<LeaveResult> {
        let caller = self.caller();
        let members = members
            .iter()
            .map(|(id, instance_id)| LeavingMember { member_id: id, instance_id: *instance_id });
        let request = LeaveGroup { group_id: GROUP, members: members.collect() };
        self.groups.handle_leave(self.now_ms, &request, caller);
        match self.answer(caller) {
            Some(Response::Leave(Ok(left))) => left,
            other => panic!("{other:?} is no answer to LeaveGroup"),
        }
    }

    /// Commits one offset.
    pub(crate) fn commit_as(
        &mut self,
        spec: &MemberSpec<'_>,
        generation: i32,
        partition: i32,
        offset: i64,
    ) -> Result<(), Error> {
        let caller = self.caller();
        let request = OffsetCommit {
            group_id: GROUP,
            member_id: spec.id,
            instance_id: spec.instance_id,
            generation,
            retention_ms: None,
            no_group: Error::GroupIdNotFound,
            topics: one(partition, offset, ""),
        };
        self.groups.handle_offset_commit(self.now_ms, &request, caller);
        self.committed_outcome(caller)
    }

    pub(crate) fn commit(
        &mut self,
        id: &str,
        generation: i32,
        partition: i32,
        offset: i64,
    ) -> Result<(), Error> {
        self.commit_as(&member(id), generation, partition, offset)
    }

    /// Commits without group membership.
    pub(crate) fn commit_simple(&mut self, partition: i32, offset: i64) -> Result<(), Error> {
        self.commit("", -1, partition, offset)
    }

    pub(crate) fn commit_in_transaction(
        &mut self,
        producer_id: i64,
        who: Option<(&str, i32)>,
        partition: i32,
        offset: i64,
    ) -> Result<(), Error> {
        let caller = self.caller();
        let (member_id, generation) = who.unwrap_or(("", -1));
        let request = TxnOffsetCommit {
            group_id: GROUP,
            producer_id,
            member_id,
            instance_id: None,
            generation,
            topics: one(partition, offset, ""),
        };
        self.groups.handle_txn_offset_commit(self.now_ms, &request, caller);
        self.committed_outcome(caller)
    }

    pub(crate) fn committed_outcome(&mut self, caller: Caller) -> Result<(), Error> {
        match self.answer(caller) {
            Some(Response::Commit(topics)) => topics[0].partitions[0].outcome,
            other => panic!("{other:?} is no answer to OffsetCommit"),
        }
    }

    pub(crate) fn end_transaction(&mut self, producer_id: i64, end: TransactionEnd) {
        let caller = self.caller();
        self.groups.handle_transaction_end(producer_id, end, caller);
        assert_eq!(self.answer(caller), Some(Response::TransactionEnd(Ok(()))));
    }

    /// The committed offset of a partition.
    /// Removes the offsets of a deleted topic from all groups.
    pub(crate) fn forget(&mut self, topic: &str) {
        self.groups.forget_topics([topic.into()].into());
        while self.groups.is_forgetting() {
            self.groups.continue_forgetting(10);
        }
    }

    pub(crate) fn fetch(&mut self, partition: i32) -> Option<i64> {
        self.fetch_with(partition, false).expect("no error").map(|committed| committed.offset)
    }

    pub(crate) fn fetch_with(
        &mut self,
        partition: i32,
        require_stable: bool,
    ) -> Result<Option<CommittedOffset>, Error> {
        let caller = self.caller();
        let topics = Some(vec![TopicRequest { name: TOPIC, id: [0; 16], partitions: vec![partition] }]);
        let request = OffsetFetch {
            groups: vec![GroupOffsetFetch { group_id: GROUP, member_id: None, member_epoch: -1, topics }],
            require_stable,
        };
        self.groups.handle_offset_fetch(&request, caller);
        match self.answer(caller) {
            Some(Response::Fetch(groups)) => {
                groups[0].outcome.as_ref().expect("offsets")[0].partitions[0].outcome.clone()
            }
            other => panic!("{other:?} is no answer to OffsetFetch"),
        }
    }

    /// Creates a stable group with `size` members in its first generation. Returns their ids, the leader's first.
    pub(crate) fn stable(&mut self, size: usize) -> Vec<String> {
        let pending: Vec<String> = (0..size).map(|_| self.join_now(&new_member()).0).collect();
        let callers: Vec<Caller> = pending.iter().map(|id| self.join(&member(id))).collect();
        let joined: Vec<JoinResult> = callers
            .iter()
            .map(|caller| self.joined(*caller).expect("all members have joined").outcome.unwrap())
            .collect();
        let leader = joined[0].leader.clone();
        let syncs: Vec<Caller> = pending.iter().map(|id| self.sync(id, joined[0].generation, &[])).collect();
        assert!(syncs.iter().all(|caller| self.assignment(*caller).is_some()));
        let mut ids = pending;
        ids.sort_by_key(|id| *id != leader);
        ids
    }
}

/// The fields of a request that identify its sender.
#[derive(Clone)]
pub(crate) struct MemberSpec<'a> {
    pub(crate) id: &'a str,
    pub(crate) instance_id: Option<&'a str>,
    pub(crate) session_ms: u64,
    pub(crate) rebalance_ms: u64,
    pub(crate) protocol_type: &'a str,
    pub(crate) protocols: Vec<(&'a str, &'a str)>,
    pub(crate) needs_member_id: bool,
    pub(crate) can_skip_assignment: bool,
}

/// A member with a member id.
pub(crate) fn member(id: &str) -> MemberSpec<'_> {
    MemberSpec {
        id,
        instance_id: None,
        session_ms: SESSION_MS,
        rebalance_ms: REBALANCE_MS,
        protocol_type: "consumer",
        protocols: vec![("range", "")],
        needs_member_id: true,
        can_skip_assignment: true,
    }
}

/// A member without a member id.
pub(crate) fn new_member() -> MemberSpec<'static> {
    member("")
}

pub(crate) fn static_member<'a>(id: &'a str, instance_id: &'a str) -> MemberSpec<'a> {
    MemberSpec { instance_id: Some(instance_id), ..member(id) }
}

pub(crate) fn one(partition: i32, offset: i64, metadata: &str) -> Vec<TopicRequest<'_, OffsetToCommit<'_>>> {
    let partition = OffsetToCommit { partition, refused: None, offset, leader_epoch: -1, metadata };
    vec![TopicRequest { name: TOPIC, id: [0; 16], partitions: vec![partition] }]
}

/// A subscription in the consumer protocol's format.
pub(crate) fn subscription(topics: &[&str]) -> String {
    let mut bytes = vec![0, 0];
    bytes.extend(u32::try_from(topics.len()).unwrap().to_be_bytes());
    for topic in topics {
        bytes.extend(u16::try_from(topic.len()).unwrap().to_be_bytes());
        bytes.extend(topic.as_bytes());
    }
    String::from_utf8(bytes).unwrap()
}
