//! The command-line tools: `mainstem pub`, `sub`, `bench`, `queue`, `binding`, and `topic`, `produce`, `consume`,
//! `group`.
//!
//! They know the broker only as any client does: through its socket. Nothing here touches configuration, data
//! directory or the broker's crates.
//!
//! | file | holds |
//! |---|---|
//! | `publish`, `lines` | `mainstem pub`; standard input line by line, beside a socket |
//! | `subscribe`, `incoming` | `mainstem sub`; what it does with each message |
//! | `format`, `json`, `clock` | how messages are printed |
//! | `pieces`, `table`, `out` | formats and columns that tools share; standard output until nobody reads it |
//! | `bench`, `bench_kafka`, `bench_queue` | `mainstem bench`, around the crate `mainstem-bench` |
//! | `queue`, `binding`, `http` | `mainstem queue` and `mainstem binding`; the HTTP they speak |
//! | `kafka` | the tools that speak Kafka, with a client of their own |
//! | `client` | one MQTT connection: packets in and out, keep alive, deadlines |
//! | `session`, `properties`, `target` | what CONNECT says, `-D` properties, where to connect |
//! | `failure`, `describe` | errors with their exit status; packets and reason codes in words |

mod bench;
mod bench_kafka;
mod bench_queue;
mod binding;
mod client;
mod clock;
mod describe;
mod failure;
mod format;
mod http;
mod incoming;
mod json;
mod kafka;
mod lines;
mod out;
mod pieces;
mod properties;
mod publish;
mod queue;
mod session;
mod subscribe;
mod table;
mod target;

use std::io::Write;
use std::process::ExitCode;

use crate::cli::{
    BenchCommand, BindingArgs, ConsumeArgs, GroupArgs, ProduceArgs, PubArgs, QueueArgs, SubArgs, TopicArgs,
};
use failure::Failure;

/// `mainstem pub`.
pub(crate) fn publish(args: &PubArgs) -> ExitCode {
    conclude("pub", args.connect.quiet, publish::run(args))
}

/// `mainstem sub`.
pub(crate) fn subscribe(args: &SubArgs) -> ExitCode {
    conclude("sub", args.connect.quiet, subscribe::run(args))
}

/// `mainstem bench`.
pub(crate) fn bench(command: &BenchCommand) -> ExitCode {
    match command {
        BenchCommand::Mqtt(args) => conclude("bench", false, bench::run(args)),
        BenchCommand::Kafka(args) => conclude("bench", false, bench_kafka::run(args)),
        BenchCommand::Queue(args) => conclude("bench", false, bench_queue::run(args)),
    }
}

/// `mainstem topic`.
pub(crate) fn topic(args: &TopicArgs) -> ExitCode {
    conclude("topic", args.kafka.quiet, kafka::topic(args))
}

/// `mainstem produce`.
pub(crate) fn produce(args: &ProduceArgs) -> ExitCode {
    conclude("produce", args.kafka.quiet, kafka::produce(args))
}

/// `mainstem consume`.
pub(crate) fn consume(args: &ConsumeArgs) -> ExitCode {
    conclude("consume", args.kafka.quiet, kafka::consume(args))
}

/// `mainstem group`.
pub(crate) fn group(args: &GroupArgs) -> ExitCode {
    conclude("group", args.kafka.quiet, kafka::group(args))
}

/// `mainstem binding`.
pub(crate) fn binding(args: &BindingArgs) -> ExitCode {
    conclude("binding", args.http.quiet, binding::run(args))
}

/// `mainstem queue`.
pub(crate) fn queue(args: &QueueArgs) -> ExitCode {
    conclude("queue", args.http.quiet, queue::run(args))
}

/// The one place where a tool's failure is told.
fn conclude(tool: &str, quiet: bool, outcome: Result<(), Failure>) -> ExitCode {
    let Err(failure) = outcome else { return ExitCode::SUCCESS };
    if !quiet && !failure.is_silent() {
        // With stderr gone, the exit status has to do.
        writeln!(std::io::stderr(), "mainstem {tool}: {failure}").ok();
    }
    ExitCode::from(failure.status())
}
