//! Retained messages on disk: one compacted log, keyed by topic, kept by the first shard.

use std::collections::VecDeque;

use mainstem_log::{
    BatchBuilder, Cleanup, Completion, Durability, Error, LogId, Options, Store, Ticket, batches,
};
use mainstem_runtime::Clock;

use crate::journal::{Arrived, decode_message, encode_message};
use crate::message::Message;
use crate::retained::Retained;

/// Name of the log in the first shard's store.
const LOG: &str = "mqtt-retained";
/// Size from which on a batch is closed.
const BATCH_BYTES: usize = 256 * 1024;
/// Bytes read at a time when the log is read back.
const READ_BYTES: usize = 4 * 1024 * 1024;
/// How long a cleared topic leaves a trace, ms: nobody reads the log but this module.
const DELETE_RETENTION_MS: u64 = 0;

/// The log of retained messages.
#[derive(Debug)]
pub(crate) struct RetainedLog {
    log: LogId,
    builder: BatchBuilder,
    publish: Vec<u8>,
    in_flight: VecDeque<(Ticket, u64)>,
    /// Records since the start.
    pub(crate) records: u64,
    is_failing: bool,
}

impl RetainedLog {
    /// The log in `store`; made if there is none.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) fn open(
        store: &mut dyn Store,
        durability: Durability,
        segment_bytes: u64,
    ) -> Result<Self, Error> {
        let options = Options {
            durability,
            segment_bytes,
            cleanup: Cleanup::Compact,
            delete_retention_ms: DELETE_RETENTION_MS,
            ..Options::default()
        };
        let log = store.open(LOG, &options)?;
        Ok(Self {
            log,
            builder: BatchBuilder::default(),
            publish: Vec::new(),
            in_flight: VecDeque::new(),
            records: 0,
            is_failing: false,
        })
    }

    /// Reads all that is retained into `retained`. Returns how many records that took.
    ///
    /// # Errors
    /// What the store says.
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
                    let message = decode_message(publish, record.timestamp_ms.cast_unsigned(), clock)
                        .map_err(|_| Error::Corrupt { offset: record.offset })?;
                    if retained.set(&message).is_err() {
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

    /// Enters what `topic` retains now.
    pub(crate) fn push(
        &mut self,
        store: &mut dyn Store,
        clock: Clock,
        topic: &str,
        message: Option<&Message>,
        commit: u64,
    ) {
        self.records += 1;
        let unix_ms = clock.unix_ms.cast_signed();
        if let Some(message) = message {
            self.publish.clear();
            encode_message(message, clock, &mut self.publish);
            self.builder.push(unix_ms, Some(topic.as_bytes()), Some(&self.publish));
        } else {
            self.builder.push(unix_ms, Some(topic.as_bytes()), None);
        }
        if self.builder.len() >= BATCH_BYTES {
            self.store_batch(store, commit);
        }
    }

    /// Hands the store what has been gathered, as part of the shard's commit `commit`.
    pub(crate) fn store_batch(&mut self, store: &mut dyn Store, commit: u64) {
        if self.builder.is_empty() {
            return;
        }
        match store.append(self.log, self.builder.finish()) {
            Ok(appended) => {
                if self.in_flight.back() != Some(&(appended.ticket, commit)) {
                    self.in_flight.push_back((appended.ticket, commit));
                }
                self.is_failing = false;
            }
            Err(error) => self.fail(&error),
        }
    }

    /// How many parts of commit `commit` are on their way; and whether some of it was lost.
    pub(crate) fn parts(&self, commit: u64) -> u32 {
        self.in_flight.iter().rev().take_while(|(_, known)| *known == commit).count() as u32
    }

    fn fail(&mut self, error: &Error) {
        if !std::mem::replace(&mut self.is_failing, true) {
            log::error!("retained messages cannot be kept on disk: {error}");
        }
    }

    /// Whether the last append failed: what is retained in memory is not all on disk.
    pub(crate) fn is_failing(&self) -> bool {
        self.is_failing
    }

    /// Takes in a completion, if it is of this log.
    pub(crate) fn complete(&mut self, completion: &Completion, arrived: &mut Vec<Arrived>) {
        if completion.log != self.log {
            return;
        }
        while let Some((_, commit)) = self.in_flight.pop_front_if(|(ticket, _)| *ticket <= completion.ticket)
        {
            arrived.push(Arrived { commit, is_durable: completion.outcome.is_ok() });
        }
        if let Err(error) = &completion.outcome {
            self.fail(error);
        }
    }
}
