//! What the machine knows of a message: what its record's headers ask for.

use std::hash::BuildHasher;

use foldhash::quality::FixedState;
use mainstem_log::{Headers, Record};

/// Names of headers that a queue heeds, and of those that it adds to dead letters.
pub mod header {
    /// 0 to 9; messages with more come first.
    pub const PRIORITY: &str = "priority";
    /// Time from its arrival for which a message waits, ms.
    pub const DELAY_MS: &str = "delay-ms";
    /// Time before which it is not delivered, ms since 1970.
    pub const DELIVER_AT: &str = "deliver-at";
    /// Time from its arrival after which it is not delivered any more, ms.
    pub const TTL_MS: &str = "ttl-ms";
    /// The same in seconds, as MQTT publishers say it.
    pub const MESSAGE_EXPIRY: &str = "mqtt.message-expiry-interval";
    /// Of two messages with the same one within the queue's window, the second is thrown away.
    pub const DEDUP_ID: &str = "dedup-id";
    /// Why a dead letter is one.
    pub const DEAD_LETTER_REASON: &str = "dead-letter-reason";
    /// The queue it was in.
    pub const DEAD_LETTER_QUEUE: &str = "dead-letter-queue";
    /// The group that did not settle it.
    pub const DEAD_LETTER_GROUP: &str = "dead-letter-group";
    /// Its offset there.
    pub const DEAD_LETTER_OFFSET: &str = "dead-letter-offset";
    /// How often it was delivered there.
    pub const DEAD_LETTER_COUNT: &str = "dead-letter-count";
    /// When it left, ms since 1970.
    pub const DEAD_LETTER_TIME: &str = "dead-letter-time";
    /// Which queue's which group moved it here, and the how manieth it was.
    pub const MOVED_BY: &str = "moved-by";
}

/// Longest deduplication identifier, bytes. What is longer is none.
pub const DEDUP_ID_BYTES_MAX: usize = 255;

/// What the machine knows of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Its place in the log.
    pub offset: u64,
    /// When it came, ms since 1970.
    pub timestamp_ms: u64,
    /// Key, value and headers, bytes.
    pub bytes: u32,
    /// Stands for its key, if it has one.
    pub key: Option<u64>,
    /// 0 to 9.
    pub priority: u8,
    /// Time before which it is not delivered, ms since 1970; 0 for none.
    pub due_ms: u64,
    /// Time after which it is not delivered, ms since 1970; `u64::MAX` for never.
    pub expires_ms: u64,
    /// Its deduplication identifier.
    pub dedup_id: Option<Box<[u8]>>,
    /// Which group of another queue moved it here, and the how manieth message it moved.
    pub moved_by: Option<(Box<str>, u64)>,
}

impl Meta {
    /// Of a record. `is_moved` says that a queue of this broker has written it, so that it is believed whose it was.
    /// Headers that cannot be read count for nothing.
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
            meta.heed(header.key, value, is_moved);
        }
        meta
    }

    /// Time after which it is not delivered, ms since 1970, in a queue that gives messages so long; 0 for any time.
    pub(crate) fn expires_with(&self, ttl_ms: u64) -> u64 {
        if ttl_ms == 0 {
            self.expires_ms
        } else {
            self.expires_ms.min(self.timestamp_ms.saturating_add(ttl_ms))
        }
    }

    fn heed(&mut self, name: &str, value: &[u8], is_moved: bool) {
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
    fn headers_are_heeded() {
        let asked =
            meta(&[("priority", "12"), ("delay-ms", "500"), ("ttl-ms", "2000"), ("dedup-id", "a")], false);
        assert_eq!((asked.priority, asked.due_ms, asked.expires_ms), (9, 1_500, 3_000));
        assert_eq!(asked.dedup_id.as_deref(), Some(b"a".as_slice()));
        assert_eq!(meta(&[("mqtt.message-expiry-interval", "3")], false).expires_ms, 4_000);
        assert_eq!(meta(&[("deliver-at", "99")], false).due_ms, 99);
    }

    #[test]
    fn what_cannot_be_read_counts_for_nothing() {
        let odd = meta(&[("priority", "high"), ("delay-ms", "-1"), ("ttl-ms", ""), ("dedup-id", "")], false);
        assert_eq!(odd, meta(&[], false).with_bytes(odd.bytes));
    }

    #[test]
    fn nobody_else_says_that_a_queue_has_moved_a_message() {
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
