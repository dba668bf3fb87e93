//! Metadata of a message: what its record and headers tell the queue.

use std::hash::BuildHasher;

use foldhash::quality::FixedState;
use mainstem_log::{Headers, Record};

/// Headers that a queue interprets, and headers that it adds to dead letters.
pub mod header {
    /// Priority from 0 to 9; higher priorities are delivered first.
    pub const PRIORITY: &str = "priority";
    /// Delay from the arrival of the message in ms.
    pub const DELAY_MS: &str = "delay-ms";
    /// Earliest delivery in ms since 1970.
    pub const DELIVER_AT: &str = "deliver-at";
    /// Time to live from the arrival of the message in ms.
    pub const TTL_MS: &str = "ttl-ms";
    /// The same in seconds, set by MQTT publishers.
    pub const MESSAGE_EXPIRY: &str = "mqtt.message-expiry-interval";
    /// Deduplication identifier: of two messages with the same one within the window, the second is dropped.
    pub const DEDUP_ID: &str = "dedup-id";
    /// Why the message became a dead letter.
    pub const DEAD_LETTER_REASON: &str = "dead-letter-reason";
    /// The queue that it was in.
    pub const DEAD_LETTER_QUEUE: &str = "dead-letter-queue";
    /// The group that did not settle it.
    pub const DEAD_LETTER_GROUP: &str = "dead-letter-group";
    /// Its offset in that queue.
    pub const DEAD_LETTER_OFFSET: &str = "dead-letter-offset";
    /// Number of deliveries in that group.
    pub const DEAD_LETTER_COUNT: &str = "dead-letter-count";
    /// When it left that queue, in ms since 1970.
    pub const DEAD_LETTER_TIME: &str = "dead-letter-time";
    /// The queue and group that moved the message here, and its transfer number.
    pub const MOVED_BY: &str = "moved-by";
}

/// Longest deduplication identifier in bytes. Longer ones are ignored.
pub const DEDUP_ID_BYTES_MAX: usize = 255;

/// Metadata of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Offset in the log.
    pub offset: u64,
    /// When it arrived, in ms since 1970.
    pub timestamp_ms: u64,
    /// Size of key, value and headers.
    pub bytes: u32,
    /// Hash of its key.
    pub key: Option<u64>,
    /// Priority from 0 to 9.
    pub priority: u8,
    /// Earliest delivery in ms since 1970; 0 for none.
    pub due_ms: u64,
    /// Expiry in ms since 1970; `u64::MAX` for never.
    pub expires_ms: u64,
    /// Deduplication identifier.
    pub dedup_id: Option<Box<[u8]>>,
    /// The group of another queue that moved it here, and its transfer number.
    pub moved_by: Option<(Box<str>, u64)>,
}

impl Meta {
    /// Reads the metadata of a record. The transfer number is read only if `is_moved` says that a queue of this
    /// broker has written the record. Invalid headers are ignored.
    pub fn of(record: &Record<'_>, is_moved: bool) -> Self {
        let len = |part: Option<&[u8]>| part.map_or(0, <[u8]>::len);
        let bytes = len(record.key) + len(record.value) + record.headers.len();
        let timestamp_ms = record.timestamp_ms.max(0).cast_unsigned();
        let mut meta = Self {
            offset: record.offset,
            timestamp_ms,
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            key: record.key.filter(|key| !key.is_empty()).map(|key| FixedState::with_seed(0).hash_one(key)),
            expires_ms: u64::MAX,
            ..Self::default()
        };
        let Ok(headers) = Headers::parse(record.headers) else { return meta };
        for header in headers.map_while(Result::ok) {
            let Some(value) = header.value else { continue };
            meta.apply_header(header.key, value, is_moved);
        }
        meta
    }

    /// Expiry in a queue with this time to live; 0 for none.
    pub(crate) fn expires_with(&self, ttl_ms: u64) -> u64 {
        if ttl_ms == 0 {
            self.expires_ms
        } else {
            self.expires_ms.min(self.timestamp_ms.saturating_add(ttl_ms))
        }
    }

    fn apply_header(&mut self, name: &str, value: &[u8], is_moved: bool) {
        let text = std::str::from_utf8(value).unwrap_or_default().trim();
        let number = || text.parse::<u64>().ok();
        let from_now = |span: u64| self.timestamp_ms.saturating_add(span);
        match name {
            header::PRIORITY => self.priority = number().map_or(0, |priority| priority.min(9) as u8),
            header::DELAY_MS => self.due_ms = number().map_or(self.due_ms, from_now),
            header::DELIVER_AT => self.due_ms = number().unwrap_or(self.due_ms),
            header::TTL_MS => self.expires_ms = number().map_or(self.expires_ms, from_now),
            header::MESSAGE_EXPIRY => {
                let span_ms = number().map(|span_s| span_s.saturating_mul(1000));
                self.expires_ms = span_ms.map_or(self.expires_ms, from_now);
            }
            header::DEDUP_ID if (1..=DEDUP_ID_BYTES_MAX).contains(&value.len()) => {
                self.dedup_id = Some(value.into());
            }
            header::MOVED_BY if is_moved => {
                let parts = text.rsplit_once('/').and_then(|(who, number)| Some((who, number.parse().ok()?)));
                self.moved_by = parts.map(|(who, number)| (who.into(), number));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use mainstem_log::{Header, put_headers};

    use super::*;

    fn meta(headers: &[(&str, &str)], is_moved: bool) -> Meta {
        let mut encoded = Vec::new();
        let all = headers.iter().map(|(key, value)| Header { key, value: Some(value.as_bytes()) });
        put_headers(all, &mut encoded);
        let record =
            Record { offset: 7, timestamp_ms: 1_000, key: Some(b"k"), value: None, headers: &encoded };
        Meta::of(&record, is_moved)
    }

    #[test]
    fn headers_are_applied() {
        let asked =
            meta(&[("priority", "12"), ("delay-ms", "500"), ("ttl-ms", "2000"), ("dedup-id", "a")], false);
        assert_eq!((asked.priority, asked.due_ms, asked.expires_ms), (9, 1_500, 3_000));
        assert_eq!(asked.dedup_id.as_deref(), Some(b"a".as_slice()));
        assert_eq!(meta(&[("mqtt.message-expiry-interval", "3")], false).expires_ms, 4_000);
        assert_eq!(meta(&[("deliver-at", "99")], false).due_ms, 99);
    }

    #[test]
    fn invalid_headers_are_ignored() {
        let odd = meta(&[("priority", "high"), ("delay-ms", "-1"), ("ttl-ms", ""), ("dedup-id", "")], false);
        assert_eq!(odd, meta(&[], false).with_bytes(odd.bytes));
    }

    #[test]
    fn the_moved_by_header_of_a_client_is_ignored() {
        let moved = [("moved-by", "00ff/default/17")];
        assert_eq!(meta(&moved, true).moved_by, Some(("00ff/default".into(), 17)));
        assert_eq!(meta(&moved, false).moved_by, None);
    }

    impl Meta {
        fn with_bytes(self, bytes: u32) -> Self {
            Self { bytes, ..self }
        }
    }
}
