//! Records of messages that move to another queue, with headers that name their origin and the reason.
//!
//! The two queues may be on different shards and logs, and a crash may repeat the copy. `moved-by` names queue, group
//! and number of the transfer, by which the receiver recognizes a repeat; headers that described the message in its old
//! queue are replaced, not added to.

use mainstem_log::{BatchBuilder, BatchKind, Header, Headers, Record, ValidBatch, put_headers};

use crate::config::Config;
use crate::durable_queue::TRANSFERRED;
use crate::machine::PendingTransfer;
use crate::meta::header;
use crate::request::Reason;

/// The record of a message on its way to another queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferredMessage {
    /// Its key.
    pub key: Option<Vec<u8>>,
    /// Its value.
    pub value: Option<Vec<u8>>,
    /// Encoded headers, with their count first.
    pub headers: Vec<u8>,
}

/// The origin of a message that moves.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// Identifier of the queue, which is never used again.
    pub id: &'a str,
    /// Name of the queue.
    pub queue: &'a str,
    /// Name of the group.
    pub group: &'a str,
}

impl TransferredMessage {
    /// The record of a message that leaves `origin`.
    pub fn new(record: &Record<'_>, leaving: &PendingTransfer, origin: Origin<'_>) -> Self {
        let Origin { id, queue, group } = origin;
        let moved_by = format!("{id}/{group}/{}", leaving.number);
        let (offset, count) = (leaving.offset.to_string(), leaving.count.to_string());
        let time = leaving.since_ms.to_string();
        let dead_letter = [
            (header::DEAD_LETTER_REASON, leaving.reason.name()),
            (header::DEAD_LETTER_QUEUE, queue),
            (header::DEAD_LETTER_GROUP, group),
            (header::DEAD_LETTER_OFFSET, &offset),
            (header::DEAD_LETTER_COUNT, &count),
            (header::DEAD_LETTER_TIME, &time),
        ];
        let own = if leaving.reason == Reason::Redriven { &[] } else { dead_letter.as_slice() };
        let parsed = Headers::parse(record.headers).into_iter().flatten().map_while(Result::ok);
        let mut headers: Vec<Header<'_>> = parsed.filter(|header| !is_per_queue(header.key)).collect();
        let own = own.iter().copied().chain([(header::MOVED_BY, moved_by.as_str())]);
        headers.extend(own.map(|(key, value)| Header { key, value: Some(value.as_bytes()) }));
        let mut encoded = Vec::new();
        put_headers(headers.into_iter(), &mut encoded);
        Self {
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.map(<[u8]>::to_vec),
            headers: encoded,
        }
    }
}

/// Appends transferred messages to `builder`, and finishes the batch with the mark by which the destination tells
/// them from others.
pub fn transfer_batch<'a>(
    messages: &[TransferredMessage],
    now_ms: u64,
    builder: &'a mut BatchBuilder,
) -> ValidBatch<'a> {
    for TransferredMessage { key, value, headers } in messages {
        builder.push_with_headers(now_ms.cast_signed(), key.as_deref(), value.as_deref(), headers);
    }
    let kind = BatchKind::Internal(TRANSFERRED);
    builder.finish_as(&mainstem_log::Origin { kind, ..mainstem_log::Origin::default() })
}

/// The queue that a message of `queue` moves to.
pub(crate) fn destination(config: &Config, queue: &str, record: &Record<'_>, reason: Reason) -> String {
    let back = match reason {
        Reason::Redriven => find(record, header::DEAD_LETTER_QUEUE),
        _ => None,
    };
    back.map_or_else(|| config.dead_letter_queue_of(queue), str::to_owned)
}

fn find<'a>(record: &Record<'a>, name: &str) -> Option<&'a str> {
    let headers = Headers::parse(record.headers).ok()?.map_while(Result::ok);
    let found = headers.filter(|header| header.key == name).last()?;
    std::str::from_utf8(found.value?).ok()
}

/// Whether a header concerns one queue only, and must not follow the message to another.
fn is_per_queue(name: &str) -> bool {
    let own = [
        header::DELAY_MS,
        header::DELIVER_AT,
        header::TTL_MS,
        header::MESSAGE_EXPIRY,
        header::DEDUP_ID,
        header::MOVED_BY,
    ];
    own.contains(&name) || name.starts_with("dead-letter-")
}
