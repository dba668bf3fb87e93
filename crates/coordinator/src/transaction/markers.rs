//! Transaction markers: issued when a transaction is prepared to end, retried until all are written.
//!
//! The transaction completes with the last marker. Writing a marker again is harmless, so after a restart or a failure
//! they are simply issued again.

use std::sync::Arc;

use super::{Effect, Markers, Participant, Producer, Slot, State, Transactions, records};

impl Transactions {
    /// A marker is durable, or its participant no longer exists.
    pub fn marker_written(
        &mut self,
        transactional_id: &str,
        producer: Producer,
        participant: &Participant,
        now_ms: u64,
    ) {
        let Some((id, slot)) = self.slot_of(transactional_id, producer) else { return };
        if slot.pending_markers.remove(participant) {
            slot.failed.remove(participant);
            self.complete(&id, now_ms);
            self.serve_waiting(&id, now_ms);
            self.schedule(&id);
        }
    }

    /// A marker could not be written; it is retried after `retry_ms`.
    pub fn marker_failed(
        &mut self,
        transactional_id: &str,
        producer: Producer,
        participant: &Participant,
        now_ms: u64,
    ) {
        let retry_ms = now_ms + self.settings.retry_ms;
        let Some((id, slot)) = self.slot_of(transactional_id, producer) else { return };
        if slot.pending_markers.contains(participant) {
            slot.failed.insert(participant.clone());
            slot.retry_ms.get_or_insert(retry_ms);
            self.schedule(&id);
        }
    }

    /// Finds the transaction of a marker, unless it is over.
    fn slot_of(&mut self, transactional_id: &str, producer: Producer) -> Option<(Arc<str>, &mut Slot)> {
        let (id, _) = self.slots.get_key_value(transactional_id)?;
        let id = Arc::clone(id);
        let slot = self.slots.get_mut(&id)?;
        (slot.transaction.producer == producer).then_some((id, slot))
    }

    /// Issues all markers of a transaction that is prepared to end.
    pub(super) fn write_markers(&mut self, id: &Arc<str>, now_ms: u64) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        if !matches!(slot.transaction.state, State::Prepare(_)) {
            return;
        }
        slot.pending_markers.clone_from(&slot.transaction.participants);
        slot.failed.clear();
        slot.retry_ms = None;
        let all = slot.pending_markers.iter().cloned().collect();
        self.issue(id, all);
        self.complete(id, now_ms);
    }

    /// Issues failed markers again when their retry is due.
    pub(super) fn retry_markers(&mut self, id: &Arc<str>, now_ms: u64) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        if slot.retry_ms.take_if(|retry_ms| *retry_ms <= now_ms).is_some() {
            let failed = std::mem::take(&mut slot.failed).into_iter().collect();
            self.issue(id, failed);
        }
    }

    fn issue(&mut self, id: &Arc<str>, participants: Vec<Participant>) {
        let Some(slot) = self.slots.get(id) else { return };
        let State::Prepare(outcome) = slot.transaction.state else { return };
        if !participants.is_empty() {
            self.effects.push_back(Effect::WriteMarkers(Markers {
                transactional_id: Arc::clone(id),
                producer: slot.transaction.producer,
                coordinator_epoch: self.settings.coordinator_epoch,
                outcome,
                participants,
            }));
        }
    }

    /// Completes a transaction once all its markers are written.
    fn complete(&mut self, id: &Arc<str>, now_ms: u64) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        let State::Prepare(outcome) = slot.transaction.state else { return };
        if !slot.pending_markers.is_empty() {
            return;
        }
        slot.transaction = slot.transaction.completed(outcome, now_ms);
        slot.retry_ms = None;
        let record = records::transaction(id, Some(&slot.transaction));
        self.persist(vec![record]);
    }
}
