//! TxnOffsetCommit: offsets that take effect when their transaction commits (KIP-98, KIP-447).
//!
//! A pending offset is persisted under the producer id. When the transaction commits, one write contains both the
//! committed offset and the tombstone of the pending one. Neither is durable without the other, so ending a transaction
//! again after a crash is safe.

use super::changes::Change;
use super::commit::{Committer, answer_all_with_error};
use super::request::{TransactionEnd, TxnOffsetCommit};
use super::response::Response;
use super::settings::{NAME_MAX_BYTES, RECORDS_PER_WRITE_MAX};
use super::state::State;
use super::{Groups, records};
use crate::{Caller, Error, Record};

impl Groups {
    /// TxnOffsetCommit. Answered once the offsets are durable; they are pending until the transaction ends.
    pub fn handle_txn_offset_commit(&mut self, now_ms: u64, request: &TxnOffsetCommit<'_>, caller: Caller) {
        let TxnOffsetCommit { group_id, member_id, generation, .. } = *request;
        let checked = self.check_txn_commit(now_ms, request);
        let checked = self.allow_kept(checked, group_id, (member_id, generation), &request.topics);
        match checked {
            Ok(topics) => {
                let producer_id = Some(request.producer_id);
                let topics = self.store_offsets(now_ms, group_id, producer_id, None, &topics);
                self.effects.reply_when_durable(caller, Response::Commit(topics));
            }
            Err(error) => {
                let refused = answer_all_with_error(&request.topics, error);
                self.effects.reply(caller, Response::Commit(refused));
            }
        }
    }

    fn check_txn_commit(&mut self, now_ms: u64, request: &TxnOffsetCommit<'_>) -> Result<(), Error> {
        if request.group_id.is_empty() || request.group_id.len() > NAME_MAX_BYTES {
            return Err(Error::InvalidGroupId);
        }
        let committer = Committer {
            member_id: request.member_id,
            instance_id: request.instance_id,
            generation: request.generation,
        };
        let checked = self.with_group(now_ms, request.group_id, |context| {
            // Producers that send no group metadata are not fenced (before KIP-447).
            let is_simple_consumer = request.generation < 0 && context.group.state() == State::Empty;
            if is_simple_consumer || committer.is_anonymous() {
                Ok(())
            } else if context.group.consumer().is_some() {
                let checked = context.check_consumer_member(committer.member_id, committer.generation);
                // The request has no error for an old epoch of a member.
                checked.map_err(|error| match error {
                    Error::StaleMemberEpoch => Error::IllegalGeneration,
                    other => other,
                })
            } else {
                context.check_generation(committer)
            }
        });
        checked.unwrap_or_else(|| {
            self.create_simple_group(now_ms, request.group_id, request.generation, Error::IllegalGeneration)
        })
    }

    /// Ends a transaction. Answered once that is durable. Idempotent.
    pub fn handle_transaction_end(&mut self, producer_id: i64, end: TransactionEnd, caller: Caller) {
        let mut new_records: Vec<Record> = Vec::new();
        for group_id in self.transactions.remove(&producer_id).unwrap_or_default() {
            let Some(group) = self.by_id.get_mut(&group_id) else { continue };
            for (topic, partition, offset) in group.offsets_mut().take_pending(producer_id) {
                self.offset_count -= 1;
                // An offset that was committed after this one stays, whoever committed it.
                let latest = group.offsets().committed(&topic, partition).map(|committed| committed.order);
                let mut push_change = |producer_id, before| {
                    let (group_id, topic) = (group_id.clone(), topic.clone());
                    self.effects.changes.push(Change { group_id, producer_id, topic, partition, before });
                };
                if end == TransactionEnd::Commit && latest.is_none_or(|latest| latest < offset.order) {
                    new_records.push(records::offset(&group_id, None, &topic, partition, &offset));
                    let before = group.offsets_mut().commit(&topic, partition, offset.clone());
                    self.offset_count += usize::from(before.is_none());
                    push_change(None, before);
                }
                push_change(Some(producer_id), Some(offset));
                // In the same write as the committed offset: neither is durable without the other.
                new_records.push(records::offset_tombstone(&group_id, Some(producer_id), &topic, partition));
                if new_records.len() + 1 >= RECORDS_PER_WRITE_MAX {
                    self.effects.persist(std::mem::take(&mut new_records));
                }
            }
            self.remove_if_unused(&group_id);
        }
        self.effects.persist(new_records);
        self.effects.reply_when_durable(caller, Response::TransactionEnd(Ok(())));
    }
}
