//! QoS 2 publishes of durable sessions that may reach some journals and not others: what the shard records of them, and
//! what it takes back when a journal loses entries.
//!
//! A publish at QoS 2 may be appended to several journals, and no commit spans them. If the process ends or a disk
//! fails in between, some receivers have the message and others do not. The publisher has no PUBREC, so it sends the
//! PUBLISH again, and exactly once then means: to those that miss it, and to nobody else.
//!
//! Each such publish therefore has an [`Origin`], which every journal that gets it records, and is tracked until all
//! targets have confirmed it. If one fails, it becomes a partial publish, with the targets that are known to have it;
//! the repeated PUBLISH is limited to the others.

use std::collections::BTreeSet;

use mainstem_mqtt::ReasonCode;

use super::SessionHost;
use crate::journal::Journal;
use crate::journal::entry::{Entry, Mark, Origin};
use crate::pending_acks::{AckKind, AckToken, PendingAck, RemoteCommitResult};
use crate::publication::PublishContext;
use crate::qos2_recovery::InFlightPublish;

impl SessionHost {
    /// A new QoS 2 publish of a durable session as other journals record it.
    pub(crate) fn new_origin(&mut self, slot: u32, packet_id: u16) -> Option<Origin> {
        let session = self.sessions.at(slot);
        if !session.is_durable() {
            return None;
        }
        let journal_id = self.persistence.journal(session.journal()).id();
        let sequence = session.ext().qos2.next_sequence();
        Some(Origin { journal_id, session: session.number(), packet_id, sequence })
    }

    /// A QoS 2 publish of a session is in flight until all its targets have confirmed it. The journal records that it
    /// was received, unless the entry of its message does. `awaited` other shards and sinks will report.
    pub(crate) fn track_in_flight_publish(
        &mut self,
        slot: u32,
        origin: Origin,
        ack_context: &PublishContext,
        has_entry: bool,
        (awaited, has_sinks): (u32, bool),
    ) {
        let Some((mut journal, _)) = self.journal(slot) else { return };
        let reached = ack_context.partial.as_ref().map(|before| before.reached.clone()).unwrap_or_default();
        if !has_entry {
            let Origin { session, packet_id, sequence, .. } = origin;
            let taken = Some((sequence, reached.clone()));
            journal.push(&Entry::Received { session, packet_id, taken });
        }
        let groups = journal.take_dealt();
        let publish = InFlightPublish {
            origin,
            number: ack_context.token.map_or(0, |token| token.number),
            commit: self.persistence.current_commit(),
            has_sinks,
            reached,
            groups,
            missing: BTreeSet::new(),
            awaited,
        };
        self.sessions.at(slot).ext().qos2.track(publish);
    }

    /// Another shard reports what has become of its part in a publish.
    pub(crate) fn on_remote_commit(&mut self, token: AckToken, result: &RemoteCommitResult) {
        let slot = token.session.slot;
        let Some(ext) = self.sessions.at(slot).ext_mut() else { return };
        if let Some(publish) = ext.qos2.on_remote_commit(token.number, result) {
            self.record_partial_publish(slot, publish);
        }
    }

    /// A publish has reached all its targets.
    pub(super) fn complete_publish(&mut self, slot: u32, packet_id: u16) {
        let Some(ext) = self.sessions.at(slot).ext_mut() else { return };
        if ext.qos2.take_in_flight(packet_id).is_some()
            && let Some((mut journal, session)) = self.journal(slot)
        {
            journal.mark(Mark::Complete { session, packet_id });
        }
    }

    /// PUBREL: the packet identifier is free again, and stays so.
    pub(super) fn append_release(&mut self, slot: u32, packet_id: u16) {
        if let Some(ext) = self.sessions.at(slot).ext_mut() {
            ext.qos2.release(packet_id);
        }
        if let Some((mut journal, session)) = self.journal(slot) {
            journal.push(&Entry::Received { session, packet_id, taken: None });
        }
    }

    /// Takes publishes at the offsets `once` of a journal back from a session of it.
    fn take_back(&mut self, slot: u32, journal: usize, once: &BTreeSet<u64>) {
        let session = self.sessions.at(slot);
        if usize::from(session.journal()) != journal {
            return;
        }
        let journal = &self.persistence.journals()[journal];
        let taken = session.take_back(|offset| journal.moved_from(offset), once);
        self.deliveries.on_dequeued(taken, session.is_connected());
    }

    /// A journal of this shard misses what a session has published since commit `first_lost`.
    fn interrupt_publishes(&mut self, slot: u32, journal: usize, first_lost: u64) {
        let lost = self.persistence.journals()[journal].id();
        let session = self.sessions.at(slot);
        let is_own = usize::from(session.journal()) == journal;
        let Some(ext) = session.ext_mut() else { return };
        for mut publish in ext.qos2.take_lost(first_lost) {
            publish.missing.insert(lost);
            if is_own {
                // What was dealt out here was lost with the journal.
                publish.groups.clear();
            }
            self.record_partial_publish(slot, publish);
        }
    }

    /// The PUBREC of a publish is not sent; some journals may have the publish.
    pub(super) fn interrupt_publish(&mut self, slot: u32, kind: &AckKind) {
        let AckKind::Ack { packet_id, .. } = *kind else { return };
        let Some(ext) = self.sessions.at(slot).ext_mut() else { return };
        if let Some(publish) = ext.qos2.take_in_flight(packet_id) {
            self.record_partial_publish(slot, publish);
        }
        let durable_commit = self.persistence.durable_commit();
        let taken = self.sessions.at(slot).ext().qos2.settled_partial(packet_id, durable_commit);
        if taken.is_some()
            && let Some((mut journal, session)) = self.journal(slot)
        {
            journal.push(&Entry::Received { session, packet_id, taken });
        }
    }

    /// A QoS 2 publish has not reached all its targets: when it is sent again, those that miss it get it.
    fn record_partial_publish(&mut self, slot: u32, publish: InFlightPublish) {
        let arrivals = self.persistence.journals().iter().flat_map(Journal::origins);
        let here = arrivals.filter(|known| known.origin == publish.origin);
        let groups_here = here.flat_map(|known| known.reached.groups.iter().cloned()).collect();
        let ext = self.sessions.at(slot).ext();
        ext.acks.fail_publish(publish.origin.packet_id);
        ext.qos2.record_partial(publish, &self.shared.journals(), groups_here);
    }

    /// A sink has rejected a QoS 2 publish of a durable session: the exchange ends when its journal has the release.
    pub(super) fn reject_exchange(&mut self, slot: u32, mut ack: PendingAck, rejected: ReasonCode) {
        let AckKind::Ack { packet_id, reason, .. } = &mut ack.kind else { return };
        *reason = rejected;
        let packet_id = *packet_id;
        self.sessions.at(slot).release(packet_id);
        let before = self.persistence.position();
        self.append_release(slot, packet_id);
        let condition = self.persistence.condition_since(before);
        let session = self.sessions.at(slot);
        session.ext().acks.put_back(PendingAck { condition, failure: None, completes: false, ..ack });
        self.persistence.commits_mut().wake_with(condition.commit, session.key());
    }

    /// Handles journals that have lost entries. QoS 2 publishes that sessions have from those entries only are taken
    /// back: they were not acknowledged, so their clients send them again. Everything else stays, in memory.
    pub(super) fn take_back_lost(&mut self) {
        for index in 0..self.persistence.journals().len() {
            let Some(lost) = self.persistence.journals_mut()[index].take_lost() else { continue };
            // Without a number it is the commit of the turn that has just ended.
            let commit = lost.commit.unwrap_or(self.persistence.current_commit() - 1);
            let first_lost = commit.max(self.persistence.durable_commit() + 1);
            self.note_failures();
            let once = self.persistence.journals_mut()[index].take_once_from(lost.from);
            for slot in self.sessions.slots() {
                if self.sessions.at(slot).is_durable() {
                    self.take_back(slot, index, &once);
                    self.interrupt_publishes(slot, index, first_lost);
                }
            }
            let journal = &self.persistence.journals()[index];
            for (_, stored) in self.endings.stored(index) {
                stored.place_each(|offset| {
                    let offset = journal.moved_from(offset).unwrap_or(offset);
                    (!once.contains(&offset)).then_some(offset)
                });
            }
        }
    }
}
