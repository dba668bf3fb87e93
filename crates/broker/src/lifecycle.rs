//! How sessions lose their connections and how they end: DISCONNECT, wills, expiry (3.14, 3.1.2.5, 4.1).

use std::sync::Arc;

use mainstem_mqtt::session::Pending;
use mainstem_mqtt::{Disconnect, QoS, ReasonCode, Version};
use mainstem_runtime::{ConnId, Io};

use crate::answers::{Receipt, Wait, What};
use crate::durable::Due;
use crate::given::Given;
use crate::groups::Group;
use crate::journal::Journal;
use crate::journal::entry::{Entry, Origin};
use crate::journal::replay::StoredSession;
use crate::message::{Content, Message, SessionKey};
use crate::offer::Offer;
use crate::session::{Delivery, Extra, Session, Will};
use crate::shard::{Handled, Next, Refusal, Shard};
use crate::shared::{DealtMail, Mail};
use crate::timers::Timer;

/// Time until a session is looked at again that would have expired if the disk were not so slow, ms.
const EXPIRY_RETRY_MS: u64 = 1_000;

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
        self.stop_consumers(slot);
        let session = self.deliveries.sessions.at(slot);
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
        // What waited behind answers that nobody is given any more.
        self.send_answers(io, slot);
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
        let sent = session.window.take_messages(|delivery, pending| {
            pending == Pending::PubAck && moves(delivery.qos, delivery.group())
        });
        let group_of = |extra: Option<&Extra>| extra.and_then(|extra| extra.group.clone());
        let queued = session.queue.take_if(|qos, extra| moves(qos, group_of(extra).as_ref()));
        self.deliveries.counters.queued_messages -= queued.len() as u64;
        let sent = sent.into_iter().map(|delivery| (delivery, true));
        for (delivery, was_sent) in sent.chain(queued.into_iter().map(|delivery| (delivery, false))) {
            let session = self.deliveries.sessions.at(slot);
            session.settle(&delivery);
            if delivery.sequence > 0 {
                session.rare().given.push_back(Given::new(delivery.clone(), was_sent));
            }
            let receipt = (delivery.sequence > 0).then(|| self.receipt_for(slot));
            let ((), wait) = self
                .entering_elsewhere(slot, |shard| ((), shard.deal_again(io, slot, &delivery, key, receipt)));
            if delivery.sequence > 0 {
                // Only when it is safe elsewhere is it over here.
                let what = What::Settled { sequence: delivery.sequence };
                self.answer(io, slot, wait, receipt, what);
            }
        }
    }

    /// Does `act`, which gives others what a session has and tells how many shards will say that they have it.
    /// Returns what has to be waited for until the session's journal may forget that. Its own entries need not be
    /// waited for: they stay in their order.
    fn entering_elsewhere<R>(&mut self, slot: u32, act: impl FnOnce(&mut Self) -> (R, u32)) -> (R, Wait) {
        let journal = usize::from(self.deliveries.sessions.at(slot).journal);
        let elsewhere = |shard: &Self| {
            let mine = shard.deliveries.journals.get(journal).map_or(0, Journal::next_offset);
            shard.entered() - mine
        };
        let before = elsewhere(self);
        let (result, receipts) = act(self);
        let commit = if elsewhere(self) == before { 0 } else { self.commits.current() };
        (result, Wait { commit, receipts })
    }

    /// Publishes a session's will, if it has one. Returns it, and how many other shards will tell that they have
    /// the message.
    fn publish_will(&mut self, io: &mut Io<'_, Mail>, slot: u32, receipt: Receipt) -> (Option<Will>, u32) {
        let session = self.deliveries.sessions.at(slot);
        let will = session.rare.as_mut().and_then(|rare| {
            rare.will_at_ms = None;
            rare.will.take()
        });
        let Some(will) = will else { return (None, 0) };
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
        (Some(will), receipts)
    }

    /// Publishes the will of a session that goes on. Its journal forgets the will when it is safe: a crash may
    /// publish it twice, but not lose it.
    fn give_will(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let receipt = self.receipt_for(slot);
        let (will, wait) = self.entering_elsewhere(slot, |shard| shard.publish_will(io, slot, receipt));
        let Some(will) = will else { return };
        self.deliveries.sessions.at(slot).rare().will_leaving = Some(will);
        self.answer(io, slot, wait, Some(receipt), What::WillSent);
    }

    /// The will that has left is safe elsewhere.
    pub(crate) fn forget_will(&mut self, io: &Io<'_, Mail>, slot: u32) {
        self.deliveries.sessions.at(slot).rare().will_leaving = None;
        self.enter_session(io, slot);
    }

    /// Whether a will of a session without a connection is on its way, and not safe yet. Its client must not be told
    /// that it is back before that: the journal would forget the will.
    pub(crate) fn owes_will(&mut self, key: SessionKey) -> bool {
        let session = self.deliveries.sessions.at(key.slot);
        session.lasts() && session.rare.as_ref().is_some_and(|rare| rare.will_leaving.is_some())
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
        let now_ms = io.clock.now_ms;
        let expired = |session: &&mut Session| {
            !session.connected
                && session.expiry_s != u32::MAX
                && session.gone_at_ms + i64::from(session.expiry_s) * 1000 <= now_ms.cast_signed()
        };
        let Some(session) = self.deliveries.sessions.get(key).filter(expired) else { return };
        if session.lasts() && !self.commits.are_over(session.gone_at_ms) {
            // The disk does not know that its client has gone: a crash would bring it back, without what came since.
            io.set_timer(now_ms + EXPIRY_RETRY_MS, Timer::Expiry(key).token());
            return;
        }
        self.deliveries.counters.clients_expired += 1;
        self.end_session(io, key.slot);
    }

    /// Ends a session that has no connection: its will is due, its subscriptions and messages go.
    pub(crate) fn end_session(&mut self, io: &mut Io<'_, Mail>, slot: u32) {
        let key = self.deliveries.sessions.key(self.me, slot);
        let session = self.deliveries.sessions.at(slot);
        debug_assert!(!session.connected);
        let stored = self.stored_before_end(io.clock, slot);
        let session = self.deliveries.sessions.at(slot);
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
        self.end_queue_subscriptions(slot);
        let receipt = self.receipt_for(slot);
        let ((), wait) = self.entering_elsewhere(slot, |shard| {
            // Only now, or a group that it was in might give the will to this very session.
            let (_, receipts) = shard.publish_will(io, slot, receipt);
            ((), receipts + shard.leave_to_others(io, slot, receipt))
        });
        let session = self.deliveries.sessions.remove(slot);
        let (home, number, client_id) = (session.journal, session.number, session.client_id);
        let mut answers = vec![receipt.number];
        let (mut wait, mut has_failed) = (wait, false);
        // What it has given away before and is not known to be safe.
        for answer in session.rare.iter().flat_map(|rare| rare.answers.of_journal()) {
            answers.push(answer.number);
            wait.commit = wait.commit.max(answer.wait.commit);
            wait.receipts += answer.wait.receipts;
            has_failed |= answer.failure.is_some();
        }
        self.shared.close_session();
        self.deliveries.counters.sessions -= 1;
        if number > 0 {
            self.ending.push(Ending {
                answers,
                wait,
                has_failed,
                journal: home,
                session: number,
                client_id,
                key,
                commit: None,
                stored,
            });
            self.enter_ends();
        } else {
            self.departed.push((client_id, key));
        }
    }

    /// Gives messages of shared subscriptions to other members, since this session ends. Returns how many other
    /// shards will tell that they have them.
    ///
    /// A QoS 1 message may still find somebody; QoS 2 must not [MQTT-4.8.2-5] once it was sent.
    fn leave_to_others(&mut self, io: &mut Io<'_, Mail>, slot: u32, receipt: Receipt) -> u32 {
        let key = self.deliveries.sessions.key(self.me, slot);
        let session = self.deliveries.sessions.at(slot);
        let unsent = session.queue.take_if(|_, _| true);
        let unacknowledged = session.window.take_messages(|_, pending| pending == Pending::PubAck);
        self.deliveries.counters.queued_messages -= unsent.len() as u64;
        let mut receipts = 0;
        for delivery in unacknowledged.into_iter().chain(unsent) {
            self.deliveries.sessions.at(slot).settle(&delivery);
            receipts += self.deal_again(io, slot, &delivery, key, Some(receipt));
        }
        receipts
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
        let (commit, durable) = (self.commits.current(), self.commits.durable());
        let is_failing = self.shared.is_failing();
        let is_safe = |known: &&mut Ending| known.wait.is_over(durable) && !(known.has_failed && is_failing);
        for ending in self.ending.iter_mut().filter(is_safe).filter(|known| known.commit.is_none()) {
            ending.commit = Some(commit);
            self.deliveries.journals[usize::from(ending.journal)]
                .push(&Entry::End { session: ending.session });
        }
    }

    /// A commit could not be kept: ends that are part of it are entered again when that is mended.
    pub(crate) fn fail_ends(&mut self, commit: u64) {
        for ending in &mut self.ending {
            if ending.commit == Some(commit) || ending.wait.commit == commit {
                ending.has_failed = true;
                ending.commit = None;
            }
        }
    }

    /// Forgets sessions whose end is on disk: whoever connects by their client identifier begins anew.
    pub(crate) fn forget_ended(&mut self) {
        let durable = self.commits.durable();
        let is_over = |ending: &mut Ending| ending.commit.is_some_and(|commit| commit <= durable);
        self.departed
            .extend(self.ending.extract_if(.., is_over).map(|ending| (ending.client_id, ending.key)));
    }

    /// Frees the client identifiers of sessions that were over before this turn: what they have published is on its
    /// way to other shards, and comes there before what another session with that identifier publishes.
    pub(crate) fn free_departed(&mut self) {
        for (client_id, key) in self.departed.drain(..) {
            self.shared.registry.release(&client_id, key);
        }
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
    /// Numbers that other shards name: its own, and those of what the session had given away before.
    pub(crate) answers: Vec<u64>,
    /// What has to be over before: others must have its messages on disk.
    pub(crate) wait: Wait,
    /// Something of that, or the end itself, could not be kept on disk.
    pub(crate) has_failed: bool,
    pub(crate) journal: u16,
    pub(crate) session: u32,
    client_id: Arc<str>,
    key: SessionKey,
    /// The commit that the end is part of, once it has been entered.
    pub(crate) commit: Option<u64>,
    /// See [`Shard::stored_before_end`].
    pub(crate) stored: Option<Box<StoredSession>>,
}

/// Members that one message is offered to in turn while they vanish under it.
const DEALS_MAX: u8 = 16;
