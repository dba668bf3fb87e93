//! Retained messages, ordered by topic, shared by all shards.
//!
//! A new subscription reads the store with a cursor, a bounded part at a time, so that neither a filter that matches a
//! million topics nor one that matches none of them blocks other clients.
//!
//! A message that is retained while a cursor is on its way has been published to the subscription too, and may arrive
//! there behind older ones that still wait. So the changes of the store are numbered, and a cursor skips what is newer
//! than itself: its client gets that as it was published, and never an older message of a topic after a newer one.

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use mainstem_runtime::{MemoryMeter, MemoryPressure};
use mainstem_topic::matches;

use crate::message::Message;

/// Topics visited by one read.
const VISITED_MAX: usize = 1024;
/// Topics visited by one step of the search for expired messages.
const SWEPT_MAX: usize = 512;
/// Interval between two searches for expired messages, ms.
pub(crate) const SWEEP_MS: u64 = 30_000;
/// Pause between two steps of one search, ms.
const SWEEP_STEP_MS: u64 = 16;
/// Bytes of messages after which one read ends.
const READ_BYTES_MAX: usize = 64 * 1024;

/// The search for expired messages, a part of the store at a time.
#[derive(Debug, Default)]
pub(crate) struct RetainedSweep {
    /// Topic behind which it continues.
    position: String,
}

impl RetainedSweep {
    /// Removes expired messages from the next part of the store. Returns their topics, and the pause before the next
    /// step, ms.
    pub(crate) fn step(&mut self, retained: &Retained, now_ms: u64) -> (Vec<String>, u64) {
        let (next, removed) = retained.sweep(&self.position, now_ms);
        let pause_ms = if next.is_some() { SWEEP_STEP_MS } else { SWEEP_MS };
        self.position = next.unwrap_or_default();
        (removed, pause_ms)
    }
}

/// A message ordered by its topic.
#[derive(Debug)]
struct ByTopic {
    message: Arc<Message>,
    /// Number of the change that has retained it; 0 if it was loaded.
    number: u64,
}

impl Borrow<str> for ByTopic {
    fn borrow(&self) -> &str {
        self.message.topic()
    }
}

impl PartialEq for ByTopic {
    fn eq(&self, other: &Self) -> bool {
        self.message.topic() == other.message.topic()
    }
}

impl Eq for ByTopic {}

impl PartialOrd for ByTopic {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByTopic {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.message.topic().cmp(other.message.topic())
    }
}

#[derive(Debug, Default)]
struct Store {
    messages: BTreeSet<ByTopic>,
    /// Number of messages that were retained since the start.
    changes: u64,
    bytes: u64,
    /// Messages of `$SYS`, which do not count against the limits.
    own: u64,
}

impl Store {
    /// Number of messages of clients.
    fn count(&self) -> u64 {
        self.messages.len() as u64 - self.own
    }
}

/// Whether only the broker itself publishes to `topic`.
fn is_own(topic: &str) -> bool {
    topic.starts_with("$SYS/")
}

/// Count and size of what is retained.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RetainedSize {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

/// The retained messages of the process.
#[derive(Debug)]
pub(crate) struct Retained {
    store: RwLock<Store>,
    messages_max: u64,
    bytes_max: u64,
    meter: MemoryMeter,
    /// A message was refused and nothing has been removed since.
    full: AtomicBool,
}

/// The store is full.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// What a read has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Read {
    /// The end of the store was reached.
    pub(crate) is_last: bool,
    /// Number of messages visited.
    pub(crate) visited: u32,
}

/// Position of a reader.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    filter: Box<str>,
    /// Length of the prefix that all matching topics share.
    prefix_len: usize,
    state: At,
    /// Number of the newest change that it sees.
    newest: u64,
}

#[derive(Clone, Debug)]
enum At {
    /// Nothing has been visited.
    Start,
    /// Everything up to this topic has been visited.
    After(Box<str>),
}

impl Cursor {
    /// A cursor at the start, for a subscription that gets messages already. It sees the changes up to `newest`, see
    /// [`Retained::changes`].
    pub(crate) fn new(filter: &str, newest: u64) -> Self {
        // `a/b/#` also matches `a/b`, so the separator before `#` is not part of the prefix.
        let prefix_len = match filter.find(['+', '#']) {
            Some(at) if filter[at..].starts_with('#') => at.saturating_sub(1),
            Some(at) => at,
            None => filter.len(),
        };
        Self { filter: filter.into(), prefix_len, state: At::Start, newest }
    }

    /// A cursor behind `topic`; an empty topic is the start.
    pub(crate) fn after(filter: &str, topic: &str, newest: u64) -> Self {
        let state = if topic.is_empty() { At::Start } else { At::After(topic.into()) };
        Self { state, ..Self::new(filter, newest) }
    }

    /// Number of the newest change that it sees.
    pub(crate) fn newest(&self) -> u64 {
        self.newest
    }

    /// The last topic visited; empty at the start.
    pub(crate) fn last(&self) -> &str {
        match &self.state {
            At::Start => "",
            At::After(topic) => topic,
        }
    }

    /// Whether the cursor has yet to reach `topic`, and its filter matches.
    pub(crate) fn is_ahead(&self, topic: &str) -> bool {
        let reached = matches!(&self.state, At::After(last) if topic <= &**last);
        !reached && matches(&self.filter, topic)
    }

    pub(crate) fn filter(&self) -> &str {
        &self.filter
    }
}

impl Retained {
    pub(crate) fn new(messages_max: u32, bytes_max: u64, meter: MemoryMeter) -> Self {
        Self {
            store: RwLock::default(),
            messages_max: u64::from(messages_max),
            bytes_max,
            meter,
            full: AtomicBool::new(false),
        }
    }

    /// Counts the memory of messages that are loaded.
    pub(crate) fn meter(&self) -> &MemoryMeter {
        &self.meter
    }

    /// Makes `message` its topic's retained message.
    ///
    /// # Errors
    /// [`Full`] beyond the limits, or if memory is short and the store would grow; what was retained before stays.
    pub(crate) fn set(&self, message: &Message, pressure: MemoryPressure) -> Result<(), Full> {
        self.insert(message, pressure, |store| {
            store.changes += 1;
            store.changes
        })
    }

    /// Restores the retained message of a topic at the start, which is older than every cursor.
    ///
    /// # Errors
    /// [`Full`] beyond the limits.
    pub(crate) fn load(&self, message: &Message) -> Result<(), Full> {
        self.insert(message, MemoryPressure::None, |_| 0)
    }

    /// Number of messages that were retained since the start.
    pub(crate) fn changes(&self) -> u64 {
        self.store.read().unwrap_or_else(PoisonError::into_inner).changes
    }

    /// Makes `message` its topic's retained one, as the change with this number.
    fn insert(
        &self,
        message: &Message,
        pressure: MemoryPressure,
        number: impl FnOnce(&mut Store) -> u64,
    ) -> Result<(), Full> {
        let compact = Arc::new(message.compact());
        let size = message.size() as u64;
        let mut store = self.store.write().unwrap_or_else(PoisonError::into_inner);
        let replaced = store.messages.get(message.topic()).map(|known| known.message.size() as u64);
        let bytes = store.bytes - replaced.unwrap_or(0) + size;
        // `$SYS` is small and must not depend on what clients retain.
        let is_own = is_own(message.topic());
        let is_one_more = replaced.is_none() && store.count() >= self.messages_max;
        let is_short = pressure >= MemoryPressure::Moderate && bytes > store.bytes;
        if !is_own && (bytes > self.bytes_max || is_one_more || is_short) {
            if !self.full.swap(true, Ordering::Relaxed) {
                log::warn!(
                    "the store of retained messages is full: {} messages, {} bytes",
                    store.messages.len(),
                    store.bytes
                );
            }
            return Err(Full);
        }
        let number = number(&mut store);
        store.messages.replace(ByTopic { message: compact, number });
        store.own += u64::from(is_own && replaced.is_none());
        store.bytes = bytes;
        Ok(())
    }

    /// Whether a message of this size could be retained now.
    pub(crate) fn has_room(&self, topic: &str, size: usize, pressure: MemoryPressure) -> bool {
        let store = self.store.read().unwrap_or_else(PoisonError::into_inner);
        let replaced = store.messages.get(topic).map(|known| known.message.size() as u64);
        let bytes = store.bytes - replaced.unwrap_or(0) + size as u64;
        bytes <= self.bytes_max
            && (pressure < MemoryPressure::Moderate || bytes <= store.bytes)
            && (replaced.is_some() || store.count() < self.messages_max)
    }

    /// The retained message of a topic.
    pub(crate) fn get(&self, topic: &str) -> Option<Arc<Message>> {
        self.get_until(topic, u64::MAX)
    }

    /// The retained message of a topic, unless it is newer than this change.
    pub(crate) fn get_until(&self, topic: &str, newest: u64) -> Option<Arc<Message>> {
        let store = self.store.read().unwrap_or_else(PoisonError::into_inner);
        let known = store.messages.get(topic).filter(|known| known.number <= newest);
        known.map(|known| Arc::clone(&known.message))
    }

    /// Removes the retained message of a topic. False if there was none.
    pub(crate) fn clear(&self, topic: &str) -> bool {
        let mut store = self.store.write().unwrap_or_else(PoisonError::into_inner);
        let Some(removed) = store.messages.take(topic) else { return false };
        store.own -= u64::from(is_own(topic));
        store.bytes -= removed.message.size() as u64;
        self.full.store(false, Ordering::Relaxed);
        true
    }

    /// Appends up to `limit` unexpired messages that match the cursor's filter to `found`. May append nothing before
    /// the end of the store, since one read visits a limited number of topics.
    pub(crate) fn read(
        &self,
        cursor: &mut Cursor,
        limit: usize,
        now_ms: u64,
        found: &mut Vec<Arc<Message>>,
    ) -> Read {
        let store = self.store.read().unwrap_or_else(PoisonError::into_inner);
        let prefix = &cursor.filter[..cursor.prefix_len];
        let from = match &cursor.state {
            At::Start => Bound::Included(prefix),
            At::After(topic) => Bound::Excluded(&**topic),
        };
        let mut last: Option<&str> = None;
        let (mut left, mut bytes) = (limit, 0);
        let mut count = 0;
        for (visited, ByTopic { message, number }) in
            store.messages.range::<str, _>((from, Bound::Unbounded)).enumerate()
        {
            if !message.topic().starts_with(prefix) {
                break;
            }
            if left == 0 || visited == VISITED_MAX {
                if let Some(topic) = last {
                    let at = At::After(topic.into());
                    cursor.state = at;
                }
                return Read { is_last: false, visited: count };
            }
            count += 1;
            last = Some(message.topic());
            let is_seen = *number <= cursor.newest;
            if is_seen && matches(&cursor.filter, message.topic()) && !message.is_expired(now_ms) {
                found.push(Arc::clone(message));
                bytes += message.size();
                left = if bytes < READ_BYTES_MAX { left - 1 } else { 0 };
            }
        }
        Read { is_last: true, visited: count }
    }

    /// Removes expired messages from a part of the store that begins after `from`. Returns where the next part begins
    /// (`None` at the end), and the topics of the removed messages.
    fn sweep(&self, from: &str, now_ms: u64) -> (Option<String>, Vec<String>) {
        let mut expired = Vec::new();
        let mut next = None;
        {
            let store = self.store.read().unwrap_or_else(PoisonError::into_inner);
            let range = store.messages.range::<str, _>((Bound::Excluded(from), Bound::Unbounded));
            for (visited, ByTopic { message, .. }) in range.enumerate() {
                if visited == SWEPT_MAX {
                    break;
                }
                next = (visited + 1 == SWEPT_MAX).then(|| message.topic().to_owned());
                if message.is_expired(now_ms) {
                    expired.push(message.topic().to_owned());
                }
            }
        }
        let mut store = self.store.write().unwrap_or_else(PoisonError::into_inner);
        // They may have been replaced since.
        expired.retain(|topic| {
            let is_expired =
                store.messages.get(topic.as_str()).is_some_and(|known| known.message.is_expired(now_ms));
            if is_expired && let Some(removed) = store.messages.take(topic.as_str()) {
                store.own -= u64::from(is_own(topic));
                store.bytes -= removed.message.size() as u64;
            }
            is_expired
        });
        (next, expired)
    }

    pub(crate) fn size(&self) -> RetainedSize {
        let store = self.store.read().unwrap_or_else(PoisonError::into_inner);
        RetainedSize { messages: store.messages.len() as u64, bytes: store.bytes }
    }
}

#[cfg(test)]
mod tests {
    use mainstem_mqtt::{MessageProperties, QoS};

    use super::*;
    use crate::message::{Content, MESSAGE_BYTES};

    fn message(topic: &str, payload: &[u8], expiry: Option<u32>) -> Message {
        let properties = MessageProperties { message_expiry: expiry, ..MessageProperties::default() };
        let qos = QoS::AtMostOnce;
        Message::new(
            &Content { qos, retain: true, publisher: None, topic, payload, properties },
            0,
            &MemoryMeter::default(),
        )
    }

    fn read_all(retained: &Retained, filter: &str, limit: usize) -> Vec<String> {
        let mut cursor = Cursor::new(filter, retained.changes());
        let mut topics = Vec::new();
        loop {
            let mut found = Vec::new();
            let read = retained.read(&mut cursor, limit, 0, &mut found);
            topics.extend(found.iter().map(|message| message.topic().to_owned()));
            if read.is_last {
                return topics;
            }
        }
    }

    #[test]
    fn reads_find_what_the_plain_matcher_finds() {
        let retained = Retained::new(u32::MAX, u64::MAX, MemoryMeter::default());
        let mut topics =
            vec!["a".to_owned(), "a/".to_owned(), "$SYS/x".to_owned(), "a!b".to_owned(), "/".to_owned()];
        for one in ["a", "b", "c"] {
            for two in 0..40 {
                for three in ["x", "y", ""] {
                    topics.push(format!("{one}/{two}/{three}"));
                }
            }
        }
        for topic in &topics {
            retained.set(&message(topic, b"1", None), MemoryPressure::None).unwrap();
        }
        for filter in
            ["#", "a/#", "a", "+/7/x", "a/+/x", "a/+", "+/+", "/", "$SYS/#", "b/3#", "+", "nothing/#"]
        {
            let mut expected: Vec<_> =
                topics.iter().filter(|topic| matches(filter, topic)).cloned().collect();
            expected.sort();
            for limit in [1, 3, 1000] {
                assert_eq!(read_all(&retained, filter, limit), expected, "{filter}, {limit} at a time");
            }
        }
    }

    #[test]
    fn a_cursor_does_not_see_what_is_retained_after_it_has_begun() {
        let retained = Retained::new(u32::MAX, u64::MAX, MemoryMeter::default());
        retained.load(&message("t/0", b"0", None)).unwrap();
        for topic in ["t/1", "t/2", "t/3"] {
            retained.set(&message(topic, b"1", None), MemoryPressure::None).unwrap();
        }
        let mut cursor = Cursor::new("t/#", retained.changes());
        for topic in ["t/2", "t/4"] {
            retained.set(&message(topic, b"2", None), MemoryPressure::None).unwrap();
        }
        assert!(retained.get_until("t/1", cursor.newest()).is_some());
        assert!(retained.get_until("t/2", cursor.newest()).is_none() && retained.get("t/2").is_some());
        let mut found = Vec::new();
        while !retained.read(&mut cursor, 1, 0, &mut found).is_last {}
        let topics: Vec<_> = found.iter().map(|message| message.topic()).collect();
        assert_eq!(topics, ["t/0", "t/1", "t/3"]);
        assert_eq!(read_all(&retained, "t/#", 10), ["t/0", "t/1", "t/2", "t/3", "t/4"]);
    }

    #[test]
    fn limits_hold_and_removal_makes_room() {
        let overhead = 2 * MESSAGE_BYTES as u64;
        let retained = Retained::new(2, 10 + overhead, MemoryMeter::default());
        retained.set(&message("a", b"12", None), MemoryPressure::None).unwrap();
        retained.set(&message("b", b"12", None), MemoryPressure::None).unwrap();
        assert_eq!(retained.set(&message("c", b"1", None), MemoryPressure::None), Err(Full));
        assert_eq!(
            retained.set(&message("a", b"1234567890", None), MemoryPressure::None),
            Err(Full),
            "too large: the old one stays"
        );
        retained.set(&message("a", b"123456", None), MemoryPressure::None).unwrap();
        assert_eq!((retained.size().messages, retained.size().bytes), (2, 10 + overhead));
        assert!(retained.clear("b"));
        assert!(!retained.clear("b"));
        retained.set(&message("c", b"1", None), MemoryPressure::None).unwrap();
        assert_eq!((retained.size().messages, retained.size().bytes), (2, 9 + overhead));
    }

    #[test]
    fn the_store_does_not_grow_when_memory_is_short() {
        let retained = Retained::new(10, u64::MAX, MemoryMeter::default());
        retained.set(&message("a", b"123", None), MemoryPressure::None).unwrap();
        for (topic, payload, is_retained) in [("b", "1", false), ("a", "1234", false), ("a", "12", true)] {
            let message = message(topic, payload.as_bytes(), None);
            let has_room = retained.has_room(topic, message.size(), MemoryPressure::Moderate);
            assert_eq!(has_room, is_retained, "{topic} {payload}");
            let set = retained.set(&message, MemoryPressure::Moderate);
            assert_eq!(set.is_ok(), is_retained, "{topic} {payload}");
        }
    }

    #[test]
    fn expired_messages_are_not_found_and_removed() {
        let retained = Retained::new(u32::MAX, u64::MAX, MemoryMeter::default());
        for number in 0..5_000 {
            let expiry = (number % 2 == 0).then_some(1);
            retained.set(&message(&format!("t/{number}"), b"1", expiry), MemoryPressure::None).unwrap();
        }
        let mut cursor = Cursor::new("t/#", retained.changes());
        let mut found = Vec::new();
        while !retained.read(&mut cursor, 10_000, 1_000, &mut found).is_last {}
        assert_eq!(found.len(), 2_500);
        let mut from = Some(String::new());
        while let Some(topic) = from {
            from = retained.sweep(&topic, 1_000).0;
        }
        assert_eq!(retained.size().messages, 2_500);
    }
}
