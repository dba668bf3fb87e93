//! `InitProducerId`, versions 0 to 5: assigns a producer id and an epoch. Answered when both are durable and the open
//! transaction of the previous epoch, if there is one, has been aborted.

use mainstem_coordinator::Error;
use mainstem_coordinator::transaction::{Producer, Request, Transactions};
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::init_producer_id::{InitProducerIdRequest, InitProducerIdResponse};
use mainstem_runtime::Io;
use mainstem_security::Action;

use crate::pending::AfterTxnReply;
use crate::shard::Shard;
use crate::shard_message::{Mail, RequestContext};
use crate::transactions::error_code;

/// First version whose clients understand `PRODUCER_FENCED` (KIP-588).
const PRODUCER_FENCED: i16 = 4;

pub(crate) fn handle(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: RequestContext,
    request: InitProducerIdRequest,
) {
    let InitProducerIdRequest { transactional_id, transaction_timeout_ms, producer_id, producer_epoch } =
        request;
    let expected = match (producer_id, producer_epoch) {
        (-1, -1) => None,
        (-1, _) | (_, -1) => return refuse(shard, io, &call, ErrorCode::InvalidRequest as i16),
        (id, epoch) => Some(Producer { id, epoch }),
    };
    let checked = match &transactional_id {
        None => call.check_idempotent_producer(),
        Some(id) => call.check_transactional_id(Action::Produce, id),
    };
    if let Err(code) = checked {
        return refuse(shard, io, &call, code as i16);
    }
    let then = AfterTxnReply::InitProducerId(call);
    match transactional_id {
        None => shard.call_transactions(io, |machine, _, caller| machine.handle_idempotent(caller), then),
        Some(id) => {
            let request = Request::InitProducerId { timeout_ms: transaction_timeout_ms, expected };
            let init =
                |machine: &mut Transactions, now_ms, caller| machine.handle(now_ms, &id, request, caller);
            shard.call_transactions(io, init, then);
        }
    }
}

/// Answers with what the transactions have answered.
pub(crate) fn finish(
    shard: &mut Shard,
    io: &mut Io<'_, Mail>,
    call: &RequestContext,
    answer: Result<Producer, Error>,
) {
    match answer {
        Ok(Producer { id, epoch }) => {
            let response = InitProducerIdResponse {
                producer_id: id,
                producer_epoch: epoch,
                ..InitProducerIdResponse::default()
            };
            shard.reply::<InitProducerIdRequest>(io, call, &response);
        }
        Err(error) => refuse(shard, io, call, error_code(error, call.version >= PRODUCER_FENCED)),
    }
}

fn refuse(shard: &mut Shard, io: &mut Io<'_, Mail>, call: &RequestContext, error_code: i16) {
    let response =
        InitProducerIdResponse { error_code, producer_epoch: -1, ..InitProducerIdResponse::default() };
    shard.reply::<InitProducerIdRequest>(io, call, &response);
}
