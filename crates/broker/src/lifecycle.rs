//! How sessions lose their connections and how they end: DISCONNECT, wills, expiry (3.14, 3.1.2.5, 4.1).

use std::sync::Arc;

use mainstem_mqtt::session::Pending;
use mainstem_mqtt::{Disconnect, ReasonCode, Version};
use mainstem_runtime::{ConnId, Io};

use crate::delivery::Offer;
use crate::message::{Content, SessionKey};
use crate::session::Delivery;
use crate::shard::{Handled, Next, Refusal, Shard};
use crate::shared::Mail;
use crate::timers::Timer;

impl Shard {
    pub(crate) fn on_disconnect(
        &mut self,
        io: &mut Io<'_, Mail>,
        conn: ConnId,
        slot: u32,
        disconnect: &Disconnect<'_>,
    ) -> Handled {
        let expiry_max = self.config().session_expiry_s_max;
        let session = self.deliveries.sessions.at(slot);
        if disconnect.server_reference.is_some() {
            return Err(Refusal::new(
                ReasonCode::ProtocolError,
                "Server Reference from a client (3.14.2.2.5)",
            ));
        }
        if let Some(expiry_s) = disconnect.session_expiry {
            if session.expiry_s == 0 && expiry_s != 0 {
                let what = "a session that was to end now is to stay (3.14.2.2.2)";
                return Err(Refusal::new(ReasonCode::ProtocolError, what));
            }
            session.expiry_s = expiry_s.min(expiry_max);
        }
        // Only a normal disconnection takes the will back [MQTT-3.14.4-3].
        if (disconnect.reason == ReasonCode::Success || session.version < Version::V5)
            && let Some(rare) = &mut session.rare
        {
            rare.will = None;
        }
        self.vacate(conn);
        io.close(conn);
        self.detach(io, slot);
        Ok(Next::Gone)
    }

    /// The session has lost its connection, one way or another.
    pub(crate) fn detach(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let now_ms = io.clock.now_ms;
        let key = self.deliveries.sessions.key(self.me, slot);
        let session = self.deliveries.sessions.at(slot);
        session.connected = false;
        self.deliveries.backlog -= session.queue.len() as u64;
        session.gone_at_ms = now_ms;
        session.set_online(false);
        session.window.disconnected();
        session.drop_logged = false;
        let expiry_s = session.expiry_s;
        let mut will_delay_s = None;
        if let Some(rare) = &mut session.rare {
            rare.aliases = None;
            if let Some(will) = &rare.will {
                will_delay_s = Some(will.delay_s);
                rare.will_at_ms = Some(now_ms + u64::from(will.delay_s) * 1000);
            }
        }
        self.deliveries.counters.clients_connected -= 1;
        self.deliveries.forget_qos0(slot);
        self.pass_on(io, slot);
        match will_delay_s {
            Some(0) if expiry_s > 0 => self.publish_will(io, slot),
            Some(delay_s) if delay_s < expiry_s => {
                io.set_timer(now_ms + u64::from(delay_s) * 1000, Timer::Will(key).token());
            }
            // There is none, or the end of the session comes first and publishes it.
            _ => {}
        }
        match expiry_s {
            0 => self.end_session(io, slot),
            u32::MAX => {}
            _ => io.set_timer(now_ms + u64::from(expiry_s) * 1000, Timer::Expiry(key).token()),
        }
    }

    /// Gives messages of shared subscriptions that this session has not acknowledged to other members.
    ///
    /// QoS 2 messages that were sent stay: their exchange is to be completed with this client
    /// [MQTT-4.8.2-4].
    fn pass_on(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let key = self.deliveries.sessions.key(self.me, slot);
        let session = self.deliveries.sessions.at(slot);
        if session.rare.as_ref().is_none_or(|rare| rare.load.is_none()) {
            return;
        }
        let moves = |delivery: &Delivery| delivery.group().is_some_and(|group| group.has_other_online(key));
        let mut moving =
            session.window.take_messages(|delivery, pending| pending == Pending::PubAck && moves(delivery));
        let (queued, kept) = std::mem::take(&mut session.queue).into_iter().partition::<Vec<_>, _>(moves);
        session.queue = kept.into();
        session.queue_bytes -= queued.iter().map(|delivery| delivery.message.size() as u64).sum::<u64>();
        self.deliveries.counters.queued_messages -= queued.len() as u64;
        moving.extend(queued);
        for delivery in moving {
            self.deliveries.sessions.at(slot).settle(&delivery);
            self.deal_again(io, &delivery, key);
        }
    }

    fn publish_will(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let session = self.deliveries.sessions.at(slot);
        let Some(will) = session.rare.as_mut().and_then(|rare| {
            rare.will_at_ms = None;
            rare.will.take()
        }) else {
            return;
        };
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
        self.publish(io, &content);
    }

    pub(crate) fn check_will(&mut self, io: &mut Io<'_, Mail>, key: SessionKey) {
        let due = self.deliveries.sessions.get(key).is_some_and(|session| {
            let will_at_ms = session.rare.as_ref().and_then(|rare| rare.will_at_ms);
            !session.connected && will_at_ms.is_some_and(|at_ms| at_ms <= io.clock.now_ms)
        });
        if due {
            self.publish_will(io, key.slot);
        }
    }

    pub(crate) fn check_expiry(&mut self, io: &mut Io<'_, Mail>, key: SessionKey) {
        let expired = self.deliveries.sessions.get(key).is_some_and(|session| {
            !session.connected
                && session.expiry_s != u32::MAX
                && session.gone_at_ms + u64::from(session.expiry_s) * 1000 <= io.clock.now_ms
        });
        if expired {
            self.deliveries.counters.clients_expired += 1;
            self.end_session(io, key.slot);
        }
    }

    /// Ends a session that has no connection: its will is due, its subscriptions and messages go.
    pub(crate) fn end_session(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let key = self.deliveries.sessions.key(self.me, slot);
        let session = self.deliveries.sessions.at(slot);
        debug_assert!(!session.connected);
        let groups = session.rare.as_mut().map(|rare| std::mem::take(&mut rare.groups)).unwrap_or_default();
        for group in &groups {
            self.shared.routes.leave(group, key);
        }
        self.deliveries.counters.shared_subscriptions -= groups.len() as u64;
        self.deliveries.counters.subscriptions -= groups.len() as u64;
        for subscription in std::mem::take(&mut self.deliveries.sessions.at(slot).subscriptions) {
            self.remove_subscriber(subscription);
            self.deliveries.counters.subscriptions -= 1;
        }
        // Only now, or a group that it was in might give the will to this very session.
        self.publish_will(io, slot);
        let mut session = self.deliveries.sessions.remove(slot);
        self.shared.registry.release(&session.client_id, key);
        self.shared.close_session();
        self.deliveries.counters.sessions -= 1;
        self.deliveries.counters.queued_messages -= session.queue.len() as u64;
        // A QoS 1 message of a shared subscription may still find somebody; QoS 2 must not
        // [MQTT-4.8.2-5] once it was sent.
        let unsent = session.queue.drain(..).collect::<Vec<_>>();
        let unacknowledged = session.window.take_messages(|_, pending| pending == Pending::PubAck);
        for delivery in unacknowledged.into_iter().chain(unsent) {
            session.settle(&delivery);
            self.deal_again(io, &delivery, key);
        }
    }

    /// Gives a message of a shared subscription that `from` has lost to another member, unless it has expired
    /// meanwhile [MQTT-3.3.2-5].
    fn deal_again(&mut self, io: &mut Io<'_, Mail>, delivery: &Delivery, from: SessionKey) {
        let Some(group) = delivery.group() else { return };
        if delivery.message.is_expired(io.clock.now_ms) {
            self.deliveries.counters.publish_dropped += 1;
        } else {
            self.deal(io, &delivery.message, group, Some(from), 0);
        }
    }

    /// Gives a message to a member of a shared subscription, wherever it lives.
    pub(crate) fn deal(
        &mut self,
        io: &mut Io<'_, Mail>,
        message: &Arc<crate::message::Message>,
        group: &Arc<crate::groups::Group>,
        except: Option<SessionKey>,
        tried: u8,
    ) {
        let Some(member) = group.pick(except) else {
            self.deliveries.counters.publish_dropped += 1;
            return;
        };
        let mail = crate::shared::DealtMail {
            message: Arc::clone(message),
            group: Arc::clone(group),
            member,
            tried,
        };
        if mail.member.key.shard == self.me {
            self.on_dealt(io, &mail);
        } else {
            io.send(usize::from(mail.member.key.shard), Mail::Dealt(Box::new(mail)));
        }
    }

    /// A message for a member that should live here.
    pub(crate) fn on_dealt(&mut self, io: &mut Io<'_, Mail>, mail: &crate::shared::DealtMail) {
        let member = &mail.member;
        let gone = match self.deliveries.sessions.get(member.key) {
            None => true,
            Some(session) => !session.connected && mail.group.has_other_online(member.key),
        };
        self.work += 1;
        if gone {
            member.load.settle();
            if mail.tried < DEALS_MAX {
                self.deal(io, &mail.message, &mail.group, Some(member.key), mail.tried + 1);
            } else {
                self.deliveries.counters.publish_dropped += 1;
            }
            return;
        }
        let ids = [member.id];
        self.deliveries.offer(
            io,
            member.key.slot,
            &Offer {
                message: &mail.message,
                qos: mail.message.qos.min(member.options.qos),
                retain: mail.message.retain && member.options.retain_as_published,
                ids: if member.id == 0 { &[] } else { &ids },
                group: Some(&mail.group),
                walked: false,
            },
        );
        let level = self.deliveries.take_tally().majority(1);
        mail.group.pressure.note(level, self.me, io.clock.now_ms);
    }
}

/// Members that one message is offered to in turn while they vanish under it.
const DEALS_MAX: u8 = 16;
