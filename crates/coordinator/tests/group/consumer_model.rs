//! Random operations of members of the consumer protocol, seen by what clients own: they join, beat, lose responses,
//! leave and fall silent, topics change, writes fail, and the process restarts at any point from its log.
//!
//! Invariants: no partition is owned by two clients at a time; a client that the group does not know may own nothing
//! that another one has; when all is quiet, each partition of a subscribed topic is owned by a subscriber, and
//! memberships of equal subscriptions differ by one partition at most.

use std::collections::{BTreeMap, BTreeSet};

use mainstem_coordinator::Error;
use mainstem_coordinator::group::State;
use proptest::prelude::*;

use crate::consumer::{CONSUMER_SESSION_MS, Consumer, TopicTable};
use crate::harness::{GROUP, Harness};

const CLIENTS: usize = 5;
const NAMES: [&str; 3] = ["a", "b", "c"];

#[derive(Clone, Debug)]
enum Step {
    Join(usize),
    Beat(usize),
    /// The response is lost.
    LoseResponse(usize),
    Leave(usize),
    LeaveForAWhile(usize),
    /// Subscribes to the topics of a bit mask.
    Subscribe(usize, u8),
    Extend(usize),
    Recreate(usize),
    FailWrites(bool),
    Wait(u64),
    Restart {
        is_compacted: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let who = 0..CLIENTS;
    prop_oneof![
        4 => who.clone().prop_map(Step::Join),
        16 => who.clone().prop_map(Step::Beat),
        2 => who.clone().prop_map(Step::LoseResponse),
        1 => who.clone().prop_map(Step::Leave),
        1 => who.clone().prop_map(Step::LeaveForAWhile),
        1 => (who, 1..8_u8).prop_map(|(who, mask)| Step::Subscribe(who, mask)),
        1 => (0..NAMES.len()).prop_map(Step::Extend),
        1 => (0..NAMES.len()).prop_map(Step::Recreate),
        1 => any::<bool>().prop_map(Step::FailWrites),
        2 => (1..CONSUMER_SESSION_MS).prop_map(Step::Wait),
        1 => any::<bool>().prop_map(|is_compacted| Step::Restart { is_compacted }),
    ]
}

struct Model {
    harness: Harness,
    topics: TopicTable,
    clients: Vec<Consumer>,
    /// Until when the group may count on a client, which stops using its partitions then, ms.
    deadlines_ms: Vec<u64>,
    /// Clients that have not told the group of their subscription.
    has_changed: Vec<bool>,
    ids: usize,
    partitions: i32,
}

impl Model {
    fn new() -> Self {
        let topics = TopicTable::of(&[("a", 3), ("b", 2), ("c", 1)]);
        let client = |who: usize| {
            let consumer = Consumer::of("", &NAMES);
            // Every second client is a static member.
            let instance_id = (who % 2 == 1).then(|| format!("instance-{who}"));
            // The group never gives up a client that takes long, of which this client would know only later.
            Consumer { instance_id, rebalance_ms: 1_000_000_000, ..consumer }
        };
        Self {
            harness: Harness::default(),
            topics,
            clients: (0..CLIENTS).map(client).collect(),
            deadlines_ms: vec![0; CLIENTS],
            has_changed: vec![false; CLIENTS],
            ids: 0,
            partitions: 3,
        }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Join(who) => self.join(who),
            Step::Beat(who) => self.beat(who, true),
            Step::LoseResponse(who) => self.beat(who, false),
            Step::Leave(who) => self.leave(who, -1),
            Step::LeaveForAWhile(who) if self.clients[who].instance_id.is_some() => self.leave(who, -2),
            Step::LeaveForAWhile(_) => {}
            Step::Subscribe(who, mask) => self.subscribe(who, mask),
            Step::Extend(topic) => {
                self.partitions += 1;
                self.topics.extend(NAMES[topic], self.partitions);
            }
            Step::Recreate(topic) => {
                self.topics.delete(NAMES[topic]);
                self.topics.create(NAMES[topic], 2);
            }
            Step::FailWrites(fails) => {
                self.harness.fail_rejected_writes();
                self.harness.log_rejects_writes = fails;
            }
            Step::Wait(ms) => {
                self.harness.wait(ms);
                self.expire();
            }
            Step::Restart { is_compacted } => self.restart(is_compacted),
        }
        self.check_owners();
    }

    /// A client that has not had a response for a session timeout stops using its partitions.
    fn expire(&mut self) {
        for who in 0..CLIENTS {
            if self.deadlines_ms[who] <= self.harness.now_ms {
                self.abandon(who);
            }
        }
    }

    fn abandon(&mut self, who: usize) {
        self.clients[who].owned.clear();
        self.clients[who].epoch = 0;
    }

    fn restart(&mut self, is_compacted: bool) {
        self.harness.fail_rejected_writes();
        if is_compacted {
            self.harness.restart_compacted();
        } else {
            self.harness.restart();
        }
    }

    fn join(&mut self, who: usize) {
        if self.clients[who].epoch > 0 {
            return;
        }
        if self.clients[who].id.is_empty() {
            self.ids += 1;
            self.clients[who].id = format!("member-{}", self.ids);
        }
        let result = self.clients[who].send(&mut self.harness, &self.topics, 0, true);
        // An answer that promises something that is not durable is an error.
        if self.harness.log_rejects_writes {
            return self.abandon(who);
        }
        match result {
            Ok(result) => self.take(who, result),
            Err(refusal) => self.on_error(who, refusal.error),
        }
    }

    fn take(&mut self, who: usize, result: mainstem_coordinator::group::ConsumerHeartbeatResult) {
        self.clients[who].take(result);
        self.has_changed[who] = false;
        self.deadlines_ms[who] = self.harness.now_ms + CONSUMER_SESSION_MS;
    }

    fn beat(&mut self, who: usize, is_received: bool) {
        if self.clients[who].epoch <= 0 {
            return;
        }
        let epoch = self.clients[who].epoch;
        let is_full = self.has_changed[who];
        let result = self.clients[who].send(&mut self.harness, &self.topics, epoch, is_full);
        if !is_received || self.harness.log_rejects_writes {
            return;
        }
        match result {
            Ok(result) => self.take(who, result),
            Err(refusal) => self.on_error(who, refusal.error),
        }
    }

    fn on_error(&mut self, who: usize, error: Error) {
        self.abandon(who);
        match error {
            Error::FencedMemberEpoch | Error::UnknownMemberId | Error::GroupIdNotFound => {}
            // Another process has its instance id, or had it and has not left.
            Error::FencedInstanceId | Error::UnreleasedInstanceId => self.clients[who].id.clear(),
            other => panic!("{other:?}"),
        }
    }

    fn leave(&mut self, who: usize, epoch: i32) {
        if self.clients[who].epoch <= 0 || self.harness.log_rejects_writes {
            return;
        }
        // The client stops using its partitions before it leaves.
        let left = self.clients[who].send(&mut self.harness, &self.topics, epoch, false);
        if let Err(refusal) = left {
            self.on_error(who, refusal.error);
        }
        self.abandon(who);
        self.clients[who].id.clear();
    }

    fn subscribe(&mut self, who: usize, mask: u8) {
        let selected = NAMES.iter().enumerate().filter(|(bit, _)| mask & 1 << bit != 0);
        self.clients[who].names = selected.map(|(_, name)| (*name).to_owned()).collect();
        self.has_changed[who] = true;
        self.beat(who, true);
    }

    fn owners(&self) -> BTreeMap<([u8; 16], i32), Vec<usize>> {
        let mut owners: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (who, client) in self.clients.iter().enumerate() {
            for (topic, partitions) in &client.owned {
                for partition in partitions {
                    owners.entry((*topic, *partition)).or_default().push(who);
                }
            }
        }
        owners
    }

    fn check_owners(&self) {
        for (partition, owners) in self.owners() {
            assert!(owners.len() == 1, "{partition:?} is owned by the clients {owners:?}");
        }
    }

    /// Everybody joins and beats until nothing changes; then all is assigned.
    fn check_all_is_assigned(&mut self) {
        self.harness.fail_rejected_writes();
        self.harness.log_rejects_writes = false;
        // Static members that have left may return under another member id only after a session timeout.
        for _ in 0..2 {
            for who in 0..CLIENTS {
                self.beat(who, true);
            }
            self.run(&Step::Wait(CONSUMER_SESSION_MS / 2 + 1));
        }
        for _ in 0..30 {
            for who in 0..CLIENTS {
                self.join(who);
                self.beat(who, true);
                self.check_owners();
            }
            self.run(&Step::Wait(100));
        }
        let group = self.harness.groups.describe_consumer_group(GROUP).expect("a group");
        assert_eq!((group.state, group.members.len()), (State::Stable, CLIENTS));
        let names: Vec<BTreeSet<&str>> =
            self.clients.iter().map(|client| client.names.iter().map(String::as_str).collect()).collect();
        let owned: Vec<Vec<String>> = self.clients.iter().map(|client| client.owns(&self.topics)).collect();
        let subscribed: BTreeSet<&str> = names.iter().flatten().copied().collect();
        let mut all: Vec<String> = owned.iter().flatten().cloned().collect();
        all.sort();
        let mut expected = self.topics.all(&subscribed.into_iter().collect::<Vec<_>>());
        expected.sort();
        assert_eq!(all, expected);
        for (owned, names) in owned.iter().zip(&names) {
            for partition in owned {
                assert!(names.contains(partition.split('-').next().unwrap()), "{partition} of {names:?}");
            }
        }
        if names.iter().all(|known| *known == names[0]) {
            let sizes = owned.iter().map(Vec::len);
            assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1, "{owned:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn partitions_have_one_owner(steps in prop::collection::vec(step(), 1..150)) {
        let mut model = Model::new();
        for step in &steps {
            model.run(step);
        }
        model.check_all_is_assigned();
    }
}
