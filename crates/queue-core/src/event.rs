//! Encoding of events: see `docs/formats/queue-state.md`.
//!
//! There is an event for each delivery and settlement, so the encoding decides how much a queue writes. Offsets are
//! mostly consecutive: an offset is encoded as its distance from the previous one, and ranges of offsets share one
//! event. Reading is strict, because a state that is almost right would deliver messages twice or lose them: unknown
//! events, numbers out of bounds and text that is not UTF-8 are [`Malformed`], and the queue is not opened.

use std::fmt;
use std::ops::Range;

use crate::request::Reason;

/// The bytes are no events of a queue, or of a newer version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(
    /// Description of the problem.
    pub &'static str,
);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed queue state: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

const TRUNCATED: Malformed = Malformed("truncated event");

/// First byte of every batch.
pub(crate) const VERSION: u8 = 1;

/// Limit of offsets in one [`Event::Delivered`]: each of them takes memory of its own.
pub(crate) const DELIVERED_MAX: u64 = 1024;

mod kind {
    pub(super) const REGISTERED: u8 = 1;
    pub(super) const GROUP: u8 = 2;
    pub(super) const GROUP_REMOVED: u8 = 3;
    pub(super) const SETTLED: u8 = 4;
    pub(super) const DELIVERED: u8 = 5;
    pub(super) const DELAYED: u8 = 6;
    pub(super) const LEAVING: u8 = 7;
    pub(super) const DROPPED: u8 = 8;
    pub(super) const KNOWN: u8 = 9;
    pub(super) const MOVED: u8 = 10;
    pub(super) const PENDING: u8 = 11;
    pub(super) const NUMBERS: u8 = 12;
    pub(super) const INCARNATION: u8 = 13;
    // 14 is not used.
    pub(super) const PENDING_ELSEWHERE: u8 = 15;
}

/// Deliveries of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub(crate) count: u32,
    /// Incarnation of the last delivery. It is encoded as an entry of its own, which applies to all events after it.
    pub(crate) incarnation: u32,
    /// Time of the first delivery, in ms since 1970.
    pub(crate) first_ms: u64,
}

/// A durable change of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event<'a> {
    /// Messages below this offset, from the previous such offset on, are pending in all groups.
    Registered { to: u64 },
    /// A group was created with nothing pending. It replaces any earlier group of this number.
    Group { group: u32, name: &'a str, last_number: u64 },
    /// A group was removed.
    GroupRemoved { group: u32 },
    /// Offsets are settled.
    Settled { group: u32, offsets: Range<u64> },
    /// Offsets were delivered.
    Delivered { group: u32, offsets: Range<u64>, how: Delivered },
    /// An offset is not delivered before this time.
    Delayed { group: u32, offset: u64, until_ms: u64 },
    /// An offset leaves for another queue.
    Leaving { group: u32, offset: u64, number: u64, reason: Reason, since_ms: u64 },
    /// Offsets are duplicates, and not pending in any group.
    Dropped { offsets: Range<u64> },
    /// A deduplication identifier was seen.
    Known { id: &'a [u8], timestamp_ms: u64 },
    /// Another queue has moved messages here, up to this transfer number.
    Moved { who: &'a str, number: u64 },
    /// Offsets are pending and were never delivered.
    Pending { group: u32, offsets: Range<u64> },
    /// Offsets that are pending in other groups and do not leave there are pending here, and were never delivered.
    PendingElsewhere { group: u32 },
    /// New groups use transfer numbers above this one.
    Numbers { last: u64 },
}

impl Event<'_> {
    /// End of the offsets in the event.
    pub(crate) fn end(&self) -> u64 {
        match self {
            Self::Settled { offsets, .. }
            | Self::Delivered { offsets, .. }
            | Self::Dropped { offsets }
            | Self::Pending { offsets, .. } => offsets.end,
            Self::Delayed { offset, .. } | Self::Leaving { offset, .. } => offset + 1,
            _ => 0,
        }
    }
}

/// Encodes events. An offset is encoded as the distance from the end of the previous one. [`Event::Registered`],
/// which begins every section, resets the base to 0. The incarnation is encoded in the same way.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
    at: u64,
    incarnation: u32,
}

impl Writer {
    /// Appends to bytes that were encoded before, after an [`Event::Registered`].
    pub(crate) fn continuing(bytes: Vec<u8>) -> Self {
        Self { bytes, at: 0, incarnation: 0 }
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Appends the bytes of another writer that also begins after an [`Event::Registered`].
    pub(crate) fn append(&mut self, other: &mut Self) {
        self.bytes.append(&mut other.bytes);
        (self.at, self.incarnation) = (std::mem::take(&mut other.at), std::mem::take(&mut other.incarnation));
    }

    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    fn text(&mut self, value: &[u8]) {
        self.number(value.len() as u64);
        self.bytes.extend_from_slice(value);
    }

    fn offset(&mut self, offset: u64) {
        let step = offset.wrapping_sub(self.at).cast_signed();
        self.number(((step << 1) ^ (step >> 63)).cast_unsigned());
        self.at = offset;
    }

    fn offsets(&mut self, offsets: &Range<u64>) {
        self.offset(offsets.start);
        self.number(offsets.end - offsets.start);
        self.at = offsets.end;
    }

    fn kind_of_group(&mut self, kind: u8, group: u32) {
        self.bytes.push(kind);
        self.number(group.into());
    }

    pub(crate) fn put(&mut self, event: &Event<'_>) {
        match *event {
            Event::Registered { to } => {
                self.bytes.push(kind::REGISTERED);
                self.number(to);
                (self.at, self.incarnation) = (0, 0);
            }
            Event::Group { group, name, last_number } => {
                self.kind_of_group(kind::GROUP, group);
                self.text(name.as_bytes());
                self.number(last_number);
            }
            Event::GroupRemoved { group } => self.kind_of_group(kind::GROUP_REMOVED, group),
            Event::Settled { group, ref offsets } => {
                self.kind_of_group(kind::SETTLED, group);
                self.offsets(offsets);
            }
            Event::Delivered { group, ref offsets, how: Delivered { count, incarnation, first_ms } } => {
                if incarnation != self.incarnation {
                    self.bytes.push(kind::INCARNATION);
                    self.number(incarnation.into());
                    self.incarnation = incarnation;
                }
                self.kind_of_group(kind::DELIVERED, group);
                self.offsets(offsets);
                self.number(count.into());
                self.number(first_ms);
            }
            Event::Delayed { group, offset, until_ms } => {
                self.kind_of_group(kind::DELAYED, group);
                self.offset(offset);
                self.number(until_ms);
            }
            Event::Leaving { group, offset, number, reason, since_ms } => {
                self.kind_of_group(kind::LEAVING, group);
                self.offset(offset);
                self.number(number);
                self.bytes.push(reason_byte(reason));
                self.number(since_ms);
            }
            Event::Dropped { ref offsets } => {
                self.bytes.push(kind::DROPPED);
                self.offsets(offsets);
            }
            Event::Known { id, timestamp_ms } => {
                self.bytes.push(kind::KNOWN);
                self.text(id);
                self.number(timestamp_ms);
            }
            Event::Moved { who, number } => {
                self.bytes.push(kind::MOVED);
                self.text(who.as_bytes());
                self.number(number);
            }
            Event::Pending { group, ref offsets } => {
                self.kind_of_group(kind::PENDING, group);
                self.offsets(offsets);
            }
            Event::PendingElsewhere { group } => self.kind_of_group(kind::PENDING_ELSEWHERE, group),
            Event::Numbers { last } => {
                self.bytes.push(kind::NUMBERS);
                self.number(last);
            }
        }
    }
}

/// Reads the events of one batch.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    at: u64,
    incarnation: u32,
}

impl<'a> Reader<'a> {
    /// Reads a whole batch.
    pub(crate) fn new(batch: &'a [u8]) -> Result<Self, Malformed> {
        match batch.split_first() {
            Some((&VERSION, rest)) => Ok(Self { rest, at: 0, incarnation: 0 }),
            Some(_) => Err(Malformed("unknown version")),
            None => Err(TRUNCATED),
        }
    }

    /// The next event; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Event<'a>>, Malformed> {
        loop {
            let Some((&kind, rest)) = self.rest.split_first() else { return Ok(None) };
            self.rest = rest;
            if kind != kind::INCARNATION {
                return self.event(kind).map(Some);
            }
            self.incarnation = self.number_32()?;
        }
    }

    fn event(&mut self, kind: u8) -> Result<Event<'a>, Malformed> {
        Ok(match kind {
            kind::REGISTERED => {
                (self.at, self.incarnation) = (0, 0);
                Event::Registered { to: within_bounds(self.number()?)? }
            }
            kind::GROUP => {
                let group = self.number_32()?;
                let name = str::from_utf8(self.text()?).map_err(|_| Malformed("a name is not UTF-8"))?;
                Event::Group { group, name, last_number: self.number()? }
            }
            kind::GROUP_REMOVED => Event::GroupRemoved { group: self.number_32()? },
            kind::SETTLED => Event::Settled { group: self.number_32()?, offsets: self.offsets()? },
            kind::DELIVERED => {
                let (group, offsets) = (self.number_32()?, self.offsets()?);
                if offsets.end - offsets.start > DELIVERED_MAX {
                    return Err(Malformed("too many offsets in one delivery event"));
                }
                let (count, incarnation) = (self.number_32()?, self.incarnation);
                Event::Delivered {
                    group,
                    offsets,
                    how: Delivered { count, incarnation, first_ms: self.number()? },
                }
            }
            kind::DELAYED => {
                let (group, offset) = (self.number_32()?, self.offset()?);
                Event::Delayed { group, offset, until_ms: self.number()? }
            }
            kind::LEAVING => {
                let (group, offset) = (self.number_32()?, self.offset()?);
                let (number, reason) = (self.number()?, reason(self.byte()?)?);
                Event::Leaving { group, offset, number, reason, since_ms: self.number()? }
            }
            kind::DROPPED => Event::Dropped { offsets: self.offsets()? },
            kind::KNOWN => Event::Known { id: self.text()?, timestamp_ms: self.number()? },
            kind::MOVED => {
                let who = str::from_utf8(self.text()?).map_err(|_| Malformed("a name is not UTF-8"))?;
                Event::Moved { who, number: self.number()? }
            }
            kind::PENDING => Event::Pending { group: self.number_32()?, offsets: self.offsets()? },
            kind::PENDING_ELSEWHERE => Event::PendingElsewhere { group: self.number_32()? },
            kind::NUMBERS => Event::Numbers { last: self.number()? },
            _ => return Err(Malformed("unknown kind of event")),
        })
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        let (&first, rest) = self.rest.split_first().ok_or(TRUNCATED)?;
        self.rest = rest;
        Ok(first)
    }

    fn number(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed("a number has more than 64 bits"))
    }

    fn number_32(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.number()?).map_err(|_| Malformed("a number has more than 32 bits"))
    }

    fn text(&mut self) -> Result<&'a [u8], Malformed> {
        let len = usize::try_from(self.number()?).map_err(|_| TRUNCATED)?;
        let (text, rest) = self.rest.split_at_checked(len).ok_or(TRUNCATED)?;
        self.rest = rest;
        Ok(text)
    }

    fn offset(&mut self) -> Result<u64, Malformed> {
        let step = self.number()?;
        let step = (step >> 1).cast_signed() ^ -(step & 1).cast_signed();
        self.at = within_bounds(self.at.wrapping_add_signed(step))?;
        Ok(self.at)
    }

    fn offsets(&mut self) -> Result<Range<u64>, Malformed> {
        let start = self.offset()?;
        self.at = within_bounds(start.saturating_add(self.number()?))?;
        Ok(start..self.at)
    }
}

/// Offsets of logs are below `i64::MAX`.
fn within_bounds(offset: u64) -> Result<u64, Malformed> {
    if offset < i64::MAX.cast_unsigned() { Ok(offset) } else { Err(Malformed("an offset is out of bounds")) }
}

fn reason_byte(reason: Reason) -> u8 {
    match reason {
        Reason::Rejected => 0,
        Reason::MaxDeliveries => 1,
        Reason::Expired => 2,
        Reason::Overflow => 3,
        Reason::Redriven => 4,
    }
}

fn reason(byte: u8) -> Result<Reason, Malformed> {
    Ok(match byte {
        0 => Reason::Rejected,
        1 => Reason::MaxDeliveries,
        2 => Reason::Expired,
        3 => Reason::Overflow,
        4 => Reason::Redriven,
        _ => return Err(Malformed("unknown reason")),
    })
}
