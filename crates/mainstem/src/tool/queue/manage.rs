//! `mainstem queue create`, `configure`, `list`, `info`, `peek`, `purge`, `redrive`, `replay`,
//! `remove-group` and `delete`.

use std::time::Duration;

use serde_json::{Value, json};
use ureq::http::Method;

use super::message::Output;
use crate::cli::{PeekArgs, ReplayArgs};
use crate::tool::clock::Moment;
use crate::tool::failure::Failure;
use crate::tool::http::{Http, escape, path};
use crate::tool::table::{Table, print};

pub(super) fn create(http: &Http, queue: &str, set: &[(String, String)]) -> Result<(), Failure> {
    http.request(&label(queue), Method::PUT, &path(queue, ""), Some(&settings(set))).map(drop)
}

pub(super) fn configure(http: &Http, queue: &str, set: &[(String, String)]) -> Result<(), Failure> {
    http.request(&label(queue), Method::PATCH, &path(queue, ""), Some(&settings(set))).map(drop)
}

pub(super) fn delete(http: &Http, queue: &str) -> Result<(), Failure> {
    http.request(&label(queue), Method::DELETE, &path(queue, ""), None).map(drop)
}

/// Columns of `mainstem queue list`.
const COLUMNS: [&str; 8] = ["QUEUE", "MESSAGES", "BYTES", "OLDEST", "GROUPS", "READY", "LEASED", "DELAYED"];

pub(super) fn list(http: &Http) -> Result<(), Failure> {
    let response = http.request("queues", Method::GET, "/v1/queues?info=true", None)?;
    let mut table = Table::new(&COLUMNS);
    for queue in elements(&response["queues"]) {
        if queue["problem"].is_object() {
            let mut row = vec![cell(&queue["name"]), "unavailable".into()];
            row.resize(COLUMNS.len(), "-".into());
            table.push(row);
            continue;
        }
        let groups = elements(&queue["groups"]);
        // Each group receives all messages, so the counts of groups cannot be added: show those of the default group.
        let group = groups.iter().find(|group| group["name"] == "default").unwrap_or(&Value::Null);
        table.push(vec![
            cell(&queue["name"]),
            cell(&queue["messages"]),
            cell(&queue["bytes"]),
            time(&queue["oldest_at"]),
            groups.len().to_string(),
            cell(&group["ready"]),
            cell(&group["leased"]),
            cell(&group["delayed"]),
        ]);
    }
    table.print()
}

pub(super) fn info(http: &Http, queue: &str, as_json: bool) -> Result<(), Failure> {
    let info = http.request(&label(queue), Method::GET, &path(queue, ""), None)?;
    if as_json {
        return print(&format!("{info}\n"));
    }
    let settings = info["settings"].as_object().into_iter().flatten();
    let settings: Vec<String> = settings.map(|(name, value)| format!("{name}={}\n", cell(value))).collect();
    let counts = ["messages", "bytes", "duplicates"].map(|name| format!("{name} {}\n", cell(&info[name])));
    let oldest = time(&info["oldest_at"]);
    let name = cell(&info["name"]);
    print(&format!("queue {name}\n{}{}oldest {oldest}\n\n", settings.concat(), counts.concat()))?;
    let mut table = Table::new(&[
        "GROUP",
        "READY",
        "LEASED",
        "DELAYED",
        "BLOCKED",
        "LEAVING",
        "OLDEST",
        "WAITING",
        "DELIVERED",
        "AGAIN",
        "ACKED",
        "NACKED",
        "DEAD",
    ]);
    for group in elements(&info["groups"]) {
        let counts = ["name", "ready", "leased", "delayed", "blocked", "leaving"];
        let mut row: Vec<String> = counts.iter().map(|name| cell(&group[*name])).collect();
        row.push(time(&group["oldest_at"]));
        let counts = ["waiting", "delivered", "redelivered", "acked", "nacked", "dead"];
        row.extend(counts.iter().map(|name| cell(&group[*name])));
        table.push(row);
    }
    table.print()
}

pub(super) fn peek(http: &Http, args: &PeekArgs) -> Result<(), Failure> {
    let mut output = Output::new(&args.output)?;
    let query = format!("/peek?group={}&from={}&max={}", escape(&args.group), args.from, args.max);
    let response = http.request(&label(&args.queue), Method::GET, &path(&args.queue, &query), None)?;
    for message in elements(&response["messages"]) {
        output.print(&args.queue, message)?;
    }
    output.out.flush()
}

pub(super) fn purge(http: &Http, queue: &str, group: Option<&str>) -> Result<(), Failure> {
    let query = group.map(|group| format!("?group={}", escape(group))).unwrap_or_default();
    count(http, queue, &path(queue, &format!("/purge{query}")), None)
}

pub(super) fn redrive(http: &Http, queue: &str, max: Option<u64>) -> Result<(), Failure> {
    let query = max.map(|max| format!("?max={max}")).unwrap_or_default();
    let path = path(queue, &format!("/redrive{query}"));
    let response = http.request(&label(queue), Method::POST, &path, None)?;
    match response["skipped"].as_u64() {
        None | Some(0) => {}
        Some(skipped) => {
            let which = "dead letters stay: consumers hold them, or an earlier one of their key";
            eprintln!("{}: {skipped} {which}", label(queue));
        }
    }
    print(&format!("{}\n", cell(&response["count"])))
}

pub(super) fn replay(http: &Http, args: &ReplayArgs) -> Result<(), Failure> {
    let from = match (args.from_offset, args.from_time_ms) {
        (Some(offset), _) => json!({ "from_offset": offset }),
        (None, time_ms) => json!({ "from_time_ms": time_ms }),
    };
    let path = path(&args.queue, &format!("/groups/{}/replay", escape(&args.group)));
    count(http, &args.queue, &path, Some(&from))
}

pub(super) fn remove_group(http: &Http, queue: &str, group: &str) -> Result<(), Failure> {
    let path = path(queue, &format!("/groups/{}", escape(group)));
    http.request(&label(queue), Method::DELETE, &path, None).map(drop)
}

/// Sends a request and prints the number of messages in the response.
fn count(http: &Http, queue: &str, path: &str, body: Option<&Value>) -> Result<(), Failure> {
    let response = http.request(&label(queue), Method::POST, path, body)?;
    print(&format!("{}\n", cell(&response["count"])))
}

/// Prefix of error messages.
pub(super) fn label(queue: &str) -> String {
    format!("queue {queue}")
}

pub(super) fn elements(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn settings(set: &[(String, String)]) -> Value {
    let typed = |(key, value): &(String, String)| {
        let number = || value.trim().parse::<u64>().ok().map(|number| json!(number));
        let flag = || value.trim().parse::<bool>().ok().map(|flag| json!(flag));
        let is_text = matches!(
            key.replace('_', "-").as_str(),
            "dead-letter-queue" | "durability" | "overflow" | "start"
        );
        let value =
            if is_text { json!(value) } else { number().or_else(flag).unwrap_or_else(|| json!(value)) };
        (key.clone(), value)
    };
    Value::Object(set.iter().map(typed).collect())
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

/// A time as text, or `-` without one.
fn time(unix_ms: &Value) -> String {
    let moment = unix_ms.as_u64().map(|unix_ms| Moment::at(Duration::from_millis(unix_ms)));
    moment.map_or("-".into(), |moment| moment.iso())
}
