//! Sequence tracking: which messages of a stream arrived, were repeated, or came out of order.

/// What one arrival means for its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The first arrival of this message, later in the sequence than all before it.
    New,
    /// The first arrival of a message that a later one overtook [MQTT-4.6.0-6].
    OutOfOrder,
    /// The message had arrived before.
    Duplicate,
}

/// Tracks one sequence 0, 1, 2, ... with a window of `64 * WORDS` messages behind the newest.
///
/// Within the window the answer is exact. An arrival from before the window counts as a duplicate unless
/// messages are still missing; then it is taken for one of them.
#[derive(Clone, Debug)]
pub(crate) struct Tracker<const WORDS: usize> {
    next: u32,
    missing: u32,
    /// Bit `sequence mod (64 * WORDS)`: whether that message of the window arrived.
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
    fn an_unbroken_sequence_misses_nothing() {
        let (seen, tracker) = arrivals::<1>(&(0..1_000).collect::<Vec<_>>());
        assert!(seen.iter().all(|a| *a == New));
        assert_eq!(tracker.missing, 0);
    }

    #[test]
    fn a_gap_is_missing_until_it_is_filled() {
        let (seen, tracker) = arrivals::<1>(&[0, 3]);
        assert_eq!((seen, tracker.missing), (vec![New, New], 2));
        let (seen, tracker) = arrivals::<1>(&[0, 3, 1, 2, 4]);
        assert_eq!((seen, tracker.missing), (vec![New, New, OutOfOrder, OutOfOrder, New], 0));
    }

    #[test]
    fn the_start_of_a_sequence_can_be_missing() {
        assert_eq!(arrivals::<1>(&[2]).1.missing, 2);
    }

    #[test]
    fn repeats_are_found_at_once_and_later() {
        assert_eq!(arrivals::<1>(&[0, 0, 1, 2, 1]).0, [New, Duplicate, New, New, Duplicate]);
        assert_eq!(arrivals::<1>(&[2, 1, 1]).0, [New, OutOfOrder, Duplicate]);
    }

    #[test]
    fn bits_of_an_earlier_window_do_not_stay_set() {
        // 66 and 2 share a slot. 2 arrived, 66 did not at first: its arrival is no duplicate.
        let mut order: Vec<u32> = (0..66).collect();
        order.extend([67, 66, 66]);
        let (seen, _) = arrivals::<1>(&order);
        assert_eq!(seen[66..], [New, OutOfOrder, Duplicate]);
    }

    #[test]
    fn far_behind_the_window_missing_messages_decide() {
        let (seen, _) = arrivals::<1>(&[0, 200, 0, 1]);
        assert_eq!(seen[2..], [OutOfOrder, OutOfOrder]);
        let mut order: Vec<u32> = (0..200).collect();
        order.push(0);
        assert_eq!(arrivals::<1>(&order).0[200], Duplicate);
    }

    #[test]
    fn a_wide_window_agrees_with_a_set() {
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
