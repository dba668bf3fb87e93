//! How sessions lose their connections and how they end: DISCONNECT, wills, expiry (3.14, 3.1.2.5, 4.1).

use std::sync::Arc;

use mainstem_mqtt::session::Pending;
use mainstem_mqtt::{Disconnect, QoS, ReasonCode, Version};
use mainstem_runtime::{ConnId, Io};

use crate::answers::{Receipt, Wait, What};
use crate::durable::Due;
use crate::groups::Group;
use crate::journal::entry::{Entry, Origin};
use crate::message::{Content, Message, SessionKey};
use crate::offer::Offer;
use crate::session::{Delivery, Extra, Will};
use crate::shard::{Handled, Next, Refusal, Shard};
use crate::shared::{DealtMail, Mail};
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
        if let Some(rare) = &mut session.rare {
            // Whoever asked will ask again.
            rare.answers.clear();
        }
        self.deliveries.backlog -= session.queue.len() as u64;
        session.gone_at_ms = now_ms.cast_signed();
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
            Some(0) if expiry_s > 0 => self.give_will(io, slot),
            Some(delay_s) if delay_s < expiry_s => {
                io.set_timer(now_ms + u64::from(delay_s) * 1000, Timer::Will(key).token());
            }
            // There is none, or the end of the session comes first and publishes it.
            _ => {}
        }
        if expiry_s > 0 {
            self.enter_session(io, slot);
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
        let stays = self.draining && session.lasts();
        if stays || session.rare.as_ref().is_none_or(|rare| rare.load.is_none()) {
            return;
        }
        // A crash in the middle of a move leaves the message with both. At QoS 1 that is allowed.
        let lasts = session.lasts();
        let moves = |qos: QoS, group: Option<&Arc<Group>>| {
            (!lasts || qos < QoS::ExactlyOnce) && group.is_some_and(|group| group.has_other_online(key))
        };
        let mut moving = session.window.take_messages(|delivery, pending| {
            pending == Pending::PubAck && moves(delivery.qos, delivery.group())
        });
        let group_of = |extra: Option<&Extra>| extra.and_then(|extra| extra.group.clone());
        let queued = session.queue.take_if(|qos, extra| moves(qos, group_of(extra).as_ref()));
        self.deliveries.counters.queued_messages -= queued.len() as u64;
        moving.extend(queued);
        for delivery in moving {
            self.deliveries.sessions.at(slot).settle(&delivery);
            let receipt = (delivery.sequence > 0).then(|| self.receipt_for(slot));
            let receipts = self.deal_again(io, slot, &delivery, key, receipt);
            if delivery.sequence > 0 {
                // Only when it is safe elsewhere is it over here.
                let what = What::Settled { sequence: delivery.sequence };
                self.answer(io, slot, Wait { commit: 0, receipts }, receipt, what);
            }
        }
    }

    /// Publishes a session's will, if it has one. Returns it, and how many other shards will tell that they have
    /// the message.
    fn publish_will(&mut self, io: &mut Io<'_, Mail>, slot: u32, receipt: Receipt) -> Option<(Will, u32)> {
        let session = self.deliveries.sessions.at(slot);
        let will = session.rare.as_mut().and_then(|rare| {
            rare.will_at_ms = None;
            rare.will.take()
        })?;
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
        let (_, receipts) = self.publish(io, &content, &Due { receipt: Some(receipt), ..Due::default() });
        Some((will, receipts))
    }

    /// Publishes the will of a session that goes on. Its journal forgets the will when it is safe: a crash may
    /// publish it twice, but not lose it.
    fn give_will(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let receipt = self.receipt_for(slot);
        let Some((will, receipts)) = self.publish_will(io, slot, receipt) else { return };
        self.deliveries.sessions.at(slot).rare().will_leaving = Some(will);
        self.answer(io, slot, Wait { commit: 0, receipts }, Some(receipt), What::WillSent);
    }

    pub(crate) fn check_will(&mut self, io: &mut Io<'_, Mail>, key: SessionKey) {
        let due = self.deliveries.sessions.get(key).is_some_and(|session| {
            let will_at_ms = session.rare.as_ref().and_then(|rare| rare.will_at_ms);
            !session.connected && will_at_ms.is_some_and(|at_ms| at_ms <= io.clock.now_ms)
        });
        if due {
            self.give_will(io, key.slot);
        }
    }

    pub(crate) fn check_expiry(&mut self, io: &mut Io<'_, Mail>, key: SessionKey) {
        let expired = self.deliveries.sessions.get(key).is_some_and(|session| {
            !session.connected
                && session.expiry_s != u32::MAX
                && session.gone_at_ms + i64::from(session.expiry_s) * 1000 <= io.clock.now_ms.cast_signed()
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
        let receipt = self.receipt_for(slot);
        // Only now, or a group that it was in might give the will to this very session.
        let mut receipts = self.publish_will(io, slot, receipt).map_or(0, |(_, receipts)| receipts);
        let session = self.deliveries.sessions.at(slot);
        let (home, number) = (session.journal, session.number);
        // A QoS 1 message of a shared subscription may still find somebody; QoS 2 must not
        // [MQTT-4.8.2-5] once it was sent.
        let unsent = session.queue.take_if(|_, _| true);
        self.deliveries.counters.queued_messages -= unsent.len() as u64;
        let session = self.deliveries.sessions.at(slot);
        let unacknowledged = session.window.take_messages(|_, pending| pending == Pending::PubAck);
        for delivery in unacknowledged.into_iter().chain(unsent) {
            self.deliveries.sessions.at(slot).settle(&delivery);
            receipts += self.deal_again(io, slot, &delivery, key, Some(receipt));
        }
        let session = self.deliveries.sessions.remove(slot);
        let client_id = session.client_id;
        self.shared.close_session();
        self.deliveries.counters.sessions -= 1;
        if number > 0 {
            let (receipt, journal) = (receipt.number, home);
            self.ending.push(Ending {
                receipt,
                receipts,
                has_failed: false,
                journal,
                session: number,
                client_id,
                key,
                commit: None,
            });
            self.enter_ends();
        } else {
            self.shared.registry.release(&client_id, key);
        }
    }

    /// Whether the end of a session is not on disk yet.
    pub(crate) fn is_ending(&self, journal: u16, session: u32) -> bool {
        self.ending.iter().any(|ending| ending.journal == journal && ending.session == session)
    }

    /// The session of this key, if it has ended and that is not on disk yet.
    pub(crate) fn find_ending(&self, key: SessionKey) -> Option<(u16, u32)> {
        let ending = self.ending.iter().find(|ending| ending.key == key)?;
        Some((ending.journal, ending.session))
    }

    /// Enters the end of sessions whose messages are all safe elsewhere. What journals that failed have of them is
    /// safe when those are mended.
    pub(crate) fn enter_ends(&mut self) {
        let commit = self.commits.current();
        let is_failing = self.shared.is_failing();
        let is_safe = |known: &&mut Ending| known.receipts == 0 && !(known.has_failed && is_failing);
        for ending in self.ending.iter_mut().filter(is_safe).filter(|known| known.commit.is_none()) {
            ending.commit = Some(commit);
            self.deliveries.journals[usize::from(ending.journal)]
                .push(&Entry::End { session: ending.session });
        }
    }

    /// Forgets sessions whose end is on disk: whoever connects by their client identifier begins anew.
    pub(crate) fn forget_ended(&mut self) {
        let (durable, registry) = (self.commits.durable(), &self.shared.registry);
        self.ending.retain(|ending| {
            let is_over = ending.commit.is_some_and(|commit| commit <= durable);
            if is_over {
                registry.release(&ending.client_id, ending.key);
            }
            !is_over
        });
    }

    /// Gives a message of a shared subscription that `from` has lost to another member, unless it has expired
    /// meanwhile [MQTT-3.3.2-5]. Returns how many other shards will tell that they have it.
    fn deal_again(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        delivery: &Delivery,
        from: SessionKey,
        receipt: Option<Receipt>,
    ) -> u32 {
        let Some(group) = delivery.group() else { return 0 };
        let message = delivery.message.clone().or_else(|| self.journal(slot)?.0.message(delivery.offset));
        let Some(message) = message.filter(|message| !message.is_expired(io.clock.now_ms)) else {
            self.deliveries.counters.publish_dropped += 1;
            return 0;
        };
        let receipts =
            self.deal(io, &message, group, Some(from), &Dealing { tried: 0, receipt, origin: None });
        self.enter_message(io, &message, None);
        receipts
    }

    /// Gives a message to a member of a shared subscription, wherever it lives; entering it, if that is here,
    /// is left to the caller. Returns how many other shards will tell that they have it.
    pub(crate) fn deal(
        &mut self,
        io: &mut Io<'_, Mail>,
        message: &Arc<Message>,
        group: &Arc<Group>,
        except: Option<SessionKey>,
        dealing: &Dealing,
    ) -> u32 {
        let Some(member) = group.pick(except) else {
            self.deliveries.counters.publish_dropped += 1;
            return 0;
        };
        let shard = member.key.shard;
        let Dealing { tried, receipt, origin } = *dealing;
        let is_here = shard == self.me;
        let receipt = receipt.filter(|_| is_here || self.shared.lasting() & (1 << shard) != 0);
        let (message, group) = (Arc::clone(message), Arc::clone(group));
        let mail = DealtMail { message, group, member, tried, receipt, origin };
        if is_here {
            return self.take_dealt(io, &mail);
        }
        io.send(usize::from(shard), Mail::Dealt(Box::new(mail)));
        u32::from(receipt.is_some())
    }

    /// A message from another shard, for a member that should live here.
    pub(crate) fn on_dealt(&mut self, io: &mut Io<'_, Mail>, mail: &DealtMail) {
        let (passed_on, wait) = self.entering(|shard| {
            let passed_on = shard.take_dealt(io, mail);
            shard.enter_message(io, &mail.message, mail.origin);
            passed_on
        });
        if passed_on == 0 {
            self.owe(io, wait, mail.receipt, Some(&mail.group));
        }
    }

    /// Gives a message to its member, or to another if that one has gone; entering it is left to the caller,
    /// who may have more receivers for the same entry. Returns how many other shards will
    /// tell that they have it.
    fn take_dealt(&mut self, io: &mut Io<'_, Mail>, mail: &DealtMail) -> u32 {
        let member = &mail.member;
        let gone = match self.deliveries.sessions.get(member.key) {
            None => true,
            Some(session) => !session.connected && mail.group.has_other_online(member.key),
        };
        self.work += 1;
        if gone {
            member.load.settle();
            if mail.tried < DEALS_MAX {
                let DealtMail { tried, receipt, origin, .. } = *mail;
                let dealing = Dealing { tried: tried + 1, receipt, origin };
                return self.deal(io, &mail.message, &mail.group, Some(member.key), &dealing);
            }
            self.deliveries.counters.publish_dropped += 1;
            return 0;
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
        0
    }
}

/// How a message of a shared subscription is dealt out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dealing {
    /// Members that were tried before.
    pub(crate) tried: u8,
    /// Who waits for it to be on disk.
    pub(crate) receipt: Option<Receipt>,
    pub(crate) origin: Option<Origin>,
}

/// A session that has ended, and whose journal is told when the messages it had are safe with others. Its client
/// identifier stays taken until that is on disk, or a crash could bring it back beside another.
#[derive(Debug)]
pub(crate) struct Ending {
    /// Number that other shards name.
    pub(crate) receipt: u64,
    /// Those that have not told yet.
    pub(crate) receipts: u32,
    /// One has told that it cannot keep its part on disk now.
    pub(crate) has_failed: bool,
    journal: u16,
    session: u32,
    client_id: Arc<str>,
    key: SessionKey,
    /// The commit that the end is part of, once it has been entered.
    commit: Option<u64>,
}

/// Members that one message is offered to in turn while they vanish under it.
const DEALS_MAX: u8 = 16;
