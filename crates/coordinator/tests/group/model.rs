//! Random operations of members, checked against a naive model: they join, assign, commit, time out and leave, and the
//! process restarts at any point from its log.
//!
//! Invariants: each caller gets one reply, within a bounded time; members of the same generation agree on leader and
//! protocol, and get what that leader has assigned; only members of the newest generation commit; the last commit
//! determines an offset, whatever restarts in between.

use std::collections::{BTreeMap, BTreeSet};

use mainstem_coordinator::group::{JoinResponse, Response, TransactionEnd};
use mainstem_coordinator::{Caller, Error};
use proptest::prelude::*;

use crate::harness::{Harness, MemberSpec, REBALANCE_MS, member, new_member, static_member};

const CLIENTS: usize = 4;
const PARTITIONS: i32 = 3;

#[derive(Clone, Debug)]
enum Step {
    Join(usize),
    JoinAnew(usize),
    Sync(usize),
    Heartbeat(usize),
    Leave(usize),
    Commit(usize, i32),
    CommitOld(usize, i32),
    CommitSimple(i32),
    CommitInTransaction(i64, i32),
    End(i64, bool),
    Wait(u64),
    Restart { compacted: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let who = || 0..CLIENTS;
    let partition = || 0..PARTITIONS;
    prop_oneof![
        6 => who().prop_map(Step::Join),
        1 => who().prop_map(Step::JoinAnew),
        6 => who().prop_map(Step::Sync),
        3 => who().prop_map(Step::Heartbeat),
        1 => who().prop_map(Step::Leave),
        3 => (who(), partition()).prop_map(|(who, partition)| Step::Commit(who, partition)),
        1 => (who(), partition()).prop_map(|(who, partition)| Step::CommitOld(who, partition)),
        1 => partition().prop_map(Step::CommitSimple),
        1 => (0..2i64, partition()).prop_map(|(id, partition)| Step::CommitInTransaction(id, partition)),
        1 => (0..2i64, any::<bool>()).prop_map(|(id, commit)| Step::End(id, commit)),
        2 => prop_oneof![Just(1), Just(2_500), Just(9_000), Just(61_000)].prop_map(Step::Wait),
        1 => any::<bool>().prop_map(|compacted| Step::Restart { compacted }),
    ]
}

/// A client's own view of its membership.
#[derive(Clone, Default)]
struct Client {
    id: String,
    /// Generation of the last JoinGroup response.
    generation: i32,
    leads: bool,
    joining: Option<Caller>,
    syncing: Option<Caller>,
    /// Generation of the last SyncGroup request.
    synced_with: i32,
    others: Vec<String>,
}

impl Client {
    fn waits(&self) -> bool {
        self.joining.is_some() || self.syncing.is_some()
    }
}

/// Every second client is a static member.
fn instance(client: usize) -> Option<String> {
    (client % 2 == 1).then(|| format!("instance-{client}"))
}

fn as_who<'a>(id: &'a str, instance: Option<&'a String>) -> MemberSpec<'a> {
    match instance {
        Some(instance) => static_member(id, instance),
        None => member(id),
    }
}

#[derive(Default)]
struct Model {
    harness: Harness,
    clients: Vec<Client>,
    /// Assignments that leaders have sent, by generation. A restart may repeat a generation.
    assigned: BTreeMap<i32, BTreeSet<String>>,
    /// The effective assignment of each generation since the last restart.
    counts: BTreeMap<i32, String>,
    /// Leader of each generation since the last restart.
    leaders: BTreeMap<i32, String>,
    committed: BTreeMap<i32, (u64, i64)>,
    pending: BTreeMap<i64, BTreeMap<i32, (u64, i64)>>,
    order: u64,
}

impl Model {
    fn new() -> Self {
        Self { clients: vec![Client::default(); CLIENTS], ..Self::default() }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Join(who) => self.join(who),
            Step::JoinAnew(who) => {
                if !self.clients[who].waits() {
                    self.clients[who].id.clear();
                    self.join(who);
                }
            }
            Step::Sync(who) => self.sync(who),
            Step::Heartbeat(who) => self.heartbeat(who),
            Step::Leave(who) => self.leave(who),
            Step::Commit(who, partition) => self.commit(who, partition, 0),
            Step::CommitOld(who, partition) => self.commit(who, partition, 1),
            Step::CommitSimple(partition) => {
                let number = self.number();
                if self.harness.commit_simple(partition, number.1).is_ok() {
                    self.committed.insert(partition, number);
                }
            }
            Step::CommitInTransaction(producer_id, partition) => {
                let number = self.number();
                let outcome = self.harness.commit_in_transaction(producer_id, None, partition, number.1);
                assert_eq!(outcome, Ok(()));
                self.pending.entry(producer_id).or_default().insert(partition, number);
            }
            Step::End(producer_id, commit) => self.end(producer_id, commit),
            Step::Wait(ms) => self.harness.wait(ms),
            Step::Restart { compacted } => self.restart(compacted),
        }
        self.process_replies();
        self.check_offsets();
        if self.harness.groups.is_empty() {
            // Nothing of the group is left in the log, so its generations start over, with new member ids.
            self.leaders.clear();
            self.counts.clear();
        }
    }

    /// A sequence number and a unique offset.
    fn number(&mut self) -> (u64, i64) {
        self.order += 1;
        (self.order, self.order.cast_signed())
    }

    fn join(&mut self, who: usize) {
        let client = &self.clients[who];
        if client.waits() {
            return;
        }
        let instance = instance(who);
        let joining = self.harness.join(&as_who(&client.id, instance.as_ref()));
        self.clients[who].joining = Some(joining);
    }

    fn sync(&mut self, who: usize) {
        let client = self.clients[who].clone();
        if client.waits() || client.id.is_empty() {
            return;
        }
        let mut assignments: Vec<(String, String)> = Vec::new();
        if client.leads {
            self.order += 1;
            let order = self.order;
            assignments.extend(client.others.iter().map(|id| (id.clone(), format!("{order} for {id}"))));
            let assigned = assignments.iter().map(|(_, bytes)| bytes.clone());
            self.assigned.entry(client.generation).or_default().extend(assigned);
        }
        let assignments: Vec<(&str, &str)> =
            assignments.iter().map(|(id, bytes)| (id.as_str(), bytes.as_str())).collect();
        let instance = instance(who);
        let request = as_who(&client.id, instance.as_ref());
        let caller = self.harness.sync_as(&request, client.generation, &assignments);
        self.clients[who].syncing = Some(caller);
        self.clients[who].synced_with = client.generation;
    }

    fn heartbeat(&mut self, who: usize) {
        let instance = instance(who);
        let client = &self.clients[who];
        if let Err(error) =
            self.harness.heartbeat_as(&as_who(&client.id, instance.as_ref()), client.generation)
        {
            self.on_error(who, error);
        }
    }

    /// Drops the member id, as clients do when they are no longer a member.
    fn on_error(&mut self, who: usize, error: Error) {
        if matches!(error, Error::UnknownMemberId | Error::FencedInstanceId) {
            self.clients[who].id.clear();
        }
    }

    fn leave(&mut self, who: usize) {
        let client = &self.clients[who];
        if !client.waits() {
            let id = std::mem::take(&mut self.clients[who].id);
            let instance = instance(who);
            self.harness.leave(&[(&id, instance.as_deref())]);
        }
    }

    /// Commits with the client's generation minus `older`.
    fn commit(&mut self, who: usize, partition: i32, older: i32) {
        let number = self.number();
        let client = self.clients[who].clone();
        let instance = instance(who);
        if client.id.is_empty() {
            return;
        }
        let generation = client.generation - older;
        let request = as_who(&client.id, instance.as_ref());
        let alive = self.harness.heartbeat_as(&request, generation);
        let outcome = self.harness.commit_as(&request, generation, partition, number.1);
        match outcome {
            Ok(()) => {
                assert!(
                    matches!(alive, Ok(()) | Err(Error::RebalanceInProgress)) || generation < 0,
                    "a fenced member committed: {alive:?}"
                );
                self.committed.insert(partition, number);
            }
            Err(error) => self.on_error(who, error),
        }
    }

    fn end(&mut self, producer_id: i64, commit: bool) {
        let end = if commit { TransactionEnd::Commit } else { TransactionEnd::Abort };
        self.harness.end_transaction(producer_id, end);
        for (partition, number) in self.pending.remove(&producer_id).unwrap_or_default() {
            let latest = self.committed.get(&partition).map_or(0, |committed| committed.0);
            if commit && number.0 > latest {
                self.committed.insert(partition, number);
            }
        }
    }

    /// Restarts; pending requests are never answered.
    fn restart(&mut self, compacted: bool) {
        if compacted {
            self.harness.restart_compacted();
        } else {
            self.harness.restart();
        }
        self.leaders.clear();
        self.counts.clear();
        for client in &mut self.clients {
            (client.joining, client.syncing) = (None, None);
        }
    }

    /// Processes all replies.
    fn process_replies(&mut self) {
        for who in 0..CLIENTS {
            if let Some(answer) = self.clients[who].joining.and_then(|caller| self.harness.joined(caller)) {
                self.clients[who].joining = None;
                self.on_joined(who, answer);
            }
            let answer = self.clients[who].syncing.and_then(|caller| self.harness.answer(caller));
            if let Some(Response::Sync(answer)) = answer {
                self.clients[who].syncing = None;
                match answer {
                    Ok(synced) => self.on_assigned(who, &String::from_utf8(synced.assignment).unwrap()),
                    Err(error) => self.on_error(who, error),
                }
            }
        }
    }

    fn on_joined(&mut self, who: usize, answer: JoinResponse) {
        let client = &mut self.clients[who];
        match answer.outcome {
            Ok(joined) => {
                client.id = answer.member_id;
                client.generation = joined.generation;
                client.leads = joined.leader == client.id && !joined.skip_assignment;
                if client.leads {
                    client.others = joined.members.iter().map(|member| member.member_id.clone()).collect();
                    assert!(client.others.contains(&client.id), "a leader is a member");
                }
                // A restarted static leader leads under another member id.
                if instance(who).is_none() {
                    let leader = self.leaders.entry(joined.generation).or_insert(joined.leader.clone());
                    let renamed = leader.starts_with("instance") && joined.leader.starts_with("instance");
                    assert!(*leader == joined.leader || renamed, "two leaders in one generation");
                }
            }
            Err(Error::MemberIdRequired) => client.id = answer.member_id,
            Err(error) => self.on_error(who, error),
        }
    }

    /// Checks that a leader of this generation has assigned this to the member, or to its static predecessor.
    fn on_assigned(&mut self, who: usize, got: &str) {
        let client = &self.clients[who];
        if got.is_empty() {
            return;
        }
        let generation = client.synced_with;
        let known = self.assigned.get(&generation).is_some_and(|assigned| assigned.contains(got));
        assert!(known, "no leader has assigned {got:?}");
        let (request, whose) = got.split_once(" for ").expect("as it was assigned");
        let counts = self.counts.entry(generation).or_insert_with(|| request.to_owned());
        assert_eq!(counts, request, "two assignments in one generation");
        let renamed = instance(who).is_some_and(|instance| whose.starts_with(&instance));
        assert!(whose == client.id || renamed, "{} got the assignment of {whose}", client.id);
    }

    fn check_offsets(&mut self) {
        for partition in 0..PARTITIONS {
            let expected = self.committed.get(&partition).map(|(_, offset)| *offset);
            assert_eq!(self.harness.fetch(partition), expected, "partition {partition}");
            let unstable = self.pending.values().any(|pending| pending.contains_key(&partition));
            let stable = self.harness.fetch_with(partition, true);
            assert_eq!(stable == Err(Error::UnstableOffsetCommit), unstable);
        }
    }

    /// Every pending request is answered as time passes, even without further requests.
    fn check_all_answered(&mut self) {
        for _ in 0..CLIENTS {
            self.harness.wait(6 * REBALANCE_MS);
            self.process_replies();
        }
        for client in &self.clients {
            assert!(!client.waits(), "a request was never answered");
        }
    }

    /// The group still works for a new member.
    fn check_group_still_works(&mut self) {
        let (id, _refused) = self.harness.join_now(&new_member());
        let joined = self.harness.join_now(&member(&id)).1.expect("the new member joins");
        assert_eq!(joined.leader, id, "all others have timed out");
        let caller = self.harness.sync(&id, joined.generation, &[(&id, "all")]);
        assert_eq!(self.harness.assignment(caller).as_deref(), Some("all"));
        assert_eq!(self.harness.commit(&id, joined.generation, 0, 1), Ok(()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn groups_match_the_model(steps in prop::collection::vec(step(), 1..120)) {
        let mut model = Model::new();
        for step in &steps {
            model.run(step);
        }
        model.check_all_answered();
        model.check_group_still_works();
    }
}
