//! What all clients of a run share: the streams, how far each has got, what was found amiss.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Everything that clients publish live: `kill/live/<publisher>/<stream>`.
pub(super) const LIVE: &str = "kill/live";
/// The same for retained messages.
pub(super) const RETAINED: &str = "kill/retained";
/// Every so manieth message of a retained topic clears it.
const CLEARING: u64 = 8;
/// Sentences that are kept of each kind of fault.
const SENTENCES_MAX: usize = 12;

/// One publisher's messages on one topic, at one quality of service.
pub(super) struct Stream {
    pub(super) topic: String,
    pub(super) qos: u8,
    pub(super) retain: bool,
    /// Messages sent at least once; the next is number `sent`.
    sent: AtomicU64,
    /// One above the highest number that was acknowledged, with PUBACK or PUBREC.
    acked: AtomicU64,
}

impl Stream {
    pub(super) fn new(topic: String, qos: u8, retain: bool) -> Self {
        Self { topic, qos, retain, sent: AtomicU64::new(0), acked: AtomicU64::new(0) }
    }

    /// Takes the number of the next message; to be called before it is sent.
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

    /// The payload of a message: its topic and number, and a filler whose length depends on them. Empty for a
    /// retained message that clears its topic.
    pub(super) fn payload(&self, number: u64) -> Vec<u8> {
        if self.retain && Self::clears(number) {
            return Vec::new();
        }
        let mut payload = format!("{} {number} ", self.topic).into_bytes();
        let filler = match number % 100 {
            // Large enough to be shared among receivers instead of copied.
            7 => 20_000,
            short => 20 + short as usize,
        };
        payload.resize(payload.len() + filler, b'a' + (number % 26) as u8);
        payload
    }

    /// The number of a message, if the payload is just as it was published.
    pub(super) fn number_of(&self, payload: &[u8]) -> Option<u64> {
        let text = payload.strip_prefix(self.topic.as_bytes())?.strip_prefix(b" ")?;
        let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let number = std::str::from_utf8(&text[..digits]).ok()?.parse().ok()?;
        (payload == self.payload(number)).then_some(number)
    }

    /// Whether this message of a retained topic clears it.
    pub(super) fn clears(number: u64) -> bool {
        number % CLEARING == CLEARING - 1
    }

    /// Whether one of these messages clears the topic.
    pub(super) fn clears_within(range: std::ops::Range<u64>) -> bool {
        let first = range.start / CLEARING * CLEARING + CLEARING - 1;
        range.contains(&first)
    }
}

/// What was found amiss: how often, by kind, and the first sentences of each.
#[derive(Default)]
pub(super) struct Faults(Mutex<BTreeMap<&'static str, (u64, Vec<String>)>>);

impl Faults {
    /// One more of `kind`.
    pub(super) fn add(&self, kind: &'static str, sentence: impl Display) {
        self.add_many(kind, 1, sentence);
    }

    /// So many more of `kind`, which one sentence describes.
    pub(super) fn add_many(&self, kind: &'static str, count: u64, sentence: impl Display) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (total, sentences) = all.entry(kind).or_default();
        *total += count;
        if sentences.len() < SENTENCES_MAX {
            sentences.push(sentence.to_string());
        }
    }

    /// How many there are of `kind`.
    pub(super) fn count(&self, kind: &str) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(kind).map_or(0, |(count, _)| *count)
    }

    /// All of them as lines.
    pub(super) fn lines(&self) -> Vec<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let told = all.iter().map(|(kind, (count, sentences))| {
            let more = if sentences.len() as u64 == *count { "" } else { "; ..." };
            format!("{kind}: {count} ({}{more})", sentences.join("; "))
        });
        told.collect()
    }
}

/// Kinds of fault that are counted in the summary too.
pub(super) const LOST: &str = "lost";
pub(super) const REPEATED_QOS2: &str = "QoS 2 repeated";

/// What all clients share.
pub(super) struct World {
    pub(super) port: u16,
    pub(super) seed: u64,
    pub(super) streams: Vec<Stream>,
    pub(super) faults: Faults,
    /// How often the broker was started.
    pub(super) lives: AtomicU32,
    /// Publishers send nothing new; what is in flight is finished.
    pub(super) is_closing: AtomicBool,
    /// Everybody leaves.
    pub(super) is_over: AtomicBool,
    /// First deliveries, to all receivers.
    pub(super) delivered: AtomicU64,
    /// Messages of QoS 1 that came again, as they may.
    pub(super) repeated: AtomicU64,
    /// Messages that were sent again, with DUP.
    pub(super) resent: AtomicU64,
    /// Retained messages that a new subscriber got and that were checked.
    pub(super) retained_checked: AtomicU64,
    /// The watcher of wills has its SUBACK.
    pub(super) is_watching: AtomicBool,
    /// Payloads of wills that were published.
    pub(super) wills: Mutex<Vec<Vec<u8>>>,
    /// Payloads of wills that nobody waits for any more: at the end they must have come.
    pub(super) late_wills: Mutex<Vec<String>>,
}

impl World {
    pub(super) fn new(port: u16, seed: u64, streams: Vec<Stream>) -> Self {
        Self {
            port,
            seed,
            streams,
            faults: Faults::default(),
            lives: AtomicU32::new(0),
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

    /// The live stream of a topic.
    pub(super) fn stream_of(&self, topic: &str) -> Option<usize> {
        self.streams.iter().position(|stream| stream.topic == topic)
    }

    /// How many messages of each stream have been sent.
    pub(super) fn sent(&self) -> Vec<u64> {
        self.streams.iter().map(Stream::sent).collect()
    }

    /// How far each stream has been acknowledged.
    pub(super) fn acked(&self) -> Vec<u64> {
        self.streams.iter().map(Stream::acked).collect()
    }
}

/// Adds to a counter.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_that_was_changed_has_no_number() {
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
    fn retained_topics_are_cleared_now_and_then() {
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
    fn faults_are_counted_by_kind() {
        let faults = Faults::default();
        (0..20).for_each(|n| faults.add(LOST, n));
        assert_eq!(faults.count(LOST), 20);
        assert_eq!(faults.lines(), ["lost: 20 (0; 1; 2; 3; 4; 5; 6; 7; 8; 9; 10; 11; ...)"]);
    }
}
