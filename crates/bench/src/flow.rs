//! What may be in flight: delivery windows of QoS 0, and packet identifiers above it.

use std::sync::atomic::{AtomicU32, Ordering};

/// The closed loop at QoS 0: how many receivers still lack each of a publisher's last messages.
///
/// Message *n* may leave once message *n - window* has reached all its receivers, so never more than `window`
/// messages are in flight. Receivers on any thread count down; only the publisher's thread counts up.
#[derive(Debug)]
pub(crate) struct DeliveryWindow {
    window: u64,
    mask: u64,
    remaining: Box<[AtomicU32]>,
}

impl DeliveryWindow {
    /// A window of `window` messages, all of it free.
    pub(crate) fn new(window: u32) -> Self {
        let slots = u64::from(window).next_power_of_two();
        Self {
            window: u64::from(window),
            mask: slots - 1,
            remaining: (0..slots).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Whether message `n` may leave.
    #[inline]
    pub(crate) fn is_open(&self, n: u64) -> bool {
        n < self.window || self.slot(n - self.window).load(Ordering::Acquire) == 0
    }

    /// Message `n` leaves for `receivers` receivers.
    #[inline]
    pub(crate) fn sent(&self, n: u64, receivers: u32) {
        self.slot(n).store(receivers, Ordering::Release);
    }

    /// A receiver got message `n` for the first time. Whether it was the last that lacked it.
    #[inline]
    pub(crate) fn delivered(&self, n: u64) -> bool {
        // A message that was written off may still come: its slot can be empty.
        let before =
            self.slot(n).fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1));
        before == Ok(1)
    }

    /// Gives up every message still in flight. How many deliveries were outstanding.
    pub(crate) fn write_off(&self) -> u64 {
        self.remaining.iter().map(|slot| u64::from(slot.swap(0, Ordering::AcqRel))).sum()
    }

    #[inline]
    fn slot(&self, n: u64) -> &AtomicU32 {
        &self.remaining[(n & self.mask) as usize]
    }
}

/// How far the exchange of one packet identifier has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exchange {
    Free,
    /// PUBLISH sent; PUBACK or PUBREC due.
    Published,
    /// PUBREL sent; PUBCOMP due.
    Released,
}

/// The packet identifiers of one publisher's unacknowledged messages.
#[derive(Debug)]
pub(crate) struct PacketIds {
    limit: u16,
    free: Vec<u16>,
    /// Indexed by identifier minus one; grows to the most ever in flight.
    exchanges: Vec<Exchange>,
}

impl PacketIds {
    /// At most `limit` identifiers at once.
    pub(crate) fn new(limit: u16) -> Self {
        Self { limit, free: Vec::new(), exchanges: Vec::new() }
    }

    /// Lowers the limit to `limit`, if it is higher. Only while none is taken.
    pub(crate) fn lower_limit(&mut self, limit: u16) {
        debug_assert!(self.exchanges.is_empty(), "identifiers are in use");
        self.limit = self.limit.min(limit);
    }

    /// Whether an identifier is free.
    #[inline]
    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty() || self.exchanges.len() < usize::from(self.limit)
    }

    /// How many are taken.
    pub(crate) fn taken(&self) -> usize {
        self.exchanges.len() - self.free.len()
    }

    /// Takes a free identifier.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub(crate) fn take(&mut self) -> u16 {
        if let Some(id) = self.free.pop() {
            self.exchanges[usize::from(id) - 1] = Exchange::Published;
            return id;
        }
        assert!(self.has_free(), "no packet identifier is free");
        self.exchanges.push(Exchange::Published);
        self.exchanges.len() as u16
    }

    /// PUBACK, or a PUBREC that refuses the message: the exchange is over. Whether it was expected.
    #[inline]
    pub(crate) fn acknowledged(&mut self, id: u16) -> bool {
        self.finish(id, Exchange::Published)
    }

    /// PUBREC: PUBREL is to follow. Whether it was expected.
    #[inline]
    pub(crate) fn received(&mut self, id: u16) -> bool {
        match self.exchanges.get_mut(usize::from(id).wrapping_sub(1)) {
            Some(exchange @ Exchange::Published) => {
                *exchange = Exchange::Released;
                true
            }
            _ => false,
        }
    }

    /// PUBCOMP: the exchange is over. Whether it was expected.
    #[inline]
    pub(crate) fn completed(&mut self, id: u16) -> bool {
        self.finish(id, Exchange::Released)
    }

    fn finish(&mut self, id: u16, from: Exchange) -> bool {
        match self.exchanges.get_mut(usize::from(id).wrapping_sub(1)) {
            Some(exchange) if *exchange == from => {
                *exchange = Exchange::Free;
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
    fn a_window_of_three_holds_three_messages_for_two_receivers() {
        let window = DeliveryWindow::new(3);
        for n in 0..3 {
            assert!(window.is_open(n));
            window.sent(n, 2);
        }
        assert!(!window.is_open(3));
        assert!(!window.delivered(0), "one receiver still lacks it");
        assert!(!window.is_open(3));
        assert!(window.delivered(0));
        assert!(window.is_open(3));
        window.sent(3, 2);
        assert!(!window.is_open(4));
    }

    #[test]
    fn a_window_of_one_waits_for_each_message() {
        let window = DeliveryWindow::new(1);
        window.sent(0, 1);
        assert!(!window.is_open(1));
        assert!(window.delivered(0));
        assert!(window.is_open(1));
    }

    #[test]
    fn a_lost_message_is_written_off_and_may_still_come() {
        let window = DeliveryWindow::new(2);
        window.sent(0, 3);
        window.sent(1, 3);
        assert!(!window.delivered(0));
        assert_eq!(window.write_off(), 5);
        assert!(window.is_open(2) && window.is_open(3));
        assert!(!window.delivered(0), "too late to open anything");
        assert!(window.is_open(2));
    }

    #[test]
    fn identifiers_are_reused_only_after_their_exchange() {
        let mut ids = PacketIds::new(2);
        assert_eq!((ids.take(), ids.take()), (1, 2));
        assert!(!ids.has_free());
        assert!(!ids.acknowledged(3) && !ids.acknowledged(0), "never taken");
        assert!(ids.acknowledged(1));
        assert!(!ids.acknowledged(1), "already over");
        assert_eq!(ids.taken(), 1);
        assert_eq!(ids.take(), 1);
        assert!(ids.received(2));
        assert!(!ids.received(2) && !ids.acknowledged(2), "PUBCOMP is due, nothing else");
        assert!(ids.completed(2));
        assert_eq!(ids.taken(), 1);
    }
}
