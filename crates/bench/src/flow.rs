//! In-flight limits: delivery windows for QoS 0 and for all publishers together, packet identifiers for QoS 1 and 2.
//!
//! QoS 0 has no acknowledgement, so a closed loop counts deliveries instead. Receivers run on any thread, hence the
//! atomics. Packet identifiers belong to one publisher and stay on its thread.

use std::sync::atomic::{AtomicU32, Ordering};

/// Number of outstanding receivers of each of the most recent messages of a publisher, or of all publishers.
///
/// Message *n* may be sent once message *n - window* has reached all its receivers, so never more than `window`
/// messages are in flight. Receivers on any thread count down; only the publisher's thread counts up.
#[derive(Debug)]
pub(crate) struct DeliveryWindow {
    window: u64,
    mask: u64,
    remaining: Box<[AtomicU32]>,
}

impl DeliveryWindow {
    /// An empty window of `window` messages.
    pub(crate) fn new(window: u32) -> Self {
        let slots = u64::from(window).next_power_of_two();
        Self {
            window: u64::from(window),
            mask: slots - 1,
            remaining: (0..slots).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Whether message `n` may be sent.
    #[inline]
    pub(crate) fn is_open(&self, n: u64) -> bool {
        n < self.window || self.slot(n - self.window).load(Ordering::Acquire) == 0
    }

    /// Records that message `n` was sent to `receivers` receivers.
    #[inline]
    pub(crate) fn sent(&self, n: u64, receivers: u32) {
        self.slot(n).store(receivers, Ordering::Release);
    }

    /// Records the first delivery of message `n` to a receiver. Returns whether it was the last outstanding one.
    #[inline]
    pub(crate) fn delivered(&self, n: u64) -> bool {
        // A message that was written off may still arrive, so the slot can be 0.
        let before =
            self.slot(n).fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1));
        before == Ok(1)
    }

    /// Writes off all messages in flight. Returns the number of outstanding deliveries.
    pub(crate) fn write_off(&self) -> u64 {
        self.remaining.iter().map(|slot| u64::from(slot.swap(0, Ordering::AcqRel))).sum()
    }

    #[inline]
    fn slot(&self, n: u64) -> &AtomicU32 {
        &self.remaining[(n & self.mask) as usize]
    }
}

/// State of one packet identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdState {
    Free,
    /// PUBLISH sent; PUBACK or PUBREC outstanding.
    Published,
    /// PUBREL sent; PUBCOMP outstanding.
    Released,
}

/// Packet identifiers of one publisher's unacknowledged messages.
#[derive(Debug)]
pub(crate) struct PacketIds {
    limit: u16,
    free: Vec<u16>,
    /// Indexed by identifier minus one; grows to the maximum ever in flight.
    states: Vec<IdState>,
}

impl PacketIds {
    /// Allows at most `limit` identifiers in use.
    pub(crate) fn new(limit: u16) -> Self {
        Self { limit, free: Vec::new(), states: Vec::new() }
    }

    /// Lowers the limit to at most `limit`. Only allowed before the first identifier is taken.
    pub(crate) fn lower_limit(&mut self, limit: u16) {
        debug_assert!(self.states.is_empty(), "identifiers are in use");
        self.limit = self.limit.min(limit);
    }

    /// Whether an identifier is free.
    #[inline]
    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty() || self.states.len() < usize::from(self.limit)
    }

    /// Number of identifiers in use.
    pub(crate) fn taken(&self) -> usize {
        self.states.len() - self.free.len()
    }

    /// Takes a free identifier.
    ///
    /// # Panics
    /// If none is free.
    #[inline]
    pub(crate) fn take(&mut self) -> u16 {
        if let Some(id) = self.free.pop() {
            self.states[usize::from(id) - 1] = IdState::Published;
            return id;
        }
        assert!(self.has_free(), "no packet identifier is free");
        self.states.push(IdState::Published);
        self.states.len() as u16
    }

    /// Handles PUBACK, or PUBREC with an error, and frees the identifier. Returns whether it was expected.
    #[inline]
    pub(crate) fn acknowledged(&mut self, id: u16) -> bool {
        self.finish(id, IdState::Published)
    }

    /// Handles PUBREC; the caller sends PUBREL. Returns whether it was expected.
    #[inline]
    pub(crate) fn received(&mut self, id: u16) -> bool {
        match self.states.get_mut(usize::from(id).wrapping_sub(1)) {
            Some(state @ IdState::Published) => {
                *state = IdState::Released;
                true
            }
            _ => false,
        }
    }

    /// Handles PUBCOMP and frees the identifier. Returns whether it was expected.
    #[inline]
    pub(crate) fn completed(&mut self, id: u16) -> bool {
        self.finish(id, IdState::Released)
    }

    fn finish(&mut self, id: u16, from: IdState) -> bool {
        match self.states.get_mut(usize::from(id).wrapping_sub(1)) {
            Some(state) if *state == from => {
                *state = IdState::Free;
                self.free.push(id);
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_of_three_holds_three_messages_for_two_receivers() {
        let window = DeliveryWindow::new(3);
        for n in 0..3 {
            assert!(window.is_open(n));
            window.sent(n, 2);
        }
        assert!(!window.is_open(3));
        assert!(!window.delivered(0), "one receiver is outstanding");
        assert!(!window.is_open(3));
        assert!(window.delivered(0));
        assert!(window.is_open(3));
        window.sent(3, 2);
        assert!(!window.is_open(4));
    }

    #[test]
    fn window_of_one_waits_for_each_message() {
        let window = DeliveryWindow::new(1);
        window.sent(0, 1);
        assert!(!window.is_open(1));
        assert!(window.delivered(0));
        assert!(window.is_open(1));
    }

    #[test]
    fn written_off_message_may_still_arrive() {
        let window = DeliveryWindow::new(2);
        window.sent(0, 3);
        window.sent(1, 3);
        assert!(!window.delivered(0));
        assert_eq!(window.write_off(), 5);
        assert!(window.is_open(2) && window.is_open(3));
        assert!(!window.delivered(0), "it was written off");
        assert!(window.is_open(2));
    }

    #[test]
    fn reuses_identifiers_only_after_completion() {
        let mut ids = PacketIds::new(2);
        assert_eq!((ids.take(), ids.take()), (1, 2));
        assert!(!ids.has_free());
        assert!(!ids.acknowledged(3) && !ids.acknowledged(0), "not in use");
        assert!(ids.acknowledged(1));
        assert!(!ids.acknowledged(1), "already freed");
        assert_eq!(ids.taken(), 1);
        assert_eq!(ids.take(), 1);
        assert!(ids.received(2));
        assert!(!ids.received(2) && !ids.acknowledged(2), "only PUBCOMP is expected");
        assert!(ids.completed(2));
        assert_eq!(ids.taken(), 1);
    }
}
