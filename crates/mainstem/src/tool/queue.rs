//! `mainstem queue`, over HTTP.
//!
//! | file | contents |
//! |---|---|
//! | `manage.rs` | creating, showing, purging and deleting queues |
//! | `send.rs`, `receive.rs` | sending and receiving messages |
//! | `message.rs` | output of messages |

mod manage;
mod message;
mod receive;
mod send;

use crate::cli::{QueueArgs, QueueCommand};
use crate::tool::failure::Failure;
use crate::tool::http::Http;

/// Runs the subcommand.
///
/// # Errors
/// If the broker does not answer or returns an error.
pub(super) fn run(args: &QueueArgs) -> Result<(), Failure> {
    let http = Http::new(&args.http)?;
    match &args.command {
        QueueCommand::Create { queue, set } => manage::create(&http, queue, set),
        QueueCommand::Configure { queue, set } => manage::configure(&http, queue, set),
        QueueCommand::List => manage::list(&http),
        QueueCommand::Info { queue, json } => manage::info(&http, queue, *json),
        QueueCommand::Peek(args) => manage::peek(&http, args),
        QueueCommand::Purge { queue, group } => manage::purge(&http, queue, group.as_deref()),
        QueueCommand::Redrive { queue, max } => manage::redrive(&http, queue, *max),
        QueueCommand::Replay(args) => manage::replay(&http, args),
        QueueCommand::RemoveGroup { queue, group } => manage::remove_group(&http, queue, group),
        QueueCommand::Delete { queue } => manage::delete(&http, queue),
        QueueCommand::Send(args) => send::run(&http, args),
        QueueCommand::Receive(args) => receive::run(&http, args),
    }
}
