//! `/v1/queues`: creates, shows, configures, purges and deletes queues, and manages their groups.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use mainstem_queue_core::{
    Config, DEFAULT_GROUP, GroupInfo, Info, PeekedMessage, QueueError, Redriven, ReplayFrom, Reply, Request,
    TIME_MS_MAX,
};
use mainstem_security::{Action, ChangedSettings, ResourceKind};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::access::Caller;
use crate::app::{App, PendingReply};
use crate::input::{
    BATCH_MAX, INTEGER_MAX, JsonBody, Parameters, Params, PathParams, QueryParams, check_group,
    check_optional, check_range, integer, text, whole,
};
use crate::problem::Problem;
use crate::record;
use crate::response::json_response;

/// Number of messages to return if the query does not set `max`.
const PEEK_DEFAULT: u64 = 10;

/// Maximum number of info requests in flight.
const INFO_REQUESTS_MAX: usize = 256;

/// The setting that names the destination of dead letters.
const DEAD_LETTER_QUEUE: &str = "dead-letter-queue";

type Settings = BTreeMap<String, Value>;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ListQuery {
    info: bool,
}

pub(crate) async fn list(
    State(app): State<App>,
    QueryParams(query): QueryParams<ListQuery>,
) -> Result<Response, Problem> {
    let queues: Vec<Value> = if query.info {
        let show = |(name, result): (Arc<str>, Result<Info, Problem>)| match result {
            Ok(info) => show_info(info),
            Err(problem) => json!({ "name": name.as_ref(), "problem": problem.json() }),
        };
        info_of_all(&app).await.into_iter().map(show).collect()
    } else {
        app.broker().queues().iter().map(|name| json!({ "name": name.as_ref() })).collect()
    };
    Ok(json_response(StatusCode::OK, &json!({ "queues": queues })))
}

/// Returns the state of each queue, sorted by name, or why it cannot be read. Up to [`INFO_REQUESTS_MAX`] requests are
/// in flight at the same time.
pub(crate) async fn info_of_all(app: &App) -> Vec<(Arc<str>, Result<Info, Problem>)> {
    let names = app.broker().queues();
    let mut results = Vec::with_capacity(names.len());
    for names in names.chunks(INFO_REQUESTS_MAX) {
        let pending: Vec<PendingReply> = names.iter().map(|name| app.submit(name, Request::Info)).collect();
        for (name, reply) in names.iter().zip(pending) {
            match reply.wait(Duration::ZERO).await.and_then(info) {
                // The queue was deleted in the meantime.
                Err(problem) if problem == Problem::from(&QueueError::UnknownQueue) => {}
                result => results.push((Arc::clone(name), result)),
            }
        }
    }
    results
}

pub(crate) async fn show(
    State(app): State<App>,
    PathParams(queue): PathParams<String>,
) -> Result<Response, Problem> {
    let info = info(app.request(&queue, Request::Info).await?)?;
    Ok(json_response(StatusCode::OK, &show_info(info)))
}

pub(crate) async fn create(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    PathParams(queue): PathParams<String>,
    JsonBody(settings): JsonBody<Settings>,
) -> Result<Response, Problem> {
    let settings = pairs(settings)?;
    check_dead_letters(&app, &caller, &settings)?;
    let change = {
        let app = app.clone();
        async move {
            let exists = app.broker().queues().iter().any(|name| **name == *queue);
            app.change(&queue, Request::Create { settings: settings.clone() }).await?;
            let info = app.change(&queue, Request::Info).await.and_then(info);
            if !exists {
                caller.note(&app, "create-queue", &queue, None, Some(settings_after(&info, settings)));
            }
            let status = if exists { StatusCode::OK } else { StatusCode::CREATED };
            Ok(json_response(status, &show_info(info?)))
        }
    };
    app.carry_out(change).await
}

pub(crate) async fn configure(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    PathParams(queue): PathParams<String>,
    JsonBody(settings): JsonBody<Settings>,
) -> Result<Response, Problem> {
    if settings.is_empty() {
        return Err(Problem::invalid("the body has no settings"));
    }
    let settings = pairs(settings)?;
    check_dead_letters(&app, &caller, &settings)?;
    let change = {
        let app = app.clone();
        async move {
            let before = settings_before(&app, &queue).await;
            app.change(&queue, Request::Configure { settings: settings.clone() }).await?;
            let info = app.change(&queue, Request::Info).await.and_then(info);
            caller.note(&app, "configure-queue", &queue, before, Some(settings_after(&info, settings)));
            Ok(json_response(StatusCode::OK, &show_info(info?)))
        }
    };
    app.carry_out(change).await
}

pub(crate) async fn delete(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    PathParams(queue): PathParams<String>,
) -> Result<Response, Problem> {
    let change = {
        let app = app.clone();
        async move {
            let before = settings_before(&app, &queue).await;
            app.change(&queue, Request::Delete).await?;
            caller.note(&app, "delete-queue", &queue, before, None);
            Ok(StatusCode::NO_CONTENT.into_response())
        }
    };
    app.carry_out(change).await
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PeekQuery {
    #[serde(deserialize_with = "text")]
    group: Option<String>,
    from: u64,
    #[serde(deserialize_with = "integer")]
    max: Option<u64>,
}

pub(crate) async fn peek(
    State(app): State<App>,
    PathParams(queue): PathParams<String>,
    QueryParams(query): QueryParams<PeekQuery>,
) -> Result<Response, Problem> {
    let max = check_range("max", query.max.unwrap_or(PEEK_DEFAULT), 1..=BATCH_MAX as u64)?;
    let group = query.group.as_deref().unwrap_or(DEFAULT_GROUP).into();
    let from = check_range("from", query.from, 0..=INTEGER_MAX)?;
    let request = Request::Peek { group, from, max: max as u32 };
    let Reply::Peeked(messages) = app.request(&queue, request).await? else {
        return Err(Problem::unanswered());
    };
    let messages: Vec<Value> = messages.iter().map(show_message).collect();
    Ok(json_response(StatusCode::OK, &json!({ "messages": messages })))
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PurgeQuery {
    #[serde(deserialize_with = "text")]
    group: Option<String>,
}

impl Parameters for PurgeQuery {
    fn check(&self) -> Result<(), Problem> {
        check_group(self.group.as_deref())
    }

    fn or(self, defaults: Self) -> Self {
        Self { group: self.group.or(defaults.group) }
    }
}

pub(crate) async fn purge(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    PathParams(queue): PathParams<String>,
    Params(query): Params<PurgeQuery>,
) -> Result<Response, Problem> {
    let change = {
        let app = app.clone();
        async move {
            let group = query.group.as_deref().map(Into::into);
            let purged = app.change(&queue, Request::Purge { group }).await?;
            let group = query.group.map(|group| ("group".to_owned(), group));
            caller.note(&app, "purge-queue", &queue, None, group.map(|group| [group].into()));
            count(&purged)
        }
    };
    app.carry_out(change).await
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RedriveQuery {
    #[serde(deserialize_with = "integer")]
    max: Option<u64>,
}

impl Parameters for RedriveQuery {
    fn check(&self) -> Result<(), Problem> {
        check_optional("max", self.max, 0..=INTEGER_MAX)
    }

    fn or(self, defaults: Self) -> Self {
        Self { max: self.max.or(defaults.max) }
    }
}

pub(crate) async fn redrive(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    PathParams(queue): PathParams<String>,
    Params(query): Params<RedriveQuery>,
) -> Result<Response, Problem> {
    let max = query.max.unwrap_or(u64::MAX);
    let change = {
        let app = app.clone();
        async move {
            let reply = app.change(&queue, Request::Redrive { max }).await?;
            let Reply::Redriven(Redriven { moved, skipped }) = reply else {
                return Err(Problem::unanswered());
            };
            let counts = [("count".to_owned(), moved.to_string())];
            caller.note(&app, "redrive-queue", &queue, None, Some(counts.into()));
            Ok(json_response(StatusCode::OK, &json!({ "count": moved, "skipped": skipped })))
        }
    };
    app.carry_out(change).await
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Replay {
    #[serde(deserialize_with = "integer")]
    from_offset: Option<u64>,
    #[serde(deserialize_with = "integer")]
    from_time_ms: Option<u64>,
}

pub(crate) async fn replay(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    PathParams((queue, group)): PathParams<(String, String)>,
    JsonBody(body): JsonBody<Replay>,
) -> Result<Response, Problem> {
    let from = match (body.from_offset, body.from_time_ms) {
        (Some(offset), None) => ReplayFrom::Offset(check_range("from_offset", offset, 0..=INTEGER_MAX)?),
        (None, Some(time_ms)) => ReplayFrom::Time(check_range("from_time_ms", time_ms, 0..=TIME_MS_MAX)?),
        _ => return Err(Problem::invalid("set either from_offset or from_time_ms")),
    };
    let what = match from {
        ReplayFrom::Offset(offset) => ("from-offset".to_owned(), offset.to_string()),
        ReplayFrom::Time(time_ms) => ("from-time-ms".to_owned(), time_ms.to_string()),
    };
    let change = {
        let app = app.clone();
        async move {
            let replayed = app.change(&queue, Request::Replay { group: group.as_str().into(), from }).await?;
            let after = [("group".to_owned(), group), what].into();
            caller.note(&app, "replay-queue", &queue, None, Some(after));
            count(&replayed)
        }
    };
    app.carry_out(change).await
}

pub(crate) async fn remove_group(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    PathParams((queue, group)): PathParams<(String, String)>,
) -> Result<Response, Problem> {
    let change = {
        let app = app.clone();
        async move {
            app.change(&queue, Request::RemoveGroup { group: group.as_str().into() }).await?;
            let before = [("group".to_owned(), group)].into();
            caller.note(&app, "remove-queue-group", &queue, Some(before), None);
            Ok(StatusCode::NO_CONTENT.into_response())
        }
    };
    app.carry_out(change).await
}

/// Checks that the caller may send to the dead-letter queue that these settings name: dead letters go there later,
/// without a client whose rights could be checked then.
fn check_dead_letters(app: &App, caller: &Caller, settings: &[(String, String)]) -> Result<(), Problem> {
    let named = settings.iter().filter(|(name, to)| name == DEAD_LETTER_QUEUE && !to.is_empty());
    for (_, to) in named {
        let (action, kind) = if app.broker().is_topic(to) {
            (Action::Produce, ResourceKind::Topic)
        } else {
            (Action::Send, ResourceKind::Queue)
        };
        caller.check(app, action, kind, to)?;
    }
    Ok(())
}

/// The settings of a queue for the audit log.
fn audited(info: &Info) -> ChangedSettings {
    info.settings.iter().cloned().collect()
}

/// The settings of a queue after a change, for the audit log: those of the request if they cannot be read.
fn settings_after(info: &Result<Info, Problem>, changed: Vec<(String, String)>) -> ChangedSettings {
    info.as_ref().map_or_else(|_| changed.into_iter().collect(), audited)
}

/// The settings of a queue before a change, for the audit log; `None` if they cannot be read, which must not prevent
/// that the queue is deleted.
async fn settings_before(app: &App, queue: &str) -> Option<ChangedSettings> {
    app.broker().security()?;
    let info = info(app.request(queue, Request::Info).await.ok()?).ok()?;
    Some(audited(&info))
}

fn count(reply: &Reply) -> Result<Response, Problem> {
    let Reply::Count(count) = reply else { return Err(Problem::unanswered()) };
    Ok(json_response(StatusCode::OK, &json!({ "count": count })))
}

fn info(reply: Reply) -> Result<Info, Problem> {
    if let Reply::Info(info) = reply { Ok(*info) } else { Err(Problem::unanswered()) }
}

/// Settings as queues expect them: names with hyphens, values as text. JSON names have underscores; hyphens are
/// accepted too.
fn pairs(settings: Settings) -> Result<Vec<(String, String)>, Problem> {
    let known = Config::default().pairs();
    let pair = |(name, value): (String, Value)| {
        let setting = name.replace('_', "-");
        // The queue rejects settings that it does not know.
        let is_text = is_text(&setting) || !known.contains_key(setting.as_str());
        let value = match value {
            Value::String(text) if is_text => text,
            Value::Number(number) if !is_text => {
                let whole = number.as_f64().filter(|_| number.is_f64()).and_then(whole);
                whole.map_or_else(|| number.to_string(), |whole| whole.to_string())
            }
            Value::Bool(flag) if !is_text => flag.to_string(),
            _ => {
                let kind = if is_text { "a string" } else { "a number or a boolean" };
                return Err(Problem::invalid(format!("{name}: must be {kind}")));
            }
        };
        Ok((setting, value))
    };
    settings.into_iter().map(pair).collect()
}

/// Whether the value of a setting is text. Others are numbers or booleans.
fn is_text(setting: &str) -> bool {
    matches!(setting, "dead-letter-queue" | "durability" | "overflow" | "start")
}

/// A setting as a JSON field: numbers and booleans become JSON numbers and booleans.
fn show_setting((name, value): (String, String)) -> (String, Value) {
    let shown = if is_text(&name) { None } else { serde_json::from_str(&value).ok() };
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

fn show_message(message: &PeekedMessage) -> Value {
    let mut map = Map::new();
    map.insert("offset".into(), json!(message.offset));
    map.insert("delivery_count".into(), json!(message.count));
    map.insert("state".into(), json!(message.state));
    record::show(&message.payload.record(), &mut map);
    Value::Object(map)
}
