//! Exactly once across journals: a QoS 2 publish of a session that lasts may reach some journals and not others
//! when the process ends or a disk fails, and is then given to those that lack it, once.

use std::collections::BTreeSet;

use mainstem_mqtt::{Publish, QoS};

use crate::answers::{Receipt, What};
use crate::delivery::Deliveries;
use crate::durable::Due;
use crate::given::Given;
use crate::journal::Journal;
use crate::journal::entry::{Entry, Mark, Origin};
use crate::outside::SINKS;
use crate::publish::RETAINED_LOG;
use crate::session::{CutShort, Lacking, UnderWay};
use crate::shard::Shard;
use crate::shared::Part;

/// Bit of what a publish lacks that was cut short: shared subscriptions that have not dealt it out. Journals have the
/// bits below.
const GROUPS: u64 = 1 << 61;

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
    /// `awaited` shards will tell what has become of their parts.
    pub(crate) fn note_under_way(&mut self, slot: u32, origin: Origin, due: &Due, awaited: u32) {
        let Some((journal, _)) = self.journal(slot) else { return };
        let groups = journal.take_dealt();
        let Origin { packet_id, sequence, reach, .. } = origin;
        let before = due.cut_short.as_ref();
        let publish = UnderWay {
            packet_id,
            sequence,
            number: due.receipt.map_or(0, |receipt| receipt.number),
            commit: self.commits.current(),
            reach,
            targets: before.map_or(u64::MAX, |before| before.lacking),
            groups,
            kept: before.map_or_else(Vec::new, |before| before.groups.clone()),
            lacking: 0,
            awaited,
        };
        let rare = self.deliveries.sessions.at(slot).rare();
        rare.under_way.retain(|known| known.packet_id != packet_id);
        rare.under_way.push(publish);
    }

    /// Another shard tells what has become of its part in a publish.
    pub(crate) fn hear_of_part(&mut self, receipt: Receipt, part: &Part) {
        let slot = receipt.session.slot;
        let Some(rare) = &mut self.deliveries.sessions.at(slot).rare else { return };
        let under_way = rare.under_way.iter_mut().find(|known| known.number == receipt.number);
        if let Some(publish) = under_way {
            publish.hear(part);
            if !part.is_durable {
                // Its client may be gone, and must not be told that it is kept when it comes again.
                let publish = publish.clone();
                rare.under_way.retain(|known| known.number != receipt.number);
                self.cut_short(slot, publish);
            }
            return;
        }
        let known = rare.cut_short.iter_mut().find_map(|(_, cut_short)| {
            cut_short.under_way.take_if(|publish| publish.number == receipt.number)
        });
        if let Some(mut publish) = known {
            publish.hear(part);
            self.cut_short(slot, *publish);
        }
    }

    /// Whether a PUBLISH goes on with one of which other shards have yet to tell who lacks it.
    pub(crate) fn is_in_doubt(&mut self, slot: u32, publish: &Publish<'_>) -> bool {
        publish.qos == QoS::ExactlyOnce && self.deliveries.sessions.at(slot).is_in_doubt(publish.packet_id)
    }

    /// It has reached them all.
    pub(crate) fn note_complete(&mut self, slot: u32, packet_id: u16) {
        let Some(rare) = &mut self.deliveries.sessions.at(slot).rare else { return };
        let Some(index) = rare.under_way.iter().position(|known| known.packet_id == packet_id) else {
            return;
        };
        // In their order: receipts mostly are of the oldest.
        let publish = rare.under_way.remove(index);
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
                if !self.deliveries.sessions.at(slot).lasts() {
                    continue;
                }
                self.take_back(slot, index, &once);
                self.cut_short_from(slot, index, first_lost);
            }
            self.take_back_from_ending(index, &once);
        }
    }

    /// Takes publishes at the offsets `once` of a journal back from a session of it.
    fn take_back(&mut self, slot: u32, journal: usize, once: &BTreeSet<u64>) {
        let session = self.deliveries.sessions.at(slot);
        if usize::from(session.journal) != journal {
            return;
        }
        // Copies that a snapshot has made are lost as well; what they are copies of is not.
        let journal = &self.deliveries.journals[journal];
        session.queue.replace_each(|offset| journal.moved_from(offset));
        let gone = session.queue.take_at(once);
        for delivery in &gone {
            session.settle(delivery);
        }
        if let Some(rare) = &mut session.rare {
            for Given { delivery, .. } in &mut rare.given {
                delivery.offset = journal.moved_from(delivery.offset).unwrap_or(delivery.offset);
            }
            rare.given.retain(|given| !once.contains(&given.delivery.offset));
        }
        let is_connected = session.connected;
        let qos0 = gone.iter().filter(|delivery| delivery.qos == QoS::AtMostOnce).count() as u32;
        session.queued_qos0 -= qos0.min(session.queued_qos0);
        self.deliveries.counters.queued_messages -= gone.len() as u64;
        self.deliveries.backlog -= if is_connected { gone.len() as u64 } else { 0 };
    }

    /// The same for sessions that have ended, and whose end must not be entered yet.
    fn take_back_from_ending(&mut self, journal: usize, once: &BTreeSet<u64>) {
        let known = &self.deliveries.journals[journal];
        for ending in self.ending.iter_mut().filter(|ending| usize::from(ending.journal) == journal) {
            let Some(stored) = &mut ending.stored else { continue };
            stored.place_each(|offset| {
                let offset = known.moved_from(offset).unwrap_or(offset);
                (!once.contains(&offset)).then_some(offset)
            });
        }
    }

    /// A journal of this shard lacks what a session has published since commit `first_lost`.
    fn cut_short_from(&mut self, slot: u32, journal: usize, first_lost: u64) {
        let lost = 1 << self.deliveries.journals[journal].home;
        let session = self.deliveries.sessions.at(slot);
        let is_home = usize::from(session.journal) == journal;
        let Some(rare) = &mut session.rare else { return };
        let is_lost = |publish: &UnderWay| publish.commit >= first_lost;
        let mut publishes: Vec<UnderWay> =
            rare.under_way.extract_if(.., |publish| is_lost(publish)).collect();
        for (_, cut_short) in &mut rare.cut_short {
            publishes.extend(cut_short.under_way.take_if(|publish| is_lost(publish)).map(|publish| *publish));
        }
        for mut publish in publishes {
            publish.lacking |= lost;
            if is_home {
                // What was dealt out here was lost with the journal.
                publish.groups.clear();
            }
            self.cut_short(slot, publish);
        }
    }

    /// The PUBREC that is not given was of a publish that some journals may have.
    pub(crate) fn cut_short_answered(&mut self, slot: u32, what: &What) {
        let What::Ack { packet_id, .. } = what else { return };
        let Some(rare) = &mut self.deliveries.sessions.at(slot).rare else { return };
        if let Some(index) = rare.under_way.iter().position(|known| known.packet_id == *packet_id) {
            let publish = rare.under_way.remove(index);
            self.cut_short(slot, publish);
        }
    }

    /// Shared subscriptions that have dealt out a publish, as other journals of this shard know that have it.
    fn dealt_here(&mut self, slot: u32, publish: &UnderWay) -> Vec<Box<str>> {
        let session = self.deliveries.sessions.at(slot);
        let journals = &self.deliveries.journals;
        let home = journals[usize::from(session.journal)].home;
        let it = (home, session.number, publish.packet_id, publish.sequence);
        let is_it = |known: &Origin| (known.home, known.session, known.packet_id, known.sequence) == it;
        let arrivals = journals.iter().flat_map(Journal::origins);
        arrivals.filter(|known| is_it(&known.origin)).flat_map(|known| known.groups.iter().cloned()).collect()
    }

    /// A QoS 2 publish has not arrived everywhere: when it is sent again, those that lack it get it.
    pub(crate) fn cut_short(&mut self, slot: u32, publish: UnderWay) {
        let UnderWay { packet_id, sequence, .. } = publish;
        let missing = publish.lacking & publish.targets | publish.reach & (RETAINED_LOG | SINKS);
        // Or a journal that knows of nothing that it lacks would take it for complete.
        let lacking = missing | GROUPS;
        let groups = [&publish.groups[..], &publish.kept[..], &self.dealt_here(slot, &publish)].concat();
        let cut_short = CutShort { sequence, lacking, groups, under_way: Some(Box::new(publish)) };
        let rare = self.deliveries.sessions.at(slot).rare();
        rare.answers.fail_publish(packet_id);
        rare.cut_short.retain(|(known, _)| *known != packet_id);
        rare.cut_short.push((packet_id, cut_short));
    }
}

impl Deliveries {
    /// Whether a session got the message before it was cut short: its journal has it, or none has the session.
    #[cold]
    pub(crate) fn has_it_already(&mut self, slot: u32) -> bool {
        let Some(Lacking { journals, is_out }) = self.only else { return false };
        let session = self.sessions.at(slot);
        if !session.lasts() {
            return is_out;
        }
        journals & (1 << self.journals[usize::from(session.journal)].home) == 0
    }
}
