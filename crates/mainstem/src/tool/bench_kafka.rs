//! `mainstem bench kafka`: converts flags to options and prints the report.

use mainstem_bench::{Acks, BenchError, KafkaOptions, KafkaReport, Load, Shape, Work, run_kafka};
use mainstem_log::Compression;

use super::bench::print;
use super::failure::Failure;
use crate::cli::{AcksArg, BenchBatchArgs, BenchKafkaArgs, BenchKafkaCommon, BenchKafkaWork};

/// Requests in flight per connection without --rate and --window: the default of the Java producer.
const WINDOW: u32 = 5;
/// Placeholder for a workload without batches.
const NO_BATCH: Shape = Shape { records: 1, record_bytes: 1, compression: Compression::None };

/// Runs the benchmark and prints its report.
///
/// # Errors
/// If it could not run, or batches were rejected or lost.
pub(crate) fn run(args: &BenchKafkaArgs) -> Result<(), Failure> {
    let (common, options) = match &args.work {
        BenchKafkaWork::Produce(args) => {
            let acks = match args.acks {
                AcksArg::None => Acks::None,
                AcksArg::Leader => Acks::Leader,
                AcksArg::All => Acks::All,
            };
            let load = match args.rate {
                Some(rate) => Load::Rate(rate),
                None => Load::Window(args.window.unwrap_or(WINDOW)),
            };
            let work = Work::Produce { acks, load, consume: args.consume };
            (&args.common, options(&args.common, shape(&args.batch), work))
        }
        BenchKafkaWork::Fetch(args) => {
            let fill_bytes = u64::from(args.fill) << 20;
            let work = Work::Fetch { fill_bytes, partition_bytes: args.partition_bytes };
            (&args.common, options(&args.common, shape(&args.batch), work))
        }
        BenchKafkaWork::Idle(args) => (&args.common, options(&args.common, NO_BATCH, Work::Idle)),
    };
    let report = run_kafka(&options).map_err(|error: BenchError| Failure::new(error.to_string()))?;
    print(&report, common.measure.json)?;
    match first_error(&report) {
        None => Ok(()),
        Some(error) => Err(Failure::new(error)),
    }
}

/// The first error in the report.
fn first_error(report: &KafkaReport) -> Option<String> {
    if report.gaps > 0 {
        return Some(format!("{} batches have unexpected offsets", report.gaps));
    }
    let produce = report.produce.as_ref()?;
    let not_delivered = produce.not_delivered.unwrap_or(0);
    if let Some(error) = produce.first_refusal {
        Some(format!("{} batches were refused, the first with error {error}", produce.refused))
    } else if produce.missing > 0 {
        Some(format!("{} records are missing", produce.missing))
    } else if produce.unanswered > 0 {
        Some(format!("{} requests were not answered", produce.unanswered))
    } else if not_delivered > 0 {
        Some(format!("{not_delivered} records were not delivered"))
    } else {
        None
    }
}

fn options(common: &BenchKafkaCommon, shape: Shape, work: Work) -> KafkaOptions {
    KafkaOptions {
        host: common.broker.host.clone(),
        port: common.broker.port.unwrap_or(common.port),
        topic: common.topic.clone(),
        partitions: common.partitions,
        connections: common.connections,
        shape,
        work,
        duration: common.measure.duration,
        warmup: common.measure.warmup,
        drain: common.measure.drain,
        broker_pid: common.measure.broker_pid,
    }
}

fn shape(args: &BenchBatchArgs) -> Shape {
    Shape {
        records: args.records,
        record_bytes: args.record_bytes as usize,
        compression: args.compression.into(),
    }
}
