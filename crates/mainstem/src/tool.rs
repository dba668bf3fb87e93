//! The command-line tools: `mainstem pub`, `sub`, `bench`, `queue`, `binding`, `user`, `key`, `acl`, `topic`,
//! `produce`, `consume` and `group`.
//!
//! The tools are clients: they reach the broker only through its sockets, and use neither its configuration, nor its
//! data directory, nor the broker's crates.
//!
//! | file | contents |
//! |---|---|
//! | `publish.rs`, `lines.rs` | `mainstem pub`; lines of standard input, read without blocking the connection |
//! | `subscribe.rs`, `message_handler.rs` | `mainstem sub`; handling of each message |
//! | `format.rs`, `json.rs`, `clock.rs` | formats of MQTT messages |
//! | `format_string.rs`, `table.rs`, `stdout.rs` | formats and tables of the other tools; standard output |
//! | `bench.rs`, `bench_kafka.rs`, `bench_queue.rs` | `mainstem bench`, with the crate `mainstem-bench` |
//! | `queue.rs`, `queue/`, `binding.rs`, `http.rs` | `mainstem queue` and `mainstem binding`; their HTTP client |
//! | `kafka.rs`, `kafka/` | the Kafka tools, with a Kafka client of their own |
//! | `user.rs`, `key.rs` | `mainstem user` and `mainstem acl`; `mainstem key` |
//! | `quota.rs` | `mainstem quota` and `mainstem ban` |
//! | `config.rs` | `mainstem config reload` |
//! | `snapshot.rs` | snapshots, for `mainstem backup` |
//! | `cert.rs` | `mainstem cert` |
//! | `client.rs` | an MQTT connection: packets, keep alive, deadlines |
//! | `session.rs`, `properties.rs`, `target.rs` | CONNECT, `-D` properties, the broker's address |
//! | `tls.rs` | TLS of connections |
//! | `failure.rs`, `describe.rs` | errors and exit status; packets and reason codes as text |

mod bench;
mod bench_kafka;
mod bench_queue;
mod binding;
mod cert;
mod client;
mod clock;
mod config;
mod describe;
mod failure;
mod format;
mod format_string;
mod http;
mod json;
mod kafka;
mod key;
mod lines;
mod message_handler;
mod properties;
mod publish;
mod queue;
mod quota;
mod session;
mod snapshot;
mod stdout;
mod subscribe;
mod table;
mod target;
mod tls;
mod user;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use crate::cli::{
    AclArgs, BanArgs, BenchCommand, BindingArgs, CertArgs, ConfigReloadArgs, ConsumeArgs, GroupArgs, KeyArgs,
    NewPasswordArgs, ProduceArgs, PubArgs, QueueArgs, QuotaArgs, SubArgs, TopicArgs, UserArgs,
};
use failure::Failure;
pub(crate) use snapshot::SnapshotClient;

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

/// `mainstem user`.
pub(crate) fn user(args: &UserArgs) -> ExitCode {
    conclude("user", args.http.quiet, user::run_user(args))
}

/// `mainstem user add --data`: adds the user to a data directory.
pub(crate) fn add_user(data: &Path, name: &str, password: &NewPasswordArgs, roles: &[String]) -> ExitCode {
    let added = user::new_password(password)
        .and_then(|password| crate::security::add_user(data, name, &password, roles).map_err(Failure::new));
    conclude("user", false, added)
}

/// `mainstem key`.
pub(crate) fn key(args: &KeyArgs) -> ExitCode {
    conclude("key", args.http.quiet, key::run(args))
}

/// `mainstem acl`.
pub(crate) fn acl(args: &AclArgs) -> ExitCode {
    conclude("acl", args.http.quiet, user::run_acl(args))
}

/// `mainstem quota`.
pub(crate) fn quota(args: &QuotaArgs) -> ExitCode {
    conclude("quota", args.http.quiet, quota::run_quota(args))
}

/// `mainstem ban`.
pub(crate) fn ban(args: &BanArgs) -> ExitCode {
    conclude("ban", args.http.quiet, quota::run_ban(args))
}

/// `mainstem config reload`.
pub(crate) fn reload_config(args: &ConfigReloadArgs) -> ExitCode {
    conclude("config reload", args.http.quiet, config::reload(args))
}

/// `mainstem cert`.
pub(crate) fn cert(args: &CertArgs) -> ExitCode {
    conclude("cert", false, cert::run(args))
}

/// `mainstem queue`.
pub(crate) fn queue(args: &QueueArgs) -> ExitCode {
    conclude("queue", args.http.quiet, queue::run(args))
}

/// Prints a tool's failure and returns its exit status.
fn conclude(tool: &str, quiet: bool, outcome: Result<(), Failure>) -> ExitCode {
    let Err(failure) = outcome else { return ExitCode::SUCCESS };
    if !quiet && !failure.is_silent() {
        // If stderr is closed, only the exit status is left.
        writeln!(std::io::stderr(), "mainstem {tool}: {failure}").ok();
    }
    ExitCode::from(failure.status())
}
