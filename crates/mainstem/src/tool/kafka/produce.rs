//! `mainstem produce`: records out, acknowledgements in.

use std::io::{self, Read};

use mainstem_kafka::ErrorCode;
use mainstem_kafka::api::init_producer_id::InitProducerIdRequest;
use mainstem_kafka::api::produce::{PartitionProduceData, ProduceRequest, TopicProduceData};
use mainstem_log::{Header, put_headers};

use super::batches::{Batches, Making, Producer, Ready};
use super::cluster::Cluster;
use super::errors::{check, persist};
use crate::cli::ProduceArgs;
use crate::tool::failure::{Failure, io_words};
use crate::tool::lines::Lines;
use crate::tool::table::print;

/// `acks` that waits for all replicas that are in sync.
const ALL: i16 = -1;

/// Appends what `args` say and waits for the acknowledgements.
///
/// # Errors
/// If anything could not be appended, or was refused.
pub(crate) fn run(args: &ProduceArgs) -> Result<(), Failure> {
    let making = making(args)?;
    let input = input(args)?;
    let mut cluster = Cluster::connect(&args.kafka)?;
    let topic = cluster.topic_made(&args.topic)?;
    if let Some(partition) = args.partition
        && !topic.partitions.contains_key(&partition)
    {
        return Err(Failure::new(format!("topic {} has no partition {partition}", topic.name)));
    }
    let producer = producer(args, &mut cluster)?;
    let batches = Batches::new(making, producer, topic.partition_count().cast_signed(), args.partition);
    let mut appender = Appender { args, cluster, batches };
    match input {
        Input::One(value) => appender.add(None, value.as_deref())?,
        Input::Lines => appender.lines()?,
    }
    appender.flush()
}

fn making(args: &ProduceArgs) -> Result<Making, Failure> {
    let compression = args.codec.into();
    let levels = mainstem_compress::levels(compression);
    if let Some(level) = args.level
        && !levels.is_some_and(|levels| levels.contains(&level))
    {
        return Err(Failure::new(format!("the codec has no level {level}")));
    }
    let mut headers = Vec::new();
    let given = args.header.iter().map(|(key, value)| Header { key, value: Some(value.as_bytes()) });
    put_headers(given, &mut headers);
    Ok(Making { compression, level: args.level, headers })
}

/// What becomes records.
enum Input {
    /// Every line of standard input.
    Lines,
    /// This value, or that there is none.
    One(Option<Vec<u8>>),
}

/// A single value is read before anything is sent.
fn input(args: &ProduceArgs) -> Result<Input, Failure> {
    let cannot_read = |name: &str, error: &io::Error| Failure::new(format!("{name}: {}", io_words(error)));
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

/// What lets the broker recognise a batch that is sent again. Only with full acknowledgement is there any use in it.
fn producer(args: &ProduceArgs, cluster: &mut Cluster) -> Result<Producer, Failure> {
    if args.acks != ALL {
        return Ok(Producer { id: -1, epoch: -1 });
    }
    let patience = cluster.patience();
    persist(patience, || {
        let answer = cluster.any()?.call(&InitProducerIdRequest::default())?;
        check("producer id", answer.error_code, None)?;
        Ok(Producer { id: answer.producer_id, epoch: answer.producer_epoch })
    })
}

struct Appender<'a> {
    args: &'a ProduceArgs,
    cluster: Cluster,
    batches: Batches,
}

impl Appender<'_> {
    /// Every line of standard input, as they come.
    fn lines(&mut self) -> Result<(), Failure> {
        let mut lines = Lines::new(io::stdin());
        loop {
            while let Some(line) = lines.next() {
                let (key, value) = self.split(line);
                self.add(key, Some(value))?;
            }
            // What has come so far goes, however long the next line may take.
            self.flush()?;
            if lines.is_ended() {
                return Ok(());
            }
            lines.read()?;
        }
    }

    /// Key and value of a line.
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
        while let Some(ready) = self.batches.take_any()? {
            self.send(ready)?;
        }
        Ok(())
    }

    /// Sends a batch until it is acknowledged.
    fn send(&mut self, ready: Ready) -> Result<(), Failure> {
        let Ready { partition, records, bytes } = ready;
        let topic = &self.args.topic;
        let cluster = &mut self.cluster;
        let patience = cluster.patience();
        let data = PartitionProduceData { index: partition, records: Some(bytes) };
        let data = TopicProduceData {
            name: topic.clone(),
            partition_data: vec![data],
            ..TopicProduceData::default()
        };
        let request = ProduceRequest {
            acks: self.args.acks,
            timeout_ms: i32::try_from(patience.as_millis()).unwrap_or(i32::MAX),
            topic_data: vec![data],
            ..ProduceRequest::default()
        };
        let place = (topic.clone(), partition);
        let mut is_first = true;
        let base_offset = persist(patience, || {
            if !std::mem::take(&mut is_first) {
                cluster.topic(topic)?;
            }
            let leader = cluster.leader(&place)?;
            if request.acks == 0 {
                return cluster.node(leader)?.send(&request).map(|()| None);
            }
            let answer = cluster.node(leader)?.call_slow(&request, patience)?;
            let answer = answer.responses.into_iter().flat_map(|topic| topic.partition_responses).next();
            let answer = answer.ok_or_else(|| Failure::new(format!("{topic} [{partition}]: no answer")))?;
            // It had arrived the first time.
            if answer.error_code != ErrorCode::DuplicateSequenceNumber.code() {
                let what = format!("{topic} [{partition}]");
                check(&what, answer.error_code, answer.error_message.as_deref())?;
            }
            Ok(Some(answer.base_offset))
        })?;
        match base_offset {
            Some(offset) if self.args.verbose => print(&format!("{topic} {partition} {offset} {records}\n")),
            _ => Ok(()),
        }
    }
}
