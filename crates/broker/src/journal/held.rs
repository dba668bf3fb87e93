//! Messages whose entries are not on disk yet: in memory until they are, so that a disk which fails loses none that
//! nobody would send again.
//!
//! A publish that will be sent again for certain, and may then be given out only once, is not held: what the journal
//! has lost of it is taken back from its receivers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::LOST;
use crate::message::Message;

#[derive(Debug, Default)]
pub(super) struct Held {
    /// By the offset of the entry, which grow.
    waiting: VecDeque<(u64, Arc<Message>)>,
    /// Those whose entry was lost, by the name that it has since then.
    lost: BTreeMap<u64, Arc<Message>>,
    /// Entries of publishes that are to be taken back if they are lost.
    once: VecDeque<u64>,
}

impl Held {
    /// A message is entered at `offset`.
    pub(super) fn hold(&mut self, offset: u64, message: &Arc<Message>) {
        self.waiting.push_back((offset, Arc::clone(message)));
    }

    /// A publish that is to be taken back if it is lost is entered at `offset`.
    pub(super) fn note_once(&mut self, offset: u64) {
        self.once.push_back(offset);
    }

    /// Everything before `end` is on disk.
    pub(super) fn committed(&mut self, end: u64) {
        while self.waiting.pop_front_if(|(offset, _)| *offset < end).is_some() {}
        while self.once.pop_front_if(|offset| *offset < end).is_some() {}
    }

    pub(super) fn message(&self, offset: u64) -> Option<Arc<Message>> {
        if offset & LOST != 0 {
            return self.lost.get(&offset).cloned();
        }
        let index = self.waiting.binary_search_by_key(&offset, |(known, _)| *known).ok()?;
        Some(Arc::clone(&self.waiting[index].1))
    }

    /// Everything that is remembered.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.lost.len() + self.once.len()
    }

    /// Whether publishes from `offset` on are to be taken back.
    pub(super) fn has_once_from(&self, offset: u64) -> bool {
        self.once.back().is_some_and(|last| *last >= offset)
    }

    /// The entries from `offset` on of publishes that are to be taken back now.
    pub(super) fn take_once_from(&mut self, offset: u64) -> BTreeSet<u64> {
        let from = self.once.partition_point(|known| *known < offset);
        self.once.split_off(from).into_iter().collect()
    }

    /// The journal goes on at `end` after it has failed: what was entered behind that has another name from now on,
    /// `shift` behind its offset.
    pub(super) fn begin_anew(&mut self, end: u64, shift: u64) {
        self.committed(end);
        let lost = self.waiting.drain(..);
        self.lost.extend(lost.map(|(offset, message)| ((offset + shift) | LOST, message)));
    }

    /// All that was lost has been entered again.
    pub(super) fn healed(&mut self) {
        self.lost.clear();
    }
}

#[cfg(test)]
mod tests {
    use mainstem_mqtt::{MessageProperties, QoS};

    use super::*;
    use crate::message::Content;

    fn message(topic: &str) -> Arc<Message> {
        let (payload, properties) = (&b""[..], MessageProperties::default());
        let content =
            Content { qos: QoS::AtLeastOnce, retain: false, publisher: None, topic, payload, properties };
        Arc::new(Message::new(&content, 0))
    }

    #[test]
    fn messages_are_held_until_their_entries_are_on_disk_or_entered_again() {
        let mut held = Held::default();
        for (offset, topic) in [(3, "a"), (5, "b"), (6, "c")] {
            held.hold(offset, &message(topic));
        }
        held.committed(5);
        assert!(held.message(3).is_none() && held.message(4).is_none());
        assert_eq!(held.message(6).unwrap().topic(), "c");

        held.begin_anew(6, 0);
        held.hold(6, &message("d"));
        assert!(held.message(5).is_none(), "it is on disk after all");
        assert_eq!(held.message(6).unwrap().topic(), "d");
        held.begin_anew(6, 1);
        assert_eq!(held.message(6 | LOST).unwrap().topic(), "c");
        assert_eq!(held.message(7 | LOST).unwrap().topic(), "d");
        held.healed();
        assert!(held.message(6 | LOST).is_none());
    }

    #[test]
    fn publishes_are_taken_back_from_where_entries_were_lost() {
        let mut held = Held::default();
        for offset in [2, 4, 7] {
            held.note_once(offset);
        }
        held.committed(3);
        assert!(held.has_once_from(7) && !held.has_once_from(8));
        assert_eq!(held.take_once_from(5), BTreeSet::from([7]));
        assert!(held.has_once_from(3) && !held.has_once_from(5));
    }
}
