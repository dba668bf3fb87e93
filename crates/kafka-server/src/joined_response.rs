//! The response to a request that is handled in parts, see `division.rs`: the responses to the parts, joined.
//!
//! They are joined in their encoding, because encoding all of them at the end would take long too. Each of these
//! responses has one array of items, mostly at its end, so they can be joined without knowing what they are. An item
//! may have an array too, which takes several parts itself: a topic with thousands of partitions. Then only where this
//! array begins and ends is known. The response stays in pieces, because one of a hundred megabytes takes long to copy,
//! and even to free.

use mainstem_kafka::{Reader, Request, Uuid, frame, put_response_header};
use mainstem_runtime::{MemoryMeter, SharedBytes};

use crate::answer::Answer;
use crate::shard_message::RequestContext;

/// Bytes at which a piece of a joined response is full.
const PIECE_BYTES: usize = 64 * 1024;

/// Which of the arrays in a response has the items of a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Placement {
    /// Number of arrays around that of the items: 0 if they are the items of the response.
    pub(crate) depth: usize,
    /// Number of arrays that end with this part, the innermost first.
    pub(crate) ends: usize,
}

/// The array in an item of another array.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NestedArray {
    pub(crate) after: Identifier,
    /// Bytes of the item behind the array, without tagged fields.
    pub(crate) behind: usize,
}

/// What the item begins with, before the array.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Identifier {
    Name,
    Uuid,
}

impl NestedArray {
    /// Divides an encoded item at its array: what precedes it, its number of items and the items, and what follows.
    fn split<'a>(&self, item: &'a [u8], is_flexible: bool) -> (&'a [u8], u32, &'a [u8], &'a [u8]) {
        let mut reader = Reader::new(item);
        let len = match self.after {
            Identifier::Uuid => size_of::<Uuid>(),
            Identifier::Name if is_flexible => {
                reader.uvarint().map_or(0, |len| len.saturating_sub(1) as usize)
            }
            Identifier::Name => reader.array().map_or(0, |len| usize::from(u16::from_be_bytes(len))),
        };
        let head = item.len() - reader.remaining() + len;
        let (head, rest) = item.split_at(head);
        let (rest, behind) = rest.split_at(rest.len() - self.behind - usize::from(is_flexible));
        let (count, items) = take_count(rest, is_flexible);
        (head, count, items, behind)
    }
}

/// The frame of a response with an array of items, while they are added.
#[derive(Debug)]
pub(crate) struct JoinedResponse {
    is_flexible: bool,
    /// Bytes of the response before the number of its items.
    fields: Vec<u8>,
    /// Bytes behind the items.
    behind: Vec<u8>,
    /// `fields` and `behind` are those of the newest part: how long the client is throttled, and an error.
    is_like_parts: bool,
    /// Number of bytes before the number of items in the response to a part.
    part_fields: usize,
    items: u32,
    /// The arrays in the items of the response, and in their items.
    nested: Vec<NestedArray>,
    /// Those of them that have begun and not ended.
    open: Vec<OpenArray>,
    /// The encoded items: full pieces, and the newest one.
    pieces: Vec<SharedBytes>,
    newest: Vec<u8>,
    /// Bytes of all pieces.
    len: usize,
    meter: MemoryMeter,
}

/// An array to which items are added.
#[derive(Debug)]
struct OpenArray {
    /// Index of the piece behind the place of its number of items.
    place: usize,
    items: u32,
    /// What follows it in its item, as of the newest part.
    behind: Vec<u8>,
}

impl JoinedResponse {
    /// Begins a response like `template`, which has no items, and `behind` bytes behind them besides tagged fields.
    pub(crate) fn begin<R: Request>(
        call: &RequestContext,
        template: &R::Response,
        behind: usize,
        meter: MemoryMeter,
    ) -> Self {
        let is_flexible = call.version >= R::FLEXIBLE_FROM;
        // In the compact form an empty array is one byte, and tagged fields end the response.
        let (count, tags) = if is_flexible { (1, 1) } else { (size_of::<i32>(), 0) };
        let encoded = |response: &R::Response| {
            let mut bytes = Vec::new();
            call.encode(response, &mut bytes);
            let behind = bytes.split_off(bytes.len().saturating_sub(behind + tags));
            bytes.truncate(bytes.len().saturating_sub(count));
            (bytes, behind)
        };
        let (fields, behind) = encoded(template);
        let (part_fields, _) = encoded(&R::Response::default());
        Self {
            is_flexible,
            fields,
            behind,
            is_like_parts: false,
            part_fields: part_fields.len(),
            items: 0,
            nested: Vec::new(),
            open: Vec::new(),
            pieces: Vec::new(),
            newest: Vec::new(),
            len: 0,
            meter,
        }
    }

    /// The same, of parts whose responses have all fields, and these arrays in their items.
    pub(crate) fn like_parts(self, nested: Vec<NestedArray>) -> Self {
        Self { is_like_parts: true, nested, ..self }
    }

    /// Bytes of all items.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// What precedes the items, in a frame without length.
    fn head(&self, call: &RequestContext) -> Vec<u8> {
        let mut head = Vec::new();
        frame::begin_frame(&mut head);
        put_response_header(call.correlation_id, call.api_key, call.version, &mut head);
        head.extend_from_slice(&self.fields);
        self.put_count(self.items, &mut head);
        head
    }

    /// Adds the response to a part, without header.
    pub(crate) fn add(&mut self, response: &[u8], Placement { depth, ends }: Placement) {
        let (fields, rest) = response.split_at(self.part_fields);
        let (rest, behind) = rest.split_at(rest.len() - self.behind.len());
        if self.is_like_parts {
            self.fields.copy_from_slice(fields);
            self.behind.copy_from_slice(behind);
        }
        let (mut count, mut items) = take_count(rest, self.is_flexible);
        for level in 0..depth {
            if count == 0 {
                // An error of the whole request.
                break;
            }
            debug_assert_eq!(count, 1, "the part is one of this item");
            let (head, inner_count, inner, behind) = self.nested[level].split(items, self.is_flexible);
            if self.open.len() == level {
                self.open(head);
            }
            self.open[level].behind = behind.to_vec();
            (count, items) = (inner_count, inner);
        }
        *self.count() += count;
        self.put(items);
        for _ in (depth - ends)..self.open.len() {
            self.close();
        }
        if self.newest.len() >= PIECE_BYTES {
            self.end_piece();
        }
    }

    /// The number of items of the innermost array.
    fn count(&mut self) -> &mut u32 {
        self.open.last_mut().map_or(&mut self.items, |open| &mut open.items)
    }

    /// Begins the array of an item, with what precedes the array in the item.
    fn open(&mut self, head: &[u8]) {
        *self.count() += 1;
        self.put(head);
        self.end_piece();
        self.open.push(OpenArray { place: self.pieces.len(), items: 0, behind: Vec::new() });
    }

    /// Ends the innermost array, and its item.
    fn close(&mut self) {
        let Some(OpenArray { place, items, behind }) = self.open.pop() else { return };
        let mut count = Vec::new();
        self.put_count(items, &mut count);
        self.len += count.len();
        self.pieces.insert(place, SharedBytes::new(count.into_boxed_slice(), &self.meter));
        self.put(&behind);
    }

    fn put(&mut self, bytes: &[u8]) {
        self.newest.extend_from_slice(bytes);
        self.len += bytes.len();
    }

    fn end_piece(&mut self) {
        let piece = std::mem::take(&mut self.newest).into_boxed_slice();
        self.pieces.push(SharedBytes::new(piece, &self.meter));
    }

    fn put_count(&self, items: u32, into: &mut Vec<u8>) {
        if self.is_flexible {
            put_uvarint(items + 1, into);
        } else {
            into.extend_from_slice(&items.to_be_bytes());
        }
    }

    /// The whole response.
    pub(crate) fn finish(mut self, call: &RequestContext) -> Answer {
        let behind = self.behind.len();
        self.newest.append(&mut self.behind);
        self.len += behind;
        let mut head = self.head(call);
        frame::end_frame(&mut head, frame::LENGTH_BYTES, self.len);
        Answer { head, pieces: self.pieces, tail: self.newest }
    }
}

/// Divides an encoded array: the number of its items, and the items.
fn take_count(array: &[u8], is_flexible: bool) -> (u32, &[u8]) {
    let mut reader = Reader::new(array);
    let count = if is_flexible {
        reader.uvarint().map_or(0, |count| count.saturating_sub(1))
    } else {
        reader.array().map_or(0, u32::from_be_bytes)
    };
    (count, reader.rest())
}

fn put_uvarint(mut value: u32, into: &mut Vec<u8>) {
    while value >= 0x80 {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}
