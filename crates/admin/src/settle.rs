//! `POST …/ack`, `…/nack`, `…/reject`, `…/extend`: settles leased messages or extends their leases.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use mainstem_queue_core::{DEFAULT_GROUP, Disposition, ItemResult, QueueError, Reply, Request, Settlement};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::input::{
    BoundedList, JsonBody, LEASE_MS_MAX, PathParams, QueryParams, check_optional, check_range, integer, text,
};
use crate::problem::Problem;
use crate::receipt::parse_receipt;
use crate::response::json_response;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Query {
    #[serde(deserialize_with = "text")]
    group: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReceiptsBody {
    receipts: BoundedList<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NackBody {
    receipts: BoundedList<String>,
    #[serde(deserialize_with = "integer", default)]
    delay_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExtendBody {
    receipts: BoundedList<String>,
    #[serde(deserialize_with = "integer", default)]
    lease_ms: Option<u64>,
}

pub(crate) async fn ack(
    State(app): State<App>,
    PathParams(queue): PathParams<String>,
    QueryParams(query): QueryParams<Query>,
    JsonBody(body): JsonBody<ReceiptsBody>,
) -> Result<Response, Problem> {
    settle(&app, &queue, query, body.receipts, Disposition::Ack).await
}

pub(crate) async fn reject(
    State(app): State<App>,
    PathParams(queue): PathParams<String>,
    QueryParams(query): QueryParams<Query>,
    JsonBody(body): JsonBody<ReceiptsBody>,
) -> Result<Response, Problem> {
    settle(&app, &queue, query, body.receipts, Disposition::Reject).await
}

pub(crate) async fn nack(
    State(app): State<App>,
    PathParams(queue): PathParams<String>,
    QueryParams(query): QueryParams<Query>,
    JsonBody(body): JsonBody<NackBody>,
) -> Result<Response, Problem> {
    check_optional("delay_ms", body.delay_ms, 0..=LEASE_MS_MAX)?;
    settle(&app, &queue, query, body.receipts, Disposition::Nack(body.delay_ms)).await
}

pub(crate) async fn extend(
    State(app): State<App>,
    PathParams(queue): PathParams<String>,
    QueryParams(query): QueryParams<Query>,
    JsonBody(body): JsonBody<ExtendBody>,
) -> Result<Response, Problem> {
    let lease_ms = body.lease_ms.ok_or_else(|| Problem::invalid("lease_ms: missing"))?;
    let lease_ms = check_range("lease_ms", lease_ms, 1..=LEASE_MS_MAX)?;
    settle(&app, &queue, query, body.receipts, Disposition::Extend(lease_ms)).await
}

async fn settle(
    app: &App,
    queue: &str,
    query: Query,
    BoundedList(receipts): BoundedList<String>,
    disposition: Disposition,
) -> Result<Response, Problem> {
    let mut settlements = Vec::with_capacity(receipts.len());
    for text in &receipts {
        let receipt = parse_receipt(text);
        let receipt = receipt.ok_or_else(|| Problem::invalid(format!("{text:?} is not a receipt")))?;
        settlements.push(Settlement { receipt, disposition });
    }
    let group = query.group.as_deref().unwrap_or(DEFAULT_GROUP).into();
    let reply = app.request(queue, Request::Settle { group, settlements }).await?;
    let Reply::Settled(outcomes) = reply else { return Err(Problem::unanswered()) };
    let results = receipts.iter().zip(&outcomes).map(|(receipt, outcome)| show(receipt, outcome));
    let results = Value::Array(results.collect());
    match outcomes.as_slice() {
        [Err(error)] => Err(Problem::from(error)),
        // Every item failed, and not because its lease had ended.
        [Err(error), rest @ ..] if *error != QueueError::Stale && rest.iter().all(Result::is_err) => {
            Err(Problem::from(error).with_results(results))
        }
        _ => Ok(json_response(StatusCode::OK, &json!({ "results": results }))),
    }
}

fn show(receipt: &str, outcome: &ItemResult<()>) -> Value {
    match outcome {
        Ok(()) => json!({ "receipt": receipt, "outcome": "ok" }),
        Err(QueueError::Stale) => json!({ "receipt": receipt, "outcome": "stale" }),
        Err(error) => {
            json!({ "receipt": receipt, "outcome": "refused", "problem": Problem::from(error).json() })
        }
    }
}
