//! Retained messages on disk: one compacted log, keyed by topic, on the first shard.
//!
//! A change that cannot be written is remembered by its topic only, and what the topic retains then is written when the
//! store works again.

use std::collections::{BTreeSet, VecDeque};

use mainstem_log::{
    Appended, BatchBuilder, Cleanup, Completion, Durability, Error, LogId, Options, State, Store, StoreAt,
    Ticket, batches,
};
use mainstem_runtime::Clock;

use crate::journal::{Arrived, decode_message, encode_message};
use crate::message::Message;
use crate::retained::Retained;

/// Name of the log in the first shard's store.
const LOG: &str = "mqtt-retained";
/// Size at which a batch is closed.
const BATCH_BYTES: usize = 256 * 1024;
/// Bytes read at a time when the log is read back.
const READ_BYTES: usize = 4 * 1024 * 1024;
/// Retention of tombstones, ms: nothing but this module reads the log.
const DELETE_RETENTION_MS: u64 = 0;

/// The log of retained messages.
#[derive(Debug)]
pub(crate) struct RetainedLog {
    log: LogId,
    builder: BatchBuilder,
    publish: Vec<u8>,
    /// Topics of the records in the builder.
    gathered: Vec<Box<str>>,
    in_flight: VecDeque<InFlight>,
    /// Records since the start.
    records: u64,
    /// Part of this turn was not written.
    has_lost: bool,
    /// Number of times that the log began to fail.
    failures: u64,
    /// Topics whose last change could not be written.
    missed: BTreeSet<Box<str>>,
}

/// A batch that is not on disk yet.
#[derive(Debug)]
struct InFlight {
    ticket: Ticket,
    commit: u64,
    topics: Vec<Box<str>>,
}

impl RetainedLog {
    /// Opens the log in a store, or creates it.
    ///
    /// # Errors
    /// Errors of the store.
    pub(crate) fn open(at: &mut StoreAt, durability: Durability, segment_bytes: u64) -> Result<Self, Error> {
        let options = Options {
            durability,
            segment_bytes,
            cleanup: Cleanup::Compact,
            delete_retention_ms: DELETE_RETENTION_MS,
            ..Options::default()
        };
        let log = at.store.open(LOG, &options)?;
        at.assign(log);
        Ok(Self {
            log,
            builder: BatchBuilder::default(),
            publish: Vec::new(),
            gathered: Vec::new(),
            in_flight: VecDeque::new(),
            records: 0,
            has_lost: false,
            failures: 0,
            missed: BTreeSet::new(),
        })
    }

    /// Reads all retained messages into `retained`. Returns the number of records.
    ///
    /// # Errors
    /// Errors of the store.
    pub(crate) fn load(
        &self,
        store: &mut dyn Store,
        clock: Clock,
        retained: &Retained,
    ) -> Result<u64, Error> {
        let status = store.status(self.log);
        let (mut at, mut records) = (status.start, 0);
        let mut bytes = Vec::new();
        while at < status.end {
            bytes.clear();
            store.read(self.log, at..status.end, READ_BYTES, &mut bytes)?;
            let before = at;
            for batch in batches(&bytes) {
                at = batch.header.end_offset();
                for record in batch.records() {
                    let record = record.map_err(Error::Malformed)?;
                    let topic = record.key.and_then(|key| std::str::from_utf8(key).ok());
                    let Some(topic) = topic else { return Err(Error::Corrupt { offset: record.offset }) };
                    records += 1;
                    let Some(publish) = record.value else {
                        retained.clear(topic);
                        continue;
                    };
                    let message =
                        decode_message(publish, record.timestamp_ms.cast_unsigned(), clock, retained.meter())
                            .map_err(|_| Error::Corrupt { offset: record.offset })?;
                    // What is on disk is kept, however short memory is.
                    if retained.load(&message).is_err() {
                        log::warn!(
                            "the retained message of {topic:?} is dropped: the limits have been lowered"
                        );
                        retained.clear(topic);
                    }
                }
            }
            if at == before {
                // Compaction has left nothing up to the end.
                break;
            }
        }
        Ok(records)
    }

    /// Appends what `topic` retains now.
    pub(crate) fn push(
        &mut self,
        store: &mut dyn Store,
        clock: Clock,
        topic: &str,
        message: Option<&Message>,
        commit: u64,
    ) {
        self.records += 1;
        if !self.missed.is_empty() {
            self.has_lost = true;
            self.missed.insert(topic.into());
            return;
        }
        self.gather(clock, topic, message);
        if self.builder.len() >= BATCH_BYTES {
            self.store_batch(store, commit);
        }
    }

    fn gather(&mut self, clock: Clock, topic: &str, message: Option<&Message>) {
        let unix_ms = clock.unix_ms.cast_signed();
        self.gathered.push(topic.into());
        let Some(message) = message else {
            self.builder.push(unix_ms, Some(topic.as_bytes()), None);
            return;
        };
        self.publish.clear();
        encode_message(message, clock, &mut self.publish);
        self.builder.push(unix_ms, Some(topic.as_bytes()), Some(&self.publish));
    }

    /// Tries again to write what could not be written, a batch at a time.
    pub(crate) fn retry(&mut self, store: &mut dyn Store, clock: Clock, retained: &Retained, commit: u64) {
        if self.missed.is_empty() || store.status(self.log).state == State::Broken {
            return;
        }
        while let Some(topic) = self.missed.pop_first() {
            self.records += 1;
            self.gather(clock, &topic, retained.get(&topic).as_deref());
            if self.builder.len() >= BATCH_BYTES {
                break;
            }
        }
        self.store_batch(store, commit);
        if self.missed.is_empty() {
            log::warn!("retained messages are kept on disk again");
        }
    }

    /// Appends the collected records to the store, as part of the shard's commit `commit`.
    pub(crate) fn store_batch(&mut self, store: &mut dyn Store, commit: u64) {
        if self.builder.is_empty() {
            return;
        }
        let topics = std::mem::take(&mut self.gathered);
        match store.append_valid(self.log, self.builder.finish_valid()) {
            Ok(Appended { ticket, .. }) => self.in_flight.push_back(InFlight { ticket, commit, topics }),
            Err(error) => self.miss(topics, &error),
        }
    }

    fn miss(&mut self, topics: Vec<Box<str>>, error: &Error) {
        if self.missed.is_empty() {
            self.failures += 1;
            log::error!("retained messages cannot be kept on disk: {error}");
        }
        self.has_lost = true;
        self.missed.extend(topics);
    }

    pub(crate) fn records(&self) -> u64 {
        self.records
    }

    pub(crate) fn failures(&self) -> u64 {
        self.failures
    }

    /// Whether part of the turn was not written.
    pub(crate) fn take_has_lost(&mut self) -> bool {
        std::mem::take(&mut self.has_lost)
    }

    /// Number of batches in flight that are part of `commit`.
    pub(crate) fn parts(&self, commit: u64) -> u32 {
        self.in_flight.iter().rev().take_while(|known| known.commit == commit).count() as u32
    }

    /// Whether some change could not be written.
    pub(crate) fn is_failing(&self) -> bool {
        !self.missed.is_empty()
    }

    /// Handles a completion, if it is of this log.
    pub(crate) fn complete(&mut self, completion: &Completion, arrived: &mut Vec<Arrived>) {
        if completion.log != self.log {
            return;
        }
        while let Some(InFlight { commit, topics, .. }) =
            self.in_flight.pop_front_if(|known| known.ticket <= completion.ticket)
        {
            arrived.push(Arrived { commit, is_durable: completion.outcome.is_ok() });
            if let Err(error) = &completion.outcome {
                self.miss(topics, error);
            }
        }
    }
}
