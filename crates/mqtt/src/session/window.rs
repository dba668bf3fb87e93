//! The sender side of QoS 1 and 2: messages in flight, in the order they were sent.
//!
//! ```text
//!                 PUBACK (QoS 1), PUBREC with an error
//!   AwaitPubAck ───────────────────────────────────────► done
//!   AwaitPubRec ──PUBREC──► AwaitPubComp ──PUBCOMP─────► done   (or PUBREC with an error)
//! ```
//! Packet identifiers are assigned in sequence, so an identifier is also an index: slot *i* holds identifier `first +
//! i`, and an acknowledgement finds its slot without a search. Finished slots are removed from the front. After a
//! reconnect, unacknowledged messages are sent again in their original order before any new one [MQTT-4.4.0-1].

use std::collections::VecDeque;

/// Highest packet identifier that a window assigns; the next one is 1. Higher identifiers are reserved for exchanges
/// that are tracked outside the window.
pub const LAST_ID: u16 = 0xBFFF;
/// Maximum number of slots between the oldest unacknowledged message and the newest. If one message is never
/// acknowledged, the session stalls after this many later ones.
const SPAN_MAX: usize = 16 * 1024;

/// The acknowledgement that a slot waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pending {
    /// None: the exchange is finished, but an older one is not.
    Nothing,
    /// PUBACK for a QoS 1 publish.
    PubAck,
    /// PUBREC for a QoS 2 publish.
    PubRec,
    /// PUBCOMP for a PUBREL.
    PubComp,
}

#[derive(Debug)]
struct Slot<M> {
    pending: Pending,
    /// Whether it was sent on this connection.
    sent: bool,
    /// Whether it counts against Receive Maximum: its PUBLISH was sent on this connection.
    counted: bool,
    /// The message, if it may have to be resent.
    message: Option<M>,
}

/// The effect of an acknowledgement.
#[derive(Debug, PartialEq, Eq)]
pub enum Acked<M> {
    /// The exchange is finished. Contains the message, if it was stored.
    Done(Option<M>),
    /// PUBREC was accepted and PUBREL must be sent. The message is no longer needed.
    Release(Option<M>),
    /// The identifier is not in flight, or it waits for a different packet type.
    Unknown,
}

/// A packet to resend after a reconnect [MQTT-4.4.0-1].
#[derive(Debug, PartialEq, Eq)]
pub enum Resend<'a, M> {
    /// PUBLISH with DUP set and the same identifier.
    Publish(u16, &'a M),
    /// PUBREL with the same identifier.
    Release(u16),
}

/// Messages in flight to one client.
///
/// `M` is the message as stored for resending. A session that ends with its connection stores none. An empty window
/// owns no memory.
#[derive(Debug)]
pub struct Window<M> {
    /// Packet identifier of the first slot.
    first: u16,
    slots: VecDeque<Slot<M>>,
    /// Number of unfinished slots whose PUBLISH was sent on this connection.
    in_flight: u16,
    /// All slots before this one were sent on this connection. Less than the number of slots only after a reconnect.
    resend_from: usize,
}

impl<M> Default for Window<M> {
    fn default() -> Self {
        Self { first: 1, slots: VecDeque::new(), in_flight: 0, resend_from: 0 }
    }
}

/// The identifier after at most [`SPAN_MAX`] steps, with wraparound.
#[inline]
fn id_after(id: u16, steps: usize) -> u16 {
    debug_assert!(steps <= SPAN_MAX);
    let (id, last) = (usize::from(id) + steps, usize::from(LAST_ID));
    (if id > last { id - last } else { id }) as u16
}

/// Number of steps from one identifier to another, with wraparound.
#[inline]
fn steps(from: u16, to: u16) -> usize {
    usize::from(if to >= from { to - from } else { LAST_ID - (from - to) })
}

/// Whether a slot still has to be resent.
fn is_unsent<M>(slot: &Slot<M>) -> bool {
    !slot.sent && slot.pending != Pending::Nothing
}

impl<M> Window<M> {
    /// Returns the number of messages sent on this connection and not acknowledged.
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// Returns whether no message waits for an acknowledgement.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns whether nothing has to be resent.
    #[inline]
    pub fn is_sent(&self) -> bool {
        self.resend_from == self.slots.len()
    }

    /// Returns whether another message may be sent, with at most `maximum` in flight.
    pub fn has_room(&self, maximum: u16) -> bool {
        self.in_flight < maximum && self.slots.len() < SPAN_MAX && self.resend_from == self.slots.len()
    }

    /// Adds a message that is about to be sent and waits for `pending`. Returns its packet identifier.
    ///
    /// Call only if [`Window::has_room`] returns true.
    pub fn send(&mut self, pending: Pending, message: Option<M>) -> u16 {
        debug_assert!(matches!(pending, Pending::PubAck | Pending::PubRec));
        debug_assert!(self.slots.len() < SPAN_MAX && self.resend_from == self.slots.len());
        let id = id_after(self.first, self.slots.len());
        self.slots.push_back(Slot { pending, sent: true, counted: true, message });
        self.resend_from = self.slots.len();
        self.in_flight += 1;
        id
    }

    /// Like [`Window::has_room`], for a message whose identifier must be `packet_id`. The identifiers between the
    /// newest one in flight and `packet_id` are skipped, and count toward the span like finished ones.
    pub fn has_room_for(&self, packet_id: u16, maximum: u16) -> bool {
        let ahead = if self.slots.is_empty() { 0 } else { steps(self.first, packet_id) };
        self.in_flight < maximum
            && (self.slots.len()..SPAN_MAX).contains(&ahead)
            && self.resend_from == self.slots.len()
    }

    /// Adds a message with an identifier that was chosen earlier and that waits for `pending`.
    ///
    /// Call only if [`Window::has_room_for`] returns true.
    pub fn send_as(&mut self, packet_id: u16, pending: Pending, message: Option<M>) {
        self.skip_to(packet_id);
        let id = self.send(pending, message);
        debug_assert_eq!(id, packet_id);
    }

    /// Adds a message that was sent on an earlier connection and must be resent.
    pub fn restore(&mut self, packet_id: u16, pending: Pending, message: Option<M>) {
        debug_assert!(self.in_flight == 0 && self.resend_from == 0);
        self.skip_to(packet_id);
        self.slots.push_back(Slot { pending, sent: false, counted: false, message });
        self.resend_from = 0;
    }

    /// Adds finished slots until `packet_id` is the next identifier.
    fn skip_to(&mut self, packet_id: u16) {
        if self.slots.is_empty() {
            self.first = packet_id;
            return;
        }
        let ahead = steps(self.first, packet_id);
        debug_assert!((self.slots.len()..SPAN_MAX).contains(&ahead));
        let all_resent = self.resend_from == self.slots.len();
        let skipped = || Slot { pending: Pending::Nothing, sent: false, counted: false, message: None };
        self.slots.resize_with(ahead, skipped);
        if all_resent {
            self.resend_from = ahead;
        }
    }

    /// Stores `message` until the exchange is finished, in place of the one that [`Window::pubrec`] returned.
    pub fn keep(&mut self, packet_id: u16, message: M) {
        if let Some(slot) = self.slot(packet_id) {
            slot.message = Some(message);
        }
    }

    /// Handles PUBACK.
    #[inline]
    pub fn puback(&mut self, packet_id: u16) -> Acked<M> {
        self.finish(packet_id, Pending::PubAck)
    }

    /// Handles PUBREC. With `error` (MQTT 5, reason code 0x80 or above) the exchange is finished [MQTT-4.3.3-4], even
    /// if an earlier PUBREC had none.
    pub fn pubrec(&mut self, packet_id: u16, error: bool) -> Acked<M> {
        if error {
            let was_received = self.slot(packet_id).is_some_and(|slot| slot.pending == Pending::PubComp);
            return self.finish(packet_id, if was_received { Pending::PubComp } else { Pending::PubRec });
        }
        match self.slot(packet_id) {
            Some(slot) if slot.pending == Pending::PubRec => {
                slot.pending = Pending::PubComp;
                Acked::Release(slot.message.take())
            }
            // A client that did not receive the PUBREL repeats its PUBREC.
            Some(slot) if slot.pending == Pending::PubComp => Acked::Release(None),
            _ => Acked::Unknown,
        }
    }

    /// Handles PUBCOMP.
    pub fn pubcomp(&mut self, packet_id: u16) -> Acked<M> {
        self.finish(packet_id, Pending::PubComp)
    }

    #[inline]
    fn index(&self, packet_id: u16) -> Option<usize> {
        if !(1..=LAST_ID).contains(&packet_id) {
            return None;
        }
        let index = steps(self.first, packet_id);
        // A message that was not sent on this connection cannot be acknowledged on it.
        self.slots.get(index).is_some_and(|slot| slot.sent).then_some(index)
    }

    fn slot(&mut self, packet_id: u16) -> Option<&mut Slot<M>> {
        let index = self.index(packet_id)?;
        self.slots.get_mut(index)
    }

    fn finish(&mut self, packet_id: u16, expected: Pending) -> Acked<M> {
        let Some(index) = self.index(packet_id) else { return Acked::Unknown };
        let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.pending == expected) else {
            return Acked::Unknown;
        };
        slot.pending = Pending::Nothing;
        let message = slot.message.take();
        self.in_flight -= u16::from(slot.counted);
        if index == 0 {
            self.pop_finished();
        }
        Acked::Done(message)
    }

    fn pop_finished(&mut self) {
        while self.slots.front().is_some_and(|slot| slot.pending == Pending::Nothing) {
            self.slots.pop_front();
            self.first = id_after(self.first, 1);
            self.resend_from = self.resend_from.saturating_sub(1);
        }
    }

    /// Called when the connection is lost. Everything in flight must be resent on the next one.
    pub fn disconnected(&mut self) {
        self.in_flight = 0;
        self.resend_from = 0;
        for slot in &mut self.slots {
            (slot.sent, slot.counted) = (false, false);
        }
        // Finished slots at the back would otherwise look as if something were left to resend.
        while self.slots.back().is_some_and(|slot| slot.pending == Pending::Nothing) {
            self.slots.pop_back();
        }
        self.slots.shrink_to_fit();
    }

    /// Returns the next packet to resend, in the original order.
    ///
    /// A PUBLISH is held back while `maximum` messages are in flight. A PUBREL neither waits for quota [MQTT-3.3.4-10]
    /// nor uses any, since the quota is reset with each connection (4.9).
    pub fn next_resend(&mut self, maximum: u16) -> Option<Resend<'_, M>> {
        let (first, from) = (self.first, self.resend_from);
        let has_quota = self.in_flight < maximum;
        let is_next = |slot: &Slot<M>| is_unsent(slot) && (has_quota || slot.pending == Pending::PubComp);
        let next = from + self.slots.range(from..).position(is_next)?;
        let is_release = self.slots[next].pending == Pending::PubComp;
        self.slots[next].sent = true;
        self.slots[next].counted = !is_release;
        self.in_flight += u16::from(!is_release);
        self.resend_from =
            self.slots.range(from..).position(is_unsent).map_or(self.slots.len(), |ahead| from + ahead);
        let packet_id = id_after(first, next);
        if is_release {
            return Some(Resend::Release(packet_id));
        }
        self.slots[next].message.as_ref().map(|message| Resend::Publish(packet_id, message))
    }

    /// Removes and returns the stored messages for which `take` returns true, and finishes their slots.
    ///
    /// Messages whose PUBREC was received are no longer stored and are not offered. Used to redeliver the messages of a
    /// shared subscription to other members after the connection is lost.
    pub fn take_messages(&mut self, mut take: impl FnMut(&M, Pending) -> bool) -> Vec<M> {
        let mut taken = Vec::new();
        for slot in &mut self.slots {
            if slot.message.as_ref().is_some_and(|message| take(message, slot.pending)) {
                slot.pending = Pending::Nothing;
                taken.extend(slot.message.take());
                self.in_flight -= u16::from(slot.counted);
            }
        }
        self.pop_finished();
        taken
    }

    /// Returns the stored messages, oldest first, and the acknowledgement each waits for.
    pub fn messages(&self) -> impl Iterator<Item = (&M, Pending)> {
        self.slots.iter().filter_map(|slot| Some((slot.message.as_ref()?, slot.pending)))
    }

    /// Like [`messages`](Self::messages), with mutable access.
    pub fn messages_mut(&mut self) -> impl Iterator<Item = (&mut M, Pending)> {
        self.slots.iter_mut().filter_map(|slot| Some((slot.message.as_mut()?, slot.pending)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_pubrec_with_an_error_finishes_the_exchange_at_any_stage() {
        let mut window = Window::<()>::default();
        let one = window.send(Pending::PubRec, None);
        let two = window.send(Pending::PubRec, None);
        assert_eq!(window.pubrec(one, true), Acked::Done(None));
        assert_eq!(window.pubrec(one, true), Acked::Unknown);
        assert_eq!(window.pubrec(two, false), Acked::Release(None));
        assert_eq!(window.pubrec(two, true), Acked::Done(None));
        assert_eq!(window.pubcomp(two), Acked::Unknown);
    }

    #[test]
    fn identifiers_wrap_around_to_one() {
        let mut window = Window::<()>::default();
        for round in 0..70_000_u32 {
            let id = window.send(Pending::PubAck, None);
            assert_eq!(u32::from(id), round % u32::from(LAST_ID) + 1);
            assert_eq!(window.puback(id), Acked::Done(None));
        }
        assert!(window.is_empty());
    }

    #[test]
    fn unexpected_acknowledgement_changes_nothing() {
        let mut window = Window::<()>::default();
        let one = window.send(Pending::PubAck, None);
        let two = window.send(Pending::PubRec, None);
        assert_eq!(window.pubcomp(two), Acked::Unknown);
        assert_eq!(window.puback(two), Acked::Unknown);
        assert_eq!(window.pubrec(one, false), Acked::Unknown);
        assert_eq!(window.puback(0), Acked::Unknown);
        assert_eq!(window.puback(77), Acked::Unknown);
        assert_eq!(
            window.puback(LAST_ID + one),
            Acked::Unknown,
            "identifier outside the range of the window"
        );
        assert_eq!(window.in_flight(), 2);
        assert_eq!(window.pubrec(two, false), Acked::Release(None));
        assert_eq!(
            window.pubrec(two, false),
            Acked::Release(None),
            "a repeated PUBREC is answered with PUBREL again"
        );
        assert_eq!(window.pubcomp(two), Acked::Done(None));
        assert_eq!(window.puback(one), Acked::Done(None));
        assert!(window.is_empty());
    }

    #[test]
    fn unacknowledged_message_stalls_the_window_after_the_maximum_span() {
        let mut window = Window::<()>::default();
        let stuck = window.send(Pending::PubAck, None);
        let mut passed = 0;
        while window.has_room(2) {
            let id = window.send(Pending::PubAck, None);
            assert_ne!(id, stuck);
            assert_eq!(window.puback(id), Acked::Done(None));
            passed += 1;
        }
        assert_eq!(passed, SPAN_MAX - 1);
        assert_eq!(window.puback(stuck), Acked::Done(None));
        assert!(window.is_empty() && window.has_room(2));
    }

    /// A list as model of the window: identifier, pending, message, sent on this connection, counted.
    #[derive(Default)]
    struct Model {
        flight: Vec<(u16, Pending, u32, bool, bool)>,
    }

    #[derive(Clone, Debug)]
    enum Step {
        Send(bool),
        PubAck(usize),
        PubRec(usize, bool),
        PubComp(usize),
        Reconnect,
        Resend,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => any::<bool>().prop_map(Step::Send),
            3 => (0_usize..8).prop_map(Step::PubAck),
            3 => ((0_usize..8), any::<bool>()).prop_map(|(at, error)| Step::PubRec(at, error)),
            3 => (0_usize..8).prop_map(Step::PubComp),
            1 => Just(Step::Reconnect),
            3 => Just(Step::Resend),
        ]
    }

    const MAXIMUM: u16 = 5;

    proptest! {
        #[test]
        fn agrees_with_a_list(steps in prop::collection::vec(step(), 0..400)) {
            let mut window = Window::default();
            let mut model = Model::default();
            let mut next_message = 0_u32;
            for step in steps {
                let resent = model.flight.iter().all(|entry| entry.3);
                let in_flight = model.flight.iter().filter(|entry| entry.4).count();
                prop_assert_eq!(usize::from(window.in_flight()), in_flight);
                prop_assert_eq!(window.has_room(MAXIMUM), resent && in_flight < usize::from(MAXIMUM));
                match step {
                    Step::Send(two) if window.has_room(MAXIMUM) => {
                        let pending = if two { Pending::PubRec } else { Pending::PubAck };
                        let id = window.send(pending, Some(next_message));
                        prop_assert!(model.flight.iter().all(|entry| entry.0 != id), "identifier in use");
                        model.flight.push((id, pending, next_message, true, true));
                        next_message += 1;
                    }
                    Step::Send(_) => {}
                    Step::PubAck(at) => {
                        let Some(entry) = model.flight.get(at).copied() else { continue };
                        let is_expected = entry.3 && entry.1 == Pending::PubAck;
                        let expected = if is_expected { Acked::Done(Some(entry.2)) } else { Acked::Unknown };
                        prop_assert_eq!(window.puback(entry.0), expected);
                        if is_expected { model.flight.remove(at); }
                    }
                    Step::PubRec(at, error) => {
                        let Some(entry) = model.flight.get(at).copied() else { continue };
                        let expected = match (entry.3, entry.1, error) {
                            (true, Pending::PubRec, true) => Acked::Done(Some(entry.2)),
                            (true, Pending::PubRec, false) => Acked::Release(Some(entry.2)),
                            (true, Pending::PubComp, false) => Acked::Release(None),
                            (true, Pending::PubComp, true) => Acked::Done(None),
                            _ => Acked::Unknown,
                        };
                        match &expected {
                            Acked::Done(_) => { model.flight.remove(at); }
                            Acked::Release(_) => model.flight[at].1 = Pending::PubComp,
                            Acked::Unknown => {}
                        }
                        prop_assert_eq!(window.pubrec(entry.0, error), expected);
                    }
                    Step::PubComp(at) => {
                        let Some(entry) = model.flight.get(at).copied() else { continue };
                        let is_expected = entry.3 && entry.1 == Pending::PubComp;
                        let expected = if is_expected { Acked::Done(None) } else { Acked::Unknown };
                        prop_assert_eq!(window.pubcomp(entry.0), expected);
                        if is_expected { model.flight.remove(at); }
                    }
                    Step::Reconnect => {
                        window.disconnected();
                        model.flight.iter_mut().for_each(|entry| (entry.3, entry.4) = (false, false));
                    }
                    Step::Resend => {
                        let has_quota = in_flight < usize::from(MAXIMUM);
                        let expected = model
                            .flight
                            .iter_mut()
                            .find(|entry| !entry.3 && (has_quota || entry.1 == Pending::PubComp));
                        match (window.next_resend(MAXIMUM), expected) {
                            (None, None) => {}
                            (Some(Resend::Release(id)), Some(entry)) => {
                                prop_assert_eq!((id, Pending::PubComp), (entry.0, entry.1));
                                entry.3 = true;
                            }
                            (Some(Resend::Publish(id, message)), Some(entry)) => {
                                prop_assert_eq!((id, *message), (entry.0, entry.2));
                                prop_assert!(entry.1 != Pending::PubComp);
                                (entry.3, entry.4) = (true, true);
                            }
                            (got, expected) => prop_assert!(false, "{:?} instead of {:?}", got, expected),
                        }
                    }
                }
            }
        }
    }
}
