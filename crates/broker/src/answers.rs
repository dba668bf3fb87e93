//! Answers that wait: an acknowledgement leaves when everything it promises is on disk, and not before one
//! that was asked for earlier.

use std::collections::VecDeque;
use std::sync::Arc;

use mainstem_mqtt::ReasonCode;

use crate::groups::Group;
use crate::message::SessionKey;

/// What an answer waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wait {
    /// This commit of the shard; 0 is none.
    pub(crate) commit: u64,
    /// Other shards that have not said yet that their part is on disk.
    pub(crate) receipts: u32,
}

impl Wait {
    pub(crate) fn is_over(self, durable_commit: u64) -> bool {
        self.commit <= durable_commit && self.receipts == 0
    }
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// PUBACK, PUBREC, PUBREL or PUBCOMP: first byte, packet identifier, reason if all goes well.
    Ack { first: u8, packet_id: u16, reason: ReasonCode },
    /// Nobody, but the journal: a delivery of this session is over, since somebody else has the message.
    Settled { sequence: u64 },
    /// Nobody, but the journal: the session's will has been published and is safe.
    WillSent,
    /// SUBACK or UNSUBACK: its packet identifier and reason codes.
    List { is_subscribe: bool, packet_id: u16, reasons: Box<[u8]> },
}

/// An answer in the order in which it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Numbers grow.
    pub(crate) number: u64,
    pub(crate) wait: Wait,
    /// Why it cannot be given.
    pub(crate) failure: Option<Failure>,
    /// A QoS 2 publish of a session that lasts: when all is done, the journal is told.
    pub(crate) completes: bool,
    pub(crate) what: What,
}

impl Answer {
    /// Whether it tells of a publish that was not taken, or could not be kept.
    fn refuses(&self) -> bool {
        const PUBACK: u8 = 4;
        const PUBREC: u8 = 5;
        matches!(self.what, What::Ack { first, reason, .. }
            if matches!(first >> 4, PUBACK | PUBREC) && (reason.is_error() || self.failure.is_some()))
    }
}

/// Why an answer cannot be given as it was meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Something could not be kept. Some of it may have been.
    NotKept,
    /// Whoever was to take it has not, for this reason.
    Refused(ReasonCode),
}

/// The answers of one session that have not left.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    waiting: VecDeque<Answer>,
    /// Number of the last one that tells of a publish which was not taken, or could not be kept.
    last_refusal: u64,
}

impl Answers {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn push(&mut self, answer: Answer) {
        if answer.refuses() {
            self.last_refusal = answer.number;
        }
        self.waiting.push_back(answer);
    }

    /// Whether a publish has been refused, and its client has not been told.
    pub(crate) fn has_refusal(&self) -> bool {
        self.waiting.front().is_some_and(|first| first.number <= self.last_refusal)
    }

    /// Puts an answer that was taken out back to the front: it has to wait once more.
    pub(crate) fn put_back(&mut self, answer: Answer) {
        self.waiting.push_front(answer);
    }

    fn find(&mut self, number: u64) -> Option<&mut Answer> {
        let index = self.waiting.binary_search_by_key(&number, |answer| answer.number).ok()?;
        self.waiting.get_mut(index)
    }

    /// The part that somebody else has in answer `number` is over.
    pub(crate) fn receipt(&mut self, number: u64, failure: Option<Failure>) {
        let Some(answer) = self.find(number) else { return };
        answer.wait.receipts = answer.wait.receipts.saturating_sub(1);
        if answer.failure != Some(Failure::NotKept) {
            answer.failure = failure.or(answer.failure);
        }
        if answer.refuses() {
            self.last_refusal = self.last_refusal.max(number);
        }
    }

    /// One filter of a SUBACK is refused after all, which is on disk with `commit`.
    pub(crate) fn refuse(&mut self, number: u64, index: usize, reason: ReasonCode, commit: u64) {
        let Some(answer) = self.find(number) else { return };
        answer.wait.commit = answer.wait.commit.max(commit);
        if let What::List { reasons, .. } = &mut answer.what
            && let Some(known) = reasons.get_mut(index)
        {
            *known = reason as u8;
        }
    }

    /// A commit could not be kept: what waits for it has failed.
    pub(crate) fn fail(&mut self, commit: u64) {
        for answer in self.waiting.iter_mut().filter(|answer| answer.wait.commit == commit) {
            answer.failure = Some(Failure::NotKept);
            if answer.refuses() {
                self.last_refusal = self.last_refusal.max(answer.number);
            }
        }
    }

    /// A QoS 2 publish could not be kept: no PUBREC may say that it was, however often its client sent it.
    pub(crate) fn fail_publish(&mut self, packet_id: u16) {
        const PUBREC: u8 = 5;
        let is_its = |answer: &&mut Answer| {
            let What::Ack { first, packet_id: known, .. } = answer.what else { return false };
            first >> 4 == PUBREC && known == packet_id
        };
        for answer in self.waiting.iter_mut().filter(is_its) {
            answer.failure.get_or_insert(Failure::NotKept);
            self.last_refusal = self.last_refusal.max(answer.number);
        }
    }

    /// The next answer that may leave.
    pub(crate) fn pop(&mut self, durable_commit: u64) -> Option<Answer> {
        self.waiting.pop_front_if(|answer| answer.wait.is_over(durable_commit))
    }

    /// Those that nobody is told but the journal: the session is to end, which must wait for the same.
    pub(crate) fn of_journal(&self) -> impl Iterator<Item = &Answer> {
        self.waiting.iter().filter(|answer| matches!(answer.what, What::Settled { .. } | What::WillSent))
    }

    /// Whether the session's will is on its way.
    pub(crate) fn has_will(&self) -> bool {
        self.waiting.iter().any(|answer| answer.what == What::WillSent)
    }

    /// Its client has gone. What the journal is to be told of deliveries that others have goes on to wait.
    pub(crate) fn clear(&mut self) {
        self.waiting.retain(|answer| matches!(answer.what, What::Settled { .. }));
    }
}

/// Whom to tell when something is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Receipt {
    /// The session whose answer waits; its shard is told.
    pub(crate) session: SessionKey,
    /// The answer's number.
    pub(crate) number: u64,
}

/// The commits of one shard that are under way, over all its journals.
#[derive(Debug, Default)]
pub(crate) struct Commits {
    /// Number of the turn's commit; those before it are under way or over.
    next: u64,
    /// Every commit up to this one is over.
    durable: u64,
    under_way: VecDeque<UnderWay>,
    /// Receipts that other shards wait for, by the commit they wait for.
    owed: VecDeque<(u64, Owed)>,
    /// Sessions with something that waits for a commit.
    waiting: VecDeque<(u64, SessionKey)>,
}

/// A receipt that somebody waits for.
#[derive(Clone, Debug)]
pub(crate) struct Owed {
    pub(crate) receipt: Receipt,
    /// See [`crate::shared::Part::group`].
    pub(crate) group: Option<Arc<Group>>,
}

#[derive(Debug)]
struct UnderWay {
    /// When its turn began, ms.
    began_ms: u64,
    parts: u32,
    has_failed: bool,
}

/// A commit that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Over {
    pub(crate) commit: u64,
    pub(crate) has_failed: bool,
}

impl Commits {
    /// Commits under way, and all who wait for one.
    pub(crate) fn unfinished(&self) -> usize {
        self.under_way.len() + self.owed.len() + self.waiting.len()
    }

    /// The number of this turn's commit.
    pub(crate) fn current(&self) -> u64 {
        self.next + 1
    }

    /// The last commit that is over.
    pub(crate) fn durable(&self) -> u64 {
        self.durable
    }

    /// What somebody has to wait for who must know that everything up to now is on disk.
    pub(crate) fn latest(&self, turn_has_news: bool) -> u64 {
        if turn_has_news {
            self.current()
        } else if self.durable == self.next {
            0
        } else {
            self.next
        }
    }

    /// The turn's commit is on its way in `parts` journals; in some it was lost at once.
    pub(crate) fn begin(&mut self, parts: u32, has_failed: bool, began_ms: u64) {
        self.next += 1;
        self.under_way.push_back(UnderWay { began_ms, parts, has_failed });
    }

    /// Whether what was entered at this time or before is on disk, or cannot be kept.
    pub(crate) fn are_over(&self, entered_ms: i64) -> bool {
        self.under_way.front().is_none_or(|oldest| oldest.began_ms.cast_signed() > entered_ms)
    }

    /// One part of a commit has come to its end.
    pub(crate) fn arrive(&mut self, commit: u64, is_durable: bool) {
        let first = self.durable + 1;
        if let Some(known) = commit.checked_sub(first).and_then(|at| self.under_way.get_mut(at as usize)) {
            known.parts = known.parts.saturating_sub(1);
            known.has_failed |= !is_durable;
        }
    }

    /// The next commit that is over, in order.
    pub(crate) fn next_over(&mut self) -> Option<Over> {
        let over = self.under_way.pop_front_if(|commit| commit.parts == 0)?;
        self.durable += 1;
        Some(Over { commit: self.durable, has_failed: over.has_failed })
    }

    /// Somebody on another shard is to be told when `commit` is over.
    pub(crate) fn owe(&mut self, commit: u64, owed: Owed) {
        self.owed.push_back((commit, owed));
    }

    /// The next receipt that is due with `commit`.
    pub(crate) fn next_owed(&mut self, commit: u64) -> Option<Owed> {
        self.owed.pop_front_if(|(due, _)| *due <= commit).map(|(_, owed)| owed)
    }

    /// A session is to be looked at when `commit` is over.
    pub(crate) fn wake_with(&mut self, commit: u64, session: SessionKey) {
        if self.waiting.back() != Some(&(commit, session)) {
            self.waiting.push_back((commit, session));
        }
    }

    /// The next session to be looked at with `commit`.
    pub(crate) fn next_waiting(&mut self, commit: u64) -> Option<SessionKey> {
        self.waiting.pop_front_if(|(due, _)| *due <= commit).map(|(_, session)| session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(number: u64, commit: u64, receipts: u32) -> Answer {
        let what = What::Ack { first: 0x40, packet_id: number as u16, reason: ReasonCode::Success };
        Answer { number, wait: Wait { commit, receipts }, failure: None, completes: false, what }
    }

    #[test]
    fn answers_leave_in_their_order_and_not_early() {
        let mut answers = Answers::default();
        answers.push(ack(1, 5, 1));
        answers.push(ack(2, 0, 0));
        assert_eq!(answers.pop(9), None, "a receipt is missing, and the second must not overtake");
        answers.receipt(7, None);
        answers.receipt(1, Some(Failure::NotKept));
        assert_eq!(answers.pop(4), None);
        assert_eq!(answers.pop(5).unwrap().failure, Some(Failure::NotKept));
        assert_eq!(answers.pop(5).unwrap().number, 2);
        assert!(answers.is_empty());
    }

    #[test]
    fn a_refusal_is_owed_until_it_has_left() {
        let refused = |number| {
            let what = What::Ack { first: 0x50, packet_id: 1, reason: ReasonCode::QuotaExceeded };
            Answer { what, ..ack(number, 0, 0) }
        };
        let mut answers = Answers::default();
        answers.push(ack(1, 1, 0));
        assert!(!answers.has_refusal());
        answers.push(refused(2));
        answers.push(ack(3, 2, 1));
        assert!(answers.pop(1).is_some() && answers.has_refusal());
        assert!(answers.pop(1).is_some() && !answers.has_refusal());
        answers.receipt(3, Some(Failure::NotKept));
        assert!(answers.has_refusal());
        assert!(answers.pop(2).is_some() && !answers.has_refusal());
        answers.push(ack(4, 3, 0));
        answers.fail(3);
        assert!(answers.has_refusal());
    }

    #[test]
    fn what_could_not_be_kept_outweighs_a_refusal() {
        let refused = Some(Failure::Refused(ReasonCode::TopicNameInvalid));
        let mut answers = Answers::default();
        answers.push(ack(1, 0, 3));
        for failure in [refused, Some(Failure::NotKept), refused] {
            answers.receipt(1, failure);
        }
        assert_eq!(answers.pop(0).unwrap().failure, Some(Failure::NotKept));
    }

    #[test]
    fn commits_are_over_in_order_when_all_their_parts_are() {
        let mut commits = Commits::default();
        assert_eq!(commits.latest(false), 0);
        assert_eq!(commits.latest(true), 1);
        commits.begin(1, false, 10);
        commits.begin(2, false, 20);
        assert!(commits.are_over(9) && !commits.are_over(10));
        assert_eq!(commits.latest(false), 2);
        commits.arrive(2, true);
        commits.arrive(2, false);
        assert_eq!(commits.next_over(), None);
        commits.arrive(1, true);
        assert_eq!(commits.next_over(), Some(Over { commit: 1, has_failed: false }));
        assert_eq!(commits.next_over(), Some(Over { commit: 2, has_failed: true }));
        assert_eq!((commits.durable(), commits.latest(false)), (2, 0));
        assert!(commits.are_over(20));
    }
}
