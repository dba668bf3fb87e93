//! SUBSCRIBE and UNSUBSCRIBE (3.8 to 3.11).
//!
//! One packet may have thousands of filters, and the other clients of the shard must not wait for all of them. So all
//! filters are checked before the first one has an effect, then they are handled until the share of the connection is
//! used up. The packet stays in the input, and a [`FilterList`] on the connection remembers how far it has come. The
//! acknowledgement follows the last filter, when everything appended for them is durable.

use mainstem_mqtt::ReasonCode;
use mainstem_runtime::{ConnId, Io};
use mainstem_topic::parse_subscription;

use super::Shard;
use crate::broker_state::Mail;
use crate::filter_list::{FilterList, HandledFilters};
use crate::handled::{Handled, Next, ProtocolError};
use crate::journal::entry::Entry;
use crate::pending_acks::AckKind;
use crate::queue_consumers::is_of_queue;

/// Cost of a filter of a SUBSCRIBE or UNSUBSCRIBE, units, and the bytes of it that cost one more.
const FILTER_UNITS: u32 = 8;
const FILTER_BYTES_PER_UNIT: usize = 16;

impl Shard {
    /// SUBSCRIBE or UNSUBSCRIBE, from its beginning or from where an earlier turn has left it. Filters are handled as
    /// long as the share of the connection lasts; the acknowledgement follows the last one.
    pub(super) fn on_filters(
        &mut self,
        io: &mut Io<'_, Mail>,
        conn: ConnId,
        slot: u32,
        is_subscribe: bool,
        frame: &[u8],
    ) -> Handled {
        if self.host.session(slot).ext_ref().is_some_and(|ext| ext.acks.is_full()) {
            return Ok(Next::Hold);
        }
        let mut list = match self.connections.take_filter_list(conn) {
            // Nobody waits for the acknowledgement of the rest.
            Some(_) if io.peer_has_closed(conn) => return Ok(Next::Packet),
            Some(list) => list,
            None => Box::new(FilterList::new(self.connections.version(conn), frame)?),
        };
        let before = self.host.persistence().position();
        let is_complete = self.handle_filters(io, slot, is_subscribe, frame, &mut list)?;
        list.wait_for(self.host.persistence().condition_since(before));
        if !is_complete {
            self.connections.put_filter_list(conn, list);
            return Ok(Next::Hold);
        }
        let HandledFilters { packet_id, reasons, mut condition, consumers } = list.finish();
        let kind = AckKind::List { is_subscribe, packet_id, reasons };
        let token = (!consumers.is_empty()).then(|| self.host.next_ack_token(slot));
        for (consumer, index) in consumers {
            let number = token.map_or(0, |token| token.number);
            condition.receipts += u32::from(self.host.hold_suback(slot, consumer, (number, index)));
        }
        self.host.ack(io, slot, condition, token, kind);
        Ok(Next::Packet)
    }

    /// Checks all filters, then handles them, as long as the share of the connection lasts. Returns whether all were
    /// handled.
    fn handle_filters(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        is_subscribe: bool,
        frame: &[u8],
        list: &mut FilterList,
    ) -> Result<bool, ProtocolError> {
        loop {
            let checked = list.check(frame)?;
            io.charge(checked.units);
            self.host.check_filter_count(slot, list.count())?;
            if checked.is_complete {
                break;
            }
            if io.is_exhausted() {
                return Ok(false);
            }
        }
        self.host.check_room_for_codes(slot, frame.len(), list.count())?;
        let id = list.subscription_id();
        while let Some(asked) = list.next(frame)? {
            io.charge(FILTER_UNITS + (asked.filter.len() / FILTER_BYTES_PER_UNIT) as u32);
            let reason = if is_subscribe {
                self.host.subscribe(slot, &asked, id, list)?
            } else {
                self.unsubscribe(io, slot, asked.filter)
            };
            list.push(reason);
            if io.is_exhausted() {
                // The next turn finds out whether this was the last one.
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Handles one filter of an UNSUBSCRIBE. Returns its reason code.
    fn unsubscribe(&mut self, io: &mut Io<'_, Mail>, slot: u32, filter: &str) -> u8 {
        let reason = match parse_subscription(filter) {
            Err(_) => ReasonCode::TopicFilterInvalid,
            Ok(parsed) if is_of_queue(parsed.filter) => self.unsubscribe_from_queue(io, slot, filter),
            Ok(parsed) => match parsed.group {
                Some(group) => self.host.leave_group(slot, parsed.filter, group),
                None => self.host.unsubscribe_one(slot, parsed.filter),
            },
        };
        if reason == ReasonCode::Success
            && let Some((mut journal, session)) = self.host.journal(slot)
        {
            journal.push(&Entry::Unsubscribe { session, filter });
        }
        reason as u8
    }
}
