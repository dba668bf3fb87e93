//! The load: sends messages when they are due, and counts acknowledgements and deliveries.
//!
//! Each in-flight message of a publisher occupies a slot, which bounds the window and finds the due time when the
//! acknowledgement arrives. A bitmap per publisher separates first deliveries from duplicates.

use std::ops::Range;

use hdrhistogram::Histogram;

use super::event_loop::EventLoop;
use super::protocol::{Protocol, ServerEvent};
use crate::schedule::{Cursor, Schedule};
use crate::tally::latencies;
use crate::wire::Stamp;

/// Unsent output bytes on a connection above which its publisher pauses.
const PENDING_BYTES_MAX: usize = 64 * 1024;

/// Counters of the whole run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    /// Messages acknowledged to publishers.
    pub(super) acknowledged: u64,
    /// Messages delivered, without duplicates.
    pub(super) received: u64,
}

/// One publishing connection.
#[derive(Debug)]
struct Publisher {
    /// Free slots.
    free: Vec<u32>,
    /// Due time (open loop) or send time (closed loop) of the message in each slot.
    due_times: Vec<u64>,
    /// Messages due and not sent.
    due: u64,
    sent: u32,
}

/// Bitmap of the received messages of one publisher.
#[derive(Clone, Debug, Default)]
struct Seen(Vec<u64>);

impl Seen {
    /// Marks a message as received. Returns whether it is the first time.
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

/// The load and its counters. The first connections belong to the publishers.
#[derive(Debug)]
pub(super) struct Load<'a> {
    filler: &'a [u8],
    publishers: Vec<Publisher>,
    /// Publisher numbers, as [`Cursor`] expects them.
    numbers: Vec<u32>,
    schedule: Option<(Schedule, Cursor)>,
    /// Messages that may still be sent in a closed loop.
    remaining: u64,
    /// Received messages per publisher.
    seen: Vec<Seen>,
    measured: Range<u64>,
    pub(super) counters: Counters,
    /// Due time to acknowledgement, of messages due in the measured part.
    pub(super) latency: Histogram<u64>,
    /// Due time to send, of messages due in the measured part.
    pub(super) lag: Histogram<u64>,
    /// Due time to receipt, of messages due in the measured part.
    pub(super) delivery: Histogram<u64>,
    /// Time of the last first delivery.
    pub(super) received_last_ns: u64,
    pub(super) refused: u64,
    pub(super) first_refusal: Option<String>,
    /// Duplicate deliveries.
    pub(super) repeated: u64,
    /// Deliveries and acknowledgements that match no sent message.
    pub(super) foreign: u64,
}

impl<'a> Load<'a> {
    /// A load with at most `in_flight` messages per publisher, with payloads as long as `filler`. Nothing is due yet.
    pub(super) fn new(publishers: u32, in_flight: u32, filler: &'a [u8]) -> Self {
        let publisher = |_| Publisher {
            free: (0..in_flight).rev().collect(),
            due_times: vec![0; in_flight as usize],
            due: 0,
            sent: 0,
        };
        Self {
            filler,
            publishers: (0..publishers).map(publisher).collect(),
            numbers: (0..publishers).collect(),
            schedule: None,
            remaining: 0,
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

    /// Starts an open loop at `start_ns` with `rate` messages per second.
    pub(super) fn start_schedule(&mut self, start_ns: u64, rate: f64) {
        let schedule = Schedule::new(start_ns, rate, self.numbers.len() as u32);
        self.schedule = Some((schedule, Cursor::default()));
    }

    /// Starts a closed loop that sends at most `messages`.
    pub(super) fn start_closed_loop(&mut self, messages: u64) {
        self.remaining = messages;
    }

    /// Sets the measured part.
    pub(super) fn set_measured(&mut self, measured: Range<u64>) {
        self.measured = measured;
    }

    /// Stops sending. Returns the number of messages that were due and not sent.
    pub(super) fn stop(&mut self) -> u64 {
        self.remaining = 0;
        self.schedule = None;
        self.publishers.iter_mut().map(|publisher| std::mem::take(&mut publisher.due)).sum()
    }

    /// Number of messages sent, over all publishers.
    pub(super) fn sent(&self) -> u64 {
        self.publishers.iter().map(|publisher| u64::from(publisher.sent)).sum()
    }

    /// Number of messages neither acknowledged nor refused.
    pub(super) fn unanswered(&self) -> u64 {
        self.sent() - self.counters.acknowledged - self.refused
    }

    /// Whether everything was sent and acknowledged or refused.
    pub(super) fn is_settled(&self) -> bool {
        self.remaining == 0 && self.unanswered() == 0
    }

    /// Releases the messages due by `now_ns`. Returns when the next one is due.
    pub(super) fn release_due(&mut self, now_ns: u64) -> Option<u64> {
        let (schedule, cursor) = self.schedule.as_mut()?;
        while let Some((due_ns, publisher)) = cursor.peek(schedule, &self.numbers) {
            if due_ns > now_ns {
                return Some(due_ns);
            }
            cursor.advance(&self.numbers);
            self.publishers[publisher].due += 1;
        }
        None
    }

    /// Sends due messages, as far as slots and output buffers allow. Returns whether more can be sent right after the
    /// next flush.
    pub(super) fn send_due<T: Protocol>(&mut self, event_loop: &mut EventLoop<T>, now_ns: u64) -> bool {
        let mut has_more = false;
        for number in 0..self.publishers.len() {
            let publisher = &mut self.publishers[number];
            while publisher.due > 0 || self.remaining > 0 {
                let Some(slot) = publisher.free.pop() else { break };
                if event_loop.pending_bytes(number) >= PENDING_BYTES_MAX {
                    publisher.free.push(slot);
                    has_more |= !event_loop.is_blocked(number);
                    break;
                }
                let stream = number as u32;
                let sequence = publisher.sent;
                let schedule = self.schedule.as_ref();
                let due_ns =
                    schedule.map_or(now_ns, |(schedule, _)| schedule.due_ns(stream, sequence.into()));
                publisher.due_times[slot as usize] = due_ns;
                publisher.sent += 1;
                if self.remaining > 0 {
                    self.remaining -= 1;
                } else {
                    publisher.due -= 1;
                }
                if self.measured.contains(&due_ns) {
                    self.lag.saturating_record(now_ns - due_ns);
                }
                let (protocol, out) = event_loop.output(number);
                protocol.publish(slot, &Stamp { due_ns, stream, sequence }, self.filler, out);
            }
        }
        has_more
    }

    /// Counts a server event.
    #[inline]
    pub(super) fn handle_event(&mut self, conn: usize, event: ServerEvent<'_>, now_ns: u64) {
        match event {
            ServerEvent::Acknowledged(slot) => {
                if let Some(due_ns) = self.free_slot(conn, slot) {
                    self.counters.acknowledged += 1;
                    if self.measured.contains(&due_ns) {
                        self.latency.saturating_record(now_ns - due_ns);
                    }
                }
            }
            ServerEvent::Refused(slot, why) => {
                if self.free_slot(conn, slot).is_some() {
                    self.refused += 1;
                    self.first_refusal.get_or_insert(why);
                }
            }
            ServerEvent::Delivered(payload) => self.delivered(payload, now_ns),
            // Handled by the event loop.
            ServerEvent::Closed => {}
        }
    }

    /// Frees the slot of a message. Returns its due time; `None`, counted as foreign, if the slot holds no message.
    #[inline]
    fn free_slot(&mut self, conn: usize, slot: u32) -> Option<u64> {
        let publisher = self.publishers.get_mut(conn);
        let publisher = publisher.filter(|publisher| publisher.free.len() < publisher.due_times.len());
        let due_ns = publisher.and_then(|publisher| {
            let due_ns = publisher.due_times.get(slot as usize).copied()?;
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
    fn counts_each_message_once() {
        let filler = filler(16);
        let mut load = Load::new(2, 1, &filler);
        load.publishers[1].sent = 2_000;
        load.set_measured(0..100);
        for (stream, sequence) in [(1, 0), (1, 1_999), (1, 0), (1, 2_000), (0, 0), (2, 0)] {
            load.handle_event(5, ServerEvent::Delivered(&payload(stream, sequence)), 30);
        }
        load.handle_event(5, ServerEvent::Delivered(b"short"), 30);
        assert_eq!((load.counters.received, load.repeated, load.foreign), (2, 1, 4));
        assert_eq!((load.delivery.len(), load.delivery.max()), (2, 20));
    }

    #[test]
    fn acknowledgement_frees_only_its_slot() {
        let filler = filler(16);
        let mut load = Load::new(1, 2, &filler);
        load.handle_event(0, ServerEvent::Acknowledged(0), 30);
        assert_eq!((load.counters.acknowledged, load.foreign), (0, 1), "nothing was sent");
        load.publishers[0].free.clear();
        load.publishers[0].sent = 2;
        load.handle_event(0, ServerEvent::Acknowledged(1), 30);
        assert!(!load.is_settled());
        load.handle_event(0, ServerEvent::Refused(0, "no room".into()), 30);
        load.handle_event(0, ServerEvent::Acknowledged(2), 30);
        assert_eq!((load.counters.acknowledged, load.refused, load.foreign), (1, 1, 2));
        assert_eq!(load.first_refusal.as_deref(), Some("no room"));
        assert!(load.is_settled());
    }

    #[test]
    fn stop_returns_due_messages_that_were_not_sent() {
        let filler = filler(16);
        let mut load = Load::new(2, 1, &filler);
        load.start_schedule(0, 1_000.0);
        assert_eq!(load.release_due(2_500_000), Some(3_000_000));
        assert_eq!((load.publishers[0].due, load.publishers[1].due), (2, 1));
        assert_eq!(load.stop(), 3);
        assert_eq!(load.release_due(9_000_000), None);
    }
}
