//! The end of connections and sessions: DISCONNECT, wills, expiry, and messages that other members of a group get
//! (3.14, 3.1.2.5, 4.1).

use std::sync::Arc;

use mainstem_mqtt::{Disconnect, QoS, ReasonCode, Version};
use mainstem_runtime::{ConnId, Io};

use super::publication::{GroupContext, PublishContext};
use super::{Handled, Next, ProtocolError, Shard};
use crate::broker_state::{GroupMail, Mail};
use crate::ending::Ending;
use crate::groups::Group;
use crate::journal::entry::Entry;
use crate::message::{Content, Message, SessionKey};
use crate::pending_acks::{AckKind, AckToken};
use crate::session::offer::{Delivery, Offer};
use crate::session::{Session, TakenDeliveries};
use crate::timers::Timer;
use crate::wills::Will;

/// Cost of a message to a member of a group, units.
const GROUP_UNITS: u32 = 3;
/// Cost of the end of a session, and of removing one of its subscriptions, units.
const END_UNITS: u32 = 20;
const REMOVAL_UNITS: u32 = 10;
/// Bytes of a removed filter that cost one more.
const REMOVED_BYTES_PER_UNIT: usize = 512;
/// Queued messages that are freed for one unit.
const FREED_PER_UNIT: usize = 4;
/// Subscriptions that are removed at once.
const REMOVED_AT_ONCE: usize = 64;
/// Members that one message is offered to if they disappear one after the other.
const GROUP_TRIES_MAX: u8 = 16;
/// Pause before the expiry of a session is tried again that waits for the disk, ms.
const EXPIRY_RETRY_MS: u64 = 1_000;

impl Shard {
    pub(super) fn on_disconnect(
        &mut self,
        io: &mut Io<'_, Mail>,
        conn: ConnId,
        slot: u32,
        disconnect: &Disconnect<'_>,
    ) -> Handled {
        let expiry_max = self.config().session_expiry_s_max;
        let session = self.sessions.at(slot);
        if disconnect.server_reference.is_some() {
            return Err(ProtocolError::new(
                ReasonCode::ProtocolError,
                "Server Reference from a client (3.14.2.2.5)",
            ));
        }
        if let Some(expiry_s) = disconnect.session_expiry {
            if session.expiry_s() == 0 && expiry_s != 0 {
                let what = "a session that was to end now is to stay (3.14.2.2.2)";
                return Err(ProtocolError::new(ReasonCode::ProtocolError, what));
            }
            session.set_expiry(expiry_s.min(expiry_max));
        }
        // Only a normal DISCONNECT removes the will [MQTT-3.14.4-3].
        if (disconnect.reason == ReasonCode::Success || session.version() < Version::V5)
            && let Some(ext) = session.ext_mut()
        {
            ext.will.discard();
        }
        self.vacate(conn);
        io.close(conn);
        self.detach(io, slot);
        Ok(Next::Gone)
    }

    /// The session has lost its connection.
    pub(super) fn detach(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let now_ms = io.clock.now_ms;
        self.deliveries.on_disconnect(self.sessions.at(slot));
        self.stop_consumers(slot);
        let session = self.sessions.at(slot);
        let will_delay_s = session.disconnect(now_ms);
        let (key, expiry_s) = (session.key(), session.expiry_s());
        self.deliveries.counters_mut().clients_connected -= 1;
        self.deliveries.drop_qos0(&mut self.persistence, session);
        self.reassign(io, slot);
        // What waited behind acks that are not sent any more.
        self.send_pending_acks(io, slot);
        match will_delay_s {
            Some(0) if expiry_s > 0 => self.send_will(io, slot),
            Some(delay_s) if delay_s < expiry_s => {
                io.set_timer(now_ms + u64::from(delay_s) * 1000, Timer::Will(key).token());
            }
            // There is none, or the end of the session comes first and publishes it.
            _ => {}
        }
        if expiry_s > 0 {
            self.append_session(io.clock, slot);
        }
        match expiry_s {
            0 => self.end_session(io, slot),
            u32::MAX => {}
            _ => io.set_timer(now_ms + u64::from(expiry_s) * 1000, Timer::Expiry(key).token()),
        }
    }

    /// Gives messages of shared subscriptions that this session has not acknowledged to other members.
    fn reassign(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let session = self.sessions.at(slot);
        let key = session.key();
        let is_durable = session.is_durable();
        let stays = self.connections.is_draining() && is_durable;
        if stays || !session.has_load() {
            return;
        }
        // A crash in the middle of a move leaves the message with both. At QoS 1 that is allowed.
        let TakenDeliveries { sent, queued } = session.take_movable(|qos, group| {
            (!is_durable || qos < QoS::ExactlyOnce) && group.has_other_online(key)
        });
        self.deliveries.on_dequeued(queued.len(), false);
        let sent = sent.into_iter().map(|delivery| (delivery, true));
        for (delivery, was_sent) in sent.chain(queued.into_iter().map(|delivery| (delivery, false))) {
            let session = self.sessions.at(slot);
            session.settle(&delivery);
            if delivery.sequence == 0 {
                self.send_to_group_again(io, slot, &delivery, key, None);
                continue;
            }
            session.ext().reassigned.push(delivery.clone(), was_sent);
            let journal = session.journal();
            let token = self.next_ack_token(slot);
            let before = self.persistence.position_elsewhere(journal);
            let receipts = self.send_to_group_again(io, slot, &delivery, key, Some(token));
            let mut condition = self.persistence.condition_elsewhere_since(journal, before);
            condition.receipts = receipts;
            // It is over here when it is durable elsewhere.
            let kind = AckKind::Settled { sequence: delivery.sequence };
            self.ack(io, slot, condition, Some(token), kind);
        }
    }

    /// Publishes the will of a session, if it has one. Returns it, and how many other shards will report that their
    /// part is durable.
    fn publish_will(&mut self, io: &mut Io<'_, Mail>, slot: u32, token: AckToken) -> (Option<Will>, u32) {
        let session = self.sessions.at(slot);
        let will = session.ext_mut().and_then(|ext| ext.will.take());
        let Some(will) = will else { return (None, 0) };
        if !self.may_publish_will(slot, will.message.topic()) {
            // Users or rules have changed since CONNECT.
            self.deliveries.counters_mut().publish_dropped += 1;
            return (Some(will), 0);
        }
        let mut properties = will.message.properties(0);
        properties.message_expiry = will.expiry_s;
        let content = Content {
            qos: will.message.qos,
            retain: will.message.retain,
            publisher: will.message.publisher,
            topic: will.message.topic(),
            payload: will.message.payload(),
            properties,
        };
        let ack_context = PublishContext { token: Some(token), ..PublishContext::default() };
        let (_, receipts) = self.publish(io, &content, &ack_context);
        (Some(will), receipts)
    }

    /// Publishes the will of a session that continues. Its journal keeps the will until the message is durable: a crash
    /// may publish it twice, but not lose it.
    fn send_will(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let journal = self.sessions.at(slot).journal();
        let token = self.next_ack_token(slot);
        let before = self.persistence.position_elsewhere(journal);
        let (will, receipts) = self.publish_will(io, slot, token);
        let mut condition = self.persistence.condition_elsewhere_since(journal, before);
        condition.receipts = receipts;
        let Some(will) = will else { return };
        self.sessions.at(slot).ext().will.set_leaving(will);
        self.ack(io, slot, condition, Some(token), AckKind::WillSent);
    }

    /// The published will is durable everywhere.
    pub(super) fn confirm_will(&mut self, io: &Io<'_, Mail>, slot: u32) {
        self.sessions.at(slot).ext().will.confirm();
        self.append_session(io.clock, slot);
    }

    /// Whether the will of a session without a connection was published and is not durable yet. Its client must not get
    /// a CONNACK before it is: the journal would drop the will.
    pub(super) fn has_leaving_will(&mut self, key: SessionKey) -> bool {
        let session = self.sessions.at(key.slot);
        session.is_durable() && session.ext_ref().is_some_and(|ext| ext.will.is_leaving())
    }

    pub(super) fn check_will(&mut self, io: &mut Io<'_, Mail>, key: SessionKey) {
        let due = self.sessions.get(key).is_some_and(|session| {
            !session.is_connected() && session.ext_ref().is_some_and(|ext| ext.will.is_due(io.clock.now_ms))
        });
        if due {
            self.send_will(io, key.slot);
        }
    }

    pub(super) fn check_expiry(&mut self, io: &mut Io<'_, Mail>, key: SessionKey) {
        let now_ms = io.clock.now_ms;
        let is_expired = |session: &&mut Session| {
            session.expires_at_ms().is_some_and(|at_ms| at_ms <= now_ms.cast_signed())
        };
        let Some(session) = self.sessions.get(key).filter(is_expired) else { return };
        if session.is_durable() && !self.persistence.commits().are_over(session.gone_at_ms()) {
            // Its journal does not have the disconnection yet: a crash would bring the session back, without what came
            // since.
            io.set_timer(now_ms + EXPIRY_RETRY_MS, Timer::Expiry(key).token());
            return;
        }
        self.deliveries.counters_mut().clients_expired += 1;
        self.end_session(io, key.slot);
    }

    /// Ends a session that has no connection: its will is published, its subscriptions and messages go.
    pub(super) fn end_session(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let session = self.sessions.at(slot);
        debug_assert!(!session.is_connected());
        let (key, journal) = (session.key(), session.journal());
        let stored = self.stored_before_end(io.clock, slot);
        let session = self.sessions.at(slot);
        session.end();
        io.charge(END_UNITS + (session.queue_len() / FREED_PER_UNIT) as u32);
        self.remove_subscriptions(io, slot, key);
        self.end_queue_subscriptions(slot);
        let token = self.next_ack_token(slot);
        let before = self.persistence.position_elsewhere(journal);
        // Only now, or a group that the session was in might give the will to this very session.
        let (_, receipts) = self.publish_will(io, slot, token);
        let receipts = receipts + self.leave_to_others(io, slot, token);
        let mut condition = self.persistence.condition_elsewhere_since(journal, before);
        condition.receipts = receipts;
        let session = self.sessions.retire(slot);
        if self.sessions.at(slot).subscription_count() == 0 {
            self.sessions.remove(slot);
        } else {
            self.endings.add_subscribed(slot, key);
        }
        self.shared.close_session();
        self.deliveries.counters_mut().sessions -= 1;
        if !session.is_durable() {
            self.endings.close(Arc::clone(session.client_id()), key);
            return;
        }
        let end = (token.number, condition);
        let client_id = Arc::clone(session.client_id());
        let mut ending = Ending::new((journal, session.number()), key, client_id, stored, end);
        // What it has passed on before and is not known to be durable.
        for ack in session.ext_ref().into_iter().flat_map(|ext| ext.acks.of_journal()) {
            ending.wait_for(ack);
        }
        self.endings.add(ending);
        self.append_session_ends();
    }

    /// Removes some subscriptions of an ended session. Returns whether there are none left.
    fn remove_subscriptions(&mut self, io: &mut Io<'_, Mail>, slot: u32, key: SessionKey) -> bool {
        let session = self.sessions.at(slot);
        let groups = session.take_groups(REMOVED_AT_ONCE);
        let subscriptions = session.take_subscriptions(REMOVED_AT_ONCE - groups.len());
        let is_over = session.subscription_count() == 0;
        for group in &groups {
            self.shared.routes.leave(group, key);
        }
        let removed = groups.len() + subscriptions.len();
        let counters = self.deliveries.counters_mut();
        counters.shared_subscriptions -= groups.len() as u64;
        counters.subscriptions -= removed as u64;
        let of_groups: usize = groups.iter().map(|group| group.filter.len()).sum();
        let bytes = of_groups + self.router.remove(&self.shared.routes, &mut self.sessions, subscriptions);
        io.charge(removed as u32 * REMOVAL_UNITS + (bytes / REMOVED_BYTES_PER_UNIT) as u32);
        is_over
    }

    /// Continues to remove the subscriptions of ended sessions, at least some in each turn.
    pub(super) fn remove_ended_subscriptions(&mut self, io: &mut Io<'_, Mail>) {
        while let Some((slot, key)) = self.endings.first_subscribed() {
            if self.remove_subscriptions(io, slot, key) {
                self.sessions.remove(slot);
                self.endings.remove_first_subscribed();
            }
            if io.is_exhausted() {
                return;
            }
        }
    }

    /// Gives messages of shared subscriptions to other members, since this session ends. Returns how many other shards
    /// will report that they have them.
    fn leave_to_others(&mut self, io: &mut Io<'_, Mail>, slot: u32, token: AckToken) -> u32 {
        let session = self.sessions.at(slot);
        let key = session.key();
        let TakenDeliveries { sent, queued } = session.take_all();
        self.deliveries.on_dequeued(queued.len(), false);
        let mut receipts = 0;
        for delivery in sent.into_iter().chain(queued) {
            self.sessions.at(slot).settle(&delivery);
            receipts += self.send_to_group_again(io, slot, &delivery, key, Some(token));
        }
        receipts
    }

    /// Records the end of sessions whose messages are durable elsewhere. True if there were any.
    pub(super) fn append_session_ends(&mut self) -> bool {
        let (commit, durable) = (self.persistence.current_commit(), self.persistence.durable_commit());
        let ready = self.endings.take_ready(commit, durable, self.shared.is_failing());
        for (journal, session) in &ready {
            self.persistence.journal(*journal).push(&Entry::End { session: *session });
        }
        !ready.is_empty()
    }

    /// Frees the client identifiers of sessions that were closed before this turn: what they have published is on its
    /// way to other shards, and arrives there before what another session with that identifier publishes.
    pub(super) fn release_closed_sessions(&mut self) {
        for (client_id, key) in self.endings.drain_closed() {
            self.shared.registry.release(&client_id, key);
        }
    }

    /// Gives a message of a shared subscription that `from` does not keep to another member, unless it has expired
    /// [MQTT-3.3.2-5]. Returns how many other shards will report that they have it.
    fn send_to_group_again(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        delivery: &Delivery,
        from: SessionKey,
        token: Option<AckToken>,
    ) -> u32 {
        let Some(group) = delivery.group() else { return 0 };
        let message = delivery.message.clone().or_else(|| self.journal(slot)?.0.message(delivery.offset));
        let Some(message) = message.filter(|message| !message.is_expired(io.clock.now_ms)) else {
            self.deliveries.counters_mut().publish_dropped += 1;
            return 0;
        };
        let ack_context = GroupContext { tried: 0, token, origin: None };
        let receipts = self.send_to_group(io, &message, group, Some(from), &ack_context);
        self.append_message(io, &message, None);
        receipts
    }

    /// Gives a message to a member of a shared subscription, on whichever shard it lives. If that is this one, the
    /// caller appends the message. Returns how many other shards will report that they have it.
    pub(super) fn send_to_group(
        &mut self,
        io: &mut Io<'_, Mail>,
        message: &Arc<Message>,
        group: &Arc<Group>,
        except: Option<SessionKey>,
        ack_context: &GroupContext,
    ) -> u32 {
        let Some(member) = group.pick(except) else {
            self.deliveries.counters_mut().publish_dropped += 1;
            return 0;
        };
        let shard = member.key.shard;
        let GroupContext { tried, token, origin } = *ack_context;
        let is_here = shard == self.me;
        let token = token.filter(|_| is_here || self.shared.persistent_shards() & (1 << shard) != 0);
        let (message, group) = (Arc::clone(message), Arc::clone(group));
        let mail = GroupMail { message, group, member, tried, token, origin };
        if is_here {
            return self.offer_to_member(io, &mail);
        }
        io.send(usize::from(shard), Mail::Group(Box::new(mail)));
        u32::from(token.is_some())
    }

    /// A message from another shard, for a member that should live here.
    pub(super) fn on_group_message(&mut self, io: &mut Io<'_, Mail>, mail: &GroupMail) {
        let before = self.persistence.position();
        let passed_on = self.offer_to_member(io, mail);
        self.append_message(io, &mail.message, mail.origin);
        let condition = self.persistence.condition_since(before);
        if passed_on == 0 {
            self.send_receipt_when_durable(io, condition, mail.token, Some(&mail.group));
        }
    }

    /// Offers a message to its member, or to another if that one has gone. The caller appends the message, since it may
    /// have more receivers. Returns how many other shards will report that they have it.
    fn offer_to_member(&mut self, io: &mut Io<'_, Mail>, mail: &GroupMail) -> u32 {
        let member = &mail.member;
        let present = self
            .sessions
            .get(member.key)
            .filter(|session| !session.has_ended())
            .filter(|session| session.is_connected() || !mail.group.has_other_online(member.key));
        io.charge(GROUP_UNITS);
        let Some(session) = present else {
            member.load.settle();
            if mail.tried < GROUP_TRIES_MAX {
                let GroupMail { tried, token, origin, .. } = *mail;
                let ack_context = GroupContext { tried: tried + 1, token, origin };
                return self.send_to_group(io, &mail.message, &mail.group, Some(member.key), &ack_context);
            }
            self.deliveries.counters_mut().publish_dropped += 1;
            return 0;
        };
        let offer = Offer {
            message: &mail.message,
            qos: mail.message.qos.min(member.options.qos),
            retain: mail.message.retain && member.options.retain_as_published,
            ids: if member.id == 0 { &[] } else { std::slice::from_ref(&member.id) },
            group: Some(&mail.group),
            is_replayed: false,
            is_fan_out: false,
        };
        self.deliveries.offer(io, &mut self.persistence, session, &offer);
        let level = self.deliveries.take_tally().majority(1);
        mail.group.pressure.note(level, self.me, io.clock.now_ms);
        0
    }
}
