//! Messages of shared subscriptions: one member of a group gets each.
//!
//! A member may live on any shard, and may have gone by the time a message reaches its shard. That shard then picks
//! another member, so the message moves on instead of being lost; a bound on the tries keeps it from wandering while
//! members come and go. A message without any member left is dropped and counted.
//!
//! What a member has not acknowledged when it goes is given to the others in the same way, with the original message
//! from memory or from the journal.

use std::sync::Arc;

use mainstem_runtime::Io;

use super::SessionHost;
use crate::broker_state::{GroupMail, Mail};
use crate::counters::DropReason;
use crate::groups::Group;
use crate::message::{Message, SessionKey};
use crate::pending_acks::AckToken;
use crate::publication::GroupContext;
use crate::session::TakenDeliveries;
use crate::session::offer::{Delivery, Offer};

/// Cost of a message to a member of a group, units.
const GROUP_UNITS: u32 = 3;

/// Members that one message is offered to if they disappear one after the other.
const GROUP_TRIES_MAX: u8 = 16;

impl SessionHost {
    /// Gives messages of shared subscriptions to other members, since this session ends. Returns how many other shards
    /// will report that they have them.
    pub(crate) fn leave_to_others(&mut self, io: &mut Io<'_, Mail>, slot: u32, token: AckToken) -> u32 {
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

    /// Gives a message of a shared subscription that `from` does not keep to another member, unless it has expired
    /// [MQTT-3.3.2-5]. Returns how many other shards will report that they have it.
    pub(super) fn send_to_group_again(
        &mut self,
        io: &mut Io<'_, Mail>,
        slot: u32,
        delivery: &Delivery,
        from: SessionKey,
        token: Option<AckToken>,
    ) -> u32 {
        let Some(group) = delivery.group() else { return 0 };
        let message = delivery.message.clone().or_else(|| self.journal(slot)?.0.message(delivery.offset));
        let reason = if message.is_none() { DropReason::Unreadable } else { DropReason::Expired };
        let Some(message) = message.filter(|message| !message.is_expired(io.clock.now_ms)) else {
            self.deliveries.counters_mut().count_dropped(reason);
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
            self.deliveries.counters_mut().count_dropped(DropReason::NoReceiver);
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

    /// Offers a message to its member, or to another if that one has gone. The caller appends the message, since it may
    /// have more receivers. Returns how many other shards will report that they have it.
    pub(crate) fn offer_to_member(&mut self, io: &mut Io<'_, Mail>, mail: &GroupMail) -> u32 {
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
            self.deliveries.counters_mut().count_dropped(DropReason::NoReceiver);
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
