//! PUBLISH on its way to the sessions of a shard, and its acknowledgement.
//!
//! The shard where a message arrives matches it once, for all shards. It offers the message to its own sessions, picks
//! a member of each group, appends one journal entry for all durable receivers, and only then sends it to other shards,
//! which do the same with the result of the match. So the work per message does not grow with the number of shards that
//! have no subscriber, and no shard waits for another.

use std::sync::Arc;

use mainstem_mqtt::{Publish, QoS, ReasonCode, Version};
use mainstem_runtime::Io;

use super::SessionHost;
use crate::broker_state::{Mail, PublishMail};
use crate::counters::DropReason;
use crate::handled::{Handled, Next, ProtocolError};
use crate::message::Message;
use crate::pending_acks::{AckCondition, AckKind, AckToken};
use crate::publication::{GroupContext, PUBACK, PUBREC, PublishContext};
use crate::routes::Matched;

/// What became of a message that is to be retained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retained {
    /// It has to be made durable.
    Changed,
    /// Nothing has to be made durable.
    Unchanged,
    /// There is no room for it, in memory or on disk.
    Refused,
}

/// Bytes that are copied for one unit.
pub(crate) const BYTES_PER_UNIT: usize = 1024;

/// Where a message went.
pub(crate) struct Routed {
    pub(crate) matched: Arc<Matched>,
    /// False if the message was to be retained and there is no room for it.
    pub(crate) is_retained: bool,
    /// How many other shards will report that their part is durable.
    pub(crate) receipts: u32,
}

impl SessionHost {
    /// Retains a message if it is to be retained, and routes it to its subscribers on all shards.
    pub(crate) fn route(
        &mut self,
        io: &mut Io<'_, Mail>,
        message: &Arc<Message>,
        retain: bool,
        ack_context: &PublishContext,
    ) -> Routed {
        let mut is_retained = true;
        let mut receipts = 0;
        let PublishContext { token, origin, ref partial } = *ack_context;
        if retain {
            // A repeated message that is in memory already must not replace what was retained after it.
            let is_in_memory = partial.as_ref().is_some_and(|partial| partial.was_delivered());
            match if is_in_memory { Retained::Changed } else { self.retain(message, token.is_some()) } {
                Retained::Changed => receipts += self.persist_retained(io, message.topic(), token),
                Retained::Unchanged => {}
                Retained::Refused => is_retained = false,
            }
        }
        let (matched, match_units) = self.router.matched(&self.shared.routes, message.topic());
        io.charge(match_units);
        if !(self.may_divide(&matched) && self.put_aside(io, message, &matched)) {
            self.fan_out(io, message, &matched, partial.as_ref());
        }
        for group in &matched.groups {
            if !partial.as_ref().is_some_and(|partial| partial.has_reached(group)) {
                let ack_context = GroupContext { tried: 0, token, origin };
                receipts += self.send_to_group(io, message, group, None, &ack_context);
            }
        }
        self.append_message(io, message, origin);
        let mut others = matched.shards & !(1 << self.me);
        while others != 0 {
            let other = others.trailing_zeros() as usize;
            others &= others - 1;
            let token = token.filter(|_| self.shared.persistent_shards() & (1 << other) != 0);
            receipts += u32::from(token.is_some());
            let (message, matched, partial) = (Arc::clone(message), Arc::clone(&matched), partial.clone());
            io.send(other, Mail::Publish(PublishMail { message, matched, token, origin, partial }));
        }
        Routed { matched, is_retained, receipts }
    }

    /// Delivers a message that another shard has matched to its subscribers on this one. Returns what has to be durable
    /// for its token.
    pub(crate) fn deliver(&mut self, io: &mut Io<'_, Mail>, mail: PublishMail) -> AckCondition {
        let PublishMail { message, matched, origin, partial, .. } = mail;
        if self.may_divide(&matched) && self.put_aside(io, &message, &matched) {
            return AckCondition::default();
        }
        let before = self.persistence.position();
        self.fan_out(io, &message, &matched, partial.as_ref());
        self.append_message(io, &message, origin);
        self.persistence.condition_since(before)
    }

    /// Offset behind the last entry of a session's journal.
    pub(crate) fn journal_end(&mut self, slot: u32) -> u64 {
        self.journal(slot).map_or(0, |(journal, _)| journal.next_offset())
    }

    /// A QoS 2 PUBLISH is repeated: its PUBREC waits for everything that the first one waited for.
    pub(crate) fn repeat_pubrec(&mut self, io: &mut Io<'_, Mail>, slot: u32, packet_id: u16) {
        let kind = AckKind::Ack { first: PUBREC, packet_id, reason: ReasonCode::Success };
        if self.sessions.at(slot).is_durable() || self.shared.persistent_shards() != 0 {
            let token = self.next_ack_token(slot);
            let condition = self.fence(io, token);
            self.ack_publish(io, slot, (condition, Some(token)), kind, true);
        } else {
            self.ack(io, slot, AckCondition::default(), None, kind);
        }
    }

    /// Disk or memory cannot take a message, or a quota is exceeded: QoS 1 and 2 are refused, rather than accepted and
    /// lost.
    pub(crate) fn refuse_publish(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        publish: &Publish<'_>,
        what: &'static str,
    ) -> Handled {
        self.deliveries.counters_mut().count_dropped(DropReason::Refused);
        if publish.qos == QoS::AtMostOnce {
            return Ok(Next::Packet);
        }
        let session = self.sessions.at(slot);
        // An exchange that has begun must not end with an error: the journal has it, and would take the next publish
        // with this identifier for the same one.
        let goes_on = publish.qos == QoS::ExactlyOnce && session.has_received(publish.packet_id);
        if session.version() < Version::V5 || goes_on {
            return Err(ProtocolError::new(ReasonCode::QuotaExceeded, what));
        }
        let first = if publish.qos == QoS::AtLeastOnce { PUBACK } else { PUBREC };
        let ack = AckKind::Ack { first, packet_id: publish.packet_id, reason: ReasonCode::QuotaExceeded };
        self.ack(io, slot, AckCondition::default(), None, ack);
        Ok(Next::Packet)
    }

    /// Acknowledges a PUBLISH when `condition` is met.
    pub(crate) fn ack_when_durable(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        publish: &Publish<'_>,
        reason: ReasonCode,
        mut condition: AckCondition,
        token: Option<AckToken>,
    ) {
        let (is_qos2, packet_id) = (publish.qos == QoS::ExactlyOnce, publish.packet_id);
        let session = self.sessions.at(slot);
        let completes = is_qos2 && session.is_durable();
        if is_qos2 && session.version() == Version::V5 && reason.is_error() {
            // The exchange is over, and the identifier free again [MQTT-4.3.3-9].
            session.release(packet_id);
            if completes {
                let before = self.persistence.position();
                self.append_release(slot, packet_id);
                condition.commit = condition.commit.max(self.persistence.condition_since(before).commit);
            }
        }
        let first = if is_qos2 { PUBREC } else { PUBACK };
        if !completes && condition == AckCondition::default() {
            self.ack_now(io, slot, first, packet_id, reason);
            return;
        }
        let kind = AckKind::Ack { first, packet_id, reason };
        self.ack_publish(io, slot, (condition, token), kind, completes);
    }

    /// Acknowledges a PUBLISH as its QoS asks for, without waiting for anything.
    pub(crate) fn answer_publish(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        publish: &Publish<'_>,
        reason: ReasonCode,
    ) {
        if publish.qos > QoS::AtMostOnce {
            self.ack_when_durable(io, slot, publish, reason, AckCondition::default(), None);
        }
    }

    /// Makes a message its topic's retained one, or with an empty payload clears it.
    ///
    /// A clear is appended again if there is nothing to clear and the publisher gets an answer: an earlier clear may
    /// not be on disk yet.
    fn retain(&mut self, message: &Message, has_answer: bool) -> Retained {
        let store = &self.shared.retained;
        let is_durable = self.shared.is_retained_durable() && !message.topic().starts_with("$SYS/");
        let is_refused = if is_durable && self.shared.is_failing() {
            // Otherwise it would be forgotten, or come back, with the next start.
            true
        } else if message.payload().is_empty() {
            if !store.clear(message.topic()) && !has_answer {
                return Retained::Unchanged;
            }
            false
        } else {
            store.set(message, self.shared.memory().pressure()).is_err()
        };
        match (is_refused, is_durable) {
            (true, _) => {
                self.deliveries.counters_mut().count_dropped(DropReason::Refused);
                Retained::Refused
            }
            (false, true) => Retained::Changed,
            (false, false) => Retained::Unchanged,
        }
    }
}
