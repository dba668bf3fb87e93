//! A client: its half of the session, and what it has yet to do.

use std::collections::BTreeSet;

use mainstem_mqtt::{QoS, Version};

use crate::kit::{LinkId, Random};
use crate::plan::{MessageId, Op};
use crate::session::Serial;

/// Packets that a client has in flight at most.
const OUTGOING_MAX: usize = 20;
/// Packet identifiers that clients use; the broker's own never come near those above.
const PACKET_IDS: u16 = 500;

/// A publish on its way to the broker.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) packet_id: u16,
    pub(crate) message: MessageId,
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// PUBLISH sent.
    Published,
    /// PUBREC has come.
    OwesRelease,
    /// PUBREL sent.
    Released,
}

/// How a client behaves all through a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manners {
    pub(crate) version: Version,
    /// Acknowledges in the order of arrival.
    pub(crate) is_orderly: bool,
    /// Acknowledges seldom.
    pub(crate) is_lazy: bool,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) manners: Manners,
    pub(crate) link: Option<LinkId>,
    /// CONNACK has come.
    pub(crate) is_up: bool,
    pub(crate) outgoing: Vec<Outgoing>,
    /// Acknowledgements that it has to send.
    pub(crate) owed: Vec<Op>,
    /// QoS 2 identifiers that it has received and that were not released.
    pub(crate) held: BTreeSet<u16>,
    /// The session that it believes to have.
    serial: Option<Serial>,
    next_id: u16,
}

impl Client {
    pub(crate) fn new(random: &mut Random) -> Self {
        let manners = Manners {
            version: random.pick(&[
                Version::V3,
                Version::V4,
                Version::V4,
                Version::V5,
                Version::V5,
                Version::V5,
            ]),
            is_orderly: random.one_in(2),
            is_lazy: random.one_in(3),
        };
        Self {
            manners,
            link: None,
            is_up: false,
            outgoing: Vec::new(),
            owed: Vec::new(),
            held: BTreeSet::new(),
            serial: None,
            next_id: 0,
        }
    }

    pub(crate) fn packet_id(&mut self) -> u16 {
        loop {
            self.next_id = self.next_id % PACKET_IDS + 1;
            if self.outgoing.iter().all(|known| known.packet_id != self.next_id) {
                return self.next_id;
            }
        }
    }

    pub(crate) fn may_publish(&self) -> bool {
        self.outgoing.len() < OUTGOING_MAX
    }

    /// Takes out the next acknowledgement that it sends.
    pub(crate) fn pay(&mut self, random: &mut Random) -> Option<Op> {
        if self.owed.is_empty() {
            return None;
        }
        let index = if self.manners.is_orderly { 0 } else { random.below(self.owed.len()) };
        let op = self.owed.remove(index);
        if let Op::PubRec { packet_id, is_error: true } = op {
            // That is the end of it [MQTT-4.3.3-4].
            self.held.remove(&packet_id);
        }
        Some(op)
    }

    /// The connection has gone.
    pub(crate) fn lose(&mut self) {
        self.link = None;
        self.is_up = false;
        self.owed.clear();
    }

    /// CONNACK has come: what is to be sent again. Which session it speaks of is more than Session Present
    /// tells: the CONNACK of a session in between may have been lost.
    pub(crate) fn welcome(&mut self, serial: Serial) -> Vec<Outgoing> {
        self.is_up = true;
        self.owed.clear();
        if self.serial.replace(serial) != Some(serial) {
            self.outgoing.clear();
            self.held.clear();
        }
        self.outgoing.clone()
    }

    pub(crate) fn on_puback(&mut self, packet_id: u16) {
        self.outgoing.retain(|known| known.packet_id != packet_id);
    }

    pub(crate) fn on_pubrec(&mut self, packet_id: u16) {
        for known in self.outgoing.iter_mut().filter(|known| known.packet_id == packet_id) {
            known.stage = Stage::OwesRelease;
        }
    }

    /// A PUBLISH with QoS 2 has come: true if it is new.
    pub(crate) fn on_publish(&mut self, packet_id: u16, dup: bool) {
        let is_new = self.held.insert(packet_id);
        assert!(
            is_new || dup,
            "a new message under identifier {packet_id}, which was not released [MQTT-4.3.3-5]"
        );
    }
}
