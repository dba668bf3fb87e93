//! `mainstem bench mqtt`: converts flags to options, prints progress and the report.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use mainstem_bench::{BenchError, Load, Options, Part, Progress, Scenario, WindowScope};
use mainstem_mqtt::packet::{QoS, Version};
use serde::Serialize;

use super::failure::{Failure, io_message};
use super::tls::Tls;
use crate::cli::{BenchMqttArgs, PartArg, ScenarioArg};

/// Messages in flight per publisher without --rate and --window.
const WINDOW: u32 = 100;

/// Runs the benchmark and prints its report.
///
/// # Errors
/// If it could not run, or a connection broke.
pub(crate) fn run(args: &BenchMqttArgs) -> Result<(), Failure> {
    let options = options(args)?;
    let show = args.progress || io::stderr().is_terminal();
    let report = mainstem_bench::run(&options, &mut |progress| {
        if show {
            eprintln!("{}", progress_line(progress));
        }
    })
    .map_err(|error: BenchError| Failure::new(error.to_string()))?;
    print(&report, args.measure.json)?;
    match &report.first_fault {
        None => Ok(()),
        Some(error) => Err(Failure::new(format!("{} connections broke: {error}", report.connections_broken))),
    }
}

fn options(args: &BenchMqttArgs) -> Result<Options, Failure> {
    let has_other_load = args.idle > 0 || args.retained > 0 || args.queued > 0;
    let scenario =
        args.scenario.or((!has_other_load).then_some(ScenarioArg::FanOut)).map(|scenario| match scenario {
            ScenarioArg::FanOut => Scenario::FanOut,
            ScenarioArg::FanIn => Scenario::FanIn,
            ScenarioArg::Pairs => Scenario::Pairs,
            ScenarioArg::Shared => Scenario::Shared,
        });
    let tls = args.tls.is_set().then(|| Tls::load(&args.tls, None)).transpose()?;
    Ok(Options {
        host: args.broker.host.clone(),
        port: args.broker.port.unwrap_or(args.port),
        version: if args.version == 4 { Version::V4 } else { Version::V5 },
        scenario,
        publishers: args.publishers,
        subscribers: args.subscribers,
        topics: args.topics,
        overlap: args.overlap,
        qos: match args.qos {
            0 => QoS::AtMostOnce,
            1 => QoS::AtLeastOnce,
            _ => QoS::ExactlyOnce,
        },
        payload_bytes: args.payload as usize,
        load: match args.rate {
            Some(rate) => Load::Rate(rate),
            None => Load::Window(args.in_flight.or(args.window).unwrap_or(WINDOW)),
        },
        window_scope: if args.in_flight.is_some() { WindowScope::Run } else { WindowScope::Publisher },
        duration: args.measure.duration,
        warmup: args.measure.warmup,
        drain: args.measure.drain,
        connect_rate: args.connect_rate,
        idle: args.idle,
        retained: args.retained,
        queued: args.queued,
        part: match args.part {
            PartArg::Both => Part::Both,
            PartArg::Store => Part::Store,
            PartArg::Fetch => Part::Fetch,
        },
        durable: args.durable,
        tick: Duration::from_micros(args.tick.into()),
        max_inflight: args.max_inflight,
        receive_maximum: args.receive_maximum,
        threads: args.threads as usize,
        credentials: args.username.clone().zip(Some(args.password.clone().unwrap_or_default())),
        broker_pid: args.measure.broker_pid,
        tls: tls.map(|tls| tls.without_tickets()),
    })
}

/// Prints the report as a table on stdout, or with `json` as one line of JSON on stdout and a table on stderr.
pub(super) fn print(report: &(impl Serialize + Display), json: bool) -> Result<(), Failure> {
    let written = if json {
        let line = serde_json::to_string(report).map_err(|error| Failure::new(error.to_string()))?;
        eprint!("{report}");
        writeln!(io::stdout(), "{line}")
    } else {
        write!(io::stdout(), "{report}")
    };
    written.map_err(|error| Failure::new(format!("standard output: {}", io_message(&error))))
}

fn progress_line(progress: &Progress) -> String {
    let Progress { phase, published_per_s, delivered_per_s, .. } = progress;
    let elapsed = progress.elapsed.as_secs_f64();
    let memory = progress.rss_mib.map(|mib| format!("  {mib:.1} MiB")).unwrap_or_default();
    format!(
        "{elapsed:6.1} s  {phase:<11}  {published_per_s:>9} published/s  {delivered_per_s:>9} delivered/s{memory}"
    )
}
