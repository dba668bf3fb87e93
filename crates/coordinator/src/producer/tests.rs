//! A partition's producers against a model that keeps the whole log and looks through it for every question.

use proptest::prelude::*;

use super::*;

/// What stands in the model's log.
#[derive(Clone, Copy, Debug)]
enum Put {
    Data(Data),
    Marker(Marker),
}

/// The log, each with its first offset.
#[derive(Debug, Default)]
struct Model(Vec<(u64, Put)>);

/// Producer, first offset, marker's offset and outcome if there is one.
type Transaction = (i64, u64, Option<(u64, Outcome)>);

fn last_sequence(batch: &Data) -> i64 {
    (i64::from(batch.base_sequence) + i64::from(batch.last_offset_delta)) % (1 << 31)
}

impl Model {
    fn end(&self) -> u64 {
        self.0.last().map_or(0, |(offset, put)| match put {
            Put::Data(batch) => offset + u64::from(batch.last_offset_delta) + 1,
            Put::Marker(_) => offset + 1,
        })
    }

    fn of(&self, producer_id: i64) -> impl DoubleEndedIterator<Item = &(u64, Put)> {
        self.0.iter().filter(move |(_, put)| match put {
            Put::Data(batch) => batch.producer_id == producer_id,
            Put::Marker(marker) => marker.producer_id == producer_id,
        })
    }

    fn epoch(&self, producer_id: i64) -> Option<i16> {
        self.of(producer_id).last().map(|(_, put)| match put {
            Put::Data(batch) => batch.producer_epoch,
            Put::Marker(marker) => marker.producer_epoch,
        })
    }

    /// Batches of the producer's current epoch, newest first.
    fn current(&self, producer_id: i64) -> Vec<(u64, Data)> {
        let epoch = self.epoch(producer_id);
        let of_epoch = |(offset, put): &(u64, Put)| match put {
            Put::Data(batch) if Some(batch.producer_epoch) == epoch => Some((*offset, *batch)),
            _ => None,
        };
        self.of(producer_id).rev().filter_map(of_epoch).collect()
    }

    /// Whether nothing but markers is known of a producer, all of one epoch.
    fn may_go_on(&self, producer_id: i64) -> bool {
        let epoch = self.epoch(producer_id);
        epoch.is_some()
            && self.of(producer_id).all(|(_, put)| match put {
                Put::Data(_) => false,
                Put::Marker(marker) => Some(marker.producer_epoch) == epoch,
            })
    }

    fn open_from(&self, producer_id: i64) -> Option<u64> {
        let mut open = None;
        for (offset, put) in self.of(producer_id) {
            match put {
                Put::Data(batch) if batch.is_transactional => open = open.or(Some(*offset)),
                Put::Data(_) => {}
                Put::Marker(_) => open = None,
            }
        }
        open
    }

    fn check(&self, batch: &Data, membership: Membership) -> Verdict {
        let Some(epoch) = self.epoch(batch.producer_id) else {
            return match membership {
                Membership::Unknown if batch.is_transactional => Verdict::Verify,
                Membership::VerifiedOwnEpoch if batch.base_sequence != 0 => {
                    Verdict::Refused(Error::OutOfOrderSequenceNumber)
                }
                _ => Verdict::Append,
            };
        };
        let current = self.current(batch.producer_id);
        let same = current.iter().take(5).find(|(_, other)| {
            other.producer_epoch == batch.producer_epoch
                && other.base_sequence == batch.base_sequence
                && other.last_offset_delta == batch.last_offset_delta
        });
        if let Some((base_offset, other)) = same {
            return Verdict::Duplicate { base_offset: *base_offset, timestamp_ms: other.max_timestamp_ms };
        }
        let open = self.open_from(batch.producer_id);
        let goes_on = self.may_go_on(batch.producer_id)
            && epoch == batch.producer_epoch
            && (membership != Membership::VerifiedOwnEpoch || batch.base_sequence == 0);
        let expected = match current.first() {
            None if goes_on => i64::from(batch.base_sequence),
            Some((_, last)) if epoch == batch.producer_epoch => (last_sequence(last) + 1) % (1 << 31),
            _ => 0,
        };
        if batch.producer_epoch < epoch {
            Verdict::Refused(Error::InvalidProducerEpoch)
        } else if batch.is_transactional
            && membership == Membership::Unknown
            && (open.is_none() || epoch != batch.producer_epoch)
        {
            Verdict::Verify
        } else if i64::from(batch.base_sequence) != expected {
            Verdict::Refused(Error::OutOfOrderSequenceNumber)
        } else if open.is_some() && !batch.is_transactional {
            Verdict::Refused(Error::InvalidTxnState)
        } else {
            Verdict::Append
        }
    }

    fn check_marker(&self, marker: &Marker) -> Result<(), Error> {
        let coordinator = self.of(marker.producer_id).rev().find_map(|(_, put)| match put {
            Put::Marker(marker) => Some(marker.coordinator_epoch),
            Put::Data(_) => None,
        });
        if self.epoch(marker.producer_id).is_some_and(|epoch| marker.producer_epoch < epoch) {
            Err(Error::InvalidProducerEpoch)
        } else if coordinator.is_some_and(|epoch| marker.coordinator_epoch < epoch) {
            Err(Error::TransactionCoordinatorFenced)
        } else {
            Ok(())
        }
    }

    /// All transactions, in the order in which they began.
    fn transactions(&self) -> Vec<Transaction> {
        let mut all: Vec<Transaction> = Vec::new();
        for (offset, put) in &self.0 {
            let id = match put {
                Put::Data(batch) => batch.producer_id,
                Put::Marker(marker) => marker.producer_id,
            };
            let open = all.iter_mut().find(|(other, _, end)| *other == id && end.is_none());
            match (put, open) {
                (Put::Data(batch), None) if batch.is_transactional => all.push((id, *offset, None)),
                (Put::Marker(marker), Some(open)) => open.2 = Some((*offset, marker.outcome)),
                _ => {}
            }
        }
        all
    }

    fn last_stable_offset(&self, high_watermark: u64) -> u64 {
        let unstable = self.transactions().into_iter().filter_map(|(_, first, end)| match end {
            Some((marker, _)) if marker < high_watermark => None,
            _ => Some(first),
        });
        unstable.fold(high_watermark, u64::min)
    }

    /// Producer and first offset of aborted transactions that touch a range.
    fn aborted_between(&self, from: u64, until: u64) -> Vec<(i64, u64)> {
        let touches = |(id, first, end): Transaction| match end {
            Some((marker, Outcome::Abort)) if marker >= from && first < until => Some((id, first)),
            _ => None,
        };
        let mut all: Vec<_> = self.transactions().into_iter().filter_map(touches).collect();
        all.sort_unstable();
        all
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// A batch: producer, change of epoch, distance of its sequence number from the one expected, records behind
    /// the first, transactional, how it is checked.
    Data(i64, i16, i32, u32, bool, Membership),
    /// A producer's last batch but so many, once more.
    Again(i64, usize),
    Marker(i64, i16, i32, Outcome),
    Durable(u64),
    Fail,
    /// Snapshot, loss of all memory and of what was not durable, restore, replay.
    Restart(u64),
    Aborted(u64, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let producer = || 0_i64..3;
    let distance = prop_oneof![10 => Just(0), 1 => -7_i32..8, 1 => any::<i32>()];
    let delta = prop_oneof![6 => 0_u32..4, 1 => Just(i32::MAX.cast_unsigned()), 1 => 0..1_u32 << 31];
    let membership = prop_oneof![
        Just(Membership::Unknown),
        Just(Membership::Verified),
        Just(Membership::VerifiedOwnEpoch)
    ];
    let epoch = || prop_oneof![8 => Just(0_i16), 1 => Just(1_i16), 1 => Just(-1_i16)];
    let outcome = prop_oneof![Just(Outcome::Commit), Just(Outcome::Abort)];
    prop_oneof![
        12 => (producer(), epoch(), distance, delta, any::<bool>(), membership)
            .prop_map(|(id, epoch, distance, delta, is, membership)| {
                Step::Data(id, epoch, distance, delta, is, membership)
            }),
        3 => (producer(), 0_usize..8).prop_map(|(id, back)| Step::Again(id, back)),
        5 => (producer(), epoch(), -1_i32..2, outcome)
            .prop_map(|(id, epoch, coordinator, outcome)| Step::Marker(id, epoch, coordinator, outcome)),
        3 => any::<u64>().prop_map(Step::Durable),
        1 => Just(Step::Fail),
        1 => any::<u64>().prop_map(Step::Restart),
        3 => (any::<u64>(), any::<u64>()).prop_map(|(from, until)| Step::Aborted(from, until)),
    ]
}

/// The producers and their model, side by side.
struct Both {
    producers: Producers,
    model: Model,
    durable: u64,
    /// Producers of which all was taken back: the epoch and sequence number with which they had begun.
    withdrawn: BTreeMap<i64, (i16, i32)>,
}

impl Both {
    /// The offset behind one of the first batches.
    fn boundary(&self, seed: u64, at_least: u64) -> u64 {
        let mut all: Vec<u64> = self.model.0.iter().map(|(offset, _)| *offset).collect();
        all.push(self.model.end());
        all.retain(|offset| *offset >= at_least);
        all[(seed % all.len() as u64) as usize]
    }

    fn put(&mut self, put: Put) {
        let offset = self.model.end();
        let producer_id = match &put {
            Put::Data(batch) => batch.producer_id,
            Put::Marker(marker) => marker.producer_id,
        };
        tell(&mut self.producers, offset, &put);
        self.model.0.push((offset, put));
        if !self.model.may_go_on(producer_id) {
            self.withdrawn.remove(&producer_id);
        }
    }

    fn data(&mut self, batch: Data, membership: Membership) {
        let verdict = self.producers.check(&batch, membership);
        let withdrawn = self.withdrawn.get(&batch.producer_id);
        let overtakes = withdrawn
            .is_some_and(|(epoch, first)| *epoch == batch.producer_epoch && *first != batch.base_sequence);
        let expected = match self.model.check(&batch, membership) {
            Verdict::Append if overtakes => Verdict::Refused(Error::OutOfOrderSequenceNumber),
            verdict => verdict,
        };
        assert_eq!(verdict, expected, "{batch:?}");
        if verdict == Verdict::Append {
            self.put(Put::Data(batch));
        }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Data(producer_id, epoch, distance, last_offset_delta, is_transactional, membership) => {
                let known = self.model.epoch(producer_id);
                let next =
                    self.model.current(producer_id).first().map_or(0, |(_, last)| last_sequence(last) + 1);
                let next = if epoch == 0 { next } else { 0 };
                let batch = Data {
                    producer_id,
                    producer_epoch: (known.unwrap_or(3) + epoch).max(0),
                    base_sequence: (next + i64::from(distance)).rem_euclid(1 << 31) as i32,
                    last_offset_delta,
                    max_timestamp_ms: self.model.0.len().cast_signed() as i64,
                    is_transactional,
                };
                self.data(batch, membership);
            }
            Step::Again(producer_id, back) => {
                if let Some((_, batch)) = self.model.current(producer_id).get(back).copied() {
                    self.data(batch, Membership::Verified);
                }
            }
            Step::Marker(producer_id, epoch, coordinator_epoch, outcome) => {
                let marker = Marker {
                    producer_id,
                    producer_epoch: (self.model.epoch(producer_id).unwrap_or(3) + epoch).max(0),
                    coordinator_epoch,
                    outcome,
                    timestamp_ms: 7,
                };
                let verdict = self.producers.check_marker(&marker);
                assert_eq!(verdict, self.model.check_marker(&marker));
                if verdict.is_ok() {
                    self.put(Put::Marker(marker));
                }
            }
            Step::Durable(seed) => {
                self.durable = self.boundary(seed, self.durable);
                self.producers.durable(self.durable);
            }
            Step::Fail => {
                self.producers.rollback_to(self.durable);
                let lost = self.model.0.extract_if(.., |(offset, _)| *offset >= self.durable).collect();
                self.withdraw(lost);
            }
            Step::Restart(seed) => self.restart(seed),
            Step::Aborted(from, until) => {
                let stable = self.model.last_stable_offset(self.durable);
                let until = until % (stable + 1);
                let from = from % (until + 1);
                let found = self.producers.aborted_between(from, until);
                let mut found: Vec<_> =
                    found.map(|aborted| (aborted.producer_id, aborted.first_offset)).collect();
                found.sort_unstable();
                assert_eq!(found, self.model.aborted_between(from, until));
            }
        }
        let stable = self.producers.last_stable_offset(self.durable);
        assert_eq!(stable, self.model.last_stable_offset(self.durable));
    }

    /// Takes note of how those have begun of whose batches nothing is left.
    fn withdraw(&mut self, lost: Vec<(u64, Put)>) {
        let mut before = Model(self.model.0.clone());
        for (offset, put) in lost {
            if let Put::Data(Data { producer_id, producer_epoch, base_sequence, .. }) = put
                && (before.epoch(producer_id).is_none() || before.may_go_on(producer_id))
            {
                self.withdrawn.insert(producer_id, (producer_epoch, base_sequence));
            }
            before.0.push((offset, put));
        }
    }

    fn restart(&mut self, seed: u64) {
        self.model.0.retain(|(offset, _)| *offset < self.durable);
        self.withdrawn.clear();
        // The snapshot may be as old as one likes.
        let mut older = Producers::new(Limits::default());
        let until = self.boundary(seed, 0);
        let before = self.model.0.iter().filter(|(offset, _)| *offset < until);
        before.for_each(|(offset, put)| tell(&mut older, *offset, put));
        older.durable(until);
        let now = if until == self.durable { &self.producers } else { &older };
        let (restored, from) = Producers::restore(Limits::default(), &now.snapshot(until)).unwrap();
        assert_eq!(from, until);
        self.producers = restored;
        for (offset, put) in self.model.0.iter().filter(|(offset, _)| *offset >= from) {
            tell(&mut self.producers, *offset, put);
        }
        self.producers.durable(self.durable);
    }
}

fn tell(producers: &mut Producers, offset: u64, put: &Put) {
    match put {
        Put::Data(batch) => producers.appended(batch, offset, offset),
        Put::Marker(marker) => producers.ended(marker, offset, offset),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn producers_do_what_the_whole_log_says(steps in prop::collection::vec(step(), 1..80)) {
        let mut both = Both {
            producers: Producers::new(Limits::default()),
            model: Model::default(),
            durable: 0,
            withdrawn: BTreeMap::new(),
        };
        for step in &steps {
            both.take(step);
        }
    }

    #[test]
    fn a_snapshot_that_is_damaged_is_refused_or_read(at in any::<usize>(), value in any::<u8>(), cut in any::<usize>()) {
        let mut producers = Producers::new(Limits::default());
        producers.appended(&batch(1, 0, 0), 0, 5);
        producers.appended(&Data { is_transactional: true, ..batch(2, 0, 0) }, 1, 5);
        producers.ended(&marker(2, 1, Outcome::Abort), 2, 6);
        let mut snapshot = producers.snapshot(3);
        prop_assert!(Producers::restore(Limits::default(), &snapshot[..cut % snapshot.len()]).is_err());
        let at = at % snapshot.len();
        snapshot[at] = value;
        drop(Producers::restore(Limits::default(), &snapshot));
    }
}

fn batch(producer_id: i64, producer_epoch: i16, base_sequence: i32) -> Data {
    Data {
        producer_id,
        producer_epoch,
        base_sequence,
        last_offset_delta: 0,
        max_timestamp_ms: 1,
        is_transactional: false,
    }
}

fn marker(producer_id: i64, producer_epoch: i16, outcome: Outcome) -> Marker {
    Marker { producer_id, producer_epoch, coordinator_epoch: 0, outcome, timestamp_ms: 1 }
}

#[test]
fn sequence_numbers_begin_again_behind_the_last_one() {
    let mut producers = Producers::new(Limits::default());
    let last = Data { last_offset_delta: 2, ..batch(1, 0, i32::MAX - 1) };
    assert_eq!(producers.check(&last, Membership::Unknown), Verdict::Append);
    producers.appended(&last, 0, 0);
    // The last of its three records has number 0.
    assert_eq!(producers.describe()[0].last_sequence, 0);
    assert_eq!(producers.check(&batch(1, 0, 1), Membership::Unknown), Verdict::Append);
    assert_eq!(
        producers.check(&last, Membership::Unknown),
        Verdict::Duplicate { base_offset: 0, timestamp_ms: 1 }
    );
}

/// A version 1 producer keeps its epoch, and its sequence numbers go on, from one transaction to the next.
#[test]
fn a_producer_of_which_only_a_marker_is_left_may_go_on() {
    let mut producers = Producers::new(Limits::default());
    producers.ended(&marker(1, 3, Outcome::Commit), 7, 0);
    producers.durable(8);
    let next = Data { is_transactional: true, ..batch(1, 3, 40) };
    let check = |producers: &Producers, next: &Data| producers.check(next, Membership::Verified);
    assert_eq!(check(&producers, &next), Verdict::Append);
    let refused = Verdict::Refused(Error::OutOfOrderSequenceNumber);
    assert_eq!(producers.check(&next, Membership::VerifiedOwnEpoch), refused, "its epoch is its own");
    assert_eq!(check(&producers, &Data { producer_epoch: 4, ..next }), refused, "a new epoch begins at 0");
    // It is so over restarts, and until it has written.
    let (mut restored, _) = Producers::restore(Limits::default(), &producers.snapshot(8)).unwrap();
    assert_eq!(check(&restored, &next), Verdict::Append);
    restored.appended(&next, 8, 0);
    assert_eq!(check(&restored, &Data { base_sequence: 42, ..next }), refused);
    restored.rollback_to(8);
    assert_eq!(
        check(&restored, &Data { base_sequence: 41, ..next }),
        refused,
        "what came first was taken back"
    );
    assert_eq!(check(&restored, &next), Verdict::Append);
}

#[test]
fn silent_producers_are_forgotten_at_the_bound_but_none_with_an_open_transaction() {
    let limits = Limits { producers: 4, ..Limits::default() };
    let mut producers = Producers::new(limits);
    producers.appended(&Data { is_transactional: true, ..batch(0, 0, 0) }, 0, 0);
    for (id, offset) in (1..5).zip(1..) {
        producers.appended(&batch(id, 0, 0), offset, 0);
    }
    let ids: Vec<i64> = producers.describe().iter().map(|active| active.producer_id).collect();
    assert_eq!(ids, [0, 2, 3, 4]);
    for (id, offset) in (2..5).zip(5..) {
        producers.appended(&Data { is_transactional: true, ..batch(id, 0, 1) }, offset, 0);
    }
    let unknown = batch(9, 0, 0);
    assert_eq!(producers.check(&unknown, Membership::Unknown), Verdict::Refused(Error::PolicyViolation));
    producers.ended(&marker(3, 0, Outcome::Commit), 8, 0);
    assert_eq!(producers.check(&unknown, Membership::Unknown), Verdict::Append);
}

#[test]
fn no_transaction_begins_where_too_many_were_aborted() {
    let mut producers = Producers::new(Limits { aborted: 1, ..Limits::default() });
    let first = Data { is_transactional: true, ..batch(1, 0, 0) };
    producers.appended(&first, 0, 0);
    producers.ended(&marker(1, 1, Outcome::Abort), 1, 0);
    let next = Data { producer_epoch: 1, ..first };
    let check = |producers: &Producers| producers.check(&next, Membership::Verified);
    assert_eq!(check(&producers), Verdict::Refused(Error::PolicyViolation));
    assert_eq!(producers.check(&batch(2, 0, 0), Membership::Unknown), Verdict::Append);
    producers.truncate_prefix(2);
    assert_eq!(check(&producers), Verdict::Append);
}

#[test]
fn producers_expire_by_the_brokers_clock_and_not_while_a_transaction_is_open() {
    let mut producers = Producers::new(Limits { expiration_ms: 100, ..Limits::default() });
    producers.appended(&batch(1, 0, 0), 0, 1000);
    producers.appended(&Data { is_transactional: true, ..batch(2, 0, 0) }, 1, 1000);
    producers.expire(1099);
    assert_eq!(producers.len(), 2);
    producers.expire(1100);
    assert_eq!(producers.describe().iter().map(|active| active.producer_id).collect::<Vec<_>>(), [2]);
}

/// What version 1 has written. These bytes stay.
#[test]
fn a_snapshot_that_was_kept_is_read() {
    let mut producers = Producers::new(Limits::default());
    producers.appended(&Data { last_offset_delta: 2, ..batch(1, 0, i32::MAX) }, 0, 5);
    producers.appended(&Data { is_transactional: true, ..batch(2, 3, 0) }, 3, 6);
    producers.ended(&marker(2, 4, Outcome::Abort), 4, 7);
    producers.appended(&Data { is_transactional: true, ..batch(2, 4, 0) }, 5, 8);
    producers.durable(6);
    let kept: &[u8] =
        &[1, 6, 2, 2, 0, 1, 2, 5, 2, 0, 1, 2, 2, 2, 2, 4, 8, 0, 2, 8, 5, 6, 1, 5, 0, 0, 2, 1, 4, 3, 1, 5];
    assert_eq!(producers.snapshot(6), kept);
    let (read, offset) = Producers::restore(Limits::default(), kept).unwrap();
    assert_eq!((offset, read.describe()), (6, producers.describe()));
    assert_eq!(
        read.aborted_between(0, 6).collect::<Vec<_>>(),
        producers.aborted_between(0, 6).collect::<Vec<_>>()
    );
}

#[test]
fn what_was_on_its_way_behind_a_batch_that_failed_does_not_take_its_place() {
    let mut producers = Producers::new(Limits::default());
    producers.appended(&batch(1, 0, 0), 0, 0);
    producers.rollback_to(0);
    producers.failed(&batch(2, 0, 5));
    for (id, first) in [(1, 0), (2, 5)] {
        let check = |sequence| producers.check(&batch(id, 0, sequence), Membership::Unknown);
        assert_eq!(check(first + 1), Verdict::Refused(Error::OutOfOrderSequenceNumber));
        assert_eq!(check(first), Verdict::Append);
    }
    producers.appended(&batch(1, 0, 0), 0, 0);
    assert_eq!(producers.check(&batch(1, 0, 1), Membership::Unknown), Verdict::Append);
}
