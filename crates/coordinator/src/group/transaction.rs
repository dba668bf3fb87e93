//! TxnOffsetCommit: offsets that count when a transaction is committed (KIP-98, KIP-447).

use super::answer::Answer;
use super::changes::Change;
use super::commit::{Committer, refused};
use super::request::{TransactionEnd, TxnOffsetCommit};
use super::settings::{KEPT_TOGETHER_MAX, NAME_MAX_BYTES};
use super::state::State;
use super::{Groups, records};
use crate::{Caller, Error, Record};

impl Groups {
    /// TxnOffsetCommit. Answered when the offsets are kept, which are not the group's yet.
    pub fn handle_txn_offset_commit(&mut self, now_ms: u64, request: &TxnOffsetCommit<'_>, caller: Caller) {
        if let Err(error) = self.let_transaction_commit(now_ms, request) {
            return self.out.reply(caller, Answer::Commit(refused(&request.topics, error)));
        }
        let producer_id = Some(request.producer_id);
        let topics = self.take_in(now_ms, request.group_id, producer_id, None, &request.topics);
        self.out.reply_when_kept(caller, Answer::Commit(topics));
    }

    fn let_transaction_commit(&mut self, now_ms: u64, request: &TxnOffsetCommit<'_>) -> Result<(), Error> {
        if request.group_id.is_empty() || request.group_id.len() > NAME_MAX_BYTES {
            return Err(Error::InvalidGroupId);
        }
        let committer = Committer {
            member_id: request.member_id,
            instance_id: request.instance_id,
            generation: request.generation,
        };
        let checked = self.visit(now_ms, request.group_id, |visit| {
            // Producers that know nothing of the group's members are taken at their word (before KIP-447).
            let outside = request.generation < 0 && visit.group.state == State::Empty;
            if outside || committer.says_nothing() { Ok(()) } else { visit.check_generation(committer) }
        });
        checked.unwrap_or_else(|| {
            self.make_group_for_offsets(
                now_ms,
                request.group_id,
                request.generation,
                Error::IllegalGeneration,
            )
        })
    }

    /// A transaction is over. Answered when that is kept; done again it does nothing.
    pub fn handle_transaction_end(&mut self, producer_id: i64, end: TransactionEnd, caller: Caller) {
        let mut kept: Vec<Record> = Vec::new();
        for group_id in self.transactions.remove(&producer_id).unwrap_or_default() {
            let Some(group) = self.known.get_mut(&group_id) else { continue };
            for (topic, partition, offset) in group.offsets.take_pending(producer_id) {
                self.offsets -= 1;
                // What was committed later than this was said, by others or by another transaction, stays.
                let latest = group.offsets.committed(&topic, partition).map(|committed| committed.order);
                let mut note = |producer_id, before| {
                    let (group_id, topic) = (group_id.clone(), topic.clone());
                    self.out.changes.note(Change { group_id, producer_id, topic, partition, before });
                };
                if end == TransactionEnd::Commit && latest.is_none_or(|latest| latest < offset.order) {
                    kept.push(records::offset(&group_id, None, &topic, partition, &offset));
                    let before = group.offsets.commit(&topic, partition, offset.clone());
                    self.offsets += usize::from(before.is_none());
                    note(None, before);
                }
                note(Some(producer_id), Some(offset));
                // In the same part as the record before it: neither is kept without the other.
                kept.push(records::no_offset(&group_id, Some(producer_id), &topic, partition));
                if kept.len() + 1 >= KEPT_TOGETHER_MAX {
                    self.out.keep(std::mem::take(&mut kept));
                }
            }
            self.forget_if_blank(&group_id);
        }
        self.out.keep(kept);
        self.out.reply_when_kept(caller, Answer::TransactionEnd(Ok(())));
    }
}
