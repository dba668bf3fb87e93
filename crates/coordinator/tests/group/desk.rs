//! Groups with a clock, with answers sorted by who has asked, and with a log of what is kept.

use std::collections::BTreeMap;

use mainstem_coordinator::group::{
    Answer, CommittedOffset, Effect, Groups, Heartbeat, JoinAnswer, JoinGroup, Joined, Keep, LeaveGroup,
    Leaving, Left, OffsetCommit, OffsetFetch, OffsetToCommit, OffsetsOf, Settings, SyncGroup, Synced, Topic,
    TransactionEnd, TxnOffsetCommit,
};
use mainstem_coordinator::{Caller, Error, Record};

pub(crate) const GROUP: &str = "group";
pub(crate) const TOPIC: &str = "topic";
pub(crate) const SESSION_MS: u64 = 10_000;
pub(crate) const REBALANCE_MS: u64 = 60_000;

pub(crate) struct Desk {
    pub(crate) groups: Groups,
    pub(crate) now_ms: u64,
    callers: u64,
    answers: BTreeMap<Caller, Answer>,
    pub(crate) log: Vec<Record>,
    /// What is to be kept is refused.
    pub(crate) log_fails: bool,
    /// What has been, oldest first; the groups have not been told.
    pub(crate) refused: Vec<Keep>,
    settings: Settings,
}

impl Default for Desk {
    fn default() -> Self {
        Self::new(Settings::default())
    }
}

impl Desk {
    pub(crate) fn new(settings: Settings) -> Self {
        let mut desk = Self {
            groups: Groups::new(settings.clone()),
            now_ms: 1_000_000,
            callers: 0,
            answers: BTreeMap::new(),
            log: Vec::new(),
            log_fails: false,
            refused: Vec::new(),
            settings,
        };
        desk.groups.restored(desk.now_ms);
        desk
    }

    /// The process ends here, whatever waited, and another one reads what was kept.
    pub(crate) fn restart(&mut self) {
        self.restart_from(&self.log.clone());
    }

    /// The same, from a log that was compacted: of each key only the last record is left, in its place.
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
            self.groups.restore(record).expect("our own record");
        }
        self.groups.restored(self.now_ms);
        self.answers.clear();
    }

    pub(crate) fn caller(&mut self) -> Caller {
        self.callers += 1;
        Caller(self.callers)
    }

    /// Sorts what has come out.
    pub(crate) fn settle(&mut self) {
        while let Some(effect) = self.groups.poll() {
            match effect {
                Effect::Keep { keep, records } => {
                    assert!(!records.is_empty(), "nothing is to be kept");
                    if self.log_fails {
                        self.refused.push(keep);
                    } else {
                        self.log.extend(records);
                        self.groups.kept(keep);
                    }
                }
                Effect::Reply { caller, answer } | Effect::ReplyWhenKept { caller, answer } => {
                    let twice = self.answers.insert(caller, answer);
                    assert_eq!(twice, None, "{caller:?} was answered twice");
                }
            }
        }
    }

    /// What the log has refused is told.
    pub(crate) fn tell_refused(&mut self) {
        self.settle();
        while let Some(keep) = self.refused.pop() {
            self.groups.not_kept(keep);
        }
    }

    pub(crate) fn answer(&mut self, caller: Caller) -> Option<Answer> {
        self.settle();
        self.answers.remove(&caller)
    }

    /// Time passes, with all that happens meanwhile.
    pub(crate) fn wait(&mut self, ms: u64) {
        let end_ms = self.now_ms + ms;
        while let Some(next_ms) = self.groups.next_deadline_ms().filter(|next_ms| *next_ms <= end_ms) {
            self.now_ms = self.now_ms.max(next_ms);
            self.groups.tick(self.now_ms);
            let again = self.groups.next_deadline_ms();
            assert!(again.is_none_or(|again| again > self.now_ms), "something stays due");
        }
        self.now_ms = end_ms;
        self.settle();
    }

    pub(crate) fn join(&mut self, who: &Who<'_>) -> Caller {
        let caller = self.caller();
        let request = JoinGroup {
            group_id: GROUP,
            member_id: who.id,
            instance_id: who.instance_id,
            client_id: "client",
            client_host: "/127.0.0.1",
            session_timeout_ms: i32::try_from(who.session_ms).unwrap(),
            rebalance_timeout_ms: i32::try_from(who.rebalance_ms).unwrap(),
            protocol_type: who.protocol_type,
            protocols: who.protocols.iter().map(|(name, metadata)| (*name, metadata.as_bytes())).collect(),
            needs_member_id: who.needs_member_id,
            can_skip_assignment: who.can_skip_assignment,
            random: u128::from(self.callers),
        };
        self.groups.handle_join(self.now_ms, &request, caller);
        caller
    }

    pub(crate) fn joined(&mut self, caller: Caller) -> Option<JoinAnswer> {
        match self.answer(caller)? {
            Answer::Join(answer) => Some(answer),
            other => panic!("{other:?} is no answer to JoinGroup"),
        }
    }

    /// Joins, and is answered at once.
    pub(crate) fn join_now(&mut self, who: &Who<'_>) -> (String, Result<Joined, Error>) {
        let caller = self.join(who);
        let answer = self.joined(caller).expect("an answer at once");
        (answer.member_id, answer.outcome)
    }

    pub(crate) fn sync_as(&mut self, who: &Who<'_>, generation: i32, assignments: &[(&str, &str)]) -> Caller {
        let caller = self.caller();
        let request = SyncGroup {
            group_id: GROUP,
            member_id: who.id,
            instance_id: who.instance_id,
            generation,
            protocol_type: Some(who.protocol_type),
            protocol: Some(who.protocols[0].0),
            assignments: assignments.iter().map(|(id, bytes)| (*id, bytes.as_bytes())).collect(),
        };
        self.groups.handle_sync(self.now_ms, &request, caller);
        caller
    }

    pub(crate) fn sync(&mut self, id: &str, generation: i32, assignments: &[(&str, &str)]) -> Caller {
        self.sync_as(&member(id), generation, assignments)
    }

    pub(crate) fn synced(&mut self, caller: Caller) -> Option<Result<Synced, Error>> {
        match self.answer(caller)? {
            Answer::Sync(answer) => Some(answer),
            other => panic!("{other:?} is no answer to SyncGroup"),
        }
    }

    /// What a member got.
    pub(crate) fn assignment(&mut self, caller: Caller) -> Option<String> {
        let synced = self.synced(caller)?.expect("an assignment");
        Some(String::from_utf8(synced.assignment).unwrap())
    }

    pub(crate) fn heartbeat_as(&mut self, who: &Who<'_>, generation: i32) -> Result<(), Error> {
        let request =
            Heartbeat { group_id: GROUP, member_id: who.id, instance_id: who.instance_id, generation };
        self.groups.handle_heartbeat(self.now_ms, &request)
    }

    pub(crate) fn heartbeat(&mut self, id: &str, generation: i32) -> Result<(), Error> {
        self.heartbeat_as(&member(id), generation)
    }

    pub(crate) fn leave(&mut self, members: &[(&str, Option<&str>)]) -> Vec<Left> {
        let caller = self.caller();
        let members =
            members.iter().map(|(id, instance_id)| Leaving { member_id: id, instance_id: *instance_id });
        let request = LeaveGroup { group_id: GROUP, members: members.collect() };
        self.groups.handle_leave(self.now_ms, &request, caller);
        match self.answer(caller) {
            Some(Answer::Leave(Ok(left))) => left,
            other => panic!("{other:?} is no answer to LeaveGroup"),
        }
    }

    /// Commits one offset.
    pub(crate) fn commit_as(
        &mut self,
        who: &Who<'_>,
        generation: i32,
        partition: i32,
        offset: i64,
    ) -> Result<(), Error> {
        let caller = self.caller();
        let request = OffsetCommit {
            group_id: GROUP,
            member_id: who.id,
            instance_id: who.instance_id,
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

    /// By somebody who is no member.
    pub(crate) fn commit_alone(&mut self, partition: i32, offset: i64) -> Result<(), Error> {
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
            Some(Answer::Commit(topics)) => topics[0].partitions[0].outcome,
            other => panic!("{other:?} is no answer to OffsetCommit"),
        }
    }

    pub(crate) fn end_transaction(&mut self, producer_id: i64, end: TransactionEnd) {
        let caller = self.caller();
        self.groups.handle_transaction_end(producer_id, end, caller);
        assert_eq!(self.answer(caller), Some(Answer::TransactionEnd(Ok(()))));
    }

    /// What is committed for a partition.
    pub(crate) fn fetch(&mut self, partition: i32) -> Option<i64> {
        self.fetch_with(partition, false).expect("no error").map(|committed| committed.offset)
    }

    pub(crate) fn fetch_with(
        &mut self,
        partition: i32,
        require_stable: bool,
    ) -> Result<Option<CommittedOffset>, Error> {
        let caller = self.caller();
        let topics = Some(vec![Topic { name: TOPIC, id: [0; 16], partitions: vec![partition] }]);
        let request = OffsetFetch { groups: vec![OffsetsOf { group_id: GROUP, topics }], require_stable };
        self.groups.handle_offset_fetch(&request, caller);
        match self.answer(caller) {
            Some(Answer::Fetch(groups)) => {
                groups[0].outcome.as_ref().expect("offsets")[0].partitions[0].outcome.clone()
            }
            other => panic!("{other:?} is no answer to OffsetFetch"),
        }
    }

    /// A group of so many members in its first generation, which is stable. Ids in order; the first leads.
    pub(crate) fn stable(&mut self, size: usize) -> Vec<String> {
        let pending: Vec<String> = (0..size).map(|_| self.join_now(&newcomer()).0).collect();
        let callers: Vec<Caller> = pending.iter().map(|id| self.join(&member(id))).collect();
        let joined: Vec<Joined> = callers
            .iter()
            .map(|caller| self.joined(*caller).expect("all are there").outcome.unwrap())
            .collect();
        let leader = joined[0].leader.clone();
        let syncs: Vec<Caller> = pending.iter().map(|id| self.sync(id, joined[0].generation, &[])).collect();
        assert!(syncs.iter().all(|caller| self.assignment(*caller).is_some()));
        let mut ids = pending;
        ids.sort_by_key(|id| *id != leader);
        ids
    }
}

/// What a request says of who sends it.
#[derive(Clone)]
pub(crate) struct Who<'a> {
    pub(crate) id: &'a str,
    pub(crate) instance_id: Option<&'a str>,
    pub(crate) session_ms: u64,
    pub(crate) rebalance_ms: u64,
    pub(crate) protocol_type: &'a str,
    pub(crate) protocols: Vec<(&'a str, &'a str)>,
    pub(crate) needs_member_id: bool,
    pub(crate) can_skip_assignment: bool,
}

/// A member with an identifier.
pub(crate) fn member(id: &str) -> Who<'_> {
    Who {
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

/// Somebody without.
pub(crate) fn newcomer() -> Who<'static> {
    member("")
}

pub(crate) fn statically<'a>(id: &'a str, instance_id: &'a str) -> Who<'a> {
    Who { instance_id: Some(instance_id), ..member(id) }
}

pub(crate) fn one(partition: i32, offset: i64, metadata: &str) -> Vec<Topic<'_, OffsetToCommit<'_>>> {
    let partition = OffsetToCommit { partition, exists: true, offset, leader_epoch: -1, metadata };
    vec![Topic { name: TOPIC, id: [0; 16], partitions: vec![partition] }]
}

/// A subscription as consumers send it.
pub(crate) fn subscription(topics: &[&str]) -> String {
    let mut bytes = vec![0, 0];
    bytes.extend(u32::try_from(topics.len()).unwrap().to_be_bytes());
    for topic in topics {
        bytes.extend(u16::try_from(topic.len()).unwrap().to_be_bytes());
        bytes.extend(topic.as_bytes());
    }
    String::from_utf8(bytes).unwrap()
}
