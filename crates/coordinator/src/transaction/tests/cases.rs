//! The coordinator case by case, as clients of the several versions meet it.

use super::super::*;
use crate::producer::Outcome;
use crate::producer::Outcome::{Abort, Commit};

const OLD: Speaks = Speaks::OneEpoch;
const NEW: Speaks = Speaks::OwnEpochs;

/// A coordinator whose log keeps everything at once, and whose markers are written when the test says so.
struct Desk {
    machine: Transactions,
    markers: Vec<Markers>,
    answers: Vec<Result<Producer, Error>>,
    log: Vec<Record>,
}

impl Desk {
    fn new() -> Self {
        Self::with(Settings::default())
    }

    fn with(settings: Settings) -> Self {
        let machine = Transactions::new(settings);
        let mut desk = Self { machine, markers: Vec::new(), answers: Vec::new(), log: Vec::new() };
        desk.machine.begin(0);
        desk.run(0);
        desk
    }

    fn run(&mut self, now_ms: u64) {
        while let Some(effect) = self.machine.poll() {
            match effect {
                Effect::Keep { keep, records } => {
                    self.log.extend(records);
                    self.machine.kept(keep, now_ms);
                }
                Effect::WriteMarkers(markers) => self.markers.push(markers),
                Effect::Reply { answer, .. } => self.answers.push(answer),
            }
        }
    }

    /// Asks, and takes the answer if there is one at once.
    fn ask(&mut self, now_ms: u64, request: Request) -> Option<Result<Producer, Error>> {
        self.machine.handle(now_ms, "id", request, Caller(0));
        self.run(now_ms);
        self.answers.pop()
    }

    fn init(&mut self, now_ms: u64, expected: Option<Producer>) -> Option<Result<Producer, Error>> {
        self.ask(now_ms, Request::InitProducerId { timeout_ms: 1000, expected })
    }

    fn add(&mut self, now_ms: u64, producer: Producer) -> Option<Result<Producer, Error>> {
        self.ask(now_ms, Request::Add { producer, participants: vec![partition()] })
    }

    fn end(
        &mut self,
        producer: Producer,
        outcome: Outcome,
        speaks: Speaks,
    ) -> Option<Result<Producer, Error>> {
        self.ask(5, Request::End { producer, outcome, speaks })
    }

    /// Writes all markers there are; says which they were.
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

    /// As after `kill -9`.
    fn restart(&mut self) {
        self.machine = Transactions::new(Settings::default());
        for record in &self.log {
            self.machine.restore(&record.key, record.value.as_deref()).unwrap();
        }
        self.markers.clear();
        self.machine.begin(7);
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
fn each_initialization_fences_the_one_before() {
    let mut desk = Desk::new();
    let first = desk.init(0, None).unwrap().unwrap();
    assert_eq!(first.epoch, 0);
    assert_eq!(desk.init(0, None), Some(Ok(at(first, 1))));
    assert_eq!(desk.add(0, first), Some(Err(Error::ProducerFenced)));
    assert_eq!(desk.end(first, Commit, OLD), Some(Err(Error::ProducerFenced)));
    assert_eq!(desk.end(first, Abort, NEW), Some(Err(Error::ProducerFenced)));
    assert_eq!(desk.init(0, Some(first)), Some(Err(Error::ProducerFenced)));
    let stranger = Producer { id: first.id + 1, epoch: 1 };
    assert_eq!(desk.add(0, stranger), Some(Err(Error::InvalidProducerIdMapping)));
}

#[test]
fn a_producer_may_ask_for_its_next_epoch_and_repeat_itself() {
    // KIP-360.
    let mut desk = Desk::new();
    let first = desk.init(0, None).unwrap().unwrap();
    assert_eq!(desk.init(0, Some(first)), Some(Ok(at(first, 1))));
    assert_eq!(desk.init(0, Some(first)), Some(Ok(at(first, 1))), "once more");
    assert_eq!(desk.init(0, Some(at(first, 1))), Some(Ok(at(first, 2))));
    assert_eq!(desk.init(0, Some(first)), Some(Err(Error::ProducerFenced)));
}

#[test]
fn an_open_transaction_is_aborted_before_its_identifier_is_given_on() {
    let mut desk = Desk::new();
    let first = desk.init(0, None).unwrap().unwrap();
    desk.add(0, first).unwrap().unwrap();
    assert_eq!(desk.init(0, None), None, "it waits");
    assert_eq!(desk.end(first, Commit, NEW), Some(Err(Error::ProducerFenced)));
    assert_eq!(desk.write(), [(at(first, 1), Abort)]);
    assert_eq!(desk.answers.pop(), Some(Ok(at(first, 2))));
}

#[test]
fn requests_wait_for_the_transaction_before_but_not_for_long() {
    let mut desk = Desk::new();
    let producer = desk.init(0, None).unwrap().unwrap();
    desk.add(0, producer).unwrap().unwrap();
    let next = desk.end(producer, Commit, NEW).unwrap().unwrap();
    assert_eq!(next, at(producer, 1));
    assert_eq!(desk.add(10, next), None);
    assert_eq!(desk.machine.next_deadline_ms(), Some(1010));
    desk.machine.tick(1010);
    desk.run(1010);
    assert_eq!(desk.answers.pop(), Some(Err(Error::ConcurrentTransactions)));
    assert_eq!(desk.add(1020, next), None);
    assert_eq!(desk.write(), [(next, Commit)]);
    assert_eq!(desk.answers.pop(), Some(Ok(next)));
    assert_eq!(desk.machine.verify("id", next, &partition()), Ok(()));
    assert_eq!(desk.machine.verify("id", producer, &partition()), Err(Error::ProducerFenced));
}

#[test]
fn the_end_can_be_asked_for_again() {
    for (speaks, epoch) in [(OLD, 0), (NEW, 1)] {
        for (outcome, other) in [(Commit, Abort), (Abort, Commit)] {
            let mut desk = Desk::new();
            let producer = desk.init(0, None).unwrap().unwrap();
            desk.add(0, producer).unwrap().unwrap();
            assert_eq!(desk.end(producer, outcome, speaks), Some(Ok(at(producer, epoch))));
            assert_eq!(desk.end(producer, other, speaks), Some(Err(Error::InvalidTxnState)));
            assert_eq!(desk.end(producer, outcome, speaks), None, "it waits");
            desk.restart();
            assert_eq!(desk.write(), [(at(producer, epoch), outcome)]);
            assert_eq!(desk.end(producer, outcome, speaks), Some(Ok(at(producer, epoch))));
            assert_eq!(desk.end(producer, other, speaks), Some(Err(Error::InvalidTxnState)));
        }
    }
}

#[test]
fn the_next_transaction_may_be_aborted_while_the_last_one_still_ends() {
    for outcome in [Commit, Abort] {
        let mut desk = Desk::new();
        let producer = desk.init(0, None).unwrap().unwrap();
        desk.add(0, producer).unwrap().unwrap();
        let next = desk.end(producer, outcome, NEW).unwrap().unwrap();
        assert_eq!(desk.end(next, Abort, NEW), None, "it waits");
        assert_eq!(desk.write(), [(next, outcome)]);
        assert_eq!(desk.answers.pop(), Some(Ok(at(producer, 2))));
    }
}

#[test]
fn what_was_not_begun_can_be_aborted_by_new_clients_only() {
    let mut desk = Desk::new();
    let producer = desk.init(0, None).unwrap().unwrap();
    assert_eq!(desk.end(producer, Abort, OLD), Some(Err(Error::InvalidTxnState)));
    assert_eq!(desk.end(producer, Commit, NEW), Some(Err(Error::InvalidTxnState)));
    assert_eq!(desk.end(producer, Abort, NEW), Some(Ok(at(producer, 1))));
    assert!(desk.markers.is_empty());
    assert_eq!(desk.end(producer, Abort, NEW), Some(Ok(at(producer, 1))), "once more");
    assert_eq!(desk.end(at(producer, 1), Abort, NEW), Some(Ok(at(producer, 2))));
}

#[test]
fn a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced() {
    let mut desk = Desk::new();
    let producer = desk.init(0, None).unwrap().unwrap();
    desk.add(100, producer).unwrap().unwrap();
    assert_eq!(desk.machine.next_deadline_ms(), Some(1100));
    desk.machine.tick(1100);
    desk.run(1100);
    assert_eq!(desk.write(), [(at(producer, 1), Abort)]);
    for speaks in [OLD, NEW] {
        assert_eq!(desk.end(producer, Abort, speaks), Some(Err(Error::ProducerFenced)));
    }
    assert_eq!(desk.init(2000, Some(producer)), Some(Err(Error::ProducerFenced)));
}

#[test]
fn when_epochs_are_used_up_there_is_a_new_producer_id() {
    let last = i16::MAX - 1;
    let used_up = |desk: &mut Desk, state| {
        let mut old = Transaction::new(5000);
        (old.producer.epoch, old.timeout_ms, old.state) = (last, 1000, state);
        desk.log = vec![records::transaction("id", Some(&old)), records::producer_ids(6000)];
        desk.restart();
        old.producer
    };
    let mut desk = Desk::new();
    let old = used_up(&mut desk, State::Empty);
    let new = desk.init(0, Some(old)).unwrap().unwrap();
    assert_eq!(new, Producer { id: 6000, epoch: 0 });
    assert_eq!(desk.init(0, Some(old)), Some(Ok(new)), "once more");

    let old = used_up(&mut desk, State::Empty);
    desk.add(0, old).unwrap().unwrap();
    assert_eq!(desk.end(old, Commit, NEW), Some(Ok(new)));
    assert_eq!(desk.write(), [(at(old, i16::MAX), Commit)]);
    assert_eq!(desk.end(old, Commit, NEW), Some(Ok(new)), "once more");
    assert_eq!(desk.add(0, new), Some(Ok(new)));

    let begins = [
        Request::Add { producer: new, participants: vec![partition()] },
        Request::End { producer: new, outcome: Abort, speaks: NEW },
    ];
    for (request, reply) in begins.into_iter().zip([new, at(new, 1)]) {
        let old = used_up(&mut desk, State::Empty);
        desk.add(0, old).unwrap().unwrap();
        assert_eq!(desk.end(old, Commit, NEW), Some(Ok(new)));
        assert_eq!(desk.ask(5, request), None, "it waits");
        assert_eq!(desk.write(), [(at(old, i16::MAX), Commit)]);
        assert_eq!(desk.answers.pop(), Some(Ok(reply)));
    }

    let old = used_up(&mut desk, State::Empty);
    desk.add(0, old).unwrap().unwrap();
    assert_eq!(desk.init(0, None), None);
    assert_eq!(desk.write(), [(at(old, i16::MAX), Abort)]);
    assert_eq!(desk.answers.pop(), Some(Ok(new)));
}

#[test]
fn identifiers_are_forgotten_when_they_are_not_used() {
    let mut desk = Desk::with(Settings { expiration_ms: 100, ..Settings::default() });
    desk.init(50, None).unwrap().unwrap();
    desk.machine.tick(149);
    assert!(desk.machine.describe("id").is_ok());
    desk.machine.tick(150);
    desk.run(150);
    assert_eq!(desk.machine.describe("id"), Err(Error::TransactionalIdNotFound));
    assert_eq!(desk.machine.next_deadline_ms(), None);
    desk.restart();
    assert_eq!(desk.machine.list().count(), 0);
}

#[test]
fn bounds_hold() {
    let mut desk = Desk::with(Settings { transactional_ids: 1, participants: 1, ..Settings::default() });
    let invalid = Request::InitProducerId { timeout_ms: 900_001, expected: None };
    assert_eq!(desk.ask(0, invalid), Some(Err(Error::InvalidTransactionTimeout)));
    let producer = desk.init(0, None).unwrap().unwrap();
    let request = Request::InitProducerId { timeout_ms: 1, expected: None };
    desk.machine.handle(0, "other", request, Caller(1));
    desk.run(0);
    assert_eq!(desk.answers.pop(), Some(Err(Error::PolicyViolation)));
    desk.add(0, producer).unwrap().unwrap();
    let participants = vec![Participant::Group("group".into())];
    let more = Request::Add { producer, participants };
    assert_eq!(desk.ask(0, more), Some(Err(Error::PolicyViolation)));
}

#[test]
fn partitions_that_are_added_while_others_are_wait_together() {
    let mut desk = Desk::new();
    let producer = desk.init(0, None).unwrap().unwrap();
    for (index, caller) in (0..100).zip(0..) {
        let participants = vec![Participant::Partition { topic: "topic".into(), index }];
        desk.machine.handle(0, "id", Request::Add { producer, participants }, Caller(caller));
    }
    let before = desk.log.len();
    desk.run(0);
    assert_eq!((desk.log.len() - before, desk.answers.len()), (2, 100));
    assert!(desk.answers.iter().all(Result::is_ok));
    assert_eq!(desk.machine.describe("id").unwrap().participants.len(), 100);
}

#[test]
fn nothing_happens_when_nothing_can_be_kept() {
    let mut machine = Transactions::new(Settings::default());
    machine.handle_idempotent(Caller(1));
    let Some(Effect::Keep { keep, .. }) = machine.poll() else { panic!("a block of ids is to be kept") };
    machine.not_kept(keep, 0);
    let refused = Effect::Reply { caller: Caller(1), answer: Err(Error::CoordinatorNotAvailable) };
    assert_eq!(machine.poll(), Some(refused));
    machine.handle_idempotent(Caller(2));
    let Some(Effect::Keep { keep, .. }) = machine.poll() else { panic!("another block is to be kept") };
    machine.kept(keep, 0);
    let given = Effect::Reply { caller: Caller(2), answer: Ok(Producer { id: 1000, epoch: 0 }) };
    assert_eq!(machine.poll(), Some(given));
    assert_eq!(machine.poll(), None);
}

#[test]
fn records_that_are_not_ours_are_refused() {
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

/// What version 1 has written. These bytes stay.
#[test]
fn records_that_were_kept_are_read() {
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
    let kept: &[u8] = &[
        1, 206, 73, 16, 14, 1, 144, 78, 192, 169, 7, 2, 128, 184, 131, 161, 247, 50, 172, 186, 131, 161, 247,
        50, 2, 0, 5, 116, 111, 112, 105, 99, 0, 1, 5, 103, 114, 111, 117, 112,
    ];
    let record = records::transaction("id", Some(&transaction));
    assert_eq!((&record.key[..], record.value.as_deref()), (&b"\x01\x02id"[..], Some(kept)));
    let read = records::read(&record.key, Some(kept)).unwrap();
    assert_eq!(read, Read::Transaction("id".into(), Some(Box::new(transaction))));
    let ids = records::producer_ids(3000);
    assert_eq!((&ids.key[..], ids.value.as_deref()), (&b"\x02"[..], Some(&b"\x01\xf0\x2e"[..])));
    assert_eq!(records::read(&ids.key, ids.value.as_deref()), Ok(Read::ProducerIds(3000)));
}
