//! `AddOffsetsToTxn`, versions 0 to 4: adds a consumer group to a transaction, so that its offsets can be committed
//! with it.

use mainstem_coordinator::Error;
use mainstem_coordinator::transaction::{Participant, Producer, Request};
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::add_offsets_to_txn::{AddOffsetsToTxnRequest, AddOffsetsToTxnResponse};
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::pending::AfterTxnReply;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};
use crate::transactions::error_code;

/// First version whose clients understand `PRODUCER_FENCED` (KIP-588).
const PRODUCER_FENCED: i16 = 2;

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: AddOffsetsToTxnRequest,
) {
    let AddOffsetsToTxnRequest { transactional_id: id, producer_id, producer_epoch, group_id } = request;
    let checked = call.check_transactional_id(Action::Produce, &id);
    if let Err(code) = checked.and_then(|()| call.check_group(Action::Group, &group_id)) {
        return reply(shard, io, &call, code as i16);
    }
    if group_id.is_empty() {
        return reply(shard, io, &call, ErrorCode::InvalidGroupId as i16);
    }
    let add = Request::Add {
        producer: Producer { id: producer_id, epoch: producer_epoch },
        participants: vec![Participant::Group(group_id.into())],
    };
    shard.call_transactions(
        io,
        |machine, now_ms, caller| machine.handle(now_ms, &id, add, caller),
        AfterTxnReply::AddOffsetsToTxn(call),
    );
}

/// Answers with what the transactions have answered.
pub(crate) fn finish(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    answer: Result<Producer, Error>,
) {
    let code = answer.err().map_or(0, |error| error_code(error, call.version >= PRODUCER_FENCED));
    reply(shard, io, call, code);
}

fn reply(shard: &mut Shard, io: &mut Io<'_, Mail>, call: &RequestContext, error_code: i16) {
    let response = AddOffsetsToTxnResponse { error_code, ..AddOffsetsToTxnResponse::default() };
    shard.reply::<AddOffsetsToTxnRequest>(io, call, &response);
}
