//! `POST …/messages`: a batch of messages as JSON, or one message as it is.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use mainstem_queue::{Answered, NewMessage, Reply, Request};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::input::{Asked, At, Raw, Several, parse};
use crate::problem::Problem;
use crate::record::Draft;
use crate::routes::answer;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Batch {
    messages: Several<Draft>,
}

pub(crate) async fn send(
    State(app): State<App>,
    At(queue): At<String>,
    Asked(query): Asked<Vec<(String, String)>>,
    raw: Raw,
) -> Result<Response, Problem> {
    let messages = if raw.is_json {
        if let Some((name, _)) = query.first() {
            let detail = format!("{name}: what JSON messages ask for stands in the body, not in the query");
            return Err(Problem::invalid(detail));
        }
        batch(&raw.bytes)?
    } else {
        vec![single(&raw.bytes, query)?]
    };
    let Reply::Sent(outcomes) = app.ask(&queue, Request::Send(messages)).await? else {
        return Err(Problem::unanswered());
    };
    let results = Value::Array(outcomes.iter().map(show).collect());
    let is_kept = |outcome: &Answered<u64>| outcome.is_ok();
    match outcomes.as_slice() {
        [Err(refusal)] => Err(Problem::from(refusal)),
        [Err(refusal), rest @ ..] if !rest.iter().any(is_kept) => {
            Err(Problem::from(refusal).with_results(results))
        }
        outcomes => {
            let is_whole = outcomes.iter().all(is_kept);
            let status = if is_whole { StatusCode::CREATED } else { StatusCode::MULTI_STATUS };
            Ok(answer(status, &json!({ "results": results })))
        }
    }
}

fn batch(bytes: &[u8]) -> Result<Vec<NewMessage>, Problem> {
    let Batch { messages: Several(drafts) } = parse(bytes)?;
    let message = |(index, draft): (usize, Draft)| {
        draft.message().map_err(|what| Problem::invalid(format!("messages[{index}]: {what}")))
    };
    drafts.into_iter().enumerate().map(message).collect()
}

/// One message, of which the query says more.
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
                    value.split_once('=').ok_or_else(|| Problem::invalid("header: it must be NAME=VALUE"))?;
                headers.push((header.to_owned(), json!(value)));
            }
            _ => return Err(Problem::invalid(format!("{name}: there is no such parameter"))),
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

fn show(outcome: &Answered<u64>) -> Value {
    match outcome {
        Ok(offset) => json!({ "offset": offset }),
        Err(refusal) => json!({ "problem": Problem::from(refusal).json() }),
    }
}
