//! Who sends what when, and what came of it.

use std::ops::Range;

use hdrhistogram::Histogram;

use super::links::Links;
use super::talk::{Heard, Talk};
use crate::schedule::{Cursor, Schedule};
use crate::tally::latencies;
use crate::wire::Stamp;

/// Output that may wait on one connection before its publisher pauses.
const PENDING_BYTES_MAX: usize = 64 * 1024;

/// What was done so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    /// Messages that the server has taken.
    pub(super) taken: u64,
    /// Different messages that it delivered.
    pub(super) received: u64,
}

/// One publishing connection.
#[derive(Debug)]
struct Publisher {
    /// Slots of no message.
    free: Vec<u32>,
    /// For each slot, when its message was due (open loop) or sent (closed loop).
    dues: Vec<u64>,
    /// Messages due and not sent.
    owed: u64,
    /// Messages sent.
    sent: u32,
}

/// The messages of one publisher that came, a bit each.
#[derive(Clone, Debug, Default)]
struct Seen(Vec<u64>);

impl Seen {
    /// Whether this is the first time.
    #[inline]
    fn mark(&mut self, sequence: u32) -> bool {
        let (word, bit) = (sequence as usize / 64, 1 << (sequence % 64));
        if word >= self.0.len() {
            self.0.resize((word + 1).next_power_of_two(), 0);
        }
        let is_new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        is_new
    }
}

/// What is done on the connections, of which the first are the publishers'.
#[derive(Debug)]
pub(super) struct Load<'a> {
    filler: &'a [u8],
    publishers: Vec<Publisher>,
    /// All publishers, as the schedule wants them.
    numbers: Vec<u32>,
    schedule: Option<(Schedule, Cursor)>,
    /// Messages that may still be sent in a closed loop.
    left: u64,
    /// By publisher.
    seen: Vec<Seen>,
    measured: Range<u64>,
    pub(super) counters: Counters,
    /// From due to taken, of messages that were due in the measured part.
    pub(super) latency: Histogram<u64>,
    /// From due to sent, of the same.
    pub(super) lag: Histogram<u64>,
    /// From due to received, of the same.
    pub(super) delivery: Histogram<u64>,
    /// When the last message came that had not come before.
    pub(super) received_last_ns: u64,
    pub(super) refused: u64,
    pub(super) first_refusal: Option<String>,
    /// Deliveries of messages that had come before.
    pub(super) repeated: u64,
    /// Deliveries of what nobody sent.
    pub(super) foreign: u64,
}

impl<'a> Load<'a> {
    /// A load of so many publishers, each with so many messages under way at most, whose payloads end as `filler` does.
    /// Nothing is due yet.
    pub(super) fn new(publishers: u32, in_flight: u32, filler: &'a [u8]) -> Self {
        let publisher = |_| Publisher {
            free: (0..in_flight).rev().collect(),
            dues: vec![0; in_flight as usize],
            owed: 0,
            sent: 0,
        };
        Self {
            filler,
            publishers: (0..publishers).map(publisher).collect(),
            numbers: (0..publishers).collect(),
            schedule: None,
            left: 0,
            seen: vec![Seen::default(); publishers as usize],
            measured: 0..0,
            counters: Counters::default(),
            latency: latencies(),
            lag: latencies(),
            delivery: latencies(),
            received_last_ns: 0,
            refused: 0,
            first_refusal: None,
            repeated: 0,
            foreign: 0,
        }
    }

    /// Messages are due on schedule from `start_ns` on, so many a second.
    pub(super) fn on_schedule(&mut self, start_ns: u64, rate: f64) {
        let schedule = Schedule::new(start_ns, rate, self.numbers.len() as u32);
        self.schedule = Some((schedule, Cursor::default()));
    }

    /// So many messages are due now.
    pub(super) fn all_at_once(&mut self, messages: u64) {
        self.left = messages;
    }

    /// What is due then counts.
    pub(super) fn measure(&mut self, measured: Range<u64>) {
        self.measured = measured;
    }

    /// Nothing more is due. How many messages were, and were not sent.
    pub(super) fn stop(&mut self) -> u64 {
        self.left = 0;
        self.schedule = None;
        self.publishers.iter_mut().map(|publisher| std::mem::take(&mut publisher.owed)).sum()
    }

    /// Messages sent, over all publishers.
    pub(super) fn sent(&self) -> u64 {
        self.publishers.iter().map(|publisher| u64::from(publisher.sent)).sum()
    }

    /// Messages sent that the server has not spoken of.
    pub(super) fn unanswered(&self) -> u64 {
        self.sent() - self.counters.taken - self.refused
    }

    /// Everything has been sent and answered.
    pub(super) fn is_settled(&self) -> bool {
        self.left == 0 && self.unanswered() == 0
    }

    /// Notes what is due by `now_ns`; when the next is.
    pub(super) fn owe_due(&mut self, now_ns: u64) -> Option<u64> {
        let (schedule, cursor) = self.schedule.as_mut()?;
        while let Some((due_ns, publisher)) = cursor.peek(schedule, &self.numbers) {
            if due_ns > now_ns {
                return Some(due_ns);
            }
            cursor.advance(&self.numbers);
            self.publishers[publisher].owed += 1;
        }
        None
    }

    /// Sends what is due, as far as slots and connections allow. Whether more can be
    /// sent once what has collected is written.
    pub(super) fn pump<T: Talk>(&mut self, links: &mut Links<T>, now_ns: u64) -> bool {
        let mut is_eager = false;
        for number in 0..self.publishers.len() {
            let publisher = &mut self.publishers[number];
            while publisher.owed > 0 || self.left > 0 {
                let Some(slot) = publisher.free.pop() else { break };
                if links.pending_bytes(number) >= PENDING_BYTES_MAX {
                    publisher.free.push(slot);
                    is_eager |= !links.is_blocked(number);
                    break;
                }
                let stream = number as u32;
                let sequence = publisher.sent;
                let schedule = self.schedule.as_ref();
                let due_ns =
                    schedule.map_or(now_ns, |(schedule, _)| schedule.due_ns(stream, sequence.into()));
                publisher.dues[slot as usize] = due_ns;
                publisher.sent += 1;
                if self.left > 0 {
                    self.left -= 1;
                } else {
                    publisher.owed -= 1;
                }
                if self.measured.contains(&due_ns) {
                    self.lag.saturating_record(now_ns - due_ns);
                }
                let (talk, out) = links.voice(number);
                talk.publish(slot, &Stamp { due_ns, stream, sequence }, self.filler, out);
            }
        }
        is_eager
    }

    /// What was said on a connection.
    #[inline]
    pub(super) fn heard(&mut self, link: usize, said: Heard<'_>, now_ns: u64) {
        match said {
            Heard::Taken(slot) => {
                if let Some(due_ns) = self.answered(link, slot) {
                    self.counters.taken += 1;
                    if self.measured.contains(&due_ns) {
                        self.latency.saturating_record(now_ns - due_ns);
                    }
                }
            }
            Heard::Refused(slot, why) => {
                if self.answered(link, slot).is_some() {
                    self.refused += 1;
                    self.first_refusal.get_or_insert(why);
                }
            }
            Heard::Delivered(payload) => self.delivered(payload, now_ns),
            // The loop itself waits for that.
            Heard::Left => {}
        }
    }

    /// A message was spoken of: when it was due. `None`, and noted, if there is none.
    #[inline]
    fn answered(&mut self, link: usize, slot: u32) -> Option<u64> {
        let publisher = self.publishers.get_mut(link);
        let publisher = publisher.filter(|publisher| publisher.free.len() < publisher.dues.len());
        let due_ns = publisher.and_then(|publisher| {
            let due_ns = publisher.dues.get(slot as usize).copied()?;
            publisher.free.push(slot);
            Some(due_ns)
        });
        if due_ns.is_none() {
            self.foreign += 1;
        }
        due_ns
    }

    #[inline]
    fn delivered(&mut self, payload: &[u8], now_ns: u64) {
        let stamp = Stamp::read(payload).filter(|_| payload.len() == self.filler.len());
        let Some((stamp, seen)) = stamp.and_then(|stamp| {
            let seen = self.seen.get_mut(stamp.stream as usize)?;
            let publisher = self.publishers.get(stamp.stream as usize)?;
            (stamp.sequence < publisher.sent).then_some((stamp, seen))
        }) else {
            self.foreign += 1;
            return;
        };
        if !seen.mark(stamp.sequence) {
            self.repeated += 1;
            return;
        }
        self.counters.received += 1;
        self.received_last_ns = now_ns;
        if self.measured.contains(&stamp.due_ns) {
            self.delivery.saturating_record(now_ns - stamp.due_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::filler;

    fn payload(stream: u32, sequence: u32) -> Vec<u8> {
        let mut payload = Vec::new();
        Stamp { due_ns: 10, stream, sequence }.append(&mut payload);
        payload
    }

    #[test]
    fn each_message_counts_once() {
        let filler = filler(16);
        let mut load = Load::new(2, 1, &filler);
        load.publishers[1].sent = 2_000;
        load.measure(0..100);
        for (stream, sequence) in [(1, 0), (1, 1_999), (1, 0), (1, 2_000), (0, 0), (2, 0)] {
            load.heard(5, Heard::Delivered(&payload(stream, sequence)), 30);
        }
        load.heard(5, Heard::Delivered(b"short"), 30);
        assert_eq!((load.counters.received, load.repeated, load.foreign), (2, 1, 4));
        assert_eq!((load.delivery.len(), load.delivery.max()), (2, 20));
    }

    #[test]
    fn an_answer_frees_its_slot_and_no_other() {
        let filler = filler(16);
        let mut load = Load::new(1, 2, &filler);
        load.heard(0, Heard::Taken(0), 30);
        assert_eq!((load.counters.taken, load.foreign), (0, 1), "nothing was sent");
        load.publishers[0].free.clear();
        load.publishers[0].sent = 2;
        load.heard(0, Heard::Taken(1), 30);
        assert!(!load.is_settled());
        load.heard(0, Heard::Refused(0, "no room".into()), 30);
        load.heard(0, Heard::Taken(2), 30);
        assert_eq!((load.counters.taken, load.refused, load.foreign), (1, 1, 2));
        assert_eq!(load.first_refusal.as_deref(), Some("no room"));
        assert!(load.is_settled());
    }

    #[test]
    fn what_is_due_is_owed_and_what_was_not_sent_is_told() {
        let filler = filler(16);
        let mut load = Load::new(2, 1, &filler);
        load.on_schedule(0, 1_000.0);
        assert_eq!(load.owe_due(2_500_000), Some(3_000_000));
        assert_eq!((load.publishers[0].owed, load.publishers[1].owed), (2, 1));
        assert_eq!(load.stop(), 3);
        assert_eq!(load.owe_due(9_000_000), None);
    }
}
