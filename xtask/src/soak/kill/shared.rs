//! State shared by all clients of a run: the streams with their progress, the violations, the phase.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Prefix of live topics: `kill/live/<publisher>/<stream>`.
pub(super) const LIVE: &str = "kill/live";
/// Prefix of retained topics.
pub(super) const RETAINED: &str = "kill/retained";
/// Every message of this period clears its retained topic.
const CLEARING: u64 = 8;
/// Maximum descriptions stored per kind of violation.
const SENTENCES_MAX: usize = 12;

/// One publisher's messages on one topic, at one QoS.
pub(super) struct Stream {
    pub(super) topic: String,
    pub(super) qos: u8,
    pub(super) retain: bool,
    /// Number of messages sent at least once; also the number of the next message.
    sent: AtomicU64,
    /// One above the highest number acknowledged with PUBACK or PUBREC.
    acked: AtomicU64,
}

impl Stream {
    pub(super) fn new(topic: String, qos: u8, retain: bool) -> Self {
        Self { topic, qos, retain, sent: AtomicU64::new(0), acked: AtomicU64::new(0) }
    }

    /// Allocates the number of the next message. Must be called before the message is sent.
    pub(super) fn next(&self) -> u64 {
        self.sent.fetch_add(1, Ordering::SeqCst)
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::SeqCst)
    }

    pub(super) fn acknowledge(&self, number: u64) {
        self.acked.fetch_max(number + 1, Ordering::SeqCst);
    }

    pub(super) fn acked(&self) -> u64 {
        self.acked.load(Ordering::SeqCst)
    }

    /// Payload of a message: its topic and number, and a filler whose length depends on the number. Empty for a
    /// retained message that clears its topic.
    pub(super) fn payload(&self, number: u64) -> Vec<u8> {
        if self.retain && Self::clears(number) {
            return Vec::new();
        }
        let mut payload = format!("{} {number} ", self.topic).into_bytes();
        let filler = match number % 100 {
            // Large enough that the broker shares it among receivers instead of copying.
            7 => 20_000,
            short => 20 + short as usize,
        };
        payload.resize(payload.len() + filler, b'a' + (number % 26) as u8);
        payload
    }

    /// Number of a message; `None` if the payload differs from the published one.
    pub(super) fn number_of(&self, payload: &[u8]) -> Option<u64> {
        let text = payload.strip_prefix(self.topic.as_bytes())?.strip_prefix(b" ")?;
        let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let number = std::str::from_utf8(&text[..digits]).ok()?.parse().ok()?;
        (payload == self.payload(number)).then_some(number)
    }

    /// Whether this message clears its retained topic.
    pub(super) fn clears(number: u64) -> bool {
        number % CLEARING == CLEARING - 1
    }

    /// Whether any of these messages clears its retained topic.
    pub(super) fn clears_within(range: std::ops::Range<u64>) -> bool {
        let first = range.start / CLEARING * CLEARING + CLEARING - 1;
        range.contains(&first)
    }
}

/// Violations found: count and first descriptions, by kind.
#[derive(Default)]
pub(super) struct Violations(Mutex<BTreeMap<&'static str, (u64, Vec<String>)>>);

impl Violations {
    /// Adds a violation.
    pub(super) fn add(&self, kind: &'static str, sentence: impl Display) {
        self.add_many(kind, 1, sentence);
    }

    /// Adds `count` violations with one description.
    pub(super) fn add_many(&self, kind: &'static str, count: u64, sentence: impl Display) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (total, sentences) = all.entry(kind).or_default();
        *total += count;
        if sentences.len() < SENTENCES_MAX {
            sentences.push(sentence.to_string());
        }
    }

    /// Number of violations of a kind.
    pub(super) fn count(&self, kind: &str) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(kind).map_or(0, |(count, _)| *count)
    }

    /// All violations, one line per kind.
    pub(super) fn lines(&self) -> Vec<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = all.iter().map(|(kind, (count, sentences))| {
            let more = if sentences.len() as u64 == *count { "" } else { "; ..." };
            format!("{kind}: {count} ({}{more})", sentences.join("; "))
        });
        lines.collect()
    }
}

/// Kinds of violations that the summary counts.
pub(super) const LOST: &str = "lost";
pub(super) const REPEATED_QOS2: &str = "QoS 2 repeated";

/// State shared by all clients.
pub(super) struct SharedState {
    pub(super) port: u16,
    pub(super) seed: u64,
    pub(super) streams: Vec<Stream>,
    pub(super) violations: Violations,
    /// Number of restarts of the broker.
    pub(super) restarts: AtomicU32,
    /// Publishers send no new messages, and complete those in flight.
    pub(super) is_closing: AtomicBool,
    /// All clients stop.
    pub(super) is_over: AtomicBool,
    /// Number of first deliveries, over all receivers.
    pub(super) delivered: AtomicU64,
    /// Number of duplicate QoS 1 deliveries, which are allowed.
    pub(super) repeated: AtomicU64,
    /// Number of messages resent with DUP.
    pub(super) resent: AtomicU64,
    /// Number of retained messages checked.
    pub(super) retained_checked: AtomicU64,
    /// Whether the watcher of wills has its SUBACK.
    pub(super) is_watching: AtomicBool,
    /// Payloads of published wills.
    pub(super) wills: Mutex<Vec<Vec<u8>>>,
    /// Payloads of late wills, which must be published by the end.
    pub(super) late_wills: Mutex<Vec<String>>,
}

impl SharedState {
    pub(super) fn new(port: u16, seed: u64, streams: Vec<Stream>) -> Self {
        Self {
            port,
            seed,
            streams,
            violations: Violations::default(),
            restarts: AtomicU32::new(0),
            is_closing: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            delivered: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            resent: AtomicU64::new(0),
            retained_checked: AtomicU64::new(0),
            is_watching: AtomicBool::new(false),
            wills: Mutex::new(Vec::new()),
            late_wills: Mutex::new(Vec::new()),
        }
    }

    pub(super) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::SeqCst)
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Index of the stream of a topic.
    pub(super) fn stream_of(&self, topic: &str) -> Option<usize> {
        self.streams.iter().position(|stream| stream.topic == topic)
    }

    /// Number of sent messages per stream.
    pub(super) fn sent(&self) -> Vec<u64> {
        self.streams.iter().map(Stream::sent).collect()
    }

    /// Acknowledged position per stream.
    pub(super) fn acked(&self) -> Vec<u64> {
        self.streams.iter().map(Stream::acked).collect()
    }
}

/// Increments a counter.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modified_payload_has_no_number() {
        let stream = Stream::new("kill/live/0/0".into(), 1, false);
        for number in [0, 7, 123_456] {
            let mut payload = stream.payload(number);
            assert_eq!(stream.number_of(&payload), Some(number));
            *payload.last_mut().unwrap() ^= 1;
            assert_eq!(stream.number_of(&payload), None);
        }
        let other = Stream::new("kill/live/0/1".into(), 1, false);
        assert_eq!(other.number_of(&stream.payload(3)), None);
    }

    #[test]
    fn clears_retained_topics_periodically() {
        let stream = Stream::new("t".into(), 1, true);
        let cleared: Vec<u64> = (0..20).filter(|number| stream.payload(*number).is_empty()).collect();
        assert_eq!(cleared, [7, 15]);
        for start in 0..20 {
            for end in start..20 {
                let any = (start..end).any(Stream::clears);
                assert_eq!(Stream::clears_within(start..end), any, "{start}..{end}");
            }
        }
    }

    #[test]
    fn counts_violations_by_kind() {
        let violations = Violations::default();
        (0..20).for_each(|n| violations.add(LOST, n));
        assert_eq!(violations.count(LOST), 20);
        assert_eq!(violations.lines(), ["lost: 20 (0; 1; 2; 3; 4; 5; 6; 7; 8; 9; 10; 11; ...)"]);
    }
}
