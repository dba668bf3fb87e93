//! `mainstem queue receive`.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ureq::http::Method;

use super::manage::{elements, label};
use super::message::Output;
use crate::cli::ReceiveArgs;
use crate::tool::failure::Failure;
use crate::tool::http::{Http, escape, path};

/// Longest time that one request waits.
const WAIT: Duration = Duration::from_mins(1);

/// Takes messages, prints them, acknowledges them.
///
/// # Errors
/// If the broker refuses, or time runs out before there were as many as asked for.
pub(super) fn run(http: &Http, args: &ReceiveArgs) -> Result<(), Failure> {
    let mut output = Output::new(&args.output)?;
    let what = label(&args.queue);
    let mut left = args.count;
    let mut deadline = args.wait.map(|wait| Instant::now() + wait);
    while left != Some(0) && !output.out.is_gone() {
        let wait = deadline.map_or(WAIT, |deadline| deadline.saturating_duration_since(Instant::now()));
        let wait = wait.min(WAIT);
        let path = path(&args.queue, &query(args, left, wait));
        let answer = http.ask_for(&what, Method::POST, &path, None, wait)?;
        let messages = elements(&answer["messages"]);
        if messages.is_empty() {
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return if left.is_none() { Ok(()) } else { Err(Failure::timed_out()) };
            }
            continue;
        }
        for message in messages {
            output.print(&args.queue, message)?;
        }
        output.out.flush()?;
        // What nobody has read comes again.
        if !args.no_ack && !output.out.is_gone() {
            ack(http, args, messages)?;
        }
        left = left.map(|left| left.saturating_sub(messages.len() as u64));
        deadline = args.wait.map(|wait| Instant::now() + wait);
    }
    Ok(())
}

fn query(args: &ReceiveArgs, left: Option<u64>, wait: Duration) -> String {
    let max = left.map_or(args.max, |left| left.min(args.max));
    let lease = args.lease.map(|lease| format!("&lease_ms={}", lease.as_millis())).unwrap_or_default();
    let group = escape(&args.group);
    format!("/receive?group={group}&max={max}&wait_ms={}{lease}", wait.as_millis())
}

fn ack(http: &Http, args: &ReceiveArgs, messages: &[Value]) -> Result<(), Failure> {
    let receipts: Vec<&Value> = messages.iter().map(|message| &message["receipt"]).collect();
    let path = path(&args.queue, &format!("/ack?group={}", escape(&args.group)));
    let body = json!({ "receipts": receipts });
    let answer = http.ask(&label(&args.queue), Method::POST, &path, Some(&body))?;
    let lost = elements(&answer["results"]).iter().filter(|result| result["outcome"] != "ok").count();
    if lost == 0 {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{}: {lost} messages were printed too late to be acknowledged, and come again",
        label(&args.queue)
    )))
}
