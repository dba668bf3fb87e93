//! Hand-written encoding of the few Kafka requests and responses that the generator needs.
//!
//! Produce 9 and Fetch 12 are the newest versions with topic names instead of topic ids. The other APIs use the
//! simplest version that a Kafka 4 broker still accepts.

use crate::error::BenchError;

pub(super) const PRODUCE: (i16, i16) = (0, 9);
pub(super) const FETCH: (i16, i16) = (1, 12);
pub(super) const LIST_OFFSETS: (i16, i16) = (2, 1);
pub(super) const METADATA: (i16, i16) = (3, 1);
pub(super) const API_VERSIONS: (i16, i16) = (18, 0);
pub(super) const CREATE_TOPICS: (i16, i16) = (19, 4);

/// Request timeout sent to the broker, in milliseconds.
pub(super) const TIMEOUT_MS: i32 = 30_000;
/// Size of a response header in a flexible version: correlation id, no tagged fields.
const FLEXIBLE_HEADER_BYTES: usize = 5;
const CLIENT_ID: &str = "mainstem-bench";

/// Whether the version of this API is flexible (KIP-482).
fn is_flexible(api: (i16, i16)) -> bool {
    api == PRODUCE || api == FETCH
}

/// Starts a request; [`finish_request`] completes it.
pub(super) fn begin_request(api: (i16, i16), correlation_id: i32, into: &mut Vec<u8>) {
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

/// Writes the length of a request that is followed by `extra` bytes from another buffer.
pub(super) fn finish_request(request: &mut [u8], extra: usize) {
    let length = (request.len() - 4 + extra) as u32;
    request[..4].copy_from_slice(&length.to_be_bytes());
}

/// Encodes a Produce request up to the batch. [`PRODUCE_TAIL`] follows the batch.
pub(super) fn put_produce(
    correlation_id: i32,
    topic: &str,
    acks: i16,
    partition: i32,
    batch_bytes: usize,
    into: &mut Vec<u8>,
) {
    begin_request(PRODUCE, correlation_id, into);
    // No transactional id.
    into.push(0);
    put_i16(acks, into);
    put_i32(TIMEOUT_MS, into);
    put_count(1, into);
    put_compact_string(topic, into);
    put_count(1, into);
    put_i32(partition, into);
    put_count(batch_bytes, into);
    finish_request(into, batch_bytes + PRODUCE_TAIL.len());
}

/// Empty tagged fields of the partition, the topic and the request.
pub(super) const PRODUCE_TAIL: &[u8] = &[0; 3];

/// Result of one produced batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Produced {
    pub(super) partition: i32,
    pub(super) error: i16,
    pub(super) base_offset: i64,
}

/// Parses the response to a Produce request with one batch.
pub(super) fn parse_produced(response: &[u8]) -> Result<Produced, BenchError> {
    let mut reader = Reader(&response[4..]);
    reader.skip_tags()?;
    if reader.count()? != 1 {
        return Err(malformed("a response that does not cover exactly one topic"));
    }
    reader.compact_bytes()?;
    if reader.count()? != 1 {
        return Err(malformed("a response that does not cover exactly one partition"));
    }
    Ok(Produced { partition: reader.i32()?, error: reader.i16()?, base_offset: reader.i64()? })
}

/// Fetch position in one partition.
#[derive(Clone, Copy, Debug)]
pub(super) struct FetchPosition {
    pub(super) partition: i32,
    pub(super) offset: i64,
}

/// Limits of a Fetch request.
#[derive(Clone, Copy, Debug)]
pub(super) struct FetchLimits {
    pub(super) max_wait_ms: i32,
    pub(super) min_bytes: i32,
    pub(super) partition_bytes: i32,
}

/// Encodes a Fetch request without a session (KIP-227).
pub(super) fn put_fetch(
    correlation_id: i32,
    topic: &str,
    limits: FetchLimits,
    positions: impl ExactSizeIterator<Item = FetchPosition>,
    into: &mut Vec<u8>,
) {
    /// Kafka's default of `fetch.max.bytes`.
    const FETCH_BYTES_MAX: i32 = 50 << 20;
    begin_request(FETCH, correlation_id, into);
    put_i32(-1, into);
    put_i32(limits.max_wait_ms, into);
    put_i32(limits.min_bytes, into);
    put_i32(FETCH_BYTES_MAX, into);
    // Read uncommitted; no session.
    into.push(0);
    put_i32(0, into);
    put_i32(-1, into);
    put_count(1, into);
    put_compact_string(topic, into);
    put_count(positions.len(), into);
    for FetchPosition { partition, offset } in positions {
        put_i32(partition, into);
        put_i32(-1, into);
        put_i64(offset, into);
        put_i32(-1, into);
        put_i64(-1, into);
        put_i32(limits.partition_bytes, into);
        into.push(0);
    }
    // No topic tags, no forgotten topics, no rack id, no request tags.
    into.push(0);
    put_count(0, into);
    put_count(0, into);
    into.push(0);
    finish_request(into, 0);
}

/// Calls `take` with each partition of a Fetch response: partition, error code, records.
pub(super) fn parse_fetched(
    response: &[u8],
    mut take: impl FnMut(i32, i16, &[u8]) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    let mut reader = Reader(&response[4..]);
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

/// Correlation id of a response.
pub(super) fn correlation_id(response: &[u8]) -> Result<i32, BenchError> {
    if response.len() < FLEXIBLE_HEADER_BYTES {
        return Err(malformed("a response without a header"));
    }
    Reader(response).i32()
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

/// Appends a compact length (KIP-482): the length plus one, as an unsigned varint.
fn put_count(count: usize, into: &mut Vec<u8>) {
    let mut rest = count + 1;
    while rest > 0x7F {
        into.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    into.push(rest as u8);
}

/// Error for a malformed response.
pub(super) fn malformed(what: &str) -> BenchError {
    BenchError::Broken(format!("the broker sent {what}"))
}

/// Cursor over a response.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8], BenchError> {
        let (head, tail) = self.0.split_at_checked(count).ok_or_else(|| malformed("a truncated response"))?;
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

    /// A nullable string; null reads as empty.
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
        Err(malformed("an unterminated varint"))
    }

    /// A compact length (KIP-482); 0 if null.
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
    fn produce_request_length_includes_the_batch() {
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
    fn parses_a_produce_response() {
        let mut response = vec![0, 0, 0, 7, 0, 2, 2, b't', 2];
        put_i32(5, &mut response);
        put_i16(6, &mut response);
        put_i64(42, &mut response);
        let produced = Produced { partition: 5, error: 6, base_offset: 42 };
        assert_eq!(parse_produced(&response).unwrap(), produced);
        for cut in 4..response.len() {
            assert!(parse_produced(&response[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn parses_records_after_aborted_transactions_and_tags() {
        let mut response = vec![0, 0, 0, 7, 0];
        put_i32(0, &mut response);
        put_i16(0, &mut response);
        put_i32(0, &mut response);
        response.extend([2, 2, b't', 2]);
        put_i32(9, &mut response);
        put_i16(0, &mut response);
        response.extend([0; 24]);
        response.extend([2]);
        response.extend([0; 16]);
        // A tagged field of two bytes.
        response.extend([1, 4, 2, 0xAA, 0xBB]);
        put_i32(-1, &mut response);
        response.extend([4, 1, 2, 3, 0, 0, 0]);
        let mut seen = Vec::new();
        let take = |partition, error, records: &[u8]| {
            seen.push((partition, error, records.to_vec()));
            Ok(())
        };
        parse_fetched(&response, take).unwrap();
        assert_eq!(seen, [(9, 0, vec![1, 2, 3])]);
        for cut in 5..response.len() - 1 {
            assert!(parse_fetched(&response[..cut], |_, _, _| Ok(())).is_err(), "{cut}");
        }
    }
}
