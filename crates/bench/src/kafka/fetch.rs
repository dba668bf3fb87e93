//! Fetching: what a topic has, as fast as it comes; or waiting at its end.

use std::ops::Range;

use mainstem_log::BatchHeader;

use super::batch;
use super::links::{Handler, Links, Message, Outgoing};
use super::run::{Counters, Load};
use super::wire::{self, Patience, Wanted};
use crate::error::BenchError;

/// How far one partition has been read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Position {
    pub(super) partition: u32,
    /// Where reading begins, and begins again.
    pub(super) begin: u64,
    /// Where it does so; `None` to wait there for more.
    pub(super) end: Option<u64>,
    next: u64,
}

impl Position {
    pub(super) fn new(partition: u32, begin: u64, end: Option<u64>) -> Self {
        Self { partition, begin, end, next: begin }
    }

    /// Moves over a batch. Whether it is not the one that should come.
    fn advance(&mut self, header: &BatchHeader) -> bool {
        let is_gap = header.base_offset > self.next || header.end_offset() <= self.next;
        self.next = header.end_offset();
        is_gap
    }
}

/// One connection that reads, with one request at a time, as clients do.
#[derive(Debug)]
pub(super) struct Reader {
    topic: String,
    patience: Patience,
    /// By partition.
    positions: Vec<Position>,
    correlation_id: i32,
    /// Batches that did not follow the one before.
    pub(super) gaps: u64,
}

impl Reader {
    pub(super) fn new(topic: &str, patience: Patience, positions: Vec<Position>) -> Self {
        debug_assert!(positions.is_sorted_by_key(|position| position.partition));
        Self { topic: topic.to_owned(), patience, positions, correlation_id: 0, gaps: 0 }
    }

    /// Asks for what comes next.
    pub(super) fn request(&mut self, out: &mut Outgoing) {
        self.correlation_id = self.correlation_id.wrapping_add(1);
        let wanted = self.positions.iter().map(|position| Wanted {
            partition: position.partition.cast_signed(),
            offset: position.next.cast_signed(),
        });
        let mut head = Vec::with_capacity(96 + 33 * self.positions.len());
        wire::put_fetch(self.correlation_id, &self.topic, self.patience, wanted, &mut head);
        out.push(Message { head, body: None });
    }

    /// Takes the answer; `each` gets the header of each batch.
    ///
    /// # Errors
    /// If the broker refused, or the answer is none.
    pub(super) fn take(
        &mut self,
        answer: &[u8],
        mut each: impl FnMut(u32, &BatchHeader),
    ) -> Result<(), BenchError> {
        if wire::correlation_id(answer)? != self.correlation_id {
            return Err(wire::odd("an answer to another request"));
        }
        let Self { positions, gaps, .. } = self;
        wire::parse_fetched(answer, |partition, error, records| {
            let found = positions.binary_search_by_key(&partition, |at| at.partition.cast_signed());
            let position = found.map_err(|_| wire::odd("records of a partition that was not asked for"))?;
            let position = &mut positions[position];
            if error != 0 {
                return Err(BenchError::Broken(format!("Fetch of partition {partition}: error {error}")));
            }
            batch::each(records, |header| {
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

/// Connections that read, each its own partitions.
#[derive(Debug)]
pub(super) struct Fetch {
    readers: Vec<Reader>,
    /// Readers that have an answer to come.
    asking: usize,
    is_stopped: bool,
    counters: Counters,
}

impl Fetch {
    pub(super) fn new(readers: Vec<Reader>) -> Self {
        Self { readers, asking: 0, is_stopped: false, counters: Counters::default() }
    }

    /// Batches that did not follow the one before.
    pub(super) fn gaps(&self) -> u64 {
        self.readers.iter().map(|reader| reader.gaps).sum()
    }
}

impl Handler for Fetch {
    fn answer(
        &mut self,
        link: usize,
        answer: &[u8],
        _now_ns: u64,
        out: &mut Outgoing,
    ) -> Result<(), BenchError> {
        let counters = &mut self.counters;
        counters.requests += 1;
        self.readers[link].take(answer, |_, header| {
            counters.records += u64::from(header.records);
            counters.bytes += header.total_bytes as u64;
        })?;
        if self.is_stopped {
            self.asking -= 1;
        } else {
            self.readers[link].request(out);
        }
        Ok(())
    }

    fn drained(&mut self, _link: usize, _out: &mut Outgoing) {}
}

impl Load for Fetch {
    fn begin(&mut self, links: &mut Links, _start_ns: u64, _measured: Range<u64>) -> Result<(), BenchError> {
        self.asking = self.readers.len();
        for link in 0..self.asking {
            links.send(link, self, |load, out| load.readers[link].request(out))?;
        }
        Ok(())
    }

    fn send_due(&mut self, _links: &mut Links, _now_ns: u64) -> Result<Option<u64>, BenchError> {
        Ok(None)
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn stop(&mut self) {
        self.is_stopped = true;
    }

    fn is_settled(&self) -> bool {
        self.asking == 0
    }
}

#[cfg(test)]
mod tests {
    use mainstem_log::{Batch, Compression};

    use super::super::options::Shape;
    use super::*;

    /// The answer to request `correlation_id` with these batches of ten records in partition 3.
    fn answer(correlation_id: i32, offsets: &[u64]) -> Vec<u8> {
        let shape = Shape { records: 10, record_bytes: 5, compression: Compression::None };
        let batch = batch::make(shape).unwrap();
        let mut records = Vec::new();
        for offset in offsets {
            let mut copy = batch.to_vec();
            Batch::place(&mut copy, *offset, 0);
            records.extend(copy);
        }
        let mut answer = correlation_id.to_be_bytes().to_vec();
        answer.extend([0; 11]);
        answer.extend([2, 2, b't', 2, 0, 0, 0, 3]);
        answer.extend([0; 26]);
        answer.extend([0; 5]);
        let mut length = records.len() + 1;
        while length > 0x7F {
            answer.push(length as u8 | 0x80);
            length >>= 7;
        }
        answer.push(length as u8);
        answer.extend(records);
        answer.extend([0; 3]);
        answer
    }

    fn reader(end: Option<u64>) -> Reader {
        let patience = Patience { max_wait_ms: 0, min_bytes: 1, partition_bytes: 1 };
        Reader::new("t", patience, vec![Position::new(3, 0, end)])
    }

    #[test]
    fn offsets_must_follow_each_other() {
        let mut reader = reader(None);
        let mut records = 0;
        let mut take = |reader: &mut Reader, offsets: &[u64]| {
            reader.request(&mut Outgoing::default());
            reader.take(&answer(reader.correlation_id, offsets), |_, header| records += header.records)
        };
        take(&mut reader, &[0, 10]).unwrap();
        assert_eq!(reader.gaps, 0);
        take(&mut reader, &[30]).unwrap();
        assert_eq!(reader.gaps, 1);
        take(&mut reader, &[30]).unwrap();
        assert_eq!((reader.gaps, records), (2, 40));
        reader.request(&mut Outgoing::default());
        assert!(reader.take(&answer(1, &[40]), |_, _| {}).is_err(), "an answer to another request");
    }

    #[test]
    fn a_drain_begins_again_at_the_end() {
        let mut reader = reader(Some(20));
        for _ in 0..3 {
            reader.request(&mut Outgoing::default());
            reader.take(&answer(reader.correlation_id, &[0, 10]), |_, _| {}).unwrap();
        }
        assert_eq!(reader.gaps, 0);
    }
}
