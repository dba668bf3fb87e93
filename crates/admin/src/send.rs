//! `POST …/messages`: sends a batch of messages as JSON, or one message as the raw body.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use mainstem_queue_core::{ItemResult, NewMessage, Reply, Request};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::input::{BoundedList, JsonObject, PathParams, QueryParams, RawBody, parse};
use crate::problem::Problem;
use crate::record::Draft;
use crate::response::json_response;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Batch {
    messages: BoundedList<JsonObject<Draft>>,
}

pub(crate) async fn send(
    State(app): State<App>,
    PathParams(queue): PathParams<String>,
    QueryParams(query): QueryParams<Vec<(String, String)>>,
    raw: RawBody,
) -> Result<Response, Problem> {
    let messages = if raw.is_json {
        if let Some((name, _)) = query.first() {
            let detail =
                format!("{name}: with a JSON body, set this per message in the body, not in the query");
            return Err(Problem::invalid(detail));
        }
        batch(&raw.bytes)?
    } else {
        vec![single(&raw.bytes, query)?]
    };
    let Reply::Sent(outcomes) = app.request(&queue, Request::Send(messages)).await? else {
        return Err(Problem::unanswered());
    };
    let results = Value::Array(outcomes.iter().map(show).collect());
    let is_stored = |outcome: &ItemResult<u64>| outcome.is_ok();
    match outcomes.as_slice() {
        [Err(error)] => Err(Problem::from(error)),
        [Err(error), rest @ ..] if !rest.iter().any(is_stored) => {
            Err(Problem::from(error).with_results(results))
        }
        outcomes => {
            let all_stored = outcomes.iter().all(is_stored);
            let status = if all_stored { StatusCode::CREATED } else { StatusCode::MULTI_STATUS };
            Ok(json_response(status, &json!({ "results": results })))
        }
    }
}

fn batch(bytes: &[u8]) -> Result<Vec<NewMessage>, Problem> {
    let Batch { messages: BoundedList(drafts) } = parse(bytes)?;
    let message = |(index, JsonObject(draft)): (usize, JsonObject<Draft>)| {
        draft.message().map_err(|what| Problem::invalid(format!("messages[{index}]: {what}")))
    };
    drafts.into_iter().enumerate().map(message).collect()
}

/// One message with `body` as its body, and all else from the query.
fn single(body: &[u8], query: Vec<(String, String)>) -> Result<NewMessage, Problem> {
    let mut draft = Draft::default();
    let mut headers: Vec<(String, Value)> = Vec::new();
    for (name, value) in query {
        let number = || value.parse().map(Some).map_err(|_| Problem::invalid(format!("{name}: {value:?}")));
        match name.as_str() {
            "key" => draft.key = Some(value),
            "dedup_id" => draft.dedup_id = Some(value),
            "priority" => draft.priority = number()?,
            "delay_ms" => draft.delay_ms = number()?,
            "deliver_at" => draft.deliver_at = number()?,
            "ttl_ms" => draft.ttl_ms = number()?,
            "header" => {
                let (header, value) =
                    value.split_once('=').ok_or_else(|| Problem::invalid("header: must be NAME=VALUE"))?;
                headers.push((header.to_owned(), json!(value)));
            }
            _ => return Err(Problem::invalid(format!("{name}: unknown parameter"))),
        }
    }
    for (name, value) in headers {
        let all = draft.headers.entry(name).or_insert_with(|| json!([]));
        if let Value::Array(all) = all {
            all.push(value);
        }
    }
    let message = draft.message().map_err(Problem::invalid)?;
    Ok(NewMessage { value: body.to_vec(), ..message })
}

fn show(outcome: &ItemResult<u64>) -> Value {
    match outcome {
        Ok(offset) => json!({ "offset": offset }),
        Err(error) => json!({ "problem": Problem::from(error).json() }),
    }
}
