//! `EndTxn`, versions 0 to 5: commits or aborts a transaction. Answered when the decision is durable.

use mainstem_coordinator::Error;
use mainstem_coordinator::producer::Outcome;
use mainstem_coordinator::transaction::{Producer, Request, TransactionVersion};
use mainstem_kafka::api::end_txn::{EndTxnRequest, EndTxnResponse};
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::pending::AfterTxnReply;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};
use crate::transactions::error_code;

/// First version whose clients understand `PRODUCER_FENCED` (KIP-588).
const PRODUCER_FENCED: i16 = 2;
/// First version that bumps the epoch after each transaction (KIP-890).
const EPOCH_BUMP: i16 = 5;

pub(crate) fn handle(shard: &mut Shard, io: &mut Io<'_, Mail>, call: RequestContext, request: EndTxnRequest) {
    if let Err(code) = call.check_transactional_id(Action::Produce, &request.transactional_id) {
        let response = EndTxnResponse { error_code: code as i16, ..EndTxnResponse::default() };
        return shard.reply::<EndTxnRequest>(io, &call, &response);
    }
    let end = Request::End {
        producer: Producer { id: request.producer_id, epoch: request.producer_epoch },
        outcome: if request.committed { Outcome::Commit } else { Outcome::Abort },
        speaks: if call.version >= EPOCH_BUMP { TransactionVersion::V2 } else { TransactionVersion::V1 },
    };
    let id = request.transactional_id;
    shard.call_transactions(
        io,
        |machine, now_ms, caller| machine.handle(now_ms, &id, end, caller),
        AfterTxnReply::EndTxn(call),
    );
}

/// Answers with what the transactions have answered.
pub(crate) fn finish(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    answer: Result<Producer, Error>,
) {
    let response = match answer {
        Ok(Producer { id, epoch }) => {
            EndTxnResponse { producer_id: id, producer_epoch: epoch, ..EndTxnResponse::default() }
        }
        Err(error) => EndTxnResponse {
            error_code: error_code(error, call.version >= PRODUCER_FENCED),
            ..EndTxnResponse::default()
        },
    };
    shard.reply::<EndTxnRequest>(io, call, &response);
}
