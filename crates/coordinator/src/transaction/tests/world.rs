//! Clients that come, go on after they were replaced, and repeat themselves; a log that fails; markers that get
//! lost; a coordinator that is lost with all its memory at any point. Whatever happens, transactions are whole.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::super::*;
use crate::producer::{Data, Limits, Marker, Membership, Outcome, Producers, Verdict};

const TIMEOUT_MS: i32 = 1000;
const PARTITIONS: i32 = 3;

/// A transaction as its client sees it.
#[derive(Debug)]
struct Wish {
    id: usize,
    /// What the client has asked for.
    asked: Option<Outcome>,
    /// What it was told.
    told: Option<Outcome>,
}

#[derive(Clone, Copy, Debug)]
enum Asked {
    Init,
    Add(i32),
    End(Outcome),
}

#[derive(Debug)]
struct Client {
    id: usize,
    speaks: Speaks,
    producer: Option<Producer>,
    busy: Option<Asked>,
    /// Its open transaction, and how it is to end if that was asked for.
    wish: Option<(usize, Option<Outcome>)>,
    sequences: BTreeMap<i32, i32>,
    is_dead: bool,
}

#[derive(Debug)]
struct Partition {
    producers: Producers,
    end: u64,
    /// Transactions that are open here, by producer id.
    open: BTreeMap<i64, BTreeSet<usize>>,
    /// How they ended here.
    ended: BTreeMap<usize, Outcome>,
}

#[derive(Clone, Debug)]
enum Step {
    /// A client that replaces the one before it.
    Start(usize, bool),
    Init(usize),
    Add(usize, i32),
    /// A write that nobody has announced.
    Write(usize, i32),
    End(usize, Outcome),
    Kept,
    NotKept,
    Mark(usize),
    MarkLost(usize),
    Pass(u64),
    /// The coordinator is lost: so much of what was to be kept is kept, and so many markers are written.
    Crash(usize, usize),
}

fn step() -> impl Strategy<Value = Step> {
    let client = || 0_usize..6;
    let partition = || -1..PARTITIONS;
    let outcome = prop_oneof![3 => Just(Outcome::Commit), 1 => Just(Outcome::Abort)];
    prop_oneof![
        2 => (0_usize..3, any::<bool>()).prop_map(|(id, is_new)| Step::Start(id, is_new)),
        1 => client().prop_map(Step::Init),
        8 => (client(), partition()).prop_map(|(client, index)| Step::Add(client, index)),
        4 => (client(), 0..PARTITIONS).prop_map(|(client, index)| Step::Write(client, index)),
        6 => (client(), outcome).prop_map(|(client, outcome)| Step::End(client, outcome)),
        14 => Just(Step::Kept),
        1 => Just(Step::NotKept),
        10 => any::<usize>().prop_map(Step::Mark),
        1 => any::<usize>().prop_map(Step::MarkLost),
        1 => (1_u64..1500).prop_map(Step::Pass),
        1 => (0_usize..4, 0_usize..4).prop_map(|(kept, marked)| Step::Crash(kept, marked)),
    ]
}

struct World {
    now_ms: u64,
    machine: Transactions,
    log: Vec<Record>,
    flying: VecDeque<(Keep, Vec<Record>)>,
    markers: Vec<(Arc<str>, Markers, Participant)>,
    partitions: Vec<Partition>,
    clients: Vec<Client>,
    wishes: Vec<Wish>,
    /// Of each transactional identifier, the client that was initialized last.
    owners: BTreeMap<usize, usize>,
}

fn name(id: usize) -> String {
    format!("id-{id}")
}

fn participant(index: i32) -> Participant {
    if index < 0 {
        Participant::Group("group".into())
    } else {
        Participant::Partition { topic: "t".into(), index }
    }
}

impl World {
    fn new() -> Self {
        let partition = || Partition {
            producers: Producers::new(Limits::default()),
            end: 0,
            open: BTreeMap::new(),
            ended: BTreeMap::new(),
        };
        // One identifier whose epochs are nearly used up.
        let mut old = Transaction::new(7_000_000);
        old.producer.epoch = i16::MAX - 4;
        let log = vec![records::transaction(&name(2), Some(&old))];
        let mut world = Self {
            now_ms: 1,
            machine: Transactions::new(Settings::default()),
            log,
            flying: VecDeque::new(),
            markers: Vec::new(),
            partitions: (0..PARTITIONS).map(|_| partition()).collect(),
            clients: Vec::new(),
            wishes: Vec::new(),
            owners: BTreeMap::new(),
        };
        world.crash(0, 0);
        world
    }

    fn crash(&mut self, kept: usize, marked: usize) {
        for (_, records) in self.flying.drain(..).take(kept) {
            self.log.extend(records);
        }
        for (_, markers, participant) in std::mem::take(&mut self.markers).into_iter().take(marked) {
            self.mark(&markers, &participant);
        }
        self.machine = Transactions::new(Settings::default());
        for record in &self.log {
            self.machine.restore(&record.key, record.value.as_deref()).unwrap();
        }
        self.machine.begin(self.now_ms);
        for client in &mut self.clients {
            client.busy = None;
        }
        self.effects();
    }

    fn effects(&mut self) {
        while let Some(effect) = self.machine.poll() {
            match effect {
                Effect::Keep { keep, records } => self.flying.push_back((keep, records)),
                Effect::WriteMarkers(markers) => {
                    for participant in markers.participants.clone() {
                        self.markers.push((
                            Arc::clone(&markers.transactional_id),
                            markers.clone(),
                            participant,
                        ));
                    }
                }
                Effect::Reply { caller, answer } => {
                    self.answered(usize::try_from(caller.0).unwrap(), answer);
                }
            }
        }
    }

    fn answered(&mut self, index: usize, answer: Result<Producer, Error>) {
        let client = &mut self.clients[index];
        let asked = client.busy.take().expect("an answer nobody waits for");
        let is_owner = self.owners.get(&client.id) == Some(&index);
        match (asked, answer) {
            (Asked::Init, Ok(producer)) => {
                self.owners.insert(client.id, index);
                client.producer = Some(producer);
                client.sequences.clear();
                client.wish = None;
            }
            (_, Err(Error::ConcurrentTransactions | Error::CoordinatorNotAvailable)) => {}
            (_, Err(_)) => client.is_dead = true,
            (_, Ok(_)) if !is_owner => {
                panic!("client {index} is fenced and was told {answer:?} on {asked:?}")
            }
            (Asked::Add(partition), Ok(_)) => {
                if client.wish.is_none() {
                    self.wishes.push(Wish { id: client.id, asked: None, told: None });
                    client.wish = Some((self.wishes.len() - 1, None));
                }
                if partition >= 0 {
                    assert!(self.write(index, partition, true), "what was added cannot be written to");
                }
            }
            (Asked::End(outcome), Ok(producer)) => {
                if let Some((wish, _)) = client.wish.take() {
                    self.wishes[wish].told = Some(outcome);
                }
                if client.producer != Some(producer) {
                    assert_eq!(client.speaks, Speaks::OwnEpochs);
                    client.sequences.clear();
                }
                client.producer = Some(producer);
            }
        }
    }

    /// Whether a client's write is taken.
    fn write(&mut self, index: usize, partition: i32, is_added: bool) -> bool {
        let client = &mut self.clients[index];
        let Some(producer) = client.producer else { return false };
        let place = &mut self.partitions[usize::try_from(partition).unwrap()];
        let batch = Data {
            producer_id: producer.id,
            producer_epoch: producer.epoch,
            base_sequence: client.sequences.get(&partition).copied().unwrap_or(0),
            last_offset_delta: 0,
            max_timestamp_ms: 0,
            is_transactional: true,
        };
        let mut verdict = place.producers.check(&batch, Membership::Unknown);
        if verdict == Verdict::Verify {
            verdict = match (client.speaks, is_added) {
                (Speaks::OwnEpochs, true) => place.producers.check(&batch, Membership::VerifiedOwnEpoch),
                _ if self.machine.verify(&name(client.id), producer, &participant(partition)).is_ok() => {
                    place.producers.check(&batch, Membership::Verified)
                }
                _ => return false,
            };
        }
        if verdict != Verdict::Append {
            return false;
        }
        assert_eq!(self.owners.get(&client.id), Some(&index), "client {index} is fenced and has written");
        let (wish, _) = client.wish.expect("a write outside of a transaction");
        place.producers.appended(&batch, place.end, self.now_ms);
        place.end += 1;
        place.producers.durable(place.end);
        place.open.entry(producer.id).or_default().insert(wish);
        client.sequences.insert(partition, batch.base_sequence + 1);
        self.check_open();
        true
    }

    /// Of each transactional identifier no more than one transaction is open anywhere.
    fn check_open(&self) {
        let mut open: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for wish in self.partitions.iter().flat_map(|place| place.open.values().flatten()) {
            open.entry(self.wishes[*wish].id).or_default().insert(*wish);
        }
        assert!(open.values().all(|wishes| wishes.len() == 1), "two at once: {open:?}");
    }

    fn mark(&mut self, markers: &Markers, participant: &Participant) {
        let Participant::Partition { index, .. } = participant else { return };
        let place = &mut self.partitions[usize::try_from(*index).unwrap()];
        let marker = Marker {
            producer_id: markers.producer.id,
            producer_epoch: markers.producer.epoch,
            coordinator_epoch: markers.coordinator_epoch,
            outcome: markers.outcome,
            timestamp_ms: 0,
        };
        assert_eq!(place.producers.check_marker(&marker), Ok(()));
        place.producers.ended(&marker, place.end, self.now_ms);
        place.end += 1;
        place.producers.durable(place.end);
        for wish in place.open.remove(&marker.producer_id).unwrap_or_default() {
            assert_eq!(place.ended.insert(wish, markers.outcome), None);
        }
    }

    fn ask(&mut self, index: usize, asked: Asked) {
        let client = &mut self.clients[index];
        let request = match (asked, client.producer) {
            (Asked::Init, expected) => Request::InitProducerId { timeout_ms: TIMEOUT_MS, expected },
            (Asked::Add(index), Some(producer)) => {
                Request::Add { producer, participants: vec![participant(index)] }
            }
            (Asked::End(outcome), Some(producer)) => {
                if let Some((wish, ending)) = &mut client.wish {
                    *ending = Some(outcome);
                    self.wishes[*wish].asked = Some(outcome);
                }
                Request::End { producer, outcome, speaks: client.speaks }
            }
            (_, None) => return,
        };
        client.busy = Some(asked);
        self.machine.handle(self.now_ms, &name(client.id), request, Caller(index as u64));
        self.effects();
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Start(id, is_new) => {
                let speaks = if is_new { Speaks::OwnEpochs } else { Speaks::OneEpoch };
                self.clients.push(Client {
                    id,
                    speaks,
                    producer: None,
                    busy: None,
                    wish: None,
                    sequences: BTreeMap::new(),
                    is_dead: false,
                });
                self.ask(self.clients.len() - 1, Asked::Init);
            }
            Step::Init(back) | Step::Add(back, _) | Step::Write(back, _) | Step::End(back, _) => {
                // The last few clients; those that were replaced go on.
                let Some(index) = self.clients.len().checked_sub(back + 1) else { return };
                if self.clients[index].busy.is_none() && !self.clients[index].is_dead {
                    self.act(index, step);
                }
            }
            Step::Kept => {
                if let Some((keep, records)) = self.flying.pop_front() {
                    self.log.extend(records);
                    self.machine.kept(keep, self.now_ms);
                }
            }
            Step::NotKept => {
                for (keep, _) in std::mem::take(&mut self.flying) {
                    self.machine.not_kept(keep, self.now_ms);
                }
            }
            Step::Mark(which) if !self.markers.is_empty() => {
                let (id, markers, participant) = self.markers.remove(which % self.markers.len());
                self.mark(&markers, &participant);
                self.machine.marker_written(&id, markers.producer, &participant, self.now_ms);
            }
            Step::MarkLost(which) if !self.markers.is_empty() => {
                let (id, markers, participant) = self.markers.remove(which % self.markers.len());
                self.machine.marker_failed(&id, markers.producer, &participant, self.now_ms);
            }
            Step::Mark(_) | Step::MarkLost(_) => {}
            Step::Pass(ms) => {
                self.now_ms += ms;
                self.machine.tick(self.now_ms);
            }
            Step::Crash(kept, marked) => self.crash(kept, marked),
        }
        self.effects();
    }

    fn act(&mut self, index: usize, step: &Step) {
        let client = &self.clients[index];
        match *step {
            Step::Init(_) => self.ask(index, Asked::Init),
            // What was asked to end is asked again, and nothing else.
            _ if let Some((_, Some(outcome))) = client.wish => self.ask(index, Asked::End(outcome)),
            Step::Add(_, partition) => self.ask(index, Asked::Add(partition)),
            Step::Write(_, partition) if client.wish.is_some() => {
                self.write(index, partition, false);
            }
            Step::End(_, outcome) if client.wish.is_some() => self.ask(index, Asked::End(outcome)),
            _ => {}
        }
    }

    /// Lets everything come to its end.
    fn settle(&mut self) {
        for _ in 0..1000 {
            let is_open = |state| matches!(state, State::Ongoing | State::Prepare(_));
            let is_over = !self.machine.list().any(|(_, state, _, _)| is_open(state));
            if is_over && self.flying.is_empty() && self.markers.is_empty() {
                return;
            }
            for _ in 0..self.flying.len() + self.markers.len() {
                self.take(&Step::Kept);
                self.take(&Step::Mark(0));
            }
            self.take(&Step::Pass(TIMEOUT_MS as u64));
        }
        panic!("it never ends");
    }

    fn check(&self) {
        for place in &self.partitions {
            assert_eq!(place.producers.last_stable_offset(place.end), place.end);
            assert!(place.open.is_empty());
        }
        for (number, wish) in self.wishes.iter().enumerate() {
            let mut outcomes = self.partitions.iter().filter_map(|place| place.ended.get(&number));
            let Some(first) = outcomes.next() else { continue };
            assert!(outcomes.all(|other| other == first), "transaction {number} is torn: {wish:?}");
            if let Some(told) = wish.told {
                assert_eq!(*first, told, "transaction {number}: {wish:?}");
            }
            if wish.asked != Some(Outcome::Commit) {
                assert_eq!(*first, Outcome::Abort, "transaction {number}: {wish:?}");
            }
        }
        assert!(self.clients.iter().all(|client| client.busy.is_none()), "somebody was never answered");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn transactions_are_whole_and_the_fenced_stay_out(steps in prop::collection::vec(step(), 1..150)) {
        let mut world = World::new();
        for step in &steps {
            world.take(step);
        }
        world.settle();
        world.check();
    }
}
