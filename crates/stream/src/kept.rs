//! Keyed records that must last: a compacted log, and who waits for which of its appends.

use std::collections::VecDeque;

use mainstem_log::{
    BatchBuilder, Cleanup, Completion, Durability, Error, LogId, Options, Store, Ticket, batches,
};

/// Bytes read at once at the start.
const READ_BYTES: usize = 1024 * 1024;
/// Batches are cut at about this size.
const BATCH_BYTES: usize = 256 * 1024;
const SEGMENT_BYTES: u64 = 16 * 1024 * 1024;

/// A record: a key, and what it is now; nothing if it is no more.
pub(crate) type KeyValue = (Vec<u8>, Option<Vec<u8>>);

/// Somebody waits for what was kept; how it went.
pub(crate) type Outcome<T> = (T, Result<(), Error>);

/// A compacted log of keyed records, in the first store of its shard. `T` names who waits.
#[derive(Debug)]
pub(crate) struct Kept<T> {
    log: LogId,
    builder: BatchBuilder,
    /// Who waits for what is being gathered.
    gathering: Vec<Waiter<T>>,
    in_flight: VecDeque<(Ticket, Vec<Waiter<T>>)>,
    /// Those whose append was refused at once.
    refused: Vec<(Waiter<T>, Result<(), Error>)>,
    /// How many appends have failed, of those of which the waiters have been told, and why the last did.
    failures: u64,
    failure: Option<Error>,
}

#[derive(Debug)]
struct Waiter<T> {
    who: T,
    /// It has no records of its own, but waits for all before: how many failures there had been when it came.
    failures: Option<u64>,
}

impl<T> Kept<T> {
    /// Opens the log `name` and reads all of it, in order.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn open(
        store: &mut dyn Store,
        name: &str,
        durability: Durability,
        mut each: impl FnMut(&[u8], Option<&[u8]>),
    ) -> Result<Self, Error> {
        let options = Options {
            durability,
            segment_bytes: SEGMENT_BYTES,
            cleanup: Cleanup::Compact,
            ..Options::default()
        };
        let log = store.open(name, &options)?;
        let status = store.status(log);
        let (mut next, mut bytes) = (status.start, Vec::new());
        while next < status.end {
            bytes.clear();
            store.read(log, next..status.end, READ_BYTES, &mut bytes)?;
            let before = next;
            for batch in batches(&bytes) {
                for record in batch.records() {
                    let record = record.map_err(Error::Malformed)?;
                    if let Some(key) = record.key {
                        each(key, record.value);
                    }
                }
                next = batch.header.end_offset();
            }
            if next == before {
                break;
            }
        }
        Ok(Self {
            log,
            builder: BatchBuilder::default(),
            gathering: Vec::new(),
            in_flight: VecDeque::new(),
            refused: Vec::new(),
            failures: 0,
            failure: None,
        })
    }

    /// Adds records; `who` is told by [`Kept::arrived`] when they are durable. Without records it is told when all
    /// that was added before is, or that something of that has failed.
    pub(crate) fn keep(&mut self, store: &mut dyn Store, unix_ms: u64, records: &[KeyValue], who: T) {
        for (key, value) in records {
            self.builder.push(unix_ms.cast_signed(), Some(key), value.as_deref());
        }
        let failures = records.is_empty().then_some(self.failures);
        self.gathering.push(Waiter { who, failures });
        if self.builder.len() >= BATCH_BYTES {
            self.store(store);
        }
    }

    /// Hands the store what has been gathered. To be called before the turn's commit.
    pub(crate) fn store(&mut self, store: &mut dyn Store) {
        if self.gathering.is_empty() {
            return;
        }
        let waiters = std::mem::take(&mut self.gathering);
        if self.builder.is_empty() {
            // Nothing to keep: it is as durable as what was kept last.
            match self.in_flight.back_mut() {
                Some((_, known)) => known.extend(waiters),
                None => self.refused.extend(waiters.into_iter().map(|waiter| (waiter, Ok(())))),
            }
            return;
        }
        match store.append(self.log, self.builder.finish()) {
            Ok(appended) => {
                match self.in_flight.back_mut().filter(|(ticket, _)| *ticket == appended.ticket) {
                    Some((_, known)) => known.extend(waiters),
                    None => self.in_flight.push_back((appended.ticket, waiters)),
                }
            }
            Err(error) => {
                self.refused.extend(waiters.into_iter().map(|waiter| (waiter, Err(error.clone()))));
            }
        }
    }

    /// Whether nobody has to wait: all that was kept is durable, or lost, and everybody knows.
    pub(crate) fn is_idle(&self) -> bool {
        self.gathering.is_empty() && self.in_flight.is_empty() && self.refused.is_empty()
    }

    /// Takes note of a completion. False if it is of another log.
    pub(crate) fn arrived(&mut self, completion: &Completion, into: &mut Vec<Outcome<T>>) -> bool {
        if completion.log != self.log {
            return false;
        }
        while let Some((_, waiters)) = self.in_flight.pop_front_if(|(ticket, _)| *ticket <= completion.ticket)
        {
            self.note(&completion.outcome);
            into.extend(waiters.into_iter().map(|waiter| self.told(waiter, completion.outcome.clone())));
        }
        true
    }

    fn note(&mut self, outcome: &Result<(), Error>) {
        if let Err(error) = outcome {
            self.failures += 1;
            self.failure = Some(error.clone());
        }
    }

    /// What somebody is told whose records, or those before, have come to this end.
    fn told(&self, waiter: Waiter<T>, outcome: Result<(), Error>) -> Outcome<T> {
        let has_failed = waiter.failures.is_some_and(|failures| failures != self.failures);
        let failure = self.failure.clone().filter(|_| has_failed);
        (waiter.who, outcome.and(failure.map_or(Ok(()), Err)))
    }

    /// Takes those that need not wait any longer although nothing has been written for them.
    pub(crate) fn take_refused(&mut self, into: &mut Vec<Outcome<T>>) {
        for (waiter, outcome) in std::mem::take(&mut self.refused) {
            self.note(&outcome);
            into.push(self.told(waiter, outcome));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstem_log::Memory;

    #[test]
    fn what_was_kept_is_read_again_and_waiters_hear_of_it_in_order() {
        let mut store = Memory::new();
        let mut kept = Kept::open(&mut store, "kept", Durability::Fsync, |_, _| {}).unwrap();
        kept.keep(&mut store, 1, &[(b"a".to_vec(), Some(b"1".to_vec()))], 1);
        kept.keep(&mut store, 2, &[(b"b".to_vec(), Some(b"2".to_vec())), (b"a".to_vec(), None)], 2);
        kept.store(&mut store);
        store.commit();
        let (mut completions, mut heard) = (Vec::new(), Vec::new());
        store.completions(&mut completions);
        assert!(completions.iter().all(|completion| kept.arrived(completion, &mut heard)));
        assert_eq!(heard, [(1, Ok(())), (2, Ok(()))]);
        let mut read = Vec::new();
        let _: Kept<u8> = Kept::open(&mut store, "kept", Durability::Fsync, |key, value| {
            read.push((key.to_vec(), value.map(<[u8]>::to_vec)));
        })
        .unwrap();
        let record = |key: &[u8], value: Option<&[u8]>| (key.to_vec(), value.map(<[u8]>::to_vec));
        assert_eq!(read, [record(b"a", Some(b"1")), record(b"b", Some(b"2")), record(b"a", None)]);
    }

    /// Whoever waits for several records must not hear only of the last.
    #[test]
    fn who_waits_for_all_before_hears_of_a_failure_of_any() {
        let mut store = Memory::new();
        let mut kept = Kept::open(&mut store, "kept", Durability::Fsync, |_, _| {}).unwrap();
        let (mut completions, mut heard) = (Vec::new(), Vec::new());
        let value = vec![0; BATCH_BYTES];
        store.refuse_appends(1);
        kept.keep(&mut store, 1, &[(b"a".to_vec(), Some(value))], 1);
        assert!(!kept.is_idle(), "nobody has been told");
        kept.keep(&mut store, 1, &[(b"b".to_vec(), Some(b"small".to_vec()))], 2);
        kept.keep(&mut store, 1, &[], 3);
        kept.store(&mut store);
        kept.take_refused(&mut heard);
        store.commit();
        store.completions(&mut completions);
        assert!(completions.iter().all(|completion| kept.arrived(completion, &mut heard)));
        assert_eq!(heard, [(1, Err(Error::Full)), (2, Ok(())), (3, Err(Error::Full))]);
        kept.keep(&mut store, 1, &[], 4);
        kept.store(&mut store);
        heard.clear();
        kept.take_refused(&mut heard);
        assert_eq!(heard, [(4, Ok(()))], "that has been told, and is over");
    }
}
