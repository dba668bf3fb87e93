//! Random members against a naive model: they join, assign, commit, fall silent, leave, and the process ends at any
//! point and begins again from what was kept.
//!
//! Held throughout: a caller is answered once, and within a bounded time; members that know the same generation agree
//! on its leader and protocol, and get what that leader has assigned; nobody but a member of the newest generation
//! commits; offsets are what was committed last, whatever ends in between.

use std::collections::{BTreeMap, BTreeSet};

use mainstem_coordinator::group::{Answer, JoinAnswer, TransactionEnd};
use mainstem_coordinator::{Caller, Error};
use proptest::prelude::*;

use crate::desk::{Desk, REBALANCE_MS, Who, member, newcomer, statically};

const PEOPLE: usize = 4;
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
    CommitAlone(i32),
    CommitInTransaction(i64, i32),
    End(i64, bool),
    Wait(u64),
    Restart { compacted: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let who = || 0..PEOPLE;
    let partition = || 0..PARTITIONS;
    prop_oneof![
        6 => who().prop_map(Step::Join),
        1 => who().prop_map(Step::JoinAnew),
        6 => who().prop_map(Step::Sync),
        3 => who().prop_map(Step::Heartbeat),
        1 => who().prop_map(Step::Leave),
        3 => (who(), partition()).prop_map(|(who, partition)| Step::Commit(who, partition)),
        1 => (who(), partition()).prop_map(|(who, partition)| Step::CommitOld(who, partition)),
        1 => partition().prop_map(Step::CommitAlone),
        1 => (0..2i64, partition()).prop_map(|(id, partition)| Step::CommitInTransaction(id, partition)),
        1 => (0..2i64, any::<bool>()).prop_map(|(id, commit)| Step::End(id, commit)),
        2 => prop_oneof![Just(1), Just(2_500), Just(9_000), Just(61_000)].prop_map(Step::Wait),
        1 => any::<bool>().prop_map(|compacted| Step::Restart { compacted }),
    ]
}

/// A client: what it knows of itself.
#[derive(Clone, Default)]
struct Person {
    id: String,
    /// The generation it was told last.
    generation: i32,
    leads: bool,
    joining: Option<Caller>,
    syncing: Option<Caller>,
    /// Its request has been sent with this generation.
    synced_with: i32,
    others: Vec<String>,
}

impl Person {
    fn waits(&self) -> bool {
        self.joining.is_some() || self.syncing.is_some()
    }
}

/// Every second person is a static member.
fn instance(person: usize) -> Option<String> {
    (person % 2 == 1).then(|| format!("instance-{person}"))
}

fn as_who<'a>(id: &'a str, instance: Option<&'a String>) -> Who<'a> {
    match instance {
        Some(instance) => statically(id, instance),
        None => member(id),
    }
}

#[derive(Default)]
struct Model {
    desk: Desk,
    people: Vec<Person>,
    /// What leaders of a generation have asked to be assigned. A restart may make a generation come again.
    assigned: BTreeMap<i32, BTreeSet<String>>,
    /// Which of these requests was the one that counts, in this life of the process.
    counts: BTreeMap<i32, String>,
    /// Generations in this life of the process: leader of each.
    leaders: BTreeMap<i32, String>,
    committed: BTreeMap<i32, (u64, i64)>,
    pending: BTreeMap<i64, BTreeMap<i32, (u64, i64)>>,
    order: u64,
}

impl Model {
    fn new() -> Self {
        Self { people: vec![Person::default(); PEOPLE], ..Self::default() }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Join(who) => self.join(who),
            Step::JoinAnew(who) => {
                if !self.people[who].waits() {
                    self.people[who].id.clear();
                    self.join(who);
                }
            }
            Step::Sync(who) => self.sync(who),
            Step::Heartbeat(who) => self.heartbeat(who),
            Step::Leave(who) => self.leave(who),
            Step::Commit(who, partition) => self.commit(who, partition, 0),
            Step::CommitOld(who, partition) => self.commit(who, partition, 1),
            Step::CommitAlone(partition) => {
                let number = self.number();
                if self.desk.commit_alone(partition, number.1).is_ok() {
                    self.committed.insert(partition, number);
                }
            }
            Step::CommitInTransaction(producer_id, partition) => {
                let number = self.number();
                let outcome = self.desk.commit_in_transaction(producer_id, None, partition, number.1);
                assert_eq!(outcome, Ok(()));
                self.pending.entry(producer_id).or_default().insert(partition, number);
            }
            Step::End(producer_id, commit) => self.end(producer_id, commit),
            Step::Wait(ms) => self.desk.wait(ms),
            Step::Restart { compacted } => self.restart(compacted),
        }
        self.hear();
        self.check_offsets();
        if self.desk.groups.is_empty() {
            // Nothing of it is kept, so its generations begin anew, with members that nobody was before.
            self.leaders.clear();
            self.counts.clear();
        }
    }

    /// A place in the order of all offsets, and an offset that nobody else has.
    fn number(&mut self) -> (u64, i64) {
        self.order += 1;
        (self.order, self.order.cast_signed())
    }

    fn join(&mut self, who: usize) {
        let person = &self.people[who];
        if person.waits() {
            return;
        }
        let instance = instance(who);
        let joining = self.desk.join(&as_who(&person.id, instance.as_ref()));
        self.people[who].joining = Some(joining);
    }

    fn sync(&mut self, who: usize) {
        let person = self.people[who].clone();
        if person.waits() || person.id.is_empty() {
            return;
        }
        let mut assignments: Vec<(String, String)> = Vec::new();
        if person.leads {
            self.order += 1;
            let order = self.order;
            assignments.extend(person.others.iter().map(|id| (id.clone(), format!("{order} for {id}"))));
            let assigned = assignments.iter().map(|(_, bytes)| bytes.clone());
            self.assigned.entry(person.generation).or_default().extend(assigned);
        }
        let assignments: Vec<(&str, &str)> =
            assignments.iter().map(|(id, bytes)| (id.as_str(), bytes.as_str())).collect();
        let instance = instance(who);
        let request = as_who(&person.id, instance.as_ref());
        let caller = self.desk.sync_as(&request, person.generation, &assignments);
        self.people[who].syncing = Some(caller);
        self.people[who].synced_with = person.generation;
    }

    fn heartbeat(&mut self, who: usize) {
        let instance = instance(who);
        let person = &self.people[who];
        if let Err(error) = self.desk.heartbeat_as(&as_who(&person.id, instance.as_ref()), person.generation)
        {
            self.lose(who, error);
        }
    }

    /// As clients do when they hear that they are members no longer.
    fn lose(&mut self, who: usize, error: Error) {
        if matches!(error, Error::UnknownMemberId | Error::FencedInstanceId) {
            self.people[who].id.clear();
        }
    }

    fn leave(&mut self, who: usize) {
        let person = &self.people[who];
        if !person.waits() {
            let id = std::mem::take(&mut self.people[who].id);
            let instance = instance(who);
            self.desk.leave(&[(&id, instance.as_deref())]);
        }
    }

    /// With the generation the person knows, or one that is older by so many.
    fn commit(&mut self, who: usize, partition: i32, older: i32) {
        let number = self.number();
        let person = self.people[who].clone();
        let instance = instance(who);
        if person.id.is_empty() {
            return;
        }
        let generation = person.generation - older;
        let request = as_who(&person.id, instance.as_ref());
        let alive = self.desk.heartbeat_as(&request, generation);
        let outcome = self.desk.commit_as(&request, generation, partition, number.1);
        match outcome {
            Ok(()) => {
                assert!(
                    matches!(alive, Ok(()) | Err(Error::RebalanceInProgress)) || generation < 0,
                    "somebody committed that was fenced: {alive:?}"
                );
                self.committed.insert(partition, number);
            }
            Err(error) => self.lose(who, error),
        }
    }

    fn end(&mut self, producer_id: i64, commit: bool) {
        let end = if commit { TransactionEnd::Commit } else { TransactionEnd::Abort };
        self.desk.end_transaction(producer_id, end);
        for (partition, number) in self.pending.remove(&producer_id).unwrap_or_default() {
            let latest = self.committed.get(&partition).map_or(0, |committed| committed.0);
            if commit && number.0 > latest {
                self.committed.insert(partition, number);
            }
        }
    }

    /// Nobody who waited is answered any more.
    fn restart(&mut self, compacted: bool) {
        if compacted {
            self.desk.restart_compacted();
        } else {
            self.desk.restart();
        }
        self.leaders.clear();
        self.counts.clear();
        for person in &mut self.people {
            (person.joining, person.syncing) = (None, None);
        }
    }

    /// Everybody takes in what it was told.
    fn hear(&mut self) {
        for who in 0..PEOPLE {
            if let Some(answer) = self.people[who].joining.and_then(|caller| self.desk.joined(caller)) {
                self.people[who].joining = None;
                self.on_joined(who, answer);
            }
            let answer = self.people[who].syncing.and_then(|caller| self.desk.answer(caller));
            if let Some(Answer::Sync(answer)) = answer {
                self.people[who].syncing = None;
                match answer {
                    Ok(synced) => self.on_assigned(who, &String::from_utf8(synced.assignment).unwrap()),
                    Err(error) => self.lose(who, error),
                }
            }
        }
    }

    fn on_joined(&mut self, who: usize, answer: JoinAnswer) {
        let person = &mut self.people[who];
        match answer.outcome {
            Ok(joined) => {
                person.id = answer.member_id;
                person.generation = joined.generation;
                person.leads = joined.leader == person.id && !joined.skip_assignment;
                if person.leads {
                    person.others = joined.members.iter().map(|member| member.member_id.clone()).collect();
                    assert!(person.others.contains(&person.id), "a leader is a member");
                }
                // A static member that leads and comes back leads under another identifier.
                if instance(who).is_none() {
                    let leader = self.leaders.entry(joined.generation).or_insert(joined.leader.clone());
                    let renamed = leader.starts_with("instance") && joined.leader.starts_with("instance");
                    assert!(*leader == joined.leader || renamed, "two leaders of one generation");
                }
            }
            Err(Error::MemberIdRequired) => person.id = answer.member_id,
            Err(error) => self.lose(who, error),
        }
    }

    /// It is what a leader of this generation has assigned to this member, or to a static one it was before.
    fn on_assigned(&mut self, who: usize, got: &str) {
        let person = &self.people[who];
        if got.is_empty() {
            return;
        }
        let generation = person.synced_with;
        let known = self.assigned.get(&generation).is_some_and(|assigned| assigned.contains(got));
        assert!(known, "nobody has assigned {got:?}");
        let (request, whose) = got.split_once(" for ").expect("as it was assigned");
        let counts = self.counts.entry(generation).or_insert_with(|| request.to_owned());
        assert_eq!(counts, request, "two assignments of one generation");
        let renamed = instance(who).is_some_and(|instance| whose.starts_with(&instance));
        assert!(whose == person.id || renamed, "{} got what was for {whose}", person.id);
    }

    fn check_offsets(&mut self) {
        for partition in 0..PARTITIONS {
            let expected = self.committed.get(&partition).map(|(_, offset)| *offset);
            assert_eq!(self.desk.fetch(partition), expected, "partition {partition}");
            let unstable = self.pending.values().any(|pending| pending.contains_key(&partition));
            let stable = self.desk.fetch_with(partition, true);
            assert_eq!(stable == Err(Error::UnstableOffsetCommit), unstable);
        }
    }

    /// Whoever waits is answered when time passes, even if nobody does anything any more.
    fn everybody_is_answered(&mut self) {
        for _ in 0..PEOPLE {
            self.desk.wait(6 * REBALANCE_MS);
            self.hear();
        }
        for person in &self.people {
            assert!(!person.waits(), "somebody waits for ever");
        }
    }

    /// After all that a group can still be made of whoever comes.
    fn the_group_still_works(&mut self) {
        let (id, _refused) = self.desk.join_now(&newcomer());
        let joined = self.desk.join_now(&member(&id)).1.expect("a place in the group");
        assert_eq!(joined.leader, id, "all others are long gone");
        let caller = self.desk.sync(&id, joined.generation, &[(&id, "all")]);
        assert_eq!(self.desk.assignment(caller).as_deref(), Some("all"));
        assert_eq!(self.desk.commit(&id, joined.generation, 0, 1), Ok(()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn groups_do_as_the_model_does(steps in prop::collection::vec(step(), 1..120)) {
        let mut model = Model::new();
        for step in &steps {
            model.run(step);
        }
        model.everybody_is_answered();
        model.the_group_still_works();
    }
}
