//! `mainstem bench queue`: converts flags to options and prints the report.

use mainstem_bench::{BenchError, QueueOptions, QueueProtocol, QueueReport, QueueWork, run_queue};

use super::bench::print;
use super::failure::Failure;
use crate::cli::{BenchConsumersArgs, BenchQueueArgs, BenchQueueCommon, BenchQueueWork, QueueProtocolArg};

/// Placeholder for a workload without consumers.
const NO_CONSUMERS: BenchConsumersArgs = BenchConsumersArgs { consumers: 1, prefetch: 1 };

/// Runs the benchmark and prints its report.
///
/// # Errors
/// If it could not run, or messages were rejected, lost or not settled.
pub(crate) fn run(args: &BenchQueueArgs) -> Result<(), Failure> {
    let (common, options) = match &args.work {
        BenchQueueWork::Enqueue(args) => {
            let work = QueueWork::Enqueue { rate: args.rate };
            (&args.common, options(&args.common, &NO_CONSUMERS, work))
        }
        BenchQueueWork::Consume(args) => {
            let work = QueueWork::Consume { messages: args.messages, fill_max: args.fill };
            (&args.common, options(&args.common, &args.consumers, work))
        }
        BenchQueueWork::Flow(args) => {
            let work = QueueWork::Flow { rate: args.rate };
            (&args.common, options(&args.common, &args.consumers, work))
        }
    };
    let report = run_queue(&options).map_err(|error: BenchError| Failure::new(error.to_string()))?;
    print(&report, common.measure.json)?;
    match first_error(&report) {
        None => Ok(()),
        Some(error) => Err(Failure::new(error)),
    }
}

/// The first error in the report. Redelivered messages are not an error.
fn first_error(report: &QueueReport) -> Option<String> {
    let enqueue = report.enqueue.as_ref();
    let consume = report.consume.as_ref();
    if let Some(error) = enqueue.and_then(|enqueue| enqueue.first_refusal.as_ref()) {
        return Some(format!("messages were refused, the first with: {error}"));
    }
    let counts = [
        ("acknowledgements and deliveries belong to no message of this run", report.foreign),
        ("messages were not acknowledged", enqueue.map_or(0, |enqueue| enqueue.unanswered)),
        ("messages are missing", enqueue.and_then(|enqueue| enqueue.missing).unwrap_or(0)),
        ("messages are lost", consume.and_then(|consume| consume.lost).unwrap_or(0)),
        ("messages were not settled", consume.and_then(|consume| consume.unsettled).unwrap_or(0)),
    ];
    let (what, count) = counts.into_iter().find(|(_, count)| *count > 0)?;
    Some(format!("{count} {what}"))
}

fn options(common: &BenchQueueCommon, consumers: &BenchConsumersArgs, work: QueueWork) -> QueueOptions {
    let (protocol, port) = match common.protocol {
        QueueProtocolArg::Mqtt => {
            let durability = common.durability.into();
            (QueueProtocol::Mqtt { http: common.http.clone(), durability }, 1883)
        }
        QueueProtocolArg::Nats => (QueueProtocol::Nats, 4222),
        QueueProtocolArg::Amqp => (QueueProtocol::Amqp(common.queue_type.into()), 5672),
    };
    QueueOptions {
        host: common.broker.host.clone(),
        port: common.broker.port.or(common.port).unwrap_or(port),
        protocol,
        queue: common.queue.clone(),
        publishers: common.publishers,
        consumers: consumers.consumers,
        in_flight: common.in_flight,
        prefetch: consumers.prefetch,
        payload_bytes: common.payload as usize,
        work,
        duration: common.measure.duration,
        warmup: common.measure.warmup,
        drain: common.measure.drain,
        broker_pid: common.measure.broker_pid,
    }
}
