//! Queues themselves: made, shown, changed, emptied, removed; and their groups.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use mainstem_queue::{DEFAULT_GROUP, GroupInfo, Info, Message, Refusal, ReplayFrom, Reply, Request};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::app::{Answer, App};
use crate::input::{Asked, At, BATCH_MAX, Json, within};
use crate::problem::Problem;
use crate::record;
use crate::routes::answer;

/// Messages that are shown if nobody says how many.
const PEEK_DEFAULT: u64 = 10;

/// Queues that are asked at once how they are.
const ASKED_AT_ONCE: usize = 256;

type Settings = BTreeMap<String, Value>;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ListQuery {
    info: bool,
}

pub(crate) async fn list(
    State(app): State<App>,
    Asked(query): Asked<ListQuery>,
) -> Result<Response, Problem> {
    let queues: Vec<Value> = if query.info {
        let show = |(name, told): (Arc<str>, Result<Info, Problem>)| match told {
            Ok(info) => show_info(info),
            Err(problem) => json!({ "name": name.as_ref(), "problem": problem.json() }),
        };
        all(&app).await.into_iter().map(show).collect()
    } else {
        app.broker().queues().iter().map(|name| json!({ "name": name.as_ref() })).collect()
    };
    Ok(answer(StatusCode::OK, &json!({ "queues": queues })))
}

/// How each queue is, by name, or why it cannot say so. Many are asked before the first one is waited for.
pub(crate) async fn all(app: &App) -> Vec<(Arc<str>, Result<Info, Problem>)> {
    let names = app.broker().queues();
    let mut told = Vec::with_capacity(names.len());
    for names in names.chunks(ASKED_AT_ONCE) {
        let asked: Vec<Answer> = names.iter().map(|name| app.begin(name, Request::Info)).collect();
        for (name, answer) in names.iter().zip(asked) {
            match answer.wait(Duration::ZERO).await.and_then(info) {
                // It has gone in the meantime.
                Err(problem) if problem == Problem::from(&Refusal::UnknownQueue) => {}
                outcome => told.push((Arc::clone(name), outcome)),
            }
        }
    }
    told
}

pub(crate) async fn show(State(app): State<App>, At(queue): At<String>) -> Result<Response, Problem> {
    let info = info(app.ask(&queue, Request::Info).await?)?;
    Ok(answer(StatusCode::OK, &show_info(info)))
}

pub(crate) async fn create(
    State(app): State<App>,
    At(queue): At<String>,
    Json(settings): Json<Settings>,
) -> Result<Response, Problem> {
    let is_there = app.broker().queues().iter().any(|name| **name == *queue);
    app.ask(&queue, Request::Create { settings: pairs(settings)? }).await?;
    let info = info(app.ask(&queue, Request::Info).await?)?;
    Ok(answer(if is_there { StatusCode::OK } else { StatusCode::CREATED }, &show_info(info)))
}

pub(crate) async fn configure(
    State(app): State<App>,
    At(queue): At<String>,
    Json(settings): Json<Settings>,
) -> Result<Response, Problem> {
    app.ask(&queue, Request::Configure { settings: pairs(settings)? }).await?;
    let info = info(app.ask(&queue, Request::Info).await?)?;
    Ok(answer(StatusCode::OK, &show_info(info)))
}

pub(crate) async fn delete(State(app): State<App>, At(queue): At<String>) -> Result<Response, Problem> {
    app.ask(&queue, Request::Delete).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PeekQuery {
    group: Option<String>,
    from: u64,
    max: Option<u64>,
}

pub(crate) async fn peek(
    State(app): State<App>,
    At(queue): At<String>,
    Asked(query): Asked<PeekQuery>,
) -> Result<Response, Problem> {
    let max = within("max", query.max.unwrap_or(PEEK_DEFAULT), 1..=BATCH_MAX as u64)?;
    let group = query.group.as_deref().unwrap_or(DEFAULT_GROUP).into();
    let request = Request::Peek { group, from: query.from, max: max as u32 };
    let Reply::Peeked(messages) = app.ask(&queue, request).await? else {
        return Err(Problem::unanswered());
    };
    let messages: Vec<Value> = messages.iter().map(show_message).collect();
    Ok(answer(StatusCode::OK, &json!({ "messages": messages })))
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PurgeQuery {
    group: Option<String>,
}

pub(crate) async fn purge(
    State(app): State<App>,
    At(queue): At<String>,
    Asked(query): Asked<PurgeQuery>,
) -> Result<Response, Problem> {
    let group = query.group.map(Into::into);
    count(&app.ask(&queue, Request::Purge { group }).await?)
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RedriveQuery {
    max: Option<u64>,
}

pub(crate) async fn redrive(
    State(app): State<App>,
    At(queue): At<String>,
    Asked(query): Asked<RedriveQuery>,
) -> Result<Response, Problem> {
    let max = query.max.unwrap_or(u64::MAX);
    count(&app.ask(&queue, Request::Redrive { max }).await?)
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Replay {
    from_offset: Option<u64>,
    from_time_ms: Option<u64>,
}

pub(crate) async fn replay(
    State(app): State<App>,
    At((queue, group)): At<(String, String)>,
    Json(body): Json<Replay>,
) -> Result<Response, Problem> {
    let from = match (body.from_offset, body.from_time_ms) {
        (Some(offset), None) => ReplayFrom::Offset(offset),
        (None, Some(time_ms)) => ReplayFrom::Time(time_ms),
        _ => return Err(Problem::invalid("either from_offset or from_time_ms is needed")),
    };
    count(&app.ask(&queue, Request::Replay { group: group.into(), from }).await?)
}

pub(crate) async fn remove_group(
    State(app): State<App>,
    At((queue, group)): At<(String, String)>,
) -> Result<Response, Problem> {
    app.ask(&queue, Request::RemoveGroup { group: group.into() }).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn count(reply: &Reply) -> Result<Response, Problem> {
    let Reply::Count(count) = reply else { return Err(Problem::unanswered()) };
    Ok(answer(StatusCode::OK, &json!({ "count": count })))
}

fn info(reply: Reply) -> Result<Info, Problem> {
    if let Reply::Info(info) = reply { Ok(*info) } else { Err(Problem::unanswered()) }
}

/// Settings as queues have them. JSON has underscores in their names; hyphens are taken too.
fn pairs(settings: Settings) -> Result<Vec<(String, String)>, Problem> {
    let pair = |(name, value): (String, Value)| {
        let value = match value {
            Value::String(text) => text,
            Value::Number(number) => number.to_string(),
            Value::Bool(is_so) => is_so.to_string(),
            _ => return Err(Problem::invalid(format!("{name}: it must be a string, a number or a boolean"))),
        };
        Ok((name.replace('_', "-"), value))
    };
    settings.into_iter().map(pair).collect()
}

/// A setting as JSON has it: numbers and booleans as such.
fn show_setting((name, value): (String, String)) -> (String, Value) {
    let is_text = matches!(name.as_str(), "dead-letter-queue" | "durability" | "overflow" | "start");
    let shown = if is_text { None } else { serde_json::from_str(&value).ok() };
    (name.replace('-', "_"), shown.unwrap_or(Value::String(value)))
}

fn show_info(info: Info) -> Value {
    let settings: Map<String, Value> = info.settings.into_iter().map(show_setting).collect();
    json!({
        "name": info.name,
        "settings": settings,
        "messages": info.messages,
        "bytes": info.bytes,
        "oldest_at": info.oldest_ms,
        "duplicates": info.duplicates,
        "groups": info.groups.iter().map(show_group).collect::<Vec<_>>(),
    })
}

fn show_group(group: &GroupInfo) -> Value {
    json!({
        "name": group.name,
        "ready": group.ready,
        "leased": group.leased,
        "delayed": group.delayed,
        "blocked": group.blocked,
        "leaving": group.leaving,
        "oldest_at": group.oldest_ms,
        "waiting": group.waiting,
        "delivered": group.delivered,
        "redelivered": group.redelivered,
        "acked": group.acked,
        "nacked": group.nacked,
        "dead": group.dead,
    })
}

fn show_message(message: &Message) -> Value {
    let mut map = Map::new();
    map.insert("offset".into(), json!(message.offset));
    map.insert("delivery_count".into(), json!(message.count));
    map.insert("state".into(), json!(message.state));
    record::show(&message.payload.record(), &mut map);
    Value::Object(map)
}
