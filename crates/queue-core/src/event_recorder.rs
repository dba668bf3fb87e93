//! Collects events until they are flushed to the log as one batch.
//!
//! A reply to a consumer waits for the flush with its event, so events are flushed at most once per turn, not one by
//! one. Events that nobody waits for, such as deliveries, may wait longer and are often made obsolete by a settlement
//! in the same batch.
//!
//! A section begins with the offset up to which messages are registered, because an event must not refer to a message
//! that a replay does not know yet.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::event::{DELIVERED_MAX, Delivered, Event, VERSION, Writer};

/// Bytes of events that nobody waits for, beyond which they are flushed anyway.
const IDLE_BYTES_MAX: usize = 64 * 1024;

/// Collects events.
///
/// Consecutive offsets that are settled or delivered alike are merged into one event, even if events of the other
/// kind come between them. So the event of a settlement may follow later deliveries of other messages, which makes no
/// difference on replay.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// Encoded sections, without the version byte.
    closed: Vec<u8>,
    /// Events that follow an [`Event::Registered`] that is still to be written.
    open: Writer,
    settled: Option<(u32, Range<u64>)>,
    delivered: Option<(u32, Range<u64>, Delivered)>,
    /// Highest transfer number of each mover.
    moved: BTreeMap<Box<str>, u64>,
    /// Offset of the last [`Event::Registered`].
    registered_to: u64,
    /// The same, of the last flush.
    flushed_to: u64,
    is_due: bool,
    flushed: u64,
    /// Whether there are events other than `delivered` and what has been [noted](Self::noted).
    has_other: bool,
    /// Whether the current `delivered` has been noted.
    is_noted: bool,
}

impl Recorder {
    pub(crate) fn settled(&mut self, group: u32, offset: u64) {
        self.is_due = true;
        self.has_other = true;
        match &mut self.settled {
            Some((of, run)) if *of == group && run.end == offset => run.end += 1,
            _ => {
                self.close_settled();
                self.settled = Some((group, offset..offset + 1));
            }
        }
    }

    pub(crate) fn delivered(&mut self, group: u32, offset: u64, how: Delivered) {
        self.is_due = true;
        match &mut self.delivered {
            Some((of, run, same))
                if *of == group
                    && run.end == offset
                    && run.end - run.start < DELIVERED_MAX
                    && *same == how =>
            {
                run.end += 1;
            }
            _ => {
                self.has_other |= self.delivered.is_some() && !self.is_noted;
                self.close_delivered();
                self.delivered = Some((group, offset..offset + 1, how));
            }
        }
        self.is_noted = false;
    }

    /// Appends a note to `into`: part of a batch, without the version byte, with everything that must become durable
    /// and was not [noted](Self::noted). Returns false if there is nothing, or more than one range of deliveries.
    pub(crate) fn note(&self, registered_to: u64, into: &mut Vec<u8>) -> bool {
        let Some((group, offsets, how)) = &self.delivered else { return false };
        if self.has_other || self.is_noted || !self.is_due {
            return false;
        }
        let mut note = Writer::continuing(std::mem::take(into));
        note.put(&Event::Registered { to: self.registered_to.max(registered_to) });
        note.put(&Event::Delivered { group: *group, offsets: offsets.clone(), how: *how });
        *into = note.into_bytes();
        true
    }

    /// The note is stored until the next flush, which contains the same events.
    pub(crate) fn noted(&mut self) {
        self.is_noted = true;
        self.is_due = false;
    }

    /// Whether something is noted and not flushed.
    pub(crate) fn has_noted(&self) -> bool {
        !self.is_due && !self.is_empty()
    }

    /// Records any other event.
    pub(crate) fn record(&mut self, event: &Event<'_>) {
        self.is_due = true;
        self.has_other = true;
        self.close_delivered();
        self.close_settled();
        self.open.put(event);
    }

    /// Records an event that a restart would find out again when it registers the message. It waits for the next
    /// flush. Nothing else has been recorded about this message, so the event may overtake events of other messages.
    pub(crate) fn record_lazily(&mut self, event: &Event<'_>) {
        self.has_other = true;
        self.open.put(event);
    }

    /// Records a transfer that arrived here, which also waits for the next flush. Only the last one of each mover
    /// counts.
    pub(crate) fn record_transfer(&mut self, who: &str, number: u64) {
        self.has_other = true;
        match self.moved.get_mut(who) {
            Some(last) => *last = number.max(*last),
            None => drop(self.moved.insert(who.into(), number)),
        }
    }

    fn close_settled(&mut self) {
        if let Some((group, offsets)) = self.settled.take() {
            self.open.put(&Event::Settled { group, offsets });
        }
    }

    fn close_delivered(&mut self) {
        if let Some((group, offsets, how)) = self.delivered.take() {
            self.open.put(&Event::Delivered { group, offsets, how });
        }
    }

    /// The number of deliveries does not matter once the messages are settled.
    fn forget_settled(&mut self) {
        if let Some((group, delivered, _)) = &self.delivered
            && let Some((of, settled)) = &self.settled
            && of == group
            && settled.start <= delivered.start
            && delivered.end <= settled.end
        {
            self.delivered = None;
        }
    }

    /// Ends a section: it begins with the registration of all messages below `registered_to`.
    pub(crate) fn close_section(&mut self, registered_to: u64) {
        self.has_other = true;
        self.forget_settled();
        self.registered_to = self.registered_to.max(registered_to);
        let mut head = Writer::continuing(std::mem::take(&mut self.closed));
        head.put(&Event::Registered { to: self.registered_to });
        let mut before = std::mem::replace(&mut self.open, head);
        self.open.append(&mut before);
        self.close_delivered();
        self.close_settled();
        while let Some((who, number)) = self.moved.pop_first() {
            self.open.put(&Event::Moved { who: &who, number });
        }
        // Reuse the buffer.
        self.closed = std::mem::replace(&mut self.open, before).into_bytes();
    }

    /// Messages below this offset are recorded as registered.
    pub(crate) fn registered_to(&self) -> u64 {
        self.registered_to
    }

    /// Sets the offset that earlier batches have recorded as registered.
    pub(crate) fn set_registered_to(&mut self, to: u64) {
        (self.registered_to, self.flushed_to) = (to, to);
    }

    /// Flushed batches record messages below this offset as registered.
    pub(crate) fn flushed_to(&self) -> u64 {
        self.flushed_to
    }

    pub(crate) fn is_empty(&self) -> bool {
        let is_closed = self.settled.is_none() && self.delivered.is_none() && self.moved.is_empty();
        is_closed && self.closed.is_empty() && self.open.is_empty()
    }

    pub(crate) fn is_due(&self) -> bool {
        self.is_due || self.open.len() >= IDLE_BYTES_MAX
    }

    /// Number of the flush that will contain events recorded now.
    pub(crate) fn next_flush(&self) -> u64 {
        self.flushed + 1
    }

    /// Appends a batch of all events to `into` and returns its number. `None` if there are no events.
    pub(crate) fn flush(&mut self, registered_to: u64, into: &mut Vec<u8>) -> Option<u64> {
        if self.is_empty() {
            return None;
        }
        self.close_section(registered_to);
        into.push(VERSION);
        into.append(&mut self.closed);
        (self.is_due, self.has_other, self.is_noted) = (false, false, false);
        self.flushed_to = self.registered_to;
        self.flushed += 1;
        Some(self.flushed)
    }
}
