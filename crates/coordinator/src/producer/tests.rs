//! Producer state of a partition, compared with a model that keeps the whole log and scans it for every question.

use proptest::prelude::*;

use super::*;

/// An entry of the model's log.
#[derive(Clone, Copy, Debug)]
enum Put {
    Data(BatchInfo),
    Marker(Marker),
}

/// The log: entries with their base offsets.
#[derive(Debug, Default)]
struct Model(Vec<(u64, Put)>);

/// Producer id, first offset, marker offset and outcome if it has ended.
type Transaction = (i64, u64, Option<(u64, Outcome)>);

fn last_sequence(batch: &BatchInfo) -> i64 {
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
    fn current(&self, producer_id: i64) -> Vec<(u64, BatchInfo)> {
        let epoch = self.epoch(producer_id);
        let of_epoch = |(offset, put): &(u64, Put)| match put {
            Put::Data(batch) if Some(batch.producer_epoch) == epoch => Some((*offset, *batch)),
            _ => None,
        };
        self.of(producer_id).rev().filter_map(of_epoch).collect()
    }

    /// Whether only markers of a single epoch are known of a producer.
    fn accepts_any_sequence(&self, producer_id: i64) -> bool {
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

    fn check(&self, batch: &BatchInfo, membership: TxnVerification) -> AppendDecision {
        let Some(epoch) = self.epoch(batch.producer_id) else {
            return match membership {
                TxnVerification::Unknown if batch.is_transactional => AppendDecision::Verify,
                TxnVerification::VerifiedOwnEpoch if batch.base_sequence != 0 => {
                    AppendDecision::Refused(Error::OutOfOrderSequenceNumber)
                }
                _ => AppendDecision::Append,
            };
        };
        let current = self.current(batch.producer_id);
        let same = current.iter().take(5).find(|(_, other)| {
            other.producer_epoch == batch.producer_epoch
                && other.base_sequence == batch.base_sequence
                && other.last_offset_delta == batch.last_offset_delta
        });
        if let Some((base_offset, other)) = same {
            return AppendDecision::Duplicate {
                base_offset: *base_offset,
                timestamp_ms: other.max_timestamp_ms,
            };
        }
        let open = self.open_from(batch.producer_id);
        let any_sequence = self.accepts_any_sequence(batch.producer_id)
            && epoch == batch.producer_epoch
            && (membership != TxnVerification::VerifiedOwnEpoch || batch.base_sequence == 0);
        let expected = match current.first() {
            None if any_sequence => i64::from(batch.base_sequence),
            Some((_, last)) if epoch == batch.producer_epoch => (last_sequence(last) + 1) % (1 << 31),
            _ => 0,
        };
        if batch.producer_epoch < epoch {
            AppendDecision::Refused(Error::InvalidProducerEpoch)
        } else if batch.is_transactional
            && membership == TxnVerification::Unknown
            && (open.is_none() || epoch != batch.producer_epoch)
        {
            AppendDecision::Verify
        } else if i64::from(batch.base_sequence) != expected {
            AppendDecision::Refused(Error::OutOfOrderSequenceNumber)
        } else if open.is_some() && !batch.is_transactional {
            AppendDecision::Refused(Error::InvalidTxnState)
        } else {
            AppendDecision::Append
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

    /// All transactions, ordered by first offset.
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

    /// Producer id and first offset of the aborted transactions that overlap a range.
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
    /// A batch: producer, epoch change, distance from the expected sequence number, last offset delta, transactional,
    /// verification.
    Data(i64, i16, i32, u32, bool, TxnVerification),
    /// Repeats a producer's batch, counted from the last one.
    Again(i64, usize),
    Marker(i64, i16, i32, Outcome),
    Durable(u64),
    Fail,
    /// Snapshot, loss of memory and of everything not durable, restore, replay.
    Restart(u64),
    Aborted(u64, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let producer = || 0_i64..3;
    let distance = prop_oneof![10 => Just(0), 1 => -7_i32..8, 1 => any::<i32>()];
    let delta = prop_oneof![6 => 0_u32..4, 1 => Just(i32::MAX.cast_unsigned()), 1 => 0..1_u32 << 31];
    let membership = prop_oneof![
        Just(TxnVerification::Unknown),
        Just(TxnVerification::Verified),
        Just(TxnVerification::VerifiedOwnEpoch)
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
    /// Producers that were rolled back entirely: the epoch and sequence number they had started with.
    rolled_back: BTreeMap<i64, (i16, i32)>,
}

impl Both {
    /// A batch boundary at or above `at_least`.
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
        replay(&mut self.producers, offset, &put);
        self.model.0.push((offset, put));
        if !self.model.accepts_any_sequence(producer_id) {
            self.rolled_back.remove(&producer_id);
        }
    }

    fn data(&mut self, batch: BatchInfo, membership: TxnVerification) {
        let decision = self.producers.check(&batch, membership);
        let rolled_back = self.rolled_back.get(&batch.producer_id);
        let skips_rolled_back = rolled_back
            .is_some_and(|(epoch, first)| *epoch == batch.producer_epoch && *first != batch.base_sequence);
        let expected = match self.model.check(&batch, membership) {
            AppendDecision::Append if skips_rolled_back => {
                AppendDecision::Refused(Error::OutOfOrderSequenceNumber)
            }
            decision => decision,
        };
        assert_eq!(decision, expected, "{batch:?}");
        if decision == AppendDecision::Append {
            self.put(Put::Data(batch));
        }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Data(producer_id, epoch, distance, last_offset_delta, is_transactional, membership) => {
                let known = self.model.epoch(producer_id);
                let next =
                    self.model.current(producer_id).first().map_or(0, |(_, last)| last_sequence(last) + 1);
                let next = if epoch == 0 { next } else { 0 };
                let batch = BatchInfo {
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
                    self.data(batch, TxnVerification::Verified);
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
                let decision = self.producers.check_marker(&marker);
                assert_eq!(decision, self.model.check_marker(&marker));
                if decision.is_ok() {
                    self.put(Put::Marker(marker));
                }
            }
            Step::Durable(seed) => {
                self.durable = self.boundary(seed, self.durable);
                self.producers.mark_durable(self.durable);
            }
            Step::Fail => {
                self.producers.rollback_to(self.durable);
                let lost = self.model.0.extract_if(.., |(offset, _)| *offset >= self.durable).collect();
                self.record_rollback(lost);
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

    /// Records how producers had started of which no batch is left.
    fn record_rollback(&mut self, lost: Vec<(u64, Put)>) {
        let mut before = Model(self.model.0.clone());
        for (offset, put) in lost {
            if let Put::Data(BatchInfo { producer_id, producer_epoch, base_sequence, .. }) = put
                && (before.epoch(producer_id).is_none() || before.accepts_any_sequence(producer_id))
            {
                self.rolled_back.insert(producer_id, (producer_epoch, base_sequence));
            }
            before.0.push((offset, put));
        }
    }

    fn restart(&mut self, seed: u64) {
        self.model.0.retain(|(offset, _)| *offset < self.durable);
        self.rolled_back.clear();
        // The snapshot may be arbitrarily old.
        let mut older = Producers::new(Limits::default());
        let until = self.boundary(seed, 0);
        let before = self.model.0.iter().filter(|(offset, _)| *offset < until);
        before.for_each(|(offset, put)| replay(&mut older, *offset, put));
        older.mark_durable(until);
        let source = if until == self.durable { &self.producers } else { &older };
        let (restored, from) = Producers::restore(Limits::default(), &source.snapshot(until)).unwrap();
        assert_eq!(from, until);
        self.producers = restored;
        for (offset, put) in self.model.0.iter().filter(|(offset, _)| *offset >= from) {
            replay(&mut self.producers, *offset, put);
        }
        self.producers.mark_durable(self.durable);
    }
}

fn replay(producers: &mut Producers, offset: u64, put: &Put) {
    match put {
        Put::Data(batch) => producers.on_batch_appended(batch, offset, offset),
        Put::Marker(marker) => producers.on_marker_appended(marker, offset, offset),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn producers_match_the_model(steps in prop::collection::vec(step(), 1..80)) {
        let mut both = Both {
            producers: Producers::new(Limits::default()),
            model: Model::default(),
            durable: 0,
            rolled_back: BTreeMap::new(),
        };
        for step in &steps {
            both.run(step);
        }
    }

    #[test]
    fn restore_never_panics_on_a_damaged_snapshot(at in any::<usize>(), value in any::<u8>(), cut in any::<usize>()) {
        let mut producers = Producers::new(Limits::default());
        producers.on_batch_appended(&batch(1, 0, 0), 0, 5);
        producers.on_batch_appended(&BatchInfo { is_transactional: true, ..batch(2, 0, 0) }, 1, 5);
        producers.on_marker_appended(&marker(2, 1, Outcome::Abort), 2, 6);
        let mut snapshot = producers.snapshot(3);
        prop_assert!(Producers::restore(Limits::default(), &snapshot[..cut % snapshot.len()]).is_err());
        let at = at % snapshot.len();
        snapshot[at] = value;
        drop(Producers::restore(Limits::default(), &snapshot));
    }
}

fn batch(producer_id: i64, producer_epoch: i16, base_sequence: i32) -> BatchInfo {
    BatchInfo {
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
fn sequence_numbers_wrap_to_zero() {
    let mut producers = Producers::new(Limits::default());
    let last = BatchInfo { last_offset_delta: 2, ..batch(1, 0, i32::MAX - 1) };
    assert_eq!(producers.check(&last, TxnVerification::Unknown), AppendDecision::Append);
    producers.on_batch_appended(&last, 0, 0);
    // The last of its three records has sequence number 0.
    assert_eq!(producers.describe()[0].last_sequence, 0);
    assert_eq!(producers.check(&batch(1, 0, 1), TxnVerification::Unknown), AppendDecision::Append);
    assert_eq!(
        producers.check(&last, TxnVerification::Unknown),
        AppendDecision::Duplicate { base_offset: 0, timestamp_ms: 1 }
    );
}

/// With transaction version 1 a producer keeps its epoch across transactions, and its sequence numbers continue.
#[test]
fn producer_with_only_a_marker_left_may_use_any_sequence() {
    let mut producers = Producers::new(Limits::default());
    producers.on_marker_appended(&marker(1, 3, Outcome::Commit), 7, 0);
    producers.mark_durable(8);
    let next = BatchInfo { is_transactional: true, ..batch(1, 3, 40) };
    let check = |producers: &Producers, next: &BatchInfo| producers.check(next, TxnVerification::Verified);
    assert_eq!(check(&producers, &next), AppendDecision::Append);
    let refused = AppendDecision::Refused(Error::OutOfOrderSequenceNumber);
    assert_eq!(
        producers.check(&next, TxnVerification::VerifiedOwnEpoch),
        refused,
        "each transaction has its own epoch"
    );
    assert_eq!(
        check(&producers, &BatchInfo { producer_epoch: 4, ..next }),
        refused,
        "a new epoch begins at 0"
    );
    // This holds across restarts, until the producer has written.
    let (mut restored, _) = Producers::restore(Limits::default(), &producers.snapshot(8)).unwrap();
    assert_eq!(check(&restored, &next), AppendDecision::Append);
    restored.on_batch_appended(&next, 8, 0);
    assert_eq!(check(&restored, &BatchInfo { base_sequence: 42, ..next }), refused);
    restored.rollback_to(8);
    assert_eq!(
        check(&restored, &BatchInfo { base_sequence: 41, ..next }),
        refused,
        "an earlier batch was rolled back"
    );
    assert_eq!(check(&restored, &next), AppendDecision::Append);
}

/// Ids of the known producers.
fn ids(producers: &Producers) -> Vec<i64> {
    producers.describe().iter().map(|active| active.producer_id).collect()
}

#[test]
fn evicts_the_producers_that_are_idle_for_longest_but_none_with_an_open_transaction() {
    let mut producers = Producers::new(Limits::default());
    let open = BatchInfo { is_transactional: true, ..batch(0, 0, 0) };
    producers.on_batch_appended(&open, 0, 0);
    for id in 1..5 {
        producers.on_batch_appended(&batch(id, 0, 0), id.cast_unsigned(), 0);
    }
    producers.on_batch_appended(&batch(1, 0, 1), 5, 0);
    assert_eq!(producers.evict_idle(2), 2);
    assert_eq!(ids(&producers), [0, 1, 4], "1 has written since, and 0 has an open transaction");
    producers.on_marker_appended(&marker(0, 1, Outcome::Commit), 6, 0);
    assert_eq!(producers.evict_idle(2), 2);
    assert_eq!(ids(&producers), [0]);
    assert_eq!((producers.evict_idle(9), producers.len()), (1, 0));
}

#[test]
fn an_evicted_producer_begins_a_new_epoch_until_it_would_have_expired() {
    let mut producers = Producers::new(Limits { expiration_ms: 100, ..Limits::default() });
    producers.on_batch_appended(&batch(1, 0, 0), 0, 1000);
    assert_eq!(producers.evict_idle(1), 1);
    let check =
        |producers: &Producers, sequence| producers.check(&batch(1, 0, sequence), TxnVerification::Unknown);
    let unknown = AppendDecision::Refused(Error::UnknownProducerId);
    assert_eq!(check(&producers, 1), unknown);
    assert_eq!(check(&producers, 0), AppendDecision::Append);
    let (mut restored, _) = Producers::restore(Limits::default(), &producers.snapshot(1)).unwrap();
    restored.expire(1099);
    assert_eq!(check(&restored, 1), unknown, "a restart does not forget");
    restored.expire(1100);
    assert_eq!(check(&restored, 1), AppendDecision::Append, "it has expired, as in Kafka");
}

/// The order of idle producers is updated lazily; it must agree with the naive order at every eviction.
#[test]
fn idle_order_matches_the_last_offsets() {
    let mut random = 1_u64;
    let mut producers = Producers::new(Limits::default());
    for offset in 0..5_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (id, kind) = ((random >> 33).cast_signed() % 20, random >> 60);
        let known = producers.describe().into_iter().find(|known| known.producer_id == id);
        let sequence = known.map_or(0, |known| known.last_sequence + 1);
        let is_open = known.is_some_and(|known| known.transaction_start_offset >= 0);
        match kind {
            0..=7 => producers.on_batch_appended(&batch(id, 0, sequence), offset, offset),
            8..=10 => {
                let info = BatchInfo { is_transactional: true, ..batch(id, 0, sequence) };
                producers.on_batch_appended(&info, offset, offset);
            }
            11 | 12 if is_open => {
                producers.on_marker_appended(&marker(id, 0, Outcome::Commit), offset, offset);
            }
            13 => producers.rollback_to(offset.saturating_sub(3)),
            14 => producers.mark_durable(offset.saturating_sub(5)),
            _ => {
                let idle = producers.entries.iter().filter(|(_, entry)| entry.open_from.is_none());
                let oldest = idle.map(|(id, entry)| (entry.last_offset, *id)).min();
                let before = producers.len();
                assert_eq!(producers.evict_idle(1), usize::from(oldest.is_some()));
                assert_eq!(producers.len(), before - usize::from(oldest.is_some()));
                if let Some((_, id)) = oldest {
                    assert!(!producers.contains(id), "{id} was idle for longest");
                }
            }
        }
        assert!(producers.idle.len() <= producers.len() + 40, "outdated entries are removed");
    }
}

#[test]
fn rejects_new_transactions_at_the_aborted_limit() {
    let mut producers = Producers::new(Limits { aborted: 1, ..Limits::default() });
    let first = BatchInfo { is_transactional: true, ..batch(1, 0, 0) };
    producers.on_batch_appended(&first, 0, 0);
    producers.on_marker_appended(&marker(1, 1, Outcome::Abort), 1, 0);
    let next = BatchInfo { producer_epoch: 1, ..first };
    let check = |producers: &Producers| producers.check(&next, TxnVerification::Verified);
    assert_eq!(check(&producers), AppendDecision::Refused(Error::PolicyViolation));
    assert_eq!(producers.check(&batch(2, 0, 0), TxnVerification::Unknown), AppendDecision::Append);
    producers.truncate_prefix(2);
    assert_eq!(check(&producers), AppendDecision::Append);
}

#[test]
fn producers_expire_by_the_brokers_clock_unless_a_transaction_is_open() {
    let mut producers = Producers::new(Limits { expiration_ms: 100, ..Limits::default() });
    producers.on_batch_appended(&batch(1, 0, 0), 0, 1000);
    producers.on_batch_appended(&BatchInfo { is_transactional: true, ..batch(2, 0, 0) }, 1, 1000);
    producers.expire(1099);
    assert_eq!(producers.len(), 2);
    producers.expire(1100);
    assert_eq!(producers.describe().iter().map(|active| active.producer_id).collect::<Vec<_>>(), [2]);
}

/// Bytes written by format version 2. They must never change.
#[test]
fn reads_version_2_snapshots() {
    let mut producers = Producers::new(Limits::default());
    producers.on_batch_appended(&BatchInfo { last_offset_delta: 2, ..batch(1, 0, i32::MAX) }, 0, 5);
    producers.on_batch_appended(&BatchInfo { is_transactional: true, ..batch(2, 3, 0) }, 3, 6);
    producers.on_marker_appended(&marker(2, 4, Outcome::Abort), 4, 7);
    producers.on_batch_appended(&BatchInfo { is_transactional: true, ..batch(2, 4, 0) }, 5, 8);
    producers.mark_durable(6);
    let bytes: &[u8] =
        &[2, 6, 0, 2, 2, 0, 1, 2, 5, 2, 0, 1, 2, 2, 2, 2, 4, 8, 0, 2, 8, 5, 6, 1, 5, 0, 0, 2, 1, 4, 3, 1, 5];
    assert_eq!(producers.snapshot(6), bytes);
    let (read, offset) = Producers::restore(Limits::default(), bytes).unwrap();
    assert_eq!((offset, read.describe()), (6, producers.describe()));
    assert_eq!(
        read.aborted_between(0, 6).collect::<Vec<_>>(),
        producers.aborted_between(0, 6).collect::<Vec<_>>()
    );
}

#[test]
fn rejects_batches_in_flight_behind_a_failed_one() {
    let mut producers = Producers::new(Limits::default());
    producers.on_batch_appended(&batch(1, 0, 0), 0, 0);
    producers.rollback_to(0);
    producers.on_append_failed(&batch(2, 0, 5));
    for (id, first) in [(1, 0), (2, 5)] {
        let check = |sequence| producers.check(&batch(id, 0, sequence), TxnVerification::Unknown);
        assert_eq!(check(first + 1), AppendDecision::Refused(Error::OutOfOrderSequenceNumber));
        assert_eq!(check(first), AppendDecision::Append);
    }
    producers.on_batch_appended(&batch(1, 0, 0), 0, 0);
    assert_eq!(producers.check(&batch(1, 0, 1), TxnVerification::Unknown), AppendDecision::Append);
}
