//! Metadata of a message: what its record and headers tell the queue.
//!
//! Producers of any protocol set options as headers, which are text that nobody has checked before the message is on
//! disk. What cannot be understood has no effect, rather than making the message undeliverable; protocols that can
//! refuse a message check it first ([`check_option`]).

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
/// Longest delay and time to live: 100 years, in ms.
pub const SPAN_MS_MAX: u64 = 100 * 365 * 24 * 60 * 60 * 1000;
/// Latest time of delivery: the end of the year 9999, in ms since 1970.
pub const TIME_MS_MAX: u64 = 253_402_300_799_999;

/// Checks the number in a header of a message that is to be sent. Text that is no number has no effect.
///
/// # Errors
/// The number is out of bounds. Explanation in words.
pub fn check_option(name: &str, value: &str) -> Result<(), String> {
    let max = match name {
        header::DELAY_MS | header::TTL_MS => SPAN_MS_MAX,
        header::DELIVER_AT => TIME_MS_MAX,
        _ => return Ok(()),
    };
    match parse_number(value) {
        Some(number) if number > max => Err(format!("{name}: must be 0 to {max}")),
        _ => Ok(()),
    }
}

/// A decimal number; `u64::MAX` if it is larger than that. `None` if it is no number.
fn parse_number(text: &str) -> Option<u64> {
    let text = text.trim();
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

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
        let text = std::str::from_utf8(value).unwrap_or_default();
        let number = || parse_number(text);
        let from_now = |span: u64| self.timestamp_ms.saturating_add(span.min(SPAN_MS_MAX));
        match name {
            header::PRIORITY => self.priority = number().map_or(0, |priority| priority.min(9) as u8),
            // Each says "no earlier than", so the later one counts.
            header::DELAY_MS => self.due_ms = self.due_ms.max(number().map_or(0, from_now)),
            header::DELIVER_AT => {
                self.due_ms = self.due_ms.max(number().map_or(0, |at_ms| at_ms.min(TIME_MS_MAX)));
            }
            header::TTL_MS => self.expires_ms = number().map_or(self.expires_ms, from_now),
            header::MESSAGE_EXPIRY => {
                let span_ms = number().map(|span_s| span_s.saturating_mul(1000));
                self.expires_ms = span_ms.map_or(self.expires_ms, from_now);
            }
            header::DEDUP_ID if (1..=DEDUP_ID_BYTES_MAX).contains(&value.len()) => {
                self.dedup_id = Some(value.into());
            }
            header::MOVED_BY if is_moved => {
                let parts =
                    text.trim().rsplit_once('/').and_then(|(who, number)| Some((who, number.parse().ok()?)));
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
        for (delay_ms, deliver_at, due_ms) in
            [("500", "99", 1_500), ("500", "1600", 1_600), ("0", "x", 1_000)]
        {
            let (delay, at) = (("delay-ms", delay_ms), ("deliver-at", deliver_at));
            assert_eq!(meta(&[delay, at], false).due_ms, due_ms);
            assert_eq!(meta(&[at, delay], false).due_ms, due_ms);
        }
    }

    #[test]
    fn numbers_are_bounded() {
        for huge in [(SPAN_MS_MAX + 1).to_string(), u64::MAX.to_string(), "9".repeat(99)] {
            let huge = huge.as_str();
            let all = [("delay-ms", huge), ("ttl-ms", huge)];
            let meta = meta(&all, false);
            assert_eq!((meta.due_ms, meta.expires_ms), (1_000 + SPAN_MS_MAX, 1_000 + SPAN_MS_MAX), "{huge}");
            assert!(all.iter().all(|(name, value)| check_option(name, value).is_err()), "{huge}");
        }
        let at = u64::MAX.to_string();
        assert_eq!(meta(&[("deliver-at", &at)], false).due_ms, TIME_MS_MAX);
        assert!(check_option("deliver-at", &at).is_err());
        let seconds = meta(&[("mqtt.message-expiry-interval", &at)], false);
        assert_eq!(seconds.expires_ms, 1_000 + SPAN_MS_MAX);
        for (name, value) in [
            ("delay-ms", SPAN_MS_MAX.to_string()),
            ("ttl-ms", " 0 ".into()),
            ("deliver-at", TIME_MS_MAX.to_string()),
            ("delay-ms", "soon".into()),
            ("trace", u64::MAX.to_string()),
        ] {
            assert_eq!(check_option(name, &value), Ok(()), "{name}: {value}");
        }
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
