//! `mainstem queue receive`.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ureq::http::Method;

use super::manage::{elements, label};
use super::message::Output;
use crate::cli::ReceiveArgs;
use crate::tool::failure::Failure;
use crate::tool::http::{Http, escape, path};

/// Longest wait of one request.
const WAIT_MAX: Duration = Duration::from_mins(1);

/// Receives, prints and acknowledges messages.
///
/// # Errors
/// If the broker returns an error, or `-W` expires before `-c` messages were received.
pub(super) fn run(http: &Http, args: &ReceiveArgs) -> Result<(), Failure> {
    let mut output = Output::new(&args.output)?;
    let context = label(&args.queue);
    let mut remaining = args.count;
    let mut deadline = args.wait.map(|wait| Instant::now() + wait);
    while remaining != Some(0) && !output.out.is_closed() {
        let wait = deadline.map_or(WAIT_MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        let wait = wait.min(WAIT_MAX);
        let path = path(&args.queue, &query(args, remaining, wait));
        let response = http.request_with_wait(&context, Method::POST, &path, None, wait)?;
        let messages = elements(&response["messages"]);
        if messages.is_empty() {
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return if remaining.is_none() { Ok(()) } else { Err(Failure::timed_out()) };
            }
            continue;
        }
        for message in messages {
            output.print(&args.queue, message)?;
        }
        output.out.flush()?;
        // If standard output is closed, the messages were not read: the broker delivers them again.
        if !args.no_ack && !output.out.is_closed() {
            ack(http, args, messages)?;
        }
        remaining = remaining.map(|remaining| remaining.saturating_sub(messages.len() as u64));
        deadline = args.wait.map(|wait| Instant::now() + wait);
    }
    Ok(())
}

fn query(args: &ReceiveArgs, remaining: Option<u64>, wait: Duration) -> String {
    let max = remaining.map_or(args.max, |remaining| remaining.min(args.max));
    let lease = args.lease.map(|lease| format!("&lease_ms={}", lease.as_millis())).unwrap_or_default();
    let group = escape(&args.group);
    format!("/receive?group={group}&max={max}&wait_ms={}{lease}", wait.as_millis())
}

fn ack(http: &Http, args: &ReceiveArgs, messages: &[Value]) -> Result<(), Failure> {
    let receipts: Vec<&Value> = messages.iter().map(|message| &message["receipt"]).collect();
    let path = path(&args.queue, &format!("/ack?group={}", escape(&args.group)));
    let body = json!({ "receipts": receipts });
    let response = http.request(&label(&args.queue), Method::POST, &path, Some(&body))?;
    let late = elements(&response["results"]).iter().filter(|result| result["outcome"] != "ok").count();
    if late == 0 {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{}: the leases of {late} printed messages ended before they were acknowledged; they are delivered again",
        label(&args.queue)
    )))
}
