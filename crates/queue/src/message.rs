//! Messages to enqueue, and the encoding of their options as headers.

use std::io::Write as _;
use std::time::{Duration, SystemTime};

use mainstem_log::{Header, Headers, put_headers};
use mainstem_queue_core::{DEDUP_ID_BYTES_MAX, QueueError, check_option, header};
use smallvec::SmallVec;

use crate::time::{as_ms, ms_of};

/// The encoding of no headers.
const NO_HEADERS: &[u8] = &[0];
/// Digits of `u64::MAX`.
const DIGITS_MAX: usize = 20;

/// A message to enqueue.
///
/// ```
/// # use std::time::Duration;
/// # use mainstem_queue::Message;
/// let message = Message::new("resize 17.png").key("17").priority(7).ttl(Duration::from_secs(60));
/// assert_eq!(message.value, b"resize 17.png");
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Message<'a> {
    /// Messages with the same key are delivered one at a time, in order, unless the queue is configured otherwise. An
    /// empty key is no key.
    pub key: Option<&'a [u8]>,
    /// The payload.
    pub value: &'a [u8],
    /// Headers as [`put_headers`] encodes them; may be empty.
    pub headers: &'a [u8],
    /// 0 to 9; higher priorities are delivered first. Larger numbers count as 9.
    pub priority: u8,
    /// Delay of the delivery, whole ms.
    pub delay: Duration,
    /// Earliest time of the delivery; overrides the delay.
    pub deliver_at: Option<SystemTime>,
    /// Time to live, whole ms: then the message becomes a dead letter. The queue's limit applies if it is shorter.
    pub ttl: Option<Duration>,
    /// Deduplication identifier, at most 255 bytes; may be empty. The queue drops a message whose identifier it has
    /// seen within its window; the enqueue succeeds all the same.
    pub dedup_id: &'a [u8],
}

impl<'a, B: AsRef<[u8]> + ?Sized> From<&'a B> for Message<'a> {
    fn from(value: &'a B) -> Self {
        Self::new(value)
    }
}

impl<'a> Message<'a> {
    /// A message with this payload and no options.
    pub fn new(value: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self { value: value.as_ref(), ..Self::default() }
    }

    /// With this [key](Self::key).
    #[must_use]
    pub fn key(self, key: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self { key: Some(key.as_ref()), ..self }
    }

    /// With these [headers](Self::headers).
    #[must_use]
    pub fn headers(self, headers: &'a [u8]) -> Self {
        Self { headers, ..self }
    }

    /// With this [priority](Self::priority).
    #[must_use]
    pub fn priority(self, priority: u8) -> Self {
        Self { priority, ..self }
    }

    /// With this [delay](Self::delay).
    #[must_use]
    pub fn delay(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// With this [earliest time of delivery](Self::deliver_at).
    #[must_use]
    pub fn deliver_at(self, at: SystemTime) -> Self {
        Self { deliver_at: Some(at), ..self }
    }

    /// With this [time to live](Self::ttl).
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { ttl: Some(ttl), ..self }
    }

    /// With this [deduplication identifier](Self::dedup_id).
    #[must_use]
    pub fn dedup_id(self, id: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self { dedup_id: id.as_ref(), ..self }
    }

    fn has_no_options(&self) -> bool {
        self.priority == 0
            && self.delay.is_zero()
            && self.deliver_at.is_none()
            && self.ttl.is_none()
            && self.dedup_id.is_empty()
    }

    /// Encodes the headers, followed by one header per option. `spare` is scratch memory.
    #[inline]
    pub(crate) fn encode<'b>(&self, spare: &'b mut Vec<u8>) -> Result<&'b [u8], QueueError>
    where
        'a: 'b,
    {
        if self.has_no_options() {
            return Ok(if self.headers.is_empty() { NO_HEADERS } else { self.headers });
        }
        self.encode_all(spare)
    }

    /// Out of line: most messages have no options.
    #[inline(never)]
    fn encode_all<'b>(&self, spare: &'b mut Vec<u8>) -> Result<&'b [u8], QueueError>
    where
        'a: 'b,
    {
        if self.dedup_id.len() > DEDUP_ID_BYTES_MAX {
            let rule = format!("the deduplication identifier has more than {DEDUP_ID_BYTES_MAX} bytes");
            return Err(QueueError::Invalid(rule));
        }
        let due = self.deliver_at.map(ms_of);
        let delay = (!self.delay.is_zero() && due.is_none()).then(|| as_ms(self.delay));
        let numbers = [
            (header::PRIORITY, (self.priority > 0).then(|| self.priority.min(9).into())),
            (header::DELAY_MS, delay),
            (header::DELIVER_AT, due),
            (header::TTL_MS, self.ttl.map(as_ms)),
        ];
        for (key, number) in &numbers[1..] {
            let digits = number.map(|number| number.to_string()).unwrap_or_default();
            check_option(key, &digits).map_err(QueueError::Invalid)?;
        }
        let numbers = numbers.map(|(key, number)| (key, number.map(Digits::new)));
        let mut all: SmallVec<[Header<'_>; 16]> =
            Headers::parse(self.headers).into_iter().flatten().map_while(Result::ok).collect();
        // Of two headers with one name the later counts.
        for (key, digits) in &numbers {
            all.extend(digits.as_ref().map(|digits| Header { key, value: Some(digits.bytes()) }));
        }
        if !self.dedup_id.is_empty() {
            all.push(Header { key: header::DEDUP_ID, value: Some(self.dedup_id) });
        }
        spare.clear();
        put_headers(all.into_iter(), spare);
        Ok(spare)
    }
}

/// A decimal number on the stack.
struct Digits {
    bytes: [u8; DIGITS_MAX],
    len: usize,
}

impl Digits {
    fn new(number: u64) -> Self {
        let mut bytes = [0; DIGITS_MAX];
        let mut rest = &mut bytes[..];
        // `DIGITS_MAX` bytes hold every number.
        let is_written = write!(rest, "{number}").is_ok();
        debug_assert!(is_written);
        let len = DIGITS_MAX - rest.len();
        Self { bytes, len }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn encoded(message: Message<'_>) -> Vec<(String, String)> {
        let mut spare = Vec::new();
        let headers = Headers::parse(message.encode(&mut spare).unwrap()).unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        headers.map(Result::unwrap).map(|header| (header.key.into(), text(header.value.unwrap()))).collect()
    }

    #[test]
    fn options_follow_the_headers() {
        let mut own = Vec::new();
        put_headers([Header { key: "trace", value: Some(b"1") }].into_iter(), &mut own);
        let message = Message::new("x").headers(&own);
        assert_eq!(message.encode(&mut Vec::new()).unwrap(), own, "no options");
        let at = UNIX_EPOCH + Duration::from_millis(99);
        let message =
            message.priority(12).ttl(Duration::from_hours(1)).delay(Duration::from_secs(1)).dedup_id("id");
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let (trace, ttl, id) = (pair("trace", "1"), pair("ttl-ms", "3600000"), pair("dedup-id", "id"));
        let priority = pair("priority", "9");
        let expected = [trace.clone(), priority.clone(), pair("delay-ms", "1000"), ttl.clone(), id.clone()];
        assert_eq!(encoded(message), expected);
        assert_eq!(encoded(message.deliver_at(at)), [trace, priority, pair("deliver-at", "99"), ttl, id]);
        assert_eq!(encoded(Message::new("x")), []);
    }

    #[test]
    fn absurd_times_are_errors() {
        let far = UNIX_EPOCH + Duration::from_hours(24 * 366 * 9_000);
        let message = Message::new("x");
        for message in [message.delay(Duration::MAX), message.ttl(Duration::MAX), message.deliver_at(far)] {
            let refused = message.encode(&mut Vec::new()).unwrap_err();
            assert!(
                matches!(&refused, QueueError::Invalid(what) if what.contains("-ms") || what.contains("deliver-at"))
            );
        }
    }

    #[test]
    fn a_long_identifier_is_an_error() {
        let long = [b'x'; 256];
        assert!(Message::new("x").dedup_id(&long[1..]).encode(&mut Vec::new()).is_ok());
        let refused = Message::new("x").dedup_id(&long).encode(&mut Vec::new()).unwrap_err();
        assert!(matches!(refused, QueueError::Invalid(_)));
    }
}
