//! What is asked before and after a run: topics made, leaders waited for, offsets compared.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::wire::{
    self, API_VERSIONS, CREATE_TOPICS, LIST_OFFSETS, METADATA, Reader, put_i16, put_i32, put_i64, put_string,
};
use crate::error::BenchError;
use crate::net::lower;

/// Longest wait for an answer, and for a new topic to be ready.
const WAIT_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(5);
/// The largest answer that makes sense: metadata of many partitions.
const ANSWER_BYTES_MAX: usize = 16 << 20;
const TOPIC_ALREADY_EXISTS: i16 = 36;

/// The offset that [`Control::offsets`] finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i64)]
pub(super) enum Bound {
    /// That of the first record there is.
    Start = -2,
    /// That of the next record there will be.
    End = -1,
}

/// A connection with one request at a time.
#[derive(Debug)]
pub(super) struct Control {
    stream: TcpStream,
    correlation_id: i32,
    request: Vec<u8>,
}

impl Control {
    /// Connects, and asks for the versions of all APIs, as every client does first. The answer is not looked at.
    ///
    /// # Errors
    /// If the broker cannot be reached or does not answer.
    pub(super) fn open(broker: SocketAddr) -> Result<Self, BenchError> {
        let failed = |error| BenchError::Open(format!("cannot connect to {broker}: {}", lower(&error)));
        let stream = TcpStream::connect(broker).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_read_timeout(Some(WAIT_MAX)).map_err(failed)?;
        let mut control = Self { stream, correlation_id: 0, request: Vec::new() };
        control.call(API_VERSIONS, |_| {})?;
        Ok(control)
    }

    /// The bare connection.
    pub(super) fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Sends a request and waits for its answer, which is returned without its header.
    fn call(&mut self, api: (i16, i16), body: impl FnOnce(&mut Vec<u8>)) -> Result<Vec<u8>, BenchError> {
        self.correlation_id += 1;
        wire::begin(api, self.correlation_id, &mut self.request);
        body(&mut self.request);
        wire::seal(&mut self.request, 0);
        let failed = |error| BenchError::Broken(format!("request of API {}: {}", api.0, lower(&error)));
        self.stream.write_all(&self.request).map_err(failed)?;
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).map_err(failed)?;
        let length = u32::from_be_bytes(length) as usize;
        if !(4..=ANSWER_BYTES_MAX).contains(&length) {
            return Err(wire::odd("an answer of an impossible length"));
        }
        let mut answer = vec![0; length];
        self.stream.read_exact(&mut answer).map_err(failed)?;
        if Reader(&answer).i32()? != self.correlation_id {
            return Err(wire::odd("an answer to another request"));
        }
        Ok(answer.split_off(4))
    }

    /// Makes a topic if it is not there, and waits until all its partitions can be used. How many there are.
    ///
    /// # Errors
    /// If the broker refuses, or they cannot be used in half a minute.
    pub(super) fn topic(&mut self, name: &str, partitions: u32) -> Result<u32, BenchError> {
        let answer = self.call(CREATE_TOPICS, |body| {
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
        let mut reader = Reader(&answer);
        // Throttle time, one topic, its name.
        reader.bytes(8)?;
        reader.string()?;
        let error = reader.i16()?;
        if error != 0 && error != TOPIC_ALREADY_EXISTS {
            return Err(BenchError::Open(format!("the broker does not make topic {name}: error {error}")));
        }
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            if let Some(count) = self.partitions(name)?
                && self.offsets(name, count, Bound::End)?.is_some()
            {
                return Ok(count);
            }
            if Instant::now() > deadline {
                return Err(BenchError::Open(format!("topic {name} cannot be used after {WAIT_MAX:?}")));
            }
            thread::sleep(POLL);
        }
    }

    /// How many partitions a topic has; `None` if not all of them have a leader.
    fn partitions(&mut self, topic: &str) -> Result<Option<u32>, BenchError> {
        let answer = self.call(METADATA, |body| {
            put_i32(1, body);
            put_string(topic, body);
        })?;
        let mut reader = Reader(&answer);
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
        let mut are_led = error == 0 && partitions > 0;
        for _ in 0..partitions {
            let (error, _, leader) = (reader.i16()?, reader.i32()?, reader.i32()?);
            are_led &= error == 0 && leader >= 0;
            for _ in 0..2 {
                let replicas = reader.i32()?;
                reader.bytes(4 * usize::try_from(replicas).unwrap_or(0))?;
            }
        }
        Ok(are_led.then_some(partitions.cast_unsigned()))
    }

    /// The first or the next offset of each partition; `None` if the broker has no answer for one of them yet.
    ///
    /// # Errors
    /// If the broker does not answer, or not about these partitions.
    pub(super) fn offsets(
        &mut self,
        topic: &str,
        partitions: u32,
        bound: Bound,
    ) -> Result<Option<Vec<i64>>, BenchError> {
        let answer = self.call(LIST_OFFSETS, |body| {
            put_i32(-1, body);
            put_i32(1, body);
            put_string(topic, body);
            put_i32(partitions.cast_signed(), body);
            for partition in 0..partitions {
                put_i32(partition.cast_signed(), body);
                put_i64(bound as i64, body);
            }
        })?;
        let mut reader = Reader(&answer);
        reader.i32()?;
        reader.string()?;
        let count = reader.i32()?;
        let mut offsets = vec![-1; partitions as usize];
        for _ in 0..count {
            let (partition, error, _, offset) = (reader.i32()?, reader.i16()?, reader.i64()?, reader.i64()?);
            let slot = usize::try_from(partition).ok().and_then(|partition| offsets.get_mut(partition));
            let slot = slot.ok_or_else(|| wire::odd("offsets of a partition that was not asked for"))?;
            *slot = if error == 0 { offset } else { -1 };
        }
        Ok(offsets.iter().all(|offset| *offset >= 0).then_some(offsets))
    }
}
