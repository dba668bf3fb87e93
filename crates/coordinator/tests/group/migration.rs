//! Groups whose clients change between the classic and the consumer protocol while they work.

use std::collections::BTreeMap;

use mainstem_coordinator::group::{JoinGroup, State, SyncGroup};
use mainstem_coordinator::{Caller, Error};

use crate::consumer::{CONSUMER_SESSION_MS, Consumer, TopicTable, settle};
use crate::harness::{GROUP, Harness, MemberSpec, REBALANCE_MS, SESSION_MS, member};

/// A client of the classic protocol.
#[derive(Clone, Debug, Default)]
pub(crate) struct Classic {
    pub(crate) id: String,
    pub(crate) instance_id: Option<String>,
    pub(crate) generation: i32,
    pub(crate) names: Vec<String>,
    /// Partitions by topic.
    pub(crate) owned: BTreeMap<String, Vec<i32>>,
    /// It gives up only what it must (KIP-429).
    pub(crate) is_cooperative: bool,
    pub(crate) leads: bool,
    pub(crate) rebalance_ms: u64,
    /// Makes member ids unique.
    pub(crate) random: u128,
    /// It has been told to join again, or has not joined.
    pub(crate) must_join: bool,
}

impl Classic {
    pub(crate) fn of(names: &[&str], is_cooperative: bool) -> Self {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Self { names, is_cooperative, must_join: true, rebalance_ms: REBALANCE_MS, ..Self::default() }
    }

    fn protocol(&self) -> &'static str {
        if self.is_cooperative { "cooperative-sticky" } else { "range" }
    }

    pub(crate) fn spec(&self) -> MemberSpec<'_> {
        let protocols = vec![(self.protocol(), "")];
        MemberSpec { instance_id: self.instance_id.as_deref(), protocols, ..member(&self.id) }
    }

    /// The subscription, in version 1 with the partitions that the client owns.
    fn subscription(&self) -> Vec<u8> {
        let mut bytes = vec![0, 1];
        put_array(&mut bytes, &self.names, |bytes, name| put_text(bytes, name));
        bytes.extend((-1_i32).to_be_bytes());
        put_partitions(&mut bytes, &self.owned);
        bytes
    }

    /// Sends JoinGroup.
    pub(crate) fn send(&mut self, harness: &mut Harness) -> Caller {
        if !self.is_cooperative {
            self.owned.clear();
        }
        let caller = harness.caller();
        let metadata = self.subscription();
        let request = JoinGroup {
            group_id: GROUP,
            member_id: &self.id,
            instance_id: self.instance_id.as_deref(),
            client_id: "client",
            client_host: "/127.0.0.1",
            session_timeout_ms: SESSION_MS as i32,
            rebalance_timeout_ms: self.rebalance_ms as i32,
            protocol_type: "consumer",
            protocols: vec![(self.protocol(), &metadata)],
            needs_member_id: true,
            can_skip_assignment: true,
            random: self.random,
        };
        self.random += 1_000;
        harness.groups.handle_join(harness.now_ms, &request, &harness.topics, caller);
        caller
    }

    /// Takes the answer to JoinGroup. Returns whether the client has joined: otherwise there is none, or it has got its
    /// member id.
    pub(crate) fn receive(&mut self, harness: &mut Harness, caller: Caller) -> Result<bool, Error> {
        let Some(answer) = harness.joined(caller) else { return Ok(false) };
        match answer.outcome {
            Ok(joined) => {
                self.id = answer.member_id;
                self.generation = joined.generation;
                self.leads = joined.leader == self.id;
                self.must_join = false;
                Ok(true)
            }
            Err(Error::MemberIdRequired) => {
                self.id = answer.member_id;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Joins a group that answers at once.
    pub(crate) fn join(&mut self, harness: &mut Harness) -> Result<bool, Error> {
        let caller = self.send(harness);
        if self.receive(harness, caller)? {
            return Ok(true);
        }
        let caller = self.send(harness);
        self.receive(harness, caller)
    }

    /// Sends SyncGroup.
    pub(crate) fn send_sync(&self, harness: &mut Harness, assignments: &[(&str, &[u8])]) -> Caller {
        let caller = harness.caller();
        let request = SyncGroup {
            group_id: GROUP,
            member_id: &self.id,
            instance_id: self.instance_id.as_deref(),
            generation: self.generation,
            protocol_type: Some("consumer"),
            protocol: Some(self.protocol()),
            assignments: assignments.to_vec(),
        };
        harness.groups.handle_sync(harness.now_ms, &request, caller);
        caller
    }

    /// Sends SyncGroup, and takes what it is assigned.
    pub(crate) fn sync(&mut self, harness: &mut Harness, assignments: &[(&str, &[u8])]) -> Result<(), Error> {
        let caller = self.send_sync(harness, assignments);
        let synced = harness.synced(caller).expect("an answer at once")?;
        self.take_assignment(&synced.assignment);
        Ok(())
    }

    /// Takes what it is assigned. A cooperative client then joins again if it has to give up some.
    pub(crate) fn take_assignment(&mut self, bytes: &[u8]) {
        let assigned = read_partitions(bytes);
        let gives_up = self.owned.iter().any(|(name, partitions)| {
            partitions.iter().any(|partition| assigned.get(name).is_none_or(|kept| !kept.contains(partition)))
        });
        self.owned = assigned;
        self.must_join |= gives_up;
    }

    /// Sends a heartbeat, and joins again if it has to.
    pub(crate) fn beat(&mut self, harness: &mut Harness) -> Result<(), Error> {
        if !self.must_join {
            match harness.heartbeat_as(&self.spec(), self.generation) {
                Ok(()) => return Ok(()),
                Err(Error::RebalanceInProgress) => {}
                Err(error) => return Err(error),
            }
        }
        self.must_join = true;
        if self.join(harness)? { self.sync(harness, &[]) } else { Ok(()) }
    }

    pub(crate) fn owns(&self) -> Vec<String> {
        let of_topic = |(name, partitions): (&String, &Vec<i32>)| {
            partitions.iter().map(|partition| format!("{name}-{partition}")).collect::<Vec<_>>()
        };
        self.owned.iter().flat_map(of_topic).collect()
    }
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend(i16::try_from(text.len()).unwrap().to_be_bytes());
    bytes.extend(text.as_bytes());
}

fn put_array<T>(bytes: &mut Vec<u8>, elements: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
    bytes.extend(i32::try_from(elements.len()).unwrap().to_be_bytes());
    for element in elements {
        put(bytes, element);
    }
}

fn put_partitions(bytes: &mut Vec<u8>, topics: &BTreeMap<String, Vec<i32>>) {
    let topics: Vec<_> = topics.iter().collect();
    put_array(bytes, &topics, |bytes, (name, partitions)| {
        put_text(bytes, name);
        put_array(bytes, partitions, |bytes, partition| bytes.extend(partition.to_be_bytes()));
    });
}

/// An assignment as a leader makes it.
pub(crate) fn assignment(topics: &[(&str, &[i32])]) -> Vec<u8> {
    let topics = topics.iter().map(|(name, partitions)| ((*name).to_owned(), partitions.to_vec())).collect();
    let mut bytes = vec![0, 1];
    put_partitions(&mut bytes, &topics);
    bytes.extend((-1_i32).to_be_bytes());
    bytes
}

/// The partitions that a subscription says its member owns.
pub(crate) fn read_subscription(metadata: &[u8]) -> BTreeMap<String, Vec<i32>> {
    // One topic, `a`, and no user data.
    let owned = &metadata[2 + 4 + 3 + 4..];
    read_partitions(&[&[0, 1], owned, &(-1_i32).to_be_bytes()].concat())
}

fn read_partitions(mut bytes: &[u8]) -> BTreeMap<String, Vec<i32>> {
    fn take<'a>(bytes: &mut &'a [u8], length: usize) -> &'a [u8] {
        let (first, rest) = bytes.split_at(length);
        *bytes = rest;
        first
    }
    fn int(bytes: &mut &[u8]) -> i32 {
        i32::from_be_bytes(take(bytes, 4).try_into().unwrap())
    }
    if bytes.is_empty() {
        return BTreeMap::new();
    }
    let version = take(&mut bytes, 2);
    assert_eq!(version, [0, 1], "the version of the subscription");
    let mut topics = BTreeMap::new();
    for _ in 0..int(&mut bytes) {
        let length = usize::from(u16::from_be_bytes(take(&mut bytes, 2).try_into().unwrap()));
        let name = String::from_utf8(take(&mut bytes, length).to_vec()).unwrap();
        let count = int(&mut bytes);
        topics.insert(name, (0..count).map(|_| int(&mut bytes)).collect());
    }
    assert_eq!(int(&mut bytes), -1, "no user data");
    topics
}

/// A stable classic group of two members with two of the four partitions of `a` each.
pub(crate) fn classic_group(
    is_cooperative: bool,
    instance_ids: [Option<&str>; 2],
) -> (Harness, TopicTable, [Classic; 2]) {
    let mut harness = Harness::default();
    harness.topics = TopicTable::of(&[("a", 4)]);
    let mut members = instance_ids.map(|instance_id| Classic {
        instance_id: instance_id.map(str::to_owned),
        ..Classic::of(&["a"], is_cooperative)
    });
    let [first, second] = &mut members;
    second.random = 1;
    for dynamic in [&mut *first, &mut *second].into_iter().filter(|member| member.instance_id.is_none()) {
        let caller = dynamic.send(&mut harness);
        assert_eq!(dynamic.receive(&mut harness, caller), Ok(false));
    }
    let (mut one, two) = (first.send(&mut harness), second.send(&mut harness));
    if first.receive(&mut harness, one) == Ok(true) && first.instance_id.is_some() {
        one = first.send(&mut harness);
        assert_eq!(first.receive(&mut harness, one), Ok(true));
    }
    assert_eq!(second.receive(&mut harness, two), Ok(true));
    let halves = [assignment(&[("a", &[0, 1])]), assignment(&[("a", &[2, 3])])];
    let assignments = [(first.id.clone(), &*halves[0]), (second.id.clone(), &*halves[1])];
    let assignments: Vec<(&str, &[u8])> = assignments.iter().map(|(id, half)| (&**id, *half)).collect();
    let (leader, follower) = if first.leads { (first, second) } else { (second, first) };
    leader.sync(&mut harness, &assignments).unwrap();
    follower.sync(&mut harness, &[]).unwrap();
    (harness, TopicTable::of(&[("a", 4)]), members)
}

/// Sends heartbeats of all until nothing changes. Nobody may have a partition of another one meanwhile.
pub(crate) fn settle_mixed(
    harness: &mut Harness,
    topics: &TopicTable,
    classic: &mut [&mut Classic],
    consumers: &mut [&mut Consumer],
) {
    for _ in 0..10 {
        for member in classic.iter_mut() {
            member.beat(harness).unwrap();
        }
        for member in consumers.iter_mut() {
            member.beat(harness, topics).unwrap();
        }
        let owned = classic.iter().flat_map(|member| member.owns());
        let mut owned: Vec<String> =
            owned.chain(consumers.iter().flat_map(|member| member.owns(topics))).collect();
        owned.sort();
        assert!(owned.windows(2).all(|pair| pair[0] != pair[1]), "{owned:?}");
    }
    assert_eq!(harness.groups.describe_consumer_group(GROUP).unwrap().state, State::Stable);
}

#[test]
fn a_rolling_upgrade_keeps_the_partitions_of_who_stays() {
    for is_cooperative in [false, true] {
        let (mut harness, topics, [mut first, mut second]) = classic_group(is_cooperative, [None, None]);
        let generation = first.generation;
        let mut new = Consumer::of("new", &["a"]);
        new.join(&mut harness, &topics).unwrap();
        assert_eq!((new.epoch, new.owns(&topics).len()), (generation + 1, 0));
        let described = harness.groups.describe_consumer_group(GROUP).unwrap();
        let types: Vec<bool> = described.members.iter().map(|member| member.is_classic).collect();
        assert_eq!(types.iter().filter(|is_classic| **is_classic).count(), 2);
        assert_eq!(first.owns().len() + second.owns().len(), 4);
        settle_mixed(&mut harness, &topics, &mut [&mut first, &mut second], &mut [&mut new]);
        let mut sizes = [first.owns().len(), second.owns().len(), new.owns(&topics).len()];
        sizes.sort_unstable();
        assert_eq!(sizes, [1, 1, 2]);

        // The first restarts with the other protocol.
        harness.leave(&[(&first.id, None)]);
        let mut newer = Consumer::of("newer", &["a"]);
        newer.join(&mut harness, &topics).unwrap();
        settle_mixed(&mut harness, &topics, &mut [&mut second], &mut [&mut new, &mut newer]);
        harness.leave(&[(&second.id, None)]);
        settle(&mut harness, &topics, &mut [&mut new, &mut newer]);
        assert_eq!((new.owns(&topics).len(), newer.owns(&topics).len()), (2, 2));
        harness.restart_compacted();
        settle(&mut harness, &topics, &mut [&mut new, &mut newer]);
    }
}

#[test]
fn a_downgrade_rebalances_the_members_that_are_left() {
    for is_silent in [false, true] {
        let (mut harness, topics, [mut first, mut second]) = classic_group(true, [None, None]);
        let mut new = Consumer::of("new", &["a"]);
        new.join(&mut harness, &topics).unwrap();
        settle_mixed(&mut harness, &topics, &mut [&mut first, &mut second], &mut [&mut new]);
        let epoch = first.generation;
        if is_silent {
            // Its session is longer than those of the others.
            for _ in 0..CONSUMER_SESSION_MS / 5_000 {
                harness.wait(5_000);
                for member in [&first, &second] {
                    let _outcome = harness.heartbeat_as(&member.spec(), member.generation);
                }
            }
        } else {
            let request = Consumer { owned: BTreeMap::new(), ..new.clone() };
            request.leave(&mut harness, &topics, -1).unwrap();
        }
        assert_eq!(harness.groups.describe_consumer_group(GROUP), Err(Error::GroupIdNotFound));
        assert_eq!(harness.groups.describe(GROUP).unwrap().state, State::PreparingRebalance);
        assert_eq!(
            harness.heartbeat_as(&first.spec(), first.generation),
            Err(Error::RebalanceInProgress),
            "it keeps its partitions until it joins"
        );
        let (one, two) = (first.send(&mut harness), second.send(&mut harness));
        assert_eq!(first.receive(&mut harness, one), Ok(true));
        assert_eq!(second.receive(&mut harness, two), Ok(true));
        // The stored generation is one ahead, and nobody may join that one.
        assert_eq!((first.generation, second.generation), (epoch + 2, epoch + 2));
        assert!(first.leads || second.leads);
    }
}

#[test]
fn a_crash_after_a_downgrade_makes_everybody_join_again() {
    let (mut harness, topics, [mut first, mut second]) = classic_group(true, [None, None]);
    let mut new = Consumer::of("new", &["a"]);
    new.join(&mut harness, &topics).unwrap();
    settle_mixed(&mut harness, &topics, &mut [&mut first, &mut second], &mut [&mut new]);
    new.leave(&mut harness, &topics, -1).unwrap();
    harness.restart_compacted();
    for member in [&first, &second] {
        assert_eq!(harness.heartbeat_as(&member.spec(), member.generation), Err(Error::IllegalGeneration));
    }
    let (one, two) = (first.send(&mut harness), second.send(&mut harness));
    assert_eq!(first.receive(&mut harness, one), Ok(true));
    assert_eq!(second.receive(&mut harness, two), Ok(true));
}

#[test]
fn a_crash_between_keeps_both_kinds_of_members() {
    let (mut harness, topics, [mut first, mut second]) = classic_group(true, [None, None]);
    let mut new = Consumer::of("new", &["a"]);
    new.join(&mut harness, &topics).unwrap();
    let before = harness.groups.describe_consumer_group(GROUP).unwrap();
    for is_compacted in [true, false] {
        if is_compacted {
            harness.restart_compacted();
        } else {
            harness.restart();
        }
        assert_eq!(harness.groups.describe_consumer_group(GROUP).unwrap(), before);
    }
    settle_mixed(&mut harness, &topics, &mut [&mut first, &mut second], &mut [&mut new]);
}

#[test]
fn static_members_change_over_without_leaving() {
    let (mut harness, topics, [first, mut second]) = classic_group(false, [Some("1"), Some("2")]);
    let before = first.owns();
    let mut new = Consumer { instance_id: Some("1".into()), ..Consumer::of("new", &["a"]) };
    new.join(&mut harness, &topics).unwrap();
    assert_eq!(new.owns(&topics), before);
    assert_eq!(harness.heartbeat_as(&first.spec(), first.generation), Err(Error::FencedInstanceId));
    settle_mixed(&mut harness, &topics, &mut [&mut second], &mut [&mut new]);
    assert_eq!(new.owns(&topics), before);

    // And back: a restarted client of the classic protocol takes the place, and the group is a classic one again.
    let mut again = Classic { instance_id: Some("1".into()), random: 77, ..Classic::of(&["a"], false) };
    let caller = again.send(&mut harness);
    assert_eq!(again.receive(&mut harness, caller), Ok(true));
    assert_eq!(harness.groups.describe(GROUP).unwrap().state, State::PreparingRebalance);
    let (one, two) = (again.send(&mut harness), second.send(&mut harness));
    assert_eq!(again.receive(&mut harness, one), Ok(true));
    assert_eq!(second.receive(&mut harness, two), Ok(true));
}

#[test]
fn members_of_the_classic_protocol_are_fenced_by_their_generation() {
    let (mut harness, topics, [mut first, mut second]) = classic_group(true, [None, None]);
    let mut new = Consumer::of("new", &["a"]);
    new.join(&mut harness, &topics).unwrap();
    let spec = first.spec();
    assert_eq!(harness.commit_as(&spec, first.generation, 0, 1), Ok(()), "until it joins again");
    assert_eq!(harness.commit_as(&spec, first.generation + 1, 0, 1), Err(Error::IllegalGeneration));
    assert_eq!(harness.heartbeat_as(&spec, first.generation), Err(Error::RebalanceInProgress));
    assert_eq!(harness.heartbeat_as(&spec, first.generation + 1), Err(Error::IllegalGeneration));
    assert_eq!(harness.heartbeat_as(&member("new"), new.epoch), Err(Error::UnknownMemberId));
    let mut stale = first.clone();
    stale.generation += 1;
    assert_eq!(stale.sync(&mut harness, &[]), Err(Error::IllegalGeneration));
    settle_mixed(&mut harness, &topics, &mut [&mut first, &mut second], &mut [&mut new]);
    assert_eq!(harness.commit_as(&first.spec(), first.generation, 0, 2), Ok(()));

    // It is told to join again, and does not.
    let mut newer = Consumer::of("newer", &["a"]);
    newer.join(&mut harness, &topics).unwrap();
    for _ in 0..REBALANCE_MS / 5_000 {
        assert_eq!(harness.heartbeat_as(&first.spec(), first.generation), Err(Error::RebalanceInProgress));
        harness.wait(5_000);
        second.beat(&mut harness).unwrap();
        new.beat(&mut harness, &topics).unwrap();
        newer.beat(&mut harness, &topics).unwrap();
    }
    assert_eq!(harness.heartbeat_as(&first.spec(), first.generation), Err(Error::UnknownMemberId));
    harness.wait(SESSION_MS);
    assert_eq!(harness.heartbeat_as(&second.spec(), second.generation), Err(Error::UnknownMemberId));
}

#[test]
fn an_upgrade_that_is_refused_changes_nothing() {
    let (mut harness, topics, [first, second]) = classic_group(true, [None, None]);
    let before = harness.groups.describe(GROUP).unwrap();
    let log = harness.log.len();
    let invalid = Consumer { regex: Some("(".into()), ..Consumer::of("new", &["a"]) };
    assert_eq!(
        invalid.send(&mut harness, &topics, 0, true).unwrap_err().error,
        Error::InvalidRegularExpression
    );
    assert_eq!(harness.groups.describe(GROUP).unwrap(), before);
    assert_eq!(harness.log.len(), log);
    for member in [&first, &second] {
        assert_eq!(harness.heartbeat_as(&member.spec(), member.generation), Ok(()));
    }
    harness.wait(SESSION_MS);
    assert_eq!(harness.groups.describe(GROUP).unwrap().state, State::Empty, "their sessions have ended");
}

#[test]
fn a_rebalance_under_way_ends_with_an_upgrade() {
    let (mut harness, topics, [mut first, mut second]) = classic_group(true, [None, None]);
    // A third one joins; the first has joined again, the second has not.
    let mut third = Classic { random: 2, ..Classic::of(&["a"], true) };
    let caller = third.send(&mut harness);
    assert_eq!(third.receive(&mut harness, caller), Ok(false));
    let waiting = [third.send(&mut harness), first.send(&mut harness)];
    let mut new = Consumer::of("new", &["a"]);
    new.join(&mut harness, &topics).unwrap();
    assert_eq!(third.receive(&mut harness, waiting[0]), Err(Error::RebalanceInProgress));
    assert_eq!(first.receive(&mut harness, waiting[1]), Err(Error::RebalanceInProgress));
    (first.must_join, third.must_join) = (true, true);
    settle_mixed(&mut harness, &topics, &mut [&mut first, &mut second, &mut third], &mut [&mut new]);
    assert!([first.owns().len(), second.owns().len(), third.owns().len()].iter().all(|count| *count == 1));
}

#[test]
fn an_upgrade_knows_what_members_own_after_a_rebalance_that_was_begun_again() {
    let (mut harness, topics, [mut first, mut second]) = classic_group(true, [None, None]);
    let [mut third, mut fourth] = [2, 3].map(|random| Classic { random, ..Classic::of(&["a"], true) });
    for new in [&mut third, &mut fourth] {
        let caller = new.send(&mut harness);
        assert_eq!(new.receive(&mut harness, caller), Ok(false));
    }
    harness.leave(&[(&fourth.id, None)]);
    let joining = [third.send(&mut harness), first.send(&mut harness), second.send(&mut harness)];
    for (member, caller) in [&mut third, &mut first, &mut second].into_iter().zip(joining) {
        assert_eq!(member.receive(&mut harness, caller), Ok(true));
    }
    // Another one joins before the leader has assigned: this drops the assignments.
    fourth.id.clear();
    let caller = fourth.send(&mut harness);
    assert_eq!(fourth.receive(&mut harness, caller), Ok(false));
    let _waiting = fourth.send(&mut harness);
    assert_eq!(harness.groups.describe(GROUP).unwrap().state, State::PreparingRebalance);
    // The first one by member id, so that it has a share of the target.
    let mut new = Consumer::of("a", &["a"]);
    new.join(&mut harness, &topics).unwrap();
    let described = harness.groups.describe_consumer_group(GROUP).unwrap();
    assert_eq!(described.members[0].target.len(), 1);
    assert_eq!(new.owns(&topics).len(), 0, "the first two own everything");
}
