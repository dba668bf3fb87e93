//! `mainstem produce`: appends records and waits for their acknowledgements.

use std::io::{self, Read};

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::init_producer_id::InitProducerIdRequest;
use mainstem_kafka::api::produce::{PartitionProduceData, ProduceRequest, TopicProduceData};
use mainstem_log::{Header, put_headers};

use super::accumulator::{BatchOptions, ProducerIdAndEpoch, ReadyBatch, RecordAccumulator};
use super::cluster::Cluster;
use super::errors::{check, retry};
use crate::cli::ProduceArgs;
use crate::tool::failure::{Failure, io_message};
use crate::tool::lines::Lines;
use crate::tool::table::print;

/// `acks` for all in-sync replicas.
const ALL: i16 = -1;

/// Appends the records and waits for their acknowledgements.
///
/// # Errors
/// If a record could not be appended.
pub(crate) fn run(args: &ProduceArgs) -> Result<(), Failure> {
    let batch_options = batch_options(args)?;
    let input = input(args)?;
    let mut cluster = Cluster::connect(&args.kafka)?;
    let topic = cluster.topic_or_create(&args.topic)?;
    if let Some(partition) = args.partition
        && !topic.partitions.contains_key(&partition)
    {
        return Err(Failure::new(format!("topic {} has no partition {partition}", topic.name)));
    }
    let producer = producer(args, &mut cluster)?;
    let batches = RecordAccumulator::new(
        batch_options,
        producer,
        topic.partition_count().cast_signed(),
        args.partition,
    );
    let mut appender = Appender { args, cluster, batches };
    match input {
        Input::One(value) => appender.add(None, value.as_deref())?,
        Input::Lines => appender.lines()?,
    }
    appender.flush()
}

fn batch_options(args: &ProduceArgs) -> Result<BatchOptions, Failure> {
    let compression = args.codec.into();
    let levels = mainstem_compress::levels(compression);
    if let Some(level) = args.level
        && !levels.is_some_and(|levels| levels.contains(&level))
    {
        return Err(Failure::new(format!("--level: the codec has no level {level}")));
    }
    let mut headers = Vec::new();
    let pairs = args.header.iter().map(|(key, value)| Header { key, value: Some(value.as_bytes()) });
    put_headers(pairs, &mut headers);
    Ok(BatchOptions { compression, level: args.level, headers })
}

/// Source of the records.
enum Input {
    /// Every line of standard input.
    Lines,
    /// One record with this value, or without a value.
    One(Option<Vec<u8>>),
}

/// Reads a single value before connecting.
fn input(args: &ProduceArgs) -> Result<Input, Failure> {
    let cannot_read = |name: &str, error: &io::Error| Failure::new(format!("{name}: {}", io_message(error)));
    Ok(if let Some(text) = &args.message {
        Input::One(Some(text.clone().into_bytes()))
    } else if let Some(path) = &args.file {
        let bytes = std::fs::read(path).map_err(|error| cannot_read(&path.display().to_string(), &error))?;
        Input::One(Some(bytes))
    } else if args.stdin {
        let mut bytes = Vec::new();
        io::stdin().read_to_end(&mut bytes).map_err(|error| cannot_read("standard input", &error))?;
        Input::One(Some(bytes))
    } else if args.null {
        Input::One(None)
    } else {
        Input::Lines
    })
}

/// Requests a producer id, with which the broker detects duplicates. Retries are safe only with `acks=all`, so the
/// other modes go without.
fn producer(args: &ProduceArgs, cluster: &mut Cluster) -> Result<ProducerIdAndEpoch, Failure> {
    if args.acks != ALL {
        return Ok(ProducerIdAndEpoch { id: -1, epoch: -1 });
    }
    let timeout = cluster.timeout();
    retry(timeout, || {
        let response = cluster.bootstrap()?.call(&InitProducerIdRequest::default())?;
        check("producer id", response.error_code, None)?;
        Ok(ProducerIdAndEpoch { id: response.producer_id, epoch: response.producer_epoch })
    })
}

struct Appender<'a> {
    args: &'a ProduceArgs,
    cluster: Cluster,
    batches: RecordAccumulator,
}

impl Appender<'_> {
    /// Appends each line of standard input.
    fn lines(&mut self) -> Result<(), Failure> {
        let mut lines = Lines::new(io::stdin());
        loop {
            while let Some(line) = lines.next() {
                let (key, value) = self.split(line);
                self.add(key, Some(value))?;
            }
            // Send the lines read so far before waiting for the next one.
            self.flush()?;
            if lines.is_ended() {
                return Ok(());
            }
            lines.read()?;
        }
    }

    /// Splits a line into key and value.
    fn split<'l>(&self, line: &'l [u8]) -> (Option<&'l [u8]>, &'l [u8])
    where
        Self: 'l,
    {
        let delimiter = self.args.key_delimiter.as_deref().unwrap_or_default().as_bytes();
        let at = line.windows(delimiter.len().max(1)).position(|window| window == delimiter);
        match at {
            Some(at) => (Some(&line[..at]), &line[at + delimiter.len()..]),
            None => (None, line),
        }
    }

    fn add(&mut self, key: Option<&[u8]>, value: Option<&[u8]>) -> Result<(), Failure> {
        let key = key.or(self.args.key.as_deref().map(str::as_bytes));
        match self.batches.add(key, value)? {
            Some(ready) => self.send(ready),
            None => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<(), Failure> {
        while let Some(ready) = self.batches.drain_next()? {
            self.send(ready)?;
        }
        Ok(())
    }

    /// Sends a batch, with retries until it is acknowledged.
    fn send(&mut self, ready: ReadyBatch) -> Result<(), Failure> {
        let ReadyBatch { partition, records, bytes } = ready;
        let topic = &self.args.topic;
        let cluster = &mut self.cluster;
        let timeout = cluster.timeout();
        let data = PartitionProduceData { index: partition, records: Some(bytes) };
        let data = TopicProduceData {
            name: topic.clone(),
            partition_data: vec![data],
            ..TopicProduceData::default()
        };
        let request = ProduceRequest {
            acks: self.args.acks,
            timeout_ms: i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX),
            topic_data: vec![data],
            ..ProduceRequest::default()
        };
        let topic_partition = (topic.clone(), partition);
        let mut is_first = true;
        let base_offset = retry(timeout, || {
            if !std::mem::take(&mut is_first) {
                cluster.topic(topic)?;
            }
            let leader = cluster.leader(&topic_partition)?;
            if request.acks == 0 {
                return cluster.node(leader)?.send(&request).map(|()| None);
            }
            let response = cluster.node(leader)?.call_with_wait(&request, timeout)?;
            let response = response.responses.into_iter().flat_map(|topic| topic.partition_responses).next();
            let response = response
                .ok_or_else(|| Failure::new(format!("{topic} [{partition}]: missing in the response")))?;
            // A duplicate means that an earlier attempt was appended.
            if response.error_code != ErrorCode::DuplicateSequenceNumber.code() {
                let context = format!("{topic} [{partition}]");
                check(&context, response.error_code, response.error_message.as_deref())?;
            }
            Ok(Some(response.base_offset))
        })?;
        match base_offset {
            Some(offset) if self.args.verbose => print(&format!("{topic} {partition} {offset} {records}\n")),
            _ => Ok(()),
        }
    }
}
