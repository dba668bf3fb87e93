//! When the output of fan-outs is flushed.
//!
//! A write costs the kernel some microseconds, whether it carries one message or thirty. After a fan-out to thousands
//! of connections the writes take most of the shard's time, so that each message beyond the first in a write is almost
//! free. Other output (responses, messages for few receivers) leaves at the end of each turn. That of fan-outs is
//! flushed in *rounds* over all connections that have some, in the order in which they got it. A round is divided into
//! slices, with turns between them: input is handled, and new messages join the outputs that the round has not reached.
//!
//! A round begins at once, unless all of this holds:
//! - The last one ended so recently that rounds would take more than a ninth of the time.
//! - Another message is expected before that is over, from the mean time between messages.
//! - Messages still come. Clients that wait for the last messages before they send more would wait for nothing.
//! - Neither the configured delay nor a batch of sensible size is reached.
//!
//! So fan-outs that are rare or cheap are not delayed, and a message waits for others only if it is likely to get some.
//! This module is the law alone: time is a parameter.

use std::collections::VecDeque;

/// A round is followed by a pause of this many times its duration.
const PAUSE_FACTOR: u64 = 8;
/// Number of mean intervals without a message after which no more is expected.
const SILENT_INTERVALS: u64 = 3;
/// Messages for which a round begins at once: with so many in a write, its fixed cost is a small part.
const BATCH_MESSAGES: u32 = 32;
/// The same in bytes of messages.
const BATCH_BYTES: usize = 8 * 1024;
/// Bounds of the mean interval, ns. The lower one is the duration of a short turn.
const INTERVAL_NS: std::ops::RangeInclusive<u64> = 100_000..=1_000_000_000;
/// A longer pause between messages counts as this multiple of the mean interval, so that the pauses of clients that
/// wait for deliveries do not hide how fast they send.
const INTERVAL_GROWTH: u64 = 4;
/// Weight of the mean interval is this to one against the newest.
const INTERVAL_WEIGHT: u64 = 3;
const NS_PER_MS: u64 = 1_000_000;

/// Connections with output of fan-outs, and the messages in it.
#[derive(Debug)]
pub(crate) struct FanOuts {
    /// Slots of connections in the order of their flush, each at most once.
    queue: VecDeque<u32>,
    /// Number of connections at the front that belong to the current round.
    round: usize,
    /// Duration of the current round so far, ns.
    round_ns: u64,
    /// End of the pause after the last round.
    resume_ns: u64,
    max_delay_ns: u64,
    waiting: Waiting,
    /// When the newest message came.
    newest_ns: u64,
    /// Mean time between two messages.
    interval_ns: u64,
}

/// What the next round is to send.
#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    messages: u32,
    bytes: usize,
    /// What each receiver's output has of them in memory of its own, bytes: large payloads are shared.
    copied_bytes: usize,
    /// The messages that the mean interval does not include yet.
    unobserved: u32,
    /// When the first output came, and the first message. Acknowledgments may wait before that.
    output_since_ns: Option<u64>,
    messages_since_ns: Option<u64>,
}

impl Default for FanOuts {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            round: 0,
            round_ns: 0,
            resume_ns: 0,
            max_delay_ns: 0,
            waiting: Waiting::default(),
            newest_ns: 0,
            interval_ns: *INTERVAL_NS.end(),
        }
    }
}

impl FanOuts {
    /// Sets the longest time that a message waits for the next round to begin.
    pub(crate) fn set_max_delay_us(&mut self, max_delay_us: u32) {
        self.max_delay_ns = u64::from(max_delay_us) * 1_000;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether fan-outs wait or have just been flushed, so that other output which can wait should leave with the next.
    pub(crate) fn is_paced(&self, now_ms: u64) -> bool {
        !self.queue.is_empty() || now_ms < self.resume_ns / NS_PER_MS
    }

    /// Counts a message that was appended to many outputs, each with a copy of so many of its bytes.
    pub(crate) fn note(&mut self, bytes: usize, copied_bytes: usize) {
        self.waiting.messages += 1;
        self.waiting.unobserved += 1;
        self.waiting.bytes += bytes;
        self.waiting.copied_bytes += copied_bytes;
    }

    /// Adds a connection that is not in the queue.
    #[inline]
    pub(crate) fn push(&mut self, slot: u32) {
        self.queue.push_back(slot);
    }

    /// Upper bound of the output that waits for the next round, bytes.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.waiting.copied_bytes * self.queue.len()
    }

    /// Forgets messages of which no output waits: nobody got them, or the round has sent them already.
    pub(crate) fn forget_messages(&mut self) {
        debug_assert!(self.is_empty());
        self.waiting = Waiting::default();
    }

    /// Notes what has come in this turn.
    pub(crate) fn observe(&mut self, now_ns: u64) {
        let waiting = &mut self.waiting;
        if self.queue.len() > self.round {
            waiting.output_since_ns.get_or_insert(now_ns);
        }
        let count = std::mem::take(&mut waiting.unobserved);
        if count == 0 {
            return;
        }
        waiting.messages_since_ns.get_or_insert(now_ns);
        let gap_ns = (now_ns - self.newest_ns) / u64::from(count);
        for _ in 0..count.min(BATCH_MESSAGES) {
            let gap_ns = gap_ns.min(self.interval_ns * INTERVAL_GROWTH);
            let mean_ns = (self.interval_ns * INTERVAL_WEIGHT + gap_ns) / (INTERVAL_WEIGHT + 1);
            self.interval_ns = mean_ns.clamp(*INTERVAL_NS.start(), *INTERVAL_NS.end());
        }
        self.newest_ns = now_ns;
    }

    /// When the next slice of a round is due: in the past if now. For a queue that is not empty.
    pub(crate) fn due_ns(&self) -> u64 {
        let Waiting { messages, bytes, output_since_ns, messages_since_ns, .. } = self.waiting;
        if self.round > 0 || messages >= BATCH_MESSAGES || bytes >= BATCH_BYTES {
            return 0;
        }
        let since_ns = messages_since_ns.or(output_since_ns);
        let latest_ns = self.resume_ns.min(since_ns.map_or(0, |since_ns| since_ns + self.max_delay_ns));
        if messages_since_ns.is_none() {
            return latest_ns;
        }
        if self.newest_ns + self.interval_ns > latest_ns {
            return 0;
        }
        latest_ns.min(self.newest_ns + SILENT_INTERVALS * self.interval_ns)
    }

    /// Begins a slice, of a new round with all connections in the queue if the last one has ended.
    pub(crate) fn begin_slice(&mut self) {
        if self.round == 0 {
            self.round = self.queue.len();
            self.round_ns = 0;
            self.waiting = Waiting::default();
        }
    }

    /// The next connection of the round.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<u32> {
        self.round = self.round.checked_sub(1)?;
        self.queue.pop_front()
    }

    /// Ends a slice, and with its last one the round.
    pub(crate) fn end_slice(&mut self, began_ns: u64, now_ns: u64) {
        self.round_ns += now_ns - began_ns;
        if self.round == 0 {
            self.resume_ns = now_ns + self.round_ns * PAUSE_FACTOR;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const MAX_DELAY_MS: u64 = 20;

    /// Fan-outs to one connection, in a simulation of time: as the law is about times, one is as good as thousands.
    struct Shard {
        fan_outs: FanOuts,
        now_ns: u64,
        round_ns: u64,
        /// Messages of each round.
        rounds: Vec<u32>,
        /// Longest time between a message and its round.
        delay_ns: u64,
    }

    impl Shard {
        fn new(round_ns: u64) -> Self {
            let mut fan_outs = FanOuts::default();
            fan_outs.set_max_delay_us(MAX_DELAY_MS as u32 * 1_000);
            Self { fan_outs, now_ns: 1_000 * MS, round_ns, rounds: Vec::new(), delay_ns: 0 }
        }

        /// Time passes, and rounds begin when they are due.
        fn pass(&mut self, ns: u64) {
            let end_ns = self.now_ns + ns;
            while !self.fan_outs.is_empty() {
                let due_ns = self.fan_outs.due_ns().max(self.now_ns);
                if due_ns > end_ns {
                    break;
                }
                self.now_ns = due_ns;
                let since_ns = self.fan_outs.waiting.messages_since_ns.unwrap_or(due_ns);
                self.delay_ns = self.delay_ns.max(due_ns - since_ns);
                self.rounds.push(self.fan_outs.waiting.messages);
                self.fan_outs.begin_slice();
                while self.fan_outs.pop().is_some() {}
                self.now_ns += self.round_ns;
                self.fan_outs.end_slice(due_ns, self.now_ns);
            }
            self.now_ns = self.now_ns.max(end_ns);
        }

        fn publish(&mut self, bytes: usize) {
            if self.fan_outs.is_empty() {
                self.fan_outs.push(0);
            }
            self.fan_outs.note(bytes, bytes);
            self.fan_outs.observe(self.now_ns);
        }

        /// Publishes `count` messages at this interval.
        fn publish_each(&mut self, interval_ns: u64, count: u32) {
            for _ in 0..count {
                self.publish(64);
                self.pass(interval_ns);
            }
        }
    }

    #[test]
    fn shared_payloads_count_once_however_many_connections_wait() {
        let mut fan_outs = FanOuts::default();
        (0..1_000).for_each(|slot| fan_outs.push(slot));
        fan_outs.note(1_000_000, 100);
        assert_eq!(fan_outs.waiting_bytes(), 1_000 * 100);
        assert_eq!(fan_outs.due_ns(), 0, "a batch of sensible size does not wait");
    }

    #[test]
    fn rare_fan_outs_are_not_delayed() {
        let mut shard = Shard::new(5 * MS);
        shard.publish_each(100 * MS, 50);
        assert_eq!((shard.rounds, shard.delay_ns), (vec![1; 50], 0));
    }

    #[test]
    fn cheap_fan_outs_are_not_delayed() {
        let mut shard = Shard::new(MS / 4);
        shard.publish_each(2 * MS, 100);
        assert_eq!((shard.rounds, shard.delay_ns), (vec![1; 100], 0));
    }

    #[test]
    fn rounds_that_take_much_of_the_time_send_several_messages() {
        let mut shard = Shard::new(5 * MS);
        shard.publish_each(7 * MS, 200);
        // Three in 14 ms; the fourth would come after the longest delay.
        let late = &shard.rounds[shard.rounds.len() / 2..];
        assert!(late.iter().all(|messages| *messages >= 2), "{late:?}");
        assert!(shard.delay_ns > 0 && shard.delay_ns <= MAX_DELAY_MS * MS, "{} ns", shard.delay_ns);
    }

    #[test]
    fn clients_that_wait_for_deliveries_are_not_kept_waiting() {
        let mut shard = Shard::new(5 * MS);
        for cycle in 0..50 {
            // They send ten messages in turn, and then wait for all of them.
            shard.publish_each(MS / 5, 10);
            let sent = shard.rounds.iter().sum::<u32>();
            let began_ns = shard.now_ns;
            while shard.rounds.iter().sum::<u32>() == sent && !shard.fan_outs.is_empty() {
                shard.pass(MS / 5);
            }
            // Until the interval between the messages of a burst is known, the pauses between bursts count as such.
            if cycle < 4 {
                shard.delay_ns = 0;
            } else {
                assert!(shard.now_ns - began_ns <= 12 * MS, "{} ns", shard.now_ns - began_ns);
            }
        }
        let late = &shard.rounds[shard.rounds.len() - 10..];
        assert!(late.iter().all(|messages| *messages == 10), "{late:?}");
        assert!(shard.delay_ns < 6 * MS, "{} ns", shard.delay_ns);
    }

    #[test]
    fn enough_for_a_write_is_not_delayed() {
        let mut shard = Shard::new(50 * MS);
        shard.publish_each(MS, 20);
        shard.pass(100 * MS);
        let before = shard.rounds.len();
        shard.publish_each(MS / 10, 1);
        shard.publish(BATCH_BYTES);
        shard.pass(0);
        assert!(shard.rounds.len() > before);
        for _ in 0..BATCH_MESSAGES {
            shard.publish(1);
        }
        assert_eq!(shard.fan_outs.due_ns(), 0);
    }

    #[test]
    fn no_delay_is_configurable() {
        let mut shard = Shard::new(5 * MS);
        shard.fan_outs.set_max_delay_us(0);
        shard.publish_each(6 * MS, 100);
        assert_eq!((shard.rounds, shard.delay_ns), (vec![1; 100], 0));
    }

    #[test]
    fn acknowledgments_alone_wait_for_the_end_of_the_pause() {
        let mut shard = Shard::new(2 * MS);
        shard.publish_each(2 * MS, 1);
        assert!(shard.fan_outs.is_paced(shard.now_ns / MS));
        shard.fan_outs.push(0);
        shard.fan_outs.observe(shard.now_ns);
        assert_eq!(shard.fan_outs.due_ns(), shard.now_ns + PAUSE_FACTOR * 2 * MS);
        shard.pass(PAUSE_FACTOR * 2 * MS);
        assert!(shard.fan_outs.is_empty());
        assert!(!shard.fan_outs.is_paced((shard.now_ns + 100 * MS) / MS));
    }

    #[test]
    fn a_round_ends_with_the_connections_that_were_there_when_it_began() {
        let mut fan_outs = FanOuts::default();
        (0..3).for_each(|slot| fan_outs.push(slot));
        fan_outs.begin_slice();
        assert_eq!(fan_outs.pop(), Some(0));
        fan_outs.push(0);
        fan_outs.end_slice(0, MS);
        assert_eq!(fan_outs.due_ns(), 0, "the round goes on");
        fan_outs.begin_slice();
        assert_eq!((fan_outs.pop(), fan_outs.pop(), fan_outs.pop()), (Some(1), Some(2), None));
        assert!(!fan_outs.is_empty());
    }
}
