//! Messages whose entries are not on disk yet. They stay in memory until then, so that a failing disk loses no message
//! that its publisher would not send again.
//!
//! A QoS 2 publish that was not acknowledged is sent again for certain, and must then be delivered once. It is not
//! held: if the journal loses its entry, the publish is taken back from its receivers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::message::Message;

/// Tag bit of an offset whose entry was lost.
pub(super) const LOST: u64 = 1 << 62;

#[derive(Debug, Default)]
pub(super) struct HeldMessages {
    /// By offset, ascending.
    waiting: VecDeque<(u64, Arc<Message>)>,
    /// Messages whose entries were lost, by their new offsets, which have the bit [`LOST`].
    lost: BTreeMap<u64, Arc<Message>>,
    /// Offsets of publishes that are taken back if their entries are lost.
    once: VecDeque<u64>,
}

impl HeldMessages {
    /// A message was appended at `offset`.
    pub(super) fn hold(&mut self, offset: u64, message: &Arc<Message>) {
        self.waiting.push_back((offset, Arc::clone(message)));
    }

    /// A publish that is taken back if it is lost was appended at `offset`.
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

    /// Number of messages and offsets.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.lost.len() + self.once.len()
    }

    /// Whether there are publishes to take back from `offset` on.
    pub(super) fn has_once_from(&self, offset: u64) -> bool {
        self.once.back().is_some_and(|last| *last >= offset)
    }

    /// Takes the offsets from `offset` on of publishes to take back.
    pub(super) fn take_once_from(&mut self, offset: u64) -> BTreeSet<u64> {
        let from = self.once.partition_point(|known| *known < offset);
        self.once.split_off(from).into_iter().collect()
    }

    /// The journal continues at `end` after a failure: entries behind that get new offsets, `shift` behind their old
    /// ones and with the bit [`LOST`].
    pub(super) fn restart(&mut self, end: u64, shift: u64) {
        self.committed(end);
        let lost = self.waiting.drain(..);
        self.lost.extend(lost.map(|(offset, message)| ((offset + shift) | LOST, message)));
    }

    /// Everything that was lost has been appended again.
    pub(super) fn healed(&mut self) {
        self.lost.clear();
    }
}

#[cfg(test)]
mod tests {
    use mainstem_mqtt::{MessageProperties, QoS};
    use mainstem_runtime::MemoryMeter;

    use super::*;
    use crate::message::Content;

    fn message(topic: &str) -> Arc<Message> {
        let (payload, properties) = (&b""[..], MessageProperties::default());
        let content =
            Content { qos: QoS::AtLeastOnce, retain: false, publisher: None, topic, payload, properties };
        Arc::new(Message::new(&content, 0, &MemoryMeter::default()))
    }

    #[test]
    fn holds_messages_until_their_entries_are_on_disk() {
        let mut held = HeldMessages::default();
        for (offset, topic) in [(3, "a"), (5, "b"), (6, "c")] {
            held.hold(offset, &message(topic));
        }
        held.committed(5);
        assert!(held.message(3).is_none() && held.message(4).is_none());
        assert_eq!(held.message(6).unwrap().topic(), "c");

        held.restart(6, 0);
        held.hold(6, &message("d"));
        assert!(held.message(5).is_none(), "it is on disk after all");
        assert_eq!(held.message(6).unwrap().topic(), "d");
        held.restart(6, 1);
        assert_eq!(held.message(6 | LOST).unwrap().topic(), "c");
        assert_eq!(held.message(7 | LOST).unwrap().topic(), "d");
        held.healed();
        assert!(held.message(6 | LOST).is_none());
    }

    #[test]
    fn takes_publishes_back_from_lost_offsets() {
        let mut held = HeldMessages::default();
        for offset in [2, 4, 7] {
            held.note_once(offset);
        }
        held.committed(3);
        assert!(held.has_once_from(7) && !held.has_once_from(8));
        assert_eq!(held.take_once_from(5), BTreeSet::from([7]));
        assert!(held.has_once_from(3) && !held.has_once_from(5));
    }
}
