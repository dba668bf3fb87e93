//! What the oracle knows of one session: its subscriptions, what it is to get, and what is in flight to it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use mainstem_mqtt::{Publish, QoS, SubscribeOptions, Version};

use crate::kit::LinkId;
use crate::plan::{MessageId, Will};

/// Names one session of the run for ever.
pub(crate) type Serial = u32;

/// A subscription, plain or shared.
#[derive(Clone, Debug)]
pub(crate) struct Sub {
    pub(crate) options: SubscribeOptions,
    /// Subscription Identifier; 0 is none.
    pub(crate) id: u32,
    /// Number of the publication after which it was made.
    pub(crate) born: u64,
}

/// How one copy of a message should look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) qos: QoS,
    pub(crate) retain: bool,
    pub(crate) ids: Vec<u32>,
}

/// The copies of one message that a session is to get by its own subscriptions.
#[derive(Debug, Default)]
pub(crate) struct Expected {
    /// At least so many, and at most.
    pub(crate) lo: u32,
    pub(crate) hi: u32,
    pub(crate) got: u32,
    /// Copies among `lo` that are lost if the connection is.
    pub(crate) lo_qos0: u32,
    /// Copies among `hi` that only a walk through retained messages brings.
    pub(crate) walks: u32,
    pub(crate) shapes: Vec<Shape>,
    /// The broker may or may not have known of some subscription: any shape will do.
    pub(crate) is_vague: bool,
}

/// A walk through the retained messages for one new subscription.
#[derive(Debug)]
pub(crate) struct Walk {
    pub(crate) filter: &'static str,
    pub(crate) shape: Shape,
    /// The subscription has been made again since.
    pub(crate) is_vague: bool,
    /// Number of the UNSUBSCRIBE that ends it.
    pub(crate) ends: Option<u64>,
    /// Retained when it began, and not replaced since.
    pub(crate) due: BTreeMap<&'static str, MessageId>,
    /// All that it may bring.
    pub(crate) brings: BTreeSet<MessageId>,
}

/// What the client still has to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaits {
    PubAck,
    PubRec,
    PubComp,
}

/// A message in flight to the client.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) packet_id: u16,
    pub(crate) message: MessageId,
    pub(crate) awaits: Awaits,
    /// It was sent on the connection that there is now, if only as PUBREL.
    pub(crate) is_sent: bool,
    /// It was sent as PUBLISH there, and counts against Receive Maximum (4.9).
    pub(crate) counts: bool,
    /// It came by a shared subscription, perhaps, and may have gone to another member since.
    pub(crate) may_be_gone: bool,
    /// It is too large, perhaps, to be sent again: PUBREL comes instead.
    pub(crate) may_be_released: bool,
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) serial: Serial,
    pub(crate) client: usize,
    pub(crate) shard: usize,
    pub(crate) version: Version,
    pub(crate) link: Option<LinkId>,
    pub(crate) expiry_s: u32,
    pub(crate) gone_at_ms: u64,
    pub(crate) will: Option<Will>,
    pub(crate) will_due_ms: Option<u64>,
    pub(crate) inflight_max: usize,
    pub(crate) packet_max: usize,
    /// The smallest that it was since everything due had come.
    pub(crate) packet_max_least: usize,
    pub(crate) subs: BTreeMap<&'static str, Sub>,
    /// By name and filter.
    pub(crate) shares: BTreeMap<(&'static str, &'static str), Sub>,
    pub(crate) expected: BTreeMap<MessageId, Expected>,
    /// Copies that may wait in its queue.
    pub(crate) waiting_max: usize,
    /// Messages of QoS 0 may wait behind others: there was a walk since everything due had come.
    pub(crate) may_hold_back: bool,
    /// Its connection timed out in this turn of its shard: what else timed out then may have come before.
    pub(crate) is_just_lost: bool,
    /// Bytes of messages that it was offered in this turn of its shard.
    pub(crate) turn_bytes: usize,
    /// It has lost its connection, whose last output is yet to come: after that nothing in flight counts as
    /// sent.
    pub(crate) is_reset_due: bool,
    /// The connection that `flights` speaks of.
    pub(crate) heard: Option<LinkId>,
    pub(crate) flights: Vec<Flight>,
    pub(crate) walks: Vec<Walk>,
    /// QoS 2 identifiers of the client that it has not released.
    pub(crate) received: BTreeSet<u16>,
    /// Publisher, topic and QoS → number of the last publication that came by it.
    last: HashMap<(Serial, &'static str, QoS), u64>,
}

/// What a PUBLISH to a client was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copy {
    /// Sent before.
    Again,
    /// Due to a plain subscription, unless a shared one brought it.
    Own,
    /// More than its own subscriptions bring: by a shared subscription, if at all.
    Extra,
}

impl Session {
    pub(crate) fn new(serial: Serial, client: usize, shard: usize) -> Self {
        Self {
            serial,
            client,
            shard,
            version: Version::V4,
            link: None,
            expiry_s: 0,
            gone_at_ms: 0,
            will: None,
            will_due_ms: None,
            inflight_max: 0,
            packet_max: 0,
            packet_max_least: usize::MAX,
            subs: BTreeMap::new(),
            shares: BTreeMap::new(),
            expected: BTreeMap::new(),
            waiting_max: 0,
            may_hold_back: false,
            is_just_lost: false,
            turn_bytes: 0,
            is_reset_due: false,
            heard: None,
            flights: Vec::new(),
            walks: Vec::new(),
            received: BTreeSet::new(),
            last: HashMap::new(),
        }
    }

    pub(crate) fn is_persistent(&self) -> bool {
        self.expiry_s > 0
    }

    pub(crate) fn expect(&mut self, message: MessageId) -> &mut Expected {
        self.expected.entry(message).or_default()
    }

    /// Messages that were sent on this connection and whose exchange is not over.
    pub(crate) fn in_flight(&self) -> usize {
        self.flights.iter().filter(|flight| flight.counts).count()
    }

    /// Whether nothing holds the broker back from sending everything there is.
    pub(crate) fn has_room(&self) -> bool {
        self.in_flight() < self.inflight_max
    }

    /// Takes in a PUBLISH that the broker has sent.
    pub(crate) fn take(&mut self, publish: &Publish<'_>, message: MessageId, inflight_max: usize) -> Copy {
        if publish.qos != QoS::AtMostOnce && self.take_flight(publish, message, inflight_max) {
            return Copy::Again;
        }
        let expected = self.expected.entry(message).or_default();
        if expected.got == expected.hi {
            return Copy::Extra;
        }
        expected.got += 1;
        Copy::Own
    }

    /// True if it was in flight before, and is sent again on a new connection [MQTT-4.4.0-1].
    fn take_flight(&mut self, publish: &Publish<'_>, message: MessageId, inflight_max: usize) -> bool {
        let packet_id = publish.packet_id;
        let is_again = self.again(packet_id, publish.dup);
        let awaits = if publish.qos == QoS::AtLeastOnce { Awaits::PubAck } else { Awaits::PubRec };
        if is_again {
            let flight = self.flights.iter().find(|flight| flight.packet_id == packet_id).expect("found");
            assert!(publish.dup, "identifier {packet_id} is in use, or DUP is missing [MQTT-3.3.1-1]");
            assert_eq!(flight.message, message, "another message under identifier {packet_id}");
            assert_eq!(flight.awaits, awaits, "identifier {packet_id} comes back in another state");
        } else {
            assert!(!publish.dup, "DUP on identifier {packet_id}, which is sent for the first time");
            let flight = Flight {
                packet_id,
                message,
                awaits,
                is_sent: true,
                counts: true,
                may_be_gone: false,
                may_be_released: false,
            };
            self.flights.push(flight);
        }
        assert!(
            self.in_flight() <= inflight_max,
            "{} in flight, more than Receive Maximum {inflight_max} [MQTT-3.3.4-9]",
            self.in_flight(),
        );
        is_again
    }

    /// Whether a PUBLISH with this identifier is the next one to be sent again. Marks it as sent. What may have
    /// gone to another member is forgotten when something behind it comes.
    fn again(&mut self, packet_id: u16, dup: bool) -> bool {
        let is_next = |flight: &Flight| {
            let may_wait = flight.awaits == Awaits::PubComp || flight.may_be_released;
            !flight.is_sent && (flight.packet_id == packet_id || !(dup && may_wait))
        };
        while let Some(next) = self.flights.iter().position(is_next) {
            let flight = &mut self.flights[next];
            if flight.packet_id == packet_id && (dup || !flight.may_be_gone) {
                flight.is_sent = true;
                flight.counts = true;
                return true;
            }
            assert!(
                flight.may_be_gone,
                "identifier {packet_id} comes before {} was sent again [MQTT-4.6.0-1]",
                flight.packet_id
            );
            self.flights.remove(next);
        }
        assert!(
            self.flights.iter().all(|flight| flight.packet_id != packet_id),
            "identifier {packet_id} is in use [MQTT-2.2.1-4]"
        );
        false
    }

    /// Whether a PUBREL with this identifier is sent again after a reconnect. Marks it as sent.
    pub(crate) fn release_again(&mut self, packet_id: u16) -> bool {
        let may_be_next = |flight: &&mut Flight| {
            !flight.is_sent && (flight.awaits == Awaits::PubComp || flight.may_be_released)
        };
        let Some(flight) =
            self.flights.iter_mut().filter(may_be_next).find(|flight| flight.packet_id == packet_id)
        else {
            return false;
        };
        flight.is_sent = true;
        flight.counts = flight.awaits == Awaits::PubRec;
        flight.awaits = Awaits::PubComp;
        true
    }

    /// Checks the order of what one publisher sends to one topic [MQTT-4.6.0-5].
    pub(crate) fn check_order(&mut self, publisher: Serial, topic: &'static str, qos: QoS, number: u64) {
        let last = self.last.entry((publisher, topic, qos)).or_insert(0);
        assert!(*last <= number, "publication {number} to {topic:?} at {qos:?} comes after {last}");
        *last = number;
    }

    /// A PUBACK, PUBREC or PUBCOMP ends an exchange. False if no exchange waits for it.
    pub(crate) fn finish(&mut self, packet_id: u16, awaits: Awaits) -> bool {
        let before = self.flights.len();
        self.flights
            .retain(|flight| !(flight.packet_id == packet_id && flight.is_sent && flight.awaits == awaits));
        self.flights.len() < before
    }

    /// PUBREC. True if PUBREL is due without complaint.
    pub(crate) fn release(&mut self, packet_id: u16) -> bool {
        let flight = self.flights.iter_mut().find(|flight| flight.packet_id == packet_id && flight.is_sent);
        match flight {
            Some(flight) if flight.awaits != Awaits::PubAck => {
                flight.awaits = Awaits::PubComp;
                true
            }
            _ => false,
        }
    }

    /// At a moment when nothing moves and nothing holds the broker back: all that was due has come.
    pub(crate) fn check_drained(
        &mut self,
        is_due: impl Fn(MessageId, usize) -> bool,
        name: impl Fn(MessageId) -> String,
    ) {
        self.flights.retain(|flight| flight.is_sent || !flight.may_be_gone);
        assert!(self.flights.iter().all(|flight| flight.is_sent), "not sent again: {:?}", self.flights);
        for walk in std::mem::take(&mut self.walks) {
            for message in walk.due.into_values() {
                self.expect(message).lo += 1;
            }
        }
        for (message, expected) in std::mem::take(&mut self.expected) {
            assert!(
                expected.got >= expected.lo || !is_due(message, self.packet_max_least),
                "session {} of client {} got {} copies of {} and not {}",
                self.serial,
                self.client,
                expected.got,
                name(message),
                expected.lo
            );
        }
        self.waiting_max = 0;
        self.may_hold_back = false;
        self.packet_max_least = self.packet_max;
    }
}
