//! `AddOffsetsToTxn`, versions 0 to 4: a group's offsets will be part of a transaction. Runs on the controller.

use mainstem_coordinator::transaction::{Participant, Producer, Request};
use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::add_offsets_to_txn::{AddOffsetsToTxnRequest, AddOffsetsToTxnResponse};
use mainstem_runtime::Io;

use crate::mail::{Call, Mail};
use crate::shard::Shard;
use crate::transactions::error_code;

/// From here on clients know that they can be fenced (KIP-588).
const PRODUCER_FENCED: i16 = 2;

pub(crate) fn handle(shard: &mut Shard, io: &mut Io<'_, Mail>, call: Call, request: AddOffsetsToTxnRequest) {
    let AddOffsetsToTxnRequest { transactional_id: id, producer_id, producer_epoch, group_id } = request;
    let reply = |shard: &mut Shard, io: &mut Io<'_, Mail>, call: &Call, error_code| {
        let response = AddOffsetsToTxnResponse { error_code, ..AddOffsetsToTxnResponse::default() };
        shard.reply::<AddOffsetsToTxnRequest>(io, call, &response);
    };
    if group_id.is_empty() {
        return reply(shard, io, &call, ErrorCode::InvalidGroupId as i16);
    }
    let add = Request::Add {
        producer: Producer { id: producer_id, epoch: producer_epoch },
        participants: vec![Participant::Group(group_id.into())],
    };
    shard.ask_transactions(
        io,
        |machine, now_ms, caller| machine.handle(now_ms, &id, add, caller),
        move |shard, io, answer| {
            let code = answer.err().map_or(0, |error| error_code(error, call.version >= PRODUCER_FENCED));
            reply(shard, io, &call, code);
        },
    );
}
