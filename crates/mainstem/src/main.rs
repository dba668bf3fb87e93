//! The `mainstem` binary: the broker and its command-line tools.
//!
//! `mainstem` or `mainstem serve` runs the broker. `mainstem pub`, `sub`, `topic`, `produce`, `consume`, `group`,
//! `queue`, `binding`, `user`, `key`, `acl` and `bench` are tools that talk to a broker over the network; `cert` makes
//! certificates, and `config` checks configurations. `backup` stores what a running broker has, `restore` brings it
//! back; `verify` and `repair` work on a data directory that no broker uses.
//!
//! # Files
//! | file | contents |
//! |---|---|
//! | `cli.rs`, `cli/` | the command line: subcommands and flags |
//! | `config.rs`, `config/` | the configuration: file, environment, command line; its reference page |
//! | `config_tool.rs` | `mainstem config` |
//! | `reload.rs` | reloads of the configuration while the broker runs |
//! | `logging.rs` | the log: format, and levels that change at run time |
//! | `queues.rs` | queues declared in the configuration |
//! | `bindings.rs`, `bindings/` | bindings declared in the configuration, and those added at run time |
//! | `serve.rs` | `mainstem serve`: start and shutdown |
//! | `listeners.rs`, `listeners/` | the table of listeners, and their certificates |
//! | `listener_section.rs` | listeners declared in the configuration |
//! | `descriptors.rs` | how the limit of open files is shared |
//! | `storage.rs` | the data directory, and the state restored from it |
//! | `backup.rs` | `mainstem backup` and `mainstem restore` |
//! | `snapshots.rs` | snapshots of the data directory while the broker runs |
//! | `check.rs` | `mainstem verify` and `mainstem repair` |
//! | `health_store.rs` | logs that cannot be written to, for the readiness check |
//! | `security.rs` | users and rules: their section, their directory |
//! | `commit_times.rs` | how long commits take, as a metric |
//! | `jwt.rs`, `log_in_hook.rs`, `ldap.rs` | sections of what else decides log-ins |
//! | `monitoring.rs`, `monitoring/` | dashboards and alerts |
//! | `memory.rs` | the memory budget of the process |
//! | `process_metrics.rs` | metrics of the process; the reference page of all metrics |
//! | `operations.rs` | the broker behind the HTTP API |
//! | `tool.rs`, `tool/` | the command-line tools |

mod backup;
mod bindings;
mod check;
mod cli;
mod commit_times;
mod config;
mod config_tool;
mod descriptors;
mod health_store;
mod jwt;
mod ldap;
mod listener_section;
mod listeners;
mod log_in_hook;
mod logging;
mod memory;
mod monitoring;
mod operations;
mod process_metrics;
mod queues;
mod reload;
mod security;
mod serve;
mod snapshots;
mod storage;
mod tool;

use std::io::Write;
use std::process::ExitCode;

use cli::{Command, UserArgs, UserCommand};

fn main() -> ExitCode {
    let outcome = match cli::parse() {
        Command::Serve(args) => serve::serve(&args),
        Command::Pub(args) => return tool::publish(&args),
        Command::Sub(args) => return tool::subscribe(&args),
        Command::Topic(args) => return tool::topic(&args),
        Command::Produce(args) => return tool::produce(&args),
        Command::Consume(args) => return tool::consume(&args),
        Command::Group(args) => return tool::group(&args),
        Command::Queue(args) => return tool::queue(&args),
        Command::Binding(args) => return tool::binding(&args),
        Command::User(args) => return run_user(&args),
        Command::Key(args) => return tool::key(&args),
        Command::Acl(args) => return tool::acl(&args),
        Command::Quota(args) => return tool::quota(&args),
        Command::Ban(args) => return tool::ban(&args),
        Command::Config(args) => return config_tool::run(&args),
        Command::Cert(args) => return tool::cert(&args),
        Command::Monitoring(args) => monitoring::run(&args.command),
        Command::Bench(command) => return tool::bench(&command),
        Command::Backup(args) => backup::run_backup(&args),
        Command::Restore(args) => backup::run_restore(&args),
        Command::Verify(args) => return check::run_verify(&args),
        Command::Repair(args) => return check::run_repair(&args),
        Command::MetricsReference => print(&process_metrics::reference()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mainstem: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_user(args: &UserArgs) -> ExitCode {
    match &args.command {
        UserCommand::Add { name, password, role, data: Some(data) } => {
            tool::add_user(data, name, password, role)
        }
        _ => tool::user(args),
    }
}

fn print(page: &str) -> Result<(), String> {
    std::io::stdout().write_all(page.as_bytes()).map_err(|error| format!("stdout: {error}"))
}
