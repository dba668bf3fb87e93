//! One publishing connection: due messages, in-flight limit, unacknowledged messages.
//!
//! A publisher sends while it has due messages, its in-flight limit allows it, and its output buffer is short. The
//! last condition applies backpressure from the socket instead of buffering without bound.

use std::sync::Arc;

use mainstem_mqtt::EncodeError;
use mainstem_mqtt::packet::{QoS, Version};

use crate::flow::{DeliveryWindow, PacketIds};
use crate::net::Net;
use crate::plan::Plan;
use crate::schedule::Schedule;
use crate::wire::{PUBREL, Prepared, Stamp, append_ack};

/// Unsent output bytes on a connection above which its publisher pauses.
const PENDING_BYTES_MAX: usize = 64 * 1024;

/// Limit of messages in flight.
#[derive(Debug)]
pub(crate) enum InFlightLimit {
    /// No limit: QoS 0, open loop.
    Open,
    /// Deliveries: QoS 0, closed loop.
    Deliveries(Arc<[DeliveryWindow]>),
    /// Acknowledgements: QoS 1 and 2.
    Acknowledgements(PacketIds),
}

/// One publisher.
#[derive(Debug)]
pub(crate) struct Publisher {
    number: u32,
    /// Connection id; `None` until connected.
    conn: Option<usize>,
    prepared: Vec<Prepared>,
    limit: InFlightLimit,
    /// Messages due and not sent; `u64::MAX` in a closed loop.
    due: u64,
    sent: u64,
    /// Value of `sent` at the last stall check.
    sent_before: u64,
    /// Due messages wait for the connection's output to drain.
    paused: bool,
    /// Whether the publisher is in the thread's send queue.
    pub(crate) queued: bool,
}

/// Context of [`Publisher::send`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending<'a> {
    pub(crate) plan: &'a Plan,
    /// `None` in a closed loop, where a message is due when it can be sent.
    pub(crate) schedule: Option<&'a Schedule>,
    pub(crate) filler: &'a [u8],
    pub(crate) now_ns: u64,
}

impl Publisher {
    /// Publisher `number` of the plan.
    ///
    /// # Errors
    /// If its packets exceed the maximum packet size.
    pub(crate) fn new(
        number: u32,
        plan: &Plan,
        version: Version,
        qos: QoS,
        limit: InFlightLimit,
        filler: &[u8],
    ) -> Result<Self, EncodeError> {
        let prepared = (0..plan.streams_of(number))
            .map(|i| {
                let topic = plan.topic_of(number + i * plan.publishers);
                Prepared::new(version, &topic, qos, false, filler)
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            number,
            conn: None,
            prepared,
            limit,
            due: 0,
            sent: 0,
            sent_before: 0,
            paused: false,
            queued: false,
        })
    }

    /// Sets the connection, and applies the broker's Receive Maximum.
    pub(crate) fn connected(&mut self, conn: usize, receive_maximum: u16) {
        self.conn = Some(conn);
        if let Some(ids) = self.ids() {
            ids.lower_limit(receive_maximum);
        }
    }

    #[inline]
    fn ids(&mut self) -> Option<&mut PacketIds> {
        match &mut self.limit {
            InFlightLimit::Acknowledgements(ids) => Some(ids),
            InFlightLimit::Open | InFlightLimit::Deliveries(_) => None,
        }
    }

    /// Adds one due message.
    pub(crate) fn add_due(&mut self) {
        self.due += 1;
    }

    /// Makes an unlimited number of messages due (closed loop).
    pub(crate) fn set_unlimited(&mut self) {
        self.due = u64::MAX;
    }

    /// Drops all due messages. Returns how many were due and not sent.
    pub(crate) fn stop(&mut self) -> u64 {
        match std::mem::take(&mut self.due) {
            u64::MAX => 0,
            due => due,
        }
    }

    /// Messages sent so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Messages sent and not acknowledged.
    pub(crate) fn unacknowledged(&self) -> usize {
        match &self.limit {
            InFlightLimit::Acknowledgements(ids) => ids.taken(),
            InFlightLimit::Open | InFlightLimit::Deliveries(_) => 0,
        }
    }

    /// Sends due messages as far as the in-flight limit and the connection allow. Calls `each` with the due time of
    /// every message sent.
    #[inline]
    pub(crate) fn send(&mut self, sending: &Sending<'_>, net: &mut Net, mut each: impl FnMut(u64)) {
        let Some(conn) = self.conn.filter(|conn| net.is_open(*conn)) else { return };
        self.paused = false;
        while self.due > 0 && net.pending_bytes(conn) < PENDING_BYTES_MAX {
            let n = self.sent;
            let Some(packet_id) = self.admit(n, sending.plan.copies()) else { return };
            let (stream, sequence) = sending.plan.place(self.number, n);
            let due_ns = sending.schedule.map_or(sending.now_ns, |schedule| schedule.due_ns(self.number, n));
            let prepared = &self.prepared[(stream / sending.plan.publishers) as usize];
            let stamp = Stamp { due_ns, stream, sequence };
            prepared.append(net.output(conn), packet_id, &stamp, sending.filler);
            self.sent += 1;
            if self.due != u64::MAX {
                self.due -= 1;
            }
            each(due_ns);
        }
        self.paused = self.due > 0;
    }

    /// Whether due messages wait for the connection's output to drain.
    #[inline]
    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Reserves an in-flight slot for message `n`. Returns its packet identifier, 0 at QoS 0; `None` if none is free.
    #[inline]
    fn admit(&mut self, n: u64, receivers: u32) -> Option<u16> {
        match &mut self.limit {
            InFlightLimit::Open => Some(0),
            InFlightLimit::Deliveries(windows) => {
                let window = &windows[self.number as usize];
                window.is_open(n).then(|| {
                    window.sent(n, receivers);
                    0
                })
            }
            InFlightLimit::Acknowledgements(ids) => ids.has_free().then(|| ids.take()),
        }
    }

    /// Handles PUBACK, or PUBREC with an error. Returns whether it was expected.
    #[inline]
    pub(crate) fn acknowledged(&mut self, packet_id: u16) -> bool {
        self.ids().is_some_and(|ids| ids.acknowledged(packet_id))
    }

    /// Handles PUBREC and appends PUBREL. Returns whether it was expected.
    #[inline]
    pub(crate) fn received(&mut self, packet_id: u16, out: &mut Vec<u8>) -> bool {
        let expected = self.ids().is_some_and(|ids| ids.received(packet_id));
        if expected {
            append_ack(out, PUBREL, packet_id);
        }
        expected
    }

    /// Handles PUBCOMP. Returns whether it was expected.
    #[inline]
    pub(crate) fn completed(&mut self, packet_id: u16) -> bool {
        self.ids().is_some_and(|ids| ids.completed(packet_id))
    }

    /// If the publisher waits for deliveries and sent nothing since the last call, writes them off as lost. Returns how
    /// many.
    pub(crate) fn write_off_stalled(&mut self) -> u64 {
        let stalled = self.sent == self.sent_before && self.due > 0;
        self.sent_before = self.sent;
        match &self.limit {
            InFlightLimit::Deliveries(windows) if stalled => windows[self.number as usize].write_off(),
            _ => 0,
        }
    }
}
