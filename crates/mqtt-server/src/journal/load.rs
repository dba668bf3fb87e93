//! Messages in a journal: their encoding, and reading them from disk.
//!
//! Only references to queued messages stay in memory. A session that comes back reads its messages in order, and those
//! of several sessions are in the same batches, so the last batches read are kept as they are on disk and each message
//! is decoded when it is needed.

use std::collections::VecDeque;
use std::sync::Arc;

use mainstem_log::{Error, LogId, Store};
use mainstem_mqtt::{Packet, Publish, QoS, Version, decode};
use mainstem_runtime::{Clock, MemoryMeter};

use super::entry::Entry;
use super::wire::Damaged;
use crate::message::{Content, Message};

/// Bytes of recently read batches that stay in memory.
const RECENT_BYTES: usize = 8 * 1024 * 1024;

/// Encodes a message as a PUBLISH packet of MQTT 5. Its expiry counts from now.
pub(crate) fn encode_message(message: &Message, clock: Clock, into: &mut Vec<u8>) {
    let publish = Publish {
        qos: message.qos,
        retain: message.retain,
        topic: message.topic(),
        packet_id: u16::from(message.qos != QoS::AtMostOnce),
        properties: message.properties(clock.now_ms),
        payload: message.payload(),
        ..Publish::default()
    };
    if let Err(error) = Packet::Publish(publish).encode(Version::V5, into) {
        log::error!("a message on {:?} cannot be encoded: {error}", message.topic());
    }
}

/// Decodes such a packet, which was written at `unix_ms`.
///
/// # Errors
/// [`Damaged`] if it is no PUBLISH.
pub(crate) fn decode_message(
    bytes: &[u8],
    unix_ms: u64,
    clock: Clock,
    meter: &MemoryMeter,
) -> Result<Message, Damaged> {
    let Ok(Packet::Publish(publish)) = decode(Version::V5, bytes) else { return Err(Damaged) };
    let content = Content {
        qos: publish.qos,
        retain: publish.retain,
        publisher: None,
        topic: publish.topic,
        payload: publish.payload,
        properties: publish.properties,
    };
    // An expiry before the start of this clock is now.
    let age_ms = clock.unix_ms.saturating_sub(unix_ms);
    let mut message = Message::new(&content, 0, meter);
    message.expires_at_ms =
        message.expires_at_ms.map(|lifetime_ms| clock.now_ms + lifetime_ms.saturating_sub(age_ms));
    Ok(message)
}

/// Recently read batches, as they are in the log. Messages are decoded one by one, since those of one batch are mostly
/// for different sessions.
#[derive(Debug)]
pub(super) struct Recent {
    batches: VecDeque<Batch>,
    /// Size of all of them.
    bytes: usize,
    meter: MemoryMeter,
}

#[derive(Debug)]
struct Batch {
    base_offset: u64,
    bytes: Vec<u8>,
    /// Range and timestamp of each entry.
    entries: Vec<(u32, u32, u64)>,
}

impl Batch {
    fn parse(bytes: Vec<u8>) -> Result<Self, Error> {
        let batch = mainstem_log::Batch::parse_unchecked(&bytes).map_err(Error::Malformed)?;
        let start = bytes.as_ptr().addr();
        let mut entries = Vec::with_capacity(batch.header.records as usize);
        for record in batch.records() {
            let record = record.map_err(Error::Malformed)?;
            let value = record.value.unwrap_or_default();
            let from = value.as_ptr().addr().saturating_sub(start) as u32;
            entries.push((from, from + value.len() as u32, record.timestamp_ms.cast_unsigned()));
        }
        Ok(Self { base_offset: batch.header.base_offset, entries, bytes })
    }

    fn message(&self, offset: u64, clock: Clock, meter: &MemoryMeter) -> Option<Arc<Message>> {
        let index = usize::try_from(offset.checked_sub(self.base_offset)?).ok()?;
        let (from, to, unix_ms) = *self.entries.get(index)?;
        let Ok(Entry::Message(entry)) = Entry::take(&self.bytes[from as usize..to as usize]) else {
            return None;
        };
        decode_message(entry.publish, unix_ms, clock, meter).ok().map(Arc::new)
    }

    fn holds(&self, offset: u64) -> bool {
        (self.base_offset..self.base_offset + self.entries.len() as u64).contains(&offset)
    }
}

impl Recent {
    /// Messages that are read charge their memory to `meter`.
    pub(super) fn new(meter: MemoryMeter) -> Self {
        Self { batches: VecDeque::new(), bytes: 0, meter }
    }

    pub(super) fn clear(&mut self) {
        self.batches.clear();
        self.bytes = 0;
    }

    /// The message at `offset`, from memory or from the store.
    ///
    /// # Errors
    /// Errors of the store; [`Error::Corrupt`] if there is no message at that offset.
    pub(super) fn message(
        &mut self,
        store: &mut dyn Store,
        log: LogId,
        offset: u64,
        clock: Clock,
    ) -> Result<Arc<Message>, Error> {
        let missing = Error::Corrupt { offset };
        if let Some(batch) = self.batches.iter().find(|batch| batch.holds(offset)) {
            return batch.message(offset, clock, &self.meter).ok_or(missing);
        }
        // The buffer of the oldest is used again.
        let mut bytes = Vec::new();
        while self.bytes > RECENT_BYTES
            && let Some(oldest) = self.batches.pop_front()
        {
            self.bytes -= oldest.bytes.len();
            bytes = oldest.bytes;
        }
        bytes.clear();
        store.read(log, offset..offset + 1, 0, &mut bytes)?;
        let batch = Batch::parse(bytes)?;
        let found = batch.message(offset, clock, &self.meter).filter(|_| batch.holds(offset)).ok_or(missing);
        self.bytes += batch.bytes.len();
        self.batches.push_back(batch);
        found
    }
}
