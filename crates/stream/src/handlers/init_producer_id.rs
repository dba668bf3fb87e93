//! `InitProducerId`, versions 0 to 5: an id and an epoch for a producer. Runs on the controller; answered when it is
//! durable, and when what the producer before has left open is aborted.

use mainstem_coordinator::Error;
use mainstem_coordinator::transaction::{Producer, Request};
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::init_producer_id::{InitProducerIdRequest, InitProducerIdResponse};
use mainstem_runtime::Io;

use crate::mail::{Call, Mail};
use crate::shard::Shard;
use crate::transactions::error_code;

/// From here on clients know that they can be fenced (KIP-588).
const PRODUCER_FENCED: i16 = 4;

pub(crate) fn handle(shard: &mut Shard, io: &mut Io<'_, Mail>, call: Call, request: InitProducerIdRequest) {
    let InitProducerIdRequest { transactional_id, transaction_timeout_ms, producer_id, producer_epoch } =
        request;
    let expected = match (producer_id, producer_epoch) {
        (-1, -1) => None,
        (-1, _) | (_, -1) => return refuse(shard, io, &call, ErrorCode::InvalidRequest as i16),
        (id, epoch) => Some(Producer { id, epoch }),
    };
    let reply_to = call.clone();
    let then = move |shard: &mut Shard, io: &mut Io<'_, Mail>, answer: Result<Producer, Error>| match answer {
        Ok(Producer { id, epoch }) => {
            let response = InitProducerIdResponse {
                producer_id: id,
                producer_epoch: epoch,
                ..InitProducerIdResponse::default()
            };
            shard.reply::<InitProducerIdRequest>(io, &reply_to, &response);
        }
        Err(error) => {
            let code = error_code(error, reply_to.version >= PRODUCER_FENCED);
            refuse(shard, io, &reply_to, code);
        }
    };
    match transactional_id {
        None => shard.ask_transactions(io, |machine, _, caller| machine.handle_idempotent(caller), then),
        Some(id) => {
            let request = Request::InitProducerId { timeout_ms: transaction_timeout_ms, expected };
            let ask = |machine: &mut _, now_ms, caller| {
                mainstem_coordinator::transaction::Transactions::handle(
                    machine, now_ms, &id, request, caller,
                );
            };
            shard.ask_transactions(io, ask, then);
        }
    }
}

fn refuse(shard: &mut Shard, io: &mut Io<'_, Mail>, call: &Call, error_code: i16) {
    let response =
        InitProducerIdResponse { error_code, producer_epoch: -1, ..InitProducerIdResponse::default() };
    shard.reply::<InitProducerIdRequest>(io, call, &response);
}
