//! Single cases, for clients of both transaction versions.

use super::super::*;
use crate::producer::Outcome;
use crate::producer::Outcome::{Abort, Commit};

const V1: TransactionVersion = TransactionVersion::V1;
const V2: TransactionVersion = TransactionVersion::V2;

/// A coordinator whose log writes succeed at once; markers are written when the test asks for it.
struct Harness {
    machine: Transactions,
    markers: Vec<Markers>,
    answers: Vec<Result<Producer, Error>>,
    log: Vec<Record>,
}

impl Harness {
    fn new() -> Self {
        Self::with(Settings::default())
    }

    fn with(settings: Settings) -> Self {
        let machine = Transactions::new(settings);
        let mut harness = Self { machine, markers: Vec::new(), answers: Vec::new(), log: Vec::new() };
        harness.machine.start(0);
        harness.run(0);
        harness
    }

    fn run(&mut self, now_ms: u64) {
        while let Some(effect) = self.machine.poll() {
            match effect {
                Effect::Persist { keep, records } => {
                    self.log.extend(records);
                    self.machine.write_succeeded(keep, now_ms);
                }
                Effect::WriteMarkers(markers) => self.markers.push(markers),
                Effect::Reply { answer, .. } => self.answers.push(answer),
            }
        }
    }

    /// Sends a request and returns the reply, if it comes at once.
    fn send(&mut self, now_ms: u64, request: Request) -> Option<Result<Producer, Error>> {
        self.machine.handle(now_ms, "id", request, Caller(0));
        self.run(now_ms);
        self.answers.pop()
    }

    fn init(&mut self, now_ms: u64, expected: Option<Producer>) -> Option<Result<Producer, Error>> {
        self.send(now_ms, Request::InitProducerId { timeout_ms: 1000, expected })
    }

    fn add(&mut self, now_ms: u64, producer: Producer) -> Option<Result<Producer, Error>> {
        self.send(now_ms, Request::Add { producer, participants: vec![partition()] })
    }

    fn end(
        &mut self,
        producer: Producer,
        outcome: Outcome,
        speaks: TransactionVersion,
    ) -> Option<Result<Producer, Error>> {
        self.send(5, Request::End { producer, outcome, speaks })
    }

    /// Writes all issued markers and returns their producers and outcomes.
    fn write(&mut self) -> Vec<(Producer, Outcome)> {
        let markers = std::mem::take(&mut self.markers);
        for markers in &markers {
            for participant in &markers.participants {
                self.machine.marker_written("id", markers.producer, participant, 6);
            }
        }
        self.run(6);
        markers.iter().map(|markers| (markers.producer, markers.outcome)).collect()
    }

    /// Restarts from the log, as after `kill -9`.
    fn restart(&mut self) {
        self.machine = Transactions::new(Settings::default());
        for record in &self.log {
            self.machine.restore(&record.key, record.value.as_deref()).unwrap();
        }
        self.markers.clear();
        self.machine.start(7);
        self.run(7);
    }
}

fn partition() -> Participant {
    Participant::Partition { topic: "topic".into(), index: 0 }
}

fn at(producer: Producer, epoch: i16) -> Producer {
    Producer { epoch, ..producer }
}

#[test]
fn each_init_fences_the_previous_producer() {
    let mut harness = Harness::new();
    let first = harness.init(0, None).unwrap().unwrap();
    assert_eq!(first.epoch, 0);
    assert_eq!(harness.init(0, None), Some(Ok(at(first, 1))));
    assert_eq!(harness.add(0, first), Some(Err(Error::ProducerFenced)));
    assert_eq!(harness.end(first, Commit, V1), Some(Err(Error::ProducerFenced)));
    assert_eq!(harness.end(first, Abort, V2), Some(Err(Error::ProducerFenced)));
    assert_eq!(harness.init(0, Some(first)), Some(Err(Error::ProducerFenced)));
    let unknown = Producer { id: first.id + 1, epoch: 1 };
    assert_eq!(harness.add(0, unknown), Some(Err(Error::InvalidProducerIdMapping)));
}

#[test]
fn producer_may_request_its_next_epoch_and_retry() {
    // KIP-360.
    let mut harness = Harness::new();
    let first = harness.init(0, None).unwrap().unwrap();
    assert_eq!(harness.init(0, Some(first)), Some(Ok(at(first, 1))));
    assert_eq!(harness.init(0, Some(first)), Some(Ok(at(first, 1))), "retry");
    assert_eq!(harness.init(0, Some(at(first, 1))), Some(Ok(at(first, 2))));
    assert_eq!(harness.init(0, Some(first)), Some(Err(Error::ProducerFenced)));
}

#[test]
fn init_aborts_the_open_transaction_first() {
    let mut harness = Harness::new();
    let first = harness.init(0, None).unwrap().unwrap();
    harness.add(0, first).unwrap().unwrap();
    assert_eq!(harness.init(0, None), None, "waits for the markers");
    assert_eq!(harness.end(first, Commit, V2), Some(Err(Error::ProducerFenced)));
    assert_eq!(harness.write(), [(at(first, 1), Abort)]);
    assert_eq!(harness.answers.pop(), Some(Ok(at(first, 2))));
}

#[test]
fn requests_wait_for_the_previous_transaction_for_a_bounded_time() {
    let mut harness = Harness::new();
    let producer = harness.init(0, None).unwrap().unwrap();
    harness.add(0, producer).unwrap().unwrap();
    let next = harness.end(producer, Commit, V2).unwrap().unwrap();
    assert_eq!(next, at(producer, 1));
    assert_eq!(harness.add(10, next), None);
    assert_eq!(harness.machine.next_deadline_ms(), Some(1010));
    harness.machine.tick(1010);
    harness.run(1010);
    assert_eq!(harness.answers.pop(), Some(Err(Error::ConcurrentTransactions)));
    assert_eq!(harness.add(1020, next), None);
    assert_eq!(harness.write(), [(next, Commit)]);
    assert_eq!(harness.answers.pop(), Some(Ok(next)));
    assert_eq!(harness.machine.verify("id", next, &partition()), Ok(()));
    assert_eq!(harness.machine.verify("id", producer, &partition()), Err(Error::ProducerFenced));
}

#[test]
fn end_can_be_retried() {
    for (speaks, epoch) in [(V1, 0), (V2, 1)] {
        for (outcome, other) in [(Commit, Abort), (Abort, Commit)] {
            let mut harness = Harness::new();
            let producer = harness.init(0, None).unwrap().unwrap();
            harness.add(0, producer).unwrap().unwrap();
            assert_eq!(harness.end(producer, outcome, speaks), Some(Ok(at(producer, epoch))));
            assert_eq!(harness.end(producer, other, speaks), Some(Err(Error::InvalidTxnState)));
            assert_eq!(harness.end(producer, outcome, speaks), None, "waits for the markers");
            harness.restart();
            assert_eq!(harness.write(), [(at(producer, epoch), outcome)]);
            assert_eq!(harness.end(producer, outcome, speaks), Some(Ok(at(producer, epoch))));
            assert_eq!(harness.end(producer, other, speaks), Some(Err(Error::InvalidTxnState)));
        }
    }
}

#[test]
fn next_transaction_may_be_aborted_while_the_previous_one_ends() {
    for outcome in [Commit, Abort] {
        let mut harness = Harness::new();
        let producer = harness.init(0, None).unwrap().unwrap();
        harness.add(0, producer).unwrap().unwrap();
        let next = harness.end(producer, outcome, V2).unwrap().unwrap();
        assert_eq!(harness.end(next, Abort, V2), None, "waits for the markers");
        assert_eq!(harness.write(), [(next, outcome)]);
        assert_eq!(harness.answers.pop(), Some(Ok(at(producer, 2))));
    }
}

#[test]
fn only_version_2_clients_may_abort_an_unstarted_transaction() {
    let mut harness = Harness::new();
    let producer = harness.init(0, None).unwrap().unwrap();
    assert_eq!(harness.end(producer, Abort, V1), Some(Err(Error::InvalidTxnState)));
    assert_eq!(harness.end(producer, Commit, V2), Some(Err(Error::InvalidTxnState)));
    assert_eq!(harness.end(producer, Abort, V2), Some(Ok(at(producer, 1))));
    assert!(harness.markers.is_empty());
    assert_eq!(harness.end(producer, Abort, V2), Some(Ok(at(producer, 1))), "retry");
    assert_eq!(harness.end(at(producer, 1), Abort, V2), Some(Ok(at(producer, 2))));
}

#[test]
fn timed_out_transaction_is_aborted_and_its_producer_fenced() {
    let mut harness = Harness::new();
    let producer = harness.init(0, None).unwrap().unwrap();
    harness.add(100, producer).unwrap().unwrap();
    assert_eq!(harness.machine.next_deadline_ms(), Some(1100));
    harness.machine.tick(1100);
    harness.run(1100);
    assert_eq!(harness.write(), [(at(producer, 1), Abort)]);
    for speaks in [V1, V2] {
        assert_eq!(harness.end(producer, Abort, speaks), Some(Err(Error::ProducerFenced)));
    }
    assert_eq!(harness.init(2000, Some(producer)), Some(Err(Error::ProducerFenced)));
}

#[test]
fn exhausted_epochs_rotate_the_producer_id() {
    let last = i16::MAX - 1;
    let exhausted = |harness: &mut Harness, state| {
        let mut old = Transaction::new(5000);
        (old.producer.epoch, old.timeout_ms, old.state) = (last, 1000, state);
        harness.log = vec![records::transaction("id", Some(&old)), records::producer_ids(6000)];
        harness.restart();
        old.producer
    };
    let mut harness = Harness::new();
    let old = exhausted(&mut harness, State::Empty);
    let new = harness.init(0, Some(old)).unwrap().unwrap();
    assert_eq!(new, Producer { id: 6000, epoch: 0 });
    assert_eq!(harness.init(0, Some(old)), Some(Ok(new)), "retry");

    let old = exhausted(&mut harness, State::Empty);
    harness.add(0, old).unwrap().unwrap();
    assert_eq!(harness.end(old, Commit, V2), Some(Ok(new)));
    assert_eq!(harness.write(), [(at(old, i16::MAX), Commit)]);
    assert_eq!(harness.end(old, Commit, V2), Some(Ok(new)), "retry");
    assert_eq!(harness.add(0, new), Some(Ok(new)));

    let begins = [
        Request::Add { producer: new, participants: vec![partition()] },
        Request::End { producer: new, outcome: Abort, speaks: V2 },
    ];
    for (request, reply) in begins.into_iter().zip([new, at(new, 1)]) {
        let old = exhausted(&mut harness, State::Empty);
        harness.add(0, old).unwrap().unwrap();
        assert_eq!(harness.end(old, Commit, V2), Some(Ok(new)));
        assert_eq!(harness.send(5, request), None, "waits for the markers");
        assert_eq!(harness.write(), [(at(old, i16::MAX), Commit)]);
        assert_eq!(harness.answers.pop(), Some(Ok(reply)));
    }

    let old = exhausted(&mut harness, State::Empty);
    harness.add(0, old).unwrap().unwrap();
    assert_eq!(harness.init(0, None), None);
    assert_eq!(harness.write(), [(at(old, i16::MAX), Abort)]);
    assert_eq!(harness.answers.pop(), Some(Ok(new)));
}

#[test]
fn unused_transactional_ids_expire() {
    let mut harness = Harness::with(Settings { expiration_ms: 100, ..Settings::default() });
    harness.init(50, None).unwrap().unwrap();
    harness.machine.tick(149);
    assert!(harness.machine.describe("id").is_ok());
    harness.machine.tick(150);
    harness.run(150);
    assert_eq!(harness.machine.describe("id"), Err(Error::TransactionalIdNotFound));
    assert_eq!(harness.machine.next_deadline_ms(), None);
    harness.restart();
    assert_eq!(harness.machine.list().count(), 0);
}

#[test]
fn memory_bound_removes_the_id_that_is_unused_for_longest() {
    let bytes = 2 * slot_bytes("a", 0) + slot_bytes("a", 1);
    let mut harness = Harness::with(Settings { bytes, ..Settings::default() });
    let init = |harness: &mut Harness, id: &str, now_ms| {
        let request = Request::InitProducerId { timeout_ms: 1_000, expected: None };
        harness.machine.handle(now_ms, id, request, Caller(1));
        harness.run(now_ms);
        harness.answers.pop().unwrap()
    };
    let add = |harness: &mut Harness, id: &str, producer, now_ms| {
        let request = Request::Add { producer, participants: vec![partition()] };
        harness.machine.handle(now_ms, id, request, Caller(1));
        harness.run(now_ms);
        harness.answers.pop().unwrap()
    };
    let unknown = |harness: &Harness, id: &str| harness.machine.describe(id).is_err();
    let producer = ["a", "b", "c"].map(|id| init(&mut harness, id, 1).unwrap());
    init(&mut harness, "a", 2).unwrap();
    init(&mut harness, "d", 3).unwrap();
    assert!(unknown(&harness, "b") && !unknown(&harness, "a") && !unknown(&harness, "c"));
    assert_eq!(add(&mut harness, "b", producer[1], 4), Err(Error::InvalidProducerIdMapping));
    assert_eq!(harness.machine.evictions(), 1);
    // An id in use stays, however long ago it has begun.
    add(&mut harness, "c", producer[2], 5).unwrap();
    init(&mut harness, "a", 6).unwrap();
    let e = init(&mut harness, "e", 7).unwrap();
    assert!(unknown(&harness, "d"), "it was unused for longest");
    add(&mut harness, "e", e, 8).unwrap();
    assert!(unknown(&harness, "a"), "a participant needs room too");
    let refused = init(&mut harness, "f", 10);
    assert_eq!(refused, Err(Error::PolicyViolation), "all are in use");
    // What was removed stays removed.
    harness.restart();
    let mut known: Vec<&str> = harness.machine.list().map(|(id, ..)| id).collect();
    known.sort_unstable();
    assert_eq!(known, ["c", "e"]);
}

#[test]
fn memory_is_that_of_the_known_ids() {
    let mut harness = Harness::new();
    let producer = harness.init(0, None).unwrap().unwrap();
    assert_eq!(harness.machine.bytes, slot_bytes("id", 0));
    harness.add(0, producer).unwrap().unwrap();
    assert_eq!(harness.machine.bytes, slot_bytes("id", 1));
    harness.end(producer, Commit, V1).unwrap().unwrap();
    harness.write();
    assert_eq!(harness.machine.bytes, slot_bytes("id", 0));
    harness.machine.tick(u64::MAX);
    assert_eq!((harness.machine.bytes, harness.machine.idle.len()), (0, 0));
}

#[test]
fn enforces_limits() {
    let mut harness = Harness::with(Settings { participants: 1, ..Settings::default() });
    let invalid = Request::InitProducerId { timeout_ms: 900_001, expected: None };
    assert_eq!(harness.send(0, invalid), Some(Err(Error::InvalidTransactionTimeout)));
    let producer = harness.init(0, None).unwrap().unwrap();
    harness.add(0, producer).unwrap().unwrap();
    let participants = vec![Participant::Group("group".into())];
    let more = Request::Add { producer, participants };
    assert_eq!(harness.send(0, more), Some(Err(Error::PolicyViolation)));
}

#[test]
fn concurrent_adds_are_merged_into_one_write() {
    let mut harness = Harness::new();
    let producer = harness.init(0, None).unwrap().unwrap();
    for (index, caller) in (0..100).zip(0..) {
        let participants = vec![Participant::Partition { topic: "topic".into(), index }];
        harness.machine.handle(0, "id", Request::Add { producer, participants }, Caller(caller));
    }
    let before = harness.log.len();
    harness.run(0);
    assert_eq!((harness.log.len() - before, harness.answers.len()), (2, 100));
    assert!(harness.answers.iter().all(Result::is_ok));
    assert_eq!(harness.machine.describe("id").unwrap().participants.len(), 100);
}

#[test]
fn failed_id_block_write_rejects_the_waiting_request() {
    let mut machine = Transactions::new(Settings::default());
    machine.handle_idempotent(Caller(1));
    let Some(Effect::Persist { keep, .. }) = machine.poll() else {
        panic!("expected a write of an id block")
    };
    machine.write_failed(keep, 0);
    let refused = Effect::Reply { caller: Caller(1), answer: Err(Error::CoordinatorNotAvailable) };
    assert_eq!(machine.poll(), Some(refused));
    machine.handle_idempotent(Caller(2));
    let Some(Effect::Persist { keep, .. }) = machine.poll() else {
        panic!("expected a write of another id block")
    };
    machine.write_succeeded(keep, 0);
    let assigned = Effect::Reply { caller: Caller(2), answer: Ok(Producer { id: 1000, epoch: 0 }) };
    assert_eq!(machine.poll(), Some(assigned));
    assert_eq!(machine.poll(), None);
}

#[test]
fn rejects_malformed_records() {
    let mut machine = Transactions::new(Settings::default());
    let record = records::transaction("id", Some(&Transaction::new(1)));
    let value = record.value.unwrap();
    assert_eq!(machine.restore(&record.key, Some(&value)), Ok(()));
    for cut in 0..value.len() {
        assert!(machine.restore(&record.key, Some(&value[..cut])).is_err());
    }
    for cut in 0..record.key.len() {
        assert!(machine.restore(&record.key[..cut], Some(&value)).is_err());
    }
    assert!(machine.restore(&[9], None).is_err());
}

/// Bytes written by format version 1. They must never change.
#[test]
fn reads_version_1_records() {
    let transaction = Transaction {
        producer: Producer { id: 4711, epoch: 8 },
        last_epoch: 7,
        previous_id: -1,
        next_id: 5000,
        timeout_ms: 60_000,
        state: State::Prepare(Commit),
        participants: [partition(), Participant::Group("group".into())].into(),
        started_ms: 1_750_000_000_000,
        updated_ms: 1_750_000_000_300,
    };
    let bytes: &[u8] = &[
        1, 206, 73, 16, 14, 1, 144, 78, 192, 169, 7, 2, 128, 184, 131, 161, 247, 50, 172, 186, 131, 161, 247,
        50, 2, 0, 5, 116, 111, 112, 105, 99, 0, 1, 5, 103, 114, 111, 117, 112,
    ];
    let record = records::transaction("id", Some(&transaction));
    assert_eq!((&record.key[..], record.value.as_deref()), (&b"\x01\x02id"[..], Some(bytes)));
    let parsed = records::parse(&record.key, Some(bytes)).unwrap();
    assert_eq!(parsed, ParsedRecord::Transaction("id".into(), Some(Box::new(transaction))));
    let ids = records::producer_ids(3000);
    assert_eq!((&ids.key[..], ids.value.as_deref()), (&b"\x02"[..], Some(&b"\x01\xf0\x2e"[..])));
    assert_eq!(records::parse(&ids.key, ids.value.as_deref()), Ok(ParsedRecord::ProducerIds(3000)));
}
