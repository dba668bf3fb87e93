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
    let options = options(query)?;
    let messages = if raw.is_json {
        batch(&raw.bytes, &options)?
    } else {
        let message = options.message().map_err(Problem::invalid)?;
        vec![NewMessage { value: raw.bytes.to_vec(), ..message }]
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

fn batch(bytes: &[u8], options: &Draft) -> Result<Vec<NewMessage>, Problem> {
    let Batch { messages: BoundedList(drafts) } = parse(bytes)?;
    if options.dedup_id.is_some() && drafts.len() > 1 {
        // All but the first would be discarded as duplicates.
        let detail = "dedup_id: in the query, it is for one message; in a batch, set it per message";
        return Err(Problem::invalid(detail));
    }
    let message = |(index, JsonObject(draft)): (usize, JsonObject<Draft>)| {
        let message = draft.or(options).message();
        message.map_err(|what| Problem::invalid(format!("messages[{index}]: {what}")))
    };
    drafts.into_iter().enumerate().map(message).collect()
}

/// The options in the query: those of a raw body, or of each message of a batch that does not set them itself.
fn options(query: Vec<(String, String)>) -> Result<Draft, Problem> {
    let mut options = Draft::default();
    for (name, value) in query {
        let number =
            || value.parse().map_err(|_| Problem::malformed(format!("{name}: {value:?} is no integer")));
        let is_repeated = match name.as_str() {
            "key" => options.key.replace(value).is_some(),
            "dedup_id" => options.dedup_id.replace(value).is_some(),
            "priority" => options.priority.replace(number()?).is_some(),
            "delay_ms" => options.delay_ms.replace(number()?).is_some(),
            "deliver_at" => options.deliver_at.replace(number()?).is_some(),
            "ttl_ms" => options.ttl_ms.replace(number()?).is_some(),
            "header" => {
                let (header, value) =
                    value.split_once('=').ok_or_else(|| Problem::invalid("header: must be NAME=VALUE"))?;
                let values = options.headers.entry(header).or_insert_with(|| json!([]));
                if let Value::Array(values) = values {
                    values.push(json!(value));
                }
                false
            }
            _ => return Err(Problem::malformed(format!("{name}: unknown parameter"))),
        };
        if is_repeated {
            return Err(Problem::malformed(format!("{name}: occurs twice")));
        }
    }
    Ok(options)
}

fn show(outcome: &ItemResult<u64>) -> Value {
    match outcome {
        Ok(offset) => json!({ "offset": offset }),
        Err(error) => json!({ "problem": Problem::from(error).json() }),
    }
}
