//! Deliveries on their way into the window of a session and out of it, and the marks in the journal that record it.
//!
//! Memory and journal must agree on which deliveries are unsettled, or a restart would repeat or lose one. So whatever
//! puts a delivery into the window, or takes it out, is here, together with what it leaves in the journal. A mark that
//! a crash loses repeats a delivery that the client has acknowledged, which QoS 1 allows and QoS 2 clients recognize by
//! its packet identifier.

use mainstem_mqtt::QoS;
use mainstem_mqtt::session::Pending;

use super::offer::{Delivery, Offer, Place};
use super::{Session, packet_id_of};
use crate::journal::entry::Mark;
use crate::persistence::Persistence;

/// A delivery is over without having been acknowledged: the journal need not keep it.
pub(crate) fn settle_in_journal(persistence: &mut Persistence, session: &Session, delivery: &Delivery) {
    if delivery.sequence > 0 {
        persistence
            .journal(session.journal)
            .mark(Mark::Settled { session: session.number, sequence: delivery.sequence });
    }
}

/// PUBREC has come, or counts as come: what is left of the exchange is PUBREL and PUBCOMP.
pub(crate) fn release_delivery(
    persistence: &mut Persistence,
    session: &mut Session,
    packet_id: u16,
    delivery: &Delivery,
) {
    if delivery.sequence == 0 {
        return;
    }
    if delivery.message.is_some() {
        persistence
            .journal(session.journal)
            .mark(Mark::Released { session: session.number, sequence: delivery.sequence });
    }
    let Delivery { sequence, offset, qos, retain, .. } = *delivery;
    session.window.keep(packet_id, Delivery { message: None, sequence, offset, qos, retain, extra: None });
}

/// Adds a session to the receivers of the current message in its journal.
pub(super) fn append_delivery(
    session: &mut Session,
    persistence: &mut Persistence,
    offer: &Offer<'_>,
) -> Place {
    let mut journal = persistence.journal(session.journal);
    let group = offer.group.map(|group| &**group);
    journal.add_receiver(session.number, offer.qos, offer.retain, offer.ids, group);
    session.sequence += 1;
    Place { sequence: session.sequence, offset: journal.next_offset() }
}

/// Puts a message that is sent at once into the window. Returns its packet identifier.
#[inline]
pub(super) fn put_into_window(
    session: &mut Session,
    persistence: &mut Persistence,
    offer: &Offer<'_>,
    now_ms: u64,
) -> u16 {
    if session.window.in_flight() == 0 {
        session.progress_ms = now_ms;
    }
    if session.is_persistent() || offer.group.is_some() {
        return keep_in_window(session, persistence, offer);
    }
    // Nobody would get it again.
    session.window.send(awaited(offer.qos), None)
}

/// Puts a message into the window that has to be sent again if the connection is lost.
fn keep_in_window(session: &mut Session, persistence: &mut Persistence, offer: &Offer<'_>) -> u16 {
    let pending = awaited(offer.qos);
    if !session.is_durable() {
        let delivery = offer.into_delivery(Place::default());
        session.count_in_flight(&delivery);
        return session.window.send(pending, Some(delivery));
    }
    let place = append_delivery(session, persistence, offer);
    let packet_id = packet_id_of(place.sequence);
    let delivery = offer.into_delivery(place);
    session.count_in_flight(&delivery);
    session.window.send_as(packet_id, pending, Some(delivery));
    let mark = Mark::Sent { session: session.number, sequence: place.sequence };
    persistence.journal(session.journal).mark(mark);
    packet_id
}

/// A delivery leaves the queue for the client. Returns its packet identifier; 0 for QoS 0.
pub(super) fn take_into_window(
    session: &mut Session,
    persistence: &mut Persistence,
    delivery: Delivery,
) -> u16 {
    let mut mark = |mark: fn(u32, u64) -> Mark| {
        if delivery.sequence > 0 {
            persistence.journal(session.journal).mark(mark(session.number, delivery.sequence));
        }
    };
    if delivery.qos == QoS::AtMostOnce {
        mark(|session, sequence| Mark::Settled { session, sequence });
        session.settle(&delivery);
        return 0;
    }
    mark(|session, sequence| Mark::Sent { session, sequence });
    let pending = awaited(delivery.qos);
    if delivery.sequence > 0 {
        let packet_id = packet_id_of(delivery.sequence);
        session.count_in_flight(&delivery);
        session.window.send_as(packet_id, pending, Some(delivery));
        return packet_id;
    }
    let keep = session.is_persistent() || delivery.group().is_some();
    let delivery = keep.then_some(delivery);
    if let Some(delivery) = &delivery {
        session.count_in_flight(delivery);
    }
    session.window.send(pending, delivery)
}

fn awaited(qos: QoS) -> Pending {
    if qos == QoS::AtLeastOnce { Pending::PubAck } else { Pending::PubRec }
}
