//! Attacks over the Kafka protocol: many partitions, unfinished and malformed frames, request loops, bombs.

use super::super::attacker::{Attacker, Link};
use mainstem_compress::batch::recompress;
use mainstem_log::{Batch, BatchBuilder, Compression};
use std::io;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// API key and version; none of the versions is flexible.
const PRODUCE: (i16, i16) = (0, 7);
const FETCH: (i16, i16) = (1, 4);
const METADATA: (i16, i16) = (3, 1);
const OFFSET_COMMIT: (i16, i16) = (8, 2);
const DESCRIBE_GROUPS: (i16, i16) = (15, 0);
const API_VERSIONS: (i16, i16) = (18, 0);
const CREATE_TOPICS: (i16, i16) = (19, 4);
const DELETE_TOPICS: (i16, i16) = (20, 3);
const ADD_PARTITIONS_TO_TXN: (i16, i16) = (24, 0);
const OFFSET_DELETE: (i16, i16) = (47, 0);

const TIMEOUT_MS: i32 = 30_000;
/// Partitions that a Produce request opens.
const FRESH_PARTITIONS: i32 = 8_000;
/// Partitions of a Fetch request.
const WIDE_PARTITIONS: i32 = 4_000;
/// Topics that are created and deleted, or listed.
const TOPICS: usize = 1_000;
/// Names or partitions in a request of megabytes, none of which exists.
const MANY: i32 = 500_000;
/// Requests per connection of the request loops.
const LOOP_REQUESTS: usize = 2_000;
/// Requests of the same kind that are in flight.
const PIPELINED: usize = 5;
/// Size of an unfinished request: 40 MB.
const UNFINISHED_BYTES: usize = 40_000_000;
/// Decompressed size of a bomb: below the broker's limit of 256 MiB.
const BOMB_BYTES: usize = 200 << 20;
const TICK: Duration = Duration::from_millis(200);

/// A request before its length is known.
struct Frame(Vec<u8>);

impl Frame {
    fn new(api: (i16, i16)) -> Self {
        Self(vec![0; 4]).i16(api.0).i16(api.1).i32(1).string("bystander")
    }

    fn byte(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    fn i16(mut self, value: i16) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn i32(mut self, value: i32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn i64(mut self, value: i64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    /// Number of elements of an array, or of bytes.
    fn count(self, count: usize) -> Self {
        self.i32(i32::try_from(count).expect("far below the largest number"))
    }

    fn string(self, text: &str) -> Self {
        let mut this = self.i16(i16::try_from(text.len()).expect("a short string"));
        this.0.extend(text.as_bytes());
        this
    }

    fn bytes(self, bytes: &[u8]) -> Self {
        let mut this = self.count(bytes.len());
        this.0.extend(bytes);
        this
    }

    fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len() - 4).expect("far below 4 GiB");
        self.0[..4].copy_from_slice(&length.to_be_bytes());
        self.0
    }
}

/// Sends a request and reads its response.
fn call(link: &mut Link<'_>, request: &[u8]) -> io::Result<()> {
    link.send_unread(request)?;
    read_response(link)
}

fn read_response(link: &mut Link<'_>) -> io::Result<()> {
    let length = link.read_exact(4)?;
    let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]);
    link.read_exact(length as usize).map(drop)
}

/// Sends a request again and again, with some in flight.
fn repeat(link: &mut Link<'_>, request: &[u8]) -> io::Result<()> {
    for _ in 0..PIPELINED {
        link.send_unread(request)?;
    }
    for _ in 0..LOOP_REQUESTS {
        read_response(link)?;
        link.send_unread(request)?;
    }
    Ok(())
}

fn create_topics(names: &[String], partitions: i32, config: &[(&str, &str)]) -> Vec<u8> {
    let mut frame = Frame::new(CREATE_TOPICS).count(names.len());
    for name in names {
        frame = frame.string(name).i32(partitions).i16(1).count(0).count(config.len());
        frame = config.iter().fold(frame, |frame, (key, value)| frame.string(key).string(value));
    }
    frame.i32(TIMEOUT_MS).byte(0).finish()
}

fn delete_topics(names: &[String]) -> Vec<u8> {
    let frame = Frame::new(DELETE_TOPICS).count(names.len());
    names.iter().fold(frame, |frame, name| frame.string(name)).i32(TIMEOUT_MS).finish()
}

/// A Produce request with `batch` for each of the first `partitions` partitions of the topics.
fn produce(topics: &[String], partitions: i32, batch: &[u8]) -> Vec<u8> {
    let mut frame = Frame::new(PRODUCE).i16(-1).i16(-1).i32(TIMEOUT_MS).count(topics.len());
    for topic in topics {
        frame = frame.string(topic).i32(partitions);
        frame = (0..partitions).fold(frame, |frame, partition| frame.i32(partition).bytes(batch));
    }
    frame.finish()
}

/// A batch with one record.
fn batch(value: &[u8]) -> Vec<u8> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut builder = BatchBuilder::default();
    builder.push(i64::try_from(since.as_millis()).unwrap_or_default(), Some(b"key"), Some(value));
    builder.finish().to_vec()
}

/// Produces a record to each of 8,000 partitions that were never written to, then deletes them.
pub(in super::super) fn fresh_partitions(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let topic = [attacker.unique("fresh")];
    let mut link = attacker.open()?;
    call(&mut link, &create_topics(&topic, FRESH_PARTITIONS, &[]))?;
    call(&mut link, &produce(&topic, FRESH_PARTITIONS, &batch(b"x")))?;
    call(&mut link, &delete_topics(&topic))
}

/// Creates 1,000 topics, writes to each, and deletes them with one request.
pub(in super::super) fn topic_deletion(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let name = attacker.unique("deleted");
    let topics: Vec<String> = (0..TOPICS).map(|number| format!("{name}-{number}")).collect();
    let mut link = attacker.open()?;
    call(&mut link, &create_topics(&topics, 1, &[]))?;
    call(&mut link, &produce(&topics, 1, &batch(b"x")))?;
    call(&mut link, &delete_topics(&topics))
}

/// 20 requests of 40 MB, each complete but for its last byte.
pub(in super::super) fn unfinished_requests(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let mut links = Vec::new();
    for _ in 0..20 {
        links.push(attacker.open()?);
    }
    let mut request = Frame::new(PRODUCE).i16(-1).i16(-1).i32(TIMEOUT_MS).0;
    request[..4].copy_from_slice(&u32::try_from(UNFINISHED_BYTES - 4).expect("40 MB").to_be_bytes());
    request.resize(UNFINISHED_BYTES - 1, 0);
    // In parts, so that all are unfinished at the same time.
    for part in request.chunks(1 << 20) {
        for link in &mut links {
            // A broker that holds back the input of one connection must not keep the others from being attacked.
            link.send_some(part, TICK)?;
        }
    }
    attacker.pause(Duration::from_secs(5));
    Ok(())
}

/// Frames of random bytes.
pub(in super::super) fn garbage_frames(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let mut state = attacker.round.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        // xorshift64
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut link = attacker.open()?;
    for _ in 0..100 {
        let body: Vec<u8> = (0..64).flat_map(|_| next().to_be_bytes()).collect();
        // A known API in a served version, then garbage.
        let frame = Frame::new((i16::try_from(next() % 60).unwrap_or(0), 4));
        link.send(&Frame([frame.0, body].concat()).finish())?;
    }
    link.await_close(TICK);
    Ok(())
}

/// Frames with negative and absurd lengths.
pub(in super::super) fn frame_lengths(attacker: &mut Attacker<'_>) -> io::Result<()> {
    for length in [-1, i32::MIN, i32::MAX, 0, 1 << 30] {
        let mut link = attacker.open()?;
        link.send(&length.to_be_bytes())?;
        link.send(&[0xFF; 1024])?;
        link.await_close(TICK);
    }
    Ok(())
}

/// `ApiVersions` without end.
pub(in super::super) fn api_versions(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let mut link = attacker.open()?;
    repeat(&mut link, &Frame::new(API_VERSIONS).finish())
}

/// Metadata of all topics without end, with a thousand topics.
pub(in super::super) fn metadata(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let topics: Vec<String> = (0..TOPICS).map(|number| format!("metadata-{number}")).collect();
    let mut link = attacker.open()?;
    call(&mut link, &create_topics(&topics, 1, &[]))?;
    repeat(&mut link, &Frame::new(METADATA).i32(-1).finish())
}

/// Fetches from thousands of empty partitions without end.
pub(in super::super) fn wide_fetch(attacker: &mut Attacker<'_>) -> io::Result<()> {
    let topic = "wide".to_owned();
    let mut link = attacker.open()?;
    call(&mut link, &create_topics(std::slice::from_ref(&topic), WIDE_PARTITIONS, &[]))?;
    let frame = Frame::new(FETCH).i32(-1).i32(0).i32(0).i32(1 << 20).byte(0);
    let frame = frame.count(1).string(&topic).i32(WIDE_PARTITIONS);
    let fetch = (0..WIDE_PARTITIONS).fold(frame, |frame, partition| frame.i32(partition).i64(0).i32(1 << 20));
    repeat(&mut link, &fetch.finish())
}

/// A request of megabytes with many names.
fn names(frame: Frame) -> Frame {
    (0..MANY).fold(frame.i32(MANY), |frame, number| frame.string(&format!("name-{number}")))
}

/// A request of megabytes with many partitions of a topic; `partition` adds the fields of one besides its index.
fn partitions(frame: Frame, partition: impl Fn(Frame) -> Frame) -> Frame {
    let frame = frame.count(1).string("unknown").i32(MANY);
    (0..MANY).fold(frame, |frame, number| partition(frame.i32(number)))
}

/// Sends a large request without end, one at a time.
fn repeat_large(attacker: &Attacker<'_>, request: &[u8]) -> io::Result<()> {
    let mut link = attacker.open()?;
    for _ in 0..LOOP_REQUESTS {
        call(&mut link, request)?;
    }
    Ok(())
}

/// Metadata of half a million names.
pub(in super::super) fn many_names(attacker: &mut Attacker<'_>) -> io::Result<()> {
    static REQUEST: OnceLock<Vec<u8>> = OnceLock::new();
    repeat_large(attacker, REQUEST.get_or_init(|| names(Frame::new(METADATA)).finish()))
}

/// `DescribeGroups` of half a million groups.
pub(in super::super) fn many_groups(attacker: &mut Attacker<'_>) -> io::Result<()> {
    static REQUEST: OnceLock<Vec<u8>> = OnceLock::new();
    repeat_large(attacker, REQUEST.get_or_init(|| names(Frame::new(DESCRIBE_GROUPS)).finish()))
}

/// `DeleteTopics` of half a million topics.
pub(in super::super) fn many_deletions(attacker: &mut Attacker<'_>) -> io::Result<()> {
    static REQUEST: OnceLock<Vec<u8>> = OnceLock::new();
    repeat_large(attacker, REQUEST.get_or_init(|| names(Frame::new(DELETE_TOPICS)).i32(TIMEOUT_MS).finish()))
}

/// Produce to half a million partitions, without records.
pub(in super::super) fn many_partitions(attacker: &mut Attacker<'_>) -> io::Result<()> {
    static REQUEST: OnceLock<Vec<u8>> = OnceLock::new();
    let request = REQUEST.get_or_init(|| {
        let frame = Frame::new(PRODUCE).i16(-1).i16(-1).i32(TIMEOUT_MS);
        partitions(frame, |frame| frame.i32(-1)).finish()
    });
    repeat_large(attacker, request)
}

/// `OffsetCommit` of half a million partitions.
pub(in super::super) fn many_offsets(attacker: &mut Attacker<'_>) -> io::Result<()> {
    static REQUEST: OnceLock<Vec<u8>> = OnceLock::new();
    let request = REQUEST.get_or_init(|| {
        let frame = Frame::new(OFFSET_COMMIT).string("group").i32(-1).string("").i64(-1);
        partitions(frame, |frame| frame.i64(7).string("")).finish()
    });
    repeat_large(attacker, request)
}

/// `OffsetDelete` of half a million partitions.
pub(in super::super) fn many_offset_deletions(attacker: &mut Attacker<'_>) -> io::Result<()> {
    static REQUEST: OnceLock<Vec<u8>> = OnceLock::new();
    let request =
        REQUEST.get_or_init(|| partitions(Frame::new(OFFSET_DELETE).string("group"), |frame| frame).finish());
    repeat_large(attacker, request)
}

/// `AddPartitionsToTxn` with half a million partitions.
pub(in super::super) fn many_participants(attacker: &mut Attacker<'_>) -> io::Result<()> {
    static REQUEST: OnceLock<Vec<u8>> = OnceLock::new();
    let request = REQUEST.get_or_init(|| {
        let frame = Frame::new(ADD_PARTITIONS_TO_TXN).string("transaction").i64(1).i16(0);
        partitions(frame, |frame| frame).finish()
    });
    repeat_large(attacker, request)
}

/// Batches of a few kB that decompress to 200 MiB, with zstd, for a topic that is compacted.
pub(in super::super) fn zstd_bomb(attacker: &mut Attacker<'_>) -> io::Result<()> {
    static BOMB: OnceLock<Vec<u8>> = OnceLock::new();
    bomb(attacker, BOMB.get_or_init(|| compressed(Compression::Zstd)))
}

/// The same with lz4.
pub(in super::super) fn lz4_bomb(attacker: &mut Attacker<'_>) -> io::Result<()> {
    static BOMB: OnceLock<Vec<u8>> = OnceLock::new();
    bomb(attacker, BOMB.get_or_init(|| compressed(Compression::Lz4)))
}

fn compressed(compression: Compression) -> Vec<u8> {
    let plain = batch(&vec![0; BOMB_BYTES]);
    let plain = Batch::parse(&plain).expect("the batch was just built");
    recompress(&plain, compression, None, usize::MAX).expect("zeros can be compressed")
}

fn bomb(attacker: &Attacker<'_>, batch: &[u8]) -> io::Result<()> {
    let topic = ["bombs".to_owned()];
    let mut link = attacker.open()?;
    call(&mut link, &create_topics(&topic, 1, &[("cleanup.policy", "compact")]))?;
    let request = produce(&topic, 1, batch);
    for _ in 0..LOOP_REQUESTS {
        call(&mut link, &request)?;
    }
    Ok(())
}
