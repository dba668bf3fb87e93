//! The consumer protocol (KIP-848): members that join, leave, reconcile, and what each of them may do meanwhile.

use std::cell::Cell;
use std::collections::BTreeMap;

use mainstem_coordinator::Error;
use mainstem_coordinator::group::{
    ConsumerHeartbeat, ConsumerHeartbeatResult, GroupConfig, GroupOffsetFetch, OffsetCommit, OffsetFetch,
    OwnedTopic, Refusal, Response, Settings, State, Topic, TopicRequest, Topics, TxnOffsetCommit,
};

use crate::harness::{GROUP, Harness, MemberSpec, REBALANCE_MS, TOPIC, member, new_member, one};

/// Default session timeout of members of the consumer protocol.
pub(crate) const CONSUMER_SESSION_MS: u64 = 45_000;

/// Topics by name: a number that makes the id, and the number of partitions.
#[derive(Default)]
pub(crate) struct TopicTable {
    topics: BTreeMap<String, Topic>,
    version: u64,
    ids: u8,
    /// Number of lookups.
    looked_at: Cell<usize>,
}

impl TopicTable {
    pub(crate) fn of(topics: &[(&str, i32)]) -> Self {
        let mut table = Self::default();
        for (name, partitions) in topics {
            table.create(name, *partitions);
        }
        table
    }

    pub(crate) fn create(&mut self, name: &str, partitions: i32) {
        self.ids += 1;
        self.version += 1;
        self.topics.insert(name.into(), Topic { id: [self.ids; 16], partitions });
    }

    pub(crate) fn extend(&mut self, name: &str, partitions: i32) {
        self.version += 1;
        self.topics.get_mut(name).unwrap().partitions = partitions;
    }

    pub(crate) fn delete(&mut self, name: &str) {
        self.version += 1;
        self.topics.remove(name);
    }

    /// All partitions of topics, as `name-partition`.
    pub(crate) fn all(&self, names: &[&str]) -> Vec<String> {
        let of_topic = |name: &&str| {
            let count = self.topics.get(*name).map_or(0, |topic| topic.partitions);
            (0..count).map(|partition| format!("{name}-{partition}")).collect::<Vec<_>>()
        };
        names.iter().flat_map(of_topic).collect()
    }

    fn name(&self, id: [u8; 16]) -> &str {
        self.topics.iter().find(|(_, topic)| topic.id == id).map_or("deleted", |(name, _)| name)
    }
}

impl Topics for TopicTable {
    fn version(&self) -> u64 {
        self.version
    }

    fn topic(&self, name: &str) -> Option<Topic> {
        self.looked_at.set(self.looked_at.get() + 1);
        self.topics.get(name).copied()
    }

    fn for_each(&self, visit: &mut dyn FnMut(&str, Topic)) {
        for (name, topic) in &self.topics {
            self.looked_at.set(self.looked_at.get() + 1);
            visit(name, *topic);
        }
    }
}

/// A client of the consumer protocol: what it knows and owns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Consumer {
    pub(crate) id: String,
    pub(crate) instance_id: Option<String>,
    pub(crate) epoch: i32,
    pub(crate) owned: BTreeMap<[u8; 16], Vec<i32>>,
    pub(crate) names: Vec<String>,
    pub(crate) regex: Option<String>,
    pub(crate) assignor: Option<String>,
    pub(crate) rebalance_ms: u64,
}

impl Consumer {
    pub(crate) fn of(id: &str, names: &[&str]) -> Self {
        Self {
            id: id.into(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            rebalance_ms: REBALANCE_MS,
            ..Self::default()
        }
    }

    pub(crate) fn with_instance(self, instance_id: &str) -> Self {
        Self { instance_id: Some(instance_id.into()), ..self }
    }

    /// What it owns, as `name-partition`.
    pub(crate) fn owns(&self, topics: &TopicTable) -> Vec<String> {
        let of_topic = |(id, partitions): (&[u8; 16], &Vec<i32>)| {
            let name = topics.name(*id).to_owned();
            partitions.iter().map(|partition| format!("{name}-{partition}")).collect::<Vec<_>>()
        };
        self.owned.iter().flat_map(of_topic).collect()
    }

    /// Sends a heartbeat with an epoch, and everything that the member has to say if `is_full`.
    pub(crate) fn send(
        &self,
        harness: &mut Harness,
        topics: &TopicTable,
        epoch: i32,
        is_full: bool,
    ) -> Result<ConsumerHeartbeatResult, Refusal> {
        let owned = self.owned.iter().filter(|_| epoch != 0);
        let request = ConsumerHeartbeat {
            member_id: &self.id,
            member_epoch: epoch,
            instance_id: self.instance_id.as_deref(),
            rebalance_timeout_ms: if is_full { self.rebalance_ms as i32 } else { -1 },
            topic_names: is_full.then(|| self.names.iter().map(String::as_str).collect()),
            topic_regex: self.regex.as_deref().filter(|_| is_full),
            assignor: self.assignor.as_deref().filter(|_| is_full),
            owned: Some(
                owned.map(|(topic_id, partitions)| OwnedTopic { topic_id: *topic_id, partitions }).collect(),
            ),
            ..request()
        };
        beat(harness, topics, &request)
    }

    /// Joins, and takes what it is assigned.
    pub(crate) fn join(&mut self, harness: &mut Harness, topics: &TopicTable) -> Result<(), Refusal> {
        self.owned.clear();
        let result = self.send(harness, topics, 0, true)?;
        assert!(result.assignment.is_some(), "a member that joins gets its assignment");
        self.take(result);
        Ok(())
    }

    /// Sends a heartbeat, and takes or gives up what the response says.
    pub(crate) fn beat(&mut self, harness: &mut Harness, topics: &TopicTable) -> Result<(), Refusal> {
        let result = self.send(harness, topics, self.epoch, false)?;
        self.take(result);
        Ok(())
    }

    pub(crate) fn take(&mut self, result: ConsumerHeartbeatResult) {
        assert_eq!(result.member_id, self.id);
        self.epoch = result.member_epoch;
        if let Some(topics) = result.assignment {
            self.owned = topics.into_iter().map(|topic| (topic.topic_id, topic.partitions)).collect();
        }
    }

    pub(crate) fn leave(
        &self,
        harness: &mut Harness,
        topics: &TopicTable,
        epoch: i32,
    ) -> Result<(), Refusal> {
        let request = ConsumerHeartbeat {
            member_id: &self.id,
            member_epoch: epoch,
            instance_id: self.instance_id.as_deref(),
            ..request()
        };
        let result = beat(harness, topics, &request)?;
        assert_eq!((result.member_epoch, result.assignment), (epoch, None));
        Ok(())
    }

    fn commit(&self, harness: &mut Harness, epoch: i32) -> Result<(), Error> {
        harness.commit_as(&MemberSpec { instance_id: None, ..member(&self.id) }, epoch, 0, 1)
    }
}

pub(crate) fn request() -> ConsumerHeartbeat<'static> {
    ConsumerHeartbeat {
        group_id: GROUP,
        member_id: "member",
        member_epoch: 0,
        instance_id: None,
        rack_id: None,
        rebalance_timeout_ms: -1,
        topic_names: None,
        topic_regex: None,
        assignor: None,
        owned: None,
        client_id: "client",
        client_host: "/127.0.0.1",
    }
}

fn beat(
    harness: &mut Harness,
    topics: &TopicTable,
    request: &ConsumerHeartbeat<'_>,
) -> Result<ConsumerHeartbeatResult, Refusal> {
    let caller = harness.caller();
    harness.groups.handle_consumer_heartbeat(harness.now_ms, request, topics, caller);
    match harness.answer(caller) {
        Some(Response::ConsumerHeartbeat(answer)) => answer,
        other => panic!("{other:?} is no answer to ConsumerGroupHeartbeat"),
    }
}

/// Sends heartbeats until nothing changes.
pub(crate) fn settle(harness: &mut Harness, topics: &TopicTable, consumers: &mut [&mut Consumer]) {
    for _ in 0..20 {
        for consumer in consumers.iter_mut() {
            consumer.beat(harness, topics).unwrap();
        }
    }
    let group = harness.groups.describe_consumer_group(GROUP).unwrap();
    assert_eq!(group.state, State::Stable);
    assert!(
        group.members.iter().all(|member| member.epoch == group.epoch && member.assignment == member.target)
    );
}

pub(crate) fn error<T: std::fmt::Debug>(outcome: Result<T, Refusal>) -> Error {
    outcome.unwrap_err().error
}

fn setup() -> (Harness, TopicTable) {
    (Harness::default(), TopicTable::of(&[("a", 4), ("b", 2)]))
}

#[test]
fn the_first_member_gets_everything_at_once() {
    let (mut harness, topics) = setup();
    let mut only = Consumer::of("only", &["a", "b", "missing"]);
    only.join(&mut harness, &topics).unwrap();
    assert_eq!(only.epoch, 1);
    assert_eq!(only.owns(&topics), topics.all(&["a", "b"]));
    // Nothing has changed, so nothing is said or stored.
    let (log, looked_at) = (harness.log.len(), topics.looked_at.get());
    let result = only.send(&mut harness, &topics, 1, false).unwrap();
    assert_eq!((result.member_epoch, result.assignment), (1, None));
    assert_eq!((harness.log.len(), topics.looked_at.get()), (log, looked_at));
    // A heartbeat that says everything is answered with everything.
    assert!(only.send(&mut harness, &topics, 1, true).unwrap().assignment.is_some());
}

#[test]
fn a_partition_moves_when_its_owner_has_confirmed() {
    let (mut harness, topics) = setup();
    let (mut first, mut second) = (Consumer::of("1", &["a"]), Consumer::of("2", &["a"]));
    first.join(&mut harness, &topics).unwrap();
    second.join(&mut harness, &topics).unwrap();
    assert_eq!((second.epoch, second.owns(&topics).len()), (2, 0));
    let described = harness.groups.describe_consumer_group(GROUP).unwrap();
    assert_eq!((described.state, described.epoch, described.assignment_epoch), (State::Reconciling, 2, 2));

    // The first is asked to give up two, and remains at its epoch until it has.
    let before = first.clone();
    first.beat(&mut harness, &topics).unwrap();
    assert_eq!((first.epoch, first.owns(&topics).len()), (1, 2));
    assert_eq!(first.commit(&mut harness, 1), Ok(()));
    // It still has them, since it did not get the response.
    let repeated = before.send(&mut harness, &topics, 1, false).unwrap();
    assert_eq!(
        (repeated.member_epoch, repeated.assignment.map(|topics| topics[0].partitions.len())),
        (1, Some(2))
    );
    second.beat(&mut harness, &topics).unwrap();
    assert_eq!(second.owns(&topics).len(), 0);

    first.beat(&mut harness, &topics).unwrap();
    assert_eq!((first.epoch, first.owns(&topics).len()), (2, 2));
    second.beat(&mut harness, &topics).unwrap();
    assert_eq!((second.epoch, second.owns(&topics).len()), (2, 2));
    assert_eq!(harness.groups.describe_consumer_group(GROUP).unwrap().state, State::Stable);
}

#[test]
fn a_member_that_does_not_give_up_partitions_in_time_is_removed() {
    let (mut harness, topics) = setup();
    let (mut first, mut second) = (Consumer::of("1", &["a"]), Consumer::of("2", &["a"]));
    first.join(&mut harness, &topics).unwrap();
    second.join(&mut harness, &topics).unwrap();
    let stuck = first.clone();
    first.beat(&mut harness, &topics).unwrap();
    let mut waited_ms = 0;
    while waited_ms < REBALANCE_MS - 5_000 {
        harness.wait(5_000);
        waited_ms += 5_000;
        stuck.send(&mut harness, &topics, 1, false).unwrap();
        second.beat(&mut harness, &topics).unwrap();
    }
    assert_eq!(second.owns(&topics).len(), 0);
    harness.wait(5_000);
    assert_eq!(error(stuck.send(&mut harness, &topics, 1, false)), Error::UnknownMemberId);
    second.beat(&mut harness, &topics).unwrap();
    assert_eq!(second.owns(&topics), topics.all(&["a"]));
}

#[test]
fn a_silent_member_is_removed_after_the_session_timeout() {
    let (mut harness, topics) = setup();
    let (mut first, mut second) = (Consumer::of("1", &["a"]), Consumer::of("2", &["a"]));
    first.join(&mut harness, &topics).unwrap();
    second.join(&mut harness, &topics).unwrap();
    settle(&mut harness, &topics, &mut [&mut first, &mut second]);
    harness.wait(CONSUMER_SESSION_MS - 1);
    second.beat(&mut harness, &topics).unwrap();
    assert_eq!(second.owns(&topics).len(), 2);
    harness.wait(1);
    second.beat(&mut harness, &topics).unwrap();
    assert_eq!(second.owns(&topics), topics.all(&["a"]));
    assert_eq!(error(first.beat(&mut harness, &topics)), Error::UnknownMemberId);
    // The group remains when nobody is left, until it is deleted.
    harness.wait(2 * CONSUMER_SESSION_MS);
    let described = harness.groups.describe_consumer_group(GROUP).unwrap();
    assert_eq!((described.state, described.members.len()), (State::Empty, 0));
}

#[test]
fn members_leave_for_good() {
    let (mut harness, topics) = setup();
    let (mut first, mut second) = (Consumer::of("1", &["a"]), Consumer::of("2", &["a"]));
    first.join(&mut harness, &topics).unwrap();
    second.join(&mut harness, &topics).unwrap();
    settle(&mut harness, &topics, &mut [&mut first, &mut second]);
    first.leave(&mut harness, &topics, -1).unwrap();
    assert_eq!(error(first.leave(&mut harness, &topics, -1)), Error::UnknownMemberId);
    second.beat(&mut harness, &topics).unwrap();
    assert_eq!(second.owns(&topics), topics.all(&["a"]));
    second.leave(&mut harness, &topics, -1).unwrap();
    let caller = harness.caller();
    harness.groups.handle_delete(harness.now_ms, &[GROUP], caller);
    assert!(matches!(harness.answer(caller), Some(Response::Delete(deleted)) if deleted[0].outcome.is_ok()));
    assert!(harness.groups.is_empty());
    harness.restart();
    assert!(harness.groups.is_empty(), "the log says that the group is gone");
}

#[test]
fn a_static_member_keeps_its_partitions_while_it_restarts() {
    let (mut harness, topics) = setup();
    let mut first = Consumer::of("1", &["a"]).with_instance("i");
    let mut second = Consumer::of("2", &["a"]);
    first.join(&mut harness, &topics).unwrap();
    second.join(&mut harness, &topics).unwrap();
    settle(&mut harness, &topics, &mut [&mut first, &mut second]);
    let (before, epoch) = (first.owns(&topics), first.epoch);

    let mut returned = Consumer::of("1-again", &["a"]).with_instance("i");
    assert_eq!(error(returned.join(&mut harness, &topics)), Error::UnreleasedInstanceId);
    first.leave(&mut harness, &topics, -2).unwrap();
    second.beat(&mut harness, &topics).unwrap();
    assert_eq!(second.owns(&topics).len(), 2, "nothing has changed for the others");
    returned.join(&mut harness, &topics).unwrap();
    assert_eq!((returned.owns(&topics), returned.epoch), (before, epoch));
    assert_eq!(error(first.beat(&mut harness, &topics)), Error::FencedInstanceId);
    assert_eq!(first.commit(&mut harness, epoch), Err(Error::UnknownMemberId));

    returned.leave(&mut harness, &topics, -2).unwrap();
    harness.wait(CONSUMER_SESSION_MS - 1);
    second.beat(&mut harness, &topics).unwrap();
    assert_eq!(second.owns(&topics).len(), 2);
    harness.wait(1);
    second.beat(&mut harness, &topics).unwrap();
    assert_eq!(second.owns(&topics), topics.all(&["a"]), "it has not returned in time");
}

#[test]
fn epochs_fence_members() {
    let (mut harness, topics) = setup();
    let (mut first, mut second) = (Consumer::of("1", &["a"]), Consumer::of("2", &["a"]));
    assert_eq!(error(first.send(&mut harness, &topics, 1, true)), Error::GroupIdNotFound);
    first.join(&mut harness, &topics).unwrap();
    second.join(&mut harness, &topics).unwrap();
    assert_eq!(error(Consumer::of("3", &["a"]).send(&mut harness, &topics, 1, true)), Error::UnknownMemberId);
    assert_eq!(error(first.send(&mut harness, &topics, 2, false)), Error::FencedMemberEpoch);
    settle(&mut harness, &topics, &mut [&mut first, &mut second]);
    assert_eq!((first.epoch, second.epoch), (2, 2));
    // A lost response is repeated, unless the member has more than it should.
    assert_eq!(first.send(&mut harness, &topics, 1, false).unwrap().member_epoch, 2);
    let greedy = Consumer { owned: [([1; 16], vec![0, 1, 2, 3])].into(), ..first.clone() };
    assert_eq!(error(greedy.send(&mut harness, &topics, 1, false)), Error::FencedMemberEpoch);
    for (epoch, outcome) in
        [(1, Err(Error::StaleMemberEpoch)), (2, Ok(())), (3, Err(Error::StaleMemberEpoch))]
    {
        assert_eq!(first.commit(&mut harness, epoch), outcome, "{epoch}");
    }
    assert_eq!(harness.commit("", -1, 0, 1), Err(Error::UnknownMemberId));
    // It begins again and gets what it had.
    let before = first.owns(&topics);
    first.join(&mut harness, &topics).unwrap();
    assert_eq!((first.owns(&topics), first.epoch), (before, 2));
}

#[test]
fn offsets_are_committed_and_fetched_at_the_current_epoch() {
    let (mut harness, topics) = setup();
    let mut only = Consumer::of("only", &["a"]);
    only.join(&mut harness, &topics).unwrap();
    let commit = |harness: &mut Harness, epoch| {
        let caller = harness.caller();
        let request = TxnOffsetCommit {
            group_id: GROUP,
            producer_id: 7,
            member_id: "only",
            instance_id: None,
            generation: epoch,
            topics: one(0, 5, ""),
        };
        harness.groups.handle_txn_offset_commit(harness.now_ms, &request, caller);
        harness.committed_outcome(caller)
    };
    assert_eq!(commit(&mut harness, 2), Err(Error::IllegalGeneration));
    assert_eq!(commit(&mut harness, 1), Ok(()));
    let fetch = |harness: &mut Harness, member_id, member_epoch| {
        let topics = Some(vec![TopicRequest { name: TOPIC, id: [0; 16], partitions: vec![0] }]);
        let groups = vec![GroupOffsetFetch { group_id: GROUP, member_id, member_epoch, topics }];
        let caller = harness.caller();
        harness.groups.handle_offset_fetch(&OffsetFetch { groups, require_stable: false }, caller);
        match harness.answer(caller) {
            Some(Response::Fetch(groups)) => groups[0].outcome.clone().map(|_| ()),
            other => panic!("{other:?} is no answer to OffsetFetch"),
        }
    };
    assert_eq!(fetch(&mut harness, Some("only"), 1), Ok(()));
    assert_eq!(fetch(&mut harness, Some("only"), 2), Err(Error::StaleMemberEpoch));
    assert_eq!(fetch(&mut harness, Some("other"), 1), Err(Error::UnknownMemberId));
    assert_eq!(fetch(&mut harness, None, -1), Ok(()), "an administrator");
}

#[test]
fn topics_that_change_begin_an_epoch() {
    let (mut harness, mut topics) = setup();
    let mut only = Consumer { regex: Some("b.*".into()), ..Consumer::of("only", &["a"]) };
    only.join(&mut harness, &topics).unwrap();
    assert_eq!(only.owns(&topics), topics.all(&["a", "b"]));
    topics.create("b-2", 1);
    topics.create("other", 1);
    topics.extend("a", 5);
    only.beat(&mut harness, &topics).unwrap();
    assert_eq!(only.owns(&topics), [topics.all(&["a", "b"]), topics.all(&["b-2"])].concat());
    assert_eq!(only.epoch, 2);
    topics.create("other-2", 1);
    only.beat(&mut harness, &topics).unwrap();
    assert_eq!(only.epoch, 2, "a topic that nobody is subscribed to");
    topics.delete("b");
    settle(&mut harness, &topics, &mut [&mut only]);
    assert_eq!(only.owns(&topics), topics.all(&["a", "b-2"]));
    // The same name, another topic.
    topics.delete("a");
    topics.create("a", 1);
    settle(&mut harness, &topics, &mut [&mut only]);
    assert_eq!(only.owns(&topics), topics.all(&["b-2", "a"]));
}

#[test]
fn a_restart_keeps_members_epochs_and_partitions() {
    let (mut harness, topics) = setup();
    let (mut first, mut second) = (Consumer::of("1", &["a"]), Consumer::of("2", &["a", "b"]));
    first.assignor = Some("range".into());
    first.join(&mut harness, &topics).unwrap();
    second.join(&mut harness, &topics).unwrap();
    first.beat(&mut harness, &topics).unwrap();
    let before = harness.groups.describe_consumer_group(GROUP).unwrap();
    assert_eq!(before.assignor, "range");
    for is_compacted in [false, true] {
        if is_compacted {
            harness.restart_compacted();
        } else {
            harness.restart();
        }
        assert_eq!(harness.groups.describe_consumer_group(GROUP).unwrap(), before);
        assert_eq!(harness.groups.list(&[], &["consumer"]).len(), 1);
    }
    settle(&mut harness, &topics, &mut [&mut first, &mut second]);
    assert_eq!(
        harness.groups.describe_consumer_group(GROUP).unwrap().epoch,
        before.epoch,
        "nothing has changed"
    );
    harness.restart();
    harness.wait(CONSUMER_SESSION_MS);
    assert_eq!(harness.groups.describe_consumer_group(GROUP).unwrap().members.len(), 0);
}

#[test]
fn a_failed_write_is_repeated_with_the_next_one() {
    let (mut harness, topics) = setup();
    let (mut first, mut second) = (Consumer::of("1", &["a"]), Consumer::of("2", &["a"]));
    first.join(&mut harness, &topics).unwrap();
    harness.log_rejects_writes = true;
    // The harness answers at once, as if the write had succeeded.
    second.join(&mut harness, &topics).unwrap();
    harness.fail_rejected_writes();
    harness.log_rejects_writes = false;
    first.beat(&mut harness, &topics).unwrap();
    // The log accepts writes again, so the next heartbeat writes the rest.
    second.beat(&mut harness, &topics).unwrap();
    let before = harness.groups.describe_consumer_group(GROUP).unwrap();
    harness.restart();
    assert_eq!(harness.groups.describe_consumer_group(GROUP).unwrap(), before);
}

#[test]
fn members_that_are_no_consumers_keep_their_protocol() {
    let (mut harness, topics) = setup();
    let mut consumer = Consumer::of("1", &["a"]);
    let classic = harness.stable(1);
    assert_eq!(error(consumer.join(&mut harness, &topics)), Error::GroupIdNotFound);
    assert_eq!(harness.groups.list(&[], &["consumer"]).len(), 0);
    harness.leave(&[(&classic[0], None)]);
    consumer.join(&mut harness, &topics).unwrap();
    assert_eq!(harness.groups.list(&["stable"], &["consumer"]).len(), 1);
    assert_eq!(harness.groups.list(&[], &["classic"]).len(), 0);
    assert_eq!(harness.groups.describe(GROUP), Err(Error::GroupIdNotFound));
    assert_eq!(harness.join_now(&new_member()).1, Err(Error::InconsistentGroupProtocol));
    assert_eq!(harness.heartbeat(&classic[0], 1), Err(Error::UnknownMemberId));
    assert_eq!(consumer.commit(&mut harness, 1), Ok(()));
    consumer.leave(&mut harness, &topics, -1).unwrap();
    harness.stable(1);
    assert_eq!(harness.groups.describe_consumer_group(GROUP), Err(Error::GroupIdNotFound));
    harness.restart_compacted();
    assert_eq!(harness.groups.describe(GROUP).unwrap().state, State::Stable);
    assert_eq!(harness.fetch(0), Some(1), "offsets stay with the group");
}

#[test]
fn an_administrator_removes_members() {
    let (mut harness, topics) = setup();
    let mut first = Consumer::of("1", &["a"]).with_instance("i");
    let mut second = Consumer::of("2", &["a"]);
    first.join(&mut harness, &topics).unwrap();
    second.join(&mut harness, &topics).unwrap();
    let left = harness.leave(&[("", Some("i")), ("2", None), ("3", None), ("", Some("x"))]);
    let outcomes: Vec<_> = left.iter().map(|left| left.outcome).collect();
    assert_eq!(outcomes, [Ok(()), Ok(()), Err(Error::UnknownMemberId), Err(Error::UnknownMemberId)]);
    assert_eq!(harness.groups.describe_consumer_group(GROUP).unwrap().members.len(), 0);
}

#[test]
fn malformed_heartbeats_are_refused() {
    let (mut harness, topics) = setup();
    let join = || ConsumerHeartbeat {
        rebalance_timeout_ms: 1_000,
        topic_names: Some(vec!["a"]),
        owned: Some(Vec::new()),
        ..request()
    };
    let owned = [0, 1];
    let long = "x".repeat(40_000);
    let many = vec![0; 100_001];
    let cases = [
        (ConsumerHeartbeat { group_id: "", ..join() }, Error::InvalidRequest),
        (ConsumerHeartbeat { member_id: "", ..join() }, Error::InvalidRequest),
        (ConsumerHeartbeat { member_id: &long, ..join() }, Error::InvalidRequest),
        (ConsumerHeartbeat { instance_id: Some(""), ..join() }, Error::InvalidRequest),
        (ConsumerHeartbeat { rack_id: Some(""), ..join() }, Error::InvalidRequest),
        (ConsumerHeartbeat { rebalance_timeout_ms: -1, ..join() }, Error::InvalidRequest),
        (ConsumerHeartbeat { owned: None, ..join() }, Error::InvalidRequest),
        (
            ConsumerHeartbeat {
                owned: Some(vec![OwnedTopic { topic_id: [1; 16], partitions: &owned }]),
                ..join()
            },
            Error::InvalidRequest,
        ),
        (
            ConsumerHeartbeat {
                member_epoch: 1,
                owned: Some(vec![OwnedTopic { topic_id: [1; 16], partitions: &many }]),
                ..join()
            },
            Error::InvalidRequest,
        ),
        (ConsumerHeartbeat { topic_names: None, ..join() }, Error::InvalidRequest),
        (ConsumerHeartbeat { member_epoch: -2, ..join() }, Error::InvalidRequest),
        (ConsumerHeartbeat { member_epoch: -3, ..join() }, Error::InvalidRequest),
        (ConsumerHeartbeat { assignor: Some("sticky"), ..join() }, Error::UnsupportedAssignor),
        (ConsumerHeartbeat { topic_regex: Some("("), ..join() }, Error::InvalidRegularExpression),
        (ConsumerHeartbeat { member_epoch: -1, ..join() }, Error::GroupIdNotFound),
    ];
    for (request, expected) in cases {
        assert_eq!(error(beat(&mut harness, &topics, &request)), expected, "{request:?}");
        assert!(harness.groups.is_empty(), "{request:?}");
    }
    assert!(harness.log.is_empty());
}

#[test]
fn groups_are_bounded() {
    let settings = Settings { members_max: 2, group_bytes_max: 20_000, ..Settings::default() };
    let mut harness = Harness::new(settings);
    let topics = TopicTable::of(&[("a", 4), ("large", 1_000)]);
    for id in ["1", "2"] {
        Consumer::of(id, &["a"]).join(&mut harness, &topics).unwrap();
    }
    assert_eq!(error(Consumer::of("3", &["a"]).join(&mut harness, &topics)), Error::GroupMaxSizeReached);
    let mut first = Consumer::of("1", &["a", "large"]);
    assert_eq!(error(first.join(&mut harness, &topics)), Error::PolicyViolation);
    let described = harness.groups.describe_consumer_group(GROUP).unwrap();
    assert_eq!(described.members[0].topic_names, ["a"], "a request that is refused changes nothing");
}

#[test]
fn offsets_of_subscribed_topics_stay() {
    let (mut harness, topics) = setup();
    let mut only = Consumer::of("only", &[TOPIC]);
    only.join(&mut harness, &topics).unwrap();
    assert_eq!(only.commit(&mut harness, 1), Ok(()));
    let caller = harness.caller();
    let partitions = vec![mainstem_coordinator::group::OffsetToDelete { partition: 0, exists: true }];
    let request = mainstem_coordinator::group::OffsetDelete {
        group_id: GROUP,
        topics: vec![TopicRequest { name: TOPIC, id: [0; 16], partitions }],
    };
    harness.groups.handle_offset_delete(&request, caller);
    match harness.answer(caller) {
        Some(Response::OffsetDelete(Ok(topics))) => {
            assert_eq!(topics[0].partitions[0].outcome, Err(Error::GroupSubscribedToTopic));
        }
        other => panic!("{other:?} is no answer to OffsetDelete"),
    }
    let commit = OffsetCommit {
        group_id: GROUP,
        member_id: "only",
        instance_id: None,
        generation: 1,
        retention_ms: Some(1),
        no_group: Error::GroupIdNotFound,
        topics: one(0, 9, ""),
    };
    let caller = harness.caller();
    harness.groups.handle_offset_commit(harness.now_ms, &commit, caller);
    assert_eq!(harness.committed_outcome(caller), Ok(()));
    for _ in 0..40 {
        harness.wait(30_000);
        only.beat(&mut harness, &topics).unwrap();
    }
    assert_eq!(harness.fetch(0), Some(9), "a member is subscribed to the topic");
}

fn configure(harness: &mut Harness, config: GroupConfig) -> Result<(), Error> {
    let caller = harness.caller();
    harness.groups.handle_configure(GROUP, config, caller);
    match harness.answer(caller) {
        Some(Response::Configure(outcome)) => outcome,
        other => panic!("{other:?} is no answer to a configuration"),
    }
}

#[test]
fn groups_have_configurations_of_their_own() {
    let (mut harness, topics) = setup();
    let config = GroupConfig { session_timeout_ms: Some(2_000), heartbeat_interval_ms: Some(500) };
    assert_eq!(configure(&mut harness, config), Ok(()));
    let (mut first, mut second) = (Consumer::of("1", &["a"]), Consumer::of("2", &["a"]));
    first.join(&mut harness, &topics).unwrap();
    second.join(&mut harness, &topics).unwrap();
    assert_eq!(second.send(&mut harness, &topics, 2, false).unwrap().heartbeat_interval_ms, 500);
    harness.wait(1_999);
    second.beat(&mut harness, &topics).unwrap();
    harness.wait(1);
    assert_eq!(error(first.beat(&mut harness, &topics)), Error::UnknownMemberId);

    // It stays without the group, and over restarts.
    second.leave(&mut harness, &topics, -1).unwrap();
    let caller = harness.caller();
    harness.groups.handle_delete(harness.now_ms, &[GROUP], caller);
    harness.answer(caller);
    harness.restart_compacted();
    assert!(harness.groups.is_empty());
    assert_eq!(harness.groups.configuration(GROUP), config);
    assert_eq!(harness.groups.configured().count(), 1);

    // What could not be stored is not in effect.
    harness.log_rejects_writes = true;
    let other = GroupConfig { session_timeout_ms: Some(9_000), ..config };
    let (one, two) = (harness.caller(), harness.caller());
    harness.groups.handle_configure(GROUP, other, one);
    harness.groups.handle_configure(GROUP, GroupConfig::default(), two);
    assert_eq!(harness.groups.configuration(GROUP), GroupConfig::default());
    harness.fail_rejected_writes();
    assert_eq!(harness.groups.configuration(GROUP), config);
    harness.log_rejects_writes = false;
    assert_eq!(configure(&mut harness, GroupConfig::default()), Ok(()));
    harness.restart_compacted();
    assert_eq!(harness.groups.configured().count(), 0);
}

#[test]
fn a_member_commits_at_an_older_epoch_what_it_has_had_since() {
    let mut harness = Harness::default();
    let topics = TopicTable::of(&[(TOPIC, 4)]);
    let (mut first, mut second) = (Consumer::of("1", &[TOPIC]), Consumer::of("2", &[TOPIC]));
    first.join(&mut harness, &topics).unwrap();
    second.join(&mut harness, &topics).unwrap();
    settle(&mut harness, &topics, &mut [&mut first, &mut second]);
    assert_eq!((first.epoch, second.epoch), (2, 2));
    let commit = |harness: &mut Harness, consumer: &Consumer, epoch, partition: i32| {
        harness.commit_as(&member(&consumer.id), epoch, partition, 1)
    };
    let (kept, lost) = (first.owned.values().next().unwrap()[0], second.owned.values().next().unwrap()[0]);
    for is_restarted in [false, true] {
        if is_restarted {
            harness.topics = TopicTable::of(&[(TOPIC, 4)]);
            harness.restart_compacted();
        }
        assert_eq!(commit(&mut harness, &first, 1, kept), Ok(()));
        assert_eq!(commit(&mut harness, &first, 1, lost), Err(Error::StaleMemberEpoch));
        assert_eq!(commit(&mut harness, &second, 1, lost), Err(Error::StaleMemberEpoch), "it has it since 2");
        assert_eq!(commit(&mut harness, &first, 0, kept), Err(Error::StaleMemberEpoch));
        assert_eq!(commit(&mut harness, &first, 3, kept), Err(Error::StaleMemberEpoch));
        assert_eq!(harness.commit_in_transaction(7, Some(("1", 1)), kept, 1), Ok(()));
        assert_eq!(harness.commit_in_transaction(7, Some(("1", 1)), lost, 1), Err(Error::IllegalGeneration));
    }
}
