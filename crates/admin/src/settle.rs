//! `POST …/ack`, `…/nack`, `…/reject`, `…/extend`: what becomes of messages that a consumer has.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use mainstem_queue::{Answered, DEFAULT_GROUP, Receipt, Refusal, Reply, Request, Settlement, Verdict};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::input::{Asked, At, Json, Several, within};
use crate::problem::Problem;
use crate::receive::LEASE_MS_MAX;
use crate::routes::answer;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Query {
    group: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settled {
    receipts: Several<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Failed {
    receipts: Several<String>,
    delay_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Extended {
    receipts: Several<String>,
    lease_ms: u64,
}

pub(crate) async fn ack(
    State(app): State<App>,
    At(queue): At<String>,
    Asked(query): Asked<Query>,
    Json(body): Json<Settled>,
) -> Result<Response, Problem> {
    settle(&app, &queue, query, body.receipts, Verdict::Ack).await
}

pub(crate) async fn reject(
    State(app): State<App>,
    At(queue): At<String>,
    Asked(query): Asked<Query>,
    Json(body): Json<Settled>,
) -> Result<Response, Problem> {
    settle(&app, &queue, query, body.receipts, Verdict::Reject).await
}

pub(crate) async fn nack(
    State(app): State<App>,
    At(queue): At<String>,
    Asked(query): Asked<Query>,
    Json(body): Json<Failed>,
) -> Result<Response, Problem> {
    if let Some(delay_ms) = body.delay_ms {
        within("delay_ms", delay_ms, 0..=LEASE_MS_MAX)?;
    }
    settle(&app, &queue, query, body.receipts, Verdict::Nack(body.delay_ms)).await
}

pub(crate) async fn extend(
    State(app): State<App>,
    At(queue): At<String>,
    Asked(query): Asked<Query>,
    Json(body): Json<Extended>,
) -> Result<Response, Problem> {
    let lease_ms = within("lease_ms", body.lease_ms, 1..=LEASE_MS_MAX)?;
    settle(&app, &queue, query, body.receipts, Verdict::Extend(lease_ms)).await
}

async fn settle(
    app: &App,
    queue: &str,
    query: Query,
    Several(receipts): Several<String>,
    verdict: Verdict,
) -> Result<Response, Problem> {
    let mut settlements = Vec::with_capacity(receipts.len());
    for text in &receipts {
        let receipt = parse_receipt(text);
        let receipt = receipt.ok_or_else(|| Problem::invalid(format!("{text:?} is no receipt")))?;
        settlements.push(Settlement { receipt, verdict });
    }
    let group = query.group.as_deref().unwrap_or(DEFAULT_GROUP).into();
    let reply = app.ask(queue, Request::Settle { group, settlements }).await?;
    let Reply::Settled(outcomes) = reply else { return Err(Problem::unanswered()) };
    let results = receipts.iter().zip(&outcomes).map(|(receipt, outcome)| show(receipt, outcome));
    let results = Value::Array(results.collect());
    match outcomes.as_slice() {
        [Err(refusal)] => Err(Problem::from(refusal)),
        // Nothing has become of any, and for another reason than that it came too late.
        [Err(refusal), rest @ ..] if *refusal != Refusal::Stale && rest.iter().all(Result::is_err) => {
            Err(Problem::from(refusal).with_results(results))
        }
        _ => Ok(answer(StatusCode::OK, &json!({ "results": results }))),
    }
}

fn show(receipt: &str, outcome: &Answered<()>) -> Value {
    match outcome {
        Ok(()) => json!({ "receipt": receipt, "outcome": "ok" }),
        Err(Refusal::Stale) => json!({ "receipt": receipt, "outcome": "stale" }),
        Err(refusal) => {
            json!({ "receipt": receipt, "outcome": "refused", "problem": Problem::from(refusal).json() })
        }
    }
}

/// `OFFSET-COUNT-LIFE`, as [`show_receipt`] writes it.
fn parse_receipt(text: &str) -> Option<Receipt> {
    let (offset, rest) = text.split_once('-')?;
    let (count, life) = rest.split_once('-')?;
    let life = u32::from_str_radix(life, 16).ok()?;
    Some(Receipt { offset: offset.parse().ok()?, count: count.parse().ok()?, life })
}

/// What a consumer settles a delivery with.
pub(crate) fn show_receipt(receipt: Receipt) -> String {
    let Receipt { offset, count, life } = receipt;
    format!("{offset}-{count}-{life:08x}")
}
