//! Events on their way to the log: gathered until they are flushed.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::event::{DELIVERED_MAX, Delivered, Event, VERSION, Writer};

/// Bytes of events that need not last soon, beyond which they are flushed all the same.
const IDLE_BYTES_MAX: usize = 64 * 1024;

/// Gathers events.
///
/// Settled and delivered offsets that follow one another are joined, even if some of the one kind come between those
/// of the other. That a message is settled may then stand behind later deliveries of others, which makes no difference.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// What is encoded whole, without the version in front.
    closed: Vec<u8>,
    /// What stands behind an [`Event::Registered`] that is still to be written.
    open: Writer,
    settled: Option<(u32, Range<u64>)>,
    delivered: Option<(u32, Range<u64>, Delivered)>,
    /// Highest number of each mover.
    moved: BTreeMap<Box<str>, u64>,
    /// What the last [`Event::Registered`] said.
    said: u64,
    is_due: bool,
    flushed: u64,
    /// Whether something else is recorded than `delivered` and what has been [noted](Self::noted).
    is_more: bool,
    /// Whether `delivered` has been noted, as it is.
    is_noted: bool,
}

impl Recorder {
    /// An offset is settled in a group.
    pub(crate) fn settled(&mut self, group: u32, offset: u64) {
        self.is_due = true;
        self.is_more = true;
        match &mut self.settled {
            Some((of, run)) if *of == group && run.end == offset => run.end += 1,
            _ => {
                self.close_settled();
                self.settled = Some((group, offset..offset + 1));
            }
        }
    }

    /// An offset is delivered.
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
                self.is_more |= self.delivered.is_some() && !self.is_noted;
                self.close_delivered();
                self.delivered = Some((group, offset..offset + 1, how));
            }
        }
        self.is_noted = false;
    }

    /// Appends to `into` a part of a batch, without its first byte, that says all that has to last and was not
    /// [noted](Self::noted) before. False if that is nothing, or more than a few deliveries.
    pub(crate) fn note(&self, registered_to: u64, into: &mut Vec<u8>) -> bool {
        let Some((group, offsets, how)) = &self.delivered else { return false };
        if self.is_more || self.is_noted || !self.is_due {
            return false;
        }
        let mut note = Writer::behind(std::mem::take(into));
        note.put(&Event::Registered { to: self.said.max(registered_to) });
        note.put(&Event::Delivered { group: *group, offsets: offsets.clone(), how: *how });
        *into = note.into_bytes();
        true
    }

    /// What is to last is kept until the next flush, which has it too.
    pub(crate) fn noted(&mut self) {
        self.is_noted = true;
        self.is_due = false;
    }

    /// Whether something is noted and not flushed.
    pub(crate) fn has_noted(&self) -> bool {
        !self.is_due && !self.is_empty()
    }

    /// Something else that is to last.
    pub(crate) fn record(&mut self, event: &Event<'_>) {
        self.is_due = true;
        self.is_more = true;
        self.close_delivered();
        self.close_settled();
        self.open.put(event);
    }

    /// Something about a message that is registered now, which is found out once more if this is lost: it waits for what
    /// is to last. Nothing has been told of this message before, so it may overtake what was told of others.
    pub(crate) fn mention(&mut self, event: &Event<'_>) {
        self.is_more = true;
        self.open.put(event);
    }

    /// The same of a move: of each mover, the last one counts.
    pub(crate) fn moved(&mut self, who: &str, number: u64) {
        self.is_more = true;
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

    /// How often a message was delivered that is settled does not matter.
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

    /// Closes what was recorded, behind the news that all below `registered_to` is registered.
    pub(crate) fn part(&mut self, registered_to: u64) {
        self.is_more = true;
        self.forget_settled();
        self.said = self.said.max(registered_to);
        let mut head = Writer::behind(std::mem::take(&mut self.closed));
        head.put(&Event::Registered { to: self.said });
        let mut before = std::mem::replace(&mut self.open, head);
        self.open.append(&mut before);
        self.close_delivered();
        self.close_settled();
        while let Some((who, number)) = self.moved.pop_first() {
            self.open.put(&Event::Moved { who: &who, number });
        }
        // What was open keeps its memory.
        self.closed = std::mem::replace(&mut self.open, before).into_bytes();
    }

    /// Offsets below are spoken of as registered.
    pub(crate) fn said(&self) -> u64 {
        self.said
    }

    /// That so much was said before this was made.
    pub(crate) fn begin_at(&mut self, said: u64) {
        self.said = said;
    }

    /// Whether nothing has been recorded since the last flush.
    pub(crate) fn is_empty(&self) -> bool {
        let is_closed = self.settled.is_none() && self.delivered.is_none() && self.moved.is_empty();
        is_closed && self.closed.is_empty() && self.open.is_empty()
    }

    pub(crate) fn is_due(&self) -> bool {
        self.is_due || self.open.len() >= IDLE_BYTES_MAX
    }

    /// Number of the flush that what is recorded now will be in.
    pub(crate) fn next_flush(&self) -> u64 {
        self.flushed + 1
    }

    /// Appends a batch of all events to `into`, if there are any; its number.
    pub(crate) fn flush(&mut self, registered_to: u64, into: &mut Vec<u8>) -> Option<u64> {
        if self.is_empty() {
            return None;
        }
        self.part(registered_to);
        into.push(VERSION);
        into.append(&mut self.closed);
        (self.is_due, self.is_more, self.is_noted) = (false, false, false);
        self.flushed += 1;
        Some(self.flushed)
    }
}
