//! Sequence tracking: classifies each arrival of a stream as new, out of order or duplicate.
//!
//! A run delivers too many messages to remember each one. A bitmap covers a window behind the newest message, which
//! is exact for the reordering that brokers show in practice; further back, a count of missing messages decides.

/// Classification of one arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// First arrival, later in the sequence than all before it.
    New,
    /// First arrival after a later message of the stream [MQTT-4.6.0-6].
    OutOfOrder,
    /// The message arrived before.
    Duplicate,
}

/// Tracks one sequence 0, 1, 2, ... with a window of `64 * WORDS` messages behind the newest.
///
/// Within the window the classification is exact. An arrival older than the window counts as a missing message if
/// any is missing, otherwise as a duplicate.
#[derive(Clone, Debug)]
pub(crate) struct Tracker<const WORDS: usize> {
    next: u32,
    missing: u32,
    /// Bit `sequence mod (64 * WORDS)` is set if that message of the window arrived.
    seen: [u64; WORDS],
}

impl<const WORDS: usize> Default for Tracker<WORDS> {
    fn default() -> Self {
        Self { next: 0, missing: 0, seen: [0; WORDS] }
    }
}

impl<const WORDS: usize> Tracker<WORDS> {
    const WINDOW: u32 = 64 * WORDS as u32;

    /// Records the arrival of message `sequence`.
    #[inline]
    pub(crate) fn record(&mut self, sequence: u32) -> Arrival {
        if sequence >= self.next {
            self.advance(sequence);
            return Arrival::New;
        }
        let (word, bit) = Self::place(sequence);
        let first = if self.next - sequence > Self::WINDOW {
            self.missing > 0
        } else {
            let first = self.seen[word] & bit == 0;
            self.seen[word] |= bit;
            first
        };
        if first {
            self.missing -= 1;
            Arrival::OutOfOrder
        } else {
            Arrival::Duplicate
        }
    }

    fn advance(&mut self, sequence: u32) {
        let skipped = sequence - self.next;
        self.missing += skipped;
        if skipped >= Self::WINDOW {
            self.seen = [0; WORDS];
        } else {
            for gone in self.next..sequence {
                let (word, bit) = Self::place(gone);
                self.seen[word] &= !bit;
            }
        }
        let (word, bit) = Self::place(sequence);
        self.seen[word] |= bit;
        self.next = sequence + 1;
    }

    #[inline]
    fn place(sequence: u32) -> (usize, u64) {
        let slot = sequence % Self::WINDOW;
        ((slot / 64) as usize, 1 << (slot % 64))
    }
}

#[cfg(test)]
mod tests {
    use super::Arrival::{Duplicate, New, OutOfOrder};
    use super::*;

    fn arrivals<const WORDS: usize>(sequence: &[u32]) -> (Vec<Arrival>, Tracker<WORDS>) {
        let mut tracker = Tracker::<WORDS>::default();
        (sequence.iter().map(|s| tracker.record(*s)).collect(), tracker)
    }

    #[test]
    fn contiguous_sequence_has_nothing_missing() {
        let (seen, tracker) = arrivals::<1>(&(0..1_000).collect::<Vec<_>>());
        assert!(seen.iter().all(|a| *a == New));
        assert_eq!(tracker.missing, 0);
    }

    #[test]
    fn gap_is_missing_until_filled() {
        let (seen, tracker) = arrivals::<1>(&[0, 3]);
        assert_eq!((seen, tracker.missing), (vec![New, New], 2));
        let (seen, tracker) = arrivals::<1>(&[0, 3, 1, 2, 4]);
        assert_eq!((seen, tracker.missing), (vec![New, New, OutOfOrder, OutOfOrder, New], 0));
    }

    #[test]
    fn start_of_a_sequence_can_be_missing() {
        assert_eq!(arrivals::<1>(&[2]).1.missing, 2);
    }

    #[test]
    fn detects_immediate_and_late_duplicates() {
        assert_eq!(arrivals::<1>(&[0, 0, 1, 2, 1]).0, [New, Duplicate, New, New, Duplicate]);
        assert_eq!(arrivals::<1>(&[2, 1, 1]).0, [New, OutOfOrder, Duplicate]);
    }

    #[test]
    fn clears_bits_of_an_earlier_window() {
        // 66 and 2 share a bit. 2 arrived and 66 was skipped, so its later arrival is not a duplicate.
        let mut order: Vec<u32> = (0..66).collect();
        order.extend([67, 66, 66]);
        let (seen, _) = arrivals::<1>(&order);
        assert_eq!(seen[66..], [New, OutOfOrder, Duplicate]);
    }

    #[test]
    fn missing_count_decides_beyond_the_window() {
        let (seen, _) = arrivals::<1>(&[0, 200, 0, 1]);
        assert_eq!(seen[2..], [OutOfOrder, OutOfOrder]);
        let mut order: Vec<u32> = (0..200).collect();
        order.push(0);
        assert_eq!(arrivals::<1>(&order).0[200], Duplicate);
    }

    #[test]
    fn wide_window_agrees_with_a_set() {
        let mut tracker = Tracker::<4>::default();
        let mut set = std::collections::HashSet::new();
        let mut state = 12_345_u64;
        for newest in 0..5_000_u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let behind = (state >> 33) as u32 % 200;
            let sequence = newest.saturating_sub(behind);
            let arrival = tracker.record(sequence);
            assert_eq!(arrival == Duplicate, !set.insert(sequence), "message {sequence}");
        }
        let newest = *set.iter().max().unwrap() as usize;
        assert_eq!(tracker.missing as usize, newest + 1 - set.len());
    }
}
