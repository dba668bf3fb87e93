//! Random mixtures of clients of both protocols in one group: they start, stop, change the protocol and fall silent,
//! the broker restarts from its log, and the group changes over and back.
//!
//! Invariants: no partition is owned by two clients at a time; when all is quiet, each partition is owned.

use std::collections::{BTreeMap, BTreeSet};

use mainstem_coordinator::group::{JoinedMember, Response, State};
use mainstem_coordinator::{Caller, Error};
use proptest::prelude::*;

use crate::consumer::{CONSUMER_SESSION_MS, Consumer, TopicTable};
use crate::harness::{GROUP, Harness, SESSION_MS};
use crate::migration::{Classic, assignment, read_subscription};

const CLIENTS: usize = 4;
const PARTITIONS: i32 = 5;
/// Answers are taken so often while time passes, ms.
const TICK_MS: u64 = 100;

#[derive(Clone, Debug)]
enum Step {
    Act(usize),
    StartClassic(usize),
    StartConsumer(usize),
    Leave(usize),
    Kill(usize),
    Wait(u64),
    Restart { is_compacted: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let who = 0..CLIENTS;
    prop_oneof![
        20 => who.clone().prop_map(Step::Act),
        3 => who.clone().prop_map(Step::StartClassic),
        3 => who.clone().prop_map(Step::StartConsumer),
        2 => who.clone().prop_map(Step::Leave),
        1 => who.prop_map(Step::Kill),
        3 => (1..SESSION_MS / 2).prop_map(Step::Wait),
        1 => any::<bool>().prop_map(|is_compacted| Step::Restart { is_compacted }),
    ]
}

enum Client {
    Stopped,
    Classic(ClassicClient),
    Consumer(Consumer),
}

/// A client of the classic protocol with its pending requests.
struct ClassicClient {
    member: Classic,
    joining: Option<Caller>,
    syncing: Option<Caller>,
}

impl ClassicClient {
    /// Takes an answer if there is one, or sends what is next. Returns whether the group has confirmed its session.
    fn act(&mut self, harness: &mut Harness) -> bool {
        if let Some(caller) = self.joining {
            return self.take_join(harness, caller);
        }
        if let Some(caller) = self.syncing {
            return self.take_sync(harness, caller);
        }
        if !self.member.must_join {
            match harness.heartbeat_as(&self.member.spec(), self.member.generation) {
                Ok(()) => return true,
                Err(Error::RebalanceInProgress) => {}
                Err(error) => self.on_error(error),
            }
        }
        self.joining = Some(self.member.send(harness));
        false
    }

    fn take_join(&mut self, harness: &mut Harness, caller: Caller) -> bool {
        let Some(answer) = harness.joined(caller) else { return false };
        self.joining = None;
        match answer.outcome {
            Ok(joined) => {
                self.member.id = answer.member_id;
                self.member.generation = joined.generation;
                self.member.must_join = false;
                let leads = joined.leader == self.member.id;
                let assigned = if leads { lead(&joined.members) } else { BTreeMap::new() };
                let assigned: Vec<(&str, &[u8])> =
                    assigned.iter().map(|(id, bytes)| (&**id, &**bytes)).collect();
                self.syncing = Some(self.member.send_sync(harness, &assigned));
                true
            }
            Err(Error::MemberIdRequired) => {
                self.member.id = answer.member_id;
                false
            }
            Err(error) => {
                self.on_error(error);
                false
            }
        }
    }

    fn take_sync(&mut self, harness: &mut Harness, caller: Caller) -> bool {
        let Some(Response::Sync(answer)) = harness.answer(caller) else { return false };
        self.syncing = None;
        match answer {
            Ok(synced) => {
                self.member.take_assignment(&synced.assignment);
                true
            }
            Err(error) => {
                self.on_error(error);
                false
            }
        }
    }

    fn on_error(&mut self, error: Error) {
        self.member.must_join = true;
        match error {
            Error::RebalanceInProgress => {}
            Error::IllegalGeneration => self.member.owned.clear(),
            Error::UnknownMemberId => {
                self.member.owned.clear();
                self.member.id.clear();
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Assigns as a leader does: partitions stay with who owns them, the others go to who has fewest.
fn lead(members: &[JoinedMember]) -> BTreeMap<String, Vec<u8>> {
    let mut owned: BTreeMap<&str, BTreeSet<i32>> = BTreeMap::new();
    let mut free: BTreeSet<i32> = (0..PARTITIONS).collect();
    for member in members {
        let says = read_subscription(&member.metadata);
        let kept = says.get("a").into_iter().flatten().copied().filter(|partition| free.remove(partition));
        owned.insert(&member.member_id, kept.collect());
    }
    for partition in free {
        let (_, least) = owned.iter_mut().min_by_key(|(_, partitions)| partitions.len()).expect("a member");
        least.insert(partition);
    }
    let bytes = |partitions: BTreeSet<i32>| assignment(&[("a", &partitions.into_iter().collect::<Vec<_>>())]);
    owned.into_iter().map(|(id, partitions)| (id.to_owned(), bytes(partitions))).collect()
}

struct Model {
    harness: Harness,
    topics: TopicTable,
    clients: Vec<Client>,
    /// When each client stops using its partitions, unless the group confirms its session before, ms.
    deadlines_ms: Vec<u64>,
    started: u32,
    is_cooperative: bool,
}

impl Model {
    fn new(is_cooperative: bool) -> Self {
        let topics = || TopicTable::of(&[("a", PARTITIONS)]);
        let mut harness = Harness::default();
        harness.topics = topics();
        let clients = (0..CLIENTS).map(|_| Client::Stopped).collect();
        Self {
            harness,
            topics: topics(),
            clients,
            deadlines_ms: vec![0; CLIENTS],
            started: 0,
            is_cooperative,
        }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Act(who) => self.act(who),
            Step::StartClassic(who) => self.start_classic(who),
            Step::StartConsumer(who) => self.start_consumer(who),
            Step::Leave(who) => self.leave(who),
            Step::Kill(who) => self.clients[who] = Client::Stopped,
            Step::Wait(ms) => {
                for _ in 0..ms / TICK_MS {
                    self.wait(TICK_MS);
                    self.receive();
                }
            }
            Step::Restart { is_compacted } => self.restart(is_compacted),
        }
        self.receive();
        self.check_owners();
    }

    fn start_classic(&mut self, who: usize) {
        if matches!(self.clients[who], Client::Stopped) {
            self.started += 1;
            let member = Classic {
                random: u128::from(self.started) << 64,
                rebalance_ms: 1_000_000_000,
                ..Classic::of(&["a"], self.is_cooperative)
            };
            self.clients[who] = Client::Classic(ClassicClient { member, joining: None, syncing: None });
        }
    }

    fn start_consumer(&mut self, who: usize) {
        if matches!(self.clients[who], Client::Stopped) {
            self.started += 1;
            let consumer = Consumer::of(&format!("consumer-{}", self.started), &["a"]);
            self.clients[who] = Client::Consumer(Consumer { rebalance_ms: 1_000_000_000, ..consumer });
        }
    }

    fn act(&mut self, who: usize) {
        let Self { harness, topics, clients, deadlines_ms, .. } = self;
        match &mut clients[who] {
            Client::Stopped => {}
            Client::Classic(client) => {
                if client.act(harness) {
                    deadlines_ms[who] = harness.now_ms + SESSION_MS;
                }
            }
            Client::Consumer(consumer) => {
                let outcome = if consumer.epoch == 0 {
                    consumer.join(harness, topics)
                } else {
                    consumer.beat(harness, topics)
                };
                match outcome {
                    Ok(()) => deadlines_ms[who] = harness.now_ms + CONSUMER_SESSION_MS,
                    Err(refusal) => {
                        assert!(
                            matches!(
                                refusal.error,
                                Error::UnknownMemberId | Error::FencedMemberEpoch | Error::GroupIdNotFound
                            ),
                            "{refusal:?}"
                        );
                        consumer.epoch = 0;
                        consumer.owned.clear();
                    }
                }
            }
        }
    }

    /// Takes the answers that have come.
    fn receive(&mut self) {
        let Self { harness, clients, deadlines_ms, .. } = self;
        for (client, deadline_ms) in clients.iter_mut().zip(deadlines_ms) {
            while let Client::Classic(client) = &mut *client
                && (client.joining.is_some() || client.syncing.is_some())
                && client.act(harness)
            {
                // It may have come up to a tick ago.
                *deadline_ms = harness.now_ms + SESSION_MS - TICK_MS;
            }
        }
    }

    fn leave(&mut self, who: usize) {
        match std::mem::replace(&mut self.clients[who], Client::Stopped) {
            Client::Classic(client) if !client.member.id.is_empty() => {
                self.harness.leave(&[(&client.member.id, None)]);
            }
            Client::Consumer(consumer) if consumer.epoch > 0 => {
                let _outcome = consumer.leave(&mut self.harness, &self.topics, -1);
            }
            _ => {}
        }
    }

    fn wait(&mut self, ms: u64) {
        self.harness.wait(ms);
        for (client, deadline_ms) in self.clients.iter_mut().zip(&self.deadlines_ms) {
            if *deadline_ms <= self.harness.now_ms {
                match client {
                    Client::Stopped => {}
                    Client::Classic(client) => {
                        client.member.owned.clear();
                        // An answer would have come before.
                        client.syncing = None;
                        client.member.must_join = true;
                    }
                    Client::Consumer(consumer) => {
                        consumer.owned.clear();
                        consumer.epoch = 0;
                    }
                }
            }
        }
    }

    /// Requests that wait are lost, and sent again.
    fn restart(&mut self, is_compacted: bool) {
        for client in &mut self.clients {
            if let Client::Classic(client) = client {
                let is_waiting = client.joining.take().is_some() | client.syncing.take().is_some();
                client.member.must_join |= is_waiting;
            }
        }
        if is_compacted {
            self.harness.restart_compacted();
        } else {
            self.harness.restart();
        }
    }

    fn owned(&self) -> Vec<String> {
        let of_client = |client: &Client| match client {
            Client::Stopped => Vec::new(),
            Client::Classic(client) => client.member.owns(),
            Client::Consumer(consumer) => consumer.owns(&self.topics),
        };
        let mut owned: Vec<String> = self.clients.iter().flat_map(of_client).collect();
        owned.sort();
        owned
    }

    fn check_owners(&self) {
        let owned = self.owned();
        assert!(owned.windows(2).all(|pair| pair[0] != pair[1]), "{owned:?}");
    }

    fn check_all_is_assigned(&mut self) {
        self.start_classic(0);
        for _ in 0..CONSUMER_SESSION_MS / 1_000 + 60 {
            for _ in 0..3 {
                for who in 0..CLIENTS {
                    self.act(who);
                    self.check_owners();
                }
            }
            self.run(&Step::Wait(1_000));
        }
        assert_eq!(self.owned(), self.topics.all(&["a"]));
        let has_consumer = self.clients.iter().any(|client| matches!(client, Client::Consumer(_)));
        let state = if has_consumer {
            self.harness.groups.describe_consumer_group(GROUP).expect("a consumer group").state
        } else {
            self.harness.groups.describe(GROUP).expect("a classic group").state
        };
        assert_eq!(state, State::Stable);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn partitions_have_one_owner_while_protocols_change(
        is_cooperative: bool,
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let mut model = Model::new(is_cooperative);
        for step in &steps {
            model.run(step);
        }
        model.check_all_is_assigned();
    }
}
