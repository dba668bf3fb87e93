//! Producing: the same batch again and again, so many requests in flight or on schedule.

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use hdrhistogram::Histogram;

use super::fetch::Reader;
use super::links::{Handler, Links, Message, Outgoing};
use super::options::Acks;
use super::run::{Counters, Load, dealt};
use super::wire;
use crate::error::BenchError;
use crate::net::Clock;
use crate::schedule::{Cursor, Schedule};
use crate::tally::latencies;

/// What decides when a request is sent.
#[derive(Debug)]
pub(super) enum Pace {
    /// So many in flight on each connection; without answers, so many that wait for the socket.
    Window(u32),
    /// Requests per second over all connections, whatever the broker does.
    Rate(f64),
}

/// What is produced, and where.
#[derive(Clone, Debug)]
pub(super) struct Goods<'a> {
    pub(super) topic: &'a str,
    pub(super) partitions: u32,
    pub(super) acks: Acks,
    pub(super) batch: Rc<[u8]>,
    /// Records in the batch.
    pub(super) records: u32,
}

/// A request that has not been answered.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    correlation_id: i32,
    due_ns: u64,
}

/// One producing connection.
#[derive(Debug, Default)]
struct Producer {
    partitions: Vec<u32>,
    /// Requests sent.
    sent: u64,
    in_flight: VecDeque<InFlight>,
    /// Nothing waits for the socket.
    is_drained: bool,
}

/// Reads what is produced, and how late it comes.
#[derive(Debug)]
struct Follower {
    reader: Reader,
    /// For each partition, when the batches were due that have not come.
    dues: Vec<VecDeque<u64>>,
    records: u64,
    latency: Histogram<u64>,
}

/// The producers, and what they counted.
#[derive(Debug)]
pub(super) struct Produce<'a> {
    goods: Goods<'a>,
    clock: Clock,
    pace: Pace,
    schedule: Option<(Schedule, Cursor)>,
    /// All connections, as the schedule wants them.
    numbers: Vec<u32>,
    producers: Vec<Producer>,
    follower: Option<Follower>,
    /// Requests that may still be sent; none once it is stopped.
    left: u64,
    measured: Range<u64>,
    counters: Counters,
    /// From due to answered, of requests that were due in the measured part.
    pub(super) latency: Histogram<u64>,
    /// From due to sent, of the same.
    pub(super) lag: Histogram<u64>,
    /// Requests refused with an error.
    pub(super) refused: u64,
    pub(super) first_refusal: Option<i16>,
}

impl<'a> Produce<'a> {
    /// `left` is how many requests are sent at most.
    pub(super) fn new(goods: Goods<'a>, connections: u32, pace: Pace, left: u64, clock: Clock) -> Self {
        let producer = |number| Producer {
            partitions: dealt(number, connections, goods.partitions),
            is_drained: true,
            ..Producer::default()
        };
        Self {
            producers: (0..connections).map(producer).collect(),
            goods,
            clock,
            pace,
            schedule: None,
            numbers: (0..connections).collect(),
            follower: None,
            left,
            measured: 0..0,
            counters: Counters::default(),
            latency: latencies(),
            lag: latencies(),
            refused: 0,
            first_refusal: None,
        }
    }

    /// Lets `reader` read on one more connection, the last, what is produced from now on.
    pub(super) fn follow(&mut self, reader: Reader) {
        let dues = vec![VecDeque::new(); self.goods.partitions as usize];
        self.follower = Some(Follower { reader, dues, records: 0, latency: latencies() });
    }

    /// From due to received, and the records received over the whole run; if they are followed.
    pub(super) fn followed(&self) -> Option<(&Histogram<u64>, u64, u64)> {
        let follower = self.follower.as_ref()?;
        Some((&follower.latency, follower.records, follower.reader.gaps))
    }

    /// Requests sent so far.
    pub(super) fn sent(&self) -> u64 {
        self.producers.iter().map(|producer| producer.sent).sum()
    }

    /// Requests sent and not answered.
    pub(super) fn unanswered(&self) -> u64 {
        self.producers.iter().map(|producer| producer.in_flight.len() as u64).sum()
    }

    /// Puts the next request of a connection on its way.
    fn put(&mut self, link: usize, due_ns: u64, out: &mut Outgoing) {
        let Some(left) = self.left.checked_sub(1) else { return };
        self.left = left;
        let Goods { topic, acks, batch, .. } = &self.goods;
        let producer = &mut self.producers[link];
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
        if let Some(follower) = &mut self.follower {
            follower.dues[partition as usize].push_back(due_ns);
        }
    }

    fn answered(&mut self, link: usize, answer: &[u8], now_ns: u64) -> Result<(), BenchError> {
        let in_flight = self.producers[link].in_flight.pop_front();
        let correlation_id = wire::correlation_id(answer)?;
        let Some(request) = in_flight.filter(|request| request.correlation_id == correlation_id) else {
            return Err(wire::odd("an answer to another request"));
        };
        let produced = wire::parse_produced(answer)?;
        if produced.error != 0 {
            self.refused += 1;
            self.first_refusal.get_or_insert(produced.error);
            return match self.follower {
                None => Ok(()),
                // What comes can no longer be told apart.
                Some(_) => Err(BenchError::Broken(format!("Produce was refused: error {}", produced.error))),
            };
        }
        self.counters.requests += 1;
        self.counters.records += u64::from(self.goods.records);
        self.counters.bytes += self.goods.batch.len() as u64;
        if self.measured.contains(&request.due_ns) {
            self.latency.saturating_record(now_ns.saturating_sub(request.due_ns));
        }
        Ok(())
    }
}

impl Handler for Produce<'_> {
    fn answer(
        &mut self,
        link: usize,
        answer: &[u8],
        now_ns: u64,
        out: &mut Outgoing,
    ) -> Result<(), BenchError> {
        if link < self.producers.len() {
            self.answered(link, answer, now_ns)?;
            if self.schedule.is_none() {
                self.put(link, now_ns, out);
            }
            return Ok(());
        }
        let Some(follower) = &mut self.follower else { return Err(wire::odd("an answer nobody asked for")) };
        follower.take(answer, now_ns, &self.measured)?;
        follower.reader.request(out);
        Ok(())
    }

    fn drained(&mut self, link: usize, out: &mut Outgoing) {
        let Some(producer) = self.producers.get_mut(link) else { return };
        producer.is_drained = true;
        if let (Pace::Window(window), Acks::None) = (&self.pace, self.goods.acks) {
            let now_ns = self.clock.now_ns();
            for _ in 0..*window {
                self.put(link, now_ns, out);
            }
        }
    }
}

impl Follower {
    fn take(&mut self, answer: &[u8], now_ns: u64, measured: &Range<u64>) -> Result<(), BenchError> {
        let Self { reader, dues, records, latency } = self;
        reader.take(answer, |partition, header| {
            *records += u64::from(header.records);
            // One connection produces to a partition, so its batches come in the order in which they were due.
            if let Some(due_ns) = dues[partition as usize].pop_front()
                && measured.contains(&due_ns)
            {
                latency.saturating_record(now_ns.saturating_sub(due_ns));
            }
        })
    }
}

impl Load for Produce<'_> {
    fn begin(&mut self, links: &mut Links, start_ns: u64, measured: Range<u64>) -> Result<(), BenchError> {
        self.measured = measured;
        if self.follower.is_some() {
            let ask = |load: &mut Self, out: &mut Outgoing| {
                if let Some(follower) = &mut load.follower {
                    follower.reader.request(out);
                }
            };
            links.send(self.producers.len(), self, ask)?;
        }
        match self.pace {
            Pace::Rate(rate) => {
                let schedule = Schedule::new(start_ns, rate, self.producers.len() as u32);
                self.schedule = Some((schedule, Cursor::default()));
            }
            Pace::Window(window) => {
                for link in 0..self.producers.len() {
                    links.send(link, self, |load, out| {
                        for _ in 0..window {
                            load.put(link, start_ns, out);
                        }
                    })?;
                }
            }
        }
        Ok(())
    }

    fn send_due(&mut self, links: &mut Links, now_ns: u64) -> Result<Option<u64>, BenchError> {
        while self.left > 0
            && let Some((schedule, cursor)) = &mut self.schedule
            && let Some((due_ns, link)) = cursor.peek(schedule, &self.numbers)
        {
            if due_ns > now_ns {
                return Ok(Some(due_ns));
            }
            cursor.advance(&self.numbers);
            if self.measured.contains(&due_ns) {
                self.lag.saturating_record(now_ns - due_ns);
            }
            links.send(link, self, |load, out| load.put(link, due_ns, out))?;
        }
        Ok(None)
    }

    fn counters(&self) -> Counters {
        self.counters
    }

    fn stop(&mut self) {
        self.left = 0;
    }

    fn is_settled(&self) -> bool {
        let all_came = |follower: &Follower| follower.dues.iter().all(VecDeque::is_empty);
        self.left == 0
            && self.producers.iter().all(|producer| producer.is_drained && producer.in_flight.is_empty())
            && self.follower.as_ref().is_none_or(all_came)
    }
}
