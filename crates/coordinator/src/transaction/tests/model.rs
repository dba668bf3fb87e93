//! Simulation: clients that retry and continue after they were replaced, failing log writes, lost markers, crashes at
//! any point. Transactions must stay atomic, and fenced producers must not write.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::super::*;
use crate::producer::{AppendDecision, BatchInfo, Limits, Marker, Outcome, Producers, TxnVerification};

const TIMEOUT_MS: i32 = 1000;
const PARTITIONS: i32 = 3;

/// A transaction from the client's point of view.
#[derive(Debug)]
struct ClientTransaction {
    id: usize,
    /// Outcome that the client has requested.
    requested: Option<Outcome>,
    /// Outcome that the client was told.
    acknowledged: Option<Outcome>,
}

#[derive(Clone, Copy, Debug)]
enum PendingRequest {
    Init,
    Add(i32),
    End(Outcome),
}

#[derive(Debug)]
struct Client {
    id: usize,
    speaks: TransactionVersion,
    producer: Option<Producer>,
    pending_request: Option<PendingRequest>,
    /// Its open transaction, and the requested outcome if there is one.
    transaction: Option<(usize, Option<Outcome>)>,
    sequences: BTreeMap<i32, i32>,
    is_fenced: bool,
}

#[derive(Debug)]
struct Partition {
    producers: Producers,
    end: u64,
    /// Transactions that are open here, by producer id.
    open: BTreeMap<i64, BTreeSet<usize>>,
    /// Outcomes of the transactions that ended here.
    ended: BTreeMap<usize, Outcome>,
}

#[derive(Clone, Debug)]
enum Step {
    /// A new client, which replaces the previous one of its transactional id.
    Start(usize, bool),
    Init(usize),
    Add(usize, i32),
    /// A write to a partition that was not added to the transaction.
    Write(usize, i32),
    End(usize, Outcome),
    WriteSucceeds,
    WritesFail,
    Mark(usize),
    MarkLost(usize),
    Pass(u64),
    /// The coordinator crashes after this many writes in flight became durable and this many markers were written.
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
        14 => Just(Step::WriteSucceeds),
        1 => Just(Step::WritesFail),
        10 => any::<usize>().prop_map(Step::Mark),
        1 => any::<usize>().prop_map(Step::MarkLost),
        1 => (1_u64..1500).prop_map(Step::Pass),
        1 => (0_usize..4, 0_usize..4).prop_map(|(durable, marked)| Step::Crash(durable, marked)),
    ]
}

struct Model {
    now_ms: u64,
    machine: Transactions,
    log: Vec<Record>,
    in_flight: VecDeque<(WriteId, Vec<Record>)>,
    markers: Vec<(Arc<str>, Markers, Participant)>,
    partitions: Vec<Partition>,
    clients: Vec<Client>,
    transactions: Vec<ClientTransaction>,
    /// The client that was initialized last, by transactional id.
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

impl Model {
    fn new() -> Self {
        let partition = || Partition {
            producers: Producers::new(Limits::default()),
            end: 0,
            open: BTreeMap::new(),
            ended: BTreeMap::new(),
        };
        // One transactional id whose epochs are almost exhausted.
        let mut old = Transaction::new(7_000_000);
        old.producer.epoch = i16::MAX - 4;
        let log = vec![records::transaction(&name(2), Some(&old))];
        let mut model = Self {
            now_ms: 1,
            machine: Transactions::new(Settings::default()),
            log,
            in_flight: VecDeque::new(),
            markers: Vec::new(),
            partitions: (0..PARTITIONS).map(|_| partition()).collect(),
            clients: Vec::new(),
            transactions: Vec::new(),
            owners: BTreeMap::new(),
        };
        model.crash(0, 0);
        model
    }

    fn crash(&mut self, durable: usize, marked: usize) {
        for (_, records) in self.in_flight.drain(..).take(durable) {
            self.log.extend(records);
        }
        for (_, markers, participant) in std::mem::take(&mut self.markers).into_iter().take(marked) {
            self.mark(&markers, &participant);
        }
        self.machine = Transactions::new(Settings::default());
        for record in &self.log {
            self.machine.restore(&record.key, record.value.as_deref()).unwrap();
        }
        self.machine.start(self.now_ms);
        for client in &mut self.clients {
            client.pending_request = None;
        }
        self.perform_effects();
    }

    fn perform_effects(&mut self) {
        while let Some(effect) = self.machine.poll() {
            match effect {
                Effect::Persist { keep, records } => self.in_flight.push_back((keep, records)),
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
                    self.on_reply(usize::try_from(caller.0).unwrap(), answer);
                }
            }
        }
    }

    fn on_reply(&mut self, index: usize, answer: Result<Producer, Error>) {
        let client = &mut self.clients[index];
        let pending = client.pending_request.take().expect("a reply to a pending request");
        let is_owner = self.owners.get(&client.id) == Some(&index);
        match (pending, answer) {
            (PendingRequest::Init, Ok(producer)) => {
                self.owners.insert(client.id, index);
                client.producer = Some(producer);
                client.sequences.clear();
                client.transaction = None;
            }
            (_, Err(Error::ConcurrentTransactions | Error::CoordinatorNotAvailable)) => {}
            (_, Err(_)) => client.is_fenced = true,
            (_, Ok(_)) if !is_owner => {
                panic!("client {index} is fenced but got {answer:?} to {pending:?}")
            }
            (PendingRequest::Add(partition), Ok(_)) => {
                if client.transaction.is_none() {
                    self.transactions.push(ClientTransaction {
                        id: client.id,
                        requested: None,
                        acknowledged: None,
                    });
                    client.transaction = Some((self.transactions.len() - 1, None));
                }
                if partition >= 0 {
                    assert!(self.write(index, partition, true), "an added partition rejects the write");
                }
            }
            (PendingRequest::End(outcome), Ok(producer)) => {
                if let Some((transaction, _)) = client.transaction.take() {
                    self.transactions[transaction].acknowledged = Some(outcome);
                }
                if client.producer != Some(producer) {
                    assert_eq!(client.speaks, TransactionVersion::V2);
                    client.sequences.clear();
                }
                client.producer = Some(producer);
            }
        }
    }

    /// Whether a client's write is accepted.
    fn write(&mut self, index: usize, partition: i32, is_added: bool) -> bool {
        let client = &mut self.clients[index];
        let Some(producer) = client.producer else { return false };
        let partition_state = &mut self.partitions[usize::try_from(partition).unwrap()];
        let batch = BatchInfo {
            producer_id: producer.id,
            producer_epoch: producer.epoch,
            base_sequence: client.sequences.get(&partition).copied().unwrap_or(0),
            last_offset_delta: 0,
            max_timestamp_ms: 0,
            is_transactional: true,
        };
        let mut decision = partition_state.producers.check(&batch, TxnVerification::Unknown);
        if decision == AppendDecision::Verify {
            decision = match (client.speaks, is_added) {
                (TransactionVersion::V2, true) => {
                    partition_state.producers.check(&batch, TxnVerification::VerifiedOwnEpoch)
                }
                _ if self.machine.verify(&name(client.id), producer, &participant(partition)).is_ok() => {
                    partition_state.producers.check(&batch, TxnVerification::Verified)
                }
                _ => return false,
            };
        }
        if decision != AppendDecision::Append {
            return false;
        }
        assert_eq!(self.owners.get(&client.id), Some(&index), "client {index} is fenced but has written");
        let (transaction, _) = client.transaction.expect("a write outside of a transaction");
        partition_state.producers.on_batch_appended(&batch, partition_state.end, self.now_ms);
        partition_state.end += 1;
        partition_state.producers.mark_durable(partition_state.end);
        partition_state.open.entry(producer.id).or_default().insert(transaction);
        client.sequences.insert(partition, batch.base_sequence + 1);
        self.check_open();
        true
    }

    /// At most one transaction per transactional id may be open on any partition.
    fn check_open(&self) {
        let mut open: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for transaction in
            self.partitions.iter().flat_map(|partition_state| partition_state.open.values().flatten())
        {
            open.entry(self.transactions[*transaction].id).or_default().insert(*transaction);
        }
        assert!(
            open.values().all(|transactions| transactions.len() == 1),
            "two open transactions of one transactional id: {open:?}"
        );
    }

    fn mark(&mut self, markers: &Markers, participant: &Participant) {
        let Participant::Partition { index, .. } = participant else { return };
        let partition_state = &mut self.partitions[usize::try_from(*index).unwrap()];
        let marker = Marker {
            producer_id: markers.producer.id,
            producer_epoch: markers.producer.epoch,
            coordinator_epoch: markers.coordinator_epoch,
            outcome: markers.outcome,
            timestamp_ms: 0,
        };
        assert_eq!(partition_state.producers.check_marker(&marker), Ok(()));
        partition_state.producers.on_marker_appended(&marker, partition_state.end, self.now_ms);
        partition_state.end += 1;
        partition_state.producers.mark_durable(partition_state.end);
        for transaction in partition_state.open.remove(&marker.producer_id).unwrap_or_default() {
            assert_eq!(partition_state.ended.insert(transaction, markers.outcome), None);
        }
    }

    fn send(&mut self, index: usize, pending: PendingRequest) {
        let client = &mut self.clients[index];
        let request = match (pending, client.producer) {
            (PendingRequest::Init, expected) => Request::InitProducerId { timeout_ms: TIMEOUT_MS, expected },
            (PendingRequest::Add(index), Some(producer)) => {
                Request::Add { producer, participants: vec![participant(index)] }
            }
            (PendingRequest::End(outcome), Some(producer)) => {
                if let Some((transaction, ending)) = &mut client.transaction {
                    *ending = Some(outcome);
                    self.transactions[*transaction].requested = Some(outcome);
                }
                Request::End { producer, outcome, speaks: client.speaks }
            }
            (_, None) => return,
        };
        client.pending_request = Some(pending);
        self.machine.handle(self.now_ms, &name(client.id), request, Caller(index as u64));
        self.perform_effects();
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Start(id, is_new) => {
                let speaks = if is_new { TransactionVersion::V2 } else { TransactionVersion::V1 };
                self.clients.push(Client {
                    id,
                    speaks,
                    producer: None,
                    pending_request: None,
                    transaction: None,
                    sequences: BTreeMap::new(),
                    is_fenced: false,
                });
                self.send(self.clients.len() - 1, PendingRequest::Init);
            }
            Step::Init(back) | Step::Add(back, _) | Step::Write(back, _) | Step::End(back, _) => {
                // One of the last few clients, including ones that were replaced.
                let Some(index) = self.clients.len().checked_sub(back + 1) else { return };
                if self.clients[index].pending_request.is_none() && !self.clients[index].is_fenced {
                    self.act(index, step);
                }
            }
            Step::WriteSucceeds => {
                if let Some((keep, records)) = self.in_flight.pop_front() {
                    self.log.extend(records);
                    self.machine.write_succeeded(keep, self.now_ms);
                }
            }
            Step::WritesFail => {
                for (keep, _) in std::mem::take(&mut self.in_flight) {
                    self.machine.write_failed(keep, self.now_ms);
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
            Step::Crash(durable, marked) => self.crash(durable, marked),
        }
        self.perform_effects();
    }

    fn act(&mut self, index: usize, step: &Step) {
        let client = &self.clients[index];
        match *step {
            Step::Init(_) => self.send(index, PendingRequest::Init),
            // A requested end is retried; the client does nothing else.
            _ if let Some((_, Some(outcome))) = client.transaction => {
                self.send(index, PendingRequest::End(outcome));
            }
            Step::Add(_, partition) => self.send(index, PendingRequest::Add(partition)),
            Step::Write(_, partition) if client.transaction.is_some() => {
                self.write(index, partition, false);
            }
            Step::End(_, outcome) if client.transaction.is_some() => {
                self.send(index, PendingRequest::End(outcome));
            }
            _ => {}
        }
    }

    /// Runs until no transaction is open and nothing is in flight.
    fn settle(&mut self) {
        for _ in 0..1000 {
            let is_open = |state| matches!(state, State::Ongoing | State::Prepare(_));
            let is_over = !self.machine.list().any(|(_, state, _, _)| is_open(state));
            if is_over && self.in_flight.is_empty() && self.markers.is_empty() {
                return;
            }
            for _ in 0..self.in_flight.len() + self.markers.len() {
                self.run(&Step::WriteSucceeds);
                self.run(&Step::Mark(0));
            }
            self.run(&Step::Pass(TIMEOUT_MS as u64));
        }
        panic!("transactions did not finish");
    }

    fn check(&self) {
        for partition_state in &self.partitions {
            assert_eq!(
                partition_state.producers.last_stable_offset(partition_state.end),
                partition_state.end
            );
            assert!(partition_state.open.is_empty());
        }
        for (number, transaction) in self.transactions.iter().enumerate() {
            let mut outcomes =
                self.partitions.iter().filter_map(|partition_state| partition_state.ended.get(&number));
            let Some(first) = outcomes.next() else { continue };
            assert!(
                outcomes.all(|other| other == first),
                "transaction {number} is not atomic: {transaction:?}"
            );
            if let Some(acknowledged) = transaction.acknowledged {
                assert_eq!(*first, acknowledged, "transaction {number}: {transaction:?}");
            }
            if transaction.requested != Some(Outcome::Commit) {
                assert_eq!(*first, Outcome::Abort, "transaction {number}: {transaction:?}");
            }
        }
        assert!(
            self.clients.iter().all(|client| client.pending_request.is_none()),
            "a request was never answered"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn transactions_are_atomic_and_fenced_producers_cannot_write(steps in prop::collection::vec(step(), 1..150)) {
        let mut model = Model::new();
        for step in &steps {
            model.run(step);
        }
        model.settle();
        model.check();
    }
}
