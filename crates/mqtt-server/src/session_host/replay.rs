//! What waits for sessions: messages to be sent again, retained messages, and their queues.
//!
//! A client that returns may have a million messages waiting, and one filter may match as many retained messages. They
//! are sent a bounded number per turn, and a session with more to send is continued in the next one, in turn with the
//! others. First comes what the client may have seen and not acknowledged, then retained messages, then the queue; that
//! of a durable session moves on while a replay of retained messages is not over.

use mainstem_mqtt::QoS;
use mainstem_runtime::Io;

use super::SessionHost;
use crate::broker_state::Mail;
use crate::journal::entry::Entry;
use crate::retained_replay::ReplayRoom;
use crate::session::delivery::SENT_AT_ONCE;
use crate::session::offer::Offer;

/// Batches of retained messages for one session in one turn.
const REPLAY_BATCHES_PER_TURN: u32 = 16;
/// Cost of sending a message from a queue or again, units.
const QUEUED_UNITS: u32 = 3;
/// Cost of reading a batch and of visiting a retained message, in units, visits for one unit, and bytes of the filter
/// for one unit.
const REPLAY_BATCH_UNITS: u32 = 5;
const VISITS_PER_UNIT: u32 = 2;
const REPLAY_BYTES_PER_UNIT: usize = 256;

impl SessionHost {
    /// Sends a session what waits for it: what must be sent again, retained messages, then its queue.
    #[inline]
    pub(crate) fn pump(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        if self.sessions.at(slot).has_waiting() {
            self.pump_waiting(io, slot);
        }
    }

    fn pump_waiting(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let sent_before = self.deliveries.counters().publish_sent;
        self.send_waiting(io, slot);
        io.charge((self.deliveries.counters().publish_sent - sent_before) as u32 * QUEUED_UNITS);
    }

    fn send_waiting(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let mut room = SENT_AT_ONCE;
        if self.deliveries.resend(io, &mut self.persistence, self.sessions.at(slot), &mut room) {
            self.send_queued(io, slot, &mut room);
        }
        if room == 0 {
            self.continue_in_next_turn(slot);
        }
    }

    fn send_queued(&mut self, io: &mut Io<'_, Mail>, slot: u32, room: &mut usize) {
        let is_over = self.replay_retained(io, slot);
        let session = self.sessions.at(slot);
        if is_over || session.is_durable() {
            let waited = session.queue_len();
            self.deliveries.drain_queue(io, &mut self.persistence, session, room);
            if !is_over && session.queue_len() < waited && session.retained_replay_room() > 0 {
                // What has left may be QoS 0, and no acknowledgement would continue the replay.
                self.continue_in_next_turn(slot);
            }
        }
        self.pump_queues(io, slot);
    }

    /// Continues what a session is sent in the next turn.
    fn continue_in_next_turn(&mut self, slot: u32) {
        let session = self.sessions.at(slot);
        if session.ext().retained.schedule() {
            self.continuing.add(session.key());
        }
    }

    /// Continues the replays of retained messages to a session. True if there are none left.
    fn replay_retained(&mut self, io: &mut Io<'_, Mail>, slot: u32) -> bool {
        if self.sessions.at(slot).ext_ref().is_none_or(|ext| ext.retained.is_empty()) {
            return true;
        }
        let session_bytes_max = self.config().max_session_bytes;
        let mut found = Vec::new();
        for _ in 0..REPLAY_BATCHES_PER_TURN {
            let session = self.sessions.at(slot);
            let window = session.retained_replay_room();
            let has_window = if session.is_durable() { window > 0 } else { session.has_window_room() }
                && session.has_room_in_flight(1, session_bytes_max);
            let room = ReplayRoom { has_window, window, has_output: io.has_ample_room(session.conn()) };
            let replays = &mut session.ext().retained;
            if replays.is_empty() {
                return true;
            }
            let read = replays.read(&self.shared.retained, room, io.clock.now_ms, &mut found);
            session.update_charge();
            let Some(batch) = read else { return false };
            for message in found.drain(..) {
                if self.shared.routes.is_write_only(message.topic()) {
                    continue;
                }
                let offer = Offer {
                    message: &message,
                    qos: message.qos.min(batch.options.qos),
                    retain: true,
                    ids: if batch.id == 0 { &[] } else { std::slice::from_ref(&batch.id) },
                    group: None,
                    is_replayed: true,
                    is_fan_out: false,
                };
                self.deliveries.offer(io, &mut self.persistence, self.sessions.at(slot), &offer);
                self.append_replayed(&message, &batch.filter);
            }
            if batch.is_last
                && batch.options.qos > QoS::AtMostOnce
                && let Some((mut journal, session)) = self.journal(slot)
            {
                journal.push(&Entry::ReplayEnds { session, filter: &batch.filter });
            }
            // Retained messages do not count for the pressure on publishers.
            self.deliveries.take_tally();
            let filter_units = (batch.filter.len() / REPLAY_BYTES_PER_UNIT) as u32;
            io.charge(REPLAY_BATCH_UNITS + batch.visited / VISITS_PER_UNIT + filter_units);
            if io.is_exhausted() {
                break;
            }
        }
        if self.sessions.at(slot).ext().retained.is_empty() {
            return true;
        }
        self.continue_in_next_turn(slot);
        false
    }

    /// Continues with the sessions that have more to be sent, as far as the turn allows.
    pub(crate) fn pump_continuing(&mut self, io: &mut Io<'_, Mail>) {
        // Those that go on are added at the end, for the next turn.
        for _ in 0..self.continuing.len() {
            let Some(key) = self.continuing.next() else { break };
            if let Some(session) = self.sessions.get(key) {
                session.ext().retained.unschedule();
                self.pump(io, key.slot);
            }
            if io.is_exhausted() {
                break;
            }
        }
    }

    /// Whether there is more to do in the next turn.
    pub(crate) fn has_more_to_do(&self) -> bool {
        self.continuing.len() > 0 || !self.fan_outs.is_empty() || self.endings.first_subscribed().is_some()
    }
}
