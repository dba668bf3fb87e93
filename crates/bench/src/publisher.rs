//! One publishing connection: what it owes, what it may send, what is unacknowledged.

use std::sync::Arc;

use mainstem_mqtt::EncodeError;
use mainstem_mqtt::packet::{QoS, Version};

use crate::flow::{DeliveryWindow, PacketIds};
use crate::net::Net;
use crate::plan::Plan;
use crate::schedule::Schedule;
use crate::wire::{PUBREL, Prepared, Stamp, append_ack};

/// Output that may wait on one connection before its publisher pauses.
const PENDING_BYTES_MAX: usize = 64 * 1024;

/// What limits the messages in flight.
#[derive(Debug)]
pub(crate) enum Gate {
    /// Nothing: QoS 0 on a schedule.
    Open,
    /// QoS 0 in a closed loop: the deliveries.
    Deliveries(Arc<[DeliveryWindow]>),
    /// QoS 1 and 2: the acknowledgements.
    Acknowledgements(PacketIds),
}

/// One publisher.
#[derive(Debug)]
pub(crate) struct Publisher {
    number: u32,
    /// Its connection; `None` until one is opened.
    conn: Option<usize>,
    prepared: Vec<Prepared>,
    gate: Gate,
    /// Messages due and not sent; all there are (`u64::MAX`) in a closed loop.
    owed: u64,
    sent: u64,
    /// `sent` when it was last looked whether anything moves.
    sent_before: u64,
    /// It has more to send once its connection's output has left.
    paused: bool,
    /// Listed among those that may have something to send.
    pub(crate) queued: bool,
}

/// What a publisher needs to know of the run to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending<'a> {
    pub(crate) plan: &'a Plan,
    /// The open loop's schedule; `None` in a closed loop, where messages are due when they can be sent.
    pub(crate) schedule: Option<&'a Schedule>,
    pub(crate) filler: &'a [u8],
    pub(crate) now_ns: u64,
}

impl Publisher {
    /// Publisher `number` of the plan.
    ///
    /// # Errors
    /// If its packets would be too large.
    pub(crate) fn new(
        number: u32,
        plan: &Plan,
        version: Version,
        qos: QoS,
        gate: Gate,
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
            gate,
            owed: 0,
            sent: 0,
            sent_before: 0,
            paused: false,
            queued: false,
        })
    }

    /// Its connection is `conn`, where the broker takes `receive_maximum` unacknowledged messages.
    pub(crate) fn connected(&mut self, conn: usize, receive_maximum: u16) {
        self.conn = Some(conn);
        if let Some(ids) = self.ids() {
            ids.lower_limit(receive_maximum);
        }
    }

    #[inline]
    fn ids(&mut self) -> Option<&mut PacketIds> {
        match &mut self.gate {
            Gate::Acknowledgements(ids) => Some(ids),
            Gate::Open | Gate::Deliveries(_) => None,
        }
    }

    /// One more message is due.
    pub(crate) fn owe_one(&mut self) {
        self.owed += 1;
    }

    /// Messages are due without end.
    pub(crate) fn owe_all(&mut self) {
        self.owed = u64::MAX;
    }

    /// Nothing more is due. How many messages were, and were not sent.
    pub(crate) fn stop(&mut self) -> u64 {
        match std::mem::take(&mut self.owed) {
            u64::MAX => 0,
            owed => owed,
        }
    }

    /// Messages sent so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Messages sent and not acknowledged.
    pub(crate) fn unacknowledged(&self) -> usize {
        match &self.gate {
            Gate::Acknowledgements(ids) => ids.taken(),
            Gate::Open | Gate::Deliveries(_) => 0,
        }
    }

    /// Sends what is due, as far as the gate and the connection allow. Calls `each` with the due moment of
    /// every message sent.
    #[inline]
    pub(crate) fn send(&mut self, sending: &Sending<'_>, net: &mut Net, mut each: impl FnMut(u64)) {
        let Some(conn) = self.conn.filter(|conn| net.is_open(*conn)) else { return };
        self.paused = false;
        while self.owed > 0 && net.pending_bytes(conn) < PENDING_BYTES_MAX {
            let n = self.sent;
            let Some(packet_id) = self.enter(n, sending.plan.copies()) else { return };
            let (stream, sequence) = sending.plan.place(self.number, n);
            let due_ns = sending.schedule.map_or(sending.now_ns, |schedule| schedule.due_ns(self.number, n));
            let prepared = &self.prepared[(stream / sending.plan.publishers) as usize];
            let stamp = Stamp { due_ns, stream, sequence };
            prepared.append(net.output(conn), packet_id, &stamp, sending.filler);
            self.sent += 1;
            if self.owed != u64::MAX {
                self.owed -= 1;
            }
            each(due_ns);
        }
        self.paused = self.owed > 0;
    }

    /// Whether it has more to send once its connection's output has left.
    #[inline]
    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Lets message `n` through the gate, if it is open. The packet identifier, 0 at QoS 0.
    #[inline]
    fn enter(&mut self, n: u64, receivers: u32) -> Option<u16> {
        match &mut self.gate {
            Gate::Open => Some(0),
            Gate::Deliveries(windows) => {
                let window = &windows[self.number as usize];
                window.is_open(n).then(|| {
                    window.sent(n, receivers);
                    0
                })
            }
            Gate::Acknowledgements(ids) => ids.has_free().then(|| ids.take()),
        }
    }

    /// PUBACK, or PUBREC with an error: the message is done with. Whether that was expected.
    #[inline]
    pub(crate) fn acknowledged(&mut self, packet_id: u16) -> bool {
        self.ids().is_some_and(|ids| ids.acknowledged(packet_id))
    }

    /// PUBREC: answers with PUBREL. Whether that was expected.
    #[inline]
    pub(crate) fn received(&mut self, packet_id: u16, out: &mut Vec<u8>) -> bool {
        let expected = self.ids().is_some_and(|ids| ids.received(packet_id));
        if expected {
            append_ack(out, PUBREL, packet_id);
        }
        expected
    }

    /// PUBCOMP: the message is done with. Whether that was expected.
    #[inline]
    pub(crate) fn completed(&mut self, packet_id: u16) -> bool {
        self.ids().is_some_and(|ids| ids.completed(packet_id))
    }

    /// Looks whether anything was sent since the last look. If not, and deliveries are what it waits for, they
    /// are taken for lost: how many.
    pub(crate) fn unstick(&mut self) -> u64 {
        let stuck = self.sent == self.sent_before && self.owed > 0;
        self.sent_before = self.sent;
        match &self.gate {
            Gate::Deliveries(windows) if stuck => windows[self.number as usize].write_off(),
            _ => 0,
        }
    }
}
