//! Random steps, done with a store and with the plain version of it.

use std::collections::BTreeMap;

use super::Subject;
use super::bench::Bench;
use super::plain::{Plain, batch};
use crate::{Durability, Error, LogId, Options};

/// One step: which one, and two numbers that say where and how much. Any three numbers are a step, so that they
/// can be drawn, and left out one by one, by whoever tests.
pub type Step = (u8, u16, u16);

/// Logs there are at most at a time.
const LOGS: u16 = 5;

struct Walk<'a> {
    bench: Bench<'a>,
    logs: BTreeMap<String, (LogId, Plain)>,
    /// Batches made so far.
    salt: u64,
}

/// Does `steps` with a fresh store of `subject`, and compares all that can be seen of it.
///
/// # Panics
/// If it is not as it should be.
pub fn follow(subject: &mut dyn Subject, steps: &[Step]) {
    let mut walk = Walk { bench: Bench::new(subject), logs: BTreeMap::new(), salt: 0 };
    for step in steps {
        let Some(next) = walk.step(*step) else { return };
        walk = next;
    }
    walk.bench.settle();
    walk.compare();
}

impl Walk<'_> {
    /// Nothing once the store has ended for good.
    fn step(mut self, (kind, one, two): Step) -> Option<Self> {
        let name = format!("log-{}", one % LOGS);
        if !self.logs.contains_key(&name) {
            let log = self.bench.store.open(&name, &options(one)).unwrap();
            let plain = Plain::default();
            assert_eq!(self.bench.store.status(log).end, 0, "a new log is empty");
            self.logs.insert(name.clone(), (log, plain));
        }
        let (log, plain) = self.logs.get_mut(&name)?;
        let (log, part) = (*log, (one / LOGS) % 64);
        match kind % 16 {
            0..=6 => {
                self.salt += 1;
                let time = i64::from(two / 8) + self.salt.cast_signed() * 100;
                let bytes = batch(self.salt, 1 + u32::from(part % 7), usize::from(two % 700), time);
                assert_eq!(self.bench.append(log, &bytes), plain.append(&bytes));
            }
            7..=8 => self.bench.store.commit(),
            9 => self.bench.settle(),
            10 => self.read(&name, part, two),
            11 => self.find_time(&name, two),
            12 => {
                let offset = at(plain, part, two);
                self.bench.store.truncate_prefix(log, offset).unwrap();
                plain.truncate_prefix(offset);
            }
            13 => {
                let offset = at(plain, part, two);
                let expected = if plain.truncate_suffix(offset) { Ok(()) } else { Err(Error::OutOfRange) };
                assert_eq!(self.bench.store.truncate_suffix(log, offset), expected, "at {offset}");
            }
            14 if two % 4 == 0 => {
                self.bench.settle();
                self.bench.remove(log);
                self.logs.remove(&name);
            }
            14 => {
                self.bench.store.tend(u64::from(two));
            }
            _ => return self.reopen(),
        }
        self.compare_status();
        Some(self)
    }

    fn read(&mut self, name: &str, part: u16, two: u16) {
        let (log, plain) = &self.logs[name];
        let start = at(plain, part, two);
        let end = start + u64::from(two % 40);
        let max_bytes = usize::from(two);
        let mut read = b"before".to_vec();
        let outcome = self.bench.store.read(*log, start..end, max_bytes, &mut read);
        match plain.read(start..end, max_bytes) {
            Some(expected) => {
                assert_eq!(outcome, Ok(()), "{start}..{end}");
                assert!(read.strip_prefix(b"before") == Some(&expected), "{start}..{end}, {max_bytes} bytes");
            }
            None => assert_eq!((outcome, read.as_slice()), (Err(Error::OutOfRange), b"before".as_slice())),
        }
    }

    fn find_time(&mut self, name: &str, two: u16) {
        let (log, plain) = &self.logs[name];
        let time = i64::from(two);
        assert_eq!(self.bench.store.find_time(*log, time), Ok(plain.find_time(time)), "{time}");
    }

    fn reopen(mut self) -> Option<Self> {
        self.bench.settle();
        let mut bench = self.bench.reopen()?;
        let names: Vec<String> = self.logs.keys().cloned().collect();
        assert_eq!(bench.store.names(), names);
        for (index, (name, (log, _))) in self.logs.iter_mut().enumerate() {
            *log = bench.store.open(name, &options(index as u16)).unwrap();
        }
        let mut next = Self { bench, ..self };
        next.compare();
        Some(next)
    }

    fn compare_status(&self) {
        let names: Vec<String> = self.logs.keys().cloned().collect();
        assert_eq!(self.bench.store.names(), names);
        for (name, (log, plain)) in &self.logs {
            let status = self.bench.store.status(*log);
            assert_eq!((status.start, status.end), (plain.start, plain.end), "{name}");
            assert!(status.start <= status.committed && status.committed <= status.end, "{name}: {status:?}");
        }
    }

    fn compare(&mut self) {
        self.compare_status();
        for (name, (log, plain)) in &self.logs {
            assert!(self.bench.read_all(*log) == plain.bytes(), "{name} is not as it should be");
        }
    }
}

fn options(one: u16) -> Options {
    let durability = if one.is_multiple_of(3) { Durability::Os } else { Durability::Fsync };
    Options { durability, segment_bytes: 1 << (9 + one % 6), ..Options::default() }
}

/// An offset: one of the log's bounds more often than not, and sometimes beyond its ends.
fn at(plain: &Plain, part: u16, two: u16) -> u64 {
    let bounds: Vec<u64> = plain.bounds().chain([plain.end]).collect();
    let bound = bounds[(usize::from(two) * bounds.len()) >> 16];
    match part % 8 {
        0 => bound + 1,
        1 => bound.saturating_sub(1),
        2 => plain.end + u64::from(part),
        3 => plain.start,
        _ => bound,
    }
}
