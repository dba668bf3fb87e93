//! Describes requests and replies for traces.

use mainstem_queue_core::{Reply, Request};

use super::oracle::Pending;

pub(crate) fn request(pending: &Pending) -> String {
    match &pending.request {
        Request::Send(_) => format!("Send {:?}", pending.messages),
        other => format!("{other:?}"),
    }
}

pub(crate) fn reply(reply: &Reply) -> String {
    match reply {
        Reply::Received(deliveries) => {
            let all = deliveries.iter().map(|delivery| {
                let value = delivery.payload.record().value.unwrap_or_default();
                let id = value.split(|byte| *byte == b';').next().unwrap_or_default();
                let (receipt, until_ms) = (delivery.receipt, delivery.lease_until_ms);
                let id = String::from_utf8_lossy(id);
                format!("{id} at {} ({}, until {until_ms})", receipt.offset, receipt.count)
            });
            format!("Received {:?}", all.collect::<Vec<_>>())
        }
        Reply::Peeked(messages) => {
            let all = messages.iter().map(|message| (message.offset, message.count, message.state));
            format!("Peeked {:?}", all.collect::<Vec<_>>())
        }
        other => format!("{other:?}"),
    }
}
