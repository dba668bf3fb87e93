//! A session as a snapshot contains it, and its restoration.
//!
//! The live [`Session`] is made for delivery: windows, queues, packet identifiers. [`StoredSession`] is what must
//! survive: subscriptions, deliveries that are not settled, in order, and QoS 2 publishes that are not released. This
//! file converts one into the other. Deliveries up to the last one that was sent return to the window with their packet
//! identifiers, and the others to the queue.

use std::collections::BTreeSet;
use std::sync::Arc;

use mainstem_mqtt::session::Pending;
use mainstem_mqtt::{QoS, Version};
use mainstem_runtime::Clock;
use mainstem_topic::parse_subscription;

use super::offer::{Delivery, Extra};
use super::queue::Run;
use super::{Session, packet_id_of};
use crate::access::Access;
use crate::groups::Group;
use crate::journal::encode_message;
use crate::journal::entry::{ReachedTargets, SessionEntry, WillEntry};
use crate::journal::stored::{StoredExtra, StoredReceived, StoredSession, StoredSubscription, StoredWill};
use crate::message::Message;

/// Queued messages of one session that a snapshot moves at most; if there are more, all stay where they are.
const MOVED_MAX: usize = 1024;

impl Session {
    /// The session as its journal has it after each change. `publish` is a buffer for the will.
    pub(crate) fn entry<'a>(&'a self, clock: Clock, publish: &'a mut Vec<u8>) -> SessionEntry<'a> {
        let will = self.ext.as_ref().and_then(|ext| ext.will.stored());
        if let Some(will) = will {
            encode_message(&will.message, clock, publish);
        }
        SessionEntry {
            number: self.number,
            client_id: &self.client_id,
            version: self.version as u8,
            expiry_s: self.expiry_s,
            gone_unix_ms: self.gone_unix_ms(clock),
            will: will.map(|will| WillEntry { delay_s: will.delay_s, expiry_s: will.expiry_s, publish }),
        }
    }

    /// The session with everything but its ordinary subscriptions.
    pub(crate) fn store(&self, clock: Clock, durable_commit: u64) -> StoredSession {
        let mut stored = StoredSession {
            client_id: (&*self.client_id).into(),
            version: self.version as u8,
            expiry_s: self.expiry_s,
            gone_unix_ms: self.gone_unix_ms(clock),
            sequence: self.sequence,
            user: self.user().map(|user| (**user).into()),
            origin: self.access().map(Access::client_origin),
            received_sequence: self.ext.as_ref().map_or(0, |ext| ext.qos2.sequence()),
            ..StoredSession::default()
        };
        self.store_deliveries(&mut stored);
        for packet_id in self.received.iter() {
            let sequence = stored.received_sequence;
            let reached = ReachedTargets::default();
            stored.received.insert(packet_id, StoredReceived { sequence, is_complete: true, reached });
        }
        let Some(ext) = &self.ext else { return stored };
        stored.received.extend(ext.qos2.received(durable_commit));
        stored.will = ext.will.stored().map(|will| {
            let mut publish = Vec::new();
            encode_message(&will.message, clock, &mut publish);
            StoredWill { delay_s: will.delay_s, expiry_s: will.expiry_s, publish: publish.into() }
        });
        for known in ext.queue_consumers.iter().flat_map(|consumers| consumers.subscriptions()) {
            let subscription =
                StoredSubscription { options: known.options(), id: known.id(), replay_position: None };
            stored.subscriptions.insert(known.filter().into(), subscription);
        }
        for group in &ext.groups {
            if let Some(member) = group.member(self.key) {
                let subscription =
                    StoredSubscription { options: member.options, id: member.id, replay_position: None };
                stored.subscriptions.insert(group.full_name().into(), subscription);
            }
        }
        stored
    }

    /// Everything in flight, queued, or reassigned and not durable elsewhere, in order.
    fn store_deliveries(&self, stored: &mut StoredSession) {
        let mut runs: Vec<Run<StoredExtra>> = Vec::new();
        for (delivery, pending) in self.window.messages().filter(|(delivery, _)| delivery.sequence > 0) {
            stored.sent = stored.sent.max(delivery.sequence);
            if pending == Pending::PubComp {
                stored.released.insert(delivery.sequence);
            }
            runs.push(run_of(delivery));
        }
        runs.extend(self.queue.near().filter(|delivery| delivery.sequence > 0).map(run_of));
        runs.extend(self.queue.far().map(|run| Run {
            sequence: run.sequence,
            offset: run.offset,
            count: run.count,
            bytes: run.bytes,
            qos: run.qos,
            retain: run.retain,
            extra: run.extra.as_deref().map(stored_extra).map(Box::new),
        }));
        for (delivery, was_sent) in self.ext.iter().flat_map(|ext| ext.reassigned.iter()) {
            if was_sent {
                stored.sent = stored.sent.max(delivery.sequence);
            }
            runs.push(run_of(delivery));
        }
        runs.sort_by_key(|run| run.sequence);
        for run in runs {
            if !stored.unsettled.back_mut().is_some_and(|last| last.join(&run)) {
                stored.unsettled.push_back(run);
            }
        }
    }

    /// Restores everything but subscriptions, wills, deliveries and QoS 2 publishes. `age_ms` is the time since the
    /// connection was lost.
    pub(crate) fn restore(&mut self, stored: &StoredSession, age_ms: u64, clock: Clock) {
        self.version = Version::try_from(stored.version).unwrap_or(Version::V5);
        self.expiry_s = stored.expiry_s;
        self.sequence = stored.sequence;
        self.gone_at_ms = clock.now_ms.cast_signed() - age_ms.cast_signed();
        if stored.received_sequence > 0 {
            self.ext().qos2.set_sequence(stored.received_sequence);
        }
    }

    /// Restores a run of deliveries, the ones up to `sent` into the window. Returns how many are queued.
    pub(crate) fn restore_run(
        &mut self,
        mut run: Run<StoredExtra>,
        sent: u64,
        released: &BTreeSet<u64>,
    ) -> u32 {
        let extra = run.extra.take().map(|stored| Box::new(self.restore_extra(*stored)));
        if let Some(load) = self.ext.as_ref().and_then(|ext| ext.load.as_ref())
            && extra.as_ref().is_some_and(|extra| extra.group.is_some())
        {
            (0..run.count).for_each(|_| load.take_up());
        }
        while run.count > 0 && (run.sequence <= sent || released.contains(&run.sequence)) {
            let pending = match (released.contains(&run.sequence), run.qos) {
                (true, _) => Pending::PubComp,
                (false, QoS::ExactlyOnce) => Pending::PubRec,
                (false, _) => Pending::PubAck,
            };
            let delivery = Delivery {
                message: None,
                sequence: run.sequence,
                offset: run.offset,
                qos: run.qos,
                retain: run.retain,
                extra: extra.clone(),
            };
            if run.qos != QoS::AtMostOnce {
                self.count_in_flight(&delivery);
                self.window.restore(packet_id_of(run.sequence), pending, Some(delivery));
            }
            run.shorten(None);
        }
        let Run { sequence, offset, count, bytes, qos, retain, .. } = run;
        if count > 0 {
            self.queued_qos0 += if qos == QoS::AtMostOnce { count } else { 0 };
            self.queue.push_far(Run { sequence, offset, count, bytes, qos, retain, extra });
        }
        count
    }

    fn restore_extra(&self, stored: StoredExtra) -> Extra {
        let name = stored.group.as_deref().and_then(|name| parse_subscription(name).ok());
        let is_it = |group: &&Arc<Group>| {
            name.as_ref()
                .is_some_and(|name| name.group == Some(&*group.name) && name.filter == &*group.filter)
        };
        // A message of a group that the session has left since stays its own.
        let group = self.ext.iter().flat_map(|ext| &ext.groups).find(is_it).cloned();
        Extra { group, ids: stored.ids }
    }

    /// Updates all references to entries that were lost with their new names.
    pub(crate) fn rename_lost(&mut self, renamed: impl Fn(u64) -> Option<u64>) {
        for (delivery, _) in self.window.messages_mut().filter(|(delivery, _)| delivery.sequence > 0) {
            delivery.offset = renamed(delivery.offset).unwrap_or(delivery.offset);
        }
        self.queue.replace_each(&renamed);
        if let Some(ext) = &mut self.ext {
            ext.reassigned.relocate(|offset, _| renamed(offset));
        }
    }

    /// Updates references to messages before `horizon`, and to lost ones, with where `move_message` has moved them: a
    /// few old messages must not keep the beginning of the journal.
    pub(crate) fn move_old(
        &mut self,
        mut horizon: u64,
        is_lost: impl Fn(u64) -> bool,
        mut move_message: impl FnMut(u64, Option<&Arc<Message>>) -> Option<u64>,
    ) {
        let old = self.queue.far().take_while(|run| run.offset < horizon);
        if old.map(|run| run.count as usize).sum::<usize>() > MOVED_MAX {
            horizon = 0;
        }
        let mut moved = |offset: u64, message: Option<&Arc<Message>>| {
            (offset < horizon || is_lost(offset)).then(|| move_message(offset, message)).flatten()
        };
        for (delivery, pending) in self.window.messages_mut() {
            if delivery.sequence > 0
                && pending != Pending::PubComp
                && let Some(offset) = moved(delivery.offset, delivery.message.as_ref())
            {
                delivery.offset = offset;
            }
        }
        if let Some(ext) = &mut self.ext {
            ext.reassigned.relocate(&mut moved);
        }
        self.queue.relocate(moved);
    }
}

fn run_of(delivery: &Delivery) -> Run<StoredExtra> {
    Run {
        sequence: delivery.sequence,
        offset: delivery.offset,
        count: 1,
        bytes: delivery.size(),
        qos: delivery.qos,
        retain: delivery.retain,
        extra: delivery.extra.as_deref().map(stored_extra).map(Box::new),
    }
}

fn stored_extra(extra: &Extra) -> StoredExtra {
    let group = extra.group.as_ref().map(|group| group.full_name().into());
    StoredExtra { ids: extra.ids.clone(), group }
}
