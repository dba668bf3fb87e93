//! The few requests and answers of the Kafka protocol that the generator needs, by hand.
//!
//! Produce 9 and Fetch 12 are the newest versions that name topics by their names; the rest are the plainest
//! versions that a Kafka 4 broker still takes.

use crate::error::BenchError;

pub(super) const PRODUCE: (i16, i16) = (0, 9);
pub(super) const FETCH: (i16, i16) = (1, 12);
pub(super) const LIST_OFFSETS: (i16, i16) = (2, 1);
pub(super) const METADATA: (i16, i16) = (3, 1);
pub(super) const API_VERSIONS: (i16, i16) = (18, 0);
pub(super) const CREATE_TOPICS: (i16, i16) = (19, 4);

/// How long the broker may take for a request, in milliseconds.
pub(super) const TIMEOUT_MS: i32 = 30_000;
/// Bytes of the header of an answer in a flexible version: correlation id, no tagged fields.
const FLEXIBLE_HEADER_BYTES: usize = 5;
const CLIENT_ID: &str = "mainstem-bench";

/// Whether requests and answers of this API are in a flexible version here (KIP-482).
fn is_flexible(api: (i16, i16)) -> bool {
    api == PRODUCE || api == FETCH
}

/// Begins a request; [`seal`] ends it.
pub(super) fn begin(api: (i16, i16), correlation_id: i32, into: &mut Vec<u8>) {
    into.clear();
    into.extend_from_slice(&[0; 4]);
    put_i16(api.0, into);
    put_i16(api.1, into);
    put_i32(correlation_id, into);
    put_string(CLIENT_ID, into);
    if is_flexible(api) {
        into.push(0);
    }
}

/// Writes the length of a request of which `behind` more bytes are sent from elsewhere.
pub(super) fn seal(request: &mut [u8], behind: usize) {
    let length = (request.len() - 4 + behind) as u32;
    request[..4].copy_from_slice(&length.to_be_bytes());
}

/// Everything of a Produce request before the batch; behind the batch comes [`PRODUCE_TAIL`].
pub(super) fn put_produce(
    correlation_id: i32,
    topic: &str,
    acks: i16,
    partition: i32,
    batch_bytes: usize,
    into: &mut Vec<u8>,
) {
    begin(PRODUCE, correlation_id, into);
    // No transaction.
    into.push(0);
    put_i16(acks, into);
    put_i32(TIMEOUT_MS, into);
    put_count(1, into);
    put_compact_string(topic, into);
    put_count(1, into);
    put_i32(partition, into);
    put_count(batch_bytes, into);
    seal(into, batch_bytes + PRODUCE_TAIL.len());
}

/// No tagged fields of the partition, the topic, the request.
pub(super) const PRODUCE_TAIL: &[u8] = &[0; 3];

/// What a broker says of one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Produced {
    pub(super) partition: i32,
    pub(super) error: i16,
    pub(super) base_offset: i64,
}

/// The answer to a Produce request with one batch, from behind its correlation id.
pub(super) fn parse_produced(answer: &[u8]) -> Result<Produced, BenchError> {
    let mut reader = Reader(&answer[4..]);
    reader.skip_tags()?;
    if reader.count()? != 1 {
        return Err(odd("an answer for more topics than one"));
    }
    reader.compact_bytes()?;
    if reader.count()? != 1 {
        return Err(odd("an answer for more partitions than one"));
    }
    Ok(Produced { partition: reader.i32()?, error: reader.i16()?, base_offset: reader.i64()? })
}

/// What is asked of one partition.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) partition: i32,
    pub(super) offset: i64,
}

/// Limits of a Fetch request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) max_wait_ms: i32,
    pub(super) min_bytes: i32,
    pub(super) partition_bytes: i32,
}

/// A Fetch request without a session (KIP-227).
pub(super) fn put_fetch(
    correlation_id: i32,
    topic: &str,
    patience: Patience,
    wanted: impl ExactSizeIterator<Item = Wanted>,
    into: &mut Vec<u8>,
) {
    /// Kafka's default of `fetch.max.bytes`.
    const FETCH_BYTES_MAX: i32 = 50 << 20;
    begin(FETCH, correlation_id, into);
    put_i32(-1, into);
    put_i32(patience.max_wait_ms, into);
    put_i32(patience.min_bytes, into);
    put_i32(FETCH_BYTES_MAX, into);
    // Read uncommitted; no session.
    into.push(0);
    put_i32(0, into);
    put_i32(-1, into);
    put_count(1, into);
    put_compact_string(topic, into);
    put_count(wanted.len(), into);
    for Wanted { partition, offset } in wanted {
        put_i32(partition, into);
        put_i32(-1, into);
        put_i64(offset, into);
        put_i32(-1, into);
        put_i64(-1, into);
        put_i32(patience.partition_bytes, into);
        into.push(0);
    }
    // No tags of the topic, nothing forgotten, no rack, no tags.
    into.push(0);
    put_count(0, into);
    put_count(0, into);
    into.push(0);
    seal(into, 0);
}

/// Hands each partition of an answer to a Fetch request to `take`: partition, error, records.
pub(super) fn parse_fetched(
    answer: &[u8],
    mut take: impl FnMut(i32, i16, &[u8]) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    let mut reader = Reader(&answer[4..]);
    reader.skip_tags()?;
    reader.i32()?;
    let error = reader.i16()?;
    if error != 0 {
        return Err(BenchError::Broken(format!("Fetch was refused with error {error}")));
    }
    reader.i32()?;
    for _ in 0..reader.count()? {
        reader.compact_bytes()?;
        for _ in 0..reader.count()? {
            let (partition, error) = (reader.i32()?, reader.i16()?);
            // High watermark, last stable offset, log start offset.
            reader.bytes(24)?;
            for _ in 0..reader.count()? {
                reader.bytes(16)?;
                reader.skip_tags()?;
            }
            reader.i32()?;
            take(partition, error, reader.compact_bytes()?)?;
            reader.skip_tags()?;
        }
        reader.skip_tags()?;
    }
    Ok(())
}

/// The correlation id of an answer.
pub(super) fn correlation_id(answer: &[u8]) -> Result<i32, BenchError> {
    if answer.len() < FLEXIBLE_HEADER_BYTES {
        return Err(odd("an answer without a header"));
    }
    Reader(answer).i32()
}

pub(super) fn put_i16(value: i16, into: &mut Vec<u8>) {
    into.extend_from_slice(&value.to_be_bytes());
}

pub(super) fn put_i32(value: i32, into: &mut Vec<u8>) {
    into.extend_from_slice(&value.to_be_bytes());
}

pub(super) fn put_i64(value: i64, into: &mut Vec<u8>) {
    into.extend_from_slice(&value.to_be_bytes());
}

pub(super) fn put_string(text: &str, into: &mut Vec<u8>) {
    put_i16((text.len() as u16).cast_signed(), into);
    into.extend_from_slice(text.as_bytes());
}

fn put_compact_string(text: &str, into: &mut Vec<u8>) {
    put_count(text.len(), into);
    into.extend_from_slice(text.as_bytes());
}

/// The length of something in a flexible version: one more, as a varint.
fn put_count(count: usize, into: &mut Vec<u8>) {
    let mut rest = count + 1;
    while rest > 0x7F {
        into.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    into.push(rest as u8);
}

/// An answer that is no answer.
pub(super) fn odd(what: &str) -> BenchError {
    BenchError::Broken(format!("the broker sent {what}"))
}

/// Reads an answer from front to back.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8], BenchError> {
        let (head, tail) = self.0.split_at_checked(count).ok_or_else(|| odd("an answer cut short"))?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BenchError> {
        let mut value = [0; N];
        value.copy_from_slice(self.bytes(N)?);
        Ok(value)
    }

    pub(super) fn i16(&mut self) -> Result<i16, BenchError> {
        self.array().map(i16::from_be_bytes)
    }

    pub(super) fn i32(&mut self) -> Result<i32, BenchError> {
        self.array().map(i32::from_be_bytes)
    }

    pub(super) fn i64(&mut self) -> Result<i64, BenchError> {
        self.array().map(i64::from_be_bytes)
    }

    /// A string, which may be null.
    pub(super) fn string(&mut self) -> Result<&'a [u8], BenchError> {
        let len = self.i16()?;
        self.bytes(usize::try_from(len).unwrap_or(0))
    }

    /// An unsigned varint.
    fn varint(&mut self) -> Result<usize, BenchError> {
        let mut value = 0;
        for shift in (0..35).step_by(7) {
            let byte = self.bytes(1)?[0];
            value |= usize::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(odd("a number without an end"))
    }

    /// The length of something in a flexible version; 0 if it is null.
    fn count(&mut self) -> Result<usize, BenchError> {
        Ok(self.varint()?.saturating_sub(1))
    }

    fn compact_bytes(&mut self) -> Result<&'a [u8], BenchError> {
        let len = self.count()?;
        self.bytes(len)
    }

    fn skip_tags(&mut self) -> Result<(), BenchError> {
        for _ in 0..self.varint()? {
            self.varint()?;
            let len = self.varint()?;
            self.bytes(len)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_produce_request_says_how_long_it_is() {
        let mut head = Vec::new();
        put_produce(7, "t", -1, 3, 200, &mut head);
        let length = u32::from_be_bytes(head[..4].try_into().unwrap()) as usize;
        assert_eq!(length, head.len() - 4 + 200 + PRODUCE_TAIL.len());
        assert_eq!(head[4..12], [0, 0, 0, 9, 0, 0, 0, 7]);
        // No tags, no transaction, acks, timeout; at the end the partition and 201 as a varint.
        assert_eq!(head[28..36], [0, 0, 0xFF, 0xFF, 0, 0, 0x75, 0x30]);
        assert_eq!(head[head.len() - 6..], [0, 0, 0, 3, 0xC9, 0x01]);
    }

    #[test]
    fn what_is_said_of_a_batch_is_found() {
        let mut answer = vec![0, 0, 0, 7, 0, 2, 2, b't', 2];
        put_i32(5, &mut answer);
        put_i16(6, &mut answer);
        put_i64(42, &mut answer);
        let produced = Produced { partition: 5, error: 6, base_offset: 42 };
        assert_eq!(parse_produced(&answer).unwrap(), produced);
        for cut in 4..answer.len() {
            assert!(parse_produced(&answer[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn records_are_found_behind_aborted_transactions_and_tags() {
        let mut answer = vec![0, 0, 0, 7, 0];
        put_i32(0, &mut answer);
        put_i16(0, &mut answer);
        put_i32(0, &mut answer);
        answer.extend([2, 2, b't', 2]);
        put_i32(9, &mut answer);
        put_i16(0, &mut answer);
        answer.extend([0; 24]);
        answer.extend([2]);
        answer.extend([0; 16]);
        // A tagged field of two bytes.
        answer.extend([1, 4, 2, 0xAA, 0xBB]);
        put_i32(-1, &mut answer);
        answer.extend([4, 1, 2, 3, 0, 0, 0]);
        let mut seen = Vec::new();
        let take = |partition, error, records: &[u8]| {
            seen.push((partition, error, records.to_vec()));
            Ok(())
        };
        parse_fetched(&answer, take).unwrap();
        assert_eq!(seen, [(9, 0, vec![1, 2, 3])]);
        for cut in 5..answer.len() - 1 {
            assert!(parse_fetched(&answer[..cut], |_, _, _| Ok(())).is_err(), "{cut}");
        }
    }
}
