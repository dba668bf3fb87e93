//! Messages as they arrive in another queue: with where they come from and why.

use mainstem_log::{Header, Headers, Record, put_headers};

use crate::ask::Reason;
use crate::config::Config;
use crate::machine::Leaving;
use crate::meta::header;

/// A message on its way to another queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Its key.
    pub key: Option<Vec<u8>>,
    /// Its value.
    pub value: Option<Vec<u8>>,
    /// Its headers, encoded behind their count.
    pub headers: Vec<u8>,
}

/// Where a message leaves from.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// The queue's identifier, which no other queue ever has.
    pub id: &'a str,
    /// Its name.
    pub queue: &'a str,
    /// The group.
    pub group: &'a str,
}

impl Moved {
    /// A message that leaves `origin`.
    pub fn new(record: &Record<'_>, leaving: &Leaving, origin: Origin<'_>) -> Self {
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
        let mut headers: Vec<Header<'_>> = parsed.filter(|header| !is_of_stay(header.key)).collect();
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

/// The queue that a message leaves for which was in `queue`.
pub fn destination(config: &Config, queue: &str, record: &Record<'_>, reason: Reason) -> String {
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

/// Headers that speak of a message's stay in one queue, and mean something else in another.
fn is_of_stay(name: &str) -> bool {
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
