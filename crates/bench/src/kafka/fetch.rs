//! Fetch load: reads a topic repeatedly as fast as possible, or long-polls at its end.
//!
//! Every batch must start at the offset where the previous one of its partition ended; anything else counts as a gap.

use std::ops::Range;

use mainstem_log::BatchHeader;

use super::batch;
use super::event_loop::{EventLoop, Handler, Message, Outgoing};
use super::run::{Counters, Load};
use super::wire::{self, FetchLimits, FetchPosition};
use crate::error::BenchError;

/// Read position in one partition.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    pub(super) partition: u32,
    /// Start of every pass.
    pub(super) begin: u64,
    /// End of a pass; `None` to wait for more records.
    pub(super) end: Option<u64>,
    next: u64,
}

impl Position {
    pub(super) fn new(partition: u32, begin: u64, end: Option<u64>) -> Self {
        Self { partition, begin, end, next: begin }
    }

    /// Advances past a batch. Returns whether the batch was not the expected one.
    fn advance(&mut self, header: &BatchHeader) -> bool {
        let is_gap = header.base_offset > self.next || header.end_offset() <= self.next;
        self.next = header.end_offset();
        is_gap
    }
}

/// Consumer on one connection, with one request at a time, as clients do.
#[derive(Debug)]
pub(super) struct Reader {
    topic: String,
    limits: FetchLimits,
    /// Sorted by partition.
    positions: Vec<Position>,
    correlation_id: i32,
    /// Batches that did not start at the expected offset.
    pub(super) gaps: u64,
}

impl Reader {
    pub(super) fn new(topic: &str, limits: FetchLimits, positions: Vec<Position>) -> Self {
        debug_assert!(positions.is_sorted_by_key(|position| position.partition));
        Self { topic: topic.to_owned(), limits, positions, correlation_id: 0, gaps: 0 }
    }

    /// Sends the next Fetch request.
    pub(super) fn request(&mut self, out: &mut Outgoing) {
        self.correlation_id = self.correlation_id.wrapping_add(1);
        let positions = self.positions.iter().map(|position| FetchPosition {
            partition: position.partition.cast_signed(),
            offset: position.next.cast_signed(),
        });
        let mut head = Vec::with_capacity(96 + 33 * self.positions.len());
        wire::put_fetch(self.correlation_id, &self.topic, self.limits, positions, &mut head);
        out.push(Message { head, body: None });
    }

    /// Handles a response; calls `each` with the header of each batch.
    ///
    /// # Errors
    /// If the broker returned an error or a malformed response.
    pub(super) fn handle_response(
        &mut self,
        response: &[u8],
        mut each: impl FnMut(u32, &BatchHeader),
    ) -> Result<(), BenchError> {
        if wire::correlation_id(response)? != self.correlation_id {
            return Err(wire::malformed("a response to another request"));
        }
        let Self { positions, gaps, .. } = self;
        wire::parse_fetched(response, |partition, error, records| {
            let found = positions.binary_search_by_key(&partition, |at| at.partition.cast_signed());
            let position =
                found.map_err(|_| wire::malformed("records of a partition that was not asked for"))?;
            let position = &mut positions[position];
            if error != 0 {
                return Err(BenchError::Broken(format!("Fetch of partition {partition}: error {error}")));
            }
            batch::for_each_header(records, |header| {
                *gaps += u64::from(position.advance(header));
                each(position.partition, header);
            })?;
            if position.end.is_some_and(|end| position.next >= end) {
                position.next = position.begin;
            }
            Ok(())
        })
    }
}

/// The consumers, each with its own partitions.
#[derive(Debug)]
pub(super) struct Fetch {
    readers: Vec<Reader>,
    /// Requests without a response.
    outstanding: usize,
    is_stopped: bool,
    counters: Counters,
}

impl Fetch {
    pub(super) fn new(readers: Vec<Reader>) -> Self {
        Self { readers, outstanding: 0, is_stopped: false, counters: Counters::default() }
    }

    /// Batches that did not start at the expected offset.
    pub(super) fn gaps(&self) -> u64 {
        self.readers.iter().map(|reader| reader.gaps).sum()
    }
}

impl Handler for Fetch {
    fn handle_response(
        &mut self,
        conn: usize,
        response: &[u8],
        _now_ns: u64,
        out: &mut Outgoing,
    ) -> Result<(), BenchError> {
        let counters = &mut self.counters;
        counters.requests += 1;
        self.readers[conn].handle_response(response, |_, header| {
            counters.records += u64::from(header.records);
            counters.bytes += header.total_bytes as u64;
        })?;
        if self.is_stopped {
            self.outstanding -= 1;
        } else {
            self.readers[conn].request(out);
        }
        Ok(())
    }

    fn drained(&mut self, _link: usize, _out: &mut Outgoing) {}
}

impl Load for Fetch {
    fn begin(
        &mut self,
        event_loop: &mut EventLoop,
        _start_ns: u64,
        _measured: Range<u64>,
    ) -> Result<(), BenchError> {
        self.outstanding = self.readers.len();
        for conn in 0..self.outstanding {
            event_loop.send(conn, self, |load, out| load.readers[conn].request(out))?;
        }
        Ok(())
    }

    fn send_due(&mut self, _links: &mut EventLoop, _now_ns: u64) -> Result<Option<u64>, BenchError> {
        Ok(None)
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn stop(&mut self) {
        self.is_stopped = true;
    }

    fn is_settled(&self) -> bool {
        self.outstanding == 0
    }
}

#[cfg(test)]
mod tests {
    use mainstem_log::{Batch, Compression};

    use super::super::options::Shape;
    use super::*;

    /// Fetch response with one batch of ten records per offset, for partition 3.
    fn response(correlation_id: i32, offsets: &[u64]) -> Vec<u8> {
        let shape = Shape { records: 10, record_bytes: 5, compression: Compression::None };
        let batch = batch::build(shape).unwrap();
        let mut records = Vec::new();
        for offset in offsets {
            let mut copy = batch.to_vec();
            Batch::place(&mut copy, *offset, 0);
            records.extend(copy);
        }
        let mut response = correlation_id.to_be_bytes().to_vec();
        response.extend([0; 11]);
        response.extend([2, 2, b't', 2, 0, 0, 0, 3]);
        response.extend([0; 26]);
        response.extend([0; 5]);
        let mut length = records.len() + 1;
        while length > 0x7F {
            response.push(length as u8 | 0x80);
            length >>= 7;
        }
        response.push(length as u8);
        response.extend(records);
        response.extend([0; 3]);
        response
    }

    fn reader(end: Option<u64>) -> Reader {
        let limits = FetchLimits { max_wait_ms: 0, min_bytes: 1, partition_bytes: 1 };
        Reader::new("t", limits, vec![Position::new(3, 0, end)])
    }

    #[test]
    fn counts_gaps_between_offsets() {
        let mut reader = reader(None);
        let mut records = 0;
        let mut take = |reader: &mut Reader, offsets: &[u64]| {
            reader.request(&mut Outgoing::default());
            reader.handle_response(&response(reader.correlation_id, offsets), |_, header| {
                records += header.records;
            })
        };
        take(&mut reader, &[0, 10]).unwrap();
        assert_eq!(reader.gaps, 0);
        take(&mut reader, &[30]).unwrap();
        assert_eq!(reader.gaps, 1);
        take(&mut reader, &[30]).unwrap();
        assert_eq!((reader.gaps, records), (2, 40));
        reader.request(&mut Outgoing::default());
        assert!(
            reader.handle_response(&response(1, &[40]), |_, _| {}).is_err(),
            "a response to another request"
        );
    }

    #[test]
    fn restarts_at_the_end_of_a_pass() {
        let mut reader = reader(Some(20));
        for _ in 0..3 {
            reader.request(&mut Outgoing::default());
            reader.handle_response(&response(reader.correlation_id, &[0, 10]), |_, _| {}).unwrap();
        }
        assert_eq!(reader.gaps, 0);
    }
}
