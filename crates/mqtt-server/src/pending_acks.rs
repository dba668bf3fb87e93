//! Acks that wait: each leaves when everything that it promises is durable, and not before an earlier one of the
//! session.
//!
//! An ack waits for a commit of its own shard and for receipts of other shards. If any part fails, the ack carries the
//! failure to the front of its queue, where it is sent as an error or ends the connection.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use mainstem_mqtt::ReasonCode;

use crate::groups::Group;
use crate::message::SessionKey;

/// Memory of the acks of one session beyond which its client's requests wait, bytes.
const WAITING_BYTES_MAX: u64 = 1024 * 1024;

/// What an ack waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AckCondition {
    /// A commit of the shard; 0 is none.
    pub(crate) commit: u64,
    /// Number of reports from other shards and sinks that are missing.
    pub(crate) receipts: u32,
}

impl AckCondition {
    pub(crate) fn is_met(self, durable_commit: u64) -> bool {
        self.commit <= durable_commit && self.receipts == 0
    }
}

/// What is sent or done when the condition is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AckKind {
    /// PUBACK, PUBREC, PUBREL or PUBCOMP: first byte, packet identifier, reason code on success.
    Ack { first: u8, packet_id: u16, reason: ReasonCode },
    /// No packet: the journal records that a delivery is over, since another session has the message.
    Settled { sequence: u64 },
    /// No packet: the journal records that the will is durable elsewhere.
    WillSent,
    /// SUBACK or UNSUBACK: packet identifier and reason codes.
    List { is_subscribe: bool, packet_id: u16, reasons: Box<[u8]> },
}

/// An ack of a session, in the order of its requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingAck {
    /// Ascending within a shard.
    pub(crate) number: u64,
    pub(crate) condition: AckCondition,
    pub(crate) failure: Option<Failure>,
    /// It ends a QoS 2 publish of a durable session that is in flight.
    pub(crate) completes: bool,
    pub(crate) kind: AckKind,
}

impl PendingAck {
    /// Whether it reports a publish that was rejected or is not durable.
    fn refuses(&self) -> bool {
        const PUBACK: u8 = 4;
        const PUBREC: u8 = 5;
        matches!(self.kind, AckKind::Ack { first, reason, .. }
            if matches!(first >> 4, PUBACK | PUBREC) && (reason.is_error() || self.failure.is_some()))
    }
}

/// Why an ack cannot report success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Some part is not durable; others may be.
    NotDurable,
    /// A sink has rejected it, for this reason.
    Refused(ReasonCode),
}

/// The pending acks of one session, in order.
#[derive(Debug, Default)]
pub(crate) struct PendingAcks {
    waiting: VecDeque<PendingAck>,
    /// Reason codes in the acks of subscriptions.
    reasons: usize,
    /// Number of the last one that reports a publish that was rejected or is not durable.
    last_refusal: u64,
}

/// Number of reason codes of a SUBACK or UNSUBACK.
fn reason_count(ack: &PendingAck) -> usize {
    if let AckKind::List { reasons, .. } = &ack.kind { reasons.len() } else { 0 }
}

impl PendingAcks {
    /// Memory of the acks.
    pub(crate) fn bytes(&self) -> u64 {
        (self.waiting.len() * size_of::<PendingAck>() + self.reasons) as u64
    }

    /// The same, computed anew.
    pub(crate) fn recomputed_bytes(&self) -> u64 {
        self.waiting.iter().map(|ack| size_of::<PendingAck>() + reason_count(ack)).sum::<usize>() as u64
    }

    /// Whether so many acks wait that no further request may begin.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes() >= WAITING_BYTES_MAX
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn push(&mut self, ack: PendingAck) {
        if ack.refuses() {
            self.last_refusal = ack.number;
        }
        self.reasons += reason_count(&ack);
        self.waiting.push_back(ack);
    }

    /// Whether a publish was rejected, and the ack that reports it has not been sent.
    pub(crate) fn has_refusal(&self) -> bool {
        self.waiting.front().is_some_and(|first| first.number <= self.last_refusal)
    }

    /// Puts an ack that was taken out back to the front: it has to wait again.
    pub(crate) fn put_back(&mut self, ack: PendingAck) {
        self.reasons += reason_count(&ack);
        self.waiting.push_front(ack);
    }

    fn find(&mut self, number: u64) -> Option<&mut PendingAck> {
        let index = self.waiting.binary_search_by_key(&number, |ack| ack.number).ok()?;
        self.waiting.get_mut(index)
    }

    /// A part of ack `number` is over elsewhere.
    pub(crate) fn on_receipt(&mut self, number: u64, failure: Option<Failure>) {
        let Some(ack) = self.find(number) else { return };
        ack.condition.receipts = ack.condition.receipts.saturating_sub(1);
        if ack.failure != Some(Failure::NotDurable) {
            ack.failure = failure.or(ack.failure);
        }
        if ack.refuses() {
            self.last_refusal = self.last_refusal.max(number);
        }
    }

    /// Refuses one filter of a SUBACK, which is durable with `commit`.
    pub(crate) fn refuse(&mut self, number: u64, index: usize, reason: ReasonCode, commit: u64) {
        let Some(ack) = self.find(number) else { return };
        ack.condition.commit = ack.condition.commit.max(commit);
        if let AckKind::List { reasons, .. } = &mut ack.kind
            && let Some(known) = reasons.get_mut(index)
        {
            *known = reason as u8;
        }
    }

    /// A commit has failed, and with it the acks that wait for it.
    pub(crate) fn fail(&mut self, commit: u64) {
        for ack in self.waiting.iter_mut().filter(|ack| ack.condition.commit == commit) {
            ack.failure = Some(Failure::NotDurable);
            if ack.refuses() {
                self.last_refusal = self.last_refusal.max(ack.number);
            }
        }
    }

    /// A QoS 2 publish is not durable: no PUBREC may confirm it, however often its client has sent it.
    pub(crate) fn fail_publish(&mut self, packet_id: u16) {
        const PUBREC: u8 = 5;
        let is_its = |ack: &&mut PendingAck| {
            let AckKind::Ack { first, packet_id: known, .. } = ack.kind else { return false };
            first >> 4 == PUBREC && known == packet_id
        };
        for ack in self.waiting.iter_mut().filter(is_its) {
            ack.failure.get_or_insert(Failure::NotDurable);
            self.last_refusal = self.last_refusal.max(ack.number);
        }
    }

    /// Takes the next ack whose condition is met.
    pub(crate) fn pop(&mut self, durable_commit: u64) -> Option<PendingAck> {
        let ack = self.waiting.pop_front_if(|ack| ack.condition.is_met(durable_commit))?;
        self.reasons -= reason_count(&ack);
        Some(ack)
    }

    /// The acks that only the journal gets. The end of the session waits for the same.
    pub(crate) fn of_journal(&self) -> impl Iterator<Item = &PendingAck> {
        self.waiting.iter().filter(|ack| matches!(ack.kind, AckKind::Settled { .. } | AckKind::WillSent))
    }

    /// Whether the will waits to be durable.
    pub(crate) fn has_will(&self) -> bool {
        self.waiting.iter().any(|ack| ack.kind == AckKind::WillSent)
    }

    /// The connection is lost: removes all that were for the client. Deliveries that others get continue to wait.
    pub(crate) fn clear(&mut self) {
        self.waiting.retain(|ack| matches!(ack.kind, AckKind::Settled { .. }));
        self.reasons = 0;
    }
}

/// The pending ack that a receipt is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AckToken {
    /// The session; its shard gets the receipt.
    pub(crate) session: SessionKey,
    /// Number of the ack.
    pub(crate) number: u64,
}

/// What became of a shard's part in a publish.
#[derive(Clone, Debug)]
pub struct RemoteCommitResult {
    pub(crate) is_durable: bool,
    /// Why a sink has rejected it.
    pub(crate) refused: Option<ReasonCode>,
    /// The shared subscription that it was for; `None` if it was for all subscribers of the shard.
    pub(crate) group: Option<Arc<Group>>,
    /// Journals of the shard that fail; none if it is durable.
    pub(crate) failing_journals: BTreeSet<u16>,
}

impl RemoteCommitResult {
    pub(crate) fn failure(&self) -> Option<Failure> {
        (!self.is_durable).then_some(self.refused.map_or(Failure::NotDurable, Failure::Refused))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(number: u64, commit: u64, receipts: u32) -> PendingAck {
        let kind = AckKind::Ack { first: 0x40, packet_id: number as u16, reason: ReasonCode::Success };
        PendingAck {
            number,
            condition: AckCondition { commit, receipts },
            failure: None,
            completes: false,
            kind,
        }
    }

    #[test]
    fn acks_leave_in_order_when_their_conditions_are_met() {
        let mut acks = PendingAcks::default();
        acks.push(ack(1, 5, 1));
        acks.push(ack(2, 0, 0));
        assert_eq!(acks.pop(9), None, "a receipt is missing, and the second must not overtake");
        acks.on_receipt(7, None);
        acks.on_receipt(1, Some(Failure::NotDurable));
        assert_eq!(acks.pop(4), None);
        assert_eq!(acks.pop(5).unwrap().failure, Some(Failure::NotDurable));
        assert_eq!(acks.pop(5).unwrap().number, 2);
        assert!(acks.is_empty());
    }

    #[test]
    fn refusal_is_pending_until_it_is_sent() {
        let refused = |number| {
            let kind = AckKind::Ack { first: 0x50, packet_id: 1, reason: ReasonCode::QuotaExceeded };
            PendingAck { kind, ..ack(number, 0, 0) }
        };
        let mut acks = PendingAcks::default();
        acks.push(ack(1, 1, 0));
        assert!(!acks.has_refusal());
        acks.push(refused(2));
        acks.push(ack(3, 2, 1));
        assert!(acks.pop(1).is_some() && acks.has_refusal());
        assert!(acks.pop(1).is_some() && !acks.has_refusal());
        acks.on_receipt(3, Some(Failure::NotDurable));
        assert!(acks.has_refusal());
        assert!(acks.pop(2).is_some() && !acks.has_refusal());
        acks.push(ack(4, 3, 0));
        acks.fail(3);
        assert!(acks.has_refusal());
    }

    #[test]
    fn not_durable_outranks_a_refusal() {
        let refused = Some(Failure::Refused(ReasonCode::TopicNameInvalid));
        let mut acks = PendingAcks::default();
        acks.push(ack(1, 0, 3));
        for failure in [refused, Some(Failure::NotDurable), refused] {
            acks.on_receipt(1, failure);
        }
        assert_eq!(acks.pop(0).unwrap().failure, Some(Failure::NotDurable));
    }
}
