//! Blocking requests before and after a run: create the topic, wait for leaders, list offsets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::wire::{
    self, API_VERSIONS, CREATE_TOPICS, LIST_OFFSETS, METADATA, Reader, put_i16, put_i32, put_i64, put_string,
};
use crate::error::BenchError;
use crate::net::io_error_text;

/// Timeout of a response, and for a new topic to become ready.
const WAIT_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(5);
/// Maximum response size; fits the metadata of many partitions.
const RESPONSE_BYTES_MAX: usize = 16 << 20;
const TOPIC_ALREADY_EXISTS: i16 = 36;

/// Offset that [`Control::offsets`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i64)]
pub(super) enum Bound {
    /// First record of the log.
    Start = -2,
    /// Next record to be appended.
    End = -1,
}

/// A blocking connection with one request at a time.
#[derive(Debug)]
pub(super) struct Control {
    stream: TcpStream,
    correlation_id: i32,
    request: Vec<u8>,
}

impl Control {
    /// Connects and sends ``ApiVersions``, as every client does first; the response is ignored.
    ///
    /// # Errors
    /// If the broker cannot be reached or does not respond.
    pub(super) fn open(broker: SocketAddr) -> Result<Self, BenchError> {
        let failed =
            |error| BenchError::Open(format!("cannot connect to {broker}: {}", io_error_text(&error)));
        let stream = TcpStream::connect(broker).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_read_timeout(Some(WAIT_MAX)).map_err(failed)?;
        let mut control = Self { stream, correlation_id: 0, request: Vec::new() };
        control.call(API_VERSIONS, |_| {})?;
        Ok(control)
    }

    pub(super) fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Sends a request and returns the response without its header.
    fn call(&mut self, api: (i16, i16), body: impl FnOnce(&mut Vec<u8>)) -> Result<Vec<u8>, BenchError> {
        self.correlation_id += 1;
        wire::begin_request(api, self.correlation_id, &mut self.request);
        body(&mut self.request);
        wire::finish_request(&mut self.request, 0);
        let failed =
            |error| BenchError::Broken(format!("request of API {}: {}", api.0, io_error_text(&error)));
        self.stream.write_all(&self.request).map_err(failed)?;
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).map_err(failed)?;
        let length = u32::from_be_bytes(length) as usize;
        if !(4..=RESPONSE_BYTES_MAX).contains(&length) {
            return Err(wire::malformed("a response of an impossible length"));
        }
        let mut response = vec![0; length];
        self.stream.read_exact(&mut response).map_err(failed)?;
        if Reader(&response).i32()? != self.correlation_id {
            return Err(wire::malformed("a response to another request"));
        }
        Ok(response.split_off(4))
    }

    /// Creates a topic unless it exists, and waits until all its partitions are usable. Returns their number.
    ///
    /// # Errors
    /// If the broker refuses, or the partitions are not usable within 30 seconds.
    pub(super) fn ensure_topic(&mut self, name: &str, partitions: u32) -> Result<u32, BenchError> {
        let response = self.call(CREATE_TOPICS, |body| {
            put_i32(1, body);
            put_string(name, body);
            put_i32(partitions.cast_signed(), body);
            put_i16(1, body);
            // No assignments, no configuration.
            put_i32(0, body);
            put_i32(0, body);
            put_i32(wire::TIMEOUT_MS, body);
            body.push(0);
        })?;
        let mut reader = Reader(&response);
        // Throttle time, one topic, its name.
        reader.bytes(8)?;
        reader.string()?;
        let error = reader.i16()?;
        if error != 0 && error != TOPIC_ALREADY_EXISTS {
            return Err(BenchError::Open(format!("cannot create topic {name}: error {error}")));
        }
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            if let Some(count) = self.partitions(name)?
                && self.offsets(name, count, Bound::End)?.is_some()
            {
                return Ok(count);
            }
            if Instant::now() > deadline {
                return Err(BenchError::Open(format!("topic {name} is not usable after {WAIT_MAX:?}")));
            }
            thread::sleep(POLL);
        }
    }

    /// Number of partitions of a topic; `None` if one has no leader.
    fn partitions(&mut self, topic: &str) -> Result<Option<u32>, BenchError> {
        let response = self.call(METADATA, |body| {
            put_i32(1, body);
            put_string(topic, body);
        })?;
        let mut reader = Reader(&response);
        for _ in 0..reader.i32()? {
            reader.i32()?;
            reader.string()?;
            reader.i32()?;
            reader.string()?;
        }
        // The controller, one topic.
        reader.bytes(8)?;
        let error = reader.i16()?;
        reader.string()?;
        reader.bytes(1)?;
        let partitions = reader.i32()?;
        let mut all_have_leaders = error == 0 && partitions > 0;
        for _ in 0..partitions {
            let (error, _, leader) = (reader.i16()?, reader.i32()?, reader.i32()?);
            all_have_leaders &= error == 0 && leader >= 0;
            for _ in 0..2 {
                let replicas = reader.i32()?;
                reader.bytes(4 * usize::try_from(replicas).unwrap_or(0))?;
            }
        }
        Ok(all_have_leaders.then_some(partitions.cast_unsigned()))
    }

    /// Start or end offset of each partition; `None` if the broker does not know one of them yet.
    ///
    /// # Errors
    /// If the broker does not respond, or responds for other partitions.
    pub(super) fn offsets(
        &mut self,
        topic: &str,
        partitions: u32,
        bound: Bound,
    ) -> Result<Option<Vec<i64>>, BenchError> {
        let response = self.call(LIST_OFFSETS, |body| {
            put_i32(-1, body);
            put_i32(1, body);
            put_string(topic, body);
            put_i32(partitions.cast_signed(), body);
            for partition in 0..partitions {
                put_i32(partition.cast_signed(), body);
                put_i64(bound as i64, body);
            }
        })?;
        let mut reader = Reader(&response);
        reader.i32()?;
        reader.string()?;
        let count = reader.i32()?;
        let mut offsets = vec![-1; partitions as usize];
        for _ in 0..count {
            let (partition, error, _, offset) = (reader.i32()?, reader.i16()?, reader.i64()?, reader.i64()?);
            let slot = usize::try_from(partition).ok().and_then(|partition| offsets.get_mut(partition));
            let slot =
                slot.ok_or_else(|| wire::malformed("offsets of a partition that was not asked for"))?;
            *slot = if error == 0 { offset } else { -1 };
        }
        Ok(offsets.iter().all(|offset| *offset >= 0).then_some(offsets))
    }
}
