//! SUBSCRIBE and UNSUBSCRIBE, one filter at a time.
//!
//! A packet of 16 MiB can have five million filters. [`decode`](super::decode) checks all of them at once, which takes
//! tens of milliseconds. A [`FilterReader`] can stop after any filter and continue later: its position is plain data.

use super::subscribe::{subscribe_filter, subscribe_head, unsubscribe_head};
use super::{DecodeError, PacketType, Reader, Version, whole_packet};
use crate::types::{SubscribeFilter, SubscribeOptions};

/// Reads the filters of a SUBSCRIBE or UNSUBSCRIBE. Every call takes the same frame.
#[derive(Clone, Debug)]
pub struct FilterReader {
    version: Version,
    /// UNSUBSCRIBE, whose filters have no options.
    is_unsubscribe: bool,
    packet_id: u16,
    subscription_id: Option<u32>,
    first: usize,
    next: usize,
}

impl FilterReader {
    /// Decodes everything before the filters of a SUBSCRIBE or UNSUBSCRIBE: one whole packet, including the fixed
    /// header.
    ///
    /// # Errors
    /// As for [`decode`](super::decode). Errors in filters are found by [`next`](Self::next).
    ///
    /// # Panics
    /// If it is a packet of another type.
    pub fn new(version: Version, frame: &[u8]) -> Result<Self, DecodeError> {
        let (header, kind) = whole_packet(version, frame)?;
        let mut body = Reader::new(&frame[header.len..]);
        let (packet_id, subscription_id) = match kind {
            PacketType::Subscribe => {
                let head = subscribe_head(version, &mut body)?;
                (head.packet_id, head.subscription_id)
            }
            PacketType::Unsubscribe => (unsubscribe_head(version, &mut body)?.packet_id, None),
            other => panic!("{other:?} has no filters"),
        };
        let first = frame.len() - body.rest().len();
        let is_unsubscribe = kind == PacketType::Unsubscribe;
        Ok(Self { version, is_unsubscribe, packet_id, subscription_id, first, next: first })
    }

    /// Packet Identifier.
    pub fn packet_id(&self) -> u16 {
        self.packet_id
    }

    /// Subscription Identifier of a SUBSCRIBE.
    pub fn subscription_id(&self) -> Option<u32> {
        self.subscription_id
    }

    /// Reads the next filter. The options are the default ones in an UNSUBSCRIBE. `None` at the end.
    ///
    /// # Errors
    /// If the filter is not well formed.
    ///
    /// # Panics
    /// If the frame is shorter than the one that the reader was created with.
    pub fn next<'a>(&mut self, frame: &'a [u8]) -> Result<Option<SubscribeFilter<'a>>, DecodeError> {
        let mut body = Reader::new(&frame[self.next..]);
        if body.is_empty() {
            return Ok(None);
        }
        let filter = if self.is_unsubscribe {
            SubscribeFilter { filter: body.string()?, options: SubscribeOptions::default() }
        } else {
            subscribe_filter(self.version, &mut body)?
        };
        self.next = frame.len() - body.rest().len();
        Ok(Some(filter))
    }

    /// Begins again with the first filter.
    pub fn rewind(&mut self) {
        self.next = self.first;
    }
}
