//! Exactly once across journals: a QoS 2 publish of a session that lasts may reach some journals and not others
//! when the process ends or a disk fails, and is then given to those that lack it, once.

use mainstem_mqtt::QoS;

use crate::answers::{Receipt, What};
use crate::journal::entry::{Entry, Mark, Origin};
use crate::outside::SINKS;
use crate::publish::RETAINED_LOG;
use crate::session::{CutShort, UnderWay};
use crate::shard::Shard;

impl Shard {
    /// A QoS 2 publish of a session that lasts, as other journals are to remember it.
    /// One that goes on after a crash keeps the sequence number that it had, or a second crash would make it
    /// unknown to those that have it.
    pub(crate) fn origin_of(&mut self, slot: u32, packet_id: u16, again: Option<u64>) -> Option<Origin> {
        let homes = self.shared.homes();
        let session = self.deliveries.sessions.at(slot);
        if !session.lasts() {
            return None;
        }
        let (number, journal) = (session.number, usize::from(session.journal));
        let rare = session.rare();
        let sequence = again.unwrap_or_else(|| {
            rare.received_sequence += 1;
            rare.received_sequence
        });
        let home = self.deliveries.journals[journal].home;
        let reach = homes & !(1 << home);
        Some(Origin { home, session: number, packet_id, sequence, reach })
    }

    /// Enters that a QoS 2 publish has been taken in, unless the entry of its message says so.
    pub(crate) fn enter_received(&mut self, slot: u32, origin: Origin, has_entry: bool) {
        if has_entry {
            return;
        }
        if let Some((journal, session)) = self.journal(slot) {
            let taken = Some((origin.sequence, origin.reach));
            journal.push(&Entry::Received { session, packet_id: origin.packet_id, taken });
        }
    }

    /// A QoS 2 publish may have to reach other journals: until it is known that it has, a crash may cut it short.
    pub(crate) fn note_under_way(&mut self, slot: u32, origin: Origin, receipt: Option<Receipt>) {
        let Some((journal, _)) = self.journal(slot) else { return };
        let groups = journal.take_dealt();
        let Origin { packet_id, sequence, reach, .. } = origin;
        let commit = self.commits.current();
        let rare = self.deliveries.sessions.at(slot).rare();
        rare.under_way.retain(|known| known.packet_id != packet_id);
        let number = receipt.map_or(0, |receipt| receipt.number);
        rare.under_way.push(UnderWay { packet_id, sequence, number, commit, reach, groups });
    }

    /// It has reached them all.
    pub(crate) fn note_complete(&mut self, slot: u32, packet_id: u16) {
        let Some(rare) = &mut self.deliveries.sessions.at(slot).rare else { return };
        let Some(index) = rare.under_way.iter().position(|known| known.packet_id == packet_id) else {
            return;
        };
        let publish = rare.under_way.swap_remove(index);
        if publish.reach != 0
            && let Some((journal, session)) = self.journal(slot)
        {
            journal.mark(Mark::Complete { session, packet_id });
        }
    }

    /// PUBREL: the identifier is free again, and stays so.
    pub(crate) fn enter_release(&mut self, slot: u32, packet_id: u16) {
        if let Some(rare) = &mut self.deliveries.sessions.at(slot).rare {
            rare.cut_short.retain(|(known, _)| *known != packet_id);
            rare.under_way.retain(|known| known.packet_id != packet_id);
        }
        if let Some((journal, session)) = self.journal(slot) {
            journal.push(&Entry::Received { session, packet_id, taken: None });
        }
    }

    /// A journal has lost entries. QoS 2 publishes that sessions have from them only are taken back: nobody was told
    /// that they are kept, and who sent them will send them again. What will not be sent again for certain stays,
    /// in memory.
    pub(crate) fn give_up_lost(&mut self) {
        for index in 0..self.deliveries.journals.len() {
            let Some(lost) = self.deliveries.journals[index].take_lost() else { continue };
            // Without a number it is that of the turn which has just ended.
            let first_lost =
                lost.commit.unwrap_or(self.commits.current() - 1).max(self.commits.durable() + 1);
            self.note_failures();
            let once = self.deliveries.journals[index].take_once_from(lost.from);
            let slots: Vec<u32> = self.deliveries.sessions.slots_from(0).collect();
            for slot in slots {
                let session = self.deliveries.sessions.at(slot);
                if !session.lasts() || usize::from(session.journal) != index {
                    continue;
                }
                // Copies that a snapshot has made are lost as well; what they are copies of is not.
                let journal = &self.deliveries.journals[index];
                session.queue.replace_each(|offset| journal.moved_from(offset));
                let gone = session.queue.take_at(&once);
                for delivery in &gone {
                    session.settle(delivery);
                }
                let is_connected = session.connected;
                let qos0 = gone.iter().filter(|delivery| delivery.qos == QoS::AtMostOnce).count() as u32;
                session.queued_qos0 -= qos0.min(session.queued_qos0);
                let under_way = session.rare.as_mut().map(|rare| std::mem::take(&mut rare.under_way));
                self.deliveries.counters.queued_messages -= gone.len() as u64;
                self.deliveries.backlog -= if is_connected { gone.len() as u64 } else { 0 };
                for publish in under_way.unwrap_or_default() {
                    if publish.commit >= first_lost {
                        self.cut_short(slot, publish);
                    } else {
                        self.deliveries.sessions.at(slot).rare().under_way.push(publish);
                    }
                }
            }
        }
    }

    /// The PUBREC that is not given was of a publish that some journals may have.
    pub(crate) fn cut_short_answered(&mut self, slot: u32, what: &What) {
        let What::Ack { packet_id, .. } = what else { return };
        let Some(rare) = &mut self.deliveries.sessions.at(slot).rare else { return };
        if let Some(index) = rare.under_way.iter().position(|known| known.packet_id == *packet_id) {
            let publish = rare.under_way.swap_remove(index);
            self.cut_short(slot, publish);
        }
    }

    /// A QoS 2 publish has not arrived everywhere: when it is sent again, those that lack it get it.
    pub(crate) fn cut_short(&mut self, slot: u32, publish: UnderWay) {
        let UnderWay { packet_id, sequence, groups, reach, .. } = publish;
        let lacking = self.shared.failing() | reach & (RETAINED_LOG | SINKS);
        let rare = self.deliveries.sessions.at(slot).rare();
        rare.cut_short.retain(|(known, _)| *known != packet_id);
        // What was dealt out here was lost with the journal, if that is what failed.
        let groups = if lacking & !(RETAINED_LOG | SINKS) == 0 { groups } else { Vec::new() };
        rare.cut_short.push((packet_id, CutShort { sequence, lacking, groups: groups.into() }));
    }
}
