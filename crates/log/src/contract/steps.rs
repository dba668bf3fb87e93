//! Random steps, applied to a store and to the reference log.

use std::collections::BTreeMap;

use super::StoreFactory;
use super::harness::Harness;
use super::reference::{ReferenceLog, batch};
use crate::{Durability, Error, LogId, Options};

/// One step: its kind, and two parameters for position and amount. Every combination of numbers is a valid step, so
/// that a property test can generate and shrink sequences freely.
pub type Step = (u8, u16, u16);

/// Maximum number of logs at a time.
const LOGS: u16 = 5;

struct StepRunner<'a> {
    harness: Harness<'a>,
    logs: BTreeMap<String, (LogId, ReferenceLog)>,
    /// Number of batches built so far.
    salt: u64,
}

/// Applies `steps` to a fresh store of `factory` and compares all its observable state with the reference.
///
/// # Panics
/// If the store and the reference differ.
pub fn run_steps(factory: &mut dyn StoreFactory, steps: &[Step]) {
    let mut runner = StepRunner { harness: Harness::new(factory), logs: BTreeMap::new(), salt: 0 };
    for step in steps {
        let Some(next) = runner.step(*step) else { return };
        runner = next;
    }
    runner.harness.settle();
    runner.compare();
}

impl StepRunner<'_> {
    /// Returns `None` when a store that is not persistent was closed.
    fn step(mut self, (kind, one, two): Step) -> Option<Self> {
        let name = format!("log-{}", one % LOGS);
        if !self.logs.contains_key(&name) {
            let log = self.harness.store.open(&name, &options(one)).unwrap();
            let reference = ReferenceLog::default();
            assert_eq!(self.harness.store.status(log).end, 0, "a new log is empty");
            self.logs.insert(name.clone(), (log, reference));
        }
        let (log, reference) = self.logs.get_mut(&name)?;
        let (log, part) = (*log, (one / LOGS) % 64);
        match kind % 16 {
            0..=6 => {
                self.salt += 1;
                let time = i64::from(two / 8) + self.salt.cast_signed() * 100;
                let bytes = batch(self.salt, 1 + u32::from(part % 7), usize::from(two % 700), time);
                assert_eq!(self.harness.append(log, &bytes), reference.append(&bytes));
            }
            7..=8 => self.harness.store.commit(),
            9 => self.harness.settle(),
            10 => self.read(&name, part, two),
            11 => self.find_time(&name, two),
            12 => {
                let offset = at(reference, part, two);
                self.harness.store.truncate_prefix(log, offset).unwrap();
                reference.truncate_prefix(offset);
            }
            13 => {
                let offset = at(reference, part, two);
                let expected =
                    if reference.truncate_suffix(offset) { Ok(()) } else { Err(Error::OutOfRange) };
                assert_eq!(self.harness.store.truncate_suffix(log, offset), expected, "at {offset}");
            }
            14 if two % 4 == 0 => {
                self.harness.settle();
                self.harness.remove(log);
                self.logs.remove(&name);
            }
            14 => {
                self.harness.store.maintain(u64::from(two));
            }
            _ => return self.reopen(),
        }
        self.compare_status();
        Some(self)
    }

    fn read(&mut self, name: &str, part: u16, two: u16) {
        let (log, reference) = &self.logs[name];
        let start = at(reference, part, two);
        let end = start + u64::from(two % 40);
        let max_bytes = usize::from(two);
        let mut read = b"before".to_vec();
        let outcome = self.harness.store.read(*log, start..end, max_bytes, &mut read);
        match reference.read(start..end, max_bytes) {
            Some(expected) => {
                assert_eq!(outcome, Ok(()), "{start}..{end}");
                assert!(read.strip_prefix(b"before") == Some(&expected), "{start}..{end}, {max_bytes} bytes");
            }
            None => assert_eq!((outcome, read.as_slice()), (Err(Error::OutOfRange), b"before".as_slice())),
        }
    }

    fn find_time(&mut self, name: &str, two: u16) {
        let (log, reference) = &self.logs[name];
        let time = i64::from(two);
        assert_eq!(self.harness.store.find_time(*log, time), Ok(reference.find_time(time)), "{time}");
    }

    fn reopen(mut self) -> Option<Self> {
        self.harness.settle();
        let mut harness = self.harness.reopen()?;
        let names: Vec<String> = self.logs.keys().cloned().collect();
        assert_eq!(harness.store.names(), names);
        for (index, (name, (log, _))) in self.logs.iter_mut().enumerate() {
            *log = harness.store.open(name, &options(index as u16)).unwrap();
        }
        let mut next = Self { harness, ..self };
        next.compare();
        Some(next)
    }

    fn compare_status(&self) {
        let names: Vec<String> = self.logs.keys().cloned().collect();
        assert_eq!(self.harness.store.names(), names);
        for (name, (log, reference)) in &self.logs {
            let status = self.harness.store.status(*log);
            assert_eq!((status.start, status.end), (reference.start, reference.end), "{name}");
            assert!(status.start <= status.committed && status.committed <= status.end, "{name}: {status:?}");
        }
    }

    fn compare(&mut self) {
        self.compare_status();
        for (name, (log, reference)) in &self.logs {
            assert!(self.harness.read_all(*log) == reference.bytes(), "{name} differs from the reference");
        }
    }
}

fn options(one: u16) -> Options {
    let durability = if one.is_multiple_of(3) { Durability::Os } else { Durability::Fsync };
    Options { durability, segment_bytes: 1 << (9 + one % 6), ..Options::default() }
}

/// Derives an offset: usually a batch boundary, sometimes outside the log.
fn at(reference: &ReferenceLog, part: u16, two: u16) -> u64 {
    let bounds: Vec<u64> = reference.bounds().chain([reference.end]).collect();
    let bound = bounds[(usize::from(two) * bounds.len()) >> 16];
    match part % 8 {
        0 => bound + 1,
        1 => bound.saturating_sub(1),
        2 => reference.end + u64::from(part),
        3 => reference.start,
        _ => bound,
    }
}
