//! Events of the audit log on their way into a topic.
//!
//! Every thread of the broker adds events, and one shard appends them to the topic. Adding must not wait for that shard
//! or for the disk, so events wait here, up to a number and a size. Those beyond it are dropped and counted, and the
//! next event says how many are missing before it, so a reader of the topic sees each gap. The events that are dropped
//! are the newest: what the topic has is complete up to the gap.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Events that wait at most.
pub const AUDIT_EVENTS_MAX: usize = 8192;
/// Bytes of events that wait at most.
pub const AUDIT_EVENT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Wakes the shard that appends events. It must not block.
type Wake = Arc<dyn Fn() + Send + Sync>;

/// Events of the audit log that wait to be appended to the topic.
#[derive(Default)]
pub struct AuditEvents {
    waiting: Mutex<Waiting>,
    /// Saves the lock in turns without events.
    has_any: AtomicBool,
    dropped: AtomicU64,
    wake: OnceLock<Wake>,
}

#[derive(Default)]
struct Waiting {
    events: VecDeque<String>,
    bytes: usize,
    /// Events that were dropped since the last one that was added.
    missing: u64,
}

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddedEvent {
    /// It waits for the shard.
    Waits,
    /// It was dropped; the one before it was not.
    FirstDropped,
    /// It was dropped, like the one before it.
    Dropped,
}

impl fmt::Debug for AuditEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuditEvents").field("dropped", &self.dropped()).finish_non_exhaustive()
    }
}

impl AuditEvents {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets what wakes the shard that calls [`Self::take`]. Later calls change nothing.
    pub fn bind_wake(&self, wake: Wake) {
        self.wake.get_or_init(|| wake);
    }

    /// Adds an event; `text` makes it from the number of events that are missing before it. Never blocks longer than
    /// another thread adds or takes.
    pub fn add(&self, text: impl FnOnce(u64) -> String) -> AddedEvent {
        let mut waiting = self.waiting();
        if waiting.events.len() >= AUDIT_EVENTS_MAX || waiting.bytes >= AUDIT_EVENT_BYTES_MAX {
            waiting.missing += 1;
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return if waiting.missing == 1 { AddedEvent::FirstDropped } else { AddedEvent::Dropped };
        }
        let event = text(std::mem::take(&mut waiting.missing));
        waiting.bytes += event.len();
        waiting.events.push_back(event);
        let was_empty = !self.has_any.swap(true, Ordering::Release);
        drop(waiting);
        if was_empty && let Some(wake) = self.wake.get() {
            wake();
        }
        AddedEvent::Waits
    }

    /// Whether events wait.
    #[inline]
    pub fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Acquire)
    }

    /// Takes the oldest events, up to this number of bytes, but at least one if any waits.
    pub fn take(&self, bytes_max: usize) -> Vec<String> {
        let mut waiting = self.waiting();
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while let Some(event) = waiting.events.front()
            && (taken.is_empty() || bytes + event.len() <= bytes_max)
        {
            bytes += event.len();
            taken.extend(waiting.events.pop_front());
        }
        waiting.bytes -= bytes;
        self.has_any.store(!waiting.events.is_empty(), Ordering::Release);
        taken
    }

    /// Counts events that the topic will never accept.
    pub fn note_dropped(&self, events: u64) {
        self.waiting().missing += events;
        self.dropped.fetch_add(events, Ordering::Relaxed);
    }

    /// How many events the topic lacks.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn events_are_taken_in_order_and_wake_the_shard_once() {
        let events = AuditEvents::default();
        let wakes = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&wakes);
        events.bind_wake(Arc::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        for text in ["a", "bb", "ccc"] {
            assert_eq!(events.add(|_| text.into()), AddedEvent::Waits);
        }
        assert_eq!(wakes.load(Ordering::Relaxed), 1, "it was awake for the later ones");
        assert_eq!(events.take(3), ["a", "bb"]);
        assert!(events.has_any());
        assert_eq!(events.take(1), ["ccc"], "one is taken, however long");
        assert!(!events.has_any() && events.take(1).is_empty());
        events.add(|_| "d".into());
        assert_eq!(wakes.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn events_beyond_the_bounds_are_dropped_counted_and_told_to_the_next() {
        let by_number = AuditEvents::default();
        for _ in 0..AUDIT_EVENTS_MAX {
            assert_eq!(by_number.add(|_| "x".into()), AddedEvent::Waits);
        }
        let by_bytes = AuditEvents::default();
        by_bytes.add(|_| "x".repeat(AUDIT_EVENT_BYTES_MAX));
        for events in [by_number, by_bytes] {
            assert_eq!(events.add(|_| "y".into()), AddedEvent::FirstDropped);
            assert_eq!(events.add(|_| "y".into()), AddedEvent::Dropped);
            assert_eq!(events.dropped(), 2);
            events.take(usize::MAX);
            for expected in [2, 0] {
                assert_eq!(events.add(|missing| missing.to_string()), AddedEvent::Waits);
                assert_eq!(events.take(1), [expected.to_string()]);
            }
        }
    }
}
