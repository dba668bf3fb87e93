//! Produce load: sends the same batch repeatedly, with a window of requests in flight or on a schedule.
//!
//! Each partition belongs to one connection, so its batches arrive in due order. That lets the optional tail consumer
//! match batches to due times without reading their contents.

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use hdrhistogram::Histogram;

use super::event_loop::{EventLoop, Handler, Message, Outgoing};
use super::fetch::Reader;
use super::options::Acks;
use super::run::{Counters, Load, assigned_partitions};
use super::wire;
use crate::error::BenchError;
use crate::net::Clock;
use crate::schedule::{Cursor, Schedule};
use crate::tally::latencies;

/// When requests are sent.
#[derive(Debug)]
pub(super) enum Pace {
    /// Requests in flight per connection; with `acks=0`, requests queued for the socket.
    Window(u32),
    /// Requests per second over all connections, regardless of the broker.
    Rate(f64),
}

/// Batch and destination of Produce requests.
#[derive(Clone, Debug)]
pub(super) struct ProduceSpec<'a> {
    pub(super) topic: &'a str,
    pub(super) partitions: u32,
    pub(super) acks: Acks,
    pub(super) batch: Rc<[u8]>,
    pub(super) records: u32,
}

/// A request without a response.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    correlation_id: i32,
    due_ns: u64,
}

/// One producing connection.
#[derive(Debug, Default)]
struct Producer {
    partitions: Vec<u32>,
    sent: u64,
    in_flight: VecDeque<InFlight>,
    /// No request waits for the socket.
    is_drained: bool,
}

/// Consumes the produced batches and measures their end-to-end latency.
#[derive(Debug)]
struct TailConsumer {
    reader: Reader,
    /// Due times of batches not yet received, per partition.
    due_times: Vec<VecDeque<u64>>,
    records: u64,
    latency: Histogram<u64>,
}

/// Produce load and its counters.
#[derive(Debug)]
pub(super) struct Produce<'a> {
    spec: ProduceSpec<'a>,
    clock: Clock,
    pace: Pace,
    schedule: Option<(Schedule, Cursor)>,
    /// Connection numbers, as [`Cursor`] expects them.
    numbers: Vec<u32>,
    producers: Vec<Producer>,
    consumer: Option<TailConsumer>,
    /// Requests that may still be sent; 0 once stopped.
    remaining: u64,
    measured: Range<u64>,
    counters: Counters,
    /// Due time to response, of requests due in the measured part.
    pub(super) latency: Histogram<u64>,
    /// Due time to send, of requests due in the measured part.
    pub(super) lag: Histogram<u64>,
    /// Requests that failed with an error.
    pub(super) refused: u64,
    pub(super) first_refusal: Option<i16>,
}

impl<'a> Produce<'a> {
    /// Sends at most `remaining` requests.
    pub(super) fn new(
        spec: ProduceSpec<'a>,
        connections: u32,
        pace: Pace,
        remaining: u64,
        clock: Clock,
    ) -> Self {
        let producer = |number| Producer {
            partitions: assigned_partitions(number, connections, spec.partitions),
            is_drained: true,
            ..Producer::default()
        };
        Self {
            producers: (0..connections).map(producer).collect(),
            spec,
            clock,
            pace,
            schedule: None,
            numbers: (0..connections).collect(),
            consumer: None,
            remaining,
            measured: 0..0,
            counters: Counters::default(),
            latency: latencies(),
            lag: latencies(),
            refused: 0,
            first_refusal: None,
        }
    }

    /// Consumes the produced batches with `reader`, on one more connection, the last.
    pub(super) fn attach_consumer(&mut self, reader: Reader) {
        let due_times = vec![VecDeque::new(); self.spec.partitions as usize];
        self.consumer = Some(TailConsumer { reader, due_times, records: 0, latency: latencies() });
    }

    /// End-to-end latency, received records and gaps over the whole run; `None` without a consumer.
    pub(super) fn consumed(&self) -> Option<(&Histogram<u64>, u64, u64)> {
        let consumer = self.consumer.as_ref()?;
        Some((&consumer.latency, consumer.records, consumer.reader.gaps))
    }

    /// Number of requests sent.
    pub(super) fn sent(&self) -> u64 {
        self.producers.iter().map(|producer| producer.sent).sum()
    }

    /// Number of requests without a response.
    pub(super) fn unanswered(&self) -> u64 {
        self.producers.iter().map(|producer| producer.in_flight.len() as u64).sum()
    }

    /// Queues the next request of a connection.
    fn push_request(&mut self, conn: usize, due_ns: u64, out: &mut Outgoing) {
        let Some(remaining) = self.remaining.checked_sub(1) else { return };
        self.remaining = remaining;
        let ProduceSpec { topic, acks, batch, .. } = &self.spec;
        let producer = &mut self.producers[conn];
        let partition = producer.partitions[producer.sent as usize % producer.partitions.len()];
        let correlation_id = producer.sent as i32;
        producer.sent += 1;
        producer.is_drained = false;
        let mut head = Vec::with_capacity(96);
        wire::put_produce(
            correlation_id,
            topic,
            *acks as i16,
            partition.cast_signed(),
            batch.len(),
            &mut head,
        );
        out.push(Message { head, body: Some((Rc::clone(batch), wire::PRODUCE_TAIL)) });
        if *acks != Acks::None {
            producer.in_flight.push_back(InFlight { correlation_id, due_ns });
        }
        if let Some(consumer) = &mut self.consumer {
            consumer.due_times[partition as usize].push_back(due_ns);
        }
    }

    fn handle_produce_response(
        &mut self,
        conn: usize,
        response: &[u8],
        now_ns: u64,
    ) -> Result<(), BenchError> {
        let in_flight = self.producers[conn].in_flight.pop_front();
        let correlation_id = wire::correlation_id(response)?;
        let Some(request) = in_flight.filter(|request| request.correlation_id == correlation_id) else {
            return Err(wire::malformed("a response to another request"));
        };
        let produced = wire::parse_produced(response)?;
        if produced.error != 0 {
            self.refused += 1;
            self.first_refusal.get_or_insert(produced.error);
            return match self.consumer {
                None => Ok(()),
                // The consumer can no longer match batches to due times.
                Some(_) => Err(BenchError::Broken(format!("Produce was refused: error {}", produced.error))),
            };
        }
        self.counters.requests += 1;
        self.counters.records += u64::from(self.spec.records);
        self.counters.bytes += self.spec.batch.len() as u64;
        if self.measured.contains(&request.due_ns) {
            self.latency.saturating_record(now_ns.saturating_sub(request.due_ns));
        }
        Ok(())
    }
}

impl Handler for Produce<'_> {
    fn handle_response(
        &mut self,
        conn: usize,
        response: &[u8],
        now_ns: u64,
        out: &mut Outgoing,
    ) -> Result<(), BenchError> {
        if conn < self.producers.len() {
            self.handle_produce_response(conn, response, now_ns)?;
            if self.schedule.is_none() {
                self.push_request(conn, now_ns, out);
            }
            return Ok(());
        }
        let Some(consumer) = &mut self.consumer else {
            return Err(wire::malformed("an unexpected response"));
        };
        consumer.handle_response(response, now_ns, &self.measured)?;
        consumer.reader.request(out);
        Ok(())
    }

    fn drained(&mut self, conn: usize, out: &mut Outgoing) {
        let Some(producer) = self.producers.get_mut(conn) else { return };
        producer.is_drained = true;
        if let (Pace::Window(window), Acks::None) = (&self.pace, self.spec.acks) {
            let now_ns = self.clock.now_ns();
            for _ in 0..*window {
                self.push_request(conn, now_ns, out);
            }
        }
    }
}

impl TailConsumer {
    fn handle_response(
        &mut self,
        response: &[u8],
        now_ns: u64,
        measured: &Range<u64>,
    ) -> Result<(), BenchError> {
        let Self { reader, due_times, records, latency } = self;
        reader.handle_response(response, |partition, header| {
            *records += u64::from(header.records);
            // One connection produces to a partition, so its batches arrive in due order.
            if let Some(due_ns) = due_times[partition as usize].pop_front()
                && measured.contains(&due_ns)
            {
                latency.saturating_record(now_ns.saturating_sub(due_ns));
            }
        })
    }
}

impl Load for Produce<'_> {
    fn begin(
        &mut self,
        event_loop: &mut EventLoop,
        start_ns: u64,
        measured: Range<u64>,
    ) -> Result<(), BenchError> {
        self.measured = measured;
        if self.consumer.is_some() {
            let request = |load: &mut Self, out: &mut Outgoing| {
                if let Some(consumer) = &mut load.consumer {
                    consumer.reader.request(out);
                }
            };
            event_loop.send(self.producers.len(), self, request)?;
        }
        match self.pace {
            Pace::Rate(rate) => {
                let schedule = Schedule::new(start_ns, rate, self.producers.len() as u32);
                self.schedule = Some((schedule, Cursor::default()));
            }
            Pace::Window(window) => {
                for conn in 0..self.producers.len() {
                    event_loop.send(conn, self, |load, out| {
                        for _ in 0..window {
                            load.push_request(conn, start_ns, out);
                        }
                    })?;
                }
            }
        }
        Ok(())
    }

    fn send_due(&mut self, event_loop: &mut EventLoop, now_ns: u64) -> Result<Option<u64>, BenchError> {
        while self.remaining > 0
            && let Some((schedule, cursor)) = &mut self.schedule
            && let Some((due_ns, conn)) = cursor.peek(schedule, &self.numbers)
        {
            if due_ns > now_ns {
                return Ok(Some(due_ns));
            }
            cursor.advance(&self.numbers);
            if self.measured.contains(&due_ns) {
                self.lag.saturating_record(now_ns - due_ns);
            }
            event_loop.send(conn, self, |load, out| load.push_request(conn, due_ns, out))?;
        }
        Ok(None)
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn stop(&mut self) {
        self.remaining = 0;
    }

    fn is_settled(&self) -> bool {
        let all_received = |consumer: &TailConsumer| consumer.due_times.iter().all(VecDeque::is_empty);
        self.remaining == 0
            && self.producers.iter().all(|producer| producer.is_drained && producer.in_flight.is_empty())
            && self.consumer.as_ref().is_none_or(all_received)
    }
}
