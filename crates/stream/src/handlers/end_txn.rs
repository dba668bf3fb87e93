//! `EndTxn`, versions 0 to 5: commits or aborts. Runs on the controller; answered when that is decided, durably.

use mainstem_coordinator::producer::Outcome;
use mainstem_coordinator::transaction::{Producer, Request, Speaks};
use mainstem_kafka::api::end_txn::{EndTxnRequest, EndTxnResponse};
use mainstem_runtime::Io;

use crate::mail::{Call, Mail};
use crate::shard::Shard;
use crate::transactions::error_code;

/// From here on clients know that they can be fenced (KIP-588).
const PRODUCER_FENCED: i16 = 2;
/// From here on each transaction has an epoch of its own (KIP-890).
const OWN_EPOCHS: i16 = 5;

pub(crate) fn handle(shard: &mut Shard, io: &mut Io<'_, Mail>, call: Call, request: EndTxnRequest) {
    let end = Request::End {
        producer: Producer { id: request.producer_id, epoch: request.producer_epoch },
        outcome: if request.committed { Outcome::Commit } else { Outcome::Abort },
        speaks: if call.version >= OWN_EPOCHS { Speaks::OwnEpochs } else { Speaks::OneEpoch },
    };
    let id = request.transactional_id;
    shard.ask_transactions(
        io,
        |machine, now_ms, caller| machine.handle(now_ms, &id, end, caller),
        move |shard, io, answer| {
            let response = match answer {
                Ok(Producer { id, epoch }) => {
                    EndTxnResponse { producer_id: id, producer_epoch: epoch, ..EndTxnResponse::default() }
                }
                Err(error) => EndTxnResponse {
                    error_code: error_code(error, call.version >= PRODUCER_FENCED),
                    ..EndTxnResponse::default()
                },
            };
            shard.reply::<EndTxnRequest>(io, &call, &response);
        },
    );
}
