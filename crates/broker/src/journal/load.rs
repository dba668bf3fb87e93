//! Messages in a journal: to bytes, back, and back from disk.

use std::collections::VecDeque;
use std::sync::Arc;

use mainstem_log::{Error, LogId, Malformed, Store, batches};
use mainstem_mqtt::{Packet, Publish, QoS, Version, decode};
use mainstem_runtime::Clock;

use super::entry::Entry;
use super::wire::Damaged;
use crate::message::{Content, Message};

/// Bytes of batches whose messages are kept in memory after one of them was asked for.
const RECENT_BYTES: usize = 4 * 1024 * 1024;

/// Writes a message as a PUBLISH packet of MQTT 5, its expiry counted from now.
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

/// Reads such a packet, written at `unix_ms`.
///
/// # Errors
/// [`Damaged`] if it is none.
pub(crate) fn decode_message(bytes: &[u8], unix_ms: u64, clock: Clock) -> Result<Message, Damaged> {
    let Ok(Packet::Publish(publish)) = decode(Version::V5, bytes) else { return Err(Damaged) };
    let content = Content {
        qos: publish.qos,
        retain: publish.retain,
        publisher: None,
        topic: publish.topic,
        payload: publish.payload,
        properties: publish.properties,
    };
    // What has expired while nobody looked is expired at once, not in the past of a clock that began later.
    let age_ms = clock.unix_ms.saturating_sub(unix_ms);
    let mut message = Message::new(&content, 0);
    message.expires_at_ms =
        message.expires_at_ms.map(|lifetime_ms| clock.now_ms + lifetime_ms.saturating_sub(age_ms));
    Ok(message)
}

/// Messages of the batches that were read last.
#[derive(Debug, Default)]
pub(super) struct Recent {
    batches: VecDeque<Batch>,
    /// Size of all of them on disk.
    kept_bytes: usize,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Batch {
    /// Sorted by offset; entries that are no messages are left out.
    messages: Vec<(u64, Arc<Message>)>,
    bytes: usize,
}

impl Recent {
    pub(super) fn get(&self, offset: u64) -> Option<Arc<Message>> {
        self.batches.iter().find_map(|batch| {
            let index = batch.messages.binary_search_by_key(&offset, |(known, _)| *known).ok()?;
            Some(Arc::clone(&batch.messages[index].1))
        })
    }

    pub(super) fn load(
        &mut self,
        store: &mut dyn Store,
        log: LogId,
        offset: u64,
        clock: Clock,
    ) -> Result<Arc<Message>, Error> {
        self.bytes.clear();
        store.read(log, offset..offset + 1, 0, &mut self.bytes)?;
        let mut messages = Vec::new();
        for batch in batches(&self.bytes) {
            for record in batch.records() {
                let record = record.map_err(Error::Malformed)?;
                if let Some(value) = record.value
                    && let Ok(Entry::Message(entry)) = Entry::take(value)
                    && let Ok(message) =
                        decode_message(entry.publish, record.timestamp_ms.cast_unsigned(), clock)
                {
                    messages.push((record.offset, Arc::new(message)));
                }
            }
        }
        let index = messages
            .binary_search_by_key(&offset, |(known, _)| *known)
            .map_err(|_| Error::Malformed(Malformed::Inconsistent))?;
        let found = Arc::clone(&messages[index].1);
        let bytes = self.bytes.len();
        self.kept_bytes += bytes;
        self.batches.push_back(Batch { messages, bytes });
        // One stays, however large.
        while self.kept_bytes > RECENT_BYTES
            && let Some(oldest) = self.batches.pop_front_if(|_| self.kept_bytes > bytes)
        {
            self.kept_bytes -= oldest.bytes;
        }
        Ok(found)
    }
}
